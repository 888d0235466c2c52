//! What differs of one inode: from keys to changes.

use std::collections::BTreeSet;

use base::InodeId;
use bytes::Bytes;

use super::difference::{Options, PathChange, Replaced, What};
use super::pair::{Names, Pair, Side, add_name};
use super::snapshot::{decode, decode_block};
use super::{Place, SnapshotError};
use crate::keyspace::KeyError;
use crate::keyspace::image::ImageKey;
use crate::record::inode::InodeRecord;
use crate::stat::FileKind;
use crate::tree::Change;

/// The keys of one inode that differ, as far as they matter.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) inode: InodeId,
    /// Values of the attributes, if they differ.
    attributes: Option<(Option<Bytes>, Option<Bytes>)>,
    has_blocks: bool,
    has_entries: bool,
    /// Further links of the old snapshot only.
    removed: BTreeSet<Place>,
    /// Further links of the new snapshot only.
    added: BTreeSet<Place>,
}

/// A change whose paths are still to be found.
#[derive(Clone, Debug)]
pub(super) struct Event {
    /// Its paths are empty.
    pub(super) change: PathChange,
    /// In the new snapshot; in the old one for what was removed. `None` is the root.
    pub(super) place: Option<Place>,
    /// Where it was in the old snapshot, if that is another place.
    pub(super) old_place: Option<Place>,
}

/// What of an object differs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags {
    pub(super) content: bool,
    pub(super) mode: bool,
    pub(super) owner: bool,
    times: bool,
}

impl Flags {
    /// What the attributes tell.
    pub(super) fn between(old: &InodeRecord, new: &InodeRecord) -> Self {
        let (is, was) = (&new.stat, &old.stat);
        let holds = |record: &InodeRecord| match record.stat.kind {
            FileKind::Directory => None,
            _ => Some((record.stat.size, record.inline.clone(), record.stat.device)),
        };
        Self {
            content: is.kind != was.kind || holds(old) != holds(new),
            mode: is.mode != was.mode,
            owner: (is.uid, is.gid) != (was.uid, was.gid),
            times: (is.atime, is.mtime) != (was.atime, was.mtime),
        }
    }

    /// Whether it is a change for its own sake.
    fn matter(self, options: Options) -> bool {
        self.content || self.mode || self.owner || (options.times && self.times)
    }
}

impl Group {
    pub(super) fn new(inode: InodeId) -> Self {
        Self {
            inode,
            attributes: None,
            has_blocks: false,
            has_entries: false,
            removed: BTreeSet::new(),
            added: BTreeSet::new(),
        }
    }

    /// Takes a key that differs.
    pub(super) fn take(&mut self, key: ImageKey, change: &Change) -> Result<(), SnapshotError> {
        match key {
            ImageKey::Inode(_) => {
                self.attributes = Some((change.old.clone(), change.new.clone()));
            }
            ImageKey::Entry { .. } => self.has_entries = true,
            ImageKey::Block { .. } => self.has_blocks = true,
            ImageKey::Link {
                inode,
                parent,
                name,
            } => {
                let place = Some((parent, name));
                if change.new.is_none() {
                    add_name(&mut self.removed, inode, place)?;
                } else if change.old.is_none() {
                    add_name(&mut self.added, inode, place)?;
                }
            }
            // Of the commit, and of no file.
            ImageKey::Conflict(_) => {}
            // In deltas only.
            ImageKey::Cut { .. } => return Err(KeyError::WrongTable.into()),
        }
        Ok(())
    }

    /// The changes. Safe to drop.
    pub(super) async fn events(
        &self,
        pair: &mut Pair,
        options: Options,
    ) -> Result<Vec<Event>, SnapshotError> {
        let inode = self.inode;
        let (old, new) = match &self.attributes {
            Some((old, new)) => {
                let decode = |value: &Bytes| decode(inode, value);
                let old = old.as_ref().map(decode).transpose()?;
                (old, new.as_ref().map(decode).transpose()?)
            }
            None if !self.has_blocks && self.removed.is_empty() && self.added.is_empty() => {
                return Ok(Vec::new());
            }
            None => (
                pair.old.attributes(inode).await?,
                pair.new.attributes(inode).await?,
            ),
        };
        match (old, new) {
            // The root is in every snapshot but the empty one.
            (None, Some(_)) | (Some(_), None) if inode == InodeId::ROOT => Ok(Vec::new()),
            (Some(old), None) => self.gone(pair, &old).await,
            (None, Some(new)) => {
                let names = pair.names(None, Some(&new), &self.removed, &self.added);
                let names = names.await?;
                let mut work = Work::new(pair, options, &new, None);
                work.come(&names).await?;
                Ok(work.events)
            }
            (Some(old), Some(new)) => {
                let mut flags = Flags::between(&old, &new);
                flags.content |= self.has_blocks;
                // They follow from the entries.
                flags.times &= !(new.stat.is_dir() && self.has_entries);
                let names = pair.names(Some(&old), Some(&new), &self.removed, &self.added);
                let names = names.await?;
                let mut work = Work::new(pair, options, &new, Some((&old, flags)));
                work.kept(&names).await?;
                work.renamed(&names).await?;
                work.come(&names).await?;
                work.lost(&names).await?;
                Ok(work.events)
            }
            (None, None) => {
                let what = "has content and no attributes";
                Err(SnapshotError::Damaged { inode, what })
            }
        }
    }

    async fn gone(&self, pair: &mut Pair, old: &InodeRecord) -> Result<Vec<Event>, SnapshotError> {
        let names = pair.names(Some(old), None, &self.removed, &self.added);
        let names = names.await?;
        let mut events = Vec::new();
        for place in names.gone {
            // What stands there now tells that it replaced this.
            if pair.across(Side::Old, &place).await?.is_none() {
                let mut change = change(What::Removed, old);
                change.old_size = Some(old.stat.size);
                more(&mut events, change, place, None);
            }
        }
        Ok(events)
    }
}

/// Making the changes of an inode of the new snapshot.
struct Work<'a> {
    pair: &'a mut Pair,
    options: Options,
    new: &'a InodeRecord,
    /// If it is in the old snapshot too, how, and what differs.
    old: Option<(&'a InodeRecord, Flags)>,
    events: Vec<Event>,
}

impl<'a> Work<'a> {
    fn new(
        pair: &'a mut Pair,
        options: Options,
        new: &'a InodeRecord,
        old: Option<(&'a InodeRecord, Flags)>,
    ) -> Self {
        Self {
            pair,
            options,
            new,
            old,
            events: Vec::new(),
        }
    }

    /// A change of the inode; sizes and flags as between its two states.
    fn change(&self, what: What) -> PathChange {
        let mut change = change(what, self.new);
        change.new_size = Some(self.new.stat.size);
        if let Some((old, flags)) = self.old {
            change.old_size = Some(old.stat.size);
            set_flags(&mut change, flags);
        }
        change
    }

    /// Names that it had and has.
    async fn kept(&mut self, names: &Names) -> Result<(), SnapshotError> {
        let Some((old, flags)) = self.old else {
            return Ok(());
        };
        let had = if old.stat.is_dir() { 1 } else { old.stat.nlink };
        let lost = u32::try_from(names.gone.len()).unwrap_or(u32::MAX);
        let Some(further) = had.saturating_sub(lost).checked_sub(1) else {
            return Ok(());
        };
        if !flags.matter(self.options) {
            return Ok(());
        }
        let come: BTreeSet<&Place> = names.come.iter().collect();
        let mut place = self.new.link.clone();
        if place.as_ref().is_some_and(|place| come.contains(place)) {
            let mut links = self.pair.new.links(self.new.stat.inode);
            place = loop {
                match links.next().await? {
                    Some(link) if come.contains(&link) => {}
                    link => break link,
                }
            };
        }
        if place.is_none() && self.new.stat.inode != InodeId::ROOT {
            let (inode, what) = (self.new.stat.inode, "has fewer names than links");
            return Err(SnapshotError::Damaged { inode, what });
        }
        let what = what_of(old.stat.kind, self.new.stat.kind);
        let mut change = self.change(what);
        change.further = further;
        self.events.push(Event {
            change,
            place,
            old_place: None,
        });
        Ok(())
    }

    /// Names that became other names.
    async fn renamed(&mut self, names: &Names) -> Result<(), SnapshotError> {
        for (from, to) in names.gone.iter().zip(&names.come) {
            let mut change = self.change(What::Renamed);
            if let Some((was, remains)) = self.pair.replaced(to).await? {
                change.replaced = Some(replaced(&was, remains.as_ref()));
            }
            more(&mut self.events, change, to.clone(), Some(from.clone()));
        }
        Ok(())
    }

    /// Names that it has beside those it had.
    async fn come(&mut self, names: &Names) -> Result<(), SnapshotError> {
        for place in names.come.iter().skip(names.renamed()) {
            let Some((was, remains)) = self.pair.replaced(place).await? else {
                let mut change = self.change(What::Added);
                change.linked = self.old.is_some();
                more(&mut self.events, change, place.clone(), None);
                continue;
            };
            let mut flags = Flags::between(&was, self.new);
            // Something else's times, and a directory's follow from its entries.
            flags.times &= !self.new.stat.is_dir();
            if !flags.content && self.new.stat.kind == FileKind::File {
                flags.content = blocks_differ(self.pair, &was, self.new).await?;
            }
            if !flags.matter(self.options) && !self.options.inodes {
                continue;
            }
            let what = what_of(was.stat.kind, self.new.stat.kind);
            let mut change = self.change(what);
            set_flags(&mut change, flags);
            change.old_size = Some(was.stat.size);
            change.replaced = Some(replaced(&was, remains.as_ref()));
            more(&mut self.events, change, place.clone(), None);
        }
        Ok(())
    }

    /// Names that it has no more.
    async fn lost(&mut self, names: &Names) -> Result<(), SnapshotError> {
        for place in names.gone.iter().skip(names.renamed()) {
            if self.pair.across(Side::Old, place).await?.is_none() {
                let mut change = self.change(What::Removed);
                change.linked = true;
                more(&mut self.events, change, place.clone(), None);
            }
        }
        Ok(())
    }
}

fn what_of(old: FileKind, new: FileKind) -> What {
    if old == new {
        What::Modified
    } else {
        What::TypeChanged
    }
}

fn replaced(was: &InodeRecord, remains: Option<&InodeRecord>) -> Replaced {
    Replaced {
        inode: was.stat.inode,
        kind: was.stat.kind,
        size: was.stat.size,
        remains: remains.is_some(),
    }
}

fn change(what: What, record: &InodeRecord) -> PathChange {
    PathChange {
        what,
        path: Vec::new(),
        old_path: None,
        inode: record.stat.inode,
        kind: record.stat.kind,
        replaced: None,
        content: false,
        mode: false,
        owner: false,
        times: false,
        old_size: None,
        new_size: None,
        further: 0,
        linked: false,
    }
}

fn set_flags(change: &mut PathChange, flags: Flags) {
    change.content = flags.content;
    change.mode = flags.mode;
    change.owner = flags.owner;
    change.times = flags.times;
}

/// Adds a change of one name, or counts it with the last if that is alike.
fn more(events: &mut Vec<Event>, change: PathChange, place: Place, old_place: Option<Place>) {
    if let Some(last) = events.last_mut()
        && last.change.what == change.what
        && last.change.what != What::Modified
        && last.change.replaced.is_none()
        && change.replaced.is_none()
    {
        last.change.further = last.change.further.saturating_add(1);
        return;
    }
    events.push(Event {
        change,
        place: Some(place),
        old_place,
    });
}

/// Whether two files of the same size hold something different. They may hold the same, stored
/// differently, and count as different.
pub(super) async fn blocks_differ(
    pair: &Pair,
    old: &InodeRecord,
    new: &InodeRecord,
) -> Result<bool, SnapshotError> {
    let mut olds = pair.old.blocks(old.stat.inode, 0, u32::MAX);
    let mut news = pair.new.blocks(new.stat.inode, 0, u32::MAX);
    loop {
        match (olds.next().await?, news.next().await?) {
            (None, None) => return Ok(false),
            (Some(old), Some(new)) => {
                if decode_block(&old.0, &old.1)? != decode_block(&new.0, &new.1)? {
                    return Ok(true);
                }
            }
            _ => return Ok(true),
        }
    }
}
