//! Mode bits, owner, groups, sticky: pure functions of attributes and caller.

use base::Caller;

use crate::error::FsError;
use crate::stat::{FileKind, Stat};

/// Set-user-id bit.
pub const SET_UID: u32 = 0o4000;
/// Set-group-id bit.
pub const SET_GID: u32 = 0o2000;
/// Sticky bit: only owners remove entries.
pub const STICKY: u32 = 0o1000;
/// Execute permission of the group.
pub const GROUP_EXECUTE: u32 = 0o010;

/// Read permission, as one bit of an `rwx` triple.
pub const READ: u32 = 4;
/// Write permission.
pub const WRITE: u32 = 2;
/// Execute permission; search for directories.
pub const EXECUTE: u32 = 1;

/// The `rwx` bits that `caller` has on an object.
#[must_use]
pub fn granted(stat: &Stat, caller: &Caller) -> u32 {
    if caller.is_root() {
        let executable = stat.is_dir() || stat.mode & 0o111 != 0;
        return READ | WRITE | if executable { EXECUTE } else { 0 };
    }
    let shift = if caller.uid == stat.uid {
        6
    } else if caller.is_in_group(stat.gid) {
        3
    } else {
        0
    };
    (stat.mode >> shift) & 7
}

/// Fails unless `caller` has all of `want`.
///
/// # Errors
///
/// [`FsError::AccessDenied`].
pub fn require(stat: &Stat, caller: &Caller, want: u32) -> Result<(), FsError> {
    if granted(stat, caller) & want == want {
        Ok(())
    } else {
        Err(FsError::AccessDenied)
    }
}

/// Fails unless `caller` may read the file's data.
///
/// NFSv3 has no open: a client that opened the file and then changed its mode still reads it, so
/// the owner always may; and a client reads a file in order to execute it (RFC 1813, section 4.4).
///
/// # Errors
///
/// [`FsError::AccessDenied`].
pub fn require_read_data(stat: &Stat, caller: &Caller) -> Result<(), FsError> {
    if caller.uid == stat.uid || granted(stat, caller) & (READ | EXECUTE) != 0 {
        Ok(())
    } else {
        Err(FsError::AccessDenied)
    }
}

/// Fails unless `caller` may write the file's data; the owner always may, as with reading.
///
/// # Errors
///
/// [`FsError::AccessDenied`].
pub fn require_write_data(stat: &Stat, caller: &Caller) -> Result<(), FsError> {
    if caller.uid == stat.uid {
        Ok(())
    } else {
        require(stat, caller, WRITE)
    }
}

/// Fails unless `caller` may remove or replace `child` in `dir`: sticky directories let only the
/// owner of either do so.
///
/// # Errors
///
/// [`FsError::AccessDenied`] by the mode bits, [`FsError::NotPermitted`] by the sticky bit.
pub fn require_remove(dir: &Stat, child: &Stat, caller: &Caller) -> Result<(), FsError> {
    require(dir, caller, WRITE | EXECUTE)?;
    let sticky = dir.mode & STICKY != 0;
    if sticky && !caller.is_root() && caller.uid != dir.uid && caller.uid != child.uid {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

/// Fails unless `caller` owns the object or is the superuser.
///
/// # Errors
///
/// [`FsError::NotPermitted`].
pub fn require_owner(stat: &Stat, caller: &Caller) -> Result<(), FsError> {
    if caller.is_root() || caller.uid == stat.uid {
        Ok(())
    } else {
        Err(FsError::NotPermitted)
    }
}

/// The mode of a file after a write, truncation or change of owner by `caller`: set-user-id goes,
/// and set-group-id with it where it means execution. Without group execute it marks mandatory
/// locking and stays, unless the caller is not of the group and so could not have set it.
#[must_use]
pub fn without_privileges(stat: &Stat, caller: &Caller) -> u32 {
    let mode = stat.mode & !SET_UID;
    if mode & GROUP_EXECUTE != 0 || !may_set_gid(caller, stat.gid) {
        mode & !SET_GID
    } else {
        mode
    }
}

/// Whether `caller` may set the set-group-id bit on an object of group `gid`.
#[must_use]
pub fn may_set_gid(caller: &Caller, gid: u32) -> bool {
    caller.is_root() || caller.is_in_group(gid)
}

/// Mode and group of a new object in `dir`: a set-group-id directory hands down its group, and to
/// directories the bit itself.
#[must_use]
pub fn inherit(dir: &Stat, kind: FileKind, mode: u32, caller: &Caller) -> (u32, u32) {
    if dir.mode & SET_GID == 0 {
        return (mode, caller.gid);
    }
    let gid = dir.gid;
    if kind == FileKind::Directory {
        return (mode | SET_GID, gid);
    }
    let may_keep = may_set_gid(caller, gid) || mode & GROUP_EXECUTE == 0;
    (if may_keep { mode } else { mode & !SET_GID }, gid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{InodeId, Timestamp};

    fn stat(mode: u32, uid: u32, gid: u32) -> Stat {
        Stat {
            inode: InodeId::new(2),
            kind: FileKind::File,
            mode,
            nlink: 1,
            uid,
            gid,
            size: 0,
            used: 0,
            device: Default::default(),
            atime: Timestamp::EPOCH,
            mtime: Timestamp::EPOCH,
            ctime: Timestamp::EPOCH,
        }
    }

    fn user(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller {
            uid,
            gid,
            groups: groups.to_vec(),
        }
    }

    #[test]
    fn the_first_matching_class_decides() {
        let cases = [
            (0o640, user(1, 9, &[]), READ | WRITE),
            (0o640, user(2, 10, &[]), READ),
            (0o640, user(2, 9, &[7, 10]), READ),
            (0o640, user(2, 9, &[]), 0),
            (0o077, user(1, 10, &[]), 0),
            (0o600, Caller::root(), READ | WRITE),
            (0o001, Caller::root(), READ | WRITE | EXECUTE),
        ];
        for (mode, caller, expected) in cases {
            assert_eq!(
                granted(&stat(mode, 1, 10), &caller),
                expected,
                "{mode:o} {caller:?}"
            );
        }
    }

    #[test]
    fn sticky_directories_protect_entries_of_others() {
        let dir = stat(0o1777, 1, 1);
        let child = stat(0o666, 2, 2);
        assert_eq!(
            require_remove(&dir, &child, &user(3, 3, &[])),
            Err(FsError::NotPermitted)
        );
        assert_eq!(require_remove(&dir, &child, &user(2, 2, &[])), Ok(()));
        assert_eq!(require_remove(&dir, &child, &user(1, 1, &[])), Ok(()));
    }
}
