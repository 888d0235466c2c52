//! The end of the server, asked for through the API.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use tokio::sync::Notify;

use super::ApiState;
use super::describe::Accepted;
use super::gc::operator;
use super::input::Tenant;
use crate::status::ApiError;
use crate::types::{Drain, DrainState};

/// How long an answer waits while the server ends, so that whoever waits for that asks seldom. The
/// server's end waits for answers, too: not longer than anybody minds.
const ANSWER_EVERY: Duration = Duration::from_millis(500);

/// How far the server is with ending. Only goes on, never back.
#[derive(Debug, Default)]
pub(super) struct Draining {
    /// 0 serving, 1 draining, 2 stopping.
    step: AtomicU8,
    asked: Notify,
}

impl Draining {
    pub(super) fn begin(&self) {
        self.step.fetch_max(1, Ordering::SeqCst);
    }

    pub(super) fn stop(&self) {
        self.step.fetch_max(2, Ordering::SeqCst);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.state() != DrainState::Serving
    }

    /// Completes when somebody has asked, once. Safe to drop.
    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }

    fn state(&self) -> DrainState {
        match self.step.load(Ordering::SeqCst) {
            0 => DrainState::Serving,
            1 => DrainState::Draining,
            _ => DrainState::Stopping,
        }
    }
}

/// Asked again it changes nothing, and tells how far it is.
pub(super) async fn start(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
) -> Result<Accepted<Drain>, ApiError> {
    operator(tenant, "a drain concerns")?;
    // Before the answer: from now on the server is not ready.
    state.drain.begin();
    state.drain.asked.notify_one();
    Ok(Accepted(told(&state)))
}

pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
) -> Result<Json<Drain>, ApiError> {
    operator(tenant, "a drain concerns")?;
    if state.is_draining() {
        state.clock.sleep(ANSWER_EVERY).await;
    }
    Ok(Json(told(&state)))
}

fn told(state: &ApiState) -> Drain {
    let gateway = &state.counted.gateway;
    Drain {
        state: state.drain.state(),
        delay_ms: u64::try_from(state.own.drain_delay.as_millis()).unwrap_or(u64::MAX),
        sessions: u64::try_from(gateway.sessions_in_memory()).unwrap_or(u64::MAX),
        connections: gateway.transport().open(),
        dirty_bytes: u64::try_from(gateway.buffered_bytes()).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use base::TenantId;

    use super::*;

    #[test]
    fn ending_only_goes_on() {
        let draining = Draining::default();
        assert_eq!(draining.state(), DrainState::Serving);
        draining.begin();
        assert_eq!(draining.state(), DrainState::Draining);
        draining.stop();
        draining.begin();
        assert_eq!(draining.state(), DrainState::Stopping);
        assert!(draining.has_begun());
    }

    #[test]
    fn only_the_operator_may_end_it() {
        assert_eq!(operator(TenantId::DEFAULT, "a drain concerns"), Ok(()));
        let refused = operator(TenantId::new(7), "a drain concerns").unwrap_err();
        let told = "a drain concerns all tenants: use a token of the installation's own";
        assert_eq!(refused, ApiError::forbidden(told));
    }
}
