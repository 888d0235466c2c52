//! Changing live sessions: restore, sync, and what changed from outside.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use nfs_gateway::Attempt;
use serde::Deserialize;
use utoipa::ToSchema;

use super::ApiState;
use super::calls::Keyed;
use super::describe::{Either, NoContent, Octets};
use super::input::{Body, Parameters, Place, Tenant, session_id};
use super::routes::{Routes, get, post};
use super::sessions::usable;
use crate::history::{SYNC_POLICY, parse_policy, shorten};
use crate::outside::{Acknowledge, Changed, Restore, Restored, Sync, Synced, path_bytes};
use crate::reading::parse_path;
use crate::status::ApiError;

/// How what changed is to be told.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Form {
    /// As bytes: each path with a NUL after it.
    #[serde(default)]
    raw: bool,
}

/// The paths of this part of the API.
pub(super) fn routes() -> Routes {
    Routes::new()
        .route(
            "/v1/sessions/{session}/restore",
            post(
                "restore_session",
                "Make a live session, or paths in it, as a version has them.",
                restore,
            ),
        )
        .route(
            "/v1/sessions/{session}/sync",
            post(
                "sync_session",
                "Bring what its branch has into a live session.",
                sync,
            ),
        )
        .route(
            "/v1/sessions/{session}/changed",
            get(
                "list_changed",
                "Tell what changed from outside in a session.",
                changed,
            )
            .post(
                "acknowledge_changed",
                "Say what of it has been seen to.",
                acknowledge,
            ),
        )
}

async fn restore(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
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
    let answer = |done: &nfs_gateway::Restored| Restored::from(done.clone());
    let call = keyed.call(StatusCode::OK, answer);
    let work = async move {
        let what = (asked.version.as_str(), paths.as_slice());
        Ok(gateway.restore_for(call, tenant, id, what).await?)
    };
    let done = state.work.to_end(work).await?;
    Ok(Json(answer(&done)))
}

async fn sync(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
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
    let has_key = keyed.has_key();
    let answer = move |done: &nfs_gateway::Synced| {
        let mut synced = Synced::new(done, asked.dry_run);
        if has_key {
            shorten(&mut synced.conflicts);
        }
        synced
    };
    let call = keyed.call(StatusCode::OK, answer);
    let how = (policy, attempt);
    let work = async move { Ok(gateway.sync_for(call, tenant, id, how).await?) };
    let done = match attempt {
        Attempt::Trial => state.work.reading(work).await?,
        Attempt::Real => state.work.to_end(work).await?,
    };
    Ok(Json(answer(&done)))
}

async fn changed(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(session): Place<String>,
    Parameters(form): Parameters<Form>,
) -> Result<Either<Json<Changed>, Octets>, ApiError> {
    let id = session_id(&state, tenant, &session).await?;
    let found = state.counted.gateway.changed(tenant, id).await?;
    if !form.raw {
        return Ok(Either::One(Json(Changed::from(found))));
    }
    let kind = HeaderValue::from_static("application/octet-stream");
    let list = ([(header::CONTENT_TYPE, kind)], found.list()).into_response();
    Ok(Either::Other(Octets(list)))
}

async fn acknowledge(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(session): Place<String>,
    Body(asked): Body<Acknowledge>,
) -> Result<NoContent, ApiError> {
    let id = session_id(&state, tenant, &session).await?;
    let gateway = Arc::clone(&state.counted.gateway);
    let work = async move {
        gateway
            .acknowledge_changed(tenant, id, asked.position)
            .await
    };
    state.to_end(work).await?;
    Ok(NoContent)
}
