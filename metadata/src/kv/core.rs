//! What makes any ordered map behave like FoundationDB.
//!
//! An engine gives ordered snapshots and an atomic batch of writes. Everything else is here and
//! is the same for all engines: the window of versions that may still be read and written from,
//! the search for conflicts, the view of a transaction's own writes, atomic operations,
//! versionstamps and limits. Read in this order: `transaction` (what a caller holds), `overlay`
//! (its writes), `batch` (what is committed together), `window` (who conflicts with whom).

mod atomic;
mod batch;
mod overlay;
mod ranges;
mod stamp;
mod transaction;
mod versions;
mod window;

#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use base::limits::KV_TRANSACTION_AGE_MS_MAX;
use bytes::Bytes;

use super::{Committed, KvError, KvFuture, Version};

pub(super) use batch::{Batch, BatchWrites};
pub(super) use ranges::RangeSet;
#[cfg(feature = "fdb")]
pub(super) use stamp::{STAMP_BYTES, Template};
pub(super) use transaction::CoreTransaction;
pub(super) use versions::Versions;
pub(super) use window::Window;

/// Age at which a version can no longer be read, nor committed against.
pub(super) const AGE_MAX: Duration = Duration::from_millis(KV_TRANSACTION_AGE_MS_MAX);

/// Looks at one pair of a scan.
pub(super) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// The store's content at one version. Cloning is cheap.
pub(super) trait Snapshot: Clone + Debug + Send + Sync + 'static {
    /// The value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError>;

    /// Calls `visit` with each pair of `start..end` in the order asked for, until it breaks.
    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        reverse: bool,
        visit: &mut Visit<'_>,
    ) -> Result<(), KvError>;
}

/// An engine, as a transaction sees it.
pub(super) trait Store: Debug + Send + Sync + 'static {
    /// The engine's snapshots.
    type Snapshot: Snapshot;

    /// Time since some fixed point.
    fn now(&self) -> Duration;

    /// The newest durable version and its content.
    fn latest(self: &Arc<Self>) -> Result<(Version, Self::Snapshot), KvError>;

    /// The content at `version`; `VersionTooOld` if it is no longer, or not yet, known.
    fn at(self: &Arc<Self>, version: Version) -> Result<Self::Snapshot, KvError>;

    /// When `version` was made; `VersionTooOld` if that is no longer, or not yet, known.
    fn made_at(&self, version: Version) -> Result<Duration, KvError>;

    /// Commits. The future completes when the writes are durable, or it is certain that they
    /// never will be, or the outcome is unknown.
    fn submit(self: Arc<Self>, request: CommitRequest) -> KvFuture<'static, Committed>;
}

/// A transaction on its way to be committed.
#[derive(Debug)]
pub(super) struct CommitRequest {
    /// What it read; `None` if nothing it read can conflict.
    pub(super) read: Option<ReadSet>,
    /// Ranges that make others conflict.
    pub(super) write_conflicts: RangeSet,
    /// Its writes.
    pub(super) writes: overlay::Overlay,
    /// Bytes that count towards the limit of a transaction.
    pub(super) bytes: usize,
}

/// What a transaction read, for the search for conflicts.
#[derive(Debug)]
pub(super) struct ReadSet {
    /// The version it read at.
    pub(super) version: Version,
    /// The time after which that version is too old to commit from.
    pub(super) deadline: Duration,
    /// Ranges that must not have changed since.
    pub(super) conflicts: RangeSet,
}

impl CommitRequest {
    /// Whether it may need room: it sets a value, rather than only clearing some.
    pub(super) fn adds_values(&self) -> bool {
        self.writes.adds_values()
    }
}

/// Whether a transaction that read at a version may go on at `now`.
pub(super) fn check_age(deadline: Duration, now: Duration) -> Result<(), KvError> {
    if now <= deadline {
        Ok(())
    } else {
        Err(KvError::VersionTooOld)
    }
}
