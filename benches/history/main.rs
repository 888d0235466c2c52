//! What forks, deep forks, publishes and merges cost, and whether that depends on how many files
//! the workspace has and how much of a session is not published.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use base::{Clock, SystemClock};
use bench_suite::Error;
use bench_suite::api::{Api, Session, Stored};
use bench_suite::connection::Connection;
use bench_suite::many::{self, CreateMany};
use bench_suite::measure::{Spread, exit_code, print, timed};
use clap::Parser;
use serde::Serialize;

/// Directories that the files of a workspace are in.
const DIRECTORIES: usize = 100;

/// Numbers of the files that changes make, above those that the workspace has.
const CHANGES_FROM: usize = 100_000_000;

/// Most files of one workspace.
const FILES_MAX: u64 = 10_000_000;

/// Measures forks, deep forks, publishes and merges.
#[derive(Debug, Parser)]
struct Arguments {
    /// Address of NFS, and of MOUNT.
    #[arg(long, default_value = "127.0.0.1:2049")]
    nfs: SocketAddr,
    /// Address of the control API.
    #[arg(long)]
    api: String,
    /// Token for the control API.
    #[arg(
        long,
        env = "HOLDFAST_TOKEN",
        default_value = "",
        hide_env_values = true
    )]
    token: String,
    /// Files of the workspaces, separated by commas: one workspace each, in 100 directories.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 1_000_000],
          value_parser = clap::value_parser!(u64).range(100..=FILES_MAX))]
    files: Vec<u64>,
    /// Unpublished changes of the session that is forked, separated by commas.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1_000, 100_000],
          value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pending: Vec<u64>,
    /// Forks of each session.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    forks: u32,
    /// Forks of forks, one change in each.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..=1_000))]
    depth: u32,
    /// Publishes, and merges.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Forks of one session.
#[derive(Debug, Serialize)]
struct Forks {
    pending: u64,
    /// The first, which freezes what is not published.
    first_ms: f64,
    /// One after the other.
    quiet: Spread,
    /// With a change of the source before each.
    busy: Spread,
}

/// What one size of workspace showed.
#[derive(Debug, Serialize)]
struct Row {
    files: u64,
    fill_seconds: f64,
    first_publish_seconds: f64,
    forks: Vec<Forks>,
    /// First LOOKUPs, one in each directory, in forks.
    looks: Looks,
    depth: u32,
    /// Publishes of 100 new files, one in each directory.
    publish: Spread,
    /// What each of them added to the chunk store. The files are empty, so that is nodes of trees alone.
    /// Publishes during which a collection ran are left out.
    published: Vec<Written>,
    /// Publishes of 1,000 new files onto a branch that has got 1,000 others, ten in each directory.
    merge: Spread,
}

/// First looks into forks, of depth 1 and the deepest.
#[derive(Debug, Serialize)]
struct Looks {
    /// As they are when the last fork was made.
    fresh: Compared,
    /// After a commit was made of each: their layers are one tree.
    folded: Compared,
}

/// Two that took turns.
#[derive(Debug, Serialize)]
struct Compared {
    shallow: Spread,
    deep: Spread,
    /// Of the medians: deep by shallow.
    ratio: f64,
}

/// Whether forks are looked into as they are, or after a commit was made of each.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layers {
    Fresh,
    Folded,
}

/// What a publish wrote. It depends on the names and the shape of the workspace, on no machine.
#[derive(Clone, Copy, Debug, Serialize)]
struct Written {
    nodes: u64,
    /// Bytes in packs, compressed.
    bytes: u64,
}

impl Written {
    fn between(before: Stored, after: Stored) -> Option<Self> {
        if before.collections != after.collections {
            return None;
        }
        Some(Self {
            nodes: after.chunks.checked_sub(before.chunks)?,
            bytes: after.bytes.checked_sub(before.bytes)?,
        })
    }
}

/// The least and the most of some counts.
fn range(counts: impl Iterator<Item = u64> + Clone) -> String {
    match (counts.clone().min(), counts.max()) {
        (Some(least), Some(most)) if least == most => least.to_string(),
        (Some(least), Some(most)) => format!("{least} to {most}"),
        _ => "not known: collections ran".into(),
    }
}

struct Bench {
    arguments: Arguments,
    api: Api,
    clock: Arc<dyn Clock>,
    /// Number of the next file that a change makes.
    next: usize,
}

impl Bench {
    fn connect(&self) -> Result<Connection, Error> {
        Connection::open(self.arguments.nfs)
    }

    fn fill(&self, path: &str, files: u64) -> Result<(), Error> {
        let mut connection = self.connect()?;
        let root = connection.mount(path)?;
        let each = usize::try_from(files).unwrap_or(usize::MAX) / DIRECTORIES;
        for number in 0..DIRECTORIES {
            let directory = connection.mkdir(&root, directory_name(number).as_bytes())?;
            let mut create = CreateMany::new(directory, each);
            many::run(&mut connection, &mut create, &self.clock)?;
        }
        Ok(())
    }

    /// Makes `count` new files in a session, the same number in each of its directories.
    fn change(&mut self, path: &str, count: u64) -> Result<(), Error> {
        let mut connection = self.connect()?;
        let root = connection.mount(path)?;
        let mut left = usize::try_from(count).unwrap_or(usize::MAX);
        for number in 0..DIRECTORIES {
            let here = left.div_ceil(DIRECTORIES - number);
            if here == 0 {
                break;
            }
            left -= here;
            let name = directory_name(number);
            let directory = many::find_directory(&mut connection, &root, name.as_bytes())?;
            let mut create = CreateMany::new(directory, here).starting_at(self.next);
            many::run(&mut connection, &mut create, &self.clock)?;
            self.next += here;
        }
        Ok(())
    }

    fn forks(&mut self, workspace: &str, pending: u64) -> Result<Forks, Error> {
        let source = self.api.open_session(workspace)?;
        self.change(&source.mount_path, pending)?;
        let (first, _) = timed(self.clock.as_ref(), || self.api.fork(&source.id))?;
        let (mut quiet, mut busy) = (Vec::new(), Vec::new());
        for _ in 0..self.arguments.forks {
            quiet.push(timed(self.clock.as_ref(), || self.api.fork(&source.id))?.0);
        }
        for _ in 0..self.arguments.forks {
            self.change(&source.mount_path, 1)?;
            busy.push(timed(self.clock.as_ref(), || self.api.fork(&source.id))?.0);
        }
        Ok(Forks {
            pending,
            first_ms: first.as_secs_f64() * 1000.0,
            quiet: Spread::of(quiet),
            busy: Spread::of(busy),
        })
    }

    /// First looks into each directory of a session.
    fn looks(&self, path: &str) -> Result<Vec<Duration>, Error> {
        let mut connection = self.connect()?;
        let root = connection.mount(path)?;
        let mut looks = Vec::new();
        for number in 0..DIRECTORIES {
            let name = directory_name(number);
            let (time, ()) = timed(self.clock.as_ref(), || {
                let found = many::find_directory(&mut connection, &root, name.as_bytes())?;
                many::find(&mut connection, &found, 0)
            })?;
            looks.push(time);
        }
        Ok(looks)
    }

    /// A fork, and the deepest of the chain that goes on from it.
    fn chain(&mut self, workspace: &str) -> Result<(Session, Session), Error> {
        let mut session = self.api.open_session(workspace)?;
        let mut shallow = None;
        for _ in 0..self.arguments.depth {
            self.change(&session.mount_path, 1)?;
            session = self.api.fork(&session.id)?;
            shallow.get_or_insert_with(|| session.clone());
        }
        let shallow = shallow.unwrap_or_else(|| session.clone());
        Ok((shallow, session))
    }

    /// Looks into shallow and deep forks of several chains, each first in turn: who comes second finds
    /// more in memory.
    fn deep(&mut self, workspace: &str, layers: Layers) -> Result<Compared, Error> {
        let (mut shallow, mut deep) = (Vec::new(), Vec::new());
        for round in 0..2 * self.arguments.rounds {
            let (near, far) = self.chain(workspace)?;
            if layers == Layers::Folded {
                self.api.checkpoint(&near.id)?;
                self.api.checkpoint(&far.id)?;
            }
            if round % 2 == 0 {
                shallow.extend(self.looks(&near.mount_path)?);
                deep.extend(self.looks(&far.mount_path)?);
            } else {
                deep.extend(self.looks(&far.mount_path)?);
                shallow.extend(self.looks(&near.mount_path)?);
            }
        }
        let (shallow, deep) = (Spread::of(shallow), Spread::of(deep));
        Ok(Compared {
            shallow,
            deep,
            ratio: deep.p50_ms / shallow.p50_ms,
        })
    }

    fn publishes(&mut self, workspace: &str) -> Result<(Spread, Vec<Written>), Error> {
        let (mut times, mut written) = (Vec::new(), Vec::new());
        for _ in 0..self.arguments.rounds {
            let session = self.api.open_session(workspace)?;
            self.change(&session.mount_path, 100)?;
            let before = self.api.stored()?;
            times.push(self.publish(&session.id, "fast-forward")?);
            written.extend(Written::between(before, self.api.stored()?));
        }
        Ok((Spread::of(times), written))
    }

    fn merges(&mut self, workspace: &str) -> Result<Spread, Error> {
        let mut times = Vec::new();
        for _ in 0..self.arguments.rounds {
            let (ours, theirs) = (
                self.api.open_session(workspace)?,
                self.api.open_session(workspace)?,
            );
            self.change(&ours.mount_path, 1_000)?;
            self.change(&theirs.mount_path, 1_000)?;
            self.publish(&ours.id, "fast-forward")?;
            times.push(self.publish(&theirs.id, "merged")?);
        }
        Ok(Spread::of(times))
    }

    /// Publishes, and sees that it came about as it was to.
    fn publish(&self, session: &str, wanted: &str) -> Result<Duration, Error> {
        let (time, outcome) = timed(self.clock.as_ref(), || self.api.publish(session))?;
        if outcome != wanted {
            return Err(Error::Wrong(format!(
                "a publish that should be {wanted} is {outcome}"
            )));
        }
        Ok(time)
    }

    fn row(&mut self, files: u64) -> Result<Row, Error> {
        let unique = self.clock.wall().millis();
        let workspace = format!("history-{files}-{unique}");
        let workspace = workspace.as_str();
        self.api.create_workspace(workspace)?;
        let first = self.api.open_session(workspace)?;
        let (fill, ()) = timed(self.clock.as_ref(), || self.fill(&first.mount_path, files))?;
        let first_publish = self.publish(&first.id, "created")?;
        let mut forks = Vec::new();
        for pending in self.arguments.pending.clone() {
            forks.push(self.forks(workspace, pending)?);
        }
        let looks = Looks {
            fresh: self.deep(workspace, Layers::Fresh)?,
            folded: self.deep(workspace, Layers::Folded)?,
        };
        let (publish, published) = self.publishes(workspace)?;
        Ok(Row {
            files,
            fill_seconds: fill.as_secs_f64(),
            first_publish_seconds: first_publish.as_secs_f64(),
            forks,
            looks,
            depth: self.arguments.depth,
            publish,
            published,
            merge: self.merges(workspace)?,
        })
    }
}

fn directory_name(number: usize) -> String {
    format!("directory-{number:03}")
}

impl Row {
    fn text(&self) -> String {
        let mut text = format!(
            "{} files (created in {:.1} s, published in {:.1} s)\n",
            self.files, self.fill_seconds, self.first_publish_seconds
        );
        let mut line = |what: &str, said: &str| text += &format!("  {what:<44} {said}\n");
        for forks in &self.forks {
            let of = format!("fork, {} changes pending", forks.pending);
            line(&of, &forks.quiet.text());
            line("  the first", &format!("{:.3} ms", forks.first_ms));
            line("  with a change before each", &forks.busy.text());
        }
        for (how, looks) in [("", &self.looks.fresh), (", folded", &self.looks.folded)] {
            let of = |depth| format!("first looks, fork of depth {depth}{how}");
            line(&of(1), &looks.shallow.text());
            line(&of(self.depth), &looks.deep.text());
            line("  times as long", &format!("{:.2}", looks.ratio));
        }
        line("publish 100 changes", &self.publish.text());
        let nodes = range(self.published.iter().map(|written| written.nodes));
        line("  nodes that one writes", &nodes);
        let bytes = range(self.published.iter().map(|written| written.bytes));
        line("  their bytes in packs", &bytes);
        line("merge 1,000 changes on either side", &self.merge.text());
        text
    }
}

fn measure() -> Result<(), Error> {
    let arguments = Arguments::parse();
    let api = Api::new(&arguments.api, &arguments.token);
    let mut bench = Bench {
        arguments,
        api,
        clock: Arc::new(SystemClock::new()),
        next: CHANGES_FROM,
    };
    let rows: Vec<Row> = bench
        .arguments
        .files
        .clone()
        .into_iter()
        .map(|files| bench.row(files))
        .collect::<Result<_, _>>()?;
    print(&rows, bench.arguments.json, Row::text)
}

fn main() -> ExitCode {
    exit_code("history", measure())
}
