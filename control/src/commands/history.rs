//! `holdfast log`, `show`, `ref`, `op`, and what sessions do with history.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;

use metadata::record::commit::MESSAGE_BYTES_MAX;

use super::pages::pages;
use super::session::path_of;
use super::{client, conflicts, escape, served};
use crate::api::CHANGES_MAX;
use crate::cli_history::{
    AboutArgs, CheckpointArgs, DiffArgs, LogArgs, NamedRef, OpCommand, PublishArgs, RefCommand,
    ShowArgs,
};
use crate::conflicts::Planned;
use crate::failure::{Failure, FailureKind};
use crate::history::{
    Change, Checkpoint, Checkpointed, Commit, Conflict, CreateRef, Diff, Operation, Publish,
    Published, Ref, Shown, Stat, Undo, short,
};
use crate::output;
use crate::reading::{ChangedPath, PathCommit, escape_bytes, show_bytes, show_path};
use crate::types::Session;

impl TryFrom<AboutArgs> for Checkpoint {
    type Error = Failure;

    /// Refuses a message that is longer than one can be, and a key that is said twice. (Not while arguments are read: that would
    /// repeat all of it.)
    fn try_from(args: AboutArgs) -> Result<Self, Failure> {
        let bytes = args.message.len();
        if bytes > MESSAGE_BYTES_MAX {
            let why = format!("the message has {bytes} bytes: at most 32 KiB is kept, shorten it");
            return Err(Failure::new(FailureKind::Usage, why));
        }
        let mut pairs = BTreeMap::new();
        for (key, value) in args.pairs {
            if pairs.contains_key(&key) {
                let why = format!("--pair says {key:?} more than once: leave one out");
                return Err(Failure::new(FailureKind::Usage, why));
            }
            pairs.insert(key, value);
        }
        Ok(Self {
            message: args.message,
            author: args.author,
            model: args.model,
            tool_call: args.tool_call,
            pairs,
        })
    }
}

pub(super) fn checkpoint(args: CheckpointArgs, json: bool) -> Result<(), Failure> {
    let client = client(&args.server)?.keyed(args.repeat);
    let path = path_of(&served(&client, args.session)?, "/checkpoint")?;
    let about = Checkpoint::try_from(args.about)?;
    let done: Checkpointed = client.post(&path, &about)?;
    if json {
        return output::json(&done);
    }
    let id = &done.commit.id;
    output::text(&if done.is_new {
        format!("commit {id}")
    } else {
        format!("nothing has changed since commit {id}")
    })
}

pub(super) fn publish(args: PublishArgs, json: bool) -> Result<(), Failure> {
    let client = client(&args.server)?.keyed(args.repeat);
    let path = path_of(&served(&client, args.session)?, "/publish")?;
    let publish = Publish {
        about: args.about.try_into()?,
        branch: args.branch,
        policy: Some(args.policy),
        dry_run: args.dry_run,
    };
    if publish.dry_run {
        let plan: Planned = client.post(&path, &publish)?;
        return if json {
            output::json(&plan)
        } else {
            conflicts::planned(&plan)
        };
    }
    let done: Published = client.post(&path, &publish)?;
    if json {
        return output::json(&done);
    }
    output::report(&published_lines(&done).join("\n"))
}

/// What a publish came to.
pub(super) fn published_lines(done: &Published) -> Vec<String> {
    let (branch, head) = (&done.branch, short(&done.head));
    let mut lines = vec![match done.outcome.as_str() {
        "created" => format!("branch {branch} is made at {head}"),
        "up-to-date" => format!("branch {branch} has all of it, at {head}"),
        "merged" => format!("branch {branch} is at {head}, a merge with what it had"),
        _ => format!("branch {branch} is at {head}"),
    }];
    lines.extend(done.conflicts.iter().map(conflict_line));
    lines.extend(conflicts::further(
        done.conflicts.len(),
        done.conflicts_total,
    ));
    lines
}

/// A conflict, how it was settled, and where both versions are.
pub(super) fn conflict_line(conflict: &Conflict) -> String {
    let aside = conflict.aside.as_ref();
    let aside = aside.map(|path| show_path(path, conflict.aside_bytes.as_ref()));
    let aside = aside.map(|path| format!(", the other version is at {path}"));
    format!(
        "conflict ({}, {}): {}{}",
        conflict.kind,
        conflict.resolution,
        show_path(&conflict.path, conflict.path_bytes.as_ref()),
        aside.unwrap_or_default()
    )
}

pub(super) fn log(args: &LogArgs, json: bool) -> Result<(), Failure> {
    let client = client(&args.server)?;
    let mut query = format!(
        "/v1/workspaces/{}/log?version={}",
        escape(&args.workspace),
        escape(&args.version)
    );
    for (name, value) in [
        ("agent", &args.agent),
        ("session", &args.session),
        ("run", &args.run),
    ] {
        if let Some(value) = value {
            query.push_str(&format!("&{name}={}", escape(value)));
        }
    }
    if args.first_parent {
        query.push_str("&first_parent=true");
    }
    if let Some(path) = &args.path {
        query.push_str(&format!("&path={}", escape_bytes(path.as_bytes())));
        let commits = pages(&client, &query, args.limit)?;
        if commits.is_empty() && !json {
            let path = show_bytes(path.as_bytes());
            output::note(&format!(
                "no such commit of {} changed {path}",
                args.version
            ));
            return Ok(());
        }
        return log_of_path(&commits, json);
    }
    let commits: Vec<Commit> = pages(&client, &query, args.limit)?;
    if json {
        return output::json(&commits);
    }
    let blocks: Vec<String> = commits.iter().map(described).collect();
    output::report(&blocks.join("\n\n"))
}

fn log_of_path(commits: &[PathCommit], json: bool) -> Result<(), Failure> {
    if json {
        return output::json(&commits);
    }
    let block = |one: &PathCommit| {
        let change = &one.change;
        let unsure = match change.unsure {
            true => "  (perhaps: too much differs to look through)",
            false => "",
        };
        let line = path_line(&change.changed);
        format!("{}\n\n{line}{unsure}", described(&one.commit))
    };
    let blocks: Vec<String> = commits.iter().map(block).collect();
    output::report(&blocks.join("\n\n"))
}

pub(super) fn show(args: &ShowArgs, json: bool) -> Result<(), Failure> {
    let path = format!(
        "/v1/workspaces/{}/commit?version={}&changes={}",
        escape(&args.workspace),
        escape(&args.version),
        args.limit
    );
    let shown: Shown = client(&args.server)?.get(&path)?;
    if json {
        return output::json(&shown);
    }
    let mut lines = vec![described(&shown.commit)];
    let changes = shown.changes.unwrap_or_default();
    if !changes.is_empty() {
        lines.push(String::new());
    }
    lines.extend(changes.iter().map(change_line));
    if shown.more_changes {
        lines.push(match args.limit < CHANGES_MAX {
            true => format!("and more: --limit (at most {CHANGES_MAX}) shows more"),
            false => "and more: `holdfast diff --path` shows them in parts".to_owned(),
        });
    }
    output::report(&lines.join("\n"))
}

pub(super) fn diff(args: &DiffArgs, json: bool) -> Result<(), Failure> {
    let client = client(&args.server)?;
    let (from, to) = match (args.versions.as_slice(), &args.from) {
        ([], from) => (from.as_ref(), "main"),
        ([to], from) => (from.as_ref(), to.as_str()),
        ([from, to], None) => (Some(from), to.as_str()),
        _ => {
            let message = "two versions are compared: say one of them once";
            return Err(Failure::new(FailureKind::Usage, message));
        }
    };
    let (workspace, side) = match &args.session {
        Some(session) => {
            let found: Session = client.get(&path_of(session, "")?)?;
            (found.workspace, format!("session={}", escape(session)))
        }
        None => (args.workspace.clone(), format!("to={}", escape(to))),
    };
    let mut path = format!(
        "/v1/workspaces/{}/diff?{side}&limit={}",
        escape(&workspace),
        args.limit
    );
    if let Some(from) = from {
        path.push_str(&format!("&from={}", escape(from)));
    }
    if let Some(within) = &args.path {
        path.push_str(&format!("&path={}", escape_bytes(within.as_bytes())));
    }
    for (name, is_asked) in [("stat", args.stat), ("text", args.text)] {
        if is_asked {
            path.push_str(&format!("&{name}=true"));
        }
    }
    let diff: Diff = client.get(&path)?;
    if json {
        return output::json(&diff);
    }
    show_diff(args, &diff)
}

fn show_diff(args: &DiffArgs, diff: &Diff) -> Result<(), Failure> {
    let more = match args.limit {
        limit if diff.items.len() >= limit && limit < CHANGES_MAX => {
            format!("--limit (at most {CHANGES_MAX}) or --path shows more")
        }
        _ => "--path shows them in parts".to_owned(),
    };
    if args.text {
        let patches = diff
            .items
            .iter()
            .filter_map(|change| change.patch.as_deref());
        let patches: String = patches.collect();
        if !patches.is_empty() {
            output::patch(&patches)?;
        }
        let partial = diff.items.iter().filter(|change| change.patch_partial);
        let partial = partial.count();
        if partial > 0 {
            output::note(&format!(
                "the patch only says that content differs where that is binary, not UTF-8 or over 1 \
                 MiB: in {partial} of its changes"
            ));
        }
        if diff.more {
            let message = format!("the patch is not whole, there are more changes: {more}");
            return Err(Failure::error(message));
        }
        return Ok(());
    }
    let mut lines: Vec<String> = match args.stat {
        true => diff.items.iter().map(size_line).collect(),
        false => diff.items.iter().map(change_line).collect(),
    };
    if diff.more {
        lines.push(format!("and more: {more}"));
    }
    lines.extend(diff.stat.iter().map(sums));
    if lines.is_empty() {
        return Ok(());
    }
    output::text(&lines.join("\n"))
}

/// A change with sizes in bytes.
fn size_line(change: &Change) -> String {
    let changed = &change.changed;
    let sizes = match (change.old_size, change.new_size) {
        _ if changed.kind == "directory" => return change_line(change),
        (Some(old), Some(new)) if changed.what != "added" && changed.what != "removed" => {
            format!("{old} -> {new} bytes")
        }
        (_, Some(new)) if changed.what == "added" => format!("{new} bytes"),
        (Some(old), _) => format!("{old} bytes"),
        (None, _) => return change_line(change),
    };
    format!("{} | {sizes}", change_line(change))
}

fn sums(stat: &Stat) -> String {
    let part = |at: usize, done: &str| {
        let (files, bytes) = (stat.files.get(at), stat.bytes.get(at));
        let (files, bytes) = (files.copied().unwrap_or(0), bytes.copied().unwrap_or(0));
        format!("{files} {done} ({bytes} bytes)")
    };
    let all = [part(0, "added"), part(1, "changed"), part(2, "removed")];
    let more = if stat.more { ", and more" } else { "" };
    format!("{}{more}", all.join(", "))
}

fn change_line(change: &Change) -> String {
    let line = path_line(&change.changed);
    match change.further {
        0 => line,
        further => format!("{line}  (and {further} further names)"),
    }
}

/// A letter for what happened, as git has it, and the path.
fn path_line(changed: &ChangedPath) -> String {
    let path = show_path(&changed.path, changed.path_bytes.as_ref());
    let letter = match changed.what.as_str() {
        "added" => 'A',
        "removed" => 'D',
        "renamed" => 'R',
        "type-changed" => 'T',
        _ => 'M',
    };
    match &changed.old_path {
        Some(old) => {
            let old = show_path(old, changed.old_path_bytes.as_ref());
            format!("{letter}  {old} -> {path}")
        }
        None => format!("{letter}  {path}"),
    }
}

/// A commit as people read it.
fn described(commit: &Commit) -> String {
    let mut lines = vec![format!("commit {}", commit.id)];
    if commit.parents.len() > 1 {
        let parents: Vec<String> = commit.parents.iter().map(|id| short(id)).collect();
        lines.push(format!("merge   {}", parents.join(" ")));
    }
    let session = commit.session.clone().unwrap_or_default();
    for (name, value) in [
        ("author", &commit.author),
        ("agent", &commit.agent),
        ("run", &commit.run),
        ("session", &session),
        ("model", &commit.model),
        ("call", &commit.tool_call),
    ] {
        if !value.is_empty() {
            lines.push(format!("{name:<7} {}", output::in_line(value)));
        }
    }
    lines.push(format!("date    {}", commit.time));
    for (key, value) in &commit.pairs {
        lines.push(output::in_line(&format!("{key} = {value}")));
    }
    if commit.conflicts > 0 {
        lines.push(format!("conflicts {}", commit.conflicts));
    }
    lines.push(String::new());
    lines.extend(commit.message.lines().map(|line| format!("    {line}")));
    lines.join("\n").trim_end().to_owned()
}

pub(super) fn refs(command: RefCommand, json: bool) -> Result<(), Failure> {
    match command {
        RefCommand::Ls(workspace) => {
            let client = client(&workspace.server)?;
            let path = format!("/v1/workspaces/{}/refs", escape(&workspace.name));
            let refs: Vec<Ref> = pages(&client, &path, usize::MAX)?;
            if json {
                return output::json(&refs);
            }
            let rows: Vec<_> = refs
                .into_iter()
                .map(|found| {
                    let protected = if found.protected { "protected" } else { "" };
                    let commit = short(&found.commit);
                    [
                        found.name,
                        found.kind,
                        commit,
                        protected.to_owned(),
                        found.updated,
                    ]
                })
                .collect();
            output::table(["NAME", "KIND", "COMMIT", "", "UPDATED"], &rows)
        }
        RefCommand::Create {
            name,
            version,
            tag,
            protected,
            repeat,
            workspace,
        } => {
            let create = CreateRef {
                name,
                version,
                tag,
                protected,
            };
            let path = format!("/v1/workspaces/{}/refs", escape(&workspace.name));
            let made: Ref = client(&workspace.server)?
                .keyed(repeat)
                .post(&path, &create)?;
            if json {
                return output::json(&made);
            }
            let commit = short(&made.commit);
            output::text(&format!("{} {} is at {commit}", made.kind, made.name))
        }
        RefCommand::Delete(named) => {
            client(&named.workspace.server)?.delete(&ref_path(&named, "refs"))?;
            told(json, "deleted", &named.name)
        }
        RefCommand::Protect(named) => {
            client(&named.workspace.server)?.put(&ref_path(&named, "protected"))?;
            told(json, "protected", &named.name)
        }
        RefCommand::Unprotect(named) => {
            client(&named.workspace.server)?.delete(&ref_path(&named, "protected"))?;
            told(json, "unprotected", &named.name)
        }
    }
}

fn ref_path(named: &NamedRef, table: &str) -> String {
    let parts: Vec<String> = named.name.split('/').map(escape).collect();
    let workspace = escape(&named.workspace.name);
    format!("/v1/workspaces/{workspace}/{table}/{}", parts.join("/"))
}

fn told(json: bool, done: &str, name: &str) -> Result<(), Failure> {
    if json {
        return output::json(&serde_json::json!({ done: name }));
    }
    output::text(&format!("{name} is {done}"))
}

pub(super) fn operations(command: OpCommand, json: bool) -> Result<(), Failure> {
    match command {
        OpCommand::Log { limit, workspace } => {
            let client = client(&workspace.server)?;
            let path = format!("/v1/workspaces/{}/operations", escape(&workspace.name));
            let found: Vec<Operation> = pages(&client, &path, limit)?;
            if json {
                return output::json(&found);
            }
            let rows: Vec<_> = found
                .into_iter()
                .map(|operation| {
                    [
                        operation.id,
                        operation.time,
                        operation.what,
                        operation.agent,
                    ]
                })
                .collect();
            output::table(["OPERATION", "TIME", "WHAT", "AGENT"], &rows)
        }
        OpCommand::Undo {
            operation,
            workspace,
        } => {
            let path = format!("/v1/workspaces/{}/undo", escape(&workspace.name));
            let undo = Undo {
                operation: operation.clone(),
            };
            client(&workspace.server)?.post_for_nothing(&path, &undo)?;
            told(json, "undone", &operation)
        }
    }
}
