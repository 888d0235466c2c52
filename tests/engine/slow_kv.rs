//! A store that takes time, so that calls run while a flush or a load is under way.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::{Clock, Rng};
use bytes::Bytes;
use metadata::kv::{
    AtomicOp, Committed, Isolation, KeyRange, Kv, KvFuture, RangeLimit, RangePage, Transaction,
    Version,
};

/// Longest times that a read and each half of a commit take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) read_ms_max: u64,
    pub(crate) commit_ms_max: u64,
}

/// Hands on to another store, slowly. Cloning shares it.
#[derive(Clone, Debug)]
pub(crate) struct SlowKv {
    inner: Arc<dyn Kv>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    rng: Rng,
    pace: Mutex<Pace>,
}

impl Shared {
    fn pace(&self) -> Pace {
        *self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps at least a millisecond, so that a loop that never ends takes virtual time.
    async fn dawdle(&self, ms_max: u64) {
        let ms = self.rng.u64() % ms_max.max(1) + 1;
        self.clock.sleep(Duration::from_millis(ms)).await;
    }
}

impl SlowKv {
    pub(crate) fn new(inner: Arc<dyn Kv>, clock: Arc<dyn Clock>, seed: u64) -> Self {
        Self {
            inner,
            shared: Arc::new(Shared {
                clock,
                rng: Rng::seeded(seed),
                pace: Mutex::default(),
            }),
        }
    }

    pub(crate) fn set_pace(&self, pace: Pace) {
        *self
            .shared
            .pace
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = pace;
    }
}

impl Kv for SlowKv {
    fn begin(&self) -> Box<dyn Transaction> {
        Box::new(SlowTransaction {
            inner: self.inner.begin(),
            shared: Arc::clone(&self.shared),
        })
    }

    fn available_bytes(&self) -> Option<u64> {
        self.inner.available_bytes()
    }
}

#[derive(Debug)]
struct SlowTransaction {
    inner: Box<dyn Transaction>,
    shared: Arc<Shared>,
}

impl Transaction for SlowTransaction {
    fn read_version(&self) -> KvFuture<'_, Version> {
        self.inner.read_version()
    }

    fn set_read_version(&mut self, version: Version) {
        self.inner.set_read_version(version);
    }

    fn get<'a>(&'a self, key: &'a [u8], isolation: Isolation) -> KvFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            // The value is as of the call, and old when it arrives.
            let value = self.inner.get(key, isolation).await;
            self.shared.dawdle(self.shared.pace().read_ms_max).await;
            value
        })
    }

    fn get_range<'a>(
        &'a self,
        range: &'a KeyRange,
        limit: RangeLimit,
        isolation: Isolation,
    ) -> KvFuture<'a, RangePage> {
        Box::pin(async move {
            let page = self.inner.get_range(range, limit, isolation).await;
            self.shared.dawdle(self.shared.pace().read_ms_max).await;
            page
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
            let ms_max = self.shared.pace().commit_ms_max;
            self.shared.dawdle(ms_max).await;
            let committed = self.inner.commit().await;
            self.shared.dawdle(ms_max).await;
            committed
        })
    }
}
