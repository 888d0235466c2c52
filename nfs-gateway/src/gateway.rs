//! The gateway: takes calls from connections and gives them to the sessions they are for.
//!
//! Any connection may carry calls for any session: the session is in the signed handle. A session
//! that is not in memory is taken over first, and calls for it wait meanwhile. A session that is
//! left alone is dropped from memory.

mod finding;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::simulation::{Rule, is_kept};
use base::{Clock, GatewayId, Rng, SessionId, Tasks};
use bytes::Bytes;
use chunkstore::ChunkStore;
use metadata::FsError;
use metadata::fleet::FleetError;
use metadata::kv::Kv;
use metadata::store::Store;
use parking_lot::RwLock;
use tokio::net::TcpListener;

use self::finding::Slot;
use crate::connection::{Answer, CallGuard};
use crate::counters::TransportCounters;
use crate::fleet::{Fleet, FleetOptions};
use crate::gate::Gate;
use crate::handle::{FileHandle, HandleKey, HandleKeys, Selector};
use crate::metrics::GatewayCounters;
use crate::network::Network;
use crate::nodes::ChunkTrees;
use crate::procedures::{self, Objects, Space};
use crate::server::{Server, ServerLimits, Service};
use crate::session::inside::{BegunMessages, OpenCommits};
use crate::session::{Request, Session};
use crate::wire::args::NfsCall;
use crate::wire::procedure::{MountProcedure, Procedure, Target};
use crate::wire::reply::Reply;
use crate::wire::results;
use crate::wire::rpc::{self, Call, CallError, Refusal};

/// How often idle sessions are looked for and forgotten data is written back.
const HOUSEKEEPING: Duration = Duration::from_secs(2);

/// Tree nodes kept in memory, in bytes.
const NODE_CACHE_BYTES: usize = 64 << 20;

/// Settings of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// Most bytes of file data in memory that are in no store; beyond it sockets are not read.
    pub dirty_bytes_max: usize,
    /// About how much of one session's image stays in memory, in bytes.
    pub session_memory_bytes: usize,
    /// A session left alone for this long is dropped from memory.
    pub session_idle: Duration,
    /// When about so many bytes of keys and values were flushed to a session's open layer, it is
    /// folded into a tree in the background.
    pub delta_bytes: usize,
    /// The transport's limits.
    pub limits: ServerLimits,
    /// Where balancers are: connections from there must say whose they are.
    pub proxy_from: Vec<Network>,
    /// How it joins other gateways on the same store; `None` if it has the store for itself.
    pub fleet: Option<FleetOptions>,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self {
            dirty_bytes_max: 256 << 20,
            session_memory_bytes: 256 << 20,
            session_idle: Duration::from_secs(300),
            delta_bytes: 32 << 20,
            limits: ServerLimits::default(),
            proxy_from: Vec::new(),
            fleet: None,
        }
    }
}

/// The engines a gateway works on.
#[derive(Clone, Debug)]
pub struct Engines {
    /// The metadata store.
    pub kv: Arc<dyn Kv>,
    /// The chunk store.
    pub chunks: Arc<dyn ChunkStore>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub rng: Arc<Rng>,
}

/// A gateway.
#[derive(Debug)]
pub struct Gateway {
    pub(crate) options: GatewayOptions,
    pub(crate) kv: Arc<dyn Kv>,
    pub(crate) chunks: Arc<dyn ChunkStore>,
    pub(crate) trees: ChunkTrees,
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<Rng>,
    pub(crate) keys: Arc<HandleKeys>,
    pub(crate) tasks: Tasks,
    /// What has ended before connections are: sessions still flush while these are closing.
    connections: Tasks,
    pub(crate) counters: GatewayCounters,
    transport: Arc<TransportCounters>,
    pub(crate) id: GatewayId,
    /// This gateway among others, if there may be others.
    pub(crate) fleet: Option<Fleet>,
    buffered: AtomicUsize,
    gate: Gate,
    sessions: RwLock<HashMap<SessionId, Slot>>,
    /// Commits that are looked at through mounts.
    pub(crate) commits: OpenCommits,
    /// Resolutions through mounts of which it is not known whether they were made.
    pub(crate) begun: BegunMessages,
    this: Weak<Self>,
}

/// What sessions see of their gateway.
pub(crate) type Shared = Gateway;

/// A call whose handles have been verified.
pub(crate) struct Decoded<'a> {
    call: Call<'a>,
    nfs: NfsCall<'a>,
    objects: Objects,
    handle: FileHandle,
}

impl Decoded<'_> {
    pub(crate) fn request<'r>(&'r self, record: &'r Bytes) -> Request<'r> {
        Request {
            record,
            call: &self.call,
            nfs: &self.nfs,
            objects: self.objects,
            flags: self.handle.flags,
            selector: Selector::new(self.handle.snapshot),
        }
    }
}

impl Gateway {
    /// A gateway on these engines.
    ///
    /// # Errors
    ///
    /// The store has no handle keys, or cannot be read.
    pub async fn new(
        options: GatewayOptions,
        engines: Engines,
        store: Store,
    ) -> Result<Arc<Self>, metadata::store::StoreError> {
        let keys = store.handle_keys().await?;
        let mut keys = keys
            .keys
            .into_iter()
            .map(|(id, secret)| HandleKey::new(id, secret));
        let current = keys.next().ok_or(metadata::store::StoreError::Corrupt {
            what: "handle keys".into(),
            why: "there are none".into(),
        })?;
        let keys = Arc::new(HandleKeys::new(current, keys.next()));
        // 0 is nobody.
        let id = GatewayId::new(engines.rng.u64().max(1));
        let fleet = options.fleet.as_ref();
        let fleet = fleet.map(|options| Fleet::new(id, options, engines.clock.as_ref()));
        let gateway = Arc::new_cyclic(|this| Self {
            options,
            kv: engines.kv,
            trees: ChunkTrees::new(Arc::clone(&engines.chunks), NODE_CACHE_BYTES),
            chunks: engines.chunks,
            store,
            clock: engines.clock,
            rng: engines.rng,
            keys,
            tasks: Tasks::new(),
            connections: Tasks::new(),
            counters: GatewayCounters::default(),
            transport: Arc::new(TransportCounters::default()),
            id,
            fleet,
            buffered: AtomicUsize::new(0),
            gate: Gate::new(),
            sessions: RwLock::new(HashMap::new()),
            commits: OpenCommits::default(),
            begun: BegunMessages::default(),
            this: this.clone(),
        });
        gateway.start_housekeeping();
        gateway.join().await.map_err(of_fleet)?;
        Ok(gateway)
    }

    /// Its number among gateways: another one at each start.
    #[must_use]
    pub fn id(&self) -> GatewayId {
        self.id
    }

    /// Most calls of one connection in flight.
    pub(crate) fn calls_in_flight_max(&self) -> usize {
        self.options.limits.calls_in_flight_max
    }

    pub(crate) fn this(&self) -> Option<Arc<Self>> {
        self.this.upgrade()
    }

    /// What has been counted of sessions and calls.
    #[must_use]
    pub fn counters(&self) -> &GatewayCounters {
        &self.counters
    }

    /// What has been counted of connections.
    #[must_use]
    pub fn transport(&self) -> &TransportCounters {
        &self.transport
    }

    /// How many sessions are in memory.
    #[must_use]
    pub fn sessions_in_memory(&self) -> usize {
        let sessions = self.sessions.read();
        let here = sessions
            .values()
            .filter(|slot| !matches!(slot, Slot::Elsewhere(_)));
        here.count()
    }

    /// Bytes of file data in memory that are in no store.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.buffered.load(Ordering::Relaxed)
    }

    /// Handles that were not ours.
    #[must_use]
    pub fn handles_rejected(&self) -> u64 {
        self.keys.rejected()
    }

    /// Serves connections of `listener` until shutdown.
    ///
    /// # Cancellation
    ///
    /// Safe: no further connections are accepted.
    pub async fn serve(self: &Arc<Self>, listener: TcpListener) {
        let server = Server::new(
            Arc::clone(self),
            self.options.limits,
            Arc::clone(&self.transport),
            Arc::clone(&self.clock),
            self.connections.clone(),
        );
        let server = server.behind(self.options.proxy_from.clone());
        server.run(listener).await;
    }

    /// Serves other gateways, which pass calls on, until shutdown. Whoever can connect there can ask what
    /// any client can, and no more.
    ///
    /// # Cancellation
    ///
    /// Safe: no further connections are accepted.
    pub async fn serve_gateways(self: &Arc<Self>, listener: TcpListener) {
        let server = Server::for_gateways(
            Arc::clone(self),
            self.options.limits,
            Arc::clone(&self.transport),
            Arc::clone(&self.clock),
            self.connections.clone(),
            self.id,
        );
        server.run(listener).await;
    }

    /// Ends the gateway: no further calls are read, those in flight are answered, what is buffered
    /// is stored, connections are closed.
    ///
    /// # Cancellation
    ///
    /// Not safe: buffered data that clients have not committed may be lost to them; they resend it.
    pub async fn shutdown(&self) {
        self.connections.begin_shutdown();
        self.connections.join().await;
        for session in self.held_sessions() {
            session.write_back_all();
        }
        self.tasks.begin_shutdown();
        self.tasks.join().await;
        self.leave().await;
        self.sessions.write().clear();
    }

    /// Drops a session from memory at once, because it was closed or changed in the store: its
    /// handles are checked anew with the next call.
    pub fn drop_session(&self, session: SessionId) {
        if let Some(session) = self.void(session) {
            self.forget(&session);
            session.retire();
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.monotonic().as_millis()).unwrap_or(u64::MAX)
    }

    /// What the stores can still take, without what is buffered for them.
    pub(crate) fn space(&self) -> Space {
        let stores = [self.kv.available_bytes(), self.chunks.available_bytes()];
        let buffered = u64::try_from(self.buffered_bytes()).unwrap_or(u64::MAX);
        let available = stores.into_iter().flatten().min();
        Space {
            available: available.map(|bytes| bytes.saturating_sub(buffered)),
            refuses: false,
        }
    }

    /// A session's buffered bytes went from `before` to `after`.
    pub(crate) fn buffered_changed(&self, before: usize, after: usize) {
        let max = self.options.dirty_bytes_max;
        if after > before {
            let total = self.buffered.fetch_add(after - before, Ordering::SeqCst) + after - before;
            if total > max && self.gate.is_open() {
                self.gate.close();
                self.write_back_everything();
            }
        } else {
            let freed = before - after;
            let total = self
                .buffered
                .fetch_sub(freed, Ordering::SeqCst)
                .saturating_sub(freed);
            if total < max / 4 * 3 && !self.gate.is_open() {
                self.gate.open();
            }
        }
    }

    /// Whether buffered data should be written back rather sooner.
    pub(crate) fn is_pressed(&self) -> bool {
        self.buffered_bytes() > self.options.dirty_bytes_max / 2
    }

    fn write_back_everything(&self) {
        let Some(gateway) = self.this.upgrade() else {
            return;
        };
        self.tasks.spawn(async move {
            for session in gateway.open_sessions() {
                session.write_back_all();
            }
        });
    }

    pub(crate) fn open_sessions(&self) -> Vec<Arc<Session>> {
        let sessions = self.sessions.read();
        let open = sessions.values().filter_map(|slot| match slot {
            Slot::Open(session) => Some(Arc::clone(session)),
            Slot::Opening(_) | Slot::Elsewhere(_) => None,
        });
        open.collect()
    }

    /// Drops `session` from the map if it is still the one there.
    pub(crate) fn forget(&self, session: &Arc<Session>) {
        let id = session.id();
        let mut sessions = self.sessions.write();
        if matches!(sessions.get(&id), Some(Slot::Open(other)) if Arc::ptr_eq(other, session)) {
            sessions.remove(&id);
        }
    }

    fn start_housekeeping(self: &Arc<Self>) {
        let weak = Weak::clone(&self.this);
        let clock = Arc::clone(&self.clock);
        let tasks = self.tasks.clone();
        self.tasks.spawn(async move {
            loop {
                tokio::select! {
                    () = clock.sleep(HOUSEKEEPING) => {}
                    () = tasks.shutdown_begun() => return,
                }
                let Some(gateway) = weak.upgrade() else {
                    return;
                };
                gateway.housekeep();
            }
        });
    }

    fn housekeep(&self) {
        let now = self.now_ms();
        // Taking a session over writes: while there is no room it stays, so that it can be read.
        let may_retire = self.kv.available_bytes() != Some(0);
        for session in self.open_sessions() {
            if may_retire
                && session.is_idle(now, self.options.session_idle)
                && session.retire_if_quiet()
            {
                self.forget(&session);
                self.counters.retired.count();
            } else {
                session.write_back_all();
            }
        }
    }

    /// Gives a call to its session; the session may have to be taken over first.
    fn dispatch(&self, record: &Bytes, decoded: &Decoded<'_>, guard: CallGuard) -> Option<Answer> {
        let id = decoded.handle.session;
        if !self.may_serve() {
            self.serve_with_lease(record.clone(), guard);
            return None;
        }
        let (open, route) = match self.sessions.read().get(&id) {
            Some(Slot::Open(session)) => (Some(Arc::clone(session)), None),
            Some(Slot::Elsewhere(route)) => (None, Some(route.clone())),
            Some(Slot::Opening(_)) | None => (None, None),
        };
        if let Some(route) = route
            && (!guard.connection().is_link() || !is_kept(Rule::PassedOnce))
        {
            self.pass_on(&route, record.clone(), guard);
            return None;
        }
        if let Some(session) = open {
            if !session.accepts(&decoded.handle) {
                self.counters.stale_handles.count();
                return Some(guard.answer(stale(decoded)));
            }
            return session.serve(&decoded.request(record), guard);
        }
        self.counters.slow_calls.count();
        let mut sessions = self.sessions.write();
        match sessions.get_mut(&id) {
            Some(Slot::Opening(opening)) => opening.waiting.push((record.clone(), guard)),
            Some(Slot::Open(_)) => {
                // Opened between the two looks.
                drop(sessions);
                return self.dispatch(record, decoded, guard);
            }
            // What another gateway passes on it takes to be ours: then the route is old.
            Some(Slot::Elsewhere(_)) | None => {
                let opening = self.opening(vec![(record.clone(), guard)]);
                sessions.insert(id, Slot::Opening(opening));
                drop(sessions);
                self.begin_takeover(id);
            }
        }
        None
    }

    /// Starts a call anew, on a task of its own.
    pub(crate) fn dispatch_again(&self, record: Bytes, guard: CallGuard) {
        let Some(gateway) = self.this.upgrade() else {
            return guard.close();
        };
        self.tasks
            .spawn(async move { gateway.redispatch(&record, guard) });
    }

    pub(crate) fn redispatch(self: &Arc<Self>, record: &Bytes, guard: CallGuard) {
        let connection = Arc::clone(guard.connection());
        if connection.has_ended() && is_kept(Rule::Ended) {
            // Its client has asked again, elsewhere, and may have been answered long ago.
            return;
        }
        let answer = match decode_request(record, self) {
            Some(decoded) => self.dispatch(record, &decoded, guard),
            None => self.mount_again(record, guard),
        };
        if let Some(answer) = answer {
            connection.send_late(answer);
        }
    }

    fn mount_again(self: &Arc<Self>, record: &Bytes, guard: CallGuard) -> Option<Answer> {
        let call = rpc::decode_call(record).ok();
        match call.map(|call| (Target::of(&call), call)) {
            Some((Ok(Target::Mount(procedure)), call)) => {
                self.mount_call(record, &call, procedure, guard)
            }
            _ => {
                guard.close();
                None
            }
        }
    }

    fn nfs_call(
        self: &Arc<Self>,
        record: &Bytes,
        call: &Call<'_>,
        procedure: Procedure,
        mut guard: CallGuard,
    ) -> Option<Answer> {
        self.counters.calls.count();
        let Ok(nfs) = NfsCall::decode(procedure, call.args.clone()) else {
            return Some(guard.answer(rpc::refused(call.xid, Refusal::GarbageArguments)));
        };
        if matches!(nfs, NfsCall::Null) {
            return Some(guard.answer(results::null(call.xid)));
        }
        match verify(call.clone(), nfs, &self.keys) {
            Ok(decoded) => {
                guard.note_session(decoded.handle.session);
                guard.reserve(procedures::reply_bytes(&decoded.nfs));
                self.dispatch(record, &decoded, guard)
            }
            Err(reply) => {
                self.counters.stale_handles.count();
                Some(guard.answer(reply))
            }
        }
    }
}

impl Service for Gateway {
    fn call(self: &Arc<Self>, record: Bytes, guard: CallGuard) -> Option<Answer> {
        let call = match rpc::decode_call(&record) {
            Ok(call) => call,
            Err(CallError::NotACall(_)) => {
                guard.close();
                return None;
            }
            Err(CallError::Denied { xid, why }) => {
                return Some(guard.answer(rpc::denied(xid, why)));
            }
        };
        match Target::of(&call) {
            Ok(Target::Nfs(procedure)) => self.nfs_call(&record, &call, procedure, guard),
            Ok(Target::Mount(procedure)) => self.mount_call(&record, &call, procedure, guard),
            Err(refusal) => Some(guard.answer(rpc::refused(call.xid, refusal))),
        }
    }

    fn reply_bytes(&self, record: &Bytes) -> usize {
        let Ok(call) = rpc::decode_call(record) else {
            return 0;
        };
        let Ok(Target::Nfs(procedure)) = Target::of(&call) else {
            return 0;
        };
        NfsCall::decode(procedure, call.args.clone()).map_or(0, |nfs| procedures::reply_bytes(&nfs))
    }

    fn is_ping(&self, record: &Bytes) -> bool {
        let Ok(call) = rpc::decode_call(record) else {
            return false;
        };
        matches!(
            Target::of(&call),
            Ok(Target::Nfs(Procedure::Null) | Target::Mount(MountProcedure::Null))
        )
    }

    fn gate(&self) -> &Gate {
        &self.gate
    }
}

/// Decodes a record that has been decoded before, for a call that runs again.
pub(crate) fn decode_request<'a>(record: &'a Bytes, gateway: &Gateway) -> Option<Decoded<'a>> {
    let call = rpc::decode_call(record).ok()?;
    let Ok(Target::Nfs(procedure)) = Target::of(&call) else {
        return None;
    };
    let nfs = NfsCall::decode(procedure, call.args.clone()).ok()?;
    verify(call, nfs, &gateway.keys).ok()
}

/// Verifies a call's handles. `Err` is the reply to a call whose handles are not good.
fn verify<'a>(call: Call<'a>, nfs: NfsCall<'a>, keys: &HandleKeys) -> Result<Decoded<'a>, Reply> {
    let failed = |error| procedures::failed(call.xid, &nfs, error, (None, None), 0);
    let (first, second) = procedures::handles(&nfs).ok_or_else(|| failed(FsError::Stale))?;
    let mut handle = keys.verify(first).map_err(|_| failed(FsError::Stale))?;
    let other = if second == first {
        handle
    } else {
        keys.verify(second).map_err(|_| failed(FsError::Stale))?
    };
    if (other.session, other.snapshot) != (handle.session, handle.snapshot) {
        return Err(failed(FsError::CrossSession));
    }
    // The session looks at one handle: what holds for the other must hold for the call.
    if other.revocation != handle.revocation {
        return Err(failed(FsError::Stale));
    }
    handle.flags |= other.flags;
    let objects = Objects {
        first: handle.inode,
        second: other.inode,
    };
    Ok(Decoded {
        call,
        nfs,
        objects,
        handle,
    })
}

fn stale(decoded: &Decoded<'_>) -> Reply {
    procedures::failed(
        decoded.call.xid,
        &decoded.nfs,
        FsError::Stale,
        (None, None),
        0,
    )
}

fn of_fleet(error: FleetError) -> metadata::store::StoreError {
    match error {
        FleetError::Kv(error) => error.into(),
        FleetError::Foreign => metadata::kv::KvError::Unavailable(error.to_string()).into(),
        FleetError::Record(error) => metadata::store::StoreError::Corrupt {
            what: "leases of gateways".into(),
            why: error.to_string(),
        },
    }
}
