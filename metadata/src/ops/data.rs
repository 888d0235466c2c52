//! File data: READ and WRITE.

use base::InodeId;
use bytes::Bytes;

use super::Context;
use crate::error::{FsError, OpResult};
use crate::image::{Image, Piece};
use crate::permission::{require_read_data, require_write_data, without_privileges};
use crate::stat::{Before, FileKind, Stat, Wcc};

/// What READ found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The file.
    pub file: Stat,
    /// The data, in order.
    pub pieces: Vec<Piece>,
    /// Bytes in all pieces.
    pub count: u32,
    /// Whether the data reaches the end of the file.
    pub end: bool,
}

/// Reads up to `count` bytes from `offset`; beyond the end there are none.
///
/// # Errors
///
/// `IsDirectory`, `Invalid` for what is not a regular file, `AccessDenied`, `Stale`.
pub fn read(
    image: &mut Image,
    cx: Context<'_>,
    inode: InodeId,
    offset: u64,
    count: u32,
) -> OpResult<Read> {
    let file = image.stat(inode)?;
    require_file(&file)?;
    require_read_data(&file, cx.caller)?;
    let left = file.size.saturating_sub(offset);
    let count = u32::try_from(left).unwrap_or(u32::MAX).min(count);
    let pieces = if count == 0 {
        Vec::new()
    } else {
        image.read_pieces(inode, offset, count)?
    };
    Ok(Read {
        file,
        pieces,
        count,
        end: u64::from(count) == left || left == 0,
    })
}

/// What WRITE did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The file around the step.
    pub file: Wcc,
}

/// Buffers `data` at `offset`. It is in no store yet: the caller settles it or writes it back.
///
/// # Errors
///
/// `IsDirectory`, `Invalid` for what is not a regular file, `AccessDenied`, `TooLarge`,
/// `QuotaExceeded`, `ReadOnly`, `Stale`.
pub fn write(
    image: &mut Image,
    cx: Context<'_>,
    inode: InodeId,
    offset: u64,
    data: &Bytes,
) -> OpResult<Written> {
    image.require_writable()?;
    let file = image.stat(inode)?;
    require_file(&file)?;
    require_write_data(&file, cx.caller)?;
    let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
    let end = offset.checked_add(length).ok_or(FsError::TooLarge)?;
    if end > image.file_bytes_max() {
        return Err(FsError::TooLarge.into());
    }
    let before = Before::from(&file);
    if data.is_empty() {
        return Ok(Written {
            file: Wcc {
                before,
                after: file,
            },
        });
    }
    image.require_blocks(inode, offset, end)?;
    let growth = image.growth(inode, offset, end)?;
    image.require_bytes(growth)?;
    image.buffer_write(inode, offset, data, cx.now);
    let mode = without_privileges(&file, cx.caller);
    if !cx.caller.is_root() && mode != file.mode {
        image.update(inode, |stat| stat.mode = mode);
    }
    Ok(Written {
        file: Wcc {
            before,
            after: image.stat(inode)?,
        },
    })
}

fn require_file(file: &Stat) -> OpResult<()> {
    match file.kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(FsError::IsDirectory.into()),
        _ => Err(FsError::Invalid.into()),
    }
}
