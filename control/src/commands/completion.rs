//! `completion`: what makes a shell complete command lines.

use clap::{CommandFactory, ValueEnum};

use crate::cli::Cli;
use crate::cli_completion::{CompletionArgs, Shell};
use crate::failure::Failure;
use crate::output;

/// Name of the command that is completed.
const COMMAND: &str = "holdfast";

/// Prints the script. It needs no server.
pub(super) fn run(args: &CompletionArgs, json: bool) -> Result<(), Failure> {
    let script = script(args.shell);
    if json {
        let shell = args.shell.to_possible_value();
        let shell = shell.as_ref().map_or("", |value| value.get_name());
        let script = String::from_utf8_lossy(&script);
        return output::json(&serde_json::json!({ "shell": shell, "script": script }));
    }
    output::bytes(&script).map(drop)
}

fn script(shell: Shell) -> Vec<u8> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), COMMAND, &mut script);
    script
}
