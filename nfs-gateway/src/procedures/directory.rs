//! LOOKUP, READDIR, READDIRPLUS (RFC 1813, sections 3.3.3, 3.3.16, 3.3.17).
//!
//! The cookie is made from the hash of the name, so it is good on every gateway and after any
//! change of the directory; the cookie verifier is always zero and never checked.

use base::{InodeId, Name};
use metadata::image::{Peek, cookie_of};
use metadata::record::entry::Entry;
use metadata::stat::Stat;
use metadata::{FsError, Miss, OpError, OpResult, ops};
use nfsserve::nfs::nfsstat3;

use super::{Scope, Step, View};
use crate::handle::Selector;
use crate::session::inside::{self, Inside};
use crate::wire::args::{ReaddirArgs, ReaddirplusArgs};
use crate::wire::nfs3::Verifier;
use crate::wire::reply::Reply;
use crate::wire::results::{self, DirEntry, DirEntryPlus, DirListWriter, LookupOk};

/// Cookie of the entry `.`.
const COOKIE_DOT: u64 = 1;
/// Cookie of the entry `..`.
const COOKIE_DOTDOT: u64 = 2;
/// Cookies are never refused, so there is nothing to verify.
const COOKIE_VERIFIER: Verifier = [0; 8];
/// Most inodes loaded for one listing at a time.
const LOADS_MAX: usize = 1024;

pub(super) fn lookup(scope: &mut Scope<'_>, dir: InodeId, name: &[u8]) -> OpResult<Reply> {
    if dir == InodeId::ROOT
        && name == inside::NAME
        && let Some(inside) = scope.inside
    {
        return lookup_inside(scope, inside);
    }
    let found = match ops::lookup(scope.image, scope.cx, dir, name) {
        // A name that nothing can have is not there.
        Err(OpError::Fs(FsError::Invalid)) => return Err(FsError::NotFound.into()),
        found => found?,
    };
    let handle = scope.view.handle(found.object.inode);
    Ok(results::ok(
        scope.xid,
        &LookupOk {
            object: handle.wire(),
            attributes: Some(scope.view.fattr(&found.object)),
            dir: Some(scope.view.fattr(&found.dir)),
        },
    ))
}

/// LOOKUP of `.holdfast` in the root directory, which has to be searchable as for any name.
fn lookup_inside(scope: &mut Scope<'_>, inside: &Inside) -> OpResult<Reply> {
    let root = ops::lookup(scope.image, scope.cx, InodeId::ROOT, b".")?.dir;
    let view = scope.view.of(Selector::INSIDE);
    let top = inside.top();
    let handle = view.handle(top.inode);
    Ok(results::ok(
        scope.xid,
        &LookupOk {
            object: handle.wire(),
            attributes: Some(view.fattr(&top)),
            dir: Some(scope.view.fattr(&root)),
        },
    ))
}

/// Leaves out of a listing of the root directory what `.holdfast` hides.
struct Hidden {
    is_root: bool,
    /// The hash of what was left out.
    found: Option<u64>,
    /// An entry did not fit.
    full: bool,
}

impl Hidden {
    fn in_listing(scope: &Scope<'_>, dir: InodeId) -> Self {
        Self {
            is_root: dir == InodeId::ROOT && scope.inside.is_some(),
            found: None,
            full: false,
        }
    }

    fn hides(&mut self, hash: u64, name: &Name) -> bool {
        let hides = self.is_root && name.as_bytes() == inside::NAME;
        if hides {
            self.found = Some(hash);
        }
        hides
    }

    /// A reply needs an entry, unless it has come to the end: if the only one that was at hand is
    /// hidden, more have to be loaded.
    fn require_entry(&self, dir: InodeId, entries: usize, end: bool) -> OpResult<()> {
        match self.found.and_then(|hash| hash.checked_add(1)) {
            Some(from) if entries == 0 && !end && !self.full => {
                Err(Miss::Entries { dir, from }.into())
            }
            _ => Ok(()),
        }
    }
}

pub(super) fn readdir(
    scope: &mut Scope<'_>,
    dir: InodeId,
    args: &ReaddirArgs<'_>,
) -> OpResult<Reply> {
    // The head is needed for the parent; the entries come after `.` and `..`.
    let head = ops::list_head(scope.image, scope.cx, dir)?;
    let view = scope.view;
    let attributes = view.fattr(&head.dir);
    let mut list =
        DirListWriter::readdir(scope.xid, Some(&attributes), COOKIE_VERIFIER, args.count);
    let dots = [
        (COOKIE_DOT, &b"."[..], dir),
        (COOKIE_DOTDOT, b"..", head.parent),
    ];
    for (cookie, name, inode) in dots {
        if args.cookie < cookie {
            list.push(&DirEntry {
                fileid: view.file_id(inode),
                name,
                cookie,
            });
        }
    }
    let mut hidden = Hidden::in_listing(scope, dir);
    let listing = ops::list(scope.image, scope.cx, dir, args.cookie, |hash, group| {
        let position = list.position();
        let cookie = cookie_of(hash);
        // Entries with equal cookies go out together or not at all.
        let fits = group.iter().all(|(name, entry)| {
            let fileid = view.file_id(entry.inode);
            hidden.hides(hash, name)
                || list.push(&DirEntry {
                    fileid,
                    name: name.as_bytes(),
                    cookie,
                })
        });
        if !fits {
            list.undo_to(position);
            hidden.full = true;
        }
        fits
    })?;
    hidden.require_entry(dir, list.entries(), listing.end)?;
    finish(scope, list, listing.end, attributes)
}

pub(super) fn readdirplus(
    scope: &mut Scope<'_>,
    dir: InodeId,
    args: &ReaddirplusArgs<'_>,
) -> Result<Step, OpError> {
    let head = ops::list_head(scope.image, scope.cx, dir)?;
    let attributes = scope.view.fattr(&head.dir);
    let (xid, view) = (scope.xid, scope.view);
    let mut list = DirListWriter::readdirplus(
        xid,
        Some(&attributes),
        COOKIE_VERIFIER,
        args.dir_count,
        args.max_count,
    );
    let dots = [
        (COOKIE_DOT, &b"."[..], dir),
        (COOKIE_DOTDOT, b"..", head.parent),
    ];
    for (cookie, name, inode) in dots {
        if args.cookie < cookie {
            let stat = ops::getattr(scope.image, inode)?;
            push_plus(&mut list, view, (inode, name, cookie), Some(&stat));
        }
    }
    let mut missing = Vec::new();
    let mut hidden = Hidden::in_listing(scope, dir);
    let visit = |hash, group: &[(Name, Entry)], peek: &Peek<'_>| {
        let position = list.position();
        let fits = group.iter().all(|(name, entry)| {
            if hidden.hides(hash, name) {
                return true;
            }
            // An entry whose inode is gone is damage; it is listed, so that it can be removed.
            let stat = peek.stat(entry.inode).unwrap_or_else(|| {
                missing.push(Miss::Inode(entry.inode));
                None
            });
            let entry = (entry.inode, name.as_bytes(), cookie_of(hash));
            push_plus(&mut list, view, entry, stat.as_ref())
        });
        if !fits {
            list.undo_to(position);
            hidden.full = true;
        }
        fits && missing.len() < LOADS_MAX
    };
    let listing = ops::list_with(scope.image, scope.cx, dir, args.cookie, visit)?;
    if !missing.is_empty() {
        return Ok(Step::Load(missing));
    }
    hidden.require_entry(dir, list.entries(), listing.end)?;
    finish(scope, list, listing.end, attributes).map(Step::Reply)
}

/// Adds an entry with its handle and attributes; says whether it fitted.
fn push_plus(
    list: &mut DirListWriter,
    view: &View,
    (inode, name, cookie): (InodeId, &[u8], u64),
    stat: Option<&Stat>,
) -> bool {
    let handle = view.handle(inode);
    let attributes = stat.map(|stat| view.fattr(stat));
    let plus = DirEntryPlus {
        attributes,
        object: Some(handle.wire()),
    };
    list.push_plus(
        &DirEntry {
            fileid: view.file_id(inode),
            name,
            cookie,
        },
        &plus,
    )
}

fn finish(
    scope: &Scope<'_>,
    list: DirListWriter,
    end: bool,
    attributes: crate::wire::nfs3::Fattr,
) -> OpResult<Reply> {
    Ok(list.finish(end).unwrap_or_else(|_| {
        results::failed(scope.xid, nfsstat3::NFS3ERR_TOOSMALL, &Some(attributes))
    }))
}
