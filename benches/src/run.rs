//! A run: connections, loads one after the other, checks, clearing up, a report.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::Clock;

use crate::Error;
use crate::connection::Connection;
use crate::driver::{DEPTH_MAX, Plan, Tally, Workload, drive};
use crate::echo::Echo;
use crate::report::{Report, Row, Sizes, float};
use crate::tree::Tree;
use crate::workload::{Kind, Seat};

/// Most connections of a run.
pub const CONNECTIONS_MAX: usize = 256;

/// What there is to talk to.
#[derive(Debug, Clone)]
pub enum Target {
    /// An NFSv3 server.
    Nfs {
        /// Where MOUNT is served.
        mount: SocketAddr,
        /// Path of the export.
        export: String,
    },
    /// The echo server, with calls and replies of these sizes.
    Echo(Sizes),
}

/// When a load is over.
#[derive(Debug, Clone, Copy)]
pub enum Limit {
    /// After this time, the first of which is not counted.
    Time {
        /// Counted.
        counted: Duration,
        /// Before that.
        warm_up: Duration,
    },
    /// After this many operations of all connections together.
    Operations(u64),
}

/// A run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the server is.
    pub address: SocketAddr,
    /// What it is.
    pub target: Target,
    /// Connections.
    pub connections: usize,
    /// Calls in flight on each.
    pub depth: usize,
    /// When each load is over.
    pub limit: Limit,
    /// The loads.
    pub kinds: Vec<Kind>,
}

/// Runs all loads. Failed operations are counted in the report.
///
/// # Errors
///
/// If the options are out of bounds, or preparing or clearing up fails.
pub fn run(options: &Options, clock: &Arc<dyn Clock>) -> Result<Report, Error> {
    if options.connections == 0 || options.connections > CONNECTIONS_MAX {
        let text = format!("connections must be 1 to {CONNECTIONS_MAX}");
        return Err(Error::Setup(text));
    }
    if options.depth == 0 || options.depth > DEPTH_MAX {
        return Err(Error::Setup(format!("depth must be 1 to {DEPTH_MAX}")));
    }
    let results = match &options.target {
        Target::Echo(sizes) => run_echo(options, sizes, clock)?,
        Target::Nfs { mount, export } => run_nfs(options, *mount, export, clock)?,
    };
    Ok(Report {
        target: options.address.to_string(),
        connections: options.connections,
        depth: options.depth,
        results,
    })
}

fn run_echo(options: &Options, sizes: &Sizes, clock: &Arc<dyn Clock>) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::with_capacity(options.kinds.len());
    for kind in &options.kinds {
        let row = run_load(options, *kind, clock, |_, seat| {
            Ok(Box::new(Echo::new(sizes, *kind, seat)?))
        })?;
        rows.push(row);
    }
    Ok(rows)
}

fn run_nfs(
    options: &Options,
    mount: SocketAddr,
    export: &str,
    clock: &Arc<dyn Clock>,
) -> Result<Vec<Row>, Error> {
    let mut connection = Connection::open(options.address)?;
    let root = if mount == options.address {
        connection.mount(export)?
    } else {
        Connection::open(mount)?.mount(export)?
    };
    let tree = Arc::new(Tree::plant(&mut connection, root, &options.kinds, clock)?);
    let mut rows = Vec::with_capacity(options.kinds.len());
    let mut outcome = Ok(());
    for kind in &options.kinds {
        let row = run_load(options, *kind, clock, |connection, seat| {
            kind.prepare(&tree, connection, seat)
        });
        match row {
            Ok(row) => rows.push(row),
            Err(error) => {
                outcome = Err(error);
                break;
            }
        }
    }
    // The connection may have been idle for long, or its server restarted.
    let mut connection = Connection::open(options.address)?;
    let cleared = tree.fell(&mut connection, clock);
    outcome.and(cleared).map(|()| rows)
}

/// Runs one load on connections of its own, a thread each.
fn run_load(
    options: &Options,
    kind: Kind,
    clock: &Arc<dyn Clock>,
    prepare: impl Fn(&mut Connection, Seat) -> Result<Box<dyn Workload>, Error>,
) -> Result<Row, Error> {
    let mut prepared = Vec::with_capacity(options.connections);
    for number in 0..options.connections {
        let seat = Seat {
            connection: number,
            depth: options.depth,
        };
        let mut connection = Connection::open(options.address)?;
        let workload = prepare(&mut connection, seat)?;
        prepared.push((connection, workload));
    }
    let plan = plan(options, clock.monotonic());
    let cpu_before = processor_time();
    let tallies = run_threads(prepared, &plan, clock)?;
    let cpu = processor_time().saturating_sub(cpu_before);
    Ok(Row::new(&kind.name(), tallies, plan.count_from, cpu))
}

fn run_threads(
    prepared: Vec<(Connection, Box<dyn Workload>)>,
    plan: &Plan,
    clock: &Arc<dyn Clock>,
) -> Result<Vec<Tally>, Error> {
    std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(prepared.len());
        for (mut connection, mut workload) in prepared {
            let thread = std::thread::Builder::new()
                .name("load".into())
                .spawn_scoped(scope, move || {
                    let mut tally = drive(&mut connection, workload.as_mut(), plan, clock)?;
                    if let Err(error) = workload.verify(&mut connection) {
                        tally.fail(&error);
                    }
                    Ok(tally)
                })
                .map_err(Error::io("start a thread"))?;
            threads.push(thread);
        }
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(Error::Setup("a load thread panicked".into())))
            })
            .collect()
    })
}

fn plan(options: &Options, now: Duration) -> Plan {
    match options.limit {
        Limit::Time { counted, warm_up } => Plan {
            depth: options.depth,
            count_from: now + warm_up,
            until: now + warm_up + counted,
            operations_max: u64::MAX,
        },
        Limit::Operations(count) => Plan {
            depth: options.depth,
            count_from: now,
            until: Duration::MAX,
            operations_max: count.div_ceil(u64::try_from(options.connections).unwrap_or(1)),
        },
    }
}

/// Processor time this process has used, in steps of 10 ms; zero where the system does not say.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may contain anything; user and system time are fields 14 and 15.
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_secs_f64(float(ticks) / 100.0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener};
    use std::sync::Arc;

    use base::{Clock, SystemClock};
    use clap::ValueEnum as _;

    use super::{Limit, Options, Target, run};
    use crate::echo::{self, Replies};
    use crate::report::Sizes;
    use crate::workload::Kind;

    /// Serves one listener in the background until the test process ends.
    fn background(serve: impl FnOnce(TcpListener) + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::Builder::new()
            .spawn(move || serve(listener))
            .unwrap();
        address
    }

    fn options(address: SocketAddr, kinds: &[Kind]) -> Options {
        Options {
            address,
            target: Target::Echo(Sizes::built_in().unwrap()),
            connections: 2,
            depth: 8,
            limit: Limit::Operations(40),
            kinds: kinds.to_vec(),
        }
    }

    fn clock() -> Arc<dyn Clock> {
        Arc::new(SystemClock::new())
    }

    #[test]
    fn all_loads_run_to_their_end_against_the_echo() {
        for replies in [Replies::Batched, Replies::Single] {
            let address = background(move |listener| drop(echo::serve(&listener, replies)));
            let report = run(&options(address, Kind::value_variants()), &clock()).unwrap();
            assert_eq!(report.errors(), 0, "{}", report.table());
            for row in &report.results {
                assert_eq!(row.operations, 40, "{}", row.procedure);
            }
        }
    }

    #[test]
    fn wrong_content_is_counted_not_believed() {
        // Everything sent comes back: right numbers and lengths, for NULL's neighbour in size.
        let address = background(|listener| {
            for stream in listener.incoming().take(2) {
                let mut stream = stream.unwrap();
                std::thread::Builder::new()
                    .spawn(move || {
                        let mut buffer = [0; 4096];
                        while let Ok(count) = stream.read(&mut buffer) {
                            if count == 0 || stream.write_all(&buffer[..count]).is_err() {
                                break;
                            }
                        }
                    })
                    .unwrap();
            }
        });
        let report = run(&options(address, &[Kind::Null]), &clock()).unwrap();
        let row = &report.results[0];
        assert_eq!((row.operations, row.errors), (0, 40));
        assert!(row.first_error.as_deref().unwrap().contains("echo of"));
    }

    #[test]
    fn a_server_that_breaks_the_stream_ends_the_load() {
        for garbage in [vec![0xff; 64], vec![0x80, 0, 0, 4, 1, 2, 3, 4], Vec::new()] {
            let address = background(move |listener| {
                for stream in listener.incoming().take(2) {
                    let mut stream = stream.unwrap();
                    let mut some = [0; 16];
                    stream.read_exact(&mut some).unwrap();
                    stream.write_all(&garbage).unwrap();
                }
            });
            let report = run(&options(address, &[Kind::Getattr]), &clock()).unwrap();
            let row = &report.results[0];
            assert_eq!(
                (row.operations, row.errors),
                (0, 2),
                "{:?}",
                row.first_error
            );
        }
    }
}
