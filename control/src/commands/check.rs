//! `holdfast check`.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{ChunkId, Clock, DomainId, NodeId, SystemClock, Tasks};
use bytes::Bytes;
use chunkstore::local::{LocalReader, VerifyCounts};
use chunkstore::{ChunkError, Domain};
use metadata::check::{CheckOptions, Counts, Problem, Remedy, Report, check};
use metadata::kv::embedded::{EmbeddedKv, EmbeddedOptions};
use metadata::tree::{NodeCache, NodeFuture, NodeStore, Tree, TreeError, TreeKeys, Trees};

use crate::cli;
use crate::data_dir::DataDir;
use crate::failure::Failure;
use crate::output;
use crate::server::{of_open, of_open_chunks};

/// Exit code if something is wrong with the data.
const FOUND: u8 = 1;

/// Nodes of trees that are kept in memory, in bytes.
const NODE_CACHE_BYTES: usize = 64 << 20;

/// Keys between two signs of life.
const KEYS_BETWEEN: u64 = 200_000;

pub(super) fn run(args: &cli::Check, json: bool) -> Result<u8, Failure> {
    let dir = DataDir::look_at(&args.data_dir)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let options = EmbeddedOptions::default();
    let kv =
        EmbeddedKv::look_at(&dir.metadata(), &options, clock).map_err(|error| of_open(&error))?;
    let chunks = if args.metadata_only {
        None
    } else {
        look_at_chunks(&dir)?.map(Arc::new)
    };
    let trees = chunks.clone().map(|chunks| LookedTrees { chunks });
    let exists = |domain: DomainId, id: ChunkId| match &chunks {
        Some(chunks) => chunks.contains(domain, id),
        None => false,
    };
    let progress = Progress::default();
    let tell = |counts: &Counts| progress.tell(counts);
    let options = CheckOptions {
        trees: trees.as_ref().map(|trees| -> &dyn Trees { trees }),
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
    let content = (chunks.as_deref()).map(|chunks| verify(chunks, &mut report));
    kv.close();
    print(&report, content.as_ref(), json)?;
    Ok(if report.is_clean() { 0 } else { FOUND })
}

/// The chunk store, if there is one yet.
fn look_at_chunks(dir: &DataDir) -> Result<Option<LocalReader>, Failure> {
    let path = dir.chunks();
    if !path.exists() {
        return Ok(None);
    }
    LocalReader::open(&path)
        .map(Some)
        .map_err(|error| of_open_chunks(&error))
}

/// Trees in a chunk store that is looked at.
#[derive(Debug)]
struct LookedTrees {
    chunks: Arc<LocalReader>,
}

/// Nodes of one domain in it.
#[derive(Debug)]
struct LookedNodes {
    chunks: Arc<LocalReader>,
    domain: Domain,
}

impl Trees for LookedTrees {
    fn open(&self, keys: TreeKeys) -> Tree {
        let nodes = LookedNodes {
            chunks: Arc::clone(&self.chunks),
            domain: Domain {
                id: keys.domain(),
                key: *keys.node_key(),
            },
        };
        let cache = Arc::new(NodeCache::new(NODE_CACHE_BYTES));
        Tree::new(Arc::new(nodes), cache, keys, Tasks::new())
    }
}

impl NodeStore for LookedNodes {
    fn get(&self, id: NodeId) -> NodeFuture<'_, Bytes> {
        Box::pin(async move {
            let chunk = ChunkId::new(*id.as_bytes());
            self.chunks
                .get(self.domain, chunk)
                .map_err(|error| match error {
                    ChunkError::NotFound(_) => TreeError::Missing(id),
                    other => TreeError::Unavailable(other.to_string()),
                })
        })
    }

    fn put(&self, _: NodeId, _: Bytes) -> NodeFuture<'_, ()> {
        Box::pin(async { Err(TreeError::Unavailable("nothing is written here".into())) })
    }

    fn sync(&self) -> NodeFuture<'_, ()> {
        Box::pin(async { Err(TreeError::Unavailable("nothing is written here".into())) })
    }
}

/// What was found of the stored content.
#[derive(Debug)]
struct Content {
    counts: VerifyCounts,
    /// What is no damage and yet worth knowing.
    notes: Vec<String>,
}

/// Reads all content that is stored.
fn verify(chunks: &LocalReader, report: &mut Report) -> Content {
    for pack in chunks.unreadable() {
        let place = pack.path.display().to_string();
        let what = format!(
            "cannot be read, and nothing in it was checked: {}",
            pack.why
        );
        report.add(place, what, Remedy::Store);
    }
    let counts = chunks.verify(|chunk| {
        if !chunk.intact {
            let place = format!("chunk {}", chunk.id);
            report.add(place, "its content is damaged", Remedy::Store);
        }
    });
    let known = u64::try_from(chunks.unreadable().len()).unwrap_or(u64::MAX);
    if counts.unreadable_packs > known {
        let what = format!(
            "{} packs became unreadable while they were read",
            counts.unreadable_packs - known
        );
        report.add("chunks", what, Remedy::Store);
    }
    let notes = chunks.torn().iter().map(|tail| {
        format!(
            "{} ends in {} bytes of a record that was never finished; the next server does not \
             use them, and nothing that was acknowledged is in them",
            tail.path.display(),
            tail.bytes
        )
    });
    Content {
        notes: notes.collect(),
        counts,
    }
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

fn print(report: &Report, content: Option<&Content>, json: bool) -> Result<(), Failure> {
    let counts = &report.counts;
    let notes = content.map_or(&[][..], |content| &content.notes);
    if json {
        return print_json(report, content);
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
    lines.extend(notes.iter().map(|note| format!("note: {note}")));
    if let Some(Content { counts, .. }) = content {
        lines.push(format!(
            "content: {} chunks intact, {} damaged, {} packs unreadable",
            counts.intact, counts.damaged, counts.unreadable_packs
        ));
    }
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
    output::text(&lines.join("\n"))
}

fn print_json(report: &Report, content: Option<&Content>) -> Result<(), Failure> {
    let counts = &report.counts;
    let problems: Vec<_> = report.problems.iter().map(as_json).collect();
    output::json(&serde_json::json!({
        "clean": report.is_clean(),
        "problems_total": report.problems_total,
        "problems": problems,
        "notes": content.map_or(&[][..], |content| &content.notes),
        "content": content.map(|content| serde_json::json!({
            "intact": content.counts.intact,
            "damaged": content.counts.damaged,
            "unreadable_packs": content.counts.unreadable_packs,
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
        },
    }))
}

fn as_json(problem: &Problem) -> serde_json::Value {
    serde_json::json!({
        "place": problem.place,
        "problem": problem.what,
        "advice": problem.remedy.advice(),
    })
}
