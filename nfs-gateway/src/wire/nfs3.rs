//! The data types that NFS version 3 arguments and results share (RFC 1813, section 2).

use base::{Timestamp, limits};
use nfsserve::nfs::{self, ftype3, nfstime3};

use super::xdr::{Decode, Encode, XdrArray, XdrError, XdrReader, XdrWriter};

/// Longest file handle on the wire, in bytes.
pub const HANDLE_BYTES_MAX: usize = 64;

/// Longest name accepted on the wire, in bytes: more than a name may have, so that one of 300
/// bytes is answered with NFS3ERR_NAMETOOLONG and not with an RPC error.
pub const WIRE_NAME_BYTES_MAX: usize = 4096;

/// Longest symbolic link target accepted on the wire, in bytes; more than one may have, likewise.
pub const WIRE_PATH_BYTES_MAX: usize = 2 * limits::SYMLINK_BYTES_MAX;

const _: () = assert!(WIRE_NAME_BYTES_MAX > limits::NAME_BYTES_MAX);

/// An 8-byte verifier: of directory cookies, of an exclusive CREATE, or of unstable writes.
pub type Verifier = [u8; 8];

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharacterDevice,
    /// A symbolic link.
    Symlink,
    /// A socket.
    Socket,
    /// A FIFO.
    Fifo,
}

impl FileKind {
    const fn to_wire(self) -> ftype3 {
        match self {
            Self::Regular => ftype3::NF3REG,
            Self::Directory => ftype3::NF3DIR,
            Self::BlockDevice => ftype3::NF3BLK,
            Self::CharacterDevice => ftype3::NF3CHR,
            Self::Symlink => ftype3::NF3LNK,
            Self::Socket => ftype3::NF3SOCK,
            Self::Fifo => ftype3::NF3FIFO,
        }
    }
}

impl<'a> Decode<'a> for FileKind {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        match from.u32()? {
            1 => Ok(Self::Regular),
            2 => Ok(Self::Directory),
            3 => Ok(Self::BlockDevice),
            4 => Ok(Self::CharacterDevice),
            5 => Ok(Self::Symlink),
            6 => Ok(Self::Socket),
            7 => Ok(Self::Fifo),
            _ => Err(XdrError::Value),
        }
    }
}

/// A device number: major and minor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// The driver.
    pub major: u32,
    /// What the driver makes of it.
    pub minor: u32,
}

impl<'a> Decode<'a> for Device {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        let major = from.u32()?;
        let minor = from.u32()?;
        Ok(Self { major, minor })
    }
}

/// `fattr3`: the attributes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fattr {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, with set-id and sticky bits.
    pub mode: u32,
    /// How many names it has.
    pub nlink: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes of storage it takes.
    pub used: u64,
    /// What a device node stands for.
    pub rdev: Device,
    /// The filesystem: one constant per session.
    pub fsid: u64,
    /// The inode number.
    pub fileid: u64,
    /// Time of last access.
    pub atime: Timestamp,
    /// Time of the last change of the data.
    pub mtime: Timestamp,
    /// Time of the last change of anything; the client's change counter.
    pub ctime: Timestamp,
}

/// Bytes of `fattr3` on the wire.
const FATTR_BYTES: usize = 84;

impl Encode for Fattr {
    /// Field by field into one array: attributes are in nearly every reply, up to a thousand times
    /// in a listing, and the protocol crate's serializer writes each field on its own.
    fn encode(&self, to: &mut XdrWriter) {
        let (rdev, kind) = (self.rdev, self.kind.to_wire());
        let [atime, mtime, ctime] = [self.atime, self.mtime, self.ctime].map(time_to_wire);
        let mut head = XdrArray::<FATTR_BYTES>::new();
        // The protocol's numbers of the kinds are those of its enumeration.
        for word in [kind_number(kind), self.mode, self.nlink, self.uid, self.gid] {
            head.u32(word);
        }
        head.u64(self.size);
        head.u64(self.used);
        head.u32(rdev.major);
        head.u32(rdev.minor);
        head.u64(self.fsid);
        head.u64(self.fileid);
        for time in [atime, mtime, ctime] {
            head.u32(time.seconds);
            head.u32(time.nseconds);
        }
        to.raw(head.bytes());
    }
}

/// `ftype3` as a number (RFC 1813, section 2.3.5).
const fn kind_number(kind: ftype3) -> u32 {
    match kind {
        ftype3::NF3REG => 1,
        ftype3::NF3DIR => 2,
        ftype3::NF3BLK => 3,
        ftype3::NF3CHR => 4,
        ftype3::NF3LNK => 5,
        ftype3::NF3SOCK => 6,
        ftype3::NF3FIFO => 7,
    }
}

/// `wcc_attr`: what the client compares to see whether somebody else was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WccAttr {
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change of the data.
    pub mtime: Timestamp,
    /// Time of the last change of anything.
    pub ctime: Timestamp,
}

impl Encode for WccAttr {
    fn encode(&self, to: &mut XdrWriter) {
        to.protocol(&nfs::wcc_attr {
            size: self.size,
            mtime: time_to_wire(self.mtime),
            ctime: time_to_wire(self.ctime),
        });
    }
}

impl From<&Fattr> for WccAttr {
    fn from(attributes: &Fattr) -> Self {
        Self {
            size: attributes.size,
            mtime: attributes.mtime,
            ctime: attributes.ctime,
        }
    }
}

/// `wcc_data`: an object before and after the operation, from one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wcc {
    /// Before the operation.
    pub before: Option<WccAttr>,
    /// After the operation.
    pub after: Option<Fattr>,
}

impl Encode for Wcc {
    fn encode(&self, to: &mut XdrWriter) {
        self.before.encode(to);
        self.after.encode(to);
    }
}

/// How SETATTR and its relatives set a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// Not at all.
    #[default]
    Keep,
    /// To the server's time.
    ToServerTime,
    /// To the client's time.
    To(Timestamp),
}

impl<'a> Decode<'a> for SetTime {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        match from.u32()? {
            0 => Ok(Self::Keep),
            1 => Ok(Self::ToServerTime),
            2 => from.time().map(Self::To),
            _ => Err(XdrError::Value),
        }
    }
}

/// `sattr3`: the attributes to set; what is absent stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits. May have more bits than a mode.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Time of last access.
    pub atime: SetTime,
    /// Time of the last change of the data.
    pub mtime: SetTime,
}

impl<'a> Decode<'a> for SetAttributes {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        Ok(Self {
            mode: from.option(XdrReader::u32)?,
            uid: from.option(XdrReader::u32)?,
            gid: from.option(XdrReader::u32)?,
            size: from.option(XdrReader::u64)?,
            atime: SetTime::decode(from)?,
            mtime: SetTime::decode(from)?,
        })
    }
}

/// `stable_how`: how durable written data is asked or said to be. Ordered by strength.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// UNSTABLE: may be lost until a COMMIT.
    Unstable,
    /// DATA_SYNC: the data and what is needed to find it are durable.
    DataSync,
    /// FILE_SYNC: the data and all attributes are durable.
    FileSync,
}

impl Stability {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Unstable => 0,
            Self::DataSync => 1,
            Self::FileSync => 2,
        }
    }
}

impl<'a> Decode<'a> for Stability {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        match from.u32()? {
            0 => Ok(Self::Unstable),
            1 => Ok(Self::DataSync),
            2 => Ok(Self::FileSync),
            _ => Err(XdrError::Value),
        }
    }
}

/// The bits of ACCESS (RFC 1813, section 3.3.4).
pub mod access {
    /// Read a file's data, or list a directory.
    pub const READ: u32 = 0x01;
    /// Find a name in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Change what is there.
    pub const MODIFY: u32 = 0x04;
    /// Add to what is there.
    pub const EXTEND: u32 = 0x08;
    /// Remove a name from a directory.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
}

/// A file handle as bytes: to be verified, or just signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireHandle<'a>(pub &'a [u8]);

impl<'a> Decode<'a> for WireHandle<'a> {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        from.opaque(HANDLE_BYTES_MAX).map(Self)
    }
}

impl Encode for WireHandle<'_> {
    fn encode(&self, to: &mut XdrWriter) {
        to.opaque(self.0);
    }
}

/// NFS carries 32-bit seconds; later times are sent as the last of them, so that they stay ordered.
pub(super) fn time_to_wire(time: Timestamp) -> nfstime3 {
    match u32::try_from(time.seconds()) {
        Ok(seconds) => nfstime3 {
            seconds,
            nseconds: time.nanos(),
        },
        Err(_) => nfstime3 {
            seconds: u32::MAX,
            nseconds: 999_999_999,
        },
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn late_times_are_clamped() {
        let last = time_to_wire(Timestamp::new(u64::from(u32::MAX), 5));
        assert_eq!((last.seconds, last.nseconds), (u32::MAX, 5));
        let late = time_to_wire(Timestamp::new(1 << 32, 5));
        assert_eq!((late.seconds, late.nseconds), (u32::MAX, 999_999_999));
    }

    #[test]
    fn attributes_to_set_are_read() {
        let mut words = XdrWriter::default();
        for word in [1, 0o644, 0, 1, 100, 1, 0, 7, 1, 2, 5, 6] {
            words.u32(word);
        }
        let record = Bytes::from(words.into_bytes());
        let mut reader = XdrReader::new(&record);
        let expected = SetAttributes {
            mode: Some(0o644),
            uid: None,
            gid: Some(100),
            size: Some(7),
            atime: SetTime::ToServerTime,
            mtime: SetTime::To(Timestamp::new(5, 6)),
        };
        assert_eq!(SetAttributes::decode(&mut reader), Ok(expected));
        assert_eq!(reader.finish(), Ok(()));
    }
}
