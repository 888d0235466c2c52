//! How much the device can still take, without asking it each time.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use parking_lot::Mutex;

/// How old an answer may be. At 1 GB/s another writer fills 100 MB meanwhile, which is what the
/// reserve is for.
const FREE_SPACE_AGE_MAX: Duration = Duration::from_millis(100);

/// The free bytes of a device, as last heard.
#[derive(Debug)]
pub(crate) struct FreeSpace {
    reserve_bytes: u64,
    clock: Arc<dyn Clock>,
    last: Mutex<Option<Answer>>,
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    free_bytes: u64,
    at: Duration,
}

impl FreeSpace {
    pub(crate) fn new(reserve_bytes: u64, clock: Arc<dyn Clock>) -> Self {
        Self {
            reserve_bytes,
            clock,
            last: Mutex::new(None),
        }
    }

    /// Free bytes of the device of `dir`, less the reserve. `None` if it does not tell.
    pub(crate) fn available(&self, dir: &File) -> Option<u64> {
        let now = self.clock.monotonic();
        let mut last = self.last.lock();
        let fresh = last.filter(|answer| now.saturating_sub(answer.at) < FREE_SPACE_AGE_MAX);
        let answer = match fresh {
            Some(answer) => answer,
            None => Answer {
                free_bytes: free_bytes(dir)?,
                at: now,
            },
        };
        *last = Some(answer);
        Some(answer.free_bytes.saturating_sub(self.reserve_bytes))
    }

    /// Free bytes of the device of `dir`, with the reserve, asked for anew.
    pub(crate) fn now(dir: &File) -> Option<u64> {
        free_bytes(dir)
    }

    /// Takes note that this store wrote so much.
    pub(crate) fn used(&self, bytes: u64) {
        if let Some(answer) = self.last.lock().as_mut() {
            answer.free_bytes = answer.free_bytes.saturating_sub(bytes);
        }
    }

    /// Takes note that the last answer is wrong.
    pub(crate) fn forget(&self) {
        *self.last.lock() = None;
    }
}

fn free_bytes(dir: &File) -> Option<u64> {
    let space = rustix::fs::fstatvfs(dir).ok()?;
    // What an ordinary user may still use.
    Some(space.f_bavail.saturating_mul(space.f_frsize))
}

/// Bytes of the device of `dir`, used or not. `None` if it does not tell.
pub(crate) fn device_bytes(dir: &File) -> Option<u64> {
    let space = rustix::fs::fstatvfs(dir).ok()?;
    Some(space.f_blocks.saturating_mul(space.f_frsize))
}
