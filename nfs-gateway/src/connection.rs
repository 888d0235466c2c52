//! One connection: a task that reads calls, and what the rest of the process holds of it.
//!
//! The task owns the reading side. It hands each record to the [`Service`] on its own thread, so
//! a call that memory can answer costs no task and no wait; replies to calls that came together
//! are written together. Everybody else holds an `Arc` of the [`Connection`], mostly inside a
//! [`CallGuard`], and may send from any thread.
//!
//! Back-pressure is not reading. Before each call the task looks at the connection's own limits,
//! at the process's byte budget and at the service's gate, and waits if one is exhausted. When the
//! process's budget is full every connection still gets one small call at a time through, so that
//! peers who hold much cannot stop the others; big ones, by their own size or their reply's, wait
//! for room. Before the rest of a big record is read there has to be room for it
//! ([`crate::receiving`]).

mod guard;

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{Clock, Tasks};
use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::Notify;

pub use self::guard::{Answer, CallGuard};
use crate::outbound::{Outbound, Written};
use crate::proxied::{Arrival, Heard, Unheard, hear};
use crate::receiving::{Loan, Stuck};
use crate::server::{Service, Shared};
use crate::wire::proxy;
use crate::wire::record::{RECEIVE_BYTES_FREE, RecordReader};
use crate::wire::reply::Reply;

/// Replies that are gathered before they are written.
const BATCH_REPLIES_MAX: usize = 64;

/// Bytes of replies that are gathered before they are written: about what one system call moves
/// without filling the socket.
const BATCH_BYTES_MAX: usize = 128 * 1024;

/// Bytes a connection may hold before the process's budget is told. Keeps the shared counter out
/// of the way of small calls; the budget is exact but for this much per connection.
const UNBUDGETED_BYTES: usize = 64 * 1024;

/// What is read at a time while waiting for the peer's FIN.
const DISCARD_BYTES: usize = 4096;

/// One client's connection, as seen by those who answer its calls.
#[derive(Debug)]
pub struct Connection {
    id: u64,
    peer: SocketAddr,
    /// Whom the peer speaks for, if it is a balancer.
    client: OnceLock<SocketAddr>,
    /// The peer is another gateway.
    is_link: bool,
    outbound: Outbound,
    calls: AtomicUsize,
    held_bytes: AtomicUsize,
    is_task_waiting: AtomicBool,
    is_closing: AtomicBool,
    /// The peer has closed it.
    has_ended: AtomicBool,
    wake: Notify,
    shared: Arc<Shared>,
}

impl Connection {
    pub(crate) fn new(id: u64, peer: SocketAddr, outbound: Outbound, shared: Arc<Shared>) -> Self {
        Self {
            id,
            peer,
            client: OnceLock::new(),
            is_link: shared.gateway.is_some(),
            outbound,
            calls: AtomicUsize::new(0),
            held_bytes: AtomicUsize::new(0),
            is_task_waiting: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            wake: Notify::new(),
            shared,
        }
    }

    /// A number that no other connection of this process has.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// The client: the other end, or whom the balancer at the other end speaks for. Says nothing
    /// about who is asking: think of address translation.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        *self.client.get().unwrap_or(&self.peer)
    }

    /// The balancer that speaks for the client, if there is one.
    #[must_use]
    pub fn balancer(&self) -> Option<SocketAddr> {
        self.client.get().map(|_| self.peer)
    }

    /// Whether calls here were passed on by another gateway.
    #[must_use]
    pub const fn is_link(&self) -> bool {
        self.is_link
    }

    /// Whether a reply sent now can still arrive.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.is_closing.load(Ordering::SeqCst) && !self.outbound.is_broken()
    }

    /// Whether the peer has closed it, or it is closing: calls that have not begun must not begin then.
    /// The client asks again, and a copy that runs long after would undo what was done since.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst) || !self.is_open()
    }

    /// How many calls have been taken and not answered.
    #[must_use]
    pub fn calls_in_flight(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// Closes the connection soon, without answering what is in flight: the client will connect
    /// again and ask again. For when the outcome of a call is unknown.
    pub fn close(&self) {
        if !self.is_closing.swap(true, Ordering::SeqCst) {
            self.shared.counters.ended_by_service.count();
        }
        self.wake.notify_one();
    }

    /// What it shares with all others.
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Sends a reply whose guard is gone already.
    pub(crate) fn send_late(&self, answer: Answer) {
        let reply = answer.into_reply();
        self.send(reply.wire_bytes(), std::iter::once(reply));
    }

    /// Sends replies of `bytes` bytes together, or as much of them as the socket takes now; the
    /// rest follows.
    fn send(&self, bytes: usize, replies: impl ExactSizeIterator<Item = Reply>) {
        if self.outbound.is_broken() {
            let count = u64::try_from(replies.len()).unwrap_or(0);
            self.shared.counters.replies_dropped.add(count);
            return;
        }
        // Before they are in the queue: another thread may write and release them at once.
        self.charge(bytes);
        self.outbound.push(bytes, replies);
        let (written, gone) = self.outbound.flush();
        self.settle(written, gone);
    }

    /// Goes on writing after the socket was full.
    fn resume(&self) {
        let (written, gone) = self.outbound.resume();
        self.settle(written, gone);
    }

    fn settle(&self, written: Written, gone: usize) {
        self.release(gone);
        match written {
            Written::All => {}
            Written::Blocked | Written::Broken => self.wake.notify_one(),
        }
    }

    /// Notes that `bytes` more are held for this connection.
    fn charge(&self, bytes: usize) {
        let before = self.held_bytes.fetch_add(bytes, Ordering::SeqCst);
        let budgeted = budgeted(before + bytes) - budgeted(before);
        self.shared.budget.charge(budgeted);
    }

    fn release(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let before = self.held_bytes.fetch_sub(bytes, Ordering::SeqCst);
        let budgeted = budgeted(before) - budgeted(before - bytes);
        self.shared.budget.release(budgeted);
        self.wake_task();
    }

    fn wake_task(&self) {
        if self.is_task_waiting.load(Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// Why the next call must wait.
    fn pause(&self) -> Option<Pause> {
        let limits = &self.shared.limits;
        let calls = self.calls.load(Ordering::SeqCst);
        let held = self.held_bytes.load(Ordering::SeqCst);
        if calls >= limits.calls_in_flight_max || held >= limits.connection_bytes_max {
            return Some(Pause::Own);
        }
        // The other half is for peers who take what they asked for.
        if self.outbound.is_blocked() && self.shared.budget.is_half_full() {
            return Some(Pause::Own);
        }
        if (calls > 0 || held > 0) && self.shared.budget.is_full() {
            return Some(Pause::Budget);
        }
        None
    }

    fn is_drained(&self) -> bool {
        self.calls_in_flight() == 0 && self.outbound.queued_bytes() == 0
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Replies that were queued when the socket broke.
        let held = self.held_bytes.load(Ordering::SeqCst);
        self.shared.budget.release(budgeted(held));
    }
}

/// The part of a connection's held bytes that the process's budget is told.
const fn budgeted(held: usize) -> usize {
    held.saturating_sub(UNBUDGETED_BYTES)
}

/// Why the next call must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    /// The connection holds as much as it may.
    Own,
    /// The process does.
    Budget,
    /// The service's gate is closed.
    Gate,
    /// There is no room for the rest of a big record.
    Record,
}

/// What the task does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Read,
    Wait(Pause),
    End(End),
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The peer sent FIN: what is in flight is still answered.
    PeerClosed,
    /// We are shutting down, likewise.
    Shutdown,
    /// The socket failed.
    Broken,
    /// The service asked for it.
    Service,
    /// What came is no record.
    Garbage,
    /// A call panicked.
    Panic,
    /// A record began and did not end, or none ever began.
    SlowRecord,
    /// Replies are not taken.
    SlowReplies,
    /// Nothing was asked for a long time.
    Idle,
    /// Who speaks for whom was not said as it should be.
    Proxy(Unheard),
}

/// What a connection has done so far.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    records: u64,
    received_bytes: u64,
    replies: u64,
    sent_bytes: u64,
    pauses: u64,
}

impl Totals {
    const fn since(&self, earlier: &Self) -> Self {
        Self {
            records: self.records - earlier.records,
            received_bytes: self.received_bytes - earlier.received_bytes,
            replies: self.replies - earlier.replies,
            sent_bytes: self.sent_bytes - earlier.sent_bytes,
            pauses: self.pauses - earlier.pauses,
        }
    }
}

/// The task of one connection.
pub(crate) struct ConnectionTask<S> {
    service: Arc<S>,
    connection: Arc<Connection>,
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    read: OwnedReadHalf,
    records: RecordReader,
    loan: Loan,
    arrival: Arrival,
    /// A big call that waits for room in the process's budget.
    pending: Option<Bytes>,
    replies: Vec<Reply>,
    reply_bytes: usize,
    progress: Progress,
}

/// What has happened, and what of it was seen at the last tick.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    now: Totals,
    seen: Totals,
    record_since: Duration,
    replies_since: Duration,
    idle_since: Duration,
    stuck_record: Stuck,
    stuck_replies: Stuck,
}

impl<S: Service> ConnectionTask<S> {
    pub(crate) fn new(
        service: Arc<S>,
        connection: Arc<Connection>,
        read: OwnedReadHalf,
        clock: Arc<dyn Clock>,
        arrival: Arrival,
    ) -> Self {
        let now = clock.monotonic();
        let progress = Progress {
            record_since: now,
            replies_since: now,
            idle_since: now,
            ..Progress::default()
        };
        let connection_shared = Arc::clone(&connection.shared);
        Self {
            service,
            shared: Arc::clone(&connection_shared),
            connection,
            clock,
            read,
            records: RecordReader::new(),
            loan: Loan::new(Arc::clone(&connection_shared.receiving)),
            arrival,
            pending: None,
            replies: Vec::new(),
            reply_bytes: 0,
            progress,
        }
    }

    /// Serves the connection until it ends.
    ///
    /// # Cancellation
    ///
    /// Not safe: the peer would not get what is in flight.
    pub(crate) async fn run(mut self, tasks: Tasks) {
        let end = match self.hear(&tasks).await {
            Some(end) => end,
            None => self.serve(&tasks).await,
        };
        self.count_end(end);
        let peer = self.connection.peer();
        tracing::debug!(connection = self.connection.id, %peer, ?end, "connection ends");
        self.records = RecordReader::new();
        self.loan = Loan::new(Arc::clone(&self.shared.receiving));
        self.pending = None;
        if end == End::PeerClosed {
            self.connection.has_ended.store(true, Ordering::SeqCst);
        }
        if matches!(end, End::PeerClosed | End::Shutdown) {
            self.finish_calls().await;
        }
        self.connection.is_closing.store(true, Ordering::SeqCst);
        self.connection.outbound.close();
        self.connection.release(self.connection.outbound.discard());
        if matches!(
            end,
            End::Shutdown | End::Service | End::Panic | End::Proxy(_)
        ) {
            self.await_fin().await;
        }
        self.publish_counts();
        self.shared.counters.ended.count();
    }

    /// Finds out whom a balancer speaks for. Says how the connection ends if it cannot be served.
    async fn hear(&mut self, tasks: &Tasks) -> Option<End> {
        if self.arrival != Arrival::Balancer {
            return None;
        }
        let deadline = self.clock.sleep(self.shared.limits.proxy_deadline);
        let heard = tokio::select! {
            biased;
            () = tasks.shutdown_begun() => return Some(End::Shutdown),
            heard = hear(&mut self.read) => heard,
            () = deadline => Heard::Wrong(Unheard::Late),
        };
        match heard {
            Heard::Client(client, meant) => {
                if let (Some(own), Some(meant)) = (self.shared.gateway, meant)
                    && own != meant
                {
                    return Some(End::Proxy(Unheard::Misled(meant)));
                }
                self.shared.counters.proxied.count();
                // Nobody else has the connection yet.
                self.connection.client.get_or_init(|| client);
            }
            Heard::Check => self.arrival = Arrival::Check,
            Heard::Nothing => return Some(End::PeerClosed),
            Heard::Broken => return Some(End::Broken),
            Heard::Wrong(why) => return Some(End::Proxy(why)),
        }
        None
    }

    async fn serve(&mut self, tasks: &Tasks) -> End {
        let connection = Arc::clone(&self.connection);
        let shared = Arc::clone(&self.shared);
        let service = Arc::clone(&self.service);
        let clock = Arc::clone(&self.clock);
        let mut tick = clock.sleep(shared.limits.tick());
        let mut shutdown = std::pin::pin!(tasks.shutdown_begun());
        loop {
            let next = self.take_calls();
            if let Next::End(end) = next {
                return end;
            }
            let is_blocked = connection.outbound.is_blocked();
            let is_owing = is_blocked || (self.loan.is_granted() && next == Next::Read);
            self.loan.note(self.records.held_bytes());
            tokio::select! {
                biased;
                _ = connection.outbound.writable(), if is_blocked => connection.resume(),
                read = receive(&mut self.read, &mut self.records), if next == Next::Read => {
                    match read {
                        Ok(0) => return End::PeerClosed,
                        Ok(bytes) => self.count_received(bytes),
                        Err(_) => return End::Broken,
                    }
                }
                () = connection.wake.notified() => {}
                () = shared.pressure.until(&*clock, shared.budget.wait_room()),
                    if next == Next::Wait(Pause::Budget) => {}
                () = shared.pressure.until(&*clock, self.loan.wait()),
                    if next == Next::Wait(Pause::Record) => self.records.grant(),
                () = shared.pressure.told(), if is_owing => {
                    if let Some(end) = self.give_way(next) {
                        return end;
                    }
                }
                () = shared.crowd.told(), if self.progress.now.records == 0 => {
                    let since = self.progress.record_since;
                    if clock.monotonic().saturating_sub(since) >= shared.limits.pressed_deadline {
                        return End::SlowRecord;
                    }
                }
                () = service.gate().wait_open(), if next == Next::Wait(Pause::Gate) => {}
                () = &mut tick => {
                    if let Some(end) = self.check_progress(next) {
                        return end;
                    }
                    tick = clock.sleep(shared.limits.tick());
                }
                () = &mut shutdown => return End::Shutdown,
            }
        }
    }

    /// Hands calls that have arrived to the service, and sends the replies that came at once.
    fn take_calls(&mut self) -> Next {
        let next = loop {
            if !self.connection.is_open() {
                break Next::End(self.end_of_closed());
            }
            if let Some(pause) = self.pause() {
                break Next::Wait(pause);
            }
            let record = match self.pending.take() {
                Some(record) => Ok(Some(record)),
                None => self.records.take(),
            };
            match record {
                Ok(None) => break self.read_on(),
                Ok(Some(record)) if self.has_no_room_for(&record) => {
                    self.pending = Some(record);
                    break Next::Wait(Pause::Budget);
                }
                Ok(Some(record)) if !self.may_ask(&record) => {
                    break Next::End(End::Proxy(Unheard::NoCheck));
                }
                Ok(Some(record)) => {
                    if !self.take_call(record) {
                        break Next::End(End::Panic);
                    }
                }
                Err(_) => break Next::End(self.end_of_garbage()),
            }
        };
        self.send_replies();
        next
    }

    /// Whether the call may be made in this connection: a balancer's own are for health checks.
    fn may_ask(&self, record: &Bytes) -> bool {
        self.arrival != Arrival::Check || self.service.is_ping(record)
    }

    /// What came instead of a record.
    fn end_of_garbage(&self) -> End {
        let is_first = self.progress.now.records == 0 && self.arrival == Arrival::Direct;
        if is_first && proxy::is_header(self.records.unread()) {
            return End::Proxy(Unheard::Stranger);
        }
        End::Garbage
    }

    /// Reads on, if there is room for it.
    fn read_on(&mut self) -> Next {
        match self.records.claim() {
            Some(bytes) => {
                let was_waiting = self.loan.is_waiting();
                if self.loan.ask(bytes) {
                    self.records.grant();
                    return Next::Read;
                }
                self.progress.now.pauses += u64::from(!was_waiting);
                Next::Wait(Pause::Record)
            }
            None => Next::Read,
        }
    }

    /// Whether the call has to wait because the process holds too much and the call is big.
    fn has_no_room_for(&self, record: &Bytes) -> bool {
        let is_big = |bytes: usize| bytes > RECEIVE_BYTES_FREE;
        self.shared.budget.is_full()
            && (is_big(record.len()) || is_big(self.service.reply_bytes(record)))
    }

    /// Hands one call to the service. Says whether it survived that.
    fn take_call(&mut self, record: Bytes) -> bool {
        self.progress.now.records += 1;
        let guard = CallGuard::new(&self.connection, &record);
        // From here on the guard counts it.
        self.loan.give_back();
        let service = &self.service;
        // The service is shared with every other connection; that its state is sound after a
        // panic is its own business, as it is with a panic on any other thread.
        let Ok(answer) = catch_unwind(AssertUnwindSafe(|| service.call(record, guard))) else {
            return false;
        };
        if let Some(reply) = answer.map(Answer::into_reply) {
            self.reply_bytes += reply.wire_bytes();
            self.replies.push(reply);
        }
        if self.replies.len() >= BATCH_REPLIES_MAX || self.reply_bytes >= BATCH_BYTES_MAX {
            self.send_replies();
        }
        true
    }

    fn send_replies(&mut self) {
        if !self.replies.is_empty() {
            let bytes = std::mem::take(&mut self.reply_bytes);
            self.connection.send(bytes, self.replies.drain(..));
        }
    }

    fn pause(&mut self) -> Option<Pause> {
        let connection = &self.connection;
        let pause = || {
            let gate = (!self.service.gate().is_open()).then_some(Pause::Gate);
            connection.pause().or(gate)
        };
        let was_waiting = connection.is_task_waiting.load(Ordering::Relaxed);
        let mut found = pause();
        if found.is_some() && !was_waiting {
            // Ask to be woken and look again, so that no change falls between.
            connection.is_task_waiting.store(true, Ordering::SeqCst);
            found = pause();
            self.progress.now.pauses += 1;
        }
        if found.is_none() && connection.is_task_waiting.load(Ordering::Relaxed) {
            connection.is_task_waiting.store(false, Ordering::SeqCst);
        }
        found
    }

    fn end_of_closed(&self) -> End {
        if self.connection.is_closing.load(Ordering::SeqCst) {
            End::Service
        } else {
            End::Broken
        }
    }

    /// Looks, once per tick, at what should have moved since the last one.
    fn check_progress(&mut self, next: Next) -> Option<End> {
        let now = self.clock.monotonic();
        let new = self.publish_counts();
        let limits = &self.shared.limits;
        let outbound = &self.connection.outbound;
        let progress = &mut self.progress;
        let is_waited_for = self.records.is_inside_record() || progress.now.records == 0;
        if new.records > 0 || next != Next::Read || !is_waited_for {
            progress.record_since = now;
        }
        if new.replies > 0 || outbound.queued_bytes() == 0 {
            progress.replies_since = now;
        }
        let is_waiting = matches!(next, Next::Wait(_));
        let is_idle = new.records == 0 && self.connection.is_drained() && !is_waiting;
        if is_idle {
            self.records.release_idle();
            self.replies.shrink_to(0);
            outbound.release_idle();
        } else {
            progress.idle_since = now;
        }
        let late = |since: Duration, limit: Duration| now.saturating_sub(since) >= limit;
        if late(progress.record_since, limits.record_deadline) {
            Some(End::SlowRecord)
        } else if late(progress.replies_since, limits.reply_deadline) {
            Some(End::SlowReplies)
        } else if late(progress.idle_since, limits.idle_deadline) {
            Some(End::Idle)
        } else {
            None
        }
    }

    /// Somebody waits for memory: ends the connection if it holds some and does not move.
    fn give_way(&mut self, next: Next) -> Option<End> {
        let now = self.clock.monotonic();
        let (deadline, pause) = {
            let limits = &self.shared.limits;
            (limits.pressed_deadline, limits.pressure_every() * 3)
        };
        let progress = &mut self.progress;
        if self.loan.is_granted() && next == Next::Read {
            let records = progress.now.records;
            if progress.stuck_record.look(records, now, pause) >= deadline {
                return Some(End::SlowRecord);
            }
        } else {
            progress.stuck_record.clear();
        }
        if self.connection.outbound.is_blocked() {
            let (replies, _) = self.connection.outbound.sent();
            if progress.stuck_replies.look(replies, now, pause) >= deadline {
                return Some(End::SlowReplies);
            }
        } else {
            progress.stuck_replies.clear();
        }
        None
    }

    /// Waits, for a bounded time, until what is in flight is answered and sent.
    async fn finish_calls(&mut self) {
        let connection = &self.connection;
        let mut deadline = self.clock.sleep(self.shared.limits.drain_deadline);
        connection.is_task_waiting.store(true, Ordering::SeqCst);
        while connection.is_open() && !connection.is_drained() {
            let mut discarded = Vec::with_capacity(DISCARD_BYTES);
            let is_listening = !connection.has_ended.load(Ordering::SeqCst);
            tokio::select! {
                // A client that has gone must be noticed: see `Connection::has_ended`.
                read = self.read.read_buf(&mut discarded), if is_listening => {
                    if !matches!(read, Ok(1..)) {
                        connection.has_ended.store(true, Ordering::SeqCst);
                    }
                }
                _ = connection.outbound.writable(), if connection.outbound.is_blocked() => {
                    connection.resume();
                }
                () = connection.wake.notified() => {}
                () = &mut deadline => return,
            }
        }
    }

    /// Waits, for a bounded time, for the peer's FIN. Closing a socket that has unread bytes sends
    /// RST, and the peer would throw away replies it has not read yet.
    async fn await_fin(&mut self) {
        let mut deadline = self.clock.sleep(self.shared.limits.linger_deadline);
        loop {
            let mut discarded = Vec::with_capacity(DISCARD_BYTES);
            tokio::select! {
                read = self.read.read_buf(&mut discarded) => match read {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                },
                () = &mut deadline => return,
            }
        }
    }

    fn count_received(&mut self, bytes: usize) {
        self.progress.now.received_bytes += u64::try_from(bytes).unwrap_or(0);
    }

    /// Adds what happened since the last time to the process's counters. Not at every call, to
    /// keep shared memory out of its way. Returns what it was.
    fn publish_counts(&mut self) -> Totals {
        let progress = &mut self.progress;
        let (replies, sent_bytes) = self.connection.outbound.sent();
        progress.now.replies = replies;
        progress.now.sent_bytes = sent_bytes;
        let new = progress.now.since(&progress.seen);
        progress.seen = progress.now;
        let counters = &self.shared.counters;
        counters.records.add(new.records);
        counters.received_bytes.add(new.received_bytes);
        counters.replies.add(new.replies);
        counters.sent_bytes.add(new.sent_bytes);
        counters.paused.add(new.pauses);
        new
    }

    fn count_end(&self, end: End) {
        let counters = &self.shared.counters;
        match end {
            End::PeerClosed | End::Shutdown | End::Broken | End::Service => {}
            End::Garbage => counters.ended_garbage.count(),
            End::Panic => counters.ended_panic.count(),
            End::SlowRecord => counters.ended_slow_record.count(),
            End::SlowReplies => counters.ended_slow_replies.count(),
            End::Idle => counters.ended_idle.count(),
            End::Proxy(why) => {
                counters.ended_proxy.count();
                let now = self.clock.monotonic();
                let (peer, is_link) = (self.connection.peer(), self.connection.is_link());
                self.shared.complaints.tell(peer, why, is_link, now);
            }
        }
    }
}

/// Reads what has arrived. Safe to drop.
async fn receive(read: &mut OwnedReadHalf, records: &mut RecordReader) -> std::io::Result<usize> {
    read.read_buf(&mut records.room()).await
}

#[cfg(test)]
mod tests;
