//! `holdfast token`.

use super::{client, escape};
use crate::cli_keeping::TokenCommand;
use crate::failure::Failure;
use crate::keeping::{CreateToken, CreatedToken, Token};
use crate::output;
use crate::types::Page;

pub(super) fn run(command: TokenCommand, json: bool) -> Result<(), Failure> {
    match command {
        TokenCommand::Create {
            name,
            repeat,
            server,
        } => {
            let create = CreateToken { name };
            let made: CreatedToken = client(&server)?.keyed(repeat).post("/v1/tokens", &create)?;
            if json {
                return output::json(&made);
            }
            output::text(&made.token)
        }
        TokenCommand::Ls { server } => {
            let page: Page<Token> = client(&server)?.get("/v1/tokens")?;
            if json {
                return output::json(&page.items);
            }
            let rows = page.items.into_iter();
            let rows: Vec<_> = rows
                .map(|token| [token.id, output::in_line(&token.name), token.created])
                .collect();
            output::table(["ID", "NAME", "CREATED"], &rows)
        }
        TokenCommand::Revoke { id, server } => {
            client(&server)?.delete(&format!("/v1/tokens/{}", escape(&id)))?;
            if json {
                return output::json(&serde_json::json!({ "revoked": id }));
            }
            output::text(&format!("token {} is revoked", output::in_line(&id)))
        }
    }
}
