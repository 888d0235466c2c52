//! Variables of the environment that look like settings and are none.

use std::collections::BTreeSet;

use clap::CommandFactory;

use crate::cli::Cli;
use crate::output;

/// What settings in the environment begin with.
const PREFIX: &str = "HOLDFAST_";

/// Letters that may be wrong in a name for which another is offered.
const TYPOS_MAX: usize = 3;

/// Warns of each variable that begins as settings do and is looked at by no command.
pub(crate) fn warn(json: bool) {
    let known = known();
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if let Some(line) = wrong(&name, &known) {
            output::warning(&line, json);
        }
    }
}

/// All variables that any command looks at.
fn known() -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    let mut rest = vec![Cli::command()];
    while let Some(command) = rest.pop() {
        let names = command.get_arguments().filter_map(|arg| arg.get_env());
        known.extend(names.map(|name| name.to_string_lossy().into_owned()));
        rest.extend(command.get_subcommands().cloned());
    }
    known
}

fn wrong(name: &str, known: &BTreeSet<String>) -> Option<String> {
    if !name.starts_with(PREFIX) || known.contains(name) {
        return None;
    }
    let near = known.iter().map(|other| (distance(name, other), other));
    let near = near.min().filter(|(typos, _)| *typos <= TYPOS_MAX);
    let likely = near.map_or_else(String::new, |(_, other)| format!("; is it {other}?"));
    Some(format!(
        "the variable {name} is no setting and is not looked at{likely}"
    ))
}

/// How many letters have to be put in, left out or changed to make one of the other.
fn distance(one: &str, other: &str) -> usize {
    let mut before: Vec<usize> = (0..=other.len()).collect();
    for (row, letter) in one.bytes().enumerate() {
        let mut line = vec![row + 1];
        for (diagonal, other) in before.windows(2).zip(other.bytes()) {
            let [left_above, above] = diagonal else {
                continue;
            };
            let changed = left_above + usize::from(letter != other);
            let left = line.last().copied().unwrap_or(usize::MAX);
            line.push(changed.min(above + 1).min(left.saturating_add(1)));
        }
        before = line;
    }
    before.last().copied().unwrap_or(one.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_counted() {
        for (one, other, typos) in [
            ("", "", 0),
            ("abc", "", 3),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("LISEN", "LISTEN", 1),
            ("flaw", "lawn", 2),
        ] {
            assert_eq!(distance(one, other), typos, "{one} {other}");
        }
    }

    #[test]
    fn what_is_no_setting_is_told_with_what_it_may_be() {
        let known = known();
        for name in [
            "HOLDFAST_LISTEN",
            "HOLDFAST_TOKEN",
            "HOLDFAST_CONFIG",
            "HOLDFAST_DATA_DIR",
        ] {
            assert!(known.contains(name), "{name}");
            assert_eq!(wrong(name, &known), None);
        }
        assert_eq!(wrong("PATH", &known), None);
        for (name, likely) in [
            ("HOLDFAST_LISEN", "HOLDFAST_LISTEN"),
            ("HOLDFAST_DATADIR", "HOLDFAST_DATA_DIR"),
            ("HOLDFAST_TOKENS", "HOLDFAST_TOKEN"),
        ] {
            let line = wrong(name, &known).unwrap();
            assert!(
                line.contains(name) && line.ends_with(&format!("is it {likely}?")),
                "{line}"
            );
        }
        let line = wrong("HOLDFAST_SOMETHING_ELSE", &known).unwrap();
        assert!(!line.contains("is it"), "{line}");
    }
}
