//! Calls about sessions that another gateway has in memory: they are passed on to its API.
//!
//! This is in front of all handlers, and of what keeps the answers of calls with keys: those are begun
//! where they are done. A call is passed on once. If there is no way to the other gateway it is done here,
//! which takes the session over; once it may have been heard there it is not.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Query, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base::{GatewayId, SessionId};
use bytes::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::input::{Tenant, session_id};
use super::{ApiState, BODY_BYTES_MAX};
use crate::client::PATIENCE;
use crate::status::ApiError;

/// Says that a call was passed on, and by which gateway.
const HEADER: &str = "holdfast-passed-on";

/// Says for which gateway it is, so that another one that is there by mistake does not do it.
const FOR_HEADER: &str = "holdfast-passed-to";

/// How often it is looked at whether a gateway that was asked lives.
const LOOK: Duration = Duration::from_millis(500);

/// How long another gateway may take to accept a connection: it is near.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// Longest answer, in bytes: more than any has.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Headers that are of a connection, or that are made anew for it.
const OF_CONNECTION: [HeaderName; 9] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::HOST,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// Why there is no answer of another gateway.
#[derive(Debug)]
enum Failed {
    /// It has heard nothing.
    Unsent(String),
    /// It may have heard, and done, all of it.
    Unanswered(String),
}

/// The query of a call that looks at a session, as [`super::diff`] takes it.
#[derive(Debug, serde::Deserialize)]
struct Asked {
    session: Option<String>,
}

/// Another gateway's API.
#[derive(Clone, Debug)]
struct Other {
    id: GatewayId,
    /// Host and port.
    authority: String,
}

/// Passes a call on if its session is with another gateway.
pub(super) async fn pass_on(
    State(state): State<Arc<ApiState>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let is_passed = headers.contains_key(HEADER);
    let own = state.counted.gateway.id().to_string();
    if headers
        .get(FOR_HEADER)
        .is_some_and(|meant| meant.as_bytes() != own.as_bytes())
    {
        let why = format!(
            "this is gateway {own}, and the call is for another one that tells the same address: set api_listen, \
             peer_listen and advertise of each to its own"
        );
        tracing::warn!("call of another gateway refused: {why}");
        return ApiError::misdirected(why).into_response();
    }
    if is_passed || state.counted.gateway.others_alive() == 0 {
        return next.run(request).await;
    }
    let (mut head, body) = request.into_parts();
    let Some(other) = other(&state, &mut head).await else {
        return next.run(Request::from_parts(head, body)).await;
    };
    let body = match axum::body::to_bytes(body, BODY_BYTES_MAX).await {
        Ok(body) => body,
        Err(error) => return ApiError::invalid(error.to_string()).into_response(),
    };
    match ask(&state, &other, &head, body.clone()).await {
        Ok(response) => response,
        Err(Failed::Unsent(why)) => {
            tracing::info!(
                gateway = %other.id, api = other.authority, why,
                "no way to a gateway: its session is asked for here"
            );
            next.run(Request::from_parts(head, Body::from(body))).await
        }
        Err(Failed::Unanswered(why)) => {
            let Other { id, authority } = other;
            tracing::warn!(gateway = %id, api = authority, why, "a gateway does not answer");
            ApiError::not_ready(format!(
                "gateway {id}, which has this session, was asked and did not answer ({why}): what was \
                 asked for may have been done. Try again: with an Idempotency-Key nothing is done twice"
            ))
            .into_response()
        }
    }
}

/// On whose behalf another gateway is asked: the call's authorization, as it came.
pub(super) struct Behalf(Option<HeaderValue>);

impl<S: Sync> FromRequestParts<S> for Behalf {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.headers.get(header::AUTHORIZATION).cloned()))
    }
}

/// Has another gateway store what it has of a session in memory, if it is with another one: a comparison
/// does that. Whether it is done; else the session has to be asked for here, which moves it.
pub(super) async fn stored_elsewhere(
    state: &ApiState,
    behalf: Behalf,
    workspace: &str,
    session: SessionId,
) -> bool {
    let Some(other) = at_other(state, session).await else {
        return false;
    };
    let path = format!("/v1/workspaces/{workspace}/diff?session={session}&limit=1");
    let Ok(request) = Request::get(path).body(()) else {
        return false;
    };
    let (mut head, ()) = request.into_parts();
    if let Some(token) = behalf.0 {
        head.headers.insert(header::AUTHORIZATION, token);
    }
    let answered = ask(state, &other, &head, Bytes::new()).await;
    answered.is_ok_and(|answer| answer.status().is_success())
}

/// The gateway that has the session of a call. `None` also if that cannot be found out: then the call
/// is answered here, with what is wrong.
async fn other(state: &Arc<ApiState>, head: &mut Parts) -> Option<Other> {
    let places = RawPathParams::from_request_parts(head, state).await.ok()?;
    let place = places.iter().find(|(name, _)| *name == "session");
    let session = match place {
        Some((_, session)) => session.to_owned(),
        None => Query::<Asked>::try_from_uri(&head.uri).ok()?.0.session?,
    };
    let Tenant(tenant) = Tenant::from_request_parts(head, state).await.ok()?;
    let id = session_id(state, tenant, &session).await.ok()?;
    at_other(state, id).await
}

/// The other gateway that has a session.
async fn at_other(state: &ApiState, id: SessionId) -> Option<Other> {
    let place = state.counted.gateway.whereabouts(id).await.ok()?;
    Some(Other {
        id: place.gateway?,
        authority: place.api.strip_prefix("http://")?.to_owned(),
    })
}

/// Asks another gateway.
async fn ask(
    state: &ApiState,
    other: &Other,
    head: &Parts,
    body: Bytes,
) -> Result<Response, Failed> {
    let request = request(state, other, head, body)?;
    let connecting = TcpStream::connect(other.authority.as_str());
    let connected = tokio::select! {
        connected = connecting => connected,
        () = state.clock.sleep(CONNECT_PATIENCE) => Err(std::io::ErrorKind::TimedOut.into()),
    };
    let unsent = |error: &dyn std::fmt::Display| Failed::Unsent(format!("connect: {error}"));
    let stream = connected.map_err(|error| unsent(&error))?;
    stream.set_nodelay(true).map_err(|error| unsent(&error))?;
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| unsent(&error))?;
    let answered = async {
        let response = sender.send_request(request).await?;
        let (head, body) = response.into_parts();
        let body = axum::body::to_bytes(Body::new(body), ANSWER_BYTES_MAX).await;
        Ok::<_, hyper::Error>((head, body))
    };
    let moving = async {
        // What it has to tell, the request does.
        drop(connection.await);
        std::future::pending::<()>().await;
    };
    let (mut head, body) = tokio::select! {
        answered = answered => match answered {
            Ok((head, Ok(body))) => (head, body),
            Ok((_, Err(error))) => return Err(Failed::Unanswered(error.to_string())),
            Err(error) => return Err(Failed::Unanswered(error.to_string())),
        },
        () = moving => return Err(Failed::Unanswered("it broke off".to_owned())),
        () = death(state, other.id) => {
            return Err(Failed::Unanswered("it stands still".to_owned()));
        }
        () = state.clock.sleep(PATIENCE) => {
            let why = format!("nothing came for {} seconds", PATIENCE.as_secs());
            return Err(Failed::Unanswered(why));
        }
    };
    if head.status == StatusCode::MISDIRECTED_REQUEST {
        return Err(Failed::Unsent(
            "another gateway is at its address".to_owned(),
        ));
    }
    without_connection(&mut head.headers);
    Ok(Response::from_parts(head, Body::from(body)))
}

/// Completes when a gateway may be taken for dead, or is gone. Safe to drop.
async fn death(state: &ApiState, id: GatewayId) {
    loop {
        state.clock.sleep(LOOK).await;
        let others = state.counted.gateway.others();
        if !others.iter().any(|other| other.id == id && !other.is_dead) {
            return;
        }
    }
}

/// The same request, for another gateway.
fn request(
    state: &ApiState,
    other: &Other,
    head: &Parts,
    body: Bytes,
) -> Result<hyper::Request<Body>, Failed> {
    let wrong = |error: &dyn std::fmt::Display| Failed::Unsent(format!("write the call: {error}"));
    let path = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let mut request = hyper::Request::new(Body::from(body));
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = path.parse::<Uri>().map_err(|error| wrong(&error))?;
    let headers = request.headers_mut();
    headers.clone_from(&head.headers);
    without_connection(headers);
    let host = HeaderValue::from_str(&other.authority).map_err(|error| wrong(&error))?;
    headers.insert(header::HOST, host);
    let own = state.counted.gateway.id().to_string();
    let own = HeaderValue::from_str(&own).map_err(|error| wrong(&error))?;
    headers.insert(HEADER, own);
    let meant = HeaderValue::from_str(&other.id.to_string()).map_err(|error| wrong(&error))?;
    headers.insert(FOR_HEADER, meant);
    Ok(request)
}

/// Takes away what is of one connection only: also what `Connection` names.
fn without_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // A caller must not take these away: they are what it asks for.
        .filter(|name| *name != header::AUTHORIZATION && *name != super::calls::HEADER)
        .collect();
    for name in named.iter().chain(&OF_CONNECTION) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests;
