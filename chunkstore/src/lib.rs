//! Immutable bytes by hash. Knows nothing of files.
//!
//! A chunk's name is the blake3 hash of its plain bytes under the key of its deduplication domain.
//! Whatever is read is verified against its name. Content is compressed with zstd where that
//! helps.

pub mod cached;
mod chunk;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
pub mod counters;
#[cfg(any(test, feature = "testing"))]
pub mod faulty;
mod hold;
pub mod local;
pub mod memory;
pub mod shared;

use std::fmt::Debug;
use std::pin::Pin;

use base::{ChunkId, DomainId};
use bytes::Bytes;

pub use self::hold::Hold;

/// A future of a store call.
pub type ChunkFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ChunkError>> + Send + 'a>>;

/// A deduplication domain and its hash key. Chunks are never shared across domains.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Domain {
    /// The domain's number.
    pub id: DomainId,
    /// The domain's secret key for [`Domain::chunk_id`].
    pub key: [u8; 32],
}

impl Domain {
    /// The name of `content` in this domain.
    #[must_use]
    pub fn chunk_id(&self, content: &[u8]) -> ChunkId {
        ChunkId::new(*blake3::keyed_hash(&self.key, content).as_bytes())
    }
}

impl Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Domain")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Why a chunk call failed, cut by what the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// No chunk of that name is stored.
    #[error("no such chunk: {0}")]
    NotFound(ChunkId),
    /// What is stored under the name does not hash to it. Never retried.
    #[error("chunk {0} is damaged")]
    Corrupt(ChunkId),
    /// The content is larger than a chunk may be. A bug of the caller.
    #[error("chunk content of {0} bytes is too large")]
    TooLarge(usize),
    /// The device is full; nothing was stored.
    #[error("no space is left for chunks")]
    NoSpace,
    /// The store cannot serve now. The chunk may or may not be there; a retry settles it.
    #[error("chunk store is unavailable: {0}")]
    Unavailable(String),
}

/// Immutable content-addressed bytes.
pub trait ChunkStore: Debug + Send + Sync + 'static {
    /// Stores `content` and returns its name. Storing content that is there already is cheap.
    ///
    /// The chunk can be read at once. It is durable only after a [`ChunkStore::sync`] that
    /// began after this returned.
    ///
    /// Unless a [`ChunkStore::hold`] that was taken before is kept until what refers to the chunk is
    /// durable, a collection may take it again.
    ///
    /// # Cancellation
    ///
    /// Safe to drop: at worst an unreferenced chunk is left for the sweep.
    fn put(&self, domain: Domain, content: Bytes) -> ChunkFuture<'_, ChunkId>;

    /// Makes every chunk whose `put` had returned durable. Callers that wait at the same time
    /// share one device flush.
    ///
    /// # Cancellation
    ///
    /// Safe to drop; durability is then not known.
    fn sync(&self) -> ChunkFuture<'_, ()>;

    /// The content of a chunk, verified against its name.
    fn get(&self, domain: Domain, id: ChunkId) -> ChunkFuture<'_, Bytes>;

    /// The content if it is in memory: no I/O, no await.
    fn cached(&self, domain: Domain, id: ChunkId) -> Option<Bytes>;

    /// Keeps collections from taking what is put or touched from now on, as long as the hold lives.
    /// Costs next to nothing. A store that is never collected gives holds that do nothing.
    fn hold(&self) -> Hold {
        Hold::none()
    }

    /// Says that a reference to a chunk is about to be made without putting it: copied from a
    /// reference that exists. Under a hold, and while the other reference still exists.
    fn touch(&self, _domain: DomainId, _id: ChunkId) {}

    /// Says that chunks will be asked for soon. A store that gains by it fetches them together; it is done
    /// when they are there, or failed, which whoever asks for them is told.
    fn prefetch(&self, _domain: Domain, _ids: Vec<ChunkId>) -> ChunkFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// How many bytes to ask for in advance of one who reads from front to back: what reads take a way over
    /// a network, and so are slow by themselves and fast together. 0 if nothing is gained.
    fn read_ahead_bytes(&self) -> usize {
        0
    }

    /// Bytes that can still be stored, if the store knows: the free space of its device less its
    /// reserve. Cheap enough to ask for each call that allocates.
    fn available_bytes(&self) -> Option<u64> {
        None
    }
}
