//! One seed: gateways, clients, models of their sessions, and what happens to them.

use std::collections::BTreeMap;
use std::time::Duration;

use base::{Caller, InodeId};
use nfs_gateway::GatewayOptions;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use system_tests::model::{Limits, Model, Verdict};
use system_tests::subject::{Answer, Call, Op};
use system_tests::workload::{Step, Workload, WorkloadConfig};

use crate::codec::Reply;
use crate::explain::{Beside, explain};
use crate::gateways::{BYTES_MAX, Counted, INODES_MAX, Setting};
use crate::rig::Rig;
use crate::storm::Happened;
use crate::told::{describe, outcome};

/// Times a client sends its data again before the verifier is said to change all the time.
const RESENDS_MAX: usize = 40;

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
    pub(crate) copies: u64,
    pub(crate) happened: Happened,
    pub(crate) counted: Counted,
}

/// A session: what it should be like, and what is done with it.
struct Session {
    model: Model,
    workload: Workload,
    unconfirmed: BTreeMap<InodeId, Vec<Unconfirmed>>,
}

/// One run.
pub(crate) struct World {
    pub(crate) rig: Rig,
    sessions: Vec<Session>,
    rng: ChaCha8Rng,
    /// How many takeovers there were before the last calls.
    takeovers: u64,
    copies: u64,
    setting: Setting,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let setting = Setting {
            places: 3,
            sessions: [1, 1, 2][rng.random_range(0..3)],
            block_bytes: [4096, 4096, 64 * 1024][rng.random_range(0..3)],
            gateway: GatewayOptions {
                session_memory_bytes: [1 << 10, 16 << 10, 256 << 20][rng.random_range(0..3)],
                session_idle: Duration::from_secs([3, 300][rng.random_range(0..2)]),
                delta_bytes: [2 << 10, 32 << 20, 32 << 20][rng.random_range(0..3)],
                ..GatewayOptions::default()
            },
        };
        let limits = Limits {
            block_bytes: u64::from(setting.block_bytes),
            file_bytes_max: u64::from(setting.block_bytes) << 32,
            bytes_max: BYTES_MAX,
            // The model counts the root.
            inodes_max: INODES_MAX + 1,
            read_only: false,
        };
        let config = WorkloadConfig {
            block_bytes: setting.block_bytes,
            file_bytes_max: limits.file_bytes_max,
            background: false,
        };
        let mut rig = Rig::new(setting.clone(), seed);
        let mut sessions = Vec::new();
        for at in 0..setting.sessions {
            rig.at = at;
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
            sessions.push(Session {
                model: Model::new(limits.clone(), &root),
                workload,
                unconfirmed: BTreeMap::new(),
            });
        }
        let takeovers = rig.gateways.counted().takeovers;
        Self {
            rig,
            sessions,
            rng,
            takeovers,
            copies: 0,
            setting,
        }
    }

    pub(crate) fn step(&mut self) -> Verdict {
        if !self.rig.storm.blows() && self.rng.random_ratio(2, 3) {
            self.rig.storm.begin(&mut self.rig.gateways);
        }
        self.rig.at = self.rng.random_range(0..self.sessions.len());
        match self.rng.random_range(0..100) {
            0..75 => self.batch(),
            75..82 => self.copy(),
            82..94 => {
                let ms = [10, 700, 3000, 8000][self.rng.random_range(0..4)];
                self.note(&format!("{ms} ms pass"));
                self.rig.idle(Duration::from_millis(ms));
                Ok(())
            }
            94..97 => self.mount(),
            _ => {
                self.rig.calm()?;
                self.compare()
            }
        }
    }

    fn note(&mut self, line: &str) {
        let now = self.rig.gateways.now();
        self.rig.storm.note(now, line);
    }

    fn session(&mut self) -> &mut Session {
        &mut self.sessions[self.rig.at]
    }

    /// Calls that are in progress together: one write a file, in one block, since more would have
    /// too many explanations.
    fn batch(&mut self) -> Verdict {
        let count = [1, 1, 1, 1, 2, 3][self.rng.random_range(0..6)];
        let block = u64::from(self.setting.block_bytes);
        let all_stable = self.rng.random_ratio(3, 4);
        let mut written: Vec<InodeId> = Vec::new();
        let session = self.session();
        let mut calls = Vec::new();
        while calls.len() < count {
            if let Step::Call(call) = session.workload.next(&session.model) {
                calls.push(call);
            }
        }
        let now = session.workload.now();
        calls.retain_mut(|call| {
            call.now = now;
            let Op::Write {
                inode,
                offset,
                data,
                stable,
            } = &mut call.op
            else {
                return true;
            };
            let left = usize::try_from(block - *offset % block).unwrap();
            data.truncate(data.len().min(left));
            *stable |= all_stable;
            let first = !written.contains(inode);
            written.push(*inode);
            first
        });
        self.make(&calls)?;
        self.settle_all()
    }

    /// Makes calls and finds out what they did.
    fn make(&mut self, calls: &[Call]) -> Result<Vec<Reply>, String> {
        for call in calls {
            self.note(&format!("call {}", describe(call)));
        }
        let replies = self.rig.call_all(calls)?;
        for (call, reply) in calls.iter().zip(&replies) {
            self.note(&format!("{} -> {}", describe(call), outcome(reply)));
        }
        tracing::info!(?replies, "answered");
        let losses = self.took();
        let beside = Beside {
            losses,
            full: false,
        };
        let session = self.session();
        let found = explain(&session.model, calls, &replies, beside)?;
        let writes = calls.iter().any(|call| matches!(call.op, Op::Write { .. }));
        let unsettled = has_unsettled(&session.model) || found.iter().any(has_unsettled);
        if losses > 0 && (writes || unsettled) {
            self.choose(found)?;
        } else {
            session.model = found.into_iter().next().ok_or("no explanation")?;
        }
        let session = self.session();
        for (call, reply) in calls.iter().zip(&replies) {
            session.workload.saw(call, &reply.answer, &session.model);
            session.confirm(call, reply);
        }
        Ok(replies)
    }

    /// How often sessions were taken over since the last time, if only a little.
    fn took(&mut self) -> u64 {
        let now = self.rig.gateways.counted().takeovers;
        let before = std::mem::replace(&mut self.takeovers, now);
        (now - before).min(2)
    }

    /// Of several models the one that everything to be seen agrees with.
    fn choose(&mut self, found: Vec<Model>) -> Verdict {
        self.note(&format!("which of {} is it?", found.len()));
        self.rig.calm()?;
        let now = self.session().workload.now();
        let mut why = String::new();
        for mut model in found {
            let seen = model
                .recover(&mut self.rig, now)
                .and_then(|()| model.compare_all(&mut self.rig, now));
            match seen {
                Ok(()) => {
                    self.session().model = model;
                    self.took();
                    return Ok(());
                }
                Err(error) => {
                    tracing::info!("it is not one: {error}");
                    why = error;
                }
            }
        }
        Err(format!("after a takeover: {why}"))
    }

    /// Does what a client does for fsync, for all files: COMMIT, and what the verifier says was
    /// lost is sent again.
    fn settle_all(&mut self) -> Verdict {
        for _ in 0..RESENDS_MAX {
            let session = self.session();
            let Some(inode) = session.unconfirmed.keys().next().copied() else {
                return self.settle_rest();
            };
            let writes = session.unconfirmed.remove(&inode).unwrap_or_default();
            let reply = self.single(Op::Commit { inode })?;
            let Some(verifier) = reply.verifier else {
                // The file is gone.
                continue;
            };
            for write in writes {
                if write.verifier != verifier {
                    let mut call = write.call;
                    call.now = self.session().workload.now();
                    self.make(std::slice::from_ref(&call))?;
                }
            }
        }
        Err("the verifier changes all the time".to_owned())
    }

    /// Files that the model still holds for unconfirmed.
    fn settle_rest(&mut self) -> Verdict {
        let model = &self.session().model;
        let inodes = model.inodes().map(|(inode, _)| inode);
        let rest: Vec<InodeId> = inodes.filter(|it| model.unsettled(*it) > 0).collect();
        for inode in rest {
            self.single(Op::Commit { inode })?;
        }
        Ok(())
    }

    /// Makes one call as the superuser.
    fn single(&mut self, op: Op) -> Result<Reply, String> {
        let call = Call {
            caller: Caller::root(),
            now: self.session().workload.now(),
            op,
        };
        Ok(self.make(std::slice::from_ref(&call))?.remove(0))
    }

    /// A copy of an answered call arrives late. It does nothing, and its reply is the first one's.
    fn copy(&mut self) -> Verdict {
        let history = &self.rig.client.history;
        let known: Vec<_> = history.iter().filter(|it| it.stored).cloned().collect();
        let Some(copied) = known.choose(&mut self.rng) else {
            return Ok(());
        };
        self.note(&format!("a copy of {:#x}", copied.xid));
        self.copies += 1;
        if self.rig.copy(copied)? != copied.reply {
            return Err("a copy has another reply than the first".to_owned());
        }
        Ok(())
    }

    fn mount(&mut self) -> Verdict {
        self.note("mount");
        // A mount may fail while a store does.
        let mounted = self.rig.mount();
        if mounted.is_err() && !self.rig.storm.blows() {
            return mounted;
        }
        Ok(())
    }

    fn compare(&mut self) -> Verdict {
        self.note("compare");
        let session = &mut self.sessions[self.rig.at];
        let now = session.workload.now();
        session.model.compare_all(&mut self.rig, now)
    }

    /// Brings everything to rest; what is there must survive the end of all gateways.
    pub(crate) fn finish(&mut self) -> Result<Tally, String> {
        self.rig.calm()?;
        for at in 0..self.sessions.len() {
            self.rig.at = at;
            self.settle_all()?;
            self.compare()?;
        }
        for place in 0..self.setting.places {
            self.rig.gateways.kill(place);
            self.rig.gateways.start(place, 1000);
        }
        let addresses = self.rig.gateways.addresses();
        self.rig.client.balance(addresses);
        for at in 0..self.sessions.len() {
            self.rig.at = at;
            self.compare()?;
        }
        Ok(Tally {
            calls: self.rig.calls,
            copies: self.copies,
            happened: self.rig.storm.happened,
            counted: self.rig.gateways.counted(),
        })
    }
}

impl Session {
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
                    if writes.is_empty() {
                        self.unconfirmed.remove(inode);
                    }
                }
            }
            _ => {}
        }
    }
}

fn has_unsettled(model: &Model) -> bool {
    model.inodes().any(|(inode, _)| model.unsettled(inode) > 0)
}
