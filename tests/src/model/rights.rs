//! Who may do what: classes of mode bits, the sticky bit, set-id bits.

use base::{Caller, InodeId};
use metadata::FsError;
use metadata::ops::Access;
use metadata::stat::{FileKind, Stat};

use super::{Faults, Model, Node, Verdict, ensure, fails};

pub(super) const S_ISUID: u32 = 0o4000;
pub(super) const S_ISGID: u32 = 0o2000;
const S_ISVTX: u32 = 0o1000;
pub(super) const S_IXGRP: u32 = 0o0010;

/// Rights that a class has: read, write, execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) execute: bool,
}

pub(super) fn in_group(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid || caller.groups.contains(&gid)
}

/// POSIX file access permissions: exactly one class counts. The superuser reads and writes all,
/// and executes what anybody may execute, and searches every directory.
pub(super) fn rights(node: &Node, caller: &Caller) -> Rights {
    if caller.uid == 0 {
        return Rights {
            read: true,
            write: true,
            execute: node.is_dir() || node.mode & 0o111 != 0,
        };
    }
    let (read, write, execute) = if caller.uid == node.uid {
        (0o400, 0o200, 0o100)
    } else if in_group(caller, node.gid) {
        (0o040, 0o020, 0o010)
    } else {
        (0o004, 0o002, 0o001)
    };
    Rights {
        read: node.mode & read != 0,
        write: node.mode & write != 0,
        execute: node.mode & execute != 0,
    }
}

/// Whether `caller` may change a file's data: the owner always, for there is no open in NFS.
pub(super) fn may_write_data(node: &Node, caller: &Caller) -> bool {
    caller.uid == node.uid || rights(node, caller).write
}

/// Whether `caller` may read a file's data: the owner always, and who may execute it.
pub(super) fn may_read_data(node: &Node, caller: &Caller) -> bool {
    let rights = rights(node, caller);
    caller.uid == node.uid || rights.read || rights.execute
}

/// Whether a sticky directory keeps `caller` from removing `child`.
fn is_sticky_for(dir: &Node, child: &Node, caller: &Caller) -> bool {
    dir.mode & S_ISVTX != 0 && caller.uid != 0 && caller.uid != dir.uid && caller.uid != child.uid
}

/// Whether a change by `caller` takes the set-group-id bit of a file: where the group may execute
/// it, or the caller is not of the group.
pub(super) fn loses_set_gid(node: &Node, caller: &Caller) -> bool {
    node.mode & S_ISGID != 0
        && (node.mode & S_IXGRP != 0 || (caller.uid != 0 && !in_group(caller, node.gid)))
}

/// The mode of a file after `caller` has changed its data.
pub(super) fn mode_after_change(node: &Node, caller: &Caller) -> u32 {
    if caller.uid == 0 {
        return node.mode;
    }
    let mode = node.mode & !S_ISUID;
    if loses_set_gid(node, caller) {
        mode & !S_ISGID
    } else {
        mode
    }
}

/// Mode and group of a new object (the System V rule for set-group-id directories).
pub(super) fn heritage(dir: &Node, kind: FileKind, mode: u32, caller: &Caller) -> (u32, u32) {
    let mode = mode & 0o7777;
    if dir.mode & S_ISGID == 0 {
        return (mode, caller.gid);
    }
    if kind == FileKind::Directory {
        return (mode | S_ISGID, dir.gid);
    }
    let stranger = caller.uid != 0 && !in_group(caller, dir.gid);
    if stranger && mode & S_IXGRP != 0 {
        (mode & !S_ISGID, dir.gid)
    } else {
        (mode, dir.gid)
    }
}

/// Adds why `caller` may not take `child` out of `dir`.
pub(super) fn removal_faults(faults: &mut Faults, dir: &Node, child: &Node, caller: &Caller) {
    let rights = rights(dir, caller);
    faults.must(!rights.write || !rights.execute, FsError::AccessDenied);
    faults.must(is_sticky_for(dir, child, caller), FsError::NotPermitted);
}

impl Model {
    pub(super) fn access(
        &self,
        caller: &Caller,
        inode: InodeId,
        got: &Result<(Access, Stat), FsError>,
    ) -> Verdict {
        let Some(node) = self.node(inode) else {
            return fails(FsError::Stale, got);
        };
        let (access, stat) = got.as_ref().map_err(|error| format!("failed: {error}"))?;
        let rights = rights(node, caller);
        // A read-only filesystem does not keep anybody from writing into a pipe or a device.
        let stored = matches!(
            node.kind(),
            FileKind::File | FileKind::Directory | FileKind::Symlink
        );
        let write = rights.write && !(self.limits.read_only && stored);
        let expected = if node.is_dir() {
            let change = write && rights.execute;
            Access {
                read: rights.read,
                lookup: rights.execute,
                modify: change,
                extend: change,
                delete: change,
                execute: false,
            }
        } else {
            Access {
                read: rights.read,
                lookup: false,
                modify: write,
                extend: write,
                delete: false,
                execute: rights.execute,
            }
        };
        ensure(*access == expected, || {
            format!("access\n  got      {access:?}\n  expected {expected:?}")
        })?;
        self.check_stat(inode, stat)
    }
}
