//! From names that are lost and gained to keys.

use std::collections::{BTreeMap, BTreeSet};

use base::{ChunkId, InodeId};
use bytes::Bytes;

use super::paths::{Place, Places, Work};
use super::{RestoreError, Rules, chunk_of, differs};
use crate::compare::{Snapshot, SnapshotError};
use crate::image::NameHasher;
use crate::keyspace::image::{self as keys, ImageKey};
use crate::record::entry::Entry;
use crate::record::inode::InodeRecord;
use crate::stat::FileKind;
use crate::tree::{Root, Scan, Tree};

/// Keys and what they become.
type Delta = BTreeMap<Bytes, Option<Bytes>>;

/// Keys that are held before they are put into the tree.
#[cfg(not(test))]
const DELTA_KEYS_MAX: usize = 16 * 1024;

/// The same, so few that tests have many parts.
#[cfg(test)]
pub(super) const DELTA_KEYS_MAX: usize = 8;

/// Bytes of keys and values that are held before they are put into the tree: the value of a block may have
/// 32 KiB.
#[cfg(not(test))]
const DELTA_BYTES_MAX: usize = 16 << 20;

/// The same, so few that tests have many parts.
#[cfg(test)]
pub(super) const DELTA_BYTES_MAX: usize = 16 << 10;

/// Makes the tree `from` what the session is to be. It goes from one tree to the next, so that
/// memory does not depend on how long the files are.
pub(super) async fn write(
    work: &Work,
    (tree, from): (&Tree, Root),
    hasher: &NameHasher,
    rules: Rules,
    touch: impl FnMut(ChunkId) + Send,
) -> Result<Root, RestoreError> {
    let mut writing = Writing {
        work,
        tree,
        root: from,
        rules,
        touch,
        delta: Delta::new(),
        delta_bytes: 0,
        lost: Places::new(),
        gained: Places::new(),
        kinds: BTreeMap::new(),
        touched: BTreeSet::new(),
        dead: BTreeSet::new(),
    };
    writing.compare();
    let all: BTreeSet<InodeId> = work
        .here
        .seen
        .keys()
        .chain(work.there.seen.keys())
        .copied()
        .collect();
    for inode in &all {
        writing.inode(*inode).await?;
        if let Some(copy) = work.copies.get(inode) {
            writing.copy(*inode, *copy).await?;
        }
    }
    writing.entries(hasher).await?;
    writing.apply().await?;
    Ok(writing.root)
}

struct Writing<'a, T> {
    work: &'a Work,
    tree: &'a Tree,
    /// The tree so far.
    root: Root,
    rules: Rules,
    touch: T,
    /// What is to be put into it.
    delta: Delta,
    /// About how many bytes that is.
    delta_bytes: usize,
    /// Names that inodes lose.
    lost: Places,
    /// Names that inodes get, by the numbers that they have afterwards.
    gained: Places,
    kinds: BTreeMap<InodeId, FileKind>,
    /// Directories that lose or get entries.
    touched: BTreeSet<InodeId>,
    /// Inodes that are no more.
    dead: BTreeSet<InodeId>,
}

impl<T: FnMut(ChunkId) + Send> Writing<'_, T> {
    /// The number that something of the version has afterwards.
    fn number(&self, inode: InodeId) -> InodeId {
        self.work.copies.get(&inode).copied().unwrap_or(inode)
    }

    /// Finds what is lost and what is gained.
    fn compare(&mut self) {
        let none = BTreeSet::new();
        let (here, there) = (&self.work.here.seen, &self.work.there.seen);
        let mut gained = Places::new();
        for (inode, places) in there {
            let to = self.number(*inode);
            let has = if to == *inode { here.get(inode) } else { None };
            for (dir, name) in places {
                let place = (self.number(*dir), name.clone());
                if !has.unwrap_or(&none).contains(&place) {
                    gained.entry(to).or_default().insert(place);
                }
            }
        }
        let mut lost = Places::new();
        for (inode, places) in here {
            let keeps = there
                .get(inode)
                .filter(|_| self.number(*inode) == *inode)
                .unwrap_or(&none);
            let keeps: BTreeSet<Place> = keeps
                .iter()
                .map(|(dir, name)| (self.number(*dir), name.clone()))
                .collect();
            for place in places.difference(&keeps) {
                lost.entry(*inode).or_default().insert(place.clone());
            }
        }
        let places = lost.values().chain(gained.values()).flatten();
        self.touched = places.map(|(dir, _)| *dir).collect();
        (self.lost, self.gained) = (lost, gained);
    }

    /// Writes what becomes of an inode under its own number.
    async fn inode(&mut self, inode: InodeId) -> Result<(), RestoreError> {
        self.apply_if_much().await?;
        let work = self.work;
        let old = work.here.snapshot.attributes(inode).await?;
        let is_restored = work.there.seen.contains_key(&inode) && !work.copies.contains_key(&inode);
        let had = match &old {
            Some(old) => work.here.places(inode, old).await?,
            None => BTreeSet::new(),
        };
        let none = BTreeSet::new();
        let mut has: BTreeSet<Place> = had
            .difference(self.lost.get(&inode).unwrap_or(&none))
            .cloned()
            .collect();
        has.extend(self.gained.get(&inode).cloned().unwrap_or_default());
        let new = if is_restored {
            work.there.snapshot.attributes(inode).await?
        } else {
            old.clone()
        };
        let Some(new) = new.filter(|_| !has.is_empty()) else {
            if let Some(old) = old {
                self.kinds.insert(inode, old.stat.kind);
                self.dead.insert(inode);
                self.remove_all(inode).await?;
            }
            return Ok(());
        };
        self.kinds.insert(inode, new.stat.kind);
        let mut changed = self.links(inode, &had, &has);
        if is_restored {
            changed |= self.content(inode, inode, old.is_some()).await?;
        }
        let new = match &old {
            // The names are as they were, and which of them is the first.
            Some(old) if had == has => InodeRecord {
                link: old.link.clone(),
                ..with_places(new, &has)
            },
            _ => with_places(new, &has),
        };
        self.attributes(inode, old.as_ref(), &new, changed);
        Ok(())
    }

    /// Writes a copy of something of the version.
    async fn copy(&mut self, inode: InodeId, copy: InodeId) -> Result<(), RestoreError> {
        self.apply_if_much().await?;
        let Some(mut new) = self.work.there.snapshot.attributes(inode).await? else {
            let what = "has a name and no attributes";
            return Err(SnapshotError::Damaged { inode, what }.into());
        };
        let has = self.gained.get(&copy).cloned().unwrap_or_default();
        self.kinds.insert(copy, new.stat.kind);
        self.links(copy, &BTreeSet::new(), &has);
        self.content(inode, copy, false).await?;
        new.stat.inode = copy;
        new.verifier = None;
        let new = with_places(new, &has);
        self.attributes(copy, None, &new, true);
        Ok(())
    }

    fn attributes(
        &mut self,
        inode: InodeId,
        old: Option<&InodeRecord>,
        new: &InodeRecord,
        changed: bool,
    ) {
        // A directory below the paths whose entries differ has another count or a mark of its own.
        let entries = self.touched.contains(&inode);
        if old.is_some_and(|old| !changed && !entries && !differs(old, new)) {
            return;
        }
        let record = self.rules.renewed(old, new, entries);
        self.put(keys::inode(inode), record.encode());
    }

    /// Writes further links: all but the first.
    fn links(&mut self, inode: InodeId, had: &BTreeSet<Place>, has: &BTreeSet<Place>) -> bool {
        if had == has {
            return false;
        }
        for (dir, name) in had {
            self.set(keys::link(inode, *dir, name).into(), None);
        }
        for (dir, name) in has.iter().skip(1) {
            self.put(keys::link(inode, *dir, name), Bytes::new());
        }
        true
    }

    /// Writes the blocks that `to` gets from the version's `inode`.
    async fn content(
        &mut self,
        inode: InodeId,
        to: InodeId,
        is_there: bool,
    ) -> Result<bool, RestoreError> {
        if is_there && !self.work.marks.blocks.contains(&inode) {
            return Ok(false);
        }
        let blocks = |of: &Snapshot, inode| Blocks(of.blocks(inode, 0, u32::MAX));
        let mut old = is_there.then(|| blocks(&self.work.here.snapshot, to));
        let mut new = Some(blocks(&self.work.there.snapshot, inode));
        let (mut before, mut after) =
            (Blocks::next(&mut old).await?, Blocks::next(&mut new).await?);
        loop {
            let indexes = [&before, &after].map(|block| block.as_ref().map(|(index, _)| *index));
            let Some(index) = indexes.into_iter().flatten().min() else {
                return Ok(true);
            };
            let had = before.take_if(|(at, _)| *at == index);
            let has = after.take_if(|(at, _)| *at == index);
            if had.is_some() {
                before = Blocks::next(&mut old).await?;
            }
            if has.is_some() {
                after = Blocks::next(&mut new).await?;
            }
            if had == has {
                continue;
            }
            let has = has.map(|(_, value)| value);
            let key = ImageKey::Block { inode, index };
            let chunk = match &has {
                Some(value) => chunk_of(&key, value)?,
                None => None,
            };
            if let Some(chunk) = chunk {
                (self.touch)(chunk);
            }
            self.set(keys::block(to, index).into(), has);
            self.apply_if_much().await?;
        }
    }

    async fn remove_all(&mut self, inode: InodeId) -> Result<(), RestoreError> {
        let mut scan = self.work.here.snapshot.all_of(inode);
        while let Some((key, _)) = scan.next().await? {
            self.set(key, None);
            self.apply_if_much().await?;
        }
        Ok(())
    }

    /// Writes the entries, and the attributes of directories that hold a path.
    async fn entries(&mut self, hasher: &NameHasher) -> Result<(), RestoreError> {
        let mut counts: BTreeMap<InodeId, (i64, i64)> = BTreeMap::new();
        let (lost, gained) = (self.lost.clone(), self.gained.clone());
        for (places, sign) in [(&lost, -1), (&gained, 1)] {
            for (inode, places) in places {
                let kind = self.kinds.get(inode).copied().unwrap_or(FileKind::File);
                for (dir, name) in places {
                    if self.dead.contains(dir) {
                        continue;
                    }
                    let name = name.as_bytes();
                    let key = keys::entry(*dir, hasher.hash(name), name);
                    let entry = Entry {
                        inode: *inode,
                        kind,
                    };
                    let value = (sign > 0).then(|| entry.encode());
                    self.set(key.into(), value);
                    self.apply_if_much().await?;
                    let count = counts.entry(*dir).or_default();
                    count.0 += sign;
                    count.1 += if kind == FileKind::Directory { sign } else { 0 };
                }
            }
        }
        let copies: BTreeSet<InodeId> = self.work.copies.values().copied().collect();
        let is_below =
            |dir: &InodeId| self.work.there.seen.contains_key(dir) || copies.contains(dir);
        let above: Vec<_> = counts
            .into_iter()
            .filter(|(dir, _)| !is_below(dir))
            .collect();
        for (dir, (entries, dirs)) in above {
            let what = "has entries and no attributes";
            let found = self.work.here.snapshot.attributes(dir).await?;
            let old = found.ok_or(SnapshotError::Damaged { inode: dir, what })?;
            let mut new = old.clone();
            new.entries = old.entries.saturating_add_signed(entries);
            let dirs = i32::try_from(dirs).unwrap_or(i32::MAX);
            new.stat.nlink = old.stat.nlink.saturating_add_signed(dirs);
            self.attributes(dir, Some(&old), &new, true);
        }
        Ok(())
    }

    fn put(&mut self, key: Vec<u8>, value: Bytes) {
        self.set(key.into(), Some(value));
    }

    fn set(&mut self, key: Bytes, value: Option<Bytes>) {
        self.delta_bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        self.delta.insert(key, value);
    }

    async fn apply_if_much(&mut self) -> Result<(), RestoreError> {
        if self.delta.len() < DELTA_KEYS_MAX && self.delta_bytes < DELTA_BYTES_MAX {
            return Ok(());
        }
        self.apply().await
    }

    /// Puts into the tree what waits for it. What is read is read of the trees before.
    async fn apply(&mut self) -> Result<(), RestoreError> {
        self.delta_bytes = 0;
        let delta = std::mem::take(&mut self.delta);
        if !delta.is_empty() {
            self.root = self.tree.apply(self.root, delta).await?.root;
        }
        Ok(())
    }
}

/// The blocks of a file, one by one.
struct Blocks(Scan);

impl Blocks {
    async fn next(of: &mut Option<Self>) -> Result<Option<(u32, Bytes)>, RestoreError> {
        let Some(Self(scan)) = of else {
            return Ok(None);
        };
        while let Some((key, value)) = scan.next().await? {
            if let ImageKey::Block { index, .. } =
                keys::decode(&key).map_err(SnapshotError::from)?
            {
                return Ok(Some((index, value)));
            }
        }
        Ok(None)
    }
}

/// A record that has just these names.
fn with_places(mut record: InodeRecord, has: &BTreeSet<Place>) -> InodeRecord {
    if !record.stat.is_dir() {
        record.stat.nlink = u32::try_from(has.len()).unwrap_or(u32::MAX);
    }
    record.link = has.first().cloned();
    record
}
