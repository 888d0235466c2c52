//! Nodes in a map in memory, for tests, simulation and benches.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::Tasks;
use bytes::Bytes;
use parking_lot::RwLock;

use super::{NodeCache, NodeFuture, NodeId, NodeStore, Tree, TreeError, TreeKeys, Trees};

/// A store that lives as long as the process. It counts what it is asked for, and remembers which
/// nodes a crash would lose.
#[derive(Debug, Default)]
pub struct MemoryNodes {
    nodes: RwLock<HashMap<NodeId, StoredNode>>,
    gets: AtomicU64,
    puts: AtomicU64,
    syncs: AtomicU64,
}

/// A node in memory.
#[derive(Clone, Debug)]
pub struct StoredNode {
    /// Its bytes.
    pub bytes: Bytes,
    /// Number of the put that stored it first, from 0.
    pub number: u64,
    /// Whether a sync has begun since.
    pub durable: bool,
}

impl MemoryNodes {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many nodes were asked for.
    #[must_use]
    pub fn gets(&self) -> u64 {
        self.gets.load(Ordering::Relaxed)
    }

    /// How many nodes were given, those given again among them.
    #[must_use]
    pub fn puts(&self) -> u64 {
        self.puts.load(Ordering::Relaxed)
    }

    /// How often it was made durable.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// How many nodes are stored.
    #[must_use]
    pub fn count(&self) -> usize {
        self.nodes.read().len()
    }

    /// A node as it is stored; not counted.
    #[must_use]
    pub fn peek(&self, id: NodeId) -> Option<StoredNode> {
        self.nodes.read().get(&id).cloned()
    }

    /// Takes a node away, or puts other bytes in its place.
    pub fn damage(&self, id: NodeId, bytes: Option<Bytes>) {
        let mut nodes = self.nodes.write();
        match (bytes, nodes.get_mut(&id)) {
            (Some(bytes), Some(node)) => node.bytes = bytes,
            (Some(_), None) => {}
            (None, _) => {
                nodes.remove(&id);
            }
        }
    }
}

impl NodeStore for MemoryNodes {
    fn get(&self, id: NodeId) -> NodeFuture<'_, Bytes> {
        Box::pin(async move {
            self.gets.fetch_add(1, Ordering::Relaxed);
            let node = self.peek(id).ok_or(TreeError::Missing(id))?;
            Ok(node.bytes)
        })
    }

    fn put(&self, id: NodeId, bytes: Bytes) -> NodeFuture<'_, ()> {
        Box::pin(async move {
            let number = self.puts.fetch_add(1, Ordering::Relaxed);
            self.nodes.write().entry(id).or_insert(StoredNode {
                bytes,
                number,
                durable: false,
            });
            Ok(())
        })
    }

    fn sync(&self) -> NodeFuture<'_, ()> {
        Box::pin(async move {
            self.syncs.fetch_add(1, Ordering::Relaxed);
            for node in self.nodes.write().values_mut() {
                node.durable = true;
            }
            Ok(())
        })
    }
}

/// The trees of all workspaces in one [`MemoryNodes`].
#[derive(Debug, Default)]
pub struct MemoryTrees {
    nodes: Arc<MemoryNodes>,
}

impl MemoryTrees {
    /// Trees whose nodes are in `nodes`.
    #[must_use]
    pub fn new(nodes: Arc<MemoryNodes>) -> Self {
        Self { nodes }
    }
}

impl Trees for MemoryTrees {
    fn open(&self, keys: TreeKeys) -> Tree {
        let nodes = Arc::clone(&self.nodes);
        Tree::new(nodes, Arc::new(NodeCache::new(0)), keys, Tasks::new())
    }
}
