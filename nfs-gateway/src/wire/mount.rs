//! The MOUNT protocol, version 3 (RFC 1813, section 5).

use super::nfs3::WireHandle;
use super::procedure::MountProcedure;
use super::reply::Reply;
use super::rpc;
use super::xdr::{XdrError, XdrReader};

/// Longest path (MNTPATHLEN), in bytes.
pub const MOUNT_PATH_BYTES_MAX: usize = 1024;

/// AUTH_SYS, the only flavour a mount is offered.
const FLAVOR_SYS: u32 = 1;

/// A decoded call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountCall<'a> {
    /// NULL.
    Null,
    /// MNT, with the path.
    Mnt(&'a [u8]),
    /// DUMP.
    Dump,
    /// UMNT, with the path.
    Umnt(&'a [u8]),
    /// UMNTALL.
    Umntall,
    /// EXPORT.
    Export,
}

impl<'a> MountCall<'a> {
    /// Reads the arguments of `procedure`, which have to be all there is.
    ///
    /// # Errors
    ///
    /// If they are not: to be answered with GARBAGE_ARGS.
    pub fn decode(procedure: MountProcedure, mut from: XdrReader<'a>) -> Result<Self, XdrError> {
        let call = match procedure {
            MountProcedure::Null => Self::Null,
            MountProcedure::Mnt => Self::Mnt(from.opaque(MOUNT_PATH_BYTES_MAX)?),
            MountProcedure::Dump => Self::Dump,
            MountProcedure::Umnt => Self::Umnt(from.opaque(MOUNT_PATH_BYTES_MAX)?),
            MountProcedure::Umntall => Self::Umntall,
            MountProcedure::Export => Self::Export,
        };
        from.finish()?;
        Ok(call)
    }
}

/// `mountstat3`: why a mount is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountError {
    /// MNT3ERR_PERM.
    NotPermitted,
    /// MNT3ERR_NOENT.
    NotFound,
    /// MNT3ERR_IO.
    Io,
    /// MNT3ERR_ACCES.
    AccessDenied,
    /// MNT3ERR_NOTDIR.
    NotDirectory,
    /// MNT3ERR_INVAL.
    Invalid,
    /// MNT3ERR_NAMETOOLONG.
    NameTooLong,
    /// MNT3ERR_SERVERFAULT.
    ServerFault,
}

impl MountError {
    const fn number(self) -> u32 {
        match self {
            Self::NotPermitted => 1,
            Self::NotFound => 2,
            Self::Io => 5,
            Self::AccessDenied => 13,
            Self::NotDirectory => 20,
            Self::Invalid => 22,
            Self::NameTooLong => 63,
            Self::ServerFault => 10_006,
        }
    }
}

/// The reply to MNT that grants the root handle.
#[must_use]
pub fn granted(xid: u32, root: WireHandle<'_>) -> Reply {
    let mut reply = rpc::success(xid);
    let body = reply.body();
    body.u32(0);
    body.opaque(root.0);
    body.u32(1);
    body.u32(FLAVOR_SYS);
    reply.finish()
}

/// The reply to MNT that grants nothing.
#[must_use]
pub fn denied(xid: u32, why: MountError) -> Reply {
    let mut reply = rpc::success(xid);
    reply.body().u32(why.number());
    reply.finish()
}

/// The reply to NULL, UMNT and UMNTALL.
#[must_use]
pub fn done(xid: u32) -> Reply {
    rpc::success(xid).finish()
}

/// The reply to DUMP and EXPORT: an empty list, whatever there is. A path is a capability.
#[must_use]
pub fn empty_list(xid: u32) -> Reply {
    let mut reply = rpc::success(xid);
    reply.body().bool(false);
    reply.finish()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::xdr::XdrWriter;

    #[test]
    fn paths_are_bounded_and_whole() {
        for (length, good) in [(0, true), (1024, true), (1025, false)] {
            let mut writer = XdrWriter::default();
            writer.opaque(&vec![b'p'; length]);
            let record = Bytes::from(writer.into_bytes());
            let call = MountCall::decode(MountProcedure::Mnt, XdrReader::new(&record));
            assert_eq!(call.is_ok(), good, "{length}");
            let call = MountCall::decode(MountProcedure::Dump, XdrReader::new(&record));
            assert_eq!(call, Err(XdrError::Trailing));
        }
    }

    #[test]
    fn replies_are_these_bytes() {
        let body = |reply: Reply| reply.body().to_vec();
        assert_eq!(
            body(granted(1, WireHandle(&[9; 4]))),
            [
                0, 0, 0, 0, // MNT3_OK
                0, 0, 0, 4, 9, 9, 9, 9, // handle
                0, 0, 0, 1, 0, 0, 0, 1, // one flavour: AUTH_SYS
            ]
        );
        assert_eq!(body(denied(1, MountError::AccessDenied)), [0, 0, 0, 13]);
        assert_eq!(body(done(1)), [0; 0]);
        assert_eq!(body(empty_list(1)), [0; 4]);
    }
}
