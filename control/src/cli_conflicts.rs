//! Arguments of the commands about conflicts.

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};

use crate::cli::ServerArgs;
use crate::conflicts::TAKES;

/// What to do with conflicts.
#[derive(Debug, Subcommand)]
pub enum ConflictsCommand {
    /// List the unresolved conflicts of a version or a session, with what each side had.
    Ls(ListArgs),
    /// Resolve a conflict in a session. Its mounts go on; what has changed shows there as if another
    /// client had changed it.
    Resolve(ResolveArgs),
    /// Tell on which paths two sessions would clash if both were published now. Changes nothing.
    Between(BetweenArgs),
}

/// Arguments of `conflicts ls`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// The version [default: main]
    #[arg(long, value_name = "VERSION", conflicts_with = "session")]
    pub version: Option<String>,
    /// The session.
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,
    /// The workspace of the version.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub workspace: String,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `conflicts resolve`.
#[derive(Debug, Args)]
pub struct ResolveArgs {
    /// The session.
    pub session: String,
    /// The path of the conflict, from the root of the workspace.
    #[arg(required_unless_present = "id", conflicts_with = "id")]
    pub path: Option<String>,
    /// The id of the conflict, as `conflicts ls` shows it: for one of several at a path, or a path
    /// that cannot be typed.
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// What to take: `ours` (what the branch had), `theirs` (what the session had that was merged
    /// into it), `both` (everything as it is), or `file` (what is at the path now).
    #[arg(long, value_name = "WHAT", value_parser = PossibleValuesParser::new(TAKES))]
    pub take: String,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `conflicts between`.
#[derive(Debug, Args)]
pub struct BetweenArgs {
    /// A session.
    pub one: String,
    /// Another session of the same workspace.
    pub two: String,
    /// Most clashes to tell.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    pub limit: usize,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}
