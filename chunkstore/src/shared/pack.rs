//! A pack as an object: entries, an index of them, and a trailer that leads to the index. So a pack explains
//! itself: what it holds can be found without the ledger. `docs/formats.md` has the format.

use base::{ChunkId, DomainId};
use bytes::{Bytes, BytesMut};

use super::ledger::{ChunkKey, PackId};

const MAGIC: [u8; 4] = *b"HFSP";
const VERSION: u8 = 1;
const CHECK_BYTES: usize = 16;

/// Length of one entry's line in the index.
const LINE_BYTES: usize = 8 + 32 + 4 + 4;

/// Length of what a pack ends with.
pub const TRAILER_BYTES: usize = 48;

/// Largest length of a pack's entries together, in bytes.
pub const PACK_BYTES_MAX: usize = 256 << 20;

/// Where an entry is in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The chunk.
    pub key: ChunkKey,
    /// Where its entry begins.
    pub offset: u32,
    /// Length of its entry, in bytes.
    pub entry_bytes: u32,
}

/// Puts a pack together: the object, and where each entry is in it.
pub(super) fn build(id: PackId, entries: &[(ChunkKey, Bytes)]) -> (Bytes, Vec<Line>) {
    let body: usize = entries.iter().map(|(_, entry)| entry.len()).sum();
    let whole = body + entries.len() * LINE_BYTES + TRAILER_BYTES;
    let mut pack = BytesMut::with_capacity(whole);
    let mut lines = Vec::with_capacity(entries.len());
    for (key, entry) in entries {
        // Callers keep packs far below 4 GiB.
        let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        lines.push(Line {
            key: *key,
            offset: number(pack.len()),
            entry_bytes: number(entry.len()),
        });
        pack.extend_from_slice(entry);
    }
    let mut index = BytesMut::with_capacity(whole - body);
    for line in &lines {
        index.extend_from_slice(&line.key.domain.raw().to_be_bytes());
        index.extend_from_slice(line.key.id.as_bytes());
        index.extend_from_slice(&line.offset.to_be_bytes());
        index.extend_from_slice(&line.entry_bytes.to_be_bytes());
    }
    let count = u32::try_from(lines.len()).unwrap_or(u32::MAX);
    let mut trailer = BytesMut::with_capacity(TRAILER_BYTES);
    trailer.extend_from_slice(&MAGIC);
    trailer.extend_from_slice(&[VERSION, 0, 0, 0]);
    trailer.extend_from_slice(&id.0);
    trailer.extend_from_slice(&count.to_be_bytes());
    trailer.extend_from_slice(&u32::try_from(body).unwrap_or(u32::MAX).to_be_bytes());
    let check = check(&index, &trailer);
    pack.extend_from_slice(&index);
    pack.extend_from_slice(&trailer);
    pack.extend_from_slice(&check);
    (pack.freeze(), lines)
}

/// Reads what a pack says of itself. `None` if it is not whole.
#[must_use]
pub fn index(pack: &[u8]) -> Option<(PackId, Vec<Line>)> {
    let (rest, trailer) = pack.split_at_checked(pack.len().checked_sub(TRAILER_BYTES)?)?;
    let (said, found) = trailer.split_last_chunk::<CHECK_BYTES>()?;
    let (magic, fields) = said.split_first_chunk::<4>()?;
    let (version, fields) = fields.split_first_chunk::<4>()?;
    let (id, fields) = fields.split_first_chunk::<16>()?;
    let (count, fields) = fields.split_first_chunk::<4>()?;
    let (body, &[]) = fields.split_first_chunk::<4>()? else {
        return None;
    };
    let body = usize::try_from(u32::from_be_bytes(*body)).ok()?;
    let count = usize::try_from(u32::from_be_bytes(*count)).ok()?;
    let (_, index) = rest.split_at_checked(body)?;
    let is_whole = *magic == MAGIC
        && *version == [VERSION, 0, 0, 0]
        && index.len() == count.checked_mul(LINE_BYTES)?
        && check(index, said) == *found;
    if !is_whole {
        return None;
    }
    let lines = index.chunks_exact(LINE_BYTES).map(|line| {
        let (domain, line) = line.split_first_chunk::<8>()?;
        let (chunk, line) = line.split_first_chunk::<32>()?;
        let (offset, line) = line.split_first_chunk::<4>()?;
        Some(Line {
            key: ChunkKey {
                domain: DomainId::new(u64::from_be_bytes(*domain)),
                id: ChunkId::new(*chunk),
            },
            offset: u32::from_be_bytes(*offset),
            entry_bytes: u32::from_be_bytes(*line.first_chunk()?),
        })
    });
    Some((PackId(*id), lines.collect::<Option<_>>()?))
}

fn check(index: &[u8], trailer: &[u8]) -> [u8; CHECK_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(index).update(trailer);
    let mut check = [0; CHECK_BYTES];
    hasher.finalize_xof().fill(&mut check);
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> ChunkKey {
        ChunkKey {
            domain: DomainId::new(1),
            id: ChunkId::new([number; 32]),
        }
    }

    #[test]
    fn a_pack_explains_itself_or_is_refused() {
        let id = PackId([7; 16]);
        let entries = [
            (key(1), Bytes::from_static(b"one")),
            (key(2), Bytes::from_static(b"second")),
        ];
        let (pack, lines) = build(id, &entries);
        assert_eq!(index(&pack), Some((id, lines.clone())));
        for (line, (_, entry)) in lines.iter().zip(&entries) {
            let begin = usize::try_from(line.offset).unwrap();
            let end = begin + usize::try_from(line.entry_bytes).unwrap();
            assert_eq!(&pack[begin..end], entry);
        }
        for len in 0..pack.len() {
            assert_eq!(index(&pack[..len]), None);
        }
        // Entries have checks of their own.
        for at in 9..pack.len() {
            let mut flipped = pack.to_vec();
            flipped[at] ^= 1;
            assert_eq!(index(&flipped), None, "byte {at}");
        }
        let golden = [&b"HFSP\x01\0\0\0"[..], &[7; 16], &[0, 0, 0, 2, 0, 0, 0, 9]].concat();
        let trailer = &pack[pack.len() - TRAILER_BYTES..];
        assert_eq!(trailer[..32], golden);
    }
}
