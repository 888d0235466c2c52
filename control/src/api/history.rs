//! Checkpoints, publishing, the log, refs, and the operation log.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use base::TenantId;
use metadata::record::operation::Cause;
use metadata::record::reference::{RefKind, RefName, RefState};
use metadata::store::{
    LogFilter, LogHeads, LogQuery, OperationPosition, RefInfo, RefWritten, Walk,
};
use serde::Deserialize;
use serde::de::IgnoredAny;
use utoipa::ToSchema;

use super::ApiState;
use super::calls::Keyed;
use super::describe::{Created, Either, NoContent};
use super::diff::{CHANGES_MAX, changes_of};
use super::input::{
    Body, Parameters, Part, Place, Tenant, next_after, not_a_position, page_limit, session_id,
    told_limit, workspace_id,
};
use super::lineage::{self, PathLog};
use super::paths::Bytes;
use crate::conflicts::PublishAnswer;
use crate::history::{
    Checkpoint, Checkpointed, Commit, CreateRef, Operation, PUBLISH_POLICY, Publish, Published,
    Ref, Shown, Undo, parse_policy, shorten,
};
use crate::reading::PathCommit;
use crate::status::ApiError;
use crate::types::Page;

/// Which part of a log is wanted.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LogPart {
    /// The version to begin with; `main` if left out.
    version: Option<String>,
    /// What an answer gave as `next`.
    after: Option<String>,
    /// How many at most: 100 if left out, up to 500.
    limit: Option<usize>,
    /// Commits of this agent only.
    agent: Option<String>,
    /// Commits of this session only.
    session: Option<String>,
    /// Commits of this run only.
    run: Option<String>,
    /// Only what a branch was at.
    #[serde(default)]
    first_parent: bool,
    /// A path from the root directory; bytes that are not UTF-8 behind percent signs.
    #[schema(value_type = Option<String>)]
    #[serde(rename = "path")]
    _path: Option<IgnoredAny>,
}

/// One version.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OneVersion {
    /// The version; `main` if left out.
    version: Option<String>,
    /// Tell so many of the files that it changed.
    changes: Option<usize>,
}

pub(super) async fn checkpoint(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Place(session): Place<String>,
    Body(asked): Body<Checkpoint>,
) -> Result<Created<Checkpointed>, ApiError> {
    let id = session_id(&state, tenant, &session).await?;
    let gateway = Arc::clone(&state.counted.gateway);
    let answer = |done: &nfs_gateway::Checkpoint| Checkpointed {
        commit: done.commit.clone().into(),
        is_new: done.is_new,
    };
    let call = keyed.call(StatusCode::CREATED, answer);
    let work = async move {
        let done = gateway.checkpoint_for(call, tenant, id, asked.into());
        Ok(done.await?)
    };
    let done = state.work.to_end(work).await?;
    Ok(Created(answer(&done)))
}

pub(super) async fn publish(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Place(session): Place<String>,
    Body(asked): Body<Publish>,
) -> Result<Json<PublishAnswer>, ApiError> {
    let id = session_id(&state, tenant, &session).await?;
    let policy = parse_policy(asked.policy.as_deref().unwrap_or(PUBLISH_POLICY))
        .map_err(ApiError::invalid)?;
    let branch = asked.branch.as_deref().map(ref_name).transpose()?;
    let gateway = Arc::clone(&state.counted.gateway);
    if asked.dry_run {
        let plan = async { Ok(gateway.plan_publish(tenant, id, branch, policy).await?) };
        let plan = state.work.reading(plan).await?;
        return Ok(Json(PublishAnswer::Planned(Box::new(plan.into()))));
    }
    let has_key = keyed.has_key();
    let answer = move |done: &nfs_gateway::Published| {
        let mut published = Published::from(done.clone());
        if has_key {
            shorten(&mut published.conflicts);
        }
        PublishAnswer::Done(Box::new(published))
    };
    let call = keyed.call(StatusCode::OK, answer);
    let work = async move {
        let whole = (asked.about.into(), branch, policy);
        Ok(gateway.publish_for(call, tenant, id, whole).await?)
    };
    let published = state.work.to_end(work).await?;
    tracing::info!(
        session = %id, branch = published.branch.as_str(), head = %published.head,
        "session published"
    );
    Ok(Json(answer(&published)))
}

pub(super) async fn log(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(workspace): Place<String>,
    bytes: Bytes,
    Parameters(part): Parameters<LogPart>,
) -> Result<Either<Json<Page<Commit>>, Json<Page<PathCommit>>>, ApiError> {
    let version = part.version.as_deref().unwrap_or("main");
    let walk = if part.first_parent {
        Walk::FirstParent
    } else {
        Walk::AllParents
    };
    let session = match part.session.as_deref() {
        Some(session) => Some(session_id(&state, tenant, session).await?),
        None => None,
    };
    let filter = LogFilter {
        agent: part.agent,
        session,
        run: part.run,
    };
    let limit = page_limit(part.limit);
    let after = part.after.as_deref();
    if let Some(path) = bytes.path {
        let wanted = PathLog {
            path,
            version,
            after,
            walk,
            filter,
            limit,
        };
        let page = lineage::log(&state, tenant, &workspace, wanted);
        let page = state.work.reading(page).await?;
        return Ok(Either::Other(Json(page)));
    }
    let workspace = workspace_id(&state, tenant, &workspace).await?;
    let heads = match after {
        Some(after) => after.parse::<LogHeads>().map_err(|_| not_a_position())?,
        None => LogHeads::of(state.store.resolve_version(workspace, version).await?.id),
    };
    let query = LogQuery {
        heads,
        walk,
        filter,
        limit,
    };
    let page = state.store.log(workspace, query).await?;
    let page = Page {
        items: page.commits.into_iter().map(Commit::from).collect(),
        next: page.next.map(|next| next.to_string()),
    };
    Ok(Either::One(Json(page)))
}

pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(workspace): Place<String>,
    Parameters(asked): Parameters<OneVersion>,
) -> Result<Json<Shown>, ApiError> {
    let workspace = state.store.workspace_by_name(tenant, &workspace).await?;
    let version = asked.version.as_deref().unwrap_or("main");
    let commit = state.store.resolve_version(workspace.id, version).await?;
    let (mut changes, mut more_changes) = (None, false);
    if asked.changes.is_some() {
        let limit = told_limit("changes", asked.changes, (0, CHANGES_MAX))?;
        let found = changes_of(&state, tenant, &workspace, &commit, limit).await?;
        (changes, more_changes) = (Some(found.0), found.1);
    }
    Ok(Json(Shown {
        commit: commit.into(),
        changes,
        more_changes,
    }))
}

pub(super) async fn refs(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(workspace): Place<String>,
    Parameters(part): Parameters<Part>,
) -> Result<Json<Page<Ref>>, ApiError> {
    let workspace = workspace_id(&state, tenant, &workspace).await?;
    let limit = part.limit();
    let after = part.after().map(ref_name).transpose()?;
    let found = state.store.refs(workspace, after.as_ref(), limit).await?;
    let next = next_after(&found, limit, |last| last.name.as_str().to_owned());
    let items = found.into_iter().map(Ref::from).collect();
    Ok(Json(Page { items, next }))
}

pub(super) async fn create_ref(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Place(workspace): Place<String>,
    Body(asked): Body<CreateRef>,
) -> Result<Created<Ref>, ApiError> {
    let workspace = workspace_id(&state, tenant, &workspace).await?;
    let name = ref_name(&asked.name)?;
    let named = name.clone();
    let answer = move |written: &RefWritten| {
        let record = written.record;
        record.map(|record| {
            Ref::from(RefInfo {
                name: named.clone(),
                record,
            })
        })
    };
    let store = (state.store).for_call(keyed.call(StatusCode::CREATED, answer));
    let work = async move {
        let commit = store.resolve_version(workspace, &asked.version).await?.id;
        let ref_state = RefState {
            commit,
            kind: if asked.tag {
                RefKind::Tag
            } else {
                RefKind::Branch
            },
            protected: asked.protected,
        };
        store
            .create_ref(workspace, &name, ref_state, Cause::Asked)
            .await?;
        store.reference(workspace, &name).await
    };
    let made = state.to_end(work).await?;
    Ok(Created(made.into()))
}

pub(super) async fn delete_ref(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Place((workspace, name)): Place<(String, String)>,
) -> Result<NoContent, ApiError> {
    let workspace = workspace_id(&state, tenant, &workspace).await?;
    let name = ref_name(&name)?;
    let store = state.store.for_call(keyed.done::<RefWritten>());
    let work = async move {
        let found = store.reference(workspace, &name).await?;
        let commit = found.record.state.commit;
        store.delete_ref(workspace, &name, commit).await
    };
    state.to_end(work).await?;
    Ok(NoContent)
}

pub(super) async fn protect_ref(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Place((workspace, name)): Place<(String, String)>,
) -> Result<NoContent, ApiError> {
    set_protected(&state, tenant, (&workspace, &name), (true, keyed)).await
}

pub(super) async fn unprotect_ref(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Place((workspace, name)): Place<(String, String)>,
) -> Result<NoContent, ApiError> {
    set_protected(&state, tenant, (&workspace, &name), (false, keyed)).await
}

async fn set_protected(
    state: &ApiState,
    tenant: TenantId,
    (workspace, name): (&str, &str),
    (protected, keyed): (bool, Keyed),
) -> Result<NoContent, ApiError> {
    let workspace = workspace_id(state, tenant, workspace).await?;
    let name = ref_name(name)?;
    let store = state.store.for_call(keyed.done::<RefWritten>());
    let work = async move {
        if protected {
            store.protect_ref(workspace, &name).await
        } else {
            store.unprotect_ref(workspace, &name).await
        }
    };
    state.to_end(work).await?;
    Ok(NoContent)
}

pub(super) async fn operations(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(workspace): Place<String>,
    Parameters(part): Parameters<Part>,
) -> Result<Json<Page<Operation>>, ApiError> {
    let workspace = workspace_id(&state, tenant, &workspace).await?;
    let limit = part.limit();
    let before: Option<OperationPosition> = match part.position()? {
        Some(id) => Some(state.store.operation(workspace, id).await?.position()),
        None => None,
    };
    let found = state.store.operations(workspace, before, limit).await?;
    let next = next_after(&found, limit, |last| last.id.to_string());
    let items = found.into_iter().map(Operation::from).collect();
    Ok(Json(Page { items, next }))
}

pub(super) async fn undo(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Place(workspace): Place<String>,
    Body(asked): Body<Undo>,
) -> Result<NoContent, ApiError> {
    let workspace = workspace_id(&state, tenant, &workspace).await?;
    let wrong = |_| ApiError::invalid("operation is not an id, as the operation log shows them");
    let operation = asked.operation.parse().map_err(wrong)?;
    let call = keyed.done::<()>();
    let gateway = Arc::clone(&state.counted.gateway);
    let work = async move { Ok(gateway.undo_for(call, tenant, workspace, operation).await?) };
    state.work.to_end(work).await?;
    Ok(NoContent)
}

fn ref_name(text: &str) -> Result<RefName, ApiError> {
    RefName::new(text).map_err(|error| ApiError::invalid(format!("ref {text:?}: {error}")))
}
