//! Where each chunk lies, in memory.
//!
//! An entry takes 28 bytes and the table's overhead. The key is half of the chunk's id with the
//! domain mixed in. Ids are keyed hashes, so two chunks with the same half are not to be expected
//! in the life of any store; a read compares the whole id all the same.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use base::limits::CHUNK_BYTES_MAX;
use base::{ChunkId, DomainId};
use parking_lot::RwLock;

use super::pack::record_bytes;
use crate::chunk::Place;

/// Tables of the index. Each has its own lock, and one that grows stops only its own callers.
const SHARDS: usize = 64;

/// Marks an entry whose record is known to be damaged. Lengths never reach it.
const DAMAGED: u32 = 1 << 31;

/// Marks an entry that the collection that runs must not take. Lengths never reach it either.
const MARKED: u32 = 1 << 30;

const _: () = assert!(CHUNK_BYTES_MAX < 1 << 30);

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

/// A [`Location`] in twelve bytes, with the mark of collections.
///
/// Entries are marked from the start. A collection takes all marks away, gives them back to what
/// is referred to, and takes the entries that are left without.
#[derive(Clone, Copy, Debug)]
struct Slot {
    place: Place,
    stored_and_flags: u32,
}

impl Slot {
    fn is_marked(self) -> bool {
        self.stored_and_flags & MARKED != 0
    }

    fn is_damaged(self) -> bool {
        self.stored_and_flags & DAMAGED != 0
    }
}

impl From<Location> for Slot {
    fn from(location: Location) -> Self {
        let mark = if location.damaged { DAMAGED } else { 0 };
        Self {
            place: location.place,
            stored_and_flags: location.stored_bytes & !(DAMAGED | MARKED) | mark | MARKED,
        }
    }
}

impl From<Slot> for Location {
    fn from(slot: Slot) -> Self {
        Self {
            place: slot.place,
            stored_bytes: slot.stored_and_flags & !(DAMAGED | MARKED),
            damaged: slot.is_damaged(),
        }
    }
}

type Shard = HashMap<Key, Slot, BuildHasherDefault<KeyHasher>>;

/// A number of chunks and what their records take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) chunks: u64,
    pub(crate) bytes: u64,
}

impl Amount {
    fn add(&mut self, slot: Slot) {
        self.chunks += 1;
        self.bytes += record_bytes(Location::from(slot).stored_bytes);
    }
}

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

    /// Finds a chunk and marks it, so that the collection that runs does not take it.
    pub(crate) fn find_and_mark(&self, key: Key) -> Option<Location> {
        let shard = self.shard(key)?;
        let slot = shard.read().get(&key).copied()?;
        if slot.is_marked() {
            return Some(slot.into());
        }
        // It may have been taken since.
        let mut shard = shard.write();
        let slot = shard.get_mut(&key)?;
        slot.stored_and_flags |= MARKED;
        Some((*slot).into())
    }

    /// Takes all marks away.
    pub(crate) fn unmark_all(&self) {
        for shard in &self.shards {
            for slot in shard.write().values_mut() {
                slot.stored_and_flags &= !MARKED;
            }
        }
    }

    /// Forgets every chunk that has no mark, and tells how much that is.
    pub(crate) fn remove_unmarked(&self) -> Amount {
        let mut removed = Amount::default();
        for shard in &self.shards {
            shard.write().retain(|_, slot| {
                if !slot.is_marked() {
                    removed.add(*slot);
                }
                slot.is_marked()
            });
        }
        removed
    }

    /// How much has a mark, and how much has none.
    pub(crate) fn amounts(&self) -> (Amount, Amount) {
        let (mut marked, mut unmarked) = (Amount::default(), Amount::default());
        for shard in &self.shards {
            for slot in shard.read().values() {
                if slot.is_marked() {
                    marked.add(*slot);
                } else {
                    unmarked.add(*slot);
                }
            }
        }
        (marked, unmarked)
    }

    /// How much of each pack is known. A pack that is missing holds nothing that is.
    pub(crate) fn by_pack(&self) -> HashMap<u32, Amount> {
        let mut packs: HashMap<u32, Amount> = HashMap::new();
        for shard in &self.shards {
            for slot in shard.read().values() {
                packs.entry(slot.place.pack).or_default().add(*slot);
            }
        }
        packs
    }

    /// Says that a chunk which lies at `from` lies at `to` too, and is read there from now on.
    /// Tells whether it still was at `from` and whole.
    pub(crate) fn relocate(&self, key: Key, from: Place, to: Place) -> bool {
        let Some(shard) = self.shard(key) else {
            return false;
        };
        match shard.write().get_mut(&key) {
            Some(slot) if slot.place == from && !slot.is_damaged() => {
                slot.place = to;
                true
            }
            _ => false,
        }
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
                slot.stored_and_flags |= DAMAGED;
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
    fn what_is_marked_stays() {
        let index = Index::new();
        let key = |byte| Key::new(DomainId::new(1), ChunkId::new([byte; 32]));
        let place = |pack| Place { pack, offset: 64 };
        let location = |pack| Location {
            place: place(pack),
            stored_bytes: 20,
            damaged: false,
        };
        let amount = |chunks| Amount {
            chunks,
            bytes: chunks * 100,
        };
        for byte in 0..4 {
            index.insert(key(byte), location(u32::from(byte % 2)));
        }
        assert_eq!(index.amounts(), (amount(4), amount(0)));
        index.unmark_all();
        assert_eq!(index.find(key(0)), Some(location(0)));
        assert_eq!(index.find_and_mark(key(1)), Some(location(1)));
        assert_eq!(index.find_and_mark(key(9)), None);
        index.insert(key(7), location(5));
        assert_eq!(index.amounts(), (amount(2), amount(3)));
        assert_eq!(index.by_pack().get(&0), Some(&amount(2)));
        assert_eq!(index.remove_unmarked(), amount(3));
        assert_eq!((index.find(key(0)), index.len()), (None, 2));

        assert!(!index.relocate(key(1), place(0), place(6)));
        assert!(index.relocate(key(1), place(1), place(6)));
        assert_eq!(index.find(key(1)), Some(location(6)));
        assert!(index.mark_damaged(key(1), place(6)));
        assert!(!index.relocate(key(1), place(6), place(8)));
        assert!(!index.relocate(key(0), place(0), place(8)));
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
