//! Tokens of the API: made, listed, ended.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::ApiState;
use super::input::{Body, Place, Tenant};
use crate::keeping::{CreateToken, CreatedToken, Token, parse_token, show_token};
use crate::status::ApiError;
use crate::types::Page;

pub(super) async fn create(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Body(asked): Body<CreateToken>,
) -> Result<(StatusCode, Json<CreatedToken>), ApiError> {
    let store = state.store.clone();
    let (token, made) = state
        .to_end(async move { store.create_named_token(tenant, &asked.name).await })
        .await?;
    let id = show_token(made.id);
    tracing::info!(token = id, name = made.record.name, "API token is made");
    let name = made.record.name;
    Ok((StatusCode::CREATED, Json(CreatedToken { id, name, token })))
}

pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
) -> Result<Json<Page<Token>>, ApiError> {
    let found = state.store.tokens(tenant).await?;
    let items = found.into_iter().map(Token::from).collect();
    Ok(Json(Page { items, next: None }))
}

pub(super) async fn revoke(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(id): Place<String>,
) -> Result<StatusCode, ApiError> {
    let token = parse_token(&id).ok_or_else(|| {
        ApiError::invalid(format!(
            "{id:?} is no id of a token: it has 16 digits, as `token ls` shows them"
        ))
    })?;
    if token == state.own.token {
        return Err(ApiError::conflict(
            "this is the token of commands on the server's machine: to replace it, stop the server, \
             remove `api-token` from its data directory, start it, and revoke the old one then",
        ));
    }
    let store = state.store.clone();
    state
        .to_end(async move { store.revoke_token(tenant, token).await })
        .await?;
    tracing::info!(token = id, "API token is revoked");
    Ok(StatusCode::NO_CONTENT)
}
