//! The cluster as a state machine: calls in, answers out, no sockets and no threads.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use bytes::Bytes;
use metadata::kv::memory::MemoryKv;
use metadata::kv::{AtomicOp, Committed, Isolation, KeyRange, Kv, KvError, Transaction, Version};

use super::asked::Asked;
use super::faults::{Fault, Faults};
use super::metadata_version::{self, MetadataVersions};
use super::reads::{self, isolation, now};
use crate::codes::{self, Code};
use crate::wire::{Answer, Call, RangeRead, Reply, Request};

/// Most transactions of a connection at a time.
const TRANSACTIONS_MAX: usize = 10_000;

/// Most watches of a connection, and of a transaction, at a time.
const WATCHES_MAX: usize = 10_000;

/// Most calls that wait while the cluster is unreachable; more are lost.
const WAITING_MAX: usize = 100_000;

/// Most pairs of a range read, also where a client asks for more: so many of the shortest, and as
/// many bytes as a client may ask for, fit in a frame.
const ROWS_MAX: u32 = 500_000;

/// Versions that a recovery skips.
const RECOVERY_VERSIONS: u64 = 100_000_000;

/// How late a watch fires for no reason, in milliseconds.
const SPURIOUS_MS: u64 = 5;

/// A key that nobody reads by accident: a commit that writes only `\xff/metadataVersion`, which is
/// not in the store, conflicts here, so that it gets a version.
const NOWHERE: [u8; 64] = [0xfe; 64];

/// What a commit without writes has for a stamp.
const NO_STAMP: [u8; 10] = [0; 10];

/// What is to be done outside.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Send an answer to a connection after a delay.
    Send {
        /// The connection.
        connection: u64,
        /// The answer.
        answer: Answer,
        /// How late.
        delay: Duration,
    },
    /// Call [`Cluster::resume`] with this number after a delay.
    Resume {
        /// The number.
        token: u64,
        /// When.
        delay: Duration,
    },
}

/// One cluster.
#[derive(Debug)]
pub struct Cluster {
    kv: MemoryKv,
    faults: Faults,
    metadata: MetadataVersions,
    connections: BTreeSet<u64>,
    transactions: HashMap<(u64, u64), Running>,
    watches: Vec<Watch>,
    held: BTreeMap<u64, Held>,
    tokens: u64,
    asked: Asked,
    commits: u64,
    /// Commits that conflict from now on, because a burst began.
    conflicts_left: u64,
    /// Calls that wait until the cluster is reachable again; `None` while it is.
    waiting: Option<VecDeque<(u64, Call)>>,
}

/// A transaction before its commit.
#[derive(Debug)]
struct Running {
    kv: Box<dyn Transaction>,
    named: Option<Version>,
    read: Option<Version>,
    wrote: bool,
    reads_metadata: bool,
    writes_metadata: bool,
    watches: Vec<Watch>,
    failed: Option<Code>,
}

/// A watch, of a transaction or armed.
#[derive(Debug)]
struct Watch {
    connection: u64,
    id: u64,
    key: Bytes,
    value: Option<Bytes>,
}

/// What happens later.
#[derive(Debug)]
enum Held {
    Commit {
        connection: u64,
        id: u64,
        transaction: Running,
    },
    Reachable,
}

impl Cluster {
    /// An empty cluster.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, faults: Faults) -> Self {
        Self {
            kv: MemoryKv::new(clock),
            faults,
            metadata: MetadataVersions::default(),
            connections: BTreeSet::new(),
            transactions: HashMap::new(),
            watches: Vec::new(),
            held: BTreeMap::new(),
            tokens: 0,
            asked: Asked::default(),
            commits: 0,
            conflicts_left: 0,
            waiting: None,
        }
    }

    /// The faults, with what has happened of them.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// What was asked since the start.
    #[must_use]
    pub fn asked(&self) -> Asked {
        self.asked
    }

    /// Takes other faults from now on, and counts anew.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
        self.conflicts_left = 0;
    }

    /// A connection is there.
    pub fn connected(&mut self, connection: u64) {
        self.connections.insert(connection);
    }

    /// A connection is gone: its transactions end without a commit, but for commits on their way.
    pub fn disconnected(&mut self, connection: u64) {
        self.connections.remove(&connection);
        self.transactions.retain(|(of, _), _| *of != connection);
        self.watches.retain(|watch| watch.connection != connection);
    }

    /// Transactions that have not ended.
    #[must_use]
    pub fn transactions(&self) -> usize {
        self.transactions.len()
    }

    /// Does a call.
    pub fn call(&mut self, connection: u64, call: Call) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.waiting.is_none()
            && call.id != 0
            && let Some(happening) = self.faults.decide(Fault::Unreachable)
        {
            self.waiting = Some(VecDeque::new());
            self.hold(Held::Reachable, happening.ms, &mut actions);
        }
        match &mut self.waiting {
            Some(waiting) if waiting.len() < WAITING_MAX => waiting.push_back((connection, call)),
            Some(_) => {}
            None => self.work(connection, call, &mut actions),
        }
        actions
    }

    /// Goes on with what was put off.
    pub fn resume(&mut self, token: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        match self.held.remove(&token) {
            Some(Held::Commit {
                connection,
                id,
                transaction,
            }) => self.apply(connection, id, transaction, &mut actions),
            Some(Held::Reachable) => {
                for (connection, call) in self.waiting.take().unwrap_or_default() {
                    self.work(connection, call, &mut actions);
                }
            }
            None => {}
        }
        actions
    }

    fn hold(&mut self, held: Held, ms: u64, actions: &mut Vec<Action>) {
        self.tokens += 1;
        self.held.insert(self.tokens, held);
        actions.push(Action::Resume {
            token: self.tokens,
            delay: Duration::from_millis(ms),
        });
    }

    fn work(&mut self, connection: u64, call: Call, actions: &mut Vec<Action>) {
        let name = (connection, call.transaction);
        match call.request {
            Request::Drop => {
                if let Some(transaction) = self.transactions.remove(&name) {
                    self.fail_watches(transaction.watches, codes::TRANSACTION_CANCELLED, actions);
                }
                return;
            }
            Request::ForgetWatch(id) => {
                let is_it = |watch: &Watch| watch.connection == connection && watch.id == id;
                self.watches.retain(|watch| !is_it(watch));
                if let Some(transaction) = self.transactions.get_mut(&name) {
                    transaction.watches.retain(|watch| !is_it(watch));
                }
                return;
            }
            _ => {}
        }
        if !self.connections.contains(&connection) {
            return;
        }
        let mut transaction = match self.transactions.remove(&name) {
            Some(transaction) => transaction,
            None => Running::new(self.kv.begin()),
        };
        self.asked.count(&call.request, transaction.wrote);
        if let Request::Commit = call.request {
            self.commit(connection, call.id, transaction, actions);
            return;
        }
        let outcome = self.step(&mut transaction, connection, call.id, call.request);
        let full = self.transactions.len() >= TRANSACTIONS_MAX;
        if full {
            let error = codes::GRV_PROXY_MEMORY_LIMIT;
            self.answer(connection, call.id, Err(error), actions);
            return;
        }
        self.transactions.insert(name, transaction);
        if let Some(outcome) = outcome {
            self.answer(connection, call.id, outcome, actions);
        }
    }

    /// Does what is not a commit. `None` if there is no answer, or not yet.
    fn step(
        &mut self,
        transaction: &mut Running,
        connection: u64,
        id: u64,
        request: Request,
    ) -> Option<Result<Reply, Code>> {
        let read = match request {
            Request::SetReadVersion(version) => {
                transaction.named = Some(Version(version));
                transaction.kv.set_read_version(Version(version));
                return None;
            }
            Request::Set(_, _)
            | Request::Clear(_)
            | Request::ClearRange(_, _)
            | Request::Atomic(_, _, _)
            | Request::Conflict { .. } => {
                transaction.write(request);
                return None;
            }
            Request::Watch(key) => {
                if transaction.watches.len() >= WATCHES_MAX {
                    return Some(Err(codes::TOO_MANY_WATCHES));
                }
                let value = self.begin_read(transaction).and_then(|_| {
                    now(transaction.kv.get(&key, Isolation::Snapshot))
                        .map_err(|error| self.code(transaction, &error, true))
                });
                match value {
                    Ok(value) => transaction.watches.push(Watch {
                        connection,
                        id,
                        key,
                        value,
                    }),
                    Err(code) => return Some(Err(code)),
                }
                return None;
            }
            Request::ReadVersion if transaction.named.is_some() => {
                // What was set by hand is told, and judged when something is read.
                let named = transaction.named.unwrap_or_default();
                return Some(transaction.failed.map_or(Ok(Reply::Version(named.0)), Err));
            }
            read => read,
        };
        Some(
            self.begin_read(transaction)
                .and_then(|version| self.read(transaction, version, read)),
        )
    }

    /// What comes before each read: faults, and the read version.
    fn begin_read(&mut self, transaction: &mut Running) -> Result<Version, Code> {
        if let Some(code) = transaction.failed {
            return Err(code);
        }
        if transaction.named.is_none()
            && transaction.read.is_none()
            && self.faults.decide(Fault::Jump).is_some()
        {
            self.kv.recover(RECOVERY_VERSIONS);
        }
        for (fault, code) in [
            (Fault::TooOld, codes::TRANSACTION_TOO_OLD),
            (Fault::Future, codes::FUTURE_VERSION),
            (Fault::Behind, codes::PROCESS_BEHIND),
        ] {
            if self.faults.decide(fault).is_some() {
                return Err(code);
            }
        }
        let version = now(transaction.kv.read_version())
            .map_err(|error| self.code(transaction, &error, true))?;
        transaction.read = Some(version);
        Ok(version)
    }

    fn read(
        &mut self,
        transaction: &mut Running,
        version: Version,
        request: Request,
    ) -> Result<Reply, Code> {
        let kv = transaction.kv.as_ref();
        let result = match request {
            Request::ReadVersion => Ok(Reply::Version(version.0)),
            Request::Get { key, snapshot } if *key == *metadata_version::KEY => {
                if transaction.writes_metadata {
                    return Err(codes::ACCESSED_UNREADABLE);
                }
                transaction.reads_metadata |= !snapshot;
                let value = self.metadata.at(version);
                return Ok(Reply::Value(
                    value.map(|stamp| Bytes::copy_from_slice(&stamp)),
                ));
            }
            Request::Get { key, snapshot } => {
                now(kv.get(&key, isolation(snapshot))).map(Reply::Value)
            }
            Request::GetKey { selector, snapshot } => {
                reads::resolve(kv, &selector, isolation(snapshot)).map(Reply::Key)
            }
            Request::GetRange(read) => {
                let rows = self.rows(&read);
                reads::range(kv, &read, rows).map(|page| Reply::Pairs(page.pairs, page.more))
            }
            _ => return Err(codes::CLIENT_INVALID_OPERATION),
        };
        result.map_err(|error| self.code(transaction, &error, true))
    }

    fn rows(&mut self, read: &RangeRead) -> u32 {
        let rows = read.rows.min(ROWS_MAX);
        if read.may_cut
            && let Some(happening) = self.faults.decide(Fault::Cut)
        {
            let few = u32::try_from(1 + happening.random % 3).unwrap_or(1);
            return rows.min(few);
        }
        rows
    }

    /// Decides what becomes of a commit.
    fn commit(
        &mut self,
        connection: u64,
        id: u64,
        transaction: Running,
        actions: &mut Vec<Action>,
    ) {
        if transaction.wrote && transaction.failed.is_none() {
            if let Some(code) = self.refusal() {
                self.fail_watches(transaction.watches, code, actions);
                self.answer(connection, id, Err(code), actions);
                return;
            }
            if let Some(happening) = self.faults.decide(Fault::Straggle) {
                let held = Held::Commit {
                    connection,
                    id,
                    transaction,
                };
                self.hold(held, happening.ms, actions);
                return;
            }
        }
        self.apply(connection, id, transaction, actions);
    }

    /// The error of a commit that a fault keeps from being done.
    fn refusal(&mut self) -> Option<Code> {
        if self.conflicts_left > 0 {
            self.conflicts_left -= 1;
            return Some(codes::NOT_COMMITTED);
        }
        if let Some(happening) = self.faults.decide(Fault::Conflict) {
            self.conflicts_left = 1 + happening.random % 3;
            return Some(codes::NOT_COMMITTED);
        }
        if self.faults.decide(Fault::TooOld).is_some() {
            return Some(codes::TRANSACTION_TOO_OLD);
        }
        let dropped = self.faults.decide(Fault::UnknownDropped).is_some();
        dropped.then_some(codes::COMMIT_UNKNOWN_RESULT)
    }

    /// Commits, and tells how that went.
    fn apply(
        &mut self,
        connection: u64,
        id: u64,
        mut transaction: Running,
        actions: &mut Vec<Action>,
    ) {
        let watches = std::mem::take(&mut transaction.watches);
        let wrote = transaction.wrote;
        let mut outcome = self.try_commit(transaction);
        if wrote && outcome.is_ok() {
            self.fire_changed(actions);
            if self.faults.decide(Fault::UnknownApplied).is_some() {
                outcome = Err(codes::COMMIT_UNKNOWN_RESULT);
            }
        }
        match outcome {
            Ok(committed) => {
                let committed = committed
                    .filter(|committed| committed.stamp != NO_STAMP)
                    .map(|committed| (committed.version.0, committed.stamp));
                self.answer(connection, id, Ok(Reply::Committed(committed)), actions);
                for watch in watches {
                    self.arm(watch, actions);
                }
            }
            Err(code) => {
                self.fail_watches(watches, code, actions);
                self.answer(connection, id, Err(code), actions);
            }
        }
    }

    fn try_commit(&mut self, mut transaction: Running) -> Result<Option<Committed>, Code> {
        if let Some(code) = transaction.failed {
            return Err(code);
        }
        if !transaction.wrote {
            // Reads never fail a commit, but a failed call does.
            let committed = now(transaction.kv.commit());
            return match committed {
                Err(KvError::Limit(_)) => Err(codes::TRANSACTION_TOO_LARGE),
                _ => Ok(None),
            };
        }
        let read = transaction.read.or(transaction.named);
        if transaction.reads_metadata && read.is_some_and(|read| self.metadata.written_after(read))
        {
            return Err(codes::NOT_COMMITTED);
        }
        self.commits += 1;
        let gap = self.faults.gap(self.commits);
        self.kv.skip_versions(gap);
        if transaction.writes_metadata {
            let nowhere = KeyRange::key(&NOWHERE);
            transaction.kv.add_write_conflict_range(&nowhere);
        }
        let (named, read, writes_metadata) = (
            transaction.named,
            transaction.read,
            transaction.writes_metadata,
        );
        let committed = now(transaction.kv.commit()).map_err(|error| {
            code_of(
                &error,
                named.filter(|_| read.is_none()),
                self.kv.version(),
                false,
            )
        })?;
        if writes_metadata {
            self.metadata.write(committed.version, committed.stamp);
        }
        Ok(Some(committed))
    }

    fn code(&self, transaction: &Running, error: &KvError, reading: bool) -> Code {
        let named = transaction.named.filter(|_| transaction.read.is_none());
        code_of(error, named, self.kv.version(), reading)
    }

    fn arm(&mut self, watch: Watch, actions: &mut Vec<Action>) {
        if self.faults.decide(Fault::Watch).is_some() {
            let answer = Answer {
                id: watch.id,
                outcome: Ok(Reply::Done),
            };
            actions.push(Action::Send {
                connection: watch.connection,
                answer,
                delay: Duration::from_millis(SPURIOUS_MS),
            });
            return;
        }
        let armed = self.watches.iter();
        if armed.filter(|of| of.connection == watch.connection).count() >= WATCHES_MAX {
            let error = Err(codes::TOO_MANY_WATCHES);
            self.answer(watch.connection, watch.id, error, actions);
            return;
        }
        self.watches.push(watch);
        self.fire_changed(actions);
    }

    /// Fires the watches whose key has another value now.
    fn fire_changed(&mut self, actions: &mut Vec<Action>) {
        if self.watches.is_empty() {
            return;
        }
        let reader = self.kv.begin();
        let (unchanged, changed) =
            std::mem::take(&mut self.watches)
                .into_iter()
                .partition(|watch| {
                    now(reader.get(&watch.key, Isolation::Snapshot))
                        .is_ok_and(|now| now == watch.value)
                });
        self.watches = unchanged;
        let changed: Vec<Watch> = changed;
        for watch in changed {
            self.answer(watch.connection, watch.id, Ok(Reply::Done), actions);
        }
    }

    fn fail_watches(&mut self, watches: Vec<Watch>, code: Code, actions: &mut Vec<Action>) {
        for watch in watches {
            self.answer(watch.connection, watch.id, Err(code), actions);
        }
    }

    fn answer(
        &mut self,
        connection: u64,
        id: u64,
        outcome: Result<Reply, Code>,
        actions: &mut Vec<Action>,
    ) {
        if id == 0 {
            return;
        }
        let late = self.faults.decide(Fault::Delay);
        let ms = late.map_or(0, |happening| 1 + happening.random % happening.ms.max(1));
        actions.push(Action::Send {
            connection,
            answer: Answer { id, outcome },
            delay: Duration::from_millis(ms),
        });
    }
}

impl Running {
    fn new(kv: Box<dyn Transaction>) -> Self {
        Self {
            kv,
            named: None,
            read: None,
            wrote: false,
            reads_metadata: false,
            writes_metadata: false,
            watches: Vec::new(),
            failed: None,
        }
    }

    fn write(&mut self, request: Request) {
        self.wrote |= !matches!(request, Request::Conflict { write: false, .. });
        match request {
            Request::Set(key, value) => self.kv.set(&key, &value),
            Request::Clear(key) => self.kv.clear(&key),
            Request::ClearRange(start, end) => self.kv.clear_range(&KeyRange { start, end }),
            Request::Conflict { write, start, end } => {
                let range = KeyRange { start, end };
                if write {
                    self.kv.add_write_conflict_range(&range);
                } else {
                    self.kv.add_read_conflict_range(&range);
                }
            }
            Request::Atomic(op, key, operand) if *key == *metadata_version::KEY => {
                if op == VERSIONSTAMPED_VALUE && *operand == metadata_version::OPERAND {
                    self.writes_metadata = true;
                } else {
                    self.fail(codes::CLIENT_INVALID_OPERATION);
                }
            }
            Request::Atomic(op, key, operand) => match atomic_op(op) {
                Some(op) => self.kv.atomic(op, &key, &operand),
                None => self.fail(codes::INVALID_MUTATION_TYPE),
            },
            _ => {}
        }
    }

    fn fail(&mut self, code: Code) {
        self.failed.get_or_insert(code);
    }
}

const VERSIONSTAMPED_VALUE: u32 = 15;

/// The atomic operations that the core has; this system uses no others.
fn atomic_op(number: u32) -> Option<AtomicOp> {
    Some(match number {
        2 => AtomicOp::Add,
        12 => AtomicOp::Max,
        13 => AtomicOp::Min,
        14 => AtomicOp::SetVersionstampedKey,
        VERSIONSTAMPED_VALUE => AtomicOp::SetVersionstampedValue,
        17 => AtomicOp::ByteMax,
        20 => AtomicOp::CompareAndClear,
        _ => return None,
    })
}

/// FoundationDB's code for an error of the core. The library has checked what it can, so that of
/// each class one code is left.
fn code_of(error: &KvError, named: Option<Version>, newest: Version, reading: bool) -> Code {
    match error {
        KvError::Conflict => codes::NOT_COMMITTED,
        KvError::VersionTooOld if named.is_some_and(|named| named > newest) => {
            codes::FUTURE_VERSION
        }
        KvError::VersionTooOld => codes::TRANSACTION_TOO_OLD,
        KvError::OutcomeUnknown => codes::COMMIT_UNKNOWN_RESULT,
        KvError::Unavailable(_) | KvError::NoSpace => codes::PROCESS_BEHIND,
        KvError::Limit(_) => codes::TRANSACTION_TOO_LARGE,
        KvError::Usage(_) if reading => codes::ACCESSED_UNREADABLE,
        KvError::Usage(_) => codes::CLIENT_INVALID_OPERATION,
        // No store of the emulator says it.
        KvError::Outlived | KvError::Corrupt(_) => codes::INTERNAL_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use base::ManualClock;
    use base::Timestamp;

    use super::*;
    use crate::wire::Selector;

    fn b(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    /// A cluster with one connection, number 1.
    fn cluster(faults: &str) -> Cluster {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let mut cluster = Cluster::new(clock, Faults::parse(3, faults).unwrap());
        cluster.connected(1);
        cluster
    }

    impl Cluster {
        /// Calls of a transaction on connection 1, the last with an answer.
        fn ask(&mut self, transaction: u64, id: u64, requests: Vec<Request>) -> Vec<Action> {
            let last = requests.len() - 1;
            let mut actions = Vec::new();
            for (index, request) in requests.into_iter().enumerate() {
                let id = if index == last { id } else { 0 };
                let call = Call {
                    transaction,
                    id,
                    request,
                };
                actions.extend(self.call(1, call));
            }
            actions
        }

        /// The outcome of calls that are answered at once.
        fn outcome(&mut self, transaction: u64, requests: Vec<Request>) -> Result<Reply, Code> {
            match self.ask(transaction, 77, requests).as_slice() {
                [Action::Send { answer, delay, .. }] if delay.is_zero() && answer.id == 77 => {
                    answer.outcome.clone()
                }
                other => panic!("{other:?}"),
            }
        }

        fn value(&mut self, key: &str) -> Option<Bytes> {
            let get = Request::Get {
                key: b(key),
                snapshot: true,
            };
            let value = self.outcome(9_999, vec![get]);
            assert!(self.ask(9_999, 0, vec![Request::Drop]).is_empty());
            match value {
                Ok(Reply::Value(value)) => value,
                other => panic!("{other:?}"),
            }
        }
    }

    fn set(key: &str, value: &str) -> Request {
        Request::Set(b(key), b(value))
    }

    #[test]
    fn what_is_asked_is_counted() {
        let mut cluster = cluster("too-old@1");
        let get = || Request::Get {
            key: b("a"),
            snapshot: false,
        };
        // Whatever becomes of it; and a commit that writes nothing costs nothing.
        assert!(cluster.outcome(1, vec![get()]).is_err());
        assert!(cluster.outcome(2, vec![get(), Request::Commit]).is_ok());
        assert!(cluster.outcome(3, vec![Request::ReadVersion]).is_ok());
        assert!(
            cluster
                .outcome(4, vec![set("a", "1"), Request::Commit])
                .is_ok()
        );
        let asked = Asked {
            reads: 2,
            versions: 1,
            commits: 1,
        };
        assert_eq!(cluster.asked(), asked);
    }

    #[test]
    fn a_lost_connection_drops_what_was_not_committed() {
        let mut cluster = cluster("straggle@2");
        assert!(
            cluster
                .outcome(1, vec![set("a", "1"), Request::Commit])
                .is_ok()
        );
        assert!(cluster.ask(2, 0, vec![set("a", "2")]).is_empty());
        assert_eq!(cluster.transactions(), 1);
        let held = cluster.ask(3, 5, vec![set("b", "late"), Request::Commit]);
        let [Action::Resume { token, .. }] = held.as_slice() else {
            panic!("{held:?}");
        };
        cluster.disconnected(1);
        assert_eq!(cluster.transactions(), 0);
        assert_eq!(cluster.resume(*token).len(), 1, "an answer to nobody");
        assert!(cluster.resume(*token).is_empty(), "once");
        assert!(
            cluster.ask(2, 6, vec![Request::Commit]).is_empty(),
            "too late"
        );
        cluster.connected(1);
        assert_eq!(cluster.value("a"), Some(b("1")));
        assert_eq!(cluster.value("b"), Some(b("late")), "it was on its way");
    }

    #[test]
    fn what_is_sent_to_an_unreachable_cluster_is_done_in_order_later() {
        let mut cluster = cluster("unreachable@1:5");
        let actions = cluster.ask(1, 4, vec![set("a", "1"), Request::Commit]);
        let [Action::Resume { token, delay }] = actions.as_slice() else {
            panic!("{actions:?}");
        };
        assert_eq!(*delay, Duration::from_millis(5));
        assert!(
            cluster
                .ask(2, 5, vec![set("a", "2"), Request::Commit])
                .is_empty()
        );
        let answers = cluster.resume(*token);
        assert_eq!(answers.len(), 2);
        assert_eq!(cluster.value("a"), Some(b("2")));
    }

    #[test]
    fn watches_are_counted_and_forgotten() {
        let mut cluster = cluster("none");
        let mut requests = vec![Request::Watch(b("w")); WATCHES_MAX];
        requests.push(Request::Watch(b("w")));
        let refused = cluster.outcome(1, requests);
        assert_eq!(refused, Err(codes::TOO_MANY_WATCHES));
        assert!(cluster.ask(1, 0, vec![Request::Drop]).is_empty());
        let armed = cluster.ask(2, 8, vec![Request::Watch(b("w"))]);
        assert!(armed.is_empty());
        assert_eq!(
            cluster.outcome(2, vec![Request::Commit]),
            Ok(Reply::Committed(None))
        );
        assert_eq!(cluster.watches.len(), 1);
        assert!(cluster.ask(2, 0, vec![Request::ForgetWatch(8)]).is_empty());
        assert!(cluster.watches.is_empty());
        let committed = cluster.outcome(3, vec![set("w", "1"), Request::Commit]);
        assert!(
            matches!(committed, Ok(Reply::Committed(Some(_)))),
            "and nothing fires"
        );
    }

    #[test]
    fn transactions_are_bounded() {
        let mut cluster = cluster("none");
        for name in 0..u64::try_from(TRANSACTIONS_MAX).unwrap() {
            assert!(cluster.outcome(name, vec![Request::ReadVersion]).is_ok());
        }
        let refused = cluster.outcome(1 << 40, vec![Request::ReadVersion]);
        assert_eq!(refused, Err(codes::GRV_PROXY_MEMORY_LIMIT));
        assert!(cluster.ask(1, 0, vec![Request::Drop]).is_empty());
        assert!(cluster.outcome(1 << 40, vec![Request::ReadVersion]).is_ok());
    }

    #[test]
    fn a_selector_conflicts_over_the_way_it_went() {
        let mut cluster = cluster("none");
        let fill = vec![set("b", ""), set("d", ""), set("f", ""), Request::Commit];
        assert!(cluster.outcome(1, fill).is_ok());
        for (written, expected) in [("c", true), ("g", false), ("a", false)] {
            let selector = Selector {
                key: b("b"),
                or_equal: true,
                offset: 1,
            };
            let get = Request::GetKey {
                selector,
                snapshot: false,
            };
            assert_eq!(cluster.outcome(2, vec![get]), Ok(Reply::Key(b("d"))));
            let write = vec![set(written, ""), Request::Commit];
            assert!(cluster.outcome(3, write).is_ok());
            let commit = cluster.outcome(2, vec![set("other", ""), Request::Commit]);
            assert_eq!(commit.is_err(), expected, "{written}");
            let clear = vec![Request::Clear(b(written)), Request::Commit];
            assert!(cluster.outcome(4, clear).is_ok());
        }
    }

    #[test]
    fn operations_that_are_not_imitated_are_refused() {
        let mut cluster = cluster("none");
        for op in [6, 7, 8, 9, 16, 99] {
            let atomic = vec![Request::Atomic(op, b("a"), b("b")), Request::Commit];
            assert_eq!(
                cluster.outcome(1, atomic),
                Err(codes::INVALID_MUTATION_TYPE)
            );
        }
        let metadata = Bytes::from_static(metadata_version::KEY);
        let wrong = vec![Request::Atomic(2, metadata, b("x")), Request::Commit];
        assert_eq!(
            cluster.outcome(1, wrong),
            Err(codes::CLIENT_INVALID_OPERATION)
        );
    }
}
