//! The listener: accepts connections, within limits, until shutdown.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Clock, GatewayId, Tasks, Told};
use bytes::Bytes;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::connection::{Answer, CallGuard, Connection, ConnectionTask};
use crate::counters::TransportCounters;
use crate::gate::{Budget, Gate};
use crate::network::Network;
use crate::outbound::Outbound;
use crate::proxied::{Arrival, Complaints};
use crate::receiving::{Pressure, Receiving};

/// Most connections: each sandbox has one or a few.
const CONNECTIONS_MAX: usize = 8192;

/// Most calls of one connection in flight. A Linux client pipelines more than a thousand writes
/// when it flushes; the ones above this wait in its socket.
const CALLS_IN_FLIGHT_MAX: usize = 1024;

/// Most bytes of calls and replies of one connection: sixteen of the largest, both ways.
const CONNECTION_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Most bytes of calls and replies of all connections.
const PROCESS_BYTES_MAX: usize = 384 * 1024 * 1024;

/// Most bytes of records in the making: over a hundred of the largest at a time. Those who send
/// more at once take turns.
const RECEIVING_BYTES_MAX: usize = 128 * 1024 * 1024;

/// A record that has begun must end within this time, and a new connection must ask something.
const RECORD_DEADLINE: Duration = Duration::from_secs(60);

/// While others wait for memory, a big record must arrive, and the next reply be taken, within
/// this time: 200 kB/s for the largest. While all places for connections are taken, a new one must ask
/// something within this time.
const PRESSED_DEADLINE: Duration = Duration::from_secs(5);

/// A balancer must say within this time for whom it speaks. It sends that in one piece with its
/// connection, before the client's first byte.
const PROXY_DEADLINE: Duration = Duration::from_secs(5);

/// A reply must be taken within this time.
const REPLY_DEADLINE: Duration = Duration::from_secs(60);

/// A connection without calls is closed after this time. A Linux client closes it itself after
/// 300 s, and that costs it nothing; our closing it would cost it a wait of 3 s.
const IDLE_DEADLINE: Duration = Duration::from_secs(420);

/// Calls in flight get this long at shutdown.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);

/// A peer gets this long to answer our FIN with its own.
const LINGER_DEADLINE: Duration = Duration::from_secs(2);

/// How often a connection looks whether something should have moved.
const TICK_MAX: Duration = Duration::from_secs(10);

/// A silent peer is probed after this time, and dropped after a few probes that it ignores.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

/// How long to wait after `accept` failed for want of something, file descriptors mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What answers calls.
pub trait Service: Send + Sync + 'static {
    /// Takes one call; `record` is the whole RPC message.
    ///
    /// Runs on the connection's task: it must not block. Returns the answer if there is one at
    /// once ([`CallGuard::answer`]). Otherwise it keeps `guard` and returns nothing; whoever has the guard then answers
    /// with [`CallGuard::send`], from any thread. A record that is no call is answered by closing
    /// the connection, [`CallGuard::close`]. A panic closes the connection, too.
    fn call(self: &Arc<Self>, record: Bytes, guard: CallGuard) -> Option<Answer>;

    /// About how many bytes the reply to `record` may have, if that may be many. Asked while memory
    /// is short, to let small calls through and have big ones wait.
    fn reply_bytes(&self, record: &Bytes) -> usize;

    /// Whether `record` is a call that only asks whether somebody answers. A balancer's own
    /// connections may ask nothing else.
    fn is_ping(&self, record: &Bytes) -> bool;

    /// Closed while no further calls should be taken from any connection, because a budget of the
    /// service is exhausted.
    fn gate(&self) -> &Gate;
}

/// The transport's limits. The defaults are for a gateway that has a machine for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Most connections; further ones wait in the listener's queue.
    pub connections_max: usize,
    /// Most calls of one connection in flight.
    pub calls_in_flight_max: usize,
    /// Most bytes of calls and replies of one connection.
    pub connection_bytes_max: usize,
    /// Most bytes of calls and replies of all connections, but for what each may always have: a
    /// small call and its reply.
    pub process_bytes_max: usize,
    /// Most bytes of records in the making of all connections, but for the little that each may
    /// always hold; at least one of the largest.
    pub receiving_bytes_max: usize,
    /// How long a record may take to arrive, and a new connection until its first.
    pub record_deadline: Duration,
    /// How long a big record may take to arrive, and the next reply to be sent, while others wait
    /// for memory; and a new connection until its first record, while all places are taken.
    pub pressed_deadline: Duration,
    /// How long a balancer's PROXY header may take to arrive.
    pub proxy_deadline: Duration,
    /// How long a reply may take to be sent.
    pub reply_deadline: Duration,
    /// How long a connection may be without calls.
    pub idle_deadline: Duration,
    /// How long calls in flight may take at shutdown.
    pub drain_deadline: Duration,
    /// How long to wait for the peer's FIN.
    pub linger_deadline: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            calls_in_flight_max: CALLS_IN_FLIGHT_MAX,
            connection_bytes_max: CONNECTION_BYTES_MAX,
            process_bytes_max: PROCESS_BYTES_MAX,
            receiving_bytes_max: RECEIVING_BYTES_MAX,
            record_deadline: RECORD_DEADLINE,
            pressed_deadline: PRESSED_DEADLINE,
            proxy_deadline: PROXY_DEADLINE,
            reply_deadline: REPLY_DEADLINE,
            idle_deadline: IDLE_DEADLINE,
            drain_deadline: DRAIN_DEADLINE,
            linger_deadline: LINGER_DEADLINE,
        }
    }
}

impl ServerLimits {
    /// How often a connection looks whether something should have moved.
    pub(crate) fn tick(&self) -> Duration {
        let shortest = self.record_deadline.min(self.reply_deadline);
        (shortest.min(self.idle_deadline) / 4).min(TICK_MAX)
    }

    /// How often those who wait for memory tell the others.
    pub(crate) fn pressure_every(&self) -> Duration {
        self.pressed_deadline / 4
    }
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) limits: ServerLimits,
    pub(crate) budget: Budget,
    pub(crate) receiving: Arc<Receiving>,
    pub(crate) pressure: Pressure,
    /// Told while all places for connections are taken.
    pub(crate) crowd: Pressure,
    pub(crate) complaints: Complaints,
    /// Which slow calls are told of.
    pub(crate) slow_calls: Complaints,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counters: Arc<TransportCounters>,
    /// Peers are other gateways, which pass calls on to this one.
    pub(crate) gateway: Option<GatewayId>,
}

/// The number of the next connection.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Serves NFS on listeners.
#[derive(Debug)]
pub struct Server<S> {
    service: Arc<S>,
    shared: Arc<Shared>,
    balancers: Vec<Network>,
    slots: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
}

impl<S: Service> Server<S> {
    /// A server that hands calls to `service`. Shutdown of `tasks` ends it.
    #[must_use]
    pub fn new(
        service: Arc<S>,
        limits: ServerLimits,
        counters: Arc<TransportCounters>,
        clock: Arc<dyn Clock>,
        tasks: Tasks,
    ) -> Self {
        let shared = Shared {
            limits,
            budget: Budget::new(limits.process_bytes_max, Arc::clone(&counters)),
            receiving: Arc::new(Receiving::new(
                limits.receiving_bytes_max,
                Arc::clone(&counters),
            )),
            pressure: Pressure::new(limits.pressure_every()),
            crowd: Pressure::new(limits.pressure_every()),
            complaints: Complaints::new(),
            slow_calls: Complaints::new(),
            clock: Arc::clone(&clock),
            counters,
            gateway: None,
        };
        Self {
            service,
            shared: Arc::new(shared),
            balancers: Vec::new(),
            slots: Arc::new(Semaphore::new(limits.connections_max)),
            clock,
            tasks,
        }
    }

    /// Takes peers in `networks` for balancers: each of their connections must begin with a PROXY
    /// header of version 2, which says whose it is. From others such a header is refused.
    #[must_use]
    pub fn behind(mut self, networks: Vec<Network>) -> Self {
        self.balancers = networks;
        self
    }

    /// A server for other gateways, which pass calls on to gateway `own`: each connection begins with a PROXY header
    /// that says whose calls they are, and for which gateway.
    #[must_use]
    pub fn for_gateways(
        service: Arc<S>,
        limits: ServerLimits,
        counters: Arc<TransportCounters>,
        clock: Arc<dyn Clock>,
        tasks: Tasks,
        own: GatewayId,
    ) -> Self {
        let mut server = Self::new(service, limits, counters, clock, tasks);
        if let Some(shared) = Arc::get_mut(&mut server.shared) {
            shared.gateway = Some(own);
        }
        server.behind(Network::everywhere().to_vec())
    }

    /// Accepts connections until shutdown begins. The connections end on their own; wait for them
    /// with [`Tasks::join`].
    ///
    /// # Cancellation
    ///
    /// Safe: no further connections are accepted.
    pub async fn run(&self, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.tasks.shutdown_begun() => return,
                accepted = self.accept(&listener) => accepted,
            };
            match accepted {
                Ok((stream, peer, slot)) => self.start(stream, peer, slot),
                Err(error) => self.survive(&error).await,
            }
        }
    }

    async fn accept(
        &self,
        listener: &TcpListener,
    ) -> io::Result<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
        if self.slots.available_permits() == 0 {
            self.tell_of_crowd();
        }
        let slot = Arc::clone(&self.slots).acquire_owned();
        let slot = self.shared.crowd.until(&*self.clock, slot).await;
        let slot = slot.map_err(io::Error::other)?;
        let (stream, peer) = listener.accept().await?;
        Ok((stream, peer, slot))
    }

    fn tell_of_crowd(&self) {
        self.shared.counters.crowded.count();
        if let Some(untold) = self.shared.complaints.turn(self.clock.monotonic()) {
            tracing::warn!(
                untold,
                "all {} places for NFS connections are taken: further ones wait until one is closed \
                 (connections_max)",
                self.shared.limits.connections_max
            );
        }
    }

    fn start(&self, stream: TcpStream, peer: SocketAddr, slot: tokio::sync::OwnedSemaphorePermit) {
        let counters = &self.shared.counters;
        if let Err(error) = configure(&stream) {
            tracing::debug!(%peer, error = %Told(&error), "connection was gone before it was served");
            return;
        }
        counters.accepted.count();
        // Of the process: those of clients and those of gateways have servers of their own.
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let (read, write) = stream.into_split();
        let connection = Connection::new(id, peer, Outbound::new(write), Arc::clone(&self.shared));
        let connection = Arc::new(connection);
        let service = Arc::clone(&self.service);
        let arrival = match self.balancers.iter().any(|it| it.contains(peer.ip())) {
            true => Arrival::Balancer,
            false => Arrival::Direct,
        };
        let clock = Arc::clone(&self.clock);
        let task = ConnectionTask::new(service, connection, read, clock, arrival);
        let tasks = self.tasks.clone();
        self.tasks.spawn(async move {
            task.run(tasks).await;
            drop(slot);
        });
    }

    async fn survive(&self, error: &io::Error) {
        self.shared.counters.accept_errors.count();
        let is_about_the_peer = matches!(
            error.kind(),
            ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
        );
        if !is_about_the_peer {
            tracing::warn!(error = %Told(&error), "cannot accept a connection, trying again");
            self.clock.sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// Sets what every connection needs.
fn configure(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}
