//! Names at which a side differs from base.

use std::collections::BTreeMap;

use base::{InodeId, Name};

use super::object::Object;
use super::{Merge, Origin, Side};
use crate::record::entry::Entry;

/// A name in a directory, with the identities that have it.
#[derive(Debug)]
pub(super) struct Slot {
    /// Identity of the directory.
    pub(super) dir: InodeId,
    pub(super) name: Name,
    pub(super) base: Option<Entry>,
    pub(super) ours: Option<Entry>,
    pub(super) theirs: Option<Entry>,
    /// Identities that want the name in the result. More than one only until that is mended.
    pub(super) claims: Vec<InodeId>,
}

impl Slot {
    /// What an image has under the name.
    pub(super) fn held(&self, origin: Origin) -> Option<Entry> {
        match origin {
            Origin::Base => self.base,
            Origin::Of(Side::Ours) => self.ours,
            Origin::Of(Side::Theirs) => self.theirs,
        }
    }

    /// Whether an image has `identity` under the name.
    pub(super) fn holds(&self, origin: Origin, identity: InodeId) -> bool {
        self.held(origin)
            .is_some_and(|entry| entry.inode == identity)
    }
}

/// All slots, and where they are.
#[derive(Debug, Default)]
pub(super) struct Slots {
    all: Vec<Slot>,
    places: BTreeMap<InodeId, BTreeMap<Name, usize>>,
}

impl Slots {
    pub(super) fn get(&self, at: usize) -> Option<&Slot> {
        self.all.get(at)
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Slot> {
        self.all.get_mut(at)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.all.iter()
    }

    /// The slot of a name, if there is one.
    pub(super) fn find(&self, dir: InodeId, name: &Name) -> Option<usize> {
        self.places.get(&dir)?.get(name).copied()
    }

    /// The slots in a directory.
    pub(super) fn in_dir(&self, dir: InodeId) -> impl Iterator<Item = &Slot> {
        let places = self.places.get(&dir).into_iter().flat_map(BTreeMap::values);
        places.filter_map(|at| self.all.get(*at))
    }

    /// Adds a slot for a name that has none.
    pub(super) fn add(&mut self, slot: Slot) -> usize {
        let at = self.all.len();
        let names = self.places.entry(slot.dir).or_default();
        names.insert(slot.name.clone(), at);
        self.all.push(slot);
        at
    }
}

impl Merge<'_> {
    /// Finds the slots, in the order of directories and names.
    pub(super) fn find_slots(&mut self) {
        let mut places: BTreeMap<InodeId, std::collections::BTreeSet<&Name>> = BTreeMap::new();
        for side in Side::BOTH {
            for (dir, names) in &self.source.changes.of(side).entries {
                let dir = self.identities.identity(side, *dir);
                places.entry(dir).or_default().extend(names.keys());
            }
        }
        for (dir, names) in places {
            for name in names {
                let identify = |side: Side| {
                    self.side_entry(side, dir, name).map(|entry| Entry {
                        inode: self.identities.identity(side, entry.inode),
                        ..entry
                    })
                };
                let slot = Slot {
                    dir,
                    name: name.clone(),
                    base: self.base_entry(dir, name),
                    ours: identify(Side::Ours),
                    theirs: identify(Side::Theirs),
                    claims: Vec::new(),
                };
                self.slots.add(slot);
            }
        }
    }

    /// Finds the identities that differ or whose names differ.
    pub(super) fn find_objects(&mut self) {
        let mut objects: BTreeMap<InodeId, Object> = BTreeMap::new();
        for (at, slot) in self.slots.iter().enumerate() {
            objects.entry(slot.dir).or_default();
            for origin in Object::ORIGINS {
                if let Some(entry) = slot.held(origin) {
                    let object = objects.entry(entry.inode).or_default();
                    object.held_mut(origin).push(at);
                    object.kind = Some(entry.kind);
                }
            }
        }
        for side in Side::BOTH {
            let changes = self.source.changes.of(side);
            for inode in changes.records.keys().chain(changes.blocks.keys()) {
                let identity = self.identities.identity(side, *inode);
                objects.entry(identity).or_default();
            }
        }
        for (identity, object) in &mut objects {
            object.exists_in_base = Side::BOTH.into_iter().all(|side| {
                let record = self.source.changes.of(side).records.get(identity);
                record.is_none_or(|change| change.old.is_some())
            });
            for side in Side::BOTH {
                let inode = self.identities.inode(side, *identity);
                let record = self.source.changes.of(side).records.get(&inode);
                let exists = record.map_or(object.exists_in_base, |it| it.new.is_some());
                *object.exists.of_mut(side) = exists;
            }
        }
        self.objects = objects;
    }
}
