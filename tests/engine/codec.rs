//! Between the calls and answers of the model and the bytes on the wire, with an independent codec.

use std::collections::HashMap;
use std::io::Cursor;

use base::{Caller, InodeId, SessionId, Timestamp};
use bytes::Bytes;
use metadata::FsError;
use metadata::ops::{Access, Created, Found, How, Linked, Node, Removed, Renamed};
use metadata::stat::{Before, Device, FileKind, SetAttrs, SetTime, Stat, Wcc};
use nfs_gateway::HandleKeys;
use nfs_gateway::wire::nfs3::WireHandle;
use nfs3_types::nfs3::{self as wire, NFS_PROGRAM, Nfs3Option, Nfs3Result, nfsstat3};
use nfs3_types::rpc::{auth_unix, opaque_auth};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use system_tests::subject::{Answer, Call, ListReply, Listed, Op, ReadReply};

/// Bytes of a READDIR for no entries and for each one, whatever their names are.
const LIST_BYTES: (u32, u32) = (576, 48);
/// The same for READDIRPLUS.
const LIST_PLUS_BYTES: (u32, u32) = (1024, 200);

/// Every bit of ACCESS.
const ACCESS_ALL: u32 = 0x3f;

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;

/// What a call came to.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    /// Of WRITE and COMMIT.
    pub(crate) verifier: Option<[u8; 8]>,
    /// Whether a WRITE says that its data is stored.
    pub(crate) is_stable: bool,
    /// Further attributes that the reply shows: beside an error, or of the entries of a listing.
    pub(crate) also_shown: Vec<Stat>,
}

/// The filesystem's constant, and the handle of every inode that was ever shown.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    known: HashMap<InodeId, Vec<u8>>,
    fsid: Option<u64>,
    /// Broken promises.
    pub(crate) complaints: Vec<String>,
}

impl Handles {
    pub(crate) fn learn(&mut self, inode: InodeId, handle: &[u8]) {
        let known = self.known.entry(inode).or_insert_with(|| handle.to_vec());
        if known != handle {
            self.complaints.push(format!("{inode:?} has two handles"));
        }
    }

    /// Goes over to a session that has the same inodes.
    pub(crate) fn move_to(&mut self, session: SessionId, keys: &HandleKeys) {
        self.fsid = None;
        for handle in self.known.values_mut() {
            let mut decoded = keys.verify(WireHandle(handle)).unwrap();
            decoded.session = session;
            *handle = keys.sign(&decoded).as_bytes().to_vec();
        }
    }

    pub(crate) fn of(&self, inode: InodeId) -> wire::nfs_fh3 {
        let handle = self.known.get(&inode);
        let handle = handle.unwrap_or_else(|| panic!("no handle of {inode:?}"));
        wire::nfs_fh3 {
            data: Opaque::owned(handle.clone()),
        }
    }

    fn stat(&mut self, attributes: &wire::fattr3) -> Stat {
        let fsid = *self.fsid.get_or_insert(attributes.fsid);
        if fsid != attributes.fsid {
            self.complaints.push("the fsid has changed".to_owned());
        }
        Stat {
            inode: InodeId::new(attributes.fileid),
            kind: match attributes.type_ {
                wire::ftype3::NF3REG => FileKind::File,
                wire::ftype3::NF3DIR => FileKind::Directory,
                wire::ftype3::NF3BLK => FileKind::BlockDevice,
                wire::ftype3::NF3CHR => FileKind::CharDevice,
                wire::ftype3::NF3LNK => FileKind::Symlink,
                wire::ftype3::NF3SOCK => FileKind::Socket,
                wire::ftype3::NF3FIFO => FileKind::Fifo,
            },
            mode: attributes.mode,
            nlink: attributes.nlink,
            uid: attributes.uid,
            gid: attributes.gid,
            size: attributes.size,
            used: attributes.used,
            device: Device {
                major: attributes.rdev.specdata1,
                minor: attributes.rdev.specdata2,
            },
            atime: time(attributes.atime),
            mtime: time(attributes.mtime),
            ctime: time(attributes.ctime),
        }
    }

    /// Attributes that a successful reply has to carry.
    fn post(&mut self, attributes: &wire::post_op_attr) -> Stat {
        match attributes {
            Nfs3Option::Some(attributes) => self.stat(attributes),
            Nfs3Option::None => panic!("a successful reply has no attributes"),
        }
    }

    fn wcc(&mut self, data: &wire::wcc_data) -> Wcc {
        let Nfs3Option::Some(before) = &data.before else {
            panic!("a successful reply has no attributes from before");
        };
        Wcc {
            before: Before {
                size: before.size,
                mtime: time(before.mtime),
                ctime: time(before.ctime),
            },
            after: self.post(&data.after),
        }
    }

    fn beside(&mut self, attributes: &[&wire::post_op_attr]) -> Vec<Stat> {
        let mut stats = Vec::new();
        for attributes in attributes {
            if let Nfs3Option::Some(attributes) = attributes {
                stats.push(self.stat(attributes));
            }
        }
        stats
    }

    fn beside_wcc(&mut self, data: &[&wire::wcc_data]) -> Vec<Stat> {
        if data.iter().any(|data| data.before.is_some()) {
            // Not wrong, but then it has to be true; the model does not judge it.
            self.complaints
                .push("an error tells attributes from before".to_owned());
        }
        let after: Vec<&wire::post_op_attr> = data.iter().map(|data| &data.after).collect();
        self.beside(&after)
    }

    fn created(
        &mut self,
        obj: &wire::post_op_fh3,
        attributes: &wire::post_op_attr,
        dir: &wire::wcc_data,
    ) -> Created {
        let object = self.post(attributes);
        let Nfs3Option::Some(handle) = obj else {
            panic!("a created object has no handle");
        };
        self.learn(object.inode, handle.data.as_ref());
        Created {
            object,
            dir: self.wcc(dir),
        }
    }
}

fn time(time: wire::nfstime3) -> Timestamp {
    Timestamp::new(u64::from(time.seconds), time.nseconds)
}

fn to_wire(time: Timestamp) -> wire::nfstime3 {
    wire::nfstime3 {
        seconds: u32::try_from(time.seconds()).unwrap(),
        nseconds: time.nanos(),
    }
}

fn option<T: Pack + Unpack>(value: Option<T>) -> Nfs3Option<T> {
    value.map_or(Nfs3Option::None, Nfs3Option::Some)
}

fn sattr(attrs: &SetAttrs) -> wire::sattr3 {
    wire::sattr3 {
        mode: option(attrs.mode),
        uid: option(attrs.uid),
        gid: option(attrs.gid),
        size: option(attrs.size),
        atime: match attrs.atime {
            SetTime::Keep => wire::set_atime::DONT_CHANGE,
            SetTime::Now => wire::set_atime::SET_TO_SERVER_TIME,
            SetTime::To(at) => wire::set_atime::SET_TO_CLIENT_TIME(to_wire(at)),
        },
        mtime: match attrs.mtime {
            SetTime::Keep => wire::set_mtime::DONT_CHANGE,
            SetTime::Now => wire::set_mtime::SET_TO_SERVER_TIME,
            SetTime::To(at) => wire::set_mtime::SET_TO_CLIENT_TIME(to_wire(at)),
        },
    }
}

fn name(name: &Bytes) -> wire::filename3<'static> {
    name.to_vec().into()
}

/// A whole call, with its record mark.
pub(crate) fn record(
    (program, procedure): (u32, u32),
    xid: u32,
    caller: &Caller,
    args: &impl Pack,
) -> Bytes {
    let credential = opaque_auth::auth_unix(&auth_unix {
        stamp: 0,
        machinename: Opaque::borrowed(b"tier-engine"),
        uid: caller.uid,
        gid: caller.gid,
        gids: caller.groups.clone(),
    });
    let mut bytes = vec![0; 4];
    for word in [xid, 0, 2, program, 3, procedure] {
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    credential.pack(&mut bytes).unwrap();
    opaque_auth::default().pack(&mut bytes).unwrap();
    args.pack(&mut bytes).unwrap();
    let length = u32::try_from(bytes.len() - 4).unwrap();
    bytes[..4].copy_from_slice(&(0x8000_0000 | length).to_be_bytes());
    bytes.into()
}

/// A call of NFS, by the number of its procedure.
pub(crate) fn nfs(procedure: NFS_PROGRAM, xid: u32, caller: &Caller, args: &impl Pack) -> Bytes {
    record((NFS, number(procedure)), xid, caller, args)
}

/// A call of MOUNT.
pub(crate) fn mount(procedure: u32, xid: u32, args: &impl Pack) -> Bytes {
    record((MOUNT, procedure), xid, &Caller::root(), args)
}

fn number(procedure: NFS_PROGRAM) -> u32 {
    let mut bytes = Vec::new();
    procedure.pack(&mut bytes).unwrap();
    u32::from_be_bytes(bytes.try_into().unwrap())
}

/// How a listing is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listing {
    Plain,
    Plus,
}

/// The bytes of a call.
#[expect(clippy::too_many_lines, reason = "a table: one arm per operation")]
pub(crate) fn encode(handles: &Handles, xid: u32, call: &Call, listing: Listing) -> Bytes {
    let place = |dir: &InodeId, entry: &Bytes| wire::diropargs3 {
        dir: handles.of(*dir),
        name: name(entry),
    };
    let send = |procedure, args: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        args(&mut bytes);
        nfs(procedure, xid, &call.caller, &Raw(bytes))
    };
    /// Packs into the bytes given.
    fn put(args: impl Pack) -> impl Fn(&mut Vec<u8>) {
        move |to| {
            args.pack(to).unwrap();
        }
    }
    match &call.op {
        Op::Getattr { inode } => send(NFS_PROGRAM::NFSPROC3_GETATTR, &put(handles.of(*inode))),
        Op::Setattr {
            inode,
            attrs,
            guard,
        } => send(
            NFS_PROGRAM::NFSPROC3_SETATTR,
            &put(wire::SETATTR3args {
                object: handles.of(*inode),
                new_attributes: sattr(attrs),
                guard: option(guard.map(to_wire)),
            }),
        ),
        Op::Lookup { dir, name } => send(NFS_PROGRAM::NFSPROC3_LOOKUP, &put(place(dir, name))),
        Op::Access { inode } => send(
            NFS_PROGRAM::NFSPROC3_ACCESS,
            &put(wire::ACCESS3args {
                object: handles.of(*inode),
                access: ACCESS_ALL,
            }),
        ),
        Op::Readlink { inode } => send(NFS_PROGRAM::NFSPROC3_READLINK, &put(handles.of(*inode))),
        Op::Read {
            inode,
            offset,
            count,
        } => send(
            NFS_PROGRAM::NFSPROC3_READ,
            &put(wire::READ3args {
                file: handles.of(*inode),
                offset: *offset,
                count: *count,
            }),
        ),
        Op::Write {
            inode,
            offset,
            data,
            stable,
        } => send(
            NFS_PROGRAM::NFSPROC3_WRITE,
            &put(wire::WRITE3args {
                file: handles.of(*inode),
                offset: *offset,
                count: u32::try_from(data.len()).unwrap(),
                stable: match (stable, xid % 3) {
                    (false, _) => wire::stable_how::UNSTABLE,
                    (true, 0) => wire::stable_how::DATA_SYNC,
                    (true, _) => wire::stable_how::FILE_SYNC,
                },
                data: Opaque::owned(data.to_vec()),
            }),
        ),
        Op::Commit { inode } => send(
            NFS_PROGRAM::NFSPROC3_COMMIT,
            &put(wire::COMMIT3args {
                file: handles.of(*inode),
                offset: 0,
                count: 0,
            }),
        ),
        Op::Create { dir, name, how } => send(
            NFS_PROGRAM::NFSPROC3_CREATE,
            &put(wire::CREATE3args {
                where_: place(dir, name),
                how: match how {
                    How::Unchecked(attrs) => wire::createhow3::UNCHECKED(sattr(attrs)),
                    How::Guarded(attrs) => wire::createhow3::GUARDED(sattr(attrs)),
                    How::Exclusive(verifier) => {
                        wire::createhow3::EXCLUSIVE(wire::createverf3(*verifier))
                    }
                },
            }),
        ),
        Op::Make {
            dir,
            name,
            node,
            attrs,
        } => make(&send, place(dir, name), node, attrs),
        Op::Remove { dir, name } => send(NFS_PROGRAM::NFSPROC3_REMOVE, &put(place(dir, name))),
        Op::Rmdir { dir, name } => send(NFS_PROGRAM::NFSPROC3_RMDIR, &put(place(dir, name))),
        Op::Rename {
            from_dir,
            from_name,
            to_dir,
            to_name,
        } => send(
            NFS_PROGRAM::NFSPROC3_RENAME,
            &put(wire::RENAME3args {
                from: place(from_dir, from_name),
                to: place(to_dir, to_name),
            }),
        ),
        Op::Link { inode, dir, name } => send(
            NFS_PROGRAM::NFSPROC3_LINK,
            &put(wire::LINK3args {
                file: handles.of(*inode),
                link: place(dir, name),
            }),
        ),
        Op::List { dir, cookie, count } => {
            let count = u32::try_from(*count).unwrap();
            match listing {
                Listing::Plain => send(
                    NFS_PROGRAM::NFSPROC3_READDIR,
                    &put(wire::READDIR3args {
                        dir: handles.of(*dir),
                        cookie: *cookie,
                        cookieverf: wire::cookieverf3::default(),
                        count: LIST_BYTES.0 + count * LIST_BYTES.1,
                    }),
                ),
                Listing::Plus => {
                    let bytes = LIST_PLUS_BYTES.0 + count * LIST_PLUS_BYTES.1;
                    send(
                        NFS_PROGRAM::NFSPROC3_READDIRPLUS,
                        &put(wire::READDIRPLUS3args {
                            dir: handles.of(*dir),
                            cookie: *cookie,
                            cookieverf: wire::cookieverf3::default(),
                            dircount: bytes,
                            maxcount: bytes,
                        }),
                    )
                }
            }
        }
    }
}

fn make(
    send: &impl Fn(NFS_PROGRAM, &dyn Fn(&mut Vec<u8>)) -> Bytes,
    place: wire::diropargs3<'static>,
    node: &Node,
    attrs: &SetAttrs,
) -> Bytes {
    let attributes = sattr(attrs);
    let device = |device: &Device| wire::devicedata3 {
        dev_attributes: sattr(attrs),
        spec: wire::specdata3 {
            specdata1: device.major,
            specdata2: device.minor,
        },
    };
    let what = match node {
        Node::Directory => {
            return send(NFS_PROGRAM::NFSPROC3_MKDIR, &|to| {
                place.pack(to).unwrap();
                attributes.pack(to).unwrap();
            });
        }
        Node::Symlink(target) => {
            return send(NFS_PROGRAM::NFSPROC3_SYMLINK, &|to| {
                place.pack(to).unwrap();
                attributes.pack(to).unwrap();
                Opaque::borrowed(target).pack(to).unwrap();
            });
        }
        Node::BlockDevice(number) => wire::mknoddata3::NF3BLK(device(number)),
        Node::CharDevice(number) => wire::mknoddata3::NF3CHR(device(number)),
        Node::Fifo => wire::mknoddata3::NF3FIFO(attributes),
        Node::Socket => wire::mknoddata3::NF3SOCK(attributes),
    };
    send(NFS_PROGRAM::NFSPROC3_MKNOD, &|to| {
        place.pack(to).unwrap();
        what.pack(to).unwrap();
    })
}

/// Bytes that are packed already.
pub(crate) struct Raw(pub Vec<u8>);

impl Pack for Raw {
    fn packed_size(&self) -> usize {
        self.0.len()
    }

    fn pack(&self, out: &mut impl std::io::Write) -> nfs3_types::xdr_codec::Result<usize> {
        out.write_all(&self.0)
            .map_err(nfs3_types::xdr_codec::Error::from)?;
        Ok(self.0.len())
    }
}

/// The result part of a reply (without the record mark), which has to be an accepted call's.
pub(crate) fn result(reply: &[u8]) -> &[u8] {
    // xid, REPLY, accepted, AUTH_NONE verifier of no bytes, SUCCESS.
    assert_eq!(
        reply[4..24],
        [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    &reply[24..]
}

/// Reads all of `bytes` as one value.
pub(crate) fn unpack<T: Unpack>(bytes: &[u8]) -> T {
    let mut from = Cursor::new(bytes);
    let (value, _) = T::unpack(&mut from).unwrap_or_else(|error| {
        panic!("a reply that cannot be read ({error:?}): {bytes:?}");
    });
    assert_eq!(from.position(), u64::try_from(bytes.len()).unwrap());
    value
}

/// The error that a status stands for.
fn error(status: nfsstat3) -> FsError {
    match status {
        nfsstat3::NFS3ERR_NOENT => FsError::NotFound,
        nfsstat3::NFS3ERR_EXIST => FsError::Exists,
        nfsstat3::NFS3ERR_NOTDIR => FsError::NotDirectory,
        nfsstat3::NFS3ERR_ISDIR => FsError::IsDirectory,
        nfsstat3::NFS3ERR_NOTEMPTY => FsError::NotEmpty,
        nfsstat3::NFS3ERR_ACCES => FsError::AccessDenied,
        nfsstat3::NFS3ERR_PERM => FsError::NotPermitted,
        nfsstat3::NFS3ERR_ROFS => FsError::ReadOnly,
        nfsstat3::NFS3ERR_STALE => FsError::Stale,
        nfsstat3::NFS3ERR_INVAL => FsError::Invalid,
        nfsstat3::NFS3ERR_BADTYPE => FsError::BadType,
        nfsstat3::NFS3ERR_NOT_SYNC => FsError::GuardMismatch,
        nfsstat3::NFS3ERR_FBIG => FsError::TooLarge,
        nfsstat3::NFS3ERR_MLINK => FsError::TooManyLinks,
        nfsstat3::NFS3ERR_DQUOT => FsError::QuotaExceeded,
        nfsstat3::NFS3ERR_NOSPC => FsError::NoSpace,
        nfsstat3::NFS3ERR_NAMETOOLONG => FsError::NameTooLong,
        nfsstat3::NFS3ERR_XDEV => FsError::CrossSession,
        nfsstat3::NFS3ERR_IO => FsError::Corrupt,
        status => panic!("an unexpected status: {status}"),
    }
}

/// What a reply to `call` says.
#[expect(clippy::too_many_lines, reason = "a table: one arm per operation")]
pub(crate) fn decode(handles: &mut Handles, call: &Call, listing: Listing, bytes: &[u8]) -> Reply {
    let mut reply = Reply {
        answer: Answer::Committed(Ok(())),
        verifier: None,
        is_stable: false,
        also_shown: Vec::new(),
    };
    let beside = &mut reply.also_shown;
    reply.answer = match &call.op {
        Op::Getattr { .. } => Answer::Attributes(match unpack::<wire::GETATTR3res>(bytes) {
            Nfs3Result::Ok(ok) => Ok(handles.stat(&ok.obj_attributes)),
            Nfs3Result::Err((status, _)) => Err(error(status)),
        }),
        Op::Setattr { .. } => Answer::Changed(match unpack::<wire::SETATTR3res>(bytes) {
            Nfs3Result::Ok(ok) => Ok(handles.wcc(&ok.obj_wcc)),
            Nfs3Result::Err((status, fail)) => {
                *beside = handles.beside_wcc(&[&fail.obj_wcc]);
                Err(error(status))
            }
        }),
        Op::Lookup { .. } => Answer::Found(match unpack::<wire::LOOKUP3res>(bytes) {
            Nfs3Result::Ok(ok) => {
                let object = handles.post(&ok.obj_attributes);
                handles.learn(object.inode, ok.object.data.as_ref());
                let dir = handles.post(&ok.dir_attributes);
                Ok(Found { object, dir })
            }
            Nfs3Result::Err((status, fail)) => {
                *beside = handles.beside(&[&fail.dir_attributes]);
                Err(error(status))
            }
        }),
        Op::Access { .. } => Answer::Access(match unpack::<wire::ACCESS3res>(bytes) {
            Nfs3Result::Ok(ok) => Ok((access(ok.access), handles.post(&ok.obj_attributes))),
            Nfs3Result::Err((status, fail)) => {
                *beside = handles.beside(&[&fail.obj_attributes]);
                Err(error(status))
            }
        }),
        Op::Readlink { .. } => Answer::Target(match unpack::<wire::READLINK3res<'_>>(bytes) {
            Nfs3Result::Ok(ok) => Ok((
                Bytes::copy_from_slice(ok.data.as_ref()),
                handles.post(&ok.symlink_attributes),
            )),
            Nfs3Result::Err((status, fail)) => {
                *beside = handles.beside(&[&fail.symlink_attributes]);
                Err(error(status))
            }
        }),
        Op::Read { .. } => Answer::Data(match unpack::<wire::READ3res<'_>>(bytes) {
            Nfs3Result::Ok(ok) => {
                let data = Bytes::from(ok.data.to_vec());
                assert_eq!(u32::try_from(data.len()).unwrap(), ok.count);
                let file = handles.post(&ok.file_attributes);
                let end = ok.eof;
                Ok(ReadReply { file, data, end })
            }
            Nfs3Result::Err((status, fail)) => {
                *beside = handles.beside(&[&fail.file_attributes]);
                Err(error(status))
            }
        }),
        Op::Write { data, stable, .. } => Answer::Changed(match unpack::<wire::WRITE3res>(bytes) {
            Nfs3Result::Ok(ok) => {
                assert_eq!(usize::try_from(ok.count).unwrap(), data.len());
                reply.verifier = Some(ok.verf.0);
                reply.is_stable = ok.committed == wire::stable_how::FILE_SYNC;
                if *stable && !reply.is_stable {
                    handles
                        .complaints
                        .push("a stable WRITE is not stable".to_owned());
                }
                Ok(handles.wcc(&ok.file_wcc))
            }
            Nfs3Result::Err((status, fail)) => {
                *beside = handles.beside_wcc(&[&fail.file_wcc]);
                Err(error(status))
            }
        }),
        Op::Commit { .. } => Answer::Committed(match unpack::<wire::COMMIT3res>(bytes) {
            Nfs3Result::Ok(ok) => {
                reply.verifier = Some(ok.verf.0);
                handles.wcc(&ok.file_wcc);
                Ok(())
            }
            Nfs3Result::Err((status, fail)) => {
                *beside = handles.beside_wcc(&[&fail.file_wcc]);
                Err(error(status))
            }
        }),
        // MKDIR, SYMLINK and MKNOD have the same results as CREATE.
        Op::Create { .. } | Op::Make { .. } => {
            Answer::Created(match unpack::<wire::CREATE3res>(bytes) {
                Nfs3Result::Ok(ok) => Ok(handles.created(&ok.obj, &ok.obj_attributes, &ok.dir_wcc)),
                Nfs3Result::Err((status, fail)) => {
                    *beside = handles.beside_wcc(&[&fail.dir_wcc]);
                    Err(error(status))
                }
            })
        }
        Op::Remove { .. } | Op::Rmdir { .. } => {
            Answer::Removed(match unpack::<wire::REMOVE3res>(bytes) {
                Nfs3Result::Ok(ok) => Ok(Removed {
                    dir: handles.wcc(&ok.dir_wcc),
                }),
                Nfs3Result::Err((status, fail)) => {
                    *beside = handles.beside_wcc(&[&fail.dir_wcc]);
                    Err(error(status))
                }
            })
        }
        Op::Rename { .. } => Answer::Renamed(match unpack::<wire::RENAME3res>(bytes) {
            Nfs3Result::Ok(ok) => Ok(Renamed {
                from: handles.wcc(&ok.fromdir_wcc),
                to: handles.wcc(&ok.todir_wcc),
            }),
            Nfs3Result::Err((status, fail)) => {
                *beside = handles.beside_wcc(&[&fail.fromdir_wcc, &fail.todir_wcc]);
                Err(error(status))
            }
        }),
        Op::Link { .. } => Answer::Linked(match unpack::<wire::LINK3res>(bytes) {
            Nfs3Result::Ok(ok) => Ok(Linked {
                object: handles.post(&ok.file_attributes),
                dir: handles.wcc(&ok.linkdir_wcc),
            }),
            Nfs3Result::Err((status, fail)) => {
                *beside = handles.beside_wcc(&[&fail.linkdir_wcc]);
                beside.extend(handles.beside(&[&fail.file_attributes]));
                Err(error(status))
            }
        }),
        Op::List { dir, .. } => Answer::Listed(match listing {
            Listing::Plain => plain_list(handles, *dir, bytes, beside),
            Listing::Plus => plus_list(handles, *dir, bytes, beside),
        }),
    };
    reply
}

fn access(bits: u32) -> Access {
    Access {
        read: bits & 0x01 != 0,
        lookup: bits & 0x02 != 0,
        modify: bits & 0x04 != 0,
        extend: bits & 0x08 != 0,
        delete: bits & 0x10 != 0,
        execute: bits & 0x20 != 0,
    }
}

/// Takes `.` and `..` out of a listing; returns the parent.
fn take_dots(handles: &mut Handles, dir: InodeId, entries: &mut Vec<Listed>) -> Option<InodeId> {
    let mut parent = None;
    entries.retain(|entry| match entry.name.as_slice() {
        b"." => {
            if entry.inode != dir {
                handles.complaints.push("`.` is somewhere else".to_owned());
            }
            false
        }
        b".." => {
            parent = Some(entry.inode);
            false
        }
        _ => true,
    });
    parent
}

fn plain_list(
    handles: &mut Handles,
    dir: InodeId,
    bytes: &[u8],
    beside: &mut Vec<Stat>,
) -> Result<ListReply, FsError> {
    match unpack::<wire::READDIR3res<'_>>(bytes) {
        Nfs3Result::Ok(ok) => {
            let entries = ok.reply.entries.into_inner().into_iter();
            let mut entries: Vec<Listed> = entries
                .map(|entry| Listed {
                    cookie: entry.cookie,
                    name: entry.name.as_ref().to_vec(),
                    inode: InodeId::new(entry.fileid),
                    kind: None,
                })
                .collect();
            Ok(ListReply {
                dir: handles.post(&ok.dir_attributes),
                parent: take_dots(handles, dir, &mut entries),
                entries,
                end: ok.reply.eof,
            })
        }
        Nfs3Result::Err((status, fail)) => {
            *beside = handles.beside(&[&fail.dir_attributes]);
            Err(error(status))
        }
    }
}

fn plus_list(
    handles: &mut Handles,
    dir: InodeId,
    bytes: &[u8],
    beside: &mut Vec<Stat>,
) -> Result<ListReply, FsError> {
    match unpack::<wire::READDIRPLUS3res<'_>>(bytes) {
        Nfs3Result::Ok(ok) => {
            let mut entries = Vec::new();
            for entry in ok.reply.entries.into_inner() {
                let stat = handles.post(&entry.name_attributes);
                if stat.inode != InodeId::new(entry.fileid) {
                    handles
                        .complaints
                        .push("a listing has attributes of another inode".to_owned());
                }
                if let Nfs3Option::Some(handle) = &entry.name_handle {
                    handles.learn(stat.inode, handle.data.as_ref());
                }
                beside.push(stat);
                entries.push(Listed {
                    cookie: entry.cookie,
                    name: entry.name.as_ref().to_vec(),
                    inode: stat.inode,
                    kind: Some(stat.kind),
                });
            }
            Ok(ListReply {
                dir: handles.post(&ok.dir_attributes),
                parent: take_dots(handles, dir, &mut entries),
                entries,
                end: ok.reply.eof,
            })
        }
        Nfs3Result::Err((status, fail)) => {
            *beside = handles.beside(&[&fail.dir_attributes]);
            Err(error(status))
        }
    }
}

/// Whether copies of a call get one reply.
pub(crate) fn is_tracked(op: &Op) -> bool {
    matches!(
        op,
        Op::Setattr { .. }
            | Op::Write { .. }
            | Op::Create { .. }
            | Op::Make { .. }
            | Op::Remove { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Link { .. }
    )
}

/// Whether the call changed something, so that its reply is stored.
pub(crate) fn is_stored(op: &Op, answer: &Answer) -> bool {
    let changed = |wcc: &Wcc| wcc.before.ctime != wcc.after.ctime;
    match answer {
        Answer::Changed(Ok(wcc)) => matches!(op, Op::Setattr { .. }) && changed(wcc),
        Answer::Created(Ok(created)) => changed(&created.dir),
        Answer::Removed(Ok(removed)) => changed(&removed.dir),
        Answer::Renamed(Ok(renamed)) => changed(&renamed.from),
        Answer::Linked(Ok(linked)) => changed(&linked.dir),
        _ => false,
    }
}
