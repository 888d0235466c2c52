//! A chunk as it is written to a device: a header of fixed size, then the stored bytes.
//!
//! | offset | field        | bytes | content                                                    |
//! |--------|--------------|-------|------------------------------------------------------------|
//! | 0      | magic        | 4     | `HFCK`                                                     |
//! | 4      | version      | 1     | 1                                                          |
//! | 5      | codec        | 1     | 0 raw, 1 zstd                                              |
//! | 6      | reserved     | 2     | 0                                                          |
//! | 8      | domain       | 8     | deduplication domain                                       |
//! | 16     | id           | 32    | keyed blake3 of the plain bytes                            |
//! | 48     | stored bytes | 4     | length of what follows the header                          |
//! | 52     | plain bytes  | 4     | length of the content                                      |
//! | 56     | body check   | 16    | blake3 of the stored bytes, truncated                      |
//! | 72     | header check | 8     | blake3 of the place and the bytes before, truncated        |
//!
//! Numbers are big-endian. The place is the pack's number (4 bytes) and the record's offset in it
//! (4 bytes). It is hashed and not stored, so that bytes of a record which turn up elsewhere, for
//! example inside another chunk's content, are not taken for a record.
//!
//! The body check needs no key. It tells a whole record from a torn one when a pack is scanned,
//! and lets a check of the whole store run without the domains' keys.

use std::cell::RefCell;

use base::limits::CHUNK_BYTES_MAX;
use base::{ChunkId, DomainId};
use bytes::Bytes;

use crate::{ChunkError, Domain};

/// Length of a record's header.
pub(crate) const HEADER_BYTES: usize = 80;

/// First bytes of every record.
pub(crate) const MAGIC: [u8; 4] = *b"HFCK";

const VERSION: u8 = 1;
const BODY_CHECK_BYTES: usize = 16;
const HEADER_CHECK_BYTES: usize = 8;

/// The fastest level: the store must keep up with a network, and higher levels gain little.
const ZSTD_LEVEL: i32 = 1;

/// Compression is kept if it saves at least one part in this many.
const SAVING_DIVISOR: usize = 16;

/// Contents shorter than this are not sampled: trying to compress them costs as little.
const SAMPLED_BYTES_MIN: usize = 16 * 1024;

/// How many pieces of a content are sampled.
const SAMPLE_PIECES: usize = 64;

/// Length of one sampled piece.
const SAMPLE_PIECE_BYTES: usize = 64;

const _: () = assert!(SAMPLE_PIECES * SAMPLE_PIECE_BYTES <= SAMPLED_BYTES_MIN);

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) pack: u32,
    pub(crate) offset: u32,
}

/// How the stored bytes are made of the plain ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    Raw,
    Zstd,
}

impl Codec {
    fn byte(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Zstd => 1,
        }
    }

    fn parse(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Raw),
            1 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// What a record's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) domain: DomainId,
    pub(crate) id: ChunkId,
    pub(crate) codec: Codec,
    pub(crate) stored_bytes: u32,
    pub(crate) plain_bytes: u32,
    pub(crate) body_check: [u8; BODY_CHECK_BYTES],
}

impl Header {
    /// The header's bytes for a record at `place`.
    pub(crate) fn encode(&self, place: Place) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[VERSION, self.codec.byte(), 0, 0]);
        bytes.extend_from_slice(&self.domain.raw().to_be_bytes());
        bytes.extend_from_slice(self.id.as_bytes());
        bytes.extend_from_slice(&self.stored_bytes.to_be_bytes());
        bytes.extend_from_slice(&self.plain_bytes.to_be_bytes());
        bytes.extend_from_slice(&self.body_check);
        let check = header_check(place, &bytes);
        bytes.extend_from_slice(&check);
        let mut header = [0; HEADER_BYTES];
        for (to, from) in header.iter_mut().zip(bytes) {
            *to = from;
        }
        header
    }

    /// Reads a header found at `place`. `None` if it is not one this program would write there.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES], place: Place) -> Option<Self> {
        let (checked, check) = bytes.split_last_chunk::<HEADER_CHECK_BYTES>()?;
        let (magic, rest) = checked.split_first_chunk::<4>()?;
        let (&[version, codec, 0, 0], rest) = rest.split_first_chunk::<4>()? else {
            return None;
        };
        if *magic != MAGIC || version != VERSION || *check != header_check(place, checked) {
            return None;
        }
        let (domain, rest) = rest.split_first_chunk::<8>()?;
        let (id, rest) = rest.split_first_chunk::<32>()?;
        let (stored_bytes, rest) = rest.split_first_chunk::<4>()?;
        let (plain_bytes, rest) = rest.split_first_chunk::<4>()?;
        let (body_check, _) = rest.split_first_chunk::<BODY_CHECK_BYTES>()?;
        let header = Self {
            domain: DomainId::new(u64::from_be_bytes(*domain)),
            id: ChunkId::new(*id),
            codec: Codec::parse(codec)?,
            stored_bytes: u32::from_be_bytes(*stored_bytes),
            plain_bytes: u32::from_be_bytes(*plain_bytes),
            body_check: *body_check,
        };
        header.is_possible().then_some(header)
    }

    fn is_possible(&self) -> bool {
        let fits = usize::try_from(self.plain_bytes).is_ok_and(|len| len <= CHUNK_BYTES_MAX);
        fits && match self.codec {
            Codec::Raw => self.stored_bytes == self.plain_bytes,
            Codec::Zstd => self.stored_bytes < self.plain_bytes,
        }
    }

    /// Whether `body` is what was written with this header.
    pub(crate) fn matches_body(&self, body: &[u8]) -> bool {
        body_check(body) == self.body_check
    }

    /// The plain bytes. `None` if `body` cannot be what was written.
    pub(crate) fn plain(&self, body: Bytes) -> Option<Bytes> {
        let plain_len = usize::try_from(self.plain_bytes).ok()?;
        let plain = match self.codec {
            Codec::Raw => body,
            // The length was checked against the limit when the header was decoded.
            Codec::Zstd => Bytes::from(zstd::bulk::decompress(&body, plain_len).ok()?),
        };
        (plain.len() == plain_len).then_some(plain)
    }

    /// The plain bytes, if this is the chunk of that name and `body` what was written.
    pub(crate) fn content(&self, domain: Domain, id: ChunkId, body: Bytes) -> Option<Bytes> {
        let plain = (self.domain == domain.id && self.id == id).then(|| self.plain(body));
        plain.flatten().filter(|plain| domain.chunk_id(plain) == id)
    }
}

/// A record but for its place, which only the writer knows.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) header: Header,
    pub(crate) body: Bytes,
}

impl Record {
    /// Compresses `content`, whose name is `id`, if that helps.
    ///
    /// # Errors
    ///
    /// `TooLarge` if it is larger than a chunk may be.
    pub(crate) fn new(domain: Domain, id: ChunkId, content: Bytes) -> Result<Self, ChunkError> {
        let too_large = ChunkError::TooLarge(content.len());
        if content.len() > CHUNK_BYTES_MAX {
            return Err(too_large);
        }
        let plain_bytes = u32::try_from(content.len()).map_err(|_| too_large.clone())?;
        let (codec, body) = match compress(&content) {
            Some(compressed) => (Codec::Zstd, compressed),
            None => (Codec::Raw, content),
        };
        let header = Header {
            domain: domain.id,
            id,
            codec,
            stored_bytes: u32::try_from(body.len()).map_err(|_| too_large)?,
            plain_bytes,
            body_check: body_check(&body),
        };
        Ok(Self { header, body })
    }
}

fn body_check(body: &[u8]) -> [u8; BODY_CHECK_BYTES] {
    truncated(blake3::hash(body))
}

fn header_check(place: Place, bytes: &[u8]) -> [u8; HEADER_CHECK_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&place.pack.to_be_bytes());
    hasher.update(&place.offset.to_be_bytes());
    hasher.update(bytes);
    truncated(hasher.finalize())
}

fn truncated<const LEN: usize>(hash: blake3::Hash) -> [u8; LEN] {
    let mut short = [0; LEN];
    for (to, from) in short.iter_mut().zip(hash.as_bytes()) {
        *to = *from;
    }
    short
}

/// The compressed content if that is enough shorter.
fn compress(content: &[u8]) -> Option<Bytes> {
    thread_local! {
        // Setting up a compressor costs more than compressing a block with it.
        static COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> =
            RefCell::new(zstd::bulk::Compressor::new(ZSTD_LEVEL).ok());
    }
    if looks_random(content) {
        return None;
    }
    let worth = content
        .len()
        .checked_sub(content.len().div_ceil(SAVING_DIVISOR))?;
    let mut compressed =
        COMPRESSOR.with_borrow_mut(|compressor| compressor.as_mut()?.compress(content).ok())?;
    (compressed.len() <= worth && !compressed.is_empty()).then(|| {
        compressed.shrink_to_fit();
        Bytes::from(compressed)
    })
}

/// Whether a sample of the bytes is so evenly spread that coding them cannot save a sixteenth.
///
/// Counts how often two sampled bytes are equal. For random bytes that is one pair in 256. A
/// source that an ideal byte-wise code shortens by a sixteenth has at least 1.4 times as many
/// (its collision entropy is at most its Shannon entropy of 7.5 bits); a quarter more is where the
/// line is drawn. Evenly spread bytes with long repeats are missed; that costs space, nothing else.
fn looks_random(content: &[u8]) -> bool {
    if content.len() < SAMPLED_BYTES_MIN {
        return false;
    }
    let mut counts = [0_u64; 256];
    let mut sampled = 0_u64;
    let stride = content.len() / SAMPLE_PIECES;
    for piece in content.chunks(stride.max(1)) {
        for byte in piece.iter().take(SAMPLE_PIECE_BYTES) {
            if let Some(count) = counts.get_mut(usize::from(*byte)) {
                *count += 1;
                sampled += 1;
            }
        }
    }
    let equal_pairs: u64 = counts
        .iter()
        .map(|count| count * count.saturating_sub(1))
        .sum();
    let random_pairs = sampled * sampled.saturating_sub(1) / 256;
    equal_pairs < random_pairs + random_pairs / 4
}

#[cfg(test)]
mod tests;
