//! Chunks that several gateways share: the ledger says which there are.
//!
//! `docs/design/0014-shared-chunks.md` has the invariants. A put waits in memory until a `sync` brings it
//! to the ledger: many in one transaction, several transactions at the same time.
//!
//! Locks: that of the queue, held without I/O. No other.

mod ahead;
pub mod calls;
pub mod connect;
mod cycles;
pub mod disk;
mod entry;
pub mod ledger;
#[cfg(any(test, feature = "testing"))]
pub mod memory_ledger;
pub mod objects;
mod pace;
pub mod pack;
mod packer;
mod queue;
mod read;
mod write;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use base::{ChunkId, Clock, DomainId, Tasks};
use bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use tokio::sync::Semaphore;

use self::ahead::Landing;
use self::disk::DiskCache;
use self::ledger::{ChunkKey, Ledger, LedgerError, PackId, Place};
use self::objects::Objects;
use self::packer::Backlog;
use self::queue::Queue;
use crate::counters::{Counter, Counters};
use crate::hold::Holds;
use crate::{ChunkFuture, ChunkStore, Domain, Hold};

pub use self::cycles::{Cycles, KnownCycle};
pub use self::packer::PackCounters;

/// Chunks of which is remembered in which cycle this process put or touched them: some 13 MB.
const KNOWN_MAX: usize = 1 << 17;

/// Bytes to read ahead: at 50 ms for a chunk, 300 MB/s from an object store.
const OBJECTS_AHEAD_BYTES: usize = 16 << 20;

/// The same from the ledger, which answers within milliseconds.
const LEDGER_AHEAD_BYTES: usize = 4 << 20;

/// Chunks of which is remembered where they are in packs: some 13 MB.
const PLACES_MAX: usize = 1 << 17;

/// Chunks of which is remembered that they are damaged or lost: some 2 MB.
const BAD_MAX: usize = 1 << 14;

/// How a [`SharedStore`] behaves.
#[derive(Clone, Copy, Debug)]
pub struct SharedOptions {
    /// Bytes of entries that may be staged, of all gateways together, if there is an object store. When so many
    /// are, what is put goes to the object store before a `sync` ends.
    pub staging_bytes_max: u64,
    /// About how many bytes of entries make a pack.
    pub pack_bytes: usize,
    /// A smaller pack is made after this time.
    pub linger: Duration,
    /// Packs that are made at the same time; with 0 nothing is packed or taken over.
    pub packers: usize,
    /// What is staged for at least this time, and not by this process, is packed by it: whoever staged it is
    /// gone.
    pub adopt_after: Duration,
    /// How long a `sync` waits for the object store when staging is full.
    pub full_time: Duration,
    /// Most bytes of entries that wait in memory for a `sync`. Beyond that a `put` brings them to the
    /// ledger first, and fails if that does.
    pub queue_bytes_max: usize,
    /// Calls of `put` that hash and compress at the same time.
    pub puts_in_flight: usize,
}

impl Default for SharedOptions {
    fn default() -> Self {
        Self {
            staging_bytes_max: 1 << 30,
            pack_bytes: 16 << 20,
            linger: Duration::from_secs(1),
            packers: 4,
            adopt_after: Duration::from_secs(60),
            full_time: Duration::from_secs(30),
            queue_bytes_max: 64 << 20,
            puts_in_flight: 16,
        }
    }
}

/// What is counted of a shared store, beside [`Counters`].
#[derive(Debug, Default)]
pub struct SharedCounters {
    /// Transactions that brought chunks to the ledger.
    pub transactions: Counter,
    /// Touched chunks that were not there: content that was lost before.
    pub missing: Counter,
}

/// What a [`SharedStore`] is made of.
#[derive(Debug)]
pub struct SharedParts {
    /// Says which chunks there are.
    pub ledger: Arc<dyn Ledger>,
    /// The current cycle.
    pub cycles: Arc<dyn Cycles>,
    /// Where packs go. Without it all chunks stay staged.
    pub objects: Option<Arc<Objects>>,
    /// Keeps what was read from there.
    pub disk: Option<Arc<DiskCache>>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Owns batches under way and packing, which ends with it.
    pub tasks: Tasks,
}

/// A store that is shared through a ledger. Cloning shares it.
#[derive(Clone, Debug)]
pub struct SharedStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    ledger: Arc<dyn Ledger>,
    cycles: Arc<dyn Cycles>,
    objects: Option<Arc<Objects>>,
    disk: Option<Arc<DiskCache>>,
    clock: Arc<dyn Clock>,
    options: SharedOptions,
    backlog: Backlog,
    landing: Arc<Landing>,
    /// Where chunks were last seen in packs.
    places: Cache<ChunkKey, InPack>,
    queue: Mutex<Queue>,
    /// In which cycle this process has put or touched chunks, as the ledger confirmed.
    known: Cache<ChunkKey, u64>,
    /// Where chunks were found to be damaged or lost.
    bad: Cache<ChunkKey, Place>,
    holds: Arc<Holds>,
    puts: Semaphore,
    tasks: Tasks,
    counters: Counters,
    shared_counters: SharedCounters,
    pack_counters: PackCounters,
    /// As the ledger said last.
    staged_bytes: AtomicU64,
    /// Whether staging was full when it was looked at last.
    is_full: AtomicBool,
}

/// Where an entry is in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InPack {
    pack: PackId,
    offset: u32,
    entry_bytes: u32,
}

impl SharedStore {
    /// Opens the store, and begins to pack if there is an object store.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn open(parts: SharedParts, options: SharedOptions) -> Result<Self, LedgerError> {
        let (cycle, staged_bytes) = parts.ledger.state().await?;
        parts.cycles.learn(cycle);
        let shared = Arc::new(Shared {
            ledger: parts.ledger,
            cycles: parts.cycles,
            objects: parts.objects,
            disk: parts.disk,
            clock: parts.clock,
            options,
            backlog: Backlog::default(),
            landing: Arc::new(Landing::new()),
            places: Cache::new(PLACES_MAX),
            queue: Mutex::default(),
            known: Cache::new(KNOWN_MAX),
            bad: Cache::new(BAD_MAX),
            holds: Arc::default(),
            puts: Semaphore::new(options.puts_in_flight.clamp(1, 512)),
            tasks: parts.tasks,
            counters: Counters::default(),
            shared_counters: SharedCounters::default(),
            pack_counters: PackCounters::default(),
            staged_bytes: AtomicU64::new(staged_bytes),
            is_full: AtomicBool::new(false),
        });
        if let Some(objects) = &shared.objects
            && options.packers > 0
        {
            for _ in 0..options.packers.min(64) {
                let packing = Arc::clone(&shared).pack_forever(Arc::clone(objects));
                shared.tasks.spawn(packing);
            }
            shared.tasks.spawn(Arc::clone(&shared).adopt_forever());
        }
        Ok(Self { shared })
    }

    /// What the store counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Whether the ledger has a chunk.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn contains(&self, key: ChunkKey) -> Result<bool, LedgerError> {
        let found = self.shared.ledger.find(vec![key]).await?;
        Ok(found.first().is_some_and(Option::is_some))
    }

    /// What it counted beside that.
    #[must_use]
    pub fn shared_counters(&self) -> &SharedCounters {
        &self.shared.shared_counters
    }

    /// What it counted of packing.
    #[must_use]
    pub fn pack_counters(&self) -> &PackCounters {
        &self.shared.pack_counters
    }

    /// The object store, if there is one.
    #[must_use]
    pub fn objects(&self) -> Option<&Objects> {
        self.shared.objects.as_deref()
    }

    /// The cache on disk, if there is one.
    #[must_use]
    pub fn disk(&self) -> Option<&DiskCache> {
        self.shared.disk.as_deref()
    }

    /// Bytes of entries that this process has staged and not packed yet.
    #[must_use]
    pub fn backlog_bytes(&self) -> usize {
        self.shared.backlog.bytes()
    }

    /// Bytes of entries in memory that are not in the ledger yet.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.shared.queue.lock().bytes()
    }

    /// Bytes of entries in the ledger, as it said last.
    #[must_use]
    pub fn staged_bytes(&self) -> u64 {
        self.shared.staged()
    }

    /// How many holds there are.
    #[must_use]
    pub fn holds(&self) -> u64 {
        self.shared.holds.count()
    }

    /// Whether all holds of cycles before `cycle` are released.
    #[must_use]
    pub fn is_released_before(&self, cycle: u64) -> bool {
        self.shared.holds.are_released_before(cycle)
    }

    /// Waits until that is so. Safe to drop.
    pub async fn released_before(&self, cycle: u64) {
        self.shared.holds.released_before(cycle).await;
    }
}

impl ChunkStore for SharedStore {
    fn put(&self, domain: Domain, content: Bytes) -> ChunkFuture<'_, ChunkId> {
        Box::pin(self.shared.put(domain, content))
    }

    fn sync(&self) -> ChunkFuture<'_, ()> {
        Box::pin(self.shared.sync())
    }

    fn get(&self, domain: Domain, id: ChunkId) -> ChunkFuture<'_, Bytes> {
        Box::pin(self.shared.get(domain, id))
    }

    /// Nothing: a cache in front has what was read.
    fn cached(&self, _: Domain, _: ChunkId) -> Option<Bytes> {
        None
    }

    fn hold(&self) -> Hold {
        let cycle = self.shared.cycles.current();
        self.shared.holds.take_in(cycle)
    }

    fn touch(&self, domain: DomainId, id: ChunkId) {
        let key = ChunkKey { domain, id };
        if !self.shared.is_known(key) {
            self.shared.queue.lock().touch(key);
        }
    }

    fn prefetch(&self, domain: Domain, ids: Vec<ChunkId>) -> ChunkFuture<'_, ()> {
        Box::pin(self.shared.prefetch(domain, ids))
    }

    fn read_ahead_bytes(&self) -> usize {
        match self.shared.objects {
            Some(_) => OBJECTS_AHEAD_BYTES,
            None => LEDGER_AHEAD_BYTES,
        }
    }

    fn available_bytes(&self) -> Option<u64> {
        self.shared.ledger.available_bytes()
    }
}
