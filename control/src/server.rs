//! A complete server: put together here, and nowhere else.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::{Clock, Rng, SystemClock, Tasks, TenantId, Told};
use chunkstore::cached::CachedStore;
use chunkstore::local::{LocalOptions, LocalStore};
use chunkstore::shared::SharedOptions;
use chunkstore::shared::disk::DiskCache;
use chunkstore::shared::objects::Objects;
use metadata::kv::embedded::{EmbeddedOptions, OpenError};
use metadata::kv::held::HeldKv;
use metadata::kv::{Kv, KvError};
use metadata::record::session::SessionState;
use metadata::store::{NewTicket, NewWorkspace, OpenSession, Store, StoreError, token_prefix};
use nfs_gateway::{Engines, Gateway, GatewayOptions, ServerLimits};
use serde::Serialize;
use tokio::net::{TcpListener, TcpSocket};

use crate::api::{ApiState, Own, Serving, router, start_forgetting};
use crate::collector::{Collector, HoldsOf};
use crate::data_dir::{ControlFile, DataDir, SessionFile};
use crate::expiry;
use crate::failure::{Failure, FailureKind};
use crate::fleet::{Addresses, Listening, peer_listen};
use crate::metrics::Counted;
use crate::mount_line::{MountKind, MountLine, MountTarget, mount_path};
use crate::open_files;
use crate::place::{Metadata, Place, Purpose};
use crate::remover::Remover;
use crate::settings::Settings;
use crate::tier::Content;
use crate::units::Size;

/// Name of the workspace that the first start of `holdfast up` makes.
const WORKSPACE: &str = "default";

/// Shortest pack of file content, in bytes: shorter ones would be too many.
const PACK_BYTES_MIN: u64 = 4 << 20;

/// What a start writes, in bytes, and what the metadata store keeps free to work at all.
const START_BYTES: u64 = 4 << 20;

/// Other gateways get sessions one by one for so long at the end; the rest when all is stored.
const LET_GO_PATIENCE: Duration = Duration::from_secs(30);

/// Connections that wait to be accepted. The system takes as many of them as it allows (`somaxconn`).
const BACKLOG: u32 = 4096;

/// API calls in flight get this long at shutdown.
const API_DRAIN: Duration = Duration::from_secs(5);

/// What a server is to come with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Furnish {
    /// What is in its data directory.
    Nothing,
    /// A workspace and a session to mount, made if they are missing.
    Session,
}

/// What a server says when it is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ready {
    /// Where NFS is served.
    pub nfs_address: String,
    /// Where the API is served.
    pub api_address: String,
    /// A token to use it.
    pub api_token: String,
    /// The session to mount.
    #[serde(flatten)]
    pub session: Option<ReadySession>,
}

/// A session that is ready to be mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReadySession {
    /// Its workspace.
    pub workspace: String,
    /// Its number.
    pub session: String,
    /// The path to mount.
    pub mount_path: String,
    /// The command that mounts, with `/mnt` as the directory.
    pub mount_command: String,
    /// The data string of `mount(2)`.
    pub mount_options: String,
    /// The source for `mount(2)`.
    pub mount_source: String,
}

/// A server that serves.
#[derive(Debug)]
pub struct Server {
    ready: Ready,
    dir: DataDir,
    metadata: Metadata,
    gateway: Arc<Gateway>,
    api: Arc<ApiState>,
    calls: Tasks,
    /// The API's connections.
    web: Tasks,
    tasks: Tasks,
    clock: Arc<dyn Clock>,
}

impl Server {
    /// Starts a server.
    ///
    /// # Errors
    ///
    /// Says what is in the way. Nothing runs then.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: what was begun stays half done until the next start.
    pub async fn start(settings: &Settings, furnish: Furnish) -> Result<Self, Failure> {
        let started = Self::start_in_space(settings, furnish).await;
        started.map_err(|failure| match failure.kind {
            FailureKind::NoSpace => no_space(&failure, settings),
            _ => failure,
        })
    }

    async fn start_in_space(settings: &Settings, furnish: Furnish) -> Result<Self, Failure> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let rng = Arc::new(system_rng()?);
        let dir = DataDir::open_or_create(&settings.data_dir)?;
        // Before the store is opened, which takes long if it is large.
        let listeners = Listeners::new(settings)?;
        let (target, addresses) = listeners.addresses(settings)?;
        let (calls, tasks) = (Tasks::new(), Tasks::new());
        let Stores {
            dir,
            metadata,
            kv,
            store,
            content,
        } = Stores::open(dir, settings, (&clock, &rng), tasks.clone()).await?;
        let cached = cached(&content, settings);
        let engines = Engines {
            kv,
            chunks: Arc::<CachedStore>::clone(&cached),
            clock: Arc::clone(&clock),
            rng: Arc::clone(&rng),
        };
        let api_token = api_token(&dir, &store).await?;
        let options = gateway_options(settings, &addresses, &api_token);
        let gateway = Gateway::new(options, engines, store.clone());
        let gateway = gateway.await.map_err(of_store)?;
        let ready = Ready {
            nfs_address: local_address(&listeners.nfs)?.to_string(),
            api_address: local_address(&listeners.web)?.to_string(),
            api_token,
            session: match furnish {
                Furnish::Nothing => None,
                Furnish::Session => Some(furnish_session(&dir, &store, &target, &*clock).await?),
            },
        };
        dir.keep_control(&control_file(&ready))?;
        let own = (&clock, &rng, &tasks);
        let collector = Collector::begin(&gateway, metadata.kv(), &store, &content, own);
        let counted = Counted {
            gateway: Arc::clone(&gateway),
            content,
            cached,
            collector,
            metadata: metadata.calls(),
        };
        let own = Own {
            token: token_prefix(&ready.api_token),
            remover: start_removing(&tasks, &store, &gateway, &clock),
            rng,
            // Else the data directory is locked by the process that has it open.
            is_alone: !settings.is_shared(),
            addresses,
            started: clock.wall(),
            drain_delay: settings.drain_delay.0,
        };
        let (time, until) = (Arc::clone(&clock), calls.clone());
        let api = ApiState::new(store, counted, time, until, target, own);
        let server = Self {
            ready,
            dir,
            metadata,
            gateway,
            api: Arc::new(api),
            calls,
            web: Tasks::new(),
            tasks,
            clock,
        };
        server.serve(listeners);
        Ok(server)
    }

    /// What to tell whoever started it.
    #[must_use]
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Completes when somebody has asked through the API that the server ends. Safe to drop.
    pub async fn drain_asked(&self) {
        self.api.drain_asked().await;
    }

    fn serve(&self, listeners: Listeners) {
        let Listeners { nfs, web, peers } = listeners;
        if let Some(peers) = peers {
            let gateway = Arc::clone(&self.gateway);
            self.tasks
                .spawn(async move { gateway.serve_gateways(peers).await });
        }
        let gateway = Arc::clone(&self.gateway);
        self.tasks.spawn(async move { gateway.serve(nfs).await });
        let routes = router(Arc::clone(&self.api));
        let serving = Serving::new(routes, Arc::clone(&self.clock), self.web.clone());
        self.web.spawn(serving.run(web));
    }

    /// Lets other gateways have the sessions, if there are any.
    async fn let_go_of_sessions(&self) {
        let (tell, ended) = tokio::sync::oneshot::channel();
        let gateway = Arc::clone(&self.gateway);
        // To its end: calls wait for sessions that are being let go of.
        self.tasks.spawn(async move {
            let left = gateway.drain().await;
            // Nobody waits any more if it took too long.
            let _unheard = tell.send(left);
        });
        let left = tokio::select! {
            left = ended => left.unwrap_or_default(),
            () = self.clock.sleep(LET_GO_PATIENCE) => self.gateway.sessions_in_memory(),
        };
        if self.gateway.others_alive() > 0 {
            tracing::info!(left, "other gateways may take the sessions");
        }
    }

    /// Ends the server: it says that it is not ready, lets go of its sessions to other gateways, serves
    /// on for the `drain_delay` of its settings, and then answers what is in flight and stores what
    /// is buffered.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: buffered data that clients have not committed may be lost to them.
    pub async fn stop(self) {
        let delay = self.api.begin_draining();
        if !delay.is_zero() {
            tracing::info!(?delay, "not ready from now on, serving for a while");
        }
        tokio::join!(self.clock.sleep(delay), self.let_go_of_sessions());
        tracing::info!("shutting down");
        self.api.begin_stopping();
        // Transfers end, however long they would take; other calls run to their end.
        self.calls.begin_shutdown();
        self.gateway.shutdown().await;
        self.tasks.begin_shutdown();
        self.web.begin_shutdown();
        tokio::select! {
            () = self.web.join() => {}
            // Calls that write run on as tasks of their own.
            () = self.clock.sleep(API_DRAIN) => tracing::warn!("API calls did not end in time"),
        }
        self.tasks.join().await;
        self.calls.join().await;
        self.dir.remove_control();
        let metadata = self.metadata;
        // Blocks until the file is closed.
        if let Err(error) = tokio::task::spawn_blocking(move || metadata.close()).await {
            tracing::error!(error = %Told(&error), "close the metadata store");
        }
        drop(self.dir);
        tracing::info!("stopped");
    }
}

/// Tells that there is room to serve, and not for data.
fn warn_if_full(kv: &dyn Kv, settings: &Settings) {
    if kv.available_bytes() == Some(0) {
        tracing::warn!(
            data_dir = %settings.data_dir.display(),
            disk_reserve = %settings.disk_reserve,
            "the disk is full but for the reserve: calls that need space fail with ENOSPC until it \
             has more"
        );
    }
}

/// Says what is full, and how much is needed.
fn no_space(failure: &Failure, settings: &Settings) -> Failure {
    let dir = &settings.data_dir;
    // The directory may not even have been made.
    let disk = dir.ancestors().find(|path| path.exists());
    let disk = disk.unwrap_or_else(|| std::path::Path::new("."));
    let free = match rustix::fs::statvfs(disk) {
        Ok(stat) => {
            let free = Size(stat.f_bavail.saturating_mul(stat.f_frsize) >> 10 << 10);
            format!("has {free} free")
        }
        Err(_) => "is full".to_owned(),
    };
    let message = format!(
        "{failure}; the disk of {} {free}: a server needs {} to start, and {} more (disk_reserve) \
         before it takes data. Give that disk more space, remove other files from it, or use \
         another --data-dir; what is stored is left as it is",
        dir.display(),
        Size(START_BYTES),
        settings.disk_reserve,
    );
    Failure::new(failure.kind, message)
}

/// The stores of a server.
struct Stores {
    dir: DataDir,
    metadata: Metadata,
    /// What calls of clients and of the API use. The store, too.
    kv: Arc<dyn Kv>,
    store: Store,
    content: Content,
}

impl Stores {
    async fn open(
        dir: DataDir,
        settings: &Settings,
        (clock, rng): (&Arc<dyn Clock>, &Arc<Rng>),
        until: Tasks,
    ) -> Result<Self, Failure> {
        let (dir, metadata) = open_metadata(dir, settings, Arc::clone(clock)).await?;
        let objects = settings.chunks.connect(&settings.objects, clock, rng)?;
        let tier = (&settings.chunks, objects.as_deref());
        let store = metadata.store(&dir, tier, Arc::clone(clock), Arc::clone(rng));
        let store = store.await?;
        dir.keep_tier(&settings.chunks)?;
        let own = (clock, rng, &until);
        let content = open_content(&dir, &metadata, settings, objects, own).await?;
        warn_if_full(&*metadata.kv(), settings);
        let (kv, store) = match content.shared() {
            None => (metadata.kv(), store),
            Some(shared) => {
                let holds = Arc::new(HoldsOf::new(shared));
                let kv: Arc<dyn Kv> = Arc::new(HeldKv::new(metadata.kv(), holds));
                (Arc::clone(&kv), store.through(kv).telling_fleet())
            }
        };
        Ok(Self {
            dir,
            metadata,
            kv,
            store,
            content,
        })
    }
}

/// What a server listens on.
struct Listeners {
    nfs: TcpListener,
    web: TcpListener,
    /// For other gateways, if there may be any.
    peers: Option<TcpListener>,
}

impl Listeners {
    fn new(settings: &Settings) -> Result<Self, Failure> {
        Ok(Self {
            nfs: listen(settings.listen, "NFS", "--listen")?,
            web: listen(settings.api_listen, "the API", "--api-listen")?,
            peers: match peer_listen(settings) {
                Some(address) => Some(listen(address, "other gateways", "--peer-listen")?),
                None => None,
            },
        })
    }

    /// Where the server is reached: for mount lines, and for other gateways.
    fn addresses(&self, settings: &Settings) -> Result<(MountTarget, Addresses), Failure> {
        let nfs = local_address(&self.nfs)?;
        let target = MountTarget::new(nfs, settings.advertise.as_deref());
        let listening = Listening {
            api: local_address(&self.web)?,
            peers: self.peers.as_ref().map(local_address).transpose()?,
        };
        let addresses = Addresses::new(settings, &target, listening);
        Ok((target, addresses))
    }
}

/// A listener that keeps as many new connections as come at once when a gateway is gone.
fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // As `TcpListener::bind` does: a server may start again at once.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn listen(address: SocketAddr, what: &str, flag: &str) -> Result<TcpListener, Failure> {
    bind(address).map_err(|error| {
        let todo = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!("stop the process that uses it, or choose another with {flag}")
            }
            _ => format!("choose an address of this machine with {flag}"),
        };
        let failure = Failure::io(format_args!("listen on {address} for {what}"), &error);
        Failure::new(failure.kind, format_args!("{failure}: {todo}"))
    })
}

fn local_address(listener: &TcpListener) -> Result<SocketAddr, Failure> {
    listener
        .local_addr()
        .map_err(|error| Failure::io("read the listener's address", &error))
}

async fn open_metadata(
    dir: DataDir,
    settings: &Settings,
    clock: Arc<dyn Clock>,
) -> Result<(DataDir, Metadata), Failure> {
    dir.check_place(&settings.metadata)?;
    dir.check_tier(&settings.chunks)?;
    if let Place::Fdb(cluster_file) = &settings.metadata {
        let metadata = Metadata::connect(cluster_file.clone(), &settings.fdb, clock).await?;
        return Ok((dir, metadata));
    }
    let options = EmbeddedOptions {
        reserve_bytes: settings.disk_reserve.0,
        cache_bytes: bytes(settings.metadata_cache.0),
        ..EmbeddedOptions::default()
    };
    let open = move || {
        let metadata = Metadata::open_embedded(&dir, &options, Purpose::Use, clock)?;
        Ok((dir, metadata))
    };
    match tokio::task::spawn_blocking(open).await {
        Ok(opened) => opened,
        Err(error) => Err(Failure::error(format_args!("open metadata store: {error}"))),
    }
}

/// Begins to close sessions that have ended, and to remove workspaces.
fn start_removing(
    tasks: &Tasks,
    store: &Store,
    gateway: &Arc<Gateway>,
    clock: &Arc<dyn Clock>,
) -> Remover {
    let shared = || (store.clone(), Arc::clone(gateway), Arc::clone(clock));
    let (sessions, served, time) = shared();
    expiry::start(tasks, sessions, served, time);
    start_forgetting(tasks, store.clone(), Arc::clone(gateway), Arc::clone(clock));
    let (workspaces, served, time) = shared();
    Remover::start(tasks, workspaces, served, time)
}

fn system_rng() -> Result<Rng, Failure> {
    Rng::system().map_err(|error| Failure::io("read random numbers", &error))
}

/// A cache in memory in front of the content of files.
fn cached(content: &Content, settings: &Settings) -> Arc<CachedStore> {
    let cache = bytes(settings.content_cache.0);
    Arc::new(CachedStore::new(content.store(), cache))
}

/// The content of files, wherever it is.
async fn open_content(
    dir: &DataDir,
    metadata: &Metadata,
    settings: &Settings,
    objects: Option<Arc<Objects>>,
    (clock, rng, tasks): (&Arc<dyn Clock>, &Arc<Rng>, &Tasks),
) -> Result<Content, Failure> {
    let clock = Arc::clone(clock);
    if settings.chunks.is_shared() {
        let disk = match objects {
            Some(_) => Some(open_disk_cache(dir, settings).await?),
            None => None,
        };
        let options = SharedOptions {
            staging_bytes_max: settings.objects.staging_max.0,
            ..SharedOptions::default()
        };
        let (kv, own) = (metadata.kv(), (clock, Arc::clone(rng)));
        let opened = Content::open_shared(kv, own, (objects, disk), options, tasks.clone());
        return opened.await.map(Content::Shared);
    }
    let local = open_chunks(dir, settings, clock).await?;
    Ok(Content::Local(local))
}

/// The cache in `cache/`, as it is.
async fn open_disk_cache(dir: &DataDir, settings: &Settings) -> Result<Arc<DiskCache>, Failure> {
    let (path, bytes_max) = (dir.cache(), settings.objects.chunks_cache.0);
    let shown = path.display().to_string();
    let opened = tokio::task::spawn_blocking(move || DiskCache::open(&path, bytes_max)).await;
    match opened {
        Ok(Ok(cache)) => Ok(Arc::new(cache)),
        Ok(Err(error)) => Err(Failure::io(format_args!("open {shown}"), &error)),
        Err(error) => Err(Failure::error(format_args!("open {shown}: {error}"))),
    }
}

/// The store in `chunks/`, as it is.
async fn open_chunks(
    dir: &DataDir,
    settings: &Settings,
    clock: Arc<dyn Clock>,
) -> Result<Arc<LocalStore>, Failure> {
    let path = dir.chunks();
    let defaults = LocalOptions::default();
    let options = LocalOptions {
        reserve_bytes: settings.disk_reserve.0,
        // Half of the reserve: the room for copies must do to rewrite any pack, also when the disk
        // is full and others have used a part of the reserve.
        pack_bytes: (settings.disk_reserve.0 / 2).clamp(PACK_BYTES_MIN, defaults.pack_bytes),
        ..defaults
    };
    let opened = tokio::task::spawn_blocking(move || LocalStore::open(&path, options, clock)).await;
    match opened {
        Ok(Ok(chunks)) => Ok(Arc::new(chunks)),
        Ok(Err(error)) => Err(of_open_chunks(&error)),
        Err(error) => Err(Failure::error(format_args!("open chunk store: {error}"))),
    }
}

fn gateway_options(settings: &Settings, addresses: &Addresses, api_token: &str) -> GatewayOptions {
    let open_files = open_files::raise();
    let wanted = settings.connections_max;
    GatewayOptions {
        dirty_bytes_max: bytes(settings.dirty_memory.0),
        session_memory_bytes: bytes(settings.session_memory.0),
        session_idle: settings.session_idle.0,
        limits: ServerLimits {
            connections_max: open_files::connections(wanted, open_files, settings.is_shared()),
            ..ServerLimits::default()
        },
        proxy_from: settings.proxy_from.iter().map(|it| it.0).collect(),
        fleet: addresses.fleet_options(settings, token_prefix(api_token)),
        ..GatewayOptions::default()
    }
}

/// The settings' check has seen that the number fits.
fn bytes(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The token of commands on this machine; made on first start.
async fn api_token(dir: &DataDir, store: &Store) -> Result<String, Failure> {
    if let Some(token) = dir.api_token()? {
        match store.check_token(&token).await {
            Ok(_) => return Ok(token),
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(of_store(error)),
        }
    }
    let token = store
        .create_token(TenantId::DEFAULT)
        .await
        .map_err(of_store)?;
    dir.keep_api_token(&token)?;
    Ok(token)
}

/// The session to mount: the one of the last start if it is still open, else a new one.
async fn furnish_session(
    dir: &DataDir,
    store: &Store,
    target: &MountTarget,
    clock: &dyn Clock,
) -> Result<ReadySession, Failure> {
    let found = match dir.session()? {
        Some(file) => usable(store, file, clock).await?,
        None => None,
    };
    let file = match found {
        Some((file, Kept::Already)) => file,
        Some((file, Kept::NotYet)) => {
            dir.keep_session(&file)?;
            file
        }
        None => {
            let file = open_session(store).await?;
            dir.keep_session(&file)?;
            file
        }
    };
    let path = mount_path(&file.ticket);
    let line = MountLine::new(target.clone(), &path, MountKind::default());
    Ok(ReadySession {
        workspace: WORKSPACE.into(),
        session: file.session,
        mount_command: line.command("/mnt"),
        mount_options: line.data(),
        mount_source: line.source(),
        mount_path: path,
    })
}

/// Whether a session's file says already what it is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Already,
    NotYet,
}

/// The session of the file, if it is still open. With a new ticket if its own was ended, or is
/// damaged: what the session holds must not seem lost.
async fn usable(
    store: &Store,
    file: SessionFile,
    clock: &dyn Clock,
) -> Result<Option<(SessionFile, Kept)>, Failure> {
    let Ok(id) = file.session.parse() else {
        return Ok(None);
    };
    let info = match store.session(TenantId::DEFAULT, id).await {
        Ok(info) => info,
        Err(StoreError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(of_store(error)),
    };
    if info.record.state != SessionState::Open || info.is_expired(clock.wall()) {
        return Ok(None);
    }
    if has_ticket(store, &file).await? {
        return Ok(Some((file, Kept::Already)));
    }
    let ticket = NewTicket {
        expires: info.record.expires,
        ..NewTicket::of(id)
    };
    let ticket = store.create_ticket(TenantId::DEFAULT, ticket).await;
    let file = SessionFile {
        ticket: ticket.map_err(of_store)?,
        ..file
    };
    Ok(Some((file, Kept::NotYet)))
}

async fn has_ticket(store: &Store, file: &SessionFile) -> Result<bool, Failure> {
    match store.find_ticket(&file.ticket).await {
        Ok(ticket) => Ok(ticket.session.to_string() == file.session),
        Err(StoreError::NotFound { .. } | StoreError::Expired { .. }) => Ok(false),
        Err(error) => Err(of_store(error)),
    }
}

async fn open_session(store: &Store) -> Result<SessionFile, Failure> {
    let new = NewWorkspace {
        name: WORKSPACE.into(),
        root: (0o777, 0, 0),
    };
    match store.create_workspace(TenantId::DEFAULT, new).await {
        Ok(_) | Err(StoreError::Exists { .. }) => {}
        Err(error) => return Err(of_store(error)),
    }
    let open = OpenSession::new(WORKSPACE);
    let opened = store
        .open_session(TenantId::DEFAULT, open)
        .await
        .map_err(of_store)?;
    Ok(SessionFile {
        session: opened.session.id.to_string(),
        ticket: opened.ticket,
    })
}

fn control_file(ready: &Ready) -> ControlFile {
    let session = ready.session.as_ref();
    ControlFile {
        api_address: ready.api_address.clone(),
        api_token: ready.api_token.clone(),
        pid: std::process::id(),
        session: session.map(|session| session.session.clone()),
        mount_path: session.map(|session| session.mount_path.clone()),
        mount_source: session.map(|session| session.mount_source.clone()),
    }
}

/// What a command says of a store that failed.
pub(crate) fn of_store(error: StoreError) -> Failure {
    let kind = match &error {
        StoreError::NotFound { .. } | StoreError::Expired { .. } => FailureKind::NotFound,
        StoreError::Exists { .. }
        | StoreError::Changed { .. }
        | StoreError::Refused { .. }
        | StoreError::Full { .. }
        | StoreError::Settled => FailureKind::Conflict,
        StoreError::Invalid { .. } | StoreError::Ambiguous { .. } => FailureKind::Usage,
        StoreError::Unavailable(KvError::NoSpace) => FailureKind::NoSpace,
        StoreError::Unavailable(_) => FailureKind::Retry,
        StoreError::Version { .. } | StoreError::Corrupt { .. } => FailureKind::Error,
    };
    Failure::new(kind, error)
}

/// What a command says of a store that did not open.
pub(crate) fn of_open(error: &OpenError) -> Failure {
    match error {
        OpenError::InUse { .. } => {
            let message = format!("{error}: stop it first, or use another --data-dir");
            Failure::new(FailureKind::Conflict, message)
        }
        OpenError::Io { path, source } => {
            Failure::io(format_args!("open {}", path.display()), source)
        }
        OpenError::Corrupt { .. } => Failure::error(format_args!(
            "{error}; it was left as it is: keep a copy of the data directory and restore it from \
             a backup"
        )),
    }
}

/// What a command says of a chunk store that did not open.
pub(crate) fn of_open_chunks(error: &chunkstore::local::OpenError) -> Failure {
    match error {
        chunkstore::local::OpenError::Io { path, source } => {
            Failure::io(format_args!("open {}", path.display()), source)
        }
        chunkstore::local::OpenError::NotAPack { .. } => Failure::error(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::future::poll_fn;
    use std::pin::pin;

    use axum::body::Body;
    use axum::http::Request;
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;

    use crate::settings::Given;

    /// Makes a call; gives its status, and whether it ran as a task that goes on without its caller.
    async fn call(server: &Server, path: &str, body: Option<&str>) -> (u16, bool) {
        let method = if body.is_some() { "POST" } else { "GET" };
        let request = Request::builder().method(method).uri(path);
        let token = format!("Bearer {}", server.ready.api_token);
        let request = request.header("authorization", token);
        let request = request.header("content-type", "application/json");
        let body = Body::from(body.unwrap_or_default().to_owned());
        let routes = TowerToHyperService::new(router(Arc::clone(&server.api)));
        let mut answer = pin!(routes.call(request.body(body).unwrap()));
        let mut goes_on = false;
        let answer = poll_fn(|cx| {
            let polled = answer.as_mut().poll(cx);
            goes_on |= server.calls.running() > 0;
            polled
        });
        let status = answer.await.unwrap().status().as_u16();
        (status, goes_on)
    }

    #[tokio::test]
    async fn what_changes_nothing_ends_with_its_caller() {
        let root = tempfile::tempdir().unwrap();
        let any = Some(([127, 0, 0, 1], 0).into());
        let given = Given {
            data_dir: Some(root.path().to_owned()),
            listen: any,
            api_listen: any,
            ..Given::default()
        };
        let settings = given.complete().unwrap();
        let server = Server::start(&settings, Furnish::Session).await.unwrap();
        let session = server.ready.session.clone().unwrap().session;
        let of = |what: &str| format!("/v1/sessions/{session}/{what}");
        let published = call(&server, &of("publish"), Some("{}")).await;
        assert_eq!(published, (200, true));
        let dry_run = Some(r#"{"dry_run":true}"#);
        let between = of(&format!("clashes?with={session}"));
        for (path, body) in [
            (of("publish"), dry_run),
            (of("sync"), dry_run),
            (between, None),
            (of("conflicts"), None),
        ] {
            assert_eq!(call(&server, &path, body).await, (200, false), "{path}");
        }
        server.stop().await;
    }
}
