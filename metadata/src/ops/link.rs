//! LINK: one more name for an object.

use base::limits::LINKS_MAX;
use base::{InodeId, Name};

use super::{Context, add_link, directory, touch_directory};
use crate::error::{FsError, OpResult};
use crate::image::Image;
use crate::permission::{EXECUTE, WRITE, require};
use crate::record::entry::Entry;
use crate::stat::{Stat, Wcc};

/// What LINK did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linked {
    /// The object, with its new link count.
    pub object: Stat,
    /// The directory around the step.
    pub dir: Wcc,
}

/// Enters `inode` as `name` into `dir`.
///
/// # Errors
///
/// `Exists`, `NotPermitted` for directories, `TooManyLinks`, `NotDirectory`, `AccessDenied`,
/// `ReadOnly`, `NameTooLong`, `Invalid`, `Stale`.
pub fn link(
    image: &mut Image,
    cx: Context<'_>,
    inode: InodeId,
    dir: InodeId,
    name: &[u8],
) -> OpResult<Linked> {
    image.require_writable()?;
    let stat = directory(image, dir)?;
    let object = image.stat(inode)?;
    require(&stat, cx.caller, EXECUTE)?;
    let name = Name::new(name)?;
    if image.entry(dir, name.as_bytes())?.is_some() {
        return Err(FsError::Exists.into());
    }
    require(&stat, cx.caller, WRITE)?;
    if object.is_dir() {
        return Err(FsError::NotPermitted.into());
    }
    if object.nlink >= LINKS_MAX {
        return Err(FsError::TooManyLinks.into());
    }
    image.require_links(inode)?;
    image.put_entry(
        dir,
        &name,
        Entry {
            inode,
            kind: object.kind,
        },
    );
    add_link(image, inode, dir, &name);
    let object = image.update(inode, |stat| {
        stat.nlink += 1;
        stat.ctime = Image::next_time(cx.now, stat.ctime);
    });
    Ok(Linked {
        object,
        dir: touch_directory(image, &stat, cx.now, 0),
    })
}
