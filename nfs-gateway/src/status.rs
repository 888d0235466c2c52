//! How a failed operation is answered. The only place that turns an [`FsError`] into an `nfsstat3`.

#![deny(clippy::wildcard_enum_match_arm)] // A new error has to be thought about here.

use metadata::FsError;
use nfsserve::nfs::nfsstat3;

/// The status of RFC 1813, section 2.6, for a failed operation.
#[must_use]
pub(crate) fn status(error: FsError) -> nfsstat3 {
    match error {
        FsError::NotFound => nfsstat3::NFS3ERR_NOENT,
        FsError::Exists => nfsstat3::NFS3ERR_EXIST,
        FsError::NotDirectory => nfsstat3::NFS3ERR_NOTDIR,
        FsError::IsDirectory => nfsstat3::NFS3ERR_ISDIR,
        FsError::NotEmpty => nfsstat3::NFS3ERR_NOTEMPTY,
        FsError::AccessDenied => nfsstat3::NFS3ERR_ACCES,
        FsError::NotPermitted => nfsstat3::NFS3ERR_PERM,
        FsError::ReadOnly => nfsstat3::NFS3ERR_ROFS,
        FsError::Stale => nfsstat3::NFS3ERR_STALE,
        FsError::Invalid => nfsstat3::NFS3ERR_INVAL,
        FsError::BadType => nfsstat3::NFS3ERR_BADTYPE,
        FsError::GuardMismatch => nfsstat3::NFS3ERR_NOT_SYNC,
        FsError::TooLarge => nfsstat3::NFS3ERR_FBIG,
        FsError::TooManyLinks => nfsstat3::NFS3ERR_MLINK,
        FsError::QuotaExceeded => nfsstat3::NFS3ERR_DQUOT,
        FsError::NoSpace => nfsstat3::NFS3ERR_NOSPC,
        FsError::NameTooLong => nfsstat3::NFS3ERR_NAMETOOLONG,
        FsError::CrossSession => nfsstat3::NFS3ERR_XDEV,
        FsError::Corrupt => nfsstat3::NFS3ERR_IO,
    }
}
