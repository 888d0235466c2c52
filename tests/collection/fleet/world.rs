//! Processes that go on one call at a time, stand still, die, and are looked after.

use std::rc::Rc;
use std::sync::Arc;

use base::{ChunkId, DomainId, Rng, SessionId};
use bytes::Bytes;
use chunkstore::ChunkStore;
use metadata::image::Block;
use metadata::keyspace;
use metadata::keyspace::image as keys;
use metadata::kv::Kv;
use metadata::kv::memory::MemoryKv;
use metadata::record::block;
use metadata::references::References;
use metadata::session::tree_of;
use metadata::store::{NewWorkspace, OpenSession, Store};

use super::{
    COMMITS_MAX, CONTENTS, Collecting, JOBS_MAX, Living, PROCESSES, Process, SESSIONS_MAX, STEPS,
    Tally, clock,
};
use crate::model::{FILE, FILLERS, Job, SLOTS, TENANT, add, step};
use crate::owned::{index, pick};

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
        // What the one before did not end keeps the others waiting, now that this one lives.
        process.ungated().end_of(process.id).await.unwrap();
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
        let open = OpenSession::new("w");
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
        pick(&self.rng, below)
    }

    fn index(&self, below: usize) -> usize {
        index(&self.rng, below)
    }

    /// A session of a process; rather the one that a walk comes to last.
    fn session(&self, process: &Process) -> Option<SessionId> {
        process.sessions.pick(&self.rng)
    }

    fn new_job(&self, at: usize) -> Option<Job> {
        let process = Rc::clone(&self.running[at].process);
        let Some(id) = self.session(&process) else {
            return self.take(process);
        };
        let slot = u32::try_from(self.pick(u64::from(SLOTS))).unwrap();
        let count = self.running.iter();
        let count: usize = count.map(|it| it.process.sessions.len()).sum();
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
                let new: Collecting = Box::pin(Rc::clone(process).collect(page, patience));
                new
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
