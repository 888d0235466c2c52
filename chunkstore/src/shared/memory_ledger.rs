//! A ledger in memory, for tests of what stands above it.

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::ledger::{
    ChunkKey, Keep, Kept, KeptAll, Ledger, LedgerError, LedgerFuture, Location, Moved, PackId,
    Place, Settled, StagedPage,
};

/// A ledger that lives as long as the process.
#[derive(Debug, Default)]
pub struct MemoryLedger(Mutex<State>, watch::Sender<bool>);

#[derive(Debug, Default)]
struct State {
    cycle: u64,
    chunks: BTreeMap<ChunkKey, (Location, Option<Bytes>)>,
    packs: BTreeMap<PackId, u64>,
    /// Calls that fail before others are served.
    failing: u32,
    /// Whether the next call panics.
    panics: bool,
}

impl State {
    fn staged_bytes(&self) -> u64 {
        let staged = self.chunks.values().filter(|(_, entry)| entry.is_some());
        staged.map(|(at, _)| u64::from(at.entry_bytes)).sum()
    }

    fn keep(&mut self, keeps: Vec<(ChunkKey, Keep)>) -> Result<KeptAll, LedgerError> {
        let cycle = self.cycle;
        let mut kept = Vec::new();
        for (key, keep) in keeps {
            let bad = match &keep {
                Keep::Replace { bad, .. } => Some(*bad),
                _ => None,
            };
            let found = self.chunks.get_mut(&key);
            if let Some((at, _)) = found.filter(|(at, _)| Some(at.place) != bad) {
                at.cycle = at.cycle.max(cycle);
                kept.push(Kept::Found);
                continue;
            }
            let (place, entry_bytes, plain_bytes, entry) = match keep {
                Keep::Touch => {
                    kept.push(Kept::Missing);
                    continue;
                }
                Keep::Stage { entry, plain_bytes }
                | Keep::Replace {
                    entry, plain_bytes, ..
                } => {
                    let len = u32::try_from(entry.len()).unwrap_or(u32::MAX);
                    (Place::Staged, len, plain_bytes, Some(entry))
                }
                Keep::Packed {
                    pack,
                    offset,
                    entry_bytes,
                    plain_bytes,
                } => {
                    let live = self.packs.get_mut(&pack).ok_or(LedgerError::PackGone)?;
                    *live += u64::from(entry_bytes);
                    let place = Place::Pack { pack, offset };
                    (place, entry_bytes, plain_bytes, None)
                }
            };
            let location = Location {
                place,
                entry_bytes,
                plain_bytes,
                cycle,
            };
            self.chunks.insert(key, (location, entry));
            kept.push(Kept::Stored);
        }
        Ok(KeptAll {
            kept,
            cycle,
            staged_bytes: self.staged_bytes(),
        })
    }

    fn settle(&mut self, pack: PackId, moved: Vec<Moved>) -> Result<Settled, LedgerError> {
        let live = self.packs.get_mut(&pack).ok_or(LedgerError::PackGone)?;
        let mut settled = Settled::default();
        for Moved {
            key,
            offset,
            entry_bytes,
        } in moved
        {
            let place = Place::Pack { pack, offset };
            match self.chunks.get_mut(&key) {
                Some((at, entry @ Some(_))) if at.entry_bytes == entry_bytes => {
                    *entry = None;
                    at.place = place;
                    *live += u64::from(at.entry_bytes);
                    settled.moved += 1;
                }
                Some((at, None)) if at.place == place => settled.moved += 1,
                _ => settled.dropped += 1,
            }
        }
        settled.staged_bytes = self.staged_bytes();
        Ok(settled)
    }
}

impl MemoryLedger {
    /// Lets the next calls fail.
    pub fn fail(&self, calls: u32) {
        self.0.lock().failing = calls;
    }

    /// Lets calls wait, or go on.
    pub fn hold(&self, held: bool) {
        self.1.send_replace(held);
    }

    /// Lets the next call panic.
    pub fn panic_once(&self) {
        self.0.lock().panics = true;
    }

    /// Begins a cycle, as a collection does.
    pub fn begin_cycle(&self) -> u64 {
        let mut state = self.0.lock();
        state.cycle += 1;
        state.cycle
    }

    /// Takes chunks whose records are older than `cycle`, as a collection does with those that nothing
    /// refers to; how many.
    pub fn sweep(&self, cycle: u64) -> usize {
        let mut state = self.0.lock();
        let before = state.chunks.len();
        state.chunks.retain(|_, (at, _)| at.cycle >= cycle);
        before - state.chunks.len()
    }

    /// Where a chunk is.
    #[must_use]
    pub fn location(&self, key: ChunkKey) -> Option<Location> {
        self.0.lock().chunks.get(&key).map(|(at, _)| *at)
    }

    /// The packs, with their live bytes.
    #[must_use]
    pub fn packs(&self) -> Vec<(PackId, u64)> {
        let state = self.0.lock();
        state.packs.iter().map(|(id, live)| (*id, *live)).collect()
    }

    /// Changes what is staged of a chunk.
    pub fn spoil(&self, key: ChunkKey, entry: Bytes) {
        if let Some((_, staged)) = self.0.lock().chunks.get_mut(&key) {
            *staged = Some(entry);
        }
    }

    fn run<'a, T: Send + 'a>(
        &'a self,
        work: impl FnOnce(&mut State) -> Result<T, LedgerError> + Send + 'a,
    ) -> LedgerFuture<'a, T> {
        Box::pin(async move {
            // The sender is there as long as this is.
            drop(self.1.subscribe().wait_for(|held| !held).await);
            let mut state = self.0.lock();
            assert!(!std::mem::take(&mut state.panics), "injected");
            if state.failing > 0 {
                state.failing -= 1;
                return Err(LedgerError::Unavailable("injected".into()));
            }
            work(&mut state)
        })
    }
}

impl Ledger for MemoryLedger {
    fn state(&self) -> LedgerFuture<'_, (u64, u64)> {
        self.run(|state| Ok((state.cycle, state.staged_bytes())))
    }

    fn keep(&self, keeps: Vec<(ChunkKey, Keep)>) -> LedgerFuture<'_, KeptAll> {
        self.run(|state| state.keep(keeps))
    }

    fn find(&self, keys: Vec<ChunkKey>) -> LedgerFuture<'_, Vec<Option<Location>>> {
        self.run(move |state| {
            let found = |key: &ChunkKey| state.chunks.get(key).map(|(at, _)| *at);
            Ok(keys.iter().map(found).collect())
        })
    }

    fn read(&self, key: ChunkKey) -> LedgerFuture<'_, Option<(Location, Option<Bytes>)>> {
        self.run(move |state| Ok(state.chunks.get(&key).cloned()))
    }

    fn staged(&self, after: Option<ChunkKey>, bytes: usize) -> LedgerFuture<'_, StagedPage> {
        self.run(move |state| {
            let (mut page, mut taken) = (StagedPage::default(), 0);
            for (key, (_, entry)) in &state.chunks {
                let Some(entry) = entry.as_ref().filter(|_| after.is_none_or(|it| *key > it))
                else {
                    continue;
                };
                if taken >= bytes && !page.chunks.is_empty() {
                    page.more = true;
                    break;
                }
                taken += entry.len();
                page.chunks.push((*key, entry.clone()));
            }
            Ok(page)
        })
    }

    fn begin_pack(&self, pack: PackId, _: u64) -> LedgerFuture<'_, ()> {
        self.run(move |state| {
            state.packs.entry(pack).or_default();
            Ok(())
        })
    }

    fn forget_pack(&self, pack: PackId) -> LedgerFuture<'_, bool> {
        self.run(move |state| {
            let is_free = state.packs.get(&pack).is_none_or(|live| *live == 0);
            if is_free {
                state.packs.remove(&pack);
            }
            Ok(is_free)
        })
    }

    fn has_packs(&self) -> LedgerFuture<'_, bool> {
        self.run(|state| Ok(!state.packs.is_empty()))
    }

    fn settle(&self, pack: PackId, moved: Vec<Moved>) -> LedgerFuture<'_, Settled> {
        self.run(move |state| state.settle(pack, moved))
    }
}
