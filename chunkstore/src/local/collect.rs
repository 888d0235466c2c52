//! Collection: gives back the space of chunks that nothing refers to.
//!
//! `docs/design/0002-collection.md` has the invariants and why they suffice. A collection goes
//! through three states, each a type of its own, so that no step can be left out:
//!
//! 1. [`Begun`]: the marks are gone and a cycle has begun. It waits until the holds of earlier
//!    cycles are released.
//! 2. [`Marking`]: the caller marks every chunk that is referred to. Meanwhile each `put` marks
//!    what it stores or finds stored.
//! 3. [`Sweep`]: chunks without a mark have left the index. Packs in which none is left are
//!    removed, packs in which few are left are rewritten, step by step.
//!
//! Dropping any of them ends the collection; nothing is lost but the work.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::{ChunkId, DomainId};
use tokio::sync::OwnedMutexGuard;

use super::index::{Amount, Key};
use super::pack::{PACK_HEADER_BYTES, pack_path};
use super::{LocalStore, Shared, blocking};
use crate::ChunkError;

/// Packs that one step removes at most.
const REMOVED_A_STEP_MAX: usize = 64;

/// Dead bytes for which the pack that is being written is closed, as a part of a full pack. Less
/// would make many small packs.
const ROLLED_PART: u32 = 16;

/// Length below which a pack is small, as a part of a full pack.
const SMALL_PART: u32 = 8;

/// So many small packs are joined.
const SMALL_PACKS_MIN: usize = 4;

/// What a test makes collections do wrong.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// Holds hold nothing.
    IgnoreHolds,
    /// A `put` that finds its content stored does not mark it.
    IgnoreDedup,
    /// `touch` does nothing.
    IgnoreTouch,
    /// Packs are removed before the copies of their chunks are durable.
    RemoveBeforeDurable,
    /// References are looked at while older holds live.
    IgnoreCycles,
}

/// A collection that waits for jobs which began before it.
#[derive(Debug)]
pub struct Begun {
    run: Run,
}

/// A collection that learns what is referred to.
#[derive(Debug)]
pub struct Marking {
    run: Run,
}

#[derive(Debug)]
struct Run {
    shared: Arc<Shared>,
    cycle: u64,
    _only: OwnedMutexGuard<()>,
}

/// What is known of a chunk that is referred to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marked {
    /// It is stored.
    Stored,
    /// Its record is known to be damaged. It stays as it is.
    Damaged,
    /// It is not stored.
    Missing,
}

/// How much a store holds, as far as marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Chunks with a mark.
    pub live_chunks: u64,
    /// Bytes of their records.
    pub live_bytes: u64,
    /// Chunks without.
    pub dead_chunks: u64,
    /// Bytes of their records.
    pub dead_bytes: u64,
}

/// How much is copied for how much space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thoroughness {
    /// Packs are rewritten of which less than half is live.
    Usual,
    /// Packs are rewritten of which less than nine tenths are live: for when space is short.
    High,
}

impl Thoroughness {
    /// Live bytes below which a pack of `bytes` is rewritten.
    fn live_bytes_max(self, bytes: u64) -> u64 {
        match self {
            Self::Usual => bytes / 2,
            Self::High => bytes / 10 * 9,
        }
    }
}

/// What steps of a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Packs that were removed because nothing in them was live.
    pub packs_removed: u64,
    /// Packs that were removed after what was live in them had been copied.
    pub packs_rewritten: u64,
    /// Bytes of records that were copied.
    pub copied_bytes: u64,
    /// By how much the files became smaller.
    pub freed_bytes: u64,
    /// Packs that were not rewritten because there was no room for the copies.
    pub packs_without_room: u64,
}

impl Freed {
    /// Adds what another step did.
    pub fn add(&mut self, other: Self) {
        self.packs_removed += other.packs_removed;
        self.packs_rewritten += other.packs_rewritten;
        self.copied_bytes += other.copied_bytes;
        self.freed_bytes += other.freed_bytes;
        self.packs_without_room += other.packs_without_room;
    }
}

/// A collection that gives space back.
#[derive(Debug)]
pub struct Sweep {
    run: Run,
    survey: Survey,
    dead: VecDeque<Pack>,
    /// With the fewest live bytes first.
    sparse: VecDeque<Pack>,
    /// Removed packs, which a reader may have opened again just before.
    removed: Vec<u32>,
}

/// A pack that is written no more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pack {
    pub(super) number: u32,
    pub(super) file_bytes: u64,
    pub(super) live: Amount,
}

impl LocalStore {
    /// Begins a collection. `None` if one runs.
    ///
    /// Blocks: for microseconds for each thousand chunks. Callers of `put` wait for a part of that.
    #[must_use]
    pub fn begin_collection(&self) -> Option<Begun> {
        let shared = Arc::clone(&self.shared);
        let only = Arc::clone(&shared.collecting).try_lock_owned().ok()?;
        // In this order: whoever takes a hold of the new cycle finds the marks gone, so that the
        // marks it makes stay.
        shared.shelf.index.unmark_all();
        let cycle = shared.holds.begin_cycle();
        Some(Begun {
            run: Run {
                shared,
                cycle,
                _only: only,
            },
        })
    }

    /// Bytes of the device that holds the packs, used or not; `None` if it does not tell.
    #[must_use]
    pub fn device_bytes(&self) -> Option<u64> {
        super::space::device_bytes(&self.shared.shelf.dir)
    }

    /// How many holds there are.
    #[must_use]
    pub fn holds(&self) -> u64 {
        self.shared.holds.count()
    }
}

impl Begun {
    /// Waits until all holds that are older than the collection are released. `None`, and the
    /// collection ends, if that takes longer than `patience`.
    ///
    /// # Cancellation
    ///
    /// Safe to drop: ends the collection.
    pub async fn settled(self, patience: Duration) -> Option<Marking> {
        let Run { shared, cycle, .. } = &self.run;
        tokio::select! {
            () = shared.holds.released_before(*cycle) => {}
            () = shared.clock.sleep(patience) => return None,
        }
        self.try_settled().ok()
    }

    /// The same without waiting.
    ///
    /// # Errors
    ///
    /// Gives itself back while older holds live.
    pub fn try_settled(self) -> Result<Marking, Self> {
        let Run { shared, cycle, .. } = &self.run;
        #[cfg(test)]
        if shared.mutation == Some(Mutation::IgnoreCycles) {
            return Ok(Marking { run: self.run });
        }
        if shared.holds.are_released_before(*cycle) {
            Ok(Marking { run: self.run })
        } else {
            Err(self)
        }
    }
}

impl Marking {
    /// Says that a chunk is referred to. No I/O.
    pub fn mark(&self, domain: DomainId, id: ChunkId) -> Marked {
        let index = &self.run.shared.shelf.index;
        match index.find_and_mark(Key::new(domain, id)) {
            Some(location) if location.damaged => Marked::Damaged,
            Some(_) => Marked::Stored,
            None => Marked::Missing,
        }
    }

    /// How much has been marked by now.
    #[must_use]
    pub fn survey(&self) -> Survey {
        let (live, dead) = self.run.shared.shelf.index.amounts();
        Survey {
            live_chunks: live.chunks,
            live_bytes: live.bytes,
            dead_chunks: dead.chunks,
            dead_bytes: dead.bytes,
        }
    }

    /// Takes what has no mark out of the index, and finds out which packs to remove or rewrite.
    ///
    /// Everything that is referred to must have been marked. What was taken can be put again at
    /// once. Its space is given back by [`Sweep::step`].
    ///
    /// # Errors
    ///
    /// The packs cannot be listed, or what was put cannot be flushed. Space is then left for the
    /// next collection.
    ///
    /// # Cancellation
    ///
    /// Safe to drop: ends the collection.
    pub async fn sweep(self, thoroughness: Thoroughness) -> Result<Sweep, ChunkError> {
        let run = self.run;
        let shared = Arc::clone(&run.shared);
        let small_bytes = u64::from(shared.pack_bytes / SMALL_PART);
        let taking = Arc::clone(&shared);
        let dead = blocking(move || Ok(taking.take_unmarked(thoroughness))).await?;
        // Seals the packs that are full, too.
        Arc::clone(&shared).sync().await?;
        let packs = blocking(move || shared.sealed_packs()).await?;
        let live = packs.live;
        let (mut dead_packs, mut sparse, mut small) = (VecDeque::new(), Vec::new(), Vec::new());
        for pack in packs.sealed {
            if pack.live.chunks == 0 {
                dead_packs.push_back(pack);
            } else if pack.live.bytes < thoroughness.live_bytes_max(pack.file_bytes) {
                sparse.push(pack);
            } else if pack.file_bytes < small_bytes {
                small.push(pack);
            }
        }
        if small.len() >= SMALL_PACKS_MIN {
            sparse.append(&mut small);
        }
        sparse.sort_by_key(|pack| pack.live.bytes);
        Ok(Sweep {
            run,
            survey: Survey {
                live_chunks: live.chunks,
                live_bytes: live.bytes,
                dead_chunks: dead.chunks,
                dead_bytes: dead.bytes,
            },
            dead: dead_packs,
            sparse: sparse.into(),
            removed: Vec::new(),
        })
    }
}

impl Sweep {
    /// What is live, and what was taken.
    #[must_use]
    pub fn survey(&self) -> Survey {
        self.survey
    }

    /// Removes some packs, or rewrites some. `None` when nothing is left to do. Packs without live
    /// chunks go first, which needs no space.
    ///
    /// # Errors
    ///
    /// The device fails. What was not done is left for the next collection.
    ///
    /// # Cancellation
    ///
    /// What was begun is done all the same; dropping the sweep ends the collection.
    pub async fn step(&mut self) -> Result<Option<Freed>, ChunkError> {
        let shared = Arc::clone(&self.run.shared);
        if !self.dead.is_empty() {
            let count = self.dead.len().min(REMOVED_A_STEP_MAX);
            let packs: Vec<_> = self.dead.drain(..count).collect();
            self.removed.extend(packs.iter().map(|pack| pack.number));
            return blocking(move || shared.remove_dead(&packs)).await.map(Some);
        }
        if self.sparse.is_empty() {
            self.run.shared.forget_packs(&self.removed);
            return Ok(None);
        }
        let packs = self.next_group();
        if packs.is_empty() {
            let without_room = std::mem::take(&mut self.sparse).len();
            return Ok(Some(Freed {
                packs_without_room: u64::try_from(without_room).unwrap_or(u64::MAX),
                ..Freed::default()
            }));
        }
        self.removed.extend(packs.iter().map(|pack| pack.number));
        blocking(move || shared.rewrite(&packs)).await.map(Some)
    }

    /// The next packs whose live chunks fit into one new pack, and into the room there is. A pack of
    /// a time when packs were longer is one by itself.
    fn next_group(&mut self) -> Vec<Pack> {
        let shared = &self.run.shared;
        let room = shared.room_for_copies();
        let full = u64::from(shared.pack_bytes);
        let (mut group, mut bytes) = (Vec::new(), u64::from(PACK_HEADER_BYTES));
        while let Some(pack) = self.sparse.front() {
            bytes += pack.live.bytes;
            if bytes > room || bytes > full && !group.is_empty() {
                break;
            }
            group.extend(self.sparse.pop_front());
        }
        group
    }
}

/// What [`Shared::sealed_packs`] found.
#[derive(Debug)]
struct Packs {
    sealed: Vec<Pack>,
    live: Amount,
}

impl Shared {
    /// Takes what has no mark out of the index.
    fn take_unmarked(&self, thoroughness: Thoroughness) -> Amount {
        let dead = self.shelf.index.remove_unmarked();
        self.roll_sparse(thoroughness);
        dead
    }

    /// Closes the pack that is being written if enough of it is dead.
    fn roll_sparse(&self, thoroughness: Thoroughness) {
        // A pack may become active in between; then it has hardly anything dead in it.
        let Some((number, end)) = self.writer.lock().active() else {
            return;
        };
        let live = self.shelf.index.by_pack().get(&number).copied();
        let live_bytes = live.unwrap_or_default().bytes;
        let end_bytes = u64::from(end);
        let dead_bytes = end_bytes.saturating_sub(live_bytes + u64::from(PACK_HEADER_BYTES));
        if live_bytes < thoroughness.live_bytes_max(end_bytes)
            && dead_bytes >= u64::from(self.pack_bytes / ROLLED_PART)
        {
            self.writer.lock().roll(number);
        }
    }

    /// The packs that are written no more, with what is known in them.
    fn sealed_packs(&self) -> Result<Packs, ChunkError> {
        let failed = |error| super::device::chunk_error("list packs", &error);
        let dir = self.shelf.packs.dir();
        // In this order: a pack that is listed and then not among the unsealed is sealed, and no
        // chunk is ever added to it again.
        let numbers = super::open::numbers_in(dir).map_err(failed)?;
        let unsealed: HashSet<u32> = self.writer.lock().unsealed().into_iter().collect();
        let by_pack = self.shelf.index.by_pack();
        let mut sealed = Vec::new();
        for number in numbers
            .into_iter()
            .filter(|number| !unsealed.contains(number))
        {
            let file_bytes = std::fs::metadata(pack_path(dir, number))
                .map_err(failed)?
                .len();
            sealed.push(Pack {
                number,
                file_bytes,
                live: by_pack.get(&number).copied().unwrap_or_default(),
            });
        }
        let mut live = Amount::default();
        for amount in by_pack.values() {
            live.chunks += amount.chunks;
            live.bytes += amount.bytes;
        }
        Ok(Packs { sealed, live })
    }

    /// Bytes that copies may take for a while: a quarter of the reserve is left to others, who need
    /// it to remove files on a full device.
    fn room_for_copies(&self) -> u64 {
        let free = super::space::FreeSpace::now(&self.shelf.dir);
        free.map_or(u64::MAX, |free| free.saturating_sub(self.reserve_bytes / 4))
    }

    /// Removes packs in which nothing is live. Blocks.
    fn remove_dead(&self, packs: &[Pack]) -> Result<Freed, ChunkError> {
        let mut freed = Freed::default();
        for pack in packs {
            self.remove_pack(pack)?;
            freed.packs_removed += 1;
            freed.freed_bytes += pack.file_bytes;
        }
        Ok(freed)
    }

    /// Removes a pack that nothing in the index leads to. Blocks.
    pub(super) fn remove_pack(&self, pack: &Pack) -> Result<(), ChunkError> {
        (self.shelf.packs)
            .remove(&self.shelf.device, pack.number)
            .map_err(|error| super::device::chunk_error("remove pack", &error))?;
        let records = pack.file_bytes.saturating_sub(u64::from(PACK_HEADER_BYTES));
        // Torn tails were never counted; better too much is said to be stored than too little.
        let subtracted = |stored: u64| Some(stored.saturating_sub(records));
        let _: Result<u64, u64> =
            (self.stored_bytes).fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtracted);
        self.free.forget();
        Ok(())
    }

    fn forget_packs(&self, numbers: &[u32]) {
        for number in numbers {
            self.shelf.packs.forget(*number);
        }
    }
}

#[cfg(test)]
mod tests;
