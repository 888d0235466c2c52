//! This gateway among others: its lease, who owns what, and what is passed on to whom.
//!
//! The rules are in `docs/design/0015-fleet.md`. The store's side of them is `metadata::fleet`; here is
//! what needs a clock that runs and sessions in memory. `links` passes calls on.

mod draining;
mod links;
mod places;
mod telling;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::simulation::{Rule, is_kept};
use base::{Clock, GatewayId, SessionId, Tasks, Told};
use metadata::fleet::{self, FleetError, Member, Peer, RENEWALS_PER_LEASE, Sightings};
use metadata::record::gateway::{GatewayState, LeaseRecord};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::connection::CallGuard;
use crate::gateway::Gateway;
use crate::session::Session;

use links::Links;
pub(crate) use links::Passed;
pub(crate) use places::{Place, Route};
pub use telling::Whereabouts;

/// How long a lease is unless configured.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(2);

/// For how long a call waits for this gateway's lease, or for another gateway, before its connection is
/// closed.
pub(crate) const CALL_PATIENCE: Duration = Duration::from_secs(20);

/// What is waited for is looked at so many times in the length of a lease.
const LOOKS_PER_LEASE: u32 = 32;

/// A gateway that cannot be reached for so many leases, but lives, loses the sessions that are asked for.
const UNREACHABLE_LEASES: u32 = 4;

/// Tries at a gateway that cannot be reached, before sessions are taken from it.
const UNREACHABLE_TRIES: u32 = 4;

/// How a gateway joins others.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// How long a lease is: a gateway that dies is missed after about this time.
    pub lease: Duration,
    /// Where clients reach this gateway with NFS, as host and port.
    pub nfs: String,
    /// Where other gateways reach it, as host and port. Empty if they cannot: then they take sessions
    /// from it instead of passing calls on.
    pub peers: String,
    /// Where its API is, as a URL.
    pub api: String,
    /// The token of commands on this machine.
    pub token: [u8; 8],
}

/// What a gateway knows of itself and the others.
#[derive(Debug)]
pub(crate) struct Fleet {
    lease: Duration,
    /// Where clients reach us.
    nfs: String,
    /// Where others reach us.
    peers: String,
    /// Where our API is.
    api: String,
    member: tokio::sync::Mutex<Member>,
    seen: RwLock<Sightings>,
    /// Our lease holds until then, in milliseconds of monotonic time.
    holds_until_ms: AtomicU64,
    /// Counts lapses: what was taken over before one has to be looked at again.
    lapses: AtomicU64,
    renewed: Notify,
    /// Wakes the task that renews.
    hurry: Notify,
    draining: AtomicBool,
    /// The lease was removed, and is not made again.
    has_left: AtomicBool,
    /// Renews the lease, for longer than all else goes on.
    renewals: Tasks,
    troubles: Mutex<HashMap<GatewayId, Trouble>>,
    /// There are some.
    has_troubles: AtomicBool,
    /// Gateways that tell others our address, of which was told.
    doubles: Mutex<HashSet<GatewayId>>,
    /// Gateways whose time of day is wrong.
    wrong_clocks: Mutex<HashSet<GatewayId>>,
    /// The store is not the one that was joined.
    is_foreign: AtomicBool,
    links: Links,
}

/// A gateway that cannot be reached.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    since: Duration,
    tries: u32,
}

impl Fleet {
    pub(crate) fn new(id: GatewayId, options: &FleetOptions, clock: &dyn Clock) -> Self {
        let lease = LeaseRecord {
            counter: 0,
            state: GatewayState::Serving,
            started: clock.wall(),
            nfs: options.nfs.clone(),
            peers: options.peers.clone(),
            api: options.api.clone(),
            sessions: 0,
            release: env!("CARGO_PKG_VERSION").into(),
            lease: options.lease,
            token: options.token,
            now: clock.wall(),
        };
        Self {
            lease: options.lease,
            nfs: options.nfs.clone(),
            peers: options.peers.clone(),
            api: options.api.clone(),
            member: tokio::sync::Mutex::new(Member::new(id, lease)),
            seen: RwLock::new(Sightings::new(options.lease)),
            holds_until_ms: AtomicU64::new(0),
            lapses: AtomicU64::new(0),
            renewed: Notify::new(),
            hurry: Notify::new(),
            draining: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            renewals: Tasks::new(),
            troubles: Mutex::new(HashMap::new()),
            has_troubles: AtomicBool::new(false),
            doubles: Mutex::new(HashSet::new()),
            wrong_clocks: Mutex::new(HashSet::new()),
            is_foreign: AtomicBool::new(false),
            links: Links::default(),
        }
    }

    /// How long a lease is.
    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    /// Whether calls may be answered from memory now.
    pub(crate) fn holds(&self, now_ms: u64) -> bool {
        now_ms < self.holds_until_ms.load(Ordering::SeqCst) || !is_kept(Rule::Lease)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// How often the lease has lapsed.
    pub(crate) fn lapses(&self) -> u64 {
        self.lapses.load(Ordering::SeqCst)
    }

    /// The other gateways, as last seen.
    fn peers(&self, now: Duration) -> Vec<Peer> {
        self.seen.read().peers(now).collect()
    }

    /// Whether a gateway may be taken for dead.
    fn is_dead(&self, id: GatewayId, now: Duration) -> bool {
        let peer = self.seen.read().peer(id, now);
        peer.is_some_and(|peer| peer.is_dead)
    }

    /// Takes note of whether a gateway could be reached.
    fn tried(&self, id: GatewayId, now: Duration, reached: bool) {
        let mut troubles = self.troubles.lock();
        if reached {
            troubles.remove(&id);
            self.has_troubles
                .store(!troubles.is_empty(), Ordering::Relaxed);
            return;
        }
        self.has_troubles.store(true, Ordering::Relaxed);
        let trouble = troubles.entry(id).or_insert(Trouble {
            since: now,
            tries: 0,
        });
        trouble.tries = trouble.tries.saturating_add(1);
    }

    /// A gateway that was reached has answered nothing for as long as those are tried that cannot be reached.
    fn fell_silent(&self, id: GatewayId, now: Duration) {
        let patience = self.lease.saturating_mul(UNREACHABLE_LEASES);
        let trouble = Trouble {
            since: now.saturating_sub(patience.saturating_add(Duration::from_millis(1))),
            tries: UNREACHABLE_TRIES,
        };
        self.troubles.lock().insert(id, trouble);
        self.has_troubles.store(true, Ordering::Relaxed);
    }

    /// Says which gateways tell others that they are at our address: calls for either lead to one of them. Those
    /// that renew their lease are there; one that was here before us does not.
    fn tell_of_doubles(&self, others: &[(GatewayId, LeaseRecord)]) {
        let seen = self.seen.read();
        for (id, lease) in others {
            let before = seen.peer(*id, Duration::ZERO);
            let renews = before.is_some_and(|before| before.lease.counter != lease.counter);
            let is_double = !self.peers.is_empty() && lease.peers == self.peers
                || !self.api.is_empty() && lease.api == self.api;
            if renews && is_double && self.doubles.lock().insert(*id) {
                tracing::error!(
                    gateway = %id, peers = lease.peers, api = lease.api,
                    "another gateway tells the same addresses as this one, so that calls for its sessions come \
                     here, and ours there: set peer_listen, api_listen and advertise of each to its own"
                );
            }
        }
    }

    /// Whether a gateway has been out of reach for so long that sessions are taken from it.
    fn is_out_of_reach(&self, id: GatewayId, now: Duration) -> bool {
        let patience = self.lease.saturating_mul(UNREACHABLE_LEASES);
        self.troubles.lock().get(&id).is_some_and(|trouble| {
            trouble.tries >= UNREACHABLE_TRIES && now.saturating_sub(trouble.since) > patience
        })
    }

    /// Forgets troubles with gateways that are gone.
    fn forget_troubles(&self) {
        let seen = self.seen.read();
        self.troubles
            .lock()
            .retain(|id, _| seen.peer(*id, Duration::ZERO).is_some());
    }
}

impl Gateway {
    /// Joins the others, and begins to renew the lease.
    pub(crate) async fn join(self: &Arc<Self>) -> Result<(), FleetError> {
        let Some(fleet) = &self.fleet else {
            return Ok(());
        };
        let began = self.clock.monotonic();
        while let Err(error) = self.renew(fleet).await {
            let is_over = self.clock.monotonic().saturating_sub(began) > CALL_PATIENCE;
            if is_over || matches!(error, FleetError::Record(_)) {
                return Err(error);
            }
            tracing::debug!(error = %Told(&error), "joining is tried again");
            self.clock.sleep(fleet.lease / LOOKS_PER_LEASE).await;
        }
        let gateway = Arc::downgrade(self);
        let (clock, tasks) = (Arc::clone(&self.clock), fleet.renewals.clone());
        let pause = fleet.lease / RENEWALS_PER_LEASE;
        fleet.renewals.spawn(async move {
            loop {
                let Some(gateway) = gateway.upgrade() else {
                    return;
                };
                let Some(fleet) = &gateway.fleet else { return };
                tokio::select! {
                    () = clock.sleep(pause) => {}
                    () = fleet.hurry.notified() => {}
                    () = tasks.shutdown_begun() => return,
                }
                let renewed = gateway.renew(fleet).await;
                let is_foreign = matches!(renewed, Err(FleetError::Foreign));
                let was_foreign = fleet.is_foreign.swap(is_foreign, Ordering::SeqCst);
                if is_foreign && !was_foreign {
                    tracing::error!("{}", FleetError::Foreign);
                } else if let Err(error) = renewed {
                    let held = fleet.holds(gateway.now_ms());
                    tracing::warn!(error = %Told(&error), held, "the lease was not renewed, trying again");
                }
                drop(gateway);
            }
        });
        Ok(())
    }

    /// Renews the lease, and does what that brings with it.
    async fn renew(self: &Arc<Self>, fleet: &Fleet) -> Result<(), FleetError> {
        let mut member = fleet.member.lock().await;
        if fleet.has_left.load(Ordering::SeqCst) {
            return Ok(());
        }
        let state = match fleet.is_draining() {
            true => GatewayState::Draining,
            false => GatewayState::Serving,
        };
        let sessions = u32::try_from(self.sessions_in_memory()).unwrap_or(u32::MAX);
        member.tell(state, sessions);
        let renewal = member.renew(self.kv.as_ref(), self.clock.as_ref()).await?;
        let now = self.clock.monotonic();
        fleet.tell_of_doubles(&renewal.others);
        fleet
            .seen
            .write()
            .saw(now, self.clock.wall(), renewal.others);
        self.look_at_clocks(fleet, now);
        let obeyed = !renewal.notices.is_empty();
        for session in renewal.notices {
            self.counters.notices.count();
            self.give_up(session);
        }
        // Did the lease hold all the time until the renewal was committed?
        let held_until = fleet.holds_until_ms.load(Ordering::SeqCst);
        if ms(now) >= held_until {
            fleet.lapses.fetch_add(1, Ordering::SeqCst);
            if held_until > 0 {
                self.counters.lapses.count();
                tracing::warn!("the lease had lapsed: sessions are looked at again");
            }
            if is_kept(Rule::Look) {
                self.look_into_sessions().await?;
            }
        }
        let until = renewal.began.saturating_add(fleet.lease);
        fleet.holds_until_ms.store(ms(until), Ordering::SeqCst);
        fleet.renewed.notify_waiters();
        fleet.forget_troubles();
        self.forget_routes(|route| !self.is_good(fleet, route, now));
        if obeyed {
            // Somebody waits for the notices to go.
            fleet.hurry.notify_one();
        }
        let seen = fleet.seen.read().clone();
        drop(member);
        for gateway in fleet::remove_dead(self.kv.as_ref(), &seen, now).await? {
            tracing::info!(
                %gateway,
                "removed the lease of a dead gateway"
            );
        }
        Ok(())
    }

    /// Says whose time of day is wrong, when that changes.
    fn look_at_clocks(&self, fleet: &Fleet, now: Duration) {
        let wrong = fleet.seen.read().with_wrong_clocks(self.id, now);
        let mut told = fleet.wrong_clocks.lock();
        for (id, ahead_ms) in &wrong {
            if !told.contains(id) && *id == self.id {
                tracing::error!(
                    "the time of day of this gateway is not that of the others: it closes no sessions and removes \
                     nothing in the background until that is mended"
                );
            } else if !told.contains(id) {
                tracing::warn!(gateway = %id, ahead_ms, "the time of day of a gateway is not that of the others");
            }
        }
        *told = wrong.into_iter().map(|(id, _)| id).collect();
    }

    /// Gives up the sessions that are not ours any more.
    async fn look_into_sessions(self: &Arc<Self>) -> Result<(), FleetError> {
        let sessions = self.held_sessions();
        let ids: Vec<SessionId> = sessions.iter().map(|session| session.id()).collect();
        let owners = fleet::owners(self.kv.as_ref(), &ids).await?;
        for (session, owner) in sessions.iter().zip(owners) {
            let ours = owner
                .is_some_and(|owner| (owner.gateway, owner.epoch) == (self.id, session.epoch()));
            if !ours {
                tracing::info!(session = %session.id(), "session was taken over during a lapse");
                self.counters.fenced.count();
                self.give_up_session(session);
            }
        }
        Ok(())
    }

    /// Gives up what is in memory of a session that may have another owner.
    fn give_up(self: &Arc<Self>, id: SessionId) {
        if let Some(session) = self.void(id) {
            self.give_up_session(&session);
        }
    }

    fn give_up_session(&self, session: &Arc<Session>) {
        self.forget(session);
        session.give_up();
    }

    /// Whether the metadata store is the one that this gateway joined, as far as is known.
    #[must_use]
    pub fn is_store_ours(&self) -> bool {
        let fleet = self.fleet.as_ref();
        !fleet.is_some_and(|fleet| fleet.is_foreign.load(Ordering::SeqCst))
    }

    /// Whether calls may be answered from memory now.
    pub(crate) fn may_serve(&self) -> bool {
        match &self.fleet {
            Some(fleet) => fleet.holds(self.now_ms()),
            None => true,
        }
    }

    /// Waits until calls may be answered from memory. `false` after as long as a call waits.
    pub(crate) async fn wait_for_lease(&self) -> bool {
        let Some(fleet) = &self.fleet else {
            return true;
        };
        let mut deadline = self.clock.sleep(CALL_PATIENCE);
        loop {
            let renewed = fleet.renewed.notified();
            if fleet.holds(self.now_ms()) {
                return true;
            }
            tokio::select! {
                () = renewed => {}
                () = &mut deadline => return false,
            }
        }
    }

    /// Serves a call when the lease holds again.
    pub(crate) fn serve_with_lease(&self, record: bytes::Bytes, guard: CallGuard) {
        let Some(gateway) = self.this() else {
            return guard.close();
        };
        self.counters.lease_waits.count();
        self.tasks.spawn(async move {
            if gateway.wait_for_lease().await {
                gateway.redispatch(&record, guard);
            } else {
                guard.close();
            }
        });
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
