//! Filesystem operations: pure functions of image, caller, time and arguments.
//!
//! Each checks everything first and names what it misses; only then it changes the image, and from
//! there on nothing fails. So a miss costs a load and a second run, and nothing else.

mod attributes;
mod create;
mod data;
mod link;
mod lookup;
mod remove;
mod rename;
mod resolve;
mod set_attributes;

pub use attributes::{Access, access, getattr, readlink};
pub use create::{Created, Exclusive, How, Node, create, make};
pub use data::{Read, Written, read, write};
pub use link::{Linked, link};
pub use lookup::{Found, Listing, list, list_head, list_with, lookup};
pub use remove::{Removed, remove, rmdir};
pub use rename::{Renamed, rename};
pub use resolve::{
    Home, Located, Refusal, Resolve, Take, at_path, locate, making_room, resolve, side_in_place,
    touched,
};
pub use set_attributes::set_attributes;

use base::{Caller, InodeId, Name, Timestamp};

use crate::error::{FsError, OpResult};
use crate::image::Image;
use crate::stat::{Before, Stat, Wcc};

/// Who asks, and when.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The identity the operation runs as.
    pub caller: &'a Caller,
    /// The server's time of day.
    pub now: Timestamp,
}

/// The attributes of `inode`, which must be a directory.
fn directory(image: &mut Image, inode: InodeId) -> OpResult<Stat> {
    let stat = image.stat(inode)?;
    if stat.is_dir() {
        Ok(stat)
    } else {
        Err(FsError::NotDirectory.into())
    }
}

/// Marks a directory's content as changed and tells both sides of the change.
fn touch_directory(image: &mut Image, before: &Stat, now: Timestamp, subdirs: i32) -> Wcc {
    let after = image.update(before.inode, |stat| {
        stat.ctime = Image::next_time(now, stat.ctime);
        stat.mtime = stat.ctime;
        stat.nlink = stat.nlink.saturating_add_signed(subdirs);
    });
    Wcc {
        before: Before::from(before),
        after,
    }
}

/// Records one more name of a known inode.
fn add_link(image: &mut Image, inode: InodeId, dir: InodeId, name: &Name) {
    image.push_link(inode, (dir, name.clone()));
}
