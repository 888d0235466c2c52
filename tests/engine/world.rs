//! One seed: a server, a client, the model, and what happens to them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use base::{Caller, InodeId};
use chunkstore::ChunkError;
use chunkstore::faulty::{Call as ChunkCall, Effect};
use metadata::FsError;
use metadata::kv::faulty::FaultRates;
use nfs_gateway::GatewayOptions;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use system_tests::model::{Limits, Model, Verdict};
use system_tests::subject::{Answer, Call, Op};
use system_tests::workload::{Step, Workload, WorkloadConfig};

use crate::client::{CONNECTIONS, Mishap};
use crate::codec::Reply;
use crate::explain::{Beside, explain};
use crate::rig::{Mishaps, Rig};
use crate::server::Setting;
use crate::slow_kv::Pace;
use crate::told::{describe, outcome};

/// Times a client sends its data again before the verifier is said to change all the time.
const RESENDS_MAX: usize = 20;

/// A write that no COMMIT has confirmed, and the verifier of its answer.
#[derive(Clone, Debug)]
struct Unconfirmed {
    call: Call,
    verifier: [u8; 8],
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) calls: u64,
    pub(crate) kills: u64,
    pub(crate) replayed: u64,
    pub(crate) replayed_from_store: u64,
    pub(crate) refused_full: u64,
    pub(crate) forks: u64,
    pub(crate) loads: u64,
    pub(crate) paused: u64,
    pub(crate) copies: u64,
    /// Of everything that was called and answered.
    pub(crate) digest: u64,
}

/// One run.
pub(crate) struct World {
    rig: Rig,
    model: Model,
    workload: Workload,
    rng: ChaCha8Rng,
    unconfirmed: BTreeMap<InodeId, Vec<Unconfirmed>>,
    /// The verifier of each ownership.
    verifiers: HashMap<(u64, u64), [u8; 8]>,
    rates: FaultRates,
    pub(crate) tally: Tally,
    pub(crate) trace: VecDeque<String>,
    trace_steps: usize,
    pub(crate) setting: String,
    digest: DefaultHasher,
}

fn faults(rng: &mut ChaCha8Rng) -> FaultRates {
    if rng.random_ratio(1, 4) {
        return FaultRates::default();
    }
    let mut rate = |max: u64| rng.random_range(0..=max);
    FaultRates {
        conflict: rate(80),
        too_old: rate(40),
        unavailable: rate(30),
        unknown_applied: rate(60),
        unknown_not_applied: rate(60),
        unknown_late: rate(60),
    }
}

impl World {
    pub(crate) fn new(seed: u64, trace_steps: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let block_bytes = [4096, 4096, 32 * 1024, 64 * 1024][rng.random_range(0..4)];
        let setting = Setting {
            block_bytes,
            bytes_max: if rng.random_ratio(2, 3) {
                1 << 40
            } else {
                u64::from(block_bytes) * 9
            },
            inodes_max: if rng.random_ratio(2, 3) { 1 << 20 } else { 14 },
            gateway: GatewayOptions {
                dirty_bytes_max: [8 << 10, 64 << 10, 1 << 20, 256 << 20][rng.random_range(0..4)],
                session_memory_bytes: [1 << 10, 4 << 10, 16 << 10, 256 << 20]
                    [rng.random_range(0..4)],
                session_idle: Duration::from_secs([3, 60, 300][rng.random_range(0..3)]),
                // Not drawn, so that most seeds mean what they did.
                delta_bytes: if seed % 4 == 3 { 2 << 10 } else { 32 << 20 },
                ..GatewayOptions::default()
            },
        };
        let limits = Limits {
            block_bytes: u64::from(block_bytes),
            file_bytes_max: u64::from(block_bytes) << 32,
            bytes_max: setting.bytes_max,
            // The model counts the root.
            inodes_max: setting.inodes_max + 1,
            read_only: false,
        };
        let config = WorkloadConfig {
            block_bytes,
            file_bytes_max: limits.file_bytes_max,
            background: false,
        };
        let shown = format!("{setting:?}");
        let mut rig = Rig::new(setting, rng.random());
        let workload = Workload::new(config, rng.random());
        let root = Call {
            caller: Caller::root(),
            now: workload.now(),
            op: Op::Getattr {
                inode: InodeId::ROOT,
            },
        };
        let Answer::Attributes(Ok(root)) = rig.call(&root).unwrap().answer else {
            panic!("the root has no attributes");
        };
        assert_eq!((root.mode, root.uid, root.nlink), (0o777, 0, 2));
        let rates = faults(&mut rng);
        let mut world = Self {
            model: Model::new(limits, &root),
            rig,
            workload,
            unconfirmed: BTreeMap::new(),
            verifiers: HashMap::new(),
            rates,
            rng,
            tally: Tally::default(),
            trace: VecDeque::new(),
            trace_steps,
            setting: shown,
            digest: DefaultHasher::new(),
        };
        world.disturb();
        world
    }

    fn disturb(&mut self) {
        let pace = Pace {
            read_ms_max: self.rng.random_range(1..6),
            commit_ms_max: self.rng.random_range(1..40),
        };
        self.rig.server.set_faults(self.rates, pace);
    }

    /// The stores work, for a while.
    fn calm(&self) {
        let pace = Pace::default();
        self.rig.server.set_faults(FaultRates::default(), pace);
    }

    pub(crate) fn step(&mut self) -> Verdict {
        match self.rng.random_range(0..100) {
            0..70 => self.batch(1)?,
            70..82 => {
                let count = self.rng.random_range(2..5);
                self.batch(count)?;
            }
            82..88 => self.risk()?,
            88..90 => self.crash()?,
            90..92 => self.copy()?,
            92..94 => self.idle()?,
            94 => self.extras()?,
            95 if self.rng.random() => self.spoil_chunks(),
            95 => self.fork()?,
            96 => self.settle_all()?,
            97 => self.fill()?,
            98 => self.compare()?,
            _ => self.disturb(),
        }
        if self.rng.random_ratio(1, 25) {
            self.rates = faults(&mut self.rng);
            self.disturb();
        }
        Ok(())
    }

    fn note(&mut self, line: String) {
        line.hash(&mut self.digest);
        if self.trace.len() >= self.trace_steps {
            self.trace.pop_front();
        }
        self.trace.push_back(line);
    }

    /// Up to `count` calls of the workload, for one moment.
    fn calls(&mut self, count: usize) -> Vec<Call> {
        let mut calls = Vec::new();
        while calls.len() < count {
            if let Step::Call(call) = self.workload.next(&self.model) {
                calls.push(call);
            }
        }
        let now = self.workload.now();
        for call in &mut calls {
            call.now = now;
        }
        calls
    }

    /// Things that happen to connections while calls are in progress.
    fn mishaps(&mut self, kill: bool) -> Mishaps {
        let mut mishaps = Vec::new();
        for _ in 0..self.rng.random_range(0..4) {
            let mishap = if self.rng.random() {
                Mishap::Cut(self.rng.random_range(0..CONNECTIONS))
            } else {
                Mishap::Duplicate
            };
            mishaps.push((self.rng.random_range(0..60), mishap));
        }
        if kill {
            mishaps.push((self.rng.random_range(0..80), Mishap::Kill));
        }
        mishaps.sort_by_key(|(at, _)| *at);
        mishaps
            .into_iter()
            .map(|(at, mishap)| (Duration::from_millis(at), mishap))
            .collect()
    }

    /// Goes on in a fork, which has all that was written, confirmed or not.
    fn fork(&mut self) -> Verdict {
        let close = self.rng.random();
        self.note(format!("fork; close {close}"));
        self.calm();
        self.rig.server.chunks.heal();
        self.rig.fork(close)?;
        self.disturb();
        self.model.set_read_only(false);
        // It is stored: nobody has to send it again.
        self.unconfirmed.clear();
        self.tally.forks += 1;
        self.settle_rest()?;
        self.compare()
    }

    /// Calls that are in progress together, without a loss.
    fn batch(&mut self, count: usize) -> Verdict {
        let calls = self.calls(count);
        self.freeze();
        let mishaps = if self.rng.random_ratio(1, 6) {
            self.mishaps(false)
        } else {
            Mishaps::new()
        };
        self.make(&calls, mishaps, false)?;
        self.rig.server.end_freeze();
        Ok(())
    }

    /// Sometimes begins to freeze the session, while calls go on.
    fn freeze(&mut self) {
        if self.rng.random_ratio(1, 25) {
            let fold = self.rng.random();
            self.note(format!("freeze; fold {fold}"));
            self.rig.server.begin_freeze(fold);
        }
    }

    /// Makes calls and finds out what they did. `may_lose`: everything was confirmed before, and
    /// the server may die.
    fn make(&mut self, calls: &[Call], mishaps: Mishaps, may_lose: bool) -> Verdict {
        let before = self.rig.server.ownerships();
        let kills = mishaps.iter().any(|(_, it)| *it == Mishap::Kill);
        self.tally.kills += u64::from(kills);
        let told = format!("{mishaps:?}");
        let replies = match self.rig.call_all(calls, mishaps) {
            Ok(replies) => replies,
            Err(error) => {
                for call in calls {
                    self.note(format!("{} -> ?", describe(call)));
                }
                return Err(error);
            }
        };
        let after = self.rig.server.ownerships();
        for (call, reply) in calls.iter().zip(&replies) {
            self.note(format!("{} -> {}", describe(call), outcome(reply)));
        }
        if calls.len() > 1 || kills {
            self.note(format!("  ({} together, mishaps {told})", calls.len()));
        }
        let took = after.0 - before.0;
        let beside = Beside {
            losses: if may_lose { took.min(2) } else { 0 },
            full: false,
        };
        let found = explain(&self.model, calls, &replies, beside)?;
        self.model = if beside.losses == 0 {
            found.into_iter().next().ok_or("no explanation")?
        } else {
            self.choose(found)?
        };
        for (call, reply) in calls.iter().zip(&replies) {
            self.workload.saw(call, &reply.answer, &self.model);
            self.confirm(call, reply);
        }
        self.check_verifiers(before, after, &replies)
    }

    /// Of several models the one that everything to be seen agrees with.
    fn choose(&mut self, found: Vec<Model>) -> Result<Model, String> {
        let now = self.workload.now();
        let mut why = String::new();
        for mut model in found {
            let seen = model
                .recover(&mut self.rig, now)
                .and_then(|()| model.compare_all(&mut self.rig, now));
            match seen {
                Ok(()) => return Ok(model),
                Err(error) => why = error,
            }
        }
        Err(format!("after a crash: {why}"))
    }

    /// Takes note of a write, or that it is confirmed.
    fn confirm(&mut self, call: &Call, reply: &Reply) {
        let Some(verifier) = reply.verifier else {
            return;
        };
        match &call.op {
            Op::Write { inode, data, .. } if !reply.is_stable && !data.is_empty() => {
                let call = call.clone();
                let write = Unconfirmed { call, verifier };
                self.unconfirmed.entry(*inode).or_default().push(write);
            }
            Op::Commit { inode } => {
                if let Some(writes) = self.unconfirmed.get_mut(inode) {
                    writes.retain(|write| write.verifier != verifier);
                }
            }
            _ => {}
        }
    }

    /// One ownership has one verifier, and no other has the same.
    fn check_verifiers(
        &mut self,
        before: (u64, u64),
        after: (u64, u64),
        replies: &[Reply],
    ) -> Verdict {
        if before != after {
            return Ok(());
        }
        for verifier in replies.iter().filter_map(|reply| reply.verifier) {
            match self.verifiers.get(&after) {
                Some(known) if *known == verifier => {}
                Some(known) => {
                    return Err(format!("the verifier went from {known:?} to {verifier:?}"));
                }
                None if self.verifiers.values().any(|it| *it == verifier) => {
                    return Err("an old verifier has come back".to_owned());
                }
                None => {
                    self.verifiers.insert(after, verifier);
                }
            }
        }
        Ok(())
    }

    /// Does what a client does for fsync, for all files: COMMIT, and what the verifier says was
    /// lost is sent again.
    fn settle_all(&mut self) -> Verdict {
        self.note("commit everything".to_owned());
        for _ in 0..RESENDS_MAX {
            let Some(inode) = self.unconfirmed.keys().next().copied() else {
                return self.settle_rest();
            };
            let commit = self.by_root(Op::Commit { inode });
            let reply = self.single(&commit)?;
            let Some(verifier) = reply.verifier else {
                // The file is gone.
                self.unconfirmed.remove(&inode);
                continue;
            };
            let writes = self.unconfirmed.remove(&inode).unwrap_or_default();
            for write in writes {
                if write.verifier == verifier {
                    return Err("a write is confirmed and was not dropped".to_owned());
                }
                let mut call = write.call;
                call.now = self.workload.now();
                self.single(&call)?;
            }
        }
        if self.unconfirmed.len() > RESENDS_MAX {
            return self.settle_all();
        }
        Err("the verifier changes all the time".to_owned())
    }

    /// Files that the model still holds for unconfirmed, as after a write that was taken back.
    fn settle_rest(&mut self) -> Verdict {
        let rest: Vec<InodeId> = self
            .model
            .inodes()
            .map(|(inode, _)| inode)
            .filter(|inode| self.model.unsettled(*inode) > 0)
            .collect();
        for inode in rest {
            let commit = self.by_root(Op::Commit { inode });
            self.single(&commit)?;
        }
        Ok(())
    }

    fn by_root(&self, op: Op) -> Call {
        Call {
            caller: Caller::root(),
            now: self.workload.now(),
            op,
        }
    }

    /// Makes one call.
    fn single(&mut self, call: &Call) -> Result<Reply, String> {
        let before = self.rig.server.ownerships();
        let reply = self.rig.call(call)?;
        self.note(format!("{} -> {}", describe(call), outcome(&reply)));
        let replies = [reply];
        let calls = std::slice::from_ref(call);
        let found = explain(&self.model, calls, &replies, Beside::default())?;
        self.model = found.into_iter().next().ok_or("no explanation")?;
        let [reply] = replies;
        self.confirm(call, &reply);
        let after = self.rig.server.ownerships();
        self.check_verifiers(before, after, std::slice::from_ref(&reply))?;
        Ok(reply)
    }

    /// Calls in progress while the server dies, or another takes over.
    fn risk(&mut self) -> Verdict {
        self.settle_all()?;
        let count = self.rng.random_range(1..4);
        let mut calls = self.calls(count);
        // One write a file, in one block: more would have too many explanations.
        let mut written: Vec<InodeId> = Vec::new();
        let block = self.rig.server.setting.block_bytes;
        calls.retain_mut(|call| match &mut call.op {
            Op::Write {
                inode,
                offset,
                data,
                ..
            } => {
                let left = u64::from(block) - *offset % u64::from(block);
                let length = data.len().min(usize::try_from(left).unwrap());
                data.truncate(length);
                let first = !written.contains(inode);
                written.push(*inode);
                first
            }
            _ => true,
        });
        self.rig.stores_crash = self.rng.random();
        self.freeze();
        let mishaps = self.mishaps(true);
        self.make(&calls, mishaps, true)?;
        self.settle_all()
    }

    /// The server dies, or is superseded, while no call is in progress and data is unconfirmed.
    fn crash(&mut self) -> Verdict {
        let pause = Duration::from_millis(self.rng.random_range(0..300));
        self.rig.server.sleep(pause);
        let hand_over = self.rng.random_ratio(1, 3);
        let read_only = self.rng.random_ratio(1, 10);
        self.note(format!(
            "crash, read-only {read_only}, another gateway {hand_over}"
        ));
        self.rig.server.set_read_only(read_only);
        self.model.set_read_only(read_only);
        if self.rng.random() {
            self.calm();
        }
        if hand_over {
            self.rig.hand_over();
        } else {
            self.tally.kills += 1;
            self.rig.stores_crash = self.rng.random();
            self.rig.restart();
        }
        self.disturb();
        let now = self.workload.now();
        self.model.recover(&mut self.rig, now)?;
        self.workload.forget();
        if self.rng.random() {
            self.compare()?;
        }
        if read_only {
            self.unconfirmed.clear();
            return Ok(());
        }
        self.settle_all()
    }

    /// A copy of an answered call arrives late. It does nothing, and its reply is the first one's.
    fn copy(&mut self) -> Verdict {
        // A session that was left alone has no owner, and the next one does not know all calls.
        let look = self.by_root(Op::Getattr {
            inode: InodeId::ROOT,
        });
        self.single(&look)?;
        let now = self.rig.server.owner();
        let known: Vec<_> = self
            .rig
            .client
            .history
            .iter()
            .filter(|it| it.stored || (it.tracked && it.owner == Some(now)))
            .cloned()
            .collect();
        let Some(copied) = known.choose(&mut self.rng) else {
            return Ok(());
        };
        self.note(format!("a copy of {:#x}", copied.xid));
        self.tally.copies += 1;
        let client = &mut self.rig.client;
        let end = self.rig.server.run(async {
            client.send_copy(copied);
            client.wait(Mishaps::new()).await
        });
        if end != crate::client::End::Answered {
            return Err("a copy is not answered".to_owned());
        }
        let again = self.rig.client.take(copied.xid).ok_or("no reply")?;
        let known = copied.stored || self.rig.server.owner() == now;
        if known && again != copied.reply {
            return Err("a copy has another reply than the first".to_owned());
        }
        Ok(())
    }

    fn idle(&mut self) -> Verdict {
        let ms = [10, 500, 5_000, 400_000][self.rng.random_range(0..4)];
        self.note(format!("{ms} ms pass"));
        self.rig
            .server
            .run(self.rig.client.idle(Duration::from_millis(ms)));
        if ms >= 5_000 {
            // Everything is written back by itself.
            self.check_budget()?;
        }
        Ok(())
    }

    /// When nothing is unwritten the budget is all free.
    fn check_budget(&mut self) -> Verdict {
        self.calm();
        self.rig
            .server
            .run(self.rig.client.idle(Duration::from_secs(30)));
        self.disturb();
        match self.rig.server.gateway().buffered_bytes() {
            0 => Ok(()),
            bytes => Err(format!("{bytes} bytes stay buffered")),
        }
    }

    fn extras(&mut self) -> Verdict {
        self.note("extras".to_owned());
        for (mount, procedure) in [(false, 0), (true, 0), (true, 2), (true, 4), (true, 5)] {
            let result = self.rig.plain(mount, procedure)?;
            let list = mount && matches!(procedure, 2 | 5);
            let expected: &[u8] = if list { &[0; 4] } else { &[] };
            if result != expected {
                return Err(format!("{mount} {procedure}: {result:?}"));
            }
        }
        let root = self
            .rig
            .mount(&self.rig.server.ticket.clone())
            .map_err(|status| format!("MNT fails with {status}"))?;
        self.rig.handles.learn(InodeId::ROOT, &root);
        self.rig.constants()?;
        let space = self.rig.fsstat()?;
        self.model
            .check_usage(space.used_bytes, space.used_inodes + 1)
    }

    fn spoil_chunks(&mut self) {
        let call = [ChunkCall::Put, ChunkCall::Sync, ChunkCall::Get][self.rng.random_range(0..3)];
        let effect = if self.rng.random() {
            Effect::Done
        } else {
            Effect::Nothing
        };
        let times = self.rng.random_range(1..4);
        let error = ChunkError::Unavailable("injected".into());
        self.note(format!("{call:?} fails {times} times, {effect:?}"));
        self.rig.server.chunks.fail(call, error, effect, times);
    }

    /// The stores are full for a while.
    fn fill(&mut self) -> Verdict {
        self.settle_all()?;
        // Taking the session over, or settling a commit whose outcome is unknown, needs a write.
        self.calm();
        let look = self.by_root(Op::Getattr {
            inode: InodeId::ROOT,
        });
        self.single(&look)?;
        self.note("the stores are full".to_owned());
        self.rig.server.memory.set_available_bytes(Some(0));
        self.rig.server.chunks.fill();
        for _ in 0..self.rng.random_range(1..8) {
            let count = self.rng.random_range(1..4);
            let calls = self.calls(count);
            let replies = self.rig.call_all(&calls, Mishaps::new())?;
            let full = Beside {
                losses: 0,
                full: true,
            };
            for (call, reply) in calls.iter().zip(&replies) {
                self.note(format!("full: {} -> {}", describe(call), outcome(reply)));
                let refused = reply.answer.error() == Some(FsError::NoSpace);
                self.tally.refused_full += u64::from(refused);
            }
            let found = explain(&self.model, &calls, &replies, full)?;
            self.model = found.into_iter().next().ok_or("no explanation")?;
            for (call, reply) in calls.iter().zip(&replies) {
                self.confirm(call, reply);
            }
        }
        self.note("there is space again".to_owned());
        self.rig.server.memory.set_available_bytes(None);
        self.rig.server.chunks.heal();
        self.rig
            .server
            .run(self.rig.client.idle(Duration::from_secs(3)));
        self.disturb();
        self.settle_all()
    }

    fn compare(&mut self) -> Verdict {
        self.note("compare".to_owned());
        let now = self.workload.now();
        self.model.compare_all(&mut self.rig, now)
    }

    /// Brings everything to rest; what is there must survive one more crash.
    pub(crate) fn finish(&mut self) -> Verdict {
        self.calm();
        self.settle_all()?;
        self.compare()?;
        self.check_budget()?;
        self.rig.stores_crash = true;
        self.rig.restart();
        self.compare()?;
        let counted = self.rig.server.counted();
        self.tally.replayed = counted.replayed;
        self.tally.replayed_from_store = counted.replayed_from_store;
        self.tally.loads = counted.loads;
        self.tally.paused = counted.paused;
        self.tally.calls = self.rig.calls;
        self.tally.digest = self.digest.finish();
        Ok(())
    }
}
