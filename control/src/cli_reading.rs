//! Arguments of the commands that read versions.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

use crate::cli::ServerArgs;

/// Which workspace, and the server it is on.
#[derive(Debug, Args)]
pub struct Where {
    /// The workspace.
    #[arg(
        id = "workspace",
        long = "workspace",
        value_name = "NAME",
        default_value = "default"
    )]
    pub name: String,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `ls`.
#[derive(Debug, Args)]
pub struct LsArgs {
    /// The version: a branch, a tag, a commit, a time.
    pub version: String,
    /// A path from the root directory.
    #[arg(default_value = "")]
    pub path: OsString,
    /// Tell kind, mode, owner, size and time, too.
    #[arg(short, long)]
    pub long: bool,
    /// Most entries to list.
    #[arg(long, value_name = "NUMBER", default_value_t = 100_000)]
    pub limit: usize,
    /// The workspace.
    #[command(flatten)]
    pub place: Where,
}

/// Arguments of `cat`.
#[derive(Debug, Args)]
pub struct CatArgs {
    /// The version: a branch, a tag, a commit, a time.
    pub version: String,
    /// The file's path from the root directory.
    pub path: OsString,
    /// Begin at this byte.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub offset: u64,
    /// So many bytes at most.
    #[arg(long, value_name = "BYTES")]
    pub length: Option<u64>,
    /// The workspace.
    #[command(flatten)]
    pub place: Where,
}

/// Kinds that `find` tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Files.
    F,
    /// Directories.
    D,
    /// Symbolic links.
    L,
}

/// Arguments of `find`.
#[derive(Debug, Args)]
pub struct FindArgs {
    /// The version: a branch, a tag, a commit, a time.
    pub version: String,
    /// The directory to look in, a path from the root directory.
    #[arg(default_value = "")]
    pub path: OsString,
    /// What the last part of the path is like: `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before what is
    /// meant as it stands.
    #[arg(long, value_name = "GLOB")]
    pub name: Option<OsString>,
    /// Files, directories or symbolic links only.
    #[arg(long = "type", value_name = "KIND")]
    pub kind: Option<Kind>,
    /// Most paths to tell.
    #[arg(long, value_name = "NUMBER")]
    pub limit: Option<usize>,
    /// End each path, which is told byte by byte, with NUL, as `xargs -0` takes it.
    #[arg(short = '0', long)]
    pub null: bool,
    /// The workspace.
    #[command(flatten)]
    pub place: Where,
}

/// Arguments of `blame`.
#[derive(Debug, Args)]
pub struct BlameArgs {
    /// The version: a branch, a tag, a commit, a time.
    pub version: String,
    /// The path from the root directory.
    pub path: OsString,
    /// Tell who made, changed and wrote it as a whole, and not its lines.
    #[arg(long)]
    pub whole: bool,
    /// The workspace.
    #[command(flatten)]
    pub place: Where,
}
