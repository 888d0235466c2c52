//! A store that takes time, so that calls run while a flush or a load is under way.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::{Clock, Rng};
use system_tests::hooked_kv::{HookedKv, Hooks};

/// Longest times that a read and each half of a commit take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) read_ms_max: u64,
    pub(crate) commit_ms_max: u64,
}

/// Hands on to another store, slowly. Cloning shares it.
pub(crate) type SlowKv = HookedKv<Slowness>;

/// How slowly.
#[derive(Clone, Debug)]
pub(crate) struct Slowness {
    shared: Arc<Shared>,
    /// Longest time that each half of the commit takes; both halves have the pace of its beginning.
    commit_ms_max: u64,
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

impl Slowness {
    pub(crate) fn new(clock: Arc<dyn Clock>, seed: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                clock,
                rng: Rng::seeded(seed),
                pace: Mutex::default(),
            }),
            commit_ms_max: 0,
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

impl Hooks for Slowness {
    /// The value is as of the call, and old when it arrives.
    async fn after_read(&self) {
        self.shared.dawdle(self.shared.pace().read_ms_max).await;
    }

    async fn before_commit(&mut self) {
        self.commit_ms_max = self.shared.pace().commit_ms_max;
        self.shared.dawdle(self.commit_ms_max).await;
    }

    async fn after_commit(&mut self) {
        self.shared.dawdle(self.commit_ms_max).await;
    }
}
