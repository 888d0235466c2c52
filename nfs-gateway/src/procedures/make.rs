//! CREATE, MKDIR, SYMLINK, MKNOD, LINK (RFC 1813, sections 3.3.8 to 3.3.11 and 3.3.15).

use base::InodeId;
use bytes::Bytes;
use metadata::ops::{self, Created, How, Node};
use metadata::stat::{Device, SetAttrs};
use metadata::{FsError, OpResult};

use super::{Objects, Scope};
use crate::convert::{set_attrs, wcc};
use crate::wire::args::{CreateArgs, CreateHow, MkdirArgs, MknodArgs, SymlinkArgs};
use crate::wire::nfs3::FileKind;
use crate::wire::reply::Reply;
use crate::wire::results::{self, CreateOk, LinkOk};

pub(super) fn create(
    scope: &mut Scope<'_>,
    dir: InodeId,
    args: &CreateArgs<'_>,
) -> OpResult<Reply> {
    let how = match &args.how {
        CreateHow::Unchecked(attributes) => How::Unchecked(set_attrs(attributes)),
        CreateHow::Guarded(attributes) => How::Guarded(set_attrs(attributes)),
        CreateHow::Exclusive(verifier) => How::Exclusive(*verifier),
    };
    let created = ops::create(scope.image, scope.cx, dir, args.place.name, how)?;
    Ok(reply(scope, &created))
}

pub(super) fn mkdir(scope: &mut Scope<'_>, dir: InodeId, args: &MkdirArgs<'_>) -> OpResult<Reply> {
    make(
        scope,
        dir,
        args.place.name,
        &Node::Directory,
        set_attrs(&args.attributes),
    )
}

pub(super) fn symlink(
    scope: &mut Scope<'_>,
    dir: InodeId,
    args: &SymlinkArgs<'_>,
) -> OpResult<Reply> {
    let node = Node::Symlink(Bytes::copy_from_slice(args.target));
    make(
        scope,
        dir,
        args.place.name,
        &node,
        set_attrs(&args.attributes),
    )
}

pub(super) fn mknod(scope: &mut Scope<'_>, dir: InodeId, args: &MknodArgs<'_>) -> OpResult<Reply> {
    let device = Device {
        major: args.device.major,
        minor: args.device.minor,
    };
    let node = match args.kind {
        FileKind::BlockDevice => Node::BlockDevice(device),
        FileKind::CharacterDevice => Node::CharDevice(device),
        FileKind::Fifo => Node::Fifo,
        FileKind::Socket => Node::Socket,
        FileKind::Regular | FileKind::Directory | FileKind::Symlink => {
            return Err(FsError::BadType.into());
        }
    };
    make(
        scope,
        dir,
        args.place.name,
        &node,
        set_attrs(&args.attributes),
    )
}

pub(super) fn link(scope: &mut Scope<'_>, objects: Objects, name: &[u8]) -> OpResult<Reply> {
    let linked = ops::link(scope.image, scope.cx, objects.first, objects.second, name)?;
    Ok(results::ok(
        scope.xid,
        &LinkOk {
            attributes: Some(scope.view.fattr(&linked.object)),
            dir: wcc(&linked.dir, scope.view.fsid),
        },
    ))
}

fn make(
    scope: &mut Scope<'_>,
    dir: InodeId,
    name: &[u8],
    node: &Node,
    attrs: SetAttrs,
) -> OpResult<Reply> {
    let created = ops::make(scope.image, scope.cx, dir, name, node, attrs)?;
    Ok(reply(scope, &created))
}

fn reply(scope: &Scope<'_>, created: &Created) -> Reply {
    let handle = scope.view.handle(created.object.inode);
    results::ok(
        scope.xid,
        &CreateOk {
            object: Some(handle.wire()),
            attributes: Some(scope.view.fattr(&created.object)),
            dir: wcc(&created.dir, scope.view.fsid),
        },
    )
}
