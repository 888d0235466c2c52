//! The echo server: what the machine's sockets can do with the same bytes. Drive it with
//! `load --echo`.

use std::io::Write as _;
use std::net::{IpAddr, TcpListener};
use std::process::ExitCode;

use bench_suite::Error;
use bench_suite::echo::{self, Replies};
use bench_suite::measure::exit_code;
use clap::Parser;

/// Answers each record with one of the length it asks for.
#[derive(Debug, Parser)]
struct Arguments {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    listen: IpAddr,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// How replies are sent.
    #[arg(long, value_enum, default_value = "batched")]
    replies: Replies,
}

fn serve(arguments: &Arguments) -> Result<(), Error> {
    let listener =
        TcpListener::bind((arguments.listen, arguments.port)).map_err(Error::io("listen"))?;
    let port = listener.local_addr().map_err(Error::io("listen"))?.port();
    writeln!(std::io::stdout(), "{{\"port\":{port}}}").map_err(Error::io("print the port"))?;
    echo::serve(&listener, arguments.replies)
}

fn main() -> ExitCode {
    exit_code("echo", serve(&Arguments::parse()))
}
