//! A chunk store whose memory is short: what is asked for without waiting is often not there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{ChunkId, Rng};
use bytes::Bytes;
use chunkstore::{ChunkFuture, ChunkStore, Domain};

/// Hands on to another store. Some of what that has in memory it says it has not.
#[derive(Debug)]
pub(crate) struct Forgetful {
    inner: Arc<dyn ChunkStore>,
    rng: Rng,
    /// How many of four times it forgets.
    often: AtomicU64,
}

impl Forgetful {
    pub(crate) fn new(inner: Arc<dyn ChunkStore>, seed: u64) -> Self {
        Self {
            inner,
            rng: Rng::seeded(seed),
            often: AtomicU64::new(2),
        }
    }

    pub(crate) fn forget_all(&self) {
        self.often.store(4, Ordering::Relaxed);
    }
}

impl ChunkStore for Forgetful {
    fn put(&self, domain: Domain, content: Bytes) -> ChunkFuture<'_, ChunkId> {
        self.inner.put(domain, content)
    }

    fn sync(&self) -> ChunkFuture<'_, ()> {
        self.inner.sync()
    }

    fn get(&self, domain: Domain, id: ChunkId) -> ChunkFuture<'_, Bytes> {
        self.inner.get(domain, id)
    }

    fn cached(&self, domain: Domain, id: ChunkId) -> Option<Bytes> {
        let forgets = self.rng.u64() % 4 < self.often.load(Ordering::Relaxed);
        if forgets {
            return None;
        }
        self.inner.cached(domain, id)
    }

    fn available_bytes(&self) -> Option<u64> {
        self.inner.available_bytes()
    }
}
