//! Fetching chunks before they are asked for: neighbours in a pack come together.

use std::collections::HashMap;
use std::sync::Arc;

use base::ChunkId;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::sync::watch;

use super::ledger::{ChunkKey, KEYS_MAX, LedgerError, Place};
use super::objects::Objects;
use super::{InPack, Shared};
use crate::{ChunkError, Domain};

/// Bytes between two entries of a pack that are fetched along, rather than with another call.
const GAP_BYTES_MAX: u32 = 128 * 1024;

/// Bytes that are fetched with one call, about.
const RUN_BYTES_MAX: u32 = 2 << 20;

/// Calls of one prefetch at the same time.
const RUNS_AT_ONCE: usize = 8;

/// Bytes that wait to be asked for.
const LANDED_BYTES_MAX: u64 = 64 << 20;

/// What has been fetched and not been asked for, and what is on its way.
#[derive(Debug)]
pub(super) struct Landing {
    landed: Cache<ChunkKey, Bytes, EntryWeighter>,
    coming: Mutex<HashMap<ChunkKey, watch::Receiver<()>>>,
}

#[derive(Clone, Debug)]
struct EntryWeighter;

impl Weighter<ChunkKey, Bytes> for EntryWeighter {
    fn weight(&self, _: &ChunkKey, entry: &Bytes) -> u64 {
        u64::try_from(entry.len()).unwrap_or(u64::MAX)
    }
}

impl Landing {
    pub(super) fn new() -> Self {
        Self {
            landed: Cache::with_weighter(1024, LANDED_BYTES_MAX, EntryWeighter),
            coming: Mutex::default(),
        }
    }

    /// The entry of a chunk that was fetched in advance; waits for one that is on its way. To be verified.
    pub(super) async fn take(&self, key: ChunkKey) -> Option<Bytes> {
        loop {
            let coming = self.coming.lock().get(&key).cloned();
            let Some(mut coming) = coming else {
                break;
            };
            // Ends when whoever fetches it does, gives up, or knows where it is.
            while coming.changed().await.is_ok() {}
        }
        self.landed.remove(&key).map(|(_, entry)| entry)
    }
}

/// Chunks on their way. They are not any more when this is dropped.
struct Coming {
    landing: Arc<Landing>,
    keys: Vec<ChunkKey>,
    _told: watch::Sender<()>,
}

impl Coming {
    /// Marks those of `keys` that are not on their way already.
    fn of(landing: &Arc<Landing>, keys: Vec<ChunkKey>) -> Self {
        let (told, receiver) = watch::channel(());
        let mut coming = landing.coming.lock();
        let mut own = Vec::new();
        for key in keys {
            if !coming.contains_key(&key) && landing.landed.peek(&key).is_none() {
                coming.insert(key, receiver.clone());
                own.push(key);
            }
        }
        drop(coming);
        Self {
            landing: Arc::clone(landing),
            keys: own,
            _told: told,
        }
    }
}

impl Coming {
    /// Those of `run` by themselves, so that who waits for one waits for its run only.
    fn part(&mut self, run: &Run) -> Self {
        let (told, receiver) = watch::channel(());
        let keys: Vec<_> = run.entries.iter().map(|(key, _)| *key).collect();
        let mut coming = self.landing.coming.lock();
        for key in &keys {
            coming.insert(*key, receiver.clone());
        }
        drop(coming);
        self.keys.retain(|key| !keys.contains(key));
        Self {
            landing: Arc::clone(&self.landing),
            keys,
            _told: told,
        }
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        let mut coming = self.landing.coming.lock();
        for key in &self.keys {
            coming.remove(key);
        }
    }
}

/// Neighbours in a pack.
#[derive(Debug)]
struct Run {
    start: u32,
    end: u32,
    entries: Vec<(ChunkKey, InPack)>,
}

/// Puts neighbours together.
fn runs(mut places: Vec<(ChunkKey, InPack)>) -> Vec<Run> {
    places.sort_unstable_by_key(|(_, place)| (place.pack, place.offset));
    let mut runs: Vec<Run> = Vec::new();
    for (key, place) in places {
        let end = place.offset.saturating_add(place.entry_bytes);
        if let Some(run) = runs.last_mut()
            && run
                .entries
                .last()
                .is_some_and(|(_, last)| last.pack == place.pack)
            && place.offset.saturating_sub(run.end) <= GAP_BYTES_MAX
            && end.saturating_sub(run.start) <= RUN_BYTES_MAX
        {
            run.end = run.end.max(end);
            run.entries.push((key, place));
            continue;
        }
        runs.push(Run {
            start: place.offset,
            end,
            entries: vec![(key, place)],
        });
    }
    runs
}

impl Shared {
    /// Fetches chunks that are in packs. What fails is left to whoever asks for it.
    pub(super) async fn prefetch(
        &self,
        domain: Domain,
        ids: Vec<ChunkId>,
    ) -> Result<(), ChunkError> {
        let Some(objects) = self.objects.as_ref().map(Arc::clone) else {
            return Ok(());
        };
        let keys = ids.into_iter().map(|id| ChunkKey {
            domain: domain.id,
            id,
        });
        let on_disk = |key: &ChunkKey| self.disk.as_ref().is_some_and(|disk| disk.has(*key));
        let wanted: Vec<_> = keys.filter(|key| !on_disk(key)).collect();
        let mut coming = Coming::of(&self.landing, wanted);
        let places = self.places_of(&coming.keys).await?;
        let runs: Vec<_> = runs(places)
            .into_iter()
            .map(|run| (coming.part(&run), run))
            .collect();
        // The rest is not in packs.
        drop(coming);
        let objects = &objects;
        let fetches = runs.into_iter().map(|(coming, run)| async move {
            self.fetch_run(objects, run).await;
            drop(coming);
        });
        stream::iter(fetches)
            .buffer_unordered(RUNS_AT_ONCE)
            .for_each(|()| std::future::ready(()))
            .await;
        Ok(())
    }

    /// Where chunks are in packs. Staged ones, and those that are not there, are left out.
    async fn places_of(&self, keys: &[ChunkKey]) -> Result<Vec<(ChunkKey, InPack)>, LedgerError> {
        let (mut places, mut unknown) = (Vec::new(), Vec::new());
        for key in keys {
            match self.places.get(key) {
                Some(place) => places.push((*key, place)),
                None => unknown.push(*key),
            }
        }
        for part in unknown.chunks(KEYS_MAX) {
            let found = self.ledger.find(part.to_vec()).await?;
            for (key, location) in part.iter().zip(found) {
                if let Some(location) = location
                    && let Place::Pack { pack, offset } = location.place
                {
                    let entry_bytes = location.entry_bytes;
                    let place = InPack {
                        pack,
                        offset,
                        entry_bytes,
                    };
                    self.places.insert(*key, place);
                    places.push((*key, place));
                }
            }
        }
        Ok(places)
    }

    async fn fetch_run(&self, objects: &Objects, run: Run) {
        let Some(pack) = run.entries.first().map(|(_, place)| place.pack) else {
            return;
        };
        let at = |offset: u32| usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = match objects.get(pack, at(run.start)..at(run.end)).await {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::debug!(%error, %pack, "read ahead");
                return;
            }
        };
        for (key, place) in run.entries {
            let start = at(place.offset.saturating_sub(run.start));
            let end = start.saturating_add(at(place.entry_bytes));
            if let Some(entry) = bytes.get(start..end) {
                // A copy: a small entry would keep the whole run in memory.
                let entry = Bytes::copy_from_slice(entry);
                self.keep_on_disk(key, &entry);
                self.landing.landed.insert(key, entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base::DomainId;

    use super::*;
    use crate::shared::ledger::PackId;

    fn place(pack: u8, offset: u32, entry_bytes: u32) -> (ChunkKey, InPack) {
        let key = ChunkKey {
            domain: DomainId::new(1),
            id: ChunkId::new([pack; 32]),
        };
        let place = InPack {
            pack: PackId([pack; 16]),
            offset,
            entry_bytes,
        };
        (key, place)
    }

    #[test]
    fn neighbours_come_together() {
        let found = runs(vec![
            place(1, 1000, 100),
            place(2, 0, 100),
            place(1, 0, 1000),
            place(1, 1100 + GAP_BYTES_MAX, 10),
            place(1, 1 << 30, 10),
            place(2, 100, RUN_BYTES_MAX),
        ]);
        let spans: Vec<_> = found
            .iter()
            .map(|run| (run.start, run.end, run.entries.len()))
            .collect();
        let wanted = [
            (0, 1110 + GAP_BYTES_MAX, 3),
            (1 << 30, (1 << 30) + 10, 1),
            (0, 100, 1),
            (100, 100 + RUN_BYTES_MAX, 1),
        ];
        assert_eq!(spans, wanted);
    }
}
