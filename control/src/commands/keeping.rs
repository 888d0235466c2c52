//! `holdfast workspace delete`, `workspace retention`, `pin`.

use std::time::Duration;

use super::pages::pages;
use super::{client, escape};
use crate::cli_keeping::{DeleteArgs, PinCommand, PinPlace, RetentionArgs};
use crate::client::Client;
use crate::failure::{Failure, FailureKind};
use crate::history::short;
use crate::keeping::{AddPin, Pin, RemovedWorkspace, Retention, SetRetention};
use crate::output;
use crate::types::Page;
use crate::units::Period;

pub(super) fn delete_workspace(args: &DeleteArgs, json: bool) -> Result<(), Failure> {
    let name = &args.name;
    if !args.yes {
        let message = format!(
            "this removes workspace {name:?} with its history and all its files, for good: say --yes if \
             that is what you want"
        );
        return Err(Failure::new(FailureKind::Usage, message));
    }
    let mut path = format!("/v1/workspaces/{}", escape(name));
    if args.force {
        path.push_str("?force=true");
    }
    let removed: RemovedWorkspace = client(&args.server)?.delete_for(&path)?;
    if json {
        return output::json(&removed);
    }
    output::text(&format!(
        "workspace {} is gone; its history is removed in the background, and the space of its files is \
         given back by the next collections",
        removed.name
    ))
}

/// Workspaces that are being removed.
pub(super) fn removals(client: &Client, json: bool) -> Result<(), Failure> {
    let page: Page<RemovedWorkspace> = client.get("/v1/removals")?;
    if json {
        return output::json(&page.items);
    }
    let rows = page.items.into_iter();
    let rows: Vec<_> = rows.map(|one| [one.id, one.name, one.since]).collect();
    output::table(["ID", "NAME", "SINCE"], &rows)
}

pub(super) fn retention(args: &RetentionArgs, json: bool) -> Result<(), Failure> {
    let client = client(&args.server)?;
    let path = format!("/v1/workspaces/{}/retention", escape(&args.name));
    let retention: Retention = match args.keep_for {
        Some(Period(keep_for)) => {
            let set = SetRetention {
                keep_seconds: keep_for.as_secs(),
                keep_last: args.keep_last.unwrap_or(0),
            };
            client.put_json(&path, &set)?
        }
        None if args.off => client.delete_for(&path)?,
        None => client.get(&path)?,
    };
    if json {
        return output::json(&retention);
    }
    output::text(&told(&args.name, &retention))
}

fn told(name: &str, retention: &Retention) -> String {
    let mut text = match retention.keep_seconds {
        None => format!("workspace {name} keeps everything"),
        Some(seconds) => {
            let period = Period(Duration::from_secs(seconds));
            let last = match retention.keep_last {
                Some(last) if last > 0 => format!(", and the last {last} commits"),
                _ => String::new(),
            };
            format!(
                "workspace {name} keeps what branches, tags, sessions and pins need, what is younger \
                 than {period}{last}"
            )
        }
    };
    if let Some(since) = &retention.logs_since {
        text.push_str(&format!("; its logs go back to {since}"));
    }
    text
}

pub(super) fn pins(command: PinCommand, json: bool) -> Result<(), Failure> {
    match command {
        PinCommand::Add {
            version,
            note,
            place,
        } => {
            let add = AddPin { version, note };
            let pinned: Pin = client(&place.server)?.post(&path_of(&place), &add)?;
            if json {
                return output::json(&pinned);
            }
            output::text(&format!("commit {} is pinned", pinned.commit))
        }
        PinCommand::Rm { version, place } => {
            let path = format!("{}/{}", path_of(&place), escape(&version));
            client(&place.server)?.delete(&path)?;
            if json {
                return output::json(&serde_json::json!({ "unpinned": version }));
            }
            output::text(&format!(
                "{} is not pinned any more",
                output::in_line(&version)
            ))
        }
        PinCommand::Ls { place } => list_pins(&client(&place.server)?, &path_of(&place), json),
    }
}

fn path_of(place: &PinPlace) -> String {
    format!("/v1/workspaces/{}/pins", escape(&place.workspace))
}

fn list_pins(client: &Client, path: &str, json: bool) -> Result<(), Failure> {
    let all: Vec<Pin> = pages(client, path, usize::MAX)?;
    if json {
        return output::json(&all);
    }
    let rows = all.into_iter();
    let rows: Vec<_> = rows
        .map(|pin| {
            let note = output::in_line(&pin.note);
            [short(&pin.commit).to_owned(), pin.created, note]
        })
        .collect();
    output::table(["COMMIT", "PINNED", "NOTE"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_told() {
        assert_eq!(
            told("w", &Retention::default()),
            "workspace w keeps everything"
        );
        let retention = Retention {
            keep_seconds: Some(30 * 86_400),
            keep_last: Some(100),
            logs_since: Some("2026-01-01T00:00:00Z".into()),
        };
        let told = told("w", &retention);
        for part in ["younger than 30d", "last 100 commits", "go back to 2026"] {
            assert!(told.contains(part), "{told}");
        }
    }
}
