//! REMOVE, RMDIR, RENAME (RFC 1813, sections 3.3.12 to 3.3.14).

use base::InodeId;
use metadata::{OpResult, ops};

use super::{Objects, Scope};
use crate::convert::wcc;
use crate::wire::args::RenameArgs;
use crate::wire::reply::Reply;
use crate::wire::results::{self, RenameOk, WccOk};

pub(super) fn remove(scope: &mut Scope<'_>, dir: InodeId, name: &[u8]) -> OpResult<Reply> {
    let removed = ops::remove(scope.image, scope.cx, dir, name)?;
    Ok(results::ok(
        scope.xid,
        &WccOk {
            wcc: wcc(&removed.dir, scope.view.fsid),
        },
    ))
}

pub(super) fn rmdir(scope: &mut Scope<'_>, dir: InodeId, name: &[u8]) -> OpResult<Reply> {
    let removed = ops::rmdir(scope.image, scope.cx, dir, name)?;
    Ok(results::ok(
        scope.xid,
        &WccOk {
            wcc: wcc(&removed.dir, scope.view.fsid),
        },
    ))
}

pub(super) fn rename(
    scope: &mut Scope<'_>,
    objects: Objects,
    args: &RenameArgs<'_>,
) -> OpResult<Reply> {
    let (from, to) = (objects.first, objects.second);
    let renamed = ops::rename(
        scope.image,
        scope.cx,
        from,
        args.from.name,
        to,
        args.to.name,
    )?;
    let fsid = scope.view.fsid;
    Ok(results::ok(
        scope.xid,
        &RenameOk {
            from_dir: wcc(&renamed.from, fsid),
            to_dir: wcc(&renamed.to, fsid),
        },
    ))
}
