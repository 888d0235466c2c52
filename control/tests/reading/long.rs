//! Trees that are deeper than paths are long, and patches that are not whole.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::printed::{out, text};
use crate::support::files::{Mount, mounted};
use crate::support::{Server, fails, id, json, publish, run};

const ERROR: i32 = 1;
const CONFLICT: i32 = 3;

/// Puts the directory `top`, in which all directories have this name, below so many more.
async fn deepen(files: &mut Mount, top: &str, levels: usize) {
    for _ in 0..levels {
        files.mkdir("above").await;
        files.rename(top, &format!("above/{top}")).await;
        files.rename("above", top).await;
    }
}

/// All that `find` tells, page by page.
fn found(server: &Server, page: usize) -> Vec<String> {
    let token = server.text("api_token");
    let call = format!("/v1/workspaces/default/find?limit={page}");
    let (mut all, mut next) = (Vec::new(), String::new());
    loop {
        let (status, answer) = server.call("GET", &format!("{call}{next}"), Some(&token), b"");
        assert_eq!(status, 200, "{answer}");
        let items = answer["items"].as_array().unwrap().iter();
        all.extend(items.map(|item| item["path"].as_str().unwrap().to_owned()));
        match answer["next"].as_str() {
            Some(after) => next = format!("&after={}", after.replace('%', "%25")),
            None => return all,
        }
    }
}

#[tokio::test]
async fn what_has_too_long_a_path_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start("up", dir);
    let (session, mut files) = mounted(&server, dir, &[]).await;
    let top = "d".repeat(250);
    files.mkdir(&top).await;
    files.write(format!("{top}/a"), "a").await;
    files.write(format!("{top}/b"), "b").await;
    deepen(&mut files, &top, 99).await;
    publish(dir, &session, &["-m", "deep"]);
    // Paths are longer than a request can be.
    let all = found(&server, 500);
    assert_eq!(all.len(), 102);
    assert_eq!(all[101].len(), 100 * 251 + 1);
    for page in [1, 7] {
        assert_eq!(found(&server, page), all);
    }

    deepen(&mut files, &top, 180).await;
    publish(dir, &session, &["-m", "deeper"]);
    let deepest = vec![&*top; 280].join("/");
    files.write(format!("{deepest}/c"), "c").await;
    publish(dir, &session, &["-m", "deepest"]);
    let says = [&*top, "or remove it"];
    for args in [
        &["diff"][..],
        &["diff", "--stat"],
        &["show", "main"],
        &["find", "main"],
    ] {
        fails(args, dir, CONFLICT, &says);
    }
    let to = dir.join("to");
    let to = to.to_str().unwrap();
    let archive = format!("{to}.tar");
    for args in [
        ["export", "main", &*archive],
        ["export", "main", to],
        ["bundle", "..", to],
    ] {
        fails(&args, dir, ERROR, &says);
        assert!(!Path::new(args[2]).exists(), "{args:?}");
    }
    // Doing so helps.
    files.rename(&vec![&*top; 100].join("/"), "up").await;
    publish(dir, &session, &["-m", "flat"]);
    out(&["export", "main", &archive], dir);
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(json(&["check"], dir)["clean"], true);
}

/// Applies a patch of a session's changes to files as they were before.
fn applied(patch: &[u8], place: &Path) -> bool {
    let mut git = std::process::Command::new("git");
    git.args(["apply", "-"]).current_dir(place);
    let mut child = git
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), patch).unwrap();
    child.wait().unwrap().success()
}

#[tokio::test]
async fn patches_have_no_bytes_that_files_do_not_have() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start("up", dir);
    let (session, mut files) = mounted(&server, dir, &[]).await;
    files.write("latin", b"caf\xe9\none\n").await;
    files.write("plain", "café\n").await;
    publish(dir, &session, &[]);
    files.write("latin", b"caf\xe9\ntwo\n").await;
    let output = run(&["diff", "-p", "--session", id(&session)], dir);
    assert_eq!(output.status.code(), Some(0));
    let patch = String::from_utf8(output.stdout).unwrap();
    assert!(
        patch.contains("Binary files a/latin and b/latin differ\n"),
        "{patch}"
    );
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("in 1 of its changes"), "{said}");
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("latin"), b"caf\xe9\none\n").unwrap();
    std::fs::write(place.path().join("plain"), "café\n").unwrap();
    assert!(!applied(patch.as_bytes(), place.path()));
    files.write("latin", b"caf\xe9\none\n").await;
    files.write("plain", "cafés\n").await;
    let patch = out(&["diff", "-p", "--session", id(&session)], dir);
    assert!(applied(&patch, place.path()));
    let plain = std::fs::read(place.path().join("plain")).unwrap();
    assert_eq!(plain, "cafés\n".as_bytes());
    drop(server);
}

/// A patch that lacks changes is not taken for one that has all of them.
#[tokio::test]
async fn a_patch_that_was_cut_is_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start("up", dir);
    let (session, mut files) = mounted(&server, dir, &[]).await;
    for name in ["a", "b", "c"] {
        files.write(name, "x\n").await;
    }
    publish(dir, &session, &[]);
    let cut = ["diff", "-p", "--limit", "2"];
    let output = run(&cut, dir);
    assert_eq!(output.status.code(), Some(ERROR), "{output:?}");
    assert_eq!(
        String::from_utf8(output.stdout)
            .unwrap()
            .matches("diff --git")
            .count(),
        2
    );
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("not whole") && said.contains("at most 10000"),
        "{said}"
    );
    let told: Value = json(&cut, dir);
    assert_eq!(told["more"], true);
    assert!(!out(&["diff", "-p", "--limit", "3"], dir).is_empty());
    let told = text(&["diff", "--limit", "2"], dir);
    assert!(told.contains("--limit (at most 10000) or --path"), "{told}");
    drop(server);
}
