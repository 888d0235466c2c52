//! Block of a file: body, valid length, patches.

use base::ChunkId;
use bytes::Bytes;

use super::{Reader, RecordError, Writer};
use crate::image::{Block, Body, Extents};

const VERSION: u8 = 1;
const BODY_EMPTY: u8 = 0;
const BODY_INLINE: u8 = 1;
const BODY_CHUNK: u8 = 2;

/// Encodes a block.
#[must_use]
pub fn encode(block: &Block) -> Bytes {
    let mut to = Writer::new(VERSION);
    to.u32(block.valid);
    match &block.body {
        Body::Empty => to.u8(BODY_EMPTY),
        Body::Inline(bytes) => {
            to.u8(BODY_INLINE);
            to.bytes(bytes);
        }
        Body::Chunk { id, bytes } => {
            to.u8(BODY_CHUNK);
            to.raw(id.as_bytes());
            to.u32(*bytes);
        }
    }
    to.u32(u32::try_from(block.patches.len()).unwrap_or(u32::MAX));
    for (offset, data) in block.patches.iter() {
        to.u32(offset);
        to.bytes(data);
    }
    to.finish()
}

/// Decodes a stored block.
///
/// # Errors
///
/// The bytes are damaged or of another release.
pub fn decode(record: &[u8]) -> Result<Block, RecordError> {
    let mut from = Reader::new(record, VERSION)?;
    let valid = from.u32()?;
    let body = match from.u8()? {
        BODY_EMPTY => Body::Empty,
        BODY_INLINE => Body::Inline(Bytes::copy_from_slice(from.bytes()?)),
        BODY_CHUNK => Body::Chunk {
            id: ChunkId::new(from.array()?),
            bytes: from.u32()?,
        },
        _ => return Err(RecordError::Field("block body")),
    };
    let body_bytes = match &body {
        Body::Empty => 0,
        Body::Inline(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        Body::Chunk { bytes, .. } => *bytes,
    };
    if valid > body_bytes {
        return Err(RecordError::Field("valid length"));
    }
    let mut patches = Extents::default();
    let mut last_end = 0;
    for _ in 0..from.u32()? {
        let offset = from.u32()?;
        let data = from.bytes()?;
        if offset < last_end || data.is_empty() {
            return Err(RecordError::Field("patch"));
        }
        last_end = u32::try_from(data.len())
            .ok()
            .and_then(|length| offset.checked_add(length))
            .ok_or(RecordError::Field("patch"))?;
        patches.insert(offset, Bytes::copy_from_slice(data));
    }
    from.end()?;
    Ok(Block {
        body,
        valid,
        patches,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let mut block = Block::inline(Bytes::from_static(b"hi"));
        block.patches.insert(5, Bytes::from_static(b"x"));
        let bytes: &[u8] = &[
            1, // version
            0, 0, 0, 2, // valid
            1, 0, 0, 0, 2, b'h', b'i', // inline body
            0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 1, b'x', // one patch
        ];
        assert_eq!(encode(&block), bytes);
        assert_eq!(decode(bytes), Ok(block));
        let hole = Block {
            body: Body::Chunk {
                id: ChunkId::new([7; 32]),
                bytes: 9,
            },
            valid: 3,
            ..Block::default()
        };
        assert_eq!(decode(&encode(&hole)), Ok(hole));
    }

    proptest! {
        #[test]
        fn decode_is_total(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut versioned = vec![VERSION];
            versioned.extend(bytes);
            if let Ok(block) = decode(&versioned) {
                prop_assert_eq!(encode(&block), versioned);
            }
        }
    }
}
