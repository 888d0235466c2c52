//! Arguments of the commands about history.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use crate::api::CHANGES_MAX;
use crate::cli::{Repeat, ServerArgs};
use crate::history::PUBLISH_POLICY;

/// Arguments of `session checkpoint`.
#[derive(Debug, Args)]
pub struct CheckpointArgs {
    /// The session [default: the one that `holdfast up` serves]
    pub session: Option<String>,
    /// What the commit is to say.
    #[command(flatten)]
    pub about: AboutArgs,
    /// How it may be repeated.
    #[command(flatten)]
    pub repeat: Repeat,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `session publish`.
#[derive(Debug, Args)]
pub struct PublishArgs {
    /// The session [default: the one that `holdfast up` serves]
    pub session: Option<String>,
    /// What the commit is to say.
    #[command(flatten)]
    pub about: AboutArgs,
    /// The branch; it is made if there is none of that name [default: the session's]
    #[arg(long, value_name = "BRANCH")]
    pub branch: Option<String>,
    /// What to do where the branch has changed the same thing: `fail`, `keep-both` (both versions
    /// come to the branch, as conflicts to be resolved), `ours` (the branch's) or `theirs` (the
    /// session's).
    #[arg(long, value_name = "POLICY", default_value = PUBLISH_POLICY)]
    pub policy: String,
    /// Only tell what would be done, and what is in the way.
    #[arg(long)]
    pub dry_run: bool,
    /// How it may be repeated.
    #[command(flatten)]
    pub repeat: Repeat,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `session close`.
#[derive(Debug, Args)]
pub struct CloseArgs {
    /// The session.
    pub session: String,
    /// Publish first; if that fails the session stays open.
    #[arg(long)]
    pub publish: bool,
    /// Make a commit of what it has first, and pin that.
    #[arg(long, conflicts_with = "publish")]
    pub keep: bool,
    /// What the commit is to say.
    #[command(flatten)]
    pub about: AboutArgs,
    /// The branch to publish to [default: the session's]
    #[arg(
        long,
        value_name = "BRANCH",
        requires = "publish",
        conflicts_with = "keep"
    )]
    pub branch: Option<String>,
    /// What to do where the branch has changed the same thing, as for `session publish` [default: fail]
    #[arg(
        long,
        value_name = "POLICY",
        requires = "publish",
        conflicts_with = "keep"
    )]
    pub policy: Option<String>,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// What a commit is to say.
#[derive(Debug, Args)]
pub struct AboutArgs {
    /// What it is about.
    #[arg(short, long, value_name = "TEXT", default_value = "")]
    pub message: String,
    /// The person or system on whose behalf.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub author: String,
    /// The model.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub model: String,
    /// The tool call.
    #[arg(long, value_name = "ID", default_value = "")]
    pub tool_call: String,
    /// Something else that is to be known; may be given more than once.
    #[arg(long = "pair", value_name = "KEY=VALUE", value_parser = pair)]
    pub pairs: Vec<(String, String)>,
}

/// Arguments of `log`.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// The version to begin with.
    #[arg(default_value = "main")]
    pub version: String,
    /// The workspace.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub workspace: String,
    /// Made by this agent.
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// Made in this session.
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,
    /// Made in this run.
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,
    /// What changed this path, which is followed to names that it had before.
    #[arg(long, value_name = "PATH")]
    pub path: Option<OsString>,
    /// What the branch was at, one after the other, without what was merged into it.
    #[arg(long)]
    pub first_parent: bool,
    /// Most commits to show.
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    pub limit: usize,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The version.
    #[arg(default_value = "main")]
    pub version: String,
    /// The workspace.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub workspace: String,
    /// Most changed files to tell, at most 10000.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = changes)]
    pub limit: usize,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The version to compare, or the one to compare with and the one to compare [default: main]
    #[arg(value_name = "VERSION", num_args = 0..=2, conflicts_with = "session")]
    pub versions: Vec<String>,
    /// Compare what this session has now, with all that its clients have written.
    #[arg(long, value_name = "SESSION", conflicts_with = "workspace")]
    pub session: Option<String>,
    /// The version to compare with [default: the first parent; of a session, what it stands on]
    #[arg(long, value_name = "VERSION")]
    pub from: Option<String>,
    /// What is at or below this path only.
    #[arg(long, value_name = "PATH")]
    pub path: Option<OsString>,
    /// Tell sizes, and how much was added, changed and removed.
    #[arg(long, conflicts_with = "text")]
    pub stat: bool,
    /// Tell the differences of texts, as `git apply` takes them.
    #[arg(short = 'p', long)]
    pub text: bool,
    /// The workspace.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub workspace: String,
    /// Most files to tell, at most 10000.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = changes)]
    pub limit: usize,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// What to do with branches and tags.
#[derive(Debug, Subcommand)]
pub enum RefCommand {
    /// List branches and tags.
    Ls(Workspace),
    /// Make a branch, or a tag.
    Create {
        /// Its name.
        name: String,
        /// The version it is to name.
        #[arg(default_value = "main")]
        version: String,
        /// A tag, which does not move.
        #[arg(long)]
        tag: bool,
        /// Protect it: it is not removed, and moves to descendants only.
        #[arg(long)]
        protected: bool,
        /// How it may be repeated.
        #[command(flatten)]
        repeat: Repeat,
        /// The workspace.
        #[command(flatten)]
        workspace: Workspace,
    },
    /// Remove a branch or a tag. Its commits stay.
    Delete(NamedRef),
    /// Protect a branch or a tag: it is not removed, and moves to descendants only.
    Protect(NamedRef),
    /// Protect it no more.
    Unprotect(NamedRef),
}

/// What to do with the operation log.
#[derive(Debug, Subcommand)]
pub enum OpCommand {
    /// Show what was done to branches, tags and sessions, newest first.
    Log {
        /// Most operations to show.
        #[arg(long, value_name = "NUMBER", default_value_t = 100)]
        limit: usize,
        /// The workspace.
        #[command(flatten)]
        workspace: Workspace,
    },
    /// Undo an operation on a branch or a tag, a restore or a sync. That is an operation, too.
    Undo {
        /// The operation's id.
        operation: String,
        /// The workspace.
        #[command(flatten)]
        workspace: Workspace,
    },
}

/// A branch or a tag.
#[derive(Debug, Args)]
pub struct NamedRef {
    /// Its name.
    pub name: String,
    /// The workspace.
    #[command(flatten)]
    pub workspace: Workspace,
}

/// A workspace, and the server it is on.
#[derive(Debug, Args)]
pub struct Workspace {
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

impl AboutArgs {
    /// Whether nothing is said.
    pub(crate) fn is_empty(&self) -> bool {
        let texts = [&self.message, &self.author, &self.model, &self.tool_call];
        self.pairs.is_empty() && texts.into_iter().all(String::is_empty)
    }
}

fn changes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number <= CHANGES_MAX => Ok(number),
        Ok(_) => Err(format!(
            "at most {CHANGES_MAX} are told; --path tells a part"
        )),
        Err(_) => Err(format!("write a number up to {CHANGES_MAX}")),
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}
