//! How a side differs from base, sorted out.

use std::collections::BTreeMap;

use base::limits::MERGE_CHANGES_MAX;
use base::{InodeId, Name};
use bytes::Bytes;

use super::{Difference, Differences, MergeError, Pair};
use crate::keyspace::image::{self as keys, ImageKey};
use crate::record::entry::Entry;

/// A value in base and on a side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Change<T> {
    pub(super) old: Option<T>,
    pub(super) new: Option<T>,
}

/// All differences between base and a side.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) records: BTreeMap<InodeId, Change<Bytes>>,
    /// Entries by directory and name, with inodes as they are on each side.
    pub(super) entries: BTreeMap<InodeId, BTreeMap<Name, Change<Entry>>>,
    pub(super) blocks: BTreeMap<InodeId, BTreeMap<u32, Change<Bytes>>>,
    pub(super) conflicts: BTreeMap<[u8; 16], Change<Bytes>>,
}

impl Changes {
    /// Reads the differences of both sides.
    pub(super) async fn read(
        differences: Pair<&mut dyn Differences>,
    ) -> Result<Pair<Self>, MergeError> {
        let mut left = MERGE_CHANGES_MAX;
        let ours = Self::read_side(differences.ours, &mut left).await?;
        let theirs = Self::read_side(differences.theirs, &mut left).await?;
        Ok(Pair { ours, theirs })
    }

    async fn read_side(
        differences: &mut dyn Differences,
        left: &mut usize,
    ) -> Result<Self, MergeError> {
        let mut changes = Self::default();
        while let Some(difference) = differences.next().await? {
            *left = left.checked_sub(1).ok_or(MergeError::TooLarge)?;
            changes.take(difference)?;
        }
        Ok(changes)
    }

    fn take(&mut self, difference: Difference) -> Result<(), MergeError> {
        let Difference { key, old, new } = difference;
        // Copied, so that a small value does not hold a whole tree node in memory.
        let copy = |value: Option<Bytes>| value.map(|value| Bytes::copy_from_slice(&value));
        match keys::decode(&key)? {
            ImageKey::Inode(inode) => {
                let (old, new) = (copy(old), copy(new));
                self.records.insert(inode, Change { old, new });
            }
            ImageKey::Entry { dir, name, .. } => {
                let decode = |value: Option<Bytes>| value.map(|it| Entry::decode(&it)).transpose();
                let (old, new) = (decode(old)?, decode(new)?);
                let entries = self.entries.entry(dir).or_default();
                entries.insert(name, Change { old, new });
            }
            ImageKey::Block { inode, index } => {
                let (old, new) = (copy(old), copy(new));
                let blocks = self.blocks.entry(inode).or_default();
                blocks.insert(index, Change { old, new });
            }
            // They follow from entries and attributes.
            ImageKey::Link { .. } => {}
            ImageKey::Conflict(id) => {
                let (old, new) = (copy(old), copy(new));
                self.conflicts.insert(id, Change { old, new });
            }
            ImageKey::Cut { .. } => return Err(MergeError::Damaged("a cut in a tree")),
        }
        Ok(())
    }

    /// Whether the inode came to be on this side.
    pub(super) fn is_new(&self, inode: InodeId) -> bool {
        let made = |change: &Change<_>| change.old.is_none() && change.new.is_some();
        self.records.get(&inode).is_some_and(made)
    }

    /// Whether the inode went on this side.
    pub(super) fn is_gone(&self, inode: InodeId) -> bool {
        let gone = |change: &Change<_>| change.old.is_some() && change.new.is_none();
        self.records.get(&inode).is_some_and(gone)
    }

    /// Whether attributes or blocks of the inode differ.
    pub(super) fn touch(&self, inode: InodeId) -> bool {
        self.records.contains_key(&inode) || self.blocks.contains_key(&inode)
    }

    /// The change of an entry.
    pub(super) fn entry(&self, dir: InodeId, name: &Name) -> Option<&Change<Entry>> {
        self.entries.get(&dir)?.get(name)
    }

    /// The names that differ in a directory.
    pub(super) fn names(&self, dir: InodeId) -> impl Iterator<Item = &Name> {
        self.entries.get(&dir).into_iter().flat_map(BTreeMap::keys)
    }
}
