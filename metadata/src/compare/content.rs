//! Where a file's content is from, at a snapshot.

use std::collections::VecDeque;
use std::ops::Range;

use base::ChunkId;
use bytes::Bytes;

use super::SnapshotError;
use super::snapshot::{Snapshot, decode_block};
use crate::image::{Block, Piece};
use crate::record::inode::InodeRecord;
use crate::stat::FileKind;
use crate::tree::Scan;

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePiece {
    /// Where it is in the file, in bytes.
    pub offset: u64,
    /// Bytes in it; at least one.
    pub length: u64,
    /// What it holds.
    pub source: Source,
}

/// What a part of a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Zeros.
    Hole,
    /// These bytes.
    Bytes(Bytes),
    /// Bytes of a chunk.
    Chunk {
        /// The chunk.
        id: ChunkId,
        /// Where in the chunk the part begins, in bytes.
        offset: u32,
    },
}

/// Tells the parts of a file's content in order, without gaps.
#[derive(Debug)]
pub struct FilePieces {
    /// What is not told yet.
    rest: Range<u64>,
    block_bytes: u64,
    blocks: Option<Scan>,
    ready: VecDeque<FilePiece>,
}

impl FilePieces {
    pub(super) fn new(
        snapshot: &Snapshot,
        record: &InodeRecord,
        block_bytes: u32,
        range: Range<u64>,
    ) -> Self {
        let has_content = matches!(record.stat.kind, FileKind::File | FileKind::Symlink);
        let size = if has_content { record.stat.size } else { 0 };
        let block_bytes = u64::from(block_bytes.max(1));
        let mut pieces = Self {
            rest: range.start..range.end.min(size),
            block_bytes,
            blocks: None,
            ready: VecDeque::new(),
        };
        if pieces.rest.is_empty() {
            return pieces;
        }
        if let Some(content) = &record.inline {
            pieces.push_inline(content);
        } else {
            let clamp = |block: u64| u32::try_from(block).unwrap_or(u32::MAX);
            let first = clamp(pieces.rest.start / block_bytes);
            let last = clamp((pieces.rest.end - 1) / block_bytes);
            pieces.blocks = Some(snapshot.blocks(record.stat.inode, first, last));
        }
        pieces
    }

    /// The next part; `None` after the last. Bytes share the memory of their node: copy what is
    /// kept for long.
    ///
    /// # Errors
    ///
    /// The tree cannot be read, or a block is damaged.
    ///
    /// # Cancellation
    ///
    /// Safe to drop; nothing is skipped.
    pub async fn next(&mut self) -> Result<Option<FilePiece>, SnapshotError> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            if self.rest.is_empty() {
                return Ok(None);
            }
            let found = match &mut self.blocks {
                Some(blocks) => blocks.next().await?,
                None => None,
            };
            match found {
                Some((key, value)) => {
                    let (index, block) = decode_block(&key, &value)?;
                    self.push_block(index, &block);
                }
                None => self.push_hole(self.rest.end),
            }
        }
    }

    /// A name for all that is not told yet: parts with one name have equal bytes. Equal bytes that
    /// are stored in different ways may have different names. Reads the block map, no content.
    ///
    /// # Errors
    ///
    /// As [`FilePieces::next`].
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn id(mut self) -> Result<blake3::Hash, SnapshotError> {
        let mut hasher = blake3::Hasher::new_derive_key("holdfast 2026 content id v1");
        while let Some(piece) = self.next().await? {
            hasher.update(&piece.length.to_be_bytes());
            match piece.source {
                Source::Hole => hasher.update(&[0]),
                Source::Bytes(bytes) => hasher.update(&[1]).update(&bytes),
                Source::Chunk { id, offset } => {
                    hasher.update(&[2]).update(id.as_bytes());
                    hasher.update(&offset.to_be_bytes())
                }
            };
        }
        Ok(hasher.finalize())
    }

    fn push_inline(&mut self, content: &Bytes) {
        let Range { start, end } = self.rest;
        let length = u64::try_from(content.len()).unwrap_or(u64::MAX);
        let to = end.min(length);
        let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        if start < to {
            let bytes = content.slice(index(start)..index(to));
            self.push(to, Source::Bytes(bytes));
        }
    }

    fn push_block(&mut self, index: u32, block: &Block) {
        let start = u64::from(index).saturating_mul(self.block_bytes);
        let from = start.max(self.rest.start);
        let to = start.saturating_add(self.block_bytes).min(self.rest.end);
        if from >= to {
            return;
        }
        self.push_hole(from);
        // Both lie in the block, whose size is a `u32`.
        let within = |at: u64| u32::try_from(at - start).unwrap_or(u32::MAX);
        for piece in block.pieces(within(from), within(to), [None, None]) {
            let end = self.rest.start + u64::from(piece.len());
            let source = match piece {
                Piece::Zero(_) => Source::Hole,
                Piece::Bytes(bytes) => Source::Bytes(bytes),
                Piece::Chunk { id, offset, .. } => Source::Chunk { id, offset },
            };
            self.push(end, source);
        }
    }

    fn push_hole(&mut self, end: u64) {
        self.push(end, Source::Hole);
    }

    /// Tells the part up to `end`.
    fn push(&mut self, end: u64, source: Source) {
        let offset = self.rest.start;
        if end > offset {
            let length = end - offset;
            self.ready.push_back(FilePiece {
                offset,
                length,
                source,
            });
            self.rest.start = end;
        }
    }
}
