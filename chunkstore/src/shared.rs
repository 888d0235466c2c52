//! Chunks that several gateways share: the ledger says which there are.
//!
//! `docs/design/0014-shared-chunks.md` has the invariants. A put waits in memory until a `sync` brings it
//! to the ledger: many in one transaction, several transactions at the same time.
//!
//! Locks: that of the queue, held without I/O. No other.

mod cycles;
mod entry;
pub mod ledger;
#[cfg(any(test, feature = "testing"))]
pub mod memory_ledger;
mod queue;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::limits::CHUNK_BYTES_MAX;
use base::{ChunkId, DomainId, Tasks};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use tokio::sync::Semaphore;

use self::entry::Entry;
use self::ledger::{
    ChunkKey, KEYS_MAX, Keep, Kept, KeptAll, Ledger, LedgerError, Place, STAGE_BYTES_MAX,
};
use self::queue::{Batch, Queue};
use crate::counters::{Counter, Counters};
use crate::hold::Holds;
use crate::{ChunkError, ChunkFuture, ChunkStore, Domain, Hold};

pub use self::cycles::{Cycles, KnownCycle};

/// Chunks of which is remembered in which cycle this process put or touched them: some 13 MB.
const KNOWN_MAX: usize = 1 << 17;

/// Transactions of one batch under way at the same time.
const TRANSACTIONS_AT_ONCE: usize = 8;

/// How often a read asks again for a chunk that was elsewhere by the time it was read.
const MOVES_MAX: usize = 4;

/// Contents up to this length are hashed and compressed where they are given: handing them to another
/// thread costs as much.
const INLINE_BYTES_MAX: usize = 16 * 1024;

/// How a [`SharedStore`] behaves.
#[derive(Clone, Copy, Debug)]
pub struct SharedOptions {
    /// Most bytes of entries that wait in memory for a `sync`. Beyond that a `put` brings them to the
    /// ledger first, and fails if that does.
    pub queue_bytes_max: usize,
    /// Calls of `put` that hash and compress at the same time.
    pub puts_in_flight: usize,
}

impl Default for SharedOptions {
    fn default() -> Self {
        Self {
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

/// A store that is shared through a ledger. Cloning shares it.
#[derive(Clone, Debug)]
pub struct SharedStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    ledger: Arc<dyn Ledger>,
    cycles: Arc<dyn Cycles>,
    options: SharedOptions,
    queue: Mutex<Queue>,
    /// In which cycle this process has put or touched chunks, as the ledger confirmed.
    known: Cache<ChunkKey, u64>,
    holds: Arc<Holds>,
    puts: Semaphore,
    tasks: Tasks,
    counters: Counters,
    shared_counters: SharedCounters,
    /// As the ledger said last.
    staged_bytes: AtomicU64,
}

impl SharedStore {
    /// Opens the store of `ledger`. Batches under way are tasks of `tasks`.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn open(
        ledger: Arc<dyn Ledger>,
        cycles: Arc<dyn Cycles>,
        options: SharedOptions,
        tasks: Tasks,
    ) -> Result<Self, LedgerError> {
        let (cycle, staged_bytes) = ledger.state().await?;
        cycles.learn(cycle);
        Ok(Self {
            shared: Arc::new(Shared {
                ledger,
                cycles,
                options,
                queue: Mutex::default(),
                known: Cache::new(KNOWN_MAX),
                holds: Arc::default(),
                puts: Semaphore::new(options.puts_in_flight.clamp(1, 512)),
                tasks,
                counters: Counters::default(),
                shared_counters: SharedCounters::default(),
                staged_bytes: AtomicU64::new(staged_bytes),
            }),
        })
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

    /// Bytes of entries in memory that are not in the ledger yet.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.shared.queue.lock().bytes()
    }

    /// Bytes of entries in the ledger, as it said last.
    #[must_use]
    pub fn staged_bytes(&self) -> u64 {
        self.shared.staged_bytes.load(Ordering::Relaxed)
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

impl Shared {
    /// Whether this process itself put or touched the chunk in the current cycle.
    fn is_known(&self, key: ChunkKey) -> bool {
        self.known.get(&key) == Some(self.cycles.current())
    }

    async fn put(self: &Arc<Self>, domain: Domain, content: Bytes) -> Result<ChunkId, ChunkError> {
        let plain_len = content.len();
        if plain_len > CHUNK_BYTES_MAX {
            return Err(ChunkError::TooLarge(plain_len));
        }
        if self.queue.lock().bytes() > self.options.queue_bytes_max {
            self.sync().await?;
        }
        let _permit = self.puts.acquire().await;
        let this = Arc::clone(self);
        let enter = move || this.enter(domain, content);
        let id = if plain_len <= INLINE_BYTES_MAX {
            enter()?
        } else {
            let entered = tokio::task::spawn_blocking(enter).await;
            entered.map_err(|error| ChunkError::Unavailable(format!("store task: {error}")))??
        };
        self.counters.puts.increment();
        self.counters.put_bytes.add_len(plain_len);
        Ok(id)
    }

    fn enter(&self, domain: Domain, content: Bytes) -> Result<ChunkId, ChunkError> {
        let id = domain.chunk_id(&content);
        let key = ChunkKey {
            domain: domain.id,
            id,
        };
        if self.is_known(key) {
            self.counters.dedup_hits.increment();
            return Ok(id);
        }
        let entry = Entry::new(domain, id, content)?;
        self.queue.lock().put(key, entry);
        Ok(id)
    }

    /// Brings all that waits to the ledger, and waits for that and for what is under way already.
    async fn sync(self: &Arc<Self>) -> Result<(), ChunkError> {
        let (batch, under_way) = {
            let mut queue = self.queue.lock();
            (queue.take(), queue.under_way())
        };
        if let Some(batch) = batch {
            let this = Arc::clone(self);
            // To its end, also if the caller is gone: others wait for it, too.
            self.tasks.spawn(async move { this.run(batch).await });
        }
        let mut result = Ok(());
        for mut outcome in under_way {
            let ended = match outcome.wait_for(Option::is_some).await {
                Ok(ended) => ended.clone().unwrap_or(Ok(())),
                Err(_) => Err(ChunkError::Unavailable("store task ended".into())),
            };
            result = result.and(ended);
        }
        if result.is_ok() {
            self.counters.syncs.increment();
        }
        result
    }

    async fn run(&self, batch: Batch) {
        let Batch {
            number,
            puts,
            touches,
            outcome,
        } = batch;
        let groups = groups(puts, touches);
        let runs = stream::iter(groups).map(|group| self.keep(group));
        let results: Vec<_> = runs.buffer_unordered(TRANSACTIONS_AT_ONCE).collect().await;
        let result = results.into_iter().collect::<Result<(), ChunkError>>();
        if let Err(error) = &result {
            tracing::warn!(%error, "chunks are not stored; the next sync tries again");
        }
        self.queue.lock().ended(number);
        outcome.send_replace(Some(result));
    }

    /// One transaction's part of a batch.
    async fn keep(&self, group: Vec<(ChunkKey, Keep)>) -> Result<(), ChunkError> {
        let keys: Vec<_> = group
            .iter()
            .map(|(key, keep)| (*key, entry_len(keep)))
            .collect();
        match self.ledger.keep(group).await {
            Ok(all) => {
                self.shared_counters.transactions.increment();
                self.kept(&keys, &all);
                Ok(())
            }
            Err(error) => {
                let mut queue = self.queue.lock();
                for (key, len) in keys {
                    match len {
                        Some(_) => queue.failed(key),
                        None => queue.touch(key),
                    }
                }
                Err(error.into())
            }
        }
    }

    fn kept(&self, keys: &[(ChunkKey, Option<usize>)], all: &KeptAll) {
        self.cycles.learn(all.cycle);
        self.staged_bytes.store(all.staged_bytes, Ordering::Relaxed);
        for ((key, len), kept) in keys.iter().zip(&all.kept) {
            if len.is_some() {
                self.queue.lock().stored(*key);
            }
            match (kept, len) {
                (Kept::Stored, Some(len)) => self.counters.stored_bytes.add_len(*len),
                (Kept::Found, Some(_)) => self.counters.dedup_hits.increment(),
                (Kept::Missing, _) => {
                    self.shared_counters.missing.increment();
                    let ChunkKey { domain, id } = key;
                    tracing::error!(%domain, %id, "a chunk that a file refers to is not stored");
                    continue;
                }
                (Kept::Stored | Kept::Found, _) => {}
            }
            self.known.insert(*key, all.cycle);
        }
    }

    async fn get(&self, domain: Domain, id: ChunkId) -> Result<Bytes, ChunkError> {
        let key = ChunkKey {
            domain: domain.id,
            id,
        };
        let queued = self.queue.lock().entry(key);
        if let Some(entry) = queued {
            self.counters.hits.increment();
            return entry::content(domain, id, entry.bytes);
        }
        self.counters.misses.increment();
        let content = self.read(domain, key).await?;
        self.counters.read_bytes.add_len(content.len());
        Ok(content)
    }

    async fn read(&self, domain: Domain, key: ChunkKey) -> Result<Bytes, ChunkError> {
        let id = key.id;
        for _ in 0..MOVES_MAX {
            let found = self.ledger.read(key).await.map_err(|error| match error {
                LedgerError::Damaged(why) => {
                    tracing::error!(%id, why, "a stored chunk is damaged");
                    ChunkError::Corrupt(id)
                }
                other => other.into(),
            })?;
            let (location, entry) = found.ok_or(ChunkError::NotFound(id))?;
            match (location.place, entry) {
                (Place::Staged, Some(entry)) => return entry::content(domain, id, entry),
                (Place::Staged, None) => {}
                (Place::Pack { pack, .. }, _) => {
                    let what = format!("chunk {id} is in pack {pack}, and no object store is set");
                    return Err(ChunkError::Unavailable(what));
                }
            }
        }
        Err(ChunkError::Unavailable(format!("chunk {id} moves")))
    }
}

/// Cuts a batch into transactions.
fn groups(puts: Vec<(ChunkKey, Entry)>, touches: Vec<ChunkKey>) -> Vec<Vec<(ChunkKey, Keep)>> {
    let (mut groups, mut group, mut bytes) = (Vec::new(), Vec::new(), 0_usize);
    let puts = puts.into_iter().map(|(key, entry)| {
        let Entry { bytes, plain_bytes } = entry;
        let entry = bytes;
        (key, Keep::Stage { entry, plain_bytes })
    });
    let touches = touches.into_iter().map(|key| (key, Keep::Touch));
    for (key, keep) in puts.chain(touches) {
        let len = entry_len(&keep).unwrap_or(0);
        let is_full = group.len() >= KEYS_MAX || bytes.saturating_add(len) > STAGE_BYTES_MAX;
        if is_full && !group.is_empty() {
            groups.push(std::mem::take(&mut group));
            bytes = 0;
        }
        bytes = bytes.saturating_add(len);
        group.push((key, keep));
    }
    if !group.is_empty() {
        groups.push(group);
    }
    groups
}

fn entry_len(keep: &Keep) -> Option<usize> {
    match keep {
        Keep::Touch => None,
        Keep::Stage { entry, .. } => Some(entry.len()),
        Keep::Packed { entry_bytes, .. } => usize::try_from(*entry_bytes).ok(),
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

    fn available_bytes(&self) -> Option<u64> {
        self.shared.ledger.available_bytes()
    }
}
