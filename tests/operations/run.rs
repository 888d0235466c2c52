//! Every operation of `metadata` against the model, with crashes at every flush boundary.
//!
//! `HOLDFAST_SEED` and `HOLDFAST_OPS` replay one run, `HOLDFAST_TRACE` says how many of its steps
//! are shown; `HOLDFAST_SEEDS` makes more runs. A failure prints the command. Seeds that failed
//! once are in `simulation/regressions.txt`.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use base::{InodeId, Timestamp};
use metadata::FsError;
use metadata::image::ImageConfig;
use metadata::record::inode::InodeRecord;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use system_tests::image_check;
use system_tests::image_subject::{ImageSubject, root_stat};
use system_tests::model::{Limits, Model, Verdict};
use system_tests::subject::{Answer, Call, Op, perform};
use system_tests::workload::{Background, Step, Workload, WorkloadConfig};

/// Steps of one seed.
const OPS: usize = 400;
/// Seeds of one test in CI.
const SEEDS: u64 = 250;
/// Characters shown of a call.
const CALL_CHARS: usize = 300;
/// Steps shown of a failed run.
const TRACE_STEPS: usize = 24;

/// One run: a filesystem, its model, and the model as it was at the last flushes.
struct World {
    subject: ImageSubject,
    model: Model,
    /// The model when the last finished flush began.
    durable: Model,
    /// The model when the flush under way began.
    flushing: Option<Model>,
    /// Number of the last change of each inode, its removal too.
    changes: HashMap<InodeId, u64>,
    /// For each file the state that each of its writes made, with the write's number.
    writes: HashMap<InodeId, Vec<(u64, u64)>>,
    workload: Workload,
    block_bytes: u32,
    trace: VecDeque<String>,
    calls: u64,
    /// Of everything that was called and answered.
    digest: DefaultHasher,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let block_bytes = [4096, 4096, 32 * 1024, 64 * 1024][rng.random_range(0..4)];
        let generous = rng.random_ratio(2, 3);
        let config = ImageConfig {
            name_key: rng.random(),
            block_bytes,
            bytes_max: if generous {
                1 << 40
            } else {
                u64::from(block_bytes) * 9
            },
            inodes_max: if rng.random_ratio(2, 3) { 1 << 20 } else { 14 },
            read_only: false,
        };
        let limits = Limits {
            block_bytes: u64::from(block_bytes),
            file_bytes_max: u64::from(block_bytes) << 32,
            bytes_max: config.bytes_max,
            inodes_max: config.inodes_max,
            read_only: false,
        };
        let workload = WorkloadConfig {
            block_bytes,
            file_bytes_max: limits.file_bytes_max,
            background: true,
        };
        let hash_bits = rng.random_ratio(1, 4).then(|| rng.random_range(0..4));
        let model = Model::new(limits, &root_stat());
        Self {
            subject: ImageSubject::new(config, hash_bits, rng.random()),
            durable: model.clone(),
            model,
            flushing: None,
            changes: HashMap::new(),
            writes: HashMap::new(),
            workload: Workload::new(workload, rng.random()),
            block_bytes,
            trace: VecDeque::new(),
            calls: 0,
            digest: DefaultHasher::new(),
        }
    }

    fn step(&mut self) -> Verdict {
        let step = self.workload.next(&self.model);
        match step {
            Step::Call(call) => self.call(&call)?,
            Step::Background(background) => {
                self.note(format!("{background:?}"));
                self.background(&background)?;
            }
            Step::Crash {
                finish_flush,
                read_only,
            } => {
                self.note(format!(
                    "crash, finish flush {finish_flush}, read-only {read_only}"
                ));
                self.crash(finish_flush, read_only)?;
            }
            Step::Compare => {
                self.note("compare".to_owned());
                self.compare()?;
            }
        }
        self.confirm_written()?;
        match self.subject.take_complaints().first() {
            Some(complaint) => Err(complaint.clone()),
            None => Ok(()),
        }
    }

    /// Tells the model which writes a COMMIT would call stored. If they are not, a crash shows it.
    fn confirm_written(&mut self) -> Verdict {
        let image = self.subject.image();
        for (inode, writes) in &mut self.writes {
            if image.has_unwritten(*inode) && !image.has_unwritten_until(*inode, image.last_write())
            {
                return Err(format!("{inode:?} has unwritten data of no write"));
            }
            let stored = writes
                .iter()
                .rposition(|(_, write)| !image.has_unwritten_until(*inode, *write));
            if let Some(at) = stored {
                self.model.settle_until(*inode, writes[at].0);
                writes.drain(..=at);
            }
        }
        Ok(())
    }

    fn note(&mut self, line: String) {
        line.hash(&mut self.digest);
        let steps = number("HOLDFAST_TRACE").map_or(TRACE_STEPS, |it| usize::try_from(it).unwrap());
        if self.trace.len() >= steps {
            self.trace.pop_front();
        }
        self.trace.push_back(line);
    }

    fn call(&mut self, call: &Call) -> Verdict {
        self.calls += 1;
        let ctimes: HashMap<InodeId, Timestamp> = self
            .model
            .inodes()
            .filter_map(|(inode, _)| Some((inode, self.model.ctime(inode)?)))
            .collect();
        let answer = perform(&mut self.subject, call);
        self.note(describe(call, &answer));
        format!("{:?}", answer.attributes()).hash(&mut self.digest);
        self.model.judge(call, &answer)?;
        self.check_durability(call, &answer, &ctimes)?;
        self.workload.saw(call, &answer, &self.model);
        if let Op::Write { inode, data, .. } = &call.op
            && answer.error().is_none()
            && !data.is_empty()
        {
            let write = self.subject.image().last_write();
            let version = self.model.version(*inode);
            self.writes
                .entry(*inode)
                .or_default()
                .push((version, write));
        }
        let confirms = match &call.op {
            Op::Write { stable, .. } => *stable,
            Op::Commit { .. } => true,
            _ => false,
        };
        if confirms && answer.error().is_none() {
            self.flushing = None;
            self.durable = self.model.clone();
        }
        Ok(())
    }

    /// A reply must wait for every change it shows, a refusal too.
    fn check_durability(
        &mut self,
        call: &Call,
        answer: &Answer,
        ctimes: &HashMap<InodeId, Timestamp>,
    ) -> Verdict {
        let ran = self.subject.ran();
        if ran.changed {
            for (inode, ctime) in ctimes {
                if self.model.ctime(*inode) != Some(*ctime) {
                    self.changes.insert(*inode, ran.durable_after);
                }
            }
        }
        let shown = answer.attributes().into_iter().map(|stat| stat.inode);
        let told = match answer.error() {
            None | Some(FsError::ReadOnly | FsError::NameTooLong | FsError::Invalid) => None,
            Some(_) => call.op.subject(),
        };
        for inode in shown.chain(told) {
            if let Some(number) = self.changes.get(&inode)
                && *number > ran.durable_after
                && *number > self.subject.image().durable()
            {
                let waits_for = ran.durable_after;
                return Err(format!(
                    "shows {inode:?} of change {number}, waits for {waits_for}"
                ));
            }
        }
        Ok(())
    }

    fn background(&mut self, background: &Background) -> Verdict {
        match background {
            Background::Settle(inode) => {
                if self.subject.settle_small(*inode) {
                    self.model.settle(*inode);
                }
            }
            Background::BeginWrite { inode, bytes_max } => {
                let version = self.model.version(*inode);
                self.subject.begin_write(*inode, version, *bytes_max);
            }
            Background::FinishWrite => {
                if let Some(inode) = self.subject.writing().first().copied()
                    && let Some((blocks, version)) = self.subject.finish_write(inode)
                {
                    self.model.settle_blocks(inode, &blocks, version);
                    if !self.subject.image().has_unwritten(inode) {
                        self.model.settle(inode);
                    }
                }
            }
            Background::AbandonWrite => {
                if let Some(inode) = self.subject.writing().first() {
                    self.subject.abandon_write(*inode);
                }
            }
            Background::Discard(inode) => {
                if self.subject.discard(*inode) {
                    self.writes.remove(inode);
                    let now = self.workload.now();
                    self.model.discard(&mut self.subject, now, *inode)?;
                }
            }
            Background::BeginFlush => {
                if self.subject.begin_flush() {
                    self.flushing = Some(self.model.clone());
                }
            }
            Background::FinishFlush => {
                if self.subject.finish_flush()
                    && let Some(flushing) = self.flushing.take()
                {
                    self.durable = flushing;
                }
            }
            Background::Evict { target } => self.subject.evict(*target),
            Background::LoadEarly(miss) => self.subject.load_early(*miss),
            Background::InstallEarly => self.subject.install_early(),
        }
        Ok(())
    }

    fn crash(&mut self, finish_flush: bool, read_only: bool) -> Verdict {
        let flushing = self.flushing.take();
        if finish_flush && let Some(flushing) = flushing {
            self.durable = flushing;
        }
        self.subject.crash(finish_flush, read_only);
        self.check_store()?;
        self.model = self.durable.clone();
        self.model.set_read_only(read_only);
        self.model.recover(&mut self.subject, self.workload.now())?;
        self.durable = self.model.clone();
        self.changes.clear();
        self.writes.clear();
        self.workload.forget();
        self.compare()
    }

    fn check_store(&self) -> Verdict {
        let root = InodeRecord {
            stat: root_stat(),
            entries: 0,
            link: None,
            verifier: None,
            inline: None,
        };
        let (store, totals) = self.subject.durable();
        let wrong = image_check::check(store, totals, &root, self.block_bytes);
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(format!("the store is not sound: {wrong:#?}"))
        }
    }

    fn compare(&mut self) -> Verdict {
        self.model
            .compare_all(&mut self.subject, self.workload.now())?;
        let usage = self.subject.image().usage();
        self.model.check_usage(usage.bytes, usage.inodes)
    }

    /// Brings everything to rest and checks that nothing is left over.
    fn finish(&mut self) -> Verdict {
        for inode in self.subject.writing() {
            self.subject.abandon_write(inode);
        }
        for inode in self.subject.image().dirty_inodes() {
            self.subject.store_all(inode);
            self.model.settle(inode);
        }
        self.subject.finish_flush();
        self.subject.begin_flush();
        self.subject.finish_flush();
        self.durable = self.model.clone();
        self.flushing = None;
        if !self.subject.image().is_clean() {
            return Err("the image is not clean after everything was stored".to_owned());
        }
        self.check_store()?;
        self.compare()?;
        self.subject.evict(0);
        let image = self.subject.image();
        if (image.memory_bytes(), image.buffered_bytes()) != (0, 0) {
            return Err(format!(
                "{} bytes and {} buffered are left in an empty image",
                image.memory_bytes(),
                image.buffered_bytes()
            ));
        }
        self.compare()?;
        self.crash(false, false)
    }
}

/// A call and its answer in one line.
fn describe(call: &Call, answer: &Answer) -> String {
    let outcome = match answer.error() {
        Some(error) => format!("{error:?}"),
        None => match answer {
            Answer::Created(Ok(created)) => format!("made {:?}", created.object.inode),
            _ => "ok".to_owned(),
        },
    };
    let op = match &call.op {
        Op::Write {
            inode,
            offset,
            data,
            stable,
        } => {
            let (count, first) = (data.len(), data.first());
            format!("Write {inode:?} at {offset}, {count} bytes from {first:?}, stable {stable}")
        }
        op => format!("{op:?}").chars().take(CALL_CHARS).collect(),
    };
    format!("uid {} at {}: {op} -> {outcome}", call.caller.uid, call.now)
}

/// Runs one seed. Returns how many calls it made, and a digest of them.
fn run(seed: u64, ops: usize) -> (u64, u64) {
    let mut world = World::new(seed);
    for step in 0..ops {
        if let Err(error) = world.step() {
            report(seed, step + 1, &world, &error);
        }
    }
    if let Err(error) = world.finish() {
        report(seed, ops, &world, &error);
    }
    (world.calls, world.digest.finish())
}

fn report(seed: u64, ops: usize, world: &World, error: &str) -> ! {
    let trace: Vec<&str> = world.trace.iter().map(String::as_str).collect();
    panic!(
        "seed {seed}, step {ops}, blocks of {}: {error}\n\nlast steps:\n{}\n\nreplay:\n\
         HOLDFAST_SEED={seed} HOLDFAST_OPS={ops} \
         cargo test -p system-tests --test operations\n",
        world.block_bytes,
        trace.join("\n")
    );
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap())
}

/// Runs the share `share` of the seeds.
fn run_seeds(share: u64) {
    let ops = number("HOLDFAST_OPS").map_or(OPS, |ops| usize::try_from(ops).unwrap());
    if let Some(seed) = number("HOLDFAST_SEED") {
        if share == 0 {
            run(seed, ops);
        }
        return;
    }
    let seeds = number("HOLDFAST_SEEDS").unwrap_or(SEEDS);
    let calls: u64 = (0..seeds)
        .map(|seed| run(share * seeds + seed, ops).0)
        .sum();
    // A test that makes no calls proves nothing.
    assert!(calls > seeds * 100, "{calls} calls in {seeds} seeds");
}

#[test]
fn operations_agree_with_the_model() {
    run_seeds(0);
}

#[test]
fn operations_agree_with_the_model_on_more_seeds() {
    run_seeds(1);
}

/// A seed is worth something only if it means the same run each time.
#[test]
fn a_seed_means_one_run() {
    for seed in 0..4 {
        assert_eq!(run(seed, OPS), run(seed, OPS), "seed {seed}");
    }
}

#[test]
fn seeds_that_failed_once() {
    for line in include_str!("../simulation/regressions.txt").lines() {
        let mut fields = line.split_whitespace();
        if let (Some(Ok(seed)), Some(Ok(ops))) =
            (fields.next().map(str::parse), fields.next().map(str::parse))
        {
            run(seed, ops);
        }
    }
}
