//! The control API, the server's assembly and the `holdfast` command line.

pub mod api;
mod bundle;
pub mod cli;
pub mod cli_completion;
pub mod cli_conflicts;
pub mod cli_history;
pub mod cli_keeping;
pub mod cli_outside;
pub mod cli_reading;
pub mod cli_transfer;
pub mod client;
mod collector;
mod commands;
pub mod conflicts;
pub mod data_dir;
mod expiry;
pub mod failure;
mod files;
mod fleet;
pub mod history;
pub mod keeping;
mod logging;
mod metrics;
pub mod mount_line;
mod open_files;
mod output;
pub mod outside;
pub mod place;
pub mod reading;
mod remover;
mod room;
pub mod server;
pub mod settings;
pub mod status;
mod streaming;
mod surroundings;
mod tar;
pub mod tier;
#[cfg(test)]
mod told;
pub mod transfer;
pub mod types;
pub mod units;

use std::ffi::OsString;

use clap::Parser;

use crate::failure::{Failure, FailureKind};

/// Runs a command line, whose first argument is the program's name, and returns the process's exit
/// code.
#[must_use]
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match cli::Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => return misused(&args, &error),
    };
    let json = cli.json;
    surroundings::warn(json);
    let code = match commands::run(cli) {
        Ok(code) => code,
        Err(failure) => {
            output::failure(&failure, json);
            failure.exit_code()
        }
    };
    place::end();
    code
}

/// Says what is wrong with a command line, or what was asked for in place of a command: help.
fn misused(args: &[OsString], error: &clap::Error) -> u8 {
    if !error.use_stderr() {
        // A reader that went away is no failure.
        drop(error.print());
        return 0;
    }
    // What was not understood says no more than that.
    let options = args.iter().skip(1).take_while(|arg| *arg != "--");
    let json = options.into_iter().any(|arg| arg == "--json");
    surroundings::warn(json);
    if !json {
        drop(error.print());
        return Failure::new(FailureKind::Usage, "").exit_code();
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let failure = Failure::new(FailureKind::Usage, text.trim_end());
    output::failure(&failure, true);
    failure.exit_code()
}
