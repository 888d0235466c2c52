//! The stored form of a chunk: a 64-byte header, then the body.
//!
//! | bytes | field |
//! |-------|-------|
//! | 0..4 | magic `HFC1`: format version 1 |
//! | 4 | codec: 0 plain, 1 zstd |
//! | 5..8 | zero |
//! | 8..16 | domain, big-endian |
//! | 16..48 | name: keyed blake3 of the plain content |
//! | 48..52 | length of the body, big-endian |
//! | 52..56 | length of the plain content, big-endian |
//! | 56..60 | first 4 bytes of the blake3 hash of the body |
//! | 60..64 | first 4 bytes of the blake3 hash of bytes 0..60 |
//!
//! The two checksums tell torn and damaged records without the domain's key. The name is checked
//! with every read.

use base::limits::CHUNK_BYTES_MAX;
use base::{ChunkId, DomainId};
use bytes::Bytes;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 64;

/// Start of every record: magic and format version.
pub(crate) const MAGIC: [u8; 4] = *b"HFC1";
const CODEC_PLAIN: u8 = 0;
const CODEC_ZSTD: u8 = 1;

/// Compression level: the fastest, since most content is compressed once and read often.
const ZSTD_LEVEL: i32 = 1;

/// Bytes compressed to see whether compressing is worth while.
const SAMPLE_BYTES: usize = 8 * 1024;

/// What a record says of its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) domain: DomainId,
    pub(crate) id: ChunkId,
    pub(crate) compressed: bool,
    pub(crate) stored_bytes: u32,
    pub(crate) plain_bytes: u32,
    body_check: [u8; 4],
}

/// A record is not one of ours, or damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadRecord;

fn check(bytes: &[u8]) -> [u8; 4] {
    blake3::hash(bytes)
        .as_bytes()
        .first_chunk()
        .copied()
        .unwrap_or_default()
}

/// Encodes `content`: the header and the body.
pub(crate) fn encode(domain: DomainId, id: ChunkId, content: &Bytes) -> (Header, Bytes) {
    let (compressed, body) = match compress(content) {
        Some(body) => (true, body),
        None => (false, content.clone()),
    };
    let header = Header {
        domain,
        id,
        compressed,
        stored_bytes: u32::try_from(body.len()).unwrap_or(u32::MAX),
        plain_bytes: u32::try_from(content.len()).unwrap_or(u32::MAX),
        body_check: check(&body),
    };
    (header, body)
}

/// The compressed content, if that saves at least a sixteenth.
fn compress(content: &Bytes) -> Option<Bytes> {
    if content.len() > 2 * SAMPLE_BYTES {
        let middle = content.len() / 2;
        let sample = content.get(middle..middle + SAMPLE_BYTES)?;
        worthwhile(zstd::bulk::compress(sample, ZSTD_LEVEL).ok()?, SAMPLE_BYTES)?;
    }
    worthwhile(
        zstd::bulk::compress(content, ZSTD_LEVEL).ok()?,
        content.len(),
    )
    .map(Bytes::from)
}

fn worthwhile(compressed: Vec<u8>, plain_bytes: usize) -> Option<Vec<u8>> {
    (compressed.len() <= plain_bytes - plain_bytes / 16).then_some(compressed)
}

impl Header {
    /// The header's bytes.
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[
            if self.compressed {
                CODEC_ZSTD
            } else {
                CODEC_PLAIN
            },
            0,
            0,
            0,
        ]);
        bytes.extend_from_slice(&self.domain.raw().to_be_bytes());
        bytes.extend_from_slice(self.id.as_bytes());
        bytes.extend_from_slice(&self.stored_bytes.to_be_bytes());
        bytes.extend_from_slice(&self.plain_bytes.to_be_bytes());
        bytes.extend_from_slice(&self.body_check);
        let sum = check(&bytes);
        bytes.extend_from_slice(&sum);
        bytes.first_chunk().copied().unwrap_or([0; HEADER_BYTES])
    }

    /// Decodes a header.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, BadRecord> {
        let (fields, sum) = bytes.split_at(HEADER_BYTES - 4);
        if check(fields) != *sum {
            return Err(BadRecord);
        }
        let (magic, rest) = fields.split_first_chunk::<4>().ok_or(BadRecord)?;
        let (codec, rest) = rest.split_first_chunk::<4>().ok_or(BadRecord)?;
        let (domain, rest) = rest.split_first_chunk().ok_or(BadRecord)?;
        let (id, rest) = rest.split_first_chunk().ok_or(BadRecord)?;
        let (stored, rest) = rest.split_first_chunk().ok_or(BadRecord)?;
        let (plain, rest) = rest.split_first_chunk().ok_or(BadRecord)?;
        let compressed = match codec {
            [CODEC_PLAIN, 0, 0, 0] => false,
            [CODEC_ZSTD, 0, 0, 0] => true,
            _ => return Err(BadRecord),
        };
        let header = Self {
            domain: DomainId::new(u64::from_be_bytes(*domain)),
            id: ChunkId::new(*id),
            compressed,
            stored_bytes: u32::from_be_bytes(*stored),
            plain_bytes: u32::from_be_bytes(*plain),
            body_check: *rest.first_chunk().ok_or(BadRecord)?,
        };
        let max = u32::try_from(CHUNK_BYTES_MAX).unwrap_or(u32::MAX);
        let sane = header.plain_bytes <= max && header.stored_bytes <= header.plain_bytes;
        if *magic == MAGIC && sane {
            Ok(header)
        } else {
            Err(BadRecord)
        }
    }

    /// Whether `body` is what was written.
    pub(crate) fn matches(&self, body: &[u8]) -> bool {
        check(body) == self.body_check
    }

    /// The plain content of `body`.
    pub(crate) fn open(&self, body: Vec<u8>) -> Result<Bytes, BadRecord> {
        if !self.compressed {
            return Ok(Bytes::from(body));
        }
        let plain_bytes = usize::try_from(self.plain_bytes).map_err(|_| BadRecord)?;
        zstd::bulk::decompress(&body, plain_bytes)
            .map(Bytes::from)
            .map_err(|_| BadRecord)
    }

    /// Bytes of the whole record.
    pub(crate) fn record_bytes(&self) -> u64 {
        u64::try_from(HEADER_BYTES).unwrap_or(0) + u64::from(self.stored_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let content = Bytes::from_static(b"hi");
        let (header, body) = encode(DomainId::new(1), ChunkId::new([7; 32]), &content);
        assert_eq!(body, content);
        let bytes = header.encode();
        let mut expected = b"HFC1\0\0\0\0\0\0\0\0\0\0\0\x01".to_vec();
        expected.extend([7; 32]);
        expected.extend([0, 0, 0, 2, 0, 0, 0, 2]);
        assert_eq!(bytes[..56], expected);
        assert_eq!(Header::decode(&bytes), Ok(header));
    }

    #[test]
    fn what_compresses_is_compressed_and_comes_back() {
        for content in [vec![b'a'; 100_000], vec![1, 2, 3]] {
            let content = Bytes::from(content);
            let (header, body) = encode(DomainId::new(1), ChunkId::new([7; 32]), &content);
            assert_eq!(header.compressed, content.len() > 1000);
            assert!(header.matches(&body));
            assert_eq!(header.open(body.to_vec()), Ok(content));
        }
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_noticed(bit in 0..HEADER_BYTES * 8) {
            let (header, _) = encode(DomainId::new(1), ChunkId::new([7; 32]), &Bytes::from_static(b"hi"));
            let mut bytes = header.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Header::decode(&bytes), Err(BadRecord));
        }
    }
}
