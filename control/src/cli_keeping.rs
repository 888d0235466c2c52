//! Arguments of the commands about what is kept, and about tokens.

use clap::{Args, Subcommand};

use crate::cli::{Repeat, ServerArgs};
use crate::units::Period;

/// Arguments of `workspace delete`.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// The workspace.
    pub name: String,
    /// Do it: without this nothing is removed.
    #[arg(long)]
    pub yes: bool,
    /// Close its sessions, too: what they hold is gone, and their mounts become stale.
    #[arg(long)]
    pub force: bool,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `workspace retention`.
#[derive(Debug, Args)]
pub struct RetentionArgs {
    /// The workspace.
    pub name: String,
    /// Let go what is older and no branch, tag, session or pin needs; at least 1h.
    #[arg(long, value_name = "DURATION")]
    pub keep_for: Option<Period>,
    /// Keep so many of the newest commits, however old.
    #[arg(long, value_name = "NUMBER", requires = "keep_for")]
    pub keep_last: Option<u64>,
    /// Keep everything from now on.
    #[arg(long, conflicts_with = "keep_for")]
    pub off: bool,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// What to do with pins.
#[derive(Debug, Subcommand)]
pub enum PinCommand {
    /// Pin a commit, with all that it comes from.
    Add {
        /// The version: a branch, a tag, a commit, a time. What is pinned is the commit that it is now.
        version: String,
        /// Why.
        #[arg(long, value_name = "TEXT", default_value = "")]
        note: String,
        /// What the workspace is.
        #[command(flatten)]
        place: PinPlace,
    },
    /// Take a pin away.
    Rm {
        /// The version.
        version: String,
        /// What the workspace is.
        #[command(flatten)]
        place: PinPlace,
    },
    /// List pins.
    Ls {
        /// What the workspace is.
        #[command(flatten)]
        place: PinPlace,
    },
}

/// Where pins are.
#[derive(Debug, Args)]
pub struct PinPlace {
    /// Name of the workspace.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub workspace: String,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// What to do with tokens of the API.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token and print it. It is shown this once and stored nowhere.
    Create {
        /// What it is for.
        name: String,
        /// How it may be repeated.
        #[command(flatten)]
        repeat: Repeat,
        /// The server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List tokens by name and id.
    Ls {
        /// The server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// End a token: calls with it are refused from now on.
    Revoke {
        /// Its id, as `token ls` shows it.
        id: String,
        /// The server.
        #[command(flatten)]
        server: ServerArgs,
    },
}
