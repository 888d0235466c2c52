//! The client's side of the sockets: several connections, retransmission of the same bytes, copies.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use base::Clock;
use bytes::Bytes;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::net::TcpStream;

use crate::clock::WorldClock;

/// Connections of the client.
pub(crate) const CONNECTIONS: usize = 3;

/// Virtual time without any reply after which the server is said to hang.
const HANG: Duration = Duration::from_secs(600);

/// Longest step of waiting.
const STEP_MAX: Duration = Duration::from_secs(1);

/// Steps of waiting after which the kernel gets real time to move bytes.
const STEPS_AT_ONCE: u32 = 24;

/// Answered calls that are remembered, to send copies of them.
const HISTORY_MAX: usize = 200;

/// Something that happens to the client while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// A connection breaks.
    Cut(usize),
    /// A call is sent again, over another connection, while the first copy may run.
    Duplicate,
    /// The server dies.
    Kill,
}

/// Why waiting ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Everything is answered.
    Answered,
    /// The server is to die now.
    Kill,
    /// Nothing was answered for very long.
    Hangs,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    out: VecDeque<u8>,
    received: Vec<u8>,
}

/// A call without its reply.
#[derive(Debug)]
struct Pending {
    record: Bytes,
    on: usize,
    /// When to send it again, if its connection is gone.
    again: Option<Duration>,
}

/// An answered call.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) xid: u32,
    record: Bytes,
    pub(crate) reply: Bytes,
    /// Copies must get the same reply.
    pub(crate) tracked: bool,
    /// So must copies to any owner to come.
    pub(crate) stored: bool,
    /// The owner that answered it, if that is known.
    pub(crate) owner: Option<(u64, u64)>,
}

/// The client.
#[derive(Debug)]
pub(crate) struct Client {
    rng: ChaCha8Rng,
    clock: Arc<WorldClock>,
    next_xid: u32,
    /// Where servers are; a connection that breaks goes to the next.
    addresses: Vec<SocketAddr>,
    pub(crate) connections: Vec<Option<Connection>>,
    /// How often each connection was made.
    turns: Vec<usize>,
    pending: BTreeMap<u32, Pending>,
    answered: BTreeMap<u32, Bytes>,
    pub(crate) history: VecDeque<Answered>,
    /// Calls whose xids may still be answered by copies.
    pub(crate) resent: u64,
    pub(crate) closed_by_server: u64,
    pub(crate) complaints: Vec<String>,
}

impl Client {
    pub(crate) fn new(clock: Arc<WorldClock>, seed: u64) -> Self {
        Self::with_connections(CONNECTIONS, clock, seed)
    }

    pub(crate) fn with_connections(count: usize, clock: Arc<WorldClock>, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Self {
            next_xid: rng.random(),
            rng,
            clock,
            addresses: Vec::new(),
            connections: (0..count).map(|_| None).collect(),
            turns: vec![0; count],
            pending: BTreeMap::new(),
            answered: BTreeMap::new(),
            history: VecDeque::new(),
            resent: 0,
            closed_by_server: 0,
            complaints: Vec::new(),
        }
    }

    pub(crate) fn xid(&mut self) -> u32 {
        self.next_xid = self.next_xid.wrapping_add(1);
        self.next_xid
    }

    /// The server is at another address from now on; all connections are gone.
    pub(crate) fn move_to(&mut self, address: SocketAddr) {
        self.balance(vec![address]);
        for on in 0..self.connections.len() {
            self.cut(on);
        }
    }

    /// Connections that are made from now on go to these addresses in turn.
    pub(crate) fn balance(&mut self, addresses: Vec<SocketAddr>) {
        self.addresses = addresses;
    }

    pub(crate) fn cut(&mut self, on: usize) {
        self.connections[on] = None;
        let now = self.clock.monotonic();
        for pending in self.pending.values_mut().filter(|it| it.on == on) {
            let pause = Duration::from_millis(self.rng.random_range(0..400));
            pending.again = Some(now + pause);
        }
    }

    /// Sends a call over some connection.
    pub(crate) fn send(&mut self, xid: u32, record: Bytes) {
        let on = self.rng.random_range(0..self.connections.len());
        let again = Some(self.clock.monotonic());
        self.pending.insert(xid, Pending { record, on, again });
    }

    /// Sends an answered call again. Whoever calls this looks at the reply with [`Client::take`].
    pub(crate) fn send_copy(&mut self, answered: &Answered) {
        self.send(answered.xid, answered.record.clone());
    }

    /// The reply to a call.
    pub(crate) fn take(&mut self, xid: u32) -> Option<Bytes> {
        self.answered.remove(&xid)
    }

    /// Remembers an answered call.
    pub(crate) fn remember(&mut self, answered: Answered) {
        if self.history.len() >= HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(answered);
    }

    /// An answered call, to be remembered.
    pub(crate) fn answered(xid: u32, record: Bytes, reply: Bytes) -> Answered {
        Answered {
            xid,
            record,
            reply,
            tracked: false,
            stored: false,
            owner: None,
        }
    }

    /// Waits until one call is answered, whatever the others do.
    pub(crate) async fn wait_for(&mut self, xid: u32) -> Option<Bytes> {
        let end = self.wait_until(VecDeque::new(), |client| client.answered.contains_key(&xid));
        end.await;
        self.take(xid)
    }

    /// Waits until all calls are answered. `mishaps` happen at their times from now on.
    pub(crate) async fn wait(&mut self, mishaps: VecDeque<(Duration, Mishap)>) -> End {
        let all = |client: &Self| client.pending.is_empty();
        self.wait_until(mishaps, all).await
    }

    async fn wait_until(
        &mut self,
        mut mishaps: VecDeque<(Duration, Mishap)>,
        done: impl Fn(&Self) -> bool,
    ) -> End {
        let began = self.clock.monotonic();
        let mut heard = began;
        let mut steps = 0;
        let mut step = Duration::from_millis(1);
        loop {
            self.transmit().await;
            if done(self) {
                return End::Answered;
            }
            let now = self.clock.monotonic();
            if let Some((at, mishap)) = mishaps.front().copied()
                && now >= began + at
            {
                mishaps.pop_front();
                match mishap {
                    Mishap::Cut(on) => self.cut(on),
                    Mishap::Duplicate => self.duplicate(),
                    Mishap::Kill => return End::Kill,
                }
                continue;
            }
            if now.saturating_sub(heard) > HANG {
                return End::Hangs;
            }
            let moved = {
                let clock = Arc::clone(&self.clock);
                tokio::select! {
                    biased;
                    () = self.ready() => true,
                    () = clock.sleep(step) => false,
                }
            };
            if self.receive() > 0 {
                heard = self.clock.monotonic();
            }
            if moved {
                (steps, step) = (0, Duration::from_millis(1));
            } else {
                steps += 1;
                if steps > STEPS_AT_ONCE {
                    pause_really();
                }
                let until = mishaps.front().map(|(at, _)| began + *at);
                step = (step * 2).min(STEP_MAX);
                if let Some(until) = until {
                    let left = until.saturating_sub(self.clock.monotonic());
                    step = step.min(left.max(Duration::from_millis(1)));
                }
            }
        }
    }

    /// Lets virtual time pass without calls.
    pub(crate) async fn idle(&self, duration: Duration) {
        let until = self.clock.monotonic() + duration;
        while self.clock.monotonic() < until {
            let left = until.saturating_sub(self.clock.monotonic());
            self.clock.sleep(left.min(STEP_MAX)).await;
        }
    }

    fn duplicate(&mut self) {
        let waiting: Vec<u32> = self.pending.keys().copied().collect();
        let Some(xid) = waiting.choose(&mut self.rng).copied() else {
            return;
        };
        let on = self.rng.random_range(0..self.connections.len());
        let pending = self.pending.get_mut(&xid).unwrap();
        pending.on = on;
        pending.again = Some(self.clock.monotonic());
    }

    /// Sends what is due, connecting where that is needed.
    pub(crate) async fn transmit(&mut self) {
        let now = self.clock.monotonic();
        let due: Vec<u32> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.again.is_some_and(|at| at <= now))
            .map(|(xid, _)| *xid)
            .collect();
        for xid in due {
            let (on, record) = {
                let pending = &self.pending[&xid];
                (pending.on, pending.record.clone())
            };
            if self.connections[on].is_none() {
                let address = self.addresses[(on + self.turns[on]) % self.addresses.len()];
                self.turns[on] += 1;
                match TcpStream::connect(address).await {
                    Ok(stream) => {
                        stream.set_nodelay(true).unwrap();
                        self.connections[on] = Some(Connection {
                            stream,
                            out: VecDeque::new(),
                            received: Vec::new(),
                        });
                    }
                    Err(_) => {
                        let at = now + Duration::from_millis(100);
                        self.pending.get_mut(&xid).unwrap().again = Some(at);
                        continue;
                    }
                }
            }
            self.connections[on].as_mut().unwrap().out.extend(record);
            self.pending.get_mut(&xid).unwrap().again = None;
            self.resent += 1;
        }
        let mut broken = Vec::new();
        for (on, connection) in self.connections.iter_mut().enumerate() {
            if let Some(connection) = connection
                && !connection.push()
            {
                broken.push(on);
            }
        }
        for on in broken {
            self.closed_by_server += 1;
            self.cut(on);
        }
    }

    /// Completes when some connection can be read, or written if that is wanted.
    async fn ready(&mut self) {
        let connections = &self.connections;
        poll_fn(|cx| {
            for connection in connections.iter().flatten() {
                let read = connection.stream.poll_read_ready(cx).is_ready();
                let write =
                    !connection.out.is_empty() && connection.stream.poll_write_ready(cx).is_ready();
                if read || write {
                    return Poll::Ready(());
                }
            }
            Poll::Pending
        })
        .await;
    }

    /// Takes what has arrived; returns how many replies that was.
    fn receive(&mut self) -> usize {
        let mut replies = Vec::new();
        let mut broken = Vec::new();
        for (on, connection) in self.connections.iter_mut().enumerate() {
            if let Some(connection) = connection {
                if !connection.pull() {
                    broken.push(on);
                }
                replies.extend(connection.take_replies());
            }
        }
        let count = replies.len();
        for reply in replies {
            self.hear(reply);
        }
        for on in broken {
            self.closed_by_server += 1;
            self.cut(on);
        }
        count
    }

    fn hear(&mut self, reply: Bytes) {
        let xid = u32::from_be_bytes(*reply.first_chunk().unwrap());
        if self.pending.remove(&xid).is_some() {
            self.answered.insert(xid, reply);
            return;
        }
        let before = self.history.iter().rev().find(|it| it.xid == xid);
        match before {
            Some(before) if before.tracked && before.reply != reply => {
                self.complaints.push(format!("two replies to {xid:#x}"));
            }
            Some(_) => {}
            None => match self.answered.get(&xid) {
                Some(_) => {}
                None => self
                    .complaints
                    .push(format!("a reply to no call: {xid:#x}")),
            },
        }
    }
}

impl Connection {
    /// Writes as much as goes. `false` if the connection is gone.
    fn push(&mut self) -> bool {
        while !self.out.is_empty() {
            let (front, _) = self.out.as_slices();
            match self.stream.try_write(front) {
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
        true
    }

    /// Reads what has arrived. `false` if the connection is gone.
    fn pull(&mut self) -> bool {
        let mut buffer = [0; 64 * 1024];
        loop {
            match self.stream.try_read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
    }

    fn take_replies(&mut self) -> Vec<Bytes> {
        let mut replies = Vec::new();
        let mut at = 0;
        while let Some(mark) = self.received[at..].first_chunk() {
            let mark = u32::from_be_bytes(*mark);
            assert_eq!(mark >> 31, 1, "replies come in one fragment");
            let length = usize::try_from(mark & 0x7fff_ffff).unwrap();
            let Some(reply) = self.received.get(at + 4..at + 4 + length) else {
                break;
            };
            replies.push(Bytes::copy_from_slice(reply));
            at += 4 + length;
        }
        self.received.drain(..at);
        replies
    }
}

/// Virtual time runs ahead while the kernel still moves bytes: gives it a moment.
#[expect(
    clippy::disallowed_methods,
    reason = "the only thing that waits here is the test itself"
)]
fn pause_really() {
    std::thread::sleep(Duration::from_micros(300));
}
