//! What calls carry: the token, the body, the query, numbers in the path, the part of a list.

use std::str::FromStr;
use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header;
use axum::http::request::Parts;
use base::{SessionId, TenantId, WorkspaceId};
use metadata::store::{StoreError, names_a_session};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

use super::ApiState;
use crate::status::ApiError;
use crate::types::no_session;

/// Longest token that is looked up, in bytes.
const TOKEN_BYTES_MAX: usize = 256;

/// Members of a list unless the caller says otherwise.
const PAGE_DEFAULT: usize = 100;

/// Most members of a list.
const PAGE_MAX: usize = 500;

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

/// Which part of a list is wanted.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Part {
    /// What an answer gave as `next`.
    after: Option<String>,
    /// How many at most: 100 if left out, up to 500.
    limit: Option<usize>,
}

impl Part {
    /// What it is to begin after, as the caller says it.
    pub(super) fn after(&self) -> Option<&str> {
        self.after.as_deref()
    }

    /// What it is to begin after, where an answer says it as a number or an id.
    pub(super) fn position<T: FromStr>(&self) -> Result<Option<T>, ApiError> {
        let position = self.after().map(str::parse).transpose();
        position.map_err(|_| not_a_position())
    }

    /// How many members it has at most.
    pub(super) fn limit(&self) -> usize {
        page_limit(self.limit)
    }
}

/// How many members a list has at most if the caller asks for so many.
pub(super) fn page_limit(asked: Option<usize>) -> usize {
    asked.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX)
}

/// How much an answer that comes in one part is to tell at most.
pub(super) fn told_limit(
    name: &str,
    asked: Option<usize>,
    (default, max): (usize, usize),
) -> Result<usize, ApiError> {
    match asked {
        Some(asked) if asked > max => Err(ApiError::invalid(format!(
            "{name} is {asked}: it is at most {max}"
        ))),
        asked => Ok(asked.unwrap_or(default)),
    }
}

/// What the next part of a list begins after; `None` if this part, which was to have `limit`
/// members, is the last.
pub(super) fn next_after<T>(
    found: &[T],
    limit: usize,
    position: impl FnOnce(&T) -> String,
) -> Option<String> {
    found.last().filter(|_| found.len() == limit).map(position)
}

pub(super) fn not_a_position() -> ApiError {
    ApiError::invalid("after is not what an earlier answer gave as next")
}

/// The workspace of that name.
pub(super) async fn workspace_id(
    state: &ApiState,
    tenant: TenantId,
    name: &str,
) -> Result<WorkspaceId, ApiError> {
    Ok(state.store.workspace_by_name(tenant, name).await?.id)
}

/// The session that a path or a query names, by all or the first digits of its id.
pub(super) async fn session_id(
    state: &ApiState,
    tenant: TenantId,
    text: &str,
) -> Result<SessionId, ApiError> {
    if !names_a_session(text) {
        return Err(ApiError::invalid(no_session(text)));
    }
    Ok(state.store.session_by_digits(tenant, text).await?)
}
