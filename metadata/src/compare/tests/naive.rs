//! The same comparison over two whole snapshots in memory.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::*;
use crate::keyspace::image::{self as keys, ImageKey};
use crate::kv::KeyRange;
use crate::record::entry::Entry;
use crate::record::inode::InodeRecord;
use crate::stat::FileKind;

/// Everything in a snapshot.
#[derive(Default)]
pub(crate) struct Whole {
    pub(crate) records: BTreeMap<InodeId, InodeRecord>,
    pub(crate) entries: BTreeMap<Place, InodeId>,
    pub(crate) blocks: BTreeMap<InodeId, Vec<(u32, Bytes)>>,
    /// By inode, the first link first.
    pub(crate) names: BTreeMap<InodeId, Vec<Place>>,
}

impl Whole {
    pub(crate) async fn read(world: &World, root: Root) -> Self {
        let all = KeyRange {
            start: Bytes::new(),
            end: Bytes::from_static(&[0xff; 8]),
        };
        let mut scan = world.tree.scan(root, &all);
        let mut whole = Self::default();
        while let Some((key, value)) = scan.next().await.unwrap() {
            match keys::decode(&key).unwrap() {
                ImageKey::Inode(inode) => {
                    let record = InodeRecord::decode(inode, &value).unwrap();
                    whole.records.insert(inode, record);
                }
                ImageKey::Entry { dir, name, .. } => {
                    let inode = Entry::decode(&value).unwrap().inode;
                    whole.entries.insert((dir, name), inode);
                }
                ImageKey::Block { inode, index } => {
                    whole.blocks.entry(inode).or_default().push((index, value));
                }
                ImageKey::Link { .. } | ImageKey::Conflict(_) => {}
                ImageKey::Cut { .. } => panic!("a cut in a tree"),
            }
        }
        for (place, inode) in &whole.entries {
            let is_first = whole.records[inode].link.as_ref() == Some(place);
            let names = whole.names.entry(*inode).or_default();
            names.insert(if is_first { 0 } else { names.len() }, place.clone());
        }
        whole
    }

    pub(crate) fn path(&self, place: Option<&Place>) -> Vec<u8> {
        let Some((dir, name)) = place else {
            return Vec::new();
        };
        let mut path = self.path(self.records[dir].link.as_ref());
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        path
    }

    fn is_dir(&self, inode: InodeId) -> bool {
        self.records
            .get(&inode)
            .is_some_and(|record| record.stat.is_dir())
    }

    fn names_of(&self, inode: InodeId) -> &[Place] {
        self.names.get(&inode).map_or(&[], Vec::as_slice)
    }

    /// What an object holds.
    fn content(
        &self,
        inode: InodeId,
    ) -> (
        FileKind,
        u64,
        Option<Bytes>,
        crate::stat::Device,
        Vec<(u32, Bytes)>,
    ) {
        let record = &self.records[&inode];
        (
            record.stat.kind,
            record.stat.size,
            record.inline.clone(),
            record.stat.device,
            self.blocks.get(&inode).cloned().unwrap_or_default(),
        )
    }
}

/// A place, the same in both snapshots: in the new one, unless only the old one has it.
type Class = (bool, Place);

struct Naive<'a> {
    old: &'a Whole,
    new: &'a Whole,
    options: Options,
    /// From directories of the old snapshot to those of the new one.
    twins: BTreeMap<InodeId, InodeId>,
    old_at: BTreeMap<Class, InodeId>,
    new_at: BTreeMap<Class, InodeId>,
    changes: Vec<PathChange>,
}

pub(super) fn expected(old: &Whole, new: &Whole, options: Options) -> Vec<PathChange> {
    let mut twins = BTreeMap::new();
    let both = |inode: &&InodeId| old.is_dir(**inode) && new.is_dir(**inode);
    let mut todo: Vec<(InodeId, InodeId)> = old
        .records
        .keys()
        .filter(both)
        .map(|inode| (*inode, *inode))
        .collect();
    while let Some((was, is)) = todo.pop() {
        twins.insert(was, is);
        for ((_, name), child) in new.entries.iter().filter(|((dir, _), _)| *dir == is) {
            if let Some(twin) = old.entries.get(&(was, name.clone()))
                && (old.is_dir(*twin) && !new.is_dir(*twin))
                && (new.is_dir(*child) && !old.is_dir(*child))
            {
                todo.push((*twin, *child));
            }
        }
    }
    let mut naive = Naive {
        old,
        new,
        options,
        twins,
        old_at: BTreeMap::new(),
        new_at: BTreeMap::new(),
        changes: Vec::new(),
    };
    naive.old_at = old
        .entries
        .iter()
        .map(|(place, inode)| (naive.old_class(place), *inode))
        .collect();
    naive.new_at = new
        .entries
        .iter()
        .map(|(place, inode)| ((true, place.clone()), *inode))
        .collect();
    let inodes: BTreeSet<InodeId> = old
        .records
        .keys()
        .chain(new.records.keys())
        .copied()
        .collect();
    for inode in inodes {
        naive.inode(inode);
    }
    naive.changes
}

impl Naive<'_> {
    fn old_class(&self, (dir, name): &Place) -> Class {
        match self.twins.get(dir) {
            Some(twin) => (true, (*twin, name.clone())),
            None => (false, (*dir, name.clone())),
        }
    }

    /// Places that an inode has in one snapshot only.
    fn moves(&self, inode: InodeId) -> (Vec<Place>, Vec<Place>) {
        let (was, is) = (self.old.names_of(inode), self.new.names_of(inode));
        let had: BTreeSet<Class> = was.iter().map(|place| self.old_class(place)).collect();
        let has: BTreeSet<Class> = is.iter().map(|place| (true, place.clone())).collect();
        let gone = was
            .iter()
            .filter(|place| !has.contains(&self.old_class(place)));
        let come = is
            .iter()
            .filter(|place| !had.contains(&(true, (*place).clone())));
        (gone.cloned().collect(), come.cloned().collect())
    }

    /// What stood at a place of the new snapshot, and is told nowhere else.
    fn replaced(&self, place: &Place) -> Option<InodeId> {
        let inode = *self.old_at.get(&(true, place.clone()))?;
        let (gone, come) = self.moves(inode);
        let mut lost = gone.iter().skip(come.len());
        let is_lost = lost.any(|lost| self.old_class(lost) == (true, place.clone()));
        is_lost.then_some(inode)
    }

    /// A change of `is` (or, removed, `was`), which was `was`.
    fn change(&self, what: What, was: Option<InodeId>, is: Option<InodeId>) -> PathChange {
        let old = was.map(|inode| &self.old.records[&inode]);
        let new = is.map(|inode| &self.new.records[&inode]);
        let stat = new.or(old).unwrap().stat;
        let mut change = PathChange {
            what,
            path: Vec::new(),
            old_path: None,
            inode: stat.inode,
            kind: stat.kind,
            replaced: None,
            content: false,
            mode: false,
            owner: false,
            times: false,
            old_size: old.map(|record| record.stat.size),
            new_size: new.map(|record| record.stat.size),
            further: 0,
            linked: false,
        };
        if let (Some(old), Some(new)) = (old, new) {
            let (was, is) = (old.stat, new.stat);
            let entries = |whole: &Whole, dir| -> Vec<(Place, InodeId)> {
                let all = whole.entries.iter();
                let own = all.filter(|((of, _), _)| *of == dir);
                own.map(|(place, inode)| (place.clone(), *inode)).collect()
            };
            change.content = if is.is_dir() && was.is_dir() {
                false
            } else {
                self.old.content(was.inode) != self.new.content(is.inode)
            };
            change.mode = was.mode != is.mode;
            change.owner = was.uid != is.uid;
            change.times = (was.atime, was.mtime) != (is.atime, is.mtime);
            let stirred = || entries(self.old, was.inode) != entries(self.new, is.inode);
            change.times &= !is.is_dir() || (was.inode == is.inode && !stirred());
        }
        change
    }

    fn matters(&self, change: &PathChange) -> bool {
        let times = change.times && self.options.times;
        change.content || change.mode || change.owner || times
    }

    fn tell(&mut self, mut change: PathChange, place: Option<&Place>, from: Option<&Place>) {
        if let Some(last) = self.changes.last_mut()
            && (last.inode, last.what) == (change.inode, change.what)
            && last.what != What::Modified
            && (last.replaced, change.replaced) == (None, None)
        {
            last.further += 1;
            return;
        }
        let whole = match change.what {
            What::Removed => self.old,
            _ => self.new,
        };
        change.path = whole.path(place);
        change.old_path = from.map(|from| self.old.path(Some(from)));
        self.changes.push(change);
    }

    fn inode(&mut self, inode: InodeId) {
        let had = self.old.records.contains_key(&inode).then_some(inode);
        let has = self.new.records.contains_key(&inode).then_some(inode);
        let (gone, come) = self.moves(inode);
        let renamed = gone.len().min(come.len());
        if had.is_some() && has.is_some() {
            let is = self.new.names_of(inode);
            let kept: Vec<&Place> = is.iter().filter(|place| !come.contains(place)).collect();
            let mut change = self.change(What::Modified, had, has);
            if self.matters(&change) && (inode == InodeId::ROOT || !kept.is_empty()) {
                change.further = u32::try_from(kept.len().saturating_sub(1)).unwrap();
                self.tell(change, kept.first().copied(), None);
            }
        }
        for (from, to) in gone.iter().zip(&come) {
            let mut change = self.change(What::Renamed, had, has);
            change.replaced = self.replaced(to).map(|was| self.was(was));
            self.tell(change, Some(to), Some(from));
        }
        for place in come.iter().skip(renamed) {
            let Some(was) = self.replaced(place) else {
                let mut change = self.change(What::Added, had, has);
                change.linked = had.is_some();
                self.tell(change, Some(place), None);
                continue;
            };
            let mut change = self.change(What::Modified, Some(was), has);
            if change.kind != self.old.records[&was].stat.kind {
                change.what = What::TypeChanged;
            }
            change.replaced = Some(self.was(was));
            if self.matters(&change) {
                self.tell(change, Some(place), None);
            }
        }
        for place in gone.iter().skip(renamed) {
            if !self.new_at.contains_key(&self.old_class(place)) {
                let mut change = self.change(What::Removed, had, has);
                change.linked = has.is_some();
                self.tell(change, Some(place), None);
            }
        }
    }

    fn was(&self, inode: InodeId) -> Replaced {
        let stat = self.old.records[&inode].stat;
        Replaced {
            inode,
            kind: stat.kind,
            size: stat.size,
            remains: self.new.records.contains_key(&inode),
        }
    }
}
