//! Conflicts of each kind, resolved in each way.

use std::collections::BTreeMap;

use base::InodeId;
use proptest::prelude::*;

use super::laws::{Three, config, steps};
use super::merging::{assert_sound, merge_with, options};
use super::world::{Fs, Seen};
use crate::error::FsError;
use crate::keyspace::image as keys;
use crate::merge::{Policy, Side};
use crate::ops::{self, Home, Refusal, Resolve, Take, locate, making_room};
use crate::record::changed::ChangedPaths;
use crate::record::conflict::Conflict;
use crate::record::inode::InodeRecord;

type Tree = BTreeMap<String, Seen>;

type Step = fn(&mut Fs) -> Result<(), FsError>;

const OURS: Take = Take::Side(Side::Ours);
const THEIRS: Take = Take::Side(Side::Theirs);

/// A merge with conflicts, and what becomes of it.
struct World {
    ours: Fs,
    theirs: Fs,
    result: Fs,
}

impl World {
    fn new(base: Step, ours: Step, theirs: Step) -> Self {
        let mut from = Fs::new();
        base(&mut from).unwrap();
        let (mut left, mut right) = (from.fork(2), from.fork(3));
        ours(&mut left).unwrap();
        theirs(&mut right).unwrap();
        Self::of(Three {
            base: from,
            ours: left,
            theirs: right,
        })
    }

    fn of(three: Three) -> Self {
        let Three {
            mut base,
            mut ours,
            mut theirs,
        } = three;
        let options = options(Policy::KeepBoth);
        let (result, _) = merge_with(&mut base, &mut ours, &mut theirs, &options);
        Self {
            ours,
            theirs,
            result,
        }
    }

    /// The conflicts that the result holds, by their paths.
    fn conflicts(&mut self) -> Vec<Conflict> {
        self.result.flush();
        let range = keys::conflicts();
        let stored = self
            .result
            .store
            .range(range.start.to_vec()..range.end.to_vec());
        let mut found: Vec<Conflict> = stored
            .map(|(_, value)| Conflict::decode(value).unwrap())
            .collect();
        found.sort_by(|one, other| one.place.path.cmp(&other.place.path));
        found
    }

    /// Where a side has an inode, as a gateway finds out.
    fn home(&self, (inode, side): (InodeId, Side)) -> Home {
        let fs = match side {
            Side::Ours => &self.ours,
            Side::Theirs => &self.theirs,
        };
        let value = fs.store.get(&keys::inode(inode));
        let record = value.map(|value| InodeRecord::decode(inode, value).unwrap());
        Home::of(record.as_ref())
    }

    /// Resolves the conflict at a path.
    fn resolve(&mut self, path: &str, take: Take) -> Result<(), Refusal> {
        let conflicts = self.conflicts();
        let conflict = conflicts.iter().find(|it| it.place.path == path);
        let conflict = conflict.unwrap_or_else(|| panic!("no conflict at {path}"));
        self.resolve_one(conflict, take)
    }

    fn resolve_one(&mut self, conflict: &Conflict, take: Take) -> Result<(), Refusal> {
        let before_count = self.conflicts().len();
        let room = making_room(conflict, take);
        let asked = Resolve {
            id: Conflict::id(&conflict.encode()),
            conflict,
            take,
            home: room.map_or(Home::Unknown, |room| self.home(room)),
        };
        let before = self.result.lines();
        let tree_before = self.result.tree();
        let done = self.result.run(|image, cx| {
            let told = ops::touched(image, &asked)?;
            Ok((ops::resolve(image, cx, &asked)?, told))
        });
        let (done, told) = done.unwrap();
        assert_sound(&mut self.result);
        assert_told(&tree_before, &self.result.tree(), &told);
        let left = self.conflicts().len();
        match done {
            Ok(()) => assert_eq!(left, before_count - 1),
            Err(_) => {
                assert_eq!(left, before_count);
                assert_eq!(self.result.lines(), before);
            }
        }
        done
    }
}

/// Clients are told of each path at which something else is now. Where another object is, or none, they
/// find what is below it by itself.
fn assert_told(before: &Tree, after: &Tree, told: &ChangedPaths) {
    let ChangedPaths::These(told) = told else {
        let is_linked = |seen: &Seen| !seen.record.stat.is_dir() && seen.record.stat.nlink > 1;
        assert!(before.values().chain(after.values()).any(is_linked));
        return;
    };
    let inode = |tree: &Tree, path: &str| tree.get(path).map(|seen| seen.record.stat.inode);
    for path in before.keys().chain(after.keys()) {
        if before.get(path) == after.get(path) {
            continue;
        }
        let mut above = path.match_indices('/').map(|(at, _)| &path[..at]);
        let is_told = |path: &str| told.iter().any(|it| it == path.as_bytes());
        let is_found = above.any(|dir| is_told(dir) && inode(before, dir) != inode(after, dir));
        assert!(is_told(path) || is_found, "{path} is not in {told:?}");
    }
}

/// A way to resolve, and the tree that comes of it, or why it is refused.
type Way<'a> = (Take, Result<&'a [&'a str], Refusal>);

fn check(steps: [Step; 3], path: &str, ways: &[Way<'_>]) {
    let [base, ours, theirs] = steps;
    for (take, expected) in ways {
        let mut world = World::new(base, ours, theirs);
        let done = world.resolve(path, *take);
        let lines = world.result.lines();
        match expected {
            Ok(tree) => {
                assert_eq!(done, Ok(()), "{take:?}");
                assert_eq!(lines, *tree, "{take:?}");
            }
            Err(refusal) => assert_eq!(done, Err(*refusal), "{take:?}: {lines:?}"),
        }
    }
}

#[test]
fn content_and_targets() {
    check(
        [
            |fs| fs.write("f", "a"),
            |fs| fs.write("f", "b"),
            |fs| fs.write("f", "c").and_then(|()| fs.chmod("f", 0o600)),
        ],
        "f",
        &[
            // Only one side changed the mode.
            (OURS, Ok(&["f = b 600"])),
            (THEIRS, Ok(&["f = c 600"])),
            (Take::Both, Ok(&["f = b 600", "f~theirs.t1 = c 600"])),
            (Take::File, Ok(&["f = b 600"])),
        ],
    );
    check(
        [
            |fs| fs.symlink("l", "a").map(drop),
            |fs| fs.rm("l").and_then(|()| fs.symlink("l", "b").map(drop)),
            |fs| fs.rm("l").and_then(|()| fs.symlink("l", "c").map(drop)),
        ],
        "l",
        &[
            (OURS, Ok(&["l -> b"])),
            (THEIRS, Ok(&["l -> c"])),
            (Take::Both, Ok(&["l -> b", "l~theirs.t1 -> c"])),
        ],
    );
    // What only the other side has done is kept.
    check(
        [
            |fs| fs.write("f", "a"),
            |fs| fs.write("f", "b").and_then(|()| fs.chmod("f", 0o711)),
            |fs| fs.write("f", "c").and_then(|()| fs.chown("f", 5, 0)),
        ],
        "f",
        &[
            (OURS, Ok(&["f = b 711 5:0"])),
            (THEIRS, Ok(&["f = c 711 5:0"])),
        ],
    );
    // What has another name would keep the other content there.
    check(
        [
            |fs| fs.write("f", "a").and_then(|()| fs.ln("f", "g")),
            |fs| fs.write("f", "b"),
            |fs| fs.write("f", "c"),
        ],
        "f",
        &[
            (OURS, Ok(&["f = b x2", "g = b x2"])),
            (THEIRS, Err(Refusal::Linked)),
        ],
    );
}

/// What the agent does before it resolves.
fn check_after(step: Step, ways: &[Way<'_>]) {
    for (take, expected) in ways {
        let mut world = World::new(
            |fs| fs.mkdir("d").and_then(|_| fs.write("d/f", "a")),
            |fs| fs.write("d/f", "b"),
            |fs| fs.write("d/f", "c"),
        );
        step(&mut world.result).unwrap();
        let done = world.resolve("d/f", *take);
        match expected {
            Ok(tree) => {
                assert_eq!(done, Ok(()), "{take:?}");
                assert_eq!(world.result.lines(), *tree, "{take:?}");
            }
            Err(refusal) => assert_eq!(done, Err(*refusal)),
        }
    }
}

#[test]
fn what_an_agent_did_meanwhile_is_respected() {
    // Edited in place: it is nobody's version any more.
    check_after(
        |fs| fs.write("d/f", "merged by hand"),
        &[
            (OURS, Err(Refusal::Changed)),
            (THEIRS, Ok(&["d/", "d/f = c"])),
            (Take::File, Ok(&["d/", "d/f = merged by hand"])),
        ],
    );
    // Saved by an editor.
    check_after(
        |fs| fs.save("d/f", "merged by hand"),
        &[
            (OURS, Err(Refusal::Gone)),
            (THEIRS, Ok(&["d/", "d/f = c"])),
            (Take::File, Ok(&["d/", "d/f = merged by hand"])),
        ],
    );
    check_after(
        |fs| fs.write("d/f~theirs.t1", "changed"),
        &[
            (OURS, Ok(&["d/", "d/f = b"])),
            (THEIRS, Err(Refusal::Changed)),
        ],
    );
    // Renamed, with the directory: the object counts.
    check_after(
        |fs| fs.mv("d/f", "d/g").and_then(|()| fs.mv("d", "e")),
        &[
            (OURS, Ok(&["e/", "e/g = b"])),
            (THEIRS, Ok(&["e/", "e/g = c"])),
            (Take::File, Ok(&["e/", "e/g = b"])),
        ],
    );
    // Removed, one or both.
    check_after(
        |fs| fs.rm("d/f"),
        &[
            (OURS, Err(Refusal::Gone)),
            (THEIRS, Ok(&["d/", "d/f = c"])),
            (Take::File, Ok(&["d/"])),
        ],
    );
    check_after(
        |fs| fs.rm("d/f~theirs.t1"),
        &[
            (OURS, Ok(&["d/", "d/f = b"])),
            (THEIRS, Err(Refusal::Gone)),
            (Take::File, Ok(&["d/", "d/f = b"])),
        ],
    );
    check_after(
        |fs| fs.rm_rf("d"),
        &[(OURS, Err(Refusal::Gone)), (Take::File, Ok(&[]))],
    );
    // The other version alone, elsewhere, and nothing where it belongs.
    check_after(
        |fs| fs.mv("d/f~theirs.t1", "x").and_then(|()| fs.rm_rf("d")),
        &[
            (THEIRS, Err(Refusal::NoPlace)),
            (Take::Both, Ok(&["x = c"])),
        ],
    );
    // A directory in the way.
    check_after(
        |fs| fs.rm("d/f").and_then(|()| fs.mkdir("d/f")).map(drop),
        &[(THEIRS, Err(Refusal::Types))],
    );
}

#[test]
fn deletions() {
    check(
        [
            |fs| fs.write("f", "a"),
            |fs| fs.rm("f"),
            |fs| fs.write("f", "b"),
        ],
        "f",
        &[
            (OURS, Ok(&[])),
            (THEIRS, Ok(&["f = b"])),
            (Take::Both, Ok(&["f = b"])),
            (Take::File, Ok(&["f = b"])),
        ],
    );
    check(
        [
            |fs| fs.write("f", "a"),
            |fs| fs.mv("f", "g"),
            |fs| fs.rm("f"),
        ],
        "g",
        &[(OURS, Ok(&["g = a"])), (THEIRS, Ok(&[]))],
    );
    let steps: [Step; 3] = [
        |fs| fs.mkdir("d").map(drop),
        |fs| fs.rmdir("d"),
        |fs| fs.write("d/new", "b"),
    ];
    check(
        steps,
        "d",
        &[
            (OURS, Err(Refusal::NotEmpty)),
            (THEIRS, Ok(&["d/", "d/new = b"])),
        ],
    );
    let mut world = World::new(steps[0], steps[1], steps[2]);
    world.result.rm("d/new").unwrap();
    assert_eq!(world.resolve("d", OURS), Ok(()));
    assert!(world.result.lines().is_empty());
}

#[test]
fn names() {
    let steps: [Step; 3] = [
        |fs| fs.write("f", "a").and_then(|()| fs.mkdir("d").map(drop)),
        |fs| fs.mv("f", "g"),
        |fs| fs.mv("f", "d/h"),
    ];
    check(
        steps,
        "g",
        &[
            (OURS, Ok(&["d/", "g = a"])),
            (THEIRS, Ok(&["d/", "d/h = a"])),
            (Take::File, Ok(&["d/", "g = a"])),
        ],
    );
    // The name, or its directory, is no longer free.
    let mut world = World::new(steps[0], steps[1], steps[2]);
    world.result.write("d/h", "x").unwrap();
    assert_eq!(world.resolve("g", THEIRS), Err(Refusal::Taken));
    world.result.rm_rf("d").unwrap();
    assert_eq!(world.resolve("g", THEIRS), Err(Refusal::NoPlace));
    check(
        [
            |fs| fs.write("f", "a").and_then(|()| fs.ln("f", "g")),
            |fs| fs.rm("f"),
            |fs| fs.rm("g"),
        ],
        "g",
        &[(OURS, Ok(&["g = a"])), (THEIRS, Ok(&["f = a"]))],
    );
    // Moves of directories into one another.
    check(
        [
            |fs| fs.mkdir("a").and_then(|_| fs.mkdir("b")).map(drop),
            |fs| fs.mv("a", "b/a"),
            |fs| fs.mv("b", "a/b"),
        ],
        "b",
        &[(OURS, Ok(&["b/", "b/a/"])), (THEIRS, Err(Refusal::Loop))],
    );
}

#[test]
fn two_objects_for_one_name() {
    check(
        [|_| Ok(()), |fs| fs.write("f", "a"), |fs| fs.write("f", "b")],
        "f",
        &[
            (OURS, Ok(&["f = a"])),
            (THEIRS, Ok(&["f = b"])),
            (Take::Both, Ok(&["f = a", "f~theirs.t1 = b"])),
            (Take::File, Ok(&["f = a"])),
        ],
    );
    // Each side has the other's object elsewhere: it goes back there.
    let steps: [Step; 3] = [
        |fs| fs.write("f", "a").and_then(|()| fs.write("g", "b")),
        |fs| fs.mv("f", "h"),
        |fs| fs.mv("g", "h"),
    ];
    check(
        steps,
        "h",
        &[
            (OURS, Ok(&["g = b", "h = a"])),
            (THEIRS, Err(Refusal::Elsewhere)),
            (Take::File, Ok(&["g = b", "h = a"])),
        ],
    );
    // One with further names has enough of them.
    check(
        [
            |fs| fs.write("f", "a").and_then(|()| fs.ln("f", "g")),
            |fs| fs.write("h", "b"),
            |fs| fs.mv("f", "h"),
        ],
        "h",
        &[
            (OURS, Ok(&["g = a", "h = b"])),
            (THEIRS, Ok(&["g = a x2", "h = a x2"])),
        ],
    );
    // One that had several on the side that is taken does not get them back in one step.
    check(
        [
            |fs| fs.write("f", "a").and_then(|()| fs.ln("f", "g")),
            |fs| fs.write("h", "b"),
            |fs| fs.mv("f", "h").and_then(|()| fs.rm("g")),
        ],
        "h",
        &[
            (OURS, Err(Refusal::Unknown)),
            (Take::Both, Ok(&["h = b", "h~theirs.t1 = a"])),
        ],
    );
    let mut world = World::new(steps[0], steps[1], steps[2]);
    world.result.mv("h", "f").unwrap();
    // It is the object that counts, not its old name: the one in its place has moved on.
    assert_eq!(world.resolve("h", THEIRS), Err(Refusal::Elsewhere));
    world.result.mv("h~theirs.t1", "h").unwrap();
    assert_eq!(world.resolve("h", Take::Both), Ok(()));
    assert_eq!(world.result.lines(), ["f = a", "h = b"]);
    // A renamed file over one that the other side edited.
    check(
        [
            |fs| fs.write("f", "a").and_then(|()| fs.write("g", "b")),
            |fs| fs.mv("g", "f"),
            |fs| fs.write("f", "c"),
        ],
        "f",
        &[
            (OURS, Ok(&["f = b"])),
            (THEIRS, Err(Refusal::Elsewhere)),
            (Take::Both, Ok(&["f = b", "f~theirs.t1 = c"])),
        ],
    );
}

#[test]
fn directories_and_other_types() {
    check(
        [
            |_| Ok(()),
            |fs| fs.write("n", "a"),
            |fs| fs.mkdir("n").and_then(|_| fs.write("n/x", "x")),
        ],
        "n",
        &[
            // The directory has the name.
            (THEIRS, Ok(&["n/", "n/x = x"])),
            (OURS, Err(Refusal::Types)),
            (Take::Both, Ok(&["n/", "n/x = x", "n~ours.o1 = a"])),
            (Take::File, Ok(&["n/", "n/x = x"])),
        ],
    );
    check(
        [
            |fs| fs.write("f", "a"),
            |fs| fs.write("f", "b"),
            |fs| fs.rm("f").and_then(|()| fs.symlink("f", "t").map(drop)),
        ],
        "f",
        &[
            (OURS, Ok(&["f = b"])),
            (THEIRS, Ok(&["f -> t"])),
            (Take::File, Ok(&["f = b"])),
        ],
    );
}

#[test]
fn attributes_are_taken_one_by_one() {
    check(
        [
            |fs| fs.write("f", "a"),
            |fs| fs.chmod("f", 0o4755),
            |fs| fs.chmod("f", 0o600).and_then(|()| fs.chown("f", 5, 6)),
        ],
        "f",
        &[
            // Nobody disputes the owner.
            (OURS, Ok(&["f = a 4755 5:6"])),
            (THEIRS, Ok(&["f = a 600 5:6"])),
            (Take::Both, Ok(&["f = a 4755 5:6"])),
        ],
    );
}

#[test]
fn what_is_not_known_is_refused() {
    let mut world = World::new(
        |fs| fs.write("f", "a").and_then(|()| fs.write("g", "b")),
        |fs| fs.mv("f", "h"),
        |fs| fs.mv("g", "h"),
    );
    let conflict = world.conflicts().remove(0);
    for take in [OURS, THEIRS, Take::File] {
        let asked = Resolve {
            id: Conflict::id(&conflict.encode()),
            conflict: &conflict,
            take,
            home: Home::Unknown,
        };
        let done = world
            .result
            .run(|image, cx| ops::resolve(image, cx, &asked));
        assert_eq!(done.unwrap(), Err(Refusal::Unknown), "{take:?}");
    }
}

/// Bug: what was found in another image, or resolved meanwhile, was resolved all the same, and the file
/// of a side that somebody had decided to keep was deleted.
#[test]
fn what_the_image_does_not_hold_is_not_resolved() {
    let mut world = World::new(
        |fs| fs.write("f", "a"),
        |fs| fs.write("f", "b"),
        |fs| fs.write("f", "c"),
    );
    let conflict = world.conflicts().remove(0);
    let id = Conflict::id(&conflict.encode());
    assert_eq!(world.resolve("f", Take::Both), Ok(()));
    let kept = world.result.lines();
    for take in [OURS, THEIRS, Take::Both, Take::File] {
        let home = Home::Unknown;
        let asked = Resolve {
            id,
            conflict: &conflict,
            take,
            home,
        };
        let done = world
            .result
            .run(|image, cx| ops::resolve(image, cx, &asked));
        assert_eq!(done.unwrap(), Err(Refusal::NotThere), "{take:?}");
        assert_eq!(world.result.lines(), kept, "{take:?}");
    }
    // As one finds who has to ask the store.
    let mut again = world.result.fork(9);
    let asked = Resolve {
        id,
        conflict: &conflict,
        take: OURS,
        home: Home::Unknown,
    };
    let done = again.run(|image, cx| ops::resolve(image, cx, &asked));
    assert_eq!(done.unwrap(), Err(Refusal::NotThere));
}

#[test]
fn objects_are_found_where_they_are() {
    let mut world = World::new(
        |fs| fs.mkdir("d").and_then(|_| fs.write("d/f", "a")),
        |fs| fs.write("d/f", "b"),
        |fs| fs.write("d/f", "c"),
    );
    let conflict = world.conflicts().remove(0);
    let id = Conflict::id(&conflict.encode());
    let found = |fs: &mut Fs| {
        let located = fs.run(|image, _| locate(image, &id, &conflict));
        let located = located.unwrap().expect("nobody has resolved it");
        let text = |path: Option<Vec<u8>>| path.map(|path| String::from_utf8(path).unwrap());
        (text(located.path), text(located.aside))
    };
    let aside = || Some("d/f~theirs.t1".to_owned());
    assert_eq!(found(&mut world.result), (Some("d/f".into()), aside()));
    world.result.mkdir("e").unwrap();
    world.result.mv("d/f", "e/g").unwrap();
    world.result.mv("e", "d/e").unwrap();
    assert_eq!(found(&mut world.result), (Some("d/e/g".into()), aside()));
    world.result.rm("d/e/g").unwrap();
    assert_eq!(found(&mut world.result), (None, aside()));
}

/// Whether a policy that takes a side decides this conflict, too.
fn is_decided_by_policies(conflict: &Conflict) -> bool {
    let versions = [&conflict.base, &conflict.ours, &conflict.theirs];
    let mut versions = versions.into_iter().flatten();
    versions.all(|version| !version.record.stat.is_dir())
}

/// Whether a line of a tree tells a directory.
fn is_of_a_directory(line: &str) -> bool {
    let path = line.split(' ').next();
    path.is_some_and(|path| path.ends_with('/'))
}

proptest! {
    #![proptest_config(config())]

    /// Whatever is taken, the image stays sound, and a refusal changes nothing. `both` is never
    /// refused, so nothing stays unresolved.
    #[test]
    fn resolutions_are_lawful(
        before in steps(25),
        ours in steps(14),
        theirs in steps(14),
        takes in proptest::collection::vec(0..4_usize, 20),
    ) {
        let mut world = World::of(Three::play(&before, &ours, &theirs));
        let mut takes = takes.into_iter().cycle().map(|at| [OURS, THEIRS, Take::Both, Take::File][at]);
        for conflict in world.conflicts() {
            let take = takes.next().unwrap();
            if world.resolve_one(&conflict, take).is_err() {
                prop_assert_ne!(take, Take::Both);
                let lines = world.result.lines();
                prop_assert_eq!(world.resolve_one(&conflict, Take::Both), Ok(()));
                prop_assert_eq!(world.result.lines(), lines);
            }
        }
        prop_assert_eq!(world.conflicts(), vec![]);
    }

    /// To keep both and then take a side is to merge with the policy that takes it, but for
    /// directories that were kept for what goes.
    #[test]
    fn taking_a_side_is_what_its_policy_does(
        before in steps(20),
        ours in steps(6),
        theirs in steps(6),
    ) {
        for (take, policy) in [(OURS, Policy::Ours), (THEIRS, Policy::Theirs)] {
            let mut three = Three::play(&before, &ours, &theirs);
            let Three { base, ours, theirs } = &mut three;
            let (mut decided, _) = merge_with(base, ours, theirs, &options(policy));
            let mut world = World::of(three);
            let conflicts = world.conflicts();
            let [conflict] = conflicts.as_slice() else {
                continue;
            };
            if is_decided_by_policies(conflict) && world.resolve_one(conflict, take).is_ok() {
                let files = |fs: &mut Fs| -> Vec<String> {
                    let lines = fs.lines().into_iter();
                    lines.filter(|line| !is_of_a_directory(line)).collect()
                };
                let (resolved, decided) = (files(&mut world.result), files(&mut decided));
                prop_assert_eq!(resolved, decided, "{:?}", conflict);
            }
        }
    }
}
