//! Making objects: CREATE, MKDIR, SYMLINK, MKNOD.

use base::limits::SYMLINK_BYTES_MAX;
use base::{InodeId, Name, Timestamp};
use bytes::Bytes;

use super::set_attributes::{apply_to_new, check_size};
use super::{Context, directory, touch_directory};
use crate::error::{FsError, OpResult};
use crate::image::Image;
use crate::permission::{EXECUTE, WRITE, inherit, require, require_write_data};
use crate::record::entry::Entry;
use crate::stat::{Before, Device, FileKind, SetAttrs, SetTime, Stat, Wcc};

/// Verifier of an EXCLUSIVE create.
pub type Exclusive = [u8; 8];

/// How CREATE treats a name that exists (RFC 1813, section 3.3.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Succeeds, and applies nothing but the size.
    Unchecked(SetAttrs),
    /// Fails.
    Guarded(SetAttrs),
    /// Succeeds if the file was made with the same verifier.
    Exclusive(Exclusive),
}

/// What to make, other than a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Directory,
    /// A symbolic link with this target.
    Symlink(Bytes),
    /// A block device.
    BlockDevice(Device),
    /// A character device.
    CharDevice(Device),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// What was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    /// The object.
    pub object: Stat,
    /// The directory around the step.
    pub dir: Wcc,
}

/// Makes a regular file.
///
/// # Errors
///
/// `Exists`, `NotDirectory`, `AccessDenied`, `ReadOnly`, `QuotaExceeded`, `NameTooLong`, `Invalid`,
/// `TooLarge`, `Stale`.
pub fn create(
    image: &mut Image,
    cx: Context<'_>,
    dir: InodeId,
    name: &[u8],
    how: How,
) -> OpResult<Created> {
    image.require_writable()?;
    let stat = directory(image, dir)?;
    require(&stat, cx.caller, EXECUTE)?;
    let name = Name::new(name)?;
    if let Some(entry) = image.entry(dir, name.as_bytes())? {
        return existing(image, cx, &stat, entry.inode, how);
    }
    require(&stat, cx.caller, WRITE)?;
    let (attrs, verifier) = match how {
        How::Unchecked(attrs) | How::Guarded(attrs) => (attrs, None),
        // No permissions until the client's SETATTR gives them; the owner may write regardless.
        How::Exclusive(verifier) => (
            SetAttrs {
                mode: Some(0),
                ..SetAttrs::default()
            },
            Some(verifier),
        ),
    };
    check_size(image, attrs.size)?;
    let inode = image.next_number()?;
    let new = new_stat(
        cx,
        &stat,
        inode,
        FileKind::File,
        attrs.mode.unwrap_or(0o644),
    );
    image.insert_file(new, (dir, name.clone()), verifier);
    Ok(finish(image, cx, &stat, &name, inode, attrs))
}

/// Makes anything but a regular file.
///
/// # Errors
///
/// As [`create`], and `NotPermitted` for devices unless the caller is the superuser.
pub fn make(
    image: &mut Image,
    cx: Context<'_>,
    dir: InodeId,
    name: &[u8],
    node: &Node,
    attrs: SetAttrs,
) -> OpResult<Created> {
    image.require_writable()?;
    let stat = directory(image, dir)?;
    require(&stat, cx.caller, EXECUTE)?;
    let name = Name::new(name)?;
    if image.entry(dir, name.as_bytes())?.is_some() {
        return Err(FsError::Exists.into());
    }
    require(&stat, cx.caller, WRITE)?;
    let (kind, default_mode) = match node {
        Node::Directory => (FileKind::Directory, 0o755),
        Node::Symlink(target) => {
            check_target(target)?;
            (FileKind::Symlink, 0o777)
        }
        Node::BlockDevice(_) => (FileKind::BlockDevice, 0o644),
        Node::CharDevice(_) => (FileKind::CharDevice, 0o644),
        Node::Fifo => (FileKind::Fifo, 0o644),
        Node::Socket => (FileKind::Socket, 0o644),
    };
    let is_device = matches!(node, Node::BlockDevice(_) | Node::CharDevice(_));
    if is_device && !cx.caller.is_root() {
        return Err(FsError::NotPermitted.into());
    }
    let inode = image.next_number()?;
    let mode = if kind == FileKind::Symlink {
        0o777
    } else {
        attrs.mode.unwrap_or(default_mode)
    };
    let mut new = new_stat(cx, &stat, inode, kind, mode);
    if let Node::BlockDevice(device) | Node::CharDevice(device) = node {
        new.device = *device;
    }
    let attrs = SetAttrs {
        size: None,
        ..attrs
    };
    image.insert_node(new, (dir, name.clone()), node);
    Ok(finish(image, cx, &stat, &name, inode, attrs))
}

/// Answers a CREATE whose name exists.
fn existing(
    image: &mut Image,
    cx: Context<'_>,
    dir: &Stat,
    inode: InodeId,
    how: How,
) -> OpResult<Created> {
    let object = image.stat(inode)?;
    let unchanged = Wcc {
        before: Before::from(dir),
        after: *dir,
    };
    match how {
        How::Guarded(_) => Err(FsError::Exists.into()),
        How::Exclusive(verifier) => {
            if image.verifier(inode)? == Some(verifier) {
                Ok(Created {
                    object,
                    dir: unchanged,
                })
            } else {
                Err(FsError::Exists.into())
            }
        }
        How::Unchecked(SetAttrs {
            size: Some(size), ..
        }) if object.kind == FileKind::File => {
            require_write_data(&object, cx.caller)?;
            let size = SetAttrs {
                size: Some(size),
                ..SetAttrs::default()
            };
            let wcc = super::set_attributes(image, cx, inode, size, None)?;
            Ok(Created {
                object: wcc.after,
                dir: unchanged,
            })
        }
        How::Unchecked(_) => Ok(Created {
            object,
            dir: unchanged,
        }),
    }
}

fn check_target(target: &[u8]) -> Result<(), FsError> {
    if target.is_empty() || target.contains(&0) {
        return Err(FsError::Invalid);
    }
    if target.len() > SYMLINK_BYTES_MAX {
        Err(FsError::NameTooLong)
    } else {
        Ok(())
    }
}

fn new_stat(cx: Context<'_>, dir: &Stat, inode: InodeId, kind: FileKind, mode: u32) -> Stat {
    let (mode, gid) = inherit(dir, kind, mode & 0o7777, cx.caller);
    let now = cx.now;
    Stat {
        inode,
        kind,
        mode,
        nlink: if kind == FileKind::Directory { 2 } else { 1 },
        uid: cx.caller.uid,
        gid,
        size: 0,
        used: 0,
        device: Device::default(),
        atime: now,
        mtime: now,
        ctime: now,
    }
}

/// Enters a new object into its directory and applies what else the client asked for.
fn finish(
    image: &mut Image,
    cx: Context<'_>,
    dir: &Stat,
    name: &Name,
    inode: InodeId,
    attrs: SetAttrs,
) -> Created {
    let object = apply_to_new(image, cx, inode, attrs);
    image.put_entry(
        dir.inode,
        name,
        Entry {
            inode,
            kind: object.kind,
        },
    );
    let subdirs = i32::from(object.is_dir());
    Created {
        object,
        dir: touch_directory(image, dir, cx.now, subdirs),
    }
}

/// The value of a time to set, if it is to be set.
pub(super) fn time_value(set: SetTime, now: Timestamp) -> Option<Timestamp> {
    match set {
        SetTime::Keep => None,
        SetTime::Now => Some(now),
        SetTime::To(time) => Some(time),
    }
}
