//! Directory entry: which inode a name leads to, and what that is.

use base::InodeId;
use bytes::Bytes;

use super::inode::{decode_kind, encode_kind};
use super::{Reader, RecordError, Writer};
use crate::stat::FileKind;

const VERSION: u8 = 1;

/// What a name in a directory leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode.
    pub inode: InodeId,
    /// Its kind, so that listing needs no attributes.
    pub kind: FileKind,
}

impl Entry {
    /// Encodes the value.
    #[must_use]
    pub fn encode(self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.u64(self.inode.raw());
        to.u8(encode_kind(self.kind));
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let entry = Self {
            inode: InodeId::new(from.u64()?),
            kind: decode_kind(from.u8()?)?,
        };
        from.end()?;
        Ok(entry)
    }
}
