//! Variables of the environment that look like settings and are none.

use std::collections::BTreeSet;

use clap::CommandFactory;

use crate::cli::Cli;
use crate::output;

/// What settings in the environment begin with.
const PREFIX: &str = "HOLDFAST_";

/// Of so many letters one may be wrong.
const LETTERS_FOR_A_TYPO: usize = 3;

/// Warns of each variable that is looked at by no command and looks like one that is.
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

/// What to say of a variable that is likely meant to be another. Others are not ours to judge: an
/// orchestrator makes some of the names of services, as `HOLDFAST_PORT`.
fn wrong(name: &str, known: &BTreeSet<String>) -> Option<String> {
    let rest = name.strip_prefix(PREFIX)?;
    let typos_max = (rest.len() / LETTERS_FOR_A_TYPO).max(1);
    let near = known.iter().map(|other| (distance(name, other), other));
    let (typos, likely) = near.min()?;
    (1..=typos_max)
        .contains(&typos)
        .then(|| format!("the variable {name} is no setting and is not looked at; is it {likely}?"))
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
        for other in [
            "HOLDFAST_SOMETHING_ELSE",
            "HOLDFAST_PORT",
            "HOLDFAST_BIN",
            "HOLDFAST_",
        ] {
            assert_eq!(wrong(other, &known), None, "{other}");
        }
    }
}
