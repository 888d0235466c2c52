//! One block of a file: its body, and what lies over it.

use std::ops::Range;

use base::ChunkId;
use base::limits::{INLINE_BLOCK_BYTES_MAX, PATCH_BYTES_MAX, PATCHES_MAX};
use bytes::Bytes;

use super::extents::{Extents, index};

/// Granularity in which allocated bytes are counted, as common filesystems do.
const ALLOCATION_BYTES: u64 = 4096;

/// What a block's content is based on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Body {
    /// Zeros.
    #[default]
    Empty,
    /// Bytes in the metadata store, at most [`INLINE_BLOCK_BYTES_MAX`].
    Inline(Bytes),
    /// A chunk.
    Chunk {
        /// Its name.
        id: ChunkId,
        /// Its length.
        bytes: u32,
    },
}

/// A block of a file as the session knows it.
///
/// Its content is the first `valid` bytes of the body, zeros after that, with the patches over
/// both. So cutting a block needs no data: `valid` shrinks, and what was cut can never come back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// What the content is based on.
    pub body: Body,
    /// How much of the body counts.
    pub valid: u32,
    /// Small writes since the body was made.
    pub patches: Extents,
}

/// Where a piece of a file's content comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Zeros.
    Zero(u32),
    /// Bytes at hand.
    Bytes(Bytes),
    /// Part of a chunk.
    Chunk {
        /// The chunk.
        id: ChunkId,
        /// First byte wanted.
        offset: u32,
        /// Bytes wanted.
        length: u32,
    },
}

impl Piece {
    /// Bytes in the piece.
    #[must_use]
    pub fn len(&self) -> u32 {
        match self {
            Self::Zero(length) | Self::Chunk { length, .. } => *length,
            Self::Bytes(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        }
    }

    /// Whether the piece holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part `from..to` of the piece.
    fn slice(&self, from: u32, to: u32) -> Self {
        match self {
            Self::Zero(_) => Self::Zero(to - from),
            Self::Bytes(bytes) => Self::Bytes(bytes.slice(index(from)..index(to))),
            Self::Chunk { id, offset, .. } => Self::Chunk {
                id: *id,
                offset: offset + from,
                length: to - from,
            },
        }
    }
}

impl Block {
    /// The whole of `content` as a block that lives in the metadata store.
    #[must_use]
    pub fn inline(content: Bytes) -> Self {
        let valid = u32::try_from(content.len()).unwrap_or(u32::MAX);
        Self {
            body: Body::Inline(content),
            valid,
            patches: Extents::default(),
        }
    }

    /// A block that is one chunk.
    #[must_use]
    pub fn chunk(id: ChunkId, bytes: u32) -> Self {
        Self {
            body: Body::Chunk { id, bytes },
            valid: bytes,
            patches: Extents::default(),
        }
    }

    /// First offset after the content.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.valid.max(self.patches.end())
    }

    /// Cuts the content at `at`.
    pub fn cut(&mut self, at: u32) {
        self.valid = self.valid.min(at);
        self.patches.cut(at);
        if self.valid == 0 {
            self.body = Body::Empty;
        }
    }

    /// Whether nothing is allocated.
    #[must_use]
    pub fn is_hole(&self) -> bool {
        self.valid == 0 && self.patches.is_empty()
    }

    /// The pieces that make up `from..to`, with `over` laid over the block in order.
    #[must_use]
    pub fn pieces(&self, from: u32, to: u32, over: [Option<&Extents>; 2]) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity(2);
        let body_end = self.valid.clamp(from, to);
        if body_end > from {
            match &self.body {
                Body::Empty => pieces.push(Piece::Zero(body_end - from)),
                Body::Inline(bytes) => {
                    pieces.push(Piece::Bytes(bytes.slice(index(from)..index(body_end))));
                }
                Body::Chunk { id, .. } => {
                    pieces.push(Piece::Chunk {
                        id: *id,
                        offset: from,
                        length: body_end - from,
                    });
                }
            }
        }
        if to > body_end {
            pieces.push(Piece::Zero(to - body_end));
        }
        let layers = [Some(&self.patches), over[0], over[1]];
        for extents in layers
            .into_iter()
            .flatten()
            .filter(|extents| !extents.is_empty())
        {
            pieces = lay_over(&pieces, from, to, extents);
        }
        pieces
    }

    /// Takes `over` into the block without making a chunk, if it is small enough for that.
    #[must_use]
    pub fn absorb(&self, over: &Extents) -> Option<Self> {
        let end = self.end().max(over.end());
        let in_store = !matches!(self.body, Body::Chunk { .. });
        if in_store && index(end) <= INLINE_BLOCK_BYTES_MAX {
            let mut content = Vec::with_capacity(index(end));
            for piece in self.pieces(0, end, [Some(over), None]) {
                match piece {
                    Piece::Zero(length) => content.resize(content.len() + index(length), 0),
                    Piece::Bytes(bytes) => content.extend_from_slice(&bytes),
                    Piece::Chunk { .. } => return None,
                }
            }
            return Some(Self::inline(Bytes::from(content)));
        }
        let mut patches = self.patches.clone();
        // Copied, so that a small patch does not hold a whole received record in memory.
        for (offset, data) in over.iter() {
            patches.insert(offset, Bytes::copy_from_slice(data));
        }
        let small = patches.bytes() <= PATCH_BYTES_MAX && patches.len() <= PATCHES_MAX;
        small.then(|| Self {
            patches,
            ..self.clone()
        })
    }
}

/// Lays `extents` over `pieces`, which make up `from..to`.
fn lay_over(pieces: &[Piece], from: u32, to: u32, extents: &Extents) -> Vec<Piece> {
    let mut result = Vec::with_capacity(pieces.len() + 2);
    let mut at = from;
    for (offset, data) in extents.iter() {
        let end = offset.saturating_add(u32::try_from(data.len()).unwrap_or(u32::MAX));
        let (start, stop) = (offset.max(at), end.min(to));
        if stop <= start {
            continue;
        }
        take(pieces, from, at, start, &mut result);
        result.push(Piece::Bytes(
            data.slice(index(start - offset)..index(stop - offset)),
        ));
        at = stop;
    }
    take(pieces, from, at, to, &mut result);
    result
}

/// Appends the part `start..stop` of `pieces`, the first of which begins at `from`.
fn take(pieces: &[Piece], from: u32, start: u32, stop: u32, result: &mut Vec<Piece>) {
    let mut at = from;
    for piece in pieces {
        let end = at + piece.len();
        let (first, last) = (start.max(at), stop.min(end));
        if first < last {
            result.push(piece.slice(first - at, last - at));
        }
        at = end;
    }
}

/// Bytes allocated for a block with `over` laid over it: the union of all that holds data.
#[must_use]
pub fn allocated(block: Option<&Block>, over: [Option<&Extents>; 2]) -> u64 {
    allocated_with(block, over, 0..0)
}

/// The same with data at `extra` too.
pub(super) fn allocated_with(
    block: Option<&Block>,
    over: [Option<&Extents>; 2],
    extra: Range<u32>,
) -> u64 {
    let patches = block.map(|block| &block.patches);
    let layers = [patches, over[0], over[1]];
    let mut runs: Vec<(u32, u32)> = layers
        .into_iter()
        .flatten()
        .flat_map(Extents::iter)
        .map(|(offset, data)| {
            (
                offset,
                offset.saturating_add(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            )
        })
        .chain([(extra.start, extra.end)])
        .collect();
    let body_end = block.map_or(0, |block| block.valid);
    runs.sort_unstable();
    let mut covered = u64::from(body_end);
    let mut at = body_end;
    for (start, end) in runs {
        let start = start.max(at);
        if end > start {
            covered += u64::from(end - start);
            at = end;
        }
    }
    covered.next_multiple_of(ALLOCATION_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pieces: &[Piece]) -> Vec<u8> {
        let mut content = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Zero(length) => content.resize(content.len() + index(*length), 0),
                Piece::Bytes(bytes) => content.extend_from_slice(bytes),
                // Chunks in this test hold their offsets.
                Piece::Chunk { offset, length, .. } => {
                    content.extend((*offset..*offset + *length).map(|at| at.to_le_bytes()[0]));
                }
            }
        }
        content
    }

    proptest! {
        #[test]
        fn pieces_make_up_the_content(
            valid in 0..100_u32,
            patches in proptest::collection::vec((0..90_u32, 1..20_usize), 0..5),
            dirty in proptest::collection::vec((0..90_u32, 1..20_usize), 0..5),
            from in 0..120_u32,
            length in 0..120_u32,
        ) {
            let mut block = Block::chunk(ChunkId::new([1; 32]), 100);
            block.valid = valid;
            let mut over = Extents::default();
            let mut model: Vec<u8> =
                (0..256_u32).map(|at| if at < valid { at.to_le_bytes()[0] } else { 0 }).collect();
            for (offset, length) in patches {
                block.patches.insert(offset, Bytes::from(vec![201; length]));
                model[index(offset)..index(offset) + length].fill(201);
            }
            for (offset, length) in dirty {
                over.insert(offset, Bytes::from(vec![202; length]));
                model[index(offset)..index(offset) + length].fill(202);
            }
            let pieces = block.pieces(from, from + length, [Some(&over), None]);
            prop_assert_eq!(&read(&pieces)[..], &model[index(from)..index(from + length)]);
            if let Some(absorbed) = block.absorb(&over) {
                let pieces = absorbed.pieces(from, from + length, [None, None]);
                prop_assert_eq!(&read(&pieces)[..], &model[index(from)..index(from + length)]);
            }
        }
    }

    #[test]
    fn what_was_cut_does_not_come_back() {
        let mut block = Block::inline(Bytes::from_static(b"abcdef"));
        block.cut(2);
        assert_eq!(read(&block.pieces(0, 6, [None, None])), b"ab\0\0\0\0");
    }

    #[test]
    fn allocation_counts_what_holds_data_once() {
        let mut block = Block::inline(Bytes::from(vec![1; 5000]));
        block.patches.insert(4000, Bytes::from(vec![2; 3000]));
        let mut dirty = Extents::default();
        dirty.insert(60_000, Bytes::from(vec![3; 4096]));
        assert_eq!(allocated(Some(&block), [None, None]), 8192);
        assert_eq!(allocated(Some(&block), [None, Some(&dirty)]), 12_288);
        assert_eq!(allocated(None, [None, None]), 0);
    }
}
