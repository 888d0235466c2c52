//! What an idle session and an idle connection cost a server in memory: its resident set before
//! and after many of them.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use base::{Clock, SystemClock};
use bench_suite::Error;
use bench_suite::api::Api;
use bench_suite::connection::Connection;
use bench_suite::measure::exit_code;
use bench_suite::report::float;
use clap::Parser;
use serde::Serialize;

/// Sessions and connections opened before the first look, so that pools and caches are filled.
const WARM_UP: u32 = 32;

/// Time for the server to put away what it needed for opening.
const SETTLE: Duration = Duration::from_millis(1500);

/// Most memory an idle session may cost, in bytes.
const SESSION_BYTES_AIM: f64 = 10.0 * 1024.0;

/// Most memory an idle connection may cost, in bytes.
const CONNECTION_BYTES_AIM: f64 = 32.0 * 1024.0;

/// Measures what idle sessions and connections cost a running server.
#[derive(Debug, Parser)]
struct Arguments {
    /// Process whose memory is looked at.
    #[arg(long)]
    pid: u32,
    /// Address of NFS.
    #[arg(long, default_value = "127.0.0.1:2049")]
    nfs: SocketAddr,
    /// Address of MOUNT [default: the address of NFS].
    #[arg(long)]
    mount: Option<SocketAddr>,
    /// Address of the control API; without it only connections are measured.
    #[arg(long)]
    api: Option<String>,
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
    /// Sessions to open; each is mounted and looked at once, then left alone.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    sessions: u32,
    /// Connections to open; each makes one call, then is left alone.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(..=10_000))]
    connections: u32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Memory of a process, in bytes.
#[derive(Debug, Clone, Copy)]
struct Memory {
    resident: u64,
    /// Without what files back, such as the code or a mapped store.
    anonymous: u64,
}

impl Memory {
    fn of(pid: u32) -> Result<Self, Error> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(Error::io(
            "read the server's memory from /proc (is --pid right?)",
        ))?;
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name))
                .and_then(|rest| rest.split_whitespace().next())
                .and_then(|kib| kib.parse::<u64>().ok())
                .map(|kib| kib * 1024)
                .ok_or_else(|| Error::Setup(format!("/proc/{pid}/status has no {name}")))
        };
        Ok(Self {
            resident: field("VmRSS:")?,
            anonymous: field("RssAnon:")?,
        })
    }
}

/// Growth of the server per thing opened.
#[derive(Debug, Serialize)]
struct Growth {
    thing: &'static str,
    count: u32,
    resident_bytes_each: f64,
    anonymous_bytes_each: f64,
    aim_bytes_each: f64,
    within_aim: bool,
}

impl Growth {
    fn new(thing: &'static str, count: u32, before: Memory, after: Memory, aim: f64) -> Self {
        let each = |after: u64, before: u64| float(after.saturating_sub(before)) / f64::from(count);
        let resident_bytes_each = each(after.resident, before.resident);
        Self {
            thing,
            count,
            resident_bytes_each,
            anonymous_bytes_each: each(after.anonymous, before.anonymous),
            aim_bytes_each: aim,
            within_aim: resident_bytes_each <= aim,
        }
    }
}

struct Bench {
    arguments: Arguments,
    runtime: tokio::runtime::Runtime,
    clock: Arc<dyn Clock>,
}

impl Bench {
    fn settled(&self) -> Result<Memory, Error> {
        // Made inside, because a timer needs the runtime it is made in.
        self.runtime
            .block_on(async { self.clock.sleep(SETTLE).await });
        Memory::of(self.arguments.pid)
    }

    /// Opens sessions, mounts each and looks at its root, all over the same connections.
    fn open_sessions(&self, api: &Api, count: u32) -> Result<(), Error> {
        let mut connection = Connection::open(self.arguments.nfs)?;
        let mount = self.arguments.mount.unwrap_or(self.arguments.nfs);
        let mut mount = Connection::open(mount)?;
        for _ in 0..count {
            let session = api.open_session(&self.arguments.workspace)?;
            let root = mount.mount(&session.mount_path)?;
            connection.touch(&root)?;
        }
        Ok(())
    }

    fn open_connections(&self, count: u32) -> Result<Vec<TcpStream>, Error> {
        (0..count)
            .map(|_| {
                let mut connection = Connection::open(self.arguments.nfs)?;
                connection.null()?;
                Ok(connection.into_stream())
            })
            .collect()
    }

    fn run(&self) -> Result<Vec<Growth>, Error> {
        let mut growth = Vec::new();
        let arguments = &self.arguments;
        Memory::of(arguments.pid)?;
        if let Some(base) = &arguments.api
            && arguments.sessions > 0
        {
            let api = Api::new(base, &arguments.token);
            self.open_sessions(&api, WARM_UP)?;
            let before = self.settled()?;
            self.open_sessions(&api, arguments.sessions)?;
            let after = self.settled()?;
            let count = arguments.sessions;
            growth.push(Growth::new(
                "session",
                count,
                before,
                after,
                SESSION_BYTES_AIM,
            ));
        }
        if arguments.connections > 0 {
            let warm = self.open_connections(WARM_UP)?;
            let before = self.settled()?;
            let open = self.open_connections(arguments.connections)?;
            let after = self.settled()?;
            let count = arguments.connections;
            growth.push(Growth::new(
                "connection",
                count,
                before,
                after,
                CONNECTION_BYTES_AIM,
            ));
            drop((warm, open));
        }
        Ok(growth)
    }
}

fn print(growth: &[Growth], json: bool) -> Result<(), Error> {
    let mut text = String::new();
    if json {
        let lines = serde_json::to_string_pretty(growth);
        text.push_str(&lines.map_err(|error| Error::Setup(error.to_string()))?);
        text.push('\n');
    } else {
        for each in growth {
            text.push_str(&format!(
                "{} idle {}s: {:.1} KiB resident each ({:.1} KiB anonymous), aim {:.0} KiB: {}\n",
                each.count,
                each.thing,
                each.resident_bytes_each / 1024.0,
                each.anonymous_bytes_each / 1024.0,
                each.aim_bytes_each / 1024.0,
                if each.within_aim { "met" } else { "missed" },
            ));
        }
    }
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(Error::io("print the report"))
}

fn measure() -> Result<(), Error> {
    let arguments = Arguments::parse();
    let json = arguments.json;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(Error::io("start a runtime"))?;
    let bench = Bench {
        arguments,
        runtime,
        clock: Arc::new(SystemClock::new()),
    };
    print(&bench.run()?, json)
}

fn main() -> ExitCode {
    exit_code("memory", measure())
}
