//! Collections of shared chunks, as far as they are transactions.
//!
//! `docs/design/0016-fleet-collection.md` has the invariants. Who collects reads references by itself
//! ([`crate::references`]) and decides what is taken; this makes sure that it may.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use base::simulation::{Rule, is_kept};
use base::{Clock, GatewayId, Rng};

use crate::keyspace::{self, Key};
use crate::kv::held::Admission;
use crate::kv::{AtomicOp, Isolation, Kv, KvError, RangeLimit, Transaction, pairs_of};
use crate::places::{ChunkName, take_from_packs};
use crate::record::RecordError;
use crate::record::cycle::{CyclePhase, CycleRecord, SettledRecord, Turn};
use crate::record::place::{PackId, Place, PlaceRecord};
use crate::store::{GreyRoot, StoreError};
use crate::transact::{Budget, TransactError, Transactor};

/// Most chunks that are taken in one transaction: each is a read.
pub const SWEPT_MAX: usize = 256;

/// Why a step of a collection was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectionError {
    /// It is the turn of another: whatever was done so far is of no use.
    #[error("another gateway has begun to collect")]
    Lost,
    /// The store fails, or a record is damaged.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<KvError> for CollectionError {
    fn from(error: KvError) -> Self {
        Self::Store(error.into())
    }
}

impl TransactError for CollectionError {
    fn as_kv(&self) -> Option<&KvError> {
        match self {
            Self::Lost => None,
            Self::Store(error) => error.as_kv(),
        }
    }
}

/// What was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Chunks.
    pub chunks: u64,
    /// Bytes of their entries.
    pub bytes: u64,
    /// Those of them that were staged.
    pub staged_bytes: u64,
}

/// The collections of a store. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Collections {
    transactor: Transactor,
}

impl Collections {
    /// Those of `kv`, which commits whatever it is given.
    #[must_use]
    pub fn new(kv: Arc<dyn Kv>, clock: Arc<dyn Clock>, rng: Arc<Rng>) -> Self {
        Self {
            transactor: Transactor::new(kv, clock, rng),
        }
    }

    /// How far collections are.
    ///
    /// # Errors
    ///
    /// The store fails or the record is damaged.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn state(&self) -> Result<CycleRecord, StoreError> {
        let read = self.transactor.transact(Budget::default(), |txn, _| {
            // Writes nothing: nothing to conflict with.
            Box::pin(async move { read(&*txn, Isolation::Snapshot).await })
        });
        read.await
    }

    /// Says that `gateway` has no hold of an earlier cycle than this one, and takes none.
    ///
    /// # Errors
    ///
    /// The store fails.
    ///
    /// # Cancellation
    ///
    /// Safe to drop: it may or may not have been said.
    pub async fn settle(&self, gateway: GatewayId, cycle: u64) -> Result<(), StoreError> {
        let said = self.transactor.transact(Budget::default(), |txn, _| {
            // Right however often it is applied.
            Box::pin(async move {
                let record = SettledRecord { cycle };
                txn.set(&keyspace::settled(gateway), &record.encode());
                Ok::<_, StoreError>(())
            })
        });
        said.await
    }

    /// What each gateway has said by [`Collections::settle`].
    ///
    /// # Errors
    ///
    /// The store fails or a record is damaged.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn settled(&self) -> Result<BTreeMap<GatewayId, u64>, StoreError> {
        let read = self.transactor.transact(Budget::default(), |txn, _| {
            // Writes nothing: nothing to conflict with.
            Box::pin(async move { settled(&*txn).await })
        });
        read.await
    }

    /// Begins to collect, in [`CyclePhase::Preparing`]. `Err` within `Ok` is the gateway whose turn it is, if that
    /// is one of `living`.
    ///
    /// # Errors
    ///
    /// The store fails or the record is damaged.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may have begun. The next one may begin all the same if it is of this gateway.
    pub async fn begin(
        &self,
        turn: Turn,
        living: &BTreeSet<GatewayId>,
    ) -> Result<Result<(), GatewayId>, StoreError> {
        let begun = self.transactor.transact(Budget::default(), |txn, _| {
            // Right however often it is applied: its own turn it may take again.
            Box::pin(async move {
                let found = read(&*txn, Isolation::Serializable).await?;
                let owner = found.turn.gateway;
                let is_free = found.phase == CyclePhase::Idle || owner == turn.gateway;
                if !is_free && living.contains(&owner) {
                    return Ok(Err(owner));
                }
                write(
                    txn,
                    &CycleRecord {
                        phase: CyclePhase::Preparing,
                        turn,
                        ..found
                    },
                );
                Ok::<_, StoreError>(Ok(()))
            })
        });
        begun.await
    }

    /// Begins a cycle, in [`CyclePhase::Settling`], and gives its number. From now on roots that are copied are told.
    ///
    /// # Errors
    ///
    /// See [`CollectionError`].
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may have begun.
    pub async fn begin_cycle(&self, turn: Turn) -> Result<u64, CollectionError> {
        let begun = self.transactor.transact(Budget::default(), |txn, _| {
            Box::pin(async move {
                let found = require(&*txn, turn).await?;
                match found.phase {
                    CyclePhase::Preparing => {}
                    // By the attempt before.
                    CyclePhase::Settling => return Ok(found.cycle),
                    _ => return Err(CollectionError::Lost),
                }
                let cycle = found.cycle.saturating_add(1);
                // Those of a collection that did not end.
                txn.clear_range(&keyspace::greys());
                write(
                    txn,
                    &CycleRecord {
                        cycle,
                        phase: CyclePhase::Settling,
                        ..found
                    },
                );
                Ok(cycle)
            })
        });
        begun.await
    }

    /// Lets nothing be committed any more under a hold of an earlier cycle, and goes on to
    /// [`CyclePhase::Marking`].
    ///
    /// # Errors
    ///
    /// See [`CollectionError`].
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may have been done.
    pub async fn raise_floor(&self, turn: Turn) -> Result<(), CollectionError> {
        let raised = self.transactor.transact(Budget::default(), |txn, _| {
            Box::pin(async move {
                let found = require(&*txn, turn).await?;
                match found.phase {
                    CyclePhase::Settling => {}
                    // By the attempt before.
                    CyclePhase::Marking => return Ok(()),
                    _ => return Err(CollectionError::Lost),
                }
                write(
                    txn,
                    &CycleRecord {
                        floor: found.cycle,
                        phase: CyclePhase::Marking,
                        ..found
                    },
                );
                Ok(())
            })
        });
        raised.await
    }

    /// Goes on to [`CyclePhase::Sweeping`] if no root was told but those in `walked`; else gives the others, and
    /// does not.
    ///
    /// # Errors
    ///
    /// See [`CollectionError`].
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may have been done.
    pub async fn end_marking(
        &self,
        turn: Turn,
        walked: &HashSet<GreyRoot>,
    ) -> Result<Vec<GreyRoot>, CollectionError> {
        let ended = self.transactor.transact(Budget::default(), |txn, _| {
            Box::pin(async move {
                let found = require(&*txn, turn).await?;
                match found.phase {
                    CyclePhase::Marking => {}
                    // By the attempt before, which found nothing.
                    CyclePhase::Sweeping => return Ok(Vec::new()),
                    _ => return Err(CollectionError::Lost),
                }
                // Serializable: a root that is told meanwhile conflicts, and so does the phase
                // with who tells one.
                let more = if is_kept(Rule::MarkingEnd) {
                    unwalked(&*txn, walked).await?
                } else {
                    Vec::new()
                };
                if more.is_empty() {
                    write(
                        txn,
                        &CycleRecord {
                            phase: CyclePhase::Sweeping,
                            ..found
                        },
                    );
                }
                Ok(more)
            })
        });
        ended.await
    }

    /// Places of chunks behind `after`, in the order of their names: at most `count`.
    ///
    /// # Errors
    ///
    /// The store fails or a record is damaged.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn places(
        &self,
        after: Option<ChunkName>,
        count: usize,
    ) -> Result<Vec<(ChunkName, PlaceRecord)>, StoreError> {
        let after = after.map(|(domain, chunk)| keyspace::place(domain, chunk));
        let pairs = self
            .transactor
            .pairs_after(keyspace::places(), after, count);
        let mut places = Vec::new();
        for (key, value) in pairs.await? {
            let Ok(Key::Place(domain, chunk)) = keyspace::decode(&key) else {
                let what = "key of the place of a chunk".to_owned();
                let why = "it is none".to_owned();
                return Err(StoreError::Corrupt { what, why });
            };
            let record = PlaceRecord::decode(&value);
            let record = record.map_err(|error| damaged(format!("place of chunk {chunk}"), &error));
            places.push(((domain, chunk), record?));
        }
        Ok(places)
    }

    /// Takes chunks that have no mark: those of them that were not put or touched in this cycle. At most
    /// [`SWEPT_MAX`], none twice.
    ///
    /// # Errors
    ///
    /// See [`CollectionError`]. All or nothing.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: they may have been taken.
    pub async fn sweep(&self, turn: Turn, names: &[ChunkName]) -> Result<Swept, CollectionError> {
        let swept = self.transactor.transact(Budget::default(), |txn, _| {
            // What was taken by an attempt before is not found, and not counted.
            Box::pin(sweep(txn, turn, names))
        });
        swept.await
    }

    /// Fails with [`CollectionError::Lost`] if it is the turn of another. Whoever misses something asks this before it
    /// tells: another may have collected what an old record refers to.
    ///
    /// # Errors
    ///
    /// See [`CollectionError`].
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn still(&self, turn: Turn) -> Result<(), CollectionError> {
        let found = self.state().await?;
        if found.turn == turn && found.phase != CyclePhase::Idle {
            Ok(())
        } else {
            Err(CollectionError::Lost)
        }
    }

    /// Ends the collection of a gateway, wherever it is, if it is its turn. For one that has been started anew, or
    /// that could not end it before.
    ///
    /// # Errors
    ///
    /// As [`Collections::end`].
    ///
    /// # Cancellation
    ///
    /// As [`Collections::end`].
    pub async fn end_of(&self, gateway: GatewayId) -> Result<(), CollectionError> {
        let turn = self.state().await?.turn;
        if turn.gateway == gateway {
            self.end(turn).await?;
        }
        Ok(())
    }

    /// Ends a collection, wherever it is. Does nothing if it is the turn of another.
    ///
    /// # Errors
    ///
    /// The store fails or a record is damaged. The next collection does not mind.
    ///
    /// # Cancellation
    ///
    /// Safe to drop: it may have ended.
    pub async fn end(&self, turn: Turn) -> Result<(), CollectionError> {
        let ended = self.transactor.transact(Budget::default(), |txn, _| {
            // Right however often it is applied.
            Box::pin(async move {
                let found = read(&*txn, Isolation::Serializable).await?;
                if found.turn != turn || found.phase == CyclePhase::Idle {
                    return Ok(());
                }
                txn.clear_range(&keyspace::greys());
                // Those of gateways that have gone.
                for gateway in settled(&*txn).await?.into_keys() {
                    let lease = keyspace::lease(gateway);
                    let found = txn.get(&lease, Isolation::Serializable).await?;
                    if found.is_none() {
                        txn.clear(&keyspace::settled(gateway));
                    }
                }
                write(
                    txn,
                    &CycleRecord {
                        phase: CyclePhase::Idle,
                        ..found
                    },
                );
                Ok::<_, CollectionError>(())
            })
        });
        ended.await
    }
}

/// Commits only what belongs to the preparation of a collection.
#[derive(Debug)]
pub struct Preparing(pub Turn);

impl Admission for Preparing {
    fn is_asked(&self) -> bool {
        true
    }

    fn allows(&self, record: &CycleRecord) -> bool {
        record.turn == self.0 && record.phase == CyclePhase::Preparing
    }
}

/// Tells of a root that is about to be copied, if a collection listens. In the transaction that copies it,
/// or in one that finds that its source still has it.
pub(crate) async fn tell(txn: &mut dyn Transaction, grey: GreyRoot) -> Result<(), StoreError> {
    // Serializable: the end of marking conflicts.
    let record = read(&*txn, Isolation::Serializable).await?;
    if record.listens() && is_kept(Rule::Grey) {
        txn.set(&keyspace::grey(grey.workspace, grey.root), &[]);
    }
    Ok(())
}

async fn sweep(
    txn: &mut dyn Transaction,
    turn: Turn,
    names: &[ChunkName],
) -> Result<Swept, CollectionError> {
    let cycle = if is_kept(Rule::Turn) {
        let found = require(&*txn, turn).await?;
        if found.phase != CyclePhase::Sweeping {
            return Err(CollectionError::Lost);
        }
        found.cycle
    } else {
        read(&*txn, Isolation::Serializable).await?.cycle
    };
    // Serializable: a put or a touch meanwhile conflicts.
    let found = crate::places::records(&*txn, names.iter(), Isolation::Serializable).await?;
    let mut swept = Swept::default();
    let mut packs: BTreeMap<PackId, u64> = BTreeMap::new();
    for ((domain, chunk), found) in names.iter().zip(found) {
        let Some(record) = found else {
            continue;
        };
        if record.cycle >= cycle && is_kept(Rule::Young) {
            continue;
        }
        let bytes = u64::from(record.entry_bytes);
        match record.place {
            Place::Staged => {
                txn.clear_range(&keyspace::body_pieces(*domain, *chunk));
                swept.staged_bytes = swept.staged_bytes.saturating_add(bytes);
            }
            Place::Pack { pack, .. } => {
                let dead = packs.entry(pack).or_default();
                *dead = dead.saturating_add(bytes);
            }
        }
        txn.clear(&keyspace::place(*domain, *chunk));
        swept.chunks += 1;
        swept.bytes = swept.bytes.saturating_add(bytes);
    }
    take_from_packs(txn, packs).await?;
    if swept.staged_bytes > 0 {
        // Wraps: adding this takes away.
        let by = 0_u64.wrapping_sub(swept.staged_bytes).to_le_bytes();
        txn.atomic(AtomicOp::Add, &keyspace::staged_bytes(), &by);
    }
    Ok(swept)
}

/// Roots that were told and not walked.
async fn unwalked(
    txn: &dyn Transaction,
    walked: &HashSet<GreyRoot>,
) -> Result<Vec<GreyRoot>, StoreError> {
    let limit = RangeLimit::pairs(usize::MAX);
    let pairs = pairs_of(txn, keyspace::greys(), limit, Isolation::Serializable).await?;
    let mut more = Vec::new();
    for (key, _) in pairs {
        let Ok(Key::Grey(workspace, root)) = keyspace::decode(&key) else {
            let error = RecordError::Field("key");
            return Err(damaged("root that was copied".to_owned(), &error));
        };
        let grey = GreyRoot { workspace, root };
        if !walked.contains(&grey) {
            more.push(grey);
        }
    }
    Ok(more)
}

async fn settled(txn: &dyn Transaction) -> Result<BTreeMap<GatewayId, u64>, StoreError> {
    let limit = RangeLimit::pairs(usize::MAX);
    // Each tells of itself, and what it told stays true.
    let pairs = pairs_of(txn, keyspace::settled_all(), limit, Isolation::Snapshot).await?;
    let mut settled = BTreeMap::new();
    for (key, value) in pairs {
        let broken = |error| damaged("holds of a gateway".to_owned(), &error);
        let Ok(Key::Settled(gateway)) = keyspace::decode(&key) else {
            return Err(broken(RecordError::Field("key")));
        };
        settled.insert(
            gateway,
            SettledRecord::decode(&value).map_err(broken)?.cycle,
        );
    }
    Ok(settled)
}

/// The record, if it is this one's turn.
async fn require(txn: &dyn Transaction, turn: Turn) -> Result<CycleRecord, CollectionError> {
    let found = read(txn, Isolation::Serializable).await?;
    if found.turn == turn && found.phase != CyclePhase::Idle {
        Ok(found)
    } else {
        Err(CollectionError::Lost)
    }
}

pub(crate) async fn read(
    txn: &dyn Transaction,
    isolation: Isolation,
) -> Result<CycleRecord, StoreError> {
    let value = txn.get(&keyspace::cycle(), isolation).await?;
    let record = value.map(|value| CycleRecord::decode(&value)).transpose();
    let record = record.map_err(|error| damaged("cycle of collections".to_owned(), &error))?;
    Ok(record.unwrap_or_default())
}

fn write(txn: &mut dyn Transaction, record: &CycleRecord) {
    txn.set(&keyspace::cycle(), &record.encode());
}

fn damaged(what: String, error: &RecordError) -> StoreError {
    StoreError::Corrupt {
        what,
        why: error.to_string(),
    }
}
