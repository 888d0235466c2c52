//! A real server on loopback.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use base::{Clock, SystemClock, Tasks};
use bytes::Bytes;
use nfs_gateway::{
    Answer, CallGuard, Gate, HandleKeys, Server, ServerLimits, Service, TransportCounters,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;

use crate::answer::{answer, keys};
use crate::corpus::{corpus, mutate, setting};
use crate::memory::{alone, resident_bytes};

/// Rounds of mutation; each is a connection.
const ROUNDS: u64 = 300;

/// What connections that only claim may cost together.
const CLAIM_BYTES_MAX: isize = 3 * 1024 * 1024;

/// What an idle connection may cost, both its ends together.
const IDLE_BYTES_MAX: isize = 32 * 1024;

/// How long a test waits for something that should happen at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// Answers every call, and has no files.
struct Hollow {
    keys: HandleKeys,
    gate: Gate,
}

impl Service for Hollow {
    fn call(self: &Arc<Self>, record: Bytes, guard: CallGuard) -> Option<Answer> {
        let (reply, _) = answer(&self.keys, &record);
        match reply {
            Some(reply) => Some(guard.answer(reply)),
            None => {
                guard.close();
                None
            }
        }
    }

    fn reply_bytes(&self, _record: &Bytes) -> usize {
        0 // It has no big replies.
    }

    fn is_ping(&self, _record: &Bytes) -> bool {
        true
    }

    fn gate(&self) -> &Gate {
        &self.gate
    }
}

/// A server on loopback.
struct Running {
    address: SocketAddr,
    counters: Arc<TransportCounters>,
    tasks: Tasks,
}

async fn serve(limits: ServerLimits) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let counters = Arc::new(TransportCounters::default());
    let tasks = Tasks::new();
    let service = Hollow {
        keys: keys(),
        gate: Gate::new(),
    };
    let server = Server::new(
        Arc::new(service),
        limits,
        Arc::clone(&counters),
        Arc::new(SystemClock::new()),
        tasks.clone(),
    );
    tasks.spawn(async move { server.run(listener).await });
    Running {
        address,
        counters,
        tasks,
    }
}

impl Running {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Calls NULL and expects the answer.
    fn ping(&self) {
        let ping = corpus()
            .into_iter()
            .find(|sample| sample.name == "nfs-null");
        let mut stream = self.connect();
        stream.write_all(&ping.unwrap().stream).unwrap();
        let mut reply = [0; 28];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], [0x80, 0, 0, 24]);
    }

    async fn await_that(&self, what: &str, condition: impl Fn(&TransportCounters) -> bool) {
        let clock = SystemClock::new();
        while !condition(&self.counters) {
            assert!(clock.monotonic() < PATIENCE, "waited in vain: {what}");
            clock.sleep(Duration::from_millis(2)).await;
        }
    }

    async fn stop(self) {
        self.tasks.begin_shutdown();
        self.tasks.join().await;
        assert_eq!(self.counters.open(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_survives_mutated_streams() {
    let _alone = alone().await;
    let server = serve(ServerLimits::default()).await;
    let samples = corpus();
    let seed = setting("WIRE_FUZZ_SEED", 1);
    for round in 0..ROUNDS {
        let mut rng = ChaCha8Rng::seed_from_u64(seed.wrapping_add(round.wrapping_mul(0x51ed)));
        let mut stream = server.connect();
        for _ in 0..rng.random_range(1..5) {
            // The server may be done with us already.
            let _closed = stream.write_all(&mutate(&mut rng, &samples));
        }
        let _closed = stream.shutdown(std::net::Shutdown::Write);
        let mut replies = Vec::new();
        let _reset = stream.read_to_end(&mut replies);
    }
    server.ping();
    assert_eq!(server.counters.ended_panic.value(), 0);
    assert!(server.counters.records.value() > ROUNDS);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_cost_no_memory() {
    const CONNECTIONS: u64 = 64;
    let _alone = alone().await;
    let server = serve(ServerLimits::default()).await;
    // Sixty-four connections that are in use settle what the runtime and the allocator keep.
    for _ in 0..2 {
        for _ in 0..CONNECTIONS {
            server.ping();
        }
        server
            .await_that("they end", |counters| counters.open() == 0)
            .await;
    }
    let before = resident_bytes();
    let claims = |bytes: u32| -> Vec<TcpStream> {
        let connections = (0..CONNECTIONS).map(|_| {
            let mut stream = server.connect();
            stream
                .write_all(&(0x8000_0000 | bytes).to_be_bytes())
                .unwrap();
            stream
        });
        connections.collect()
    };
    let _huge = claims(1 << 30);
    server
        .await_that("huge claims end", |counters| {
            counters.ended_garbage.value() == CONNECTIONS
        })
        .await;
    let _big = claims(1 << 20);
    server
        .await_that("big claims are waited for", |counters| {
            counters.open() == CONNECTIONS
        })
        .await;
    SystemClock::new().sleep(Duration::from_millis(100)).await;
    let grown = resident_bytes() - before;
    assert!(grown < CLAIM_BYTES_MAX, "{grown} bytes");
    server.ping();
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_cost_little() {
    const CONNECTIONS: u16 = 400;
    let _alone = alone().await;
    let server = serve(ServerLimits::default()).await;
    for _ in 0..CONNECTIONS {
        server.ping();
    }
    let all_ended = |counters: &TransportCounters| counters.open() == 0;
    server.await_that("they end", all_ended).await;
    let before = resident_bytes();
    let ping = corpus()
        .into_iter()
        .find(|sample| sample.name == "nfs-null")
        .unwrap();
    let connections: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(&ping.stream).unwrap();
            stream.read_exact(&mut [0; 28]).unwrap();
            stream
        })
        .collect();
    let each = (resident_bytes() - before) / isize::try_from(connections.len()).unwrap();
    assert!(each <= IDLE_BYTES_MAX, "{each} bytes per connection");
    drop(connections);
    server.stop().await;
}

/// Sets how many files this process may have open; returns how many it could before.
fn limit_files(files: u64) -> u64 {
    let before = getrlimit(Resource::Nofile);
    let limited = Rlimit {
        current: Some(files),
        maximum: before.maximum,
    };
    setrlimit(Resource::Nofile, limited).unwrap();
    before.current.unwrap_or(u64::MAX)
}

#[tokio::test(flavor = "multi_thread")]
async fn running_out_of_files_is_survived() {
    let _alone = alone().await;
    let server = serve(ServerLimits::default()).await;
    server.ping();
    let mut good = server.connect();
    let ping = corpus()
        .into_iter()
        .find(|sample| sample.name == "nfs-null")
        .unwrap();
    // Few enough that the peers below take the last ones.
    let before = limit_files(64);
    let mut peers = Vec::new();
    while let Ok(peer) = TcpStream::connect(server.address) {
        peers.push(peer);
    }
    server
        .await_that("accept fails", |counters| {
            counters.accept_errors.value() > 0
        })
        .await;
    good.write_all(&ping.stream).unwrap();
    good.read_exact(&mut [0; 28]).unwrap();
    drop(peers);
    limit_files(before);
    server.ping();
    server.stop().await;
}
