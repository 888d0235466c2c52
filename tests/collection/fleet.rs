//! The model test of collections of shared chunks: several processes on one store, each with its own holds, that
//! stand still and go on, die, take each other's sessions, and collect, one call to a store at a time.
//!
//! As in `model.rs` the stores, trees, folds, forks, commits, places, collections and the walk are the real ones. Each
//! rule of `docs/design/0016-fleet-collection.md` can be left out, and then something is lost.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use base::{ChunkId, Clock, DomainId, Epoch, GatewayId, Rng, SessionId, SystemClock, Tasks};
use bytes::Bytes;
use chunkstore::shared::{KnownCycle, SharedOptions, SharedParts, SharedStore};
use chunkstore::{ChunkStore, Domain};
use metadata::collections::{CollectionError, Collections};
use metadata::image::{Block, Usage};
use metadata::keyspace;
use metadata::keyspace::image as keys;
use metadata::kv::held::{Admission, HeldKv};
use metadata::kv::memory::MemoryKv;
use metadata::kv::{Isolation, KeyRange, Kv, KvError, Version};
use metadata::layers::{LayerId, Layers};
use metadata::places::Places;
use metadata::record::block;
use metadata::record::commit::{Provenance, Statistics};
use metadata::record::cycle::{CycleRecord, Turn};
use metadata::record::session::{Identity, OwnerRecord, SessionRecord};
use metadata::record::workspace::{TenantRecord, WorkspaceRecord};
use metadata::references::References;
use metadata::session::{Taker, fold, session_layers, take_over, tree_of};
use metadata::store::{ForkSession, NewCommit, NewWorkspace, OpenSession, Store, WorkspaceInfo};
use nfs_gateway::{ChunkTrees, KvLedger};

use crate::gates::{Gate, GatedChunks, GatedKv, Gates};
use crate::model::{DOMAIN, FILE, FILLERS, Job, SLOTS, TENANT, add, content, slot_key, step};

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

/// What a process has in memory of a session.
#[derive(Debug)]
struct Owned {
    epoch: Epoch,
    generation: u32,
    /// Of the last commit of a flush. `None` if the owner record has to be read.
    version: Option<Version>,
    is_flushing: bool,
    is_folding: bool,
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
    sessions: RefCell<BTreeMap<SessionId, Owned>>,
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
            sessions: RefCell::default(),
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
        let tree = tree_of(&self.trees, record.tenant, &self.tenant, workspace);
        session_layers(id, record, workspace, tree)
    }

    /// Takes a session, from whomever.
    async fn own(&self, id: SessionId) -> Option<()> {
        // One call as far as this is about.
        let kv = self.inner.as_ref();
        let owned = take_over(kv, &self.trees, id, Taker::alone(self.id, self.rng.u64())).await;
        let owned = owned.ok()?;
        let owned = Owned {
            epoch: owned.fence.epoch(),
            generation: owned.session.generation,
            version: None,
            is_flushing: false,
            is_folding: false,
        };
        self.sessions.borrow_mut().insert(id, owned);
        Some(())
    }

    /// What the gateway tells lazily.
    async fn settle(&self) {
        let told = Collections::new(
            Arc::<MemoryKv>::clone(&self.inner),
            clock(),
            Arc::clone(&self.rng),
        );
        let state = told.state().await.unwrap();
        self.shared().learn(state.cycle);
        told.settle(self.id, self.shared().settled()).await.unwrap();
    }

    fn begin_flush(&self, id: SessionId) -> Option<u32> {
        let mut sessions = self.sessions.borrow_mut();
        let owned = sessions.get_mut(&id).filter(|owned| !owned.is_flushing)?;
        owned.is_flushing = true;
        Some(owned.generation)
    }

    fn flushed(&self, id: SessionId, generation: u32) {
        if let Some(owned) = self.sessions.borrow_mut().get_mut(&id) {
            owned.is_flushing = false;
            owned.generation = generation;
        }
    }

    fn lose(&self, id: SessionId) {
        self.sessions.borrow_mut().remove(&id);
    }

    fn version(&self, id: SessionId) -> Option<(Epoch, Option<Version>)> {
        let sessions = self.sessions.borrow();
        sessions.get(&id).map(|owned| (owned.epoch, owned.version))
    }

    fn note(&self, id: SessionId, version: Option<Version>) {
        if let Some(owned) = self.sessions.borrow_mut().get_mut(&id) {
            owned.version = version;
        }
    }

    /// As `Fence::flush`.
    async fn flush(&self, id: SessionId, generation: u32, key: &[u8], value: Option<&Block>) {
        let owner = keyspace::session_owner(id);
        let key = [&keyspace::delta(id, generation), key].concat();
        for _ in 0..20 {
            let Some((epoch, version)) = self.version(id) else {
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
                    return self.lose(id);
                }
            }
            match value {
                Some(block) => txn.set(&key, &[&[1], &*block::encode(block)].concat()),
                None => txn.set(&key, &[0]),
            }
            match txn.commit().await {
                Ok(committed) => {
                    self.note(id, Some(committed.version));
                    break;
                }
                Err(KvError::Outlived) => {
                    add(&self.tally.outlived);
                    return self.lose(id);
                }
                Err(_) => self.note(id, None),
            }
        }
        self.flushed(id, generation);
    }

    async fn write(self: Rc<Self>, id: SessionId, slot: u32, number: u64) -> Option<()> {
        let hold = self.chunks.hold();
        let chunk = self.chunks.put(self.domain(), content(number)).await;
        self.chunks.sync().await.unwrap();
        let generation = self.begin_flush(id)?;
        let block = Block::chunk(chunk.unwrap(), 320);
        self.flush(id, generation, &slot_key(slot), Some(&block))
            .await;
        add(&self.tally.writes);
        drop(hold);
        Some(())
    }

    async fn remove(self: Rc<Self>, id: SessionId, slot: u32) -> Option<()> {
        let generation = self.begin_flush(id)?;
        self.flush(id, generation, &slot_key(slot), None).await;
        Some(())
    }

    async fn freeze(self: Rc<Self>, id: SessionId) -> Option<()> {
        let generation = self.begin_flush(id)?;
        let frozen = self.try_freeze(id, generation).await;
        self.flushed(id, generation + u32::from(frozen == Some(true)));
        frozen.map(|_| ())
    }

    async fn try_freeze(&self, id: SessionId, generation: u32) -> Option<bool> {
        let mut txn = self.kv.begin();
        let owner = keyspace::session_owner(id);
        let found = txn.get(&owner, Isolation::Serializable).await.unwrap()?;
        let owner = OwnerRecord::decode(&found).unwrap();
        if self.version(id)?.0 != owner.epoch {
            self.lose(id);
            return None;
        }
        let key = keyspace::session_meta(id);
        let found = txn.get(&key, Isolation::Serializable).await.unwrap()?;
        let mut record = SessionRecord::decode(&found).unwrap();
        if record.frozen.len() >= FROZEN_MAX || record.generation != generation {
            return Some(false);
        }
        let layer = LayerId {
            session: id,
            generation,
        };
        record.frozen.insert(0, layer);
        record.generation = generation + 1;
        txn.set(&key, &record.encode());
        txn.set(&keyspace::layer_user(id, generation, id), &[]);
        Some(txn.commit().await.is_ok())
    }

    fn begin_fold(&self, id: SessionId) -> Option<Epoch> {
        let mut sessions = self.sessions.borrow_mut();
        let owned = sessions.get_mut(&id).filter(|owned| !owned.is_folding)?;
        owned.is_folding = true;
        Some(owned.epoch)
    }

    fn folded(&self, id: SessionId) {
        if let Some(owned) = self.sessions.borrow_mut().get_mut(&id) {
            owned.is_folding = false;
        }
    }

    /// As `nfs_gateway`'s fold.
    async fn fold(self: Rc<Self>, id: SessionId) -> Option<()> {
        let epoch = self.begin_fold(id)?;
        let folded = self.fold_now(id, epoch).await;
        self.folded(id);
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
        self.begin_fold(id)?;
        let record = self.record(id).await;
        let root = record.and_then(|record| record.base);
        let told = match root {
            Some(root) => self.store.tell_base(self.workspace.id, id, root).await,
            None => Ok(false),
        };
        self.folded(id);
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
        self.sessions.borrow_mut().remove(&id)?;
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
            let more = more.map_err(|error| Ended::Lost(error.to_string()))?;
            let there = self.places.find(&found).await.unwrap();
            if there.iter().any(Option::is_none) {
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

/// A process and what runs in it.
struct Running {
    process: Rc<Process>,
    jobs: Vec<Job>,
    collecting: Option<Collecting>,
    /// It stands still.
    is_stalled: bool,
}

struct World {
    inner: Arc<MemoryKv>,
    running: Vec<Running>,
    rng: Rng,
    living: Living,
    tally: Rc<Tally>,
}

impl World {
    async fn new(seed: u64) -> Self {
        let inner = Arc::new(MemoryKv::new(clock()));
        let rng = Arc::new(Rng::seeded(seed));
        let store = Store::open(Arc::<MemoryKv>::clone(&inner), clock(), rng);
        let new = NewWorkspace {
            name: "w".into(),
            root: (0o777, 0, 0),
        };
        let store = store.await.unwrap();
        store.create_workspace(TENANT, new).await.unwrap();
        let mut world = Self {
            inner,
            running: Vec::new(),
            rng: Rng::seeded(seed + 1000),
            living: Rc::default(),
            tally: Rc::default(),
        };
        for id in 1..=PROCESSES {
            let running = world.start(id, seed * 100 + id).await;
            world.running.push(running);
        }
        for at in 0..2 {
            world.open_session(at).await;
        }
        world
    }

    async fn start(&self, id: u64, seed: u64) -> Running {
        let process = Process::start(&self.inner, (id, seed), (&self.living, &self.tally)).await;
        self.living.borrow_mut().insert(process.id);
        Running {
            process,
            jobs: Vec::new(),
            collecting: None,
            is_stalled: false,
        }
    }

    /// Opens a session whose base has several nodes.
    async fn open_session(&self, at: usize) {
        let process = &self.running[at].process;
        let store = Store::open(
            Arc::<MemoryKv>::clone(&self.inner),
            clock(),
            Arc::clone(&process.rng),
        );
        let open = OpenSession {
            version: None,
            branch: None,
            workspace: "w".into(),
            read_only: false,
            identity: Identity::Passthrough,
            agent: String::new(),
            run: String::new(),
            ttl_seconds: None,
        };
        let opened = store.await.unwrap().open_session(TENANT, open).await;
        let opened = opened.unwrap();
        let id = opened.session.id;
        let mut record = opened.session.record;
        let trees = process.uncached();
        let tree = tree_of(
            &trees,
            record.tenant,
            &process.tenant,
            &process.workspace.record,
        );
        let filler = block::encode(&Block::inline(Bytes::from_static(&[7; 100])));
        let pairs = (0..FILLERS).map(|index| (keys::block(FILE, index), filler.clone()));
        let built = tree.build(pairs).await.unwrap();
        process.shared().sync().await.unwrap();
        record.base = Some(built.root);
        let mut txn = self.inner.begin();
        txn.set(&keyspace::session_meta(id), &record.encode());
        txn.commit().await.unwrap();
        process.own(id).await.unwrap();
    }

    fn pick(&self, below: u64) -> u64 {
        self.rng.u64() % below
    }

    fn index(&self, below: usize) -> usize {
        usize::try_from(self.pick(u64::try_from(below).unwrap())).unwrap()
    }

    /// A session of a process; rather the one that a walk comes to last.
    fn session(&self, process: &Process) -> Option<SessionId> {
        let mut ids: Vec<_> = process.sessions.borrow().keys().copied().collect();
        ids.sort_by_key(|id| keyspace::session_meta(*id));
        match self.pick(2) {
            0 => ids.last().copied(),
            _ => (!ids.is_empty()).then(|| ids[self.index(ids.len())]),
        }
    }

    fn new_job(&self, at: usize) -> Option<Job> {
        let process = Rc::clone(&self.running[at].process);
        let Some(id) = self.session(&process) else {
            return self.take(process);
        };
        let slot = u32::try_from(self.pick(u64::from(SLOTS))).unwrap();
        let count = self.running.iter();
        let count: usize = count.map(|it| it.process.sessions.borrow().len()).sum();
        Some(match self.pick(100) {
            0..30 => Box::pin(process.write(id, slot, self.pick(CONTENTS))),
            30..42 => Box::pin(process.remove(id, slot)),
            42..46 => Box::pin(process.freeze(id)),
            46..66 => Box::pin(async move {
                Rc::clone(&process).freeze(id).await?;
                process.fold(id).await
            }),
            66..80 if count < SESSIONS_MAX => Box::pin(process.fork(id)),
            80..90 if count > 3 => Box::pin(process.close(id)),
            90..94 if self.tally.commits.get() < COMMITS_MAX => Box::pin(process.commit(id)),
            94..97 => return self.take(process),
            _ => return None,
        })
    }

    /// Takes a session that another has.
    fn take(&self, process: Rc<Process>) -> Option<Job> {
        let other = self.index(self.running.len());
        let id = self.session(&self.running[other].process)?;
        Some(Box::pin(async move { process.own(id).await }))
    }

    /// Makes a process stand still, so that it is dead to the others, or go on.
    fn stall(&mut self, at: usize) {
        let stalled = self.running.iter().filter(|it| it.is_stalled).count();
        let running = &mut self.running[at];
        if running.is_stalled {
            running.is_stalled = false;
            self.living.borrow_mut().insert(running.process.id);
        } else if stalled < 2 {
            running.is_stalled = true;
            self.living.borrow_mut().remove(&running.process.id);
            add(&self.tally.stalls);
        }
    }

    async fn crash(&mut self, at: usize) {
        let id = self.running[at].process.id.raw();
        let new = self.start(id, self.rng.u64()).await;
        self.running[at] = new;
        add(&self.tally.crashes);
        // So that there is always somebody who has what is left.
        let listed = self.running[at].process.store.clone();
        let process = Rc::clone(&self.running[at].process);
        let all: Job = Box::pin(async move {
            let listed = listed.sessions(TENANT, None, None, 100).await.ok()?;
            for session in listed {
                process.own(session.id).await;
            }
            Some(())
        });
        self.finish(at, all).await;
    }

    async fn finish(&self, at: usize, mut job: Job) {
        let gate = Arc::clone(&self.running[at].process.gate);
        while step(&gate, &mut job).await.is_none() {}
    }

    async fn step(&mut self) -> Result<(), String> {
        let at = self.index(self.running.len());
        match self.pick(1000) {
            0..3 => {
                self.crash(at).await;
                return self.check().await;
            }
            3..25 => self.stall(at),
            _ if self.running[at].is_stalled => {}
            25..250 => {
                if self.running[at].jobs.len() < JOBS_MAX {
                    let job = self.new_job(at);
                    self.running[at].jobs.extend(job);
                }
            }
            250..300 => self.running[at].process.settle().await,
            300..850 => self.work(at).await,
            _ => return self.collect(at).await,
        }
        Ok(())
    }

    async fn work(&mut self, at: usize) {
        let count = self.running[at].jobs.len();
        if count == 0 {
            return;
        }
        let (which, times) = (self.index(count), 1 << self.pick(4));
        let running = &mut self.running[at];
        for _ in 0..times {
            let job = &mut running.jobs[which];
            if step(&running.process.gate, job).await.is_some() {
                drop(running.jobs.swap_remove(which));
                return;
            }
        }
    }

    async fn collect(&mut self, at: usize) -> Result<(), String> {
        for _ in 0..1 << self.pick(6) {
            let (page, patience) = (1 + self.index(3), [0, 3, 200][self.index(3)]);
            let running = &mut self.running[at];
            let process = &running.process;
            let collecting = running.collecting.get_or_insert_with(|| {
                Box::pin(Rc::clone(process).collect(page, patience)) as Collecting
            });
            if let Some(result) = step(&process.gate, collecting).await {
                running.collecting = None;
                result?;
                return self.check().await;
            }
        }
        Ok(())
    }

    /// All that is referred to is there.
    async fn check(&self) -> Result<(), String> {
        let process = &self.running[0].process;
        let mut references = References::new(Arc::new(process.uncached()));
        loop {
            let mut found = Vec::new();
            let each = |domain: DomainId, id: ChunkId| found.push((domain, id));
            let more = references.next(self.inner.as_ref(), each).await;
            let more = more.map_err(|error| error.to_string())?;
            let there = process.places.find(&found).await.unwrap();
            if let Some((lost, _)) = found.iter().zip(there).find(|(_, it)| it.is_none()) {
                return Err(format!("chunk {} is lost", lost.1));
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Ends all, with whatever zombies still do.
    async fn end(&mut self) -> Result<(), String> {
        for at in 0..self.running.len() {
            let jobs = std::mem::take(&mut self.running[at].jobs);
            for job in jobs {
                self.finish(at, job).await;
            }
            let gate = Arc::clone(&self.running[at].process.gate);
            if let Some(mut collecting) = self.running[at].collecting.take() {
                loop {
                    if let Some(result) = step(&gate, &mut collecting).await {
                        result?;
                        break;
                    }
                }
            }
        }
        self.check().await
    }

    /// Nothing is left when nothing refers to anything.
    async fn remove_all(&mut self) -> Result<(), String> {
        let process = Rc::clone(&self.running[0].process);
        let closing = Rc::clone(&process);
        let close: Job = Box::pin(async move {
            let store = closing.store.clone();
            for session in store.sessions(TENANT, None, None, 100).await.ok()? {
                store.close_session(TENANT, session.id).await.ok()?;
            }
            Some(())
        });
        self.finish(0, close).await;
        let mut txn = self.inner.begin();
        txn.clear_range(&keyspace::all_commits());
        txn.commit().await.unwrap();
        let mut collecting: Collecting = Box::pin(Rc::clone(&process).collect(50, 0));
        loop {
            if let Some(result) = step(&process.gate, &mut collecting).await {
                result?;
                break;
            }
        }
        let left = process.collections.clone();
        let listing: Job = Box::pin(async move {
            let left = left.places(None, 10).await.ok()?;
            left.is_empty().then_some(())
        });
        let mut listing = listing;
        loop {
            if let Some(is_empty) = step(&process.gate, &mut listing).await {
                return is_empty.ok_or_else(|| "something is left".to_owned());
            }
        }
    }
}

/// Runs one world. Gives what was done, or what was lost.
async fn run(seed: u64) -> Result<Rc<Tally>, String> {
    let mut world = World::new(seed).await;
    for number in 0..STEPS {
        let stepped = world.step().await;
        stepped.map_err(|lost| format!("seed {seed}, step {number}: {lost}"))?;
    }
    let ended = world.end().await;
    ended.map_err(|lost| format!("seed {seed}, at the end: {lost}"))?;
    let removed = world.remove_all().await;
    removed.map_err(|left| format!("seed {seed}: {left}"))?;
    Ok(Rc::clone(&world.tally))
}

#[cfg(test)]
mod tests {
    use base::simulation::{Rule, leave_out};

    use super::*;

    #[tokio::test]
    async fn nothing_that_is_referred_to_is_ever_lost() {
        let mut sums = [0; 11];
        for seed in 0..40 {
            let tally = run(seed).await.unwrap_or_else(|lost| panic!("{lost}"));
            let counters = [
                &tally.writes,
                &tally.folds,
                &tally.forks,
                &tally.commits,
                &tally.collections,
                &tally.swept,
                &tally.grey,
                &tally.outlived,
                &tally.lost_turns,
                &tally.stalls,
                &tally.crashes,
            ];
            for (sum, counter) in sums.iter_mut().zip(counters) {
                *sum += counter.get();
            }
        }
        // It has been put to the test.
        assert!(sums.iter().all(|sum| *sum > 20), "{sums:?}");
    }

    /// Whether a world with a rule left out loses something.
    async fn loses(rule: Rule, seeds: u64) -> bool {
        for seed in 0..seeds {
            leave_out(Some(rule));
            let ran = run(seed).await;
            leave_out(None);
            if let Err(lost) = ran {
                return !lost.contains("is left");
            }
        }
        false
    }

    #[tokio::test]
    async fn without_the_floor_something_is_lost() {
        assert!(loses(Rule::Floor, 200).await);
    }

    #[tokio::test]
    async fn without_raising_something_is_lost() {
        assert!(loses(Rule::Raise, 200).await);
    }

    #[tokio::test]
    async fn without_sparing_the_young_something_is_lost() {
        assert!(loses(Rule::Young, 200).await);
    }

    #[tokio::test]
    async fn without_looking_whose_turn_it_is_something_is_lost() {
        assert!(loses(Rule::Turn, 200).await);
    }

    #[tokio::test]
    async fn without_grey_roots_something_is_lost() {
        assert!(loses(Rule::Grey, 400).await);
    }

    #[tokio::test]
    async fn without_looking_for_grey_roots_something_is_lost() {
        assert!(loses(Rule::MarkingEnd, 400).await);
    }
}
