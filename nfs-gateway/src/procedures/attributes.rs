//! GETATTR, SETATTR, ACCESS, READLINK (RFC 1813, sections 3.3.1, 3.3.2, 3.3.4, 3.3.5).

use base::InodeId;
use metadata::{OpResult, ops};

use super::Scope;
use crate::convert::{access_bits, set_attrs, wcc};
use crate::wire::args::SetattrArgs;
use crate::wire::reply::Reply;
use crate::wire::results::{self, AccessOk, GetattrOk, ReadlinkOk, WccOk};

pub(super) fn getattr(scope: &mut Scope<'_>, inode: InodeId) -> OpResult<Reply> {
    let stat = ops::getattr(scope.image, inode)?;
    Ok(results::ok(
        scope.xid,
        &GetattrOk {
            attributes: scope.view.fattr(&stat),
        },
    ))
}

pub(super) fn setattr(
    scope: &mut Scope<'_>,
    inode: InodeId,
    args: &SetattrArgs<'_>,
) -> OpResult<Reply> {
    let attrs = set_attrs(&args.attributes);
    let change = ops::set_attributes(scope.image, scope.cx, inode, attrs, args.guard)?;
    Ok(results::ok(
        scope.xid,
        &WccOk {
            wcc: wcc(&change, scope.view.fsid),
        },
    ))
}

pub(super) fn access(scope: &mut Scope<'_>, inode: InodeId, asked: u32) -> OpResult<Reply> {
    let (mut granted, stat) = ops::access(scope.image, scope.cx, inode)?;
    if scope.view.is_read_only() {
        granted.modify = false;
        granted.extend = false;
        granted.delete = false;
    }
    let attributes = Some(scope.view.fattr(&stat));
    let access = access_bits(granted, asked);
    Ok(results::ok(scope.xid, &AccessOk { attributes, access }))
}

pub(super) fn readlink(scope: &mut Scope<'_>, inode: InodeId) -> OpResult<Reply> {
    let (target, stat) = ops::readlink(scope.image, inode)?;
    let attributes = Some(scope.view.fattr(&stat));
    Ok(results::ok(
        scope.xid,
        &ReadlinkOk {
            attributes,
            target: &target,
        },
    ))
}
