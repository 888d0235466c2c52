//! Whether the server lives, whether it takes work, and what it counts.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use metadata::fleet::FleetError;

use super::ApiState;
use crate::metrics;
use crate::status::ApiError;

/// How long the store may take to say that it can be read.
const STORE_PATIENCE: Duration = Duration::from_secs(5);

/// Answers as long as the process does.
pub(super) async fn livez() -> &'static str {
    "ok\n"
}

/// Answers well while the server takes work: its store can be read, and other gateways count on it.
pub(super) async fn readyz(State(state): State<Arc<ApiState>>) -> Result<&'static str, ApiError> {
    if state.is_draining() {
        return Err(ApiError::not_ready("the server is shutting down"));
    }
    if !state.counted.gateway.is_store_ours() {
        return Err(ApiError::not_ready(FleetError::Foreign.to_string()));
    }
    if !state.counted.gateway.holds_lease() {
        return Err(ApiError::not_ready(
            "this gateway's lease has lapsed: the metadata store does not answer it in time, and calls \
             wait until it does",
        ));
    }
    tokio::select! {
        format = state.store.format() => match format {
            Ok(_) => Ok("ok\n"),
            Err(error) => Err(ApiError::not_ready(error.to_string())),
        },
        () = state.clock.sleep(STORE_PATIENCE) => {
            Err(ApiError::not_ready("the metadata store does not answer"))
        }
    }
}

/// What is counted, as Prometheus reads it.
pub(super) async fn metrics(State(state): State<Arc<ApiState>>) -> Metrics {
    Metrics(metrics::text(&state.counted))
}

/// What is counted.
#[derive(Debug)]
pub(super) struct Metrics(String);

impl IntoResponse for Metrics {
    fn into_response(self) -> Response {
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        ([(header::CONTENT_TYPE, kind)], self.0).into_response()
    }
}
