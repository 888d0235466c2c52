//! The control API, the server's assembly and the `holdfast` command line.

pub mod api;
pub mod cli;
pub mod client;
mod collector;
mod commands;
pub mod data_dir;
mod expiry;
pub mod failure;
mod logging;
mod metrics;
pub mod mount_line;
mod output;
pub mod server;
pub mod settings;
pub mod status;
pub mod types;
pub mod units;

/// Runs the command line and returns the process's exit code.
#[must_use]
pub fn run(cli: cli::Cli) -> u8 {
    let json = cli.json;
    match commands::run(cli) {
        Ok(code) => code,
        Err(failure) => {
            output::failure(&failure, json);
            failure.exit_code()
        }
    }
}
