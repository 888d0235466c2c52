//! The procedures of NFSv3: from decoded arguments to an operation, and from its outcome to a
//! reply. Nothing here does I/O or awaits.
//!
//! | file | procedures |
//! | --- | --- |
//! | `attributes.rs` | GETATTR, SETATTR, ACCESS, READLINK |
//! | `directory.rs` | LOOKUP, READDIR, READDIRPLUS |
//! | `make.rs` | CREATE, MKDIR, SYMLINK, MKNOD, LINK |
//! | `remove.rs` | REMOVE, RMDIR, RENAME |
//! | `data.rs` | READ, WRITE, COMMIT |
//! | `filesystem.rs` | FSSTAT, FSINFO, PATHCONF |

mod attributes;
mod data;
mod directory;
mod filesystem;
mod make;
mod remove;

pub(crate) use data::stable_reply;
pub(crate) use filesystem::{Space, fsinfo_of, fsstat_of, pathconf_of};

use std::sync::Arc;

use base::limits::READ_BYTES_MAX;
use base::{InodeId, SessionId};
use metadata::image::Image;
use metadata::ops::{Context, Read};
use metadata::stat::{Stat, Wcc};
use metadata::{FsError, Miss, OpError};

use crate::convert::{fattr, unchanged};
use crate::handle::{FileHandle, HandleKeys, Selector, SignedHandle};
use crate::session::inside::{self, Inside};
use crate::status::status;
use crate::wire::args::{CreateArgs, MkdirArgs, MknodArgs, NfsCall, SymlinkArgs};
use crate::wire::nfs3::{Fattr, Stability, Verifier, WireHandle};
use crate::wire::reply::Reply;
use crate::wire::results;

/// Set in handles of a mount that must not change anything.
pub(crate) const FLAG_READ_ONLY: u16 = 1;

/// What all replies of one mount share.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) keys: Arc<HandleKeys>,
    pub(crate) session: SessionId,
    pub(crate) revocation: u32,
    pub(crate) flags: u16,
    pub(crate) fsid: u64,
    pub(crate) verifier: Verifier,
    /// The tree that the objects are in.
    pub(crate) selector: Selector,
}

/// One call, about to run on its session's image.
pub(crate) struct Scope<'a> {
    pub(crate) xid: u32,
    pub(crate) image: &'a mut Image,
    pub(crate) cx: Context<'a>,
    pub(crate) view: &'a View,
    pub(crate) space: Space,
    /// What is in `.holdfast`; `None` for a tree that has none.
    pub(crate) inside: Option<&'a Inside>,
}

/// The objects a call is about, from verified handles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Objects {
    pub(crate) first: InodeId,
    /// Target directory of RENAME, directory of LINK; otherwise the first again.
    pub(crate) second: InodeId,
}

/// A WRITE or COMMIT whose data has to reach a store before the reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stable {
    pub(crate) inode: InodeId,
    /// All writes up to this number count.
    pub(crate) until: u64,
    /// The file around the call's own step, whatever happened to it since.
    pub(crate) change: Wcc,
    /// Bytes written and how stable; `None` for COMMIT.
    pub(crate) write: Option<(u32, Stability)>,
}

/// Where a call got to.
#[derive(Debug)]
pub(crate) enum Step {
    /// It has its reply.
    Reply(Reply),
    /// It needs these parts of the image; it changed nothing.
    Load(Vec<Miss>),
    /// Its data has to be fetched.
    Read(Read),
    /// Its data has to be stored.
    Stable(Stable),
}

impl From<Miss> for Step {
    fn from(miss: Miss) -> Self {
        Self::Load(vec![miss])
    }
}

impl View {
    /// The signed handle of an object in this mount.
    pub(crate) fn handle(&self, inode: InodeId) -> SignedHandle {
        self.keys.sign(&FileHandle {
            flags: self.flags,
            session: self.session,
            revocation: self.revocation,
            snapshot: *self.selector.as_bytes(),
            inode,
        })
    }

    pub(crate) fn fattr(&self, stat: &Stat) -> Fattr {
        Fattr {
            fileid: self.file_id(stat.inode),
            ..fattr(stat, self.fsid)
        }
    }

    pub(crate) fn file_id(&self, inode: InodeId) -> u64 {
        self.selector.file_id(inode)
    }

    /// The same mount's view of another tree.
    pub(crate) fn of(&self, selector: Selector) -> Self {
        Self {
            selector,
            ..self.clone()
        }
    }

    /// The mount, or the tree, must not be changed.
    pub(crate) fn is_read_only(&self) -> bool {
        self.flags & FLAG_READ_ONLY != 0 || !self.selector.is_live()
    }
}

/// The handles in a call: the one it is about, and the other one of RENAME and LINK.
pub(crate) fn handles<'a>(call: &NfsCall<'a>) -> Option<(WireHandle<'a>, WireHandle<'a>)> {
    let first = call.handle()?;
    let second = match call {
        NfsCall::Rename(args) => args.to.dir,
        NfsCall::Link(args) => args.place.dir,
        _ => first,
    };
    Some((first, second))
}

/// Whether a call changes anything but file data in memory.
fn changes(call: &NfsCall<'_>) -> bool {
    matches!(
        call,
        NfsCall::Setattr(_)
            | NfsCall::Write(_)
            | NfsCall::Create(_)
            | NfsCall::Mkdir(_)
            | NfsCall::Symlink(_)
            | NfsCall::Mknod(_)
            | NfsCall::Remove(_)
            | NfsCall::Rmdir(_)
            | NfsCall::Rename(_)
            | NfsCall::Link(_)
    )
}

/// Whether a call needs space that removing things would give back.
fn allocates(call: &NfsCall<'_>) -> bool {
    matches!(
        call,
        NfsCall::Write(_)
            | NfsCall::Create(_)
            | NfsCall::Mkdir(_)
            | NfsCall::Symlink(_)
            | NfsCall::Mknod(_)
            | NfsCall::Link(_)
    )
}

/// Why a call must not touch the name of `.holdfast`, if it would.
fn reserved(call: &NfsCall<'_>, objects: Objects) -> Option<FsError> {
    let is_it = |dir, name: &[u8]| dir == InodeId::ROOT && name == inside::NAME;
    let (first, second) = (objects.first, objects.second);
    match call {
        NfsCall::Create(CreateArgs { place, .. })
        | NfsCall::Mkdir(MkdirArgs { place, .. })
        | NfsCall::Symlink(SymlinkArgs { place, .. })
        | NfsCall::Mknod(MknodArgs { place, .. })
            if is_it(first, place.name) =>
        {
            Some(FsError::Exists)
        }
        NfsCall::Link(args) if is_it(second, args.place.name) => Some(FsError::Exists),
        NfsCall::Remove(args) | NfsCall::Rmdir(args) if is_it(first, args.name) => {
            Some(FsError::ReadOnly)
        }
        NfsCall::Rename(args) if is_it(first, args.from.name) || is_it(second, args.to.name) => {
            Some(FsError::ReadOnly)
        }
        _ => None,
    }
}

/// About how many bytes the reply to a call may have, if that may be many.
pub(crate) fn reply_bytes(call: &NfsCall<'_>) -> usize {
    let wanted = match call {
        NfsCall::Read(args) => args.count,
        NfsCall::Readdir(args) => args.count,
        NfsCall::Readdirplus(args) => args.max_count,
        _ => 0,
    };
    usize::try_from(wanted).map_or(READ_BYTES_MAX, |bytes| bytes.min(READ_BYTES_MAX))
}

/// Runs a call on the image. Called inside [`Image::run`].
pub(crate) fn execute(mut scope: Scope<'_>, call: &NfsCall<'_>, objects: Objects) -> Step {
    let refused = if scope.view.is_read_only() && changes(call) {
        Some(FsError::ReadOnly)
    } else if (scope.space.refuses && changes(call))
        || (allocates(call) && !scope.space.has_room(call))
    {
        Some(FsError::NoSpace)
    } else if scope.inside.is_some() {
        reserved(call, objects)
    } else {
        None
    };
    let result = match refused {
        Some(error) => Err(error.into()),
        None => run(&mut scope, call, objects),
    };
    match result {
        Ok(step) => step,
        Err(OpError::Miss(miss)) => miss.into(),
        Err(OpError::Fs(error)) => Step::Reply(scope.failed(call, objects, error)),
    }
}

fn run(scope: &mut Scope<'_>, call: &NfsCall<'_>, objects: Objects) -> Result<Step, OpError> {
    let first = objects.first;
    let reply = match call {
        NfsCall::Null => results::null(scope.xid),
        NfsCall::Getattr(_) => attributes::getattr(scope, first)?,
        NfsCall::Setattr(args) => attributes::setattr(scope, first, args)?,
        NfsCall::Lookup(args) => directory::lookup(scope, first, args.name)?,
        NfsCall::Access(args) => attributes::access(scope, first, args.access)?,
        NfsCall::Readlink(_) => attributes::readlink(scope, first)?,
        NfsCall::Read(args) => return data::read(scope, first, args),
        NfsCall::Write(args) => return data::write(scope, first, args),
        NfsCall::Create(args) => make::create(scope, first, args)?,
        NfsCall::Mkdir(args) => make::mkdir(scope, first, args)?,
        NfsCall::Symlink(args) => make::symlink(scope, first, args)?,
        NfsCall::Mknod(args) => make::mknod(scope, first, args)?,
        NfsCall::Remove(args) => remove::remove(scope, first, args.name)?,
        NfsCall::Rmdir(args) => remove::rmdir(scope, first, args.name)?,
        NfsCall::Rename(args) => remove::rename(scope, objects, args)?,
        NfsCall::Link(args) => make::link(scope, objects, args.place.name)?,
        NfsCall::Readdir(args) => directory::readdir(scope, first, args)?,
        NfsCall::Readdirplus(args) => return directory::readdirplus(scope, first, args),
        NfsCall::Fsstat(_) => filesystem::fsstat(scope, first)?,
        NfsCall::Fsinfo(_) => filesystem::fsinfo(scope, first)?,
        NfsCall::Pathconf(_) => filesystem::pathconf(scope, first)?,
        NfsCall::Commit(_) => return data::commit(scope, first),
    };
    Ok(Step::Reply(reply))
}

impl Scope<'_> {
    fn failed(&self, call: &NfsCall<'_>, objects: Objects, error: FsError) -> Reply {
        let peek = |inode| {
            let shown = |stat: Stat| Stat {
                inode: InodeId::new(self.view.file_id(stat.inode)),
                ..stat
            };
            self.image.peek(inode).map(shown)
        };
        let stats = (peek(objects.first), peek(objects.second));
        failed(self.xid, call, error, stats, self.view.fsid)
    }
}

/// The reply of a failed call, with the attributes that its procedure has room for.
pub(crate) fn failed(
    xid: u32,
    call: &NfsCall<'_>,
    error: FsError,
    stats: (Option<Stat>, Option<Stat>),
    fsid: u64,
) -> Reply {
    let status = status(error);
    let first = stats.0.map(|stat| fattr(&stat, fsid));
    let first_wcc = unchanged(stats.0, fsid);
    let second_wcc = unchanged(stats.1, fsid);
    match call {
        NfsCall::Null | NfsCall::Getattr(_) => results::failed(xid, status, &()),
        NfsCall::Lookup(_)
        | NfsCall::Access(_)
        | NfsCall::Readlink(_)
        | NfsCall::Read(_)
        | NfsCall::Readdir(_)
        | NfsCall::Readdirplus(_)
        | NfsCall::Fsstat(_)
        | NfsCall::Fsinfo(_)
        | NfsCall::Pathconf(_) => results::failed(xid, status, &first),
        NfsCall::Setattr(_)
        | NfsCall::Write(_)
        | NfsCall::Commit(_)
        | NfsCall::Create(_)
        | NfsCall::Mkdir(_)
        | NfsCall::Symlink(_)
        | NfsCall::Mknod(_)
        | NfsCall::Remove(_)
        | NfsCall::Rmdir(_) => results::failed(xid, status, &first_wcc),
        NfsCall::Rename(_) => results::failed(xid, status, &(first_wcc, second_wcc)),
        NfsCall::Link(_) => results::failed(xid, status, &(first, second_wcc)),
    }
}

#[cfg(test)]
mod tests;
