//! Puts an NFSv3 server under load over real sockets, checks every answer, and reports rates and
//! latencies.

use std::io::Write as _;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use base::{Clock, SystemClock};
use bench_suite::Error;
use bench_suite::report::Sizes;
use bench_suite::run::{Limit, Options, Target, run};
use bench_suite::workload::Kind;
use clap::{Parser, ValueEnum as _};

/// Longest run of one load, in seconds.
const SECONDS_MAX: f64 = 86_400.0;

/// Puts an NFSv3 server under load and reports rates and latencies.
#[derive(Debug, Parser)]
struct Arguments {
    /// Host name or address of the server.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port of NFS.
    #[arg(long, default_value_t = 2049)]
    port: u16,
    /// Port of MOUNT [default: the port of NFS].
    #[arg(long)]
    mountport: Option<u16>,
    /// Path to mount.
    #[arg(long, default_value = "/")]
    export: String,
    /// Connections, a thread each.
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Calls in flight on each connection.
    #[arg(long, default_value_t = 16)]
    depth: usize,
    /// Counted time of each load, in seconds.
    #[arg(long, default_value_t = 3.0, conflicts_with = "ops")]
    seconds: f64,
    /// Time of each load that is not counted, in seconds.
    #[arg(long, default_value_t = 0.3, conflicts_with = "ops")]
    warm_up: f64,
    /// Operations of each load, instead of a time.
    #[arg(long)]
    ops: Option<u64>,
    /// Loads to run, separated by commas [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    procedures: Vec<Kind>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Talk to the echo server: the same bytes without a protocol.
    #[arg(long)]
    echo: bool,
    /// JSON report of an earlier run, whose sizes the echo has [default: built in].
    #[arg(long, requires = "echo")]
    sizes: Option<PathBuf>,
}

impl Arguments {
    fn options(self) -> Result<Options, Error> {
        let address = resolve(&self.host, self.port)?;
        let target = match (self.echo, self.sizes) {
            (true, Some(path)) => {
                let text = std::fs::read_to_string(path).map_err(Error::io("read the sizes"))?;
                Target::Echo(Sizes::parse(&text)?)
            }
            (true, None) => Target::Echo(Sizes::built_in()?),
            (false, _) => Target::Nfs {
                mount: resolve(&self.host, self.mountport.unwrap_or(self.port))?,
                export: self.export,
            },
        };
        let limit = match self.ops {
            Some(count) => Limit::Operations(count),
            None => Limit::Time {
                counted: seconds(self.seconds)?,
                warm_up: seconds(self.warm_up)?,
            },
        };
        let kinds = if self.procedures.is_empty() {
            Kind::value_variants().to_vec()
        } else {
            self.procedures
        };
        Ok(Options {
            address,
            target,
            connections: self.connections,
            depth: self.depth,
            limit,
            kinds,
        })
    }
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr, Error> {
    (host, port)
        .to_socket_addrs()
        .map_err(Error::io("look up the host"))?
        .next()
        .ok_or_else(|| Error::Setup(format!("{host} has no address")))
}

fn seconds(value: f64) -> Result<Duration, Error> {
    if (0.0..=SECONDS_MAX).contains(&value) {
        Ok(Duration::from_secs_f64(value))
    } else {
        Err(Error::Setup(format!("{value} seconds are out of bounds")))
    }
}

/// Gives whether all answers were right.
fn report(arguments: Arguments) -> Result<bool, Error> {
    let json = arguments.json;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let report = run(&arguments.options()?, &clock)?;
    let text = if json {
        serde_json::to_string_pretty(&report).map_err(|error| Error::Setup(error.to_string()))?
    } else {
        report.table()
    };
    writeln!(std::io::stdout(), "{}", text.trim_end()).map_err(Error::io("print the report"))?;
    Ok(report.errors() == 0)
}

fn main() -> ExitCode {
    match report(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(error) => {
            // Nothing is left to do if standard error is closed.
            drop(writeln!(std::io::stderr(), "load: {error}"));
            ExitCode::FAILURE
        }
    }
}
