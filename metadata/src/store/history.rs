//! A workspace's history: commits, refs, the operation log, and what versions mean.
//!
//! Commits never change and are named by their content. A commit is later than its parents, so the
//! order of times is an order of the history, and walks need to remember nothing but what they
//! still have to look at (`walk.rs`). Refs change by comparing (`refs.rs`); each change is logged in
//! its transaction, for the workspace and for the ref itself (`operations.rs`).

mod commits;
mod operations;
mod pins;
mod refs;
mod retention;
mod versions;
mod walk;

#[cfg(test)]
mod tests;

pub use commits::{CommitInfo, NewCommit};
pub use operations::{OperationInfo, OperationPosition};
pub use pins::PinInfo;
pub use refs::{RefInfo, RefLogEntry, RefWritten};
pub(crate) use retention::commits_of;
pub use retention::{Expired, LogsRemoved};
pub(crate) use walk::LOG_BYTES_MAX;
pub use walk::{LogFilter, LogHeads, LogHeadsError, LogPage, LogQuery, Walk};

pub(super) use commits::require_commit;
pub(crate) use operations::{is_logged, write_operation};

/// Entries read at a time when listing.
const PAGE: usize = 500;
