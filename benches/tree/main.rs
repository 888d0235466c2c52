//! What the snapshot tree costs: shape, and nodes and bytes rewritten by changes of several kinds.

mod image;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use base::{Clock, DomainId, SystemClock, Tasks};
use bench_suite::Error;
use bench_suite::measure::exit_code;
use bench_suite::report::float;
use clap::Parser;
use metadata::tree::{Edited, MemoryNodes, NodeCache, Root, Tree, TreeKeys};
use serde::Serialize;

use image::{Image, Pair, Records, Stream};

/// Samples of a change of one key.
const SINGLES: u64 = 200;

/// Memory for cached nodes.
const CACHE_BYTES: usize = 64 << 20;

/// Builds trees in memory and changes them.
#[derive(Debug, Parser)]
struct Arguments {
    /// Files of the images.
    #[arg(long, value_delimiter = ',', default_value = "1000,100000,1000000")]
    files: Vec<u64>,
    /// What values look like.
    #[arg(long, value_enum, default_value_t = Records::Stored)]
    records: Records,
    /// Which changes are drawn.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON array instead of tables.
    #[arg(long)]
    json: bool,
}

/// A tree and what was done to it.
#[derive(Debug, Serialize)]
struct Report {
    files: u64,
    keys: u64,
    /// Keys and values, as they are.
    raw_bytes: u64,
    build_ms: f64,
    /// Leaves first.
    levels: Vec<LevelReport>,
    changes: Vec<ChangeReport>,
    /// Most memory of this process so far.
    peak_bytes: u64,
}

#[derive(Debug, Serialize)]
struct LevelReport {
    nodes: u64,
    bytes: u64,
    bytes_average: f64,
    bytes_deviation: f64,
    bytes_max: u64,
}

/// One kind of change, on average.
#[derive(Debug, Serialize)]
struct ChangeReport {
    name: &'static str,
    samples: u64,
    keys: f64,
    nodes: f64,
    bytes: f64,
    apply_ms: f64,
    /// Nodes that comparing the two versions reads, nothing being cached.
    diff_reads: f64,
    diff_ms: f64,
}

/// Draws a change.
type Draw<'a> = &'a dyn Fn(&mut Stream) -> Vec<Pair>;

struct Bench {
    clock: SystemClock,
    store: Arc<MemoryNodes>,
    tree: Tree,
}

fn keys() -> TreeKeys {
    TreeKeys::new(DomainId::new(1), &[1; 32], &[2; 32])
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Setup(error.to_string())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

impl Bench {
    fn new() -> Self {
        let store = Arc::new(MemoryNodes::new());
        let cache = Arc::new(NodeCache::new(CACHE_BYTES));
        Self {
            clock: SystemClock::new(),
            tree: Tree::new(store.clone(), cache, keys(), Tasks::new()),
            store,
        }
    }

    async fn timed<T>(&self, work: impl Future<Output = T>) -> (Duration, T) {
        let begun = self.clock.monotonic();
        let done = work.await;
        (self.clock.monotonic().saturating_sub(begun), done)
    }

    async fn levels(&self, root: Root) -> Result<Vec<LevelReport>, Error> {
        let mut lengths: Vec<Vec<u64>> = Vec::new();
        let mut walk = self.tree.walk(root);
        while let Some(node) = walk.next(|_| false).await.map_err(failed)? {
            let level = usize::from(node.level());
            if lengths.len() <= level {
                lengths.resize(level + 1, Vec::new());
            }
            if let Some(lengths) = lengths.get_mut(level) {
                lengths.push(u64::try_from(node.bytes().len()).unwrap_or(u64::MAX));
            }
        }
        Ok(lengths.iter().map(|lengths| level(lengths)).collect())
    }

    /// Reads of the store and time of comparing two versions with a cold cache; and that the
    /// comparison finds what was changed.
    async fn diff(&self, old: Root, new: Root, keys: usize) -> Result<(u64, Duration), Error> {
        let cache = Arc::new(NodeCache::new(CACHE_BYTES));
        let cold = Tree::new(self.store.clone(), cache, self.keys(), Tasks::new());
        let before = self.store.gets();
        let (time, found) = self
            .timed(async {
                let (mut diff, mut found) = (cold.diff(old, new), 0);
                while diff.next().await?.is_some() {
                    found += 1;
                }
                Ok(found)
            })
            .await;
        let found: usize = found.map_err(|error: metadata::tree::TreeError| failed(error))?;
        if found != keys {
            return Err(Error::Wrong(format!("{found} keys differ, not {keys}")));
        }
        Ok((self.store.gets() - before, time))
    }

    fn keys(&self) -> TreeKeys {
        keys()
    }

    async fn apply(&self, root: Root, delta: &[Pair]) -> Result<(Duration, Edited), Error> {
        let edits = delta.iter().map(|(key, value)| (key, Some(value)));
        let (time, edited) = self.timed(self.tree.apply(root, edits)).await;
        Ok((time, edited.map_err(failed)?))
    }

    async fn change(
        &self,
        root: Root,
        name: &'static str,
        samples: u64,
        mut draw: impl FnMut() -> Vec<Pair>,
    ) -> Result<ChangeReport, Error> {
        let (mut keys, mut nodes, mut bytes, mut reads) = (0, 0, 0, 0);
        let (mut applying, mut comparing) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..samples {
            let delta = draw();
            let (time, edited) = self.apply(root, &delta).await?;
            let (read, compared) = self.diff(root, edited.root, delta.len()).await?;
            keys += u64::try_from(delta.len()).unwrap_or(u64::MAX);
            nodes += edited.written.nodes;
            bytes += edited.written.bytes;
            reads += read;
            applying += time;
            comparing += compared;
        }
        let each = |total: u64| float(total) / float(samples);
        Ok(ChangeReport {
            name,
            samples,
            keys: each(keys),
            nodes: each(nodes),
            bytes: each(bytes),
            apply_ms: millis(applying) / float(samples),
            diff_reads: each(reads),
            diff_ms: millis(comparing) / float(samples),
        })
    }

    async fn run(&self, image: &Image, seed: u64) -> Result<Report, Error> {
        let mut raw_bytes = 0_u64;
        let pairs = image.pairs().inspect(|(key, value)| {
            raw_bytes += u64::try_from(key.len() + value.len()).unwrap_or(u64::MAX);
        });
        let (build, built) = self.timed(self.tree.build(pairs)).await;
        let built = built.map_err(failed)?;
        let root = built.root;
        let mut noise = Stream::new(seed);
        let mut changes = Vec::new();
        let kinds: [(&'static str, u64, Draw<'_>); 5] = [
            ("1 random update", SINGLES, &|noise| image.updates(1, noise)),
            ("1,000 random updates", 3, &|noise| {
                image.updates(1000, noise)
            }),
            ("1,000 random inserts", 3, &|noise| {
                image.inserts(1000, noise)
            }),
            ("session: 190 new files in 19 dirs", 10, &|noise| {
                image.session(19, noise)
            }),
            ("session: 1,930 new files in 193 dirs", 3, &|noise| {
                image.session(193, noise)
            }),
        ];
        for (name, samples, draw) in kinds {
            changes.push(
                self.change(root, name, samples, || draw(&mut noise))
                    .await?,
            );
        }
        Ok(Report {
            files: image.files,
            keys: built.counters.entries,
            raw_bytes,
            build_ms: millis(build),
            levels: self.levels(root).await?,
            changes,
            peak_bytes: peak_bytes()?,
        })
    }
}

fn level(lengths: &[u64]) -> LevelReport {
    let nodes = u64::try_from(lengths.len()).unwrap_or(u64::MAX);
    let bytes = lengths.iter().sum();
    let average = float(bytes) / float(nodes);
    let squares = lengths
        .iter()
        .map(|length| (float(*length) - average).powi(2));
    LevelReport {
        nodes,
        bytes,
        bytes_average: average,
        bytes_deviation: (squares.sum::<f64>() / float(nodes)).sqrt(),
        bytes_max: lengths.iter().max().copied().unwrap_or_default(),
    }
}

/// Most memory this process has had.
fn peak_bytes() -> Result<u64, Error> {
    let text = std::fs::read_to_string("/proc/self/status").map_err(Error::io("read the peak"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next());
    let kib = kib.and_then(|kib| kib.parse::<u64>().ok());
    kib.map(|kib| kib * 1024)
        .ok_or_else(|| Error::Setup("/proc/self/status has no VmHWM".into()))
}

fn table(report: &Report) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let (kb, mb) = (1000.0, 1_000_000.0);
    writeln!(
        text,
        "{} files, {} keys, {:.1} MB of keys and values; built in {:.0} ms; peak {:.0} MB",
        report.files,
        report.keys,
        float(report.raw_bytes) / mb,
        report.build_ms,
        float(report.peak_bytes) / mb,
    )?;
    writeln!(
        text,
        "| level | nodes | MB | average, deviation, max, KB |\n|---|---|---|---|"
    )?;
    for (number, level) in report.levels.iter().enumerate() {
        writeln!(
            text,
            "| {number} | {} | {:.2} | {:.1} ± {:.1}, {:.1} |",
            level.nodes,
            float(level.bytes) / mb,
            level.bytes_average / kb,
            level.bytes_deviation / kb,
            float(level.bytes_max) / kb,
        )?;
    }
    writeln!(
        text,
        "| change | keys | nodes | bytes | apply | diff reads | diff |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|")?;
    for change in &report.changes {
        writeln!(
            text,
            "| {} | {:.0} | {:.1} | {:.1} KB | {:.2} ms | {:.1} | {:.2} ms |",
            change.name,
            change.keys,
            change.nodes,
            change.bytes / kb,
            change.apply_ms,
            change.diff_reads,
            change.diff_ms,
        )?;
    }
    Ok(text)
}

fn measure() -> Result<(), Error> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(Error::io("start a runtime"))?;
    let mut reports = Vec::new();
    let mut out = std::io::stdout();
    for files in arguments.files {
        let image = Image::new(files.max(1), arguments.records);
        let report = runtime.block_on(Bench::new().run(&image, arguments.seed))?;
        if arguments.json {
            reports.push(report);
        } else {
            let text = table(&report).map_err(failed)?;
            writeln!(out, "{text}").map_err(Error::io("print the report"))?;
        }
    }
    if arguments.json {
        let text = serde_json::to_string_pretty(&reports).map_err(failed)?;
        writeln!(out, "{text}").map_err(Error::io("print the report"))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    exit_code("tree", measure())
}
