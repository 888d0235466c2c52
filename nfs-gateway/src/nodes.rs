//! Tree nodes in the chunk store.
//!
//! A node is stored as a chunk whose name is the node's id: both are keyed blake3 hashes, and the key
//! that nodes are hashed with is handed to the store as the domain's. So compression, packs,
//! deduplication, checks and durability are those of chunks, and no table of places is needed.
//! Chunks of files have another key, so nothing can be both.

use std::sync::Arc;

use base::{ChunkId, Tasks};
use bytes::Bytes;
use chunkstore::{ChunkError, ChunkStore, Domain};
use metadata::tree::{
    NodeCache, NodeError, NodeFuture, NodeId, NodeStore, Tree, TreeError, TreeKeys, Trees,
};

/// Keeps the nodes of one deduplication domain in a chunk store.
///
/// Give it the store itself, not one with a cache in front: nodes have a cache of their own.
#[derive(Debug)]
pub struct ChunkNodes {
    chunks: Arc<dyn ChunkStore>,
    domain: Domain,
}

impl ChunkNodes {
    /// Keeps nodes made with `keys` in `chunks`.
    #[must_use]
    pub fn new(chunks: Arc<dyn ChunkStore>, keys: &TreeKeys) -> Self {
        Self {
            chunks,
            domain: Domain {
                id: keys.domain(),
                key: *keys.node_key(),
            },
        }
    }
}

/// The trees of all workspaces, in one chunk store and seen through one cache.
#[derive(Debug)]
pub struct ChunkTrees {
    chunks: Arc<dyn ChunkStore>,
    cache: Arc<NodeCache>,
    tasks: Tasks,
}

impl ChunkTrees {
    /// Trees in `chunks`, with up to `cache_bytes` of nodes in memory.
    #[must_use]
    pub fn new(chunks: Arc<dyn ChunkStore>, cache_bytes: usize) -> Self {
        Self {
            chunks,
            cache: Arc::new(NodeCache::new(cache_bytes)),
            tasks: Tasks::new(),
        }
    }
}

impl Trees for ChunkTrees {
    fn open(&self, keys: TreeKeys) -> Tree {
        let nodes = Arc::new(ChunkNodes::new(Arc::clone(&self.chunks), &keys));
        Tree::new(nodes, Arc::clone(&self.cache), keys, self.tasks.clone())
    }
}

impl NodeStore for ChunkNodes {
    fn get(&self, id: NodeId) -> NodeFuture<'_, Bytes> {
        Box::pin(async move {
            let chunk = ChunkId::new(*id.as_bytes());
            let read = self.chunks.get(self.domain, chunk).await;
            read.map_err(|error| tree_error(id, error))
        })
    }

    fn put(&self, id: NodeId, bytes: Bytes) -> NodeFuture<'_, ()> {
        Box::pin(async move {
            let put = self.chunks.put(self.domain, bytes).await;
            let stored = put.map_err(|error| tree_error(id, error))?;
            if stored.as_bytes() == id.as_bytes() {
                Ok(())
            } else {
                let error = NodeError::Id;
                Err(TreeError::Damaged { id, error })
            }
        })
    }

    fn sync(&self) -> NodeFuture<'_, ()> {
        Box::pin(async {
            let synced = self.chunks.sync().await;
            synced.map_err(|error| match error {
                ChunkError::NoSpace => TreeError::NoSpace,
                other => TreeError::Unavailable(other.to_string()),
            })
        })
    }
}

fn tree_error(id: NodeId, error: ChunkError) -> TreeError {
    match error {
        ChunkError::NotFound(_) => TreeError::Missing(id),
        ChunkError::Corrupt(_) => {
            let error = NodeError::Id;
            TreeError::Damaged { id, error }
        }
        ChunkError::TooLarge(_) => TreeError::TooLong,
        ChunkError::NoSpace => TreeError::NoSpace,
        ChunkError::Unavailable(what) => TreeError::Unavailable(what),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base::{DomainId, SystemClock};
    use chunkstore::faulty::{Call, Effect, FaultyStore};
    use chunkstore::local::{LocalOptions, LocalStore};
    use chunkstore::memory::MemoryStore;
    use metadata::tree::Root;

    use super::*;

    fn keys() -> TreeKeys {
        TreeKeys::new(DomainId::new(1), &[1; 32], &[2; 32])
    }

    fn tree(chunks: Arc<dyn ChunkStore>) -> Tree {
        let nodes = Arc::new(ChunkNodes::new(chunks, &keys()));
        Tree::new(nodes, Arc::new(NodeCache::new(0)), keys(), Tasks::new())
    }

    fn open(dir: &Path) -> LocalStore {
        let clock = Arc::new(SystemClock::new());
        LocalStore::open(dir, LocalOptions::default(), clock).unwrap()
    }

    fn pairs(count: u32, value: u8) -> impl Iterator<Item = ([u8; 4], [u8; 40])> + Send {
        (0..count).map(move |number| (number.to_be_bytes(), [value; 40]))
    }

    #[tokio::test]
    async fn a_version_is_there_after_reopening_and_compressed() {
        let dir = tempfile::tempdir().unwrap();
        let chunks = open(dir.path());
        let first = tree(Arc::new(chunks.clone()));
        let built = first.build(pairs(10_000, 1)).await.unwrap();
        let delta = pairs(20, 2).map(|(key, value)| (key, Some(value)));
        let edited = first.apply(built.root, delta).await.unwrap();
        assert_eq!(chunks.counts().syncs, 2, "one a version");
        assert!(chunks.counts().stored_bytes < built.written.bytes / 2);
        drop((first, chunks));
        let again = tree(Arc::new(open(dir.path())));
        for root in [built.root, edited.root] {
            assert_eq!(again.verify(root).await.unwrap().entries, 10_000);
        }
        let mut diff = again.diff(built.root, edited.root);
        for (key, value) in pairs(20, 2) {
            let change = diff.next().await.unwrap().unwrap();
            assert_eq!(
                (&change.key[..], change.new.as_deref()),
                (&key[..], Some(&value[..]))
            );
        }
        assert_eq!(diff.next().await, Ok(None));
    }

    /// The bytes of a node, stored by a user as the content of a file, are not the node.
    #[tokio::test]
    async fn content_of_files_is_never_taken_for_a_node() {
        let chunks = Arc::new(MemoryStore::new());
        let other = Arc::new(MemoryStore::new());
        let root = tree(other.clone()).build(pairs(5, 1)).await.unwrap().root;
        let bytes = ChunkNodes::new(other, &keys())
            .get(root.id().unwrap())
            .await
            .unwrap();
        let of_files = Domain {
            id: DomainId::new(1),
            key: [1; 32],
        };
        let chunk = chunks.put(of_files, bytes).await.unwrap();
        let (node, chunk) = (root.id().unwrap(), NodeId::new(*chunk.as_bytes()));
        let tree = tree(chunks);
        let missing = tree.get(root, b"k").await;
        assert_eq!(missing, Err(TreeError::Missing(node)));
        let foreign = tree.get(Root::from_bytes(*chunk.as_bytes()), b"k").await;
        let (id, error) = (chunk, NodeError::Id);
        assert_eq!(foreign, Err(TreeError::Damaged { id, error }));
    }

    #[tokio::test]
    async fn failures_are_told_apart_and_give_no_root() {
        for (call, error, wanted) in [
            (Call::Put, ChunkError::NoSpace, TreeError::NoSpace),
            (Call::Sync, ChunkError::NoSpace, TreeError::NoSpace),
            (
                Call::Sync,
                ChunkError::Unavailable("x".into()),
                TreeError::Unavailable("chunk store is unavailable: x".into()),
            ),
        ] {
            let clock = Arc::new(SystemClock::new());
            let faulty = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), clock));
            faulty.fail(call, error, Effect::Nothing, 1);
            let tree = tree(faulty);
            assert_eq!(tree.build(pairs(5, 1)).await, Err(wanted));
            assert!(tree.build(pairs(5, 1)).await.is_ok());
        }
        let missing = NodeId::new([5; 32]);
        let found = tree(Arc::new(MemoryStore::new()))
            .get(Root::from_bytes([5; 32]), b"k")
            .await;
        assert_eq!(found, Err(TreeError::Missing(missing)));
    }
}
