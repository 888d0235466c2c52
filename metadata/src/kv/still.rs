//! A store that nobody changes, to be read as a whole: each read is a transaction of its own, and is
//! repeated while the store cannot serve.
//!
//! A read over a network fails for a moment now and then, and what reads everything would end with the
//! first of these.

use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use bytes::Bytes;

use super::{
    AtomicOp, Committed, Isolation, KeyRange, Kv, KvError, KvFuture, RangeLimit, RangePage,
    Transaction, Version,
};

/// Most attempts of a read.
const ATTEMPTS_MAX: u32 = 5;

/// Pause after the first attempt that failed; doubles with each.
const PAUSE: Duration = Duration::from_millis(20);

/// Reads a store that nobody changes. Writes are refused.
#[derive(Clone, Debug)]
pub struct StillKv {
    kv: Arc<dyn Kv>,
    clock: Arc<dyn Clock>,
}

impl StillKv {
    /// Reads `kv`.
    #[must_use]
    pub fn new(kv: Arc<dyn Kv>, clock: Arc<dyn Clock>) -> Self {
        Self { kv, clock }
    }

    /// Waits before attempt `attempt + 1` of a read that failed, if there is to be one.
    async fn again(&self, error: KvError, attempt: &mut u32) -> Result<(), KvError> {
        let passes = matches!(error, KvError::VersionTooOld | KvError::Unavailable(_));
        if !passes || *attempt >= ATTEMPTS_MAX {
            return Err(error);
        }
        self.clock.sleep(PAUSE * (1 << *attempt)).await;
        *attempt += 1;
        Ok(())
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
        let transaction = self.kv.begin();
        Box::pin(async move { transaction.read_version().await })
    }

    fn set_read_version(&mut self, _version: Version) {}

    fn get<'a>(&'a self, key: &'a [u8], isolation: Isolation) -> KvFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            let mut attempt = 1;
            loop {
                match self.kv.begin().get(key, isolation).await {
                    Ok(value) => return Ok(value),
                    Err(error) => self.again(error, &mut attempt).await?,
                }
            }
        })
    }

    fn get_range<'a>(
        &'a self,
        range: &'a KeyRange,
        limit: RangeLimit,
        isolation: Isolation,
    ) -> KvFuture<'a, RangePage> {
        Box::pin(async move {
            let mut attempt = 1;
            loop {
                match self.kv.begin().get_range(range, limit, isolation).await {
                    Ok(page) => return Ok(page),
                    Err(error) => self.again(error, &mut attempt).await?,
                }
            }
        })
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
    use base::{ManualClock, Timestamp};

    use super::super::memory::MemoryKv;
    use super::*;

    #[tokio::test]
    async fn reads_go_on_at_new_versions_and_nothing_is_written() {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let kv = MemoryKv::new(clock.clone());
        let mut writer = kv.begin();
        writer.set(b"a", b"1");
        writer.commit().await.unwrap();
        let still = StillKv::new(Arc::new(kv), clock.clone());
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

    /// Fails as often as told, then reads.
    #[derive(Clone, Debug)]
    struct Failing(MemoryKv, Arc<std::sync::atomic::AtomicU32>);

    impl Kv for Failing {
        fn begin(&self) -> Box<dyn Transaction> {
            use std::sync::atomic::Ordering;
            let left = self.1.load(Ordering::Relaxed);
            if left == 0 {
                return self.0.begin();
            }
            self.1.store(left - 1, Ordering::Relaxed);
            // A store that has crashed cannot serve.
            let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
            let crashed = MemoryKv::new(clock);
            drop(crashed.reopen());
            crashed.begin()
        }
    }

    #[tokio::test]
    async fn a_moment_of_failure_is_waited_for_and_no_longer() {
        let clock: Arc<dyn Clock> = Arc::new(base::SystemClock::new());
        let memory = MemoryKv::new(Arc::clone(&clock));
        for (failures, reads) in [(ATTEMPTS_MAX - 1, true), (ATTEMPTS_MAX, false)] {
            let failing = Failing(memory.clone(), Arc::new(failures.into()));
            let still = StillKv::new(Arc::new(failing), Arc::clone(&clock));
            let read = still.begin().get(b"a", Isolation::Snapshot).await;
            assert_eq!(read.is_ok(), reads, "{failures} failures: {read:?}");
        }
    }
}
