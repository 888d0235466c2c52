//! Why a call on `.holdfast` gets no result of its own: from the errors of history to those of files.

#![deny(clippy::wildcard_enum_match_arm)] // A new error has to be thought about here.

use metadata::FsError;
use metadata::compare::SnapshotError;
use metadata::kv::KvError;
use metadata::layers::ImageError;
use metadata::merge::MergeError;
use metadata::restore::RestoreError;
use metadata::session::OwnError;
use metadata::store::StoreError;
use metadata::tree::TreeError;

use super::super::FreezeError;
use super::super::slow::Stop;
use crate::history::{HistoryError, ResolveError};

/// Why a call got no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It fails with this.
    Fail(FsError),
    /// The stores do not serve at present; nothing was done, or can be done again.
    Unavailable,
}

impl From<FsError> for Trouble {
    fn from(error: FsError) -> Self {
        Self::Fail(error)
    }
}

impl From<Stop> for Trouble {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Fail(error) => Self::Fail(error),
            Stop::HangUp => Self::Unavailable,
        }
    }
}

impl From<&KvError> for Trouble {
    fn from(error: &KvError) -> Self {
        match error {
            KvError::NoSpace => Self::Fail(FsError::NoSpace),
            KvError::Corrupt(_) | KvError::Limit(_) | KvError::Usage(_) => {
                Self::Fail(FsError::Corrupt)
            }
            KvError::Conflict
            | KvError::VersionTooOld
            | KvError::OutcomeUnknown
            | KvError::Outlived
            | KvError::Unavailable(_) => Self::Unavailable,
        }
    }
}

impl From<&StoreError> for Trouble {
    fn from(error: &StoreError) -> Self {
        match error {
            // The session was closed, or the commit removed.
            StoreError::NotFound { .. } | StoreError::Expired { .. } => Self::Fail(FsError::Stale),
            StoreError::Exists { .. } | StoreError::Changed { .. } | StoreError::Settled => {
                Self::Fail(FsError::Exists)
            }
            StoreError::Refused { .. } | StoreError::Full { .. } => {
                Self::Fail(FsError::NotPermitted)
            }
            StoreError::Ambiguous { .. } | StoreError::Invalid { .. } => {
                Self::Fail(FsError::Invalid)
            }
            StoreError::Version { .. } | StoreError::Corrupt { .. } => Self::Fail(FsError::Corrupt),
            StoreError::Unavailable(error) => error.into(),
        }
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        (&error).into()
    }
}

impl From<&TreeError> for Trouble {
    fn from(error: &TreeError) -> Self {
        match error {
            TreeError::NoSpace => Self::Fail(FsError::NoSpace),
            TreeError::Unavailable(_) => Self::Unavailable,
            TreeError::Missing(_)
            | TreeError::Damaged { .. }
            | TreeError::Misshapen { .. }
            | TreeError::Order
            | TreeError::TooLong
            | TreeError::TooDeep
            | TreeError::Broken => Self::Fail(FsError::Corrupt),
        }
    }
}

impl From<TreeError> for Trouble {
    fn from(error: TreeError) -> Self {
        (&error).into()
    }
}

impl From<&ImageError> for Trouble {
    fn from(error: &ImageError) -> Self {
        match error {
            ImageError::Kv(error) => error.into(),
            ImageError::Tree(error) => error.into(),
            ImageError::Record(_) | ImageError::Key(_) => Self::Fail(FsError::Corrupt),
        }
    }
}

impl From<ImageError> for Trouble {
    fn from(error: ImageError) -> Self {
        (&error).into()
    }
}

impl From<&SnapshotError> for Trouble {
    fn from(error: &SnapshotError) -> Self {
        match error {
            SnapshotError::Tree(error) => error.into(),
            SnapshotError::Key(_)
            | SnapshotError::Record { .. }
            | SnapshotError::Damaged { .. }
            | SnapshotError::PathTooLong(_) => Self::Fail(FsError::Corrupt),
        }
    }
}

impl From<SnapshotError> for Trouble {
    fn from(error: SnapshotError) -> Self {
        (&error).into()
    }
}

impl From<&FreezeError> for Trouble {
    fn from(error: &FreezeError) -> Self {
        match error {
            FreezeError::Own(OwnError::NotFound) => Self::Fail(FsError::Stale),
            FreezeError::Own(OwnError::Kv(error)) => error.into(),
            FreezeError::Own(OwnError::Elsewhere(..)) => Self::Unavailable,
            FreezeError::Own(OwnError::Record(_)) | FreezeError::Corrupt => {
                Self::Fail(FsError::Corrupt)
            }
            FreezeError::NoSpace => Self::Fail(FsError::NoSpace),
            FreezeError::Unavailable => Self::Unavailable,
        }
    }
}

impl From<FreezeError> for Trouble {
    fn from(error: FreezeError) -> Self {
        (&error).into()
    }
}

impl From<&HistoryError> for Trouble {
    fn from(error: &HistoryError) -> Self {
        match error {
            HistoryError::Freeze(error) => error.into(),
            HistoryError::Store(error) => error.into(),
            HistoryError::Tree(error) => error.into(),
            HistoryError::Snapshot(error) => error.into(),
            HistoryError::Merge(error) => of_merge(error),
            HistoryError::Image(error) => error.into(),
            HistoryError::Conflicts { .. }
            | HistoryError::SyncConflicts { .. }
            | HistoryError::Unresolved { .. } => Self::Fail(FsError::Exists),
            HistoryError::Restore(error) => of_restore(error),
            HistoryError::OverQuota => Self::Fail(FsError::QuotaExceeded),
            HistoryError::Refused { .. } => Self::Fail(FsError::ReadOnly),
            HistoryError::Unrelated { .. } => Self::Fail(FsError::NotPermitted),
            HistoryError::Busy { .. } | HistoryError::Overtaken | HistoryError::Unknown { .. } => {
                Self::Unavailable
            }
        }
    }
}

impl From<&ResolveError> for Trouble {
    fn from(error: &ResolveError) -> Self {
        match error {
            ResolveError::Own(OwnError::NotFound) => Self::Fail(FsError::Stale),
            ResolveError::Own(OwnError::Kv(error)) => error.into(),
            ResolveError::Own(OwnError::Elsewhere(..)) => Self::Unavailable,
            ResolveError::Own(OwnError::Record(_)) => Self::Fail(FsError::Corrupt),
            ResolveError::Store(error) => error.into(),
            ResolveError::Image(error) => error.into(),
            ResolveError::Snapshot(error) => error.into(),
            ResolveError::NotFound => Self::Fail(FsError::NotFound),
            ResolveError::Several(_) => Self::Fail(FsError::Invalid),
            ResolveError::Refused(_) => Self::Fail(FsError::Exists),
            ResolveError::Fs(error) => Self::Fail(*error),
            ResolveError::Unavailable | ResolveError::Unknown { .. } => Self::Unavailable,
        }
    }
}

fn of_restore(error: &RestoreError) -> Trouble {
    match error {
        RestoreError::Snapshot(error) => error.into(),
        RestoreError::NoPath { .. } | RestoreError::NoParent { .. } => {
            Trouble::Fail(FsError::NotFound)
        }
        RestoreError::TooLarge => Trouble::Fail(FsError::TooLarge),
        RestoreError::NoNumbers => Trouble::Fail(FsError::Invalid),
    }
}

fn of_merge(error: &MergeError) -> Trouble {
    match error {
        MergeError::Image(error) => error.into(),
        MergeError::TooLarge => Trouble::Fail(FsError::TooLarge),
        MergeError::NoNumbers | MergeError::NoName => Trouble::Fail(FsError::Invalid),
        // What the content's store said is in the text.
        MergeError::Content(_) | MergeError::Damaged(_) => Trouble::Fail(FsError::Corrupt),
    }
}
