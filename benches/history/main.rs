//! What forks, deep forks, publishes and merges cost, and whether that depends on how many files
//! the workspace has and how much of a session is not published.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use base::{Clock, SystemClock};
use bench_suite::Error;
use bench_suite::api::Api;
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
    /// First LOOKUPs, one in each directory, in a fork of depth 1.
    shallow: Spread,
    /// The same in the deepest fork.
    deep: Spread,
    depth: u32,
    /// Publishes of 100 new files, one in each directory.
    publish: Spread,
    /// Publishes of 1,000 new files onto a branch that has got 1,000 others, ten in each directory.
    merge: Spread,
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
    fn looks(&self, path: &str) -> Result<Spread, Error> {
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
        Ok(Spread::of(looks))
    }

    /// Looks into a shallow fork and into the deepest of a chain.
    fn deep(&mut self, workspace: &str) -> Result<(Spread, Spread), Error> {
        let mut session = self.api.open_session(workspace)?;
        let mut shallow = None;
        for _ in 0..self.arguments.depth {
            self.change(&session.mount_path, 1)?;
            session = self.api.fork(&session.id)?;
            shallow.get_or_insert_with(|| session.clone());
        }
        let shallow = shallow.unwrap_or_else(|| session.clone());
        Ok((
            self.looks(&shallow.mount_path)?,
            self.looks(&session.mount_path)?,
        ))
    }

    fn publishes(&mut self, workspace: &str) -> Result<Spread, Error> {
        let mut times = Vec::new();
        for _ in 0..self.arguments.rounds {
            let session = self.api.open_session(workspace)?;
            self.change(&session.mount_path, 100)?;
            times.push(self.publish(&session.id, "fast-forward")?);
        }
        Ok(Spread::of(times))
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
        let (shallow, deep) = self.deep(workspace)?;
        Ok(Row {
            files,
            fill_seconds: fill.as_secs_f64(),
            first_publish_seconds: first_publish.as_secs_f64(),
            forks,
            shallow,
            deep,
            depth: self.arguments.depth,
            publish: self.publishes(workspace)?,
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
        line("first looks into a fork of depth 1", &self.shallow.text());
        let deep = format!("first looks into a fork of depth {}", self.depth);
        line(&deep, &self.deep.text());
        line("publish 100 changes", &self.publish.text());
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
