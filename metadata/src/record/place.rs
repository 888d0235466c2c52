//! Where chunks are, and what packs of them there are. `docs/design/0014-shared-chunks.md`.

use base::Timestamp;
use bytes::Bytes;

use super::{Reader, RecordError, Writer};

const VERSION: u8 = 1;

/// Longest name of a tier, in bytes.
pub const TIER_BYTES_MAX: usize = 1024;

/// Name of a pack: random, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackId(pub [u8; 16]);

impl std::fmt::Display for PackId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl std::fmt::Debug for PackId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackId({self})")
    }
}

/// Where a chunk's entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the metadata store, in pieces.
    Staged,
    /// In a pack.
    Pack {
        /// Which.
        pack: PackId,
        /// Where it begins, in bytes.
        offset: u32,
    },
}

/// A chunk of the shared tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceRecord {
    /// Where it is.
    pub place: Place,
    /// Bytes of its entry.
    pub entry_bytes: u32,
    /// Bytes of its content.
    pub plain_bytes: u32,
    /// The cycle in which it was last put or touched.
    pub cycle: u64,
}

/// A pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackRecord {
    /// Whether its object may not be there yet.
    pub is_being_written: bool,
    /// Bytes of all its entries.
    pub total_bytes: u64,
    /// Bytes of those that records lead to.
    pub live_bytes: u64,
    /// The cycle in which it was begun.
    pub cycle: u64,
    /// When it was begun.
    pub created: Timestamp,
}

/// Where the chunks of an installation are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierRecord {
    /// As the setting `chunks` says it.
    pub tier: String,
}

impl PlaceRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        match self.place {
            Place::Staged => to.u8(0),
            Place::Pack { pack, offset } => {
                to.u8(1);
                to.raw(&pack.0);
                to.u32(offset);
            }
        }
        to.u32(self.entry_bytes);
        to.u32(self.plain_bytes);
        to.u64(self.cycle);
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let place = match from.u8()? {
            0 => Place::Staged,
            1 => Place::Pack {
                pack: PackId(from.array()?),
                offset: from.u32()?,
            },
            _ => return Err(RecordError::Field("place")),
        };
        let record = Self {
            place,
            entry_bytes: from.u32()?,
            plain_bytes: from.u32()?,
            cycle: from.u64()?,
        };
        from.end()?;
        Ok(record)
    }
}

impl PackRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.u8(u8::from(self.is_being_written));
        to.u64(self.total_bytes);
        to.u64(self.live_bytes);
        to.u64(self.cycle);
        to.time(self.created);
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let pack = Self {
            is_being_written: from.flag()?,
            total_bytes: from.u64()?,
            live_bytes: from.u64()?,
            cycle: from.u64()?,
            created: from.time()?,
        };
        from.end()?;
        if pack.live_bytes > pack.total_bytes {
            return Err(RecordError::Field("live bytes"));
        }
        Ok(pack)
    }
}

impl TierRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.bytes(self.tier.as_bytes());
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let tier = from.text()?;
        from.end()?;
        if tier.is_empty() || tier.len() > TIER_BYTES_MAX || tier.chars().any(char::is_control) {
            return Err(RecordError::Field("tier"));
        }
        Ok(Self { tier })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let mut place = PlaceRecord {
            place: Place::Staged,
            entry_bytes: 0x0102,
            plain_bytes: 3,
            cycle: 4,
        };
        let lengths = [0, 0, 1, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4];
        let bytes = [&[1, 0][..], &lengths].concat();
        assert_eq!(place.encode(), bytes);
        assert_eq!(PlaceRecord::decode(&bytes), Ok(place));
        let pack = PackId([5; 16]);
        place.place = Place::Pack { pack, offset: 6 };
        let bytes = [&[1, 1][..], &[5; 16], &[0, 0, 0, 6], &lengths].concat();
        assert_eq!(place.encode(), bytes);
        assert_eq!(PlaceRecord::decode(&bytes), Ok(place));
        let pack = PackRecord {
            is_being_written: true,
            total_bytes: 9,
            live_bytes: 8,
            cycle: 7,
            created: Timestamp::new(2, 3),
        };
        let mut bytes = vec![1, 1];
        for number in [9, 8, 7, 2] {
            bytes.extend([0, 0, 0, 0, 0, 0, 0, number]);
        }
        bytes.extend([0, 0, 0, 3]);
        assert_eq!(pack.encode(), bytes);
        assert_eq!(PackRecord::decode(&bytes), Ok(pack));
        let tier = TierRecord { tier: "kv".into() };
        assert_eq!(tier.encode(), &b"\x01\0\0\0\x02kv"[..]);
        assert_eq!(TierRecord::decode(b"\x01\0\0\0\x02kv"), Ok(tier));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let place = PlaceRecord {
            place: Place::Pack {
                pack: PackId([5; 16]),
                offset: 6,
            },
            entry_bytes: 1,
            plain_bytes: 3,
            cycle: 4,
        };
        let bytes = place.encode();
        for len in 0..bytes.len() {
            assert!(PlaceRecord::decode(&bytes[..len]).is_err());
        }
        let mut other = bytes.to_vec();
        other[1] = 2;
        let field = Err(RecordError::Field("place"));
        assert_eq!(PlaceRecord::decode(&other), field);
        let pack = PackRecord {
            is_being_written: false,
            total_bytes: 1,
            live_bytes: 2,
            cycle: 0,
            created: Timestamp::EPOCH,
        };
        let field = Err(RecordError::Field("live bytes"));
        assert_eq!(PackRecord::decode(&pack.encode()), field);
        for wrong in ["", "a\nb", &"x".repeat(TIER_BYTES_MAX + 1)] {
            let tier = TierRecord { tier: wrong.into() };
            let field = Err(RecordError::Field("tier"));
            assert_eq!(TierRecord::decode(&tier.encode()), field);
        }
    }
}
