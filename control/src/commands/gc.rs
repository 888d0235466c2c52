//! `holdfast gc`.

use super::client;
use crate::cli::Gc;
use crate::failure::{Failure, FailureKind};
use crate::output;
use crate::types::{Collection, CollectionState, StartCollection};

/// Looks at a collection that runs, each of which waits for some seconds: more than a day.
const LOOKS_MAX: u32 = 10_000;

pub(super) fn run(args: &Gc, json: bool) -> Result<(), Failure> {
    let client = client(&args.server)?;
    let start = StartCollection {
        dry_run: args.dry_run,
    };
    let mut this: Collection = client.post("/v1/gc", &start)?;
    let path = format!("/v1/gc/{}", this.run);
    for _ in 0..LOOKS_MAX {
        match this.state {
            CollectionState::Queued | CollectionState::Running => this = client.get(&path)?,
            CollectionState::Done | CollectionState::Failed => break,
        }
    }
    if json {
        output::json(&this)?;
    }
    match (this.state, &this.error) {
        (CollectionState::Failed, why) => {
            let kind = if this.retry {
                FailureKind::Retry
            } else {
                FailureKind::Error
            };
            let why = why.as_deref().unwrap_or("see the server's log");
            Err(Failure::new(kind, format_args!("collection: {why}")))
        }
        (CollectionState::Queued | CollectionState::Running, _) => {
            let message = "the collection still runs: `GET /v1/gc` tells of it";
            Err(Failure::new(FailureKind::Retry, message))
        }
        (CollectionState::Done, _) => {
            if json {
                return Ok(());
            }
            output::text(&told(&this))
        }
    }
}

fn told(this: &Collection) -> String {
    let mut lines = vec![format!(
        "live: {} chunks, {}; dead: {} chunks, {}",
        this.live_chunks,
        mebibytes(this.live_bytes),
        this.dead_chunks,
        mebibytes(this.dead_bytes)
    )];
    if this.expired_commits > 0 {
        let (commits, nodes) = (this.expired_commits, this.expired_nodes);
        lines.push(if this.dry_run {
            format!(
                "retention would let go {commits} commits, whose trees have {nodes} nodes that \
                 nothing else has"
            )
        } else {
            let entries = this.expired_log_entries;
            format!("retention let go {commits} commits and {entries} log entries")
        });
    }
    if this.dry_run {
        lines.push("dry run: nothing was removed".into());
        return lines.join("\n");
    }
    lines.push(format!(
        "freed {}: {} packs removed, {} rewritten ({} copied); packs take {}",
        mebibytes(this.freed_bytes),
        this.packs_removed,
        this.packs_rewritten,
        mebibytes(this.copied_bytes),
        mebibytes(this.stored_bytes)
    ));
    if this.packs_without_room > 0 {
        lines.push(format!(
            "{} packs were not rewritten for want of room: collect again when there is more",
            this.packs_without_room
        ));
    }
    lines.join("\n")
}

/// With one decimal, rounded down.
fn mebibytes(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) >> 20;
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Trigger;

    #[test]
    fn figures_are_told() {
        assert_eq!(mebibytes((3 << 20) + (1 << 19)), "3.5 MiB");
        assert_eq!(mebibytes(u64::MAX), "1759218604441.5 MiB");
        let mut this = Collection::new(1, Trigger::Asked, true);
        this.dead_chunks = 7;
        assert!(told(&this).contains("dead: 7 chunks") && told(&this).contains("dry run"));
        this.dry_run = false;
        this.packs_without_room = 2;
        assert!(told(&this).contains("2 packs were not rewritten"));
    }
}
