//! The ledger of shared chunks in the metadata store: neither crate knows the other.

use std::sync::Arc;

use base::{Clock, Rng};
use bytes::Bytes;
use chunkstore::shared::ledger::{
    ChunkKey, Keep, Kept, KeptAll, Ledger, LedgerError, LedgerFuture, Location, Moved, PackId,
    Place, Settled, StagedPage,
};
use metadata::kv::{Kv, KvError};
use metadata::places::{self, ChunkName, Places};
use metadata::record::place as record;
use metadata::store::StoreError;

/// A ledger in a metadata store.
#[derive(Debug)]
pub struct KvLedger {
    places: Places,
}

impl KvLedger {
    /// The ledger in `kv`.
    #[must_use]
    pub fn new(kv: Arc<dyn Kv>, clock: Arc<dyn Clock>, rng: Arc<Rng>) -> Self {
        Self {
            places: Places::new(kv, clock, rng),
        }
    }
}

fn name(key: ChunkKey) -> ChunkName {
    (key.domain, key.id)
}

fn place_of(place: record::Place) -> Place {
    match place {
        record::Place::Staged => Place::Staged,
        record::Place::Pack { pack, offset } => Place::Pack {
            pack: PackId(pack.0),
            offset,
        },
    }
}

fn place_in(place: Place) -> record::Place {
    match place {
        Place::Staged => record::Place::Staged,
        Place::Pack { pack, offset } => record::Place::Pack {
            pack: record::PackId(pack.0),
            offset,
        },
    }
}

fn location(record: record::PlaceRecord) -> Location {
    Location {
        place: place_of(record.place),
        entry_bytes: record.entry_bytes,
        plain_bytes: record.plain_bytes,
        cycle: record.cycle,
    }
}

fn keep((key, keep): (ChunkKey, Keep)) -> (ChunkName, places::Keep) {
    let keep = match keep {
        Keep::Touch => places::Keep::Touch,
        Keep::Stage { entry, plain_bytes } => places::Keep::Stage { entry, plain_bytes },
        Keep::Replace {
            bad,
            entry,
            plain_bytes,
        } => places::Keep::Replace {
            bad: place_in(bad),
            entry,
            plain_bytes,
        },
        Keep::Packed {
            pack,
            offset,
            entry_bytes,
            plain_bytes,
        } => places::Keep::Packed {
            pack: record::PackId(pack.0),
            offset,
            entry_bytes,
            plain_bytes,
        },
    };
    (name(key), keep)
}

fn failed(error: StoreError) -> LedgerError {
    match error {
        StoreError::Unavailable(KvError::NoSpace) => LedgerError::NoSpace,
        StoreError::NotFound { .. } => LedgerError::PackGone,
        StoreError::Corrupt { .. } => LedgerError::Damaged(error.to_string()),
        other => LedgerError::Unavailable(other.to_string()),
    }
}

impl Ledger for KvLedger {
    fn state(&self) -> LedgerFuture<'_, (u64, u64)> {
        Box::pin(async { self.places.state().await.map_err(failed) })
    }

    fn keep(&self, keeps: Vec<(ChunkKey, Keep)>) -> LedgerFuture<'_, KeptAll> {
        Box::pin(async move {
            let keeps: Vec<_> = keeps.into_iter().map(keep).collect();
            let all = self.places.keep(&keeps).await.map_err(failed)?;
            let kept = |kept| match kept {
                places::Kept::Found => Kept::Found,
                places::Kept::Stored => Kept::Stored,
                places::Kept::Missing => Kept::Missing,
            };
            Ok(KeptAll {
                kept: all.kept.into_iter().map(kept).collect(),
                cycle: all.cycle,
                staged_bytes: all.staged_bytes,
            })
        })
    }

    fn find(&self, keys: Vec<ChunkKey>) -> LedgerFuture<'_, Vec<Option<Location>>> {
        Box::pin(async move {
            let names: Vec<_> = keys.into_iter().map(name).collect();
            let found = self.places.find(&names).await.map_err(failed)?;
            Ok(found.into_iter().map(|it| it.map(location)).collect())
        })
    }

    fn read(&self, key: ChunkKey) -> LedgerFuture<'_, Option<(Location, Option<Bytes>)>> {
        Box::pin(async move {
            let found = self.places.read(name(key)).await.map_err(failed)?;
            Ok(found.map(|(record, entry)| (location(record), entry)))
        })
    }

    fn staged(&self, after: Option<ChunkKey>, bytes: usize) -> LedgerFuture<'_, StagedPage> {
        Box::pin(async move {
            let page = self.places.staged(after.map(name), bytes).await;
            let page = page.map_err(failed)?;
            let chunk = |staged: places::Staged| {
                let (domain, id) = staged.name;
                (ChunkKey { domain, id }, staged.entry)
            };
            Ok(StagedPage {
                chunks: page.chunks.into_iter().map(chunk).collect(),
                more: page.more,
            })
        })
    }

    fn begin_pack(&self, pack: PackId, total_bytes: u64) -> LedgerFuture<'_, ()> {
        Box::pin(async move {
            let begun = self.places.begin_pack(record::PackId(pack.0), total_bytes);
            begun.await.map_err(failed)
        })
    }

    fn forget_pack(&self, pack: PackId) -> LedgerFuture<'_, bool> {
        Box::pin(async move {
            let forgotten = self.places.forget_pack(record::PackId(pack.0)).await;
            forgotten.map_err(failed)
        })
    }

    fn has_packs(&self) -> LedgerFuture<'_, bool> {
        Box::pin(async move {
            let packs = self.places.packs(None, 1).await.map_err(failed)?;
            Ok(!packs.is_empty())
        })
    }

    fn settle(&self, pack: PackId, moved: Vec<Moved>) -> LedgerFuture<'_, Settled> {
        Box::pin(async move {
            let moved: Vec<_> = moved
                .into_iter()
                .map(|moved| places::Moved {
                    name: name(moved.key),
                    offset: moved.offset,
                    entry_bytes: moved.entry_bytes,
                })
                .collect();
            let settled = self.places.settle(record::PackId(pack.0), &moved).await;
            let settled = settled.map_err(failed)?;
            Ok(Settled {
                moved: settled.moved,
                dropped: settled.dropped,
                staged_bytes: settled.staged_bytes,
            })
        })
    }

    fn available_bytes(&self) -> Option<u64> {
        self.places.available_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::{DomainId, SystemClock, Tasks};
    use chunkstore::shared::{KnownCycle, SharedOptions, SharedParts, SharedStore};
    use chunkstore::{ChunkStore, Domain};
    use metadata::kv::faulty::{FaultRates, FaultyKv};
    use metadata::kv::memory::MemoryKv;

    use super::*;

    const DOMAIN: Domain = Domain {
        id: DomainId::new(1),
        key: [1; 32],
    };

    fn clock() -> Arc<dyn Clock> {
        Arc::new(SystemClock::new())
    }

    async fn open(kv: Arc<dyn Kv>) -> SharedStore {
        let ledger = KvLedger::new(kv, clock(), Arc::new(Rng::seeded(1)));
        let parts = SharedParts {
            ledger: Arc::new(ledger),
            cycles: Arc::new(KnownCycle::default()),
            objects: None,
            disk: None,
            clock: clock(),
            tasks: Tasks::new(),
        };
        SharedStore::open(parts, SharedOptions::default())
            .await
            .unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn conforms() {
        let store = open(Arc::new(MemoryKv::new(clock()))).await;
        chunkstore::conformance::run(Arc::new(store)).await;
    }

    /// A store that fails in all its ways loses nothing of what was synced, and is heard of only in
    /// errors.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_synced_is_lost_to_a_faulty_store() {
        let inner: Arc<dyn Kv> = Arc::new(MemoryKv::new(clock()));
        let faulty = Arc::new(FaultyKv::new(Arc::clone(&inner), 7, FaultRates::all(60)));
        // Opening may fail, too.
        faulty.set_rates(FaultRates::default());
        let store = open(Arc::<FaultyKv>::clone(&faulty)).await;
        faulty.set_rates(FaultRates::all(60));
        let (mut promised, mut failures) = (Vec::new(), 0);
        for round in 0..60_u32 {
            let contents = (0..5).map(|number| {
                let len = if number == 0 { 200_000 } else { 100 };
                let word = (round * 5 + number).to_be_bytes();
                Bytes::from(blake3::hash(&word).as_bytes().repeat(len / 32))
            });
            let contents: Vec<_> = contents.collect();
            for content in &contents {
                store.put(DOMAIN, content.clone()).await.unwrap();
            }
            let clock = clock();
            let synced = tokio::select! {
                synced = store.sync() => synced.is_ok(),
                () = clock.sleep(Duration::from_secs(20)) => panic!("a sync hangs"),
            };
            if synced {
                promised.extend(contents);
            } else {
                failures += 1;
            }
        }
        assert!(promised.len() > 50, "{failures} of 60 failed");
        let other = open(inner).await;
        for content in promised {
            let id = DOMAIN.chunk_id(&content);
            assert_eq!(other.get(DOMAIN, id).await.unwrap(), content);
        }
    }
}
