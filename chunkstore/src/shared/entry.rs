//! A chunk as it is stored in the ledger and in packs: the header of local packs, for a fixed place,
//! and the stored bytes.

use base::ChunkId;
use bytes::{Buf, Bytes, BytesMut};

use super::ledger::ChunkKey;
use crate::chunk::{HEADER_BYTES, Header, Place, Record};
use crate::{ChunkError, Domain};

/// Entries are moved, so that their place is not a part of them.
const NOWHERE: Place = Place { pack: 0, offset: 0 };

/// An entry, and the length of its content.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) bytes: Bytes,
    pub(super) plain_bytes: u32,
}

impl Entry {
    /// # Errors
    ///
    /// `TooLarge`.
    pub(super) fn new(domain: Domain, id: ChunkId, content: Bytes) -> Result<Self, ChunkError> {
        let record = Record::new(domain, id, content)?;
        let mut bytes = BytesMut::with_capacity(HEADER_BYTES + record.body.len());
        bytes.extend_from_slice(&record.header.encode(NOWHERE));
        bytes.extend_from_slice(&record.body);
        Ok(Self {
            bytes: bytes.freeze(),
            plain_bytes: record.header.plain_bytes,
        })
    }
}

/// The content of an entry, if it is that of this chunk and whole.
pub(super) fn content(domain: Domain, id: ChunkId, mut entry: Bytes) -> Result<Bytes, ChunkError> {
    let decode = || {
        let header = Header::decode(entry.first_chunk()?, NOWHERE)?;
        entry.advance(HEADER_BYTES);
        header.content(domain, id, entry)
    };
    decode().ok_or(ChunkError::Corrupt(id))
}

/// Whether an entry is this chunk's and as it was written. Needs no key of the domain.
pub(super) fn is_whole(key: ChunkKey, entry: &Bytes) -> bool {
    let found = entry.split_first_chunk();
    let decoded = found.and_then(|(header, body)| Some((Header::decode(header, NOWHERE)?, body)));
    decoded.is_some_and(|(header, body)| {
        let is_named = header.domain == key.domain && header.id == key.id;
        is_named
            && usize::try_from(header.stored_bytes) == Ok(body.len())
            && header.matches_body(body)
    })
}

#[cfg(test)]
mod tests {
    use base::DomainId;

    use super::*;

    #[test]
    fn an_entry_is_whole_or_refused() {
        let domain = Domain {
            id: DomainId::new(1),
            key: [1; 32],
        };
        for plain in [&b""[..], b"x", &[7; 5000]] {
            let plain = Bytes::copy_from_slice(plain);
            let id = domain.chunk_id(&plain);
            let entry = Entry::new(domain, id, plain.clone()).unwrap();
            let whole = entry.bytes.clone();
            assert_eq!(content(domain, id, whole.clone()), Ok(plain));
            let damaged = Err(ChunkError::Corrupt(id));
            let key = ChunkKey {
                domain: domain.id,
                id,
            };
            assert!(is_whole(key, &whole));
            for len in 0..whole.len() {
                assert_eq!(content(domain, id, whole.slice(..len)), damaged);
                assert!(!is_whole(key, &whole.slice(..len)));
            }
            let mut flipped = whole.to_vec();
            *flipped.last_mut().unwrap() ^= 1;
            let flipped = Bytes::from(flipped);
            assert!(!is_whole(key, &flipped));
            assert_eq!(content(domain, id, flipped), damaged);
            let other = ChunkId::new([9; 32]);
            let refused = Err(ChunkError::Corrupt(other));
            assert_eq!(content(domain, other, whole), refused);
        }
    }
}
