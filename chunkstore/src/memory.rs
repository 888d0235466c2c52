//! Chunks in a map in memory, for tests and simulation.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use base::limits::CHUNK_BYTES_MAX;
use base::{ChunkId, DomainId};
use bytes::Bytes;
use parking_lot::RwLock;

use crate::counters::Counters;
use crate::{ChunkError, ChunkFuture, ChunkStore, Domain};

/// A store that lives as long as the process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    chunks: RwLock<HashMap<(DomainId, ChunkId), Bytes>>,
    counters: Counters,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What the store counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many chunks are stored.
    #[must_use]
    pub fn chunk_count(&self) -> usize {
        self.chunks.read().len()
    }

    fn insert(&self, domain: Domain, content: &Bytes) -> Result<ChunkId, ChunkError> {
        if content.len() > CHUNK_BYTES_MAX {
            return Err(ChunkError::TooLarge(content.len()));
        }
        let id = domain.chunk_id(content);
        match self.chunks.write().entry((domain.id, id)) {
            Entry::Occupied(_) => self.counters.dedup_hits.increment(),
            Entry::Vacant(entry) => {
                // A copy, because the caller's bytes may be a small part of a large buffer.
                entry.insert(Bytes::copy_from_slice(content));
                self.counters.stored_bytes.add_len(content.len());
            }
        }
        self.counters.puts.increment();
        self.counters.put_bytes.add_len(content.len());
        Ok(id)
    }
}

impl ChunkStore for MemoryStore {
    fn put(&self, domain: Domain, content: Bytes) -> ChunkFuture<'_, ChunkId> {
        Box::pin(async move { self.insert(domain, &content) })
    }

    fn sync(&self) -> ChunkFuture<'_, ()> {
        Box::pin(async {
            self.counters.syncs.increment();
            Ok(())
        })
    }

    fn get(&self, domain: Domain, id: ChunkId) -> ChunkFuture<'_, Bytes> {
        Box::pin(async move { self.cached(domain, id).ok_or(ChunkError::NotFound(id)) })
    }

    fn cached(&self, domain: Domain, id: ChunkId) -> Option<Bytes> {
        let found = self.chunks.read().get(&(domain.id, id)).cloned();
        match &found {
            Some(_) => self.counters.hits.increment(),
            None => self.counters.misses.increment(),
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn conforms() {
        crate::conformance::run(std::sync::Arc::new(MemoryStore::new())).await;
    }
}
