//! From puts to the ledger.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::ChunkId;
use base::limits::CHUNK_BYTES_MAX;
use bytes::Bytes;
use futures_util::future::{Either, select};
use futures_util::{StreamExt, stream};
use tokio::sync::watch;

use super::Shared;
use super::entry::Entry;
use super::ledger::{ChunkKey, KEYS_MAX, Keep, Kept, KeptAll, Place, STAGE_BYTES_MAX};
use super::objects::Objects;
use super::queue::{Batch, Outcome};
use crate::{ChunkError, Domain};

/// Transactions of one batch under way at the same time.
const TRANSACTIONS_AT_ONCE: usize = 8;

/// Contents up to this length are hashed and compressed where they are given: handing them to another
/// thread costs as much.
const INLINE_BYTES_MAX: usize = 16 * 1024;

impl Shared {
    /// Whether this process itself put or touched the chunk in the current cycle.
    pub(super) fn is_known(&self, key: ChunkKey) -> bool {
        self.known.get(&key) == Some(self.cycles.current()) && self.bad.get(&key).is_none()
    }

    pub(super) async fn put(
        self: &Arc<Self>,
        domain: Domain,
        content: Bytes,
    ) -> Result<ChunkId, ChunkError> {
        let plain_len = content.len();
        if plain_len > CHUNK_BYTES_MAX {
            return Err(ChunkError::TooLarge(plain_len));
        }
        if self.queue.lock().bytes() > self.options.queue_bytes_max {
            self.sync().await?;
        }
        let _permit = self.puts.acquire().await;
        let this = Arc::clone(self);
        let enter = move || this.enter(domain, content);
        let id = if plain_len <= INLINE_BYTES_MAX {
            enter()?
        } else {
            let entered = tokio::task::spawn_blocking(enter).await;
            entered.map_err(|error| ChunkError::Unavailable(format!("store task: {error}")))??
        };
        self.counters.puts.increment();
        self.counters.put_bytes.add_len(plain_len);
        Ok(id)
    }

    fn enter(&self, domain: Domain, content: Bytes) -> Result<ChunkId, ChunkError> {
        let id = domain.chunk_id(&content);
        let key = ChunkKey {
            domain: domain.id,
            id,
        };
        if self.is_known(key) {
            self.counters.dedup_hits.increment();
            return Ok(id);
        }
        let entry = Entry::new(domain, id, content)?;
        self.queue.lock().put(key, entry);
        Ok(id)
    }

    /// Brings all that waits to the ledger, and waits for that and for what is under way already.
    pub(super) async fn sync(self: &Arc<Self>) -> Result<(), ChunkError> {
        let (batch, under_way) = {
            let mut queue = self.queue.lock();
            (queue.take(), queue.under_way())
        };
        if let Some(batch) = batch {
            let this = Arc::clone(self);
            // To its end, also if the caller is gone: others wait for it, too.
            self.tasks.spawn(async move { this.run(batch).await });
        }
        let mut result = Ok(());
        for mut outcome in under_way {
            let ended = match outcome.wait_for(Option::is_some).await {
                Ok(ended) => ended.clone().unwrap_or(Ok(())),
                Err(_) => Err(ChunkError::Unavailable("store task ended".into())),
            };
            result = result.and(ended);
        }
        if result.is_ok() {
            self.counters.syncs.increment();
        }
        result
    }

    async fn run(&self, batch: Batch) {
        let Batch {
            number,
            puts,
            touches,
            outcome,
        } = batch;
        let mut running = Running {
            shared: self,
            number,
            puts: puts.iter().map(|(key, _)| *key).collect(),
            touches: touches.clone(),
            outcome,
            result: None,
        };
        // Staged also if there is no room: they are few.
        let (bad, puts) = puts
            .into_iter()
            .partition(|(key, _)| self.bad.get(key).is_some());
        let replaced = self.run_groups(groups(self.stages(bad), Vec::new())).await;
        let bytes: usize = puts.iter().map(|(_, entry)| entry.bytes.len()).sum();
        let result = match &self.objects {
            Some(objects) if self.is_full_for(bytes) => {
                self.run_past_staging(objects, puts, touches).await
            }
            _ => self.run_groups(groups(self.stages(puts), touches)).await,
        };
        let result = replaced.and(result);
        if let Err(error) = &result {
            tracing::warn!(%error, "chunks are not stored; the next sync tries again");
        }
        running.result = Some(result);
    }

    /// What is to be staged of puts.
    fn stages(&self, puts: Vec<(ChunkKey, Entry)>) -> Vec<(ChunkKey, Keep)> {
        let stage = |(key, entry): (ChunkKey, Entry)| {
            let Entry { bytes, plain_bytes } = entry;
            let entry = bytes;
            let keep = match self.bad.get(&key) {
                Some(bad) => Keep::Replace {
                    bad,
                    entry,
                    plain_bytes,
                },
                None => Keep::Stage { entry, plain_bytes },
            };
            (key, keep)
        };
        puts.into_iter().map(stage).collect()
    }

    /// A read found nothing whole where the ledger said that a chunk is: the next put of it is to store it anew.
    pub(super) fn note_bad(&self, key: ChunkKey, place: Place) {
        self.bad.insert(key, place);
    }

    async fn run_groups(&self, groups: Vec<Vec<(ChunkKey, Keep)>>) -> Result<(), ChunkError> {
        let runs = stream::iter(groups).map(|group| self.keep(group));
        let results: Vec<_> = runs.buffer_unordered(TRANSACTIONS_AT_ONCE).collect().await;
        results.into_iter().collect()
    }

    /// Whether so much more cannot be staged. Says so when that begins and ends.
    fn is_full_for(&self, bytes: usize) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let (staged, staged_max) = (self.staged(), self.options.staging_bytes_max);
        let is_full = staged.saturating_add(bytes) > staged_max;
        if self.is_full.swap(is_full, Ordering::Relaxed) != is_full {
            if is_full {
                tracing::warn!(
                    staged,
                    staged_max,
                    "staging is full: what is written now waits for the object store"
                );
            } else {
                tracing::info!(staged, staged_max, "staging has room again");
            }
        }
        is_full
    }

    /// What a batch does when staging is full: what is there already is only raised, the rest goes into packs
    /// first.
    async fn run_past_staging(
        &self,
        objects: &Objects,
        puts: Vec<(ChunkKey, Entry)>,
        touches: Vec<ChunkKey>,
    ) -> Result<(), ChunkError> {
        let mut left: HashMap<ChunkKey, Entry> = puts.into_iter().collect();
        let touched = touches.clone();
        let run = async {
            self.run_groups(groups(Vec::new(), touches)).await?;
            self.raise_known(&mut left).await?;
            while !left.is_empty() {
                self.pack_some(objects, &mut left).await?;
            }
            Ok(())
        };
        let result = {
            let late = self.clock.sleep(self.options.full_time);
            match select(Box::pin(run), late).await {
                Either::Left((result, _)) => result,
                Either::Right(_) => Err(ChunkError::Unavailable(
                    "staging is full, and the object store takes nothing".into(),
                )),
            }
        };
        let mut queue = self.queue.lock();
        for key in left.into_keys() {
            queue.failed(key);
        }
        if result.is_err() {
            // Whether those of a call that was cut off are raised is not known.
            for key in touched.into_iter().filter(|key| !self.is_known(*key)) {
                queue.touch(key);
            }
        }
        result
    }

    /// Raises what is there of `left`, and takes it away.
    async fn raise_known(&self, left: &mut HashMap<ChunkKey, Entry>) -> Result<(), ChunkError> {
        let keys: Vec<ChunkKey> = left.keys().copied().collect();
        for part in keys.chunks(KEYS_MAX) {
            let touches = part.iter().map(|key| (*key, Keep::Touch)).collect();
            let all = self.ledger.keep(touches).await?;
            self.heard(&all);
            for (key, kept) in part.iter().zip(&all.kept) {
                if *kept == Kept::Found {
                    left.remove(key);
                    self.queue.lock().stored(*key);
                    self.known.insert(*key, all.cycle);
                    self.counters.dedup_hits.increment();
                }
            }
        }
        Ok(())
    }

    /// Puts a pack's worth of `left` into a pack, and takes it away.
    async fn pack_some(
        &self,
        objects: &Objects,
        left: &mut HashMap<ChunkKey, Entry>,
    ) -> Result<(), ChunkError> {
        let (mut entries, mut plain, mut bytes) = (Vec::new(), Vec::new(), 0_usize);
        for (key, entry) in &*left {
            if bytes >= self.options.pack_bytes || entries.len() >= KEYS_MAX {
                break;
            }
            bytes = bytes.saturating_add(entry.bytes.len());
            entries.push((*key, entry.bytes.clone()));
            plain.push(entry.plain_bytes);
        }
        let (pack, lines) = self.store_pack(objects, &entries, Some(1)).await?;
        let keeps = lines.iter().zip(plain).map(|(line, plain_bytes)| {
            let keep = Keep::Packed {
                pack,
                offset: line.offset,
                entry_bytes: line.entry_bytes,
                plain_bytes,
            };
            (line.key, keep)
        });
        let all = self.ledger.keep(keeps.collect()).await?;
        let keys: Vec<_> = entries
            .iter()
            .map(|(key, entry)| (*key, Some(entry.len())))
            .collect();
        self.kept(&keys, &all);
        for (key, entry) in entries {
            left.remove(&key);
            self.keep_on_disk(key, &entry);
        }
        Ok(())
    }

    /// Takes note of what the ledger told.
    fn heard(&self, all: &KeptAll) {
        self.cycles.learn(all.cycle);
        self.note_staged(all.staged_bytes);
    }

    pub(super) fn note_staged(&self, bytes: u64) {
        self.staged_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that are staged, as the ledger said last.
    pub(super) fn staged(&self) -> u64 {
        self.staged_bytes.load(Ordering::Relaxed)
    }

    /// One transaction's part of a batch.
    async fn keep(&self, group: Vec<(ChunkKey, Keep)>) -> Result<(), ChunkError> {
        let keys: Vec<_> = group
            .iter()
            .map(|(key, keep)| (*key, entry_len(keep)))
            .collect();
        let staged: Vec<_> = if self.objects.is_some() {
            group.iter().filter_map(staged_entry).collect()
        } else {
            Vec::new()
        };
        let replaced: Vec<_> = group.iter().filter_map(bad_place).collect();
        match self.ledger.keep(group).await {
            Ok(all) => {
                for (key, bad) in replaced {
                    self.places.remove(&key);
                    if self.bad.get(&key) == Some(bad) {
                        self.bad.remove(&key);
                    }
                }
                self.shared_counters.transactions.increment();
                self.kept(&keys, &all);
                let stored: HashSet<_> = keys
                    .iter()
                    .zip(&all.kept)
                    .filter(|(_, kept)| **kept == Kept::Stored)
                    .map(|((key, _), _)| *key)
                    .collect();
                for (key, entry) in staged {
                    if stored.contains(&key) {
                        self.backlog.add(key, entry);
                    }
                }
                Ok(())
            }
            Err(error) => {
                let mut queue = self.queue.lock();
                for (key, len) in keys {
                    match len {
                        Some(_) => queue.failed(key),
                        None => queue.touch(key),
                    }
                }
                Err(error.into())
            }
        }
    }

    fn kept(&self, keys: &[(ChunkKey, Option<usize>)], all: &KeptAll) {
        self.heard(all);
        for ((key, len), kept) in keys.iter().zip(&all.kept) {
            if len.is_some() {
                self.queue.lock().stored(*key);
            }
            match (kept, len) {
                (Kept::Stored, Some(len)) => self.counters.stored_bytes.add_len(*len),
                (Kept::Found, Some(_)) => self.counters.dedup_hits.increment(),
                (Kept::Missing, _) => {
                    self.shared_counters.missing.increment();
                    let ChunkKey { domain, id } = key;
                    tracing::error!(%domain, %id, "a chunk that a file refers to is not stored");
                    continue;
                }
                (Kept::Stored | Kept::Found, _) => {}
            }
            self.known.insert(*key, all.cycle);
        }
    }
}

/// A batch under way. It ends when this is dropped, also by a panic: then all of it waits again.
struct Running<'a> {
    shared: &'a Shared,
    number: u64,
    puts: Vec<ChunkKey>,
    touches: Vec<ChunkKey>,
    outcome: watch::Sender<Outcome>,
    /// None before its end.
    result: Outcome,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        let result = self.result.take().unwrap_or_else(|| {
            // Those that are stored already are found.
            self.puts.iter().for_each(|key| queue.failed(*key));
            self.touches.iter().for_each(|key| queue.touch(*key));
            Err(ChunkError::Unavailable(
                "a task of the chunk store has ended".into(),
            ))
        });
        queue.ended(self.number);
        drop(queue);
        self.outcome.send_replace(Some(result));
    }
}

/// Where a chunk that is replaced was found to be bad.
fn bad_place((key, keep): &(ChunkKey, Keep)) -> Option<(ChunkKey, Place)> {
    match keep {
        Keep::Replace { bad, .. } => Some((*key, *bad)),
        Keep::Touch | Keep::Stage { .. } | Keep::Packed { .. } => None,
    }
}

/// Cuts a batch into transactions.
fn groups(puts: Vec<(ChunkKey, Keep)>, touches: Vec<ChunkKey>) -> Vec<Vec<(ChunkKey, Keep)>> {
    let (mut groups, mut group, mut bytes) = (Vec::new(), Vec::new(), 0_usize);
    let touches = touches.into_iter().map(|key| (key, Keep::Touch));
    for (key, keep) in puts.into_iter().chain(touches) {
        let len = entry_len(&keep).unwrap_or(0);
        let is_full = group.len() >= KEYS_MAX || bytes.saturating_add(len) > STAGE_BYTES_MAX;
        if is_full && !group.is_empty() {
            groups.push(std::mem::take(&mut group));
            bytes = 0;
        }
        bytes = bytes.saturating_add(len);
        group.push((key, keep));
    }
    if !group.is_empty() {
        groups.push(group);
    }
    groups
}

fn entry_len(keep: &Keep) -> Option<usize> {
    match keep {
        Keep::Touch => None,
        Keep::Stage { entry, .. } | Keep::Replace { entry, .. } => Some(entry.len()),
        Keep::Packed { entry_bytes, .. } => usize::try_from(*entry_bytes).ok(),
    }
}

fn staged_entry((key, keep): &(ChunkKey, Keep)) -> Option<(ChunkKey, Bytes)> {
    match keep {
        Keep::Stage { entry, .. } | Keep::Replace { entry, .. } => Some((*key, entry.clone())),
        Keep::Touch | Keep::Packed { .. } => None,
    }
}
