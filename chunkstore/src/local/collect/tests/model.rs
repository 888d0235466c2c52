//! The model test: random jobs, removals, collections and crashes, one step at a time, against a
//! list of what is referred to. Mutations show that each rule is needed.
//!
//! References stand for the block maps of the metadata store: slots that each refer to a content
//! or to nothing, durable as soon as they are written. A job takes a hold, puts or copies, makes
//! it durable, writes its reference, and lets go. Steps of jobs, removals and a collection that
//! looks at one slot at a time happen in any order. A crash forgets what was not durable, on the
//! device too. After each step that might take something, everything referred to must be there.

use base::Rng;

use super::*;
use crate::Hold;

const SLOTS: usize = 12;
const CONTENTS: u64 = 24;
const STEPS: u32 = 400;

/// A job under way.
struct Job {
    slot: usize,
    content: usize,
    stage: Stage,
    _hold: Hold,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begun,
    Put,
    Synced,
}

enum Collection {
    None,
    Begun(Begun),
    Marking(Marking, usize),
    Sweep(Sweep),
}

struct World<'a> {
    dir: &'a Path,
    mutation: Option<Mutation>,
    store: LocalStore,
    rng: Rng,
    slots: [Option<usize>; SLOTS],
    jobs: Vec<Job>,
    collection: Collection,
    /// Collections that went through.
    collections: u32,
    freed: Freed,
}

impl World<'_> {
    fn pick(&self, below: u64) -> u64 {
        self.rng.u64() % below
    }

    fn index(&self, below: usize) -> usize {
        usize::try_from(self.pick(u64::try_from(below).unwrap())).unwrap()
    }

    async fn step(&mut self) -> Result<(), String> {
        match self.pick(100) {
            0..15 => self.begin_job(),
            15..55 => self.job_step().await,
            55..65 => {
                let slot = self.index(SLOTS);
                self.slots[slot] = None;
            }
            65..99 => {
                self.collection_step().await;
                return self.check().await;
            }
            _ => {
                self.crash();
                return self.check().await;
            }
        }
        Ok(())
    }

    fn begin_job(&mut self) {
        if self.jobs.len() >= 4 {
            return;
        }
        let hold = self.store.hold();
        let slot = self.index(SLOTS);
        // A copy of a reference touches it while it is there. Its content needs no put.
        let from = self.slots[self.index(SLOTS)];
        let (content, stage) = match from.filter(|_| self.pick(2) == 0) {
            Some(content) => {
                self.store.touch(DOMAIN.id, id(content));
                (content, Stage::Synced)
            }
            None => (usize::try_from(self.pick(CONTENTS)).unwrap(), Stage::Begun),
        };
        self.jobs.push(Job {
            slot,
            content,
            stage,
            _hold: hold,
        });
    }

    async fn job_step(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let at = self.index(self.jobs.len());
        let (stage, content) = (self.jobs[at].stage, self.jobs[at].content);
        match stage {
            Stage::Begun => {
                let content = super::content(content);
                self.store.put(DOMAIN, content).await.unwrap();
                self.jobs[at].stage = Stage::Put;
            }
            Stage::Put => {
                if self.pick(20) == 0 {
                    self.faults().failing_flushes.store(1, SeqCst);
                }
                let synced = self.store.sync().await;
                self.faults().failing_flushes.store(0, SeqCst);
                match synced {
                    Ok(()) => self.jobs[at].stage = Stage::Synced,
                    Err(_) => drop(self.jobs.remove(at)),
                }
            }
            Stage::Synced => {
                let job = self.jobs.remove(at);
                self.slots[job.slot] = Some(job.content);
            }
        }
    }

    fn faults(&self) -> &crate::local::device::Faults {
        &self.store.shared.shelf.device.faults
    }

    /// Lets the device fail in a step of the collection, now and then.
    fn begin_faults(&self) {
        match self.pick(12) {
            0 => self.faults().failing_flushes.store(1, SeqCst),
            1 => self.faults().removals.store(self.pick(4), SeqCst),
            2 => self.faults().space.store(self.pick(1500), SeqCst),
            _ => {}
        }
    }

    fn end_faults(&self) {
        self.faults().failing_flushes.store(0, SeqCst);
        self.faults().removals.store(u64::MAX, SeqCst);
        self.faults().space.store(u64::MAX, SeqCst);
    }

    async fn collection_step(&mut self) {
        let collection = std::mem::replace(&mut self.collection, Collection::None);
        self.begin_faults();
        self.collection = match collection {
            Collection::None => match self.store.begin_collection() {
                Some(begun) => Collection::Begun(begun),
                None => Collection::None,
            },
            Collection::Begun(begun) => match begun.try_settled() {
                Ok(marking) => Collection::Marking(marking, 0),
                Err(begun) => Collection::Begun(begun),
            },
            Collection::Marking(marking, slot) if slot < SLOTS => {
                if let Some(content) = self.slots[slot] {
                    marking.mark(DOMAIN.id, id(content));
                }
                Collection::Marking(marking, slot + 1)
            }
            Collection::Marking(marking, _) => {
                let how = [Thoroughness::Usual, Thoroughness::High][self.index(2)];
                match marking.sweep(how).await {
                    Ok(sweep) => Collection::Sweep(sweep),
                    Err(_) => Collection::None,
                }
            }
            Collection::Sweep(mut sweep) => match sweep.step().await {
                Ok(Some(freed)) => {
                    self.freed.add(freed);
                    Collection::Sweep(sweep)
                }
                Ok(None) => {
                    self.collections += 1;
                    Collection::None
                }
                Err(_) => Collection::None,
            },
        };
        self.end_faults();
    }

    /// Ends everything and opens the store again. Half of the time the power fails.
    fn crash(&mut self) {
        self.jobs.clear();
        self.collection = Collection::None;
        if self.pick(2) == 0 {
            self.faults().cut_power(self.dir);
        }
        // The directory is locked until the store is gone.
        let elsewhere = tempfile::tempdir().unwrap();
        self.store = open(elsewhere.path(), None);
        self.store = open(self.dir, self.mutation);
    }

    async fn check(&self) -> Result<(), String> {
        for number in self.slots.iter().flatten() {
            let read = self.store.get(DOMAIN, id(*number)).await;
            if read != Ok(content(*number)) {
                return Err(format!("content {number}: {read:?}"));
            }
        }
        Ok(())
    }
}

/// Runs one world. Gives how many collections went through and what they freed, or what was lost.
async fn run(seed: u64, mutation: Option<Mutation>) -> Result<(u32, Freed), String> {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World {
        dir: dir.path(),
        mutation,
        store: open(dir.path(), mutation),
        rng: Rng::seeded(seed),
        slots: [None; SLOTS],
        jobs: Vec::new(),
        collection: Collection::None,
        collections: 0,
        freed: Freed::default(),
    };
    for step in 0..STEPS {
        let stepped = world.step().await;
        stepped.map_err(|lost| format!("seed {seed}, step {step}: {lost}"))?;
    }
    world.crash();
    world.check().await?;
    let verified = world.store.verify(|_| ());
    if verified.unreadable_packs > 0 {
        return Err(format!("seed {seed}: {verified:?}"));
    }
    Ok((world.collections, world.freed))
}

#[tokio::test]
async fn nothing_that_is_referred_to_is_ever_lost() {
    let (mut collections, mut freed) = (0, Freed::default());
    for seed in 0..60 {
        let (more, also) = run(seed, None)
            .await
            .unwrap_or_else(|lost| panic!("{lost}"));
        collections += more;
        freed.add(also);
    }
    // It has been put to the test.
    assert!(collections > 100, "{collections}");
    assert!(freed.packs_removed > 100, "{freed:?}");
    assert!(freed.packs_rewritten > 100, "{freed:?}");
}

/// How many worlds lose something with a rule left out.
async fn losses(mutation: Mutation, seeds: u64) -> u64 {
    let mut losses = 0;
    for seed in 0..seeds {
        losses += u64::from(run(seed, Some(mutation)).await.is_err());
    }
    losses
}

#[tokio::test]
async fn without_holds_something_is_lost() {
    assert!(losses(Mutation::IgnoreHolds, 60).await > 0);
}

#[tokio::test]
async fn without_waiting_for_older_holds_something_is_lost() {
    assert!(losses(Mutation::IgnoreCycles, 60).await > 0);
}

#[tokio::test]
async fn without_marking_what_is_put_again_something_is_lost() {
    assert!(losses(Mutation::IgnoreDedup, 60).await > 0);
}

#[tokio::test]
async fn without_touching_what_is_copied_something_is_lost() {
    assert!(losses(Mutation::IgnoreTouch, 60).await > 0);
}

#[tokio::test]
async fn without_durable_copies_something_is_lost() {
    assert!(losses(Mutation::RemoveBeforeDurable, 60).await > 0);
}
