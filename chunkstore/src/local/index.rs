//! Where each chunk lies, in memory.
//!
//! An entry takes 28 bytes and the table's overhead. The key is half of the chunk's id with the
//! domain mixed in. Ids are keyed hashes, so two chunks with the same half are not to be expected
//! in the life of any store; a read compares the whole id all the same.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use base::{ChunkId, DomainId};
use parking_lot::RwLock;

use crate::chunk::Place;

/// Tables of the index. Each has its own lock, and one that grows stops only its own callers.
const SHARDS: usize = 64;

/// Marks an entry whose record is known to be damaged. Lengths never reach it.
const DAMAGED: u32 = 1 << 31;

/// What the index knows a chunk by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key([u8; 16]);

impl Key {
    pub(crate) fn new(domain: DomainId, id: ChunkId) -> Self {
        let mut key = [0; 16];
        for (to, from) in key.iter_mut().zip(id.as_bytes()) {
            *to = *from;
        }
        for (to, from) in key.iter_mut().zip(domain.raw().to_be_bytes()) {
            *to ^= from;
        }
        Self(key)
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(
            self.0
                .first_chunk()
                .map_or(0, |half| u64::from_ne_bytes(*half)),
        );
    }
}

/// Keys are hashes already.
#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// Where a chunk's record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) place: Place,
    pub(crate) stored_bytes: u32,
    /// Whether the record is known to be damaged. It is then stored anew by the next `put`.
    pub(crate) damaged: bool,
}

/// A [`Location`] in twelve bytes.
#[derive(Clone, Copy, Debug)]
struct Slot {
    place: Place,
    stored_and_damaged: u32,
}

impl From<Location> for Slot {
    fn from(location: Location) -> Self {
        let mark = if location.damaged { DAMAGED } else { 0 };
        Self {
            place: location.place,
            stored_and_damaged: location.stored_bytes & !DAMAGED | mark,
        }
    }
}

impl From<Slot> for Location {
    fn from(slot: Slot) -> Self {
        Self {
            place: slot.place,
            stored_bytes: slot.stored_and_damaged & !DAMAGED,
            damaged: slot.stored_and_damaged & DAMAGED != 0,
        }
    }
}

type Shard = HashMap<Key, Slot, BuildHasherDefault<KeyHasher>>;

/// The index.
#[derive(Debug)]
pub(crate) struct Index {
    shards: [RwLock<Shard>; SHARDS],
}

impl Index {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| RwLock::default()),
        }
    }

    pub(crate) fn find(&self, key: Key) -> Option<Location> {
        self.shard(key)?
            .read()
            .get(&key)
            .map(|slot| Location::from(*slot))
    }

    /// Sets where the chunk lies now.
    pub(crate) fn insert(&self, key: Key, location: Location) {
        if let Some(shard) = self.shard(key) {
            shard.write().insert(key, location.into());
        }
    }

    /// Sets where a chunk found on the device lies. Called in the order of writing: a later record
    /// was written because the one before it was damaged or lost.
    pub(crate) fn insert_found(&self, key: Key, location: Location) {
        let Some(shard) = self.shard(key) else {
            return;
        };
        match shard.write().entry(key) {
            Entry::Occupied(mut known) => {
                if !location.damaged || Location::from(*known.get()).damaged {
                    known.insert(location.into());
                }
            }
            Entry::Vacant(entry) => {
                entry.insert(location.into());
            }
        }
    }

    /// Forgets the chunk if it lies at `place`; tells whether it did.
    pub(crate) fn remove_at(&self, key: Key, place: Place) -> bool {
        let Some(shard) = self.shard(key) else {
            return false;
        };
        let mut shard = shard.write();
        let lies_there = shard.get(&key).is_some_and(|slot| slot.place == place);
        if lies_there {
            shard.remove(&key);
        }
        lies_there
    }

    /// Marks the chunk's record as damaged if it lies at `place`; tells whether it does.
    pub(crate) fn mark_damaged(&self, key: Key, place: Place) -> bool {
        let Some(shard) = self.shard(key) else {
            return false;
        };
        match shard.write().get_mut(&key) {
            Some(slot) if slot.place == place => {
                slot.stored_and_damaged |= DAMAGED;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    fn shard(&self, key: Key) -> Option<&RwLock<Shard>> {
        // The last byte, because the tables themselves use the first ones.
        self.shards.get(usize::from(*key.0.last()?) % SHARDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_small() {
        assert_eq!(size_of::<(Key, Slot)>(), 28);
    }

    #[test]
    fn domains_do_not_share_entries() {
        let id = ChunkId::new([3; 32]);
        let index = Index::new();
        let location = Location {
            place: Place { pack: 1, offset: 2 },
            stored_bytes: 3,
            damaged: false,
        };
        let key = Key::new(DomainId::new(1), id);
        index.insert(key, location);
        assert_eq!(index.find(key), Some(location));
        assert_eq!(index.find(Key::new(DomainId::new(2), id)), None);
        assert_eq!(index.len(), 1);

        let elsewhere = Place { pack: 9, offset: 9 };
        assert!(!index.mark_damaged(key, elsewhere));
        assert!(!index.remove_at(key, elsewhere));
        assert!(index.mark_damaged(key, location.place));
        assert!(index.find(key).unwrap().damaged);
        index.insert_found(key, location);
        assert_eq!(index.find(key), Some(location));
        assert!(index.remove_at(key, location.place));
        assert_eq!(index.find(key), None);
    }
}
