//! Hostile bytes: nothing that arrives on a connection may panic the gateway, cost memory that
//! was not sent, or disturb others.
//!
//! The corpus in `corpus/` has one stream per file, with what it has to come to. The fuzzer
//! mutates these streams from a seed, so a failure names the seed and round that repeat it:
//!
//! ```text
//! WIRE_FUZZ_SEED=1 WIRE_FUZZ_ROUNDS=1000000 cargo test -p system-tests --test wire_fuzz
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Clock, InodeId, SessionId, SystemClock, Tasks};
use bytes::{BufMut, Bytes};
use nfs_gateway::wire::args::NfsCall;
use nfs_gateway::wire::mount::{self, MountCall};
use nfs_gateway::wire::procedure::{MountProcedure, Procedure, Target};
use nfs_gateway::wire::record::RecordReader;
use nfs_gateway::wire::reply::Reply;
use nfs_gateway::wire::results;
use nfs_gateway::wire::rpc::{self, CallError};
use nfs_gateway::wire::xdr::XdrError;
use nfs_gateway::{
    CallGuard, FileHandle, Gate, HandleKey, HandleKeys, Server, ServerLimits, Service,
    TransportCounters,
};
use nfsserve::nfs::nfsstat3;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::net::TcpListener;

/// Rounds of mutation unless the environment says otherwise.
const ROUNDS: u64 = 50_000;

/// Rounds against a real server; each is a connection.
const SERVER_ROUNDS: u64 = 300;

/// Memory the decoder may need beyond a few times what was sent: the receive buffer, twice while
/// it grows.
const DECODE_BYTES_FIXED: isize = 64 * 1024;

/// What connections that only claim may cost together.
const CLAIM_BYTES_MAX: isize = 3 * 1024 * 1024;

/// How long a test waits for something that should happen at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// Counts the memory of each thread and of all.
struct CountingAllocator;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static HELD_MOST: Cell<isize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[expect(unsafe_code, reason = "the trait is unsafe; this only counts")]
// SAFETY: every call goes to the system's allocator unchanged, which keeps its contract.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(isize::try_from(layout.size()).unwrap_or(isize::MAX));
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-isize::try_from(layout.size()).unwrap_or(isize::MAX));
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn count(bytes: isize) {
    // At a thread's end its counters are gone before its last memory is.
    let _gone = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        HELD_MOST.with(|most| most.set(most.get().max(held.get())));
    });
}

/// The most memory this thread held at any time during `work`, beyond what it held before.
fn memory_of<T>(work: impl FnOnce() -> T) -> (T, isize) {
    let before = HELD.get();
    HELD_MOST.set(before);
    let value = work();
    (value, HELD_MOST.get() - before)
}

/// Tests that look at the whole process's memory, or make much of it, run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One stream of the corpus.
struct Sample {
    name: String,
    outcome: String,
    stream: Vec<u8>,
}

fn corpus() -> Vec<Sample> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut samples: Vec<Sample> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| sample(&entry.unwrap().path()))
        .collect();
    samples.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(samples.len() > 50, "the corpus is not there");
    samples
}

fn sample(path: &Path) -> Sample {
    let text = std::fs::read_to_string(path).unwrap();
    let outcome = text
        .lines()
        .find_map(|line| line.strip_prefix("# outcome: "));
    let digits: Vec<u8> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::bytes)
        .collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    Sample {
        name: path.file_stem().unwrap().to_string_lossy().into_owned(),
        outcome: outcome.expect("a sample says what it comes to").to_owned(),
        stream: digits.chunks(2).map(byte).collect(),
    }
}

fn keys() -> HandleKeys {
    HandleKeys::new(HandleKey::new(1, [1; 32]), None)
}

/// What one record comes to: what to answer, if anything, and in words.
fn answer(keys: &HandleKeys, record: &Bytes) -> (Option<Reply>, String) {
    let call = match rpc::decode_call(record) {
        Ok(call) => call,
        Err(CallError::NotACall(_)) => return (None, "no call".to_owned()),
        Err(CallError::Denied { xid, why }) => {
            return (Some(rpc::denied(xid, why)), format!("denied {why:?}"));
        }
    };
    let xid = call.xid;
    let result = match Target::of(&call) {
        Err(why) => return (Some(rpc::refused(xid, why)), format!("refused {why:?}")),
        Ok(Target::Nfs(procedure)) => answer_nfs(keys, xid, procedure, &call),
        Ok(Target::Mount(procedure)) => answer_mount(xid, procedure, &call),
    };
    match result {
        Ok((reply, words)) => (Some(reply), words),
        Err((name, error)) => {
            let reply = rpc::refused(xid, rpc::Refusal::GarbageArguments);
            (Some(reply), format!("garbage {name}: {error}"))
        }
    }
}

type Answer = Result<(Reply, String), (&'static str, XdrError)>;

fn answer_nfs(keys: &HandleKeys, xid: u32, procedure: Procedure, call: &rpc::Call<'_>) -> Answer {
    let name = procedure.name();
    let decoded = NfsCall::decode(procedure, call.args.clone()).map_err(|error| (name, error))?;
    if let NfsCall::Write(args) = &decoded {
        assert!(args.data.len() <= base::limits::READ_BYTES_MAX);
    }
    let reply = match decoded.handle() {
        None => results::null(xid),
        // That a forged handle would be taken is beyond any fuzzer, unless the check is broken.
        Some(handle) => {
            assert!(keys.verify(handle).is_err(), "a forged handle was taken");
            results::failed(xid, nfsstat3::NFS3ERR_STALE, &())
        }
    };
    Ok((reply, format!("nfs {name}")))
}

fn answer_mount(xid: u32, procedure: MountProcedure, call: &rpc::Call<'_>) -> Answer {
    let name = procedure.name();
    let decoded = MountCall::decode(procedure, call.args.clone()).map_err(|error| (name, error))?;
    let reply = match decoded {
        MountCall::Mnt(_) => mount::denied(xid, mount::MountError::AccessDenied),
        MountCall::Dump | MountCall::Export => mount::empty_list(xid),
        MountCall::Null | MountCall::Umnt(_) | MountCall::Umntall => mount::done(xid),
    };
    Ok((reply, format!("mount {name}")))
}

/// Feeds a stream to the decoders in reads of at most `step` bytes; says what it came to.
fn drive(keys: &HandleKeys, stream: &[u8], step: usize) -> String {
    let mut reader = RecordReader::new();
    let mut outcome = String::new();
    let mut rest = stream;
    loop {
        loop {
            match reader.take() {
                Ok(None) => break,
                Ok(Some(record)) => {
                    let (reply, words) = answer(keys, &record);
                    if let Some(reply) = reply {
                        assert_eq!(reply.wire_bytes() % 4, 0);
                        assert_eq!(reply.to_vec().get(4..8), record.get(..4));
                    }
                    outcome.push_str(&words);
                    outcome.push_str("; ");
                }
                Err(error) => return format!("{outcome}error: {error}"),
            }
        }
        if rest.is_empty() {
            let end = if reader.is_inside_record() {
                "waiting"
            } else {
                "end"
            };
            return outcome + end;
        }
        let mut room = reader.room();
        let taken = room.remaining_mut().min(step).min(rest.len());
        let (now, later) = rest.split_at(taken);
        room.put_slice(now);
        rest = later;
    }
}

/// Numbers that lengths, counts and flags are likely to trip over.
const INTERESTING: [u32; 16] = [
    0,
    1,
    2,
    3,
    16,
    17,
    64,
    65,
    255,
    400,
    401,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xffff_fffc,
    0xffff_ffff,
];

/// Changes a stream a little, or a lot.
fn mutate(rng: &mut ChaCha8Rng, samples: &[Sample]) -> Vec<u8> {
    let mut stream = pick(rng, samples).stream.clone();
    for _ in 0..rng.random_range(1..6) {
        let at = rng.random_range(0..=stream.len());
        match rng.random_range(0..9) {
            0 => flip(rng, &mut stream, at),
            1 | 2 => overwrite(&mut stream, at & !3, INTERESTING[rng.random_range(0..16)]),
            3 => overwrite(&mut stream, at & !3, rng.random()),
            4 => stream.truncate(at),
            5 => {
                let inserted: Vec<u8> =
                    (0..rng.random_range(1..40)).map(|_| rng.random()).collect();
                stream.splice(at..at, inserted);
            }
            6 => {
                let until = stream.len().min(at + rng.random_range(1..200));
                stream.drain(at..until);
            }
            7 => {
                let other = &pick(rng, samples).stream;
                let from = rng.random_range(0..=other.len());
                stream.truncate(at);
                stream.extend_from_slice(&other[from..]);
            }
            _ => fix_mark(&mut stream),
        }
    }
    // Mostly the record layer should be passed, or nothing behind it is ever reached.
    if rng.random_ratio(3, 4) {
        fix_mark(&mut stream);
    }
    stream
}

fn pick<'a>(rng: &mut ChaCha8Rng, samples: &'a [Sample]) -> &'a Sample {
    &samples[rng.random_range(0..samples.len())]
}

fn flip(rng: &mut ChaCha8Rng, stream: &mut [u8], at: usize) {
    if let Some(byte) = stream.get_mut(at) {
        *byte ^= 1 << rng.random_range(0..8);
    }
}

fn overwrite(stream: &mut [u8], at: usize, word: u32) {
    if let Some(place) = stream.get_mut(at..at + 4) {
        place.copy_from_slice(&word.to_be_bytes());
    }
}

/// Makes one record of the whole stream.
fn fix_mark(stream: &mut [u8]) {
    if let Some(length) = stream.len().checked_sub(4) {
        let length = u32::try_from(length).unwrap();
        overwrite(stream, 0, 0x8000_0000 | length);
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

#[test]
fn the_corpus_comes_to_what_it_says() {
    for sample in corpus() {
        for step in [1, 5, 4096, usize::MAX] {
            let outcome = drive(&keys(), &sample.stream, step);
            assert_eq!(outcome, sample.outcome, "{}", sample.name);
        }
    }
}

#[test]
fn mutated_streams_neither_panic_nor_cost_memory() {
    let _alone = alone();
    let samples = corpus();
    let keys = keys();
    let (seed, rounds) = (
        setting("WIRE_FUZZ_SEED", 1),
        setting("WIRE_FUZZ_ROUNDS", ROUNDS),
    );
    let mut outcomes = std::collections::BTreeMap::<String, u64>::new();
    for round in 0..rounds {
        let mut rng = ChaCha8Rng::seed_from_u64(seed.wrapping_add(round.wrapping_mul(0x9e37)));
        let stream = mutate(&mut rng, &samples);
        let step = [usize::MAX, 1 << 12, 100, 7][rng.random_range(0..4)];
        let work = || std::panic::catch_unwind(|| drive(&keys, &stream, step));
        let (outcome, memory) = memory_of(work);
        let Ok(outcome) = outcome else {
            panic!("seed {seed}, round {round} panics");
        };
        let sent = isize::try_from(stream.len()).unwrap();
        assert!(
            memory <= DECODE_BYTES_FIXED + 8 * sent,
            "seed {seed}, round {round}: {memory} bytes for a stream of {sent}"
        );
        let first = outcome.split([';', ':', ' ']).next().unwrap_or_default();
        *outcomes.entry(first.to_owned()).or_default() += 1;
    }
    // If one of these is never reached the fuzzer has lost its way.
    for kind in [
        "nfs", "mount", "garbage", "denied", "refused", "no", "error", "waiting",
    ] {
        assert!(outcomes.contains_key(kind), "{kind}: {outcomes:?}");
    }
}

#[test]
fn mutated_handles_are_stale() {
    let keys = keys();
    let handle = FileHandle {
        flags: 1,
        session: SessionId::new(2),
        revocation: 3,
        snapshot: [4; 16],
        inode: InodeId::ROOT,
    };
    let signed = keys.sign(&handle);
    assert_eq!(keys.verify(signed.wire()), Ok(handle));
    let mut rng = ChaCha8Rng::seed_from_u64(setting("WIRE_FUZZ_SEED", 1));
    let rounds = setting("WIRE_FUZZ_ROUNDS", ROUNDS);
    for _ in 0..rounds {
        let mut bytes = signed.as_bytes().to_vec();
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(0..bytes.len());
            flip(&mut rng, &mut bytes, at);
        }
        if rng.random_ratio(1, 8) {
            bytes.truncate(rng.random_range(0..bytes.len()));
        }
        let is_changed = bytes != signed.as_bytes();
        let verified = keys.verify(nfs_gateway::wire::nfs3::WireHandle(&bytes));
        assert_eq!(verified.is_err(), is_changed, "{bytes:?}");
    }
}

/// Answers every call, and has no files.
struct Hollow {
    keys: HandleKeys,
    gate: Gate,
}

impl Service for Hollow {
    fn call(self: &Arc<Self>, record: Bytes, guard: CallGuard) -> Option<Reply> {
        let (reply, _) = answer(&self.keys, &record);
        if reply.is_none() {
            guard.close();
        }
        reply
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

/// Memory of the whole process that is really there, in bytes.
fn resident_bytes() -> isize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.unwrap().trim().trim_end_matches(" kB");
    kibibytes.parse::<isize>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_survives_mutated_streams() {
    let _alone = alone();
    let server = serve(ServerLimits::default()).await;
    let samples = corpus();
    let seed = setting("WIRE_FUZZ_SEED", 1);
    for round in 0..SERVER_ROUNDS {
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
    assert!(server.counters.records.value() > SERVER_ROUNDS);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_cost_no_memory() {
    const CONNECTIONS: u64 = 64;
    let _alone = alone();
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
