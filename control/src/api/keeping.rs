//! Workspaces that are removed, what others keep of their history, and pins.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use base::TenantId;
use metadata::record::retention::{Policy, RetentionRecord};
use metadata::store::{DeletionInfo, PinInfo};
use serde::Deserialize;
use utoipa::ToSchema;

use super::ApiState;
use super::calls::Keyed;
use super::describe::{Accepted, Created, NoContent};
use super::input::{Body, Parameters, Part, Place, Tenant, next_after, workspace_id};
use crate::keeping::{AddPin, Pin, RemovedWorkspace, Retention, SetRetention};
use crate::status::ApiError;
use crate::types::Page;

/// How a workspace is to be removed.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Deleting {
    /// Close its sessions, too.
    #[serde(default)]
    force: bool,
}

/// Answers at once; what the workspace had is removed in the background.
pub(super) async fn delete_workspace(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Place(name): Place<String>,
    Parameters(asked): Parameters<Deleting>,
) -> Result<Accepted<RemovedWorkspace>, ApiError> {
    let answer = |deletion: &DeletionInfo| RemovedWorkspace::from(deletion.clone());
    let store = (state.store).for_call(keyed.call(StatusCode::ACCEPTED, answer));
    let deletion = state
        .to_end(async move { store.delete_workspace(tenant, &name, asked.force).await })
        .await;
    // Also if an attempt before has done it, which is answered after this.
    state.own.remover.wake();
    let deletion = deletion?;
    tracing::info!(
        workspace = %deletion.id, name = deletion.record.name, force = asked.force,
        "workspace is to be removed"
    );
    Ok(Accepted(deletion.into()))
}

/// The workspaces of the tenant that are being removed.
pub(super) async fn removals(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
) -> Result<Json<Page<RemovedWorkspace>>, ApiError> {
    let found = state.store.deletions().await?;
    let own = found.into_iter().filter(|one| one.record.tenant == tenant);
    let items = own.map(RemovedWorkspace::from).collect();
    Ok(Json(Page { items, next: None }))
}

pub(super) async fn retention(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(name): Place<String>,
) -> Result<Json<Retention>, ApiError> {
    let workspace = workspace_id(&state, tenant, &name).await?;
    Ok(Json(state.store.retention(workspace).await?.into()))
}

pub(super) async fn set_retention(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Place(name): Place<String>,
    Body(asked): Body<SetRetention>,
) -> Result<Json<Retention>, ApiError> {
    let policy = Policy {
        keep_seconds: asked.keep_seconds,
        keep_last: asked.keep_last,
    };
    set(&state, tenant, &name, (Some(policy), keyed)).await
}

pub(super) async fn end_retention(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Place(name): Place<String>,
) -> Result<Json<Retention>, ApiError> {
    set(&state, tenant, &name, (None, keyed)).await
}

async fn set(
    state: &ApiState,
    tenant: TenantId,
    name: &str,
    (policy, keyed): (Option<Policy>, Keyed),
) -> Result<Json<Retention>, ApiError> {
    let workspace = workspace_id(state, tenant, name).await?;
    let answer = |set: &RetentionRecord| Retention::from(*set);
    let store = (state.store).for_call(keyed.call(StatusCode::OK, answer));
    let set = state
        .to_end(async move { store.set_retention(workspace, policy).await })
        .await?;
    Ok(Json(set.into()))
}

pub(super) async fn pins(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(name): Place<String>,
    Parameters(part): Parameters<Part>,
) -> Result<Json<Page<Pin>>, ApiError> {
    let workspace = workspace_id(&state, tenant, &name).await?;
    let limit = part.limit();
    let found = state.store.pins(workspace, part.position()?, limit).await?;
    let next = next_after(&found, limit, |last| last.commit.to_string());
    let items = found.into_iter().map(Pin::from).collect();
    Ok(Json(Page { items, next }))
}

pub(super) async fn add_pin(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Place(name): Place<String>,
    Body(asked): Body<AddPin>,
) -> Result<Created<Pin>, ApiError> {
    let workspace = workspace_id(&state, tenant, &name).await?;
    let commit = state
        .store
        .resolve_version(workspace, &asked.version)
        .await?;
    let answer = |pinned: &PinInfo| Pin::from(pinned.clone());
    let store = (state.store).for_call(keyed.call(StatusCode::CREATED, answer));
    let pinned = state
        .to_end(async move { store.pin(workspace, commit.id, &asked.note).await })
        .await?;
    Ok(Created(pinned.into()))
}

pub(super) async fn remove_pin(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Place((name, version)): Place<(String, String)>,
) -> Result<NoContent, ApiError> {
    let workspace = workspace_id(&state, tenant, &name).await?;
    let commit = state.store.resolve_version(workspace, &version).await?;
    let store = state.store.for_call(keyed.done::<()>());
    state
        .to_end(async move { store.unpin(workspace, commit.id).await })
        .await?;
    Ok(NoContent)
}
