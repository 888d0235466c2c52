//! The HTTP API under `/v1`, with health and metrics beside it.
//!
//! Every call of the API carries its tenant: the one whose token it shows. What writes runs to its
//! end, what only reads ends with its caller; `work.rs` bounds both.

mod conflicts;
mod diff;
mod gc;
mod glob;
mod health;
mod history;
mod input;
mod keeping;
mod lineage;
mod lingering;
mod outside;
mod patch;
mod paths;
mod reading;
mod receiving;
mod sending;
mod serving;
mod sessions;
mod tokens;
mod transfer;
mod work;
mod workspaces;

pub(crate) use conflicts::CLASHES_MAX;
pub(crate) use diff::CHANGES_MAX;
pub(crate) use serving::Serving;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::get;
use base::{Clock, Tasks};
use metadata::store::{Store, StoreError};

use crate::metrics::Counted;
use crate::mount_line::MountTarget;
use crate::remover::Remover;
use crate::status::ApiError;

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
    draining: AtomicBool,
    transfers: transfer::Limits,
    work: work::Work,
}

/// What a server has of its own.
#[derive(Debug)]
pub(crate) struct Own {
    /// Names the token of commands on its machine.
    pub(crate) token: [u8; 8],
    /// Removes workspaces.
    pub(crate) remover: Remover,
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
            store,
            counted,
            clock,
            tasks,
            target,
            own,
            draining: AtomicBool::new(false),
            transfers: transfer::Limits::default(),
        }
    }

    /// Says from now on that the server is not ready, so that balancers go elsewhere.
    pub fn begin_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
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
fn keeping_routes() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/v1/removals", get(keeping::removals))
        .route(
            "/v1/workspaces/{name}/retention",
            get(keeping::retention)
                .put(keeping::set_retention)
                .delete(keeping::end_retention),
        )
        .route(
            "/v1/workspaces/{name}/pins",
            get(keeping::pins).post(keeping::add_pin),
        )
        .route(
            "/v1/workspaces/{name}/pins/{version}",
            axum::routing::delete(keeping::remove_pin),
        )
        .route("/v1/tokens", get(tokens::list).post(tokens::create))
        .route("/v1/tokens/{id}", axum::routing::delete(tokens::revoke))
}

/// What workspaces have, and what goes in and out.
fn history_routes() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/v1/workspaces/{name}/log", get(history::log))
        .route("/v1/workspaces/{name}/commit", get(history::show))
        .route("/v1/workspaces/{name}/diff", get(diff::diff))
        .route("/v1/workspaces/{name}/entries", get(reading::entries))
        .route("/v1/workspaces/{name}/find", get(reading::find))
        .route("/v1/workspaces/{name}/content", get(reading::content))
        .route("/v1/workspaces/{name}/blame", get(lineage::blame))
        .route(
            "/v1/workspaces/{name}/refs",
            get(history::refs).post(history::create_ref),
        )
        .route(
            "/v1/workspaces/{name}/refs/{*reference}",
            axum::routing::delete(history::delete_ref),
        )
        .route(
            "/v1/workspaces/{name}/protected/{*reference}",
            axum::routing::put(history::protect_ref).delete(history::unprotect_ref),
        )
        .route("/v1/workspaces/{name}/operations", get(history::operations))
        .route(
            "/v1/workspaces/{name}/undo",
            axum::routing::post(history::undo),
        )
        .route(
            "/v1/sessions/{session}/checkpoint",
            axum::routing::post(history::checkpoint),
        )
        .route(
            "/v1/sessions/{session}/publish",
            axum::routing::post(history::publish),
        )
        .route(
            "/v1/workspaces/{name}/import",
            axum::routing::post(transfer::import),
        )
        .route("/v1/workspaces/{name}/export", get(transfer::export))
}

/// All paths of the API.
pub fn router(state: Arc<ApiState>) -> Router {
    Router::new()
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .route(
            "/v1/workspaces",
            get(workspaces::list).post(workspaces::create),
        )
        .route(
            "/v1/workspaces/{name}",
            get(workspaces::show).delete(keeping::delete_workspace),
        )
        .merge(keeping_routes())
        .route("/v1/sessions", get(sessions::list).post(sessions::open))
        .route(
            "/v1/sessions/{session}",
            get(sessions::show).delete(sessions::close),
        )
        .route(
            "/v1/sessions/{session}/fork",
            axum::routing::post(sessions::fork),
        )
        .route(
            "/v1/sessions/{session}/tickets",
            get(sessions::list_tickets).post(sessions::create_ticket),
        )
        .route(
            "/v1/sessions/{session}/tickets/{ticket}",
            axum::routing::delete(sessions::revoke_ticket),
        )
        .merge(history_routes())
        .merge(outside::routes())
        .merge(conflicts::routes())
        .route("/v1/gc", get(gc::list).post(gc::start))
        .route("/v1/gc/{run}", get(gc::show))
        .fallback(async || ApiError::no_route())
        .method_not_allowed_fallback(async || ApiError::no_method())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(state)
}
