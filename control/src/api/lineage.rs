//! The log of a path, and who wrote a file.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use base::TenantId;
use metadata::lineage::{PathHeads, PathLogQuery};
use metadata::store::{LogFilter, Walk};

use super::ApiState;
use super::input::{Parameters, Place, Tenant};
use super::paths::{Bytes, OneFile, resolve};
use crate::reading::{Blame, PathCommit};
use crate::status::ApiError;
use crate::types::Page;

/// Which part of the log of a path is wanted.
pub(super) struct PathLog<'a> {
    pub(super) path: Vec<u8>,
    pub(super) version: &'a str,
    pub(super) after: Option<&'a str>,
    pub(super) walk: Walk,
    pub(super) filter: LogFilter,
    pub(super) limit: usize,
}

/// A part of the log of a path.
pub(super) async fn log(
    state: &ApiState,
    tenant: TenantId,
    workspace: &str,
    wanted: PathLog<'_>,
) -> Result<Page<PathCommit>, ApiError> {
    let workspace = state.store.workspace_by_name(tenant, workspace).await?;
    let versions = state.counted.gateway.versions(tenant, &workspace).await?;
    let lineage = versions.lineage(state.store.clone());
    let heads = match wanted.after {
        Some(after) => after.parse::<PathHeads>().map_err(|_| {
            ApiError::invalid("after is not what an earlier answer gave as next for this path")
        })?,
        None => {
            let version = wanted.version;
            let commit = state.store.resolve_version(workspace.id, version).await?;
            lineage.begin(&commit, &wanted.path).await?
        }
    };
    let query = PathLogQuery {
        path: wanted.path,
        heads,
        walk: wanted.walk,
        filter: wanted.filter,
        limit: wanted.limit,
    };
    let page = lineage.log(query).await?;
    let items = page.commits.into_iter().map(|one| PathCommit {
        commit: one.commit.into(),
        change: one.changed.into(),
    });
    Ok(Page {
        items: items.collect(),
        next: page.next.map(|next| next.to_string()),
    })
}

pub(super) async fn blame(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(workspace): Place<String>,
    bytes: Bytes,
    Parameters(wanted): Parameters<OneFile>,
) -> Result<Json<Blame>, ApiError> {
    let path = bytes.which_file()?;
    let workspace = state.store.workspace_by_name(tenant, &workspace).await?;
    let version = wanted.version.as_deref().unwrap_or("main");
    let commit = state.store.resolve_version(workspace.id, version).await?;
    let versions = state.counted.gateway.versions(tenant, &workspace).await?;
    resolve(&versions.of(&commit), &path, version).await?;
    let lineage = versions.lineage(state.store.clone());
    let id = commit.id;
    let blamed = async { Ok(lineage.blame(commit, &path, &versions).await?) };
    let blamed = state.work.reading(blamed).await?;
    Ok(Json(Blame::new(id, &path, blamed)))
}
