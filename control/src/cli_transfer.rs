//! Arguments of the commands that bring trees in and out.

use std::path::PathBuf;

use clap::Args;

use crate::cli::ServerArgs;
use crate::cli_history::AboutArgs;

/// Arguments of `import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// A directory, or a tar archive (plain, .gz or .zst); `-` reads an archive from standard input.
    pub path: PathBuf,
    /// The workspace.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub workspace: String,
    /// The branch that gets the commit; it is made if there is none of that name.
    #[arg(long, value_name = "BRANCH", default_value = "main")]
    pub branch: String,
    /// What the commit is to say.
    #[command(flatten)]
    pub about: AboutArgs,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The version: a branch, a tag, a commit, a time.
    pub version: String,
    /// A directory, which is made, or a tar archive, if the name ends with .tar, .tar.gz, .tgz,
    /// .tar.zst or .tzst; `-` writes an archive to standard output.
    pub dest: PathBuf,
    /// The workspace.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub workspace: String,
    /// Write into a directory that is not empty, and over files that are there.
    #[arg(long)]
    pub force: bool,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}
