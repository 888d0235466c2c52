//! Trees on this machine's disks, as archives: reading and making them.
//!
//! Paths are walked name by name, from open directories on, and no link is ever followed: so whatever
//! is changed meanwhile, nothing outside the tree is read or written.

mod levels;
mod pack;
mod remove;
mod unpack;

pub(crate) use pack::{Packed, pack};
pub(crate) use remove::remove_tree;
pub(crate) use unpack::{Options, Unpacked, unpack, unreadable};

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use base::{Clock, SystemClock, Timestamp};

use crate::failure::Failure;
use crate::output;

/// Time between two signs of life.
const PROGRESS_PAUSE: Duration = Duration::from_millis(200);

/// Tells people at a terminal how far a long transfer is.
#[derive(Debug)]
pub(crate) struct Progress {
    clock: SystemClock,
    told: Duration,
    is_shown: bool,
    doing: &'static str,
    names: u64,
    bytes: u64,
}

impl Progress {
    /// Tells people that what is done is `doing`.
    pub(crate) fn new(doing: &'static str) -> Self {
        Self {
            clock: SystemClock::new(),
            told: Duration::ZERO,
            is_shown: std::io::stderr().is_terminal(),
            doing,
            names: 0,
            bytes: 0,
        }
    }

    /// One more thing was begun.
    pub(crate) fn name(&mut self) {
        self.names += 1;
        self.tell();
    }

    /// More content has gone.
    pub(crate) fn add(&mut self, length: usize) {
        self.bytes += u64::try_from(length).unwrap_or(u64::MAX);
        self.tell();
    }

    fn tell(&mut self) {
        if !self.is_shown {
            return;
        }
        let now = self.clock.monotonic();
        if now.saturating_sub(self.told) >= PROGRESS_PAUSE {
            self.told = now;
            let what = if self.names > 0 {
                format!("{} files, {}", self.names, shown_bytes(self.bytes))
            } else {
                shown_bytes(self.bytes)
            };
            output::progress(&format!("{}: {what}", self.doing));
        }
    }

    /// Takes the last sign of life away.
    pub(crate) fn end(&mut self) {
        if self.is_shown && self.told > Duration::ZERO {
            output::progress("");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

/// A number of bytes as people read it.
pub(crate) fn shown_bytes(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut whole, mut tenths, mut unit) = (bytes, 0, 0);
    while whole >= 1024 && unit + 1 < units.len() {
        tenths = whole % 1024 * 10 / 1024;
        whole /= 1024;
        unit += 1;
    }
    let name = units.get(unit).copied().unwrap_or_default();
    if unit == 0 {
        format!("{whole} {name}")
    } else {
        format!("{whole}.{tenths} {name}")
    }
}

/// A failure of the system at some path.
fn failed(doing: &str, path: &Path, error: rustix::io::Errno) -> Failure {
    let doing = format!("{doing} {}", path.display());
    Failure::io(doing, &error.into())
}

/// A time of a file; what is before 1970 becomes 1970.
fn timestamp(seconds: i64, nanos: impl TryInto<u32>) -> Timestamp {
    match u64::try_from(seconds) {
        Ok(seconds) => Timestamp::new(seconds, nanos.try_into().unwrap_or(0)),
        Err(_) => Timestamp::EPOCH,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    /// Does something as one whom modes keep out, whoever runs the tests.
    pub(crate) fn kept_out<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        let thread = std::thread::Builder::new().name("kept out".into());
        std::thread::scope(|scope| {
            let works = thread.spawn_scoped(scope, || {
                let mut sets = capabilities(None).unwrap();
                let powers = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
                sets.effective.remove(powers);
                set_capabilities(None, sets).unwrap();
                work()
            });
            works.unwrap().join().unwrap()
        })
    }
}
