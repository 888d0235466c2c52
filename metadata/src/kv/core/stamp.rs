//! Versionstamps: ten bytes that a commit fills in, larger for every later commit.

use bytes::Bytes;

use super::super::admission::check_key_is_ours;
use super::super::{KeyRange, KvError, Version};

/// Length of a versionstamp.
pub(in crate::kv) const STAMP_BYTES: usize = 10;

/// Bytes at the end of an operand that say where the stamp goes.
const OFFSET_BYTES: usize = 4;

/// Bytes with a place for a versionstamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::kv) struct Template {
    bytes: Bytes,
    offset: usize,
}

/// The versionstamp of the transaction at `index` of the batch committed at `version`.
pub(super) fn stamp(version: Version, index: u16) -> [u8; STAMP_BYTES] {
    let mut stamp = [0; STAMP_BYTES];
    let (high, low) = stamp.split_at_mut(8);
    high.copy_from_slice(&version.0.to_be_bytes());
    low.copy_from_slice(&index.to_be_bytes());
    stamp
}

impl Template {
    /// Splits an operand: all but its last four bytes, and the offset that those give.
    pub(in crate::kv) fn parse(operand: &[u8]) -> Result<Self, KvError> {
        let Some((bytes, offset)) = operand.split_last_chunk::<OFFSET_BYTES>() else {
            return Err(KvError::Usage("versionstamp operand has no offset"));
        };
        let fits = usize::try_from(u32::from_le_bytes(*offset))
            .ok()
            .filter(|offset| {
                offset
                    .checked_add(STAMP_BYTES)
                    .is_some_and(|end| end <= bytes.len())
            });
        let Some(offset) = fits else {
            return Err(KvError::Usage("versionstamp lies outside its operand"));
        };
        Ok(Self {
            bytes: Bytes::copy_from_slice(bytes),
            offset,
        })
    }

    /// Splits an operand that becomes a key, which is one of the caller's whatever the stamp is.
    pub(in crate::kv) fn key(operand: &[u8]) -> Result<Self, KvError> {
        let template = Self::parse(operand)?;
        check_key_is_ours(&template.bytes)?;
        check_key_is_ours(&template.filled([0xff; STAMP_BYTES]))?;
        Ok(template)
    }

    /// Where the stamp begins.
    #[cfg(feature = "fdb")]
    pub(in crate::kv) fn offset(&self) -> usize {
        self.offset
    }

    /// Length of the result.
    pub(in crate::kv) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes with the placeholder as the caller left it.
    pub(in crate::kv) fn raw(&self) -> &Bytes {
        &self.bytes
    }

    /// The bytes with `stamp` in its place.
    pub(super) fn filled(&self, stamp: [u8; STAMP_BYTES]) -> Bytes {
        let mut bytes = self.bytes.to_vec();
        for (place, byte) in bytes.iter_mut().skip(self.offset).zip(stamp) {
            *place = byte;
        }
        Bytes::from(bytes)
    }

    /// All keys this may become when committed after `read_version`.
    pub(super) fn possible_keys(&self, read_version: Version) -> KeyRange {
        let first = Version(read_version.0.saturating_add(1));
        let mut end = self.filled([0xff; STAMP_BYTES]).to_vec();
        end.push(0);
        KeyRange {
            start: self.filled(stamp(first, 0)),
            end: Bytes::from(end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stamp may have any value, so a key that begins with it may be nobody's.
    #[test]
    fn a_stamped_key_is_the_callers_whatever_the_stamp() {
        let operand = |bytes: &[u8], offset: u32| [bytes, &offset.to_le_bytes()].concat();
        let place = [0; STAMP_BYTES];
        let after = [&b"k"[..], &place].concat();
        assert!(Template::key(&operand(&after, 1)).is_ok());
        let outside = KvError::Limit("key is outside the caller's keys");
        assert_eq!(Template::key(&operand(&place, 0)), Err(outside.clone()));
        let above = [&b"\xff"[..], &place].concat();
        assert_eq!(Template::key(&operand(&above, 1)), Err(outside));
    }

    #[test]
    fn operands_are_checked() {
        let operand = |len: usize, offset: u32| {
            let mut bytes = vec![b'x'; len];
            bytes.extend(offset.to_le_bytes());
            bytes
        };
        assert!(Template::parse(&[0, 0, 0]).is_err());
        assert!(Template::parse(&operand(9, 0)).is_err());
        assert!(Template::parse(&operand(10, 1)).is_err());
        assert!(Template::parse(&operand(10, u32::MAX)).is_err());
        let template = Template::parse(&operand(12, 1)).unwrap();
        let filled = template.filled(stamp(Version(0x0102), 3));
        assert_eq!(filled.as_ref(), b"x\0\0\0\0\0\0\x01\x02\0\x03x");
    }

    #[test]
    fn stamps_grow_with_version_and_index() {
        assert!(stamp(Version(1), u16::MAX) < stamp(Version(2), 0));
        assert!(stamp(Version(1), 255) < stamp(Version(1), 256));
    }
}
