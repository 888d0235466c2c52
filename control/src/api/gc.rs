//! Collections of file content that nothing refers to.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use base::TenantId;

use super::ApiState;
use super::describe::Accepted;
use super::input::{Body, Place, Tenant};
use crate::status::ApiError;
use crate::types::{Collection, CollectionList, StartCollection};

/// How long an answer waits for a collection to end.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) async fn start(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Body(asked): Body<StartCollection>,
) -> Result<Accepted<Collection>, ApiError> {
    operator(tenant, "collections concern")?;
    match state.counted.collector.ask(asked.dry_run) {
        Some(queued) => Ok(Accepted(queued)),
        None => Err(ApiError::conflict(
            "a collection of the other kind (dry_run) waits already: try again when it has ended",
        )),
    }
}

pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
) -> Result<Json<CollectionList>, ApiError> {
    operator(tenant, "collections concern")?;
    let items = state.counted.collector.known();
    Ok(Json(CollectionList { items }))
}

/// Answers when the collection has ended, or after [`PATIENCE`].
pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(run): Place<String>,
) -> Result<Json<Collection>, ApiError> {
    operator(tenant, "collections concern")?;
    let run = run
        .parse()
        .map_err(|_| ApiError::invalid(format!("{run:?} is no number of a collection")))?;
    let found = state.counted.collector.wait_for(run, PATIENCE).await;
    found.map(Json).ok_or_else(|| {
        ApiError::not_found(format!(
            "no collection {run} is known: only the last few since the server's start are"
        ))
    })
}

/// Lets only the operator's tenant do what concerns all tenants.
pub(super) fn operator(tenant: TenantId, what: &str) -> Result<(), ApiError> {
    if tenant == TenantId::DEFAULT {
        return Ok(());
    }
    Err(ApiError::forbidden(format!(
        "{what} all tenants: use a token of the installation's own"
    )))
}
