//! What a filesystem operation can fail with.
//!
//! A variant exists only if some caller acts on it. No variant knows a protocol: the gateway maps
//! them to `nfsstat3` in one place, the control API to HTTP in another.

use base::{InodeId, NameError};

/// A failed filesystem operation. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FsError {
    /// The directory holds no entry of that name.
    #[error("no such entry")]
    NotFound,
    /// The name is taken.
    #[error("entry exists")]
    Exists,
    /// The object is not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// The object is a directory.
    #[error("is a directory")]
    IsDirectory,
    /// The directory still has entries.
    #[error("directory is not empty")]
    NotEmpty,
    /// The mode bits deny it; another user might be allowed.
    #[error("access denied")]
    AccessDenied,
    /// Only the owner or the superuser may do this.
    #[error("operation not permitted")]
    NotPermitted,
    /// The session is read-only.
    #[error("session is read-only")]
    ReadOnly,
    /// The handle names an object that is gone.
    #[error("stale handle")]
    Stale,
    /// An argument makes no sense for this object.
    #[error("invalid argument")]
    Invalid,
    /// The object is of a type this operation does not take.
    #[error("unsupported object type")]
    BadType,
    /// The guard of a guarded SETATTR does not match.
    #[error("object has changed")]
    GuardMismatch,
    /// The file would be larger than the format allows.
    #[error("file too large")]
    TooLarge,
    /// The inode has as many names as it may have.
    #[error("too many links")]
    TooManyLinks,
    /// The session's or the tenant's quota would be exceeded.
    #[error("quota exceeded")]
    QuotaExceeded,
    /// The device is full.
    #[error("no space left")]
    NoSpace,
    /// The name is longer than 255 bytes.
    #[error("name too long")]
    NameTooLong,
    /// The two objects are not in the same session.
    #[error("objects of different sessions")]
    CrossSession,
    /// Stored data is damaged. Logged where it was found; `holdfast check` says more.
    #[error("stored data is damaged")]
    Corrupt,
}

impl From<NameError> for FsError {
    fn from(error: NameError) -> Self {
        match error {
            NameError::TooLong => Self::NameTooLong,
            NameError::NotAllowed => Self::Invalid,
            NameError::Dots => Self::Exists,
        }
    }
}

/// What an operation needs and the image does not hold yet.
///
/// The caller loads it, outside any lock, and runs the operation again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Miss {
    /// The attributes of an inode.
    Inode(InodeId),
    /// Directory entries whose name hash is `from` or a little more.
    Entries {
        /// The directory.
        dir: InodeId,
        /// First name hash wanted.
        from: u64,
    },
    /// Block map entries.
    Blocks {
        /// The file.
        inode: InodeId,
        /// First block wanted.
        first: u32,
        /// Last block wanted.
        last: u32,
    },
    /// The further hard links of an inode.
    Links(InodeId),
    /// Whether there is this conflict.
    Conflict(crate::conflicts::ConflictId),
    /// The session has no inode numbers left to give.
    InodeNumbers,
}

/// Why an operation gave no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpError {
    /// It failed; nothing was changed.
    Fs(FsError),
    /// It needs more of the image; nothing was changed.
    Miss(Miss),
}

impl From<FsError> for OpError {
    fn from(error: FsError) -> Self {
        Self::Fs(error)
    }
}

impl From<NameError> for OpError {
    fn from(error: NameError) -> Self {
        Self::Fs(error.into())
    }
}

impl From<Miss> for OpError {
    fn from(miss: Miss) -> Self {
        Self::Miss(miss)
    }
}

/// What an operation gives.
pub type OpResult<T> = Result<T, OpError>;
