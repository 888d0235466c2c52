//! What a shared store is told of chunks by the metadata store. The other side implements it; this
//! crate knows no keys.

use std::fmt;
use std::pin::Pin;

use base::{ChunkId, DomainId};
use bytes::Bytes;

use crate::ChunkError;

/// A future of a ledger's call.
pub type LedgerFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LedgerError>> + Send + 'a>>;

/// A chunk: its domain, and its id there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkKey {
    /// Its domain.
    pub domain: DomainId,
    /// Its id in that.
    pub id: ChunkId,
}

/// Name of a pack: random, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackId(pub [u8; 16]);

impl fmt::Display for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackId({self})")
    }
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the ledger.
    Staged,
    /// In a pack.
    Pack {
        /// Which.
        pack: PackId,
        /// Where it begins, in bytes.
        offset: u32,
    },
}

/// What the ledger says of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Where its entry is.
    pub place: Place,
    /// Length of the entry, in bytes.
    pub entry_bytes: u32,
    /// Length of the content, in bytes.
    pub plain_bytes: u32,
    /// The cycle in which it was last put or touched.
    pub cycle: u64,
}

/// What is to become of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keep {
    /// It is there, and is to stay.
    Touch,
    /// It is to be there; if it is not, this is its entry.
    Stage {
        /// The entry.
        entry: Bytes,
        /// Length of the content, in bytes.
        plain_bytes: u32,
    },
    /// It is to be there, and elsewhere than at `bad`, where nothing whole is; if it is not, this is its entry.
    Replace {
        /// Where it was when it was found to be damaged or lost.
        bad: Place,
        /// The entry.
        entry: Bytes,
        /// Length of the content, in bytes.
        plain_bytes: u32,
    },
    /// It is to be there; if it is not, its entry is in a durable pack.
    Packed {
        /// Which.
        pack: PackId,
        /// Where the entry begins.
        offset: u32,
        /// Length of the entry, in bytes.
        entry_bytes: u32,
        /// Length of the content, in bytes.
        plain_bytes: u32,
    },
}

/// What became of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It was there.
    Found,
    /// It was not, and is now.
    Stored,
    /// It is not there, and nothing was given to store.
    Missing,
}

/// What became of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAll {
    /// One for each that was given.
    pub kept: Vec<Kept>,
    /// The cycle that their records have at least.
    pub cycle: u64,
    /// About how many bytes are staged.
    pub staged_bytes: u64,
}

/// A staged chunk whose entry is in a pack, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The chunk.
    pub key: ChunkKey,
    /// Where its entry begins in the pack.
    pub offset: u32,
    /// Its length there: if what is staged has another, it is not that entry, and is not moved.
    pub entry_bytes: u32,
}

/// What became of chunks that were to be moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// They are in the pack now.
    pub moved: u64,
    /// They are gone, or in another pack.
    pub dropped: u64,
    /// About how many bytes are staged now.
    pub staged_bytes: u64,
}

/// Some of the staged chunks, in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StagedPage {
    /// They, with their entries.
    pub chunks: Vec<(ChunkKey, Bytes)>,
    /// Whether there may be more.
    pub more: bool,
}

/// Why the ledger did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// It cannot now; whether it was done is not known. A retry settles it.
    #[error("{0}")]
    Unavailable(String),
    /// Its device is full.
    #[error("no space is left for the metadata store")]
    NoSpace,
    /// What it has is damaged. Never retried.
    #[error("{0}")]
    Damaged(String),
    /// The pack has been given up: what is in it must go elsewhere.
    #[error("a pack has been given up")]
    PackGone,
}

impl From<LedgerError> for ChunkError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::NoSpace => Self::NoSpace,
            other => Self::Unavailable(other.to_string()),
        }
    }
}

/// Most chunks that one call of [`Ledger::keep`] or [`Ledger::settle`] takes.
pub const KEYS_MAX: usize = 512;

/// Most bytes of entries that one call of [`Ledger::keep`] takes, but for a single longer one.
pub const STAGE_BYTES_MAX: usize = 1 << 20;

/// Says which chunks there are, and where. `docs/design/0014-shared-chunks.md` has what each call
/// must do in one transaction. Calls may be repeated; dropping one leaves open whether it was done.
pub trait Ledger: fmt::Debug + Send + Sync + 'static {
    /// The current cycle, and about how many bytes are staged.
    fn state(&self) -> LedgerFuture<'_, (u64, u64)>;

    /// Makes sure that chunks are there and that their records have the current cycle. All or nothing.
    /// No chunk may be given twice. One whose record is damaged is not there.
    fn keep(&self, keeps: Vec<(ChunkKey, Keep)>) -> LedgerFuture<'_, KeptAll>;

    /// Where chunks are; `None` for those that are not there.
    fn find(&self, keys: Vec<ChunkKey>) -> LedgerFuture<'_, Vec<Option<Location>>>;

    /// Where a chunk is and, if it is staged, its entry.
    fn read(&self, key: ChunkKey) -> LedgerFuture<'_, Option<(Location, Option<Bytes>)>>;

    /// Staged chunks behind `after`: at least one if there is one, about `bytes` of entries at most.
    fn staged(&self, after: Option<ChunkKey>, bytes: usize) -> LedgerFuture<'_, StagedPage>;

    /// Says that a pack will be written, before it is.
    fn begin_pack(&self, pack: PackId, total_bytes: u64) -> LedgerFuture<'_, ()>;

    /// Forgets a pack unless something leads to it; whether it is forgotten.
    fn forget_pack(&self, pack: PackId) -> LedgerFuture<'_, bool>;

    /// Whether there is any pack.
    fn has_packs(&self) -> LedgerFuture<'_, bool>;

    /// Lets staged chunks lead to a pack whose object is durable.
    fn settle(&self, pack: PackId, moved: Vec<Moved>) -> LedgerFuture<'_, Settled>;

    /// Bytes that the ledger can still take, if it knows.
    fn available_bytes(&self) -> Option<u64> {
        None
    }
}
