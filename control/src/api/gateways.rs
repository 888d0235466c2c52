//! The gateways that share the metadata.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use metadata::fleet::Peer;
use metadata::record::gateway::GatewayState;

use super::ApiState;
use super::gc::operator;
use super::input::Tenant;
use crate::status::ApiError;
use crate::types::{FleetMember, MemberState, Page, show_time};

/// All of them, this one first.
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
) -> Result<Json<Page<FleetMember>>, ApiError> {
    operator(tenant, "gateways concern")?;
    let gateway = &state.counted.gateway;
    let sessions = gateway.sessions_in_memory();
    let addresses = &state.own.addresses;
    let this = FleetMember {
        id: gateway.id().to_string(),
        this: true,
        alive: gateway.holds_lease(),
        state: match state.is_draining() {
            true => MemberState::Draining,
            false => MemberState::Serving,
        },
        sessions: u64::try_from(sessions).unwrap_or(u64::MAX),
        nfs: addresses.nfs.clone(),
        peers: addresses.peers.clone(),
        api: addresses.api.clone(),
        started: show_time(state.own.started),
        release: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let others = gateway.others().into_iter().map(describe);
    let items = [this].into_iter().chain(others).collect();
    Ok(Json(Page { items, next: None }))
}

fn describe(peer: Peer) -> FleetMember {
    let lease = peer.lease;
    FleetMember {
        id: peer.id.to_string(),
        this: false,
        alive: !peer.is_dead,
        state: match lease.state {
            GatewayState::Serving => MemberState::Serving,
            GatewayState::Draining => MemberState::Draining,
        },
        sessions: lease.sessions.into(),
        nfs: lease.nfs,
        peers: lease.peers,
        api: lease.api,
        started: show_time(lease.started),
        release: lease.release,
    }
}
