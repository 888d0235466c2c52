//! What calls carry: the token, the body, the query, numbers in the path.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header;
use axum::http::request::Parts;
use base::{SessionId, TenantId};
use metadata::store::StoreError;
use serde::de::DeserializeOwned;

use super::ApiState;
use crate::status::ApiError;
use crate::types::{no_session, parse_session};

/// Longest token that is looked up, in bytes.
const TOKEN_BYTES_MAX: usize = 256;

/// Whose call it is, by the token that it shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tenant(pub(super) TenantId);

impl FromRequestParts<Arc<ApiState>> for Tenant {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<ApiState>,
    ) -> Result<Self, ApiError> {
        let header = parts.headers.get(header::AUTHORIZATION);
        let token = header
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim())
            .filter(|token| token.len() <= TOKEN_BYTES_MAX)
            .ok_or_else(ApiError::unauthorized)?;
        match state.store.check_token(token).await {
            Ok(tenant) => Ok(Self(tenant)),
            Err(StoreError::NotFound { .. }) => Err(ApiError::unauthorized()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The JSON body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<ApiState>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &Arc<ApiState>) -> Result<Self, ApiError> {
        match Json::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(why) => Err(ApiError::rejected(why.status(), why.body_text())),
        }
    }
}

/// The query.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<ApiState>> for Parameters<T> {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<ApiState>,
    ) -> Result<Self, ApiError> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(why) => Err(ApiError::rejected(why.status(), why.body_text())),
        }
    }
}

/// What stands in the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<ApiState>> for Place<T> {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<ApiState>,
    ) -> Result<Self, ApiError> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(place)) => Ok(Self(place)),
            Err(why) => Err(ApiError::rejected(why.status(), why.body_text())),
        }
    }
}

/// A session's number as it stands in a path.
pub(super) fn session_id(text: &str) -> Result<SessionId, ApiError> {
    parse_session(text).ok_or_else(|| ApiError::invalid(no_session(text)))
}
