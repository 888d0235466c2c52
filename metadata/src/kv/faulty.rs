//! A store that fails, by a seed, in all the ways a store may.
//!
//! A decorator over any engine: what it does not disturb is the engine's own behaviour.

use std::fmt;
use std::sync::Arc;

use base::Rng;
use parking_lot::Mutex;

use super::{
    AtomicOp, Committed, Isolation, KeyRange, Kv, KvError, KvFuture, RangeLimit, RangePage,
    Transaction, Version,
};

/// Whole of a [`FaultRates`] number.
const RATE_WHOLE: u64 = 1000;

/// Most transactions that wait to be committed late.
const STRAGGLERS_MAX: usize = 8;

/// How often which fault happens, in thousandths of the calls that can have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// A commit conflicts though nothing does.
    pub conflict: u64,
    /// A read or a commit finds its version too old.
    pub too_old: u64,
    /// A read or a commit finds the store unavailable.
    pub unavailable: u64,
    /// A commit is made, and its outcome is unknown.
    pub unknown_applied: u64,
    /// A commit is not made, and its outcome is unknown.
    pub unknown_not_applied: u64,
    /// A commit is not made yet, and its outcome is unknown. It is tried later, or never.
    pub unknown_late: u64,
}

impl FaultRates {
    /// All of them, often.
    #[must_use]
    pub const fn all(thousandths: u64) -> Self {
        Self {
            conflict: thousandths,
            too_old: thousandths,
            unavailable: thousandths,
            unknown_applied: thousandths,
            unknown_not_applied: thousandths,
            unknown_late: thousandths,
        }
    }
}

/// On which side of a commit a crash happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// The commit is not made.
    Before,
    /// The commit is made, and nobody is told.
    After,
}

/// A store with faults. Cloning shares it.
#[derive(Clone, Debug)]
pub struct FaultyKv {
    shared: Arc<Shared>,
}

struct Shared {
    rng: Rng,
    state: Mutex<State>,
}

struct State {
    inner: Arc<dyn Kv>,
    rates: FaultRates,
    /// Commits with writes that were asked for.
    commits: u64,
    crash_at: Option<(u64, CrashPoint)>,
    crashed: bool,
    stragglers: Vec<Box<dyn Transaction>>,
}

/// What happens to a commit.
enum Fate {
    Commit,
    Fail(KvError),
    CommitThenForget,
    Keep,
}

impl FaultyKv {
    /// Decorates `inner`. The same seed and calls give the same faults.
    #[must_use]
    pub fn new(inner: Arc<dyn Kv>, seed: u64, rates: FaultRates) -> Self {
        Self {
            shared: Arc::new(Shared {
                rng: Rng::seeded(seed),
                state: Mutex::new(State {
                    inner,
                    rates,
                    commits: 0,
                    crash_at: None,
                    crashed: false,
                    stragglers: Vec::new(),
                }),
            }),
        }
    }

    /// Changes the rates.
    pub fn set_rates(&self, rates: FaultRates) {
        self.shared.state.lock().rates = rates;
    }

    /// How many commits with writes were asked for so far.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.shared.state.lock().commits
    }

    /// Has the store crash at a commit with writes, the first having number 0. That commit's
    /// outcome is unknown, and all later calls find the store unavailable until
    /// [`FaultyKv::revive`].
    pub fn crash_at(&self, commit: u64, point: CrashPoint) {
        self.shared.state.lock().crash_at = Some((commit, point));
    }

    /// Whether the store has crashed.
    #[must_use]
    pub fn has_crashed(&self) -> bool {
        self.shared.state.lock().crashed
    }

    /// Goes on after a crash, on `inner`. Transactions from before stay dead if their engine is.
    pub fn revive(&self, inner: Arc<dyn Kv>) {
        let mut state = self.shared.state.lock();
        state.inner = inner;
        state.crashed = false;
        state.crash_at = None;
        state.stragglers.clear();
    }
}

impl Kv for FaultyKv {
    fn begin(&self) -> Box<dyn Transaction> {
        let inner = self.shared.state.lock().inner.begin();
        Box::new(FaultyTransaction {
            inner,
            shared: Arc::clone(&self.shared),
            writes: false,
        })
    }

    fn available_bytes(&self) -> Option<u64> {
        let inner = Arc::clone(&self.shared.state.lock().inner);
        inner.available_bytes()
    }
}

impl Shared {
    /// Whether something that happens `rate` of a thousand times happens now.
    fn happens(&self, rate: u64) -> bool {
        // No draw for what never happens, so that a rate added later changes no old seed.
        rate > 0 && self.rng.u64() % RATE_WHOLE < rate
    }

    fn check_alive(&self) -> Result<FaultRates, KvError> {
        let state = self.state.lock();
        if state.crashed {
            return Err(KvError::Unavailable("store has crashed".to_owned()));
        }
        Ok(state.rates)
    }

    fn before_read(&self) -> Result<(), KvError> {
        let rates = self.check_alive()?;
        if self.happens(rates.too_old) {
            return Err(KvError::VersionTooOld);
        }
        if self.happens(rates.unavailable) {
            return Err(KvError::Unavailable("injected".to_owned()));
        }
        Ok(())
    }

    fn fate(&self) -> Fate {
        let rates = match self.check_alive() {
            Ok(rates) => rates,
            Err(error) => return Fate::Fail(error),
        };
        {
            let mut state = self.state.lock();
            let this = state.commits;
            state.commits = this.saturating_add(1);
            if let Some((commit, point)) = state.crash_at
                && commit == this
            {
                state.crashed = true;
                return match point {
                    CrashPoint::Before => Fate::Fail(KvError::OutcomeUnknown),
                    CrashPoint::After => Fate::CommitThenForget,
                };
            }
        }
        if self.happens(rates.conflict) {
            Fate::Fail(KvError::Conflict)
        } else if self.happens(rates.too_old) {
            Fate::Fail(KvError::VersionTooOld)
        } else if self.happens(rates.unavailable) {
            Fate::Fail(KvError::Unavailable("injected".to_owned()))
        } else if self.happens(rates.unknown_not_applied) {
            Fate::Fail(KvError::OutcomeUnknown)
        } else if self.happens(rates.unknown_applied) {
            Fate::CommitThenForget
        } else if self.happens(rates.unknown_late) {
            Fate::Keep
        } else {
            Fate::Commit
        }
    }

    /// A transaction that was kept back, if one is to be committed now.
    fn straggler(&self) -> Option<Box<dyn Transaction>> {
        if self.state.lock().stragglers.is_empty() || !self.happens(RATE_WHOLE / 2) {
            return None;
        }
        self.state.lock().stragglers.pop()
    }

    async fn commit(&self, inner: Box<dyn Transaction>) -> Result<Committed, KvError> {
        let fate = self.fate();
        if let Some(straggler) = self.straggler() {
            // Nobody waits for it; it may well conflict.
            let _ignored = straggler.commit().await;
        }
        match fate {
            Fate::Commit => inner.commit().await,
            Fate::Fail(error) => Err(error),
            Fate::CommitThenForget => match inner.commit().await {
                Ok(_) => Err(KvError::OutcomeUnknown),
                Err(error) => Err(error),
            },
            Fate::Keep => {
                let mut state = self.state.lock();
                if state.stragglers.len() < STRAGGLERS_MAX {
                    state.stragglers.push(inner);
                }
                Err(KvError::OutcomeUnknown)
            }
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("FaultyKv")
            .field("inner", &state.inner)
            .field("rates", &state.rates)
            .field("commits", &state.commits)
            .field("crashed", &state.crashed)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct FaultyTransaction {
    inner: Box<dyn Transaction>,
    shared: Arc<Shared>,
    writes: bool,
}

impl Transaction for FaultyTransaction {
    fn read_version(&self) -> KvFuture<'_, Version> {
        Box::pin(async move {
            self.shared.before_read()?;
            self.inner.read_version().await
        })
    }

    fn set_read_version(&mut self, version: Version) {
        self.inner.set_read_version(version);
    }

    fn get<'a>(
        &'a self,
        key: &'a [u8],
        isolation: Isolation,
    ) -> KvFuture<'a, Option<bytes::Bytes>> {
        Box::pin(async move {
            self.shared.before_read()?;
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
            self.shared.before_read()?;
            self.inner.get_range(range, limit, isolation).await
        })
    }

    fn set(&mut self, key: &[u8], value: &[u8]) {
        self.writes = true;
        self.inner.set(key, value);
    }

    fn clear(&mut self, key: &[u8]) {
        self.writes = true;
        self.inner.clear(key);
    }

    fn clear_range(&mut self, range: &KeyRange) {
        self.writes = true;
        self.inner.clear_range(range);
    }

    fn atomic(&mut self, op: AtomicOp, key: &[u8], operand: &[u8]) {
        self.writes = true;
        self.inner.atomic(op, key, operand);
    }

    fn add_read_conflict_range(&mut self, range: &KeyRange) {
        self.inner.add_read_conflict_range(range);
    }

    fn add_write_conflict_range(&mut self, range: &KeyRange) {
        self.writes = true;
        self.inner.add_write_conflict_range(range);
    }

    fn commit(self: Box<Self>) -> KvFuture<'static, Committed> {
        Box::pin(async move {
            if self.writes {
                self.shared.commit(self.inner).await
            } else {
                self.shared.check_alive()?;
                self.inner.commit().await
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use base::{ManualClock, Timestamp};

    use super::*;
    use crate::kv::conformance::{Subject, suite};
    use crate::kv::memory::MemoryKv;

    fn memory() -> MemoryKv {
        MemoryKv::new(Arc::new(ManualClock::new(Timestamp::EPOCH)))
    }

    async fn set(kv: &dyn Kv, key: &[u8]) -> Result<(), KvError> {
        let mut transaction = kv.begin();
        transaction.set(key, b"");
        transaction.commit().await.map(|_| ())
    }

    #[tokio::test]
    async fn without_faults_it_conforms() {
        suite(async || {
            let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
            let inner = Arc::new(MemoryKv::new(clock.clone()));
            Subject {
                kv: Arc::new(FaultyKv::new(inner, 0, FaultRates::default())),
                clock: Some(clock),
            }
        })
        .await;
    }

    #[tokio::test]
    async fn every_fault_happens_and_tells_the_truth() {
        let inner = memory();
        let kv = FaultyKv::new(Arc::new(inner.clone()), 7, FaultRates::all(50));
        let mut unknown = [0, 0];
        for index in 0..2000_u32 {
            let key = index.to_be_bytes();
            let result = set(&kv, &key).await;
            let applied = inner.dump().iter().any(|(stored, _)| **stored == key);
            match result {
                Ok(()) => assert!(applied),
                Err(KvError::OutcomeUnknown) => unknown[usize::from(applied)] += 1,
                Err(_) => assert!(!applied),
            }
        }
        assert!(unknown.iter().all(|count| *count > 20), "{unknown:?}");
        let late = inner.dump().len();
        kv.set_rates(FaultRates::default());
        assert_eq!(kv.commits(), 2000);
        assert!(late > 1000);
    }

    #[tokio::test]
    async fn a_crash_is_on_one_side_of_a_commit() {
        for (point, stored) in [(CrashPoint::Before, 2), (CrashPoint::After, 3)] {
            let inner = memory();
            let kv = FaultyKv::new(Arc::new(inner.clone()), 0, FaultRates::default());
            kv.crash_at(2, point);
            assert_eq!(set(&kv, b"0").await, Ok(()));
            let held = kv.begin();
            assert_eq!(set(&kv, b"1").await, Ok(()));
            assert_eq!(set(&kv, b"2").await, Err(KvError::OutcomeUnknown));
            assert!(kv.has_crashed());
            assert!(matches!(set(&kv, b"3").await, Err(KvError::Unavailable(_))));
            let reopened = inner.reopen();
            kv.revive(Arc::new(reopened.clone()));
            assert_eq!(reopened.dump().len(), stored);
            let read = held.get(b"0", Isolation::Serializable).await;
            assert!(matches!(read, Err(KvError::Unavailable(_))));
            assert_eq!(set(&kv, b"4").await, Ok(()));
        }
    }
}
