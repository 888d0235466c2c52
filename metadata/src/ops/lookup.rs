//! Finding names: LOOKUP, READDIR, READDIRPLUS.

use base::{InodeId, Name};

use super::{Context, directory};
use crate::error::{FsError, OpResult};
use crate::image::{Image, Peek, hash_after};
use crate::permission::{EXECUTE, READ, require};
use crate::record::entry::Entry;
use crate::stat::Stat;

/// What LOOKUP found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The object.
    pub object: Stat,
    /// The directory it was looked up in.
    pub dir: Stat,
}

/// Finds `name` in `dir`; `.` and `..` work as in a path.
///
/// # Errors
///
/// `NotFound`, `NotDirectory`, `AccessDenied`, `NameTooLong`, `Invalid`, `Stale`.
pub fn lookup(image: &mut Image, cx: Context<'_>, dir: InodeId, name: &[u8]) -> OpResult<Found> {
    let stat = directory(image, dir)?;
    require(&stat, cx.caller, EXECUTE)?;
    let child = match name {
        b"." => dir,
        b".." => image.parent(dir)?,
        _ => {
            // A name that cannot be stored is not there; one that is too long has its own answer.
            Name::check(name)?;
            image.entry(dir, name)?.ok_or(FsError::NotFound)?.inode
        }
    };
    Ok(Found {
        object: image.stat(child)?,
        dir: stat,
    })
}

/// The head of a directory listing; entries went to `visit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The directory.
    pub dir: Stat,
    /// Its parent, for `..`.
    pub parent: InodeId,
    /// Whether the last entry was visited.
    pub end: bool,
}

/// A directory that the caller may list, and its parent; nothing is visited.
///
/// # Errors
///
/// As [`list`].
pub fn list_head(image: &mut Image, cx: Context<'_>, dir: InodeId) -> OpResult<Listing> {
    let stat = directory(image, dir)?;
    require(&stat, cx.caller, READ)?;
    Ok(Listing {
        dir: stat,
        parent: image.parent(dir)?,
        end: false,
    })
}

/// Calls `visit` with the entries of `dir` after `cookie` in cookie order, a group of equal cookies
/// at a time, until it returns `false`. Any cookie is taken as "the first entry after it".
///
/// # Errors
///
/// `NotDirectory`, `AccessDenied`, `Stale`.
pub fn list(
    image: &mut Image,
    cx: Context<'_>,
    dir: InodeId,
    cookie: u64,
    visit: impl FnMut(u64, &[(Name, Entry)]) -> bool,
) -> OpResult<Listing> {
    let stat = directory(image, dir)?;
    require(&stat, cx.caller, READ)?;
    let parent = image.parent(dir)?;
    let end = image.list(dir, hash_after(cookie), visit)?;
    Ok(Listing {
        dir: stat,
        parent,
        end,
    })
}

/// Like [`list`]; `visit` can look at the attributes of what the entries lead to.
///
/// # Errors
///
/// As [`list`].
pub fn list_with(
    image: &mut Image,
    cx: Context<'_>,
    dir: InodeId,
    cookie: u64,
    visit: impl FnMut(u64, &[(Name, Entry)], &Peek<'_>) -> bool,
) -> OpResult<Listing> {
    let stat = directory(image, dir)?;
    require(&stat, cx.caller, READ)?;
    let parent = image.parent(dir)?;
    let end = image.list_with(dir, hash_after(cookie), visit)?;
    Ok(Listing {
        dir: stat,
        parent,
        end,
    })
}
