//! A bounded cache in memory in front of a store.
//!
//! What it holds was verified when it was read, or hashed when it was written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{ChunkId, DomainId};
use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::{ChunkFuture, ChunkStore, Domain};

/// Typical chunk, in bytes; sizes the cache's own tables.
const CHUNK_BYTES_TYPICAL: u64 = 64 * 1024;

/// About what an entry costs beside its content, in bytes.
const ENTRY_BYTES: u64 = 128;

/// A store with a cache in front. Concurrent reads of one chunk are one read of the store.
#[derive(Debug)]
pub struct CachedStore {
    inner: Arc<dyn ChunkStore>,
    cache: Cache<(DomainId, ChunkId), Bytes, ByBytes>,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<(DomainId, ChunkId), Bytes> for ByBytes {
    fn weight(&self, _key: &(DomainId, ChunkId), content: &Bytes) -> u64 {
        ENTRY_BYTES + u64::try_from(content.len()).unwrap_or(u64::MAX / 2)
    }
}

impl CachedStore {
    /// A cache of up to about `bytes` in front of `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn ChunkStore>, bytes: usize) -> Self {
        let capacity = u64::try_from(bytes).unwrap_or(u64::MAX);
        let entries = usize::try_from(capacity / CHUNK_BYTES_TYPICAL)
            .unwrap_or(usize::MAX)
            .max(16);
        let cache = Cache::with_weighter(entries, capacity, ByBytes);
        Self {
            inner,
            cache,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Reads answered from memory.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Reads that had to ask the store.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }
}

impl ChunkStore for CachedStore {
    fn put(&self, domain: Domain, content: Bytes) -> ChunkFuture<'_, ChunkId> {
        Box::pin(async move {
            let id = self.inner.put(domain, content.clone()).await?;
            // Copied: what was handed in may be part of a larger buffer.
            self.cache
                .insert((domain.id, id), Bytes::copy_from_slice(&content));
            Ok(id)
        })
    }

    fn sync(&self) -> ChunkFuture<'_, ()> {
        self.inner.sync()
    }

    fn get(&self, domain: Domain, id: ChunkId) -> ChunkFuture<'_, Bytes> {
        Box::pin(async move {
            let load = async {
                self.misses.fetch_add(1, Ordering::Relaxed);
                self.inner.get(domain, id).await
            };
            self.cache.get_or_insert_async(&(domain.id, id), load).await
        })
    }

    fn cached(&self, domain: Domain, id: ChunkId) -> Option<Bytes> {
        let found = self.cache.get(&(domain.id, id));
        if found.is_some() {
            self.hits.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    fn available_bytes(&self) -> Option<u64> {
        self.inner.available_bytes()
    }
}
