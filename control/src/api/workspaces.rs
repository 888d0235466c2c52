//! Workspaces: made, listed, shown.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use metadata::store::{NewWorkspace, WorkspaceInfo};

use super::ApiState;
use super::calls::Keyed;
use super::describe::Created;
use super::input::{Body, Parameters, Part, Place, Tenant, next_after};
use crate::status::ApiError;
use crate::types::{CreateWorkspace, Page, Workspace, show_time};

/// Mode of a new root directory: agents run as anybody, and the session is theirs alone.
const ROOT_MODE_DEFAULT: u32 = 0o777;

pub(super) async fn create(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Body(asked): Body<CreateWorkspace>,
) -> Result<Created<Workspace>, ApiError> {
    let mode = asked.root_mode.unwrap_or(ROOT_MODE_DEFAULT);
    if mode > 0o7777 {
        return Err(ApiError::invalid("root_mode is not a mode: at most 4095"));
    }
    let new = NewWorkspace {
        name: asked.name,
        root: (mode, asked.root_uid, asked.root_gid),
    };
    let call = keyed.call(StatusCode::CREATED, |made: &WorkspaceInfo| {
        describe(made.clone())
    });
    let store = state.store.for_call(call);
    let made = state
        .to_end(async move { store.create_workspace(tenant, new).await })
        .await?;
    Ok(Created(describe(made)))
}

pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Parameters(part): Parameters<Part>,
) -> Result<Json<Page<Workspace>>, ApiError> {
    let limit = part.limit();
    let found = state.store.workspaces(tenant, part.after(), limit).await?;
    let next = next_after(&found, limit, |last| last.record.name.clone());
    let items = found.into_iter().map(describe).collect();
    Ok(Json(Page { items, next }))
}

pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(name): Place<String>,
) -> Result<Json<Workspace>, ApiError> {
    let found = state.store.workspace_by_name(tenant, &name).await?;
    Ok(Json(describe(found)))
}

fn describe(info: WorkspaceInfo) -> Workspace {
    Workspace {
        id: info.id.to_string(),
        name: info.record.name,
        block_bytes: info.record.block_bytes,
        created: show_time(info.record.created),
    }
}
