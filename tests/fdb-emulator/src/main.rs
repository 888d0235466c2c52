//! A "cluster" for the library of this crate: one process, all in memory.

use std::io::{BufRead, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use fdb_c::server::faults::Faults;
use fdb_c::server::serve::Server;

/// Serves a FoundationDB "cluster" for tests, in memory.
///
/// Prints the line of a cluster file that names it, then obeys commands on standard input, each
/// answered by lines that end with "ok" or "error: REASON": "faults SPEC" takes other faults,
/// "advance MS" makes read versions older, "report" counts what has happened. Ends when standard
/// input does.
#[derive(Debug, Parser)]
struct Arguments {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: std::net::SocketAddr,
    /// What decides when faults happen.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Faults: a specification as "unknown-applied=1%,cut=50%,jump@3", or a file with one.
    #[arg(long, default_value = "none")]
    faults: String,
    /// Writes the cluster file here too.
    #[arg(long)]
    cluster_file: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is nowhere to report that standard error is closed.
            let _closed = writeln!(std::io::stderr(), "fdb-emulator-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let text = match std::fs::read_to_string(&arguments.faults) {
        Ok(text) => text,
        Err(_) => arguments.faults.clone(),
    };
    let faults = Faults::parse(arguments.seed, &text)?;
    let listener = TcpListener::bind(arguments.listen)
        .map_err(|error| format!("cannot listen on {}: {error}", arguments.listen))?;
    let (server, address) =
        Server::start(listener, faults).map_err(|error| format!("cannot start: {error}"))?;
    let cluster = format!("emulator:holdfast@{address}");
    if let Some(path) = &arguments.cluster_file {
        std::fs::write(path, format!("{cluster}\n"))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    say(&cluster)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| format!("cannot read commands: {error}"))?;
        match obey(&server, arguments.seed, line.trim()) {
            Ok(text) => say(&format!("{text}ok"))?,
            Err(reason) => say(&format!("error: {reason}"))?,
        }
    }
    Ok(())
}

fn obey(server: &Server, seed: u64, line: &str) -> Result<String, String> {
    match line.split_once(' ').unwrap_or((line, "")) {
        ("faults", text) => server.set_faults(Faults::parse(seed, text)?),
        ("advance", ms) => {
            let ms = ms.parse().map_err(|_| format!("'{ms}' is no number"))?;
            server.advance(Duration::from_millis(ms));
        }
        ("report", "") => return Ok(server.report()),
        _ => return Err(format!("no such command: {line}")),
    }
    Ok(String::new())
}

fn say(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|error| format!("cannot write to standard output: {error}"))
}
