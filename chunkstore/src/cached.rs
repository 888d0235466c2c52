//! A memory cache in front of another store.

use std::sync::Arc;

use base::{ChunkId, DomainId};
use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::counters::Counters;
use crate::{ChunkError, ChunkFuture, ChunkStore, Domain, Hold};

/// What an entry takes besides its content, roughly: key, table slot, allocation.
const ENTRY_OVERHEAD_BYTES: u64 = 128;

/// Content of a usual entry, to size the tables: half of the default block.
const USUAL_CONTENT_BYTES: u64 = 64 * 1024;

/// Most entries the tables are sized for at the start. They grow beyond that.
const ENTRIES_AT_START_MAX: u64 = 1 << 20;

/// Keeps the plain, verified content of chunks that were read or put lately.
#[derive(Debug)]
pub struct CachedStore {
    inner: Arc<dyn ChunkStore>,
    cache: Cache<(DomainId, ChunkId), Bytes, ContentWeighter>,
    counters: Counters,
}

#[derive(Clone, Debug)]
struct ContentWeighter;

impl Weighter<(DomainId, ChunkId), Bytes> for ContentWeighter {
    fn weight(&self, _key: &(DomainId, ChunkId), content: &Bytes) -> u64 {
        u64::try_from(content.len()).unwrap_or(u64::MAX) + ENTRY_OVERHEAD_BYTES
    }
}

impl CachedStore {
    /// Puts a cache of `bytes` in front of `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn ChunkStore>, bytes: usize) -> Self {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let entries = (bytes / USUAL_CONTENT_BYTES).clamp(1, ENTRIES_AT_START_MAX);
        Self {
            inner,
            cache: Cache::with_weighter(
                usize::try_from(entries).unwrap_or(1),
                bytes,
                ContentWeighter,
            ),
            counters: Counters::default(),
        }
    }

    /// Reads answered from memory.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.counters.hits.count()
    }

    /// Reads that had to ask the store.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.counters.misses.count()
    }

    /// What the cache counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Bytes the cache holds, with the overhead of its entries.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.cache.weight()
    }

    /// Reads a chunk that is not cached. Of callers that want the same chunk one reads and the
    /// others wait; if it fails or gives up, the next one reads.
    async fn read_through(&self, domain: Domain, id: ChunkId) -> Result<Bytes, ChunkError> {
        let read = async {
            let content = self.inner.get(domain, id).await?;
            self.counters.misses.increment();
            self.counters.read_bytes.add_len(content.len());
            Ok(content)
        };
        self.cache.get_or_insert_async(&(domain.id, id), read).await
    }
}

impl ChunkStore for CachedStore {
    fn put(&self, domain: Domain, content: Bytes) -> ChunkFuture<'_, ChunkId> {
        Box::pin(async move {
            let id = self.inner.put(domain, content.clone()).await?;
            self.counters.puts.increment();
            self.counters.put_bytes.add_len(content.len());
            if !self.cache.contains_key(&(domain.id, id)) {
                // A copy, because the caller's bytes may be a small part of a large buffer, which
                // the cache would keep alive without counting it.
                let copy = Bytes::copy_from_slice(&content);
                self.cache.insert((domain.id, id), copy);
            }
            Ok(id)
        })
    }

    fn sync(&self) -> ChunkFuture<'_, ()> {
        Box::pin(async {
            self.inner.sync().await?;
            self.counters.syncs.increment();
            Ok(())
        })
    }

    fn get(&self, domain: Domain, id: ChunkId) -> ChunkFuture<'_, Bytes> {
        Box::pin(async move {
            match self.cached(domain, id) {
                Some(content) => Ok(content),
                None => self.read_through(domain, id).await,
            }
        })
    }

    fn cached(&self, domain: Domain, id: ChunkId) -> Option<Bytes> {
        let found = self.cache.get(&(domain.id, id));
        if found.is_some() {
            self.counters.hits.increment();
        }
        found
    }

    fn hold(&self) -> Hold {
        self.inner.hold()
    }

    fn touch(&self, domain: DomainId, id: ChunkId) {
        self.inner.touch(domain, id);
    }

    fn prefetch(&self, domain: Domain, ids: Vec<ChunkId>) -> ChunkFuture<'_, ()> {
        let is_cached = |id: &ChunkId| self.cache.contains_key(&(domain.id, *id));
        let missing = ids.into_iter().filter(|id| !is_cached(id)).collect();
        self.inner.prefetch(domain, missing)
    }

    /// Not so much that it pushes out of the cache what it has fetched itself.
    fn read_ahead_bytes(&self) -> usize {
        let capacity = usize::try_from(self.cache.capacity()).unwrap_or(usize::MAX);
        self.inner.read_ahead_bytes().min(capacity / 8)
    }

    fn available_bytes(&self) -> Option<u64> {
        self.inner.available_bytes()
    }
}

#[cfg(test)]
mod tests;
