//! Files in memory: the block map, and data that is not yet in any store.
//!
//! A WRITE goes into `dirty` and shows at once. Write-back moves `dirty` to `writing` while chunks
//! are stored, and then into `blocks`, where a flush makes it durable. `stable_size` and
//! `stable_used` are the size and allocation without what is only buffered: what a flush may say
//! of the file before its data is written.

use std::collections::{BTreeMap, BTreeSet};

use base::{InodeId, Timestamp};
use bytes::Bytes;

use super::Image;
use super::block::{Block, Piece, allocated, allocated_with};
use super::cell::{Cell, Content};
use super::changes::Clear;
use super::extents::{Extents, index};
use super::spans::Spans;
use crate::error::{FsError, Miss, OpResult};
use crate::keyspace::image as keys;
use crate::stat::Stat;

/// Unwritten data by block.
pub(super) type Buffer = BTreeMap<u32, Extents>;

/// A file's content, as far as it is in memory.
#[derive(Debug)]
pub(crate) struct FileData {
    pub(super) blocks: BTreeMap<u32, Block>,
    pub(super) loaded: Spans,
    /// Data that no write-back has taken yet.
    pub(super) dirty: Buffer,
    /// Data that a write-back is storing; older than `dirty`.
    pub(super) writing: Buffer,
    /// Number of the oldest unwritten write in each block of `dirty`.
    pub(super) since: BTreeMap<u32, u64>,
    /// The same for all of `writing`; `u64::MAX` if nothing is being written.
    pub(super) writing_since: u64,
    /// Where the next write-back begins, so that a busy block does not starve the others.
    pub(super) cursor: u32,
    /// A write-back runs. `writing` alone does not tell: a cut may have left nothing of it.
    pub(super) in_flight: bool,
    /// Where the file has been cut since that write-back began.
    pub(super) cut: u64,
    pub(super) stable_size: u64,
    pub(super) stable_used: u64,
    /// Content lives in the attribute record.
    pub(super) inline: bool,
}

impl FileData {
    /// A file that was just made.
    pub(crate) fn empty() -> Self {
        Self {
            blocks: BTreeMap::new(),
            loaded: Spans::all(),
            dirty: Buffer::new(),
            writing: Buffer::new(),
            since: BTreeMap::new(),
            writing_since: u64::MAX,
            cursor: 0,
            in_flight: false,
            cut: u64::MAX,
            stable_size: 0,
            stable_used: 0,
            inline: false,
        }
    }

    pub(super) fn from_record(stat: &Stat, inline: Option<Bytes>, block_bytes: u32) -> Self {
        let mut file = Self {
            loaded: Spans::default(),
            stable_size: stat.size,
            stable_used: stat.used,
            inline: inline.is_some(),
            ..Self::empty()
        };
        if let Some(content) = inline {
            file.blocks.insert(0, Block::inline(content));
            file.loaded = Spans::all();
        } else if stat.size == 0 {
            file.loaded = Spans::all();
        } else {
            // Beyond the end there are no blocks.
            let last = stat.size.div_ceil(u64::from(block_bytes));
            file.loaded.add(last, u64::MAX);
        }
        file
    }

    /// Whether everything is in the block map.
    pub(super) fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.writing.is_empty()
    }

    pub(super) fn buffered_bytes(&self) -> usize {
        self.dirty
            .values()
            .chain(self.writing.values())
            .map(Extents::bytes)
            .sum()
    }

    /// Installs blocks that were read; returns how many that added.
    pub(super) fn install(&mut self, first: u32, last: u32, found: Vec<(u32, Block)>) -> usize {
        let mut added = 0;
        for (at, block) in found {
            if !self.loaded.covers(u64::from(at), u64::from(at)) {
                self.blocks.insert(at, block);
                added += 1;
            }
        }
        let last = if last == u32::MAX {
            u64::MAX
        } else {
            u64::from(last)
        };
        self.loaded.add(u64::from(first), last);
        added
    }

    /// Bytes allocated for block `at`, with buffered data.
    pub(super) fn visible_allocation(&self, at: u32) -> u64 {
        allocated(
            self.blocks.get(&at),
            [self.writing.get(&at), self.dirty.get(&at)],
        )
    }

    /// Bytes allocated for block `at` by what is stored.
    pub(super) fn stable_allocation(&self, at: u32) -> u64 {
        allocated(self.blocks.get(&at), [None, None])
    }

    /// The content, if it is one small block whose home is the attribute record.
    pub(super) fn inline_content(&self) -> Option<Bytes> {
        use super::block::Body;
        match self.blocks.get(&0) {
            Some(Block {
                body: Body::Inline(content),
                valid,
                ..
            }) if self.inline => Some(content.slice(..index(*valid).min(content.len()))),
            _ => None,
        }
    }
}

/// The part of a byte range that lies in one block.
#[derive(Clone, Copy, Debug)]
struct Part {
    block: u32,
    from: u32,
    to: u32,
}

/// Splits `offset..end` at block boundaries.
fn parts(offset: u64, end: u64, block_bytes: u32) -> impl Iterator<Item = Part> {
    let size = u64::from(block_bytes);
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let block = u32::try_from(at / size).ok()?;
        let from = u32::try_from(at % size).ok()?;
        let stop = end.min((at / size + 1) * size);
        let to = from + u32::try_from(stop - at).ok()?;
        at = stop;
        Some(Part { block, from, to })
    })
}

impl Image {
    /// Largest size a file may have.
    #[must_use]
    pub fn file_bytes_max(&self) -> u64 {
        u64::from(self.config.block_bytes) << 32
    }

    /// A file's content in `offset..offset + count`, which must lie within its size.
    pub(crate) fn read_pieces(
        &mut self,
        inode: InodeId,
        offset: u64,
        count: u32,
    ) -> OpResult<Vec<Piece>> {
        let end = offset + u64::from(count);
        self.require_blocks(inode, offset, end)?;
        let block_bytes = self.config.block_bytes;
        let file = self.file_data(inode)?;
        let mut pieces = Vec::with_capacity(10);
        for part in parts(offset, end, block_bytes) {
            let over = [file.writing.get(&part.block), file.dirty.get(&part.block)];
            match file.blocks.get(&part.block) {
                Some(block) => pieces.extend(block.pieces(part.from, part.to, over)),
                None => pieces.extend(Block::default().pieces(part.from, part.to, over)),
            }
        }
        Ok(pieces)
    }

    /// Misses unless the block map entries that `offset..end` touches are loaded.
    pub(crate) fn require_blocks(&mut self, inode: InodeId, offset: u64, end: u64) -> OpResult<()> {
        if end <= offset {
            return Ok(());
        }
        let size = u64::from(self.config.block_bytes);
        let (first, last) = (offset / size, (end - 1) / size);
        // The first block that is not loaded, so that a wide range is loaded part by part.
        let loaded = &self.file_data(inode)?.loaded;
        let gap = loaded
            .end_of(first)
            .map_or(first, |end| end.saturating_add(1));
        if gap > last || loaded.covers(first, last) {
            return Ok(());
        }
        let clamp = |block: u64| u32::try_from(block).unwrap_or(u32::MAX);
        let (first, last) = (clamp(gap), clamp(last));
        Err(Miss::Blocks { inode, first, last }.into())
    }

    /// Allocated bytes that a write to `offset..end` adds.
    pub(crate) fn growth(&mut self, inode: InodeId, offset: u64, end: u64) -> OpResult<u64> {
        let block_bytes = self.config.block_bytes;
        let file = self.file_data(inode)?;
        Ok(parts(offset, end, block_bytes)
            .map(|part| {
                let grown = allocated_with(
                    file.blocks.get(&part.block),
                    [file.writing.get(&part.block), file.dirty.get(&part.block)],
                    part.from..part.to,
                );
                grown - file.visible_allocation(part.block)
            })
            .sum())
    }

    /// Buffers data. All that can fail has been checked: blocks loaded, size and quota.
    pub(crate) fn buffer_write(
        &mut self,
        inode: InodeId,
        offset: u64,
        data: &Bytes,
        now: Timestamp,
    ) {
        let block_bytes = self.config.block_bytes;
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        self.writes += 1;
        let serial = self.writes;
        let cell = self.known(inode);
        let Content::File(file) = &mut cell.content else {
            return;
        };
        let (mut before, mut after) = (0, 0);
        let buffered = file.buffered_in(offset, offset + length, block_bytes);
        let mut taken = 0;
        for part in parts(offset, offset + length, block_bytes) {
            let bytes = index(part.to - part.from);
            before += file.visible_allocation(part.block);
            let slice = data.slice(taken..taken + bytes);
            file.dirty
                .entry(part.block)
                .or_default()
                .insert(part.from, slice);
            file.since.entry(part.block).or_insert(serial);
            after += file.visible_allocation(part.block);
            taken += bytes;
        }
        let buffered_after = file.buffered_in(offset, offset + length, block_bytes);
        let stat = &mut cell.stat;
        stat.size = stat.size.max(offset + length);
        stat.used = stat.used + after - before;
        stat.ctime = Self::next_time(now, stat.ctime);
        stat.mtime = stat.ctime;
        self.visible_bytes = self.visible_bytes + after - before;
        self.buffered_bytes = self.buffered_bytes + buffered_after - buffered;
    }

    /// Sets a file's size. Blocks from the cut on must be loaded.
    pub(crate) fn set_size(&mut self, inode: InodeId, size: u64) {
        let block_bytes = self.config.block_bytes;
        let cell = self.known(inode);
        let Content::File(file) = &mut cell.content else {
            return;
        };
        let shrinks = size < cell.stat.size;
        cell.stat.size = size;
        file.stable_size = size;
        if shrinks {
            self.cut_file(inode, size, block_bytes);
        }
    }

    fn cut_file(&mut self, inode: InodeId, size: u64, block_bytes: u32) {
        let block_size = u64::from(block_bytes);
        let cell = self.known(inode);
        let Content::File(file) = &mut cell.content else {
            return;
        };
        // The block in which the cut lies keeps its first bytes; all after it go.
        let edge = u32::try_from(size / block_size).unwrap_or(u32::MAX);
        let keep = u32::try_from(size % block_size).unwrap_or(0);
        let before = file.tally(edge);
        let edge_end = file.blocks.get(&edge).map_or(0, Block::end);
        file.cut = file.cut.min(size);
        file.drop_from(edge, keep);
        let after = file.tally(edge);
        file.stable_used = file.stable_used + after.stable - before.stable;
        cell.stat.used = cell.stat.used + after.visible - before.visible;
        let edge_inline = edge == 0 && file.inline;
        let edge_value = cell.encode_block(edge);
        self.blocks_total = self.blocks_total + after.blocks - before.blocks;
        self.buffered_bytes = self.buffered_bytes + after.buffered - before.buffered;
        self.visible_bytes = self.visible_bytes + after.visible - before.visible;
        self.usage.bytes = self.usage.bytes + after.stable - before.stable;
        if let Some(after) = edge.checked_add(1) {
            self.changes.clear(Clear::Blocks(inode, after));
        }
        match edge_value {
            // An inline content is part of the attributes, which the caller records.
            Some(value) if edge_end > keep && !edge_inline => {
                self.changes.set(keys::block(inode, edge), value);
            }
            None if edge_end > keep => self.changes.remove(keys::block(inode, edge)),
            _ => {}
        }
        self.changed = true;
    }

    pub(super) fn file_data(&mut self, inode: InodeId) -> OpResult<&mut FileData> {
        match &mut self.cell(inode)?.content {
            Content::File(file) => Ok(file),
            Content::Dir(_) => Err(FsError::IsDirectory.into()),
            Content::Symlink(_) | Content::Nothing => Err(FsError::Invalid.into()),
        }
    }
}

impl Cell {
    pub(crate) fn new_file(stat: Stat, link: (InodeId, base::Name)) -> Self {
        Self::new(stat, link, Content::File(FileData::empty()))
    }
}

/// What a file holds from some block on.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    visible: u64,
    stable: u64,
    blocks: usize,
    buffered: usize,
}

impl FileData {
    /// Unwritten bytes in the blocks that `offset..end` touches.
    fn buffered_in(&self, offset: u64, end: u64, block_bytes: u32) -> usize {
        parts(offset, end, block_bytes)
            .map(|part| self.dirty.get(&part.block).map_or(0, Extents::bytes))
            .sum()
    }

    /// Counts what the file holds from block `edge` on.
    fn tally(&self, edge: u32) -> Tally {
        let blocks = self.blocks.range(edge..).map(|(at, _)| *at);
        let buffers = [&self.dirty, &self.writing].map(|buffer| buffer.range(edge..));
        let buffered = buffers
            .clone()
            .into_iter()
            .flatten()
            .map(|(_, extents)| extents.bytes());
        let touched: BTreeSet<u32> = blocks
            .chain(buffers.into_iter().flatten().map(|(at, _)| *at))
            .collect();
        Tally {
            visible: touched.iter().map(|at| self.visible_allocation(*at)).sum(),
            stable: touched.iter().map(|at| self.stable_allocation(*at)).sum(),
            blocks: self.blocks.range(edge..).count(),
            buffered: buffered.sum(),
        }
    }

    /// Keeps the first `keep` bytes of block `edge` and nothing after them.
    fn drop_from(&mut self, edge: u32, keep: u32) {
        let after = edge.checked_add(1);
        for buffer in [&mut self.dirty, &mut self.writing] {
            if let Some(after) = after {
                drop(buffer.split_off(&after));
            }
            if let Some(extents) = buffer.get_mut(&edge) {
                extents.cut(keep);
                if extents.is_empty() {
                    buffer.remove(&edge);
                }
            }
        }
        let dirty = &self.dirty;
        self.since.retain(|at, _| dirty.contains_key(at));
        if let Some(after) = after {
            drop(self.blocks.split_off(&after));
        }
        if let Some(block) = self.blocks.get_mut(&edge) {
            block.cut(keep);
            if block.is_hole() {
                self.blocks.remove(&edge);
            }
        }
    }
}
