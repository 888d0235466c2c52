//! Collects file content that nothing refers to, in the background and when asked.
//!
//! `docs/design/0002-collection.md` has the rules. Collections run one after the other, on one
//! task: when somebody asks, when space is short, when the chunk store has grown much since the
//! last one, and from time to time. Nothing of a collection survives the process, or needs to.
//!
//! Chunks that several gateways share are collected by one of them (`shared.rs`).

mod expire;
mod marks;
mod shared;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Clock, GatewayId, Rng, Tasks};
use chunkstore::local::{Freed, LocalStore, Marked, Survey, Thoroughness};
use chunkstore::{ChunkError, ChunkStore};
use metadata::collections::CollectionError;
use metadata::kv::{Kv, KvError, Version};
use metadata::references::{ReferenceCounts, ReferenceError, References};
use metadata::store::{Store, StoreError};
use metadata::tree::Trees;
use nfs_gateway::{ChunkTrees, Gateway};
use parking_lot::Mutex;
use tokio::sync::Notify;

use self::shared::tell_holds;
pub(crate) use self::shared::{HoldsOf, Sharing};
use crate::tier::Content;
use crate::types::{Collection, CollectionState, Trigger};

/// Time between two looks at whether a collection is due.
const LOOK: Duration = Duration::from_secs(2);

/// How long jobs that began before a collection may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A collection is followed by no other for this many times its own duration, unless somebody asks,
/// so that they cost a bounded part of the machine however little they gain.
const REST_FACTOR: u32 = 9;

/// Time after one that failed in which none runs that nobody asked for.
const REST_AFTER_FAILURE: Duration = Duration::from_secs(60);

/// Space is short when less than this part of the device can still be used.
const SHORT_PART: u64 = 20;

/// The device is as good as full when less than this part of it can still be used, or less than
/// [`FULL_BYTES`].
const FULL_PART: u64 = 100;
const FULL_BYTES: u64 = 8 << 20;

/// Least time between collections for want of space, unless the device is as good as full: some
/// live with little space for long.
const REST_WHEN_SHORT: Duration = Duration::from_secs(60);

/// Growth of the packs that is worth a look, at least.
const GROWTH_BYTES_MIN: u64 = 256 << 20;

/// A store in which something has changed is collected at least this often.
const INTERVAL: Duration = Duration::from_secs(6 * 3600);

/// Tree nodes that a collection keeps in memory, in bytes. It reads each once, some in advance.
const NODE_CACHE_BYTES: usize = 2 << 20;

/// Collections that are remembered.
const REMEMBERED: usize = 16;

/// Collects.
#[derive(Debug)]
pub(crate) struct Collector {
    kv: Arc<dyn Kv>,
    /// Tells of roots that are copied.
    store: Store,
    chunks: Collected,
    /// The trees in `chunks`, without the cache that calls of clients use.
    trees: Arc<dyn Trees>,
    clock: Arc<dyn Clock>,
    until: Tasks,
    state: Mutex<State>,
    /// Told when somebody asks.
    asked: Notify,
    /// Told when a collection ends.
    ended: Notify,
    counters: Counters,
}

/// What is collected.
#[derive(Clone, Debug)]
pub(crate) enum Collected {
    /// The packs of this data directory.
    Local(Arc<LocalStore>),
    /// Chunks that others use, too.
    Shared(Arc<Sharing>),
}

impl Collected {
    fn nodes(&self) -> Arc<dyn ChunkStore> {
        match self {
            Self::Local(local) => Arc::<LocalStore>::clone(local),
            Self::Shared(sharing) => Arc::new(sharing.chunks.clone()),
        }
    }

    fn stored_bytes(&self) -> u64 {
        match self {
            Self::Local(local) => local.stored_bytes(),
            Self::Shared(sharing) => sharing.stored_bytes(),
        }
    }
}

/// What has been counted since the process began.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) collections: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) micros: AtomicU64,
    pub(crate) freed_bytes: AtomicU64,
    pub(crate) copied_bytes: AtomicU64,
    /// As of the last collection.
    pub(crate) live_bytes: AtomicU64,
}

#[derive(Debug)]
struct State {
    next_run: u64,
    /// What somebody asked for and has not begun.
    queued: Option<Collection>,
    running: Option<Collection>,
    /// Newest first.
    done: VecDeque<Collection>,
    /// The last collection that took what it found, or the start.
    last: Last,
}

/// How things stood after a collection.
#[derive(Clone, Copy, Debug)]
struct Last {
    ended: Duration,
    /// Time after it in which none runs that nobody asked for.
    rest: Duration,
    stored_bytes: u64,
    /// The metadata store's version before it; `None` before the first one.
    version: Option<Version>,
}

/// Why a collection did not come to its end.
#[derive(Debug, thiserror::Error)]
enum CollectError {
    #[error("writes that began before it are not finished: try again later")]
    Unsettled,
    #[error("gateway {} is collecting: try again later", .0.raw())]
    Busy(GatewayId),
    #[error(transparent)]
    Collection(#[from] CollectionError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the server is shutting down")]
    Stopped,
    #[error(
        "{0} chunks that files refer to are not stored, so nothing was removed: stop the server \
         and run `holdfast check`, which names the files"
    )]
    Missing(u64),
    #[error("{0}")]
    References(#[from] ReferenceError),
    #[error("{0}")]
    Chunks(#[from] ChunkError),
    #[error("read the metadata store: {0}")]
    Kv(#[from] KvError),
}

impl CollectError {
    /// Whether a later try may do better.
    fn is_transient(&self) -> bool {
        match self {
            Self::Unsettled | Self::Busy(_) | Self::Stopped | Self::Kv(_) => true,
            Self::Collection(CollectionError::Lost) => true,
            Self::Collection(CollectionError::Store(error)) | Self::Store(error) => {
                matches!(error, StoreError::Unavailable(_))
            }
            Self::References(error) => error.is_transient(),
            Self::Missing(_) | Self::Chunks(_) => false,
        }
    }
}

/// What a collection found and did.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    references: ReferenceCounts,
    survey: Survey,
    freed: Freed,
    /// What policies let go.
    expiry: Expiry,
    /// Nodes that only these commits have; known of a dry run only.
    expired_nodes: u64,
}

/// What policies let go, of all workspaces.
#[derive(Clone, Copy, Debug, Default)]
struct Expiry {
    commits: u64,
    log_entries: u64,
}

impl Collector {
    /// A collector of `chunks`, which `kv` refers to; `store` is what copies roots in it. It ends with
    /// `until`.
    pub(crate) fn new(
        kv: Arc<dyn Kv>,
        store: Store,
        chunks: Collected,
        clock: Arc<dyn Clock>,
        until: Tasks,
    ) -> Arc<Self> {
        let last = Last {
            ended: clock.monotonic(),
            rest: Duration::ZERO,
            stored_bytes: chunks.stored_bytes(),
            version: None,
        };
        let nodes = chunks.nodes();
        Arc::new(Self {
            kv,
            store,
            trees: Arc::new(ChunkTrees::new(nodes, NODE_CACHE_BYTES)),
            chunks,
            clock,
            until,
            state: Mutex::new(State {
                next_run: 1,
                queued: None,
                running: None,
                done: VecDeque::new(),
                last,
            }),
            asked: Notify::new(),
            ended: Notify::new(),
            counters: Counters::default(),
        })
    }

    /// A collector of the content of a server's files, which has begun; `kv` commits whatever it is given.
    pub(crate) fn begin(
        gateway: &Arc<Gateway>,
        kv: Arc<dyn Kv>,
        store: &Store,
        content: &Content,
        (clock, rng, tasks): (&Arc<dyn Clock>, &Arc<Rng>, &Tasks),
    ) -> Arc<Self> {
        let chunks = match content {
            Content::Local(local) => Collected::Local(Arc::clone(local)),
            Content::Shared(shared) => {
                let own = (Arc::clone(&kv), Arc::clone(clock), Arc::clone(rng));
                let sharing = Arc::new(Sharing::new(shared.clone(), Arc::clone(gateway), own));
                tell_holds(&sharing, Arc::clone(clock), tasks);
                Collected::Shared(sharing)
            }
        };
        let collector = Self::new(kv, store.clone(), chunks, Arc::clone(clock), tasks.clone());
        let gateway = Arc::clone(gateway);
        collector.start(move || gateway.is_caretaker());
        collector
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Begins to look for what is due, when `is_its_turn`, and for what somebody asks for.
    fn start(self: &Arc<Self>, is_its_turn: impl Fn() -> bool + Send + Sync + 'static) {
        let collector = Arc::clone(self);
        let work = async move { collector.serve(is_its_turn).await };
        self.until.spawn(work);
    }

    /// Asks for a collection. `None` if one of the other kind, dry or not, waits already.
    pub(crate) fn ask(&self, dry_run: bool) -> Option<Collection> {
        let queued = {
            let mut state = self.state.lock();
            match &state.queued {
                Some(queued) if queued.dry_run == dry_run => queued.clone(),
                Some(_) => return None,
                None => {
                    let queued = state.next(Trigger::Asked, dry_run);
                    state.queued = Some(queued.clone());
                    queued
                }
            }
        };
        self.asked.notify_one();
        Some(queued)
    }

    /// The collections that are known, newest first.
    pub(crate) fn known(&self) -> Vec<Collection> {
        let state = self.state.lock();
        let under_way = state.queued.iter().chain(&state.running);
        under_way.chain(&state.done).cloned().collect()
    }

    /// A collection, when it has ended or after `patience`. `None` if it is not known.
    pub(crate) async fn wait_for(&self, run: u64, patience: Duration) -> Option<Collection> {
        let late = self.clock.sleep(patience);
        tokio::pin!(late);
        loop {
            let ended = self.ended.notified();
            let found = self.known().into_iter().find(|one| one.run == run)?;
            if matches!(found.state, CollectionState::Done | CollectionState::Failed) {
                return Some(found);
            }
            tokio::select! {
                () = ended => {}
                () = &mut late => return Some(found),
                () = self.until.shutdown_begun() => return Some(found),
            }
        }
    }

    async fn serve(&self, is_its_turn: impl Fn() -> bool) {
        loop {
            tokio::select! {
                () = self.asked.notified() => {}
                () = self.clock.sleep(LOOK) => {}
                () = self.until.shutdown_begun() => return,
            }
            if let Collected::Shared(sharing) = &self.chunks {
                sharing.end_left().await;
            }
            let queued = self.state.lock().queued.take();
            let next = match queued {
                Some(queued) => Some(queued),
                None if is_its_turn() => self.due().await,
                None => None,
            };
            if let Some(next) = next {
                self.run(next).await;
            }
            if self.until.is_shutting_down() {
                return;
            }
        }
    }

    /// A collection that nobody asked for, if there is reason for one.
    async fn due(&self) -> Option<Collection> {
        let last = self.state.lock().last;
        let since = self.clock.monotonic().saturating_sub(last.ended);
        let grown = self.chunks.stored_bytes().saturating_sub(last.stored_bytes);
        if since < last.rest {
            return None;
        }
        let room = self.room();
        let wanted = room == Room::Full || room == Room::Short && since >= REST_WHEN_SHORT;
        let trigger = if wanted {
            Trigger::Space
        } else if grown >= GROWTH_BYTES_MIN.max(last.stored_bytes / 2) {
            Trigger::Growth
        } else if since >= INTERVAL {
            Trigger::Interval
        } else {
            return None;
        };
        // Nothing can have been removed without a commit. If the store cannot tell, nothing can be
        // collected either.
        let version = self.kv.begin().read_version().await.ok()?;
        let mut changed = last.version != Some(version);
        if !changed && trigger == Trigger::Interval {
            // Commits grow old without anybody's doing.
            changed = !self.store.workspaces_with_policy().await.ok()?.is_empty();
        }
        changed.then(|| self.state.lock().next(trigger, false))
    }

    fn room(&self) -> Room {
        let Collected::Local(chunks) = &self.chunks else {
            return Room::Enough;
        };
        match (chunks.device_bytes(), chunks.available_bytes()) {
            (Some(device), Some(available)) => Room::of(device, available),
            _ => Room::Enough,
        }
    }

    async fn run(&self, mut this: Collection) {
        this.state = CollectionState::Running;
        self.state.lock().running = Some(this.clone());
        let began = self.clock.monotonic();
        let mut found = Found::default();
        let version = self.kv.begin().read_version().await;
        let result = match version {
            Ok(_) => self.collect(this.dry_run, &mut found).await,
            Err(ref error) => Err(error.clone().into()),
        };
        let ended = self.clock.monotonic();
        let took = ended.saturating_sub(began);
        describe(&mut this, &found, took, self.chunks.stored_bytes());
        self.count(&this, took);
        match &result {
            Ok(()) => {
                this.state = CollectionState::Done;
                if this.freed_bytes > 0 || this.trigger == Trigger::Asked {
                    tracing::info!(run = this.run, trigger = %this.trigger, dry_run = this.dry_run,
                        live_bytes = this.live_bytes, dead_bytes = this.dead_bytes,
                        freed_bytes = this.freed_bytes, millis = this.millis, "collected");
                }
            }
            Err(error) => {
                this.state = CollectionState::Failed;
                this.error = Some(error.to_string());
                this.retry = error.is_transient();
                if !matches!(error, CollectError::Stopped) {
                    self.counters.failures.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(run = this.run, %error, "collection did not end");
                }
            }
        }
        let mut state = self.state.lock();
        if !this.dry_run {
            let failed = this.state == CollectionState::Failed;
            let rest = took * REST_FACTOR;
            state.last = Last {
                ended,
                rest: if failed {
                    rest.max(REST_AFTER_FAILURE)
                } else {
                    rest
                },
                stored_bytes: this.stored_bytes,
                version: version.ok().filter(|_| !this.retry),
            };
        }
        state.running = None;
        state.done.push_front(this);
        state.done.truncate(REMEMBERED);
        drop(state);
        self.ended.notify_waiters();
    }

    fn count(&self, this: &Collection, took: Duration) {
        let add = |counter: &AtomicU64, amount| counter.fetch_add(amount, Ordering::Relaxed);
        let counters = &self.counters;
        add(&counters.collections, 1);
        add(
            &counters.micros,
            u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        );
        add(&counters.freed_bytes, this.freed_bytes);
        add(&counters.copied_bytes, this.copied_bytes);
        if this.live_chunks > 0 || this.dead_chunks > 0 {
            (counters.live_bytes).store(this.live_bytes, Ordering::Relaxed);
        }
    }

    /// One collection. What it has found and done stays in `found`, also after an error.
    async fn collect(&self, dry_run: bool, found: &mut Found) -> Result<(), CollectError> {
        match &self.chunks {
            Collected::Local(chunks) => self.collect_local(chunks, dry_run, found).await,
            Collected::Shared(sharing) => self.collect_shared(sharing, dry_run, found).await,
        }
    }

    async fn collect_local(
        &self,
        chunks: &LocalStore,
        dry_run: bool,
        found: &mut Found,
    ) -> Result<(), CollectError> {
        // Commits go now or not before the end: the walk relies on it.
        let leaving = self.expire(&self.store, dry_run, found).await?;
        // From before the new cycle's holds to the end: whoever copies a root holds.
        let grey = self.store.grey_roots();
        let chunks = LocalStore::clone(chunks);
        let begun = tokio::task::spawn_blocking(move || chunks.begin_collection()).await;
        // It does not panic; and no other collection runs.
        let Ok(Some(begun)) = begun else {
            return Err(CollectError::Unsettled);
        };
        let settled = tokio::select! {
            settled = begun.settled(PATIENCE) => settled,
            () = self.until.shutdown_begun() => return Err(CollectError::Stopped),
        };
        let marking = settled.ok_or(CollectError::Unsettled)?;
        let mut references = References::without(Arc::clone(&self.trees), leaving);
        let (mut missing, mut damaged) = (0_u64, 0_u64);
        loop {
            let more = references
                .next(self.kv.as_ref(), |domain, id| {
                    match marking.mark(domain, id) {
                        Marked::Stored => {}
                        Marked::Damaged => damaged += 1,
                        Marked::Missing => missing += 1,
                    }
                })
                .await?;
            found.references = references.counts();
            if self.until.is_shutting_down() {
                return Err(CollectError::Stopped);
            }
            if !more && !references.add(grey.take()) {
                break;
            }
            // Calls of clients go first.
            tokio::task::yield_now().await;
        }
        if missing > 0 {
            return Err(CollectError::Missing(missing));
        }
        if damaged > 0 {
            tracing::warn!(
                damaged,
                "files refer to damaged chunks: run `holdfast check`"
            );
        }
        if dry_run {
            found.survey = marking.survey();
            found.expired_nodes = self.nodes_of_left_out(&mut references).await?;
            return Ok(());
        }
        let thoroughness = match self.room() {
            Room::Enough => Thoroughness::Usual,
            Room::Short | Room::Full => Thoroughness::High,
        };
        let mut sweep = marking.sweep(thoroughness).await?;
        found.survey = sweep.survey();
        while let Some(freed) = sweep.step().await? {
            found.freed.add(freed);
            if self.until.is_shutting_down() {
                return Err(CollectError::Stopped);
            }
        }
        Ok(())
    }
}

/// How much of the device can still be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Enough,
    Short,
    Full,
}

impl Room {
    fn of(device_bytes: u64, available_bytes: u64) -> Self {
        if available_bytes < FULL_BYTES.max(device_bytes / FULL_PART) {
            Self::Full
        } else if available_bytes < device_bytes / SHORT_PART {
            Self::Short
        } else {
            Self::Enough
        }
    }
}

impl State {
    fn next(&mut self, trigger: Trigger, dry_run: bool) -> Collection {
        let run = self.next_run;
        self.next_run += 1;
        Collection::new(run, trigger, dry_run)
    }
}

fn describe(this: &mut Collection, found: &Found, took: Duration, stored_bytes: u64) {
    let Found {
        references,
        survey,
        freed,
        ..
    } = found;
    this.millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    this.references = references.references;
    this.nodes = references.nodes;
    this.live_chunks = survey.live_chunks;
    this.live_bytes = survey.live_bytes;
    this.dead_chunks = survey.dead_chunks;
    this.dead_bytes = survey.dead_bytes;
    this.freed_bytes = freed.freed_bytes;
    this.copied_bytes = freed.copied_bytes;
    this.packs_removed = freed.packs_removed;
    this.packs_rewritten = freed.packs_rewritten;
    this.packs_without_room = freed.packs_without_room;
    this.stored_bytes = stored_bytes;
    this.expired_commits = found.expiry.commits;
    this.expired_log_entries = found.expiry.log_entries;
    this.expired_nodes = found.expired_nodes;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_judged_by_the_device() {
        let gib = 1 << 30;
        for (device, available, room) in [
            (100 * gib, 6 * gib, Room::Enough),
            (100 * gib, 4 * gib, Room::Short),
            (100 * gib, gib / 2, Room::Full),
            (64 << 20, 9 << 20, Room::Enough),
            (64 << 20, 7 << 20, Room::Full),
            (0, 0, Room::Full),
        ] {
            assert_eq!(Room::of(device, available), room, "{available} of {device}");
        }
    }
}
