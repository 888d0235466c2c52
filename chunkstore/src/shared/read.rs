//! From the ledger, packs and caches to content.

use base::ChunkId;
use bytes::Bytes;

use super::ledger::{ChunkKey, LedgerError, Location, PackId, Place};
use super::objects::ObjectError;
use super::pack::Line;
use super::{InPack, Shared, entry};
use crate::{ChunkError, Domain};

/// How often a read asks again for a chunk that was elsewhere by the time it was read.
const MOVES_MAX: usize = 4;

impl Shared {
    pub(super) async fn get(&self, domain: Domain, id: ChunkId) -> Result<Bytes, ChunkError> {
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
        let landed = self.landing.take(key).await;
        let landed = landed.and_then(|entry| entry::content(domain, id, entry).ok());
        let content = match landed {
            Some(content) => content,
            None => match self.read_disk(domain, key).await {
                Some(content) => content,
                None => self.read(domain, key).await?,
            },
        };
        self.counters.read_bytes.add_len(content.len());
        Ok(content)
    }

    /// What the cache on disk has, if that is right.
    async fn read_disk(&self, domain: Domain, key: ChunkKey) -> Option<Bytes> {
        let disk = self.disk.as_ref()?;
        let entry = disk.get(key).await?;
        match entry::content(domain, key.id, entry) {
            Ok(content) => Some(content),
            Err(error) => {
                tracing::warn!(%error, "a chunk in the cache on disk is dropped");
                disk.drop_damaged(key);
                None
            }
        }
    }

    pub(super) fn keep_on_disk(&self, key: ChunkKey, entry: &Bytes) {
        if let Some(disk) = &self.disk {
            disk.keep(key, entry);
        }
    }

    pub(super) fn note_place(&self, pack: PackId, line: &Line) {
        let place = InPack {
            pack,
            offset: line.offset,
            entry_bytes: line.entry_bytes,
        };
        self.places.insert(line.key, place);
    }

    async fn read(&self, domain: Domain, key: ChunkKey) -> Result<Bytes, ChunkError> {
        let id = key.id;
        if let Some(place) = self.places.get(&key) {
            match self.fetch(domain, key, place).await {
                Err(ChunkError::NotFound(_) | ChunkError::Corrupt(_)) => {
                    // It may have moved.
                    self.places.remove(&key);
                }
                other => return other,
            }
        }
        let mut last = None;
        for _ in 0..MOVES_MAX {
            let found = self.ledger.read(key).await.map_err(|error| match error {
                LedgerError::Damaged(why) => {
                    tracing::error!(%id, why, "a stored chunk is damaged");
                    // If it is the record that is damaged, any put stores it anew.
                    self.note_bad(key, Place::Staged);
                    ChunkError::Corrupt(id)
                }
                other => other.into(),
            })?;
            let (location, entry) = found.ok_or(ChunkError::NotFound(id))?;
            let place = match (location.place, entry) {
                (Place::Staged, Some(entry)) => {
                    let content = entry::content(domain, id, entry);
                    if content.is_err() {
                        tracing::error!(%id, "a staged chunk is damaged");
                        self.note_bad(key, Place::Staged);
                    }
                    return content;
                }
                (Place::Staged, None) => continue,
                (Place::Pack { pack, offset }, _) => in_pack(pack, offset, location),
            };
            if last == Some(place) {
                break;
            }
            last = Some(place);
            match self.fetch(domain, key, place).await {
                Err(ChunkError::NotFound(_)) => {}
                Ok(content) => {
                    self.places.insert(key, place);
                    return Ok(content);
                }
                Err(error) => {
                    if matches!(error, ChunkError::Corrupt(_)) {
                        self.note_bad(key, location.place);
                    }
                    return Err(error);
                }
            }
        }
        if let Some(InPack { pack, offset, .. }) = last {
            self.note_bad(key, Place::Pack { pack, offset });
        }
        tracing::error!(%id, ?last, "the pack of a stored chunk is missing");
        Err(ChunkError::Corrupt(id))
    }

    /// The content at a place. `NotFound` if its object is not there.
    async fn fetch(
        &self,
        domain: Domain,
        key: ChunkKey,
        place: InPack,
    ) -> Result<Bytes, ChunkError> {
        let (id, pack) = (key.id, place.pack);
        let Some(objects) = &self.objects else {
            let what = format!("chunk {id} is in pack {pack}, and no object store is set");
            return Err(ChunkError::Unavailable(what));
        };
        let length = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let start = length(place.offset);
        let range = start..start.saturating_add(length(place.entry_bytes));
        let mut again = true;
        loop {
            let entry = match objects.get(pack, range.clone()).await {
                Ok(entry) => entry,
                Err(ObjectError::Missing(_)) => return Err(ChunkError::NotFound(id)),
                Err(error) => return Err(ChunkError::Unavailable(error.to_string())),
            };
            match entry::content(domain, id, entry.clone()) {
                Ok(content) => {
                    self.keep_on_disk(key, &entry);
                    return Ok(content);
                }
                // It may have been damaged on its way.
                Err(_) if again => again = false,
                Err(error) => {
                    tracing::error!(%id, %pack, "a chunk in a pack is damaged");
                    return Err(error);
                }
            }
        }
    }
}

fn in_pack(pack: PackId, offset: u32, location: Location) -> InPack {
    InPack {
        pack,
        offset,
        entry_bytes: location.entry_bytes,
    }
}
