//! What a check says.

use metadata::check::{Problem, Report, Use};

use super::content::Content;
use crate::failure::Failure;
use crate::output;

/// Prints what was found. `notes` are further notes.
pub(super) fn print(
    report: &Report,
    content: Option<&Content>,
    notes: Vec<String>,
    json: bool,
) -> Result<(), Failure> {
    let mut all = notes;
    all.extend(
        content
            .iter()
            .flat_map(|content| content.notes.iter().cloned()),
    );
    if json {
        output::json(&report_as_json(report, content, &all))
    } else {
        output::text(&as_text(report, content, &all))
    }
}

fn report_as_json(
    report: &Report,
    content: Option<&Content>,
    notes: &[String],
) -> serde_json::Value {
    let problems: Vec<_> = report.problems.iter().map(as_json).collect();
    let uses: Vec<_> = report.uses.iter().map(use_as_json).collect();
    let counts = &report.counts;
    serde_json::json!({
        "clean": report.is_clean(),
        "problems_total": report.problems_total,
        "problems": problems,
        "uses": uses,
        "uses_left_out": report.uses_left_out,
        "notes": notes,
        "content": content.map(|content| serde_json::json!({
            "intact": content.counts.intact,
            "damaged": content.counts.damaged,
            "unreadable_packs": content.counts.unreadable_packs,
            "deep": content.is_deep,
        })),
        "counts": {
            "keys": counts.keys,
            "workspaces": counts.workspaces,
            "sessions": counts.sessions,
            "inodes": counts.inodes,
            "entries": counts.entries,
            "blocks": counts.blocks,
            "chunks": counts.chunks,
            "replies": counts.replies,
            "tickets": counts.tickets,
            "commits": counts.commits,
            "refs": counts.refs,
            "operations": counts.operations,
            "trees": counts.trees,
        },
    })
}

fn as_text(report: &Report, content: Option<&Content>, notes: &[String]) -> String {
    let mut lines: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    let told = u64::try_from(report.problems.len()).unwrap_or(u64::MAX);
    let more = report.problems_total.saturating_sub(told);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines.extend(report.uses.iter().map(use_as_text));
    if report.uses_left_out > 0 {
        let left_out = report.uses_left_out;
        lines.push(format!(
            "and {left_out} more sessions and commits use what is damaged"
        ));
    }
    let problems = report.problems.iter();
    let mut remedies: Vec<&str> = problems.map(|problem| problem.remedy.advice()).collect();
    remedies.sort_unstable();
    remedies.dedup();
    let remedies = remedies.into_iter();
    lines.extend(remedies.map(|advice| format!("what to do: {advice}")));
    lines.extend(notes.iter().map(|note| format!("note: {note}")));
    if let Some(Content {
        counts, is_deep, ..
    }) = content
    {
        let named = if *is_deep {
            ", each compared with its name"
        } else {
            ""
        };
        lines.push(format!(
            "content: {} chunks intact, {} damaged, {} packs unreadable{named}",
            counts.intact, counts.damaged, counts.unreadable_packs
        ));
    }
    lines.push(verdict(report));
    lines.join("\n")
}

fn verdict(report: &Report) -> String {
    let verdict = match report.problems_total {
        0 => "clean".to_owned(),
        1 => "1 problem".to_owned(),
        problems => format!("{problems} problems"),
    };
    let counts = &report.counts;
    format!(
        "{verdict}: {} keys, {} workspaces, {} sessions, {} commits, {} trees, {} inodes, {} \
         entries, {} blocks, {} chunks looked at",
        counts.keys,
        counts.workspaces,
        counts.sessions,
        counts.commits,
        counts.trees,
        counts.inodes,
        counts.entries,
        counts.blocks,
        counts.chunks
    )
}

fn as_json(problem: &Problem) -> serde_json::Value {
    serde_json::json!({
        "place": problem.place,
        "problem": problem.what,
        "advice": problem.remedy.advice(),
    })
}

fn use_as_json(used: &Use) -> serde_json::Value {
    let path = used.path.as_ref().map(|path| String::from_utf8_lossy(path));
    serde_json::json!({ "of": used.of, "path": path, "damaged": used.what })
}

fn use_as_text(used: &Use) -> String {
    let Use { of, what, .. } = used;
    match &used.path {
        Some(path) => {
            let path = String::from_utf8_lossy(path);
            format!("{of}: {path:?} uses {what}, which is damaged or missing")
        }
        None => format!("{of}: uses {what}, which is damaged or missing"),
    }
}
