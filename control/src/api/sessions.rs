//! Sessions and their mount tickets.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use base::{Name, SessionId, TenantId, Timestamp, WorkspaceId};
use metadata::record::session::Identity;
use metadata::record::workspace::Uses;
use metadata::store::{self, NewTicket, SessionInfo, TicketInfo};
use nfs_gateway::FreezeError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ApiState;
use super::calls::Keyed;
use super::describe::{Created, NoContent};
use super::input::{
    Body, Parameters, Place, Tenant, how_many, next_after, not_a_position, page_limit, session_id,
};
use crate::mount_line::{MountKind, MountLine, MountTarget, mount_path};
use crate::status::ApiError;
use crate::types::{
    CreateTicket, ForkSession, Mount, OpenSession, OpenedSession, Page, Session, parse_identity,
    show_time,
};

/// Longest directory that a ticket may name, in bytes (PATH_MAX of Linux).
const DIRECTORY_BYTES_MAX: usize = 4096;

/// A hundred years, in seconds. The end of something longer may be no date.
const TTL_SECONDS_TOO_LONG: u64 = 100 * 366 * 24 * 3600;

/// Which part of the list of sessions is wanted.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Part {
    /// Those of this workspace only.
    workspace: Option<String>,
    /// What an answer gave as `next`.
    after: Option<String>,
    /// How many at most: 100 if left out, up to 500.
    #[serde(default, deserialize_with = "how_many")]
    limit: Option<usize>,
}

/// A ticket, without its text.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Ticket {
    /// What names it; grants nothing.
    id: String,
    /// Mounts read-only.
    read_only: bool,
    /// Is spent by the first mount.
    single_use: bool,
    /// The directory that is mounted.
    directory: String,
    /// When it ends by itself.
    expires: Option<String>,
}

pub(super) async fn open(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Body(asked): Body<OpenSession>,
) -> Result<Created<OpenedSession>, ApiError> {
    let identity = match asked.identity.as_deref() {
        Some(text) => parse_identity(text).map_err(ApiError::invalid)?,
        None => Identity::Passthrough,
    };
    check_ttl(asked.ttl_seconds)?;
    let workspace = asked.workspace.clone();
    let target = state.target_at(&state.counted.gateway.place_for_new());
    let open = store::OpenSession {
        workspace: asked.workspace,
        read_only: asked.read_only,
        identity,
        agent: asked.agent,
        run: asked.run,
        ttl_seconds: asked.ttl_seconds,
        version: asked.version,
        branch: asked.branch,
    };
    let answer = describe_opened(&state, target, workspace, asked.read_only);
    let store = (state.store).for_call(keyed.call(StatusCode::CREATED, answer.clone()));
    let opened = state
        .to_end(async move { store.open_session(tenant, open).await })
        .await?;
    Ok(Created(answer(&opened)))
}

pub(super) async fn fork(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Place(session): Place<String>,
    Body(asked): Body<ForkSession>,
) -> Result<Created<OpenedSession>, ApiError> {
    let identity = asked.identity.as_deref().map(parse_identity).transpose();
    let identity = identity.map_err(ApiError::invalid)?;
    check_ttl(asked.ttl_seconds)?;
    let source = usable(&state, tenant, &session).await?;
    let workspace = workspace_name(&state, source.record.workspace).await?;
    let target = state.target_at(&state.counted.gateway.place_for_new());
    let answer = describe_opened(&state, target, workspace, asked.read_only);
    let call = keyed.call(StatusCode::CREATED, answer.clone());
    let fork = store::ForkSession {
        read_only: asked.read_only,
        identity,
        agent: asked.agent,
        run: asked.run,
        ttl_seconds: asked.ttl_seconds,
    };
    let gateway = Arc::clone(&state.counted.gateway);
    let work = async move { Ok(gateway.fork_for(call, tenant, source.id, fork).await?) };
    let opened = state.work.to_end(work).await?;
    tracing::info!(session = %source.id, fork = %opened.session.id, "session forked");
    Ok(Created(answer(&opened)))
}

pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Parameters(part): Parameters<Part>,
) -> Result<Json<Page<Session>>, ApiError> {
    let limit = page_limit(part.limit);
    let workspace = match &part.workspace {
        Some(name) => Some(state.store.workspace_by_name(tenant, name).await?.id),
        None => None,
    };
    let after = part.after.as_deref().map(parse_position).transpose()?;
    let found = state
        .store
        .sessions(tenant, workspace, after, limit)
        .await?;
    let next = next_after(&found, limit, |last| {
        format!("{}-{}", last.record.workspace, last.id)
    });
    let ids: Vec<SessionId> = found.iter().map(|info| info.id).collect();
    let places = whereabouts(&state, &ids).await?;
    let mut names = HashMap::new();
    let mut items = Vec::with_capacity(found.len());
    for (info, target) in found.into_iter().zip(places) {
        let id = info.record.workspace;
        let name: String = match names.get(&id) {
            Some(name) => String::clone(name),
            None => {
                let name = workspace_name(&state, id).await?;
                names.insert(id, name.clone());
                name
            }
        };
        let gateway = target.authority();
        items.push(Session::new(&info, name, gateway, state.clock.wall()));
    }
    Ok(Json(Page { items, next }))
}

pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(session): Place<String>,
) -> Result<Json<Session>, ApiError> {
    let info = state
        .store
        .session(tenant, session_id(&state, tenant, &session).await?)
        .await?;
    let name = workspace_name(&state, info.record.workspace).await?;
    let gateway = whereabout(&state, info.id).await?.authority();
    Ok(Json(Session::new(&info, name, gateway, state.clock.wall())))
}

pub(super) async fn close(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Place(session): Place<String>,
) -> Result<NoContent, ApiError> {
    let id = session_id(&state, tenant, &session).await?;
    let store = state.store.for_call(keyed.done::<()>());
    let gateway = Arc::clone(&state.counted.gateway);
    let work = async move {
        let closed = store.close_session(tenant, id).await;
        // Also if an attempt before has closed it, which is answered after this.
        if matches!(closed, Ok(()) | Err(store::StoreError::Settled)) {
            gateway.drop_session(id);
        }
        closed
    };
    state.to_end(work).await?;
    tracing::info!(session = %id, "session closed");
    Ok(NoContent)
}

pub(super) async fn create_ticket(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Place(session): Place<String>,
    Body(asked): Body<CreateTicket>,
) -> Result<Created<Mount>, ApiError> {
    check_ttl(asked.ttl_seconds)?;
    check_directory(&asked.directory)?;
    let info = usable(&state, tenant, &session).await?;
    let kind = MountKind {
        read_only: asked.read_only || info.record.read_only,
        shared: asked.shared,
    };
    let ticket = NewTicket {
        session: info.id,
        read_only: asked.read_only,
        single_use: asked.single_use,
        directory: asked.directory.into_bytes(),
        expires: earlier(
            info.record.expires,
            asked
                .ttl_seconds
                .map(|seconds| state.clock.wall().plus_seconds(seconds)),
        ),
    };
    let target = whereabout(&state, info.id).await?;
    let answer = move |text: &String| describe_mount(&target, text.clone(), kind);
    let store = (state.store).for_call(keyed.call(StatusCode::CREATED, answer.clone()));
    let text = state
        .to_end(async move { store.create_ticket(tenant, ticket).await })
        .await?;
    Ok(Created(answer(&text)))
}

pub(super) async fn list_tickets(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(session): Place<String>,
) -> Result<Json<Page<Ticket>>, ApiError> {
    let found = state
        .store
        .tickets(tenant, session_id(&state, tenant, &session).await?)
        .await?;
    let items = found.into_iter().map(describe_ticket).collect();
    Ok(Json(Page { items, next: None }))
}

pub(super) async fn revoke_ticket(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Place((session, ticket)): Place<(String, String)>,
) -> Result<NoContent, ApiError> {
    let id = session_id(&state, tenant, &session).await?;
    let store = state.store.for_call(keyed.done::<()>());
    state
        .to_end(async move { store.revoke_ticket(tenant, id, &ticket).await })
        .await?;
    Ok(NoContent)
}

/// The session that a text names, if it can still be mounted.
pub(super) async fn usable(
    state: &ApiState,
    tenant: TenantId,
    session: &str,
) -> Result<SessionInfo, ApiError> {
    let id = session_id(state, tenant, session).await?;
    let info = state.store.session(tenant, id).await?;
    if info.is_expired(state.clock.wall()) {
        let what = format!("session {id}");
        return Err(store::StoreError::Expired { what }.into());
    }
    Ok(info)
}

/// Where a session is best mounted.
async fn whereabout(state: &ApiState, session: SessionId) -> Result<MountTarget, ApiError> {
    let found = whereabouts(state, &[session]).await?.into_iter().next();
    Ok(found.unwrap_or_else(|| state.target.clone()))
}

/// The same of several.
async fn whereabouts(
    state: &ApiState,
    sessions: &[SessionId],
) -> Result<Vec<MountTarget>, ApiError> {
    let found = state.counted.gateway.whereabouts_of(sessions).await;
    let found = found.map_err(FreezeError::Own)?;
    Ok(found.iter().map(|place| state.target_at(place)).collect())
}

async fn workspace_name(state: &ApiState, id: WorkspaceId) -> Result<String, ApiError> {
    Ok(state.store.workspace(id).await?.record.name)
}

/// What is told of a session that is opened now.
fn describe_opened(
    state: &Arc<ApiState>,
    target: MountTarget,
    workspace: String,
    read_only: bool,
) -> impl Fn(&store::Opened) -> OpenedSession + Clone + Send + Sync + 'static {
    let now = state.clock.wall();
    let shared = false;
    let kind = MountKind { read_only, shared };
    move |opened| OpenedSession {
        session: Session::new(&opened.session, workspace.clone(), target.authority(), now),
        mount: describe_mount(&target, opened.ticket.clone(), kind),
    }
}

fn describe_mount(target: &MountTarget, ticket: String, kind: MountKind) -> Mount {
    let path = mount_path(&ticket);
    let line = MountLine::new(target.clone(), &path, kind);
    Mount {
        ticket_id: store::ticket_id(&ticket),
        ticket,
        mount_path: path,
        mount_source: line.source(),
        mount_command: line.command("/mnt"),
        mount_options: line.data(),
        mount_command_options: line.options(),
    }
}

fn describe_ticket(info: TicketInfo) -> Ticket {
    Ticket {
        id: info.id,
        read_only: info.record.read_only,
        single_use: info.record.uses == Uses::Once,
        directory: String::from_utf8_lossy(&info.record.directory).into_owned(),
        expires: info.record.expires.map(show_time),
    }
}

fn check_ttl(seconds: Option<u64>) -> Result<(), ApiError> {
    match seconds {
        Some(0) => Err(ApiError::invalid("ttl_seconds is 0: it would end at once")),
        Some(TTL_SECONDS_TOO_LONG..) => Err(ApiError::invalid(
            "ttl_seconds is over 100 years: leave it out for no end",
        )),
        _ => Ok(()),
    }
}

fn check_directory(directory: &str) -> Result<(), ApiError> {
    if directory.len() > DIRECTORY_BYTES_MAX {
        return Err(ApiError::invalid("directory is longer than 4096 bytes"));
    }
    for part in directory.split('/').filter(|part| !part.is_empty()) {
        Name::check(part.as_bytes())
            .map_err(|why| ApiError::invalid(format!("directory part {part:?}: {why}")))?;
    }
    Ok(())
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

fn parse_position(text: &str) -> Result<(WorkspaceId, SessionId), ApiError> {
    let (workspace, session) = text.split_once('-').ok_or_else(not_a_position)?;
    let workspace = workspace.parse().map_err(|_| not_a_position())?;
    let session = session.parse().map_err(|_| not_a_position())?;
    Ok((workspace, session))
}
