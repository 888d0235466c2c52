//! A chunk store whose memory is short: what is asked for without waiting is often not there, and
//! what was not synced is lost with the power.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::{ChunkId, Rng};
use bytes::Bytes;
use chunkstore::memory::MemoryStore;
use chunkstore::{ChunkFuture, ChunkStore, Domain};

/// A store in memory that forgets.
#[derive(Debug)]
pub(crate) struct Forgetful {
    durable: MemoryStore,
    unsynced: Mutex<Vec<(Domain, ChunkId, Bytes)>>,
    rng: Rng,
    /// How many of four times it forgets what it has in memory.
    often: AtomicU64,
}

impl Forgetful {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            durable: MemoryStore::new(),
            unsynced: Mutex::default(),
            rng: Rng::seeded(seed),
            often: AtomicU64::new(2),
        }
    }

    /// Has nothing in memory from now on.
    pub(crate) fn forget_all(&self) {
        self.often.store(4, Ordering::Relaxed);
    }

    /// Loses what was not synced.
    pub(crate) fn crash(&self) {
        self.unsynced().clear();
    }

    fn unsynced(&self) -> MutexGuard<'_, Vec<(Domain, ChunkId, Bytes)>> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find_unsynced(&self, domain: Domain, id: ChunkId) -> Option<Bytes> {
        let unsynced = self.unsynced();
        let found = unsynced.iter().find(|it| (it.0, it.1) == (domain, id));
        found.map(|(_, _, content)| content.clone())
    }
}

impl ChunkStore for Forgetful {
    fn put(&self, domain: Domain, content: Bytes) -> ChunkFuture<'_, ChunkId> {
        Box::pin(async move {
            let id = domain.chunk_id(&content);
            // A copy, because the caller's bytes may be a small part of a large buffer.
            let content = Bytes::copy_from_slice(&content);
            self.unsynced().push((domain, id, content));
            Ok(id)
        })
    }

    fn sync(&self) -> ChunkFuture<'_, ()> {
        Box::pin(async move {
            let unsynced = std::mem::take(&mut *self.unsynced());
            for (domain, _, content) in unsynced {
                self.durable.put(domain, content).await?;
            }
            Ok(())
        })
    }

    fn get(&self, domain: Domain, id: ChunkId) -> ChunkFuture<'_, Bytes> {
        match self.find_unsynced(domain, id) {
            Some(content) => Box::pin(async move { Ok(content) }),
            None => self.durable.get(domain, id),
        }
    }

    fn cached(&self, domain: Domain, id: ChunkId) -> Option<Bytes> {
        if self.rng.u64() % 4 < self.often.load(Ordering::Relaxed) {
            return None;
        }
        self.find_unsynced(domain, id)
            .or_else(|| self.durable.cached(domain, id))
    }
}
