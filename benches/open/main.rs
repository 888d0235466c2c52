//! How long it takes from asking for a session to its first attributes, and whether that depends
//! on how many files the workspace has.

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

/// Most files of one measurement.
const FILES_MAX: u64 = 100_000_000;

/// Longest time opening a session may take.
const OPEN_AIM: Duration = Duration::from_millis(10);

/// Longest time mounting may take, the kernel's part included, which is not measured here.
const MOUNT_AIM: Duration = Duration::from_millis(100);

/// Measures opening and mounting sessions of workspaces with few and with many files.
#[derive(Debug, Parser)]
struct Arguments {
    /// Address of NFS.
    #[arg(long, default_value = "127.0.0.1:2049")]
    nfs: SocketAddr,
    /// Address of MOUNT [default: the address of NFS].
    #[arg(long)]
    mount: Option<SocketAddr>,
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
    /// Workspace of the sessions.
    #[arg(long, default_value = "default")]
    workspace: String,
    /// Numbers of files, separated by commas; each is measured in a new session.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 1_000_000],
          value_parser = clap::value_parser!(u64).range(1..=FILES_MAX))]
    files: Vec<u64>,
    /// Files in one directory.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    files_per_directory: u64,
    /// Times everything is measured.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// What one number of files showed.
#[derive(Debug, Serialize)]
struct Row {
    files: u64,
    /// Path to mount the session that holds the files.
    mount_path: String,
    fill_seconds: f64,
    /// The API call that opens another session of the workspace.
    open: Spread,
    /// MNT and GETATTR of that session.
    mount_new: Spread,
    /// MNT and GETATTR of the session that holds the files.
    mount_filled: Spread,
}

struct Bench {
    arguments: Arguments,
    api: Api,
    clock: Arc<dyn Clock>,
}

impl Bench {
    fn fill(&self, path: &str, files: u64) -> Result<(), Error> {
        let (mut mount, mut connection) = self.connect()?;
        let root = mount.mount(path)?;
        let per_directory = self.arguments.files_per_directory;
        for number in 0..files.div_ceil(per_directory) {
            let name = format!("directory-{number:06}");
            let directory = connection.mkdir(&root, name.as_bytes())?;
            let here = per_directory.min(files - number * per_directory);
            let here = usize::try_from(here).unwrap_or(usize::MAX);
            let mut create = CreateMany::new(directory, here);
            many::run(&mut connection, &mut create, &self.clock)?;
        }
        Ok(())
    }

    /// Connections to MOUNT and NFS, made before anything is timed.
    fn connect(&self) -> Result<(Connection, Connection), Error> {
        let mount = self.arguments.mount.unwrap_or(self.arguments.nfs);
        Ok((
            Connection::open(mount)?,
            Connection::open(self.arguments.nfs)?,
        ))
    }

    /// Time from MNT to the first attributes.
    fn mount(&self, path: &str) -> Result<Duration, Error> {
        let (mut mount, mut nfs) = self.connect()?;
        let (time, ()) = timed(self.clock.as_ref(), || {
            let root = mount.mount(path)?;
            nfs.touch(&root)
        })?;
        Ok(time)
    }

    fn row(&self, files: u64) -> Result<Row, Error> {
        let filled = self.api.open_session(&self.arguments.workspace)?.mount_path;
        let (fill, ()) = timed(self.clock.as_ref(), || self.fill(&filled, files))?;
        let mut open = Vec::new();
        let mut mount_new = Vec::new();
        let mut mount_filled = Vec::new();
        for _ in 0..self.arguments.rounds {
            let workspace = &self.arguments.workspace;
            let (time, session) = timed(self.clock.as_ref(), || self.api.open_session(workspace))?;
            open.push(time);
            mount_new.push(self.mount(&session.mount_path)?);
            mount_filled.push(self.mount(&filled)?);
        }
        Ok(Row {
            files,
            mount_path: filled,
            fill_seconds: fill.as_secs_f64(),
            open: Spread::of(open),
            mount_new: Spread::of(mount_new),
            mount_filled: Spread::of(mount_filled),
        })
    }
}

/// Whether half of the durations kept to the aim.
fn met(spread: &Spread, aim: Duration) -> &'static str {
    if spread.p50_ms <= aim.as_secs_f64() * 1000.0 {
        "met"
    } else {
        "missed"
    }
}

impl Row {
    fn text(&self) -> String {
        let line = |what: &str, spread: &Spread, aim: Duration| {
            format!(
                "  {what:<32} p50 {:>8.3} ms, max {:>8.3} ms, aim {} ms: {}\n",
                spread.p50_ms,
                spread.max_ms,
                aim.as_millis(),
                met(spread, aim)
            )
        };
        let mut text = format!(
            "{} files (created in {:.1} s)\n",
            self.files, self.fill_seconds
        );
        text += &line("open a session", &self.open, OPEN_AIM);
        text += &line("MNT and GETATTR, new session", &self.mount_new, MOUNT_AIM);
        text += &line(
            "MNT and GETATTR, filled session",
            &self.mount_filled,
            MOUNT_AIM,
        );
        text
    }
}

fn measure() -> Result<(), Error> {
    let arguments = Arguments::parse();
    let api = Api::new(&arguments.api, &arguments.token);
    let bench = Bench {
        arguments,
        api,
        clock: Arc::new(SystemClock::new()),
    };
    let files = bench.arguments.files.iter();
    let rows: Vec<Row> = files
        .map(|files| bench.row(*files))
        .collect::<Result<_, _>>()?;
    print(&rows, bench.arguments.json, Row::text)
}

fn main() -> ExitCode {
    exit_code("open", measure())
}
