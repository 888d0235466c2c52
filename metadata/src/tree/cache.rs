//! Checked nodes in memory.
//!
//! Inner nodes have a part of the memory for themselves, so that a scan over all leaves does not
//! drive them out: they are less than a hundredth of a tree, and every lookup needs them.

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::TreeError;
use super::node::{DomainNode, Node};
use base::DomainId;

/// What a node takes besides its bytes, roughly: key, table slot, allocation.
const ENTRY_OVERHEAD_BYTES: u64 = 192;

/// Bytes of a usual node, to size the tables.
const USUAL_NODE_BYTES: u64 = 15 * 1024;

/// Most entries a table is sized for at the start. It grows beyond that.
const ENTRIES_AT_START_MAX: u64 = 1 << 16;

/// One part in this many is for inner nodes.
const INNER_PART: u64 = 4;

/// Keeps nodes that were read or made lately. Shared by all trees of a process.
#[derive(Debug)]
pub struct NodeCache {
    inner: Cache<DomainNode, Node, BytesWeighter>,
    leaves: Cache<DomainNode, Node, BytesWeighter>,
}

#[derive(Clone, Debug)]
struct BytesWeighter;

impl Weighter<DomainNode, Node> for BytesWeighter {
    fn weight(&self, _key: &DomainNode, node: &Node) -> u64 {
        u64::try_from(node.bytes().len()).unwrap_or(u64::MAX) + ENTRY_OVERHEAD_BYTES
    }
}

impl NodeCache {
    /// A cache of about `bytes`, a quarter of it for inner nodes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let inner = bytes / INNER_PART;
        Self {
            inner: part(inner),
            leaves: part(bytes - inner),
        }
    }

    /// Bytes of inner nodes and of leaves that the cache holds, with the overhead of entries.
    #[must_use]
    pub fn cached_bytes(&self) -> (u64, u64) {
        (self.inner.weight(), self.leaves.weight())
    }

    fn of_level(&self, level: u8) -> &Cache<DomainNode, Node, BytesWeighter> {
        if level == 0 {
            &self.leaves
        } else {
            &self.inner
        }
    }

    /// A node whose level is not known.
    pub(super) fn root(&self, key: DomainNode) -> Option<Node> {
        self.inner.get(&key).or_else(|| self.leaves.get(&key))
    }

    /// A node of this level; if it is not here, `read` reads it. Of callers that want the same node
    /// one reads and the others wait; if it fails or gives up, the next one reads.
    pub(super) async fn child(
        &self,
        key: DomainNode,
        level: u8,
        read: impl Future<Output = Result<Node, TreeError>>,
    ) -> Result<Node, TreeError> {
        self.of_level(level).get_or_insert_async(&key, read).await
    }

    /// Whether a node of this level is here.
    pub(super) fn contains(&self, key: DomainNode, level: u8) -> bool {
        self.of_level(level).contains_key(&key)
    }

    /// Keeps a node.
    pub(super) fn insert(&self, domain: DomainId, node: Node) {
        self.of_level(node.level())
            .insert((domain, node.id()), node);
    }
}

fn part(bytes: u64) -> Cache<DomainNode, Node, BytesWeighter> {
    let entries = (bytes / USUAL_NODE_BYTES).clamp(1, ENTRIES_AT_START_MAX);
    let entries = usize::try_from(entries).unwrap_or(1);
    Cache::with_weighter(entries, bytes, BytesWeighter)
}
