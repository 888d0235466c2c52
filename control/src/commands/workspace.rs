//! `holdfast workspace`.

use super::pages::pages;
use super::{client, keeping};
use crate::cli::WorkspaceCommand;
use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use crate::types::{CreateWorkspace, Workspace};

pub(super) fn run(command: WorkspaceCommand, json: bool) -> Result<(), Failure> {
    match command {
        WorkspaceCommand::Create {
            name,
            root_mode,
            root_owner,
            repeat,
            server,
        } => {
            let create = CreateWorkspace {
                name,
                root_mode,
                root_uid: root_owner.0,
                root_gid: root_owner.1,
            };
            let made: Workspace = client(&server)?
                .keyed(repeat)
                .post("/v1/workspaces", &create)?;
            if json {
                return output::json(&made);
            }
            output::text(&format!("workspace {} is made", made.name))
        }
        WorkspaceCommand::Ls { removing, server } => {
            let client = client(&server)?;
            if removing {
                keeping::removals(&client, json)
            } else {
                list(&client, json)
            }
        }
        WorkspaceCommand::Delete(args) => keeping::delete_workspace(&args, json),
        WorkspaceCommand::Retention(args) => keeping::retention(&args, json),
    }
}

fn list(client: &Client, json: bool) -> Result<(), Failure> {
    let all: Vec<Workspace> = pages(client, "/v1/workspaces", usize::MAX)?;
    if json {
        return output::json(&all);
    }
    let rows: Vec<_> = all
        .into_iter()
        .map(|workspace| [workspace.name, workspace.created])
        .collect();
    output::table(["NAME", "CREATED"], &rows)
}
