//! A machine's clock: not quite as fast as others.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base::{Clock, Timestamp};

use crate::clock::WorldClock;

/// The world's clock, faster or slower.
#[derive(Debug)]
pub(crate) struct DriftingClock {
    world: Arc<WorldClock>,
    /// Seconds that it counts in a thousand of the world's.
    per_thousand: u32,
}

impl DriftingClock {
    pub(crate) fn new(world: Arc<WorldClock>, per_thousand: u32) -> Self {
        Self {
            world,
            per_thousand,
        }
    }
}

impl Clock for DriftingClock {
    fn wall(&self) -> Timestamp {
        self.world.wall()
    }

    fn monotonic(&self) -> Duration {
        self.world.monotonic() * self.per_thousand / 1000
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.world.sleep(duration * 1000 / self.per_thousand)
    }
}
