//! What is restored is what the version has, and nothing else changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{InodeId, Rng};

use super::*;
use crate::compare::Snapshot;
use crate::compare::tests::naive::Whole;
use crate::compare::tests::random::{Links, history};
use crate::compare::tests::world::{BLOCK_BYTES, World};
use crate::image::InodeNumbers;
use crate::keyspace::image as keys;
use crate::kv::KeyRange;
use crate::stat::FileKind;
use crate::tree::{MemoryTrees, Trees};

/// Later than everything in a [`World`].
const NOW: Timestamp = Timestamp::new(2_000_000, 5);

const RULES: Rules = Rules {
    now: NOW,
    newcomers: Newcomers::Renew,
};

/// First number of what is copied.
const COPIES: u64 = 1 << 40;

fn run<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.build().unwrap().block_on(test)
}

async fn whole_of(world: &World, roots: (Root, Root)) -> Root {
    whole(&world.tree, roots, RULES, |_| {}).await.unwrap()
}

async fn paths_of(
    world: &World,
    roots: (Root, Root),
    names: &[&str],
) -> Result<(Root, u64), RestoreError> {
    let names: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
    let mut numbers = InodeNumbers {
        next: COPIES,
        end: u64::MAX,
    };
    let image = (&world.tree, &world.hasher);
    let root = paths(image, roots, &names, RULES, &mut numbers, |_| {}).await?;
    Ok((root, numbers.next - COPIES))
}

/// All keys and values.
async fn keys_of(world: &World, root: Root) -> BTreeMap<Bytes, Bytes> {
    let all = KeyRange {
        start: Bytes::new(),
        end: Bytes::from_static(&[0xff; 8]),
    };
    let mut scan = world.tree.scan(root, &all);
    let mut keys = BTreeMap::new();
    while let Some((key, value)) = scan.next().await.unwrap() {
        keys.insert(key, value);
    }
    keys
}

/// Everything fits together: names, counts, links.
async fn check_sound(world: &World, root: Root, of: &str) {
    let whole = Whole::read(world, root).await;
    let keys = keys_of(world, root).await;
    for (inode, record) in &whole.records {
        let names = whole.names.get(inode).cloned().unwrap_or_default();
        if *inode == InodeId::ROOT {
            assert!(names.is_empty() && record.link.is_none(), "{of}");
        } else {
            assert_eq!(names.first(), record.link.as_ref(), "{of}: {inode}");
        }
        for (dir, name) in names.iter().skip(1) {
            let key = keys::link(*inode, *dir, name);
            assert!(keys.contains_key(&key[..]), "{of}: {inode} has no link");
        }
        let links = keys.range(Bytes::from(keys::links(*inode).start.to_vec())..);
        let links = links.take_while(|(key, _)| keys::links(*inode).contains(key));
        assert_eq!(
            links.count(),
            names.len().saturating_sub(1),
            "{of}: {inode}"
        );
        let below = whole.entries.iter().filter(|((dir, _), _)| dir == inode);
        let below: Vec<_> = below.collect();
        if record.stat.is_dir() {
            let is_dir = |child: &InodeId| whole.records[child].stat.is_dir();
            let dirs = below.iter().filter(|(_, child)| is_dir(child)).count();
            assert_eq!(
                usize::try_from(record.entries).unwrap(),
                below.len(),
                "{of}: entries of {inode}"
            );
            assert_eq!(
                usize::try_from(record.stat.nlink).unwrap(),
                2 + dirs,
                "{of}: nlink of {inode}"
            );
            assert!(names.len() <= 1, "{of}: {inode} has two names");
        } else {
            assert!(below.is_empty(), "{of}");
            assert_eq!(
                usize::try_from(record.stat.nlink).unwrap(),
                names.len(),
                "{of}: nlink of {inode}"
            );
        }
        // It hangs at the root.
        whole.path(record.link.as_ref());
    }
    for inode in whole.entries.values().chain(whole.blocks.keys()) {
        assert!(
            whole.records.contains_key(inode),
            "{of}: {inode} is nothing"
        );
    }
}

/// What is at each path, and which inode.
type View = BTreeMap<String, (InodeId, Shown)>;
type Shown = (FileKind, u32, u32, u64, Option<Bytes>, Vec<(u32, Bytes)>);

async fn view(world: &World, root: Root) -> View {
    let whole = Whole::read(world, root).await;
    let shown = |(place, inode): (&(InodeId, base::Name), &InodeId)| {
        let record = &whole.records[inode];
        let path = String::from_utf8(whole.path(Some(place))).unwrap();
        let blocks = whole.blocks.get(inode).cloned().unwrap_or_default();
        let stat = &record.stat;
        let size = if stat.is_dir() { 0 } else { stat.size };
        let inline = record.inline.clone();
        (
            path,
            (
                *inode,
                (stat.kind, stat.mode, stat.uid, size, inline, blocks),
            ),
        )
    };
    whole.entries.iter().map(shown).collect()
}

fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Each inode of which something differs has a later change time than it had.
async fn check_times(world: &World, (from, to): (Root, Root), of: &str) {
    let (old, new) = (Whole::read(world, from).await, Whole::read(world, to).await);
    let mut diff = world.tree.diff(from, to);
    while let Some(change) = diff.next().await.unwrap() {
        let inode = keys::decode(&change.key).unwrap().inode();
        let Some(record) = new.records.get(&inode) else {
            continue;
        };
        match old.records.get(&inode) {
            Some(before) => assert!(record.stat.ctime > before.stat.ctime, "{of}: {inode}"),
            None => assert!(record.stat.ctime >= NOW, "{of}: {inode} is back"),
        }
    }
}

/// Clients are told of each path at which something else is, or what looks the same and is another inode.
/// What is below a directory that is another one, or gone, they find by itself.
async fn check_told(world: &World, (from, to): (Root, Root), of: &str) {
    let changed = changed_paths(&world.tree, &world.hasher, (from, to));
    let ChangedPaths::These(told) = changed.await.unwrap() else {
        panic!("it is little");
    };
    let (old, new) = (view(world, from).await, view(world, to).await);
    let is_told = |path: &str| told.iter().any(|told| told == path.as_bytes());
    let inode = |view: &View, path: &str| view.get(path).map(|(inode, _)| *inode);
    for path in old.keys().chain(new.keys()) {
        let mut above = path.match_indices('/').map(|(at, _)| &path[..at]);
        let is_found = above.any(|dir| is_told(dir) && inode(&old, dir) != inode(&new, dir));
        let is_same = old.get(path) == new.get(path);
        assert!(
            is_same || is_told(path) || is_found,
            "{of}: {path} is not in {told:?}"
        );
    }
}

#[test]
fn a_whole_image_becomes_what_the_version_is() {
    run(async {
        for seed in 0..60 {
            let links = if seed % 2 == 0 {
                Links::Sometimes
            } else {
                Links::Often
            };
            let (world, roots, script) = history(seed, links).await;
            for (from, to) in [(2, 0), (1, 0), (2, 1), (0, 2)] {
                let (from, to) = (roots[from], roots[to]);
                let of = format!("seed {seed}: {script:#?}");
                let root = whole_of(&world, (from, to)).await;
                check_sound(&world, root, &of).await;
                assert!(is_as(&world.tree, (to, root)).await.unwrap(), "{of}");
                assert!(is_as(&world.tree, (root, to)).await.unwrap(), "{of}");
                assert_eq!(view(&world, root).await, view(&world, to).await, "{of}");
                check_times(&world, (from, root), &of).await;
                check_told(&world, (from, root), &of).await;
                assert_eq!(whole_of(&world, (root, to)).await, root, "{of}");
                assert_eq!(whole_of(&world, (from, from)).await, from, "{of}");
                // What was changed meanwhile is taken in.
                for meanwhile in roots.clone() {
                    let moved = (from, meanwhile);
                    let again = whole_again(&world.tree, root, moved, to, RULES).await;
                    let again = again.unwrap();
                    check_sound(&world, again, &of).await;
                    assert!(is_as(&world.tree, (to, again)).await.unwrap(), "{of}");
                    check_times(&world, (meanwhile, again), &of).await;
                }
                // And back.
                let back = whole_of(&world, (root, from)).await;
                assert_eq!(view(&world, back).await, view(&world, from).await, "{of}");
                check_times(&world, (root, back), &of).await;
            }
        }
    });
}

/// What a branch has that is newer is taken with its own times, so that the trees are equal.
#[test]
fn what_is_newer_anyway_keeps_its_times() {
    run(async {
        let mut world = World::new();
        world.script(&["mkdir d", "write d/f 1"]).await;
        let old = world.freeze().await;
        world
            .script(&["write d/f 2", "write d/g 3", "rm d/g", "write h 1"])
            .await;
        let new = world.freeze().await;
        let rules = Rules {
            newcomers: Newcomers::Keep,
            ..RULES
        };
        let made = whole(&world.tree, (old, new), rules, |_| {}).await.unwrap();
        assert_eq!(made, new);
        assert!(!is_as(&world.tree, (old, new)).await.unwrap());
    });
}

#[test]
fn paths_become_what_the_version_has_there() {
    run(async {
        let (mut restored, mut copied, mut refused) = (0, 0, 0);
        for seed in 0..150 {
            let links = [Links::Never, Links::Sometimes, Links::Often];
            let links = links[usize::try_from(seed % 3).unwrap()];
            let (world, roots, script) = history(seed, links).await;
            let rng = Rng::seeded(seed + 1000);
            for (from, to) in [(2, 0), (1, 0), (2, 1), (0, 1)] {
                let (from, to) = (roots[from], roots[to]);
                let (old, version) = (view(&world, from).await, view(&world, to).await);
                let known: BTreeSet<&String> = old.keys().chain(version.keys()).collect();
                let known: Vec<&String> = known.into_iter().collect();
                if known.is_empty() {
                    continue;
                }
                let pick = || known[usize::try_from(rng.u64()).unwrap_or(0) % known.len()];
                let names: Vec<&str> = (0..1 + rng.u64() % 2).map(|_| pick().as_str()).collect();
                let of = format!("seed {seed}, {names:?}: {script:#?}");
                let made = paths_of(&world, (from, to), &names).await;
                let (root, copies) = match made {
                    Ok(made) => made,
                    Err(RestoreError::NoParent { .. }) => {
                        refused += 1;
                        continue;
                    }
                    Err(error) => panic!("{error}: {of}"),
                };
                restored += usize::from(root != from);
                copied += usize::from(copies > 0);
                check_sound(&world, root, &of).await;
                check_times(&world, (from, root), &of).await;
                let new = view(&world, root).await;
                check_views((&old, &version, &new), &names, &of);
                let is_there = |name: &&str| version.contains_key(*name);
                if copies == 0 && names.iter().all(is_there) {
                    let again = paths_of(&world, (root, to), &names).await.unwrap();
                    assert_eq!(again, (root, 0), "{of}");
                }
            }
        }
        assert!(
            restored > 200 && copied > 10 && refused > 5,
            "{restored} {copied} {refused}"
        );
    });
}

/// Inside is what the version has; outside is what was there, but for files that are inside as well.
fn check_views((old, version, new): (&View, &View, &View), names: &[&str], of: &str) {
    let inside = |path: &str| names.iter().any(|above| is_below(path, above));
    let part = |view: &View| -> BTreeMap<String, Shown> {
        let part = view.iter().filter(|(path, _)| inside(path));
        part.map(|(path, (_, shown))| (path.clone(), shown.clone()))
            .collect()
    };
    assert_eq!(part(new), part(version), "{of}");
    let outer = |view: &View| -> Vec<String> {
        view.keys().filter(|path| !inside(path)).cloned().collect()
    };
    assert_eq!(outer(new), outer(old), "{of}");
    for (path, (inode, shown)) in new.iter().filter(|(path, _)| !inside(path)) {
        let (was, before) = &old[path];
        assert_eq!(inode, was, "{of}: {path}");
        if shown != before {
            let both = |side: bool| {
                let mut at = version.iter().filter(|(_, (other, _))| other == inode);
                at.any(|(path, _)| inside(path) == side)
            };
            assert!(both(true) && both(false), "{of}: {path} changed");
        }
    }
    // What is at the same path in the session and the version is the same object, unless that also
    // is elsewhere.
    for (path, (inode, _)) in version.iter().filter(|(path, _)| inside(path)) {
        if old.get(path).is_some_and(|(was, _)| was == inode)
            && old.values().filter(|(other, _)| other == inode).count() == 1
        {
            assert_eq!(new[path].0, *inode, "{of}: {path}");
        }
    }
}

#[test]
fn what_was_moved_away_stays_and_the_path_gets_a_copy() {
    run(async {
        let mut world = World::new();
        let made = [
            "mkdir src",
            "mkdir src/lib",
            "write src/lib/a 1",
            "write src/b 2",
        ];
        world.script(&made).await;
        let version = world.freeze().await;
        world
            .script(&[
                "mv src old",
                "mkdir src",
                "write src/new 3",
                "write old/b 9",
            ])
            .await;
        let session = world.freeze().await;
        let (root, copies) = paths_of(&world, (session, version), &["src"])
            .await
            .unwrap();
        assert_eq!(copies, 4, "src, lib and two files");
        let (new, was, wanted) = (
            view(&world, root).await,
            view(&world, session).await,
            view(&world, version).await,
        );
        let names: Vec<&String> = new.keys().collect();
        let expected = [
            "old",
            "old/b",
            "old/lib",
            "old/lib/a",
            "src",
            "src/b",
            "src/lib",
            "src/lib/a",
        ];
        assert_eq!(names, expected);
        assert_eq!(new["old/b"], was["old/b"]);
        assert_eq!(new["src/b"].1, wanted["src/b"].1);
        check_sound(&world, root, "moved").await;
    });
}

#[test]
fn what_cannot_be_restored_is_said() {
    run(async {
        let mut world = World::new();
        world
            .script(&["mkdir a", "mkdir a/b", "write a/b/c 1"])
            .await;
        let version = world.freeze().await;
        world.script(&["rmtree a"]).await;
        let session = world.freeze().await;
        let of = async |path: &'static str| {
            let made = paths_of(&world, (session, version), &[path]).await;
            made.unwrap_err().to_string()
        };
        assert!(of("nowhere").await.contains("neither the session nor"));
        assert!(of("a/b/x").await.contains("neither"));
        assert!(of("a/b/c").await.contains("no directory \"a/b\""));
        let (root, _) = paths_of(&world, (session, version), &["a"]).await.unwrap();
        assert_eq!(view(&world, root).await, view(&world, version).await);
        let all = paths_of(&world, (session, version), &["a/b/c", ""])
            .await
            .unwrap();
        assert_eq!(view(&world, all.0).await, view(&world, version).await);
    });
}

/// What differs decides what it costs, not how much there is.
#[test]
fn the_cost_is_in_what_differs() {
    run(async {
        let mut world = World::new();
        for dir in 0..20 {
            let mut lines = vec![format!("mkdir d{dir}")];
            lines.extend((0..100).map(|file| format!("write d{dir}/f{file} {file}")));
            world.script(&lines).await;
        }
        let version = world.freeze().await;
        world.script(&["write d3/f7 changed", "rm d5/f1"]).await;
        let session = world.freeze().await;
        let all = world.tree.verify(version).await.unwrap();
        assert!(all.entries > 4000);
        let total = Whole::read(&world, version).await.records.len();
        // Nothing of it is in memory.
        let fresh = || MemoryTrees::new(Arc::clone(&world.nodes)).open(world.keys.clone());
        let before = world.nodes.gets();
        let made = whole(&fresh(), (session, version), RULES, |_| {}).await;
        let whole_gets = world.nodes.gets() - before;
        assert_ne!(made.unwrap(), session);
        let before = world.nodes.gets();
        let mut numbers = InodeNumbers {
            next: COPIES,
            end: u64::MAX,
        };
        let tree = fresh();
        let image = (&tree, &world.hasher);
        let names = [b"d3".to_vec()];
        let made = paths(
            image,
            (session, version),
            &names,
            RULES,
            &mut numbers,
            |_| {},
        )
        .await;
        let root = made.unwrap();
        let path_gets = world.nodes.gets() - before;
        assert_ne!(root, session);
        assert!(
            whole_gets < 40 && path_gets < 80,
            "{whole_gets}, {path_gets} of {total}"
        );
        let new = view(&world, root).await;
        assert_eq!(new.get("d5/f1"), None);
    });
}

/// Bug: clients were not told of what is another inode and looks the same. They found it stale.
#[test]
fn what_looks_the_same_and_is_another_inode_is_told() {
    run(async {
        let mut world = World::new();
        world
            .script(&[
                "mkdir d",
                "mkdir d/e",
                "write d/e/f 1",
                "write g 1",
                "touch g",
            ])
            .await;
        let old = world.freeze().await;
        let again = [
            "rm d/e/f",
            "rmdir d/e",
            "rmdir d",
            "mkdir d",
            "mkdir d/e",
            "write d/e/f 1",
        ];
        world.script(&again).await;
        let new = world.freeze().await;
        let of = "made anew";
        for roots in [(old, new), (new, old)] {
            check_told(&world, roots, of).await;
        }
        let changed = changed_paths(&world.tree, &world.hasher, (old, new));
        let ChangedPaths::These(mut told) = changed.await.unwrap() else {
            panic!("it is little");
        };
        told.sort_unstable();
        assert_eq!(told, [&b"d"[..], b"d/e", b"d/e/f"]);
    });
}

#[test]
fn changed_paths_are_told_with_both_names() {
    run(async {
        let mut world = World::new();
        let made = [
            "mkdir d",
            "write d/f 1",
            "write x 1",
            "ln x y",
            "write gone 1",
            "write p 1",
            "ln p q",
        ];
        world.script(&made).await;
        let old = world.freeze().await;
        let made = [
            "mv d/f d/g",
            "write x 2",
            "rm gone",
            "ln x z",
            "chmod d 700",
            "rm q",
        ];
        world.script(&made).await;
        let new = world.freeze().await;
        let changed = changed_paths(&world.tree, &world.hasher, (old, new));
        let ChangedPaths::These(paths) = changed.await.unwrap() else {
            panic!("it is little");
        };
        let paths: BTreeSet<String> = paths
            .into_iter()
            .map(|path| String::from_utf8(path).unwrap())
            .collect();
        for path in ["d", "d/f", "d/g", "gone", "x", "z", "p", "q"] {
            assert!(paths.contains(path), "{path}: {paths:?}");
        }
        let none = changed_paths(&world.tree, &world.hasher, (new, new));
        assert_eq!(none.await.unwrap(), ChangedPaths::default());
        let snapshot = Snapshot::new(world.tree.clone(), world.hasher.clone(), new);
        assert!(snapshot.lookup(b"z").await.unwrap().is_some());
    });
}

/// However many blocks a file has: what is held of them is a part.
#[test]
fn long_files_are_restored_part_by_part() {
    run(async {
        let mut world = World::new();
        const BLOCKS: usize = 100;
        let bytes = BLOCKS * usize::try_from(BLOCK_BYTES).unwrap();
        let fill = format!("fill d/f 0+{bytes}");
        world
            .script(&["mkdir d", fill.as_str(), "fill d/g 0+10"])
            .await;
        let old = world.freeze().await;
        world
            .script(&["cut d/f 100000", "rm d/g", "fill d/h 0+100000"])
            .await;
        let new = world.freeze().await;
        for roots in [(new, old), (old, new)] {
            let before = world.nodes.syncs();
            let (root, _) = paths_of(&world, roots, &["d"]).await.unwrap();
            let parts = usize::try_from(world.nodes.syncs() - before).unwrap();
            assert!(parts >= (BLOCKS - 4) / write::DELTA_KEYS_MAX, "{parts}");
            check_sound(&world, root, "d").await;
            let (found, wanted) = (keys_of(&world, root).await, keys_of(&world, roots.1).await);
            let blocks = |keys: &BTreeMap<Bytes, Bytes>| {
                let is_block = |key: &[u8]| matches!(keys::decode(key), Ok(ImageKey::Block { .. }));
                let blocks = keys.iter().filter(|(key, _)| is_block(key));
                blocks
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(blocks(&found), blocks(&wanted));
        }
    });
}

/// Bug: what is held of a file was bounded by the number of its blocks, whatever is in them.
#[test]
fn long_values_are_restored_part_by_part() {
    run(async {
        const BLOCKS: usize = 40;
        const BYTES: usize = 10_000;
        let mut world = World::new();
        let block = usize::try_from(BLOCK_BYTES).unwrap();
        let fill = |number| format!("fill d/f {}+{BYTES}", number * block);
        let fills: Vec<String> = (0..BLOCKS).map(fill).collect();
        let script: Vec<&str> = fills.iter().map(String::as_str).collect();
        world.script(&["mkdir d"]).await;
        world.script(&script).await;
        let old = world.freeze().await;
        world.script(&["cut d/f 0"]).await;
        let new = world.freeze().await;
        let before = world.nodes.syncs();
        let (root, _) = paths_of(&world, (new, old), &["d"]).await.unwrap();
        let parts = usize::try_from(world.nodes.syncs() - before).unwrap();
        let most = write::DELTA_BYTES_MAX + BYTES + 100;
        assert!(parts >= BLOCKS * BYTES / most, "{parts}");
        assert!(most / BYTES < write::DELTA_KEYS_MAX);
        check_sound(&world, root, "d").await;
    });
}
