//! Judging calls on directories: everything that takes a name, and listings.

use base::{Caller, InodeId, Timestamp};
use metadata::FsError;
use metadata::ops::{Created, Found, How, Linked, Node as NewNode, Removed, Renamed};
use metadata::stat::{Before, Device, FileKind, SetAttrs};

use super::content::File;
use super::files::chosen;
use super::rights::{heritage, in_group, may_write_data, removal_faults, rights};
use super::{
    Body, DIRECTORY_BYTES, Faults, Model, NAME_BYTES_MAX, Node, TARGET_BYTES_MAX, Verdict, ensure,
    fails,
};
use crate::subject::ListReply;

/// A directory and a name in it.
type Place<'a> = (InodeId, &'a [u8]);

/// Errors for `.` and `..` where a name is made or taken: servers differ, all refuse.
const DOTS: [FsError; 5] = [
    FsError::Exists,
    FsError::Invalid,
    FsError::NotPermitted,
    FsError::NotEmpty,
    FsError::AccessDenied,
];

fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Adds why `name` can be no entry's name. Returns whether it can.
fn name_faults(faults: &mut Faults, name: &[u8]) -> bool {
    let too_long = name.len() > NAME_BYTES_MAX;
    faults.must(too_long, FsError::NameTooLong);
    let bad = name.is_empty() || name.iter().any(|byte| matches!(byte, 0 | b'/'));
    if bad {
        faults.must(true, FsError::Invalid);
        faults.may(true, FsError::AccessDenied);
        faults.may(true, FsError::NotFound);
    }
    if is_dots(name) {
        faults.must.extend(DOTS);
    }
    !too_long && !bad && !is_dots(name)
}

impl Model {
    /// `dir` as a directory, or why it is none.
    fn directory(&self, dir: InodeId) -> Result<&Node, FsError> {
        match self.node(dir) {
            None => Err(FsError::Stale),
            Some(node) if node.is_dir() => Ok(node),
            Some(_) => Err(FsError::NotDirectory),
        }
    }

    /// Judges a change that has to fail with `error`, or because nothing may be changed.
    pub(super) fn refuses<T>(&self, error: FsError, got: &Result<T, FsError>) -> Verdict {
        let mut faults = Faults::default();
        faults.must(true, error);
        faults.may(self.limits.read_only, FsError::ReadOnly);
        faults.settle(got).map(|_| ())
    }

    fn child(&self, (dir, name): Place<'_>) -> Option<InodeId> {
        self.node(dir)?.entries()?.get(name).copied()
    }

    pub(super) fn lookup(
        &self,
        caller: &Caller,
        dir: InodeId,
        name: &[u8],
        got: &Result<Found, FsError>,
    ) -> Verdict {
        let node = match self.directory(dir) {
            Ok(node) => node,
            Err(error) => return fails(error, got),
        };
        let mut faults = Faults::default();
        faults.must(!rights(node, caller).execute, FsError::AccessDenied);
        let child = match name {
            b"." => Some(dir),
            b".." => Some(self.parent_of(dir)),
            _ if !name_faults(&mut faults, name) => None,
            _ => self.child((dir, name)),
        };
        if faults.must.is_empty() {
            faults.must(child.is_none(), FsError::NotFound);
        }
        let Some(found) = faults.settle(got)? else {
            return Ok(());
        };
        ensure(Some(found.object.inode) == child, || {
            format!("found {:?}, expected {child:?}", found.object.inode)
        })?;
        self.check_stat(found.object.inode, &found.object)?;
        self.check_stat(dir, &found.dir)
    }

    /// Why `caller` cannot make an entry at a place, whatever it is. With an error for a name that
    /// exists, or without.
    fn entry_faults(
        &self,
        caller: &Caller,
        place: Place<'_>,
        exists: Option<FsError>,
    ) -> Result<Faults, FsError> {
        let node = self.directory(place.0)?;
        let mut faults = Faults::default();
        let rights = rights(node, caller);
        let valid = name_faults(&mut faults, place.1);
        faults.must(self.limits.read_only, FsError::ReadOnly);
        faults.must(!rights.execute, FsError::AccessDenied);
        let taken = valid && rights.execute && self.child(place).is_some();
        match exists {
            Some(error) if taken => {
                // The name is found before the right to write is asked for.
                faults.must(true, error);
            }
            _ => {
                let denied = !taken && !rights.write;
                if faults.must.is_empty() {
                    faults.must(denied, FsError::AccessDenied);
                } else {
                    faults.may(denied, FsError::AccessDenied);
                }
            }
        }
        Ok(faults)
    }

    fn inode_faults(&self, faults: &mut Faults) {
        let count = u64::try_from(self.nodes.len()).unwrap_or(u64::MAX);
        let full = count >= self.limits.inodes_max;
        if faults.must.is_empty() {
            faults.must(full, FsError::QuotaExceeded);
        } else {
            faults.may(full, FsError::QuotaExceeded);
        }
    }

    pub(super) fn create(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        place: Place<'_>,
        how: &How,
        got: &Result<Created, FsError>,
    ) -> Verdict {
        let exists = matches!(how, How::Guarded(_)).then_some(FsError::Exists);
        let mut faults = match self.entry_faults(caller, place, exists) {
            Ok(faults) => faults,
            Err(error) => return self.refuses(error, got),
        };
        if let Some(found) = self.child(place) {
            return self.create_existing(caller, now, (place, found), (how, faults), got);
        }
        let (attrs, verifier) = match how {
            How::Unchecked(attrs) | How::Guarded(attrs) => (*attrs, None),
            // The mode comes with the SETATTR that follows.
            How::Exclusive(verifier) => (
                SetAttrs {
                    mode: Some(0),
                    ..SetAttrs::default()
                },
                Some(*verifier),
            ),
        };
        let too_large = attrs
            .size
            .is_some_and(|size| size > self.limits.file_bytes_max);
        faults.must(too_large, FsError::TooLarge);
        self.inode_faults(&mut faults);
        let Some(created) = faults.settle(got)? else {
            return Ok(());
        };
        let mut file = File::default();
        file.resize(attrs.size.unwrap_or(0), self.limits.block_bytes);
        let mode = attrs.mode.unwrap_or(0o644);
        let body = Body::File(file);
        self.enter(caller, now, place, (body, mode, attrs, verifier), created)
    }

    /// CREATE of a name that exists.
    fn create_existing(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        ((dir, _), found): (Place<'_>, InodeId),
        (how, mut faults): (&How, Faults),
        got: &Result<Created, FsError>,
    ) -> Verdict {
        let Some(node) = self.node(found) else {
            return Err(format!("the model has lost {found:?}"));
        };
        let mut size = None;
        match how {
            How::Guarded(_) => {}
            How::Exclusive(verifier) => {
                faults.must(node.verifier != Some(*verifier), FsError::Exists);
            }
            How::Unchecked(attrs) if node.kind() == FileKind::File => {
                size = attrs.size;
                let cuts = size.is_some();
                let denied = cuts && !may_write_data(node, caller);
                faults.must(denied, FsError::AccessDenied);
                let too_large = size.is_some_and(|size| size > self.limits.file_bytes_max);
                faults.must(too_large, FsError::TooLarge);
            }
            How::Unchecked(_) => {}
        }
        let before = self.before(dir);
        let Some(created) = faults.settle(got)? else {
            return Ok(());
        };
        if size.is_some() {
            let attrs = SetAttrs {
                size,
                ..SetAttrs::default()
            };
            self.apply_attrs(caller, now, found, &attrs);
        }
        self.check_stat(found, &created.object)?;
        self.check_wcc(dir, before, &created.dir)
    }

    pub(super) fn make(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        place: Place<'_>,
        (what, attrs): (&NewNode, &SetAttrs),
        got: &Result<Created, FsError>,
    ) -> Verdict {
        let mut faults = match self.entry_faults(caller, place, Some(FsError::Exists)) {
            Ok(faults) => faults,
            Err(error) => return self.refuses(error, got),
        };
        let attrs = SetAttrs {
            size: None,
            ..*attrs
        };
        let (body, mode) = match what {
            NewNode::Directory => (Body::Dir(Default::default()), 0o755),
            NewNode::Symlink(target) => {
                let bad = target.is_empty() || target.contains(&0);
                faults.must(bad, FsError::Invalid);
                faults.must(target.len() > TARGET_BYTES_MAX, FsError::NameTooLong);
                (Body::Symlink(target.clone()), 0o777)
            }
            NewNode::BlockDevice(device) => (Body::Special(FileKind::BlockDevice, *device), 0o644),
            NewNode::CharDevice(device) => (Body::Special(FileKind::CharDevice, *device), 0o644),
            NewNode::Fifo => (Body::Special(FileKind::Fifo, Device::default()), 0o644),
            NewNode::Socket => (Body::Special(FileKind::Socket, Device::default()), 0o644),
        };
        let device = matches!(what, NewNode::BlockDevice(_) | NewNode::CharDevice(_));
        faults.must(device && caller.uid != 0, FsError::NotPermitted);
        self.inode_faults(&mut faults);
        let Some(created) = faults.settle(got)? else {
            return Ok(());
        };
        let mode = match what {
            NewNode::Symlink(_) => mode,
            _ => attrs.mode.unwrap_or(mode),
        };
        self.enter(caller, now, place, (body, mode, attrs, None), created)
    }

    /// Enters a new object and judges what was said of it.
    fn enter(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        (dir, name): Place<'_>,
        (body, mode, attrs, verifier): (Body, u32, SetAttrs, Option<[u8; 8]>),
        created: &Created,
    ) -> Verdict {
        let inode = created.object.inode;
        ensure(self.born.insert(inode), || {
            format!("{inode:?} has been used before")
        })?;
        let before = self.before(dir);
        let Some(parent) = self.node(dir) else {
            return Err(format!("the model has lost {dir:?}"));
        };
        let mut node = Node {
            mode: 0,
            uid: caller.uid,
            gid: 0,
            atime: chosen(attrs.atime, now, now),
            mtime: chosen(attrs.mtime, now, now),
            ctime: now,
            verifier,
            body,
        };
        (node.mode, node.gid) = heritage(parent, node.kind(), mode, caller);
        if let Some(uid) = attrs.uid
            && caller.uid == 0
        {
            node.uid = uid;
        }
        if let Some(gid) = attrs.gid
            && (caller.uid == 0 || in_group(caller, gid))
        {
            node.gid = gid;
        }
        self.nodes.insert(inode, node);
        self.insert_name((dir, name), inode);
        self.touch_entries(dir, now);
        self.check_stat(inode, &created.object)?;
        self.check_wcc(dir, before, &created.dir)
    }

    fn insert_name(&mut self, (dir, name): Place<'_>, inode: InodeId) {
        if let Some(Node {
            body: Body::Dir(entries),
            ..
        }) = self.nodes.get_mut(&dir)
        {
            entries.insert(name.to_vec(), inode);
        }
    }

    fn remove_name(&mut self, (dir, name): Place<'_>) {
        if let Some(Node {
            body: Body::Dir(entries),
            ..
        }) = self.nodes.get_mut(&dir)
        {
            entries.remove(name);
        }
    }

    /// Removes a name, and what it led to with its last name.
    fn unlink(&mut self, place: Place<'_>, inode: InodeId, now: Timestamp) {
        self.remove_name(place);
        let gone = match self.node(inode) {
            Some(node) => node.is_dir() || self.links_of(inode, node) == 0,
            None => true,
        };
        if gone {
            self.nodes.remove(&inode);
        } else {
            self.touch(inode, now);
        }
    }

    /// What REMOVE and RMDIR share: the object at a place that `caller` may take away.
    fn removable(
        &self,
        caller: &Caller,
        place: Place<'_>,
    ) -> Result<(Faults, Option<InodeId>), FsError> {
        let dir = self.directory(place.0)?;
        let mut faults = Faults::default();
        faults.must(self.limits.read_only, FsError::ReadOnly);
        let rights = rights(dir, caller);
        faults.must(!rights.execute, FsError::AccessDenied);
        if !name_faults(&mut faults, place.1) {
            return Ok((faults, None));
        }
        let child = self.child(place);
        match child.and_then(|child| self.node(child)) {
            None => {
                faults.must(rights.execute, FsError::NotFound);
                faults.may(!rights.write, FsError::AccessDenied);
            }
            Some(node) => removal_faults(&mut faults, dir, node, caller),
        }
        Ok((faults, child))
    }

    pub(super) fn remove(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        place: Place<'_>,
        got: &Result<Removed, FsError>,
    ) -> Verdict {
        let (mut faults, child) = match self.removable(caller, place) {
            Ok(found) => found,
            Err(error) => return self.refuses(error, got),
        };
        if is_dots(place.1) {
            faults.must.push(FsError::IsDirectory);
            faults.must.retain(|error| *error != FsError::NotEmpty);
        }
        let is_dir = child.and_then(|child| self.kind(child)) == Some(FileKind::Directory);
        faults.must(is_dir, FsError::IsDirectory);
        let before = self.before(place.0);
        let (Some(removed), Some(child)) = (faults.settle(got)?, child) else {
            return Ok(());
        };
        self.unlink(place, child, now);
        self.touch_entries(place.0, now);
        self.check_wcc(place.0, before, &removed.dir)
    }

    pub(super) fn rmdir(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        place: Place<'_>,
        got: &Result<Removed, FsError>,
    ) -> Verdict {
        let (mut faults, child) = match self.removable(caller, place) {
            Ok(found) => found,
            Err(error) => return self.refuses(error, got),
        };
        if let Some(node) = child.and_then(|child| self.node(child)) {
            faults.must(!node.is_dir(), FsError::NotDirectory);
            let full = node.entries().is_some_and(|entries| !entries.is_empty());
            faults.must(full, FsError::NotEmpty);
        }
        let before = self.before(place.0);
        let (Some(removed), Some(child)) = (faults.settle(got)?, child) else {
            return Ok(());
        };
        self.unlink(place, child, now);
        self.touch_entries(place.0, now);
        self.check_wcc(place.0, before, &removed.dir)
    }

    pub(super) fn link(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        inode: InodeId,
        place: Place<'_>,
        got: &Result<Linked, FsError>,
    ) -> Verdict {
        let Some(object) = self.node(inode) else {
            let mut faults = Faults::default();
            faults.must(true, FsError::Stale);
            faults.may(self.limits.read_only, FsError::ReadOnly);
            let no_dir = self.directory(place.0).err();
            faults.may.extend(no_dir);
            return faults.settle(got).map(|_| ());
        };
        let mut faults = match self.entry_faults(caller, place, Some(FsError::Exists)) {
            Ok(faults) => faults,
            Err(error) => return self.refuses(error, got),
        };
        faults.must(object.is_dir(), FsError::NotPermitted);
        faults.may(object.is_dir(), FsError::IsDirectory);
        let before = self.before(place.0);
        let Some(linked) = faults.settle(got)? else {
            return Ok(());
        };
        self.insert_name(place, inode);
        self.touch(inode, now);
        self.touch_entries(place.0, now);
        self.check_stat(inode, &linked.object)?;
        self.check_wcc(place.0, before, &linked.dir)
    }

    pub(super) fn rename(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        from: Place<'_>,
        to: Place<'_>,
        got: &Result<Renamed, FsError>,
    ) -> Verdict {
        let (from_dir, to_dir) = match (self.directory(from.0), self.directory(to.0)) {
            (Ok(from_dir), Ok(to_dir)) => (from_dir, to_dir),
            (from_dir, to_dir) => {
                let mut faults = Faults::default();
                faults
                    .must
                    .extend(from_dir.err().into_iter().chain(to_dir.err()));
                faults.may(self.limits.read_only, FsError::ReadOnly);
                name_faults(&mut faults, from.1);
                return faults.settle(got).map(|_| ());
            }
        };
        let befores = [self.before(from.0), self.before(to.0)];
        let (faults, source, target) = self.rename_faults(caller, (from, from_dir), (to, to_dir));
        let (Some(renamed), Some(source)) = (faults.settle(got)?, source) else {
            return Ok(());
        };
        if target != Some(source) {
            if let Some(target) = target {
                self.unlink(to, target, now);
            }
            self.remove_name(from);
            self.insert_name(to, source);
            self.touch(source, now);
            self.touch_entries(from.0, now);
            if from.0 != to.0 {
                self.touch_entries(to.0, now);
            }
        }
        let [before_from, before_to]: [Option<Before>; 2] = befores;
        self.check_wcc(from.0, before_from, &renamed.from)?;
        self.check_wcc(to.0, before_to, &renamed.to)
    }

    /// Why a rename has to fail; what it moves and what it replaces.
    fn rename_faults(
        &self,
        caller: &Caller,
        (from, from_dir): (Place<'_>, &Node),
        (to, to_dir): (Place<'_>, &Node),
    ) -> (Faults, Option<InodeId>, Option<InodeId>) {
        let mut faults = Faults::default();
        faults.must(self.limits.read_only, FsError::ReadOnly);
        let rights = [rights(from_dir, caller), rights(to_dir, caller)];
        let searchable = rights.iter().all(|rights| rights.execute);
        let writable = rights.iter().all(|rights| rights.write);
        faults.must(!searchable, FsError::AccessDenied);
        let valid = [from, to].map(|(_, name)| name_faults(&mut faults, name));
        if valid != [true, true] {
            faults.may(true, FsError::NotFound);
            return (faults, None, None);
        }
        let (source, target) = (self.child(from), self.child(to));
        let Some(node) = source.and_then(|source| self.node(source)) else {
            faults.must(searchable, FsError::NotFound);
            faults.may(!writable, FsError::AccessDenied);
            return (faults, source, target);
        };
        if source == target {
            faults.may(!writable, FsError::AccessDenied);
            return (faults, source, target);
        }
        removal_faults(&mut faults, from_dir, node, caller);
        let changes_parent = node.is_dir() && from.0 != to.0;
        let fixed = changes_parent && !super::rights::rights(node, caller).write;
        faults.must(fixed, FsError::AccessDenied);
        let inside = node.is_dir() && self.path_of(to.0).contains(&source.unwrap_or(to.0));
        faults.must(inside, FsError::Invalid);
        match target.and_then(|target| self.node(target)) {
            None => faults.must(!writable, FsError::AccessDenied),
            Some(over) => {
                removal_faults(&mut faults, to_dir, over, caller);
                let full = over.entries().is_some_and(|entries| !entries.is_empty());
                faults.must(node.is_dir() && !over.is_dir(), FsError::NotDirectory);
                faults.must(!node.is_dir() && over.is_dir(), FsError::IsDirectory);
                faults.must(node.is_dir() && full, FsError::NotEmpty);
                faults.may(full, FsError::NotEmpty);
            }
        }
        (faults, source, target)
    }

    /// `dir` and all directories above it.
    fn path_of(&self, dir: InodeId) -> Vec<InodeId> {
        let mut path = vec![dir];
        let mut at = dir;
        while at != InodeId::ROOT {
            at = self.parent_of(at);
            path.push(at);
        }
        path
    }

    pub(super) fn list(
        &mut self,
        caller: &Caller,
        dir: InodeId,
        (cookie, count): (u64, usize),
        got: &Result<ListReply, FsError>,
    ) -> Verdict {
        let node = match self.directory(dir) {
            Ok(node) => node,
            Err(error) => return fails(error, got),
        };
        let mut faults = Faults::default();
        faults.must(!rights(node, caller).read, FsError::AccessDenied);
        let Some(reply) = faults.settle(got)? else {
            return Ok(());
        };
        self.check_stat(dir, &reply.dir)?;
        let parent = self.parent_of(dir);
        ensure(reply.parent.is_none_or(|told| told == parent), || {
            format!("parent is {:?}, expected {parent:?}", reply.parent)
        })?;
        ensure(reply.end || !reply.entries.is_empty() || count == 0, || {
            "no entries, and not the end".to_owned()
        })?;
        for entry in &reply.entries {
            let child = self.child((dir, &entry.name));
            ensure(child == Some(entry.inode), || {
                format!("listed {entry:?}, expected {child:?}")
            })?;
            let kind = self.kind(entry.inode);
            ensure(entry.kind.is_none() || entry.kind == kind, || {
                format!("listed {entry:?}, which is a {kind:?}")
            })?;
            let known = *self
                .cookies
                .entry(entry.name.clone())
                .or_insert(entry.cookie);
            ensure(known == entry.cookie && entry.cookie < 1 << 63, || {
                format!("{entry:?} had cookie {known} before")
            })?;
            ensure(entry.cookie > cookie.max(2), || {
                format!("{entry:?} is not after cookie {cookie}")
            })?;
        }
        let sorted = reply.entries.is_sorted_by_key(|entry| entry.cookie);
        ensure(sorted, || "cookies are not in order".to_owned())?;
        self.check_complete(dir, cookie, reply)
    }

    /// Every name between where the listing began and where it stopped must be in it, once.
    fn check_complete(&self, dir: InodeId, cookie: u64, reply: &ListReply) -> Verdict {
        let last = match reply.entries.last() {
            _ if reply.end => u64::MAX,
            Some(entry) => entry.cookie,
            None => cookie,
        };
        for (name, _) in self.names(dir) {
            let listed = reply
                .entries
                .iter()
                .filter(|entry| entry.name == name)
                .count();
            let expected = match self.cookies.get(name) {
                Some(at) => usize::from(*at > cookie && *at <= last),
                None if cookie <= 2 && reply.end => 1,
                // Not seen yet: whether it belongs here is not known.
                None => listed,
            };
            ensure(listed == expected, || {
                let name = name.escape_ascii();
                format!("\"{name}\" was listed {listed} times, expected {expected}")
            })?;
        }
        Ok(())
    }

    /// Size that directories show, for those who make the root.
    #[must_use]
    pub fn directory_bytes() -> u64 {
        DIRECTORY_BYTES
    }
}
