use std::collections::{BTreeMap, BTreeSet};

use base::{InodeId, Name};
use proptest::prelude::*;

use super::*;
use crate::image::NameHasher;

mod damage;
mod properties;
mod work;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Delta = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn tree_keys() -> TreeKeys {
    TreeKeys::new(DomainId::new(1), &[1; 32], &[2; 32])
}

/// A tree over a store in memory.
struct Setup {
    tree: Tree,
    store: Arc<MemoryNodes>,
}

impl Setup {
    /// With small nodes, and no cache to hide what is read.
    fn small() -> Self {
        let store = Arc::new(MemoryNodes::new());
        let cache = Arc::new(NodeCache::new(0));
        Self {
            tree: Tree::small(store.clone(), cache, tree_keys()),
            store,
        }
    }

    /// As in production.
    fn usual() -> Self {
        let store = Arc::new(MemoryNodes::new());
        let cache = Arc::new(NodeCache::new(64 << 20));
        Self {
            tree: Tree::new(store.clone(), cache, tree_keys(), Tasks::new()),
            store,
        }
    }

    async fn build(&self, map: &Map) -> Root {
        self.tree.build(map).await.unwrap().root
    }

    async fn apply(&self, root: Root, delta: &Delta) -> Root {
        self.tree.apply(root, edits(delta)).await.unwrap().root
    }

    /// Everything in a version.
    async fn content(&self, root: Root) -> Map {
        let mut scan = Scan::all(self.tree.nodes.clone(), root);
        let mut map = Map::new();
        while let Some((key, value)) = scan.next().await.unwrap() {
            assert_eq!(map.insert(key.to_vec(), value.to_vec()), None);
        }
        map
    }

    /// The nodes of a version, by level.
    async fn levels(&self, root: Root) -> Vec<Vec<Node>> {
        let mut levels: Vec<Vec<Node>> = Vec::new();
        let mut walk = self.tree.walk(root);
        while let Some(node) = walk.next(|_| false).await.unwrap() {
            let level = usize::from(node.level());
            if levels.len() <= level {
                levels.resize(level + 1, Vec::new());
            }
            levels[level].push(node);
        }
        levels
    }
}

fn edits(delta: &Delta) -> impl Iterator<Item = (&Vec<u8>, Option<&Vec<u8>>)> + Send {
    delta.iter().map(|(key, value)| (key, value.as_ref()))
}

/// What a delta makes of a map.
fn applied(map: &Map, delta: &Delta) -> Map {
    let mut map = map.clone();
    for (key, value) in delta {
        match value {
            Some(value) => drop(map.insert(key.clone(), value.clone())),
            None => drop(map.remove(key)),
        }
    }
    map
}

/// The delta that makes one map of another.
fn between(old: &Map, new: &Map) -> Delta {
    let removed = old.keys().filter(|key| !new.contains_key(*key));
    let changed = new
        .iter()
        .filter(|(key, value)| old.get(*key) != Some(value));
    removed
        .map(|key| (key.clone(), None))
        .chain(changed.map(|(key, value)| (key.clone(), Some(value.clone()))))
        .collect()
}

/// Tasks on other threads take these.
#[test]
fn everything_may_be_sent_to_another_thread() {
    fn sent<T: Send>(_: &T) {}
    let setup = Setup::small();
    let range = KeyRange::prefix(b"");
    sent(&setup.tree.get(Root::EMPTY, b"k"));
    sent(&setup.tree.get_many(Root::EMPTY, &[b"k"]));
    sent(&setup.tree.scan(Root::EMPTY, &range).next());
    sent(&setup.tree.diff(Root::EMPTY, Root::EMPTY).next());
    sent(
        &setup
            .tree
            .diff3(Root::EMPTY, Root::EMPTY, Root::EMPTY)
            .next(),
    );
    sent(&setup.tree.walk(Root::EMPTY).next(|_| false));
    sent(&setup.tree.verify(Root::EMPTY));
    sent(&setup.tree.apply(Root::EMPTY, [(b"k", Some(b"v"))]));
    sent(&async {
        let mut editor = setup.tree.edit(Root::EMPTY).await?;
        editor.put(b"k", b"v").await?;
        editor.finish().await
    });
}

/// Runs a test that awaits.
fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(test)
}

/// Attributes of an inode, as an image has them: long enough, and with allocated bytes.
fn attributes(used: u64) -> Vec<u8> {
    let mut record = vec![1, 1, 1];
    record.extend([0; 24]);
    record.extend(used.to_be_bytes());
    record.extend([0; 60]);
    record
}

/// The keys of an image with `files` files, some 20 in a directory, every third with two blocks.
fn image_of(files: u64) -> Map {
    let hasher = NameHasher::new([3; 32]);
    let mut map = Map::new();
    for number in 0..files {
        let (dir, file) = (
            InodeId::new(1 + number / 20 * 100),
            InodeId::new(1000 + number * 3),
        );
        let name = Name::new(format!("file-{number}.txt").as_bytes()).unwrap();
        let hash = hasher.hash(name.as_bytes());
        map.insert(image::inode(dir), attributes(0));
        map.insert(image::inode(file), attributes(number * 4096));
        map.insert(
            image::entry(dir, hash, name.as_bytes()),
            file.raw().to_be_bytes().to_vec(),
        );
        for block in 0..number % 3 {
            let block = u32::try_from(block).unwrap();
            map.insert(image::block(file, block), vec![7; 40]);
        }
    }
    map
}
