//! Stores whose calls stop, so that jobs go on one step at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Poll;

use base::{ChunkId, DomainId};
use bytes::Bytes;
use chunkstore::local::LocalStore;
use chunkstore::{ChunkFuture, ChunkStore, Domain, Hold};
use metadata::kv::KeyRange;
use system_tests::hooked_kv::{HookedKv, Hooks};

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
pub(crate) type GatedKv = HookedKv<Gates>;

/// How calls of a metadata store stop.
#[derive(Clone, Debug)]
pub(crate) struct Gates {
    pub(crate) gate: Arc<Gate>,
    /// Sessions and commits are not seen.
    pub(crate) deltas_only: bool,
}

impl Hooks for Gates {
    async fn before_read(&self) {
        self.gate.pass().await;
    }

    fn hides(&self, range: &KeyRange) -> bool {
        self.deltas_only && matches!(range.start.first(), Some(b's' | b'k'))
    }

    async fn before_commit(&mut self) {
        self.gate.pass().await;
    }
}

/// A chunk store whose writes stop at the gate.
#[derive(Debug)]
pub(crate) struct GatedChunks<S = LocalStore> {
    pub(crate) inner: S,
    pub(crate) gate: Arc<Gate>,
}

impl<S: ChunkStore> ChunkStore for GatedChunks<S> {
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
