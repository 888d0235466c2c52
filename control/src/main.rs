//! The `holdfast` command.

use clap::Parser;

fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(control::run(control::cli::Cli::parse()))
}
