//! The format of a node, and reading it in place. `docs/formats.md` has the table.
//!
//! A node that exists has been checked whole: [`Node::parse`] is the only way from bytes to a node.
//! After that it is searched where it lies.

use base::DomainId;
use bytes::Bytes;
use smallvec::SmallVec;

use super::{Counters, NodeId, measure, varint};
use crate::tree::TreeKeys;

/// Largest node, in bytes: fits a value of the metadata store, with room for what wraps it.
pub const NODE_BYTES_MAX: usize = 64 * 1024;

/// Longest key, in bytes: that of an entry with a name of 255 bytes has 272.
pub const KEY_BYTES_MAX: usize = 512;

/// Longest value, in bytes: that of a block with inline bytes and patches has less than 33.5 KiB.
pub const VALUE_BYTES_MAX: usize = 34 * 1024;

/// Most levels. Each has at most half as many nodes as the one below, usually a 250th.
pub(super) const LEVEL_MAX: u8 = 40;

/// Keys at these distances are stored whole, so that a search can begin there.
pub(super) const RESTART: usize = 16;

/// Most bytes that one entry adds to a node: three lengths, key, value, and its restart point.
pub(super) const ENTRY_BYTES_MAX: usize = 3 * 3 + KEY_BYTES_MAX + VALUE_BYTES_MAX + 2;

const MAGIC: [u8; 4] = *b"HFTN";
const VERSION: u8 = 1;
/// Length of the header: magic, version, level, count, three counters.
pub(super) const HEADER_BYTES: usize = 4 + 1 + 1 + 2 + 3 * 8;

const _: () = assert!(NODE_BYTES_MAX < base::limits::KV_VALUE_BYTES_MAX);
const _: () = assert!(NODE_BYTES_MAX <= base::limits::CHUNK_BYTES_MAX);
const _: () = assert!(KEY_BYTES_MAX >= 8 + 1 + 8 + base::limits::NAME_BYTES_MAX);
// A block's patches have 8 bytes each beside their data, and the block a few dozen.
const _: () = assert!(
    VALUE_BYTES_MAX
        >= base::limits::INLINE_BLOCK_BYTES_MAX
            + base::limits::PATCH_BYTES_MAX
            + 8 * base::limits::PATCHES_MAX
            + 64
);
// Three bytes hold any length.
const _: () = assert!(NODE_BYTES_MAX < 1 << 21);

/// A key without an allocation, as most are short.
pub(super) type KeyBuffer = SmallVec<[u8; 40]>;

/// Why bytes are not a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The bytes do not hash to the id.
    #[error("content does not match the id")]
    Id,
    /// Written by a newer release.
    #[error("format version {0} is unknown")]
    Version(u8),
    /// Not what the encoder writes.
    #[error("{0}")]
    Form(&'static str),
    /// The parent says something else of the node than the node itself.
    #[error("parent says another {0}")]
    Parent(&'static str),
}

/// A checked node. Cloning shares the bytes.
#[derive(Clone)]
pub struct Node {
    id: NodeId,
    bytes: Bytes,
    level: u8,
    count: usize,
    counters: Counters,
    /// Where the entries end and the restart points begin.
    table: usize,
}

/// What a parent knows of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) id: NodeId,
    pub(super) level: u8,
    pub(super) first_key: KeyBuffer,
    pub(super) counters: Counters,
}

/// An entry as it lies in a node.
#[derive(Clone, Copy, Debug)]
struct RawEntry {
    shared: usize,
    suffix: usize,
    value: usize,
    next: usize,
}

impl RawEntry {
    /// Reads the lengths at `at`; the entry ends before `end`.
    fn read(bytes: &[u8], at: usize, end: usize) -> Option<Self> {
        let from = bytes.get(at..end)?;
        let (shared, rest) = varint::take_len(from)?;
        let (suffix_len, rest) = varint::take_len(rest)?;
        let (value_len, rest) = varint::take_len(rest)?;
        if suffix_len > KEY_BYTES_MAX || value_len > VALUE_BYTES_MAX {
            return None;
        }
        let suffix = at + (from.len() - rest.len());
        let value = suffix + suffix_len;
        let next = value + value_len;
        (next <= end).then_some(Self {
            shared,
            suffix,
            value,
            next,
        })
    }
}

impl Node {
    /// Checks bytes that hash to `id`.
    ///
    /// # Errors
    ///
    /// The bytes are not exactly what the encoder writes for some content.
    pub fn parse(id: NodeId, bytes: Bytes) -> Result<Self, NodeError> {
        if bytes.len() > NODE_BYTES_MAX {
            return Err(NodeError::Form("too long"));
        }
        let node = Self::parse_header(id, bytes)?;
        node.check_entries()?;
        Ok(node)
    }

    fn parse_header(id: NodeId, bytes: Bytes) -> Result<Self, NodeError> {
        const SHORT: NodeError = NodeError::Form("too short");
        let (magic, rest) = bytes.split_first_chunk::<4>().ok_or(SHORT)?;
        if *magic != MAGIC {
            return Err(NodeError::Form("not a tree node"));
        }
        let (&[version, level], rest) = rest.split_first_chunk::<2>().ok_or(SHORT)?;
        if version != VERSION {
            return Err(NodeError::Version(version));
        }
        if level > LEVEL_MAX {
            return Err(NodeError::Form("impossible level"));
        }
        let (count, rest) = rest.split_first_chunk::<2>().ok_or(SHORT)?;
        let (entries, rest) = rest.split_first_chunk::<8>().ok_or(SHORT)?;
        let (allocated, rest) = rest.split_first_chunk::<8>().ok_or(SHORT)?;
        let (inodes, _) = rest.split_first_chunk::<8>().ok_or(SHORT)?;
        let count = usize::from(u16::from_be_bytes(*count));
        if count == 0 {
            return Err(NodeError::Form("no entries"));
        }
        let table = bytes.len().checked_sub(2 * count.div_ceil(RESTART));
        let table = table.filter(|table| *table >= HEADER_BYTES).ok_or(SHORT)?;
        Ok(Self {
            id,
            level,
            count,
            counters: Counters {
                entries: u64::from_be_bytes(*entries),
                bytes: u64::from_be_bytes(*allocated),
                inodes: u64::from_be_bytes(*inodes),
            },
            table,
            bytes,
        })
    }

    fn check_entries(&self) -> Result<(), NodeError> {
        let (mut at, mut sum) = (HEADER_BYTES, Counters::default());
        let mut last = KeyBuffer::new();
        for index in 0..self.count {
            let raw = RawEntry::read(&self.bytes, at, self.table)
                .ok_or(NodeError::Form("entry out of bounds"))?;
            let suffix = self.bytes.get(raw.suffix..raw.value).unwrap_or_default();
            let shared = if index % RESTART == 0 {
                if self.restart(index / RESTART) != Some(at) {
                    return Err(NodeError::Form("wrong restart point"));
                }
                0
            } else {
                // Of the old key, how much the new one repeats. An order that is wrong shows there.
                let rest = last.get(raw.shared..).unwrap_or_default();
                if raw.shared > last.len() || rest.first() >= suffix.first() {
                    return Err(NodeError::Form("keys out of order or not front-coded"));
                }
                raw.shared
            };
            if raw.shared != shared || shared + suffix.len() > KEY_BYTES_MAX {
                return Err(NodeError::Form("wrong prefix of a key"));
            }
            if shared == 0 && index > 0 && *last >= *suffix {
                return Err(NodeError::Form("keys out of order"));
            }
            last.truncate(shared);
            last.extend_from_slice(suffix);
            let value = self.bytes.get(raw.value..raw.next).unwrap_or_default();
            sum = sum.plus(self.counters_of(&last, value)?);
            at = raw.next;
        }
        if at != self.table {
            return Err(NodeError::Form("bytes beyond the last entry"));
        }
        if sum != self.counters {
            return Err(NodeError::Form("wrong counters"));
        }
        Ok(())
    }

    /// What an entry adds to the counters.
    fn counters_of(&self, key: &[u8], value: &[u8]) -> Result<Counters, NodeError> {
        if self.level == 0 {
            return Ok(measure(key, value));
        }
        let (_, counters) = decode_child(value).ok_or(NodeError::Form("damaged child entry"))?;
        Ok(counters)
    }

    /// The offset of restart point `number`.
    fn restart(&self, number: usize) -> Option<usize> {
        let at = self.table + 2 * number;
        let (offset, _) = self.bytes.get(at..)?.split_first_chunk::<2>()?;
        Some(usize::from(u16::from_be_bytes(*offset)))
    }

    /// The whole key at restart point `number`.
    fn restart_key(&self, number: usize) -> Option<&[u8]> {
        let raw = RawEntry::read(&self.bytes, self.restart(number)?, self.table)?;
        self.bytes.get(raw.suffix..raw.value)
    }

    /// The id.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Levels below this one; a leaf has none.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Number of entries in this very node.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Counters of everything below.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The canonical bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The first key.
    #[must_use]
    pub fn first_key(&self) -> &[u8] {
        self.restart_key(0).unwrap_or_default()
    }

    /// The ids of the children of an inner node, in order.
    #[must_use]
    pub fn children(&self) -> Vec<NodeId> {
        let mut children = Vec::new();
        let mut position = Position::first(self);
        while let Some(child) = position.child() {
            children.push(child.id);
            position.advance();
        }
        children
    }

    /// The entries of a leaf, in order. An inner node has none.
    #[must_use]
    pub fn leaf_entries(&self) -> LeafEntries {
        LeafEntries {
            next: (self.level == 0).then(|| Position::first(self)),
            is_taken: false,
        }
    }

    /// The value of `key` in a leaf.
    pub(super) fn value(&self, key: &[u8]) -> Option<Bytes> {
        let position = Position::seek(self, key);
        (position.key() == Some(key)).then(|| position.value())
    }

    /// What a parent says of this node: an entry's value.
    pub(super) fn entry(&self) -> Vec<u8> {
        encode_child(self.id, self.counters)
    }

    /// Compares the node with what its parent says.
    pub(super) fn check_against(&self, child: &Child) -> Result<(), NodeError> {
        let what = if self.level != child.level {
            "level"
        } else if self.counters != child.counters {
            "count"
        } else if self.first_key() != &*child.first_key {
            "first key"
        } else {
            return Ok(());
        };
        Err(NodeError::Parent(what))
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("id", &self.id)
            .field("level", &self.level)
            .field("count", &self.count)
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

/// The entries of a leaf.
#[derive(Clone, Debug)]
pub struct LeafEntries {
    next: Option<Position>,
    /// The entry at `next` was given out.
    is_taken: bool,
}

impl LeafEntries {
    /// The next key and its value; `None` after the last. The value shares the memory of the node.
    pub fn next_entry(&mut self) -> Option<(&[u8], Bytes)> {
        let at = self.next.as_mut()?;
        if self.is_taken {
            at.advance();
        }
        self.is_taken = true;
        let value = at.value();
        Some((at.key()?, value))
    }
}

fn encode_child(id: NodeId, counters: Counters) -> Vec<u8> {
    let mut value = Vec::with_capacity(32 + 16);
    value.extend_from_slice(id.as_bytes());
    varint::put(&mut value, counters.entries);
    varint::put(&mut value, counters.bytes);
    varint::put(&mut value, counters.inodes);
    value
}

fn decode_child(value: &[u8]) -> Option<(NodeId, Counters)> {
    let (id, rest) = value.split_first_chunk::<32>()?;
    let (entries, rest) = varint::take(rest)?;
    let (bytes, rest) = varint::take(rest)?;
    let (inodes, rest) = varint::take(rest)?;
    let counters = Counters {
        entries,
        bytes,
        inodes,
    };
    (rest.is_empty() && entries > 0).then_some((NodeId::new(*id), counters))
}

/// A place in a node: an entry, or the end. Moves forward.
#[derive(Clone, Debug)]
pub(super) struct Position {
    node: Node,
    index: usize,
    key: KeyBuffer,
    value: (usize, usize),
    next: usize,
}

impl Position {
    /// The first entry.
    pub(super) fn first(node: &Node) -> Self {
        Self::at_restart(node, 0)
    }

    fn at_restart(node: &Node, number: usize) -> Self {
        let mut position = Self {
            node: node.clone(),
            index: number * RESTART,
            key: KeyBuffer::new(),
            value: (0, 0),
            next: node.restart(number).unwrap_or(node.table),
        };
        position.read();
        position
    }

    /// The first entry whose key is `key` or more.
    pub(super) fn seek(node: &Node, key: &[u8]) -> Self {
        let mut position = Self::at_restart(node, restart_before(node, key));
        while position.key().is_some_and(|at| at < key) {
            position.advance();
        }
        position
    }

    /// The last entry whose key is `key` or less, else the first: the child that `key` belongs to.
    pub(super) fn covering(node: &Node, key: &[u8]) -> Self {
        let at = Self::seek(node, key);
        if at.key() == Some(key) {
            return at;
        }
        let index = at.index.saturating_sub(1);
        let mut position = Self::at_restart(node, index / RESTART);
        while position.index < index {
            position.advance();
        }
        position
    }

    /// Reads the entry at `next`.
    fn read(&mut self) {
        let raw = RawEntry::read(&self.node.bytes, self.next, self.node.table);
        let Some(raw) = raw.filter(|_| self.index < self.node.count) else {
            self.index = self.node.count;
            return;
        };
        self.key.truncate(raw.shared);
        let suffix = self.node.bytes.get(raw.suffix..raw.value);
        self.key.extend_from_slice(suffix.unwrap_or_default());
        self.value = (raw.value, raw.next);
        self.next = raw.next;
    }

    /// Goes to the next entry, or to the end.
    pub(super) fn advance(&mut self) {
        self.index += 1;
        self.read();
    }

    /// The node.
    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// Which entry of the node this is.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// The entry's key; `None` at the end.
    pub(super) fn key(&self) -> Option<&[u8]> {
        (self.index < self.node.count).then_some(&*self.key)
    }

    /// The entry's value; shares the node's bytes.
    pub(super) fn value(&self) -> Bytes {
        self.node.bytes.slice(self.value.0..self.value.1)
    }

    /// What the entry adds to the counters.
    pub(super) fn counters(&self) -> Counters {
        self.node
            .counters_of(
                &self.key,
                self.node
                    .bytes
                    .get(self.value.0..self.value.1)
                    .unwrap_or_default(),
            )
            .unwrap_or_default()
    }

    /// The child of an inner node; `None` in a leaf and at the end.
    pub(super) fn child(&self) -> Option<Child> {
        let first_key = self.key()?;
        let level = self.node.level.checked_sub(1)?;
        let (id, counters) = decode_child(self.node.bytes.get(self.value.0..self.value.1)?)?;
        Some(Child {
            id,
            level,
            first_key: KeyBuffer::from_slice(first_key),
            counters,
        })
    }
}

/// The last restart point whose key is `key` or less, else the first.
fn restart_before(node: &Node, key: &[u8]) -> usize {
    let (mut low, mut high) = (0, node.count.div_ceil(RESTART));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if node.restart_key(middle).is_some_and(|at| at <= key) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// A node in the making.
#[derive(Debug)]
pub(super) struct NodeBuilder {
    level: u8,
    count: usize,
    counters: Counters,
    entries: Vec<u8>,
    restarts: Vec<u8>,
    last_key: KeyBuffer,
}

impl NodeBuilder {
    /// An empty node.
    pub(super) fn new(level: u8) -> Self {
        Self {
            level,
            count: 0,
            counters: Counters::default(),
            entries: Vec::new(),
            restarts: Vec::new(),
            last_key: KeyBuffer::new(),
        }
    }

    /// Its level.
    pub(super) fn level(&self) -> u8 {
        self.level
    }

    /// Number of entries.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Length of the node as it is now.
    pub(super) fn len(&self) -> usize {
        HEADER_BYTES + self.entries.len() + self.restarts.len()
    }

    /// Adds an entry. Its key is greater than all before, and the lengths are within the limits.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8], counters: Counters) {
        let shared = if self.count.is_multiple_of(RESTART) {
            let at = HEADER_BYTES + self.entries.len();
            let at = u16::try_from(at).unwrap_or(u16::MAX);
            self.restarts.extend_from_slice(&at.to_be_bytes());
            0
        } else {
            let pairs = key.iter().zip(&self.last_key);
            pairs.take_while(|(new, old)| new == old).count()
        };
        let suffix = key.get(shared..).unwrap_or_default();
        for length in [shared, suffix.len(), value.len()] {
            varint::put(&mut self.entries, u64::try_from(length).unwrap_or(u64::MAX));
        }
        self.entries.extend_from_slice(suffix);
        self.entries.extend_from_slice(value);
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(suffix);
        self.counters = self.counters.plus(counters);
        self.count += 1;
    }

    /// The node, whose id is made with `keys`; this begins anew.
    pub(super) fn finish(&mut self, keys: &TreeKeys) -> Node {
        let mut bytes = Vec::with_capacity(self.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[VERSION, self.level]);
        let count = u16::try_from(self.count).unwrap_or(u16::MAX);
        bytes.extend_from_slice(&count.to_be_bytes());
        let counters = self.counters;
        for counter in [counters.entries, counters.bytes, counters.inodes] {
            bytes.extend_from_slice(&counter.to_be_bytes());
        }
        bytes.extend_from_slice(&self.entries);
        let table = bytes.len();
        bytes.extend_from_slice(&self.restarts);
        let node = Node {
            id: keys.node_id(&bytes),
            level: self.level,
            count: self.count,
            counters,
            table,
            bytes: bytes.into(),
        };
        self.count = 0;
        self.counters = Counters::default();
        self.entries.clear();
        self.restarts.clear();
        self.last_key.clear();
        node
    }
}

/// What caches name a node by.
pub(super) type DomainNode = (DomainId, NodeId);

#[cfg(test)]
mod tests;
