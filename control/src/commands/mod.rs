//! What each command does.

mod bundle;
mod check;
mod completion;
mod conflicts;
mod drain;
mod gateways;
mod gc;
mod git;
mod history;
mod holding;
mod keeping;
mod keys;
mod mount;
mod outside;
mod pages;
mod partial;
mod reading;
mod refresh;
mod serve;
mod session;
mod token;
mod transfer;
mod workspace;

use std::sync::Arc;

use base::Clock;
use metadata::kv::embedded::EmbeddedOptions;

use crate::cli::{Cli, Command, ServerArgs};
use crate::client::Client;
use crate::data_dir::DataDir;
use crate::failure::{Failure, FailureKind};
use crate::place::{Metadata, Place, Purpose};
use crate::settings::Settings;

/// Runs a command; gives the exit code.
pub(crate) fn run(cli: Cli) -> Result<u8, Failure> {
    let json = cli.json;
    match cli.command {
        Command::Up(up) => serve::up(up, json),
        Command::Serve(serve) => serve::serve(serve, json),
        Command::Workspace(command) => workspace::run(command, json),
        Command::Session(command) => session::run(command, json),
        Command::Log(args) => history::log(&args, json),
        Command::Show(args) => history::show(&args, json),
        Command::Diff(args) => history::diff(&args, json),
        Command::Conflicts(command) => conflicts::run(command, json),
        Command::Ls(args) => reading::ls(&args, json),
        Command::Cat(args) => reading::cat(&args, json),
        Command::Find(args) => reading::find(&args, json),
        Command::Blame(args) => reading::blame(&args, json),
        Command::Ref(command) => history::refs(command, json),
        Command::Op(command) => history::operations(command, json),
        Command::Import(args) => transfer::import(args, json),
        Command::Export(args) => transfer::export(args, json),
        Command::Bundle(args) => bundle::bundle(args, json),
        Command::Unbundle(args) => bundle::unbundle(args, json),
        Command::Mount(mount) => mount::run(&mount, json),
        Command::Pin(command) => keeping::pins(command, json),
        Command::Token(command) => token::run(command, json),
        Command::Refresh(args) => refresh::run(&args, json),
        Command::Gateways { server } => gateways::run(&server, json),
        Command::Drain(drain) => drain::run(&drain, json),
        Command::Gc(gc) => gc::run(&gc, json),
        Command::Keys(command) => keys::run(command, json),
        Command::Completion(args) => completion::run(&args, json),
        Command::Check(check) => return check::run(&check, json),
    }?;
    Ok(0)
}

/// The metadata store of a data directory, for a command that opens it by itself.
async fn metadata_of(
    dir: &DataDir,
    settings: Settings,
    purpose: Purpose,
    clock: Arc<dyn Clock>,
) -> Result<Metadata, Failure> {
    dir.check_place(&settings.metadata)?;
    match settings.metadata {
        Place::Embedded => {
            Metadata::open_embedded(dir, &EmbeddedOptions::default(), purpose, clock)
        }
        Place::Fdb(cluster_file) => Metadata::connect(cluster_file, &settings.fdb, clock).await,
    }
}

/// Escapes a value of a query, or a part of a path.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_') {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// The session that was said, or the one that `holdfast up` serves.
fn served(client: &Client, said: Option<String>) -> Result<String, Failure> {
    let served = || client.control().and_then(|control| control.session.clone());
    said.or_else(served).ok_or_else(no_session)
}

fn no_session() -> Failure {
    let message = "which session? Give an id of `holdfast session ls`; `mount` can open one \
                   with --workspace";
    Failure::new(FailureKind::Usage, message)
}

fn client(server: &ServerArgs) -> Result<Client, Failure> {
    Client::find(
        server.api.as_deref(),
        server.token.as_deref(),
        &server.data_dir,
    )
}
