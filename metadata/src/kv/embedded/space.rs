//! How much the device of the file can still take.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use parking_lot::Mutex;

/// How long an answer of the system is used: short enough to stop in time, long enough that
/// asking for every call costs nothing.
const FRESH: Duration = Duration::from_millis(100);

/// Free space of the file's device.
#[derive(Debug)]
pub(super) struct Space {
    dir: PathBuf,
    reserve_bytes: u64,
    clock: Arc<dyn Clock>,
    last: Mutex<Option<(Duration, Option<u64>)>>,
}

impl Space {
    /// The space of the device that holds `path`.
    pub(super) fn new(path: &Path, reserve_bytes: u64, clock: Arc<dyn Clock>) -> Self {
        Self {
            dir: parent(path).to_owned(),
            reserve_bytes,
            clock,
            last: Mutex::new(None),
        }
    }

    /// What callers may use; `None` if the system does not say.
    pub(super) fn available_bytes(&self) -> Option<u64> {
        Some(self.free_bytes()?.saturating_sub(self.reserve_bytes))
    }

    /// What is free, with the reserve.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        let now = self.clock.monotonic();
        let mut last = self.last.lock();
        match *last {
            Some((at, free)) if now.saturating_sub(at) < FRESH => free,
            _ => {
                let free = ask(&self.dir);
                *last = Some((now, free));
                free
            }
        }
    }

    /// Forgets the last answer, after the device said that it is full.
    pub(super) fn refresh(&self) {
        *self.last.lock() = None;
    }
}

/// The directory that holds `path`.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn ask(dir: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}
