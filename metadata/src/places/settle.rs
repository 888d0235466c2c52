//! From staging to packs.

use std::collections::BTreeMap;

use super::{ChunkName, Found, Places, cycle, damaged, look};
use crate::keyspace;
use crate::kv::{AtomicOp, Isolation, Transaction};
use crate::record::place::{PackId, PackRecord, Place, PlaceRecord};
use crate::store::StoreError;
use crate::transact::{Budget, Earlier};

/// A staged chunk whose entry is in a pack, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The chunk.
    pub name: ChunkName,
    /// Where its entry begins in the pack.
    pub offset: u32,
    /// Its length there.
    pub entry_bytes: u32,
}

/// What became of chunks that were to be moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// They are in the pack now.
    pub moved: u64,
    /// They are gone, are in another pack, are staged with an entry of another length, or have a damaged record.
    pub dropped: u64,
    /// About how many bytes are staged now.
    pub staged_bytes: u64,
}

/// What becomes live in packs, and is written at the end of a transaction.
#[derive(Debug, Default)]
pub(super) struct LivePacks {
    live: BTreeMap<PackId, u64>,
    dead: BTreeMap<PackId, u64>,
}

impl LivePacks {
    pub(super) fn live(&mut self, pack: PackId, bytes: u64) {
        let live = self.live.entry(pack).or_default();
        *live = live.saturating_add(bytes);
    }

    /// So much of a pack is led to no more.
    pub(super) fn dead(&mut self, pack: PackId, bytes: u64) {
        let dead = self.dead.entry(pack).or_default();
        *dead = dead.saturating_add(bytes);
    }

    /// The packs' records are read serializably: those that have been given up are led to no more.
    pub(super) async fn write(self, txn: &mut dyn Transaction) -> Result<(), StoreError> {
        for (pack, bytes) in self.live {
            let mut record = require_pack(&*txn, pack).await?;
            record.is_being_written = false;
            record.live_bytes = record.live_bytes.saturating_add(bytes);
            txn.set(&keyspace::pack(pack), &record.encode());
        }
        for (pack, bytes) in self.dead {
            match read_pack(&*txn, pack).await {
                Ok(Some(mut record)) => {
                    record.live_bytes = record.live_bytes.saturating_sub(bytes);
                    txn.set(&keyspace::pack(pack), &record.encode());
                }
                // What is lost of it is why its chunks are stored anew.
                Ok(None) | Err(StoreError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Places {
    /// Says that a pack will be written, before it is. Its name must be new.
    ///
    /// # Errors
    ///
    /// The store fails, or there is a pack of that name (`Exists`).
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: whether it is known is not known then.
    pub async fn begin_pack(&self, pack: PackId, total_bytes: u64) -> Result<(), StoreError> {
        let created = self.clock.wall();
        let begun = self.transactor.transact(Budget::default(), |txn, earlier| {
            Box::pin(async move {
                let key = keyspace::pack(pack);
                let found = txn.get(&key, Isolation::Serializable).await?;
                match (found, earlier) {
                    // That of the attempt before.
                    (Some(_), Earlier::Unknown) => return Ok(()),
                    (Some(_), Earlier::Failed) => {
                        let what = format!("pack {pack}");
                        return Err(StoreError::Exists { what });
                    }
                    (None, _) => {}
                }
                let record = PackRecord {
                    is_being_written: true,
                    total_bytes,
                    live_bytes: 0,
                    cycle: cycle(&*txn, Isolation::Serializable).await?,
                    created,
                };
                txn.set(&key, &record.encode());
                Ok(())
            })
        });
        begun.await
    }

    /// Forgets a pack that nothing leads to. One that something leads to stays.
    ///
    /// # Errors
    ///
    /// The store fails or the record is damaged.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not be forgotten.
    pub async fn forget_pack(&self, pack: PackId) -> Result<bool, StoreError> {
        let forgotten = self.transactor.transact(Budget::default(), |txn, _| {
            // Right however often it is applied.
            Box::pin(async move {
                let key = keyspace::pack(pack);
                let is_free = match read_pack(&*txn, pack).await? {
                    Some(record) => record.live_bytes == 0,
                    None => true,
                };
                if is_free {
                    txn.clear(&key);
                }
                Ok::<_, StoreError>(is_free)
            })
        });
        forgotten.await
    }

    /// Lets records of staged chunks lead to a pack whose object is durable, and gives up what was
    /// staged of them. What is gone, or elsewhere already, or staged with another length, is left alone.
    ///
    /// At most [`super::KEYS_MAX`] at a time.
    ///
    /// # Errors
    ///
    /// The store fails, the pack's record is damaged, or the pack has been given up (`NotFound`).
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: whether it was done is not known then. It may be done again.
    pub async fn settle(&self, pack: PackId, moved: &[Moved]) -> Result<Settled, StoreError> {
        let settled = self.transactor.transact(Budget::default(), |txn, _| {
            // Right however often it is applied: what leads to the pack already counts as moved.
            Box::pin(settle(txn, pack, moved))
        });
        settled.await
    }

    /// Packs behind `after`, in the order of their names: at most `count`.
    ///
    /// # Errors
    ///
    /// The store fails or a record is damaged.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn packs(
        &self,
        after: Option<PackId>,
        count: usize,
    ) -> Result<Vec<(PackId, PackRecord)>, StoreError> {
        let after = after.map(keyspace::pack);
        let pairs = self.transactor.pairs_after(keyspace::packs(), after, count);
        let mut packs = Vec::new();
        for (key, value) in pairs.await? {
            let Ok(keyspace::Key::Pack(pack)) = keyspace::decode(&key) else {
                continue;
            };
            let record = PackRecord::decode(&value);
            packs.push((
                pack,
                record.map_err(|error| damaged(format!("pack {pack}"), error))?,
            ));
        }
        Ok(packs)
    }
}

async fn settle(
    txn: &mut dyn Transaction,
    pack: PackId,
    moved: &[Moved],
) -> Result<Settled, StoreError> {
    // Serializable: who collects or moves one meanwhile conflicts.
    let names = moved.iter().map(|moved| &moved.name);
    let found = look(&*txn, names).await?;
    let before = super::staged_bytes(&*txn).await?;
    let (mut packs, mut settled) = (LivePacks::default(), Settled::default());
    let mut freed = 0_u64;
    // Also if nothing is moved: the pack must be known.
    packs.live(pack, 0);
    for (moved, found) in moved.iter().zip(found) {
        let place = Place::Pack {
            pack,
            offset: moved.offset,
        };
        match found {
            Found::At(record)
                if record.place == Place::Staged && record.entry_bytes == moved.entry_bytes =>
            {
                let record = PlaceRecord { place, ..record };
                let (domain, chunk) = moved.name;
                txn.set(&keyspace::place(domain, chunk), &record.encode());
                txn.clear_range(&keyspace::body_pieces(domain, chunk));
                packs.live(pack, u64::from(record.entry_bytes));
                freed = freed.saturating_add(u64::from(record.entry_bytes));
                settled.moved += 1;
            }
            Found::At(record) if record.place == place => settled.moved += 1,
            _ => settled.dropped += 1,
        }
    }
    packs.write(txn).await?;
    if freed > 0 {
        // Wraps: adding this takes away.
        let by = 0_u64.wrapping_sub(freed);
        txn.atomic(AtomicOp::Add, &keyspace::staged_bytes(), &by.to_le_bytes());
    }
    settled.staged_bytes = before.saturating_sub(freed);
    Ok(settled)
}

/// Takes bytes that nothing leads to any more from what is live in packs.
pub(crate) async fn take_from_packs(
    txn: &mut dyn Transaction,
    dead: BTreeMap<PackId, u64>,
) -> Result<(), StoreError> {
    let live = BTreeMap::new();
    LivePacks { live, dead }.write(txn).await
}

async fn read_pack(txn: &dyn Transaction, pack: PackId) -> Result<Option<PackRecord>, StoreError> {
    let key = keyspace::pack(pack);
    let value = txn.get(&key, Isolation::Serializable).await?;
    let record = value.map(|value| PackRecord::decode(&value)).transpose();
    record.map_err(|error| damaged(format!("pack {pack}"), error))
}

async fn require_pack(txn: &dyn Transaction, pack: PackId) -> Result<PackRecord, StoreError> {
    let record = read_pack(txn, pack).await?;
    record.ok_or_else(|| StoreError::NotFound {
        what: format!("pack {pack}"),
    })
}
