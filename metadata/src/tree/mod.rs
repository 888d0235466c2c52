//! The snapshot tree: one version of a filesystem image as an immutable ordered map, stored as
//! nodes that are named by their content. `docs/design/0003-snapshot-tree.md` has the invariants,
//! `docs/formats.md` the format of a node.
//!
//! A [`Tree`] is how trees of one workspace are read and made; a [`Root`] names one version. The
//! same content always has the same root, so comparing versions is comparing roots, and whatever
//! two versions have in common they share.
//!
//! Read in this order: `node` (format), `split` (where nodes end), `store` and `cache` (where nodes
//! come from), `cursor` and `fetch` (moving through a version), then what is done with it: `scan`,
//! `diff`, `diff3`, `edit`, `walk`, `verify`, `survey`.

mod cache;
mod cursor;
mod diff;
mod diff3;
mod edit;
mod fetch;
mod memory;
mod node;
mod scan;
mod split;
mod store;
mod survey;
mod varint;
mod verify;
mod walk;

use std::fmt;
use std::sync::Arc;

use base::{DomainId, Tasks};
use bytes::Bytes;

pub use base::NodeId;
pub use cache::NodeCache;
pub use diff::{Change, Diff};
pub use diff3::{Diff3, ThreeWay};
pub use edit::{Edited, Editor, Written};
pub use memory::{MemoryNodes, MemoryTrees, StoredNode};
pub use node::{KEY_BYTES_MAX, LeafEntries, NODE_BYTES_MAX, Node, NodeError, VALUE_BYTES_MAX};
pub use scan::Scan;
pub(crate) use store::NoTrees;
pub use store::{NodeFuture, NodeStore, Trees};
pub use survey::{BadPlace, Survey};
pub use walk::Walk;

use crate::image::Usage;
use crate::keyspace::image;
use crate::kv::KeyRange;
use crate::record::inode::InodeRecord;
use cursor::Cursor;
use split::SplitRule;
use store::Nodes;

/// Keys whose leaves are asked for together.
const KEYS_AHEAD: usize = 64;

/// Names a version: the id of its root node, or that there is nothing in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Root(Option<NodeId>);

impl Root {
    /// The version without content.
    pub const EMPTY: Self = Self(None);

    /// The root as it is stored: the node's id, or zeros. (No node has the id zero: that would be a
    /// preimage of a keyed hash.)
    #[must_use]
    pub fn to_bytes(self) -> [u8; 32] {
        self.0.map_or([0; 32], |id| *id.as_bytes())
    }

    /// Reads what [`Root::to_bytes`] gave.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self((bytes != [0; 32]).then_some(NodeId::new(bytes)))
    }

    /// The version whose stored name, as in a commit, is `node`.
    #[must_use]
    pub fn named(node: &NodeId) -> Self {
        Self::from_bytes(*node.as_bytes())
    }

    /// The name that [`Root::named`] reads.
    #[must_use]
    pub fn name(self) -> NodeId {
        NodeId::new(self.to_bytes())
    }

    /// The root node, unless there is no content.
    #[must_use]
    pub fn id(self) -> Option<NodeId> {
        self.0
    }
}

/// What is below a node, counted. Sums stop at the largest number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Keys.
    pub entries: u64,
    /// Allocated bytes: the sum of `used` of all inodes. What quotas count.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

impl Counters {
    /// What quotas count of a whole image: its root directory is not counted.
    #[must_use]
    pub fn usage(self) -> Usage {
        Usage {
            bytes: self.bytes,
            inodes: self.inodes.saturating_sub(1),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            entries: self.entries.saturating_add(other.entries),
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }
}

/// What one key adds to the counters. Part of the format: a record that says nothing of allocated
/// bytes counts as none.
fn measure(key: &[u8], value: &[u8]) -> Counters {
    let is_inode = image::is_inode(key);
    Counters {
        entries: 1,
        bytes: if is_inode {
            InodeRecord::used_of(value).unwrap_or(0)
        } else {
            0
        },
        inodes: u64::from(is_inode),
    }
}

/// The secrets that trees of one workspace are made with.
#[derive(Clone)]
pub struct TreeKeys {
    domain: DomainId,
    node_key: [u8; 32],
    split_key: [u8; 32],
}

impl TreeKeys {
    /// Derives the secrets: for ids from the deduplication domain's key, for where nodes end from
    /// one of the workspace's.
    #[must_use]
    pub fn new(domain: DomainId, domain_key: &[u8; 32], workspace_key: &[u8; 32]) -> Self {
        Self {
            domain,
            node_key: blake3::derive_key("holdfast tree node id, version 1", domain_key),
            split_key: blake3::derive_key("holdfast tree split rule, version 1", workspace_key),
        }
    }

    /// The deduplication domain.
    #[must_use]
    pub fn domain(&self) -> DomainId {
        self.domain
    }

    /// The key that ids are made with. Differs from the key of chunks, so that nothing is the name
    /// of both a chunk and a node.
    #[must_use]
    pub fn node_key(&self) -> &[u8; 32] {
        &self.node_key
    }

    /// The id of a node with these bytes.
    #[must_use]
    pub fn node_id(&self, bytes: &[u8]) -> NodeId {
        NodeId::new(*blake3::keyed_hash(&self.node_key, bytes).as_bytes())
    }
}

impl fmt::Debug for TreeKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeKeys")
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

/// Why a tree could not be read or made, cut by what the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// A node that a root or another node names is not stored. Never retried.
    #[error("tree node {0} is missing")]
    Missing(NodeId),
    /// What is stored under an id is not that node. Never retried.
    #[error("tree node {id} is damaged: {error}")]
    Damaged {
        /// The node.
        id: NodeId,
        /// What is wrong.
        error: NodeError,
    },
    /// The node is right, and its tree is not the one that its content has. Never retried.
    #[error("tree {found} should be {wanted}")]
    Misshapen {
        /// The root as stored.
        found: NodeId,
        /// The root that the same content has.
        wanted: NodeId,
    },
    /// Keys did not come in ascending order. A bug of the caller.
    #[error("keys are out of order")]
    Order,
    /// A key or a value is over [`KEY_BYTES_MAX`] or [`VALUE_BYTES_MAX`]. A bug of the caller.
    #[error("key or value is too long")]
    TooLong,
    /// More levels than any tree can need. A bug of ours.
    #[error("tree has too many levels")]
    TooDeep,
    /// A change of this edit failed or was dropped before. Begin the edit anew.
    #[error("an earlier change of the edit failed")]
    Broken,
    /// The device is full.
    #[error("no space is left for tree nodes")]
    NoSpace,
    /// The store cannot serve now; a retry may succeed.
    #[error("store of tree nodes is unavailable: {0}")]
    Unavailable(String),
}

/// The trees of one workspace. Cloning shares everything.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Nodes,
    rule: SplitRule,
}

impl Tree {
    /// Trees whose nodes are in `store`, as seen through `cache`. Nodes that are asked for in
    /// advance are read by `tasks`.
    #[must_use]
    pub fn new(
        store: Arc<dyn NodeStore>,
        cache: Arc<NodeCache>,
        keys: TreeKeys,
        tasks: Tasks,
    ) -> Self {
        let rule = SplitRule::new(keys.split_key);
        Self {
            nodes: Nodes::new(store, cache, keys, tasks),
            rule,
        }
    }

    /// The deduplication domain of its nodes.
    #[must_use]
    pub fn domain(&self) -> DomainId {
        self.nodes.keys().domain()
    }

    /// A tree with small nodes.
    #[cfg(test)]
    fn small(store: Arc<dyn NodeStore>, cache: Arc<NodeCache>, keys: TreeKeys) -> Self {
        let rule = SplitRule::small(keys.split_key);
        Self {
            nodes: Nodes::new(store, cache, keys, Tasks::new()),
            rule,
        }
    }

    /// What a version holds, counted. Reads the root node.
    ///
    /// # Errors
    ///
    /// The node is missing or damaged, or the store fails.
    pub async fn counters(&self, root: Root) -> Result<Counters, TreeError> {
        let node = self.nodes.root(root).await?;
        Ok(node.map_or_else(Counters::default, |node| node.counters()))
    }

    /// The value of `key`. Reads one node a level, all but the last usually from the cache.
    ///
    /// # Errors
    ///
    /// A node is missing or damaged, or the store fails.
    pub async fn get(&self, root: Root, key: &[u8]) -> Result<Option<Bytes>, TreeError> {
        let mut cursor = Cursor::new(self.nodes.clone(), root, 0).await?;
        cursor.seek_node(key).await?;
        Ok(cursor.node().and_then(|node| node.value(key)))
    }

    /// The values of many keys, in their order. Keys in ascending order share what they read, and
    /// what they read is asked for in advance.
    ///
    /// # Errors
    ///
    /// [`TreeError::Order`] if the keys are not in ascending order; as [`Tree::get`].
    pub async fn get_many<K: AsRef<[u8]> + Sync>(
        &self,
        root: Root,
        keys: &[K],
    ) -> Result<Vec<Option<Bytes>>, TreeError> {
        let mut cursor = Cursor::new(self.nodes.clone(), root, 0).await?;
        let mut values = Vec::with_capacity(keys.len());
        for some in keys.chunks(KEYS_AHEAD) {
            for (index, key) in some.iter().enumerate() {
                let rest = some.get(index + 1..).unwrap_or_default();
                if rest
                    .first()
                    .is_some_and(|next| next.as_ref() < key.as_ref())
                {
                    return Err(TreeError::Order);
                }
                if cursor.seek_node(key.as_ref()).await? {
                    cursor.hint_keys(rest.iter().map(AsRef::as_ref));
                }
                values.push(cursor.node().and_then(|node| node.value(key.as_ref())));
            }
        }
        Ok(values)
    }

    /// Reads the keys of `range` in order. Nothing is read before the first is asked for.
    #[must_use]
    pub fn scan(&self, root: Root, range: &KeyRange) -> Scan {
        Scan::new(self.nodes.clone(), root, range.clone())
    }

    /// What differs between two versions, in the order of keys. Skips what they share.
    #[must_use]
    pub fn diff(&self, old: Root, new: Root) -> Diff {
        Diff::new(self.nodes.clone(), old, new)
    }

    /// What differs between a version and either of two that were made from it, in the order of
    /// keys.
    #[must_use]
    pub fn diff3(&self, base: Root, ours: Root, theirs: Root) -> Diff3 {
        Diff3::new(self.diff(base, ours), self.diff(base, theirs))
    }

    /// Every node of a version, each node before those below it.
    #[must_use]
    pub fn walk(&self, root: Root) -> Walk {
        Walk::new(self.nodes.clone(), root)
    }

    /// Begins to make a new version out of `root`.
    ///
    /// # Errors
    ///
    /// The root node is missing or damaged, or the store fails.
    pub async fn edit(&self, root: Root) -> Result<Editor, TreeError> {
        Editor::new(self.nodes.clone(), self.rule.clone(), root).await
    }

    /// The version that holds these keys, which are in ascending order, and nothing else.
    ///
    /// # Errors
    ///
    /// As [`Editor::put`] and [`Editor::finish`].
    ///
    /// # Cancellation
    ///
    /// Safe to drop: at worst nodes are stored that nobody names.
    pub async fn build<K, V, I>(&self, pairs: I) -> Result<Edited, TreeError>
    where
        K: AsRef<[u8]> + Send,
        V: AsRef<[u8]> + Send,
        I: IntoIterator<Item = (K, V), IntoIter: Send>,
    {
        let mut editor = self.edit(Root::EMPTY).await?;
        for (key, value) in pairs {
            editor.put(key.as_ref(), value.as_ref()).await?;
        }
        editor.finish().await
    }

    /// The version that `root` becomes when keys are set (`Some`) and removed (`None`). Keys are in
    /// ascending order. Setting what is there already, and removing what is not, costs reads only.
    ///
    /// # Errors
    ///
    /// As [`Editor::put`] and [`Editor::finish`].
    ///
    /// # Cancellation
    ///
    /// Safe to drop: at worst nodes are stored that nobody names.
    pub async fn apply<K, V, I>(&self, root: Root, delta: I) -> Result<Edited, TreeError>
    where
        K: AsRef<[u8]> + Send + Sync,
        V: AsRef<[u8]> + Send + Sync,
        I: IntoIterator<Item = (K, Option<V>), IntoIter: Send>,
    {
        let mut editor = self.edit(root).await?;
        let mut delta = delta.into_iter();
        loop {
            let some: Vec<_> = delta.by_ref().take(KEYS_AHEAD).collect();
            if some.is_empty() {
                return editor.finish().await;
            }
            for (index, (key, value)) in some.iter().enumerate() {
                let rest = some.get(index + 1..).unwrap_or_default();
                editor.expect(rest.iter().map(|(key, _)| key.as_ref()));
                match value {
                    Some(value) => editor.put(key.as_ref(), value.as_ref()).await?,
                    None => editor.remove(key.as_ref()).await?,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
