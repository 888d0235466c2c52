//! A store that nobody changes, to be read as a whole: each read is a transaction of its own, and is
//! repeated while the store cannot serve.
//!
//! A read over a network fails for a moment now and then, and what reads everything would end with the
//! first of these.

use std::sync::Arc;

use base::{Clock, Rng};
use bytes::Bytes;

use super::{
    AtomicOp, Committed, Isolation, KeyRange, Kv, KvError, KvFuture, RangeLimit, RangePage,
    Transaction, Version,
};
use crate::transact::{Budget, Transactor};

/// Reads a store that nobody changes. Writes are refused.
#[derive(Clone, Debug)]
pub struct StillKv {
    transactor: Transactor,
}

impl StillKv {
    /// Reads `kv`.
    #[must_use]
    pub fn new(kv: Arc<dyn Kv>, clock: Arc<dyn Clock>, rng: Arc<Rng>) -> Self {
        let transactor = Transactor::new(kv, clock, rng);
        Self { transactor }
    }
}

impl Kv for StillKv {
    fn begin(&self) -> Box<dyn Transaction> {
        Box::new(self.clone())
    }
}

/// The handle is its own transaction: it holds nothing.
impl Transaction for StillKv {
    fn read_version(&self) -> KvFuture<'_, Version> {
        let transaction = self.transactor.kv().begin();
        Box::pin(async move { transaction.read_version().await })
    }

    fn set_read_version(&mut self, _version: Version) {}

    fn get<'a>(&'a self, key: &'a [u8], isolation: Isolation) -> KvFuture<'a, Option<Bytes>> {
        let read = self.transactor.transact(Budget::default(), move |txn, _| {
            Box::pin(async move { txn.get(key, isolation).await })
        });
        Box::pin(read)
    }

    fn get_range<'a>(
        &'a self,
        range: &'a KeyRange,
        limit: RangeLimit,
        isolation: Isolation,
    ) -> KvFuture<'a, RangePage> {
        let read = self.transactor.transact(Budget::default(), move |txn, _| {
            Box::pin(async move { txn.get_range(range, limit, isolation).await })
        });
        Box::pin(read)
    }

    fn set(&mut self, _key: &[u8], _value: &[u8]) {}
    fn clear(&mut self, _key: &[u8]) {}
    fn clear_range(&mut self, _range: &KeyRange) {}
    fn atomic(&mut self, _op: AtomicOp, _key: &[u8], _operand: &[u8]) {}
    fn add_read_conflict_range(&mut self, _range: &KeyRange) {}
    fn add_write_conflict_range(&mut self, _range: &KeyRange) {}

    fn commit(self: Box<Self>) -> KvFuture<'static, Committed> {
        Box::pin(std::future::ready(Err(KvError::Usage(
            "a store that is only looked at is not written to",
        ))))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use base::{ManualClock, Timestamp};

    use super::super::faulty::{FaultRates, FaultyKv};
    use super::super::memory::MemoryKv;
    use super::*;

    #[tokio::test]
    async fn reads_go_on_at_new_versions_and_nothing_is_written() {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let kv = MemoryKv::new(clock.clone());
        let mut writer = kv.begin();
        writer.set(b"a", b"1");
        writer.commit().await.unwrap();
        let rng = Arc::new(Rng::seeded(1));
        let still = StillKv::new(Arc::new(kv), clock.clone(), rng);
        let reader = still.begin();
        assert!(reader.get(b"a", Isolation::Snapshot).await.is_ok());
        clock.advance(Duration::from_secs(60));
        let range = KeyRange::prefix(b"");
        let page = reader.get_range(&range, RangeLimit::pairs(9), Isolation::Snapshot);
        assert_eq!(page.await.unwrap().pairs.len(), 1);
        let mut refused = still.begin();
        refused.set(b"b", b"2");
        assert!(matches!(refused.commit().await, Err(KvError::Usage(_))));
    }

    #[tokio::test]
    async fn moments_of_failure_are_waited_for_and_no_longer() {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let kv = MemoryKv::new(clock.clone());
        let faulty = FaultyKv::new(Arc::new(kv), 1, FaultRates::default());
        let rng = Arc::new(Rng::seeded(1));
        let still = StillKv::new(Arc::new(faulty.clone()), clock.clone(), rng);
        for (too_old, unavailable, reads) in [(500, 0, true), (0, 500, true), (0, 1000, false)] {
            faulty.set_rates(FaultRates {
                too_old,
                unavailable,
                ..FaultRates::default()
            });
            let reader = still.begin();
            let all = KeyRange::prefix(b"");
            let look = async {
                for _ in 0..20 {
                    reader.get(b"a", Isolation::Snapshot).await?;
                    let page = reader.get_range(&all, RangeLimit::pairs(9), Isolation::Snapshot);
                    page.await?;
                }
                Ok::<(), KvError>(())
            };
            let pass = async || -> Infallible {
                loop {
                    clock.advance(Duration::from_millis(1));
                    tokio::task::yield_now().await;
                }
            };
            let looked = tokio::select! {
                biased;
                looked = look => looked,
                never = pass() => match never {},
            };
            assert_eq!(looked.is_ok(), reads, "{looked:?}");
        }
    }
}
