//! Tokens of the API: made, listed, ended.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use metadata::record::workspace::TokenRecord;
use metadata::store::token_prefix;

use super::ApiState;
use super::calls::Keyed;
use super::describe::{Created, NoContent};
use super::input::{Body, Place, Tenant};
use crate::keeping::{CreateToken, CreatedToken, Token, parse_token, show_token};
use crate::status::ApiError;
use crate::types::Page;

pub(super) async fn create(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    keyed: Keyed,
    Body(asked): Body<CreateToken>,
) -> Result<Created<CreatedToken>, ApiError> {
    let call = keyed.created(|made: &TokenRecord, token| CreatedToken {
        id: show_token(token_prefix(token)),
        name: made.name.clone(),
        token: token.to_owned(),
    });
    let store = state.store.for_call(call);
    let (token, made) = state
        .to_end(async move { store.create_named_token(tenant, &asked.name).await })
        .await?;
    let id = show_token(made.id);
    tracing::info!(token = id, name = made.record.name, "API token is made");
    let name = made.record.name;
    Ok(Created(CreatedToken { id, name, token }))
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
    keyed: Keyed,
    Place(id): Place<String>,
) -> Result<NoContent, ApiError> {
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
    let others = state.counted.gateway.others();
    if let Some(other) = others
        .iter()
        .find(|other| !other.is_dead && other.lease.token == token)
    {
        return Err(ApiError::conflict(format!(
            "this is the token of commands on the machine of gateway {} ({}): to replace it, stop that server, remove \
             `api-token` from its data directory, start it, and revoke the old one then",
            other.id, other.lease.nfs
        )));
    }
    let store = state.store.for_call(keyed.done::<()>());
    state
        .to_end(async move { store.revoke_token(tenant, token).await })
        .await?;
    tracing::info!(token = id, "API token is revoked");
    Ok(NoContent)
}
