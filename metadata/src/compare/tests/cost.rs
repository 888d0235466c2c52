//! How much is read, and what goes on after an error.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{DomainId, Tasks, Timestamp};

use super::*;
use crate::image::NameHasher;
use crate::keyspace::image as keys;
use crate::record::entry::Entry;
use crate::record::inode::InodeRecord;
use crate::stat::{Device, FileKind, Stat};
use crate::tree::{MemoryNodes, NodeCache, Tree, TreeKeys};

const DIRS: u64 = 1000;
const FILES: u64 = 100;
const FIRST: u64 = 1 << 20;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn hasher() -> NameHasher {
    NameHasher::new([3; 32])
}

fn record(inode: InodeId, kind: FileKind, link: Option<Place>) -> InodeRecord {
    InodeRecord {
        stat: Stat {
            inode,
            kind,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 10,
            used: 0,
            device: Device::default(),
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
        },
        entries: 0,
        link,
        verifier: None,
        inline: None,
    }
}

fn add(map: &mut Map, dir: InodeId, name: &str, inode: u64, kind: FileKind) -> InodeId {
    let (inode, name) = (InodeId::new(inode), Name::new(name.as_bytes()).unwrap());
    let hash = hasher().hash(name.as_bytes());
    let entry = Entry { inode, kind }.encode().to_vec();
    map.insert(keys::entry(dir, hash, name.as_bytes()), entry);
    let record = record(inode, kind, Some((dir, name)));
    map.insert(keys::inode(inode), record.encode().to_vec());
    inode
}

fn remove(map: &mut Map, dir: InodeId, name: &str, inode: InodeId) {
    let hash = hasher().hash(name.as_bytes());
    map.remove(&keys::entry(dir, hash, name.as_bytes()))
        .unwrap();
    map.remove(&keys::inode(inode)).unwrap();
}

fn empty() -> Map {
    let root = record(InodeId::ROOT, FileKind::Directory, None);
    Map::from([(keys::inode(InodeId::ROOT), root.encode().to_vec())])
}

/// A hundred thousand files in a thousand directories in ten.
fn large() -> Map {
    let mut map = empty();
    let mut inode = FIRST..;
    let mut next = || inode.next().unwrap();
    let dir = FileKind::Directory;
    for ten in 0..10 {
        let above = add(&mut map, InodeId::ROOT, &format!("t{ten}"), next(), dir);
        for hundred in 0..DIRS / 10 {
            let parent = add(&mut map, above, &format!("d{hundred}"), next(), dir);
            for file in 0..FILES {
                add(
                    &mut map,
                    parent,
                    &format!("f{file}"),
                    next(),
                    FileKind::File,
                );
            }
        }
    }
    map
}

fn inode_of(ten: u64, hundred: u64, file: Option<u64>) -> InodeId {
    let in_ten = 1 + DIRS / 10 * (1 + FILES);
    let in_dir = file.map_or(0, |file| 1 + file);
    InodeId::new(FIRST + ten * in_ten + 1 + hundred * (1 + FILES) + in_dir)
}

fn change(map: &mut Map, inode: InodeId, change: impl FnOnce(&mut InodeRecord)) {
    let key = keys::inode(inode);
    let mut record = InodeRecord::decode(inode, &map[&key]).unwrap();
    change(&mut record);
    map.insert(key, record.encode().to_vec());
}

struct Trees {
    store: Arc<MemoryNodes>,
    tree: Tree,
}

fn trees(cache_bytes: usize) -> Trees {
    let store = Arc::new(MemoryNodes::new());
    trees_in(store, cache_bytes)
}

fn trees_in(store: Arc<MemoryNodes>, cache_bytes: usize) -> Trees {
    let keys = TreeKeys::new(DomainId::new(1), &[1; 32], &[2; 32]);
    let cache = Arc::new(NodeCache::new(cache_bytes));
    let tree = Tree::new(store.clone(), cache, keys, Tasks::new());
    Trees { store, tree }
}

async fn all(mut comparison: Comparison) -> Vec<String> {
    let mut lines = Vec::new();
    while let Some(change) = comparison.next().await.unwrap() {
        lines.push(line(&change));
    }
    lines
}

#[test]
fn a_comparison_reads_in_proportion_to_the_changes() {
    run(async {
        let Trees { store, tree } = trees(0);
        let before = large();
        let old = tree.build(&before).await.unwrap().root;
        let nodes = u64::try_from(store.count()).unwrap();
        assert!(nodes > 500, "{nodes}");
        type Change = fn(&mut Map);
        let cases: [(Change, &[&str]); 5] = [
            (|_| {}, &[]),
            (
                |map| change(map, inode_of(3, 50, Some(7)), |file| file.stat.size = 11),
                &["Modified t3/d50/f7 content"],
            ),
            (
                |map| {
                    add(map, inode_of(0, 0, None), "new", 1 << 30, FileKind::File);
                    remove(map, inode_of(9, 99, None), "f9", inode_of(9, 99, Some(9)));
                },
                &["Removed t9/d99/f9", "Added t0/d0/new"],
            ),
            (
                |map| {
                    remove(map, inode_of(5, 5, None), "f5", inode_of(5, 5, Some(5)));
                    add(map, inode_of(5, 5, None), "f5", 1 << 30, FileKind::File);
                    change(map, InodeId::new(1 << 30), |file| file.stat.uid = 1);
                },
                &["Modified t5/d5/f5 owner replaced"],
            ),
            (
                // Ten thousand files move.
                |map| {
                    let moved = InodeId::new(FIRST);
                    let record = map[&keys::inode(moved)].clone();
                    remove(map, InodeId::ROOT, "t0", moved);
                    let to = inode_of(4, 4, None);
                    add(map, to, "t", FIRST, FileKind::Directory);
                    assert_ne!(map[&keys::inode(moved)], record);
                },
                &["Renamed t0 -> t4/d4/t"],
            ),
        ];
        for (edit, wanted) in cases {
            let mut after = before.clone();
            edit(&mut after);
            let delta: BTreeMap<&Vec<u8>, Option<&Vec<u8>>> = before
                .keys()
                .chain(after.keys())
                .filter(|key| before.get(*key) != after.get(*key))
                .map(|key| (key, after.get(key)))
                .collect();
            let new = tree.apply(old, delta).await.unwrap().root;
            // With a cache that is cold, as after a start.
            for (cache_bytes, most) in [(64 << 20, 24), (0, 90)] {
                let Trees { store, tree } = trees_in(Arc::clone(&store), cache_bytes);
                let begin = store.gets();
                let comparison = compare(&tree, &hasher(), (old, new), Options::default());
                assert_eq!(all(comparison).await, wanted);
                let read = store.gets() - begin;
                assert!(read <= most, "{read} nodes of {nodes} for {wanted:?}");
                let begin = store.gets();
                let counted = statistics(&tree, &hasher(), Some(old), new).await.unwrap();
                assert_eq!(counted == Statistics::default(), wanted.is_empty());
                assert!(store.gets() - begin <= read);
            }
        }
    });
}

/// Sizes of what is remembered do not follow the number of changes.
#[test]
fn what_is_remembered_is_bounded() {
    run(async {
        let Trees { tree, .. } = trees(64 << 20);
        let root = tree.build(&large()).await.unwrap().root;
        let mut comparison = compare(&tree, &hasher(), (Root::EMPTY, root), Options::default());
        comparison.pair.known_max = 16;
        comparison.new_paths.bytes_max = 1000;
        let mut count = 0;
        while comparison.next().await.unwrap().is_some() {
            count += 1;
            let (pair, paths) = (&comparison.pair, &comparison.new_paths);
            assert!(pair.known() <= 2 * 16 + 8, "{}", pair.known());
            assert!(paths.bytes() <= 1000 + 100, "{}", paths.bytes());
        }
        assert_eq!(count, 10 + DIRS + DIRS * FILES);
    });
}

/// A chain of directories that is too deep to be told, and a file beside it.
#[test]
fn too_long_a_path_is_one_error_and_the_comparison_goes_on() {
    run(async {
        let Trees { tree, .. } = trees(64 << 20);
        let mut map = empty();
        let name = "n".repeat(255);
        let mut dir = InodeId::ROOT;
        let levels = 300_u64;
        for level in 0..levels {
            dir = add(&mut map, dir, &name, FIRST + level, FileKind::Directory);
        }
        add(&mut map, InodeId::ROOT, "f", FIRST + levels, FileKind::File);
        let new = tree.build(&map).await.unwrap().root;
        let (mut told, mut too_long) = (0, 0);
        let mut comparison = compare(&tree, &hasher(), (Root::EMPTY, new), Options::default());
        loop {
            match comparison.next().await {
                Ok(Some(change)) => {
                    assert!(change.path.len() <= PATH_BYTES_MAX);
                    told += 1;
                }
                Ok(None) => break,
                Err(SnapshotError::PathTooLong(long)) => {
                    assert!(long.inode.raw() >= FIRST + 256);
                    too_long += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        // A name and a slash are 256 bytes; the first has no slash.
        assert_eq!((told, too_long), (256 + 1, 300 - 256));
        let counted = statistics(&tree, &hasher(), None, new).await.unwrap();
        assert_eq!(counted.added.files, levels + 1);
        let mut paths = Snapshot::new(tree, hasher(), new).paths_of(dir);
        let long = paths.next().await.unwrap_err();
        assert!(
            matches!(&long, SnapshotError::PathTooLong(it) if it.inode == dir && !it.front.is_empty()),
            "{long}"
        );
        assert!(long.to_string().contains("or remove it"), "{long}");
        assert_eq!(paths.next().await, Ok(None));
    });
}

/// Directories that hang in a circle, and other things that no image has.
#[test]
fn damage_is_told_and_ends() {
    run(async {
        let Trees { tree, .. } = trees(0);
        let dir = FileKind::Directory;
        let mut circle = empty();
        let (one, two) = (InodeId::new(FIRST), InodeId::new(FIRST + 1));
        add(&mut circle, one, "two", two.raw(), dir);
        add(&mut circle, two, "one", one.raw(), dir);
        add(&mut circle, two, "f", FIRST + 2, FileKind::File);
        let mut nameless = empty();
        add(&mut nameless, InodeId::ROOT, "f", FIRST, FileKind::File);
        change(&mut nameless, one, |record| record.link = None);
        let mut orphan = empty();
        add(&mut orphan, InodeId::new(7), "f", FIRST, FileKind::File);
        let mut bare = empty();
        bare.insert(keys::block(one, 0), Vec::new());
        let mut garbled = empty();
        garbled.insert(keys::inode(one), b"?".to_vec());
        let mut foreign = empty();
        foreign.insert([&one.raw().to_be_bytes()[..], b"\x09"].concat(), Vec::new());
        let base = tree.build(&empty()).await.unwrap().root;
        for (map, wanted) in [
            (circle, "the path of inode 0000000000100000 is too long"),
            (nameless, ""),
            (
                orphan,
                "inode 0000000000000007 is damaged: it has a name and no attributes",
            ),
            (
                bare,
                "inode 0000000000100000 is damaged: it has content and no attributes",
            ),
            (garbled, "decode a record of inode 0000000000100000"),
            (foreign, "decode a key"),
        ] {
            let root = tree.build(&map).await.unwrap().root;
            for roots in [(base, root), (root, base), (Root::EMPTY, root)] {
                let mut comparison = compare(&tree, &hasher(), roots, Options::default());
                let first = comparison.next().await;
                // Too long a path is one change's error; all others stay.
                if !matches!(first, Err(SnapshotError::PathTooLong(_)) | Ok(_)) {
                    assert_eq!(comparison.next().await, first);
                }
                let found = first.err().map(|error| error.to_string());
                let found = found.unwrap_or_default();
                assert!(found.starts_with(wanted), "{found}, not {wanted}");
            }
        }
    });
}

/// Records of a commit are of no file.
#[test]
fn conflicts_of_a_merge_are_no_change() {
    run(async {
        let Trees { tree, .. } = trees(0);
        let plain = tree.build(&empty()).await.unwrap().root;
        let mut map = empty();
        map.insert(keys::conflict(&[7; 16]), b"either".to_vec());
        let conflicted = tree.build(&map).await.unwrap().root;
        for roots in [(plain, conflicted), (conflicted, plain)] {
            let comparison = compare(&tree, &hasher(), roots, Options::default());
            assert_eq!(all(comparison).await, [""; 0]);
        }
    });
}

/// Wherever a call is dropped, nothing is skipped and nothing is told twice.
#[test]
fn a_dropped_call_loses_nothing() {
    run(async {
        let mut world = World::new();
        world
            .script(&["mkdir d", "write d/f 1", "write g 1", "ln g h", "mkdir e"])
            .await;
        let old = world.freeze().await;
        let edits = [
            "rmtree d",
            "mkdir d",
            "write d/f 22",
            "save g 22",
            "mv e d/e",
            "write i",
        ];
        world.script(&edits).await;
        let new = world.freeze().await;
        let wanted = changes(&world, (old, new), Options::default()).await;
        assert!(wanted.len() >= 4);
        let mut context = Context::from_waker(Waker::noop());
        for polls in 1..60 {
            // A store that answers at the second poll only.
            let slow = Arc::new(Slow(world.nodes.clone()));
            let tree = Tree::new(
                slow,
                Arc::new(NodeCache::new(64 << 20)),
                world.keys.clone(),
                Tasks::new(),
            );
            let mut comparison = compare(&tree, &world.hasher, (old, new), Options::default());
            let mut found = Vec::new();
            // Dropped after some polls; but after as many calls let run, so that it ends.
            let mut calls = 0;
            loop {
                calls += 1;
                let mut call = Box::pin(comparison.next());
                let mut done = None;
                for _ in 0..if calls % 2 == 1 { polls } else { usize::MAX } {
                    if let Poll::Ready(result) = call.as_mut().poll(&mut context) {
                        done = Some(result.unwrap());
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                match done {
                    Some(Some(change)) => found.push(change),
                    Some(None) => break,
                    None => {}
                }
            }
            assert_eq!(found, wanted, "after {polls} polls");
        }
    });
}

/// Answers at the second poll.
#[derive(Debug)]
struct Slow(Arc<MemoryNodes>);

impl crate::tree::NodeStore for Slow {
    fn get(&self, id: crate::tree::NodeId) -> crate::tree::NodeFuture<'_, bytes::Bytes> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            self.0.get(id).await
        })
    }

    fn put(&self, id: crate::tree::NodeId, bytes: bytes::Bytes) -> crate::tree::NodeFuture<'_, ()> {
        self.0.put(id, bytes)
    }

    fn sync(&self) -> crate::tree::NodeFuture<'_, ()> {
        self.0.sync()
    }
}
