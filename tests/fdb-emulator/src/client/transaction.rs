//! Transactions, as far as the client keeps them: what was asked, what has failed, options, time,
//! retries. Reads and writes are in the server.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::database::Database;
use super::future::{Future, Outcome, Value};
use super::network::network;
use super::options::Options;
use crate::codes::{self, Code};
use crate::wire::{RangeRead, Reply, Request, Selector};

/// Longest key, longest value.
const KEY_BYTES_MAX: usize = 10_000;
const VALUE_BYTES_MAX: usize = 100_000;

/// First key after those of callers.
const KEYS_END: &[u8] = b"\xff";

/// The one system key that is served.
const METADATA_VERSION: &[u8] = b"\xff/metadataVersion";

/// Bytes at the end of a versionstamp operand that say where the stamp goes, and of a stamp.
const OFFSET_BYTES: usize = 4;
const STAMP_BYTES: usize = 10;

/// Delay before the first retry, and before one with a new read version.
const BACKOFF_FIRST: Duration = Duration::from_millis(10);

/// What FoundationDB adds to the size of a transaction for a write, and for a conflict range.
const WRITE_OVERHEAD: usize = 40;
const RANGE_OVERHEAD: usize = 32;

/// A transaction. Its attempts differ in nothing but their number.
#[derive(Debug)]
pub struct Transaction {
    database: Arc<Database>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    options: Options,
    /// Counts resets.
    life: u64,
    started: Duration,
    /// The time at which a timer looks after the timeout.
    timer: Option<Duration>,
    retries: u64,
    backoff: Duration,
    /// Timed out or cancelled, until the next reset.
    dead: Option<Code>,
    attempt: Attempt,
}

#[derive(Debug, Default)]
struct Attempt {
    name: u64,
    generation: u64,
    /// The first error of a call that could not report it.
    failed: Option<Code>,
    bytes: usize,
    reads: bool,
    version_set: bool,
    committing: bool,
    committed: Option<u64>,
    stamp: Option<Result<[u8; STAMP_BYTES], Code>>,
    /// Futures that end with the attempt, if they are not ready before.
    open: Vec<Weak<Future>>,
    /// Watches, until the commit.
    watches: Vec<Weak<Future>>,
    stamps: Vec<Arc<Future>>,
}

/// How a range is asked for.
#[derive(Clone, Debug)]
pub struct RangeQuery {
    /// First key, first key after the range.
    pub begin: Selector,
    /// First key after the range.
    pub end: Selector,
    /// Most pairs; 0 for no limit.
    pub limit: i32,
    /// About how many bytes; 0 for no limit.
    pub target_bytes: i32,
    /// The streaming mode's number in the C API.
    pub mode: i32,
    /// The how manyth part of an iteration.
    pub iteration: i32,
    /// Without read conflicts.
    pub snapshot: bool,
    /// From the end.
    pub reverse: bool,
}

impl Transaction {
    pub(super) fn new(database: Arc<Database>) -> Arc<Self> {
        let options = database.defaults.lock().clone();
        let attempt = Attempt::new(&database);
        Arc::new(Self {
            database,
            state: Mutex::new(State {
                options,
                life: 0,
                started: network().monotonic(),
                timer: None,
                retries: 0,
                backoff: BACKOFF_FIRST,
                dead: None,
                attempt,
            }),
        })
    }

    /// Sets an option.
    ///
    /// # Errors
    ///
    /// The option is not known or not imitated, or its value is wrong.
    pub fn set_option(self: &Arc<Self>, option: i32, value: &[u8]) -> Result<(), Code> {
        let mut state = self.state.lock();
        state.options.set(option, value)?;
        self.keep_time(&mut state);
        Ok(())
    }

    /// Begins anew, as if the transaction were new.
    pub fn reset(&self) {
        let ended = {
            let mut state = self.state.lock();
            let ended = self.new_attempt(&mut state);
            state.options = self.database.defaults.lock().clone();
            state.life += 1;
            state.started = network().monotonic();
            state.timer = None;
            state.retries = 0;
            state.backoff = BACKOFF_FIRST;
            state.dead = None;
            ended
        };
        fail(ended, codes::TRANSACTION_CANCELLED);
    }

    /// Makes all that is asked, and all that will be asked before a reset, fail.
    pub fn cancel(&self) {
        let ended = {
            let mut state = self.state.lock();
            let ended = self.new_attempt(&mut state);
            state.dead.get_or_insert(codes::TRANSACTION_CANCELLED);
            ended
        };
        fail(ended, codes::TRANSACTION_CANCELLED);
    }

    /// The attempt ends; what to fail once no lock is held.
    fn new_attempt(&self, state: &mut State) -> Vec<Arc<Future>> {
        let link = &self.database.link;
        // If the link was lost the server has forgotten the transaction.
        let _lost = link.tell(state.attempt.generation, state.attempt.name, Request::Drop);
        let ended = state.attempt.take_open();
        state.attempt = Attempt::new(&self.database);
        ended
    }

    /// What every call is refused with, if it is.
    fn refusal(&self, state: &mut State) -> Option<Code> {
        if state.dead.is_none()
            && state
                .deadline()
                .is_some_and(|at| at <= network().monotonic())
        {
            state.dead = Some(codes::TIMED_OUT);
        }
        let committing = state
            .attempt
            .committing
            .then_some(codes::USED_DURING_COMMIT);
        state.dead.or(state.attempt.failed).or(committing)
    }

    /// Sees to it that the timeout comes, if there is one.
    fn keep_time(self: &Arc<Self>, state: &mut State) {
        let deadline = state.deadline();
        if state.timer == deadline {
            return;
        }
        state.timer = deadline;
        if let Some(deadline) = deadline {
            let transaction = Arc::downgrade(self);
            let life = state.life;
            let delay = deadline.saturating_sub(network().monotonic());
            network().after(delay, move || {
                if let Some(transaction) = transaction.upgrade() {
                    transaction.time_is_up(life);
                }
            });
        }
    }

    fn time_is_up(&self, life: u64) {
        let ended = {
            let mut state = self.state.lock();
            let over = state
                .deadline()
                .is_some_and(|at| at <= network().monotonic());
            if state.life != life || !over {
                return;
            }
            state.dead.get_or_insert(codes::TIMED_OUT);
            state.attempt.take_open()
        };
        fail(ended, codes::TIMED_OUT);
    }

    fn ask(self: &Arc<Self>, request: Request) -> Arc<Future> {
        let future = Future::new();
        if let Err(code) = self.try_ask(request, &future) {
            future.complete(Err(code));
        }
        future
    }

    fn try_ask(self: &Arc<Self>, request: Request, future: &Arc<Future>) -> Result<(), Code> {
        let mut state = self.state.lock();
        if let Some(code) = self.refusal(&mut state) {
            return Err(code);
        }
        self.keep_time(&mut state);
        let link = &self.database.link;
        let id = link.name();
        let (generation, name) = (state.attempt.generation, state.attempt.name);
        let commit = request == Request::Commit;
        let watch = matches!(request, Request::Watch(_));
        let done = Arc::clone(future);
        let transaction = Arc::downgrade(self);
        let finish = move |outcome: Result<Reply, Code>| {
            let committing = transaction.upgrade().filter(|_| commit);
            let stamped = committing.map(|transaction| transaction.committed(name, &outcome));
            done.complete(outcome.map(value));
            for (future, outcome) in stamped.unwrap_or_default() {
                future.complete(outcome);
            }
        };
        link.ask(generation, name, id, request, Box::new(finish))?;
        state.attempt.committing = commit;
        state.attempt.reads = true;
        if watch {
            let link = Arc::clone(link);
            future.when_abandoned(Box::new(move || {
                link.forget(id);
                // If the link was lost the watch is.
                let _lost = link.tell(generation, name, Request::ForgetWatch(id));
            }));
            state.attempt.watches.push(Arc::downgrade(future));
        } else {
            let open = &mut state.attempt.open;
            if open.len() == open.capacity() {
                open.retain(|future| future.strong_count() > 0);
            }
            open.push(Arc::downgrade(future));
        }
        Ok(())
    }

    /// Notes the outcome of a commit: what to complete once no lock is held.
    fn committed(&self, name: u64, outcome: &Result<Reply, Code>) -> Vec<(Arc<Future>, Outcome)> {
        let mut state = self.state.lock();
        if state.attempt.name != name || state.dead.is_some() {
            return Vec::new();
        }
        let attempt = &mut state.attempt;
        let stamp = match outcome {
            Ok(Reply::Committed(Some((version, stamp)))) => {
                attempt.committed = Some(*version);
                Ok(*stamp)
            }
            Ok(_) => Err(codes::NO_COMMIT_VERSION),
            Err(code) => Err(*code),
        };
        attempt.stamp = Some(stamp);
        if outcome.is_ok() {
            // They live on by themselves.
            attempt.watches.clear();
        }
        let stamps = std::mem::take(&mut attempt.stamps);
        stamps
            .into_iter()
            .map(|future| (future, stamp_value(stamp)))
            .collect()
    }

    /// The read version.
    pub fn read_version(self: &Arc<Self>) -> Arc<Future> {
        self.ask(Request::ReadVersion)
    }

    /// Reads at `version`.
    pub fn set_read_version(&self, version: i64) {
        let mut state = self.state.lock();
        if self.refusal(&mut state).is_some() {
            return;
        }
        let fixed = state.attempt.reads || state.attempt.version_set;
        match u64::try_from(version) {
            Ok(0) | Err(_) => state.attempt.fail(codes::VERSION_INVALID),
            Ok(_) if fixed => state.attempt.fail(codes::READ_VERSION_ALREADY_SET),
            Ok(version) => {
                state.attempt.version_set = true;
                self.tell(&mut state, Request::SetReadVersion(version));
            }
        }
    }

    /// The value of a key.
    pub fn get(self: &Arc<Self>, key: Bytes, snapshot: bool) -> Arc<Future> {
        if !is_readable(&key) {
            return Future::ready(Err(codes::KEY_OUTSIDE_LEGAL_RANGE));
        }
        self.ask(Request::Get { key, snapshot })
    }

    /// The key that a selector means.
    pub fn get_key(self: &Arc<Self>, selector: Selector, snapshot: bool) -> Arc<Future> {
        if *selector.key > *KEYS_END {
            return Future::ready(Err(codes::KEY_OUTSIDE_LEGAL_RANGE));
        }
        self.ask(Request::GetKey { selector, snapshot })
    }

    /// Part of a range.
    pub fn get_range(self: &Arc<Self>, query: RangeQuery) -> Arc<Future> {
        match query.read() {
            Ok(read) => self.ask(Request::GetRange(read)),
            Err(code) => Future::ready(Err(code)),
        }
    }

    /// Completes when the value of `key` changes after the commit.
    pub fn watch(self: &Arc<Self>, key: Bytes) -> Arc<Future> {
        if *key >= *KEYS_END {
            return Future::ready(Err(codes::KEY_OUTSIDE_LEGAL_RANGE));
        }
        if key.len() > KEY_BYTES_MAX {
            return Future::ready(Err(codes::KEY_TOO_LARGE));
        }
        self.ask(Request::Watch(key))
    }

    fn write(&self, request: Request, bytes: usize) {
        let mut state = self.state.lock();
        if let Some(code) = self.refusal(&mut state) {
            state.attempt.fail(code);
            return;
        }
        state.attempt.bytes += bytes;
        self.tell(&mut state, request);
    }

    fn tell(&self, state: &mut State, request: Request) {
        let attempt = &mut state.attempt;
        let told = self
            .database
            .link
            .tell(attempt.generation, attempt.name, request);
        if let Err(code) = told {
            attempt.fail(code);
        }
    }

    fn write_key(&self, key: &Bytes, value_bytes: usize, request: Request) {
        let checked = if *key >= *KEYS_END {
            Err(codes::KEY_OUTSIDE_LEGAL_RANGE)
        } else if key.len() > KEY_BYTES_MAX {
            Err(codes::KEY_TOO_LARGE)
        } else if value_bytes > VALUE_BYTES_MAX {
            Err(codes::VALUE_TOO_LARGE)
        } else {
            Ok(())
        };
        let conflict = 2 * key.len() + 1 + RANGE_OVERHEAD;
        match checked {
            Ok(()) => self.write(request, key.len() + value_bytes + WRITE_OVERHEAD + conflict),
            Err(code) => self.fail_later(code),
        }
    }

    /// The next read or the commit fails.
    pub fn fail_later(&self, code: Code) {
        self.state.lock().attempt.fail(code);
    }

    /// Sets a key.
    pub fn set(&self, key: Bytes, value: Bytes) {
        let bytes = value.len();
        self.write_key(&key.clone(), bytes, Request::Set(key, value));
    }

    /// Removes a key.
    pub fn clear(&self, key: Bytes) {
        if key.len() <= KEY_BYTES_MAX {
            self.write_key(&key.clone(), 0, Request::Clear(key));
        }
    }

    /// Removes a range.
    pub fn clear_range(&self, start: Bytes, end: Bytes) {
        let bytes = start.len() + end.len() + WRITE_OVERHEAD;
        match check_range(&start, &end) {
            Ok(()) => self.write(Request::ClearRange(start, end), bytes),
            Err(code) => self.fail_later(code),
        }
    }

    /// Adds a conflict range.
    ///
    /// # Errors
    ///
    /// The range is inverted or not the caller's.
    pub fn add_conflict_range(&self, start: Bytes, end: Bytes, write: bool) -> Result<(), Code> {
        check_range(&start, &end)?;
        let bytes = start.len() + end.len() + RANGE_OVERHEAD;
        self.write(Request::Conflict { write, start, end }, bytes);
        Ok(())
    }

    /// Applies an atomic operation by its number.
    pub fn atomic(&self, key: Bytes, operand: Bytes, op: u32) {
        match op {
            14 => {
                let bytes = key.len().saturating_sub(OFFSET_BYTES);
                let first = key.slice(..bytes);
                match check_stamped(&key) {
                    Ok(()) => {
                        let value_bytes = operand.len();
                        self.write_key(&first, value_bytes, Request::Atomic(op, key, operand));
                    }
                    Err(code) => self.fail_later(code),
                }
            }
            15 if *key == *METADATA_VERSION => {
                let bytes = key.len() + operand.len() + WRITE_OVERHEAD;
                self.write(Request::Atomic(op, key, operand), bytes);
            }
            15 => match check_stamped(&operand) {
                Ok(()) => {
                    let value_bytes = operand.len() - OFFSET_BYTES;
                    self.write_key(&key.clone(), value_bytes, Request::Atomic(op, key, operand));
                }
                Err(code) => self.fail_later(code),
            },
            _ => {
                let value_bytes = operand.len();
                self.write_key(&key.clone(), value_bytes, Request::Atomic(op, key, operand));
            }
        }
    }

    /// Commits.
    pub fn commit(self: &Arc<Self>) -> Arc<Future> {
        let too_large = {
            let mut state = self.state.lock();
            let over =
                u64::try_from(state.attempt.bytes).unwrap_or(u64::MAX) > state.options.size_limit;
            let limited = state.options.size_limit < super::options::SIZE_LIMIT_MAX;
            let too_large = over && limited && self.refusal(&mut state).is_none();
            if too_large {
                state.attempt.fail(codes::TRANSACTION_TOO_LARGE);
            }
            too_large
        };
        let future = Future::new();
        let outcome = if too_large {
            Err(codes::TRANSACTION_TOO_LARGE)
        } else {
            self.try_ask(Request::Commit, &future)
        };
        if let Err(code) = outcome {
            let ended = self.refused(code);
            future.complete(Err(code));
            fail(ended, code);
        }
        future
    }

    /// Notes that a commit was refused before it was sent: what fails with it.
    fn refused(&self, code: Code) -> Vec<Arc<Future>> {
        let mut state = self.state.lock();
        let attempt = &mut state.attempt;
        if attempt.committing {
            // It is another commit that was sent, and those wait for it.
            return Vec::new();
        }
        attempt.committing = true;
        attempt.stamp = Some(Err(code));
        let watches = std::mem::take(&mut attempt.watches);
        let mut ended = std::mem::take(&mut attempt.stamps);
        ended.extend(watches.iter().filter_map(Weak::upgrade));
        ended
    }

    /// The version of the commit; −1 if there is none.
    pub fn committed_version(&self) -> i64 {
        let version = self.state.lock().attempt.committed;
        version
            .and_then(|version| i64::try_from(version).ok())
            .unwrap_or(-1)
    }

    /// The versionstamp of the commit, once there is one.
    pub fn versionstamp(self: &Arc<Self>) -> Arc<Future> {
        let mut state = self.state.lock();
        let outcome = match (state.dead, state.attempt.stamp) {
            (Some(code), _) => Err(code),
            (None, Some(stamp)) => stamp_value(stamp),
            (None, None) => {
                self.keep_time(&mut state);
                let future = Future::new();
                state.attempt.stamps.push(Arc::clone(&future));
                return future;
            }
        };
        drop(state);
        Future::ready(outcome)
    }

    /// Bytes that count towards the limit of a transaction, about.
    pub fn approximate_size(&self) -> Arc<Future> {
        let bytes = self.state.lock().attempt.bytes;
        Future::ready(Ok(Value::Number(i64::try_from(bytes).unwrap_or(i64::MAX))))
    }

    /// Where a key is.
    pub fn addresses(&self) -> Arc<Future> {
        let address = self.database.link.address().to_string();
        Future::ready(Ok(Value::Addresses(vec![address])))
    }

    /// Completes when the transaction may run again after `code`, or fails with it.
    pub fn on_error(self: &Arc<Self>, code: Code) -> Arc<Future> {
        let future = Future::new();
        let begun = {
            let mut state = self.state.lock();
            self.refusal(&mut state);
            let exhausted = state
                .options
                .retry_limit
                .is_some_and(|limit| state.retries >= limit);
            if let Some(dead) = state.dead {
                Err(dead)
            } else if !codes::is_retryable(code) || exhausted {
                Err(code)
            } else {
                let delay = state.next_delay(code);
                let ended = self.new_attempt(&mut state);
                state.attempt.open.push(Arc::downgrade(&future));
                self.keep_time(&mut state);
                let waiting = Arc::clone(&future);
                network().after(delay, move || waiting.complete(Ok(Value::Done)));
                Ok(ended)
            }
        };
        match begun {
            Ok(ended) => fail(ended, codes::TRANSACTION_CANCELLED),
            Err(code) => future.complete(Err(code)),
        }
        future
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl State {
    fn deadline(&self) -> Option<Duration> {
        self.options.timeout.map(|timeout| self.started + timeout)
    }

    /// Counts a retry: how long to wait before it.
    fn next_delay(&mut self, code: Code) -> Duration {
        let most = self.options.retry_delay_max;
        self.retries += 1;
        if matches!(code, codes::TRANSACTION_TOO_OLD | codes::FUTURE_VERSION) {
            return BACKOFF_FIRST.min(most);
        }
        let delay = self.backoff.min(most);
        self.backoff = (self.backoff * 2).min(most);
        // A fraction that differs between transactions that conflict with each other.
        let spread = self.attempt.name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        delay * u32::try_from(spread).unwrap_or_default() / 256
    }
}

impl Attempt {
    fn new(database: &Database) -> Self {
        Self {
            name: database.link.name(),
            generation: database.link.generation(),
            ..Self::default()
        }
    }

    fn fail(&mut self, code: Code) {
        self.failed.get_or_insert(code);
    }

    fn take_open(&mut self) -> Vec<Arc<Future>> {
        let mut open = std::mem::take(&mut self.stamps);
        let others = [&mut self.open, &mut self.watches];
        for future in others.into_iter().flat_map(std::mem::take) {
            open.extend(future.upgrade());
        }
        open
    }
}

impl RangeQuery {
    /// The read that one part of this query is.
    fn read(self) -> Result<RangeRead, Code> {
        const EXACT: i32 = 0;
        if *self.begin.key > *KEYS_END || *self.end.key > *KEYS_END {
            return Err(codes::KEY_OUTSIDE_LEGAL_RANGE);
        }
        let limit = u32::try_from(self.limit).map_err(|_| codes::RANGE_LIMITS_INVALID)?;
        let target = u32::try_from(self.target_bytes).map_err(|_| codes::RANGE_LIMITS_INVALID)?;
        let mode_bytes = match self.mode {
            -2 | 4 => 120_000,
            -1 => iteration_bytes(self.iteration)?,
            EXACT if limit == 0 => return Err(codes::EXACT_MODE_WITHOUT_LIMITS),
            EXACT => SIZE_OF_ALL,
            1 => 256,
            2 => 1000,
            3 => 4096,
            _ => return Err(codes::CLIENT_INVALID_OPERATION),
        };
        Ok(RangeRead {
            begin: self.begin,
            end: self.end,
            rows: if limit == 0 { u32::MAX } else { limit },
            bytes: if target == 0 {
                mode_bytes
            } else {
                target.min(mode_bytes)
            },
            may_cut: self.mode != EXACT,
            snapshot: self.snapshot,
            reverse: self.reverse,
        })
    }
}

/// Bytes of a read in exact mode. With what is between the pairs it is less than a frame.
const SIZE_OF_ALL: u32 = 10_000_000;

/// Bytes of the how manyth part of an iteration: 4096, and half as many more each time.
fn iteration_bytes(iteration: i32) -> Result<u32, Code> {
    if iteration < 1 {
        return Err(codes::CLIENT_INVALID_OPERATION);
    }
    let mut bytes: u32 = 4096;
    for _ in 1..iteration.min(12) {
        bytes = (bytes + bytes / 2).min(120_000);
    }
    Ok(bytes)
}

fn is_readable(key: &[u8]) -> bool {
    key < KEYS_END || key == METADATA_VERSION
}

fn check_range(start: &[u8], end: &[u8]) -> Result<(), Code> {
    if start > KEYS_END || end > KEYS_END {
        Err(codes::KEY_OUTSIDE_LEGAL_RANGE)
    } else if start > end {
        Err(codes::INVERTED_RANGE)
    } else {
        Ok(())
    }
}

/// Whether a versionstamp fits where the last bytes of `operand` say.
fn check_stamped(operand: &[u8]) -> Result<(), Code> {
    let Some((bytes, offset)) = operand.split_last_chunk::<OFFSET_BYTES>() else {
        return Err(codes::CLIENT_INVALID_OPERATION);
    };
    let offset = usize::try_from(u32::from_le_bytes(*offset)).unwrap_or(usize::MAX);
    match offset.checked_add(STAMP_BYTES) {
        Some(end) if end <= bytes.len() => Ok(()),
        _ => Err(codes::CLIENT_INVALID_OPERATION),
    }
}

fn fail(futures: Vec<Arc<Future>>, code: Code) {
    for future in futures {
        future.complete(Err(code));
    }
}

fn stamp_value(stamp: Result<[u8; STAMP_BYTES], Code>) -> Outcome {
    stamp.map(|stamp| Value::Key(Bytes::copy_from_slice(&stamp)))
}

fn value(reply: Reply) -> Value {
    match reply {
        Reply::Done | Reply::Committed(_) => Value::Done,
        Reply::Version(version) => Value::Number(i64::try_from(version).unwrap_or(i64::MAX)),
        Reply::Key(key) => Value::Key(key),
        Reply::Value(value) => Value::Value(value),
        Reply::Pairs(pairs, more) => Value::Pairs(pairs, more),
    }
}
