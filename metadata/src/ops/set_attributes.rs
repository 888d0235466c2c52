//! Changing attributes: SETATTR, and what creation shares with it.

use base::{Caller, InodeId, Timestamp};

use super::Context;
use super::create::time_value;
use crate::error::{FsError, OpResult};
use crate::image::Image;
use crate::permission::{
    GROUP_EXECUTE, SET_GID, SET_UID, may_set_gid, require_owner, require_write_data,
    without_privileges,
};
use crate::stat::{Before, FileKind, SetAttrs, SetTime, Stat, Wcc};

/// Changes attributes of `inode`; with a guard only if its ctime is the given one. Without any
/// attribute to change nothing happens.
///
/// # Errors
///
/// `GuardMismatch`, `NotPermitted`, `AccessDenied`, `IsDirectory`, `Invalid`, `TooLarge`,
/// `QuotaExceeded`, `ReadOnly`, `Stale`.
pub fn set_attributes(
    image: &mut Image,
    cx: Context<'_>,
    inode: InodeId,
    attrs: SetAttrs,
    guard: Option<Timestamp>,
) -> OpResult<Wcc> {
    image.require_writable()?;
    let stat = image.stat(inode)?;
    if guard.is_some_and(|ctime| ctime != stat.ctime) {
        return Err(FsError::GuardMismatch.into());
    }
    let attrs = SetAttrs {
        // A symbolic link has no mode of its own.
        mode: attrs.mode.filter(|_| stat.kind != FileKind::Symlink),
        ..attrs
    };
    if attrs == SetAttrs::default() {
        return Ok(Wcc {
            before: Before::from(&stat),
            after: stat,
        });
    }
    check_owner(&stat, cx.caller, &attrs)?;
    check_times(&stat, cx.caller, &attrs)?;
    if let Some(size) = attrs.size {
        match stat.kind {
            FileKind::File => require_write_data(&stat, cx.caller)?,
            FileKind::Directory => return Err(FsError::IsDirectory.into()),
            _ => return Err(FsError::Invalid.into()),
        }
        check_size(image, Some(size))?;
        if size < stat.size {
            image.require_blocks(inode, size, stat.size)?;
        }
    }
    if let Some(size) = attrs.size {
        image.set_size(inode, size);
    }
    image.settle_verifier(inode);
    let mode = new_mode(&stat, cx.caller, &attrs);
    let after = image.update(inode, |stat| {
        stat.mode = mode;
        stat.uid = attrs.uid.unwrap_or(stat.uid);
        stat.gid = attrs.gid.unwrap_or(stat.gid);
        stat.ctime = Image::next_time(cx.now, stat.ctime);
        if attrs.size.is_some() {
            stat.mtime = stat.ctime;
        }
        stat.atime = time_value(attrs.atime, cx.now).unwrap_or(stat.atime);
        stat.mtime = time_value(attrs.mtime, cx.now).unwrap_or(stat.mtime);
    });
    Ok(Wcc {
        before: Before::from(&stat),
        after,
    })
}

/// Applies what a client asked for to an object it has just made. What it may not ask for is left
/// out: the object exists, and a half-made one helps nobody.
pub(super) fn apply_to_new(
    image: &mut Image,
    cx: Context<'_>,
    inode: InodeId,
    attrs: SetAttrs,
) -> Stat {
    if let Some(size) = attrs.size {
        image.set_size(inode, size);
    }
    let caller = cx.caller;
    image.update(inode, |stat| {
        if caller.is_root() {
            stat.uid = attrs.uid.unwrap_or(stat.uid);
        }
        if let Some(gid) = attrs.gid
            && (caller.is_root() || caller.is_in_group(gid))
        {
            stat.gid = gid;
        }
        stat.atime = time_value(attrs.atime, cx.now).unwrap_or(stat.atime);
        stat.mtime = time_value(attrs.mtime, cx.now).unwrap_or(stat.mtime);
    })
}

/// Fails if a file may not be that large.
pub(super) fn check_size(image: &Image, size: Option<u64>) -> OpResult<()> {
    if size.is_some_and(|size| size > image.file_bytes_max()) {
        return Err(FsError::TooLarge.into());
    }
    Ok(())
}

/// Who may change mode, owner and group.
fn check_owner(stat: &Stat, caller: &Caller, attrs: &SetAttrs) -> Result<(), FsError> {
    if attrs.mode.is_some() {
        require_owner(stat, caller)?;
    }
    if caller.is_root() {
        return Ok(());
    }
    if let Some(uid) = attrs.uid
        && (caller.uid != stat.uid || uid != stat.uid)
    {
        return Err(FsError::NotPermitted);
    }
    if let Some(gid) = attrs.gid
        && (caller.uid != stat.uid || !(caller.is_in_group(gid) || gid == stat.gid))
    {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

/// Who may set times: the owner to anything, whoever may write to the present.
fn check_times(stat: &Stat, caller: &Caller, attrs: &SetAttrs) -> Result<(), FsError> {
    let times = [attrs.atime, attrs.mtime];
    if times.iter().any(|time| matches!(time, SetTime::To(_))) {
        return require_owner(stat, caller);
    }
    if times.contains(&SetTime::Now) && require_owner(stat, caller).is_err() {
        return require_write_data(stat, caller);
    }
    Ok(())
}

/// The mode after all rules about privileged bits; those of Linux, which POSIX leaves open.
fn new_mode(stat: &Stat, caller: &Caller, attrs: &SetAttrs) -> u32 {
    let changes_owner = (attrs.uid.is_some() || attrs.gid.is_some()) && !stat.is_dir();
    let cuts_as_user = attrs.size.is_some() && !caller.is_root();
    let Some(asked) = attrs.mode else {
        return if changes_owner || cuts_as_user {
            without_privileges(stat, caller)
        } else {
            stat.mode
        };
    };
    let mut mode = asked & 0o7777;
    if changes_owner {
        mode &= !SET_UID;
    }
    let executes = mode & GROUP_EXECUTE != 0;
    let gid = attrs.gid.unwrap_or(stat.gid);
    if (changes_owner && executes) || !may_set_gid(caller, gid) {
        mode &= !SET_GID;
    }
    mode
}
