//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::cli_completion::CompletionArgs;
use crate::cli_conflicts::ConflictsCommand;
use crate::cli_history::{
    CheckpointArgs, CloseArgs, DiffArgs, LogArgs, OpCommand, PublishArgs, RefCommand, ShowArgs,
};
use crate::cli_keeping::{DeleteArgs, PinCommand, RetentionArgs, TokenCommand};
use crate::cli_outside::{ChangedArgs, RefreshArgs, RestoreArgs, SyncArgs};
use crate::cli_reading::{BlameArgs, CatArgs, FindArgs, LsArgs};
use crate::cli_transfer::{BundleArgs, ExportArgs, ImportArgs, UnbundleArgs};
use crate::failure::Failure;
use crate::place::Place;
use crate::settings::{DATA_DIR_DEFAULT, Given, Settings};
use crate::units::Period;

/// Durable, versioned workspaces for sandboxes over plain NFSv3.
///
/// Exit codes: 0 done, 1 error, 2 wrong command line or configuration, 3 something is in the way,
/// 4 not found, 5 not allowed, 6 try again later.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, max_term_width = 100)]
pub struct Cli {
    /// Print results as one line of JSON, and errors likewise to standard error.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a complete server, with a workspace and a session on first start, and print how to
    /// mount it.
    Up(Up),
    /// Start a server only.
    Serve(Serve),
    /// Make, list and remove workspaces, and say what they keep of their history.
    #[command(subcommand)]
    Workspace(WorkspaceCommand),
    /// Open, fork, commit, publish, restore, sync, list, show and close sessions.
    #[command(subcommand)]
    Session(SessionCommand),
    /// Show commits, newest first; with --path those that changed a file or a directory.
    Log(LogArgs),
    /// Show a commit, and which files it changed.
    Show(ShowArgs),
    /// Show what differs between two versions, or between a session and a version.
    Diff(DiffArgs),
    /// List and resolve conflicts that merges have left, and foretell them.
    #[command(subcommand)]
    Conflicts(ConflictsCommand),
    /// List a directory of a version.
    Ls(LsArgs),
    /// Print a file of a version.
    Cat(CatArgs),
    /// Find files in a version, by name and kind.
    Find(FindArgs),
    /// Show who wrote a file of a version, line by line and as a whole.
    Blame(BlameArgs),
    /// List, make, remove and protect branches and tags.
    #[command(subcommand)]
    Ref(RefCommand),
    /// Show what was done to branches, tags and sessions, and undo it.
    #[command(subcommand)]
    Op(OpCommand),
    /// Pin commits, so that they are kept whatever a workspace's retention says.
    #[command(subcommand)]
    Pin(PinCommand),
    /// Make, list and revoke tokens of the API.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Make a commit of a directory or a tar archive, or commits of a git history.
    Import(ImportArgs),
    /// Write what a version has to a directory, a tar archive or a git repository.
    Export(ExportArgs),
    /// Write commits, branches and tags of a workspace to one file, for another installation.
    Bundle(BundleArgs),
    /// Take in what a bundle has.
    Unbundle(UnbundleArgs),
    /// Mount a session on a directory, or print how.
    Mount(Mount),
    /// Make the kernel look anew at what a restore or a sync changed in a mounted session.
    Refresh(RefreshArgs),
    /// Remove file content that nothing refers to. A server does that by itself, too, when space is
    /// short, and from time to time.
    Gc(Gc),
    /// List the servers that share a server's metadata, and whether they live.
    Gateways {
        /// The server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Let a server end as SIGTERM does: not ready at once, it lets other servers on the same metadata
    /// have its sessions, serves on for drain_delay, then answers what is in flight and stores what is
    /// buffered. Clients go on with the others, or wait for the next server.
    Drain(Drain),
    /// Check everything in a data directory that no server uses; changes nothing. Exit code 1 if
    /// there is something wrong.
    Check(Check),
    /// Change the keys that sign file handles.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Print what makes a shell complete command lines of this program.
    Completion(CompletionArgs),
}

/// What to do with the keys that sign file handles.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Make a new key, in a data directory that no server uses. Mounts go on with the handles that
    /// they have until the next rotation: rotate again only when what was mounted before this one
    /// has been unmounted.
    Rotate {
        /// Where data is.
        #[command(flatten)]
        data: DataArgs,
    },
}

/// Where data is, for a command that opens it by itself. Each is a setting of a server, too.
//
// These are fields of `Given`, and not a struct that `Given` takes in: serde would then have to flatten
// it, and a configuration file with an unknown setting would be refused without the line, and without
// the settings that there are.
#[derive(Clone, Debug, Args)]
pub struct DataArgs {
    /// File with settings of the server; those that say where data is count
    #[arg(long, env = "HOLDFAST_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The data directory [default: ./holdfast-data]
    #[arg(long, env = "HOLDFAST_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Where metadata is: `embedded`, or `fdb:FILE` with a FoundationDB cluster file [default:
    /// embedded]
    #[arg(long = "metadata", env = "HOLDFAST_METADATA", value_name = "PLACE")]
    pub place: Option<Place>,
    /// Options of the object store, if the content of files is in one
    #[arg(
        long,
        env = "HOLDFAST_CHUNKS_OPTIONS",
        value_name = "NAME=VALUE",
        value_delimiter = ','
    )]
    pub chunks_options: Option<Vec<String>>,
    /// What all keys in FoundationDB begin with [default: holdfast/]
    #[arg(long, env = "HOLDFAST_FDB_PREFIX", value_name = "TEXT")]
    pub fdb_prefix: Option<String>,
    /// How long one FoundationDB transaction may take, at most 5s [default: 4s]
    #[arg(long, env = "HOLDFAST_FDB_TIMEOUT", value_name = "DURATION")]
    pub fdb_timeout: Option<Period>,
    /// File with the TLS certificate for FoundationDB
    #[arg(long, env = "HOLDFAST_FDB_TLS_CERTIFICATE", value_name = "FILE")]
    pub fdb_tls_certificate: Option<PathBuf>,
    /// File with its key
    #[arg(long, env = "HOLDFAST_FDB_TLS_KEY", value_name = "FILE")]
    pub fdb_tls_key: Option<PathBuf>,
    /// File with the certificates that the cluster's must be signed by
    #[arg(long, env = "HOLDFAST_FDB_TLS_CA", value_name = "FILE")]
    pub fdb_tls_ca: Option<PathBuf>,
    /// What the cluster's certificates must say
    #[arg(long, env = "HOLDFAST_FDB_TLS_VERIFY_PEERS", value_name = "RULES")]
    pub fdb_tls_verify_peers: Option<String>,
    /// Directory for trace files of the FoundationDB client
    #[arg(long, env = "HOLDFAST_FDB_TRACE_DIR", value_name = "DIR")]
    pub fdb_trace_dir: Option<PathBuf>,
}

impl DataArgs {
    /// The settings of the server whose data this is, as far as they say where it is.
    ///
    /// # Errors
    ///
    /// The configuration file cannot be read, or a value cannot work.
    pub fn settings(self) -> Result<Settings, Failure> {
        let given = Given {
            data_dir: self.data_dir,
            metadata: self.place,
            chunks_options: self.chunks_options,
            fdb_prefix: self.fdb_prefix,
            fdb_timeout: self.fdb_timeout,
            fdb_tls_certificate: self.fdb_tls_certificate,
            fdb_tls_key: self.fdb_tls_key,
            fdb_tls_ca: self.fdb_tls_ca,
            fdb_tls_verify_peers: self.fdb_tls_verify_peers,
            fdb_trace_dir: self.fdb_trace_dir,
            ..Given::default()
        };
        given.or_of(self.config.as_deref())?.complete()
    }
}

/// Arguments of `up`.
#[derive(Debug, Args)]
pub struct Up {
    /// File with settings.
    #[arg(long, env = "HOLDFAST_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Settings.
    #[command(flatten)]
    pub given: Given,
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// File with settings.
    #[arg(long, env = "HOLDFAST_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the settings and end.
    #[arg(long)]
    pub check_config: bool,
    /// Print the settings as a file and end.
    #[arg(long, conflicts_with = "check_config")]
    pub print_config: bool,
    /// Settings.
    #[command(flatten)]
    pub given: Given,
}

/// How a command finds the server.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Data directory of a server on this machine.
    #[arg(long, env = "HOLDFAST_DATA_DIR", value_name = "DIR", default_value = DATA_DIR_DEFAULT)]
    pub data_dir: PathBuf,
    /// Address of the API, for a server elsewhere, as `http://HOST:PORT`.
    #[arg(long, env = "HOLDFAST_API", value_name = "URL")]
    pub api: Option<String>,
    /// Token of the API; rather give it in the environment, where others do not see it.
    #[arg(
        long,
        env = "HOLDFAST_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
}

/// How a command may be repeated.
#[derive(Debug, Args)]
pub struct Repeat {
    /// A key for what is asked for, such as a random UUID: if no answer comes, the same command with
    /// the same key does it at most once, and tells what it came to.
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

/// What to do with workspaces.
#[derive(Debug, Subcommand)]
pub enum WorkspaceCommand {
    /// Make a workspace.
    Create {
        /// Its name: 1 to 64 of `a-z A-Z 0-9 . _ -`.
        name: String,
        /// Mode of its root directory, in octal [default: 0777]
        #[arg(long, value_name = "MODE", value_parser = octal)]
        root_mode: Option<u32>,
        /// Owner and group of its root directory.
        #[arg(long, value_name = "UID:GID", value_parser = ids, default_value = "0:0")]
        root_owner: (u32, u32),
        /// How it may be repeated.
        #[command(flatten)]
        repeat: Repeat,
        /// The server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List workspaces.
    Ls {
        /// Those that are being removed instead.
        #[arg(long)]
        removing: bool,
        /// The server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Remove a workspace with its history and all its files, for good.
    Delete(DeleteArgs),
    /// Show or say how much of its history a workspace keeps.
    Retention(RetentionArgs),
}

/// What to do with sessions.
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// Open a session and print how to mount it.
    Open(OpenArgs),
    /// Fork a session as it is now, with all that its clients have written, and print how to mount
    /// the fork.
    Fork(ForkArgs),
    /// Make a commit of what a session has now. It is on no branch yet.
    Checkpoint(CheckpointArgs),
    /// Make a commit of what a session has now, and bring it to a branch.
    Publish(PublishArgs),
    /// List sessions.
    Ls {
        /// Those of this workspace only.
        #[arg(long, value_name = "NAME")]
        workspace: Option<String>,
        /// The server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show a session.
    Show {
        /// The session.
        session: String,
        /// The server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Close a session: what it holds is gone unless it is kept or published, its mounts become stale.
    Close(CloseArgs),
    /// Make a live session, or paths in it, as a version has them, under its mounts.
    Restore(RestoreArgs),
    /// Bring what its branch has into a live session, under its mounts.
    Sync(SyncArgs),
    /// Show which paths a restore or a sync changed and no mount has seen to.
    Changed(ChangedArgs),
    /// Make a further mount ticket for a session.
    Ticket(TicketArgs),
}

/// Arguments of `session open`.
#[derive(Debug, Args)]
pub struct OpenArgs {
    /// Name of the workspace.
    #[arg(default_value = "default")]
    pub workspace: String,
    /// Refuse every change.
    #[arg(long)]
    pub read_only: bool,
    /// Whose identity calls run as: `passthrough`, `root-squash` or `all-squash=UID:GID`.
    #[arg(long, value_name = "RULE")]
    pub identity: Option<String>,
    /// The agent that opens it.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub agent: String,
    /// The run it belongs to.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub run: String,
    /// It ends by itself after this time.
    #[arg(long, value_name = "DURATION")]
    pub ttl: Option<Period>,
    /// The version to begin with: a branch, a tag, a commit, a time [default: main]
    #[arg(long, value_name = "VERSION")]
    pub version: Option<String>,
    /// The branch to publish to [default: the one that --version names, else main]
    #[arg(long, value_name = "BRANCH")]
    pub branch: Option<String>,
    /// How it may be repeated.
    #[command(flatten)]
    pub repeat: Repeat,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `session fork`.
#[derive(Debug, Args)]
pub struct ForkArgs {
    /// The session to fork [default: the one that `holdfast up` serves]
    pub session: Option<String>,
    /// Refuse every change in the fork.
    #[arg(long)]
    pub read_only: bool,
    /// Whose identity calls run as: `passthrough`, `root-squash` or `all-squash=UID:GID` [default:
    /// the source's]
    #[arg(long, value_name = "RULE")]
    pub identity: Option<String>,
    /// The agent that forks it.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub agent: String,
    /// The run it belongs to.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub run: String,
    /// The fork ends by itself after this time.
    #[arg(long, value_name = "DURATION")]
    pub ttl: Option<Period>,
    /// How it may be repeated.
    #[command(flatten)]
    pub repeat: Repeat,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `session ticket`.
#[derive(Debug, Args)]
pub struct TicketArgs {
    /// The session.
    pub session: String,
    /// What the ticket grants.
    #[command(flatten)]
    pub grant: Grant,
    /// How it may be repeated.
    #[command(flatten)]
    pub repeat: Repeat,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// What a ticket grants.
#[derive(Debug, Args)]
pub struct Grant {
    /// Mount read-only.
    #[arg(long)]
    pub read_only: bool,
    /// The ticket is spent by the first mount.
    #[arg(long)]
    pub single_use: bool,
    /// Others change the session meanwhile: let changes show soon.
    #[arg(long)]
    pub shared: bool,
    /// The directory to mount, a path from the root. It confines nobody: from there `..` leads on to
    /// the whole session.
    #[arg(long, value_name = "PATH", default_value = "")]
    pub directory: String,
    /// The ticket ends after this time.
    #[arg(long, value_name = "DURATION")]
    pub ttl: Option<Period>,
}

/// Arguments of `mount`.
#[derive(Debug, Args)]
pub struct Mount {
    /// The directory to mount on.
    pub dir: PathBuf,
    /// The session; without it the one that `holdfast up` serves.
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,
    /// Open a new session of this workspace and mount that.
    #[arg(long, value_name = "NAME", conflicts_with = "session")]
    pub workspace: Option<String>,
    /// Print the command instead of running it.
    #[arg(long)]
    pub print_only: bool,
    /// Call the kernel itself, also where there is mount.nfs.
    #[arg(long)]
    pub no_helper: bool,
    /// What the mount's ticket grants.
    #[command(flatten)]
    pub grant: Grant,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `gc`.
#[derive(Debug, Args)]
pub struct Gc {
    /// Only find out what could be removed.
    #[arg(long)]
    pub dry_run: bool,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `drain`.
#[derive(Debug, Args)]
pub struct Drain {
    /// Come back when it has ended.
    #[arg(long)]
    pub wait: bool,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct Check {
    /// Leave out the content of files, which takes longest.
    #[arg(long)]
    pub metadata_only: bool,
    /// Compare all content with its name, too: each chunk and each node of a tree is unpacked and
    /// hashed.
    #[arg(long, conflicts_with = "metadata_only")]
    pub deep: bool,
    /// Where data is.
    #[command(flatten)]
    pub data: DataArgs,
}

fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("write a mode in octal, as in 0755".into()),
    }
}

fn ids(text: &str) -> Result<(u32, u32), String> {
    let parsed = text
        .split_once(':')
        .and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    parsed.ok_or_else(|| "write two numbers, as in 1000:100".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn modes_and_ids_are_read() {
        assert_eq!(octal("0755"), Ok(0o755));
        assert!(octal("9").is_err() && octal("17777").is_err());
        assert_eq!(ids("1:2"), Ok((1, 2)));
        assert!(ids("1").is_err());
    }
}
