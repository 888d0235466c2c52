//! Chunks in append-only pack files on a local disk.
//!
//! A directory holds packs (`pack-N.dat`), which are only appended to, one at a time; and for each
//! pack that is full a side index (`pack-N.idx`), which saves reading it at start. An index in
//! memory knows where each chunk lies. `docs/formats.md` has the formats.
//!
//! What nobody refers to any more is collected: `docs/design/0002-collection.md`.
//!
//! Locks, in the order they are taken: the flush, the writer, a shard of the index. The writer's
//! lock is held while a record is written and never during a flush.

mod collect;
mod compact;
mod device;
mod index;
mod open;
mod pack;
mod reader;
mod sidecar;
mod space;
mod verify;
mod writer;

pub use self::collect::{Begun, Freed, Marked, Marking, Survey, Sweep, Thoroughness};
pub use self::open::OpenError;
pub use self::reader::{LocalReader, TornTail, UnreadablePack};
pub use self::verify::{NameKeys, Verified, VerifyCounts};

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::limits::CHUNK_BYTES_MAX;
use base::{ChunkId, Clock, DomainId};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};

use self::device::chunk_error;
use self::index::{Key, Location};
use self::pack::record_bytes;
use self::space::FreeSpace;
use self::writer::{Shelf, Writer};

use crate::chunk::Record;
use crate::counters::Counters;
use crate::hold::Holds;
use crate::{ChunkError, ChunkFuture, ChunkStore, Domain, Hold};

/// Shortest length at which a pack counts as full: room for the largest chunk.
pub const PACK_BYTES_MIN: u64 = 2 * 1024 * 1024;

/// Longest length at which a pack counts as full. Offsets in packs have 32 bits.
pub const PACK_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Full packs that may wait for a flush. Beyond that a `put` waits for one, which also bounds
/// the open files.
const ROLLED_PACKS_MAX: usize = 16;

/// How often a read looks again for a chunk that moved while it was read.
const MOVES_MAX: usize = 4;

/// How a [`LocalStore`] behaves.
#[derive(Clone, Copy, Debug)]
pub struct LocalOptions {
    /// Length at which a pack counts as full, in bytes. Brought between [`PACK_BYTES_MIN`] and
    /// [`PACK_BYTES_MAX`].
    pub pack_bytes: u64,
    /// Free bytes of the device that [`ChunkStore::available_bytes`] does not count. They are for
    /// what was accepted before and still has to be stored, and for others on the device; `put`
    /// itself uses them.
    pub reserve_bytes: u64,
    /// Calls of `put` that hash, compress and write at the same time.
    pub puts_in_flight: usize,
    /// Calls of `get` that read at the same time.
    pub gets_in_flight: usize,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self {
            pack_bytes: 64 * 1024 * 1024,
            reserve_bytes: 64 * 1024 * 1024,
            puts_in_flight: 16,
            gets_in_flight: 64,
        }
    }
}

/// How large a store is. Read with [`LocalStore::counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalCounts {
    /// Chunks in the store.
    pub chunks: u64,
    /// Bytes of all records.
    pub stored_bytes: u64,
    /// Device flushes.
    pub syncs: u64,
}

/// A store in a directory of a local disk. Cloning shares it.
#[derive(Clone, Debug)]
pub struct LocalStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    shelf: Shelf,
    writer: Mutex<Writer>,
    /// The flush that ran last. Locked while one runs.
    flushed: Arc<AsyncMutex<Flushed>>,
    /// How many flushes have begun.
    flushes_begun: AtomicU64,
    puts: Arc<Semaphore>,
    gets: Arc<Semaphore>,
    free: FreeSpace,
    reserve_bytes: u64,
    pack_bytes: u32,
    clock: Arc<dyn Clock>,
    holds: Arc<Holds>,
    /// Locked by the collection that runs.
    collecting: Arc<AsyncMutex<()>>,
    stored_bytes: AtomicU64,
    counters: Counters,
    /// What a test makes collections do wrong.
    #[cfg(test)]
    mutation: Option<collect::Mutation>,
}

#[derive(Debug)]
struct Flushed {
    number: u64,
    result: Result<(), ChunkError>,
}

/// What became of a `put`.
#[derive(Clone, Copy, Debug)]
struct Stored {
    id: ChunkId,
    /// Whether so much waits for a flush that the caller should wait for one too.
    backlog: bool,
}

impl LocalStore {
    /// Opens the store in `directory`, and makes it if it is missing.
    ///
    /// Blocks while packs without a side index are read: at most a few after a clean or unclean
    /// stop, all if the side indexes are gone.
    ///
    /// # Errors
    ///
    /// [`OpenError`]; nothing that is there is replaced.
    pub fn open(
        directory: &Path,
        options: LocalOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let pack_bytes = options.pack_bytes.clamp(PACK_BYTES_MIN, PACK_BYTES_MAX);
        // The clamp keeps it in range.
        let pack_bytes = u32::try_from(pack_bytes).unwrap_or(u32::MAX);
        let shared = Self::open_shared(directory, pack_bytes, options, clock)?;
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    fn open_shared(
        directory: &Path,
        pack_bytes: u32,
        options: LocalOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Shared, OpenError> {
        let LocalOptions {
            pack_bytes: _,
            reserve_bytes,
            puts_in_flight,
            gets_in_flight,
        } = options;
        let opened = open::open(directory, pack_bytes)?;
        let permits = |wanted: usize| Arc::new(Semaphore::new(wanted.clamp(1, 512)));
        Ok(Shared {
            shelf: opened.shelf,
            writer: Mutex::new(opened.writer),
            flushed: Arc::new(AsyncMutex::new(Flushed {
                number: 0,
                result: Ok(()),
            })),
            flushes_begun: AtomicU64::new(0),
            puts: permits(puts_in_flight),
            gets: permits(gets_in_flight),
            free: FreeSpace::new(reserve_bytes, Arc::clone(&clock)),
            reserve_bytes,
            pack_bytes,
            clock,
            holds: Arc::default(),
            collecting: Arc::default(),
            stored_bytes: AtomicU64::new(opened.stored_bytes),
            counters: Counters::default(),
            #[cfg(test)]
            mutation: None,
        })
    }

    /// Whether a chunk of that name is stored. No I/O: damage that no read has found yet is not
    /// seen.
    #[must_use]
    pub fn contains(&self, domain: DomainId, id: ChunkId) -> bool {
        self.shared.whole(Key::new(domain, id)).is_some()
    }

    /// What is stored, and how often the device was flushed.
    #[must_use]
    pub fn counts(&self) -> LocalCounts {
        let shared = &self.shared;
        LocalCounts {
            chunks: u64::try_from(shared.shelf.index.len()).unwrap_or(u64::MAX),
            stored_bytes: self.stored_bytes(),
            syncs: shared.counters.syncs.count(),
        }
    }

    /// Bytes of all records.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.shared.stored_bytes.load(Ordering::Relaxed)
    }

    /// What the store counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }
}

impl Shared {
    /// Where the chunk lies, unless it is known to be damaged.
    fn whole(&self, key: Key) -> Option<Location> {
        (self.shelf.index.find(key)).filter(|location| !location.damaged)
    }

    /// The same for a `put`, which relies on the chunk: collections leave it alone.
    fn whole_and_marked(&self, key: Key) -> Option<Location> {
        #[cfg(test)]
        if self.mutation == Some(collect::Mutation::IgnoreDedup) {
            return self.whole(key);
        }
        (self.shelf.index.find_and_mark(key)).filter(|location| !location.damaged)
    }

    /// Blocks.
    fn put(&self, domain: Domain, content: Bytes) -> Result<Stored, ChunkError> {
        let plain_len = content.len();
        let id = domain.chunk_id(&content);
        let key = Key::new(domain.id, id);
        let stored = match self.whole_and_marked(key) {
            Some(_) => None,
            None => self.append(key, &Record::new(domain, id, content)?)?,
        };
        self.counters.puts.increment();
        self.counters.put_bytes.add_len(plain_len);
        if stored.is_none() {
            self.counters.dedup_hits.increment();
        }
        Ok(Stored {
            id,
            backlog: stored.is_some_and(|rolled| rolled >= ROLLED_PACKS_MAX),
        })
    }

    /// Appends the record unless the chunk has been stored meanwhile. Returns how many full packs
    /// wait for a flush.
    fn append(&self, key: Key, record: &Record) -> Result<Option<usize>, ChunkError> {
        let len = record_bytes(record.header.stored_bytes);
        let mut writer = self.writer.lock();
        if self.whole_and_marked(key).is_some() {
            return Ok(None);
        }
        let appended = writer.append(&self.shelf, record);
        let rolled = writer.rolled_count();
        drop(writer);
        match appended {
            Ok(()) => self.free.used(len),
            Err(ChunkError::NoSpace) => self.free.forget(),
            Err(_) => {}
        }
        appended?;
        self.stored_bytes.fetch_add(len, Ordering::Relaxed);
        self.counters.stored_bytes.add(len);
        Ok(Some(rolled))
    }

    /// Blocks.
    fn get(&self, domain: Domain, id: ChunkId) -> Result<Bytes, ChunkError> {
        let key = Key::new(domain.id, id);
        for _ in 0..MOVES_MAX {
            let Some(location) = self.shelf.index.find(key) else {
                return Err(ChunkError::NotFound(id));
            };
            let read = self.read(domain, id, location);
            if let Ok(Some(plain)) = read {
                self.counters.misses.increment();
                self.counters.read_bytes.add_len(plain.len());
                return Ok(plain);
            }
            if self.shelf.index.find(key).map(|now| now.place) != Some(location.place) {
                // A collection moved or took it while it was read, or it was stored again.
                continue;
            }
            read?;
            if self.shelf.index.mark_damaged(key, location.place) {
                if !location.damaged {
                    tracing::error!(%id, domain = %domain.id, pack = location.place.pack,
                        offset = location.place.offset, "chunk is damaged");
                }
                return Err(ChunkError::Corrupt(id));
            }
        }
        Err(ChunkError::Unavailable("chunk keeps moving".into()))
    }

    /// The verified content at `location`, `None` if it is damaged.
    fn read(
        &self,
        domain: Domain,
        id: ChunkId,
        location: Location,
    ) -> Result<Option<Bytes>, ChunkError> {
        let read = (self.shelf.packs.read(location))
            .map_err(|error| chunk_error("read from pack", &error))?;
        Ok(read.and_then(|(header, body)| header.content(domain, id, body)))
    }

    /// Makes everything appended so far durable. Blocks; one at a time.
    fn flush(&self) -> Result<(), ChunkError> {
        let batch = self.writer.lock().begin_flush(&self.shelf)?;
        if batch.is_empty() {
            return Ok(());
        }
        let flushed = batch.flush(&self.shelf);
        self.counters.syncs.increment();
        let mut writer = self.writer.lock();
        if flushed.is_err() {
            writer.flush_failed(&self.shelf);
            return flushed;
        }
        let sidecars = writer.flush_succeeded(&batch);
        drop(writer);
        for sidecar in sidecars {
            if let Err(error) = sidecar.store(self.shelf.packs.dir()) {
                tracing::warn!(pack = sidecar.pack, %error, "side index was not written");
            }
        }
        Ok(())
    }

    async fn sync(self: Arc<Self>) -> Result<(), ChunkError> {
        // A flush that has begun may have missed what this caller put, so it needs a later one.
        let wanted = self.flushes_begun.load(Ordering::SeqCst) + 1;
        let mut flushed = Arc::clone(&self.flushed).lock_owned().await;
        if flushed.number >= wanted {
            return flushed.result.clone();
        }
        // The lock goes along, so that there is one flush at a time and its result is kept even
        // if this caller gives up.
        blocking(move || {
            flushed.number = self.flushes_begun.fetch_add(1, Ordering::SeqCst) + 1;
            flushed.result = self.flush();
            flushed.result.clone()
        })
        .await
    }
}

/// Runs `work` where it may block.
async fn blocking<T, W>(work: W) -> Result<T, ChunkError>
where
    T: Send + 'static,
    W: FnOnce() -> Result<T, ChunkError> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(ChunkError::Unavailable(format!("store task: {error}"))),
    }
}

/// Runs `work` where it may block, when `bound` allows.
async fn bounded<T, W>(bound: &Arc<Semaphore>, work: W) -> Result<T, ChunkError>
where
    T: Send + 'static,
    W: FnOnce() -> Result<T, ChunkError> + Send + 'static,
{
    let permit = Arc::clone(bound).acquire_owned().await;
    let permit = permit.map_err(|error| ChunkError::Unavailable(error.to_string()))?;
    blocking(move || {
        // The permit goes along: work whose caller gave up still counts.
        let _permit = permit;
        work()
    })
    .await
}

impl ChunkStore for LocalStore {
    fn put(&self, domain: Domain, content: Bytes) -> ChunkFuture<'_, ChunkId> {
        Box::pin(async move {
            if content.len() > CHUNK_BYTES_MAX {
                return Err(ChunkError::TooLarge(content.len()));
            }
            let shared = Arc::clone(&self.shared);
            let stored = bounded(&self.shared.puts, move || shared.put(domain, content)).await?;
            if stored.backlog {
                // A failure is reported by the caller's own `sync`, which cannot succeed while
                // anything is lost.
                drop(Arc::clone(&self.shared).sync().await);
            }
            Ok(stored.id)
        })
    }

    fn sync(&self) -> ChunkFuture<'_, ()> {
        Box::pin(Arc::clone(&self.shared).sync())
    }

    fn get(&self, domain: Domain, id: ChunkId) -> ChunkFuture<'_, Bytes> {
        Box::pin(async move {
            let shared = Arc::clone(&self.shared);
            bounded(&self.shared.gets, move || shared.get(domain, id)).await
        })
    }

    /// Always `None`: this store keeps no content in memory.
    fn cached(&self, _domain: Domain, _id: ChunkId) -> Option<Bytes> {
        None
    }

    fn hold(&self) -> Hold {
        #[cfg(test)]
        if self.shared.mutation == Some(collect::Mutation::IgnoreHolds) {
            return Hold::none();
        }
        self.shared.holds.take()
    }

    fn touch(&self, domain: DomainId, id: ChunkId) {
        #[cfg(test)]
        if self.shared.mutation == Some(collect::Mutation::IgnoreTouch) {
            return;
        }
        self.shared.shelf.index.find_and_mark(Key::new(domain, id));
    }

    fn available_bytes(&self) -> Option<u64> {
        self.shared.free.available(&self.shared.shelf.dir)
    }
}

#[cfg(test)]
mod tests;
