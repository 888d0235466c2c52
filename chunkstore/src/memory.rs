//! A chunk store in memory, for tests.

use std::collections::HashMap;

use base::limits::CHUNK_BYTES_MAX;
use base::{ChunkId, DomainId};
use bytes::Bytes;
use parking_lot::RwLock;

use crate::{ChunkError, ChunkFuture, ChunkStore, Domain};

/// Chunks in memory.
#[derive(Debug, Default)]
pub struct MemoryStore {
    chunks: RwLock<HashMap<(DomainId, ChunkId), Bytes>>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl ChunkStore for MemoryStore {
    fn put(&self, domain: Domain, content: Bytes) -> ChunkFuture<'_, ChunkId> {
        Box::pin(async move {
            if content.len() > CHUNK_BYTES_MAX {
                return Err(ChunkError::TooLarge(content.len()));
            }
            let id = domain.chunk_id(&content);
            self.chunks.write().insert((domain.id, id), content);
            Ok(id)
        })
    }

    fn sync(&self) -> ChunkFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn get(&self, domain: Domain, id: ChunkId) -> ChunkFuture<'_, Bytes> {
        Box::pin(async move { self.cached(domain, id).ok_or(ChunkError::NotFound(id)) })
    }

    fn cached(&self, domain: Domain, id: ChunkId) -> Option<Bytes> {
        self.chunks.read().get(&(domain.id, id)).cloned()
    }
}
