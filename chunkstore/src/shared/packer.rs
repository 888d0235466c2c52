//! Brings staged chunks to the object store, behind those who put them.
//!
//! What this process has staged it remembers, and packs when there is enough of it or when it has waited
//! for a while. What another one has staged and left behind is found by looking twice: staged at both looks, and
//! not by this process.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ledger::{ChunkKey, KEYS_MAX, LedgerError, Moved, PackId, STAGE_BYTES_MAX};
use super::objects::{ObjectError, Objects};
use super::pack::{self, Line};
use super::{Shared, entry};
use crate::counters::Counter;

/// Bytes of entries that the backlog keeps in memory. Of more it has the names, and reads them again.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// Pauses after a pack that could not be stored.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// Names of staged chunks that are remembered from one look to the next.
const SEEN_MAX: usize = 1 << 16;

/// What is counted of packing.
#[derive(Debug, Default)]
pub struct PackCounters {
    /// Packs stored.
    pub packs: Counter,
    /// Bytes of them.
    pub bytes: Counter,
    /// Times a pack could not be stored, and waited.
    pub failures: Counter,
    /// Staged chunks of other processes that were taken over.
    pub adopted: Counter,
}

/// What this process has to pack.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    state: Mutex<State>,
    /// Told when there is more.
    more: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    kept_bytes: usize,
    /// All that waits or is under way.
    own: HashSet<ChunkKey>,
}

#[derive(Debug)]
struct Waiting {
    key: ChunkKey,
    len: usize,
    /// None if it has to be read.
    entry: Option<Bytes>,
}

impl Backlog {
    /// Adds a staged chunk.
    pub(super) fn add(&self, key: ChunkKey, entry: Bytes) {
        let mut state = self.state.lock();
        if !state.own.insert(key) {
            return;
        }
        let len = entry.len();
        state.waiting_bytes = state.waiting_bytes.saturating_add(len);
        let is_kept = state.kept_bytes.saturating_add(len) <= KEPT_BYTES_MAX;
        if is_kept {
            state.kept_bytes = state.kept_bytes.saturating_add(len);
        }
        let entry = is_kept.then_some(entry);
        state.waiting.push_back(Waiting { key, len, entry });
        drop(state);
        self.more.notify_one();
    }

    pub(super) fn bytes(&self) -> usize {
        self.state.lock().waiting_bytes
    }

    fn has(&self, key: ChunkKey) -> bool {
        self.state.lock().own.contains(&key)
    }

    /// Takes up to about `bytes`.
    fn take(&self, bytes: usize) -> Vec<Waiting> {
        let mut state = self.state.lock();
        let (mut taken, mut sum) = (Vec::new(), 0_usize);
        while sum < bytes
            && let Some(waiting) = state.waiting.pop_front()
        {
            sum = sum.saturating_add(waiting.len);
            state.waiting_bytes = state.waiting_bytes.saturating_sub(waiting.len);
            if waiting.entry.is_some() {
                state.kept_bytes = state.kept_bytes.saturating_sub(waiting.len);
            }
            taken.push(waiting);
        }
        taken
    }

    /// These are packed, or gone.
    fn done(&self, keys: impl Iterator<Item = ChunkKey>) {
        let mut state = self.state.lock();
        for key in keys {
            state.own.remove(&key);
        }
    }
}

impl Shared {
    /// Packs until shutdown begins. Several run at the same time.
    pub(super) async fn pack_forever(self: Arc<Self>, objects: Arc<Objects>) {
        loop {
            let wanted = self.options.pack_bytes;
            if self.backlog.bytes() < wanted {
                let linger = self.clock.sleep(self.options.linger);
                tokio::pin!(linger);
                loop {
                    tokio::select! {
                        () = self.backlog.more.notified() => {
                            if self.backlog.bytes() >= wanted {
                                break;
                            }
                        }
                        () = &mut linger => break,
                        () = self.tasks.shutdown_begun() => return,
                    }
                }
            }
            let taken = self.backlog.take(wanted);
            if taken.is_empty() {
                continue;
            }
            let keys: Vec<_> = taken.iter().map(|waiting| waiting.key).collect();
            let packed = tokio::select! {
                packed = self.pack(&objects, taken) => packed,
                // Staged chunks stay staged.
                () = self.tasks.shutdown_begun() => return,
            };
            if let Err(error) = packed {
                tracing::warn!(%error, "staged chunks stay in the metadata store for now");
            }
            // What failed is found again as what somebody left behind.
            self.backlog.done(keys.into_iter());
        }
    }

    async fn pack(&self, objects: &Objects, taken: Vec<Waiting>) -> Result<(), LedgerError> {
        let mut entries = Vec::with_capacity(taken.len());
        for Waiting { key, entry, .. } in taken {
            match entry {
                Some(entry) => entries.push((key, entry)),
                None => match self.ledger.read(key).await {
                    Ok(Some((_, Some(entry)))) if entry::is_whole(key, &entry) => {
                        entries.push((key, entry));
                    }
                    Ok(Some((_, None)) | None) => {}
                    // It is in the way of no other, and stays where `check` tells of it.
                    Ok(Some((_, Some(_)))) | Err(LedgerError::Damaged(_)) => {
                        tracing::error!(id = %key.id, "a staged chunk is damaged and not packed");
                    }
                    Err(error) => return Err(error),
                },
            }
        }
        if entries.is_empty() {
            return Ok(());
        }
        let (pack, lines) = self.store_pack(objects, &entries, None).await?;
        let moved: Vec<Moved> = lines
            .iter()
            .map(|line| Moved {
                key: line.key,
                offset: line.offset,
                entry_bytes: line.entry_bytes,
            })
            .collect();
        for part in moved.chunks(KEYS_MAX) {
            let settled = self.ledger.settle(pack, part.to_vec()).await?;
            self.note_staged(settled.staged_bytes);
        }
        for (line, (key, entry)) in lines.iter().zip(entries) {
            self.note_place(pack, line);
            self.keep_on_disk(key, &entry);
        }
        Ok(())
    }

    /// Stores entries as a pack that the ledger knows. Tries until it succeeds, or so many times.
    pub(super) async fn store_pack(
        &self,
        objects: &Objects,
        entries: &[(ChunkKey, Bytes)],
        rounds: Option<u32>,
    ) -> Result<(PackId, Vec<Line>), LedgerError> {
        let pack = objects.new_pack();
        let (bytes, lines) = pack::build(pack, entries);
        let total = lines.iter().map(|line| u64::from(line.entry_bytes)).sum();
        let (mut pause, mut round) = (PAUSE_MIN, 0_u32);
        // It may have been begun and not heard of.
        self.ledger.begin_pack(pack, total).await?;
        loop {
            let error = match objects.put_pack(pack, bytes.clone()).await {
                Ok(()) => {
                    self.pack_counters.packs.increment();
                    self.pack_counters.bytes.add_len(bytes.len());
                    if round > 0 {
                        tracing::info!("the object store takes packs again");
                    }
                    return Ok((pack, lines));
                }
                Err(error) => error,
            };
            self.pack_counters.failures.increment();
            round = round.saturating_add(1);
            let is_last = rounds.is_some_and(|rounds| round >= rounds);
            if is_last || matches!(error, ObjectError::Exists(_)) {
                return Err(LedgerError::Unavailable(error.to_string()));
            }
            if round == 1 {
                let staged = self.staged();
                tracing::warn!(%error, staged, "a pack is not stored; it is tried again");
            }
            self.clock.sleep(pause).await;
            pause = pause.saturating_mul(2).min(PAUSE_MAX);
        }
    }

    /// Looks from time to time for what others have left staged, until shutdown begins.
    pub(super) async fn adopt_forever(self: Arc<Self>) {
        let mut seen = HashSet::new();
        loop {
            match self.look(&seen).await {
                Ok(found) => seen = found,
                Err(error) => tracing::debug!(%error, "look for staged chunks"),
            }
            tokio::select! {
                () = self.clock.sleep(self.options.adopt_after) => {}
                () = self.tasks.shutdown_begun() => return,
            }
        }
    }

    /// Takes over what was staged at the last look already; gives what is staged by others now.
    async fn look(&self, before: &HashSet<ChunkKey>) -> Result<HashSet<ChunkKey>, LedgerError> {
        let (_, staged_bytes) = self.ledger.state().await?;
        self.note_staged(staged_bytes);
        let (mut found, mut after) = (HashSet::new(), None);
        loop {
            if self.backlog.bytes() > KEPT_BYTES_MAX {
                // Enough to do until the next look.
                return Ok(found);
            }
            let page = self.ledger.staged(after, STAGE_BYTES_MAX).await?;
            after = page.chunks.last().map(|(key, _)| *key);
            for (key, entry) in page.chunks {
                if !entry::is_whole(key, &entry) {
                    tracing::error!(id = %key.id, "a staged chunk is damaged and not packed");
                } else if before.contains(&key) && !self.backlog.has(key) {
                    self.pack_counters.adopted.increment();
                    self.backlog.add(key, entry);
                } else if found.len() < SEEN_MAX && !self.backlog.has(key) {
                    found.insert(key);
                }
            }
            if !page.more || after.is_none() {
                return Ok(found);
            }
        }
    }
}
