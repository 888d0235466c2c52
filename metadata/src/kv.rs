//! The ordered transactional store: the part of FoundationDB that this system uses.
//!
//! Three engines implement it (in memory, embedded on redb, and FoundationDB), and one public
//! suite checks them. Semantics and limits are FoundationDB's: serializable optimistic
//! transactions at a read version, conflict ranges, read-your-writes, atomic operations,
//! versionstamps, and an outcome that may be unknown.

mod admission;
pub mod calls;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod core;
pub mod embedded;
#[cfg(any(test, feature = "testing"))]
pub mod faulty;
#[cfg(feature = "fdb")]
pub mod fdb;
pub mod held;
pub mod memory;
pub mod still;

use std::fmt::Debug;
use std::pin::Pin;

use bytes::Bytes;

/// A future of a store call.
pub type KvFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, KvError>> + Send + 'a>>;

/// A point in the store's history. Only a commit makes a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// A half-open range of keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// First key in the range.
    pub start: Bytes,
    /// First key after the range.
    pub end: Bytes,
}

/// The first pairs of a range, as many as `limit` asks for or there are, however short the store's
/// pages. `limit.bytes` is about a page.
///
/// # Errors
///
/// A read fails.
///
/// # Cancellation
///
/// Safe to drop.
pub async fn pairs_of(
    txn: &dyn Transaction,
    mut range: KeyRange,
    limit: RangeLimit,
    isolation: Isolation,
) -> Result<Vec<(Bytes, Bytes)>, KvError> {
    let mut pairs: Vec<(Bytes, Bytes)> = Vec::new();
    loop {
        let left = RangeLimit {
            pairs: limit.pairs - pairs.len(),
            ..limit
        };
        let page = txn.get_range(&range, left, isolation).await?;
        pairs.extend(page.pairs);
        match pairs.last() {
            Some((last, _)) if page.more && pairs.len() < limit.pairs => {
                if limit.reverse {
                    range.end = last.clone();
                } else {
                    range.start = KeyRange::key(last).end;
                }
            }
            _ => return Ok(pairs),
        }
    }
}

/// Whether a read takes part in conflict detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// The transaction conflicts if what was read has changed when it commits.
    Serializable,
    /// The read is not checked. Say at the call why that is safe.
    Snapshot,
}

/// How much of a range to return, and from which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeLimit {
    /// Most pairs to return; at least 1.
    pub pairs: usize,
    /// Stop after about this many bytes of keys and values; at least one pair is returned.
    pub bytes: usize,
    /// From the last key backwards.
    pub reverse: bool,
}

/// Part of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangePage {
    /// Pairs in the order asked for.
    pub pairs: Vec<(Bytes, Bytes)>,
    /// Whether the range may hold more pairs beyond these.
    pub more: bool,
}

/// An operation on a value that needs no read, so that it never conflicts by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Little-endian addition; a missing value counts as zero.
    Add,
    /// Little-endian maximum.
    Max,
    /// Little-endian minimum.
    Min,
    /// Lexicographic maximum.
    ByteMax,
    /// Clears the key if its value equals the operand.
    CompareAndClear,
    /// The key holds a placeholder for the commit's versionstamp (its last 4 bytes say where,
    /// little-endian, and are removed).
    SetVersionstampedKey,
    /// The value holds a placeholder for the commit's versionstamp, as with the key.
    SetVersionstampedValue,
}

/// What a successful commit tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The version at which the writes are visible; for a read-only transaction its read version.
    pub version: Version,
    /// The versionstamp given to this commit's placeholders.
    pub stamp: [u8; 10],
}

/// Why a store call failed, cut by what the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// Another transaction changed what this one read. Nothing was written; run it again.
    #[error("transaction conflicts with another")]
    Conflict,
    /// The read version is outside the store's window. Nothing was written; run it again.
    #[error("read version is too old or not yet known")]
    VersionTooOld,
    /// The commit may or may not have happened, or may still happen.
    #[error("outcome of the commit is unknown")]
    OutcomeUnknown,
    /// Nothing was written; the store cannot serve now, a later try may succeed.
    #[error("store is unavailable: {0}")]
    Unavailable(String),
    /// Nothing was written: the device is full.
    #[error("no space is left for the metadata store")]
    NoSpace,
    /// A key, a value or the transaction is over the store's limits. A bug of the caller.
    #[error("over the store's limits: {0}")]
    Limit(&'static str),
    /// The transaction was used in a way that the store does not allow. A bug of the caller.
    #[error("wrong use of a transaction: {0}")]
    Usage(&'static str),
    /// A collection of shared chunks did not wait for what this gateway was about, so what it refers to
    /// may be gone. Nothing was written; begin anew.
    #[error("a collection of shared chunks has not waited for this: begin it anew")]
    Outlived,
    /// The stored file is damaged.
    #[error("metadata store is damaged: {0}")]
    Corrupt(String),
}

/// An ordered transactional key-value store.
pub trait Kv: Debug + Send + Sync + 'static {
    /// Begins a transaction. Costs nothing until its first read.
    fn begin(&self) -> Box<dyn Transaction>;

    /// Bytes that the store can still take, if it knows: the free space of its device less its
    /// reserve. Cheap enough to ask for each call that allocates.
    fn available_bytes(&self) -> Option<u64> {
        None
    }

    /// By how many versions a read version that is known from a commit should be older than the
    /// commit's. Not 0 if what decides on commits here is known only so far.
    fn versions_behind(&self) -> u64 {
        0
    }
}

/// One transaction. Dropping it without a commit changes nothing.
///
/// Writes are buffered; an error in them (a limit, a wrong use) is reported by the next read or
/// by the commit, and then nothing of the transaction is written.
pub trait Transaction: Debug + Send + Sync {
    /// The version this transaction reads at; fixed by the first read.
    fn read_version(&self) -> KvFuture<'_, Version>;

    /// Reads at `version`, known from an earlier commit, without asking the store. Before the
    /// first read only.
    fn set_read_version(&mut self, version: Version);

    /// The value of `key`, with this transaction's own writes applied.
    fn get<'a>(&'a self, key: &'a [u8], isolation: Isolation) -> KvFuture<'a, Option<Bytes>>;

    /// The first (or last) part of a range, with this transaction's own writes applied.
    /// A serializable read conflicts only over the part returned.
    fn get_range<'a>(
        &'a self,
        range: &'a KeyRange,
        limit: RangeLimit,
        isolation: Isolation,
    ) -> KvFuture<'a, RangePage>;

    /// Sets `key`.
    fn set(&mut self, key: &[u8], value: &[u8]);

    /// Removes `key`.
    fn clear(&mut self, key: &[u8]);

    /// Removes a range.
    fn clear_range(&mut self, range: &KeyRange);

    /// Applies `op`.
    fn atomic(&mut self, op: AtomicOp, key: &[u8], operand: &[u8]);

    /// Conflicts if anything in `range` changes between the read version and the commit.
    fn add_read_conflict_range(&mut self, range: &KeyRange);

    /// Makes others that read `range` conflict.
    fn add_write_conflict_range(&mut self, range: &KeyRange);

    /// Commits. Returns once the writes are durable; nothing is visible to others before.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: dropping the future leaves the outcome unknown.
    fn commit(self: Box<Self>) -> KvFuture<'static, Committed>;
}

impl KeyRange {
    /// All keys that start with `prefix`. An empty prefix means all keys below `0xff`.
    #[must_use]
    pub fn prefix(prefix: &[u8]) -> Self {
        let mut end = prefix.to_vec();
        while let Some(last) = end.pop() {
            if let Some(next) = last.checked_add(1) {
                end.push(next);
                break;
            }
        }
        if end.is_empty() {
            end.push(0xff);
        }
        Self {
            start: Bytes::copy_from_slice(prefix),
            end: Bytes::from(end),
        }
    }

    /// The range that holds `key` alone.
    #[must_use]
    pub fn key(key: &[u8]) -> Self {
        let mut end = key.to_vec();
        end.push(0);
        Self {
            start: Bytes::copy_from_slice(key),
            end: Bytes::from(end),
        }
    }

    /// Whether `key` lies in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.start <= *key && *key < *self.end
    }
}

impl RangeLimit {
    /// Up to `pairs` pairs and 1 MiB, forwards.
    #[must_use]
    pub const fn pairs(pairs: usize) -> Self {
        Self {
            pairs,
            bytes: 1 << 20,
            reverse: false,
        }
    }
}
