//! Random calls of several clients, chosen so that they get in each other's way.
//!
//! Few directories, few names, odd names, offsets around block boundaries, handles of what is
//! gone. Each seed draws its own weights ("swarm testing"): one seed renames most of the time,
//! another never truncates, so that rare combinations become common somewhere.

use base::{Caller, InodeId, Timestamp};
use bytes::Bytes;
use metadata::Miss;
use metadata::ops::{How, Node};
use metadata::stat::{Device, FileKind, SetAttrs, SetTime};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::model::Model;
use crate::subject::{Answer, Call, Op};

/// Time of the first call.
const START: Timestamp = Timestamp::new(1_700_000_000, 999_000_000);
/// Directories above which no more are made.
const DIRECTORIES_MAX: usize = 9;
/// Handles of removed objects that are remembered.
const GONE_MAX: usize = 12;
/// Listings that are under way at once.
const CURSORS_MAX: usize = 4;
/// Unconfirmed states of a file after which it is settled.
const UNSETTLED_MAX: usize = 12;

/// Bytes after which written data repeats: no divisor of a block's size, so that what lands in
/// another block shows.
const CYCLE: u64 = 251;

/// What happens next.
#[derive(Clone, Debug)]
pub enum Step {
    /// A client calls.
    Call(Call),
    /// The engine does something by itself.
    Background(Background),
    /// The engine dies.
    Crash {
        /// Whether the flush that is under way takes effect.
        finish_flush: bool,
        /// Whether the session is read-only from now on.
        read_only: bool,
    },
    /// Everything is compared with the model.
    Compare,
}

/// What the engine around an image does by itself.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "named after what `ImageSubject` does")]
pub enum Background {
    Settle(InodeId),
    BeginWrite { inode: InodeId, bytes_max: usize },
    FinishWrite,
    AbandonWrite,
    Discard(InodeId),
    BeginFlush,
    FinishFlush,
    Evict { target: usize },
    LoadEarly(Miss),
    InstallEarly,
}

/// Kinds of steps, each with a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Getattr,
    Setattr,
    Truncate,
    Lookup,
    Access,
    Readlink,
    Read,
    Write,
    StableWrite,
    Commit,
    Create,
    Mkdir,
    Symlink,
    Mknod,
    Remove,
    Rmdir,
    Rename,
    Link,
    List,
    Settle,
    WriteBack,
    Flush,
    Evict,
    LoadEarly,
    Crash,
    Compare,
}

/// Kinds of steps and what they weigh before the seed changes it.
const WEIGHTS: [(Kind, u32); 26] = [
    (Kind::Getattr, 6),
    (Kind::Setattr, 8),
    (Kind::Truncate, 8),
    (Kind::Lookup, 8),
    (Kind::Access, 3),
    (Kind::Readlink, 2),
    (Kind::Read, 10),
    (Kind::Write, 20),
    (Kind::StableWrite, 2),
    (Kind::Commit, 2),
    (Kind::Create, 14),
    (Kind::Mkdir, 7),
    (Kind::Symlink, 3),
    (Kind::Mknod, 3),
    (Kind::Remove, 9),
    (Kind::Rmdir, 6),
    (Kind::Rename, 16),
    (Kind::Link, 7),
    (Kind::List, 10),
    (Kind::Settle, 10),
    (Kind::WriteBack, 20),
    (Kind::Flush, 14),
    (Kind::Evict, 6),
    (Kind::LoadEarly, 6),
    (Kind::Crash, 2),
    (Kind::Compare, 1),
];

/// What a workload is made for.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadConfig {
    /// Size of a file's blocks, in bytes.
    pub block_bytes: u32,
    /// Largest file, in bytes.
    pub file_bytes_max: u64,
    /// Whether there are background steps.
    pub background: bool,
}

/// An endless sequence of steps.
#[derive(Debug)]
pub struct Workload {
    rng: ChaCha8Rng,
    config: WorkloadConfig,
    weights: Vec<(Kind, u32)>,
    callers: Vec<Caller>,
    names: Vec<Bytes>,
    now: Timestamp,
    written: u64,
    gone: Vec<InodeId>,
    /// Listings under way: directory, cookie, who lists.
    cursors: Vec<(InodeId, u64, Caller)>,
}

/// Names that can be made.
fn good_names() -> Vec<Bytes> {
    let names: [&[u8]; 10] = [
        b"a",
        b"b",
        b"c",
        b"dd",
        b"...",
        b" ",
        b"\xff\xfe\x80",
        b"\n\x01",
        &[b'x'; 255],
        &[0xc3; 254],
    ];
    names.map(Bytes::from_static).to_vec()
}

/// Names that cannot.
fn bad_names() -> Vec<Bytes> {
    let names: [&[u8]; 7] = [b".", b"..", b"", b"a/b", b"a\0", &[b'y'; 256], &[b'z'; 300]];
    names.map(Bytes::from_static).to_vec()
}

fn user(uid: u32, gid: u32, groups: &[u32]) -> Caller {
    Caller {
        uid,
        gid,
        groups: groups.to_vec(),
    }
}

fn clients() -> Vec<Caller> {
    vec![
        Caller::root(),
        user(1000, 100, &[200]),
        user(1001, 100, &[]),
        user(1002, 300, &[100, 200]),
        user(1003, 400, &[]),
        // Of root's group, which gives no power.
        user(1004, 0, &[0]),
    ]
}

impl Workload {
    /// The workload of a seed.
    #[must_use]
    pub fn new(config: WorkloadConfig, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let swarm = |rng: &mut ChaCha8Rng, (kind, weight): (Kind, u32)| match rng.random_range(0..8)
        {
            0 if !matches!(kind, Kind::Create | Kind::Mkdir) => (kind, 0),
            1 => (kind, weight * 4),
            2 => (kind, weight.div_ceil(4)),
            _ => (kind, weight),
        };
        let weights = WEIGHTS
            .into_iter()
            .filter(|(kind, _)| config.background || !kind.is_background())
            .map(|pair| swarm(&mut rng, pair))
            .collect();
        let names_count = rng.random_range(3..=8);
        let names = good_names()
            .sample(&mut rng, names_count)
            .cloned()
            .collect();
        let mut callers: Vec<Caller> = Vec::new();
        let callers_count = rng.random_range(2..=6);
        callers.extend(clients().sample(&mut rng, callers_count).cloned());
        Self {
            rng,
            config,
            weights,
            callers,
            names,
            now: START,
            written: 0,
            gone: Vec::new(),
            cursors: Vec::new(),
        }
    }

    /// The time of the last call.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The next step, given what there is.
    pub fn next(&mut self, model: &Model) -> Step {
        self.pass_time();
        let total: u32 = self.weights.iter().map(|(_, weight)| weight).sum();
        let mut at = self.rng.random_range(0..total.max(1));
        let mut chosen = Kind::Getattr;
        for (kind, weight) in &self.weights {
            if at < *weight {
                chosen = *kind;
                break;
            }
            at -= weight;
        }
        self.step(chosen, model)
    }

    /// Takes note of what a call gave.
    pub fn saw(&mut self, call: &Call, answer: &Answer, model: &Model) {
        if let (Op::List { dir, .. }, Answer::Listed(Ok(reply))) = (&call.op, answer)
            && let Some(last) = reply.entries.last()
            && !reply.end
        {
            if self.cursors.len() >= CURSORS_MAX {
                self.cursors.remove(0);
            }
            self.cursors.push((*dir, last.cookie, call.caller.clone()));
        }
        for stat in answer.attributes() {
            if model.kind(stat.inode).is_some() && !self.gone.contains(&stat.inode) {
                if self.gone.len() >= GONE_MAX {
                    let drop = self.rng.random_range(0..self.gone.len());
                    self.gone.swap_remove(drop);
                }
                self.gone.push(stat.inode);
            }
        }
    }

    /// Forgets what a crash may have undone.
    pub fn forget(&mut self) {
        self.gone.clear();
        self.cursors.clear();
    }

    fn pass_time(&mut self) {
        let nanos = match self.rng.random_range(0..20) {
            0..4 => 0,
            4 => 1,
            // The clock may also be set back.
            5 => {
                self.now = Timestamp::new(self.now.seconds() - 1, self.now.nanos());
                0
            }
            6 => 3_000_000_000,
            _ => self.rng.random_range(1..2_000_000),
        };
        self.now = Timestamp::new(
            self.now.seconds() + u64::from(nanos / 1_000_000_000),
            self.now.nanos() + nanos % 1_000_000_000,
        );
    }

    fn step(&mut self, kind: Kind, model: &Model) -> Step {
        let op = match kind {
            Kind::Settle | Kind::WriteBack | Kind::Flush | Kind::Evict | Kind::LoadEarly => {
                return Step::Background(self.background(kind, model));
            }
            Kind::Crash => {
                return Step::Crash {
                    finish_flush: self.rng.random(),
                    read_only: self.rng.random_ratio(1, 12),
                };
            }
            Kind::Compare => return Step::Compare,
            Kind::List => return Step::Call(self.list(model)),
            _ => self.op(kind, model),
        };
        Step::Call(Call {
            caller: self.caller(),
            now: self.now,
            op,
        })
    }

    fn op(&mut self, kind: Kind, model: &Model) -> Op {
        let (dir, name) = match kind {
            // What is looked for or taken away had better be there.
            Kind::Lookup | Kind::Remove | Kind::Rmdir => self.taken(model),
            _ => (self.dir(model), self.name()),
        };
        match kind {
            Kind::Setattr => self.setattr(model),
            Kind::Truncate => self.truncate(model),
            Kind::Lookup => Op::Lookup { dir, name },
            Kind::Access => Op::Access {
                inode: self.inode(model),
            },
            Kind::Readlink => Op::Readlink {
                inode: self.of_kind(model, FileKind::Symlink),
            },
            Kind::Read => Op::Read {
                inode: self.of_kind(model, FileKind::File),
                offset: self.offset(),
                count: u32::try_from(self.length()).unwrap_or(u32::MAX),
            },
            Kind::Write => self.write(model, false),
            Kind::StableWrite => self.write(model, true),
            Kind::Commit => Op::Commit {
                inode: self.of_kind(model, FileKind::File),
            },
            Kind::Create => Op::Create {
                dir,
                name,
                how: self.how(),
            },
            Kind::Mkdir | Kind::Symlink | Kind::Mknod => Op::Make {
                dir,
                name,
                node: self.node(kind, model),
                attrs: self.attrs_of_new(),
            },
            Kind::Remove => Op::Remove { dir, name },
            Kind::Rmdir => Op::Rmdir { dir, name },
            Kind::Rename => self.rename(model),
            Kind::Link => Op::Link {
                inode: self.inode(model),
                dir,
                name,
            },
            _ => Op::Getattr {
                inode: self.inode(model),
            },
        }
    }

    fn background(&mut self, kind: Kind, model: &Model) -> Background {
        match kind {
            Kind::Settle => Background::Settle(self.dirty(model)),
            Kind::WriteBack => match self.rng.random_range(0..24) {
                0 => Background::Discard(self.dirty(model)),
                1 | 2 => Background::AbandonWrite,
                3..12 => Background::BeginWrite {
                    inode: self.dirty(model),
                    bytes_max: [1, 5_000, usize::MAX]
                        .choose(&mut self.rng)
                        .copied()
                        .unwrap_or(1),
                },
                _ => Background::FinishWrite,
            },
            Kind::Flush if self.rng.random() => Background::BeginFlush,
            Kind::Flush => Background::FinishFlush,
            Kind::Evict => Background::Evict {
                target: if self.rng.random() {
                    0
                } else {
                    self.rng.random_range(0..8_000)
                },
            },
            _ if self.rng.random() => Background::InstallEarly,
            _ => Background::LoadEarly(self.miss(model)),
        }
    }

    fn miss(&mut self, model: &Model) -> Miss {
        let first = self.rng.random_range(0..4);
        match self.rng.random_range(0..5) {
            0 => Miss::Inode(self.inode(model)),
            1 => Miss::Links(self.inode(model)),
            2 => Miss::Blocks {
                inode: self.of_kind(model, FileKind::File),
                first,
                last: first + self.rng.random_range(0..4),
            },
            _ => Miss::Entries {
                dir: self.of_kind(model, FileKind::Directory),
                from: if self.rng.random() {
                    0
                } else {
                    self.rng.random_range(0..1 << 62)
                },
            },
        }
    }

    /// A file with unconfirmed data, if there is one.
    fn dirty(&mut self, model: &Model) -> InodeId {
        let dirty: Vec<InodeId> = model
            .inodes()
            .map(|(inode, _)| inode)
            .filter(|inode| model.unsettled(*inode) > 0)
            .collect();
        dirty
            .choose(&mut self.rng)
            .copied()
            .unwrap_or_else(|| self.of_kind(model, FileKind::File))
    }

    fn caller(&mut self) -> Caller {
        self.callers
            .choose(&mut self.rng)
            .cloned()
            .unwrap_or_else(Caller::root)
    }

    /// Any inode, sometimes one that is gone or never was.
    fn inode(&mut self, model: &Model) -> InodeId {
        if self.rng.random_ratio(1, 12)
            && let Some(gone) = self.gone.choose(&mut self.rng)
        {
            return *gone;
        }
        let all: Vec<InodeId> = model.inodes().map(|(inode, _)| inode).collect();
        all.choose(&mut self.rng).copied().unwrap_or(InodeId::ROOT)
    }

    /// An inode that is most likely of this kind.
    fn of_kind(&mut self, model: &Model, wanted: FileKind) -> InodeId {
        if self.rng.random_ratio(1, 15) {
            return self.inode(model);
        }
        let of_kind: Vec<InodeId> = model
            .inodes()
            .filter(|(_, kind)| *kind == wanted)
            .map(|(inode, _)| inode)
            .collect();
        of_kind
            .choose(&mut self.rng)
            .copied()
            .unwrap_or_else(|| self.inode(model))
    }

    fn dir(&mut self, model: &Model) -> InodeId {
        self.of_kind(model, FileKind::Directory)
    }

    fn name(&mut self) -> Bytes {
        let pool = if self.rng.random_ratio(1, 16) {
            &bad_names()
        } else {
            &self.names
        };
        pool.choose(&mut self.rng).cloned().unwrap_or_default()
    }

    /// A place that most likely has something.
    fn taken(&mut self, model: &Model) -> (InodeId, Bytes) {
        let dir = self.dir(model);
        let names: Vec<&[u8]> = model.names(dir).map(|(name, _)| name).collect();
        if self.rng.random_ratio(3, 4)
            && let Some(name) = names.choose(&mut self.rng)
        {
            return (dir, Bytes::copy_from_slice(name));
        }
        (dir, self.name())
    }

    fn rename(&mut self, model: &Model) -> Op {
        let (from_dir, from_name) = self.taken(model);
        let (to_dir, to_name) = if self.rng.random() {
            self.taken(model)
        } else {
            (self.dir(model), self.name())
        };
        Op::Rename {
            from_dir,
            from_name,
            to_dir,
            to_name,
        }
    }

    fn list(&mut self, model: &Model) -> Call {
        let count = self.rng.random_range(1..8);
        if self.rng.random_ratio(2, 3) && !self.cursors.is_empty() {
            let at = self.rng.random_range(0..self.cursors.len());
            let (dir, cookie, caller) = self.cursors.swap_remove(at);
            return Call {
                caller,
                now: self.now,
                op: Op::List { dir, cookie, count },
            };
        }
        let cookie = match self.rng.random_range(0..6) {
            0 => self.rng.random_range(0..4),
            1 => self.rng.random(),
            _ => 0,
        };
        Call {
            caller: self.caller(),
            now: self.now,
            op: Op::List {
                dir: self.dir(model),
                cookie,
                count,
            },
        }
    }

    fn mode(&mut self) -> u32 {
        let modes = [
            0o644, 0o755, 0o600, 0o777, 0o666, 0o000, 0o4755, 0o2755, 0o2745, 0o6777, 0o1777,
            0o2777, 0o711, 0o111, 0o077, 0o700, 0o170_777,
        ];
        modes.choose(&mut self.rng).copied().unwrap_or(0o644)
    }

    fn id(&mut self) -> u32 {
        let ids = [0, 100, 200, 300, 1000, 1001, 1002, 1003, u32::MAX - 1];
        ids.choose(&mut self.rng).copied().unwrap_or(0)
    }

    fn set_time(&mut self) -> SetTime {
        match self.rng.random_range(0..6) {
            0 => SetTime::Now,
            1 => SetTime::To(Timestamp::new(self.rng.random_range(0..1 << 32), 7)),
            _ => SetTime::Keep,
        }
    }

    fn maybe(&mut self, one_in: u32, value: impl FnOnce(&mut Self) -> u32) -> Option<u32> {
        self.rng.random_ratio(1, one_in).then(|| value(self))
    }

    fn attrs_of_new(&mut self) -> SetAttrs {
        SetAttrs {
            mode: self.rng.random_ratio(9, 10).then(|| self.mode()),
            uid: self.maybe(8, Self::id),
            gid: self.maybe(8, Self::id),
            size: self.rng.random_ratio(1, 8).then(|| self.size()),
            atime: self.set_time(),
            mtime: self.set_time(),
        }
    }

    fn setattr(&mut self, model: &Model) -> Op {
        let inode = self.inode(model);
        let attrs = SetAttrs {
            mode: self.maybe(2, Self::mode),
            uid: self.maybe(6, Self::id),
            gid: self.maybe(4, Self::id),
            size: self.rng.random_ratio(1, 10).then(|| self.size()),
            atime: self.set_time(),
            mtime: self.set_time(),
        };
        let guard = match self.rng.random_range(0..10) {
            0 => Some(self.now),
            1 | 2 => model.ctime(inode),
            _ => None,
        };
        Op::Setattr {
            inode,
            attrs,
            guard,
        }
    }

    fn truncate(&mut self, model: &Model) -> Op {
        let inode = self.of_kind(model, FileKind::File);
        let size = match self.rng.random_range(0..4) {
            0 => 0,
            1 => model
                .size(inode)
                .saturating_sub(self.rng.random_range(0..9)),
            _ => self.size(),
        };
        Op::Setattr {
            inode,
            attrs: SetAttrs {
                size: Some(size),
                ..SetAttrs::default()
            },
            guard: None,
        }
    }

    fn how(&mut self) -> How {
        match self.rng.random_range(0..5) {
            0 => How::Exclusive([self.rng.random_range(0..3); 8]),
            1 => How::Guarded(self.attrs_of_new()),
            _ => How::Unchecked(self.attrs_of_new()),
        }
    }

    fn node(&mut self, kind: Kind, model: &Model) -> Node {
        let device = Device {
            major: self.rng.random_range(0..300),
            minor: self.rng.random(),
        };
        let dirs = model
            .inodes()
            .filter(|(_, kind)| *kind == FileKind::Directory)
            .count();
        match kind {
            Kind::Mkdir if dirs < DIRECTORIES_MAX => Node::Directory,
            Kind::Symlink => Node::Symlink(self.target()),
            _ => match self.rng.random_range(0..4) {
                0 => Node::BlockDevice(device),
                1 => Node::CharDevice(device),
                2 => Node::Fifo,
                _ => Node::Socket,
            },
        }
    }

    fn target(&mut self) -> Bytes {
        let targets: [&[u8]; 5] = [b"a", b"../x/\xff", b"", b"a\0b", b"/"];
        match self.rng.random_range(0..7) {
            0 => Bytes::from(vec![b't'; 4096]),
            1 => Bytes::from(vec![b't'; 4097]),
            at => Bytes::from_static(targets.get(at - 2).copied().unwrap_or(b"a")),
        }
    }

    /// A size around block boundaries, or one no file can have.
    fn size(&mut self) -> u64 {
        if self.rng.random_ratio(1, 40) {
            return *[self.config.file_bytes_max + 1, u64::MAX]
                .choose(&mut self.rng)
                .unwrap_or(&u64::MAX);
        }
        self.offset()
    }

    fn offset(&mut self) -> u64 {
        let block = u64::from(self.config.block_bytes);
        let edge = self.rng.random_range(0..4) * block;
        match self.rng.random_range(0..8) {
            0 => edge,
            1 => edge + self.rng.random_range(1..4),
            2 => edge.saturating_sub(self.rng.random_range(1..4)),
            3 => edge + 4096,
            4 => edge + self.rng.random_range(0..block),
            5 => self.rng.random_range(0..64),
            _ => 0,
        }
    }

    /// Size above which files are not appended to.
    fn grown(&self) -> u64 {
        u64::from(self.config.block_bytes) * 6
    }

    fn length(&mut self) -> u64 {
        let block = u64::from(self.config.block_bytes);
        match self.rng.random_range(0..10) {
            0 => block,
            1 => block + 1,
            2 => block - 1,
            3 => 2 * block + 5,
            4 => 4096,
            5 => self.rng.random_range(0..block),
            6 => 0,
            _ => self.rng.random_range(1..200),
        }
    }

    fn write(&mut self, model: &Model, stable: bool) -> Op {
        let inode = self.of_kind(model, FileKind::File);
        if !stable && model.unsettled(inode) > UNSETTLED_MAX {
            return Op::Commit { inode };
        }
        let offset = match self.rng.random_range(0..40) {
            0 => self.config.file_bytes_max,
            1 => u64::MAX - 3,
            2..8 if model.size(inode) < self.grown() => model.size(inode),
            _ => self.offset(),
        };
        // Every write has other bytes, and none is zero.
        self.written += 1;
        let length = usize::try_from(self.length()).unwrap_or(0);
        let first = self.written * 17;
        let cycle: Vec<u8> = (first..first + CYCLE)
            .map(|at| u8::try_from(at % CYCLE + 1).unwrap_or(1))
            .collect();
        let mut data = cycle.repeat(length.div_ceil(cycle.len()));
        data.truncate(length);
        Op::Write {
            inode,
            offset,
            data: Bytes::from(data),
            stable,
        }
    }
}

impl Kind {
    /// Whether the step is not a client's.
    fn is_background(self) -> bool {
        matches!(
            self,
            Self::Settle | Self::WriteBack | Self::Flush | Self::Evict | Self::LoadEarly
        )
    }
}
