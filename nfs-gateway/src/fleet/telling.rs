//! What is told of the fleet to those who manage it: where sessions are, who else is there, and whose
//! turn background work is.

use base::{GatewayId, SessionId};
use metadata::fleet::{self, NOBODY, Peer};
use metadata::record::session::OwnerRecord;
use metadata::session::OwnError;

use super::Fleet;
use super::places::is_usable;
use crate::gateway::Gateway;

/// Where a session is served, for those who mount it or manage it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// The gateway; `None` for this one.
    pub gateway: Option<GatewayId>,
    /// Where clients reach it with NFS, as host and port; empty if it did not say.
    pub nfs: String,
    /// Where its API is; empty if it did not say.
    pub api: String,
}

impl Gateway {
    /// Where a session is served, or would be if it were asked for here.
    ///
    /// # Errors
    ///
    /// The store fails.
    ///
    /// # Cancellation
    ///
    /// Safe.
    pub async fn whereabouts(&self, id: SessionId) -> Result<Whereabouts, OwnError> {
        let found = self.whereabouts_of(&[id]).await?;
        Ok(found.into_iter().next().unwrap_or_else(|| self.here()))
    }

    /// The same of several sessions, in their order.
    ///
    /// # Errors
    ///
    /// The store fails.
    ///
    /// # Cancellation
    ///
    /// Safe.
    pub async fn whereabouts_of(&self, ids: &[SessionId]) -> Result<Vec<Whereabouts>, OwnError> {
        let Some(fleet) = &self.fleet else {
            return Ok(ids.iter().map(|_| self.here()).collect());
        };
        let owners = fleet::owners(self.kv.as_ref(), ids).await?;
        Ok(owners
            .into_iter()
            .map(|owner| self.place_of(fleet, owner))
            .collect())
    }

    fn place_of(&self, fleet: &Fleet, owner: Option<OwnerRecord>) -> Whereabouts {
        let owner = owner.filter(|owner| owner.gateway != NOBODY);
        match owner {
            Some(owner) if owner.gateway == self.id => self.here(),
            Some(owner) => {
                let peer = fleet
                    .seen
                    .read()
                    .peer(owner.gateway, self.clock.monotonic());
                let living = peer.filter(|peer| !peer.is_dead);
                living.map_or_else(|| self.place_for_new(), there)
            }
            None => self.place_for_new(),
        }
    }

    /// Where a session that nobody serves is best mounted: here, or, if this gateway drains, with one
    /// that takes sessions and has fewest.
    #[must_use]
    pub fn place_for_new(&self) -> Whereabouts {
        let heir = match &self.fleet {
            Some(fleet) if fleet.is_draining() => {
                let peers = fleet.peers(self.clock.monotonic()).into_iter();
                peers
                    .filter(|peer| is_usable(peer, false))
                    .min_by_key(|peer| (peer.lease.sessions, peer.id.raw()))
            }
            _ => None,
        };
        heir.map_or_else(|| self.here(), there)
    }

    fn here(&self) -> Whereabouts {
        let own = |text: fn(&Fleet) -> &String| self.fleet.as_ref().map(text).cloned();
        Whereabouts {
            gateway: None,
            nfs: own(|fleet| &fleet.nfs).unwrap_or_default(),
            api: own(|fleet| &fleet.api).unwrap_or_default(),
        }
    }

    /// The gateways that share the store, as last seen, without this one.
    #[must_use]
    pub fn others(&self) -> Vec<Peer> {
        let Some(fleet) = &self.fleet else {
            return Vec::new();
        };
        let mut peers = fleet.peers(self.clock.monotonic());
        peers.sort_by_key(|peer| peer.id.raw());
        peers
    }

    /// How many of them are alive.
    #[must_use]
    pub fn others_alive(&self) -> usize {
        self.others().iter().filter(|peer| !peer.is_dead).count()
    }

    /// Whether this gateway may answer from memory: its lease holds, or it has the store for itself.
    #[must_use]
    pub fn holds_lease(&self) -> bool {
        self.may_serve()
    }

    /// Whether work in the background that one gateway does for all is for this one to do: it lives, its time of day
    /// is that of most, and of those it has the smallest number. While one dies or joins there may be none or two for a moment.
    #[must_use]
    pub fn is_caretaker(&self) -> bool {
        let wrong = self
            .fleet
            .as_ref()
            .map(|fleet| fleet.wrong_clocks.lock().clone());
        let is_right = |id: GatewayId| wrong.as_ref().is_none_or(|wrong| !wrong.contains(&id));
        let smaller =
            |peer: &Peer| !peer.is_dead && peer.id.raw() < self.id.raw() && is_right(peer.id);
        self.may_serve() && is_right(self.id) && !self.others().iter().any(smaller)
    }
}

fn there(peer: Peer) -> Whereabouts {
    Whereabouts {
        gateway: Some(peer.id),
        nfs: peer.lease.nfs,
        api: peer.lease.api,
    }
}
