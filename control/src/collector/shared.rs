//! Collections of chunks that several gateways share.
//!
//! `docs/design/0016-fleet-collection.md` has the rules. One gateway collects at a time; the others tell it what
//! they hold, and are told of the cycle, by [`tell_holds`].

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::{ChunkId, Clock, DomainId, GatewayId, Rng, Tasks};
use chunkstore::shared::SharedStore;
use metadata::collections::{Collections, Preparing, SWEPT_MAX};
use metadata::kv::Kv;
use metadata::kv::held::{Admission, HeldKv};
use metadata::places::{ChunkName, KEYS_MAX, Places};
use metadata::record::cycle::{CycleRecord, Turn};
use metadata::references::References;
use nfs_gateway::Gateway;

use super::marks::Marks;
use super::{CollectError, Collector, Found, PATIENCE};

/// Time between two looks at what the others hold.
const LOOK_AT_OTHERS: Duration = Duration::from_millis(200);

/// Time between two looks at the current cycle: so long a gateway does not know of a new one.
const LOOK_AT_CYCLE: Duration = Duration::from_millis(500);

/// Places of chunks that are read at a time.
const PAGE: usize = 1000;

/// Lets a gateway commit nothing under a hold that a collection has not waited for.
#[derive(Debug)]
pub(crate) struct HoldsOf(SharedStore);

impl HoldsOf {
    pub(crate) fn new(chunks: &SharedStore) -> Self {
        Self(chunks.clone())
    }
}

impl Admission for HoldsOf {
    fn is_asked(&self) -> bool {
        self.0.oldest_hold().is_some()
    }

    fn allows(&self, record: &CycleRecord) -> bool {
        // Holds that are taken from now on are good.
        self.0.learn(record.cycle);
        let allows = self.0.oldest_hold().is_none_or(|it| it >= record.floor);
        if !allows {
            tracing::warn!(
                cycle = record.cycle,
                "a collection has not waited for what was under way here: it begins anew"
            );
        }
        allows
    }
}

/// What collects shared chunks.
#[derive(Debug)]
pub(crate) struct Sharing {
    pub(super) chunks: SharedStore,
    collections: Collections,
    places: Places,
    gateway: Arc<Gateway>,
    rng: Arc<Rng>,
    /// A collection of this gateway may not have ended, and keeps the others waiting.
    is_left: AtomicBool,
    /// Bytes that were live after the last collection.
    live_bytes: AtomicU64,
    /// What this process had stored by then.
    stored_then: AtomicU64,
}

impl Sharing {
    /// Chunks whose places are in `kv`, which commits whatever it is given.
    pub(crate) fn new(
        chunks: SharedStore,
        gateway: Arc<Gateway>,
        (kv, clock, rng): (Arc<dyn Kv>, Arc<dyn Clock>, Arc<Rng>),
    ) -> Self {
        let own = || (Arc::clone(&kv), Arc::clone(&clock), Arc::clone(&rng));
        let (store, time, random) = own();
        Self {
            chunks,
            collections: Collections::new(store, time, random),
            places: Places::new(kv, clock, Arc::clone(&rng)),
            gateway,
            rng,
            // That of the process before.
            is_left: AtomicBool::new(true),
            live_bytes: AtomicU64::new(0),
            stored_then: AtomicU64::new(0),
        }
    }

    /// About how many bytes are stored: what was live, and what this process has stored since.
    pub(super) fn stored_bytes(&self) -> u64 {
        let since = self.chunks.counters().stored_bytes.count();
        let since = since.saturating_sub(self.stored_then.load(Ordering::Relaxed));
        (self.live_bytes.load(Ordering::Relaxed)).saturating_add(since)
    }

    /// Ends what was left of an earlier collection of this gateway. Between two.
    pub(super) async fn end_left(&self) {
        if !self.is_left.load(Ordering::Relaxed) {
            return;
        }
        match self.collections.end_of(self.gateway.id()).await {
            Ok(()) => self.is_left.store(false, Ordering::Relaxed),
            // It is tried again soon.
            Err(error) => tracing::debug!(%error, "end a collection that was left"),
        }
    }

    fn others(&self) -> BTreeSet<GatewayId> {
        let others = self.gateway.others().into_iter();
        let living = others.filter(|peer| !peer.is_dead);
        living.map(|peer| peer.id).collect()
    }

    /// Whether nobody who lives has a hold that is older than `cycle`.
    async fn is_settled(&self, cycle: u64) -> Result<bool, CollectError> {
        if self.chunks.settled() < cycle {
            return Ok(false);
        }
        let others = self.others();
        if others.is_empty() {
            return Ok(true);
        }
        let told = self.collections.settled().await?;
        let mut told = others.iter().map(|id| told.get(id).copied().unwrap_or(0));
        Ok(told.all(|told| told >= cycle))
    }
}

/// What is marked, and what is not yet known to be there.
struct Marking {
    marks: Marks,
    unseen: Vec<ChunkName>,
    missing: u64,
}

impl Marking {
    fn mark(&mut self, domain: DomainId, id: ChunkId) {
        if self.marks.insert(domain, id) {
            self.unseen.push((domain, id));
        }
    }

    /// Looks whether what was marked is there: from so many on.
    async fn look(&mut self, places: &Places, from: usize) -> Result<(), CollectError> {
        while self.unseen.len() >= from.max(1) {
            let some = self.unseen.len().saturating_sub(KEYS_MAX);
            let names = self.unseen.split_off(some);
            let found = places.find(&names).await?;
            for ((_, id), found) in names.iter().zip(found) {
                if found.is_none() {
                    self.missing += 1;
                    tracing::error!(%id, "a chunk that a file refers to is not stored");
                }
            }
        }
        Ok(())
    }
}

impl Collector {
    /// One collection of shared chunks.
    pub(super) async fn collect_shared(
        &self,
        sharing: &Sharing,
        dry_run: bool,
        found: &mut Found,
    ) -> Result<(), CollectError> {
        let turn = Turn {
            gateway: sharing.gateway.id(),
            run: sharing.rng.u64(),
        };
        sharing.is_left.store(true, Ordering::Relaxed);
        let begun = sharing.collections.begin(turn, &sharing.others()).await?;
        begun.map_err(CollectError::Busy)?;
        let collected = self.collect_in_turn(sharing, turn, dry_run, found).await;
        sharing.end_left().await;
        collected
    }

    async fn collect_in_turn(
        &self,
        sharing: &Sharing,
        turn: Turn,
        dry_run: bool,
        found: &mut Found,
    ) -> Result<(), CollectError> {
        let preparing = HeldKv::new(Arc::clone(&self.kv), Arc::new(Preparing(turn)));
        // Commits go now or not before the end: the walk relies on it.
        let store = self.store.through(Arc::new(preparing));
        let leaving = self.expire(&store, dry_run, found).await?;
        let cycle = sharing.collections.begin_cycle(turn).await?;
        sharing.chunks.learn(cycle);
        self.wait_for_holds(sharing, cycle).await?;
        sharing.collections.raise_floor(turn).await?;
        let mut references = References::without(Arc::clone(&self.trees), leaving);
        let read = self.read(sharing, turn, &mut references, found).await;
        if !matches!(&read, Ok(marking) if marking.missing == 0) {
            // It may have stood still, and another has collected what it found.
            sharing.collections.still(turn).await?;
        }
        let marking = read?;
        if marking.missing > 0 {
            return Err(CollectError::Missing(marking.missing));
        }
        if dry_run {
            found.expired_nodes = self.nodes_of_left_out(&mut references).await?;
        }
        drop(references);
        let taking = (!dry_run).then_some(turn);
        self.sweep(sharing, (cycle, taking), &marking.marks, found)
            .await
    }

    async fn wait_for_holds(&self, sharing: &Sharing, cycle: u64) -> Result<(), CollectError> {
        let until = self.clock.monotonic().saturating_add(PATIENCE);
        while !sharing.is_settled(cycle).await? {
            if self.clock.monotonic() > until {
                return Err(CollectError::Unsettled);
            }
            tokio::select! {
                () = self.clock.sleep(LOOK_AT_OTHERS) => {}
                () = self.until.shutdown_begun() => return Err(CollectError::Stopped),
            }
        }
        Ok(())
    }

    /// Marks all that is referred to, and ends the marking.
    async fn read(
        &self,
        sharing: &Sharing,
        turn: Turn,
        references: &mut References,
        found: &mut Found,
    ) -> Result<Marking, CollectError> {
        let mut marking = Marking {
            marks: Marks::new(sharing.rng.u64()),
            unseen: Vec::new(),
            missing: 0,
        };
        let mut walked = HashSet::new();
        loop {
            let mark = |domain, id| marking.mark(domain, id);
            let more = references.next(self.kv.as_ref(), mark).await?;
            found.references = references.counts();
            marking.look(&sharing.places, KEYS_MAX).await?;
            if self.until.is_shutting_down() {
                return Err(CollectError::Stopped);
            }
            if !more {
                let told = sharing.collections.end_marking(turn, &walked).await?;
                if told.is_empty() {
                    break;
                }
                walked.extend(told.iter().copied());
                references.add(told);
            }
            // Calls of clients go first.
            tokio::task::yield_now().await;
        }
        marking.look(&sharing.places, 1).await?;
        Ok(marking)
    }

    /// Counts what lives, and takes the rest if it is to be taken.
    async fn sweep(
        &self,
        sharing: &Sharing,
        (cycle, taking): (u64, Option<Turn>),
        marks: &Marks,
        found: &mut Found,
    ) -> Result<(), CollectError> {
        let (collections, survey) = (&sharing.collections, &mut found.survey);
        let mut after = None;
        loop {
            let page = collections.places(after, PAGE).await?;
            let Some((last, _)) = page.last() else {
                break;
            };
            after = Some(*last);
            let mut dead = Vec::new();
            for ((domain, id), record) in &page {
                let bytes = u64::from(record.entry_bytes);
                if record.cycle >= cycle || marks.contains(*domain, *id) {
                    survey.live_chunks += 1;
                    survey.live_bytes += bytes;
                } else {
                    survey.dead_chunks += 1;
                    survey.dead_bytes += bytes;
                    dead.push((*domain, *id));
                }
            }
            if let Some(turn) = taking {
                for some in dead.chunks(SWEPT_MAX) {
                    let swept = collections.sweep(turn, some).await?;
                    found.freed.freed_bytes += swept.staged_bytes;
                }
            }
            if self.until.is_shutting_down() {
                return Err(CollectError::Stopped);
            }
            tokio::task::yield_now().await;
        }
        let stored = sharing.chunks.counters().stored_bytes.count();
        sharing.stored_then.store(stored, Ordering::Relaxed);
        (sharing.live_bytes).store(survey.live_bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// Begins to take note of the current cycle, and to tell others what is held here.
pub(crate) fn tell_holds(sharing: &Arc<Sharing>, clock: Arc<dyn Clock>, tasks: &Tasks) {
    let (sharing, until) = (Arc::clone(sharing), tasks.clone());
    tasks.spawn(async move {
        let mut told = None;
        loop {
            match sharing.collections.state().await {
                Ok(state) => sharing.chunks.learn(state.cycle),
                Err(error) => tracing::debug!(%error, "read the cycle of collections"),
            }
            let settled = sharing.chunks.settled();
            if told != Some(settled) {
                let id = sharing.gateway.id();
                match sharing.collections.settle(id, settled).await {
                    Ok(()) => told = Some(settled),
                    Err(error) => tracing::debug!(%error, "tell what is held"),
                }
            }
            tokio::select! {
                () = clock.sleep(LOOK_AT_CYCLE) => {}
                () = until.shutdown_begun() => return,
            }
        }
    });
}
