//! How much the file can still take.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Clock;
use parking_lot::Mutex;

/// How long an answer of the system is used: short enough to stop in time, long enough that
/// asking for every call costs nothing.
const FRESH: Duration = Duration::from_millis(100);

/// Bytes of the file that a stored byte may take: pages are half full at worst, or nearly so.
const FILE_BYTES_PER_BYTE: u64 = 2;

/// Bytes of the file that are not for content, at most.
const FILE_BYTES_FIXED: u64 = 2 << 20;

/// The device is short of space when less than one part in so many can be used.
const SHORT_PART: u64 = 20;

/// Free pages for which the file is made smaller, in bytes; they must be half of it, too.
const SHRINK_BYTES_MIN: u64 = 4 << 20;

/// Most stored bytes with which the file is made smaller. All of them may have to be moved, and
/// nothing is read or written meanwhile.
const SHRINK_STORED_BYTES_MAX: u64 = 256 << 20;

/// Unit of `st_blocks`, whatever the file system's block size.
const BLOCK_BYTES: u64 = 512;

/// Free space: that of the file's device, and that inside the file. The file does not shrink
/// when content is removed, unless the device is short of space.
#[derive(Debug)]
pub(super) struct Space {
    path: PathBuf,
    reserve_bytes: u64,
    clock: Arc<dyn Clock>,
    stored_bytes: AtomicU64,
    last: Mutex<Option<(Duration, Option<u64>)>>,
}

impl Space {
    /// The space for the file `path`.
    pub(super) fn new(path: &Path, reserve_bytes: u64, clock: Arc<dyn Clock>) -> Self {
        Self {
            path: path.to_owned(),
            reserve_bytes,
            clock,
            stored_bytes: AtomicU64::new(0),
            last: Mutex::new(None),
        }
    }

    /// Notes the bytes of all keys and values.
    pub(super) fn set_stored_bytes(&self, bytes: u64) {
        self.stored_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The bytes of all keys and values.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.stored_bytes.load(Ordering::Relaxed)
    }

    /// What callers may use; `None` if the system does not say.
    pub(super) fn available_bytes(&self) -> Option<u64> {
        Some(self.free_bytes()?.saturating_sub(self.reserve_bytes))
    }

    /// What is free, with the reserve.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        let now = self.clock.monotonic();
        let mut last = self.last.lock();
        match *last {
            Some((at, free)) if now.saturating_sub(at) < FRESH => free,
            _ => {
                let free = self.ask();
                *last = Some((now, free));
                free
            }
        }
    }

    /// Forgets the last answer, after the device said that it is full.
    pub(super) fn refresh(&self) {
        *self.last.lock() = None;
    }

    /// The file's present size, if it should be made smaller: the device is short of space, and
    /// much of the file is free.
    pub(super) fn to_shrink(&self) -> Option<FileUse> {
        let stat = rustix::fs::statvfs(parent(&self.path)).ok()?;
        let unit = stat.f_frsize;
        let usable = stat.f_bavail.saturating_mul(unit);
        let usable = usable.saturating_sub(self.reserve_bytes);
        let device = stat.f_blocks.saturating_mul(unit);
        let now = self.file_use()?;
        let is_due = usable < device / SHORT_PART
            && now.stored_bytes <= SHRINK_STORED_BYTES_MAX
            && now.free_bytes() >= SHRINK_BYTES_MIN.max(now.file_bytes / 2);
        is_due.then_some(now)
    }

    /// The file's size and what is in it; `None` if the system does not say.
    pub(super) fn file_use(&self) -> Option<FileUse> {
        let file = std::fs::metadata(&self.path).ok()?;
        Some(FileUse {
            file_bytes: file.blocks().saturating_mul(BLOCK_BYTES),
            stored_bytes: self.stored_bytes(),
        })
    }

    fn ask(&self) -> Option<u64> {
        let stat = rustix::fs::statvfs(parent(&self.path)).ok()?;
        let on_device = stat.f_bavail.saturating_mul(stat.f_frsize);
        let file = std::fs::metadata(&self.path).ok()?;
        let used = self.stored_bytes().saturating_mul(FILE_BYTES_PER_BYTE);
        let in_file = file
            .blocks()
            .saturating_mul(BLOCK_BYTES)
            .saturating_sub(used)
            .saturating_sub(FILE_BYTES_FIXED);
        Some(on_device.saturating_add(in_file))
    }
}

/// How much of the device the file takes, and how much is in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileUse {
    /// What the file takes, in bytes.
    pub(super) file_bytes: u64,
    /// Bytes of all keys and values.
    pub(super) stored_bytes: u64,
}

impl FileUse {
    /// What is likely free inside the file: pages are two thirds full, usually.
    fn free_bytes(self) -> u64 {
        let used = self.stored_bytes.saturating_add(self.stored_bytes / 2);
        self.file_bytes
            .saturating_sub(used)
            .saturating_sub(FILE_BYTES_FIXED)
    }

    /// Whether there is much more to be gained than at `before`, when the file had just been made
    /// as small as could be.
    pub(super) fn is_looser_than(self, before: Self) -> bool {
        self.file_bytes / 5 >= before.file_bytes / 4
            || self.stored_bytes / 3 <= before.stored_bytes / 4
    }
}

/// The directory that holds `path`.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
