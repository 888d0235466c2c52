//! Writing down how the result differs from ours.

use std::collections::{BTreeMap, BTreeSet};

use base::limits::INLINE_FILE_BYTES_MAX;
use base::{InodeId, Name};
use bytes::Bytes;

use super::object::Body;
use super::slots::Slot;
use super::{Merge, MergeError, Merged, Object, Origin, Policy, Side};
use crate::image::{Block, allocated};
use crate::keyspace::image as keys;
use crate::record::block;
use crate::record::conflict::Conflict;
use crate::record::entry::Entry;
use crate::record::inode::InodeRecord;
use crate::stat::FileKind;

/// A name with its directory's number.
type Link = (InodeId, Name);

/// What an object is about to be in the result.
struct Final {
    number: InodeId,
    record: InodeRecord,
    body: Body,
    /// Names beside the first.
    further: BTreeSet<Link>,
}

impl Merge<'_> {
    /// The result as a difference from ours.
    pub(super) async fn finish(&mut self) -> Result<Merged, MergeError> {
        let mut merged = Merged {
            conflicts: self.report().await?,
            ..Merged::default()
        };
        for slot in self.slots.iter() {
            self.emit_slot(slot, &mut merged);
        }
        for (identity, object) in &self.objects {
            self.emit_object(*identity, object, &mut merged).await?;
        }
        self.emit_conflicts(&mut merged);
        Ok(merged)
    }

    /// The number of an identity in the result.
    pub(super) fn number(&self, identity: InodeId) -> InodeId {
        let Some(object) = self.objects.get(&identity) else {
            return identity;
        };
        if let Some(number) = object.number {
            return number;
        }
        let inode = |side| self.identities.inode(side, identity);
        let mapped = |side| self.identities.is_mapped(side, identity);
        match (object.exists.ours, object.exists.theirs) {
            (false, false) => identity,
            (true, false) => inode(Side::Ours),
            (false, true) => inode(Side::Theirs),
            // The side that replaced it; ours if both did.
            (true, true) => {
                let only_theirs = mapped(Side::Theirs) && !mapped(Side::Ours);
                inode(if object.exists_in_base && only_theirs {
                    Side::Theirs
                } else {
                    Side::Ours
                })
            }
        }
    }

    /// The number of an identity as a conflict tells it: 0 for a new inode of a trial.
    pub(super) fn told_number(&self, identity: InodeId) -> InodeId {
        let number = self.number(identity);
        if self.numbers.is_none() && number.raw() >= u64::MAX - self.tried {
            return InodeId::new(0);
        }
        number
    }

    fn emit_slot(&self, slot: &Slot, merged: &mut Merged) {
        let hash = self.source.options.hasher.hash(slot.name.as_bytes());
        let key = |dir| Bytes::from(keys::entry(dir, hash, slot.name.as_bytes()));
        let entry = slot.claims.first().and_then(|identity| {
            Some(Entry {
                inode: self.number(*identity),
                kind: self.objects.get(identity)?.kind?,
            })
        });
        let before = self.side_entry(Side::Ours, slot.dir, &slot.name);
        let dir_before = self.identities.inode(Side::Ours, slot.dir);
        let dir = self.number(slot.dir);
        let value = entry.map(Entry::encode);
        if dir == dir_before {
            if entry != before {
                merged.delta.insert(key(dir), value);
            }
            return;
        }
        if before.is_some() {
            merged.delta.insert(key(dir_before), None);
        }
        if entry.is_some() {
            merged.delta.insert(key(dir), value);
        }
    }

    async fn emit_object(
        &self,
        identity: InodeId,
        object: &Object,
        merged: &mut Merged,
    ) -> Result<(), MergeError> {
        let ours = self.identities.inode(Side::Ours, identity);
        let number = self.number(identity);
        if object.exists.ours && !(object.alive && number == ours) {
            self.remove_ours(identity, merged).await?;
        }
        if !object.alive || self.is_as_ours(identity, object, number) {
            return Ok(());
        }
        let mut result = self.compose(identity, object, number).await?;
        let stored = self.store_merged(&mut result).await?;
        let before = if object.exists.ours && number == ours {
            Some(self.side_version(Side::Ours, identity).await?.1)
        } else {
            None
        };
        self.move_times(identity, object, &mut result).await?;
        let has = |record: &InodeRecord| i64::try_from(record.stat.used).unwrap_or(i64::MAX);
        merged.bytes += has(&result.record) - before.as_ref().map_or(0, has);
        merged.inodes += i64::from(before.is_none());
        self.emit_links(before.as_ref(), &result, merged).await?;
        if result.record.stat.kind == FileKind::File {
            self.emit_blocks(before.is_some(), &result, stored, merged)
                .await?;
        }
        if before.as_ref() != Some(&result.record) {
            let value = Some(result.record.encode());
            merged.delta.insert(keys::inode(number).into(), value);
        }
        Ok(())
    }

    /// Removes all of an inode of ours but entries, which have slots.
    async fn remove_ours(&self, identity: InodeId, merged: &mut Merged) -> Result<(), MergeError> {
        let (inode, record) = self.side_version(Side::Ours, identity).await?;
        let mut remove = |key: Vec<u8>| drop(merged.delta.insert(key.into(), None));
        remove(keys::inode(inode));
        let names = self.side_names(Side::Ours, &record).await?;
        for (parent, name) in names.into_iter().skip(1) {
            remove(keys::link(inode, parent, &name));
        }
        if record.stat.kind == FileKind::File {
            for index in self.all_blocks(Side::Ours, inode).await?.into_keys() {
                remove(keys::block(inode, index));
            }
        }
        merged.bytes -= i64::try_from(record.stat.used).unwrap_or(i64::MAX);
        merged.inodes -= 1;
        Ok(())
    }

    /// Whether nothing of an inode of ours changes but its entries' targets.
    fn is_as_ours(&self, identity: InodeId, object: &Object, number: InodeId) -> bool {
        let is_same_entry = |slot: &Slot| {
            let before = slot.ours.map(|entry| entry.inode);
            slot.claims.first().copied() == before
        };
        let is_same_dir = |at: &usize| {
            self.slots.get(*at).is_none_or(|slot| {
                self.number(slot.dir) == self.identities.inode(Side::Ours, slot.dir)
            })
        };
        let mut names = object.names.clone();
        names.sort_unstable();
        object.exists.ours
            && number == self.identities.inode(Side::Ours, identity)
            && object.settled.is_none()
            && !(object.exists.theirs && self.touches(Side::Theirs, identity))
            && names == object.held.ours
            && names.iter().all(is_same_dir)
            && self.slots.in_dir(identity).all(is_same_entry)
    }

    /// Puts together what an object is in the result.
    async fn compose(
        &self,
        identity: InodeId,
        object: &Object,
        number: InodeId,
    ) -> Result<Final, MergeError> {
        let (mut record, body) = match &object.settled {
            Some(settled) => (settled.record.clone(), settled.body.clone()),
            None => {
                let from_theirs = !object.exists.ours
                    || (object.exists.theirs && self.touches(Side::Theirs, identity));
                let side = if from_theirs {
                    Side::Theirs
                } else {
                    Side::Ours
                };
                let (inode, record) = self.side_version(side, identity).await?;
                (record, Body::Of(side, inode))
            }
        };
        record.stat.inode = number;
        let further = if identity == InodeId::ROOT {
            record.link = None;
            BTreeSet::new()
        } else {
            let (first, further) = self.final_names(identity, object).await?;
            record.link = Some(first);
            further
        };
        if record.stat.is_dir() {
            self.count_entries(identity, object, &mut record).await?;
        } else {
            let names = 1 + further.len();
            record.stat.nlink = u32::try_from(names).unwrap_or(u32::MAX);
        }
        Ok(Final {
            number,
            record,
            body,
            further,
        })
    }

    /// All names of an object in the result: the first and the others.
    async fn final_names(
        &self,
        identity: InodeId,
        object: &Object,
    ) -> Result<(Link, BTreeSet<Link>), MergeError> {
        let mut names: BTreeSet<Link> = BTreeSet::new();
        if object.exists.ours {
            let untouched = self.untouched_names(identity).await?;
            names.extend(
                untouched
                    .into_iter()
                    .map(|(dir, name)| (self.number(dir), name)),
            );
        }
        let claimed = object.names.iter().filter_map(|at| self.slots.get(*at));
        names.extend(claimed.map(|slot| (self.number(slot.dir), slot.name.clone())));
        // The first name is merged as an attribute is, as far as it is still a name.
        let mut first = Vec::new();
        for origin in Object::ORIGINS {
            let version = match object.exists_in_base || origin != Origin::Base {
                true => self.version(origin, identity).await?,
                false => None,
            };
            let link = version.and_then(|(_, record)| record.link);
            first.push(link.map(|(dir, name)| {
                let dir = match origin {
                    Origin::Base => dir,
                    Origin::Of(side) => self.identities.identity(side, dir),
                };
                (self.number(dir), name)
            }));
        }
        let [base, ours, theirs] = first.as_slice() else {
            return Err(MergeError::Damaged("an inode without a name"));
        };
        let order = if ours == base {
            [theirs, ours]
        } else {
            [ours, theirs]
        };
        let candidates = order.into_iter().flatten().chain(names.first());
        let first = candidates.into_iter().find(|link| names.contains(link));
        let first = first.cloned();
        let first = first.ok_or(MergeError::Damaged("an inode without a name"))?;
        names.remove(&first);
        Ok((first, names))
    }

    /// Counts a directory's entries and links anew.
    async fn count_entries(
        &self,
        identity: InodeId,
        object: &Object,
        record: &mut InodeRecord,
    ) -> Result<(), MergeError> {
        let side = if object.exists.ours {
            Side::Ours
        } else {
            Side::Theirs
        };
        let (_, before) = self.side_version(side, identity).await?;
        let is_dir = |kind| u32::from(kind == FileKind::Directory);
        let (mut gone, mut come) = ((0_u64, 0_u32), (0_u64, 0_u32));
        for slot in self.slots.in_dir(identity) {
            if let Some(entry) = slot.held(Origin::Of(side)) {
                gone = (gone.0 + 1, gone.1 + is_dir(entry.kind));
            }
            let claim = slot.claims.first().and_then(|it| self.objects.get(it));
            if let Some(kind) = claim.and_then(|object| object.kind) {
                come = (come.0 + 1, come.1 + is_dir(kind));
            }
        }
        let entries = (before.entries + come.0).checked_sub(gone.0);
        let links = (before.stat.nlink + come.1).checked_sub(gone.1);
        let (Some(entries), Some(links)) = (entries, links) else {
            return Err(MergeError::Damaged("a directory counts too few entries"));
        };
        record.entries = entries;
        record.stat.nlink = links;
        Ok(())
    }

    /// Stores a merged text and enters its size; returns its blocks.
    async fn store_merged(
        &self,
        result: &mut Final,
    ) -> Result<Option<BTreeMap<u32, Bytes>>, MergeError> {
        let Body::Merged(content) = &result.body else {
            return Ok(None);
        };
        let stat = &mut result.record.stat;
        stat.size = u64::try_from(content.len()).unwrap_or(u64::MAX);
        stat.used = 0;
        result.record.inline = None;
        if content.is_empty() {
            return Ok(Some(BTreeMap::new()));
        }
        if content.len() <= INLINE_FILE_BYTES_MAX {
            let block = Block::inline(content.clone());
            stat.used = allocated(Some(&block), [None, None]);
            result.record.inline = Some(content.clone());
            return Ok(Some(BTreeMap::new()));
        }
        let blocks = self.source.content.store(content.clone()).await?;
        let used = |(_, block): &(u32, Block)| allocated(Some(block), [None, None]);
        stat.used = blocks.iter().map(used).sum();
        let encode = |(index, stored): (u32, Block)| (index, block::encode(&stored));
        Ok(Some(blocks.into_iter().map(encode).collect()))
    }

    /// Sees to it that an inode that is not as a side has it shows that by its times.
    async fn move_times(
        &self,
        identity: InodeId,
        object: &Object,
        result: &mut Final,
    ) -> Result<(), MergeError> {
        let mut latest = None;
        let mut are_entries_new = result.record.stat.is_dir();
        for side in Side::BOTH {
            if !*object.exists.of(side) {
                continue;
            }
            let (_, mut there) = self.side_version(side, identity).await?;
            let is_same_entry = |slot: &Slot| {
                let entry = slot.held(Origin::Of(side)).map(|entry| entry.inode);
                slot.claims.first().copied() == entry
            };
            let same_entries = self.slots.in_dir(identity).all(is_same_entry);
            are_entries_new &= !same_entries;
            latest = latest.max(Some(there.stat.ctime));
            // Where it hangs and what number it has are none of its attributes.
            there.link.clone_from(&result.record.link);
            there.stat.inode = result.number;
            if same_entries && there == result.record {
                return Ok(());
            }
        }
        let stat = &mut result.record.stat;
        if let Some(latest) = latest {
            stat.ctime = stat.ctime.max(latest.tick());
            if are_entries_new {
                stat.mtime = stat.ctime;
            }
        }
        Ok(())
    }

    async fn emit_links(
        &self,
        before: Option<&InodeRecord>,
        result: &Final,
        merged: &mut Merged,
    ) -> Result<(), MergeError> {
        let mut old = BTreeSet::new();
        if let Some(before) = before {
            old.extend(
                self.side_names(Side::Ours, before)
                    .await?
                    .into_iter()
                    .skip(1),
            );
        }
        for (parent, name) in old.difference(&result.further) {
            let key = keys::link(result.number, *parent, name);
            merged.delta.insert(key.into(), None);
        }
        for (parent, name) in result.further.difference(&old) {
            let key = keys::link(result.number, *parent, name);
            merged.delta.insert(key.into(), Some(Bytes::new()));
        }
        Ok(())
    }

    /// Blocks of a file; `is_ours` if ours has the file under this number.
    async fn emit_blocks(
        &self,
        is_ours: bool,
        result: &Final,
        stored: Option<BTreeMap<u32, Bytes>>,
        merged: &mut Merged,
    ) -> Result<(), MergeError> {
        let number = result.number;
        let (old, new) = match (&result.body, stored) {
            (Body::Of(Side::Ours, inode), _) if *inode == number && is_ours => return Ok(()),
            (Body::Of(side, inode), _) if *inode == number && is_ours => {
                // One inode in two images: elsewhere they are the same.
                let blocks = |side| self.changed_blocks(Origin::Of(side), number);
                (blocks(Side::Ours), blocks(*side))
            }
            (body, stored) => {
                let old = match is_ours {
                    true => self.all_blocks(Side::Ours, number).await?,
                    false => BTreeMap::new(),
                };
                let new = match (body, stored) {
                    (Body::Of(side, inode), _) => self.all_blocks(*side, *inode).await?,
                    (Body::Merged(_), stored) => stored.unwrap_or_default(),
                };
                (old, new)
            }
        };
        for index in old.keys().filter(|index| !new.contains_key(index)) {
            merged
                .delta
                .insert(keys::block(number, *index).into(), None);
        }
        for (index, value) in new {
            if old.get(&index) != Some(&value) {
                let key = keys::block(number, index);
                merged.delta.insert(key.into(), Some(value));
            }
        }
        Ok(())
    }

    /// Conflicts of earlier merges, merged like a set, and those of this one.
    fn emit_conflicts(&self, merged: &mut Merged) {
        let changes = self.source.changes;
        for (id, change) in &changes.theirs.conflicts {
            if !changes.ours.conflicts.contains_key(id) {
                let key = keys::conflict(id);
                merged.delta.insert(key.into(), change.new.clone());
            }
        }
        if self.source.options.policy != Policy::KeepBoth {
            return;
        }
        for conflict in &merged.conflicts {
            let value = conflict.encode();
            let key = keys::conflict(&Conflict::id(&value));
            merged.delta.insert(key.into(), Some(value));
        }
    }
}
