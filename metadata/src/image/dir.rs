//! Directories in memory: entries by the hash of their names.

use std::collections::BTreeMap;

use base::{InodeId, Name};
use smallvec::SmallVec;

use super::Image;
use super::cell::{Content, Slot};
use super::hash::Cells;
use super::load::LoadedEntry;
use super::spans::Spans;
use crate::error::{FsError, Miss, OpResult};
use crate::keyspace::image as keys;
use crate::record::entry::Entry;
use crate::stat::Stat;

/// Names that share a hash; nearly always one.
pub(super) type Group = SmallVec<[(Name, Entry); 1]>;

/// A directory's entries, as far as they are loaded.
#[derive(Debug)]
pub(crate) struct DirData {
    entries: BTreeMap<u64, Group>,
    loaded: Spans,
    in_memory: usize,
    /// Entries in the directory, loaded or not.
    pub(super) count: u64,
}

/// A look at attributes while a directory is listed.
#[derive(Debug)]
pub struct Peek<'a> {
    cells: &'a Cells,
    watermark: std::cell::Cell<u64>,
}

impl Peek<'_> {
    /// The attributes of `inode`; counts as looking at it. `None` if it is not loaded,
    /// `Some(None)` if there is no such inode.
    #[must_use]
    pub fn stat(&self, inode: InodeId) -> Option<Option<Stat>> {
        let (changed, stat) = match self.cells.get(&inode)? {
            Slot::Live(cell) => (cell.changed, Some(cell.stat)),
            Slot::Gone { changed } => (*changed, None),
        };
        self.watermark.set(self.watermark.get().max(changed));
        Some(stat)
    }
}

impl DirData {
    /// A directory that was just made.
    pub(crate) fn empty() -> Self {
        Self {
            entries: BTreeMap::new(),
            loaded: Spans::all(),
            in_memory: 0,
            count: 0,
        }
    }

    /// A stored directory, nothing of which is loaded unless it is empty.
    pub(super) fn from_record(count: u64) -> Self {
        let loaded = if count == 0 {
            Spans::all()
        } else {
            Spans::default()
        };
        Self {
            entries: BTreeMap::new(),
            loaded,
            in_memory: 0,
            count,
        }
    }

    pub(super) fn in_memory(&self) -> usize {
        self.in_memory
    }

    fn find(&self, hash: u64, name: &[u8]) -> Option<Entry> {
        let group = self.entries.get(&hash)?;
        group
            .iter()
            .find(|(other, _)| other.as_bytes() == name)
            .map(|(_, entry)| *entry)
    }

    /// Installs what a load found in `first..=last`, where nothing newer is known.
    /// Returns how many entries that added.
    pub(super) fn install(&mut self, first: u64, last: u64, found: Vec<LoadedEntry>) -> usize {
        let before = self.in_memory;
        for LoadedEntry { hash, name, entry } in found {
            if !self.loaded.covers(hash, hash) {
                self.entries.entry(hash).or_default().push((name, entry));
                self.in_memory += 1;
            }
        }
        self.loaded.add(first, last);
        self.in_memory - before
    }
}

impl Image {
    /// Entry `name` of `dir`, which must be a directory.
    pub(crate) fn entry(&mut self, dir: InodeId, name: &[u8]) -> OpResult<Option<Entry>> {
        let hash = self.hasher.hash(name);
        let data = self.dir(dir)?;
        if !data.loaded.covers(hash, hash) {
            return Err(Miss::Entries { dir, from: hash }.into());
        }
        Ok(data.find(hash, name))
    }

    /// How many entries `dir` has.
    pub(crate) fn entry_count(&mut self, dir: InodeId) -> OpResult<u64> {
        Ok(self.dir(dir)?.count)
    }

    /// Calls `visit` for the entries of `dir` from hash `from` on, a group of equal hashes at a
    /// time, until it returns `false` or there are no more. Returns whether the end was reached.
    ///
    /// If a part is not loaded it is a miss only when nothing was visited before it.
    pub(crate) fn list(
        &mut self,
        dir: InodeId,
        from: u64,
        mut visit: impl FnMut(u64, &[(Name, Entry)]) -> bool,
    ) -> OpResult<bool> {
        let data = self.dir(dir)?;
        let Some(last) = data.loaded.end_of(from) else {
            return Err(Miss::Entries { dir, from }.into());
        };
        let mut visited = false;
        for (hash, group) in data.entries.range(from..=last) {
            if !visit(*hash, group) {
                return Ok(false);
            }
            visited = true;
        }
        if last == u64::MAX {
            return Ok(true);
        }
        if visited {
            Ok(false)
        } else {
            Err(Miss::Entries {
                dir,
                from: last + 1,
            }
            .into())
        }
    }

    /// Like [`Image::list`]; the visitor can look at the attributes of what the entries lead to.
    pub(crate) fn list_with(
        &mut self,
        dir: InodeId,
        from: u64,
        mut visit: impl FnMut(u64, &[(Name, Entry)], &Peek<'_>) -> bool,
    ) -> OpResult<bool> {
        // Checks the directory and counts as looking at it.
        let last = self.dir(dir)?.loaded.end_of(from);
        let Some(last) = last else {
            return Err(Miss::Entries { dir, from }.into());
        };
        let peek = Peek {
            cells: &self.cells,
            watermark: std::cell::Cell::new(self.watermark),
        };
        let mut visited = false;
        let mut full = false;
        if let Some(Slot::Live(cell)) = self.cells.get(&dir)
            && let Content::Dir(data) = &cell.content
        {
            for (hash, group) in data.entries.range(from..=last) {
                full = !visit(*hash, group, &peek);
                if full {
                    break;
                }
                visited = true;
            }
        }
        self.watermark = peek.watermark.get();
        match (full, last) {
            (true, _) => Ok(false),
            (false, u64::MAX) => Ok(true),
            (false, _) if visited => Ok(false),
            (false, _) => Err(Miss::Entries {
                dir,
                from: last + 1,
            }
            .into()),
        }
    }

    /// Adds an entry that is not there; the caller updates the directory's attributes after it.
    pub(crate) fn put_entry(&mut self, dir: InodeId, name: &Name, entry: Entry) {
        let hash = self.hasher.hash(name.as_bytes());
        self.changes
            .set(keys::entry(dir, hash, name.as_bytes()), entry.encode());
        self.changed = true;
        if let Content::Dir(data) = &mut self.known(dir).content {
            data.entries
                .entry(hash)
                .or_default()
                .push((name.clone(), entry));
            data.in_memory += 1;
            data.count += 1;
        }
        self.entries_total += 1;
    }

    /// Takes an entry out; the caller updates the directory's attributes after it.
    pub(crate) fn remove_entry(&mut self, dir: InodeId, name: &[u8]) {
        let hash = self.hasher.hash(name);
        self.changes.remove(keys::entry(dir, hash, name));
        self.changed = true;
        let mut removed = 0;
        if let Content::Dir(data) = &mut self.known(dir).content
            && let Some(group) = data.entries.get_mut(&hash)
        {
            let before = group.len();
            group.retain(|(other, _)| other.as_bytes() != name);
            removed = before - group.len();
            if group.is_empty() {
                data.entries.remove(&hash);
            }
            data.in_memory -= removed;
            data.count -= u64::try_from(removed).unwrap_or(0);
        }
        self.entries_total -= removed;
    }

    fn dir(&mut self, dir: InodeId) -> OpResult<&mut DirData> {
        match &mut self.cell(dir)?.content {
            Content::Dir(data) => Ok(data),
            _ => Err(FsError::NotDirectory.into()),
        }
    }
}
