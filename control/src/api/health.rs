//! Whether the server lives, whether it takes work, and what it counts.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use super::ApiState;
use crate::metrics;
use crate::status::ApiError;

/// Answers as long as the process does.
pub(super) async fn livez() -> &'static str {
    "ok\n"
}

/// Answers well while the server takes work and its store can be read.
pub(super) async fn readyz(State(state): State<Arc<ApiState>>) -> Result<&'static str, ApiError> {
    if state.is_draining() {
        return Err(ApiError::not_ready("the server is shutting down"));
    }
    match state.store.format().await {
        Ok(_) => Ok("ok\n"),
        Err(error) => Err(ApiError::not_ready(error.to_string())),
    }
}

/// What is counted, as Prometheus reads it.
pub(super) async fn metrics(State(state): State<Arc<ApiState>>) -> impl IntoResponse {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    (
        [(header::CONTENT_TYPE, kind)],
        metrics::text(&state.counted),
    )
}
