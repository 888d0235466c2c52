//! The arguments of the 22 procedures (RFC 1813, section 3.3), borrowed from the record.
//!
//! Handles and names are bytes that nobody has looked at: the handle may be forged, the name too
//! long or not a name.

use base::{Timestamp, limits};
use bytes::Bytes;

use super::nfs3::{
    Device, FileKind, SetAttributes, Stability, Verifier, WIRE_NAME_BYTES_MAX, WIRE_PATH_BYTES_MAX,
    WireHandle,
};
use super::procedure::Procedure;
use super::xdr::{Decode, XdrError, XdrReader};

/// A decoded call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NfsCall<'a> {
    /// NULL.
    Null,
    /// GETATTR.
    Getattr(ObjectArgs<'a>),
    /// SETATTR.
    Setattr(SetattrArgs<'a>),
    /// LOOKUP.
    Lookup(NameArgs<'a>),
    /// ACCESS.
    Access(AccessArgs<'a>),
    /// READLINK.
    Readlink(ObjectArgs<'a>),
    /// READ.
    Read(ReadArgs<'a>),
    /// WRITE.
    Write(WriteArgs<'a>),
    /// CREATE.
    Create(CreateArgs<'a>),
    /// MKDIR.
    Mkdir(MkdirArgs<'a>),
    /// SYMLINK.
    Symlink(SymlinkArgs<'a>),
    /// MKNOD.
    Mknod(MknodArgs<'a>),
    /// REMOVE.
    Remove(NameArgs<'a>),
    /// RMDIR.
    Rmdir(NameArgs<'a>),
    /// RENAME.
    Rename(RenameArgs<'a>),
    /// LINK.
    Link(LinkArgs<'a>),
    /// READDIR.
    Readdir(ReaddirArgs<'a>),
    /// READDIRPLUS.
    Readdirplus(ReaddirplusArgs<'a>),
    /// FSSTAT.
    Fsstat(ObjectArgs<'a>),
    /// FSINFO.
    Fsinfo(ObjectArgs<'a>),
    /// PATHCONF.
    Pathconf(ObjectArgs<'a>),
    /// COMMIT.
    Commit(CommitArgs<'a>),
}

impl<'a> NfsCall<'a> {
    /// Reads the arguments of `procedure`, which have to be all there is.
    ///
    /// # Errors
    ///
    /// If they are not: to be answered with GARBAGE_ARGS.
    pub fn decode(procedure: Procedure, mut from: XdrReader<'a>) -> Result<Self, XdrError> {
        let from_ref = &mut from;
        let call = match procedure {
            Procedure::Null => Self::Null,
            Procedure::Getattr => Self::Getattr(Decode::decode(from_ref)?),
            Procedure::Setattr => Self::Setattr(Decode::decode(from_ref)?),
            Procedure::Lookup => Self::Lookup(Decode::decode(from_ref)?),
            Procedure::Access => Self::Access(Decode::decode(from_ref)?),
            Procedure::Readlink => Self::Readlink(Decode::decode(from_ref)?),
            Procedure::Read => Self::Read(Decode::decode(from_ref)?),
            Procedure::Write => Self::Write(Decode::decode(from_ref)?),
            Procedure::Create => Self::Create(Decode::decode(from_ref)?),
            Procedure::Mkdir => Self::Mkdir(Decode::decode(from_ref)?),
            Procedure::Symlink => Self::Symlink(Decode::decode(from_ref)?),
            Procedure::Mknod => Self::Mknod(Decode::decode(from_ref)?),
            Procedure::Remove => Self::Remove(Decode::decode(from_ref)?),
            Procedure::Rmdir => Self::Rmdir(Decode::decode(from_ref)?),
            Procedure::Rename => Self::Rename(Decode::decode(from_ref)?),
            Procedure::Link => Self::Link(Decode::decode(from_ref)?),
            Procedure::Readdir => Self::Readdir(Decode::decode(from_ref)?),
            Procedure::Readdirplus => Self::Readdirplus(Decode::decode(from_ref)?),
            Procedure::Fsstat => Self::Fsstat(Decode::decode(from_ref)?),
            Procedure::Fsinfo => Self::Fsinfo(Decode::decode(from_ref)?),
            Procedure::Pathconf => Self::Pathconf(Decode::decode(from_ref)?),
            Procedure::Commit => Self::Commit(Decode::decode(from_ref)?),
        };
        from.finish()?;
        Ok(call)
    }

    /// The handle the call is about: the directory's for calls with a name, the source's for
    /// RENAME, the object's for LINK. NULL has none.
    #[must_use]
    pub const fn handle(&self) -> Option<WireHandle<'a>> {
        match self {
            Self::Null => None,
            Self::Getattr(args)
            | Self::Readlink(args)
            | Self::Fsstat(args)
            | Self::Fsinfo(args)
            | Self::Pathconf(args) => Some(args.object),
            Self::Setattr(args) => Some(args.object),
            Self::Lookup(args) | Self::Remove(args) | Self::Rmdir(args) => Some(args.dir),
            Self::Access(args) => Some(args.object),
            Self::Read(args) => Some(args.file),
            Self::Write(args) => Some(args.file),
            Self::Create(args) => Some(args.place.dir),
            Self::Mkdir(args) => Some(args.place.dir),
            Self::Symlink(args) => Some(args.place.dir),
            Self::Mknod(args) => Some(args.place.dir),
            Self::Rename(args) => Some(args.from.dir),
            Self::Link(args) => Some(args.object),
            Self::Readdir(args) => Some(args.dir),
            Self::Readdirplus(args) => Some(args.dir),
            Self::Commit(args) => Some(args.file),
        }
    }
}

/// The arguments of a procedure that takes nothing but a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectArgs<'a> {
    /// The object.
    pub object: WireHandle<'a>,
}

impl<'a> Decode<'a> for ObjectArgs<'a> {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        let object = WireHandle::decode(from)?;
        Ok(Self { object })
    }
}

/// `diropargs3`: a name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameArgs<'a> {
    /// The directory.
    pub dir: WireHandle<'a>,
    /// The name.
    pub name: &'a [u8],
}

impl<'a> Decode<'a> for NameArgs<'a> {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        let dir = WireHandle::decode(from)?;
        let name = from.opaque(WIRE_NAME_BYTES_MAX)?;
        Ok(Self { dir, name })
    }
}

/// `SETATTR3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetattrArgs<'a> {
    /// The object.
    pub object: WireHandle<'a>,
    /// What to set.
    pub attributes: SetAttributes,
    /// The ctime the object must have, or NFS3ERR_NOT_SYNC is the answer.
    pub guard: Option<Timestamp>,
}

impl<'a> Decode<'a> for SetattrArgs<'a> {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        Ok(Self {
            object: WireHandle::decode(from)?,
            attributes: SetAttributes::decode(from)?,
            guard: from.option(XdrReader::time)?,
        })
    }
}

/// `ACCESS3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessArgs<'a> {
    /// The object.
    pub object: WireHandle<'a>,
    /// The bits asked about.
    pub access: u32,
}

impl<'a> Decode<'a> for AccessArgs<'a> {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        let object = WireHandle::decode(from)?;
        let access = from.u32()?;
        Ok(Self { object, access })
    }
}

/// `READ3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadArgs<'a> {
    /// The file.
    pub file: WireHandle<'a>,
    /// Where to begin.
    pub offset: u64,
    /// How many bytes are wanted; may be more than one reply carries.
    pub count: u32,
}

impl<'a> Decode<'a> for ReadArgs<'a> {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        Ok(Self {
            file: WireHandle::decode(from)?,
            offset: from.u64()?,
            count: from.u32()?,
        })
    }
}

/// `WRITE3args`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteArgs<'a> {
    /// The file.
    pub file: WireHandle<'a>,
    /// Where to begin.
    pub offset: u64,
    /// How durable the data has to be before the reply.
    pub stability: Stability,
    /// What to write: a slice of the receive buffer, or a copy if it is small.
    pub data: Bytes,
}

impl<'a> Decode<'a> for WriteArgs<'a> {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        let file = WireHandle::decode(from)?;
        let offset = from.u64()?;
        let count = from.u32()?;
        let stability = Stability::decode(from)?;
        let data = from.payload(limits::READ_BYTES_MAX)?;
        // Both say how much there is to write; a call in which they differ has no meaning.
        if u32::try_from(data.len()) != Ok(count) {
            return Err(XdrError::Value);
        }
        Ok(Self {
            file,
            offset,
            stability,
            data,
        })
    }
}

/// `createhow3`: what CREATE does about a name that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// UNCHECKED: an existing file is taken, and of the attributes only the size is applied.
    Unchecked(SetAttributes),
    /// GUARDED: NFS3ERR_EXIST.
    Guarded(SetAttributes),
    /// EXCLUSIVE: NFS3ERR_EXIST, unless the file was made with this verifier.
    Exclusive(Verifier),
}

impl<'a> Decode<'a> for CreateHow {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        match from.u32()? {
            0 => SetAttributes::decode(from).map(Self::Unchecked),
            1 => SetAttributes::decode(from).map(Self::Guarded),
            2 => from.array().map(Self::Exclusive),
            _ => Err(XdrError::Value),
        }
    }
}

/// `CREATE3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateArgs<'a> {
    /// Where.
    pub place: NameArgs<'a>,
    /// How.
    pub how: CreateHow,
}

impl<'a> Decode<'a> for CreateArgs<'a> {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        let place = NameArgs::decode(from)?;
        let how = CreateHow::decode(from)?;
        Ok(Self { place, how })
    }
}

/// `MKDIR3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MkdirArgs<'a> {
    /// Where.
    pub place: NameArgs<'a>,
    /// Its attributes.
    pub attributes: SetAttributes,
}

impl<'a> Decode<'a> for MkdirArgs<'a> {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        let place = NameArgs::decode(from)?;
        let attributes = SetAttributes::decode(from)?;
        Ok(Self { place, attributes })
    }
}

/// `SYMLINK3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymlinkArgs<'a> {
    /// Where.
    pub place: NameArgs<'a>,
    /// Its attributes.
    pub attributes: SetAttributes,
    /// What it points to; may be empty or too long.
    pub target: &'a [u8],
}

impl<'a> Decode<'a> for SymlinkArgs<'a> {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        Ok(Self {
            place: NameArgs::decode(from)?,
            attributes: SetAttributes::decode(from)?,
            target: from.opaque(WIRE_PATH_BYTES_MAX)?,
        })
    }
}

/// `MKNOD3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MknodArgs<'a> {
    /// Where.
    pub place: NameArgs<'a>,
    /// What. Only the kinds that have no procedure of their own can be made; the others are
    /// NFS3ERR_BADTYPE and come without attributes.
    pub kind: FileKind,
    /// Its attributes.
    pub attributes: SetAttributes,
    /// What a device node stands for.
    pub device: Device,
}

impl<'a> Decode<'a> for MknodArgs<'a> {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        let place = NameArgs::decode(from)?;
        let kind = FileKind::decode(from)?;
        let (attributes, device) = match kind {
            FileKind::BlockDevice | FileKind::CharacterDevice => {
                (SetAttributes::decode(from)?, Device::decode(from)?)
            }
            FileKind::Socket | FileKind::Fifo => (SetAttributes::decode(from)?, Device::default()),
            FileKind::Regular | FileKind::Directory | FileKind::Symlink => Default::default(),
        };
        Ok(Self {
            place,
            kind,
            attributes,
            device,
        })
    }
}

/// `RENAME3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenameArgs<'a> {
    /// The name to move.
    pub from: NameArgs<'a>,
    /// Where it goes.
    pub to: NameArgs<'a>,
}

impl<'a> Decode<'a> for RenameArgs<'a> {
    fn decode(reader: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        let from = NameArgs::decode(reader)?;
        let to = NameArgs::decode(reader)?;
        Ok(Self { from, to })
    }
}

/// `LINK3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkArgs<'a> {
    /// The object.
    pub object: WireHandle<'a>,
    /// Its further name.
    pub place: NameArgs<'a>,
}

impl<'a> Decode<'a> for LinkArgs<'a> {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        let object = WireHandle::decode(from)?;
        let place = NameArgs::decode(from)?;
        Ok(Self { object, place })
    }
}

/// `READDIR3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaddirArgs<'a> {
    /// The directory.
    pub dir: WireHandle<'a>,
    /// List what comes after this.
    pub cookie: u64,
    /// The verifier that came with the cookie.
    pub verifier: Verifier,
    /// Most bytes of the result.
    pub count: u32,
}

impl<'a> Decode<'a> for ReaddirArgs<'a> {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        Ok(Self {
            dir: WireHandle::decode(from)?,
            cookie: from.u64()?,
            verifier: from.array()?,
            count: from.u32()?,
        })
    }
}

/// `READDIRPLUS3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaddirplusArgs<'a> {
    /// The directory.
    pub dir: WireHandle<'a>,
    /// List what comes after this.
    pub cookie: u64,
    /// The verifier that came with the cookie.
    pub verifier: Verifier,
    /// Most bytes of names, inode numbers and cookies.
    pub dir_count: u32,
    /// Most bytes of the result.
    pub max_count: u32,
}

impl<'a> Decode<'a> for ReaddirplusArgs<'a> {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        Ok(Self {
            dir: WireHandle::decode(from)?,
            cookie: from.u64()?,
            verifier: from.array()?,
            dir_count: from.u32()?,
            max_count: from.u32()?,
        })
    }
}

/// `COMMIT3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitArgs<'a> {
    /// The file.
    pub file: WireHandle<'a>,
    /// Where to begin.
    pub offset: u64,
    /// How many bytes; 0 is everything from the offset on.
    pub count: u32,
}

impl<'a> Decode<'a> for CommitArgs<'a> {
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError> {
        Ok(Self {
            file: WireHandle::decode(from)?,
            offset: from.u64()?,
            count: from.u32()?,
        })
    }
}

#[cfg(test)]
mod tests;
