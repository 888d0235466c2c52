//! `holdfast check`.

mod content;
mod nodes;
mod told;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{ChunkId, Clock, DomainId, Rng, SystemClock, Tasks};
use chunkstore::local::LocalReader;
use chunkstore::shared::ledger::ChunkKey;
use chunkstore::shared::{SharedOptions, SharedStore};
use metadata::check::{CheckOptions, Counts, Remedy, Report, check};
use metadata::tree::Trees;
use nfs_gateway::ChunkTrees;

use self::nodes::ReadTrees;
use super::metadata_of;
use crate::cli;
use crate::data_dir::DataDir;
use crate::failure::Failure;
use crate::failure::FailureKind;
use crate::output;
use crate::place::{Metadata, Purpose};
use crate::server::of_open_chunks;
use crate::settings::ChunkSettings;
use crate::tier::Content;

/// Exit code if something is wrong with the data.
const FOUND: u8 = 1;

/// Nodes of trees kept in memory, in bytes.
const NODE_CACHE_BYTES: usize = 64 << 20;

/// Keys between two signs of life.
const KEYS_BETWEEN: u64 = 200_000;

pub(super) fn run(args: &cli::Check, json: bool) -> Result<u8, Failure> {
    let settings = args.data.clone().settings()?;
    let dir = DataDir::look_at(&settings.data_dir)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    // Several threads: whether a shared chunk is there is asked from within a check.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::io("start", &error))?;
    let objects = settings.objects.clone();
    let opened = metadata_of(&dir, settings, Purpose::Look, Arc::clone(&clock));
    let metadata = runtime.block_on(opened)?;
    runtime.block_on(metadata.check_is_of(&dir, &clock))?;
    // Nobody else uses it: the directory is locked, or we have looked.
    runtime.block_on(metadata.check_nobody_serves(&clock))?;
    let kv = metadata.still(&clock)?;
    let is_shared = dir.tier()?.is_shared();
    if is_shared && args.deep {
        let message = "the content of files is shared, and shared content is not verified yet: leave out \
                       --deep; whether all of it is there is checked without";
        return Err(Failure::new(FailureKind::Usage, message));
    }
    let chunks = if args.metadata_only || is_shared {
        None
    } else {
        look_at_chunks(&dir)?.map(Arc::new)
    };
    let shared = if is_shared && !args.metadata_only {
        Some(runtime.block_on(SharedContent::open(&dir, &objects, &metadata, &clock))?)
    } else {
        None
    };
    let read = |error| Failure::error(format_args!("read the metadata store: {error}"));
    // First, so that it is known what is damaged when it is found who uses it.
    let content = match &chunks {
        Some(chunks) => {
            let names = if args.deep {
                let domains = runtime.block_on(content::domains(&kv));
                Some(domains.map_err(read)?)
            } else {
                None
            };
            Some(content::verify(chunks, names.as_ref()))
        }
        None => None,
    };
    // Without content every node would be missing, as every chunk.
    let trees: Box<dyn Trees> = match &shared {
        Some(shared) => Box::new(shared.trees()),
        None => Box::new(ReadTrees::new(chunks.clone())),
    };
    let exists = |domain: DomainId, id: ChunkId| match (&chunks, &shared) {
        (Some(chunks), _) => chunks.contains(domain, id),
        (None, Some(shared)) => shared.contains(domain, id),
        (None, None) => false,
    };
    let progress = Progress::default();
    let tell = |counts: &Counts| progress.tell(counts);
    let options = CheckOptions {
        trees: (!args.metadata_only).then_some(&*trees),
        chunk_exists: (!args.metadata_only).then_some(&exists),
        progress: std::io::stderr().is_terminal().then_some(&tell),
    };
    // On a worker thread, from where shared chunks can be asked for.
    let mut report = runtime.block_on(check(&kv, options)).map_err(read)?;
    metadata.close();
    if let Some(content) = &content {
        content.tell(&mut report);
    }
    let notes = look_for_loss(&dir, args, &mut report);
    told::print(&report, content.as_ref(), notes, json)?;
    Ok(if report.is_clean() { 0 } else { FOUND })
}

/// What the files of a data directory say beside what is in them. Gives what is no damage.
fn look_for_loss(dir: &DataDir, args: &cli::Check, report: &mut Report) -> Vec<String> {
    for (name, read) in [
        ("api-token", dir.api_token().err()),
        ("session.json", dir.session().err()),
    ] {
        if let Some(failure) = read {
            report.add(name, failure.message, Remedy::File);
        }
    }
    let is_finished = dir.is_finished();
    let is_empty = report.counts.keys == 0;
    let is_local = dir.tier().is_ok_and(|tier| !tier.is_shared());
    if !args.metadata_only && is_finished && is_local && !dir.chunks().exists() {
        let what = "is missing, and the content of files with it";
        report.add(dir.chunks().display().to_string(), what, Remedy::Store);
    }
    if is_empty && is_finished {
        let what = "holds nothing, although a server has used it";
        let place = match dir.elsewhere() {
            Ok(None) => dir.metadata().display().to_string(),
            Ok(Some(_)) | Err(_) => "FoundationDB with this fdb_prefix".to_owned(),
        };
        report.add(place, what, Remedy::Store);
    } else if is_empty {
        let note = "the data directory is not finished being made, and nothing is in it yet: its \
                    first server was stopped while it started; start a server once";
        return vec![note.to_owned()];
    }
    Vec::new()
}

/// Shared chunks, and whether the ledger could be asked.
struct SharedContent {
    chunks: SharedStore,
}

impl SharedContent {
    async fn open(
        dir: &DataDir,
        settings: &ChunkSettings,
        metadata: &Metadata,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, Failure> {
        let rng = Rng::system().map_err(|error| Failure::io("read random numbers", &error))?;
        let (kv, clock, rng) = (metadata.kv(), Arc::clone(clock), Arc::new(rng));
        let tier = dir.tier()?;
        let objects = tier.connect(settings, &clock, &rng)?;
        let options = SharedOptions {
            // Nothing is changed.
            packers: 0,
            ..SharedOptions::default()
        };
        let (own, below) = ((clock, rng), (objects, None));
        let opened = Content::open_shared(kv, own, below, options, Tasks::new());
        Ok(Self {
            chunks: opened.await?,
        })
    }

    fn trees(&self) -> ChunkTrees {
        ChunkTrees::new(Arc::new(self.chunks.clone()), NODE_CACHE_BYTES)
    }

    /// Whether a chunk is there. One that cannot be asked for counts as missing.
    fn contains(&self, domain: DomainId, id: ChunkId) -> bool {
        let key = ChunkKey { domain, id };
        tokio::task::block_in_place(|| {
            let asked = self.chunks.contains(key);
            tokio::runtime::Handle::current().block_on(asked)
        })
        .unwrap_or(false)
    }
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

/// Says from time to time how far a check is.
#[derive(Debug, Default)]
struct Progress {
    told: AtomicU64,
}

impl Progress {
    fn tell(&self, counts: &Counts) {
        let told = self.told.load(Ordering::Relaxed);
        let seen = counts.keys + counts.inodes + counts.entries;
        if seen >= told + KEYS_BETWEEN {
            self.told.store(seen, Ordering::Relaxed);
            let (keys, trees, inodes) = (counts.keys, counts.trees, counts.inodes);
            output::note(&format!(
                "checked {keys} keys, {trees} trees, {inodes} inodes"
            ));
        }
    }
}
