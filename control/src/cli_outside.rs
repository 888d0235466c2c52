//! Arguments of the commands that change live sessions.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::cli::{Repeat, ServerArgs};
use crate::history::SYNC_POLICY;

/// Arguments of `session restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The session.
    pub session: String,
    /// The version: a branch, a tag, a commit, a time.
    #[arg(long, value_name = "VERSION")]
    pub version: String,
    /// Files and directories to restore, from the root of the session; what the version does not
    /// have there is removed [default: the whole session]
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
    /// How it may be repeated.
    #[command(flatten)]
    pub repeat: Repeat,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `session sync`.
#[derive(Debug, Args)]
pub struct SyncArgs {
    /// The session [default: the one that `holdfast up` serves]
    pub session: Option<String>,
    /// What to do where both changed the same thing: `fail`, `keep-both`, `ours` (the session's) or
    /// `theirs` (the branch's).
    #[arg(long, value_name = "POLICY", default_value = SYNC_POLICY)]
    pub policy: String,
    /// Change nothing, and say what it would come to.
    #[arg(long)]
    pub dry_run: bool,
    /// How it may be repeated.
    #[command(flatten)]
    pub repeat: Repeat,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `session changed`.
#[derive(Debug, Args)]
pub struct ChangedArgs {
    /// The session [default: the one that `holdfast up` serves]
    pub session: Option<String>,
    /// Acknowledge what changed up to this position, which an earlier call told: it is not told
    /// again.
    #[arg(long, value_name = "POSITION")]
    pub acknowledge: Option<u64>,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `refresh`.
#[derive(Debug, Args)]
pub struct RefreshArgs {
    /// Where the session is mounted.
    pub dir: PathBuf,
    /// The session; without it the mount itself is asked, or else the session that `holdfast up`
    /// serves.
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,
    /// The directory of the session that is mounted there, as its ticket says.
    #[arg(long, value_name = "PATH")]
    pub directory: Option<PathBuf>,
    /// Look at everything in the mount, whatever changed.
    #[arg(long)]
    pub all: bool,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}
