//! What operations changed since the last flush, as writes to image keys.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::kv::KeyRange;

/// Bytes that each key and range costs a transaction beside its own length.
const OVERHEAD_BYTES: usize = 32;

/// Writes to a session's image, in the order: clear all ranges, then set or remove all keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    clears: Vec<KeyRange>,
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

    /// Ranges of image keys to clear, before anything else.
    #[must_use]
    pub fn clears(&self) -> &[KeyRange] {
        &self.clears
    }

    /// Image keys to set (`Some`) or to remove (`None`).
    pub fn keys(&self) -> impl Iterator<Item = (&[u8], Option<&Bytes>)> {
        self.keys
            .iter()
            .map(|(key, value)| (key.as_slice(), value.as_ref()))
    }

    pub(super) fn set(&mut self, key: Vec<u8>, value: Bytes) {
        self.put(key, Some(value));
    }

    pub(super) fn remove(&mut self, key: Vec<u8>) {
        self.put(key, None);
    }

    /// Clears `range`, and forgets earlier writes in it.
    pub(super) fn clear(&mut self, range: KeyRange) {
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
        self.clears.push(range);
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
        let mut changes = Changes::default();
        changes.set(b"a1".to_vec(), Bytes::from_static(b"x"));
        changes.set(b"b".to_vec(), Bytes::from_static(b"y"));
        changes.clear(KeyRange::prefix(b"a"));
        changes.set(b"a2".to_vec(), Bytes::from_static(b"z"));
        changes.set(b"a2".to_vec(), Bytes::from_static(b"zz"));
        let keys: Vec<_> = changes.keys().map(|(key, _)| key.to_vec()).collect();
        assert_eq!(keys, [b"a2".to_vec(), b"b".to_vec()]);
        assert_eq!(changes.bytes(), (1 + 1 + 32) + (1 + 1 + 32) + (2 + 2 + 32));
    }
}
