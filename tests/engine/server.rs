//! The server's side: stores that stay, and gateways that come and go.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::{Clock, Rng, SessionId, TenantId, Timestamp};
use chunkstore::faulty::FaultyStore;
use metadata::keyspace;
use metadata::kv::faulty::{FaultRates, FaultyKv};
use metadata::kv::memory::MemoryKv;
use metadata::kv::{Isolation, Kv};
use metadata::record::session::SessionRecord;
use metadata::record::workspace::{TenantRecord, WorkspaceRecord};
use metadata::store::{ForkSession, NewTicket, NewWorkspace, OpenSession, Store};
use nfs_gateway::{Engines, Gateway, GatewayOptions, HandleKey, HandleKeys};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::clock::WorldClock;
use crate::forgetful::Forgetful;
use crate::slow_kv::{Pace, SlowKv, Slowness};

/// When the world begins.
pub(crate) const START: Timestamp = Timestamp::new(1_600_000_000, 0);

/// What a session is to be like.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) block_bytes: u32,
    pub(crate) bytes_max: u64,
    pub(crate) inodes_max: u64,
    pub(crate) gateway: GatewayOptions,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            block_bytes: 4096,
            bytes_max: 1 << 40,
            inodes_max: 1 << 20,
            gateway: GatewayOptions::default(),
        }
    }
}

/// What gateways counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) takeovers: u64,
    /// Times an owner gave data up.
    pub(crate) lost: u64,
    pub(crate) loads: u64,
    pub(crate) replayed: u64,
    pub(crate) replayed_from_store: u64,
    /// Times a connection was not read for a while.
    pub(crate) paused: u64,
    pub(crate) folds: u64,
}

/// Stores, and the gateways that are alive.
pub(crate) struct Server {
    pub(crate) clock: Arc<WorldClock>,
    pub(crate) memory: MemoryKv,
    pub(crate) faulty: FaultyKv,
    pub(crate) slow: SlowKv,
    pub(crate) chunks: Arc<FaultyStore>,
    pub(crate) forgetful: Arc<Forgetful>,
    pub(crate) setting: Setting,
    rng: Arc<Rng>,
    pub(crate) runtime: Option<Runtime>,
    /// The last is the one that clients are told of.
    pub(crate) gateways: Vec<Arc<Gateway>>,
    /// Told when the last freeze has ended.
    freezing: Option<tokio::sync::oneshot::Receiver<()>>,
    /// What gateways counted that are gone.
    ended: Counted,
    /// How many gateways there were.
    lives: u64,
    pub(crate) session: SessionId,
    pub(crate) ticket: String,
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
}

impl Server {
    /// A server with one session, and no gateway yet.
    pub(crate) fn new(setting: Setting, seed: u64) -> Self {
        let runtime = runtime();
        let clock = {
            let _inside = runtime.enter();
            Arc::new(WorldClock::new(START))
        };
        let memory = MemoryKv::new(clock.clone());
        let faulty = FaultyKv::new(Arc::new(memory.clone()), seed, FaultRates::default());
        let slow = SlowKv::new(Arc::new(faulty.clone()), Slowness::new(clock.clone(), seed));
        let forgetful = Arc::new(Forgetful::new(seed));
        let chunks = Arc::new(FaultyStore::new(forgetful.clone(), clock.clone()));
        let mut server = Self {
            clock,
            memory,
            faulty,
            slow,
            forgetful,
            chunks,
            setting,
            rng: Arc::new(Rng::seeded(seed)),
            runtime: Some(runtime),
            gateways: Vec::new(),
            freezing: None,
            ended: Counted::default(),
            lives: 0,
            session: SessionId::new(0),
            ticket: String::new(),
        };
        server.open_session();
        server
    }

    /// Runs `future` on the present runtime.
    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.as_ref().unwrap().block_on(future)
    }

    pub(crate) fn store(&self) -> Store {
        let (clock, rng) = (Arc::clone(&self.clock), Arc::clone(&self.rng));
        self.run(async {
            let kv = Arc::new(self.slow.clone());
            Store::open(kv, clock, rng).await.unwrap()
        })
    }

    fn open_session(&mut self) {
        let store = self.store();
        let opened = self.run(async {
            let workspace = NewWorkspace {
                name: "w".to_owned(),
                root: (0o777, 0, 0),
            };
            let tenant = TenantId::DEFAULT;
            store.create_workspace(tenant, workspace).await.unwrap();
            let open = OpenSession::new("w");
            store.open_session(tenant, open).await.unwrap()
        });
        self.session = opened.session.id;
        self.ticket = opened.ticket;
        let workspace = opened.session.record.workspace;
        let setting = self.setting.clone();
        self.change(keyspace::workspace(workspace), |record| {
            let mut record = WorkspaceRecord::decode(record).unwrap();
            record.block_bytes = setting.block_bytes;
            record.encode()
        });
        self.change(keyspace::tenant(TenantId::DEFAULT), |record| {
            let mut record = TenantRecord::decode(record).unwrap();
            record.bytes_max = setting.bytes_max;
            record.inodes_max = setting.inodes_max;
            record.encode()
        });
    }

    /// Opens one more session of the workspace; returns its ticket.
    pub(crate) fn open_another(&self) -> String {
        let store = self.store();
        let opened = self.run(async {
            let open = OpenSession::new("w");
            store.open_session(TenantId::DEFAULT, open).await.unwrap()
        });
        opened.ticket
    }

    /// One more ticket of the session.
    pub(crate) fn ticket(&self, ticket: NewTicket) -> String {
        let store = self.store();
        self.run(async {
            let made = store.create_ticket(TenantId::DEFAULT, ticket).await;
            made.unwrap()
        })
    }

    /// Makes the session read-only, or writable again, for the owners to come.
    pub(crate) fn set_read_only(&self, read_only: bool) {
        self.change(keyspace::session_meta(self.session), |record| {
            let mut record = SessionRecord::decode(record).unwrap();
            record.read_only = read_only;
            record.encode()
        });
    }

    /// Changes a record behind everybody's back.
    fn change(&self, key: Vec<u8>, change: impl FnOnce(&[u8]) -> bytes::Bytes) {
        self.run(async {
            let mut transaction = self.memory.begin();
            let record = transaction.get(&key, Isolation::Serializable).await;
            transaction.set(&key, &change(&record.unwrap().unwrap()));
            transaction.commit().await.unwrap();
        });
    }

    /// Starts one more gateway; returns its address. Faults may make it fail to start.
    pub(crate) fn start(&mut self) -> SocketAddr {
        let store = self.store();
        let engines = Engines {
            kv: Arc::new(self.slow.clone()),
            chunks: self.chunks.clone(),
            clock: self.clock.clone(),
            rng: Arc::clone(&self.rng),
        };
        let options = self.setting.gateway.clone();
        let (gateway, address) = self.run(async {
            let gateway = Gateway::new(options, engines, store).await.unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let serving = Arc::clone(&gateway);
            base::Tasks::new().spawn(async move { serving.serve(listener).await });
            (gateway, address)
        });
        self.gateways.push(gateway);
        self.lives += 1;
        address
    }

    /// Ends all gateways where they are. With `stores` they crash, too.
    pub(crate) fn kill(&mut self, stores: bool) {
        self.ended = self.counted();
        {
            let _inside = self.runtime.as_ref().unwrap().enter();
            self.clock.end();
        }
        self.freezing = None;
        drop(self.runtime.take());
        self.gateways.clear();
        let runtime = runtime();
        {
            let _inside = runtime.enter();
            self.clock.begin();
            if stores {
                self.forgetful.crash();
                self.memory = self.memory.reopen();
                self.faulty.revive(Arc::new(self.memory.clone()));
            }
        }
        self.runtime = Some(runtime);
    }

    /// What all gateways have counted.
    pub(crate) fn counted(&self) -> Counted {
        self.gateways.iter().fold(self.ended, |sum, gateway| {
            let counters = gateway.counters();
            let lost = counters.discarded.value() + counters.flushes_refused.value();
            Counted {
                takeovers: sum.takeovers + counters.takeovers.value(),
                lost: sum.lost + lost,
                loads: sum.loads + counters.loads.value(),
                folds: sum.folds + counters.folds.value(),
                replayed: sum.replayed + counters.replayed.value(),
                replayed_from_store: sum.replayed_from_store + counters.replayed_from_store.value(),
                paused: sum.paused + gateway.transport().paused.value(),
            }
        })
    }

    /// Changes whenever there is, or will be, another owner.
    pub(crate) fn owner(&self) -> (u64, u64) {
        (self.counted().takeovers, self.lives)
    }

    /// How often the session was taken over, and how often an owner gave data up.
    pub(crate) fn ownerships(&self) -> (u64, u64) {
        let counted = self.counted();
        (counted.takeovers, counted.lost)
    }

    /// Freezes the session while calls go on, and makes a tree of it if `fold`.
    pub(crate) fn begin_freeze(&mut self, fold: bool) {
        let (gateway, session) = (Arc::clone(self.gateway()), self.session);
        let (tell, ended) = tokio::sync::oneshot::channel();
        self.freezing = Some(ended);
        let work = async move {
            // The stores may fail it, and then nothing has happened.
            if fold {
                drop(gateway.snapshot(session).await);
            } else {
                drop(gateway.freeze(session).await);
            }
            // Nobody may wait for it any more.
            let _: Result<(), ()> = tell.send(());
        };
        self.run(async { base::Tasks::new().spawn(work) });
    }

    /// Waits for the end of a freeze, if the server has lived so long: one that has lost the session
    /// would take it over again.
    pub(crate) fn end_freeze(&mut self) {
        if let Some(ended) = self.freezing.take() {
            drop(self.run(ended));
        }
    }

    /// Goes over to a fork of the session; ends the session itself if `close`.
    pub(crate) fn fork(&mut self, close: bool) -> Result<(), String> {
        let (store, gateway) = (self.store(), Arc::clone(self.gateway()));
        let (source, tenant) = (self.session, TenantId::DEFAULT);
        let fork = ForkSession {
            read_only: false,
            identity: None,
            agent: String::new(),
            run: String::new(),
            ttl_seconds: None,
        };
        let opened = self.run(async {
            let opened = gateway.fork(tenant, source, fork).await;
            let opened = opened.map_err(|error| format!("fork: {error}"))?;
            if close {
                let closed = store.close_session(tenant, source).await;
                closed.map_err(|error| format!("close: {error}"))?;
                gateway.drop_session(source);
            }
            Ok::<_, String>(opened)
        })?;
        self.session = opened.session.id;
        self.ticket = opened.ticket;
        Ok(())
    }

    /// What signs file handles.
    pub(crate) fn handle_keys(&self) -> HandleKeys {
        let store = self.store();
        let record = self.run(async { store.handle_keys().await.unwrap() });
        let mut keys = record
            .keys
            .iter()
            .map(|(id, key)| HandleKey::new(*id, *key));
        HandleKeys::new(keys.next().unwrap(), keys.next())
    }

    /// The gateway that clients talk to.
    pub(crate) fn gateway(&self) -> &Arc<Gateway> {
        self.gateways.last().unwrap()
    }

    pub(crate) fn set_faults(&self, rates: FaultRates, pace: Pace) {
        self.faulty.set_rates(rates);
        self.slow.hooks().set_pace(pace);
    }

    /// Lets virtual time pass.
    pub(crate) fn sleep(&self, duration: Duration) {
        self.run(async { self.clock.sleep(duration).await });
    }
}
