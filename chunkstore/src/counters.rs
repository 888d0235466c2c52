//! What a store counts about itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one store. They only ever grow; reading them costs nothing.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads answered from memory.
    pub hits: Counter,
    /// Reads that went to the store below, or to the device.
    pub misses: Counter,
    /// Calls of `put` that succeeded.
    pub puts: Counter,
    /// Calls of `put` that found their content stored already.
    pub dedup_hits: Counter,
    /// Plain bytes given to `put`.
    pub put_bytes: Counter,
    /// Bytes written for chunks, with headers and after compression.
    pub stored_bytes: Counter,
    /// Plain bytes of chunks read from the store below, or from the device.
    pub read_bytes: Counter,
    /// Device flushes, not calls of `sync`: callers share them.
    pub syncs: Counter,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The count so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn increment(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds a length. No length in memory exceeds 64 bits.
    pub(crate) fn add_len(&self, len: usize) {
        self.add(u64::try_from(len).unwrap_or(u64::MAX));
    }
}
