//! Completion of command lines, in each shell. Needs what `tests/shells` installs.
#![allow(
    missing_docs,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::holdfast;

/// What a shell, given `program` to run with `args` behind it, prints.
fn shell(name: &str, options: &[&str], program: &str, args: &[&Path]) -> String {
    let output = Command::new(name)
        .args(options)
        .args(["-c", program])
        .args(args)
        .stdin(Stdio::null())
        .output();
    let output = output.unwrap_or_else(|error| panic!("{name}: {error}; tests/shells installs it"));
    assert!(output.status.success(), "{name}: {output:?}");
    assert!(output.stderr.is_empty(), "{name}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Writes a shell's script as the documentation says.
fn install(shell: &str, path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let output = holdfast().args(["completion", shell]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    std::fs::write(path, output.stdout).unwrap();
}

/// The words that bash offers for the last of `words`.
fn offered_by_bash(script: &Path, words: &[&str]) -> Vec<String> {
    let list: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let last = words.len() - 1;
    let program = format!(
        r#"source "$0"
        COMP_WORDS=({list}); COMP_CWORD={last}
        complete -p holdfast > /dev/null || exit 1
        _holdfast holdfast "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
        printf '%s\n' "${{COMPREPLY[@]}}""#,
        list = list.join(" "),
    );
    let said = shell("bash", &["--norc", "--noprofile"], &program, &[script]);
    said.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let root = tempfile::tempdir().unwrap();
    let script = root.path().join("bash-completion/completions/holdfast");
    install("bash", &script);
    assert_eq!(offered_by_bash(&script, &["holdfast", "ses"]), ["session"]);
    let verbs = offered_by_bash(&script, &["holdfast", "session", "p"]);
    assert_eq!(verbs, ["publish"]);
    let flags = offered_by_bash(&script, &["holdfast", "session", "open", "--tt"]);
    assert_eq!(flags, ["--ttl"]);
    let policies = ["fail", "keep-both", "ours", "theirs"];
    let takes = ["ours", "theirs", "both", "file"];
    for (line, values) in [
        (&["session", "publish", "--policy", ""][..], policies),
        (&["session", "sync", "--policy", ""], policies),
        (&["session", "close", "--policy", ""], policies),
        (&["conflicts", "resolve", "--take", ""], takes),
    ] {
        assert_eq!(
            offered_by_bash(&script, &[&["holdfast"], line].concat()),
            values
        );
        // Others are refused, and these told.
        let mut wrong = holdfast();
        let wrong = wrong.args(&line[..line.len() - 1]).arg("other");
        let wrong = wrong.output().unwrap();
        assert_eq!(wrong.status.code(), Some(2), "{line:?}");
        let said = String::from_utf8_lossy(&wrong.stderr);
        assert!(said.contains(&values.join(", ")), "{said}");
    }
    let shells = offered_by_bash(&script, &["holdfast", "completion", ""]);
    for name in ["bash", "zsh", "fish"] {
        assert!(shells.contains(&name.to_owned()), "{shells:?}");
    }
}

#[test]
fn fish_completes_commands() {
    let root = tempfile::tempdir().unwrap();
    let script = root.path().join("holdfast.fish");
    install("fish", &script);
    let program = "source $argv[1]; complete -C 'holdfast session p'";
    let said = shell("fish", &["--no-config"], program, &[&script]);
    assert!(said.starts_with("publish\t"), "{said}");
}

#[test]
fn zsh_knows_who_completes_commands() {
    let root = tempfile::tempdir().unwrap();
    let script: PathBuf = root.path().join("_holdfast");
    install("zsh", &script);
    let program = r#"fpath=("${0:h}" $fpath); autoload -Uz compinit && compinit -u -D
        print -r -- "$_comps[holdfast]"; autoload -Uz +X _holdfast && zsh -n "$0""#;
    let said = shell("zsh", &["-f"], program, &[&script]);
    assert_eq!(said, "_holdfast\n");
}

#[test]
fn the_script_is_there_as_json_too() {
    let output = holdfast()
        .args(["--json", "completion", "fish"])
        .output()
        .unwrap();
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told.get("shell").unwrap(), "fish");
    let plain = holdfast().args(["completion", "fish"]).output().unwrap();
    let script = told.get("script").unwrap().as_str().unwrap();
    assert_eq!(script.as_bytes(), plain.stdout);
    let wrong = holdfast().args(["completion", "tcsh"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}
