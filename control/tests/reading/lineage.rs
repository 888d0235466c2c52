//! The log of a path, and by whom the lines of a file are.

use std::path::Path;

use serde_json::Value;

use crate::printed::{field, published, text};
use crate::support::files::mounted;
use crate::support::{Server, json, publish};

#[tokio::test]
async fn the_history_of_a_file_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start("up", dir);
    let about = ["--agent", "maker", "--run", "r1"];
    let (session, mut files) = mounted(&server, dir, &about).await;
    files.mkdir("d").await;
    files.write("d/f", "one\ntwo\nthree\nfour\nfive\n").await;
    files.write("other", "x").await;
    files.write("blob", [0; 10]).await;
    let made = published(
        dir,
        &session,
        &["-m", "make", "--model", "m1", "--tool-call", "t1"],
    );

    // Two change it side by side, and one thing else.
    let (left, mut left_files) = mounted(&server, dir, &["--agent", "left"]).await;
    let (right, mut right_files) = mounted(&server, dir, &["--agent", "right"]).await;
    let (aside, mut aside_files) = mounted(&server, dir, &["--agent", "aside"]).await;
    left_files
        .write("d/f", "ONE\ntwo\nthree\nfour\nfive\n")
        .await;
    right_files
        .write("d/f", "one\ntwo\nthree\nfour\nFIVE\n")
        .await;
    aside_files.write("other", "y").await;
    let left_commit = published(dir, &left, &["-m", "left"]);
    let merge = published(dir, &right, &["-m", "right"]);
    publish(dir, &aside, &["-m", "aside"]);
    // And one moves it, saves it as editors do, and writes it.
    let (last, mut last_files) = mounted(&server, dir, &["--agent", "last"]).await;
    last_files.rename("d", "e").await;
    let moved = published(dir, &last, &["-m", "move"]);
    last_files
        .write("e/f~", "ONE\ntwo\n3\nfour\nFIVE\nsix\n")
        .await;
    last_files.rename("e/f~", "e/f").await;
    let saved = published(dir, &last, &["-m", "save"]);

    let log = json(&["log", "--path", "e/f"], dir);
    let ids = told_by_commits(dir, &log, [&made, &left_commit, &merge, &moved, &saved]);
    told_by_lines(dir, [&made, &left_commit, &saved]);
    let shown = json(&["show", &merge], dir);
    assert_eq!(field(&shown["changes"], "path"), ["d/f"]);
    assert!(text(&["show", &merge], dir).ends_with("M  d/f\n"));
    server.kill();
    let server = Server::start("up", dir);
    assert_eq!(field(&json(&["log", "--path", "e/f"], dir), "id"), ids);
    assert_eq!(server.terminate(), Some(0));
}

fn told_by_commits<'a>(
    dir: &Path,
    log: &'a Value,
    [made, left_commit, merge, moved, saved]: [&str; 5],
) -> Vec<&'a str> {
    let ids = field(log, "id");
    assert_eq!(ids.len(), 6, "{log}");
    assert_eq!(
        (ids[0], ids[1], ids[2], ids[5]),
        (saved, moved, merge, made)
    );
    assert_eq!(log[0]["change"]["what"], "modified");
    assert_eq!(log[1]["change"]["old_path"], "d/f");
    assert_eq!(log[5]["change"]["what"], "added");
    let left_only = json(&["log", "--path", "e/f", "--agent", "left"], dir);
    assert_eq!(field(&left_only, "id"), [left_commit]);
    let first = json(&["log", "--path", "e/f", "--first-parent"], dir);
    assert_eq!(
        field(&first, "id"),
        [saved, moved, merge, left_commit, made]
    );
    assert_eq!(
        json(&["log", "--path", "e/f", "--limit", "2"], dir)
            .as_array()
            .unwrap()
            .len(),
        2
    );
    // A directory is changed by what is in it; a path may be gone.
    let all = json(&["log", "--path", "e"], dir);
    assert_eq!(field(&all, "id"), ids);
    assert_eq!(
        json(&["log", "--path", "d/f"], dir)[0]["change"]["path"],
        "e/f"
    );
    assert_eq!(json(&["log", "--path", "never"], dir), Value::Array(vec![]));
    assert!(text(&["log", "--path", "e/f"], dir).contains("R  d/f -> e/f"));
    ids
}

fn told_by_lines(dir: &Path, [made, left, saved]: [&str; 3]) {
    let blame = json(&["blame", "main", "e/f"], dir);
    let of = |line: usize| {
        let line = u64::try_from(line).unwrap();
        let mut runs = blame["lines"].as_array().unwrap().iter();
        let run = runs.rfind(|run| run["first"].as_u64().unwrap() <= line);
        let run = run.unwrap();
        let source = usize::try_from(run["source"].as_u64().unwrap()).unwrap();
        blame["sources"][source].clone()
    };
    let by: Vec<_> = (1..=6)
        .map(|line| of(line)["agent"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        by,
        ["left", "maker", "last", "maker", "right", "last"],
        "{blame}"
    );
    assert_eq!(
        (of(1)["commit"].as_str(), of(2)["commit"].as_str()),
        (Some(left), Some(made))
    );
    assert_eq!(
        (&of(2)["model"], &of(2)["run"]),
        (&"m1".into(), &"r1".into())
    );
    assert_eq!(
        (&of(2)["tool_call"], &of(2)["path"]),
        (&"t1".into(), &"d/f".into())
    );
    assert_eq!(of(2)["subject"], "make");
    assert_eq!(blame["created"]["commit"], made);
    assert_eq!(blame["written"]["commit"], saved);
    assert_eq!(blame["complete"], true);
    let shown = text(&["blame", "main", "e/f"], dir);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 6, "{shown}");
    assert!(
        lines[1].contains(&made[..8]) && lines[1].contains("d/f (maker"),
        "{shown}"
    );
    assert!(lines[1].ends_with(" 2) two"), "{shown}");
    let whole = text(&["blame", "main", "e/f", "--whole"], dir);
    assert!(
        whole.contains("model   m1") && whole.contains(saved),
        "{whole}"
    );

    let binary = json(&["blame", "main", "blob"], dir);
    assert!(binary["lines"].is_null());
    assert!(binary["no_lines"].as_str().unwrap().contains("NUL"));
    assert_eq!(binary["created"]["commit"], made);
    assert!(text(&["blame", "main", "blob"], dir).contains("not told by lines"));
    assert_eq!(json(&["blame", "main", "e"], dir)["kind"], "directory");
}
