//! Where nodes are kept, and reading them so that nothing wrong gets through.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use base::Tasks;
use bytes::Bytes;

use super::cache::NodeCache;
use super::node::{Child, Node};
use super::{NodeError, NodeId, Root, Tree, TreeError, TreeKeys};

/// A future of a store call.
pub type NodeFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, TreeError>> + Send + 'a>>;

/// Keeps the nodes of one deduplication domain.
///
/// What it compresses, packs or stages is its own affair: it is given canonical bytes and gives them
/// back. Their id is checked by the reader, so a store need not.
pub trait NodeStore: Debug + Send + Sync + 'static {
    /// The bytes of a node, in an allocation of their own: they may be kept for long.
    ///
    /// # Errors
    ///
    /// [`TreeError::Missing`] if it is not stored; damage and failures by name.
    fn get(&self, id: NodeId) -> NodeFuture<'_, Bytes>;

    /// Stores a node. It can be read at once, and is durable after a [`NodeStore::sync`] that began
    /// after this returned. Storing it again is cheap. Children come before their parents.
    ///
    /// # Cancellation
    ///
    /// Safe to drop: at worst a node is left that nobody names.
    fn put(&self, id: NodeId, bytes: Bytes) -> NodeFuture<'_, ()>;

    /// Makes every node whose `put` had returned durable.
    ///
    /// # Cancellation
    ///
    /// Safe to drop; durability is then not known.
    fn sync(&self) -> NodeFuture<'_, ()>;
}

/// Where the trees of all workspaces are.
pub trait Trees: Debug + Send + Sync + 'static {
    /// The trees that are made with these keys.
    fn open(&self, keys: TreeKeys) -> Tree;
}

/// No trees: for what has to name some and reads none.
#[derive(Debug)]
pub(crate) struct NoTrees;

impl Trees for NoTrees {
    fn open(&self, keys: TreeKeys) -> Tree {
        Tree::new(
            Arc::new(Nowhere),
            Arc::new(NodeCache::new(0)),
            keys,
            Tasks::new(),
        )
    }
}

/// Takes nodes and keeps none.
#[derive(Debug)]
struct Nowhere;

impl NodeStore for Nowhere {
    fn get(&self, id: NodeId) -> NodeFuture<'_, Bytes> {
        Box::pin(async move { Err(TreeError::Missing(id)) })
    }

    fn put(&self, _: NodeId, _: Bytes) -> NodeFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn sync(&self) -> NodeFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// Reads and writes checked nodes. Cloning shares everything.
#[derive(Clone, Debug)]
pub(super) struct Nodes {
    store: Arc<dyn NodeStore>,
    cache: Arc<NodeCache>,
    keys: TreeKeys,
    tasks: Tasks,
    /// What is put is kept nowhere.
    is_dry: bool,
}

impl Nodes {
    pub(super) fn new(
        store: Arc<dyn NodeStore>,
        cache: Arc<NodeCache>,
        keys: TreeKeys,
        tasks: Tasks,
    ) -> Self {
        Self {
            store,
            cache,
            keys,
            tasks,
            is_dry: false,
        }
    }

    /// The same nodes, of which those that are put are not kept.
    pub(super) fn without_storing(&self) -> Self {
        Self {
            is_dry: true,
            ..self.clone()
        }
    }

    /// The same keys, and a store that keeps nothing.
    pub(super) fn storing_nowhere(&self) -> Self {
        Self {
            store: Arc::new(Nowhere),
            cache: Arc::new(NodeCache::new(0)),
            keys: self.keys.clone(),
            tasks: self.tasks.clone(),
            is_dry: true,
        }
    }

    pub(super) fn keys(&self) -> &TreeKeys {
        &self.keys
    }

    pub(super) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// The root node of a version.
    pub(super) async fn root(&self, root: Root) -> Result<Option<Node>, TreeError> {
        let Some(id) = root.id() else {
            return Ok(None);
        };
        let node = match self.cache.root((self.keys.domain, id)) {
            Some(node) => node,
            None => {
                let node = self.read(id).await?;
                self.cache.insert(self.keys.domain, node.clone());
                node
            }
        };
        if node.level() > 0 && node.count() < 2 {
            let error = NodeError::Form("a root with a single child");
            return Err(TreeError::Damaged { id, error });
        }
        Ok(Some(node))
    }

    /// A child, as its parent says it is.
    pub(super) async fn child(&self, child: &Child) -> Result<Node, TreeError> {
        let key = (self.keys.domain, child.id);
        let read = self.read_child(child);
        let node = self.cache.child(key, child.level, read).await?;
        // Again, because it may have been read for another parent.
        check(&node, child)?;
        Ok(node)
    }

    async fn read_child(&self, child: &Child) -> Result<Node, TreeError> {
        let node = self.read(child.id).await?;
        check(&node, child)?;
        Ok(node)
    }

    /// Whether a child is in memory.
    pub(super) fn is_cached(&self, child: &Child) -> bool {
        let key = (self.keys.domain, child.id);
        self.cache.contains(key, child.level)
    }

    async fn read(&self, id: NodeId) -> Result<Node, TreeError> {
        let bytes = self.store.get(id).await?;
        let damaged = |error| TreeError::Damaged { id, error };
        if bytes.len() > super::NODE_BYTES_MAX || self.keys.node_id(&bytes) != id {
            return Err(damaged(NodeError::Id));
        }
        Node::parse(id, bytes).map_err(damaged)
    }

    /// Stores a node.
    pub(super) async fn put(&self, node: &Node) -> Result<(), TreeError> {
        if self.is_dry {
            return Ok(());
        }
        self.store.put(node.id(), node.bytes().clone()).await?;
        self.cache.insert(self.keys.domain, node.clone());
        Ok(())
    }

    /// Makes what was put durable.
    pub(super) async fn sync(&self) -> Result<(), TreeError> {
        if self.is_dry {
            return Ok(());
        }
        self.store.sync().await
    }
}

fn check(node: &Node, child: &Child) -> Result<(), TreeError> {
    let id = child.id;
    node.check_against(child)
        .map_err(|error| TreeError::Damaged { id, error })
}
