//! Links: connections to other gateways, over which calls are passed on as they came.
//!
//! There is one for each client's connection and gateway, so that a link has no more calls in flight
//! than the connection, and order and back-pressure are those of the client. It begins with a PROXY header
//! that says whose calls they are. A link that ends gives its calls back: they are asked again, of
//! whoever serves their session then. The gateway at the other end takes them for copies, as it does
//! when a client asks again.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::{GatewayId, Told};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::ReadHalf;
use tokio::sync::mpsc;

use super::Route;
use crate::connection::{CallGuard, Connection};
use crate::gateway::Gateway;
use crate::wire::proxy;
use crate::wire::record::{self, RecordReader};
use crate::wire::reply::Reply;
use crate::wire::rpc;

/// How long another gateway may take to accept a link.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// A link without calls is closed after this time.
const IDLE: Duration = Duration::from_secs(60);

/// A link on which something was asked and nothing was heard for a lease is tried with a NULL call, which any
/// gateway answers at once, however long its other calls take. After so many leases of silence it is given up.
const SILENT_LEASES: u32 = 4;

/// How often a link looks at its calls' deadlines.
const TICK: Duration = Duration::from_millis(500);

/// Pause before calls are asked again that a link gave back.
const AGAIN_PAUSE: Duration = Duration::from_millis(10);

/// The same, of a gateway that could not be reached.
const REACH_PAUSE: Duration = Duration::from_millis(100);

/// A call that is passed on.
#[derive(Debug)]
pub(crate) struct Passed {
    /// The whole message.
    pub(crate) record: Bytes,
    /// Where its reply goes.
    pub(crate) guard: CallGuard,
    /// When it was passed on.
    pub(crate) since: Duration,
}

/// The client's connection, and the gateway.
type Key = (u64, GatewayId);

/// The way into a link.
#[derive(Debug)]
struct Open {
    number: u64,
    calls: mpsc::Sender<Passed>,
}

/// The links there are.
#[derive(Debug, Default)]
pub(super) struct Links {
    open: Mutex<HashMap<Key, Open>>,
    /// Numbers links.
    next: AtomicU64,
}

impl Links {
    /// Sends a call over the link for its connection, which is made if there is none.
    pub(super) fn send(&self, gateway: &Arc<Gateway>, route: &Route, call: Passed) {
        let key = (call.guard.connection().id(), route.gateway);
        let mut open = self.open.lock();
        let call = match open.get(&key) {
            Some(link) => match link.calls.try_send(call) {
                Ok(()) => return,
                // It is ending.
                Err(mpsc::error::TrySendError::Closed(call)) => call,
                // Not with the bound of the connection.
                Err(mpsc::error::TrySendError::Full(call)) => return call.guard.close(),
            },
            None => call,
        };
        let (sender, calls) = mpsc::channel(gateway.calls_in_flight_max());
        let client = Arc::downgrade(call.guard.connection());
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if sender.try_send(call).is_ok() {
            let calls = sender;
            open.insert(key, Open { number, calls });
        }
        drop(open);
        let link = Link {
            gateway: Arc::clone(gateway),
            route: route.clone(),
            key,
            number,
            client,
            calls,
            is_heard: false,
            trial: None,
            silent_since: gateway.clock.monotonic(),
            asked: HashMap::new(),
        };
        gateway.tasks.spawn(link.run());
    }

    fn close(&self, key: Key, number: u64) {
        let mut open = self.open.lock();
        if open.get(&key).is_some_and(|link| link.number == number) {
            open.remove(&key);
        }
    }
}

/// Why a link ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The gateway could not be reached, or whoever is there has answered nothing.
    Unreachable,
    /// It broke, or the other side closed it.
    Closed,
    /// There was nothing to do.
    Idle,
}

struct Link {
    gateway: Arc<Gateway>,
    route: Route,
    key: Key,
    number: u64,
    /// Whose calls they are.
    client: Weak<Connection>,
    calls: mpsc::Receiver<Passed>,
    /// A reply has come.
    is_heard: bool,
    /// The transaction id of a NULL call that was not answered yet.
    trial: Option<u32>,
    /// When the last reply came, or something was asked after all had been answered.
    silent_since: Duration,
    /// By transaction id; several if a client uses one for several calls.
    asked: HashMap<u32, VecDeque<Passed>>,
}

impl Link {
    async fn run(mut self) {
        let end = match self.connect().await {
            Some(stream) => self.talk(stream).await,
            None => End::Unreachable,
        };
        let end = match end {
            // A gateway that has the session answers, and one that has lost it says so in its lease or in the
            // owner record within a few tries.
            End::Closed if !self.is_heard && !self.asked.is_empty() => End::Unreachable,
            end => end,
        };
        self.calls.close();
        let gateway = Arc::clone(&self.gateway);
        if let Some(fleet) = &gateway.fleet {
            fleet.links.close(self.key, self.number);
            let now = gateway.clock.monotonic();
            if end == End::Unreachable {
                fleet.tried(self.route.gateway, now, false);
            }
        }
        let mut back: Vec<Passed> = self.asked.drain().flat_map(|(_, calls)| calls).collect();
        while let Ok(call) = self.calls.try_recv() {
            back.push(call);
        }
        if back.is_empty() {
            return;
        }
        if end != End::Idle {
            let gone = self.route.gateway;
            gateway.forget_routes(|route| route.gateway == gone);
        }
        gateway
            .counters
            .passed_back
            .add(u64::try_from(back.len()).unwrap_or(0));
        gateway
            .clock
            .sleep(match end {
                End::Unreachable => REACH_PAUSE,
                End::Closed | End::Idle => AGAIN_PAUSE,
            })
            .await;
        for Passed { record, guard, .. } in back {
            gateway.redispatch(&record, guard);
        }
    }

    async fn connect(&self) -> Option<TcpStream> {
        let connect = TcpStream::connect(&*self.route.address);
        let connected = tokio::select! {
            connected = connect => connected,
            () = self.gateway.clock.sleep(CONNECT_PATIENCE) => return None,
        };
        match connected {
            Ok(stream) => stream.set_nodelay(true).is_ok().then_some(stream),
            Err(error) => {
                tracing::debug!(gateway = %self.route.gateway, error = %Told(&error), "gateway is not reached");
                None
            }
        }
    }

    async fn talk(&mut self, mut stream: TcpStream) -> End {
        let (mut read, mut write) = stream.split();
        let mut records = RecordReader::new();
        let mut sending = Sending::default();
        let Some(client) = self.client.upgrade().map(|client| client.peer()) else {
            return End::Idle;
        };
        sending.push(Bytes::from(proxy::header_of_link(
            client,
            self.route.gateway,
        )));
        let (clock, tasks) = (Arc::clone(&self.gateway.clock), self.gateway.tasks.clone());
        let mut used = clock.monotonic();
        let mut tick = clock.sleep(TICK);
        loop {
            tokio::select! {
                biased;
                received = receive(&mut read, &mut records) => {
                    if !matches!(received, Ok(1..)) || !self.answer(&mut records) {
                        return End::Closed;
                    }
                    used = clock.monotonic();
                }
                call = self.calls.recv() => {
                    let Some(call) = call else { return End::Idle };
                    used = clock.monotonic();
                    if !self.ask(call, &mut sending) {
                        return End::Closed;
                    }
                }
                written = write.write_buf(&mut sending.front), if sending.has_some() => {
                    if !matches!(written, Ok(1..)) {
                        return End::Closed;
                    }
                    sending.go_on();
                }
                // Connections have ended before: nobody waits for a reply.
                () = tasks.shutdown_begun() => return End::Idle,
                () = &mut tick => {
                    let now = clock.monotonic();
                    self.hang_up_on_late(now);
                    if self.is_dead(now) {
                        return End::Closed;
                    }
                    if self.is_silent(now, &mut sending) {
                        return End::Unreachable;
                    }
                    let is_idle = now.saturating_sub(used) > IDLE;
                    if self.asked.is_empty() && (is_idle || self.is_left()) {
                        return End::Idle;
                    }
                    tick = clock.sleep(TICK);
                }
            }
        }
    }

    /// Takes note of a reply: the gateway is reached.
    fn heard(&mut self) {
        let now = self.gateway.clock.monotonic();
        self.silent_since = now;
        let is_first = !std::mem::replace(&mut self.is_heard, true);
        if let Some(fleet) = &self.gateway.fleet
            && (is_first || fleet.has_troubles.load(Ordering::Relaxed))
        {
            fleet.tried(self.route.gateway, now, true);
        }
    }

    /// Looks at how long nothing was heard, though something was asked. `true` if what is sent does not
    /// arrive, or its replies do not: not even those to NULL calls.
    fn is_silent(&mut self, now: Duration, sending: &mut Sending) -> bool {
        let Some(fleet) = &self.gateway.fleet else {
            return false;
        };
        let silence = now.saturating_sub(self.silent_since);
        if self.asked.is_empty() || silence < fleet.lease() {
            return false;
        }
        if silence > fleet.lease().saturating_mul(SILENT_LEASES) {
            fleet.fell_silent(self.route.gateway, now);
            return true;
        }
        if self.trial.is_none() {
            let [.., a, b, c, d] = self.gateway.rng.u64().to_be_bytes();
            let xid = u32::from_be_bytes([a, b, c, d]);
            // Another one at the next look, if a call has it.
            if !self.asked.contains_key(&xid) {
                self.trial = Some(xid);
                let record = rpc::null_call(xid);
                sending.push(record::mark(record.len()));
                sending.push(record);
            }
        }
        false
    }

    /// Whether the client's connection has ended.
    fn is_left(&self) -> bool {
        self.client
            .upgrade()
            .is_none_or(|client| client.has_ended())
    }

    /// Whether the gateway at the other end may be taken for dead, though nothing says that the link
    /// is: it stands still, or nothing that is sent arrives.
    fn is_dead(&self, now: Duration) -> bool {
        let fleet = self.gateway.fleet.as_ref();
        fleet.is_some_and(|fleet| fleet.is_dead(self.route.gateway, now))
    }

    /// Sends a call. `false` if that cannot be: its replies could not be told from those to a NULL call of
    /// our own. It is asked again then, over another link.
    fn ask(&mut self, call: Passed, sending: &mut Sending) -> bool {
        if call.guard.connection().has_ended() {
            return true;
        }
        let Some(xid) = xid(&call.record) else {
            call.guard.close();
            return true;
        };
        if self.trial == Some(xid) {
            self.asked.entry(xid).or_default().push_back(call);
            return false;
        }
        if self.asked.is_empty() {
            self.silent_since = self.gateway.clock.monotonic();
        }
        sending.push(record::mark(call.record.len()));
        sending.push(call.record.clone());
        self.asked.entry(xid).or_default().push_back(call);
        true
    }

    /// Sends the replies that have come to those who asked. `false` if what came are no replies.
    fn answer(&mut self, records: &mut RecordReader) -> bool {
        loop {
            if records.claim().is_some() {
                // The other side is a gateway: it sends no more than was asked for.
                records.grant();
            }
            let record = match records.take() {
                Ok(Some(record)) => record,
                Ok(None) => return true,
                Err(_) => return false,
            };
            let Some(xid) = xid(&record) else {
                return false;
            };
            self.heard();
            if self.trial == Some(xid) {
                self.trial = None;
                continue;
            }
            let Some(calls) = self.asked.get_mut(&xid) else {
                continue;
            };
            let call = calls.pop_front();
            if calls.is_empty() {
                self.asked.remove(&xid);
            }
            if let Some(mut call) = call {
                let took = self.gateway.clock.monotonic().saturating_sub(call.since);
                self.gateway.counters.passed_on_took.observe(took);
                call.guard.note_passed_on();
                call.guard.send(Reply::of_record(record));
            }
        }
    }

    /// Closes the connections of calls that have waited for too long.
    fn hang_up_on_late(&mut self, now: Duration) {
        self.asked.retain(|_, calls| {
            let is_late = |call: &Passed| call.guard.is_late(now);
            if calls.iter().any(is_late) {
                for mut call in calls.drain(..) {
                    call.guard.note_passed_on();
                    call.guard.close();
                }
            }
            !calls.is_empty()
        });
    }
}

/// Reads what has arrived. Safe to drop.
async fn receive(read: &mut ReadHalf<'_>, records: &mut RecordReader) -> std::io::Result<usize> {
    read.read_buf(&mut records.room()).await
}

fn xid(record: &Bytes) -> Option<u32> {
    record.first_chunk().map(|xid| u32::from_be_bytes(*xid))
}

/// What is to be written, in order.
#[derive(Debug, Default)]
struct Sending {
    front: Bytes,
    rest: VecDeque<Bytes>,
}

impl Sending {
    fn push(&mut self, bytes: Bytes) {
        self.rest.push_back(bytes);
        self.go_on();
    }

    fn has_some(&self) -> bool {
        !self.front.is_empty()
    }

    /// Takes the next piece if the first is written. Small ones go together.
    fn go_on(&mut self) {
        if !self.front.is_empty() {
            return;
        }
        let mut together = BytesMut::new();
        while let Some(next) = self.rest.front()
            && (together.is_empty() || together.len() + next.len() <= TOGETHER_BYTES)
        {
            let next = self.rest.pop_front().unwrap_or_default();
            if together.is_empty() && next.len() > TOGETHER_BYTES {
                self.front = next;
                return;
            }
            together.extend_from_slice(&next);
        }
        self.front = together.freeze();
    }
}

/// Pieces up to so many bytes are written together.
const TOGETHER_BYTES: usize = 16 * 1024;
