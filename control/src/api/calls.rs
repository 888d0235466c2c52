//! Calls with an `Idempotency-Key` (`docs/design/0013-idempotency.md`).
//!
//! This is in front of all handlers. It begins the call in the store, lets the handler run, and keeps
//! the answer. A handler that has its call as [`Keyed`] keeps the answer itself, in the transaction that
//! does what was asked for; then nothing is left to do here.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base::{Rng, Tasks, Told};
use bytes::Bytes;
use metadata::record::call::{CallAnswer, Holder};
use metadata::store::{BegunCall, CallId, CallLimits, KeyedCall, LEASE, Store, with_secret};
use nfs_gateway::Gateway;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Semaphore;

use super::input::Tenant;
use super::{ApiState, BODY_BYTES_MAX};
use crate::status::ApiError;

/// The header.
pub(super) const HEADER: &str = "idempotency-key";

/// Says of an answer that it is that of an earlier call.
const REPLAYED: HeaderValue = HeaderValue::from_static("true");

/// The header that says it.
const REPLAYED_HEADER: &str = "idempotent-replayed";

/// The path whose calls are done however often they come: a server that ends is another one each time,
/// and the answer of one that has ended would be of no use.
pub(super) const KEYLESS: &str = "/v1/drain";

/// Longest key, in bytes.
const KEY_BYTES_MAX: usize = 255;

/// Most keys of a tenant, and most bytes of their records.
const LIMITS: CallLimits = CallLimits {
    keys: 100_000,
    bytes: 64 << 20,
};

/// How long a call waits for one with the same key.
const PATIENCE: Duration = Duration::from_secs(20);

/// Most calls that wait so: others are told to try again at once, and calls of other kinds have room.
const WAITING_MAX: usize = 64;

/// Longest pause before it looks again.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Longest answer that is looked at, in bytes: more than any has.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Time between two looks for old keys: each reads all records, with their answers.
const FORGETTING_PAUSE: Duration = Duration::from_secs(3600);

/// The calls with keys that this process runs.
#[derive(Debug)]
pub(super) struct Calls {
    process: u64,
    /// No other process uses the store while this one does.
    is_alone: bool,
    rng: Arc<Rng>,
    running: Arc<Mutex<HashSet<Holder>>>,
    waiting: Semaphore,
}

/// A call that runs here, until it is dropped.
struct Running {
    holder: Holder,
    among: Arc<Mutex<HashSet<Holder>>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.among.lock().remove(&self.holder);
    }
}

impl Calls {
    pub(super) fn new(rng: Arc<Rng>, is_alone: bool) -> Self {
        Self {
            process: rng.u64(),
            is_alone,
            rng,
            running: Arc::default(),
            waiting: Semaphore::new(WAITING_MAX),
        }
    }

    fn run(&self) -> Running {
        let holder = Holder {
            process: self.process,
            attempt: self.rng.u64(),
        };
        self.running.lock().insert(holder);
        Running {
            holder,
            among: Arc::clone(&self.running),
        }
    }

    /// Whether a call has ended for sure without an answer.
    fn is_gone(&self, holder: Holder) -> bool {
        if holder.process == self.process {
            return !self.running.lock().contains(&holder);
        }
        self.is_alone
    }
}

/// The call that a handler runs, if it has a key.
#[derive(Clone, Debug)]
pub(super) struct Keyed(Option<KeyedCall>);

impl FromRequestParts<Arc<ApiState>> for Keyed {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<ApiState>) -> Result<Self, ApiError> {
        Ok(Self(parts.extensions.get::<KeyedCall>().cloned()))
    }
}

impl Keyed {
    /// The call that is answered with `status` and what `describe` says of a `T`.
    pub(super) fn call<T, A>(
        &self,
        status: StatusCode,
        describe: impl Fn(&T) -> A + Send + Sync + 'static,
    ) -> Option<KeyedCall>
    where
        T: Send + Sync + 'static,
        A: Serialize,
    {
        let call = self.0.as_ref()?;
        Some(call.answered_by(move |made: &T| {
            let body = serde_json::to_vec(&describe(made)).unwrap_or_default();
            (status.as_u16(), Bytes::from(body))
        }))
    }

    /// The call that is answered with nothing once a `T` is made.
    pub(super) fn done<T: Send + Sync + 'static>(&self) -> Option<KeyedCall> {
        let call = self.0.as_ref()?;
        let status = StatusCode::NO_CONTENT.as_u16();
        Some(call.answered_by(move |_: &T| (status, Bytes::new())))
    }

    /// The call that makes something with the call's secret.
    pub(super) fn created<T, A>(
        &self,
        describe: impl Fn(&T, &str) -> A + Send + Sync + 'static,
    ) -> Option<KeyedCall>
    where
        T: Send + Sync + 'static,
        A: Serialize,
    {
        let secret = self.0.as_ref()?.secret().to_owned();
        self.call(StatusCode::CREATED, move |made| describe(made, &secret))
    }

    /// Whether it has a key: then its answer is to be kept.
    pub(super) fn has_key(&self) -> bool {
        self.0.is_some()
    }
}

/// Runs a call once however often it comes with the same key.
pub(super) async fn once(
    State(state): State<Arc<ApiState>>,
    request: Request,
    next: Next,
) -> Response {
    let changes = [Method::POST, Method::PUT, Method::DELETE].contains(request.method());
    let path = request.uri().path();
    let is_ours = changes && path.starts_with("/v1/") && path != KEYLESS;
    if !is_ours || !request.headers().contains_key(HEADER) {
        return next.run(request).await;
    }
    match keyed(&state, request, next).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn keyed(state: &Arc<ApiState>, request: Request, next: Next) -> Result<Response, ApiError> {
    let key = key_of(request.headers())?;
    let (mut head, body) = request.into_parts();
    if super::transfer::takes_a_stream(&head) {
        return Err(ApiError::invalid(
            "an import takes no Idempotency-Key: importing the same again makes no second commit",
        ));
    }
    let Tenant(tenant) = Tenant::from_request_parts(&mut head, state).await?;
    let body = axum::body::to_bytes(body, BODY_BYTES_MAX).await;
    let body = body.map_err(|_| {
        let why = format!("the body of the request is longer than {BODY_BYTES_MAX} bytes");
        ApiError::rejected(StatusCode::PAYLOAD_TOO_LARGE, why)
    })?;
    let id = CallId {
        tenant,
        key: *blake3::hash(&key).as_bytes(),
        request: hash_of(&head, &body),
    };
    let running = state.calls.run();
    let asked = Box::new(Asked {
        id,
        running,
        head,
        body,
        next,
    });
    in_turn(state, asked).await
}

/// A call that is to be run.
struct Asked {
    id: CallId,
    running: Running,
    head: Parts,
    body: Bytes,
    next: Next,
}

/// What came of trying to run a call.
enum Tried {
    Answered(Response),
    /// One with the same key runs.
    Waits(Box<Asked>),
}

/// Runs a call; waits for one with the same key.
///
/// # Cancellation
///
/// Safe to drop: what was begun goes to its end, what waits does not begin.
async fn in_turn(state: &Arc<ApiState>, mut asked: Box<Asked>) -> Result<Response, ApiError> {
    let deadline = state.clock.monotonic().saturating_add(PATIENCE);
    let mut pause = Duration::from_millis(10);
    let mut place = None;
    loop {
        let work = Arc::clone(state);
        // To its end from before its key is taken, also if the caller goes away: a key is not used up
        // by what is not done, and what was done is to be known.
        let tried = state
            .work
            .keyed_to_end(async move { attempt(&work, asked).await });
        asked = match tried.await? {
            Tried::Answered(response) => return Ok(response),
            Tried::Waits(asked) => asked,
        };
        if place.is_none() {
            place = state.calls.waiting.try_acquire().ok();
        }
        let is_late = state.clock.monotonic().saturating_add(pause) > deadline;
        if is_late || place.is_none() {
            return Err(ApiError::not_ready(
                "the first call with this Idempotency-Key still runs: try again",
            ));
        }
        state.clock.sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Begins a call and runs it, unless that was done or is being done.
async fn attempt(state: &ApiState, asked: Box<Asked>) -> Result<Tried, ApiError> {
    let id = asked.id;
    let is_gone = |holder| state.calls.is_gone(holder);
    let begun = state
        .store
        .begin_call(id, asked.running.holder, LIMITS, is_gone);
    let call = match begun.await? {
        BegunCall::Run(call) => call,
        BegunCall::Done(answer, salt) => {
            let answer = replayed(&state.store, id, answer, &salt).await?;
            return Ok(Tried::Answered(answer));
        }
        BegunCall::Other => {
            return Err(ApiError::rejected(
                StatusCode::UNPROCESSABLE_ENTITY,
                "this Idempotency-Key was given with another request (method, path, query or \
                 body): a key is for one request and its repetitions",
            ));
        }
        BegunCall::Running => return Ok(Tried::Waits(asked)),
    };
    let Asked {
        running,
        mut head,
        body,
        next,
        ..
    } = *asked;
    head.extensions.insert(call.clone());
    let request = Request::from_parts(head, Body::from(body));
    let answer = run(state, id, call, next.run(request)).await;
    drop(running);
    answer.map(Tried::Answered)
}

/// Runs a handler, and sees to the record of its call.
async fn run(
    state: &ApiState,
    id: CallId,
    call: KeyedCall,
    handler: impl Future<Output = Response>,
) -> Result<Response, ApiError> {
    let mut handler = std::pin::pin!(handler);
    let response = loop {
        tokio::select! {
            response = handler.as_mut() => break response,
            () = state.clock.sleep(LEASE / 3) => {
                if let Err(error) = state.store.renew_call(&call).await {
                    tracing::warn!(error = %Told(&error), "say that a call with a key still runs");
                }
            }
        }
    };
    let (head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, ANSWER_BYTES_MAX).await;
    let body = body.map_err(|error| ApiError::not_ready(format!("answer the call: {error}")))?;
    if head.status.is_success() {
        let kept = state.store.finish_call(&call, head.status.as_u16(), &body);
        if let Err(error) = kept.await {
            tracing::warn!(error = %Told(&error), "keep the answer of a call with a key");
        }
        return Ok(Response::from_parts(head, Body::from(body)));
    }
    // Somebody else may have done it, or an attempt whose outcome was unknown.
    if let Some((answer, salt)) = state.store.call_answer(id).await? {
        return replayed(&state.store, id, answer, &salt).await;
    }
    // It may have happened, or may still: whoever comes again looks.
    let is_known = head.status != StatusCode::INTERNAL_SERVER_ERROR;
    if is_known && let Err(error) = state.store.abandon_call(&call).await {
        tracing::warn!(error = %Told(&error), "give the key of a call back that did nothing");
    }
    Ok(Response::from_parts(head, Body::from(body)))
}

async fn replayed(
    store: &Store,
    id: CallId,
    answer: CallAnswer,
    salt: &[u8; 16],
) -> Result<Response, ApiError> {
    let Some(kept) = answer.body else {
        return Err(ApiError::conflict(format!(
            "the call with this Idempotency-Key was done (status {}), and its answer was too long \
             to be kept: look at what it made",
            answer.status
        )));
    };
    let body = with_secret(&kept, &store.call_secret(id.tenant, salt).await?);
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    let has_body = !body.is_empty();
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_TYPE);
    if has_body {
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
    }
    headers.insert(REPLAYED_HEADER, REPLAYED);
    Ok(response)
}

fn key_of(headers: &HeaderMap) -> Result<Vec<u8>, ApiError> {
    let mut given = headers.get_all(HEADER).iter();
    let key = given.next().map(HeaderValue::as_bytes).unwrap_or_default();
    let is_key = (1..=KEY_BYTES_MAX).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic);
    if !is_key || given.next().is_some() {
        return Err(ApiError::invalid(
            "an Idempotency-Key is one header of 1 to 255 visible ASCII characters",
        ));
    }
    Ok(key.to_vec())
}

/// What makes a request the same.
fn hash_of(head: &Parts, body: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let query = head.uri.query().unwrap_or_default();
    let parts = [head.method.as_str(), head.uri.path(), query].map(str::as_bytes);
    for part in parts.into_iter().chain([body]) {
        hasher.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// Starts removing old keys, until `tasks` shut down. Of several gateways one does.
pub(crate) fn start_forgetting(
    tasks: &Tasks,
    store: Store,
    gateway: Arc<Gateway>,
    clock: Arc<dyn base::Clock>,
) {
    let until = tasks.clone();
    tasks.spawn(async move {
        loop {
            let removed = match gateway.is_caretaker() {
                true => store.remove_old_calls().await,
                false => Ok(0),
            };
            match removed {
                Ok(0) => {}
                Ok(removed) => tracing::debug!(removed, "old idempotency keys are removed"),
                Err(error) => tracing::warn!(error = %Told(&error), "remove old idempotency keys"),
            }
            tokio::select! {
                () = clock.sleep(FORGETTING_PAUSE) => {}
                () = until.shutdown_begun() => return,
            }
        }
    });
}

#[cfg(test)]
mod tests;
