//! Taking names out: REMOVE and RMDIR.

use base::{InodeId, Name};

use super::{Context, directory, touch_directory};
use crate::error::{FsError, OpResult};
use crate::image::Image;
use crate::permission::{EXECUTE, require, require_remove};
use crate::stat::{Stat, Wcc};

/// What a removal did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The directory around the step.
    pub dir: Wcc,
}

/// Removes a name that is not a directory's, and the object with its last name.
///
/// # Errors
///
/// `NotFound`, `NotDirectory`, `IsDirectory`, `AccessDenied`, `NotPermitted`, `ReadOnly`,
/// `NameTooLong`, `Invalid`, `Stale`.
pub fn remove(image: &mut Image, cx: Context<'_>, dir: InodeId, name: &[u8]) -> OpResult<Removed> {
    let (stat, child, name) = check(image, cx, dir, name, [FsError::IsDirectory; 2])?;
    if child.is_dir() {
        return Err(FsError::IsDirectory.into());
    }
    image.require_links(child.inode)?;
    image.remove_entry(dir, name.as_bytes());
    unlink(image, cx, &child, dir, &name);
    Ok(Removed {
        dir: touch_directory(image, &stat, cx.now, 0),
    })
}

/// Removes an empty directory.
///
/// # Errors
///
/// As [`remove`], and `NotEmpty`; `NotDirectory` also if the name is something else.
pub fn rmdir(image: &mut Image, cx: Context<'_>, dir: InodeId, name: &[u8]) -> OpResult<Removed> {
    let (stat, child, name) = check(image, cx, dir, name, [FsError::Invalid, FsError::NotEmpty])?;
    if !child.is_dir() {
        return Err(FsError::NotDirectory.into());
    }
    if image.entry_count(child.inode)? != 0 {
        return Err(FsError::NotEmpty.into());
    }
    image.remove_entry(dir, name.as_bytes());
    image.remove_cell(child.inode);
    Ok(Removed {
        dir: touch_directory(image, &stat, cx.now, -1),
    })
}

/// What both check: the directory, the name and the caller's right to remove it. `.` and `..` have
/// errors of their own.
fn check(
    image: &mut Image,
    cx: Context<'_>,
    dir: InodeId,
    name: &[u8],
    [dot, dot_dot]: [FsError; 2],
) -> OpResult<(Stat, Stat, Name)> {
    image.require_writable()?;
    let stat = directory(image, dir)?;
    require(&stat, cx.caller, EXECUTE)?;
    match name {
        b"." => return Err(dot.into()),
        b".." => return Err(dot_dot.into()),
        _ => {}
    }
    let name = Name::new(name)?;
    let entry = image
        .entry(dir, name.as_bytes())?
        .ok_or(FsError::NotFound)?;
    let child = image.stat(entry.inode)?;
    require_remove(&stat, &child, cx.caller)?;
    Ok((stat, child, name))
}

/// Takes one name of a known inode that is not a directory; its links must be loaded.
pub(super) fn unlink(image: &mut Image, cx: Context<'_>, child: &Stat, dir: InodeId, name: &Name) {
    if child.nlink <= 1 {
        image.remove_cell(child.inode);
        return;
    }
    image.drop_link(child.inode, dir, name);
    image.update(child.inode, |stat| {
        stat.nlink -= 1;
        stat.ctime = Image::next_time(cx.now, stat.ctime);
    });
}
