//! What an engine counts of its calls. `docs/metrics.md` lists it.

use std::sync::atomic::{AtomicU64, Ordering};

use base::Histogram;

use super::KvError;

/// Counts of an engine's calls. All only grow.
#[derive(Debug, Default)]
pub struct KvCalls {
    /// Reads and questions for the read version, and how long they took; with those that failed.
    pub reads: Histogram,
    /// Commits of what writes, likewise.
    pub commits: Histogram,
    conflicts: AtomicU64,
    too_old: AtomicU64,
    unknown: AtomicU64,
    unavailable: AtomicU64,
    refused: AtomicU64,
}

impl KvCalls {
    /// Counts a failed call.
    pub fn failed(&self, error: &KvError) {
        let count = match error {
            KvError::Conflict => &self.conflicts,
            KvError::VersionTooOld => &self.too_old,
            KvError::OutcomeUnknown => &self.unknown,
            KvError::Unavailable(_) | KvError::NoSpace | KvError::Corrupt(_) => &self.unavailable,
            KvError::Limit(_) | KvError::Usage(_) | KvError::Outlived => &self.refused,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls that failed with [`KvError::Conflict`].
    #[must_use]
    pub fn conflicts(&self) -> u64 {
        self.conflicts.load(Ordering::Relaxed)
    }

    /// Calls that failed with [`KvError::VersionTooOld`].
    #[must_use]
    pub fn too_old(&self) -> u64 {
        self.too_old.load(Ordering::Relaxed)
    }

    /// Commits that failed with [`KvError::OutcomeUnknown`].
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    /// Calls that the store could not serve.
    #[must_use]
    pub fn unavailable(&self) -> u64 {
        self.unavailable.load(Ordering::Relaxed)
    }

    /// Calls refused for a limit or a wrong use: bugs of the caller.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}
