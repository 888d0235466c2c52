//! `holdfast check`.

mod content;
mod nodes;
mod told;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{ChunkId, Clock, DomainId, SystemClock};
use chunkstore::local::LocalReader;
use metadata::check::{CheckOptions, Counts, Remedy, Report, check};

use self::nodes::ReadTrees;
use super::metadata_of;
use crate::cli;
use crate::data_dir::DataDir;
use crate::failure::Failure;
use crate::output;
use crate::place::Purpose;
use crate::server::of_open_chunks;

/// Exit code if something is wrong with the data.
const FOUND: u8 = 1;

/// Keys between two signs of life.
const KEYS_BETWEEN: u64 = 200_000;

pub(super) fn run(args: &cli::Check, json: bool) -> Result<u8, Failure> {
    let settings = args.data.clone().settings()?;
    let dir = DataDir::look_at(&settings.data_dir)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("start", &error))?;
    let opened = metadata_of(&dir, settings, Purpose::Look, Arc::clone(&clock));
    let metadata = runtime.block_on(opened)?;
    runtime.block_on(metadata.check_is_of(&dir, &clock))?;
    // Nobody else uses it: the directory is locked.
    let kv = metadata.still(&clock)?;
    let chunks = if args.metadata_only {
        None
    } else {
        look_at_chunks(&dir)?.map(Arc::new)
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
    let trees = ReadTrees::new(chunks.clone());
    let exists = |domain: DomainId, id: ChunkId| match &chunks {
        Some(chunks) => chunks.contains(domain, id),
        None => false,
    };
    let progress = Progress::default();
    let tell = |counts: &Counts| progress.tell(counts);
    let options = CheckOptions {
        trees: (!args.metadata_only).then_some(&trees),
        chunk_exists: (!args.metadata_only).then_some(&exists),
        progress: std::io::stderr().is_terminal().then_some(&tell),
    };
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
    if !args.metadata_only && is_finished && !dir.chunks().exists() {
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
