//! Judging calls on one object: SETATTR, READ, WRITE, COMMIT, READLINK.

use base::{Caller, InodeId, Timestamp};
use bytes::Bytes;
use metadata::FsError;
use metadata::stat::{FileKind, SetAttrs, SetTime, Stat, Wcc};

use super::content::index;
use super::rights::{
    S_ISGID, S_ISUID, S_IXGRP, in_group, loses_set_gid, may_read_data, may_write_data,
    mode_after_change,
};
use super::{Body, Faults, Model, Node, Verdict, ensure, fails};
use crate::subject::ReadReply;

/// The value of a time to set.
pub(super) fn chosen(set: SetTime, now: Timestamp, old: Timestamp) -> Timestamp {
    match set {
        SetTime::Keep => old,
        SetTime::Now => now,
        SetTime::To(time) => time,
    }
}

impl Model {
    pub(super) fn setattr(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        inode: InodeId,
        (attrs, guard): (SetAttrs, Option<Timestamp>),
        got: &Result<Wcc, FsError>,
    ) -> Verdict {
        let Some(node) = self.node(inode) else {
            return self.refuses(FsError::Stale, got);
        };
        let before = self.before(inode);
        let attrs = SetAttrs {
            // A symbolic link has no mode of its own.
            mode: attrs.mode.filter(|_| node.kind() != FileKind::Symlink),
            ..attrs
        };
        let mut faults = self.setattr_faults(node, caller, &attrs);
        let guarded = guard.is_some_and(|ctime| ctime != node.ctime);
        faults.must(guarded, FsError::GuardMismatch);
        let Some(wcc) = faults.settle(got)? else {
            return Ok(());
        };
        if attrs != SetAttrs::default() {
            self.apply_attrs(caller, now, inode, &attrs);
        }
        self.check_wcc(inode, before, wcc)
    }

    /// Why these attributes cannot be set, but for a guard.
    fn setattr_faults(&self, node: &Node, caller: &Caller, attrs: &SetAttrs) -> Faults {
        let mut faults = Faults::default();
        let owns = Self::owns(node, caller);
        let superuser = caller.uid == 0;
        faults.must(self.limits.read_only, FsError::ReadOnly);
        faults.must(attrs.mode.is_some() && !owns, FsError::NotPermitted);
        let gives_away = attrs
            .uid
            .is_some_and(|uid| caller.uid != node.uid || uid != node.uid);
        faults.must(gives_away && !superuser, FsError::NotPermitted);
        let foreign_group = attrs.gid.is_some_and(|gid| {
            caller.uid != node.uid || (gid != node.gid && !in_group(caller, gid))
        });
        faults.must(foreign_group && !superuser, FsError::NotPermitted);
        let times = [attrs.atime, attrs.mtime];
        let sets = times.iter().any(|time| matches!(time, SetTime::To(_)));
        faults.must(sets && !owns, FsError::NotPermitted);
        let touches = times.contains(&SetTime::Now);
        let may_touch = owns || may_write_data(node, caller);
        faults.must(touches && !sets && !may_touch, FsError::AccessDenied);
        faults.may(touches && !may_touch, FsError::AccessDenied);
        if let Some(size) = attrs.size {
            faults.must(node.is_dir(), FsError::IsDirectory);
            let other = !node.is_dir() && node.kind() != FileKind::File;
            faults.must(other, FsError::Invalid);
            faults.must(!may_write_data(node, caller), FsError::AccessDenied);
            faults.must(size > self.limits.file_bytes_max, FsError::TooLarge);
        }
        faults
    }

    /// Sets attributes that may be set.
    pub(super) fn apply_attrs(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        inode: InodeId,
        attrs: &SetAttrs,
    ) {
        let block_bytes = self.limits.block_bytes;
        let Some(node) = self.nodes.get_mut(&inode) else {
            return;
        };
        node.verifier = None;
        if let (Some(size), Body::File(file)) = (attrs.size, &mut node.body) {
            file.resize(size, block_bytes);
        }
        if attrs.size.is_some() {
            node.mode = mode_after_change(node, caller);
        }
        let mut mode = attrs.mode.map(|mode| mode & 0o7777);
        let owner_changes = attrs.uid.is_some() || attrs.gid.is_some();
        if owner_changes && !node.is_dir() {
            // What Linux does for every chown, by the superuser too.
            let kept = mode.unwrap_or(node.mode);
            let drops_set_gid = match mode {
                Some(mode) => mode & S_IXGRP != 0,
                None => loses_set_gid(node, caller),
            };
            let dropped = S_ISUID | if drops_set_gid { S_ISGID } else { 0 };
            mode = mode.or(Some(kept)).map(|mode| mode & !dropped);
            if attrs.mode.is_none() && mode == Some(node.mode) {
                mode = None;
            }
        }
        node.uid = attrs.uid.unwrap_or(node.uid);
        node.gid = attrs.gid.unwrap_or(node.gid);
        if let Some(mode) = mode {
            let stranger = caller.uid != 0 && !in_group(caller, node.gid);
            node.mode = if stranger { mode & !S_ISGID } else { mode };
        }
        node.ctime = now.max(node.ctime.tick());
        if attrs.size.is_some() {
            node.mtime = node.ctime;
        }
        node.atime = chosen(attrs.atime, now, node.atime);
        node.mtime = chosen(attrs.mtime, now, node.mtime);
        node.confirm_attributes();
    }

    pub(super) fn readlink(&self, inode: InodeId, got: &Result<(Bytes, Stat), FsError>) -> Verdict {
        let Some(node) = self.node(inode) else {
            return fails(FsError::Stale, got);
        };
        let Body::Symlink(target) = &node.body else {
            return fails(FsError::Invalid, got);
        };
        let (read, stat) = got.as_ref().map_err(|error| format!("failed: {error}"))?;
        ensure(read == target, || "another target".to_owned())?;
        self.check_stat(inode, stat)
    }

    pub(super) fn read(
        &self,
        caller: &Caller,
        inode: InodeId,
        (offset, count): (u64, u32),
        got: &Result<ReadReply, FsError>,
    ) -> Verdict {
        let Some(node) = self.node(inode) else {
            return fails(FsError::Stale, got);
        };
        let Body::File(file) = &node.body else {
            let error = if node.is_dir() {
                FsError::IsDirectory
            } else {
                FsError::Invalid
            };
            return fails(error, got);
        };
        let mut faults = Faults::default();
        faults.must(!may_read_data(node, caller), FsError::AccessDenied);
        let Some(read) = faults.settle(got)? else {
            return Ok(());
        };
        let to = offset.saturating_add(u64::from(count));
        let expected = file.content.part(offset, to);
        ensure(read.data == expected, || {
            let differs = read.data.iter().zip(expected).position(|(a, b)| a != b);
            format!(
                "read {} bytes from {offset}, expected {}; first difference at {differs:?}",
                read.data.len(),
                expected.len()
            )
        })?;
        let end = index(to) >= file.content.len();
        ensure(read.end == end, || format!("end of file is {end}"))?;
        self.check_stat(inode, &read.file)
    }

    pub(super) fn write(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        inode: InodeId,
        (offset, data): (u64, &Bytes),
        got: &Result<Wcc, FsError>,
    ) -> Verdict {
        let Some(node) = self.node(inode) else {
            return self.refuses(FsError::Stale, got);
        };
        let Body::File(file) = &node.body else {
            let error = if node.is_dir() {
                FsError::IsDirectory
            } else {
                FsError::Invalid
            };
            return self.refuses(error, got);
        };
        let before = self.before(inode);
        let mut faults = Faults::default();
        faults.must(self.limits.read_only, FsError::ReadOnly);
        faults.must(!may_write_data(node, caller), FsError::AccessDenied);
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        let end = offset.checked_add(length);
        let fits = end.filter(|end| *end <= self.limits.file_bytes_max);
        faults.must(fits.is_none(), FsError::TooLarge);
        if let Some(end) = fits
            && length > 0
            && faults.must.is_empty()
            && !file.content.holds(offset, end)
        {
            // Allocation depends on how data is kept, so near the limit both answers are right.
            let mut grown = file.content.clone();
            grown.write(offset, data, self.limits.block_bytes);
            let (least, most) = self.used();
            let (old_least, old_most) = self.used_of(node);
            let (new_least, new_most) = grown.used(self.limits.block_bytes);
            // What fills a hole may need no more room, and what needs none is never refused.
            let grows = new_least > old_most;
            let exceeds = grows && least - old_least + new_least > self.limits.bytes_max;
            let may_exceed = most - old_most + new_most > self.limits.bytes_max;
            faults.must(exceeds, FsError::QuotaExceeded);
            faults.may(may_exceed, FsError::QuotaExceeded);
        }
        let Some(wcc) = faults.settle(got)? else {
            return Ok(());
        };
        self.apply_write(caller, now, inode, offset, data);
        self.check_wcc(inode, before, wcc)
    }

    /// Makes a write that may be made.
    fn apply_write(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        inode: InodeId,
        offset: u64,
        data: &Bytes,
    ) {
        let block_bytes = self.limits.block_bytes;
        if !data.is_empty()
            && let Some(node) = self.nodes.get_mut(&inode)
        {
            node.remember();
            if let Body::File(file) = &mut node.body {
                file.content.write(offset, data, block_bytes);
            }
            node.mode = mode_after_change(node, caller);
            node.ctime = now.max(node.ctime.tick());
            node.mtime = node.ctime;
        }
    }

    /// A WRITE took effect and nobody was told. Returns whether it can have.
    pub fn write_untold(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        inode: InodeId,
        offset: u64,
        data: &Bytes,
    ) -> bool {
        let Some(node) = self.node(inode) else {
            return false;
        };
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        let end = offset.checked_add(length);
        let fits = end.is_some_and(|end| end <= self.limits.file_bytes_max);
        let is_file = matches!(node.body, Body::File(_));
        if !is_file || !fits || self.limits.read_only || !may_write_data(node, caller) {
            return false;
        }
        self.apply_write(caller, now, inode, offset, data);
        true
    }

    pub(super) fn commit(&mut self, inode: InodeId, got: &Result<(), FsError>) -> Verdict {
        if self.node(inode).is_none() {
            return fails(FsError::Stale, got);
        }
        if self.kind(inode) == Some(FileKind::File) {
            ensure(got.is_ok(), || format!("failed with {got:?}"))?;
            self.settle(inode);
        }
        Ok(())
    }

    /// Everything written to a file so far is confirmed.
    pub fn settle(&mut self, inode: InodeId) {
        if let Some(node) = self.nodes.get_mut(&inode)
            && let Body::File(file) = &mut node.body
        {
            file.older.clear();
        }
    }

    /// Everything written to a file up to its state `number` is confirmed.
    pub fn settle_until(&mut self, inode: InodeId, number: u64) {
        if let Some(node) = self.nodes.get_mut(&inode)
            && let Body::File(file) = &mut node.body
        {
            file.older.retain(|version| version.number >= number);
        }
    }

    /// Number of the present state of a file's content.
    #[must_use]
    pub fn version(&self, inode: InodeId) -> u64 {
        match self.node(inode).map(|node| &node.body) {
            Some(Body::File(file)) => file.number,
            _ => 0,
        }
    }

    /// Unconfirmed states of a file.
    #[must_use]
    pub fn unsettled(&self, inode: InodeId) -> usize {
        match self.node(inode).map(|node| &node.body) {
            Some(Body::File(file)) => file.older.len(),
            _ => 0,
        }
    }

    /// The blocks `at` of a file are confirmed as they were in state `number`.
    pub fn settle_blocks(&mut self, inode: InodeId, at: &[u64], number: u64) {
        let block_bytes = self.limits.block_bytes;
        if let Some(node) = self.nodes.get_mut(&inode)
            && let Body::File(file) = &mut node.body
        {
            file.settle_blocks(at, number, block_bytes);
        }
    }
}
