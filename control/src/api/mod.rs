//! The HTTP API under `/v1`, with health and metrics beside it.
//!
//! Every call of the API carries its tenant: the one whose token it shows. What writes runs to its
//! end, what only reads ends with its caller; `work.rs` bounds both.

mod calls;
mod conflicts;
mod describe;
mod diff;
mod drain;
mod gateways;
mod gc;
mod glob;
mod health;
mod history;
mod input;
mod keeping;
mod lineage;
mod lingering;
mod openapi;
mod outside;
mod passing;
mod patch;
mod paths;
mod reading;
mod receiving;
mod routes;
mod sending;
mod serving;
mod sessions;
mod tokens;
mod transfer;
mod work;
mod workspaces;

pub(crate) use calls::start_forgetting;
pub(crate) use conflicts::CLASHES_MAX;
pub(crate) use diff::CHANGES_MAX;
pub(crate) use serving::Serving;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use base::{Clock, Rng, Tasks, Timestamp};
use metadata::store::{Store, StoreError};
use nfs_gateway::Whereabouts;

use crate::fleet::Addresses;
use crate::metrics::Counted;
use crate::mount_line::MountTarget;
use crate::remover::Remover;
use crate::status::ApiError;

use self::routes::{Routes, delete, get, post, put};

/// Largest request body, in bytes: many times what any call needs.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// What calls work on.
#[derive(Debug)]
pub struct ApiState {
    store: Store,
    counted: Counted,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
    target: MountTarget,
    own: Own,
    drain: drain::Draining,
    transfers: transfer::Limits,
    work: work::Work,
    calls: calls::Calls,
}

/// What a server has of its own.
#[derive(Debug)]
pub(crate) struct Own {
    /// Names the token of commands on its machine.
    pub(crate) token: [u8; 8],
    /// Removes workspaces.
    pub(crate) remover: Remover,
    /// Names its calls.
    pub(crate) rng: Arc<Rng>,
    /// No other server uses the store while this one does.
    pub(crate) is_alone: bool,
    /// How long it serves on when it is to end.
    pub(crate) drain_delay: Duration,
    /// Where it is reached.
    pub(crate) addresses: Addresses,
    /// When it started.
    pub(crate) started: Timestamp,
}

impl ApiState {
    /// The state of an API that tells clients to mount from `target`. Calls run as `tasks`.
    #[must_use]
    pub(crate) fn new(
        store: Store,
        counted: Counted,
        clock: Arc<dyn Clock>,
        tasks: Tasks,
        target: MountTarget,
        own: Own,
    ) -> Self {
        Self {
            work: work::Work::new(tasks.clone(), Arc::clone(&clock)),
            calls: calls::Calls::new(Arc::clone(&own.rng), own.is_alone),
            store,
            counted,
            clock,
            tasks,
            target,
            own,
            drain: drain::Draining::default(),
            transfers: transfer::Limits::default(),
        }
    }

    /// Says from now on that the server is not ready, so that balancers go elsewhere. Gives how long
    /// it should serve on all the same.
    pub(crate) fn begin_draining(&self) -> Duration {
        self.drain.begin();
        self.own.drain_delay
    }

    /// Says from now on that the server ends.
    pub(crate) fn begin_stopping(&self) {
        self.drain.stop();
    }

    /// Completes when a call has asked that the server ends. Safe to drop.
    pub(crate) async fn drain_asked(&self) {
        self.drain.asked().await;
    }

    fn is_draining(&self) -> bool {
        self.drain.has_begun()
    }

    /// What clients are told to mount from.
    fn target_at(&self, place: &Whereabouts) -> MountTarget {
        // A gateway that has the metadata for itself says nothing.
        MountTarget::parse(&place.nfs).unwrap_or_else(|| self.target.clone())
    }

    /// Runs `work` of the store to its end, also if the caller goes away.
    async fn to_end<T, F>(&self, work: F) -> Result<T, ApiError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let work = async move { work.await.map_err(ApiError::from) };
        self.work.to_end(work).await
    }
}

/// Paths about what is kept, and about tokens.
fn keeping_routes() -> Routes {
    Routes::new()
        .route(
            "/v1/removals",
            get(
                "list_removals",
                "List workspaces that are being removed.",
                keeping::removals,
            ),
        )
        .route(
            "/v1/workspaces/{name}/retention",
            get(
                "show_retention",
                "Tell how much of its history a workspace keeps.",
                keeping::retention,
            )
            .put(
                "set_retention",
                "Say how much of its history a workspace keeps.",
                keeping::set_retention,
            )
            .delete(
                "end_retention",
                "Let a workspace keep everything.",
                keeping::end_retention,
            ),
        )
        .route(
            "/v1/workspaces/{name}/pins",
            get("list_pins", "List pins.", keeping::pins).post(
                "add_pin",
                "Pin a commit.",
                keeping::add_pin,
            ),
        )
        .route(
            "/v1/workspaces/{name}/pins/{version}",
            delete("remove_pin", "Take a pin away.", keeping::remove_pin),
        )
        .route(
            "/v1/tokens",
            get("list_tokens", "List tokens of the tenant.", tokens::list).post(
                "create_token",
                "Make a token.",
                tokens::create,
            ),
        )
        .route(
            "/v1/tokens/{id}",
            delete("revoke_token", "End a token.", tokens::revoke),
        )
}

/// Files of versions, and comparisons.
fn reading_routes() -> Routes {
    Routes::new()
        .route(
            "/v1/workspaces/{name}/log",
            get(
                "list_commits",
                "List commits, newest first; with path, those that changed it.",
                history::log,
            ),
        )
        .route(
            "/v1/workspaces/{name}/commit",
            get("show_commit", "Show a commit.", history::show),
        )
        .route(
            "/v1/workspaces/{name}/diff",
            get("diff", "Tell which files differ.", diff::diff),
        )
        .route(
            "/v1/workspaces/{name}/entries",
            get(
                "list_entries",
                "List a directory of a version.",
                reading::entries,
            ),
        )
        .route(
            "/v1/workspaces/{name}/find",
            get(
                "find",
                "List what is below a directory of a version.",
                reading::find,
            ),
        )
        .route(
            "/v1/workspaces/{name}/content",
            get(
                "read_content",
                "Give the bytes of a file of a version.",
                reading::content,
            ),
        )
        .route(
            "/v1/workspaces/{name}/blame",
            get("blame", "Tell who wrote a file.", lineage::blame),
        )
}

/// Branches and tags.
fn ref_routes() -> Routes {
    Routes::new()
        .route(
            "/v1/workspaces/{name}/refs",
            get("list_refs", "List branches and tags.", history::refs).post(
                "create_ref",
                "Make a branch or a tag.",
                history::create_ref,
            ),
        )
        .route(
            "/v1/workspaces/{name}/refs/{*reference}",
            delete(
                "delete_ref",
                "Remove a branch or a tag.",
                history::delete_ref,
            ),
        )
        .route(
            "/v1/workspaces/{name}/protected/{*reference}",
            put(
                "protect_ref",
                "Protect a branch or a tag.",
                history::protect_ref,
            )
            .delete(
                "unprotect_ref",
                "Protect a branch or a tag no more.",
                history::unprotect_ref,
            ),
        )
}

/// What was done, and is undone; commits of sessions; what goes in and out.
fn history_routes() -> Routes {
    Routes::new()
        .route(
            "/v1/workspaces/{name}/operations",
            get(
                "list_operations",
                "List the operation log, newest first.",
                history::operations,
            ),
        )
        .route(
            "/v1/workspaces/{name}/undo",
            post("undo", "Undo an operation.", history::undo),
        )
        .route(
            "/v1/sessions/{session}/checkpoint",
            post(
                "checkpoint_session",
                "Make a commit of what a session has.",
                history::checkpoint,
            ),
        )
        .route(
            "/v1/sessions/{session}/publish",
            post(
                "publish_session",
                "Bring what a session has to a branch.",
                history::publish,
            ),
        )
        .route(
            "/v1/workspaces/{name}/import",
            post(
                "import",
                "Make a commit of a tar archive.",
                transfer::import,
            ),
        )
        .route(
            "/v1/workspaces/{name}/export",
            get(
                "export",
                "Give what a version has as a tar archive.",
                transfer::export,
            ),
        )
}

/// Workspaces and sessions.
fn session_routes() -> Routes {
    Routes::new()
        .route(
            "/v1/workspaces",
            get("list_workspaces", "List workspaces.", workspaces::list).post(
                "create_workspace",
                "Make a workspace.",
                workspaces::create,
            ),
        )
        .route(
            "/v1/workspaces/{name}",
            get("show_workspace", "Show a workspace.", workspaces::show).delete(
                "delete_workspace",
                "Remove a workspace with its history, in the background.",
                keeping::delete_workspace,
            ),
        )
        .route(
            "/v1/sessions",
            get("list_sessions", "List sessions.", sessions::list).post(
                "open_session",
                "Open a session, and make a ticket for it.",
                sessions::open,
            ),
        )
        .route(
            "/v1/sessions/{session}",
            get("show_session", "Show a session.", sessions::show).delete(
                "close_session",
                "Close a session.",
                sessions::close,
            ),
        )
        .route(
            "/v1/sessions/{session}/fork",
            post(
                "fork_session",
                "Open another session with what one has now.",
                sessions::fork,
            ),
        )
        .route(
            "/v1/sessions/{session}/tickets",
            get(
                "list_tickets",
                "List the tickets of a session.",
                sessions::list_tickets,
            )
            .post(
                "create_ticket",
                "Make a further ticket for a session.",
                sessions::create_ticket,
            ),
        )
        .route(
            "/v1/sessions/{session}/tickets/{ticket}",
            delete("revoke_ticket", "End a ticket.", sessions::revoke_ticket),
        )
}

/// What concerns the server itself.
fn server_routes() -> Routes {
    Routes::new()
        .route(
            "/livez",
            get("livez", "Tell that the process lives.", health::livez),
        )
        .route(
            "/readyz",
            get(
                "readyz",
                "Tell whether the server takes work.",
                health::readyz,
            ),
        )
        .route(
            "/metrics",
            get(
                "metrics",
                "Give what is counted, as Prometheus reads it.",
                health::metrics,
            ),
        )
        .route(
            "/v1/openapi.json",
            get("openapi", "Give this document.", openapi::openapi),
        )
        .route(
            "/v1/drain",
            get(
                "show_drain",
                "Tell whether the server ends, and what it still has to do. While it does, the \
                 answer waits for half a second.",
                drain::show,
            )
            .post(
                "drain",
                "Let the server end as SIGTERM does: not ready at once, it serves on for \
                 drain_delay, then answers what is in flight and stores what is buffered.",
                drain::start,
            ),
        )
        .route(
            "/v1/gateways",
            get(
                "list_gateways",
                "List the gateways that share the metadata, this one first.",
                gateways::list,
            ),
        )
        .route(
            "/v1/gc",
            get(
                "list_collections",
                "List the last collections, newest first.",
                gc::list,
            )
            .post(
                "start_collection",
                "Remove content that nothing refers to.",
                gc::start,
            ),
        )
        .route(
            "/v1/gc/{run}",
            get(
                "show_collection",
                "Show a collection when it has ended, or after 10 s.",
                gc::show,
            ),
        )
}

/// All paths of the API, with what is said of them.
fn routes() -> Routes {
    server_routes()
        .merge(session_routes())
        .merge(keeping_routes())
        .merge(reading_routes())
        .merge(ref_routes())
        .merge(history_routes())
        .merge(outside::routes())
        .merge(conflicts::routes())
}

/// All paths of the API.
pub fn router(state: Arc<ApiState>) -> Router {
    // Only around methods that a path has: other calls need no key to be refused.
    let once = from_fn_with_state(Arc::clone(&state), calls::once);
    // Around that: a key is used where its call is done.
    let pass_on = from_fn_with_state(Arc::clone(&state), passing::pass_on);
    routes()
        .into_router(|methods| {
            methods
                .route_layer(once.clone())
                .route_layer(pass_on.clone())
        })
        .fallback(async || ApiError::no_route())
        .method_not_allowed_fallback(async || ApiError::no_method())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(state)
}
