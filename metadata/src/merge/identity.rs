//! Which inodes are one object.
//!
//! An object that was replaced under its name is the old one with new content, and what both sides
//! made alike is one. For directories the names in them are looked at again after that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{InodeId, Name};

use super::{Merge, MergeError, Origin, Pair, Side};
use crate::record::entry::Entry;
use crate::stat::FileKind;

/// Where a side has another inode for an identity than the identity's own number.
#[derive(Debug, Default)]
pub(super) struct Identities {
    identity: Pair<BTreeMap<InodeId, InodeId>>,
    inode: Pair<BTreeMap<InodeId, InodeId>>,
}

impl Identities {
    /// The identity of a side's inode.
    pub(super) fn identity(&self, side: Side, inode: InodeId) -> InodeId {
        self.identity.of(side).get(&inode).copied().unwrap_or(inode)
    }

    /// A side's inode of an identity.
    pub(super) fn inode(&self, side: Side, identity: InodeId) -> InodeId {
        let inode = self.inode.of(side).get(&identity);
        inode.copied().unwrap_or(identity)
    }

    /// Whether a side has another inode for the identity.
    pub(super) fn is_mapped(&self, side: Side, identity: InodeId) -> bool {
        self.inode.of(side).contains_key(&identity)
    }

    fn map(&mut self, side: Side, inode: InodeId, identity: InodeId) {
        self.identity.of_mut(side).insert(inode, identity);
        self.inode.of_mut(side).insert(identity, inode);
    }

    fn knows(&self, side: Side, inode: InodeId) -> bool {
        self.identity.of(side).contains_key(&inode)
    }
}

/// A name to look at: the directory's identity, and the name.
type Task = (InodeId, Name);

impl Merge<'_> {
    /// Finds all identities.
    pub(super) async fn identify(&mut self) -> Result<(), MergeError> {
        // In one order for both sides: of several names the first says what was replaced.
        let mut places: BTreeSet<Task> = BTreeSet::new();
        for side in Side::BOTH {
            for (dir, names) in &self.source.changes.of(side).entries {
                places.extend(names.keys().map(|name| (*dir, name.clone())));
            }
        }
        let mut tasks: VecDeque<Task> = places.into_iter().collect();
        while let Some((dir, name)) = tasks.pop_front() {
            for side in Side::BOTH {
                self.find_replaced(side, dir, &name, &mut tasks);
            }
            self.find_doubled(dir, &name, &mut tasks).await?;
        }
        Ok(())
    }

    /// What base has under a name.
    pub(super) fn base_entry(&self, dir: InodeId, name: &Name) -> Option<Entry> {
        let of = |side| self.source.changes.of(side).entry(dir, name);
        of(Side::Ours).or_else(|| of(Side::Theirs))?.old
    }

    /// What a side has under a name that differs on either side.
    pub(super) fn side_entry(&self, side: Side, dir: InodeId, name: &Name) -> Option<Entry> {
        let inode = self.identities.inode(side, dir);
        match self.source.changes.of(side).entry(inode, name) {
            Some(change) => change.new,
            None if inode == dir => self.base_entry(dir, name),
            // A new directory has nothing but what differs.
            None => None,
        }
    }

    /// Whether the side replaced what base has under a name by a new inode. One that both sides have did
    /// so only if it did on both.
    fn find_replaced(
        &mut self,
        side: Side,
        dir: InodeId,
        name: &Name,
        tasks: &mut VecDeque<Task>,
    ) -> Option<()> {
        let old = self.base_entry(dir, name)?;
        let new = self.side_entry(side, dir, name)?;
        let is_shared = self.source.changes.of(side.other()).is_new(new.inode);
        let sides = if is_shared {
            let same = self.side_entry(side.other(), dir, name)?.inode == new.inode;
            same.then_some(Side::BOTH.as_slice())?
        } else {
            std::slice::from_ref(&side)
        };
        if old.kind != new.kind || !sides.iter().all(|side| self.may_replace(*side, old, new)) {
            return None;
        }
        for side in sides {
            self.identities.map(*side, new.inode, old.inode);
        }
        if new.kind == FileKind::Directory {
            self.look_again(old.inode, &[old.inode, new.inode], tasks);
        }
        Some(())
    }

    /// Whether on a side what base had went and something else came, and neither is known to be
    /// another's old or new form, or to be one with what the other side made.
    fn may_replace(&self, side: Side, old: Entry, new: Entry) -> bool {
        let changes = self.source.changes.of(side);
        changes.is_gone(old.inode)
            && changes.is_new(new.inode)
            && !self.identities.is_mapped(side, old.inode)
            && !self.identities.knows(side, new.inode)
            && !self.identities.is_mapped(side.other(), new.inode)
    }

    /// Whether both sides made the same under a name.
    async fn find_doubled(
        &mut self,
        dir: InodeId,
        name: &Name,
        tasks: &mut VecDeque<Task>,
    ) -> Result<(), MergeError> {
        let (Some(ours), Some(theirs)) = (
            self.side_entry(Side::Ours, dir, name),
            self.side_entry(Side::Theirs, dir, name),
        ) else {
            return Ok(());
        };
        let fresh = |side: Side, entry: Entry| {
            self.source.changes.of(side).is_new(entry.inode)
                && !self.source.changes.of(side.other()).is_new(entry.inode)
                && !self.identities.knows(side, entry.inode)
        };
        let made_twice = ours.inode != theirs.inode
            && ours.kind == theirs.kind
            && fresh(Side::Ours, ours)
            && fresh(Side::Theirs, theirs)
            && !self.identities.is_mapped(Side::Theirs, ours.inode);
        if !made_twice {
            return Ok(());
        }
        if ours.kind == FileKind::Directory {
            self.identities.map(Side::Theirs, theirs.inode, ours.inode);
            self.look_again(ours.inode, &[ours.inode, theirs.inode], tasks);
        } else if self.is_alike(ours.inode, theirs.inode).await? {
            self.identities.map(Side::Theirs, theirs.inode, ours.inode);
        }
        Ok(())
    }

    /// Whether two new inodes, one of each side, have equal mode and content.
    async fn is_alike(&self, ours: InodeId, theirs: InodeId) -> Result<bool, MergeError> {
        let (our, their) = (Origin::Of(Side::Ours), Origin::Of(Side::Theirs));
        let (Some(a), Some(b)) = (
            self.inode_record(Side::Ours, ours).await?,
            self.inode_record(Side::Theirs, theirs).await?,
        ) else {
            return Ok(false);
        };
        Ok(a.stat.mode == b.stat.mode
            && self
                .is_same_content((our, ours, &a), (their, theirs, &b))
                .await?)
    }

    /// Looks again at the names in a directory, which different inodes turned out to be.
    fn look_again(&self, identity: InodeId, inodes: &[InodeId], tasks: &mut VecDeque<Task>) {
        for side in Side::BOTH {
            for inode in inodes {
                let names = self.source.changes.of(side).names(*inode);
                tasks.extend(names.map(|name| (identity, name.clone())));
            }
        }
    }
}
