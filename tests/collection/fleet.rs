//! The model test of collections of shared chunks: several processes on one store, each with its own holds, that
//! stand still and go on, die, take each other's sessions, and collect, one call to a store at a time.
//!
//! As in `model.rs` the stores, trees, folds, forks, commits, places, collections and the walk are the real ones. Each
//! rule of `docs/design/0016-fleet-collection.md` can be left out, and then something is lost.

mod world;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashSet};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use base::{ChunkId, Clock, DomainId, Epoch, GatewayId, Rng, SessionId, SystemClock, Tasks};
use chunkstore::shared::{KnownCycle, SharedOptions, SharedParts, SharedStore};
use chunkstore::{ChunkStore, Domain};
use metadata::collections::{CollectionError, Collections};
use metadata::image::{Block, Usage};
use metadata::keyspace;
use metadata::kv::held::{Admission, HeldKv};
use metadata::kv::memory::MemoryKv;
use metadata::kv::{Isolation, KeyRange, Kv, KvError, Version};
use metadata::layers::Layers;
use metadata::places::Places;
use metadata::record::block;
use metadata::record::commit::{Provenance, Statistics};
use metadata::record::cycle::{CycleRecord, Turn};
use metadata::record::session::{OwnerRecord, SessionRecord};
use metadata::record::workspace::{TenantRecord, WorkspaceRecord};
use metadata::references::References;
use metadata::session::{Taker, fold, take_over};
use metadata::store::{ForkSession, NewCommit, Store, WorkspaceInfo};
use nfs_gateway::{ChunkTrees, KvLedger};

use crate::gates::{Gate, GatedChunks, GatedKv, Gates};
use crate::model::{DOMAIN, TENANT, add, content, slot_key};
use crate::owned::{Sessions, freeze_layer, layers_of};

const PROCESSES: u64 = 3;
const SESSIONS_MAX: usize = 8;
const COMMITS_MAX: u64 = 6;
const FROZEN_MAX: usize = 5;
const JOBS_MAX: usize = 5;
const STEPS: u32 = 1200;
/// Few, so that what was removed is soon put again.
const CONTENTS: u64 = 30;

type Collecting = Pin<Box<dyn Future<Output = Result<(), String>>>>;

/// What was done.
#[derive(Debug, Default)]
struct Tally {
    writes: Cell<u64>,
    folds: Cell<u64>,
    forks: Cell<u64>,
    commits: Cell<u64>,
    collections: Cell<u64>,
    swept: Cell<u64>,
    /// Copies that a walk had to be told of.
    grey: Cell<u64>,
    /// Commits that the floor refused.
    outlived: Cell<u64>,
    /// Collections that another took the turn of.
    lost_turns: Cell<u64>,
    stalls: Cell<u64>,
    crashes: Cell<u64>,
}

/// The holds of a process.
#[derive(Debug)]
struct OfHolds(SharedStore);

impl Admission for OfHolds {
    fn is_asked(&self) -> bool {
        self.0.oldest_hold().is_some()
    }

    fn allows(&self, record: &CycleRecord) -> bool {
        self.0.learn(record.cycle);
        self.0.oldest_hold().is_none_or(|it| it >= record.floor)
    }
}

/// Who is not dead to the others.
type Living = Rc<RefCell<BTreeSet<GatewayId>>>;

struct Process {
    id: GatewayId,
    gate: Arc<Gate>,
    inner: Arc<MemoryKv>,
    /// With gates, and with the floor.
    kv: HeldKv,
    /// With gates alone.
    gated: Arc<GatedKv>,
    chunks: Arc<GatedChunks<SharedStore>>,
    trees: ChunkTrees,
    store: Store,
    /// Those that stop at the gate.
    collections: Collections,
    places: Places,
    rng: Arc<Rng>,
    sessions: Sessions,
    workspace: WorkspaceInfo,
    tenant: TenantRecord,
    living: Living,
    tally: Rc<Tally>,
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

fn fork_of() -> ForkSession {
    ForkSession {
        read_only: false,
        identity: None,
        agent: String::new(),
        run: String::new(),
        ttl_seconds: None,
    }
}

impl Process {
    async fn start(
        inner: &Arc<MemoryKv>,
        (id, seed): (u64, u64),
        (living, tally): (&Living, &Rc<Tally>),
    ) -> Rc<Self> {
        let rng = Arc::new(Rng::seeded(seed));
        let shared = SharedStore::open(
            SharedParts {
                ledger: Arc::new(KvLedger::new(
                    Arc::<MemoryKv>::clone(inner),
                    clock(),
                    Arc::clone(&rng),
                )),
                cycles: Arc::new(KnownCycle::default()),
                objects: None,
                disk: None,
                clock: clock(),
                tasks: Tasks::new(),
            },
            SharedOptions::default(),
        );
        let shared = shared.await.unwrap();
        let gate = Arc::new(Gate::default());
        let gates = Gates {
            gate: Arc::clone(&gate),
            deltas_only: false,
        };
        let gated = Arc::new(GatedKv::new(inner.clone(), gates));
        let held = || {
            let admission = Arc::new(OfHolds(shared.clone()));
            HeldKv::new(Arc::<GatedKv>::clone(&gated), admission)
        };
        let store = Store::open(Arc::<MemoryKv>::clone(inner), clock(), Arc::clone(&rng));
        let store = store.await.unwrap();
        let workspace = store.workspace_by_name(TENANT, "w").await.unwrap();
        let tenant = store.tenant(TENANT).await.unwrap();
        let chunks = Arc::new(GatedChunks {
            inner: shared.clone(),
            gate: Arc::clone(&gate),
        });
        Rc::new(Self {
            id: GatewayId::new(id),
            gate,
            inner: Arc::clone(inner),
            kv: held(),
            trees: ChunkTrees::new(Arc::<GatedChunks<SharedStore>>::clone(&chunks), 1 << 20),
            chunks,
            store: store.through(Arc::new(held())).telling_fleet(),
            collections: Collections::new(Arc::<GatedKv>::clone(&gated), clock(), Arc::clone(&rng)),
            places: Places::new(Arc::<MemoryKv>::clone(inner), clock(), Arc::clone(&rng)),
            gated,
            rng,
            sessions: Sessions::default(),
            workspace,
            tenant,
            living: Rc::clone(living),
            tally: Rc::clone(tally),
        })
    }

    fn shared(&self) -> &SharedStore {
        &self.chunks.inner
    }

    fn domain(&self) -> Domain {
        Domain {
            id: DOMAIN,
            key: self.tenant.domain_key,
        }
    }

    async fn record(&self, id: SessionId) -> Option<SessionRecord> {
        let key = keyspace::session_meta(id);
        let found = self.kv.begin().get(&key, Isolation::Snapshot).await;
        Some(SessionRecord::decode(&found.unwrap()?).unwrap())
    }

    fn layers(&self, id: SessionId, record: &SessionRecord) -> Layers {
        let workspace: &WorkspaceRecord = &self.workspace.record;
        layers_of(&self.trees, (&self.tenant, workspace), id, record)
    }

    /// Takes a session, from whomever.
    async fn own(&self, id: SessionId) -> Option<()> {
        // One call as far as this is about.
        let kv = self.inner.as_ref();
        let owned = take_over(kv, &self.trees, id, Taker::alone(self.id, self.rng.u64())).await;
        self.sessions.own(&owned.ok()?);
        Some(())
    }

    fn ungated(&self) -> Collections {
        let inner = Arc::<MemoryKv>::clone(&self.inner);
        Collections::new(inner, clock(), Arc::clone(&self.rng))
    }

    /// What the gateway tells lazily.
    async fn settle(&self) {
        let told = self.ungated();
        let state = told.state().await.unwrap();
        self.shared().learn(state.cycle);
        told.settle(self.id, self.shared().settled()).await.unwrap();
    }

    /// As `Fence::flush`.
    async fn flush(&self, id: SessionId, generation: u32, key: &[u8], value: Option<&Block>) {
        let owner = keyspace::session_owner(id);
        let key = [&keyspace::delta(id, generation), key].concat();
        for _ in 0..20 {
            let Some((epoch, version)) = self.sessions.version(id) else {
                return;
            };
            let mut txn = self.kv.begin();
            if let Some(version) = version {
                let version = version.0 - self.kv.versions_behind();
                txn.set_read_version(Version(version));
                txn.add_read_conflict_range(&KeyRange::key(&owner));
            } else {
                let found = txn.get(&owner, Isolation::Serializable).await.unwrap();
                let found = found.map(|found| OwnerRecord::decode(&found).unwrap());
                if found.is_none_or(|it| (it.gateway, it.epoch) != (self.id, epoch)) {
                    {
                        self.sessions.lose(id);
                        return;
                    }
                }
            }
            match value {
                Some(block) => txn.set(&key, &[&[1], &*block::encode(block)].concat()),
                None => txn.set(&key, &[0]),
            }
            match txn.commit().await {
                Ok(committed) => {
                    self.sessions.note(id, Some(committed.version));
                    break;
                }
                Err(KvError::Outlived) => {
                    add(&self.tally.outlived);
                    {
                        self.sessions.lose(id);
                        return;
                    }
                }
                Err(_) => self.sessions.note(id, None),
            }
        }
        self.sessions.flushed(id, generation);
    }

    async fn write(self: Rc<Self>, id: SessionId, slot: u32, number: u64) -> Option<()> {
        let hold = self.chunks.hold();
        let chunk = self.chunks.put(self.domain(), content(number)).await;
        self.chunks.sync().await.unwrap();
        let generation = self.sessions.begin_flush(id)?;
        let block = Block::chunk(chunk.unwrap(), 320);
        self.flush(id, generation, &slot_key(slot), Some(&block))
            .await;
        add(&self.tally.writes);
        drop(hold);
        Some(())
    }

    async fn remove(self: Rc<Self>, id: SessionId, slot: u32) -> Option<()> {
        let generation = self.sessions.begin_flush(id)?;
        self.flush(id, generation, &slot_key(slot), None).await;
        Some(())
    }

    async fn freeze(self: Rc<Self>, id: SessionId) -> Option<()> {
        let generation = self.sessions.begin_flush(id)?;
        let frozen = self.try_freeze(id, generation).await;
        self.sessions
            .flushed(id, generation + u32::from(frozen == Some(true)));
        frozen.map(|_| ())
    }

    async fn try_freeze(&self, id: SessionId, generation: u32) -> Option<bool> {
        let mut txn = self.kv.begin();
        let owner = keyspace::session_owner(id);
        let found = txn.get(&owner, Isolation::Serializable).await.unwrap()?;
        let owner = OwnerRecord::decode(&found).unwrap();
        if self.sessions.version(id)?.0 != owner.epoch {
            self.sessions.lose(id);
            return None;
        }
        let key = keyspace::session_meta(id);
        let found = txn.get(&key, Isolation::Serializable).await.unwrap()?;
        let mut record = SessionRecord::decode(&found).unwrap();
        if record.frozen.len() >= FROZEN_MAX || record.generation != generation {
            return Some(false);
        }
        freeze_layer(&mut record, id, generation);
        txn.set(&key, &record.encode());
        txn.set(&keyspace::layer_user(id, generation, id), &[]);
        Some(txn.commit().await.is_ok())
    }

    /// As `nfs_gateway`'s fold.
    async fn fold(self: Rc<Self>, id: SessionId) -> Option<()> {
        let epoch = self.sessions.begin_fold(id)?;
        let folded = self.fold_now(id, epoch).await;
        self.sessions.folded(id);
        folded
    }

    async fn fold_now(&self, id: SessionId, epoch: Epoch) -> Option<()> {
        let record = self.record(id).await?;
        if record.frozen.is_empty() {
            return None;
        }
        let hold = self.chunks.hold();
        let layers = self.layers(id, &record);
        let chunks = &self.chunks;
        let touch = move |id| chunks.touch(DOMAIN, id);
        let folded = fold(&self.kv, layers.frozen(), layers.base(), touch).await;
        // Another took the session, and folded it.
        let root = folded.ok()?.root;
        let before = (layers.frozen(), record.base);
        let replaced = self
            .store
            .replace_layers(id, (self.id, epoch), before, root);
        let replaced = replaced.await;
        drop(hold);
        self.tell_outlived(replaced.as_ref().err().map(ToString::to_string));
        add(&self.tally.folds);
        replaced.ok().map(|_| ())
    }

    fn tell_outlived(&self, error: Option<String>) {
        if error.is_some_and(|error| error.contains("has not waited")) {
            add(&self.tally.outlived);
        }
    }

    /// As `Gateway::fork`.
    async fn fork(self: Rc<Self>, id: SessionId) -> Option<()> {
        let hold = self.chunks.hold();
        let opened = self.store.fork_session(TENANT, id, fork_of()).await;
        self.tell_outlived(opened.as_ref().err().map(ToString::to_string));
        drop(hold);
        let opened = opened.ok()?;
        add(&self.tally.forks);
        self.own(opened.session.id).await
    }

    /// A commit of what `Gateway::snapshot` gives.
    async fn commit(self: Rc<Self>, id: SessionId) -> Option<()> {
        let hold = self.chunks.hold();
        self.sessions.begin_fold(id)?;
        let record = self.record(id).await;
        let root = record.and_then(|record| record.base);
        let told = match root {
            Some(root) => self.store.tell_base(self.workspace.id, id, root).await,
            None => Ok(false),
        };
        self.sessions.folded(id);
        if !told.ok()? {
            return None;
        }
        let new = NewCommit {
            tree: root?.name(),
            usage: Usage::default(),
            parents: Vec::new(),
            statistics: Statistics::default(),
            conflicts: 0,
            message: self.rng.u64().to_string(),
            provenance: Provenance::default(),
        };
        let made = self.store.put_commit(self.workspace.id, new).await;
        self.tell_outlived(made.as_ref().err().map(ToString::to_string));
        drop(hold);
        add(&self.tally.commits);
        made.ok().map(|_| ())
    }

    async fn close(self: Rc<Self>, id: SessionId) -> Option<()> {
        self.sessions.lose(id)?;
        let closed = self.store.close_session(TENANT, id).await;
        closed.ok()
    }

    /// As `control`'s collector, which waits less patiently here.
    async fn collect(self: Rc<Self>, page: usize, patience: u32) -> Result<(), String> {
        let turn = Turn {
            gateway: self.id,
            run: self.rng.u64(),
        };
        let living = self.living.borrow().clone();
        let begun = self.collections.begin(turn, &living).await;
        if begun.map_err(|error| error.to_string())?.is_err() {
            return Ok(());
        }
        match self.collect_in_turn(turn, page, patience).await {
            Ok(()) => add(&self.tally.collections),
            Err(Ended::Turn(CollectionError::Lost)) => add(&self.tally.lost_turns),
            Err(Ended::Turn(error)) => return Err(error.to_string()),
            Err(Ended::Lost(lost)) => return Err(lost),
        }
        let ended = self.collections.end(turn).await;
        ended.map_err(|error| error.to_string())
    }

    async fn collect_in_turn(&self, turn: Turn, page: usize, patience: u32) -> Result<(), Ended> {
        let collections = &self.collections;
        let cycle = collections.begin_cycle(turn).await?;
        self.shared().learn(cycle);
        for _ in 0..patience {
            if self.is_settled(cycle).await {
                break;
            }
            self.gate.pass().await;
        }
        // Whether they have or not: those that have not can do no harm.
        collections.raise_floor(turn).await?;
        let mut references = References::with_page(Arc::new(self.uncached()), page);
        let (mut marks, mut walked) = (HashSet::new(), HashSet::new());
        loop {
            let mut found = Vec::new();
            let mark = |domain: DomainId, id: ChunkId| found.push((domain, id));
            let more = references.next(self.gated.as_ref(), mark).await;
            let there = self.places.find(&found).await.unwrap();
            let is_missing = there.iter().any(Option::is_none);
            if more.is_err() || is_missing {
                // It may have stood still, and another has collected what it found.
                self.ungated().still(turn).await?;
            }
            let more = more.map_err(|error| Ended::Lost(error.to_string()))?;
            if is_missing {
                return Err(Ended::Lost("a chunk is missing".to_owned()));
            }
            marks.extend(found);
            if !more {
                let told = collections.end_marking(turn, &walked).await?;
                let grey = &self.tally.grey;
                grey.set(grey.get() + u64::try_from(told.len()).unwrap());
                walked.extend(told.iter().copied());
                if told.is_empty() {
                    break;
                }
                references.add(told);
            }
            self.gate.pass().await;
        }
        let mut after = None;
        loop {
            let places = collections.places(after, page * 2).await.unwrap();
            let Some((last, _)) = places.last() else {
                return Ok(());
            };
            after = Some(*last);
            let mut names: Vec<_> = places.iter().map(|(name, _)| *name).collect();
            names.retain(|name| !marks.contains(name));
            let swept = collections.sweep(turn, &names).await?;
            self.tally.swept.set(self.tally.swept.get() + swept.chunks);
            self.gate.pass().await;
        }
    }

    async fn is_settled(&self, cycle: u64) -> bool {
        let told = self.collections.settled().await.unwrap();
        let living = self.living.borrow().clone();
        let others = living.iter().filter(|id| **id != self.id);
        let mut settled = others.map(|id| told.get(id).copied().unwrap_or(0));
        settled.all(|told| told >= cycle) && self.shared().settled() >= cycle
    }

    /// Trees without gates.
    fn uncached(&self) -> ChunkTrees {
        ChunkTrees::new(Arc::new(self.shared().clone()), 0)
    }
}

/// Why a collection did not come to its end.
enum Ended {
    Turn(CollectionError),
    Lost(String),
}

impl From<CollectionError> for Ended {
    fn from(error: CollectionError) -> Self {
        Self::Turn(error)
    }
}
