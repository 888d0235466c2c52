//! What operations changed since the last flush, as writes to image keys.

use std::collections::BTreeMap;

use base::InodeId;
use bytes::Bytes;

use crate::keyspace::image as keys;
use crate::kv::KeyRange;

/// Bytes that each key and range costs a transaction beside its own length.
const OVERHEAD_BYTES: usize = 32;

/// A part of the image that went as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clear {
    /// An inode with everything of it.
    Inode(InodeId),
    /// The blocks of a file from this one on.
    Blocks(InodeId, u32),
}

impl Clear {
    /// The image keys it removes.
    #[must_use]
    pub fn range(self) -> KeyRange {
        match self {
            Self::Inode(inode) => keys::inode_range(inode),
            Self::Blocks(inode, first) => keys::blocks_from(inode, first),
        }
    }
}

/// Writes to a session's image, in the order: clear all parts, then set or remove all keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    clears: Vec<Clear>,
    keys: BTreeMap<Vec<u8>, Option<Bytes>>,
    bytes: usize,
}

impl Changes {
    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.clears.is_empty() && self.keys.is_empty()
    }

    /// About how many bytes the writes add to a transaction.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Parts of the image to clear, before anything else.
    #[must_use]
    pub fn clears(&self) -> &[Clear] {
        &self.clears
    }

    /// Image keys to set (`Some`) or to remove (`None`).
    pub fn keys(&self) -> impl Iterator<Item = (&[u8], Option<&Bytes>)> {
        self.keys
            .iter()
            .map(|(key, value)| (key.as_slice(), value.as_ref()))
    }

    /// What a key is set to, if it is.
    pub(crate) fn value(&self, key: &[u8]) -> Option<&Bytes> {
        self.keys.get(key).and_then(Option::as_ref)
    }

    pub(crate) fn set(&mut self, key: Vec<u8>, value: Bytes) {
        self.put(key, Some(value));
    }

    pub(crate) fn remove(&mut self, key: Vec<u8>) {
        self.put(key, None);
    }

    /// Clears a part, and forgets earlier writes in it.
    pub(crate) fn clear(&mut self, part: Clear) {
        let range = part.range();
        let start = range.start.to_vec();
        let inside: Vec<Vec<u8>> = self
            .keys
            .range(start..)
            .take_while(|(key, _)| key.as_slice() < &*range.end)
            .map(|(key, _)| key.clone())
            .collect();
        for key in inside {
            if let Some(value) = self.keys.remove(&key) {
                self.bytes -= Self::cost(&key, value.as_ref());
            }
        }
        self.bytes += range.start.len() + range.end.len() + OVERHEAD_BYTES;
        self.clears.push(part);
    }

    fn put(&mut self, key: Vec<u8>, value: Option<Bytes>) {
        self.bytes += Self::cost(&key, value.as_ref());
        let length = key.len();
        if let Some(old) = self.keys.insert(key, value) {
            self.bytes -= length + OVERHEAD_BYTES + old.as_ref().map_or(0, Bytes::len);
        }
    }

    fn cost(key: &[u8], value: Option<&Bytes>) -> usize {
        key.len() + OVERHEAD_BYTES + value.map_or(0, Bytes::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clear_forgets_earlier_writes_and_not_later_ones() {
        let (gone, other) = (InodeId::new(7), InodeId::new(8));
        let mut changes = Changes::default();
        changes.set(keys::block(gone, 1), Bytes::from_static(b"x"));
        changes.set(keys::inode(other), Bytes::from_static(b"y"));
        changes.clear(Clear::Inode(gone));
        changes.set(keys::block(gone, 2), Bytes::from_static(b"z"));
        changes.set(keys::block(gone, 2), Bytes::from_static(b"zz"));
        let kept: Vec<_> = changes.keys().map(|(key, _)| key.to_vec()).collect();
        assert_eq!(kept, [keys::block(gone, 2), keys::inode(other)]);
        let clear = keys::inode_range(gone);
        assert_eq!(
            changes.bytes(),
            (clear.start.len() + clear.end.len() + 32) + (13 + 2 + 32) + (9 + 1 + 32)
        );
    }
}
