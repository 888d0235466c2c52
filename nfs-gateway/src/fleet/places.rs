//! Where a session is: here, or with another gateway.

use std::sync::Arc;
use std::time::Duration;

use base::simulation::{Rule, is_kept};
use base::{GatewayId, SessionId};
use bytes::Bytes;
use metadata::fleet::{self, FleetError, NOBODY, Peer};
use metadata::kv::KvError;
use metadata::record::gateway::{GatewayState, LeaseRecord};
use metadata::session::{Notice, OwnError, Owned, Taker, take_over};

use super::{CALL_PATIENCE, Fleet, LOOKS_PER_LEASE, Passed};
use crate::connection::CallGuard;
use crate::gateway::Gateway;
use crate::session::Session;

/// Where a session's calls go.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    /// Who serves it.
    pub(crate) gateway: GatewayId,
    /// Where that gateway takes calls from others.
    pub(crate) address: Arc<str>,
}

/// Where a session is served.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Here(Arc<Session>),
    Elsewhere(Route),
}

impl Gateway {
    /// Finds out who serves a session, and takes it over if that is for this gateway to do.
    /// `insists` if it must be served here.
    pub(crate) async fn find(
        self: &Arc<Self>,
        id: SessionId,
        insists: bool,
    ) -> Result<Place, OwnError> {
        if let Some(fleet) = &self.fleet
            && fleet.is_draining()
            && !insists
            && let Some(route) = self.other_place(fleet, id).await?
        {
            return Ok(Place::Elsewhere(route));
        }
        let error = match self.take(id, insists).await {
            Ok(session) => return Ok(Place::Here(session)),
            Err(error) => error,
        };
        match (&self.fleet, error) {
            (Some(fleet), OwnError::Elsewhere(owner, lease)) => {
                let now = self.clock.monotonic();
                if lease.peers.is_empty() || fleet.is_out_of_reach(owner, now) {
                    tracing::warn!(
                        session = %id, %owner, peers = lease.peers,
                        "the session's gateway lives and is not reached at its address for other gateways: \
                         the session is taken from it"
                    );
                    return self.take(id, true).await.map(Place::Here);
                }
                Ok(Place::Elsewhere(route_to(owner, &lease)))
            }
            (_, error) => Err(error),
        }
    }

    /// Takes a session over, and waits until it may be served.
    async fn take(
        self: &Arc<Self>,
        id: SessionId,
        from_living: bool,
    ) -> Result<Arc<Session>, OwnError> {
        let nonce = self.rng.u64();
        let kv = self.kv.as_ref();
        let Some(fleet) = &self.fleet else {
            let taker = Taker::alone(self.id, nonce);
            let owned = take_over(kv, &self.trees, id, taker).await?;
            return Ok(self.taken(owned));
        };
        let seen = fleet.seen.read().clone();
        let taker = Taker {
            gateway: self.id,
            nonce,
            seen: Some((&seen, self.clock.monotonic())),
            from_living,
        };
        let mut owned = match take_over(kv, &self.trees, id, taker).await {
            // Nothing is known of it in a store that is another one: it may come back.
            Err(OwnError::NotFound) if !fleet.member.lock().await.is_joined(kv).await? => {
                return Err(FleetError::Foreign.into());
            }
            owned => owned?,
        };
        let notices = std::mem::take(&mut owned.notices);
        if from_living && !notices.is_empty() {
            self.counters.taken_from_living.count();
        }
        self.wait_until_obeyed(fleet, id, &notices).await?;
        Ok(self.taken(owned))
    }

    fn taken(self: &Arc<Self>, owned: Owned) -> Arc<Session> {
        self.counters.takeovers.count();
        Arc::new(Session::new(Arc::clone(self), owned))
    }

    /// Waits until those who were told of a takeover have given the session up, or are dead.
    async fn wait_until_obeyed(
        &self,
        fleet: &Fleet,
        session: SessionId,
        notices: &[Notice],
    ) -> Result<(), OwnError> {
        let began = self.clock.monotonic();
        if !is_kept(Rule::Wait) {
            return Ok(());
        }
        for notice in notices {
            while !fleet::is_obeyed(self.kv.as_ref(), notice.gateway, session).await? {
                let now = self.clock.monotonic();
                // Its counter may be a later one than when it was told: then it has read the notice, and
                // died before it could say so.
                if fleet.is_dead(notice.gateway, now) {
                    break;
                }
                if now.saturating_sub(began) > CALL_PATIENCE {
                    let why = "the gateway that had the session neither gives it up nor dies";
                    return Err(OwnError::Kv(KvError::Unavailable(why.into())));
                }
                self.clock.sleep(fleet.lease / LOOKS_PER_LEASE).await;
            }
        }
        Ok(())
    }

    /// For a gateway that takes no sessions: who serves this one, or should.
    pub(super) async fn other_place(
        &self,
        fleet: &Fleet,
        id: SessionId,
    ) -> Result<Option<Route>, OwnError> {
        let owners = fleet::owners(self.kv.as_ref(), &[id]).await?;
        let now = self.clock.monotonic();
        let owner = owners.into_iter().flatten().next();
        if let Some(owner) = owner.filter(|owner| owner.gateway != NOBODY) {
            if owner.gateway == self.id {
                // It was left with us.
                return Ok(None);
            }
            let living = fleet.seen.read().peer(owner.gateway, now);
            if let Some(peer) = living.filter(|peer| is_usable(peer, true)) {
                return Ok(Some(route_to(peer.id, &peer.lease)));
            }
        }
        let best = fleet
            .peers(now)
            .into_iter()
            .filter(|peer| is_usable(peer, false))
            .max_by_key(|peer| weight(id, peer.id));
        Ok(best.map(|peer| route_to(peer.id, &peer.lease)))
    }

    /// Whether there is a gateway that would take this one's sessions.
    pub(super) fn has_heir(&self, fleet: &Fleet) -> bool {
        let now = self.clock.monotonic();
        fleet.peers(now).iter().any(|peer| is_usable(peer, false))
    }

    /// Whether calls may still be sent there without a look at the store.
    pub(super) fn is_good(&self, fleet: &Fleet, route: &Route, now: Duration) -> bool {
        let peer = fleet.seen.read().peer(route.gateway, now);
        peer.is_some_and(|peer| is_usable(&peer, false))
    }

    /// Passes a call on.
    pub(crate) fn pass_on(&self, route: &Route, record: Bytes, mut guard: CallGuard) {
        let (Some(fleet), Some(gateway)) = (&self.fleet, self.this()) else {
            return guard.close();
        };
        let now = self.clock.monotonic();
        let deadline = guard.patience_until(now.saturating_add(CALL_PATIENCE));
        if now >= deadline {
            return guard.close();
        }
        self.counters.passed_on.count();
        let passed = Passed {
            record,
            guard,
            since: now,
        };
        fleet.links.send(&gateway, route, passed);
    }
}

fn route_to(gateway: GatewayId, lease: &LeaseRecord) -> Route {
    Route {
        gateway,
        address: lease.peers.as_str().into(),
    }
}

/// Whether calls can be passed on to it: for a session that it has, or also for one that it would have
/// to take.
pub(super) fn is_usable(peer: &Peer, has_it: bool) -> bool {
    let takes = has_it || peer.lease.state == GatewayState::Serving;
    !peer.is_dead && takes && !peer.lease.peers.is_empty()
}

/// The gateway with the largest weight is the one for the session, whoever asks.
fn weight(session: SessionId, gateway: GatewayId) -> u64 {
    let mut mixed = session.raw() ^ gateway.raw().rotate_left(32);
    for _ in 0..2 {
        mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    mixed ^ (mixed >> 29)
}
