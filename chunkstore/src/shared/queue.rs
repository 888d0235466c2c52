//! What was put and touched and is not in the ledger yet.

use std::collections::{BTreeMap, HashMap, HashSet};

use tokio::sync::watch;

use super::entry::Entry;
use super::ledger::ChunkKey;
use crate::ChunkError;

/// How a batch ended; `None` while it is under way.
pub(super) type Outcome = Option<Result<(), ChunkError>>;

/// What waits, and what is under way. Kept under one lock, without I/O.
///
/// A chunk may be under way and wait again: the transaction that is under way may have read an older
/// cycle than that of the put that came later.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// With numbers in the order in which they came: neighbours in a file are to be neighbours in a pack.
    puts: HashMap<ChunkKey, (u64, Entry)>,
    next_put: u64,
    touches: HashSet<ChunkKey>,
    /// Puts in batches under way, and in how many.
    flying: HashMap<ChunkKey, (Entry, u32)>,
    /// Bytes of both.
    bytes: usize,
    next_batch: u64,
    batches: BTreeMap<u64, watch::Receiver<Outcome>>,
}

/// What goes to the ledger together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) number: u64,
    pub(super) puts: Vec<(ChunkKey, Entry)>,
    pub(super) touches: Vec<ChunkKey>,
    pub(super) outcome: watch::Sender<Outcome>,
}

impl Queue {
    /// Bytes of entries in memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The entry of a chunk that was put and is not stored yet.
    pub(super) fn entry(&self, key: ChunkKey) -> Option<Entry> {
        let waiting = self.puts.get(&key).map(|(_, entry)| entry);
        let flying = || self.flying.get(&key).map(|(entry, _)| entry);
        waiting.or_else(flying).cloned()
    }

    /// Adds a chunk.
    pub(super) fn put(&mut self, key: ChunkKey, entry: Entry) {
        let len = entry.bytes.len();
        if self.insert(key, entry) {
            self.bytes = self.bytes.saturating_add(len);
        }
        self.touches.remove(&key);
    }

    /// Adds a touch.
    pub(super) fn touch(&mut self, key: ChunkKey) {
        match self.entry(key) {
            // It may not be in the ledger yet when the touch is.
            Some(entry) => self.put(key, entry),
            None => {
                self.touches.insert(key);
            }
        }
    }

    /// Takes all that waits as a batch that is under way from now on; none if nothing waits.
    pub(super) fn take(&mut self) -> Option<Batch> {
        if self.puts.is_empty() && self.touches.is_empty() {
            return None;
        }
        let (outcome, receiver) = watch::channel(None);
        let number = self.next_batch;
        self.next_batch = self.next_batch.wrapping_add(1);
        self.batches.insert(number, receiver);
        let mut puts: Vec<_> = self.puts.drain().collect();
        puts.sort_unstable_by_key(|(_, (number, _))| *number);
        let puts: Vec<_> = puts
            .into_iter()
            .map(|(key, (_, entry))| (key, entry))
            .collect();
        for (key, entry) in &puts {
            let flying = self.flying.entry(*key);
            flying.or_insert_with(|| (entry.clone(), 0)).1 += 1;
        }
        Some(Batch {
            number,
            puts,
            touches: self.touches.drain().collect(),
            outcome,
        })
    }

    /// The batches under way.
    pub(super) fn under_way(&self) -> Vec<watch::Receiver<Outcome>> {
        self.batches.values().cloned().collect()
    }

    /// A chunk of a batch is in the ledger.
    pub(super) fn stored(&mut self, key: ChunkKey) {
        if let Some(entry) = self.land(key) {
            self.bytes = self.bytes.saturating_sub(entry.bytes.len());
        }
    }

    /// A chunk of a batch is not: it waits again.
    pub(super) fn failed(&mut self, key: ChunkKey) {
        if let Some(entry) = self.land(key) {
            let len = entry.bytes.len();
            if !self.insert(key, entry) {
                self.bytes = self.bytes.saturating_sub(len);
            }
        }
    }

    /// A batch has ended.
    pub(super) fn ended(&mut self, number: u64) {
        self.batches.remove(&number);
    }

    /// Whether it was not there.
    fn insert(&mut self, key: ChunkKey, entry: Entry) -> bool {
        let number = self.next_put;
        self.next_put = self.next_put.wrapping_add(1);
        self.puts.insert(key, (number, entry)).is_none()
    }

    fn land(&mut self, key: ChunkKey) -> Option<Entry> {
        let (entry, count) = self.flying.get_mut(&key)?;
        let entry = entry.clone();
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.flying.remove(&key);
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use base::{ChunkId, DomainId};
    use bytes::Bytes;

    use super::*;

    const KEY: ChunkKey = ChunkKey {
        domain: DomainId::new(1),
        id: ChunkId::new([1; 32]),
    };

    fn entry() -> Entry {
        Entry {
            bytes: Bytes::from_static(b"entry"),
            plain_bytes: 1,
        }
    }

    /// What is put or touched while it is under way goes once more, for its cycle may have passed.
    #[test]
    fn what_is_under_way_waits_again() {
        let mut queue = Queue::default();
        queue.touch(KEY);
        queue.put(KEY, entry());
        queue.put(KEY, entry());
        let first = queue.take().unwrap();
        assert_eq!((first.puts.len(), first.touches.len()), (1, 0));
        assert!(queue.take().is_none());
        queue.touch(KEY);
        assert_eq!(queue.bytes(), 10);
        let second = queue.take().unwrap();
        assert_eq!((second.puts.len(), second.touches.len()), (1, 0));
        assert_eq!(queue.under_way().len(), 2);
        queue.stored(KEY);
        queue.ended(first.number);
        assert!(queue.entry(KEY).is_some());
        queue.failed(KEY);
        queue.ended(second.number);
        assert_eq!((queue.bytes(), queue.under_way().len()), (5, 0));
        let third = queue.take().unwrap();
        assert_eq!(third.puts.len(), 1);
        queue.stored(KEY);
        queue.ended(third.number);
        assert_eq!(queue.bytes(), 0);
        assert!(queue.entry(KEY).is_none());
    }
}
