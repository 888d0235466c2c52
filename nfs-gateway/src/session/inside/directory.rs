//! The procedures on `.holdfast`, and on what is directly in it.

use std::sync::Arc;

use base::limits::{NAME_BYTES_MAX, READ_BYTES_MAX};
use base::{Caller, InodeId};
use metadata::FsError;
use metadata::ops::{self, Access};
use metadata::permission::{EXECUTE, READ, WRITE, granted};
use metadata::stat::Stat;
use metadata::store::StoreError;
use nfsserve::nfs::nfsstat3;

use super::trouble::Trouble;
use super::{Inside, Object, Request, Session, Text, stat};
use crate::convert::access_bits;
use crate::handle::Selector;
use crate::procedures::{View, fsinfo_of, fsstat_of, pathconf_of};
use crate::status::status;
use crate::wire::args::{CreateArgs, CreateHow, NfsCall, ReadArgs};
use crate::wire::nfs3::{Fattr, Verifier, Wcc};
use crate::wire::reply::{Payload, Reply};
use crate::wire::results::{
    self, AccessOk, CreateOk, DirEntry, DirEntryPlus, DirListWriter, GetattrOk, LookupOk, ReadOk,
};

/// Stands for the `/` in the name of a ref, which a name in a directory cannot have.
const SLASH: &str = ",";

/// Cookies are never refused, so there is nothing to verify.
const COOKIE_VERIFIER: Verifier = [0; 8];

impl Session {
    /// Runs a call on an object of `.holdfast`.
    pub(super) async fn run_on_object(
        self: &Arc<Self>,
        request: &Request<'_>,
        object: Object,
    ) -> Result<Reply, Trouble> {
        Ok(match request.nfs {
            NfsCall::Lookup(args) => self.lookup_inside(request, object, args.name).await?,
            NfsCall::Read(args) => self.read_text(request, object, args).await?,
            NfsCall::Setattr(args) => {
                self.require_verb(request, object)?;
                let changed = self.present_stat(request, object).await?.ctime;
                if args.guard.is_some_and(|guard| guard != changed) {
                    return Err(FsError::GuardMismatch.into());
                }
                self.set_verb(request, object, args)?
            }
            NfsCall::Write(args) => {
                self.require_verb(request, object)?;
                self.write_verb(request, object, args).await?
            }
            NfsCall::Commit(_) => {
                self.require_verb(request, object)?;
                self.commit_verb(request, object).await?
            }
            NfsCall::Create(args) => self.create_inside(request, object, args).await?,
            NfsCall::Mkdir(_)
            | NfsCall::Symlink(_)
            | NfsCall::Mknod(_)
            | NfsCall::Remove(_)
            | NfsCall::Rmdir(_)
            | NfsCall::Rename(_)
            | NfsCall::Link(_) => return Err(FsError::ReadOnly.into()),
            NfsCall::Null
            | NfsCall::Getattr(_)
            | NfsCall::Access(_)
            | NfsCall::Readlink(_)
            | NfsCall::Readdir(_)
            | NfsCall::Readdirplus(_)
            | NfsCall::Fsstat(_)
            | NfsCall::Fsinfo(_)
            | NfsCall::Pathconf(_) => {
                let found = self.present_stat(request, object).await?;
                self.tell(request, object, &found)?
            }
        })
    }

    /// Answers what the attributes of an object tell.
    fn tell(&self, request: &Request<'_>, object: Object, found: &Stat) -> Result<Reply, FsError> {
        let xid = request.call.xid;
        let view = self.view(request.flags).of(Selector::INSIDE);
        let attributes = view.fattr(found);
        Ok(match request.nfs {
            NfsCall::Null => results::null(xid),
            NfsCall::Getattr(_) => results::ok(xid, &GetattrOk { attributes }),
            NfsCall::Access(args) => {
                let caller = self.caller(&request.call.credential);
                let granted = self.access_to(request, object, found, &caller);
                let attributes = Some(attributes);
                let access = access_bits(granted, args.access);
                results::ok(xid, &AccessOk { attributes, access })
            }
            NfsCall::Readdir(args) => {
                let dir = Some(&attributes);
                let list = DirListWriter::readdir(xid, dir, COOKIE_VERIFIER, args.count);
                listing(request, (&self.inside, &view), object, list, args.cookie)?
            }
            NfsCall::Readdirplus(args) => {
                let (small, large) = (args.dir_count, args.max_count);
                let dir = Some(&attributes);
                let list = DirListWriter::readdirplus(xid, dir, COOKIE_VERIFIER, small, large);
                listing(request, (&self.inside, &view), object, list, args.cookie)?
            }
            NfsCall::Fsstat(_) => {
                let space = self.shared.space();
                fsstat_of(xid, &self.lock().image, space, attributes)
            }
            NfsCall::Fsinfo(_) => fsinfo_of(xid, &self.lock().image, attributes),
            NfsCall::Pathconf(_) => pathconf_of(xid, attributes),
            _ => return Err(FsError::Invalid),
        })
    }

    /// Whether the mount and the session may be changed.
    fn is_writable(&self, request: &Request<'_>) -> bool {
        !self.view(request.flags).is_read_only() && !self.record.read_only
    }

    fn require_verb(&self, request: &Request<'_>, object: Object) -> Result<(), FsError> {
        if object.is_dir() && matches!(request.nfs, NfsCall::Write(_) | NfsCall::Commit(_)) {
            return Err(FsError::IsDirectory);
        }
        if object.is_verb() && self.is_writable(request) {
            Ok(())
        } else {
            Err(FsError::ReadOnly)
        }
    }

    /// Attributes of an object as it was looked up last.
    async fn present_stat(
        self: &Arc<Self>,
        request: &Request<'_>,
        object: Object,
    ) -> Result<Stat, Trouble> {
        if object.is_dir() {
            return Ok(self.inside.directory(object));
        }
        let text = self.present_text(object).await?;
        Ok(self.stat_of(request, request.objects.first, &text))
    }

    fn stat_of(&self, request: &Request<'_>, inode: InodeId, text: &Text) -> Stat {
        let is_verb = Object::of(inode).is_some_and(Object::is_verb);
        let mode = if is_verb && self.is_writable(request) {
            0o666
        } else {
            0o444
        };
        let size = u64::try_from(text.content.len()).unwrap_or(u64::MAX);
        stat(inode, mode, size, text.changed)
    }

    fn access_to(
        &self,
        request: &Request<'_>,
        object: Object,
        found: &Stat,
        caller: &Caller,
    ) -> Access {
        let bits = granted(found, caller);
        let writable = bits & WRITE != 0 && object.is_verb() && self.is_writable(request);
        Access {
            read: bits & READ != 0,
            lookup: object.is_dir() && bits & EXECUTE != 0,
            modify: writable,
            extend: writable,
            delete: false,
            execute: false,
        }
    }

    async fn read_text(
        self: &Arc<Self>,
        request: &Request<'_>,
        object: Object,
        args: &ReadArgs<'_>,
    ) -> Result<Reply, Trouble> {
        if object.is_dir() {
            return Err(FsError::IsDirectory.into());
        }
        let text = self.present_text(object).await?;
        let view = self.view(request.flags).of(Selector::INSIDE);
        let length = text.content.len();
        let from = usize::try_from(args.offset).map_or(length, |from| from.min(length));
        let count = usize::try_from(args.count).map_or(READ_BYTES_MAX, |it| it.min(READ_BYTES_MAX));
        let to = from.saturating_add(count).min(length);
        let ok = ReadOk {
            attributes: Some(view.fattr(&self.stat_of(request, request.objects.first, &text))),
            eof: to == length,
        };
        let payload = Payload::from_iter([text.content.slice(from..to)]);
        Ok(results::read(request.call.xid, &ok, payload))
    }

    /// LOOKUP. Whatever it finds, the directory has changed since the last one: so the client asks
    /// each time.
    async fn lookup_inside(
        self: &Arc<Self>,
        request: &Request<'_>,
        dir: Object,
        name: &[u8],
    ) -> Result<Reply, Trouble> {
        if !dir.is_dir() {
            return Err(FsError::NotDirectory.into());
        }
        let found = match self.find_inside(request, dir, name).await {
            Ok(found) => Ok(found),
            Err(Trouble::Fail(error)) => Err(error),
            Err(Trouble::Unavailable) => return Err(Trouble::Unavailable),
        };
        let view = self.view(request.flags).of(Selector::INSIDE);
        let xid = request.call.xid;
        self.inside.touch_directories(self.shared.clock.wall());
        let dir = Some(view.fattr(&self.inside.directory(dir)));
        Ok(match found {
            Ok((selector, found)) => {
                let view = view.of(selector);
                let handle = view.handle(found.inode);
                results::ok(
                    xid,
                    &LookupOk {
                        object: handle.wire(),
                        attributes: Some(view.fattr(&found)),
                        dir,
                    },
                )
            }
            Err(error) => results::failed(xid, status(error), &dir),
        })
    }

    /// What a name leads to, and in which tree that is.
    async fn find_inside(
        self: &Arc<Self>,
        request: &Request<'_>,
        dir: Object,
        name: &[u8],
    ) -> Result<(Selector, Stat), Trouble> {
        if name.len() > NAME_BYTES_MAX {
            return Err(FsError::NameTooLong.into());
        }
        let inside = |object| (Selector::INSIDE, self.inside.directory(object));
        match (dir, name) {
            (_, b".") => Ok(inside(dir)),
            (Object::At, b"..") => Ok(inside(Object::Top)),
            (Object::Top, b"..") => {
                let root = |image: &mut _, _| ops::getattr(image, InodeId::ROOT);
                match self.peek_with(root).await {
                    Some(Ok(root)) => Ok((Selector::LIVE, root)),
                    Some(Err(metadata::OpError::Fs(error))) => Err(error.into()),
                    Some(Err(metadata::OpError::Miss(_))) | None => Err(Trouble::Unavailable),
                }
            }
            (Object::At, _) => {
                let commit = self.version(name).await?;
                self.root_of_commit(&commit).await
            }
            _ => match Object::named(name) {
                Some(object) if object.is_dir() => Ok(inside(object)),
                Some(object) => {
                    let text = self.fresh_text(object).await?;
                    let inode = self.inside.inode(object);
                    Ok((Selector::INSIDE, self.stat_of(request, inode, &text)))
                }
                None => Err(FsError::NotFound.into()),
            },
        }
    }

    /// The commit that a name in `at` means.
    async fn version(&self, name: &[u8]) -> Result<metadata::store::CommitInfo, Trouble> {
        let text = std::str::from_utf8(name).map_err(|_| FsError::NotFound)?;
        let text = text.replace(SLASH, "/");
        let store = &self.shared.store;
        match store.resolve_version(self.record.workspace, &text).await {
            Ok(commit) => Ok(commit),
            // To a path, what is no version is simply not there.
            Err(
                StoreError::NotFound { .. }
                | StoreError::Invalid { .. }
                | StoreError::Ambiguous { .. },
            ) => Err(FsError::NotFound.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// CREATE: what `>` sends on newer kernels, without a LOOKUP before it. Nothing is made.
    async fn create_inside(
        self: &Arc<Self>,
        request: &Request<'_>,
        dir: Object,
        args: &CreateArgs<'_>,
    ) -> Result<Reply, Trouble> {
        let found = match (dir, Object::named(args.place.name)) {
            (Object::Top, Some(object)) => object,
            (Object::Top | Object::At, _) => return Err(FsError::ReadOnly.into()),
            _ => return Err(FsError::NotDirectory.into()),
        };
        let size = match &args.how {
            CreateHow::Unchecked(attributes) if !found.is_dir() => attributes.size,
            _ => return Err(FsError::Exists.into()),
        };
        match size {
            None => {}
            Some(0) if found.is_verb() && self.is_writable(request) => self.empty_verb(found),
            Some(_) => return Err(FsError::ReadOnly.into()),
        }
        let text = self.fresh_text(found).await?;
        let inode = self.inside.inode(found);
        let view = self.view(request.flags).of(Selector::INSIDE);
        let handle = view.handle(inode);
        self.inside.touch_directories(self.shared.clock.wall());
        Ok(results::ok(
            request.call.xid,
            &CreateOk {
                object: Some(handle.wire()),
                attributes: Some(view.fattr(&self.stat_of(request, inode, &text))),
                dir: Wcc::default(),
            },
        ))
    }
}

/// READDIR and READDIRPLUS. Entries come without handles and attributes, which the client would
/// trust instead of asking.
fn listing(
    request: &Request<'_>,
    (inside, view): (&Inside, &View),
    dir: Object,
    mut list: DirListWriter,
    after: u64,
) -> Result<Reply, FsError> {
    let plus = matches!(request.nfs, NfsCall::Readdirplus(_));
    let id = |object: Object| view.file_id(inside.inode(object));
    let above = match dir {
        Object::Top => InodeId::ROOT.raw(),
        Object::At => id(Object::Top),
        _ => return Err(FsError::NotDirectory),
    };
    let mut entries = vec![(id(dir), "."), (above, "..")];
    if dir == Object::Top {
        let named = Object::ALL.into_iter().filter(|it| *it != Object::Top);
        entries.extend(named.map(|object| (id(object), object.name())));
    }
    let nothing = DirEntryPlus {
        attributes: None,
        object: None,
    };
    for (cookie, (fileid, name)) in (1..).zip(entries) {
        if cookie <= after {
            continue;
        }
        let entry = DirEntry {
            fileid,
            name: name.as_bytes(),
            cookie,
        };
        let fits = if plus {
            list.push_plus(&entry, &nothing)
        } else {
            list.push(&entry)
        };
        if !fits {
            break;
        }
    }
    let nothing: Option<Fattr> = None;
    Ok(list.finish(true).unwrap_or_else(|_| {
        results::failed(request.call.xid, nfsstat3::NFS3ERR_TOOSMALL, &nothing)
    }))
}
