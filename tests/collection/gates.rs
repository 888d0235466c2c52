//! Stores whose calls stop, so that jobs go on one step at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Poll;

use base::{ChunkId, DomainId};
use bytes::Bytes;
use chunkstore::local::LocalStore;
use chunkstore::{ChunkFuture, ChunkStore, Domain, Hold};
use metadata::kv::memory::MemoryKv;
use metadata::kv::{
    AtomicOp, Committed, Isolation, KeyRange, Kv, KvFuture, RangeLimit, RangePage, Transaction,
    Version,
};

/// Where jobs stop.
#[derive(Debug, Default)]
pub(crate) struct Gate(pub(crate) AtomicBool);

impl Gate {
    pub(crate) async fn pass(&self) {
        let mut is_here = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut is_here, true) {
                return Poll::Ready(());
            }
            self.0.store(true, SeqCst);
            // Whoever is not a job goes on at once.
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

/// A metadata store each of whose calls stops at the gate.
#[derive(Clone, Debug)]
pub(crate) struct GatedKv {
    pub(crate) inner: Arc<MemoryKv>,
    pub(crate) gate: Arc<Gate>,
    /// Sessions and commits are not seen.
    pub(crate) deltas_only: bool,
}

impl Kv for GatedKv {
    fn begin(&self) -> Box<dyn Transaction> {
        Box::new(GatedTransaction {
            inner: self.inner.begin(),
            gate: Arc::clone(&self.gate),
            deltas_only: self.deltas_only,
        })
    }
}

#[derive(Debug)]
pub(crate) struct GatedTransaction {
    pub(crate) inner: Box<dyn Transaction>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) deltas_only: bool,
}

impl Transaction for GatedTransaction {
    fn read_version(&self) -> KvFuture<'_, Version> {
        self.inner.read_version()
    }

    fn set_read_version(&mut self, version: Version) {
        self.inner.set_read_version(version);
    }

    fn get<'a>(&'a self, key: &'a [u8], isolation: Isolation) -> KvFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            self.gate.pass().await;
            self.inner.get(key, isolation).await
        })
    }

    fn get_range<'a>(
        &'a self,
        range: &'a KeyRange,
        limit: RangeLimit,
        isolation: Isolation,
    ) -> KvFuture<'a, RangePage> {
        Box::pin(async move {
            self.gate.pass().await;
            let is_hidden = matches!(range.start.first(), Some(b's' | b'k'));
            if self.deltas_only && is_hidden {
                return Ok(RangePage::default());
            }
            self.inner.get_range(range, limit, isolation).await
        })
    }

    fn set(&mut self, key: &[u8], value: &[u8]) {
        self.inner.set(key, value);
    }

    fn clear(&mut self, key: &[u8]) {
        self.inner.clear(key);
    }

    fn clear_range(&mut self, range: &KeyRange) {
        self.inner.clear_range(range);
    }

    fn atomic(&mut self, op: AtomicOp, key: &[u8], operand: &[u8]) {
        self.inner.atomic(op, key, operand);
    }

    fn add_read_conflict_range(&mut self, range: &KeyRange) {
        self.inner.add_read_conflict_range(range);
    }

    fn add_write_conflict_range(&mut self, range: &KeyRange) {
        self.inner.add_write_conflict_range(range);
    }

    fn commit(self: Box<Self>) -> KvFuture<'static, Committed> {
        Box::pin(async move {
            self.gate.pass().await;
            self.inner.commit().await
        })
    }
}

/// A chunk store whose writes stop at the gate.
#[derive(Debug)]
pub(crate) struct GatedChunks {
    pub(crate) inner: LocalStore,
    pub(crate) gate: Arc<Gate>,
}

impl ChunkStore for GatedChunks {
    fn put(&self, domain: Domain, content: Bytes) -> ChunkFuture<'_, ChunkId> {
        Box::pin(async move {
            self.gate.pass().await;
            self.inner.put(domain, content).await
        })
    }

    fn sync(&self) -> ChunkFuture<'_, ()> {
        Box::pin(async {
            self.gate.pass().await;
            self.inner.sync().await
        })
    }

    fn get(&self, domain: Domain, id: ChunkId) -> ChunkFuture<'_, Bytes> {
        self.inner.get(domain, id)
    }

    fn cached(&self, domain: Domain, id: ChunkId) -> Option<Bytes> {
        self.inner.cached(domain, id)
    }

    fn hold(&self) -> Hold {
        self.inner.hold()
    }

    fn touch(&self, domain: DomainId, id: ChunkId) {
        self.inner.touch(domain, id);
    }
}
