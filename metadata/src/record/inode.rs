//! Attributes of an inode, with what is small enough to live beside them.

use base::{InodeId, Name, Timestamp};
use bytes::Bytes;

use super::{Reader, RecordError, Writer};
use crate::image::DIRECTORY_BYTES;
use crate::stat::{Device, FileKind, Stat};

const VERSION: u8 = 1;
const HAS_LINK: u8 = 1;
const HAS_VERIFIER: u8 = 2;
const HAS_INLINE: u8 = 4;

/// Where the allocated bytes are in an encoded record.
const USED_OFFSET: usize = 1 + 1 + 1 + 4 * 4 + 8;

/// An inode as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeRecord {
    /// Attributes.
    pub stat: Stat,
    /// Entries of a directory; 0 for everything else.
    pub entries: u64,
    /// The first link: directory and name. Only the root has none.
    pub link: Option<(InodeId, Name)>,
    /// Verifier of an EXCLUSIVE create that is not yet settled by a SETATTR.
    pub verifier: Option<[u8; 8]>,
    /// Content of a small file, or target of a symbolic link.
    pub inline: Option<Bytes>,
}

pub(super) fn encode_kind(kind: FileKind) -> u8 {
    match kind {
        FileKind::File => 1,
        FileKind::Directory => 2,
        FileKind::Symlink => 3,
        FileKind::BlockDevice => 4,
        FileKind::CharDevice => 5,
        FileKind::Fifo => 6,
        FileKind::Socket => 7,
    }
}

pub(super) fn decode_kind(byte: u8) -> Result<FileKind, RecordError> {
    Ok(match byte {
        1 => FileKind::File,
        2 => FileKind::Directory,
        3 => FileKind::Symlink,
        4 => FileKind::BlockDevice,
        5 => FileKind::CharDevice,
        6 => FileKind::Fifo,
        7 => FileKind::Socket,
        _ => return Err(RecordError::Field("file kind")),
    })
}

impl InodeRecord {
    /// The root directory of an image in which it was never changed: its mode, owner and group, and
    /// when it was made.
    #[must_use]
    pub fn root((mode, uid, gid): (u32, u32, u32), made: Timestamp) -> Self {
        Self {
            stat: Stat {
                inode: InodeId::ROOT,
                kind: FileKind::Directory,
                mode,
                nlink: 2,
                uid,
                gid,
                size: DIRECTORY_BYTES,
                used: 0,
                device: Device::default(),
                atime: made,
                mtime: made,
                ctime: made,
            },
            entries: 0,
            link: None,
            verifier: None,
            inline: None,
        }
    }

    /// Encodes the value. The inode number is the key's and is left out.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        let mut flags = 0;
        for (flag, present) in [
            (HAS_LINK, self.link.is_some()),
            (HAS_VERIFIER, self.verifier.is_some()),
            (HAS_INLINE, self.inline.is_some()),
        ] {
            flags |= if present { flag } else { 0 };
        }
        let stat = &self.stat;
        to.u8(encode_kind(stat.kind));
        to.u8(flags);
        to.u32(stat.mode);
        to.u32(stat.nlink);
        to.u32(stat.uid);
        to.u32(stat.gid);
        to.u64(stat.size);
        to.u64(stat.used);
        to.u32(stat.device.major);
        to.u32(stat.device.minor);
        to.time(stat.atime);
        to.time(stat.mtime);
        to.time(stat.ctime);
        to.u64(self.entries);
        if let Some((parent, name)) = &self.link {
            to.u64(parent.raw());
            to.bytes(name.as_bytes());
        }
        if let Some(verifier) = &self.verifier {
            to.raw(verifier);
        }
        if let Some(inline) = &self.inline {
            to.bytes(inline);
        }
        to.finish()
    }

    /// The allocated bytes in a stored value, without decoding the rest. `None` if the value is too
    /// short or of a version this release does not know.
    #[must_use]
    pub fn used_of(record: &[u8]) -> Option<u64> {
        let mut from = Reader::new(record, VERSION).ok()?;
        // Kind, flags, mode, links, user, group, size.
        let _: [u8; USED_OFFSET - 1] = from.array().ok()?;
        from.u64().ok()
    }

    /// Decodes the stored value of `inode`.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(inode: InodeId, record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let kind = decode_kind(from.u8()?)?;
        let flags = from.u8()?;
        if flags & !(HAS_LINK | HAS_VERIFIER | HAS_INLINE) != 0 {
            return Err(RecordError::Field("flags"));
        }
        let stat = Stat {
            inode,
            kind,
            mode: from.u32()?,
            nlink: from.u32()?,
            uid: from.u32()?,
            gid: from.u32()?,
            size: from.u64()?,
            used: from.u64()?,
            device: Device {
                major: from.u32()?,
                minor: from.u32()?,
            },
            atime: from.time()?,
            mtime: from.time()?,
            ctime: from.time()?,
        };
        if stat.mode > 0o7777 {
            return Err(RecordError::Field("mode"));
        }
        let entries = from.u64()?;
        let link = if flags & HAS_LINK == 0 {
            None
        } else {
            Some((InodeId::new(from.u64()?), from.name()?))
        };
        let verifier = if flags & HAS_VERIFIER == 0 {
            None
        } else {
            Some(from.array()?)
        };
        let inline = if flags & HAS_INLINE == 0 {
            None
        } else {
            Some(Bytes::copy_from_slice(from.bytes()?))
        };
        from.end()?;
        Ok(Self {
            stat,
            entries,
            link,
            verifier,
            inline,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> InodeRecord {
        InodeRecord {
            stat: Stat {
                inode: InodeId::new(9),
                kind: FileKind::File,
                mode: 0o644,
                nlink: 1,
                uid: 1000,
                gid: 100,
                size: 3,
                used: 4096,
                device: Device::default(),
                atime: Timestamp::new(1, 2),
                mtime: Timestamp::new(3, 4),
                ctime: Timestamp::new(5, 6),
            },
            entries: 0,
            link: Some((InodeId::ROOT, Name::new(b"f").unwrap())),
            verifier: Some([9; 8]),
            inline: Some(Bytes::from_static(b"abc")),
        }
    }

    #[test]
    fn golden_bytes() {
        let mut bytes = vec![1, 1, 7];
        for number in [0o644_u32, 1, 1000, 100] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(3_u64.to_be_bytes());
        bytes.extend(4096_u64.to_be_bytes());
        bytes.extend([0; 8]);
        for (seconds, nanos) in [(1_u64, 2_u32), (3, 4), (5, 6)] {
            bytes.extend(seconds.to_be_bytes());
            bytes.extend(nanos.to_be_bytes());
        }
        bytes.extend(0_u64.to_be_bytes());
        bytes.extend(1_u64.to_be_bytes());
        bytes.extend([0, 0, 0, 1, b'f']);
        bytes.extend([9; 8]);
        bytes.extend([0, 0, 0, 3, b'a', b'b', b'c']);
        assert_eq!(record().encode(), bytes);
        assert_eq!(InodeRecord::decode(InodeId::new(9), &bytes), Ok(record()));
        assert_eq!(InodeRecord::used_of(&bytes), Some(4096));
        assert_eq!(InodeRecord::used_of(&bytes[..30]), None);
    }

    proptest! {
        #[test]
        fn a_flipped_byte_never_panics(at in 0..140_usize, byte in any::<u8>()) {
            let mut bytes = record().encode().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(decoded) = InodeRecord::decode(InodeId::new(9), &bytes) {
                prop_assert_eq!(decoded.encode(), bytes);
            }
        }
    }
}
