//! How the parts of a block that came in become a block: holes stay holes where a block can say so.

use base::ChunkId;
use base::limits::{INLINE_BLOCK_BYTES_MAX, PATCH_BYTES_MAX, PATCHES_MAX};
use bytes::{Bytes, BytesMut};
use metadata::image::{Block, Body, Extents};

/// The parts of a block that came in, in order and apart from each other, with where they begin.
#[derive(Debug, Default)]
pub(super) struct Parts(Vec<(u32, BytesMut)>);

/// A block that is put together.
#[derive(Debug)]
pub(super) struct Laid {
    /// The block; its chunk has no name yet.
    pub(super) block: Block,
    /// What its chunk is to hold, if it has one.
    pub(super) chunk: Option<Bytes>,
}

impl Parts {
    /// Whether nothing came in.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes, if they are one part from the beginning of the block on.
    pub(super) fn whole(&self) -> Option<&[u8]> {
        match self.0.as_slice() {
            [(0, bytes)] => Some(bytes),
            _ => None,
        }
    }

    /// Takes in what comes next. Offsets rise.
    pub(super) fn push(&mut self, offset: u32, data: &[u8]) {
        match self.0.last_mut() {
            Some((start, last)) if usize_of(*start) + last.len() == usize_of(offset) => {
                last.extend_from_slice(data);
            }
            _ => self.0.push((offset, BytesMut::from(data))),
        }
    }

    /// Makes a block of them. What does not begin at the start of the block stays beside its body if
    /// it is little; else zeros fill the holes before it.
    pub(super) fn lay(self) -> Laid {
        let mut parts = self.0;
        let is_little = |parts: &[(u32, BytesMut)]| {
            let bytes: usize = parts.iter().map(|(_, data)| data.len()).sum();
            bytes <= PATCH_BYTES_MAX && parts.len() <= PATCHES_MAX
        };
        let has_prefix = parts.first().is_some_and(|(start, _)| *start == 0);
        let rest = parts.get(usize::from(has_prefix)..).unwrap_or_default();
        if !is_little(rest) {
            let mut all = BytesMut::new();
            for (start, data) in &parts {
                all.resize(usize_of(*start), 0);
                all.extend_from_slice(data);
            }
            parts = vec![(0, all)];
        }
        let mut body = BytesMut::new();
        let mut patches = Extents::default();
        for (start, data) in parts {
            if start == 0 {
                body = data;
            } else {
                patches.insert(start, data.freeze());
            }
        }
        let body = body.freeze();
        let valid = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let (body, chunk) = match body.len() {
            0 => (Body::Empty, None),
            1..=INLINE_BLOCK_BYTES_MAX => (Body::Inline(body), None),
            _ => {
                let id = ChunkId::new([0; 32]);
                (Body::Chunk { id, bytes: valid }, Some(body))
            }
        };
        Laid {
            block: Block {
                body,
                valid,
                patches,
            },
            chunk,
        }
    }
}

fn usize_of(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use metadata::image::Piece;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_block_has_what_came_in(
            gaps in proptest::collection::vec((0..20_000_u32, 1..20_000_usize), 1..6),
        ) {
            let (mut parts, mut at) = (Parts::default(), 0);
            let mut model = Vec::new();
            for (number, (gap, length)) in gaps.iter().enumerate() {
                at += gap;
                let data = vec![u8::try_from(number + 1).unwrap(); *length];
                parts.push(at, &data);
                model.resize(usize_of(at), 0);
                model.extend(&data);
                at += u32::try_from(*length).unwrap();
            }
            let laid = parts.lay();
            prop_assert!(laid.block.patches.bytes() <= PATCH_BYTES_MAX);
            let mut content = Vec::new();
            for piece in laid.block.pieces(0, laid.block.end(), [None, None]) {
                match piece {
                    Piece::Zero(length) => content.resize(content.len() + usize_of(length), 0),
                    Piece::Bytes(bytes) => content.extend(bytes),
                    Piece::Chunk { offset, length, .. } => {
                        let chunk = laid.chunk.as_ref().unwrap();
                        content.extend(&chunk[usize_of(offset)..usize_of(offset + length)]);
                    }
                }
            }
            prop_assert_eq!(content, model);
        }
    }

    #[test]
    fn holes_stay_holes_before_what_is_little() {
        let mut parts = Parts::default();
        parts.push(4096, b"x");
        parts.push(100_000, &[1; 4096]);
        let laid = parts.lay();
        assert_eq!((laid.block.valid, laid.chunk), (0, None));
        assert_eq!(laid.block.patches.len(), 2);
    }
}
