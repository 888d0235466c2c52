//! Time, as something that is handed in.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;

use crate::time::Timestamp;

/// Where time comes from. Measure with `monotonic`, store `wall`, never the other way.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The time of day. May jump, also backwards.
    fn wall(&self) -> Timestamp;

    /// Time since some fixed point. Never goes backwards.
    fn monotonic(&self) -> Duration;

    /// Completes after `duration`. Safe to drop at any point.
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock {
    start: tokio::time::Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            start: tokio::time::Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> Timestamp {
        #[expect(
            clippy::disallowed_types,
            reason = "this is the one place that reads it"
        )]
        let since_epoch = std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .unwrap_or_default();
        Timestamp::new(since_epoch.as_secs(), since_epoch.subsec_nanos())
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        #[expect(
            clippy::disallowed_methods,
            reason = "this is the one place that sleeps"
        )]
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A clock that moves only when told to, for tests and simulation.
#[derive(Debug)]
pub struct ManualClock {
    state: Mutex<ManualState>,
    moved: tokio::sync::Notify,
}

#[derive(Debug)]
struct ManualState {
    wall: Timestamp,
    monotonic: Duration,
}

impl ManualClock {
    /// A clock that shows `wall`.
    #[must_use]
    pub fn new(wall: Timestamp) -> Self {
        Self {
            state: Mutex::new(ManualState {
                wall,
                monotonic: Duration::ZERO,
            }),
            moved: tokio::sync::Notify::new(),
        }
    }

    /// Lets `duration` pass.
    pub fn advance(&self, duration: Duration) {
        {
            let mut state = self.lock();
            let wall = state.wall;
            state.wall = Timestamp::new(
                wall.seconds().saturating_add(duration.as_secs()),
                wall.nanos() + duration.subsec_nanos(),
            );
            state.monotonic += duration;
        }
        self.moved.notify_waiters();
    }

    /// Steps the time of day, also backwards; monotonic time stays.
    pub fn set_wall(&self, wall: Timestamp) {
        self.lock().wall = wall;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ManualState> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> Timestamp {
        self.lock().wall
    }

    fn monotonic(&self) -> Duration {
        self.lock().monotonic
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let until = self.monotonic() + duration;
        Box::pin(async move {
            loop {
                let moved = self.moved.notified();
                if self.monotonic() >= until {
                    return;
                }
                moved.await;
            }
        })
    }
}
