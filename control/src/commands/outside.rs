//! `holdfast session restore`, `sync` and `changed`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::history::conflict_line;
use super::session::path_of;
use super::{client, conflicts, served};
use crate::cli_outside::{ChangedArgs, RestoreArgs, SyncArgs};
use crate::failure::Failure;
use crate::history::short;
use crate::output;
use crate::outside::{Acknowledge, Changed, Restore, Restored, Sync, Synced, path_texts};
use crate::reading::show_path;

pub(super) fn restore(args: RestoreArgs, json: bool) -> Result<(), Failure> {
    let path = path_of(&args.session, "/restore")?;
    let (paths, paths_bytes) = path_texts(args.paths.into_iter().map(OsString::into_vec));
    let restore = Restore {
        version: args.version,
        paths,
        paths_bytes,
    };
    let done: Restored = client(&args.server)?
        .keyed(args.repeat)
        .post(&path, &restore)?;
    if json {
        return output::json(&done);
    }
    let version = short(&done.version);
    let Some(operation) = &done.operation else {
        return output::text(&format!("nothing differs from commit {version}"));
    };
    let mut lines = vec![format!(
        "restored from commit {version}; `holdfast op undo {operation}` undoes it"
    )];
    if let Some(before) = &done.before {
        lines.push(format!("what was there is commit {}", short(before)));
    }
    lines.push(refresh_line(done.changed));
    output::text(&lines.join("\n"))
}

pub(super) fn sync(args: SyncArgs, json: bool) -> Result<(), Failure> {
    let client = client(&args.server)?.keyed(args.repeat);
    let path = path_of(&served(&client, args.session)?, "/sync")?;
    let sync = Sync {
        policy: Some(args.policy),
        dry_run: args.dry_run,
    };
    let done: Synced = client.post(&path, &sync)?;
    if json {
        return output::json(&done);
    }
    let (branch, head) = (&done.branch, short(&done.head));
    let mut lines = vec![match (done.outcome.as_str(), done.dry_run) {
        ("up-to-date", _) => format!("the session has all of branch {branch}, at {head}"),
        ("fast-forward", false) => format!("the session is at {head}, as branch {branch}"),
        ("fast-forward", true) => format!("the session would be at {head}, as branch {branch}"),
        (_, false) => format!("the session is at a merge with branch {branch}, at {head}"),
        (_, true) => format!("the session would be merged with branch {branch}, at {head}"),
    }];
    lines.extend(done.conflicts.iter().map(conflict_line));
    lines.extend(conflicts::further(
        done.conflicts.len(),
        done.conflicts_total,
    ));
    if let Some(operation) = &done.operation {
        lines.push(format!("`holdfast op undo {operation}` undoes it"));
        lines.push(refresh_line(done.changed));
    }
    output::report(&lines.join("\n"))
}

pub(super) fn changed(args: ChangedArgs, json: bool) -> Result<(), Failure> {
    let client = client(&args.server)?;
    let path = path_of(&served(&client, args.session)?, "/changed")?;
    if let Some(position) = args.acknowledge {
        client.post_for_nothing(&path, &Acknowledge { position })?;
        if json {
            return output::json(&serde_json::json!({ "acknowledged": position }));
        }
        return output::text(&format!("acknowledged up to {position}"));
    }
    let changed: Changed = client.get(&path)?;
    if json {
        return output::json(&changed);
    }
    let Some(position) = changed.position else {
        return output::text("nothing changed from outside");
    };
    let mut lines: Vec<String> = changed
        .paths
        .iter()
        .map(|path| output::in_line(path))
        .collect();
    let others = changed.paths_bytes.iter();
    lines.extend(others.map(|bytes| show_path(bytes, Some(bytes))));
    if changed.everything {
        lines.push("everything may have changed".to_owned());
    }
    lines.push(format!("position {position}"));
    output::text(&lines.join("\n"))
}

fn refresh_line(changed: Option<usize>) -> String {
    let what = match changed {
        Some(1) => "1 path changed".to_owned(),
        Some(count) => format!("{count} paths changed"),
        None => "everything may have changed".to_owned(),
    };
    format!("{what}: run `holdfast refresh DIR` where the session is mounted")
}
