//! A session's filesystem image, as far as it is in memory.
//!
//! Operations (`crate::ops`) are pure functions over this: what they need and do not find they
//! name as a [`Miss`], and the caller loads it and runs them again. An operation checks everything
//! first and changes the image only when nothing can fail any more.
//!
//! Each change carries a number. A cell remembers the number of its last change, so that a reply
//! can wait until everything it shows is durable, and so that only durable cells are evicted.

mod block;
mod cell;
mod changes;
mod dir;
mod extents;
mod file;
mod hash;
mod links;
mod load;
mod names;
mod spans;
mod writeback;

use base::{InodeId, Timestamp};

pub use block::{Block, Body, Piece, allocated};
pub use changes::{Changes, Clear};
pub use dir::Peek;
pub use extents::Extents;
pub use load::LoadedEntry;
pub use names::{COOKIE_FIRST, NameHasher, cookie_of, hash_after};
pub use writeback::{BlockJob, WriteJob};

use crate::error::{FsError, Miss, OpResult};
use crate::stat::Stat;
use cell::{Cell, Slot};
use hash::Cells;

/// About what a cell costs in memory, in bytes, beside entries and blocks.
const CELL_BYTES: usize = 384;
/// About what a directory entry costs in memory, in bytes.
const ENTRY_BYTES: usize = 96;
/// About what a block map entry costs in memory, in bytes.
const BLOCK_BYTES: usize = 128;

/// Size that every directory shows, in bytes; its entries are counted elsewhere.
pub const DIRECTORY_BYTES: u64 = 4096;

/// What an image needs to know about its session.
#[derive(Clone, Debug)]
pub struct ImageConfig {
    /// Secret of the workspace from which directory cookies are derived.
    pub name_key: [u8; 32],
    /// Size of file blocks, in bytes.
    pub block_bytes: u32,
    /// Most bytes the session may allocate.
    pub bytes_max: u64,
    /// Most inodes the session may have.
    pub inodes_max: u64,
    /// Refuse every change.
    pub read_only: bool,
}

/// What a session has allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in blocks.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// Inode numbers that the session may give out: `next..end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeNumbers {
    /// The next one.
    pub next: u64,
    /// First one that is not the session's.
    pub end: u64,
}

/// What a flush writes beside the changed keys: the state that spans inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Durable usage after the flush.
    pub usage: Usage,
    /// Inode numbers left after the flush.
    pub numbers: InodeNumbers,
}

/// What happened in one run of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The reply may be sent once changes up to this number are durable.
    pub durable_after: u64,
    /// Whether the image was changed in a way that a flush must write.
    pub changed: bool,
}

/// The image.
#[derive(Debug)]
pub struct Image {
    config: ImageConfig,
    hasher: NameHasher,
    cells: Cells,
    changes: Changes,
    /// Usage as it will be once buffered data is written: what quotas are checked against.
    visible_bytes: u64,
    usage: Usage,
    numbers: InodeNumbers,
    /// Number of the last change.
    applied: u64,
    /// Number of the last durable change.
    durable: u64,
    /// Highest change number of what the running operation has looked at.
    watermark: u64,
    changed: bool,
    /// Counts writes.
    writes: u64,
    /// Bytes of unwritten data in all files.
    buffered_bytes: usize,
    entries_total: usize,
    blocks_total: usize,
    evictions: u64,
}

impl Image {
    /// An image of which nothing is loaded.
    #[must_use]
    pub fn new(config: ImageConfig, totals: Totals) -> Self {
        let hasher = NameHasher::new(config.name_key);
        Self {
            config,
            hasher,
            cells: Cells::default(),
            changes: Changes::default(),
            visible_bytes: totals.usage.bytes,
            usage: totals.usage,
            numbers: totals.numbers,
            applied: 0,
            durable: 0,
            watermark: 0,
            changed: false,
            writes: 0,
            buffered_bytes: 0,
            entries_total: 0,
            blocks_total: 0,
            evictions: 0,
        }
    }

    /// Keeps only the first `bits` bits of name hashes, so that names collide. Only before anything
    /// is loaded, and only in tests.
    #[cfg(feature = "testing")]
    pub fn coarsen_names(&mut self, bits: u32) {
        self.hasher = NameHasher::coarse(self.config.name_key, bits);
    }

    /// Runs an operation and says what its reply has to wait for.
    pub fn run<T>(&mut self, operation: impl FnOnce(&mut Self) -> T) -> (T, Ran) {
        self.watermark = 0;
        self.changed = false;
        let result = operation(self);
        if self.changed {
            self.applied += 1;
            self.watermark = self.applied;
        }
        (
            result,
            Ran {
                durable_after: self.watermark,
                changed: self.changed,
            },
        )
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &ImageConfig {
        &self.config
    }

    /// Usage that includes buffered data.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            bytes: self.visible_bytes,
            inodes: self.usage.inodes,
        }
    }

    /// Number of the last change.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Number of the last durable change.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Says that all changes up to `number` are durable.
    pub fn set_durable(&mut self, number: u64) {
        self.durable = self.durable.max(number);
    }

    /// Bytes that wait to be flushed.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.changes.bytes()
    }

    /// Whether nothing waits to be flushed or written back.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.changes.is_empty() && self.buffered_bytes == 0 && self.durable == self.applied
    }

    /// Bytes of file data in memory that are not in any store.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.buffered_bytes
    }

    /// Takes what a flush has to write; it covers all changes up to [`Image::applied`].
    pub fn take_changes(&mut self) -> (Changes, Totals) {
        let totals = Totals {
            usage: self.usage,
            numbers: self.numbers,
        };
        (std::mem::take(&mut self.changes), totals)
    }

    /// About how much memory the image takes, in bytes, without buffered data.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.cells.len() * CELL_BYTES
            + self.entries_total * ENTRY_BYTES
            + self.blocks_total * BLOCK_BYTES
    }

    /// Counts evictions. A load that began before one is not installed after it: what it read may
    /// have changed since in a cell that is no longer there to tell.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Drops durable cells until about `target` bytes are left; recently used ones last.
    pub fn evict(&mut self, target: usize) {
        for keep_recent in [true, false] {
            if self.memory_bytes() <= target {
                return;
            }
            let durable = self.durable;
            let before = self.cells.len();
            let mut excess = self.memory_bytes() - target;
            let (mut entries, mut blocks) = (0, 0);
            self.cells.retain(|_, slot| {
                if excess == 0 {
                    return true;
                }
                if slot.take_recent() && keep_recent || !slot.is_evictable(durable) {
                    return true;
                }
                let (slot_entries, slot_blocks) = slot.weight();
                entries += slot_entries;
                blocks += slot_blocks;
                let bytes = CELL_BYTES + slot_entries * ENTRY_BYTES + slot_blocks * BLOCK_BYTES;
                excess = excess.saturating_sub(bytes);
                false
            });
            self.entries_total -= entries;
            self.blocks_total -= blocks;
            // One that dropped nothing makes no load outdated.
            self.evictions += u64::from(self.cells.len() < before);
        }
        if target == 0 {
            self.cells.shrink_to_fit();
        }
    }

    /// Forgets everything that is in no store: the image is as it was after the flush that wrote
    /// `totals`, which was the last. Change numbers and write numbers go on; a load that began
    /// before is not installed after it.
    pub fn reset(&mut self, totals: Totals) {
        // What could be evicted is as it is stored.
        let durable = self.durable;
        self.cells.retain(|_, slot| slot.is_evictable(durable));
        let weights = self.cells.values().map(Slot::weight);
        (self.entries_total, self.blocks_total) =
            weights.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        self.begin_at(totals);
    }

    /// Forgets the whole image: another one, of these totals, is stored in its place. Nothing may
    /// wait to be flushed or written back. Change numbers and write numbers go on; a load that
    /// began before is not installed after it.
    pub fn replace(&mut self, totals: Totals) {
        self.cells = Cells::default();
        (self.entries_total, self.blocks_total) = (0, 0);
        self.begin_at(totals);
    }

    /// What is stored has these totals, and nothing is changed since.
    fn begin_at(&mut self, totals: Totals) {
        self.changes = Changes::default();
        self.visible_bytes = totals.usage.bytes;
        self.usage = totals.usage;
        self.numbers = totals.numbers;
        self.durable = self.applied;
        self.buffered_bytes = 0;
        self.evictions += 1;
    }

    /// The attributes of `inode` if they are in memory.
    #[must_use]
    pub fn peek(&self, inode: InodeId) -> Option<Stat> {
        match self.cells.get(&inode) {
            Some(Slot::Live(cell)) => Some(cell.stat),
            _ => None,
        }
    }

    /// The attributes of `inode`.
    pub(crate) fn stat(&mut self, inode: InodeId) -> OpResult<Stat> {
        Ok(self.cell(inode)?.stat)
    }

    /// The time of the next change of an object whose last was at `last`.
    pub(crate) fn next_time(now: Timestamp, last: Timestamp) -> Timestamp {
        now.max(last.tick())
    }

    /// Fails if the session is read-only.
    pub(crate) fn require_writable(&self) -> OpResult<()> {
        if self.config.read_only {
            Err(FsError::ReadOnly.into())
        } else {
            Ok(())
        }
    }

    /// Fails if `bytes` more would exceed the quota. What needs none is fine beyond it too.
    pub(crate) fn require_bytes(&self, bytes: u64) -> OpResult<()> {
        if bytes > 0 && self.visible_bytes.saturating_add(bytes) > self.config.bytes_max {
            return Err(FsError::QuotaExceeded.into());
        }
        Ok(())
    }

    /// The number for a new inode, if the quota allows one. [`Image::insert_cell`] takes it.
    pub(crate) fn next_number(&self) -> OpResult<InodeId> {
        if self.usage.inodes >= self.config.inodes_max {
            return Err(FsError::QuotaExceeded.into());
        }
        if self.numbers.next >= self.numbers.end {
            return Err(Miss::InodeNumbers.into());
        }
        Ok(InodeId::new(self.numbers.next))
    }

    /// Gives the session more inode numbers.
    pub fn add_numbers(&mut self, numbers: InodeNumbers) {
        if self.numbers.next >= self.numbers.end {
            self.numbers = numbers;
        }
    }

    /// The live cell of `inode`; counts as looking at it.
    fn cell(&mut self, inode: InodeId) -> OpResult<&mut Cell> {
        match self.cells.get_mut(&inode) {
            Some(Slot::Live(cell)) => {
                self.watermark = self.watermark.max(cell.changed);
                cell.recent = true;
                Ok(cell)
            }
            Some(Slot::Gone { changed }) => {
                self.watermark = self.watermark.max(*changed);
                Err(FsError::Stale.into())
            }
            None => Err(Miss::Inode(inode).into()),
        }
    }

    /// The cell of an inode that the running operation has looked at already.
    fn known(&mut self, inode: InodeId) -> &mut Cell {
        match self.cells.get_mut(&inode) {
            Some(Slot::Live(cell)) => cell,
            _ => unreachable_cell(inode),
        }
    }

    /// Puts a new inode into the image and takes its number.
    pub(crate) fn insert_cell(&mut self, cell: Cell) {
        let inode = cell.stat.inode;
        self.numbers.next = self.numbers.next.max(inode.raw().saturating_add(1));
        self.usage.inodes += 1;
        self.cells.insert(inode, Slot::Live(Box::new(cell)));
        self.put_attributes(inode);
    }

    /// Takes an inode and all its keys out of the image.
    pub(crate) fn remove_cell(&mut self, inode: InodeId) {
        let changed = self.applied + 1;
        let Some(Slot::Live(cell)) = self.cells.insert(inode, Slot::Gone { changed }) else {
            return;
        };
        let (entries, blocks) = cell.weight();
        self.entries_total -= entries;
        self.blocks_total -= blocks;
        self.usage.inodes -= 1;
        self.visible_bytes -= cell.stat.used;
        if let Some(file) = cell.file() {
            self.usage.bytes -= file.stable_used;
            self.buffered_bytes -= file.buffered_bytes();
        }
        self.changes.clear(Clear::Inode(inode));
        self.changed = true;
    }

    /// Takes the record of a conflict out of the image.
    pub(crate) fn forget_conflict(&mut self, id: &[u8; 16]) {
        self.changes.remove(crate::keyspace::image::conflict(id));
        self.changed = true;
    }

    /// Changes the attributes of a known inode and records them for the flush.
    pub(crate) fn update(&mut self, inode: InodeId, change: impl FnOnce(&mut Stat)) -> Stat {
        let cell = self.known(inode);
        change(&mut cell.stat);
        let stat = cell.stat;
        self.put_attributes(inode);
        stat
    }

    /// Records the attributes of a known inode for the flush.
    pub(crate) fn put_attributes(&mut self, inode: InodeId) {
        let changed = self.applied + 1;
        let cell = self.known(inode);
        cell.changed = changed;
        let moved = cell.settle_inline();
        let record = cell.record();
        let block = moved.and_then(|to_key| to_key.then(|| cell.encode_block(0)).flatten());
        let key = crate::keyspace::image::block(inode, 0);
        match (moved, block) {
            (None, _) => {}
            (Some(_), Some(value)) => self.changes.set(key, value),
            (Some(_), None) => self.changes.remove(key),
        }
        self.changes
            .set(crate::keyspace::image::inode(inode), record.encode());
        self.changed = true;
    }
}

/// An operation used a cell it had not looked at: a bug that must not reach the store.
#[expect(
    clippy::panic,
    reason = "our own contradiction; continuing would corrupt the image"
)]
fn unreachable_cell(inode: InodeId) -> ! {
    panic!("operation changes {inode:?} without having read it")
}

#[cfg(test)]
mod tests;
