//! Reading attributes: GETATTR, ACCESS, READLINK.

use base::InodeId;
use bytes::Bytes;

use super::Context;
use crate::error::{FsError, OpResult};
use crate::image::Image;
use crate::permission::{EXECUTE, READ, WRITE, granted};
use crate::stat::{FileKind, Stat};

/// What a caller may do with an object (RFC 1813, section 3.3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "six independent rights of the protocol"
)]
pub struct Access {
    /// Read data, or list a directory.
    pub read: bool,
    /// Look up a name in a directory.
    pub lookup: bool,
    /// Change data, or entries of a directory.
    pub modify: bool,
    /// Add data, or entries to a directory.
    pub extend: bool,
    /// Remove an entry of a directory.
    pub delete: bool,
    /// Execute a file.
    pub execute: bool,
}

/// The attributes of `inode`.
///
/// # Errors
///
/// `Stale` if there is no such inode.
pub fn getattr(image: &mut Image, inode: InodeId) -> OpResult<Stat> {
    image.stat(inode)
}

/// What the caller may do with `inode`.
///
/// # Errors
///
/// `Stale` if there is no such inode.
pub fn access(image: &mut Image, cx: Context<'_>, inode: InodeId) -> OpResult<(Access, Stat)> {
    let stat = image.stat(inode)?;
    let bits = granted(&stat, cx.caller);
    // Writing into a pipe or to a device changes nothing that is stored.
    let stored = matches!(
        stat.kind,
        FileKind::File | FileKind::Directory | FileKind::Symlink
    );
    let writable = bits & WRITE != 0 && !(stored && image.config().read_only);
    let access = if stat.is_dir() {
        let search = bits & EXECUTE != 0;
        Access {
            read: bits & READ != 0,
            lookup: search,
            modify: writable && search,
            extend: writable && search,
            delete: writable && search,
            execute: false,
        }
    } else {
        Access {
            read: bits & READ != 0,
            modify: writable,
            extend: writable,
            execute: bits & EXECUTE != 0,
            ..Access::default()
        }
    };
    Ok((access, stat))
}

/// The target of a symbolic link.
///
/// # Errors
///
/// `Invalid` for anything else; `Stale`.
pub fn readlink(image: &mut Image, inode: InodeId) -> OpResult<(Bytes, Stat)> {
    let stat = image.stat(inode)?;
    if stat.kind != FileKind::Symlink {
        return Err(FsError::Invalid.into());
    }
    Ok((image.symlink_target(inode)?, stat))
}
