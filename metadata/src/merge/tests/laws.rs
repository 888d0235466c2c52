//! What holds for all merges, tried with random operations.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::merging::{merge_with, options, told, try_merge};
use super::world::{Fs, Seen};
use crate::merge::Policy;
use crate::stat::FileKind;

/// How many things there are to do.
const STEPS: u8 = 23;

/// Those in which directories move.
const MOVES: [u8; 8] = [0, 1, 4, 13, 13, 14, 14, 16];

/// What to do, with which paths.
pub(super) type Step = (u8, u8, u8);

pub(super) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((0..STEPS, any::<u8>(), any::<u8>()), 0..most)
}

/// A path in `top` that exists, mostly of what `wanted` is.
fn existing(tree: &BTreeMap<String, Seen>, top: &str, wanted: FileKind, number: u8) -> String {
    let inside = |path: &str| path.starts_with(top) && path.len() > top.len();
    let all = tree.iter().filter(|(path, _)| inside(path));
    let (fit, other): (Vec<_>, Vec<_>) = all.partition(|(_, seen)| seen.record.stat.kind == wanted);
    let from = if fit.is_empty() || number % 8 == 7 {
        other
    } else {
        fit
    };
    let at = usize::from(number / 8) % from.len().max(1);
    from.get(at)
        .map_or_else(|| format!("{top}/none"), |(path, _)| (*path).clone())
}

/// A path in `top` in a directory that exists; not deep.
fn free(tree: &BTreeMap<String, Seen>, top: &str, number: u8) -> String {
    let shallow = |path: &str| path.matches('/').count() < 4;
    let is_dir = |path: &str, seen: &Seen| {
        path.starts_with(top) && seen.record.stat.is_dir() && shallow(path)
    };
    let dirs: Vec<&String> = (tree.iter().filter(|(path, seen)| is_dir(path, seen)))
        .map(|(path, _)| path)
        .collect();
    let name = ["a", "b", "c", "d"][usize::from(number % 4)];
    match dirs[usize::from(number / 4) % dirs.len()].as_str() {
        "" => name.to_owned(),
        dir => format!("{dir}/{name}"),
    }
}

/// Runs steps in `top`; what fails is part of it. No two files get the same content but by links.
fn play(fs: &mut Fs, top: &str, who: &str, steps: &[Step]) {
    for (at, (what, one, other)) in steps.iter().enumerate() {
        let tree = fs.tree();
        let new = free(&tree, top, *other);
        let file = existing(&tree, top, FileKind::File, *one);
        let dir = existing(&tree, top, FileKind::Directory, *one);
        let text = format!("{who}{at}");
        // What fails is part of it.
        let _ = match what {
            0..=2 => fs.mkdir(&new).map(drop),
            3 | 4 => fs.write(&new, &text),
            5 => fs.save(&new, &text),
            6 => fs.write(&new, text.repeat(9_000)),
            7 => fs.symlink(&new, &text).map(drop),
            8 => fs.fifo(&new).map(drop),
            9 => fs.write(&file, &text),
            10 => fs.save(&file, &text),
            11 => fs.patch(&file, 20_000, text.as_bytes()),
            12 => fs.mv(&file, &new),
            13 | 14 => fs.mv(&dir, &new),
            15 => fs.rm(&file),
            16 => fs.rm_rf(&dir),
            17 | 18 => fs.ln(&file, &new),
            19 => fs.chmod(&file, if at % 2 == 0 { 0o700 } else { 0o711 }),
            20 => fs.chmod(&dir, if at % 2 == 0 { 0o700 } else { 0o711 }),
            21 => fs.touch(&file, 5),
            // A link made anew, as tools do.
            _ => {
                let link = existing(&tree, top, FileKind::Symlink, *one);
                let made = fs.symlink(&format!("{link}.new"), &text);
                made.and_then(|_| fs.mv(&format!("{link}.new"), &link))
            }
        };
    }
}

/// Base and two sides.
pub(super) struct Three {
    pub(super) base: Fs,
    pub(super) ours: Fs,
    pub(super) theirs: Fs,
}

impl Three {
    pub(super) fn play(before: &[Step], ours: &[Step], theirs: &[Step]) -> Self {
        let mut base = Fs::new();
        play(&mut base, "", "b", before);
        let mut three = Self {
            ours: base.fork(2),
            theirs: base.fork(3),
            base,
        };
        play(&mut three.ours, "", "o", ours);
        play(&mut three.theirs, "", "t", theirs);
        three
    }
}

/// A tree by path, without what depends on which side is ours.
fn tree(fs: &mut Fs) -> BTreeMap<String, Seen> {
    let tree = fs.tree().into_iter();
    tree.map(|(path, seen)| (path, seen.without_numbers()))
        .collect()
}

/// Fails where trees differ, and shows only that.
fn assert_same(one: &BTreeMap<String, Seen>, other: &BTreeMap<String, Seen>) {
    for path in one.keys().chain(other.keys()) {
        assert_eq!(one.get(path), other.get(path), "{path}");
    }
}

/// All contents of files and targets of links.
fn contents(fs: &mut Fs) -> BTreeSet<Vec<u8>> {
    let has = |seen: &Seen| matches!(seen.record.stat.kind, FileKind::File | FileKind::Symlink);
    let seen = fs.tree().into_values().filter(has);
    seen.map(|seen| seen.content).collect()
}

/// What is only on one side is that side.
fn check_one_sided(three: &mut Three) {
    for policy in [Policy::KeepBoth, Policy::Fail, Policy::Theirs] {
        let options = options(policy);
        let mut same = three.base.fork(4);
        let (_, merged) = merge_with(&mut three.base, &mut three.ours, &mut same, &options);
        assert_eq!((merged.delta.len(), told(&merged)), (0, vec![]));
        let (result, merged) = merge_with(&mut three.base, &mut same, &mut three.theirs, &options);
        assert_eq!(told(&merged), Vec::<String>::new());
        assert_eq!(result.store, three.theirs.store);
        let mut twin = three.theirs.fork(5);
        let (_, merged) = merge_with(&mut three.base, &mut three.theirs, &mut twin, &options);
        assert_eq!((merged.delta.len(), told(&merged)), (0, vec![]));
    }
}

/// Nothing that a side made is lost, and without conflicts the sides are equal.
fn check_both(three: &mut Three) -> usize {
    let keep = options(Policy::KeepBoth);
    let Three { base, ours, theirs } = three;
    let (mut result, merged) = merge_with(base, ours, theirs, &keep);
    let (before, mine, other) = (contents(base), contents(ours), contents(theirs));
    let kept = contents(&mut result);
    for content in mine.union(&other) {
        let must = !before.contains(content) || (mine.contains(content) && other.contains(content));
        let text = String::from_utf8_lossy(content.get(..20).unwrap_or(content));
        assert!(
            !must || kept.contains(content),
            "{text} is lost: {:#?}",
            told(&merged)
        );
    }
    let (mut swapped, other) = merge_with(base, theirs, ours, &keep);
    assert_eq!(
        merged.conflicts.is_empty(),
        other.conflicts.is_empty(),
        "{:?} {:?}",
        told(&merged),
        told(&other)
    );
    if merged.conflicts.is_empty() {
        assert_same(&tree(&mut result), &tree(&mut swapped));
    }
    let (_, again) = merge_with(base, ours, theirs, &keep);
    assert_eq!(merged, again);
    for policy in [Policy::Ours, Policy::Theirs] {
        merge_with(base, ours, theirs, &options(policy));
    }
    let (_, failed) = merge_with(base, ours, theirs, &options(Policy::Fail));
    if merged.conflicts.is_empty() {
        assert_eq!(failed, merged);
    } else {
        assert!(failed.delta.is_empty() && !failed.conflicts.is_empty());
    }
    merged.conflicts.len()
}

/// A sixth of the usual cases, so that PROPTEST_CASES counts, too: each makes a dozen merges.
pub(super) fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig {
        cases: usual.cases / 6,
        ..usual
    }
}

/// Directories that move about, and little else.
fn moves(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = (0..MOVES.len(), any::<u8>(), any::<u8>());
    let step = step.prop_map(|(what, one, other)| (MOVES[what], one, other));
    proptest::collection::vec(step, 0..most)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn merges_are_lawful(before in steps(25), ours in steps(14), theirs in steps(14)) {
        let mut three = Three::play(&before, &ours, &theirs);
        check_one_sided(&mut three);
        check_both(&mut three);
    }

    #[test]
    fn moves_of_directories_are_lawful(before in moves(20), ours in moves(9), theirs in moves(9)) {
        let mut three = Three::play(&before, &ours, &theirs);
        check_one_sided(&mut three);
        check_both(&mut three);
    }

    /// After a merge both go on, and what theirs has done since is merged into the result.
    #[test]
    fn merging_goes_on(
        before in steps(20),
        ours in steps(10),
        theirs in steps(10),
        later in (steps(10), steps(10)),
    ) {
        let Three { mut base, mut ours, mut theirs } = Three::play(&before, &ours, &theirs);
        let keep = options(Policy::KeepBoth);
        let (result, _) = merge_with(&mut base, &mut ours, &mut theirs, &keep);
        let mut three = Three {
            ours: result,
            theirs: theirs.fork(1_000),
            base: theirs,
        };
        play(&mut three.ours, "", "oo", &later.0);
        play(&mut three.theirs, "", "tt", &later.1);
        check_one_sided(&mut three);
        check_both(&mut three);
    }

    /// Both sides have what base has not, as after a restore of the same version in both, or where lines of
    /// work cross.
    #[test]
    fn sides_may_share_what_base_has_not(
        before in steps(20),
        shared in steps(12),
        ours in steps(10),
        theirs in steps(10),
    ) {
        let mut base = Fs::new();
        play(&mut base, "", "b", &before);
        let mut both = base.fork(2);
        play(&mut both, "", "s", &shared);
        let mut three = Three {
            ours: both.fork(3),
            theirs: both.fork(4),
            base,
        };
        play(&mut three.ours, "", "o", &ours);
        play(&mut three.theirs, "", "t", &theirs);
        check_one_sided(&mut three);
        check_both(&mut three);
    }

    /// Each side has a directory of its own.
    #[test]
    fn subtrees_do_not_meet(
        before in (steps(20), steps(20)),
        ours in steps(25),
        theirs in steps(25),
    ) {
        let mut base = Fs::new();
        for (top, steps) in [("x", &before.0), ("y", &before.1)] {
            base.mkdir(top).unwrap();
            play(&mut base, top, top, steps);
        }
        let (mut mine, mut other) = (base.fork(2), base.fork(3));
        play(&mut mine, "x", "o", &ours);
        play(&mut other, "y", "t", &theirs);
        let mut expected = tree(&mut mine);
        expected.retain(|path, _| !path.starts_with('y'));
        expected.extend(tree(&mut other).into_iter().filter(|(path, _)| path.starts_with('y')));
        let keep = options(Policy::KeepBoth);
        let (mut result, merged) = merge_with(&mut base, &mut mine, &mut other, &keep);
        prop_assert_eq!(told(&merged), Vec::<String>::new());
        assert_same(&tree(&mut result), &expected);
    }

    /// Both work in the same directories, each on files of its own: what counts is the path.
    #[test]
    fn files_of_one_side_are_as_it_has_them(ours in steps(30), theirs in steps(30)) {
        let name = |number: u8, parity: u8| format!("{}/f{}", number % 3, (number / 3 % 8) * 2 + parity);
        let mut base = Fs::new();
        for dir in ["0", "1", "2"] {
            base.mkdir(dir).unwrap();
        }
        for number in (0..24).step_by(2) {
            for parity in 0..2 {
                let path = name(number, parity);
                base.write(&path, &path).unwrap();
            }
        }
        let act = |fs: &mut Fs, who: &str, parity: u8, steps: &[Step]| {
            for (at, (what, one, other)) in steps.iter().enumerate() {
                let (one, other) = (name(*one, parity), name(*other, parity));
                let text = format!("{who}{at}");
                let _ = match what % 6 {
                    0 => fs.write(&one, &text),
                    1 => fs.save(&one, &text),
                    2 => fs.mv(&one, &other),
                    3 => fs.rm(&one),
                    4 => fs.ln(&one, &other),
                    _ => fs.chmod(&one, 0o600),
                };
            }
        };
        let (mut mine, mut other) = (base.fork(2), base.fork(3));
        act(&mut mine, "o", 0, &ours);
        act(&mut other, "t", 1, &theirs);
        let files = |fs: &mut Fs, parity: Option<u8>| -> BTreeMap<String, Seen> {
            let mut tree = tree(fs);
            let number = |path: &str| path.split('f').nth(1).and_then(|it| it.parse::<u8>().ok());
            tree.retain(|path, _| number(path).is_some_and(|it| parity.is_none_or(|parity| it % 2 == parity)));
            tree
        };
        let mut expected = files(&mut mine, Some(0));
        expected.extend(files(&mut other, Some(1)));
        let keep = options(Policy::KeepBoth);
        let (mut result, merged) = merge_with(&mut base, &mut mine, &mut other, &keep);
        prop_assert_eq!(told(&merged), Vec::<String>::new());
        assert_same(&files(&mut result, None), &expected);
    }
}

/// The random operations make conflicts of all kinds, so that the laws are tried on them.
#[test]
fn random_sides_meet_in_every_way() {
    let rng = base::Rng::seeded(5);
    let mut seen = BTreeSet::new();
    let mut clean = 0;
    for round in 0..800 {
        let draw = |most: u64| -> Vec<Step> {
            let byte = || u8::try_from(rng.u64() % 256).unwrap();
            let what = || match round % 2 {
                0 => byte() % STEPS,
                _ => MOVES[usize::from(byte()) % MOVES.len()],
            };
            (0..rng.u64() % most)
                .map(|_| (what(), byte(), byte()))
                .collect()
        };
        let mut three = Three::play(&draw(25), &draw(14), &draw(14));
        let Three { base, ours, theirs } = &mut three;
        let mut numbers = crate::image::InodeNumbers {
            next: 1 << 40,
            end: 1 << 41,
        };
        let options = options(Policy::KeepBoth);
        let merged = try_merge(base, ours, theirs, &options, &mut numbers).unwrap();
        clean += usize::from(merged.conflicts.is_empty());
        seen.extend(merged.conflicts.iter().map(|conflict| conflict.kind.word()));
    }
    assert!(clean > 100, "{clean}");
    assert_eq!(
        seen.len(),
        crate::record::conflict::ConflictKind::ALL.len(),
        "{seen:?}"
    );
}

/// Found by `merges_are_lawful`: a directory whose time was set back.
#[test]
fn a_time_set_back_is_taken_from_either_side() {
    let mut base = Fs::new();
    base.mkdir("d").unwrap();
    let mut three = Three {
        ours: base.fork(2),
        theirs: base.fork(3),
        base,
    };
    three.ours.write("d/f", "x").unwrap();
    three.ours.touch("d", 5).unwrap();
    three.theirs.chmod("d", 0o700).unwrap();
    assert_eq!(check_both(&mut three), 0);
}

/// Found by `merges_are_lawful`: a file with two names, both of which were saved anew.
#[test]
fn of_two_replaced_names_both_sides_take_the_same() {
    let mut base = Fs::new();
    base.write("a", "x").unwrap();
    base.ln("a", "b").unwrap();
    let mut three = Three {
        ours: base.fork(2),
        theirs: base.fork(3),
        base,
    };
    three.ours.rm("b").unwrap();
    three.ours.ln("a", "c").unwrap();
    three.theirs.save("a", "y").unwrap();
    three.theirs.save("b", "z").unwrap();
    assert_eq!(check_both(&mut three), 0);
}
/// Found by `merging_goes_on`: a directory that got a name beside another, and looked as theirs.
#[test]
fn a_directory_that_is_as_no_side_has_it_has_its_own_time() {
    let mut base = Fs::new();
    base.mkdir("d").unwrap();
    base.write("d/f", "x").unwrap();
    let (mut ours, mut theirs) = (base.fork(2), base.fork(3));
    ours.write("d/f", "y").unwrap();
    theirs.write("d/f", "z").unwrap();
    theirs.mkdir("d/e").unwrap();
    let keep = options(Policy::KeepBoth);
    let (mut result, _) = merge_with(&mut base, &mut ours, &mut theirs, &keep);
    let stat = |fs: &mut Fs| fs.tree()["d"].record.stat;
    let (merged, before) = (stat(&mut result), stat(&mut theirs));
    assert!(merged.ctime > before.ctime && merged.mtime > before.mtime);
}

/// Found by the random worlds of `tests/collection`: both sides had a file replaced by the same one, whose
/// content was that of base, and one of them wrote to it.
#[test]
fn what_both_replaced_by_the_same_goes_on_from_base() {
    let mut base = Fs::new();
    base.mkdir("d").unwrap();
    base.write("d/f", "old").unwrap();
    base.write("g", "old").unwrap();
    let mut both = base.fork(2);
    both.rm_rf("d").unwrap();
    both.mkdir("d").unwrap();
    both.write("d/f", "old").unwrap();
    both.save("g", "old").unwrap();
    for policy in [Policy::KeepBoth, Policy::Ours, Policy::Theirs] {
        let (mut ours, mut theirs) = (both.fork(3), both.fork(4));
        ours.write("d/f", "ours").unwrap();
        theirs.write("g", "theirs").unwrap();
        let options = options(policy);
        let (mut result, merged) = merge_with(&mut base, &mut ours, &mut theirs, &options);
        assert_eq!(told(&merged), Vec::<String>::new());
        assert_eq!(result.lines(), ["d/", "d/f = ours", "g = theirs"]);
    }
}

/// Found by `merges_are_lawful`: what both made alike also took the place of something, on one side.
#[test]
fn what_was_made_twice_replaces_nothing() {
    let mut base = Fs::new();
    base.write("b", "x").unwrap();
    let (mut ours, mut theirs) = (base.fork(2), base.fork(3));
    ours.write("a", "y").unwrap();
    ours.rm("b").unwrap();
    ours.ln("a", "b").unwrap();
    theirs.write("a", "y").unwrap();
    let mut three = Three { base, ours, theirs };
    assert_eq!(check_both(&mut three), 0);
    let Three { base, ours, theirs } = &mut three;
    let (mut result, _) = merge_with(base, ours, theirs, &options(Policy::KeepBoth));
    assert_eq!(result.lines(), ["a = y x2", "b = y x2"]);
}
