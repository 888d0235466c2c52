//! `holdfast conflicts`, and what `session publish --dry-run` prints.

use super::pages::pages;
use super::session::path_of;
use super::{client, escape};
use crate::api::CLASHES_MAX;
use crate::cli_conflicts::{BetweenArgs, ConflictsCommand, ListArgs, ResolveArgs};
use crate::conflicts::{Clashes, Conflict, Planned, Resolve, Resolved, Version};
use crate::failure::Failure;
use crate::history::{self, short};
use crate::output;
use crate::reading::show_path;

pub(super) fn run(command: ConflictsCommand, json: bool) -> Result<(), Failure> {
    match command {
        ConflictsCommand::Ls(args) => list(&args, json),
        ConflictsCommand::Resolve(args) => resolve(args, json),
        ConflictsCommand::Between(args) => between(&args, json),
    }
}

fn list(args: &ListArgs, json: bool) -> Result<(), Failure> {
    let path = match &args.session {
        Some(session) => path_of(session, "/conflicts")?,
        None => format!(
            "/v1/workspaces/{}/conflicts?version={}",
            escape(&args.workspace),
            escape(args.version.as_deref().unwrap_or("main"))
        ),
    };
    let mut conflicts: Vec<Conflict> = pages(&client(&args.server)?, &path, usize::MAX)?;
    conflicts.sort_by(|one, other| (&one.path, &one.id).cmp(&(&other.path, &other.id)));
    if json {
        return output::json(&conflicts);
    }
    if conflicts.is_empty() {
        return output::text("no conflicts");
    }
    let blocks: Vec<String> = conflicts.iter().map(described).collect();
    output::text(&blocks.join("\n\n"))
}

/// A conflict as people read it.
fn described(conflict: &Conflict) -> String {
    let gone = if conflict.gone {
        "  (no longer there)"
    } else {
        ""
    };
    let mut lines = vec![
        format!(
            "{}{gone}",
            show_path(&conflict.path, conflict.path_bytes.as_ref())
        ),
        format!("    {}  {}", conflict.kind, conflict.id),
    ];
    for (name, version) in [
        ("base", &conflict.base),
        ("ours", &conflict.ours),
        ("theirs", &conflict.theirs),
    ] {
        let told = match version {
            Some(version) => version_line(version),
            None => "nothing".to_owned(),
        };
        lines.push(format!("    {name:<7} {told}"));
    }
    lines.join("\n")
}

/// A version in one line: what it is, where it is now, and where it is from.
fn version_line(version: &Version) -> String {
    let mut parts = vec![match version.kind.as_str() {
        "file" => format!("file, {} bytes, mode {:o}", version.size, version.mode),
        kind => format!("{kind}, mode {:o}", version.mode),
    }];
    if let Some(target) = &version.target {
        parts.push(format!("to {}", output::in_line(target)));
    }
    if let Some(here) = &version.here {
        parts.push(format!("now at {}", output::in_line(here)));
    }
    if let Some(commit) = &version.commit {
        let path = version.path.as_deref().map(output::in_line);
        let path = path.unwrap_or_default();
        parts.push(format!("from commit {}: {path}", short(commit)));
    }
    for (name, value) in [("agent", &version.agent), ("run", &version.run)] {
        if let Some(value) = value {
            parts.push(format!("{name} {}", output::in_line(value)));
        }
    }
    parts.join(", ")
}

fn resolve(args: ResolveArgs, json: bool) -> Result<(), Failure> {
    let path = path_of(&args.session, "/conflicts/resolve")?;
    let asked = Resolve {
        path: args.path,
        id: args.id,
        take: args.take,
    };
    let done: Resolved = client(&args.server)?.post(&path, &asked)?;
    if json {
        return output::json(&done);
    }
    output::text(&format!(
        "{} is resolved ({}, {}); {} left",
        output::in_line(&done.path),
        done.kind,
        done.take,
        done.left
    ))
}

fn between(args: &BetweenArgs, json: bool) -> Result<(), Failure> {
    // Said early, and in its own words.
    path_of(&args.two, "")?;
    let client = client(&args.server)?;
    let ask = |after: &str, limit: usize| {
        let limit = limit.min(CLASHES_MAX);
        let rest = format!("/clashes?with={}&limit={limit}{after}", escape(&args.two));
        client.get::<Clashes>(&path_of(&args.one, &rest)?)
    };
    let mut found = ask("", args.limit)?;
    // An answer has room for so much, whatever was asked for.
    while let Some(next) = &found.next
        && found.items.len() < args.limit
    {
        let left = args.limit - found.items.len();
        let mut further = ask(&format!("&after={}", escape(next)), left)?;
        if further.items.is_empty() {
            break;
        }
        found.items.append(&mut further.items);
        found.next = further.next;
    }
    if json {
        return output::json(&found);
    }
    if found.items.is_empty() {
        return output::text("no clashes");
    }
    let line = |clash: &crate::conflicts::Clash| {
        let path = show_path(&clash.path, clash.path_bytes.as_ref());
        format!("{:<18} {path}", clash.kind)
    };
    let mut lines: Vec<String> = found.items.iter().map(line).collect();
    if found.next.is_some() {
        lines.push("and more: --limit shows them".to_owned());
    }
    output::text(&lines.join("\n"))
}

/// Prints what a publish would do.
pub(super) fn planned(plan: &Planned) -> Result<(), Failure> {
    let branch = output::in_line(&plan.branch);
    let how = match plan.outcome.as_str() {
        "created" => format!("branch {branch} would be made"),
        "up-to-date" => format!("branch {branch} has all of it"),
        "merged" => format!("branch {branch} would go on to a merge with what it has"),
        _ => format!("branch {branch} would go forward"),
    };
    let mut lines = vec![if plan.publishes {
        how
    } else {
        format!(
            "nothing would be published: {} in the way",
            in_the_way(plan)
        )
    }];
    let line = |what: &str, conflict: &history::Conflict| {
        let path = show_path(&conflict.path, conflict.path_bytes.as_ref());
        format!("{what} ({}): {path}", conflict.kind)
    };
    lines.extend(plan.conflicts.iter().map(|it| line("clash", it)));
    lines.extend(further(plan.conflicts.len(), plan.conflicts_total));
    lines.extend(plan.unresolved.iter().map(|it| line("unresolved", it)));
    lines.extend(further(plan.unresolved.len(), plan.unresolved_total));
    output::text(&lines.join("\n"))
}

/// Says how many there are beside those that were told.
pub(super) fn further(told: usize, total: u64) -> Option<String> {
    let told = u64::try_from(told).unwrap_or(u64::MAX);
    let further = total.checked_sub(told).filter(|further| *further > 0)?;
    Some(format!("and {further} more"))
}

fn in_the_way(plan: &Planned) -> String {
    match (plan.conflicts_total, plan.unresolved_total) {
        (1, 0) => "1 clash is".to_owned(),
        (clashes, 0) => format!("{clashes} clashes are"),
        (0, 1) => "1 unresolved conflict is".to_owned(),
        (0, unresolved) => format!("{unresolved} unresolved conflicts are"),
        (clashes, unresolved) => {
            format!("{clashes} clashes and {unresolved} unresolved conflicts are")
        }
    }
}
