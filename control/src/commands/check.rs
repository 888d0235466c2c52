//! `holdfast check`.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{ChunkId, Clock, DomainId, SystemClock};
use chunkstore::local::{LocalOptions, LocalStore};
use metadata::check::{CheckOptions, Counts, Problem, Remedy, Report, check};
use metadata::kv::embedded::{EmbeddedKv, EmbeddedOptions};

use crate::cli;
use crate::data_dir::DataDir;
use crate::failure::Failure;
use crate::output;
use crate::server::{of_open, of_open_chunks};

/// Exit code if something is wrong with the data.
const FOUND: u8 = 1;

/// Keys between two signs of life.
const KEYS_BETWEEN: u64 = 200_000;

pub(super) fn run(args: &cli::Check, json: bool) -> Result<u8, Failure> {
    let dir = DataDir::open(&args.data_dir)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let options = EmbeddedOptions::default();
    let kv = EmbeddedKv::open(&dir.metadata(), &options, Arc::clone(&clock))
        .map_err(|error| of_open(&error))?;
    let chunks = if args.metadata_only {
        None
    } else {
        open_chunks(&dir, clock)?
    };
    let exists = |domain: DomainId, id: ChunkId| match &chunks {
        Some(chunks) => chunks.contains(domain, id),
        None => false,
    };
    let progress = Progress::default();
    let tell = |counts: &Counts| progress.tell(counts);
    let options = CheckOptions {
        trees: None,
        chunk_exists: (!args.metadata_only).then_some(&exists),
        progress: std::io::stderr().is_terminal().then_some(&tell),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("start", &error))?;
    let mut report = runtime
        .block_on(check(&kv, options))
        .map_err(|error| Failure::error(format_args!("read the metadata store: {error}")))?;
    if let Some(chunks) = &chunks {
        verify(chunks, &mut report);
    }
    kv.close();
    print(&report, json)?;
    Ok(if report.is_clean() { 0 } else { FOUND })
}

/// The chunk store, if there is one: opening would make it.
fn open_chunks(dir: &DataDir, clock: Arc<dyn Clock>) -> Result<Option<LocalStore>, Failure> {
    let path = dir.chunks();
    if !path.exists() {
        return Ok(None);
    }
    LocalStore::open(&path, LocalOptions::default(), clock)
        .map(Some)
        .map_err(|error| of_open_chunks(&error))
}

/// Reads all content that is stored.
fn verify(chunks: &LocalStore, report: &mut Report) {
    chunks.verify(|chunk| {
        if !chunk.intact {
            let place = format!("chunk {}", chunk.id);
            report.add(place, "its content is damaged", Remedy::Store);
        }
    });
}

/// Says from time to time how far a check is.
#[derive(Debug, Default)]
struct Progress {
    told: AtomicU64,
}

impl Progress {
    fn tell(&self, counts: &Counts) {
        let told = self.told.load(Ordering::Relaxed);
        if counts.keys >= told + KEYS_BETWEEN {
            self.told.store(counts.keys, Ordering::Relaxed);
            let (keys, inodes) = (counts.keys, counts.inodes);
            output::note(&format!("checked {keys} keys, {inodes} inodes"));
        }
    }
}

fn print(report: &Report, json: bool) -> Result<(), Failure> {
    let counts = &report.counts;
    if json {
        let problems: Vec<_> = report.problems.iter().map(as_json).collect();
        return output::json(&serde_json::json!({
            "clean": report.is_clean(),
            "problems_total": report.problems_total,
            "problems": problems,
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
            },
        }));
    }
    let mut lines: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    let told = u64::try_from(report.problems.len()).unwrap_or(u64::MAX);
    let more = report.problems_total.saturating_sub(told);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    let mut remedies: Vec<&str> = report
        .problems
        .iter()
        .map(|problem| problem.remedy.advice())
        .collect();
    remedies.sort_unstable();
    remedies.dedup();
    lines.extend(
        remedies
            .into_iter()
            .map(|advice| format!("what to do: {advice}")),
    );
    let verdict = match report.problems_total {
        0 => "clean".to_owned(),
        1 => "1 problem".to_owned(),
        problems => format!("{problems} problems"),
    };
    lines.push(format!(
        "{verdict}: {} keys, {} workspaces, {} sessions, {} commits, {} inodes, {} entries, {} \
         blocks, {} chunks looked at",
        counts.keys,
        counts.workspaces,
        counts.sessions,
        counts.commits,
        counts.inodes,
        counts.entries,
        counts.blocks,
        counts.chunks
    ));
    output::text(&lines.join("\n"));
    Ok(())
}

fn as_json(problem: &Problem) -> serde_json::Value {
    serde_json::json!({
        "place": problem.place,
        "problem": problem.what,
        "advice": problem.remedy.advice(),
    })
}
