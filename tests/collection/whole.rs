//! The real gateway and its clients against a model that keeps whole copies of trees, paths and content:
//! writes, forks, publishes that merge, restores of sessions and of paths, syncs, undoing them, imports, at
//! random. A process dies before or after any commit of what it does, and collections run beside each
//! step and after it.
//!
//! What a step was to change is as before it or as after it, never between; nothing that anybody can reach
//! is ever lost; whatever nobody can is freed. Rules left out ([`Mutation`]) are found out.
//!
//! `HOLDFAST_SEED=17 HOLDFAST_OPS=100 cargo test -p system-tests --test collection whole` repeats one run;
//! as far as the machine lets it (tasks and sockets are real); `HOLDFAST_SEEDS=500` makes more, and `HOLDFAST_TRACE=1` prints the steps.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use base::{Clock, CommitId, OperationId, Rng, SessionId, TenantId, Timestamp, WorkspaceId};
use metadata::check::{CheckOptions, check};
use metadata::import::Attributes;
use metadata::kv::Kv;
use metadata::kv::memory::MemoryKv;
use metadata::merge::Policy;
use metadata::record::reference::RefName;
use metadata::store::{ForkSession, NewWorkspace, OpenSession, Opened, Store, StoreError};
use nfs_gateway::{About, Attempt, ChunkTrees, Gateway, HistoryError, ImportPlan};

use self::client::Client;
use self::copies::{
    Copied, DIRECTORIES, EMPTY, Node, Origin, PATHS, content, merged, origin_of, restored,
};
use self::process::{Live, Process, text};
use crate::model::keeping::{ShiftedClock, set_policy};

mod client;
mod copies;
mod process;
mod steps;

const TENANT: TenantId = TenantId::DEFAULT;
const WORKSPACE: &str = "w";
const BRANCHES: [&str; 2] = ["main", "other"];
const SESSIONS_MAX: usize = 5;

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// Nobody holds the chunk store.
    NoHolds,
    /// Collections do not walk the trees of commits.
    CommitsForgotten,
}

/// A session, and what it has.
struct Session {
    id: SessionId,
    ticket: String,
    client: Option<Client>,
    files: Copied,
    /// The last restore or sync, while it can be undone, and what the session had before.
    undo: Option<(OperationId, Copied)>,
}

/// How often a kind of step was done, was refused, and was cut off with the old and the new left.
pub(crate) type Tally = BTreeMap<&'static str, [u64; 4]>;

struct World<'a> {
    dir: &'a Path,
    memory: Arc<dyn Kv>,
    clock: Arc<ShiftedClock>,
    process: Process,
    rng: Rng,
    seed: u64,
    workspace: WorkspaceId,
    sessions: Vec<Session>,
    commits: BTreeMap<CommitId, Copied>,
    /// Contents that were written.
    numbers: u64,
    attributes: Attributes,
    tally: Tally,
    let_go: u64,
    /// How many moments the last step of each kind had.
    moments: BTreeMap<&'static str, usize>,
    /// Steps are printed.
    is_traced: bool,
}

impl<'a> World<'a> {
    async fn start(dir: &'a Path, seed: u64, mutation: Option<Mutation>) -> Result<Self, String> {
        let clock = Arc::<ShiftedClock>::default();
        let shared: Arc<dyn Clock> = Arc::<ShiftedClock>::clone(&clock);
        let memory: Arc<dyn Kv> = Arc::new(MemoryKv::new(shared));
        let live = Live::start(&memory, dir, &clock, seed, mutation).await;
        let process = Process::of(live);
        let new = NewWorkspace {
            name: WORKSPACE.into(),
            root: (0o777, 0, 0),
        };
        let made = process.store.create_workspace(TENANT, new).await;
        let workspace = made.map_err(text)?.id;
        set_policy(&process.store, workspace).await;
        let opened = open(&process.store, None, false).await?;
        let mut client = process.mount(&opened.ticket.to_string()).await?;
        for name in DIRECTORIES {
            client.make_directory(name).await?;
        }
        client.write("a", 0).await?;
        let attributes = client.attributes("a").await?;
        let mut world = World {
            dir,
            memory,
            clock,
            process,
            rng: Rng::seeded(seed + 100),
            seed,
            workspace,
            sessions: Vec::new(),
            commits: BTreeMap::new(),
            numbers: 1,
            attributes,
            tally: Tally::new(),
            let_go: 0,
            moments: BTreeMap::new(),
            is_traced: std::env::var_os("HOLDFAST_TRACE").is_some(),
        };
        world.keep(opened, Some(client), Copied::from([("a", 0)]));
        Ok(world)
    }

    fn keep(&mut self, opened: Opened, client: Option<Client>, files: Copied) {
        self.sessions.push(Session {
            id: opened.session.id,
            ticket: opened.ticket.to_string(),
            client,
            files,
            undo: None,
        });
    }

    fn pick(&self, below: usize) -> usize {
        usize::try_from(self.rng.u64() % u64::try_from(below.max(1)).unwrap()).unwrap()
    }

    fn fresh(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Where a branch is.
    async fn head(&self, branch: &str) -> Result<Option<CommitId>, String> {
        let name = RefName::new(branch).map_err(text)?;
        match self.process.store.reference(self.workspace, &name).await {
            Ok(found) => Ok(Some(found.record.state.commit)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(text(error)),
        }
    }

    /// Commits that branches and sessions need.
    async fn needed(&self) -> Result<BTreeMap<CommitId, Node<CommitId, Timestamp>>, String> {
        let mut next = Vec::new();
        for branch in BRANCHES {
            next.extend(self.head(branch).await?);
        }
        let store = &self.process.store;
        let sessions = store
            .sessions(TENANT, None, None, 100)
            .await
            .map_err(text)?;
        next.extend(sessions.iter().filter_map(|session| session.record.commit));
        let mut needed = BTreeMap::new();
        while let Some(id) = next.pop() {
            if needed.contains_key(&id) {
                continue;
            }
            let commit = store.commit(self.workspace, id).await.map_err(text)?;
            let record = commit.record;
            next.extend(&record.parents);
            let node = Node {
                parents: record.parents,
                time: record.time,
                by: record.provenance.session,
            };
            needed.insert(id, node);
        }
        Ok(needed)
    }

    /// What a commit has, as somebody sees it who opens a session at it.
    async fn look_at(&self, commit: CommitId) -> Result<Copied, String> {
        let opened = open(&self.process.store, Some(commit), true).await?;
        let mut client = self.process.mount(&opened.ticket.to_string()).await?;
        let files = client.look().await;
        self.close(opened.session.id).await?;
        files.map_err(|why| format!("commit {commit}: {why}"))
    }

    async fn close(&self, id: SessionId) -> Result<(), String> {
        let closed = self.process.store.close_session(TENANT, id).await;
        self.process.gateway.drop_session(id);
        closed.map_err(text)
    }

    /// What a session shows.
    async fn look(&mut self, at: usize) -> Result<Copied, String> {
        let Self {
            process, sessions, ..
        } = self;
        let session = &mut sessions[at];
        if session.client.is_none() {
            session.client = Some(process.mount(&session.ticket).await?);
        }
        let files = match &mut session.client {
            Some(client) => client.look().await,
            None => return Err("not mounted".into()),
        };
        files.map_err(|why| format!("session {}: {why}", session.id))
    }

    /// Takes in commits that a step made: each has one of these trees.
    async fn learn(&mut self, may_be: &[Copied]) -> Result<(), String> {
        for id in self.needed().await?.into_keys() {
            if self.commits.contains_key(&id) {
                continue;
            }
            let files = self.look_at(id).await?;
            if !may_be.contains(&files) {
                return Err(format!("new commit {id}: {files:?}, not of {may_be:?}"));
            }
            self.commits.insert(id, files);
        }
        Ok(())
    }

    /// Session `at` is as it is known, and so is some commit that is needed.
    async fn verify(&mut self, at: usize) -> Result<(), String> {
        let shown = self.look(at).await?;
        let session = &self.sessions[at];
        if shown != session.files {
            let (id, files) = (session.id, &session.files);
            return Err(format!("session {id}: {shown:?}, not {files:?}"));
        }
        let needed: Vec<CommitId> = self.needed().await?.into_keys().collect();
        if let Some(commit) = needed.get(self.pick(needed.len())) {
            self.verify_commit(*commit).await?;
        }
        Ok(())
    }

    async fn verify_commit(&self, commit: CommitId) -> Result<(), String> {
        let shown = self.look_at(commit).await?;
        match self.commits.get(&commit) {
            Some(files) if *files == shown => Ok(()),
            known => Err(format!("commit {commit}: {shown:?}, not {known:?}")),
        }
    }

    /// Nothing that is referred to is missing afterwards.
    async fn collect(&mut self) -> Result<(), String> {
        let known: Vec<CommitId> = self.commits.keys().copied().collect();
        let (let_go, missing) = self.process.collect(self.workspace, &known).await?;
        self.let_go += let_go;
        match missing {
            0 => Ok(()),
            _ => Err(format!("{missing} chunks are lost")),
        }
    }

    /// What nothing refers to is not stored, when nothing goes on.
    async fn is_all_free(&mut self) -> Result<(), String> {
        self.collect().await?;
        self.collect().await?;
        let (referred, stored) = self.process.counts().await?;
        if referred == stored {
            return Ok(());
        }
        Err(format!("{stored} chunks are stored, {referred} are needed"))
    }

    /// Another process goes on with what this one left.
    async fn restart(&mut self) {
        for session in &mut self.sessions {
            session.client = None;
        }
        self.seed += 1000;
        let next = self
            .process
            .restart(&self.memory, self.dir, &self.clock, self.seed);
        next.await;
    }

    /// As the server does: sessions that have ended by themselves are closed.
    async fn expire(&mut self) -> Result<(), String> {
        let page = self.process.store.expired_sessions(None).await;
        for (_, id) in page.map_err(text)?.sessions {
            self.close(id).await?;
        }
        Ok(())
    }

    /// Everything is sound; what cut off steps left ends by itself, and is freed; and when all is removed,
    /// nothing is stored.
    async fn end(mut self) -> Result<(Tally, u64), String> {
        self.restart().await;
        for at in 0..self.sessions.len() {
            self.verify(at).await?;
        }
        self.clock.put_on(2 * 3600);
        self.expire().await?;
        self.is_all_free().await?;
        for at in 0..self.sessions.len() {
            self.verify(at).await?;
        }
        self.process.gateway.shutdown().await;
        self.is_sound().await?;
        // Without the mounts that are open: they have ended with the gateway.
        self.restart().await;
        for session in std::mem::take(&mut self.sessions) {
            self.close(session.id).await?;
        }
        for branch in BRANCHES {
            self.delete_branch(branch).await?;
        }
        // Commits that only the log names go when their time is over.
        self.clock.put_on(2 * 3600);
        self.is_all_free().await?;
        match self.process.local.counts().chunks {
            0 => Ok((self.tally, self.let_go)),
            left => Err(format!("{left} chunks are left")),
        }
    }

    async fn is_sound(&self) -> Result<(), String> {
        let local = self.process.local.clone();
        let trees = ChunkTrees::new(Arc::new(local.clone()), 1 << 20);
        let exists = |domain, id| local.contains(domain, id);
        let options = CheckOptions {
            trees: Some(&trees),
            chunk_exists: Some(&exists),
            progress: None,
        };
        let report = check(self.memory.as_ref(), options).await.map_err(text)?;
        match report.is_clean() {
            true => Ok(()),
            false => Err(format!("{:?}", report.problems)),
        }
    }

    async fn delete_branch(&mut self, branch: &str) -> Result<(), String> {
        let Some(head) = self.head(branch).await? else {
            return Ok(());
        };
        let name = RefName::new(branch).map_err(text)?;
        let gone = self.process.store.delete_ref(self.workspace, &name, head);
        gone.await.map(drop).map_err(text)
    }
}

/// Opens a session at a version, or the newest.
async fn open(store: &Store, version: Option<CommitId>, read_only: bool) -> Result<Opened, String> {
    let open = OpenSession {
        read_only,
        version: version.map(|version| version.to_string()),
        ..OpenSession::new(WORKSPACE)
    };
    store.open_session(TENANT, open).await.map_err(text)
}

/// Runs one world; tells what was done, or what is wrong.
async fn run(seed: u64, ops: u64, mutation: Option<Mutation>) -> Result<(Tally, u64), String> {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::start(dir.path(), seed, mutation).await?;
    for number in 0..ops {
        let stepped = world.step().await;
        stepped.map_err(|why| format!("seed {seed}, step {number}: {why}"))?;
    }
    let ended = world.end().await;
    ended.map_err(|why| format!("seed {seed}, end: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: u64 = 6;
    const OPS: u64 = 80;

    /// Steps until all moments have had their turn, at most.
    const STEPS_MAX: u32 = 2400;

    fn setting(name: &str) -> Option<u64> {
        let value = std::env::var(name).ok()?;
        Some(value.parse().unwrap())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn whole_copies_outlive_crashes() {
        let ops = setting("HOLDFAST_OPS").unwrap_or(OPS);
        let seeds = match setting("HOLDFAST_SEED") {
            Some(seed) => seed..seed + 1,
            None => 0..setting("HOLDFAST_SEEDS").unwrap_or(SEEDS),
        };
        let (count, mut sums, mut let_go) = (seeds.end - seeds.start, Tally::new(), 0);
        for seed in seeds {
            let (tally, gone) = run(seed, ops, None).await.unwrap_or_else(|why| {
                panic!(
                    "{why}\n\nreplay:\nHOLDFAST_SEED={seed} HOLDFAST_OPS={ops} \
                     cargo test -p system-tests --test collection whole_copies_outlive\n"
                )
            });
            for (kind, counts) in tally {
                let sum = sums.entry(kind).or_insert([0; 4]);
                for (sum, count) in sum.iter_mut().zip(counts) {
                    *sum += count;
                }
            }
            let_go += gone;
        }
        println!("{sums:?}, {let_go} commits let go");
        if count < SEEDS || ops < OPS {
            return;
        }
        // It has been put to the test.
        assert!(let_go > count, "{let_go}");
        let is_done = |kind| sums.get(kind).is_some_and(|counts| counts[0] > 0);
        assert!(steps::KINDS.into_iter().all(is_done), "{sums:?}");
        let [old, new] = [2, 3].map(|at| sums.values().map(|counts| counts[at]).sum::<u64>());
        assert!(old > 5 * count && new > count, "{old}, {new}: {sums:?}");
    }

    /// A process dies before and after each commit of steps of each kind, one after the other.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn each_moment_of_each_step_may_be_the_last() {
        let (seed, mut turns) = (setting("HOLDFAST_SEED").unwrap_or(1), steps::Turns::new());
        let dir = tempfile::tempdir().unwrap();
        let mut world = World::start(dir.path(), seed, None).await.unwrap();
        for number in 0..STEPS_MAX {
            let stepped = world.step_through(&mut turns).await;
            if stepped.unwrap_or_else(|why| panic!("seed {seed}, step {number}: {why}")) {
                break;
            }
        }
        let (tally, _) = world.end().await.unwrap();
        println!("{tally:?}");
        for kind in steps::KINDS {
            let [done, _, old, _] = tally[kind];
            assert!(done > 2 && old > 0, "{kind}: {tally:?}");
        }
        // After the last commit of some the new is there. Not all have the same number.
        let new: u64 = tally.values().map(|counts| counts[3]).sum();
        assert!(new > 3, "{tally:?}");
    }

    /// In how many seeds what a rule that is left out loses is seen.
    async fn losses(mutation: Mutation, seeds: u64) -> u64 {
        let mut losses = 0;
        for seed in 0..seeds {
            losses += u64::from(run(seed, OPS, Some(mutation)).await.is_err());
        }
        losses
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn whole_copies_need_that_commits_are_walked() {
        assert!(losses(Mutation::CommitsForgotten, 2).await > 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn whole_copies_need_holds() {
        assert!(losses(Mutation::NoHolds, 6).await > 0);
    }
}
