//! Between a gateway and the store: slow, and sometimes cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use base::Clock;
use system_tests::hooked_kv::{HookedKv, Hooks};

use crate::slow_kv::{Pace, Slowness};

/// A store at the end of a wire.
pub(crate) type WiredKv = HookedKv<Wire>;

/// How often a call that hangs looks whether it may go on.
const LOOK: Duration = Duration::from_millis(50);

/// What is wrong with a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Nothing.
    None,
    /// Calls fail.
    Fails,
    /// Calls take until it is whole again.
    Hangs,
}

/// One gateway's wire. Cloning shares it.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    slowness: Slowness,
    clock: Arc<dyn Clock>,
    cut: Arc<AtomicU8>,
}

impl Wire {
    pub(crate) fn new(clock: Arc<dyn Clock>, seed: u64) -> Self {
        Self {
            slowness: Slowness::new(Arc::clone(&clock), seed),
            clock,
            cut: Arc::default(),
        }
    }

    pub(crate) fn set_pace(&self, pace: Pace) {
        self.slowness.set_pace(pace);
    }

    pub(crate) fn set_cut(&self, cut: Cut) {
        let number = match cut {
            Cut::None => 0,
            Cut::Fails => 1,
            Cut::Hangs => 2,
        };
        self.cut.store(number, Ordering::SeqCst);
    }

    async fn until_whole(&self) {
        while self.cut.load(Ordering::SeqCst) == 2 {
            self.clock.sleep(LOOK).await;
        }
    }
}

impl Hooks for Wire {
    async fn before_read(&self) {
        self.until_whole().await;
    }

    async fn after_read(&self) {
        self.slowness.after_read().await;
        self.until_whole().await;
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst) == 1
    }

    async fn before_commit(&mut self) {
        self.slowness.before_commit().await;
        self.until_whole().await;
    }

    async fn after_commit(&mut self) {
        self.slowness.after_commit().await;
        self.until_whole().await;
    }
}
