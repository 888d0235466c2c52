//! Tree nodes in a chunk store that is only looked at.

use std::sync::Arc;

use base::{ChunkId, Tasks};
use bytes::Bytes;
use chunkstore::local::LocalReader;
use chunkstore::{ChunkError, Domain};
use metadata::tree::{
    NodeCache, NodeError, NodeFuture, NodeId, NodeStore, Tree, TreeError, TreeKeys, Trees,
};

/// Nodes kept in memory, in bytes: what leads from one inode to another is looked up in the tree.
const CACHE_BYTES: usize = 64 << 20;

/// The trees of all workspaces, as they are. Nothing can be written.
#[derive(Debug)]
pub(super) struct ReadTrees {
    /// None if nothing is stored.
    chunks: Option<Arc<LocalReader>>,
    cache: Arc<NodeCache>,
    tasks: Tasks,
}

#[derive(Debug)]
struct ReadNodes {
    chunks: Option<Arc<LocalReader>>,
    domain: Domain,
}

impl ReadTrees {
    pub(super) fn new(chunks: Option<Arc<LocalReader>>) -> Self {
        Self {
            chunks,
            cache: Arc::new(NodeCache::new(CACHE_BYTES)),
            tasks: Tasks::new(),
        }
    }
}

impl Trees for ReadTrees {
    fn open(&self, keys: TreeKeys) -> Tree {
        let nodes = Arc::new(ReadNodes {
            chunks: self.chunks.clone(),
            domain: Domain {
                id: keys.domain(),
                key: *keys.node_key(),
            },
        });
        Tree::new(nodes, Arc::clone(&self.cache), keys, self.tasks.clone())
    }
}

impl NodeStore for ReadNodes {
    /// Blocks: there is nothing else to do meanwhile.
    fn get(&self, id: NodeId) -> NodeFuture<'_, Bytes> {
        Box::pin(async move {
            let chunks = self.chunks.as_ref().ok_or(TreeError::Missing(id))?;
            let read = chunks.get(self.domain, ChunkId::new(*id.as_bytes()));
            read.map_err(|error| match error {
                ChunkError::NotFound(_) => TreeError::Missing(id),
                ChunkError::Corrupt(_) | ChunkError::TooLarge(_) => {
                    let error = NodeError::Id;
                    TreeError::Damaged { id, error }
                }
                ChunkError::NoSpace | ChunkError::Unavailable(_) => {
                    TreeError::Unavailable(error.to_string())
                }
            })
        })
    }

    fn put(&self, _: NodeId, _: Bytes) -> NodeFuture<'_, ()> {
        Box::pin(async { Err(read_only()) })
    }

    fn sync(&self) -> NodeFuture<'_, ()> {
        Box::pin(async { Err(read_only()) })
    }
}

fn read_only() -> TreeError {
    TreeError::Unavailable("nothing is written here".to_owned())
}
