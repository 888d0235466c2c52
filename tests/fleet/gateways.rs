//! The servers' side: one store, and gateways in processes of their own.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use base::simulation::Process;
use base::{Clock, Rng, SessionId, Tasks, TenantId, Timestamp};
use chunkstore::faulty::FaultyStore;
use chunkstore::memory::MemoryStore;
use metadata::fleet::owners;
use metadata::keyspace;
use metadata::kv::faulty::{FaultRates, FaultyKv};
use metadata::kv::memory::MemoryKv;
use metadata::kv::{Isolation, Kv};
use metadata::record::workspace::{TenantRecord, WorkspaceRecord};
use metadata::store::{NewWorkspace, OpenSession, Store};
use nfs_gateway::{Engines, FleetOptions, Gateway, GatewayOptions};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::clock::WorldClock;
use crate::drifting::DriftingClock;
use crate::relay::{Flow, Relay};
use crate::slow_kv::Pace;
use crate::wire::{Cut, Wire, WiredKv};

/// When the world begins.
const START: Timestamp = Timestamp::new(1_600_000_000, 0);

/// Length of a lease.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// Pause between tries to start a gateway.
const START_PAUSE: Duration = Duration::from_millis(200);

/// Most bytes and inodes of a session.
pub(crate) const BYTES_MAX: u64 = 1 << 40;
pub(crate) const INODES_MAX: u64 = 1 << 20;

/// What a fleet is to be like.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) places: usize,
    pub(crate) sessions: usize,
    pub(crate) block_bytes: u32,
    pub(crate) gateway: GatewayOptions,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            places: 3,
            sessions: 1,
            block_bytes: 4096,
            gateway: GatewayOptions::default(),
        }
    }
}

/// A gateway that lives.
pub(crate) struct Life {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) process: Process,
    wire: Wire,
    relay: Relay,
    /// Where it listens for others, behind that.
    peers: SocketAddr,
    nfs: SocketAddr,
    /// Told when it has drained and shut down.
    leaving: Option<Arc<AtomicBool>>,
}

/// What gateways counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) takeovers: u64,
    pub(crate) passed_on: u64,
    pub(crate) passed_back: u64,
    pub(crate) replayed: u64,
    pub(crate) replayed_from_store: u64,
    pub(crate) lapses: u64,
    pub(crate) lease_waits: u64,
    pub(crate) fenced: u64,
    pub(crate) notices: u64,
    pub(crate) taken_from_living: u64,
    pub(crate) let_go: u64,
}

impl Counted {
    fn and(self, gateway: &Gateway) -> Self {
        let counters = gateway.counters();
        Self {
            takeovers: self.takeovers + counters.takeovers.value(),
            passed_on: self.passed_on + counters.passed_on.value(),
            passed_back: self.passed_back + counters.passed_back.value(),
            replayed: self.replayed + counters.replayed.value(),
            replayed_from_store: self.replayed_from_store + counters.replayed_from_store.value(),
            lapses: self.lapses + counters.lapses.value(),
            lease_waits: self.lease_waits + counters.lease_waits.value(),
            fenced: self.fenced + counters.fenced.value(),
            notices: self.notices + counters.notices.value(),
            taken_from_living: self.taken_from_living + counters.taken_from_living.value(),
            let_go: self.let_go + counters.let_go.value(),
        }
    }
}

/// A session that clients use.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) id: SessionId,
    pub(crate) ticket: String,
}

/// The store, and places for gateways.
pub(crate) struct Gateways {
    pub(crate) runtime: Runtime,
    pub(crate) clock: Arc<WorldClock>,
    memory: MemoryKv,
    pub(crate) faulty: FaultyKv,
    chunks: Arc<FaultyStore>,
    setting: Setting,
    /// Where gateways listen.
    host: Ipv4Addr,
    rng: Rng,
    pace: Pace,
    pub(crate) lives: Vec<Option<Life>>,
    /// What gateways counted that are gone.
    ended: Counted,
    pub(crate) sessions: Vec<Opened>,
}

/// An address of its own on loopback for each world: what connects to a gateway that is gone must not reach
/// one of another world, which has its port by now.
fn host() -> Ipv4Addr {
    static WORLDS: AtomicU32 = AtomicU32::new(0);
    let world = WORLDS.fetch_add(1, Ordering::Relaxed);
    let number = std::process::id().wrapping_mul(509).wrapping_add(world);
    let [_, second, third, fourth] = number.to_be_bytes();
    Ipv4Addr::new(127, second.clamp(1, 254), third, fourth.clamp(1, 254))
}

impl Gateways {
    /// A store with sessions, and places for gateways.
    pub(crate) fn new(setting: Setting, seed: u64) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let clock = {
            let _inside = runtime.enter();
            Arc::new(WorldClock::new(START))
        };
        let memory = MemoryKv::new(clock.clone());
        let faulty = FaultyKv::new(Arc::new(memory.clone()), seed, FaultRates::default());
        let chunks = Arc::new(MemoryStore::new());
        let mut gateways = Self {
            chunks: Arc::new(FaultyStore::new(chunks, clock.clone())),
            runtime,
            clock,
            memory,
            faulty,
            host: host(),
            rng: Rng::seeded(seed),
            pace: Pace::default(),
            lives: (0..setting.places).map(|_| None).collect(),
            ended: Counted::default(),
            sessions: Vec::new(),
            setting,
        };
        gateways.open_sessions();
        gateways
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    fn open_sessions(&mut self) {
        let setting = self.setting.clone();
        let (kv, clock) = (Arc::new(self.memory.clone()), self.clock.clone());
        let rng = Arc::new(Rng::seeded(self.rng.u64()));
        self.sessions = self.run(async {
            let store = Store::open(kv, clock, rng).await.unwrap();
            let workspace = NewWorkspace {
                name: "w".to_owned(),
                root: (0o777, 0, 0),
            };
            let tenant = TenantId::DEFAULT;
            store.create_workspace(tenant, workspace).await.unwrap();
            let mut sessions = Vec::new();
            for _ in 0..setting.sessions {
                let open = OpenSession::new("w");
                let opened = store.open_session(tenant, open).await.unwrap();
                self.change(keyspace::workspace(opened.session.record.workspace), |it| {
                    let mut record = WorkspaceRecord::decode(it).unwrap();
                    record.block_bytes = setting.block_bytes;
                    record.encode()
                })
                .await;
                sessions.push(Opened {
                    id: opened.session.id,
                    ticket: opened.ticket,
                });
            }
            self.change(keyspace::tenant(tenant), |it| {
                let mut record = TenantRecord::decode(it).unwrap();
                (record.bytes_max, record.inodes_max) = (BYTES_MAX, INODES_MAX);
                record.encode()
            })
            .await;
            sessions
        });
    }

    /// Changes a record behind everybody's back.
    async fn change(&self, key: Vec<u8>, change: impl FnOnce(&[u8]) -> bytes::Bytes) {
        let mut transaction = self.memory.begin();
        let record = transaction.get(&key, Isolation::Serializable).await;
        transaction.set(&key, &change(&record.unwrap().unwrap()));
        transaction.commit().await.unwrap();
    }

    /// Starts a gateway in a place that is empty, and waits until it serves.
    pub(crate) fn start(&mut self, place: usize, per_thousand: u32) {
        assert!(self.lives[place].is_none());
        let clock = Arc::new(DriftingClock::new(self.clock.clone(), per_thousand));
        let wire = Wire::new(self.clock.clone(), self.rng.u64());
        wire.set_pace(self.pace);
        let kv = Arc::new(WiredKv::new(Arc::new(self.faulty.clone()), wire.clone()));
        let engines = Engines {
            kv: kv.clone(),
            chunks: self.chunks.clone(),
            clock: clock.clone(),
            rng: Arc::new(Rng::seeded(self.rng.u64())),
        };
        let process = Process::new();
        let mut options = self.setting.gateway.clone();
        let life = self.run(async {
            let nfs = TcpListener::bind((self.host, 0)).await.unwrap();
            let peers = TcpListener::bind((self.host, 0)).await.unwrap();
            let address = nfs.local_addr().unwrap();
            let listens = peers.local_addr().unwrap();
            let relay = Relay::start(listens).await;
            options.fleet = Some(FleetOptions {
                lease: LEASE,
                nfs: address.to_string(),
                peers: relay.address.to_string(),
                api: String::new(),
                token: [0; 8],
            });
            let (tell, told) = tokio::sync::oneshot::channel();
            let start = async move {
                let gateway = loop {
                    let (kv, clock) = (kv.clone(), clock.clone());
                    let rng = Arc::clone(&engines.rng);
                    if let Ok(store) = Store::open(kv, clock.clone(), rng).await {
                        let made = Gateway::new(options.clone(), engines.clone(), store).await;
                        if let Ok(gateway) = made {
                            break gateway;
                        }
                    }
                    clock.sleep(START_PAUSE).await;
                };
                let (one, other) = (Arc::clone(&gateway), Arc::clone(&gateway));
                Tasks::new().spawn(async move { one.serve(nfs).await });
                Tasks::new().spawn(async move { other.serve_gateways(peers).await });
                tell.send(gateway).unwrap();
            };
            process.within(|| Tasks::new().spawn(start));
            Life {
                gateway: told.await.unwrap(),
                process: process.clone(),
                wire,
                relay,
                peers: listens,
                nfs: address,
                leaving: None,
            }
        });
        tracing::info!(place, id = life.gateway.id().raw(), nfs = %life.nfs, "started");
        self.lives[place] = Some(life);
    }

    /// Where clients can connect to: also to those that stand still.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.lives.iter().flatten().map(|life| life.nfs).collect()
    }

    /// Where other gateways reach a gateway.
    pub(crate) fn peers_of(&self, place: usize) -> Option<SocketAddr> {
        Some(self.lives[place].as_ref()?.peers)
    }

    /// Where clients can connect to a gateway.
    pub(crate) fn address(&self, place: usize) -> Option<SocketAddr> {
        self.lives[place].as_ref().map(|life| life.nfs)
    }

    /// The place of the session's owner, if it lives.
    pub(crate) fn owner_of(&self, session: SessionId) -> Option<usize> {
        let owners = self.run(async { owners(&self.memory, &[session]).await.unwrap() });
        let owner = owners[0]?;
        let is_owner = |life: &Option<Life>| {
            let life = life.as_ref();
            life.is_some_and(|life| life.gateway.id() == owner.gateway)
        };
        self.lives.iter().position(is_owner)
    }

    pub(crate) fn lives_at(&self, place: usize) -> bool {
        self.lives[place].is_some()
    }

    /// Ends a gateway where it is.
    pub(crate) fn kill(&mut self, place: usize) {
        let Some(life) = self.lives[place].take() else {
            return;
        };
        tracing::info!(place, id = life.gateway.id().raw(), "killed");
        life.process.kill();
        life.relay.set(Flow::Ended);
        self.run(async {
            while life.process.tasks() > 0 {
                tokio::task::yield_now().await;
            }
        });
        self.ended = self.ended.and(&life.gateway);
    }

    /// A gateway stands still, or goes on.
    pub(crate) fn freeze(&self, place: usize, stands_still: bool) {
        if let Some(life) = &self.lives[place] {
            match stands_still {
                true => life.process.stop(),
                false => life.process.go_on(),
            }
        }
    }

    pub(crate) fn cut_from_store(&self, place: usize, cut: Cut) {
        if let Some(life) = &self.lives[place] {
            life.wire.set_cut(cut);
        }
    }

    /// File content takes so long to be stored from now on.
    pub(crate) fn delay_chunks(&self, duration: Duration) {
        self.chunks.delay(chunkstore::faulty::Call::Put, duration);
    }

    pub(crate) fn cut_from_gateways(&self, place: usize, flow: Flow) {
        if let Some(life) = &self.lives[place] {
            life.relay.set(flow);
        }
    }

    /// A gateway begins to drain, and ends then. [`Gateways::has_left`] tells when.
    pub(crate) fn begin_leaving(&mut self, place: usize) {
        let Some(life) = &mut self.lives[place] else {
            return;
        };
        if life.leaving.is_some() {
            return;
        }
        let done = Arc::new(AtomicBool::new(false));
        life.leaving = Some(Arc::clone(&done));
        let gateway = Arc::clone(&life.gateway);
        let leave = async move {
            gateway.drain().await;
            gateway.shutdown().await;
            done.store(true, Ordering::SeqCst);
        };
        let _inside = self.runtime.enter();
        life.process.within(|| Tasks::new().spawn(leave));
    }

    /// Whether a gateway that was told to leave has.
    pub(crate) fn has_left(&self, place: usize) -> bool {
        let life = self.lives[place].as_ref();
        let leaving = life.and_then(|life| life.leaving.as_ref());
        leaving.is_some_and(|it| it.load(Ordering::SeqCst))
    }

    pub(crate) fn is_leaving(&self, place: usize) -> bool {
        let life = self.lives[place].as_ref();
        life.is_some_and(|life| life.leaving.is_some())
    }

    /// What all gateways have counted.
    pub(crate) fn counted(&self) -> Counted {
        let lives = self.lives.iter().flatten();
        lives.fold(self.ended, |sum, life| sum.and(&life.gateway))
    }

    pub(crate) fn set_faults(&mut self, rates: FaultRates, pace: Pace) {
        self.faulty.set_rates(rates);
        self.pace = pace;
        for life in self.lives.iter().flatten() {
            life.wire.set_pace(pace);
        }
    }

    /// Lets virtual time pass.
    pub(crate) fn sleep(&self, duration: Duration) {
        self.run(async { self.clock.sleep(duration).await });
    }

    pub(crate) fn now(&self) -> Duration {
        self.run(async { self.clock.monotonic() })
    }
}
