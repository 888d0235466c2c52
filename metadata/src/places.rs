//! What the metadata store knows of shared chunks: which there are, where, and since which cycle.
//!
//! `docs/design/0014-shared-chunks.md` has the invariants. The chunk store above never sees a key; this
//! module never sees what an entry says.

mod settle;
mod staged;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use base::limits::CHUNK_BYTES_MAX;
use base::{ChunkId, Clock, DomainId, Rng};
use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;

use crate::keyspace;
use crate::kv::{AtomicOp, Isolation, Kv, RangeLimit, Transaction, pairs_of};
use crate::record::RecordError;
use crate::record::place::{CycleRecord, PackId, Place, PlaceRecord};
use crate::store::StoreError;
use crate::transact::{Budget, Transactor};

pub use self::settle::{Moved, Settled};
pub use self::staged::{Staged, StagedPage};

/// Longest part of an entry under one key, in bytes: below the limit of a value.
pub const PIECE_BYTES_MAX: usize = 90_000;

/// Longest entry, in bytes: the largest chunk, uncompressed, and its header.
pub const ENTRY_BYTES_MAX: usize = CHUNK_BYTES_MAX + 1024;

/// Most chunks that one call takes: each is a read in one transaction.
pub const KEYS_MAX: usize = 512;

/// Most bytes of entries that one call stages, but for a single entry that is longer: what a transaction
/// should have at most.
pub const STAGE_BYTES_MAX: usize = 1 << 20;

const _: () = assert!(ENTRY_BYTES_MAX.div_ceil(PIECE_BYTES_MAX) < 255);

/// A chunk's name: its domain, and its id there.
pub type ChunkName = (DomainId, ChunkId);

/// What is to become of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keep {
    /// It is there, and is to stay.
    Touch,
    /// It is to be there; if it is not, this is its entry.
    Stage {
        /// The entry.
        entry: Bytes,
        /// Bytes of its content.
        plain_bytes: u32,
    },
    /// It is to be there, and elsewhere than at `bad`, where nothing whole is; if it is not, this is its entry.
    Replace {
        /// Where it was when it was found to be damaged or lost.
        bad: Place,
        /// The entry.
        entry: Bytes,
        /// Bytes of its content.
        plain_bytes: u32,
    },
    /// It is to be there; if it is not, its entry is in this pack, which is durable.
    Packed {
        /// Which.
        pack: PackId,
        /// Where the entry begins.
        offset: u32,
        /// Its length.
        entry_bytes: u32,
        /// Bytes of its content.
        plain_bytes: u32,
    },
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It was there.
    Found,
    /// It was not, and is now.
    Stored,
    /// It is not there, and nothing was given that could be stored.
    Missing,
}

/// What became of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAll {
    /// One for each that was given.
    pub kept: Vec<Kept>,
    /// The cycle that their records have, or a later one.
    pub cycle: u64,
    /// About how many bytes are staged.
    pub staged_bytes: u64,
}

/// The places of shared chunks. Cloning shares them.
#[derive(Clone, Debug)]
pub struct Places {
    transactor: Transactor,
    clock: Arc<dyn Clock>,
}

impl Places {
    /// The places in `kv`.
    #[must_use]
    pub fn new(kv: Arc<dyn Kv>, clock: Arc<dyn Clock>, rng: Arc<Rng>) -> Self {
        Self {
            transactor: Transactor::new(kv, Arc::clone(&clock), rng),
            clock,
        }
    }

    /// Bytes that the store can still take, if it knows.
    #[must_use]
    pub fn available_bytes(&self) -> Option<u64> {
        self.transactor.kv().available_bytes()
    }

    /// The current cycle, and how many bytes are staged.
    ///
    /// # Errors
    ///
    /// The store fails or a record is damaged.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn state(&self) -> Result<(u64, u64), StoreError> {
        let read = self.transactor.transact(Budget::default(), |txn, _| {
            // Writes nothing: nothing to conflict with.
            Box::pin(async move {
                let txn: &dyn Transaction = txn;
                let cycle = cycle(txn, Isolation::Snapshot).await?;
                Ok::<_, StoreError>((cycle, staged_bytes(txn).await?))
            })
        });
        read.await
    }

    /// Makes sure that chunks are there and that their records have the current cycle. All or nothing.
    /// A chunk whose record is damaged is not there.
    ///
    /// At most [`KEYS_MAX`] at a time, none twice, and at most [`STAGE_BYTES_MAX`] of entries, but for one
    /// that is longer.
    ///
    /// # Errors
    ///
    /// The store fails, the record of the cycle or of a pack is damaged, or a pack has been given up (`NotFound`).
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: whether it was done is not known then. It may be done again.
    pub async fn keep(&self, keeps: &[(ChunkName, Keep)]) -> Result<KeptAll, StoreError> {
        let kept = self.transactor.transact(Budget::default(), |txn, _| {
            // Right however often it is applied: what it has stored it finds.
            Box::pin(keep(txn, keeps))
        });
        kept.await
    }

    /// The records of chunks; `None` for those that are not there.
    ///
    /// # Errors
    ///
    /// The store fails or a record is damaged.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn find(&self, names: &[ChunkName]) -> Result<Vec<Option<PlaceRecord>>, StoreError> {
        let found = self.transactor.transact(Budget::default(), |txn, _| {
            // Writes nothing: nothing to conflict with.
            Box::pin(async move { records(&*txn, names.iter(), Isolation::Snapshot).await })
        });
        found.await
    }

    /// The record of a chunk and, if it is staged, its entry.
    ///
    /// # Errors
    ///
    /// The store fails, or the record or the entry is damaged.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn read(
        &self,
        name: ChunkName,
    ) -> Result<Option<(PlaceRecord, Option<Bytes>)>, StoreError> {
        let found = self.transactor.transact(Budget::default(), |txn, _| {
            // Both at one version. Writes nothing: nothing to conflict with.
            Box::pin(async move {
                let txn: &dyn Transaction = txn;
                let Some(record) = record(txn, &name, Isolation::Snapshot).await? else {
                    return Ok(None);
                };
                let entry = match record.place {
                    Place::Staged => Some(entry(txn, name, record.entry_bytes).await?),
                    Place::Pack { .. } => None,
                };
                Ok::<_, StoreError>(Some((record, entry)))
            })
        });
        found.await
    }
}

async fn keep(
    txn: &mut dyn Transaction,
    keeps: &[(ChunkName, Keep)],
) -> Result<KeptAll, StoreError> {
    let names = keeps.iter().map(|(name, _)| name);
    // Serializable: the records are what decides, and a cycle that begins meanwhile is met.
    let found = look(&*txn, names).await?;
    let now = cycle(&*txn, Isolation::Serializable).await?;
    let before = staged_bytes(&*txn).await?;
    let mut packs = settle::LivePacks::default();
    let (mut kept, mut added, mut freed) = (Vec::with_capacity(keeps.len()), 0_u64, 0_u64);
    for ((name, keep), found) in keeps.iter().zip(found) {
        let key = keyspace::place(name.0, name.1);
        match found {
            Found::At(record) if !is_bad(keep, &record) => {
                if record.cycle < now {
                    let raised = PlaceRecord {
                        cycle: now,
                        ..record
                    };
                    txn.set(&key, &raised.encode());
                }
                kept.push(Kept::Found);
                continue;
            }
            _ => {}
        }
        let Some(record) = new_record(keep, now) else {
            kept.push(Kept::Missing);
            continue;
        };
        freed = freed.saturating_add(give_up(txn, *name, found, &mut packs));
        if let Keep::Stage { entry, .. } | Keep::Replace { entry, .. } = keep {
            stage(txn, *name, entry)?;
            added = added.saturating_add(u64::from(record.entry_bytes));
        }
        if let Place::Pack { pack, .. } = record.place {
            packs.live(pack, u64::from(record.entry_bytes));
        }
        txn.set(&key, &record.encode());
        kept.push(Kept::Stored);
    }
    packs.write(txn).await?;
    if added != freed {
        // Wraps: so it also takes away.
        let by = added.wrapping_sub(freed);
        txn.atomic(AtomicOp::Add, &keyspace::staged_bytes(), &by.to_le_bytes());
    }
    Ok(KeptAll {
        kept,
        cycle: now,
        staged_bytes: before.saturating_add(added).saturating_sub(freed),
    })
}

/// What there is of a chunk, for who may mend it.
#[derive(Clone, Copy, Debug)]
enum Found {
    Nothing,
    /// A record that cannot be read.
    Damaged,
    At(PlaceRecord),
}

/// Read serializably. One that is damaged is in the way of no other.
async fn look<'n>(
    txn: &dyn Transaction,
    names: impl Iterator<Item = &'n ChunkName>,
) -> Result<Vec<Found>, StoreError> {
    let looks = names.map(|name| async move {
        let key = keyspace::place(name.0, name.1);
        let value = txn.get(&key, Isolation::Serializable).await?;
        Ok::<_, StoreError>(match value.map(|value| PlaceRecord::decode(&value)) {
            None => Found::Nothing,
            Some(Ok(record)) => Found::At(record),
            Some(Err(_)) => Found::Damaged,
        })
    });
    // At the same time: each is a way to the store and back.
    try_join_all(looks).await
}

/// Gives up what there is of a chunk that is stored anew; how much of it was staged.
fn give_up(
    txn: &mut dyn Transaction,
    (domain, chunk): ChunkName,
    found: Found,
    packs: &mut settle::LivePacks,
) -> u64 {
    let old = match found {
        Found::Nothing => return 0,
        Found::Damaged => None,
        Found::At(record) => Some(record),
    };
    txn.clear_range(&keyspace::body_pieces(domain, chunk));
    match old.map(|old| (old.place, u64::from(old.entry_bytes))) {
        Some((Place::Staged, bytes)) => bytes,
        Some((Place::Pack { pack, .. }, bytes)) => {
            packs.dead(pack, bytes);
            0
        }
        // How much was staged of it is not known: `check` tells if the counter is wrong then.
        None => 0,
    }
}

/// Whether a chunk is where nothing whole is.
fn is_bad(keep: &Keep, record: &PlaceRecord) -> bool {
    matches!(keep, Keep::Replace { bad, .. } if *bad == record.place)
}

/// The record of a chunk that was not there; none if nothing is given to store.
fn new_record(keep: &Keep, cycle: u64) -> Option<PlaceRecord> {
    let (place, entry_bytes, plain_bytes) = match keep {
        Keep::Touch => return None,
        Keep::Stage { entry, plain_bytes }
        | Keep::Replace {
            entry, plain_bytes, ..
        } => {
            let len = u32::try_from(entry.len()).unwrap_or(u32::MAX);
            (Place::Staged, len, *plain_bytes)
        }
        Keep::Packed {
            pack,
            offset,
            entry_bytes,
            plain_bytes,
        } => {
            let place = Place::Pack {
                pack: *pack,
                offset: *offset,
            };
            (place, *entry_bytes, *plain_bytes)
        }
    };
    Some(PlaceRecord {
        place,
        entry_bytes,
        plain_bytes,
        cycle,
    })
}

fn stage(txn: &mut dyn Transaction, name: ChunkName, entry: &Bytes) -> Result<(), StoreError> {
    if entry.is_empty() || entry.len() > ENTRY_BYTES_MAX {
        let why = format!("an entry of {} bytes cannot be staged", entry.len());
        return Err(StoreError::Invalid { why });
    }
    for (number, piece) in entry.chunks(PIECE_BYTES_MAX).enumerate() {
        let number = u8::try_from(number).unwrap_or(u8::MAX);
        txn.set(&keyspace::body(name.0, name.1, number), piece);
    }
    Ok(())
}

async fn records<'n>(
    txn: &dyn Transaction,
    names: impl Iterator<Item = &'n ChunkName>,
    isolation: Isolation,
) -> Result<Vec<Option<PlaceRecord>>, StoreError> {
    // At the same time: each is a way to the store and back.
    try_join_all(names.map(|name| record(txn, name, isolation))).await
}

async fn record(
    txn: &dyn Transaction,
    name: &ChunkName,
    isolation: Isolation,
) -> Result<Option<PlaceRecord>, StoreError> {
    let value = txn.get(&keyspace::place(name.0, name.1), isolation).await?;
    value
        .map(|value| PlaceRecord::decode(&value))
        .transpose()
        .map_err(|error| damaged(format!("place of chunk {}", name.1), error))
}

/// A staged entry, whole.
async fn entry(
    txn: &dyn Transaction,
    (domain, chunk): ChunkName,
    entry_bytes: u32,
) -> Result<Bytes, StoreError> {
    let wanted = usize::try_from(entry_bytes).unwrap_or(usize::MAX);
    let broken = |why: &str| StoreError::Corrupt {
        what: format!("staged chunk {chunk}"),
        why: why.to_owned(),
    };
    if wanted > ENTRY_BYTES_MAX {
        return Err(broken("it is longer than any"));
    }
    let limit = RangeLimit::pairs(wanted.div_ceil(PIECE_BYTES_MAX) + 1);
    let range = keyspace::body_pieces(domain, chunk);
    // The record was read at the same version.
    let mut pieces = pairs_of(txn, range, limit, Isolation::Snapshot).await?;
    let whole = match pieces.as_mut_slice() {
        [(_, piece)] => std::mem::take(piece),
        many => {
            let mut whole = BytesMut::with_capacity(wanted);
            many.iter().for_each(|(_, piece)| whole.extend(piece));
            whole.freeze()
        }
    };
    if whole.len() == wanted {
        Ok(whole)
    } else {
        Err(broken("it has another length than its record says"))
    }
}

async fn cycle(txn: &dyn Transaction, isolation: Isolation) -> Result<u64, StoreError> {
    let value = txn.get(&keyspace::cycle(), isolation).await?;
    let record = value.map(|value| CycleRecord::decode(&value)).transpose();
    let record = record.map_err(|error| damaged("cycle of collections".into(), error))?;
    Ok(record.unwrap_or_default().cycle)
}

/// Read beside what matters: a bound, not a fact.
async fn staged_bytes(txn: &dyn Transaction) -> Result<u64, StoreError> {
    let value = txn
        .get(&keyspace::staged_bytes(), Isolation::Snapshot)
        .await?;
    let Some(value) = value else {
        return Ok(0);
    };
    // One that is no number is told by `check`; it is no reason to store nothing.
    Ok(value.as_ref().try_into().map_or(0, u64::from_le_bytes))
}

fn damaged(what: String, error: RecordError) -> StoreError {
    StoreError::Corrupt {
        what,
        why: error.to_string(),
    }
}
