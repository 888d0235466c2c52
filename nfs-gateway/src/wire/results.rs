//! The results of the 22 procedures (RFC 1813, section 3.3).
//!
//! A result is a status and, depending on it, one structure. [`ok`] writes the good case. The bad
//! case carries only attributes, and [`failed`] writes it with what the procedure has room for:
//!
//! | procedures | beside an error |
//! | --- | --- |
//! | GETATTR | `()` |
//! | LOOKUP (the directory), ACCESS, READLINK, READ, READDIR, READDIRPLUS, FSSTAT, FSINFO, PATHCONF | `Option<Fattr>` |
//! | SETATTR, WRITE, COMMIT (the object), CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR (the directory) | [`Wcc`] |
//! | RENAME | ([`Wcc`] of the source directory, [`Wcc`] of the target directory) |
//! | LINK | (`Option<Fattr>` of the object, [`Wcc`] of the directory) |

use base::Timestamp;
use nfsserve::nfs::{self, nfsstat3};

use super::nfs3::{Fattr, Stability, Verifier, Wcc, WireHandle, time_to_wire};
use super::reply::{Payload, Reply, ReplyWriter};
use super::rpc;
use super::xdr::{Encode, XdrWriter, padding_bytes};

/// The reply with NFS3_OK and `result`.
#[must_use]
pub fn ok(xid: u32, result: &impl Encode) -> Reply {
    let mut reply = begin(xid, nfsstat3::NFS3_OK);
    result.encode(reply.body());
    reply.finish()
}

/// The reply with an error and the attributes that go with it; see the table above.
#[must_use]
pub fn failed(xid: u32, status: nfsstat3, attributes: &impl Encode) -> Reply {
    let mut reply = begin(xid, status);
    attributes.encode(reply.body());
    reply.finish()
}

/// The reply to NULL.
#[must_use]
pub fn null(xid: u32) -> Reply {
    rpc::success(xid).finish()
}

/// The reply to READ; `data` is sent from where it is.
#[must_use]
pub fn read(xid: u32, result: &ReadOk, data: Payload) -> Reply {
    let mut reply = begin(xid, nfsstat3::NFS3_OK);
    let body = reply.body();
    result.attributes.encode(body);
    body.length(data.iter().map(bytes::Bytes::len).sum());
    body.bool(result.eof);
    reply.finish_with(data)
}

/// Begins a reply whose procedure was executed, up to the status.
fn begin(xid: u32, status: nfsstat3) -> ReplyWriter {
    let mut reply = rpc::success(xid);
    reply.body().protocol(&status);
    reply
}

/// `READ3resok` without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOk {
    /// The file.
    pub attributes: Option<Fattr>,
    /// Whether the data reaches the file's end.
    pub eof: bool,
}

/// `GETATTR3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetattrOk {
    /// The object.
    pub attributes: Fattr,
}

impl Encode for GetattrOk {
    fn encode(&self, to: &mut XdrWriter) {
        self.attributes.encode(to);
    }
}

/// `SETATTR3resok`, `REMOVE3resok` and `RMDIR3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WccOk {
    /// The object, or the directory.
    pub wcc: Wcc,
}

impl Encode for WccOk {
    fn encode(&self, to: &mut XdrWriter) {
        self.wcc.encode(to);
    }
}

/// `LOOKUP3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupOk<'a> {
    /// What was found.
    pub object: WireHandle<'a>,
    /// Its attributes.
    pub attributes: Option<Fattr>,
    /// The directory.
    pub dir: Option<Fattr>,
}

impl Encode for LookupOk<'_> {
    fn encode(&self, to: &mut XdrWriter) {
        self.object.encode(to);
        self.attributes.encode(to);
        self.dir.encode(to);
    }
}

/// `ACCESS3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessOk {
    /// The object.
    pub attributes: Option<Fattr>,
    /// The bits granted, among those asked about.
    pub access: u32,
}

impl Encode for AccessOk {
    fn encode(&self, to: &mut XdrWriter) {
        self.attributes.encode(to);
        to.u32(self.access);
    }
}

/// `READLINK3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadlinkOk<'a> {
    /// The link.
    pub attributes: Option<Fattr>,
    /// What it points to.
    pub target: &'a [u8],
}

impl Encode for ReadlinkOk<'_> {
    fn encode(&self, to: &mut XdrWriter) {
        self.attributes.encode(to);
        to.opaque(self.target);
    }
}

/// `WRITE3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOk {
    /// The file.
    pub wcc: Wcc,
    /// How many bytes were taken.
    pub count: u32,
    /// How durable they are.
    pub committed: Stability,
    /// Changes when unstable data may have been lost.
    pub verifier: Verifier,
}

impl Encode for WriteOk {
    fn encode(&self, to: &mut XdrWriter) {
        self.wcc.encode(to);
        to.u32(self.count);
        to.u32(self.committed.number());
        to.fixed(&self.verifier);
    }
}

/// `CREATE3resok`, `MKDIR3resok`, `SYMLINK3resok` and `MKNOD3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateOk<'a> {
    /// What was made.
    pub object: Option<WireHandle<'a>>,
    /// Its attributes.
    pub attributes: Option<Fattr>,
    /// The directory.
    pub dir: Wcc,
}

impl Encode for CreateOk<'_> {
    fn encode(&self, to: &mut XdrWriter) {
        self.object.encode(to);
        self.attributes.encode(to);
        self.dir.encode(to);
    }
}

/// `RENAME3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenameOk {
    /// The source directory.
    pub from_dir: Wcc,
    /// The target directory.
    pub to_dir: Wcc,
}

impl Encode for RenameOk {
    fn encode(&self, to: &mut XdrWriter) {
        self.from_dir.encode(to);
        self.to_dir.encode(to);
    }
}

/// `LINK3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOk {
    /// The object.
    pub attributes: Option<Fattr>,
    /// The directory.
    pub dir: Wcc,
}

impl Encode for LinkOk {
    fn encode(&self, to: &mut XdrWriter) {
        self.attributes.encode(to);
        self.dir.encode(to);
    }
}

/// `FSSTAT3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsstatOk {
    /// The object asked about.
    pub attributes: Option<Fattr>,
    /// Size in bytes.
    pub total_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Free bytes for the caller.
    pub available_bytes: u64,
    /// How many objects there can be.
    pub total_files: u64,
    /// How many more.
    pub free_files: u64,
    /// How many more for the caller.
    pub available_files: u64,
    /// For how many seconds this is not expected to change.
    pub invariant_seconds: u32,
}

impl Encode for FsstatOk {
    fn encode(&self, to: &mut XdrWriter) {
        self.attributes.encode(to);
        for number in [
            self.total_bytes,
            self.free_bytes,
            self.available_bytes,
            self.total_files,
            self.free_files,
            self.available_files,
        ] {
            to.u64(number);
        }
        to.u32(self.invariant_seconds);
    }
}

/// `FSINFO3resok`. The properties sent are: links, symbolic links, the same everywhere, times
/// can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsinfoOk {
    /// The object asked about.
    pub attributes: Option<Fattr>,
    /// Most and preferred bytes of one READ.
    pub read_bytes: u32,
    /// Most and preferred bytes of one WRITE.
    pub write_bytes: u32,
    /// What sizes should be multiples of.
    pub multiple_bytes: u32,
    /// Preferred bytes of a READDIR.
    pub readdir_bytes: u32,
    /// Largest file.
    pub file_bytes_max: u64,
    /// How exact times are.
    pub time_delta: Timestamp,
}

impl Encode for FsinfoOk {
    fn encode(&self, to: &mut XdrWriter) {
        self.attributes.encode(to);
        for number in [
            self.read_bytes,
            self.read_bytes,
            self.multiple_bytes,
            self.write_bytes,
            self.write_bytes,
            self.multiple_bytes,
            self.readdir_bytes,
        ] {
            to.u32(number);
        }
        to.u64(self.file_bytes_max);
        to.protocol(&time_to_wire(self.time_delta));
        to.u32(nfs::FSF_LINK | nfs::FSF_SYMLINK | nfs::FSF_HOMOGENEOUS | nfs::FSF_CANSETTIME);
    }
}

/// `PATHCONF3resok`. Names are never cut, only root gives files away, and case is kept and matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathconfOk {
    /// The object asked about.
    pub attributes: Option<Fattr>,
    /// Most names of one object.
    pub links_max: u32,
    /// Longest name in bytes.
    pub name_bytes_max: u32,
}

impl Encode for PathconfOk {
    fn encode(&self, to: &mut XdrWriter) {
        self.attributes.encode(to);
        to.u32(self.links_max);
        to.u32(self.name_bytes_max);
        let (no_trunc, chown_restricted, case_insensitive, case_preserving) =
            (true, true, false, true);
        for flag in [
            no_trunc,
            chown_restricted,
            case_insensitive,
            case_preserving,
        ] {
            to.bool(flag);
        }
    }
}

/// `COMMIT3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitOk {
    /// The file.
    pub wcc: Wcc,
    /// Compared by the client with those of its writes.
    pub verifier: Verifier,
}

impl Encode for CommitOk {
    fn encode(&self, to: &mut XdrWriter) {
        self.wcc.encode(to);
        to.fixed(&self.verifier);
    }
}

/// One entry of a directory listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The inode number.
    pub fileid: u64,
    /// The name.
    pub name: &'a [u8],
    /// Where the listing goes on after this entry.
    pub cookie: u64,
}

/// What READDIRPLUS adds to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntryPlus<'a> {
    /// The object's attributes.
    pub attributes: Option<Fattr>,
    /// The object's handle.
    pub object: Option<WireHandle<'a>>,
}

/// The listing has no room for even one entry: NFS3ERR_TOOSMALL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not one entry fits into the reply")]
pub struct TooSmall;

/// Builds the reply to READDIR and READDIRPLUS, entry by entry, within the client's limits.
#[derive(Debug)]
pub struct DirListWriter {
    reply: ReplyWriter,
    result_start: usize,
    result_bytes_max: usize,
    name_bytes_left: usize,
    entries: usize,
    is_full: bool,
}

/// What follows the entries: the mark of the list's end, and whether it is the directory's.
const LIST_END_BYTES: usize = 8;

/// An entry without its name: that there is one, inode number, the name's length, cookie.
const ENTRY_BYTES: usize = 24;

impl DirListWriter {
    /// Begins a READDIR reply of at most `count` bytes.
    #[must_use]
    pub fn readdir(xid: u32, dir: Option<&Fattr>, verifier: Verifier, count: u32) -> Self {
        Self::readdirplus(xid, dir, verifier, u32::MAX, count)
    }

    /// Begins a READDIRPLUS reply of at most `max_count` bytes, of which names, inode numbers and
    /// cookies take at most `dir_count`.
    #[must_use]
    pub fn readdirplus(
        xid: u32,
        dir: Option<&Fattr>,
        verifier: Verifier,
        dir_count: u32,
        max_count: u32,
    ) -> Self {
        let mut reply = begin(xid, nfsstat3::NFS3_OK);
        let result_start = reply.body().len();
        dir.encode(reply.body());
        reply.body().fixed(&verifier);
        let bytes = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        Self {
            reply,
            result_start,
            result_bytes_max: bytes(max_count).min(base::limits::READ_BYTES_MAX),
            name_bytes_left: bytes(dir_count),
            entries: 0,
            is_full: false,
        }
    }

    /// Adds an entry to a READDIR reply. Says whether it fitted; once one has not, none does.
    pub fn push(&mut self, entry: &DirEntry<'_>) -> bool {
        self.push_with(entry, |_| {})
    }

    /// Adds an entry to a READDIRPLUS reply, like [`DirListWriter::push`].
    pub fn push_plus(&mut self, entry: &DirEntry<'_>, plus: &DirEntryPlus<'_>) -> bool {
        self.push_with(entry, |body| {
            plus.attributes.encode(body);
            plus.object.encode(body);
        })
    }

    /// How many entries there are.
    #[must_use]
    pub const fn entries(&self) -> usize {
        self.entries
    }

    /// Where the reply stood after the last entry; see [`DirListWriter::undo_to`].
    #[must_use]
    pub fn position(&mut self) -> DirListPosition {
        DirListPosition {
            bytes: self.reply.body().len(),
            entries: self.entries,
        }
    }

    /// Takes back the entries after `position`, for entries that must not be torn apart.
    /// The list is full then.
    pub fn undo_to(&mut self, position: DirListPosition) {
        self.reply.body().truncate(position.bytes);
        self.entries = position.entries;
        self.is_full = true;
    }

    /// Ends the reply. `is_end` says that the directory has no further entries; it is ignored if
    /// an entry did not fit.
    ///
    /// # Errors
    ///
    /// If no entry fitted: an empty listing that is not the end would make the client ask for
    /// ever. Or if not even an empty listing fits.
    pub fn finish(mut self, is_end: bool) -> Result<Reply, TooSmall> {
        let is_end = is_end && !self.is_full;
        let empty_bytes = self.reply.body().len() - self.result_start + LIST_END_BYTES;
        if self.entries == 0 && (!is_end || empty_bytes > self.result_bytes_max) {
            return Err(TooSmall);
        }
        self.reply.body().bool(false);
        self.reply.body().bool(is_end);
        Ok(self.reply.finish())
    }

    fn push_with(&mut self, entry: &DirEntry<'_>, plus: impl FnOnce(&mut XdrWriter)) -> bool {
        if self.is_full {
            return false;
        }
        let name_bytes = entry.name.len() + padding_bytes(entry.name.len());
        let body = self.reply.body();
        let start = body.len();
        body.bool(true);
        body.u64(entry.fileid);
        body.opaque(entry.name);
        body.u64(entry.cookie);
        plus(body);
        let result_bytes = body.len() - self.result_start + LIST_END_BYTES;
        let names = self.name_bytes_left.checked_sub(ENTRY_BYTES + name_bytes);
        // A first entry goes out even if the smaller limit, which is a hint, is below it.
        let names = names.or((self.entries == 0).then_some(0));
        match names.filter(|_| result_bytes <= self.result_bytes_max) {
            Some(left) => {
                self.name_bytes_left = left;
                self.entries += 1;
            }
            None => {
                body.truncate(start);
                self.is_full = true;
            }
        }
        !self.is_full
    }
}

/// A place in a listing that [`DirListWriter::undo_to`] goes back to.
#[derive(Clone, Copy, Debug)]
pub struct DirListPosition {
    bytes: usize,
    entries: usize,
}

#[cfg(test)]
mod tests;
