//! RENAME: moves a name, and replaces what stood in its place.

use base::{InodeId, Name};

use super::remove::unlink;
use super::{Context, directory, touch_directory};
use crate::error::{FsError, OpResult};
use crate::image::Image;
use crate::permission::{EXECUTE, WRITE, require, require_remove};
use crate::record::entry::Entry;
use crate::stat::{Before, Stat, Wcc};

/// What RENAME did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The directory moved from.
    pub from: Wcc,
    /// The directory moved to; the same object as `from` for a rename within one directory.
    pub to: Wcc,
}

/// One side of a rename, as found.
struct Place {
    dir: Stat,
    name: Name,
}

/// Moves `from_name` of `from_dir` to `to_name` of `to_dir`, replacing what is there. If both names
/// are links of one object nothing happens (POSIX).
///
/// # Errors
///
/// `NotFound`, `NotDirectory`, `IsDirectory`, `NotEmpty`, `Invalid` for a directory into itself,
/// `Exists` for `.` and `..`, `AccessDenied`, `NotPermitted`, `ReadOnly`, `NameTooLong`, `Stale`.
pub fn rename(
    image: &mut Image,
    cx: Context<'_>,
    from_dir: InodeId,
    from_name: &[u8],
    to_dir: InodeId,
    to_name: &[u8],
) -> OpResult<Renamed> {
    image.require_writable()?;
    let from = Place {
        dir: directory(image, from_dir)?,
        name: Name::new(from_name)?,
    };
    let to = Place {
        dir: directory(image, to_dir)?,
        name: Name::new(to_name)?,
    };
    require(&from.dir, cx.caller, EXECUTE)?;
    require(&to.dir, cx.caller, EXECUTE)?;
    let source = image.entry(from_dir, from_name)?.ok_or(FsError::NotFound)?;
    let source = image.stat(source.inode)?;
    let target = match image.entry(to_dir, to_name)? {
        Some(entry) => Some(image.stat(entry.inode)?),
        None => None,
    };
    if target.is_some_and(|target| target.inode == source.inode) {
        let unchanged = |dir: &Stat| Wcc {
            before: Before::from(dir),
            after: *dir,
        };
        return Ok(Renamed {
            from: unchanged(&from.dir),
            to: unchanged(&to.dir),
        });
    }
    require_remove(&from.dir, &source, cx.caller)?;
    if source.is_dir() && from_dir != to_dir {
        check_not_inside(image, source.inode, to_dir)?;
    }
    check_target(image, cx, &to.dir, &source, target.as_ref())?;
    if source.is_dir() && from_dir != to_dir {
        // Moving a directory changes its "..".
        require(&source, cx.caller, WRITE)?;
    }
    image.require_links(source.inode)?;
    Ok(apply(image, cx, &from, &to, &source, target.as_ref()))
}

/// Fails if `dir` is `inode` or lies below it.
fn check_not_inside(image: &mut Image, inode: InodeId, dir: InodeId) -> OpResult<()> {
    let mut at = dir;
    while at != InodeId::ROOT {
        if at == inode {
            return Err(FsError::Invalid.into());
        }
        at = image.parent(at)?;
    }
    Ok(())
}

/// Whether what stands at the target may be replaced by `source`.
fn check_target(
    image: &mut Image,
    cx: Context<'_>,
    dir: &Stat,
    source: &Stat,
    target: Option<&Stat>,
) -> OpResult<()> {
    let Some(target) = target else {
        require(dir, cx.caller, WRITE | EXECUTE)?;
        return Ok(());
    };
    require_remove(dir, target, cx.caller)?;
    match (source.is_dir(), target.is_dir()) {
        (true, false) => return Err(FsError::NotDirectory.into()),
        (false, true) => return Err(FsError::IsDirectory.into()),
        (true, true) if image.entry_count(target.inode)? != 0 => {
            return Err(FsError::NotEmpty.into());
        }
        _ => {}
    }
    image.require_links(target.inode)
}

fn apply(
    image: &mut Image,
    cx: Context<'_>,
    from: &Place,
    to: &Place,
    source: &Stat,
    target: Option<&Stat>,
) -> Renamed {
    let (from_dir, to_dir) = (from.dir.inode, to.dir.inode);
    if let Some(target) = target {
        image.remove_entry(to_dir, to.name.as_bytes());
        if target.is_dir() {
            image.remove_cell(target.inode);
        } else {
            unlink(image, cx, target, to_dir, &to.name);
        }
    }
    image.remove_entry(from_dir, from.name.as_bytes());
    image.put_entry(
        to_dir,
        &to.name,
        Entry {
            inode: source.inode,
            kind: source.kind,
        },
    );
    image.move_link(source.inode, (from_dir, &from.name), (to_dir, &to.name));
    image.update(source.inode, |stat| {
        stat.ctime = Image::next_time(cx.now, stat.ctime);
    });
    let replaced_dir = i32::from(target.is_some_and(Stat::is_dir));
    let moved_dir = i32::from(source.is_dir());
    if from_dir == to_dir {
        let wcc = touch_directory(image, &from.dir, cx.now, -replaced_dir);
        return Renamed { from: wcc, to: wcc };
    }
    Renamed {
        from: touch_directory(image, &from.dir, cx.now, -moved_dir),
        to: touch_directory(image, &to.dir, cx.now, moved_dir - replaced_dir),
    }
}
