//! Virtual time: the time of day is set by the test, the rest is tokio's paused clock.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base::{Clock, SystemClock, Timestamp};

/// A clock that goes on over several runtimes.
#[derive(Debug)]
pub(crate) struct WorldClock {
    state: Mutex<State>,
    system: SystemClock,
}

#[derive(Debug)]
struct State {
    wall: Timestamp,
    /// Time that has passed in earlier runtimes.
    before: Duration,
    /// When the present runtime began.
    origin: tokio::time::Instant,
}

impl WorldClock {
    pub(crate) fn new(wall: Timestamp) -> Self {
        Self {
            state: Mutex::new(State {
                wall,
                before: Duration::ZERO,
                origin: tokio::time::Instant::now(),
            }),
            system: SystemClock::new(),
        }
    }

    pub(crate) fn set_wall(&self, wall: Timestamp) {
        self.lock().wall = wall;
    }

    /// Says that a new runtime has begun. Called inside it.
    pub(crate) fn begin(&self) {
        self.lock().origin = tokio::time::Instant::now();
    }

    /// Says that the present runtime ends. Called inside it.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        let lived = state.origin.elapsed();
        state.before += lived;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for WorldClock {
    fn wall(&self) -> Timestamp {
        self.lock().wall
    }

    fn monotonic(&self) -> Duration {
        let state = self.lock();
        state.before + state.origin.elapsed()
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.system.sleep(duration)
    }
}
