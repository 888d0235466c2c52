//! The model test of trees and collections: jobs that write, freeze, fold, fork, commit and close
//! sessions, and collections, one call to a store at a time, in any order, with crashes.
//!
//! The metadata store, the chunk store, trees, folds, forks, commits and the walk over references are
//! the real ones. Their calls stop at a gate, so that whatever else runs may come in between. A job
//! stands for what the gateway does around them; each rule of `docs/design/0002-collection.md` can
//! be left out, and then something is lost.

use std::cell::Cell;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::Poll;

use base::{
    Clock, DomainId, Epoch, GatewayId, InodeId, Rng, SessionId, SystemClock, TenantId, WorkspaceId,
};
use bytes::Bytes;
use chunkstore::local::{LocalOptions, LocalStore, Marked, Thoroughness};
use chunkstore::{ChunkStore, Domain, Hold};
use metadata::image::{Block, Body, Usage};
use metadata::keyspace::{self, image as keys};
use metadata::kv::memory::MemoryKv;
use metadata::kv::{Isolation, Kv};
use metadata::layers::Layers;
use metadata::record::block;
use metadata::record::commit::{Provenance, Statistics};
use metadata::record::session::SessionRecord;
use metadata::record::workspace::{TenantRecord, WorkspaceRecord};
use metadata::references::References;
use metadata::session::{Taker, fold, take_over};
use metadata::store::{ForkSession, NewCommit, NewWorkspace, OpenSession, Store};
use nfs_gateway::ChunkTrees;

use crate::gates::{Gate, GatedChunks, GatedKv, Gates};
use crate::owned::{Sessions, freeze_layer, index, layers_of, pick};

pub(crate) mod keeping;

pub(crate) const TENANT: TenantId = TenantId::DEFAULT;
pub(crate) const DOMAIN: DomainId = DomainId::new(TENANT.raw());
const GATEWAY: GatewayId = GatewayId::new(7);
pub(crate) const FILE: InodeId = InodeId::new(5000);

/// Blocks of the file that are never changed, so that a tree has several nodes.
pub(crate) const FILLERS: u32 = 600;
/// Blocks that are, spread over the file.
pub(crate) const SLOTS: u32 = 6;
/// Few, so that what was removed is soon put again.
const CONTENTS: u64 = 40;
const SESSIONS_MAX: usize = 8;
const COMMITS_MAX: u64 = 5;
const FROZEN_MAX: usize = 5;
const JOBS_MAX: usize = 8;
const STEPS: u32 = 1000;

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// Roots that were copied are not walked.
    GreyRootsNotWalked,
    /// A fork does not hold the chunk store.
    ForkWithoutHold,
    /// A fold does not.
    FoldWithoutHold,
    /// A commit does not.
    CommitWithoutHold,
    /// A fold does not touch what it copies references of.
    FoldWithoutTouch,
    /// Only deltas are walked.
    TreesNotWalked,
}

/// A process: all that a crash ends.
struct Process {
    kv: Arc<GatedKv>,
    /// What the walk over references sees.
    walked: GatedKv,
    chunks: Arc<GatedChunks>,
    trees: ChunkTrees,
    store: Store,
    sessions: Sessions,
    workspace: (WorkspaceId, WorkspaceRecord),
    tenant: TenantRecord,
    mutation: Option<Mutation>,
    tally: Rc<Tally>,
    clock: Arc<keeping::ShiftedClock>,
}

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) writes: Cell<u64>,
    pub(crate) cuts: Cell<u64>,
    pub(crate) folds: Cell<u64>,
    pub(crate) forks: Cell<u64>,
    pub(crate) commits: Cell<u64>,
    pub(crate) collections: Cell<u64>,
    /// Copies that a walk had to be told of.
    pub(crate) grey: Cell<u64>,
    pub(crate) crashes: Cell<u64>,
    /// Commits that were let go.
    pub(crate) expired: Cell<u64>,
    /// Sessions that were opened at commits.
    pub(crate) opened: Cell<u64>,
}

pub(crate) fn add(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// `None` if the job came to nothing, as it may: another one won, or its session is gone.
pub(crate) type Job = Pin<Box<dyn Future<Output = Option<()>>>>;
type Collecting = Pin<Box<dyn Future<Output = Result<(), String>>>>;

pub(crate) fn content(number: u64) -> Bytes {
    let rng = Rng::seeded(number + 1);
    (0..40).flat_map(|_| rng.u64().to_be_bytes()).collect()
}

pub(crate) fn slot_key(slot: u32) -> Vec<u8> {
    keys::block(FILE, slot * (FILLERS / SLOTS) + 1)
}

fn open_local(dir: &Path) -> Option<LocalStore> {
    let options = LocalOptions {
        pack_bytes: 0,
        reserve_bytes: 0,
        ..LocalOptions::default()
    };
    LocalStore::open(dir, options, Arc::new(SystemClock::new())).ok()
}

impl Process {
    fn domain(&self) -> Domain {
        Domain {
            id: DOMAIN,
            key: self.tenant.domain_key,
        }
    }

    fn hold_unless(&self, mutation: Mutation) -> Hold {
        if self.mutation == Some(mutation) {
            return Hold::none();
        }
        self.chunks.hold()
    }

    async fn record(&self, id: SessionId) -> Option<SessionRecord> {
        let key = keyspace::session_meta(id);
        let found = self.kv.begin().get(&key, Isolation::Snapshot).await;
        Some(SessionRecord::decode(&found.unwrap()?).unwrap())
    }

    fn layers(&self, id: SessionId, record: &SessionRecord) -> Layers {
        let workspace = &self.workspace.1;
        layers_of(&self.trees, (&self.tenant, workspace), id, record)
    }

    async fn own(&self, id: SessionId) -> Option<()> {
        // One call as far as this is about.
        let kv = self.kv.inner();
        let owned = take_over(kv, &self.trees, id, Taker::alone(GATEWAY, 1)).await;
        self.sessions.own(&owned.ok()?);
        Some(())
    }

    /// Writes to the open layer, unless the session has been closed.
    async fn flush(&self, id: SessionId, generation: u32, key: &[u8], value: Option<&Block>) {
        let mut txn = self.kv.begin();
        let owner = keyspace::session_owner(id);
        let found = txn.get(&owner, Isolation::Serializable).await.unwrap();
        if found.is_some() {
            let key = [&keyspace::delta(id, generation), key].concat();
            match value {
                Some(block) => txn.set(&key, &[&[1], &*block::encode(block)].concat()),
                None => txn.set(&key, &[0]),
            }
            // A conflict is the end of the session.
            drop(txn.commit().await);
        }
        self.sessions.flushed(id, generation);
    }

    async fn write(self: Rc<Self>, id: SessionId, slot: u32, number: u64) -> Option<()> {
        let hold = self.chunks.hold();
        let chunk = self.chunks.put(self.domain(), content(number)).await;
        self.chunks.sync().await.unwrap();
        let generation = self.sessions.begin_flush(id)?;
        let block = Block::chunk(chunk.unwrap(), 320);
        let key = slot_key(slot);
        self.flush(id, generation, &key, Some(&block)).await;
        add(&self.tally.writes);
        drop(hold);
        Some(())
    }

    /// Makes a block shorter: copies its reference into the open layer, without touching it.
    async fn cut(self: Rc<Self>, id: SessionId, slot: u32) -> Option<()> {
        let generation = self.sessions.begin_flush(id)?;
        let shown = self.shown(id, &slot_key(slot)).await;
        if let Some(mut block) = shown
            && let Body::Chunk { bytes, .. } = block.body
            && bytes > 1
        {
            block.cut(bytes - 1);
            let key = slot_key(slot);
            self.flush(id, generation, &key, Some(&block)).await;
            add(&self.tally.cuts);
        }
        self.sessions.flushed(id, generation);
        Some(())
    }

    /// What the session shows, as it has it in memory.
    async fn shown(&self, id: SessionId, key: &[u8]) -> Option<Block> {
        loop {
            let record = self.record(id).await?;
            let txn = self.kv.begin();
            let value = self.layers(id, &record).get(txn.as_ref(), key).await;
            // A fold may have replaced what was read.
            if self.record(id).await? == record {
                return Some(block::decode(&value.unwrap()?).unwrap());
            }
        }
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
        let key = keyspace::session_meta(id);
        let found = txn.get(&key, Isolation::Serializable).await.unwrap()?;
        let mut record = SessionRecord::decode(&found).unwrap();
        if record.frozen.len() >= FROZEN_MAX {
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
        let hold = self.hold_unless(Mutation::FoldWithoutHold);
        let layers = self.layers(id, &record);
        let touches = self.mutation != Some(Mutation::FoldWithoutTouch);
        let chunks = &self.chunks;
        let touch = move |id| {
            if touches {
                chunks.touch(DOMAIN, id);
            }
        };
        let folded = fold(self.kv.as_ref(), layers.frozen(), layers.base(), touch).await;
        // The session was closed under it.
        let root = folded.ok()?.root;
        let before = (layers.frozen(), record.base);
        let replaced = self
            .store
            .replace_layers(id, (GATEWAY, epoch), before, root);
        let replaced = replaced.await;
        drop(hold);
        add(&self.tally.folds);
        replaced.ok().map(|_| ())
    }

    /// As `Gateway::fork`.
    async fn fork(self: Rc<Self>, id: SessionId) -> Option<()> {
        let fork = ForkSession {
            read_only: false,
            identity: None,
            agent: String::new(),
            run: String::new(),
            ttl_seconds: None,
        };
        let hold = self.hold_unless(Mutation::ForkWithoutHold);
        let opened = self.store.fork_session(TENANT, id, fork).await.ok()?;
        drop(hold);
        add(&self.tally.forks);
        self.own(opened.session.id).await
    }

    /// A commit of what `Gateway::snapshot` gives.
    async fn commit(self: Rc<Self>, id: SessionId) -> Option<()> {
        let hold = self.hold_unless(Mutation::CommitWithoutHold);
        self.sessions.begin_fold(id)?;
        let record = self.record(id).await;
        if let Some(root) = record.as_ref().and_then(|record| record.base) {
            self.store.copying(self.workspace.0, root);
        }
        self.sessions.folded(id);
        let new = NewCommit {
            tree: record?.base?.name(),
            usage: Usage::default(),
            parents: Vec::new(),
            statistics: Statistics::default(),
            conflicts: 0,
            message: String::new(),
            provenance: Provenance::default(),
        };
        let made = self.store.put_commit(self.workspace.0, new).await;
        drop(hold);
        add(&self.tally.commits);
        made.ok().map(|_| ())
    }

    async fn close(self: Rc<Self>, id: SessionId) -> Option<()> {
        self.sessions.lose(id)?;
        let closed = self.store.close_session(TENANT, id).await;
        closed.ok()
    }

    /// As `control`'s collector.
    async fn collect(self: Rc<Self>, page: usize) -> Result<(), String> {
        Rc::clone(&self).expire().await;
        let grey = self.store.grey_roots();
        let mut begun = self.chunks.inner.begin_collection().unwrap();
        let marking = loop {
            match begun.try_settled() {
                Ok(marking) => break marking,
                Err(waiting) => begun = waiting,
            }
            self.chunks.gate.pass().await;
        };
        let trees = ChunkTrees::new(Arc::new(self.chunks.inner.clone()), 0);
        let mut references = References::with_page(Arc::new(trees), page);
        let mut missing = None;
        loop {
            let mark = |domain, id| {
                if marking.mark(domain, id) == Marked::Missing {
                    missing = Some(id);
                }
            };
            let more = references.next(&self.walked, mark).await;
            let more = more.map_err(|error| error.to_string())?;
            if !more {
                let copied = match self.mutation {
                    Some(Mutation::GreyRootsNotWalked | Mutation::TreesNotWalked) => Vec::new(),
                    _ => grey.take(),
                };
                self.tally
                    .grey
                    .set(self.tally.grey.get() + u64::try_from(copied.len()).unwrap());
                if !references.add(copied) {
                    break;
                }
            }
            self.chunks.gate.pass().await;
        }
        if let Some(id) = missing {
            return Err(format!("chunk {id} is missing"));
        }
        let mut sweep = marking.sweep(Thoroughness::High).await.unwrap();
        self.chunks.gate.pass().await;
        while sweep.step().await.unwrap().is_some() {
            self.chunks.gate.pass().await;
        }
        add(&self.tally.collections);
        Ok(())
    }
}

/// Polls a job until it comes to the gate, or to its end.
pub(crate) async fn step<T>(gate: &Gate, job: &mut Pin<Box<dyn Future<Output = T>>>) -> Option<T> {
    std::future::poll_fn(|cx| {
        gate.0.store(false, SeqCst);
        match job.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if gate.0.load(SeqCst) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

struct World<'a> {
    dir: &'a Path,
    inner: Arc<MemoryKv>,
    process: Option<Rc<Process>>,
    rng: Rng,
    jobs: Vec<Job>,
    collecting: Option<Collecting>,
    tally: Rc<Tally>,
    mutation: Option<Mutation>,
    clock: Arc<keeping::ShiftedClock>,
}

impl<'a> World<'a> {
    async fn new(dir: &'a Path, seed: u64, mutation: Option<Mutation>) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let inner = Arc::new(MemoryKv::new(Arc::clone(&clock)));
        let rng = Arc::new(Rng::seeded(seed));
        let store = Store::open(Arc::<MemoryKv>::clone(&inner), clock, rng);
        let store = store.await.unwrap();
        let new = NewWorkspace {
            name: "w".into(),
            root: (0o777, 0, 0),
        };
        let made = store.create_workspace(TENANT, new).await.unwrap();
        keeping::set_policy(&store, made.id).await;
        let mut world = Self {
            dir,
            inner,
            process: None,
            rng: Rng::seeded(seed + 1000),
            jobs: Vec::new(),
            collecting: None,
            tally: Rc::default(),
            mutation,
            clock: Arc::default(),
        };
        world.start(seed).await;
        for _ in 0..2 {
            world.open_session().await;
        }
        world
    }

    fn process(&self) -> Rc<Process> {
        Rc::clone(self.process.as_ref().unwrap())
    }

    /// Starts a process, which takes over all sessions.
    async fn start(&mut self, seed: u64) {
        let gate = Arc::new(Gate::default());
        let gated = |deltas_only| {
            let gate = Arc::clone(&gate);
            GatedKv::new(self.inner.clone(), Gates { gate, deltas_only })
        };
        let kv = Arc::new(gated(false));
        let walked = gated(self.mutation == Some(Mutation::TreesNotWalked));
        let clock = Arc::<keeping::ShiftedClock>::clone(&self.clock);
        let rng = Arc::new(Rng::seeded(seed + 5));
        let store = Store::open(Arc::<GatedKv>::clone(&kv), clock, rng);
        let store = store.await.unwrap();
        // The one before may have a read under way, whose result nobody wants.
        let local = loop {
            match open_local(self.dir) {
                Some(local) => break local,
                None => tokio::task::yield_now().await,
            }
        };
        let chunks = Arc::new(GatedChunks { inner: local, gate });
        let workspace = store.workspace_by_name(TENANT, "w").await.unwrap();
        let tenant = store.tenant(TENANT).await.unwrap();
        let process = Rc::new(Process {
            walked,
            kv,
            trees: ChunkTrees::new(Arc::<GatedChunks>::clone(&chunks), 1 << 20),
            chunks,
            store,
            sessions: Sessions::default(),
            workspace: (workspace.id, workspace.record),
            tenant,
            mutation: self.mutation,
            tally: Rc::clone(&self.tally),
            clock: Arc::clone(&self.clock),
        });
        let listed = process.store.sessions(TENANT, None, None, 100).await;
        for session in listed.unwrap() {
            process.own(session.id).await.unwrap();
        }
        self.process = Some(process);
    }

    /// Opens a session whose base has several nodes.
    async fn open_session(&self) {
        let process = self.process();
        let open = OpenSession::new("w");
        let opened = process.store.open_session(TENANT, open).await.unwrap();
        let id = opened.session.id;
        let mut record = opened.session.record;
        let layers = process.layers(id, &record);
        let filler = block::encode(&Block::inline(Bytes::from_static(&[7; 100])));
        let pairs = (0..FILLERS).map(|index| (keys::block(FILE, index), filler.clone()));
        let hold = process.chunks.hold();
        let built = layers.base().tree().build(pairs).await.unwrap();
        record.base = Some(built.root);
        let mut txn = process.kv.begin();
        txn.set(&keyspace::session_meta(id), &record.encode());
        txn.commit().await.unwrap();
        drop(hold);
        process.own(id).await.unwrap();
    }

    fn pick(&self, below: u64) -> u64 {
        pick(&self.rng, below)
    }

    fn index(&self, below: usize) -> usize {
        index(&self.rng, below)
    }

    /// Any session; rather the one that a walk comes to last, whose forks it may have passed.
    fn session(&self) -> Option<SessionId> {
        let process = self.process();
        process.sessions.pick(&self.rng)
    }

    fn new_job(&self) -> Option<Job> {
        let (process, id) = (self.process(), self.session()?);
        let slot = u32::try_from(self.pick(u64::from(SLOTS))).unwrap();
        let count = process.sessions.len();
        Some(match self.pick(100) {
            0..25 => Box::pin(process.write(id, slot, self.pick(CONTENTS))),
            25..30 => Box::pin(process.cut(id, slot)),
            30..40 => Box::pin(process.remove(id, slot)),
            40..45 => Box::pin(process.freeze(id)),
            45..70 => Box::pin(async move {
                Rc::clone(&process).freeze(id).await?;
                process.fold(id).await
            }),
            70..82 if count < SESSIONS_MAX => Box::pin(process.fork(id)),
            82..93 if count > 3 => Box::pin(process.close(id)),
            93..96 if self.tally.commits.get() < COMMITS_MAX + self.tally.expired.get() => {
                Box::pin(process.commit(id))
            }
            96..98 if count < SESSIONS_MAX => Box::pin(process.open_at(self.rng.u64())),
            // More than the rules allow: also while references are read.
            98 => Box::pin(async move {
                process.expire().await;
                Some(())
            }),
            _ => return None,
        })
    }

    async fn step(&mut self, number: u32) -> Result<(), String> {
        let gate = Arc::clone(&self.process().chunks.gate);
        match self.pick(1000) {
            0..3 => {
                self.crash(u64::from(number)).await;
                self.check().await
            }
            3..250 => {
                if self.jobs.len() < JOBS_MAX {
                    self.jobs.extend(self.new_job());
                }
                Ok(())
            }
            250..920 => {
                if !self.jobs.is_empty() {
                    let at = self.index(self.jobs.len());
                    for _ in 0..1 << self.pick(4) {
                        if step(&gate, &mut self.jobs[at]).await.is_some() {
                            drop(self.jobs.swap_remove(at));
                            break;
                        }
                    }
                }
                Ok(())
            }
            _ => {
                for _ in 0..1 << self.pick(6) {
                    if self.collecting.is_none() {
                        let page = 1 + self.index(3);
                        self.collecting = Some(Box::pin(self.process().collect(page)));
                    }
                    if let Some(collecting) = &mut self.collecting
                        && let Some(result) = step(&gate, collecting).await
                    {
                        self.collecting = None;
                        result?;
                        self.check().await?;
                    }
                }
                Ok(())
            }
        }
    }

    async fn crash(&mut self, seed: u64) {
        self.jobs.clear();
        self.collecting = None;
        self.process = None;
        self.start(seed).await;
        add(&self.tally.crashes);
    }

    /// All that is referred to is there.
    async fn check(&self) -> Result<(), String> {
        let local = self.process().chunks.inner.clone();
        let trees = ChunkTrees::new(Arc::new(local.clone()), 0);
        let mut references = References::new(Arc::new(trees));
        let mut lost = None;
        let mut each = |domain, id| {
            if !local.contains(domain, id) {
                lost = Some(id);
            }
        };
        loop {
            match references.next(self.inner.as_ref(), &mut each).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        match lost {
            Some(id) => Err(format!("chunk {id} is lost")),
            None => Ok(()),
        }
    }
}

/// Runs one world. Gives what was done, or what was lost.
pub(crate) async fn run(seed: u64, mutation: Option<Mutation>) -> Result<Rc<Tally>, String> {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path(), seed, mutation).await;
    for number in 0..STEPS {
        let stepped = world.step(number).await;
        stepped.map_err(|lost| format!("seed {seed}, step {number}: {lost}"))?;
    }
    world.crash(seed).await;
    world.check().await?;
    if mutation.is_none() {
        world.remove_all(seed).await?;
    }
    Ok(Rc::clone(&world.tally))
}

/// Something that goes on while a collection begins: a job that is stopped after some calls, what is
/// done to its session then, and when the job goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Race {
    /// A fork, which ends before its source is closed.
    Fork,
    /// A commit, whose session is closed before.
    Commit,
    /// A fold, and the session lives on.
    Fold,
}

impl World<'_> {
    async fn finish(&self, job: impl Future<Output = Option<()>> + 'static) {
        let gate = Arc::clone(&self.process().chunks.gate);
        let mut job: Job = Box::pin(job);
        while step(&gate, &mut job).await.is_none() {}
    }

    /// A collection that may begin when a job has made `job_steps` calls, and makes `steps` calls
    /// before the job goes on.
    async fn race(&self, race: Race, job_steps: u32, steps: u32) -> Result<(), String> {
        let process = self.process();
        let gate = Arc::clone(&process.chunks.gate);
        let ids = process.sessions.ids();
        let last = ids.iter().max_by_key(|id| keyspace::session_meta(**id));
        let id = *last.unwrap();
        for slot in 0..3 {
            self.finish(Rc::clone(&process).write(id, slot, 30 + u64::from(slot)))
                .await;
        }
        self.finish(Rc::clone(&process).freeze(id)).await;
        self.finish(Rc::clone(&process).fold(id)).await;
        self.finish(Rc::clone(&process).write(id, 0, 39)).await;
        self.finish(Rc::clone(&process).freeze(id)).await;
        let job = Rc::clone(&process);
        let mut job: Job = match race {
            Race::Fork => Box::pin(job.fork(id)),
            Race::Commit => Box::pin(job.commit(id)),
            Race::Fold => Box::pin(job.fold(id)),
        };
        let mut is_done = false;
        for _ in 0..job_steps {
            is_done = is_done || step(&gate, &mut job).await.is_some();
        }
        if race == Race::Commit {
            self.finish(Rc::clone(&process).close(id)).await;
        }
        let mut collecting: Collecting = Box::pin(Rc::clone(&process).collect(1));
        let mut collected = None;
        for _ in 0..steps {
            if collected.is_none() {
                collected = step(&gate, &mut collecting).await;
            }
        }
        while !is_done {
            is_done = step(&gate, &mut job).await.is_some();
        }
        if race == Race::Fork {
            self.finish(Rc::clone(&process).close(id)).await;
        }
        while collected.is_none() {
            collected = step(&gate, &mut collecting).await;
        }
        collected.transpose()?;
        self.check().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_that_is_referred_to_is_ever_lost() {
        let mut sums = [0; 10];
        for seed in 0..40 {
            let tally = run(seed, None)
                .await
                .unwrap_or_else(|lost| panic!("{lost}"));
            let counters = [
                &tally.writes,
                &tally.cuts,
                &tally.folds,
                &tally.forks,
                &tally.commits,
                &tally.collections,
                &tally.grey,
                &tally.crashes,
                &tally.expired,
                &tally.opened,
            ];
            for (sum, counter) in sums.iter_mut().zip(counters) {
                *sum += counter.get();
            }
        }
        // It has been put to the test.
        assert!(sums.iter().all(|sum| *sum > 40), "{sums:?}");
    }

    /// Whether a world with a rule left out loses something.
    async fn loses(mutation: Mutation, seeds: u64) -> bool {
        for seed in 0..seeds {
            if run(seed, Some(mutation)).await.is_err() {
                return true;
            }
        }
        false
    }

    #[tokio::test]
    async fn without_walking_trees_something_is_lost() {
        assert!(loses(Mutation::TreesNotWalked, 20).await);
    }

    #[tokio::test]
    async fn without_a_hold_in_folds_something_is_lost() {
        assert!(loses(Mutation::FoldWithoutHold, 100).await);
    }

    /// In how many orders something is lost: each number of calls that a job makes before a collection
    /// begins, and that the collection makes before the job goes on.
    async fn losses(race: Race, mutation: Option<Mutation>, job_steps: &[u32]) -> u32 {
        let mut losses = 0;
        for job_steps in job_steps {
            for steps in (0..90).step_by(3) {
                let dir = tempfile::tempdir().unwrap();
                let world = World::new(dir.path(), SEED, mutation).await;
                let raced = world.race(race, *job_steps, steps).await;
                losses += u32::from(raced.is_err());
            }
        }
        losses
    }

    /// The walk comes to the fork before the source with this seed.
    const SEED: u64 = 2;
    const ANY: &[u32] = &[0, 1, 2, 3, 9];

    #[tokio::test]
    async fn a_fork_needs_its_hold_and_to_be_told() {
        assert_eq!(losses(Race::Fork, None, ANY).await, 0);
        let mutation = Some(Mutation::GreyRootsNotWalked);
        assert!(losses(Race::Fork, mutation, &[0]).await > 0);
        let mutation = Some(Mutation::ForkWithoutHold);
        // While its transaction runs, behind a look at the source.
        let within = &[4, 5, 6, 7, 8];
        assert!(losses(Race::Fork, mutation, within).await > 0);
        assert_eq!(losses(Race::Fork, None, within).await, 0);
    }

    #[tokio::test]
    async fn a_commit_needs_its_hold() {
        assert_eq!(losses(Race::Commit, None, ANY).await, 0);
        let mutation = Some(Mutation::CommitWithoutHold);
        assert!(losses(Race::Commit, mutation, &[2]).await > 0);
    }

    /// It does not need its touches, as long as deltas are walked before bases.
    #[tokio::test]
    async fn a_fold_needs_its_hold() {
        assert_eq!(losses(Race::Fold, None, ANY).await, 0);
        let mutation = Some(Mutation::FoldWithoutTouch);
        assert_eq!(losses(Race::Fold, mutation, ANY).await, 0);
        let mutation = Some(Mutation::FoldWithoutHold);
        assert!(losses(Race::Fold, mutation, &[9]).await > 0);
    }
}
