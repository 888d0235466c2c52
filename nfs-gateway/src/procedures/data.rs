//! READ, WRITE, COMMIT (RFC 1813, sections 3.3.6, 3.3.7, 3.3.21).
//!
//! An UNSTABLE write is answered from memory. A stable one, and COMMIT, first try to settle the
//! data in memory, where the next flush makes it durable; what is too large for that has to be
//! stored as chunks, which [`Step::Stable`] asks for.

use base::InodeId;
use base::limits::READ_BYTES_MAX;
use bytes::Bytes;
use metadata::stat::{Before, FileKind, Wcc};
use metadata::{FsError, OpError, ops};

use super::{Scope, Stable, Step, View};
use crate::convert::wcc;
use crate::wire::args::{ReadArgs, WriteArgs};
use crate::wire::nfs3::Stability;
use crate::wire::reply::Reply;
use crate::wire::results::{self, CommitOk, WriteOk};

/// Data up to this size is copied out of the received record, which it would keep in memory.
const COPIED_BYTES_MAX: usize = 16 * 1024;

pub(super) fn read(
    scope: &mut Scope<'_>,
    inode: InodeId,
    args: &ReadArgs<'_>,
) -> Result<Step, OpError> {
    let max = u32::try_from(READ_BYTES_MAX).unwrap_or(u32::MAX);
    let count = args.count.min(max);
    ops::read(scope.image, scope.cx, inode, args.offset, count).map(Step::Read)
}

pub(super) fn write(
    scope: &mut Scope<'_>,
    inode: InodeId,
    args: &WriteArgs<'_>,
) -> Result<Step, OpError> {
    let data = if args.data.len() <= COPIED_BYTES_MAX {
        Bytes::copy_from_slice(&args.data)
    } else {
        args.data.clone()
    };
    let written = ops::write(scope.image, scope.cx, inode, args.offset, &data)?;
    let count = u32::try_from(args.data.len()).unwrap_or(u32::MAX);
    if args.stability == Stability::Unstable {
        return Ok(Step::Reply(write_reply(
            scope.xid,
            scope.view,
            &written.file,
            (count, Stability::Unstable),
        )));
    }
    let stable = Stable {
        inode,
        until: scope.image.last_write(),
        change: written.file,
        // DATA_SYNC gets more than it asked for: attributes go with the data.
        write: Some((count, Stability::FileSync)),
    };
    settle(scope, stable)
}

pub(super) fn commit(scope: &mut Scope<'_>, inode: InodeId) -> Result<Step, OpError> {
    let stat = ops::getattr(scope.image, inode)?;
    match stat.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(FsError::IsDirectory.into()),
        _ => return Err(FsError::Invalid.into()),
    }
    let until = scope.image.last_write();
    let stable = Stable {
        inode,
        until,
        change: Wcc {
            before: Before::from(&stat),
            after: stat,
        },
        write: None,
    };
    settle(scope, stable)
}

fn settle(scope: &mut Scope<'_>, stable: Stable) -> Result<Step, OpError> {
    let inode = stable.inode;
    if scope.image.has_unwritten_until(inode, stable.until) {
        scope.image.settle_small(inode);
        if scope.image.has_unwritten_until(inode, stable.until) {
            return Ok(Step::Stable(stable));
        }
    }
    Ok(Step::Reply(stable_reply(scope.xid, scope.view, &stable)))
}

/// The reply of a WRITE or COMMIT whose data is stored.
pub(crate) fn stable_reply(xid: u32, view: &View, stable: &Stable) -> Reply {
    let change = &stable.change;
    match stable.write {
        Some(written) => write_reply(xid, view, change, written),
        None => results::ok(
            xid,
            &CommitOk {
                wcc: wcc(change, view.fsid),
                verifier: view.verifier,
            },
        ),
    }
}

fn write_reply(xid: u32, view: &View, change: &Wcc, written: (u32, Stability)) -> Reply {
    let (count, committed) = written;
    results::ok(
        xid,
        &WriteOk {
            wcc: wcc(change, view.fsid),
            count,
            committed,
            verifier: view.verifier,
        },
    )
}
