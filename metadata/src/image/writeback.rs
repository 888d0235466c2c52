//! From buffered data to blocks.
//!
//! Small writes are settled in memory: they become inline bodies and patches, which a flush makes
//! durable by itself. The rest becomes jobs: the caller stores chunks outside any lock and reports
//! back. One write-back runs per file at a time; what is written meanwhile waits in `dirty`. A cut
//! in between is remembered and applied to what comes back.

use base::InodeId;
use base::limits::{INLINE_BLOCK_BYTES_MAX, KV_TRANSACTION_BYTES_MAX, PATCH_BYTES_MAX};

use super::Image;
use super::block::Block;
use super::cell::{Content, Slot};
use super::extents::Extents;
use crate::keyspace::image as keys;

/// Bytes waiting for a flush beyond which nothing more is settled in memory, so that a flush stays
/// well within a transaction.
const SETTLE_BYTES_MAX: usize = 2 << 20;

/// Most blocks of one job: even if all become inline bodies a flush can carry them.
const JOB_BLOCKS_MAX: usize = 128;

const _: () = assert!(
    SETTLE_BYTES_MAX + (JOB_BLOCKS_MAX + 1) * (INLINE_BLOCK_BYTES_MAX + PATCH_BYTES_MAX)
        < KV_TRANSACTION_BYTES_MAX * 3 / 4
);

/// A block to store.
#[derive(Clone, Debug)]
pub struct BlockJob {
    /// The block's index in the file.
    pub index: u32,
    /// What is stored now.
    pub base: Block,
    /// What to lay over it.
    pub over: Extents,
}

/// A part of a file to store.
#[derive(Debug)]
pub struct WriteJob {
    /// The file.
    pub inode: InodeId,
    /// Its blocks, in order.
    pub blocks: Vec<BlockJob>,
}

impl Image {
    /// Whether a file has data that is not in its block map.
    #[must_use]
    pub fn has_unwritten(&self, inode: InodeId) -> bool {
        matches!(self.cells.get(&inode), Some(Slot::Live(cell))
            if cell.file().is_some_and(|file| !file.is_clean()))
    }

    /// Number of the last write to any file.
    #[must_use]
    pub fn last_write(&self) -> u64 {
        self.writes
    }

    /// Whether a file has data of writes up to number `write` that is not in its block map.
    #[must_use]
    pub fn has_unwritten_until(&self, inode: InodeId, write: u64) -> bool {
        let Some(Slot::Live(cell)) = self.cells.get(&inode) else {
            return false;
        };
        cell.file().is_some_and(|file| {
            file.writing_since <= write || file.since.values().any(|since| *since <= write)
        })
    }

    /// Whether a write-back of the file runs.
    #[must_use]
    pub fn is_writing(&self, inode: InodeId) -> bool {
        matches!(self.cells.get(&inode), Some(Slot::Live(cell))
            if cell.file().is_some_and(|file| file.in_flight))
    }

    /// Unwritten bytes of a file that no write-back has taken yet.
    #[must_use]
    pub fn dirty_bytes(&self, inode: InodeId) -> usize {
        match self.cells.get(&inode) {
            Some(Slot::Live(cell)) => cell
                .file()
                .map_or(0, |file| file.dirty.values().map(Extents::bytes).sum()),
            _ => 0,
        }
    }

    /// All files with data that is not in their block maps.
    #[must_use]
    pub fn unwritten_inodes(&self) -> Vec<InodeId> {
        self.cells
            .keys()
            .copied()
            .filter(|inode| self.has_unwritten(*inode))
            .collect()
    }

    /// All files with data that no write-back has taken yet.
    #[must_use]
    pub fn dirty_inodes(&self) -> Vec<InodeId> {
        let dirty = |slot: &Slot| match slot {
            Slot::Live(cell) => cell.file().is_some_and(|file| !file.dirty.is_empty()),
            Slot::Gone { .. } => false,
        };
        self.cells
            .iter()
            .filter(|(_, slot)| dirty(slot))
            .map(|(inode, _)| *inode)
            .collect()
    }

    /// Settles in memory what is small enough. Returns whether that was all; what was settled is
    /// durable after the next flush. Runs inside [`Image::run`].
    pub fn settle_small(&mut self, inode: InodeId) -> bool {
        let Some(Slot::Live(cell)) = self.cells.get_mut(&inode) else {
            return true;
        };
        let Content::File(file) = &mut cell.content else {
            return true;
        };
        if file.in_flight {
            return file.is_clean();
        }
        let empty = Block::default();
        let mut settled = Vec::new();
        let mut pending = self.changes.bytes();
        for (at, over) in &file.dirty {
            if pending > SETTLE_BYTES_MAX {
                break;
            }
            if let Some(block) = file.blocks.get(at).unwrap_or(&empty).absorb(over) {
                pending += INLINE_BLOCK_BYTES_MAX + PATCH_BYTES_MAX;
                settled.push((*at, block));
            }
        }
        for (at, _) in &settled {
            file.since.remove(at);
            if let Some(over) = file.dirty.remove(at) {
                self.buffered_bytes -= over.bytes();
            }
        }
        let done = file.dirty.is_empty();
        if !settled.is_empty() {
            self.install_settled(inode, settled);
        }
        done
    }

    /// Begins a write-back of up to about `bytes_max` of a file, unless one runs or nothing is
    /// dirty. The caller stores the blocks and then calls [`Image::finish_write`] or
    /// [`Image::abandon_write`].
    pub fn begin_write(&mut self, inode: InodeId, bytes_max: usize) -> Option<WriteJob> {
        let Some(Slot::Live(cell)) = self.cells.get_mut(&inode) else {
            return None;
        };
        let Content::File(file) = &mut cell.content else {
            return None;
        };
        if file.in_flight || file.dirty.is_empty() {
            return None;
        }
        file.in_flight = true;
        file.cut = u64::MAX;
        let mut blocks = Vec::new();
        let mut bytes = 0;
        while bytes < bytes_max && blocks.len() < JOB_BLOCKS_MAX {
            // From the cursor on, then from the start.
            let after = file.dirty.range(file.cursor..).next().map(|(at, _)| *at);
            let Some(index) = after.or_else(|| file.dirty.keys().next().copied()) else {
                break;
            };
            let Some(over) = file.dirty.remove(&index) else {
                break;
            };
            file.cursor = index.saturating_add(1);
            let since = file.since.remove(&index).unwrap_or(0);
            file.writing_since = file.writing_since.min(since);
            bytes += over.bytes();
            let base = file.blocks.get(&index).cloned().unwrap_or_default();
            file.writing.insert(index, over.clone());
            blocks.push(BlockJob { index, base, over });
        }
        Some(WriteJob { inode, blocks })
    }

    /// Takes stored blocks into the block map, so that the next flush makes them durable. Runs
    /// inside [`Image::run`].
    pub fn finish_write(&mut self, inode: InodeId, stored: Vec<(u32, Block)>) {
        let block_bytes = u64::from(self.config.block_bytes);
        let Some(Slot::Live(cell)) = self.cells.get_mut(&inode) else {
            return;
        };
        let Content::File(file) = &mut cell.content else {
            return;
        };
        let cut = file.cut;
        file.in_flight = false;
        file.writing_since = u64::MAX;
        for over in std::mem::take(&mut file.writing).into_values() {
            self.buffered_bytes -= over.bytes();
        }
        let mut settled = Vec::with_capacity(stored.len());
        for (at, mut block) in stored {
            let start = u64::from(at) * block_bytes;
            let keep = u32::try_from(cut.saturating_sub(start)).unwrap_or(u32::MAX);
            if block.end() > keep {
                block.cut(keep);
            }
            settled.push((at, block));
        }
        self.install_settled(inode, settled);
    }

    /// Gives a failed write-back's data back to the buffer, under what was written since.
    pub fn abandon_write(&mut self, inode: InodeId) {
        let Some(Slot::Live(cell)) = self.cells.get_mut(&inode) else {
            return;
        };
        let Content::File(file) = &mut cell.content else {
            return;
        };
        file.in_flight = false;
        let (mut before, mut after) = (0, 0);
        for (at, mut old) in std::mem::take(&mut file.writing) {
            before += old.bytes();
            if let Some(newer) = file.dirty.remove(&at) {
                before += newer.bytes();
                old.overlay(&newer);
            }
            after += old.bytes();
            file.dirty.insert(at, old);
            file.since.insert(at, file.writing_since);
        }
        file.writing_since = u64::MAX;
        self.buffered_bytes = self.buffered_bytes + after - before;
    }

    /// Drops a file's unwritten data after it could not be stored, and shows the file as it is
    /// stored. The client learns of it by the error that the caller returns, and by a new ctime.
    /// Runs inside [`Image::run`].
    pub fn discard_unwritten(&mut self, inode: InodeId) {
        let Some(Slot::Live(cell)) = self.cells.get_mut(&inode) else {
            return;
        };
        let Content::File(file) = &mut cell.content else {
            return;
        };
        if file.is_clean() {
            return;
        }
        self.buffered_bytes -= file.buffered_bytes();
        file.dirty.clear();
        file.since.clear();
        file.writing.clear();
        file.writing_since = u64::MAX;
        file.cut = file.cut.min(file.stable_size);
        self.visible_bytes = self.visible_bytes + file.stable_used - cell.stat.used;
        let stat = &mut cell.stat;
        stat.used = file.stable_used;
        stat.size = file.stable_size;
        // The times that the lost writes showed were never recorded. They must not come back.
        stat.ctime = stat.ctime.tick();
        stat.mtime = stat.ctime;
        self.put_attributes(inode);
    }

    /// Puts blocks into the map and records them, with the attributes that now hold.
    fn install_settled(&mut self, inode: InodeId, settled: Vec<(u32, Block)>) {
        let block_bytes = u64::from(self.config.block_bytes);
        let Some(Slot::Live(cell)) = self.cells.get_mut(&inode) else {
            return;
        };
        let Content::File(file) = &mut cell.content else {
            return;
        };
        let (mut stable, mut visible) = ((0, 0), (0, 0));
        let blocks_before = file.blocks.len();
        let mut indices = Vec::with_capacity(settled.len());
        // What the settled data covered is not shown twice: the buffers no longer hold it.
        for (at, block) in settled {
            stable.0 += file.stable_allocation(at);
            let end = u64::from(at) * block_bytes + u64::from(block.end());
            file.stable_size = file.stable_size.max(end.min(cell.stat.size));
            if block.is_hole() {
                file.blocks.remove(&at);
            } else {
                file.blocks.insert(at, block);
            }
            stable.1 += file.stable_allocation(at);
            indices.push(at);
        }
        if file.is_clean() {
            file.stable_size = cell.stat.size;
        }
        file.stable_used = file.stable_used + stable.1 - stable.0;
        visible.0 += cell.stat.used;
        cell.stat.used = file.stable_used + file.buffered_growth();
        visible.1 += cell.stat.used;
        let blocks_after = file.blocks.len();
        self.blocks_total = self.blocks_total + blocks_after - blocks_before;
        self.usage.bytes = self.usage.bytes + stable.1 - stable.0;
        self.visible_bytes = self.visible_bytes + visible.1 - visible.0;
        self.record_blocks(inode, &indices);
    }

    /// Records blocks for the flush: under their own keys, or with the attributes.
    fn record_blocks(&mut self, inode: InodeId, indices: &[u32]) {
        let mut writes = Vec::with_capacity(indices.len());
        if let Some(Slot::Live(cell)) = self.cells.get(&inode) {
            let inline = cell.file().is_some_and(|file| file.inline);
            for at in indices.iter().filter(|at| **at != 0 || !inline) {
                writes.push((*at, cell.encode_block(*at)));
            }
        }
        for (at, value) in writes {
            match value {
                Some(value) => self.changes.set(keys::block(inode, at), value),
                None => self.changes.remove(keys::block(inode, at)),
            }
        }
        self.put_attributes(inode);
    }
}

impl super::file::FileData {
    /// Bytes that buffered data will add to what is allocated.
    fn buffered_growth(&self) -> u64 {
        let touched: std::collections::BTreeSet<u32> = self
            .dirty
            .keys()
            .chain(self.writing.keys())
            .copied()
            .collect();
        touched
            .into_iter()
            .map(|at| {
                self.visible_allocation(at)
                    .saturating_sub(self.stable_allocation(at))
            })
            .sum()
    }
}
