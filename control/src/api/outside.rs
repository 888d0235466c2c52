//! Changing live sessions: restore, sync, and what changed from outside.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use nfs_gateway::Attempt;
use serde::Deserialize;

use super::ApiState;
use super::input::{Body, Parameters, Place, Tenant, session_id};
use super::sessions::usable;
use crate::history::{SYNC_POLICY, parse_policy};
use crate::outside::{Acknowledge, Changed, Restore, Restored, Sync, Synced, path_bytes};
use crate::reading::parse_path;
use crate::status::ApiError;

/// How what changed is to be told.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    #[serde(default)]
    raw: bool,
}

/// The paths of this part of the API.
pub(super) fn routes() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/v1/sessions/{session}/restore", post(restore))
        .route("/v1/sessions/{session}/sync", post(sync))
        .route(
            "/v1/sessions/{session}/changed",
            get(changed).post(acknowledge),
        )
}

async fn restore(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(session): Place<String>,
    Body(asked): Body<Restore>,
) -> Result<Json<Restored>, ApiError> {
    let id = usable(&state, tenant, &session).await?.id;
    let given = path_bytes(asked.paths, &asked.paths_bytes).map_err(ApiError::invalid)?;
    let mut paths = Vec::with_capacity(given.len());
    for path in &given {
        paths.push(parse_path(path).map_err(ApiError::invalid)?);
    }
    let gateway = Arc::clone(&state.counted.gateway);
    let work = async move {
        let done = gateway.restore(tenant, id, &asked.version, &paths).await?;
        Ok(done)
    };
    let done = state.work.to_end(work).await?;
    Ok(Json(done.into()))
}

async fn sync(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(session): Place<String>,
    Body(asked): Body<Sync>,
) -> Result<Json<Synced>, ApiError> {
    let id = usable(&state, tenant, &session).await?.id;
    let policy =
        parse_policy(asked.policy.as_deref().unwrap_or(SYNC_POLICY)).map_err(ApiError::invalid)?;
    let attempt = if asked.dry_run {
        Attempt::Trial
    } else {
        Attempt::Real
    };
    let gateway = Arc::clone(&state.counted.gateway);
    let work = async move { Ok(gateway.sync(tenant, id, policy, attempt).await?) };
    let done = match attempt {
        Attempt::Trial => state.work.reading(work).await?,
        Attempt::Real => state.work.to_end(work).await?,
    };
    Ok(Json(Synced::new(&done, asked.dry_run)))
}

async fn changed(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(session): Place<String>,
    Parameters(form): Parameters<Form>,
) -> Result<Response, ApiError> {
    let id = session_id(&state, tenant, &session).await?;
    let found = state.counted.gateway.changed(tenant, id).await?;
    if !form.raw {
        return Ok(Json(Changed::from(found)).into_response());
    }
    let kind = HeaderValue::from_static("application/octet-stream");
    Ok(([(header::CONTENT_TYPE, kind)], found.list()).into_response())
}

async fn acknowledge(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(session): Place<String>,
    Body(asked): Body<Acknowledge>,
) -> Result<StatusCode, ApiError> {
    let id = session_id(&state, tenant, &session).await?;
    let gateway = Arc::clone(&state.counted.gateway);
    let work = async move {
        gateway
            .acknowledge_changed(tenant, id, asked.position)
            .await
    };
    state.to_end(work).await?;
    Ok(StatusCode::NO_CONTENT)
}
