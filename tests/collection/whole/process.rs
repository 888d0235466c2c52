//! A gateway as a process that dies between two commits, and its clients.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{ChunkId, Clock, CommitId, DomainId, Rng, Tasks, WorkspaceId};
use bytes::Bytes;
use chunkstore::local::{LocalOptions, LocalStore, Marked, Thoroughness};
use chunkstore::{ChunkFuture, ChunkStore, Domain, Hold};
use metadata::kv::Kv;
use metadata::references::References;
use metadata::store::Store;
use nfs_gateway::{ChunkTrees, Engines, Gateway, GatewayOptions};
use nfs3_client::Nfs3ConnectionBuilder;
use nfs3_client::tokio::TokioConnector;
use system_tests::hooked_kv::{HookedKv, Hooks};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use super::Mutation;
use super::client::Client;
use crate::model::keeping::ShiftedClock;

/// When a process dies: before or after a commit, which is one *moment* each.
#[derive(Clone, Debug, Default)]
struct Death(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_armed: AtomicBool,
    /// Moments of what was run last.
    count: AtomicUsize,
    /// Moments until it dies.
    left: AtomicI64,
    is_dead: AtomicBool,
    died: Notify,
}

impl Death {
    /// A moment: nobody goes on from the last one.
    async fn moment(&self) {
        let state = &self.0;
        state.count.fetch_add(1, SeqCst);
        if state.is_armed.load(SeqCst) && state.left.fetch_sub(1, SeqCst) <= 0 {
            state.is_dead.store(true, SeqCst);
            state.died.notify_one();
        }
        self.stop().await;
    }

    async fn stop(&self) {
        if self.0.is_dead.load(SeqCst) {
            std::future::pending::<()>().await;
        }
    }
}

impl Hooks for Death {
    async fn before_read(&self) {
        self.stop().await;
    }

    async fn before_commit(&mut self) {
        self.moment().await;
    }

    async fn after_commit(&mut self) {
        self.moment().await;
    }
}

/// A chunk store as a gateway that leaves a rule out would see it. When its process ends it lets go of the
/// files, whoever still has it.
#[derive(Clone, Debug)]
struct Chunks {
    mutation: Option<Mutation>,
    local: Arc<Mutex<Option<LocalStore>>>,
}

impl Chunks {
    /// The store, as long as the process lives.
    fn local(&self) -> Option<LocalStore> {
        self.local.lock().unwrap().clone()
    }

    async fn living(&self) -> LocalStore {
        match self.local() {
            Some(local) => local,
            None => std::future::pending().await,
        }
    }
}

impl ChunkStore for Chunks {
    fn put(&self, domain: Domain, content: Bytes) -> ChunkFuture<'_, ChunkId> {
        Box::pin(async move { self.living().await.put(domain, content).await })
    }

    fn sync(&self) -> ChunkFuture<'_, ()> {
        Box::pin(async move { self.living().await.sync().await })
    }

    fn get(&self, domain: Domain, id: ChunkId) -> ChunkFuture<'_, Bytes> {
        Box::pin(async move { self.living().await.get(domain, id).await })
    }

    fn cached(&self, domain: Domain, id: ChunkId) -> Option<Bytes> {
        self.local()?.cached(domain, id)
    }

    fn hold(&self) -> Hold {
        match (self.mutation, self.local()) {
            (Some(Mutation::NoHolds), _) | (_, None) => Hold::none(),
            (_, Some(local)) => local.hold(),
        }
    }

    fn touch(&self, domain: DomainId, id: ChunkId) {
        if let Some(local) = self.local() {
            local.touch(domain, id);
        }
    }
}

/// A process, and after its end the next one.
pub(super) struct Process(Option<Live>);

impl std::ops::Deref for Process {
    type Target = Live;

    fn deref(&self) -> &Live {
        self.0.as_ref().expect("one is started when another ends")
    }
}

impl Process {
    pub(super) fn of(live: Live) -> Self {
        Self(Some(live))
    }

    /// Ends it, and starts the next one on what it left.
    pub(super) async fn restart(
        &mut self,
        memory: &Arc<dyn Kv>,
        dir: &Path,
        clock: &Arc<ShiftedClock>,
        seed: u64,
    ) {
        let mutation = self.chunks.mutation;
        // Its files are free before the next one opens them.
        self.0 = None;
        self.0 = Some(Live::start(memory, dir, clock, seed, mutation).await);
    }
}

/// All that a crash ends.
pub(super) struct Live {
    runtime: Option<Runtime>,
    death: Death,
    kv: Arc<dyn Kv>,
    pub(super) store: Store,
    pub(super) local: LocalStore,
    chunks: Chunks,
    pub(super) gateway: Arc<Gateway>,
    address: SocketAddr,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.chunks.local.lock().unwrap().take();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Times that the files of the process before are waited for, each a millisecond.
const WAITS_MAX: u32 = 20_000;

async fn open_local(dir: &Path, clock: &Arc<dyn Clock>) -> LocalStore {
    for _ in 0..WAITS_MAX {
        let options = LocalOptions {
            pack_bytes: 0,
            reserve_bytes: 0,
            ..LocalOptions::default()
        };
        // The process before may have a read under way, whose result nobody wants.
        match LocalStore::open(dir, options, Arc::clone(clock)) {
            Ok(local) => return local,
            Err(_) => clock.sleep(Duration::from_millis(1)).await,
        }
    }
    panic!("the process before does not end");
}

impl Live {
    /// Starts one on what others left.
    pub(super) async fn start(
        memory: &Arc<dyn Kv>,
        dir: &Path,
        clock: &Arc<ShiftedClock>,
        seed: u64,
        mutation: Option<Mutation>,
    ) -> Self {
        let clock: Arc<dyn Clock> = Arc::<ShiftedClock>::clone(clock);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let death = Death::default();
        let kv: Arc<dyn Kv> = Arc::new(HookedKv::new(Arc::clone(memory), death.clone()));
        let local = open_local(dir, &clock).await;
        let chunks = Chunks {
            mutation,
            local: Arc::new(Mutex::new(Some(local.clone()))),
        };
        let rng = Arc::new(Rng::seeded(seed));
        let starting = async {
            let store = Store::open(Arc::clone(&kv), Arc::clone(&clock), Arc::clone(&rng));
            let store = store.await.unwrap();
            let engines = Engines {
                kv: Arc::clone(&kv),
                chunks: Arc::new(chunks.clone()),
                clock: Arc::clone(&clock),
                rng,
            };
            let gateway = Gateway::new(GatewayOptions::default(), engines, store.clone());
            let gateway = gateway.await.unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let serving = Arc::clone(&gateway);
            Tasks::new().spawn(async move { serving.serve(listener).await });
            (store, gateway, address)
        };
        let (store, gateway, address) = inside(&runtime, starting).await;
        Self {
            runtime: Some(runtime),
            death,
            kv,
            store,
            local,
            chunks,
            gateway,
            address,
        }
    }

    /// Lets it die after so many moments of what it does next.
    pub(super) fn dies_after(&self, moments: i64) {
        self.death.0.left.store(moments, SeqCst);
        self.death.0.is_armed.store(true, SeqCst);
    }

    /// Runs something to its end; `None` if the process died meanwhile.
    pub(super) async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let runtime = self.runtime.as_ref()?;
        self.death.0.count.store(0, SeqCst);
        let done = tokio::select! {
            biased;
            () = self.death.0.died.notified() => None,
            done = inside(runtime, work) => Some(done),
        };
        self.death.0.is_armed.store(false, SeqCst);
        // Others of its tasks may have brought it to its end at the same moment.
        done.filter(|_| !self.death.0.is_dead.load(SeqCst))
    }

    /// How many moments what was run last has had.
    pub(super) fn moments(&self) -> usize {
        self.death.0.count.load(SeqCst)
    }

    pub(super) async fn mount(&self, ticket: &str) -> Result<Client, String> {
        let host = self.address.ip().to_string();
        let mount = Nfs3ConnectionBuilder::new(TokioConnector, host, format!("/{ticket}"))
            .connect_from_privileged_port(false)
            .mount_port(self.address.port())
            .nfs3_port(self.address.port())
            .mount()
            .await;
        mount.map(Client).map_err(|error| format!("mount: {error}"))
    }

    /// As `control`'s collector: first what policies let go. Gives how many commits these were and how many
    /// chunks are missing that something refers to.
    pub(super) async fn collect(
        &self,
        workspace: WorkspaceId,
        known: &[CommitId],
    ) -> Result<(u64, u64), String> {
        let mut let_go = 0;
        // What conflicts again and again is left for the next time.
        if let Ok(mut expired) = self.store.expired(workspace).await {
            drop(self.store.remove_old_entries(&expired).await);
            while !expired.commits().is_empty() {
                match self.store.remove_expired(&mut expired).await {
                    Ok(Some(removed)) => let_go += removed,
                    Ok(None) | Err(_) => break,
                }
            }
        }
        let grey = self.store.grey_roots();
        let begun = self.local.begin_collection();
        let begun = begun.ok_or("another collection runs")?;
        let settled = begun.settled(Duration::from_secs(60)).await;
        let marking = settled.ok_or("holds are not let go")?;
        let mut references = References::new(self.trees());
        if self.chunks.mutation == Some(Mutation::CommitsForgotten) {
            let forgotten = known.iter().map(|id| (workspace, *id));
            references = References::without(self.trees(), forgotten);
        }
        let mut missing = 0;
        let mut mark = |domain: DomainId, id| {
            missing += u64::from(marking.mark(domain, id) == Marked::Missing);
        };
        loop {
            let more = references.next(self.kv.as_ref(), &mut mark).await;
            if more.map_err(text)? {
                continue;
            }
            if !references.add(grey.take()) {
                break;
            }
        }
        let mut sweep = marking.sweep(Thoroughness::High).await.map_err(text)?;
        while sweep.step().await.map_err(text)?.is_some() {}
        Ok((let_go, missing))
    }

    fn trees(&self) -> Arc<ChunkTrees> {
        Arc::new(ChunkTrees::new(Arc::new(self.local.clone()), 0))
    }

    /// How many chunks something refers to, and how many are stored.
    pub(super) async fn counts(&self) -> Result<(u64, u64), String> {
        let mut references = References::new(self.trees());
        let mut all = std::collections::HashSet::new();
        let mut each = |domain, id| {
            all.insert((domain, id));
        };
        let kv = self.kv.as_ref();
        while references.next(kv, &mut each).await.map_err(text)? {}
        let stored = self.local.counts().chunks;
        Ok((u64::try_from(all.len()).unwrap(), stored))
    }
}

/// Runs something that makes tasks in this runtime.
async fn inside<T>(runtime: &Runtime, work: impl Future<Output = T>) -> T {
    let mut work = Box::pin(work);
    std::future::poll_fn(|cx| {
        let _inside = runtime.enter();
        work.as_mut().poll(cx)
    })
    .await
}

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
