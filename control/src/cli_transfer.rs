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
    /// PATH is a git repository: bring in its history, one commit for each. Needs `git`.
    #[arg(long)]
    pub git: bool,
    /// What of the git repository [default: HEAD]
    #[arg(long, value_name = "REVISION", requires = "git")]
    pub git_ref: Option<String>,
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
    #[arg(long, conflicts_with = "git")]
    pub force: bool,
    /// DEST is a git repository, or becomes one: write a commit to a branch there. Needs `git`.
    #[arg(long)]
    pub git: bool,
    /// All commits that the version comes from, one of git's for each.
    #[arg(long, requires = "git")]
    pub history: bool,
    /// The branch of the git repository [default: the version, if it is a branch, a tag or a plain
    /// name, else main]
    #[arg(long, value_name = "BRANCH", requires = "git")]
    pub git_branch: Option<String>,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `bundle`.
#[derive(Debug, Args)]
pub struct BundleArgs {
    /// What to bundle: `BRANCH` or `TAG` with all that it comes from, `A..BRANCH` for what it comes from
    /// and version A does not, or `..` for everything that branches and tags have.
    pub range: String,
    /// The file.
    pub file: PathBuf,
    /// The workspace.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub workspace: String,
    /// Replace a file that is there.
    #[arg(long)]
    pub force: bool,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `unbundle`.
#[derive(Debug, Args)]
pub struct UnbundleArgs {
    /// The bundle.
    pub file: PathBuf,
    /// The workspace; it is made if there is none of that name.
    #[arg(long, value_name = "NAME")]
    pub workspace: String,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}
