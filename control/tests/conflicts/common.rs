//! What the tests of conflicts share.

use std::path::Path;

use serde_json::Value;

use crate::cases::{CASES, begin};
use crate::support::files::{Mount, mounted};
use crate::support::{Server, id, json, publish};

/// Exit code if something else is in the way.
pub(crate) const CONFLICT: i32 = 3;

pub(crate) fn text(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no text"))
}

pub(crate) fn resolve(dir: &Path, session: &Value, more: &[&str]) -> Value {
    let args = [&["conflicts", "resolve", id(session)], more].concat();
    json(&args, dir)
}

pub(crate) fn list(dir: &Path, session: &Value) -> Vec<Value> {
    let found = json(&["conflicts", "ls", "--session", id(session)], dir);
    found.as_array().unwrap().clone()
}

/// `KIND PATH` of each.
pub(crate) fn told(conflicts: &Value) -> Vec<String> {
    let line = |it: &Value| format!("{} {}", text(&it["kind"]), text(&it["path"]));
    let mut lines: Vec<String> = conflicts.as_array().unwrap().iter().map(line).collect();
    lines.sort();
    lines
}

/// Without the digits of commits in names of what was put aside.
pub(crate) fn without_ids(lines: Vec<String>) -> Vec<String> {
    let short = |mut line: String| {
        for side in ["~ours.", "~theirs."] {
            if let Some(at) = line.find(side) {
                let start = at + side.len() - 1;
                line.replace_range(start..start + 9, "");
            }
        }
        line
    };
    let mut lines: Vec<String> = lines.into_iter().map(short).collect();
    lines.sort();
    lines
}

/// A session with one conflict about `f`.
pub(crate) async fn with_a_conflict(server: &Server, dir: &Path) -> (Value, Mount) {
    let [ours, theirs] = begin(server, dir, "w", &CASES[0]).await;
    publish(dir, &ours, &["-m", "left"]);
    publish(dir, &theirs, &["-m", "right", "--policy", "keep-both"]);
    mounted(server, dir, &["w"]).await
}

/// Two sides that both made these files, published with their conflicts; a session that has them.
pub(crate) async fn with_many(server: &Server, dir: &Path, paths: &[String]) -> Value {
    json(&["workspace", "create", "w"], dir);
    let base = json(&["session", "open", "w"], dir);
    publish(dir, &base, &[]);
    let mut sides = Vec::new();
    for content in ["ours", "theirs"] {
        let (session, mut files) = mounted(server, dir, &["w"]).await;
        for path in paths {
            files.write(path, content).await;
        }
        sides.push(session);
    }
    publish(dir, &sides[0], &[]);
    publish(dir, &sides[1], &["--policy", "keep-both"]);
    json(&["session", "open", "w"], dir)
}
