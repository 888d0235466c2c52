//! FSSTAT, FSINFO, PATHCONF (RFC 1813, sections 3.3.18 to 3.3.20).

use base::limits::{LINKS_MAX, NAME_BYTES_MAX, READ_BYTES_MAX};
use base::{InodeId, Timestamp};
use metadata::image::Image;
use metadata::{OpResult, ops};

use super::Scope;
use crate::wire::args::NfsCall;
use crate::wire::nfs3::Fattr;
use crate::wire::reply::Reply;
use crate::wire::results::{self, FsinfoOk, FsstatOk, PathconfOk};

/// Preferred size of one READDIR, in bytes.
const READDIR_BYTES: u32 = 64 * 1024;

/// What READ and WRITE sizes should be multiples of: a page.
const MULTIPLE_BYTES: u32 = 4096;

/// Space that a call which stores no data may take, in bytes.
const METADATA_BYTES: u64 = 16 * 1024;

/// What the stores can still take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    /// Bytes, if the stores know; already without what is buffered.
    pub(crate) available: Option<u64>,
    /// The metadata store had no room a moment ago: nothing may be changed.
    pub(crate) refuses: bool,
}

impl Space {
    /// Whether the stores can take what `call` brings.
    pub(super) fn has_room(self, call: &NfsCall<'_>) -> bool {
        let data = match call {
            NfsCall::Write(args) => u64::try_from(args.data.len()).unwrap_or(u64::MAX),
            _ => 0,
        };
        self.available
            .is_none_or(|available| available >= data.saturating_add(METADATA_BYTES))
    }
}

pub(super) fn fsstat(scope: &mut Scope<'_>, inode: InodeId) -> OpResult<Reply> {
    let stat = ops::getattr(scope.image, inode)?;
    let attributes = scope.view.fattr(&stat);
    Ok(fsstat_of(scope.xid, scope.image, scope.space, attributes))
}

/// What the filesystem of an image has room for.
pub(crate) fn fsstat_of(xid: u32, image: &Image, space: Space, attributes: Fattr) -> Reply {
    let usage = image.usage();
    let config = image.config();
    let quota_left = config.bytes_max.saturating_sub(usage.bytes);
    let free = space
        .available
        .map_or(quota_left, |available| available.min(quota_left));
    let free_files = config.inodes_max.saturating_sub(usage.inodes);
    results::ok(
        xid,
        &FsstatOk {
            attributes: Some(attributes),
            total_bytes: usage.bytes.saturating_add(free).max(1),
            free_bytes: free,
            available_bytes: free,
            total_files: config.inodes_max,
            free_files,
            available_files: free_files,
            invariant_seconds: 0,
        },
    )
}

pub(super) fn fsinfo(scope: &mut Scope<'_>, inode: InodeId) -> OpResult<Reply> {
    let stat = ops::getattr(scope.image, inode)?;
    let attributes = scope.view.fattr(&stat);
    Ok(fsinfo_of(scope.xid, scope.image, attributes))
}

/// What can be asked of the filesystem of an image.
pub(crate) fn fsinfo_of(xid: u32, image: &Image, attributes: Fattr) -> Reply {
    let data_bytes = u32::try_from(READ_BYTES_MAX).unwrap_or(u32::MAX);
    results::ok(
        xid,
        &FsinfoOk {
            attributes: Some(attributes),
            read_bytes: data_bytes,
            write_bytes: data_bytes,
            multiple_bytes: MULTIPLE_BYTES,
            readdir_bytes: READDIR_BYTES,
            file_bytes_max: image.file_bytes_max(),
            time_delta: Timestamp::new(0, 1),
        },
    )
}

pub(super) fn pathconf(scope: &mut Scope<'_>, inode: InodeId) -> OpResult<Reply> {
    let stat = ops::getattr(scope.image, inode)?;
    Ok(pathconf_of(scope.xid, scope.view.fattr(&stat)))
}

/// What names may be.
pub(crate) fn pathconf_of(xid: u32, attributes: Fattr) -> Reply {
    results::ok(
        xid,
        &PathconfOk {
            attributes: Some(attributes),
            links_max: LINKS_MAX,
            name_bytes_max: u32::try_from(NAME_BYTES_MAX).unwrap_or(u32::MAX),
        },
    )
}
