//! The calls of MOUNT v3 and NFSv3 (RFC 1813) that the loads are made of: arguments out, results in.

use crate::pattern::Stamp;
use crate::rpc::Procedure;
use crate::xdr::Decoder;
use crate::{Error, Outgoing};

/// Longest file handle, in bytes.
const HANDLE_BYTES_MAX: usize = 64;

/// Longest name in a listing, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Most authentication flavours in a MNT reply.
const FLAVORS_MAX: u32 = 64;

/// Most bytes a READ reply carries.
pub(crate) const READ_BYTES_MAX: usize = 1024 * 1024;

/// `stable` and `committed`: in the server's memory only.
pub(crate) const UNSTABLE: u32 = 0;
/// `stable` and `committed`: data and attributes are durable.
pub(crate) const FILE_SYNC: u32 = 2;

/// ACCESS bits READ, MODIFY and EXTEND: what opening a file for writing needs.
pub(crate) const ACCESS_READ_WRITE: u32 = 0x01 | 0x04 | 0x08;
/// ACCESS bits the kernel asks of a file.
pub(crate) const ACCESS_ASKED: u32 = 0x3f;

/// Types of nodes.
pub(crate) const REGULAR: u32 = 1;
pub(crate) const DIRECTORY: u32 = 2;

const NFS_PROGRAM: u32 = 100_003;
const MOUNT_PROGRAM: u32 = 100_005;

const fn nfs(number: u32, name: &'static str) -> Procedure {
    Procedure {
        program: NFS_PROGRAM,
        version: 3,
        number,
        name,
    }
}

pub(crate) const MNT: Procedure = Procedure {
    program: MOUNT_PROGRAM,
    version: 3,
    number: 1,
    name: "MNT",
};
pub(crate) const NULL: Procedure = nfs(0, "NULL");
pub(crate) const GETATTR: Procedure = nfs(1, "GETATTR");
pub(crate) const LOOKUP: Procedure = nfs(3, "LOOKUP");
pub(crate) const ACCESS: Procedure = nfs(4, "ACCESS");
pub(crate) const READ: Procedure = nfs(6, "READ");
pub(crate) const WRITE: Procedure = nfs(7, "WRITE");
pub(crate) const CREATE: Procedure = nfs(8, "CREATE");
pub(crate) const MKDIR: Procedure = nfs(9, "MKDIR");
pub(crate) const REMOVE: Procedure = nfs(12, "REMOVE");
pub(crate) const RMDIR: Procedure = nfs(13, "RMDIR");
pub(crate) const READDIRPLUS: Procedure = nfs(17, "READDIRPLUS");
pub(crate) const COMMIT: Procedure = nfs(21, "COMMIT");

/// A file handle: bytes that mean something to the server only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle(Box<[u8]>);

impl Handle {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    pub(crate) fn decode(decoder: &mut Decoder<'_>) -> Result<Self, Error> {
        decoder
            .opaque(HANDLE_BYTES_MAX)
            .map(|bytes| Self(bytes.into()))
    }

    pub(crate) fn is(&self, bytes: &[u8]) -> bool {
        *self.0 == *bytes
    }
}

/// What the loads check of `fattr3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) kind: u32,
    pub(crate) mode: u32,
    pub(crate) size: u64,
    pub(crate) fsid: u64,
    pub(crate) fileid: u64,
}

impl Attributes {
    pub(crate) fn decode(decoder: &mut Decoder<'_>) -> Result<Self, Error> {
        let kind = decoder.u32()?;
        let mode = decoder.u32()?;
        let _nlink_uid_gid: [u8; 12] = decoder.array()?;
        let size = decoder.u64()?;
        let _used_rdev: [u8; 16] = decoder.array()?;
        let fsid = decoder.u64()?;
        let fileid = decoder.u64()?;
        let _times: [u8; 24] = decoder.array()?;
        Ok(Self {
            kind,
            mode,
            size,
            fsid,
            fileid,
        })
    }

    /// `post_op_attr`, which a server may leave out and a good one does not.
    pub(crate) fn after(decoder: &mut Decoder<'_>) -> Result<Self, Error> {
        if decoder.bool()? {
            Self::decode(decoder)
        } else {
            Err(Error::Wrong("attributes are left out".into()))
        }
    }

    fn optional(decoder: &mut Decoder<'_>) -> Result<Option<Self>, Error> {
        if decoder.bool()? {
            Self::decode(decoder).map(Some)
        } else {
            Ok(None)
        }
    }
}

/// `wcc_data`: the attributes after the change.
fn wcc(decoder: &mut Decoder<'_>) -> Result<Option<Attributes>, Error> {
    if decoder.bool()? {
        let _size_mtime_ctime: [u8; 24] = decoder.array()?;
    }
    Attributes::optional(decoder)
}

/// Takes the status off; anything but success is an error.
pub(crate) fn status(decoder: &mut Decoder<'_>, call: Procedure) -> Result<(), Error> {
    match decoder.u32()? {
        0 => Ok(()),
        status => Err(Error::Status {
            call: call.name,
            status,
        }),
    }
}

/// A name in a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) directory: &'a Handle,
    pub(crate) name: &'a [u8],
}

impl Outgoing {
    fn handle(&mut self, handle: &Handle) {
        self.opaque(&handle.0);
    }

    fn place(&mut self, place: Place<'_>) {
        self.handle(place.directory);
        self.opaque(place.name);
    }

    pub(crate) fn mnt(&mut self, path: &str) {
        self.begin(MNT);
        self.opaque(path.as_bytes());
    }

    pub(crate) fn null(&mut self) {
        self.begin(NULL);
    }

    pub(crate) fn getattr(&mut self, handle: &Handle) {
        self.begin(GETATTR);
        self.handle(handle);
    }

    pub(crate) fn lookup(&mut self, place: Place<'_>) {
        self.begin(LOOKUP);
        self.place(place);
    }

    pub(crate) fn access(&mut self, handle: &Handle) {
        self.begin(ACCESS);
        self.handle(handle);
        self.u32(ACCESS_ASKED);
    }

    pub(crate) fn read(&mut self, handle: &Handle, offset: u64, count: u32) {
        self.begin(READ);
        self.handle(handle);
        self.u64(offset);
        self.u32(count);
    }

    pub(crate) fn write(&mut self, handle: &Handle, write: Write) {
        self.begin(WRITE);
        self.handle(handle);
        self.u64(write.offset);
        self.u32(write.count);
        self.u32(write.stable);
        // Counts are at most 1 MiB, so the conversion always holds.
        let length = usize::try_from(write.count).unwrap_or(READ_BYTES_MAX);
        self.data(write.stamp, length);
    }

    pub(crate) fn commit(&mut self, handle: &Handle) {
        self.begin(COMMIT);
        self.handle(handle);
        self.u64(0);
        self.u32(0);
    }

    /// CREATE UNCHECKED with a mode, as open(O_CREAT) does.
    pub(crate) fn create(&mut self, place: Place<'_>, mode: u32) {
        self.begin(CREATE);
        self.place(place);
        self.u32(0);
        self.mode_only(mode);
    }

    pub(crate) fn mkdir(&mut self, place: Place<'_>) {
        self.begin(MKDIR);
        self.place(place);
        self.mode_only(0o755);
    }

    pub(crate) fn remove(&mut self, place: Place<'_>) {
        self.begin(REMOVE);
        self.place(place);
    }

    pub(crate) fn rmdir(&mut self, place: Place<'_>) {
        self.begin(RMDIR);
        self.place(place);
    }

    pub(crate) fn readdirplus(&mut self, directory: &Handle, position: Position, bytes: u32) {
        self.begin(READDIRPLUS);
        self.handle(directory);
        self.u64(position.cookie);
        self.bytes(&position.verifier);
        // As the kernel client asks: both limits are the same.
        self.u32(bytes);
        self.u32(bytes);
    }

    /// `sattr3` that sets the mode and leaves the rest to the server.
    fn mode_only(&mut self, mode: u32) {
        self.u32(1);
        self.u32(mode);
        for _ in 0..5 {
            self.u32(0);
        }
    }
}

/// Arguments of a WRITE.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write {
    pub(crate) offset: u64,
    pub(crate) count: u32,
    pub(crate) stable: u32,
    pub(crate) stamp: Stamp,
}

/// Results of a MNT: the root of the export.
pub(crate) fn mounted(mut decoder: Decoder<'_>) -> Result<Handle, Error> {
    status(&mut decoder, MNT)?;
    let root = Handle::decode(&mut decoder)?;
    let flavors = decoder.u32()?;
    if flavors > FLAVORS_MAX {
        return Err(Error::Malformed("too many authentication flavours"));
    }
    for _ in 0..flavors {
        decoder.u32()?;
    }
    decoder.end()?;
    Ok(root)
}

/// Results of a GETATTR.
pub(crate) fn attributes(mut decoder: Decoder<'_>) -> Result<Attributes, Error> {
    status(&mut decoder, GETATTR)?;
    let attributes = Attributes::decode(&mut decoder)?;
    decoder.end()?;
    Ok(attributes)
}

/// Results of a LOOKUP: handle as bytes in place, and the object's attributes.
pub(crate) fn found(mut decoder: Decoder<'_>) -> Result<(&[u8], Attributes), Error> {
    status(&mut decoder, LOOKUP)?;
    let handle = decoder.opaque(HANDLE_BYTES_MAX)?;
    let attributes = Attributes::after(&mut decoder)?;
    Attributes::optional(&mut decoder)?;
    decoder.end()?;
    Ok((handle, attributes))
}

/// Results of an ACCESS: attributes and the bits granted.
pub(crate) fn granted(mut decoder: Decoder<'_>) -> Result<(Attributes, u32), Error> {
    status(&mut decoder, ACCESS)?;
    let attributes = Attributes::after(&mut decoder)?;
    let granted = decoder.u32()?;
    decoder.end()?;
    Ok((attributes, granted))
}

/// Results of a READ.
#[derive(Debug)]
pub(crate) struct ReadReply<'a> {
    pub(crate) attributes: Attributes,
    pub(crate) eof: bool,
    pub(crate) data: &'a [u8],
}

pub(crate) fn read(mut decoder: Decoder<'_>) -> Result<ReadReply<'_>, Error> {
    status(&mut decoder, READ)?;
    let attributes = Attributes::after(&mut decoder)?;
    let count = decoder.u32()?;
    let eof = decoder.bool()?;
    let data = decoder.opaque(READ_BYTES_MAX)?;
    decoder.end()?;
    if usize::try_from(count).ok() != Some(data.len()) {
        return Err(Error::Wrong("READ's count is not its data's length".into()));
    }
    Ok(ReadReply {
        attributes,
        eof,
        data,
    })
}

/// Results of a WRITE.
#[derive(Debug)]
pub(crate) struct WriteReply {
    pub(crate) attributes: Attributes,
    pub(crate) count: u32,
    pub(crate) committed: u32,
    pub(crate) verifier: [u8; 8],
}

pub(crate) fn written(mut decoder: Decoder<'_>) -> Result<WriteReply, Error> {
    status(&mut decoder, WRITE)?;
    let attributes =
        wcc(&mut decoder)?.ok_or_else(|| Error::Wrong("WRITE leaves out the attributes".into()))?;
    let count = decoder.u32()?;
    let committed = decoder.u32()?;
    let verifier = decoder.array()?;
    decoder.end()?;
    Ok(WriteReply {
        attributes,
        count,
        committed,
        verifier,
    })
}

/// Results of a COMMIT: the verifier.
pub(crate) fn committed(mut decoder: Decoder<'_>) -> Result<[u8; 8], Error> {
    status(&mut decoder, COMMIT)?;
    wcc(&mut decoder)?;
    let verifier = decoder.array()?;
    decoder.end()?;
    Ok(verifier)
}

/// Results of a CREATE or MKDIR: the new object.
pub(crate) fn created(
    mut decoder: Decoder<'_>,
    call: Procedure,
) -> Result<(Handle, Attributes), Error> {
    status(&mut decoder, call)?;
    if !decoder.bool()? {
        return Err(Error::Wrong(format!("{} leaves out the handle", call.name)));
    }
    let handle = Handle::decode(&mut decoder)?;
    let attributes = Attributes::after(&mut decoder)?;
    wcc(&mut decoder)?;
    decoder.end()?;
    Ok((handle, attributes))
}

/// Results of a REMOVE or RMDIR.
pub(crate) fn removed(mut decoder: Decoder<'_>, call: Procedure) -> Result<(), Error> {
    status(&mut decoder, call)?;
    wcc(&mut decoder)?;
    decoder.end()
}

/// Where a listing goes on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Position {
    pub(crate) cookie: u64,
    pub(crate) verifier: [u8; 8],
}

/// One entry of a READDIRPLUS.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) fileid: u64,
    pub(crate) name: &'a [u8],
    pub(crate) attributes: Option<Attributes>,
    pub(crate) has_handle: bool,
}

/// Results of a READDIRPLUS: calls `each` for every entry; `None` after the last of the directory.
pub(crate) fn listed(
    mut decoder: Decoder<'_>,
    mut each: impl FnMut(Entry<'_>) -> Result<(), Error>,
) -> Result<Option<Position>, Error> {
    status(&mut decoder, READDIRPLUS)?;
    Attributes::optional(&mut decoder)?;
    let verifier = decoder.array()?;
    let mut last = None;
    while decoder.bool()? {
        let fileid = decoder.u64()?;
        let name = decoder.opaque(NAME_BYTES_MAX)?;
        let cookie = decoder.u64()?;
        let attributes = Attributes::optional(&mut decoder)?;
        let has_handle = decoder.bool()?;
        if has_handle {
            decoder.opaque(HANDLE_BYTES_MAX)?;
        }
        each(Entry {
            fileid,
            name,
            attributes,
            has_handle,
        })?;
        last = Some(cookie);
    }
    let eof = decoder.bool()?;
    decoder.end()?;
    if eof {
        return Ok(None);
    }
    match last {
        Some(cookie) => Ok(Some(Position { cookie, verifier })),
        None => Err(Error::Wrong("a listing neither advances nor ends".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::{listed, read, written};
    use crate::xdr::Decoder;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn check<T>(reply: &[u32], decode: fn(Decoder<'_>) -> Result<T, crate::Error>, error: &str) {
        let bytes = words(reply);
        let text = match decode(Decoder::new(&bytes)) {
            Ok(_) => "no error".into(),
            Err(error) => error.to_string(),
        };
        assert!(text.contains(error), "{text} is not {error}");
    }

    /// `post_op_attr` with a regular file in it.
    const ATTRIBUTES: [u32; 22] = [
        1, 1, 0o644, 1, 0, 0, 0, 8, 0, 8, 0, 0, 0, 1, 0, 7, 1, 0, 1, 0, 1, 0,
    ];

    #[test]
    fn replies_that_lie_are_found_out() {
        let with = |rest: &[u32]| [[0].as_slice(), &ATTRIBUTES, rest].concat();
        let first = |decoder: Decoder<'_>| read(decoder).map(|reply| reply.data.len());
        check(&with(&[8, 1, 8, 1, 2]), first, "no error");
        check(&with(&[9, 1, 8, 1, 2]), first, "count");
        check(&with(&[8, 1, 8, 1]), first, "ends early");
        check(&with(&[8, 1, 8, 1, 2, 3]), first, "left over");
        check(&with(&[8, 2, 8, 1, 2]), first, "boolean");
        check(&[0, 0, 8, 1, 8, 1, 2], first, "left out");
        check(&[70], first, "READ answered status 70 (STALE)");
        check(&[0, 0, 0, 8, 2, 1, 2], written, "leaves out");
        let names = |decoder: Decoder<'_>| listed(decoder, |_| Ok(()));
        check(&[0, 0, 1, 2, 0, 1], names, "no error");
        check(&[0, 0, 1, 2, 0, 0], names, "neither advances nor ends");
        check(&[0, 0, 1, 2, 1, 0, 5, 256], names, "longer than allowed");
    }
}
