//! What differs between versions: as paths, sums and text.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::printed::{NOT_FOUND, USAGE, out, text};
use crate::support::files::mounted;
use crate::support::{Server, fails, id, json, publish};

#[tokio::test]
async fn differences_are_told_as_text_and_sums() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start("up", dir);
    let (session, mut files) = mounted(&server, dir, &[]).await;
    let base: String = (0..20).map(|line| format!("line {line}\n")).collect();
    files.mkdir("d").await;
    files.write("d/text", &base).await;
    files.write("gone", "x\ny").await;
    files.write("binary", [0, 1, 2]).await;
    files.write("moved", &base).await;
    files.write("large", vec![b'a'; 1_100_000]).await;
    // Of a session that stands on nothing.
    let first = json(&["diff", "--session", id(&session)], dir);
    assert_eq!(first["from"], "empty");
    assert_eq!(first["items"].as_array().unwrap().len(), 6, "{first}");
    publish(dir, &session, &["-m", "one"]);
    let none = json(&["diff", "--session", id(&session)], dir);
    assert_eq!(none["items"], Value::Array(vec![]));
    assert_eq!(text(&["diff", "--session", id(&session)], dir), "");

    files
        .write("d/text", base.replace("line 9\n", "line nine\n"))
        .await;
    files.remove("gone").await;
    files.write("binary", [0, 1, 3]).await;
    files.rename("moved", "d/moved to").await;
    files.write("large", vec![b'b'; 1_100_000]).await;
    files.write("new", "one\n").await;
    files.write(b"n\xff".as_slice(), "odd\n").await;
    // Not published, not even committed by the client.
    let diff = json(&["diff", "--session", id(&session)], dir);
    let told = |what: &str| -> Vec<String> {
        let items = diff["items"].as_array().unwrap().iter();
        let mut paths: Vec<_> = items
            .filter(|item| item["what"] == what)
            .map(|item| item["path"].as_str().unwrap().to_owned())
            .collect();
        paths.sort();
        paths
    };
    assert_eq!(told("added"), ["new", "n\u{fffd}"]);
    assert_eq!(told("removed"), ["gone"]);
    assert_eq!(told("modified"), ["binary", "d/text", "large"]);
    assert_eq!(told("renamed"), ["d/moved to"]);
    assert!(diff["to"].as_str().unwrap().contains(id(&session)));
    told_in_full(dir, &session);
    let against = json(&["diff", "--session", id(&session), "--from", "main"], dir);
    assert_eq!(against["items"], diff["items"]);
    let two = json(&["diff", "main", "main"], dir);
    assert_eq!(two["items"], Value::Array(vec![]));
    let thrice = ["diff", "main", "main", "--from", "main"];
    fails(&thrice, dir, USAGE, &["two versions"]);
    let both = ["diff", "main", "--session", id(&session)];
    fails(&both, dir, USAGE, &["cannot be used"]);
    let shown = text(&["show", "main"], dir);
    assert!(shown.contains("A  d/text"), "{shown}");
    json(&["session", "close", id(&session)], dir);
    fails(&["diff", "--session", id(&session)], dir, NOT_FOUND, &[]);
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(json(&["check"], dir)["clean"], true);
}

/// Sums and texts.
fn told_in_full(dir: &Path, session: &Value) {
    let stat = json(&["diff", "--session", id(session), "--stat"], dir)["stat"].clone();
    assert_eq!(stat["files"], serde_json::json!([2, 4, 1]));
    assert_eq!(stat["bytes"][0], 8);
    let shown = text(&["diff", "--session", id(session), "--stat"], dir);
    assert!(shown.contains("A  new | 4 bytes\n"), "{shown}");
    assert!(shown.contains("D  gone | 3 bytes\n"), "{shown}");
    assert!(shown.contains("R  moved -> d/moved to"), "{shown}");
    assert!(shown.contains("2 added (8 bytes), 4 changed ("), "{shown}");
    let within = json(
        &["diff", "--session", id(session), "--path", "d", "--stat"],
        dir,
    );
    assert_eq!(within["items"].as_array().unwrap().len(), 2, "{within}");
    assert_eq!(within["stat"]["files"], serde_json::json!([0, 2, 0]));

    let patch = text(&["diff", "--session", id(session), "-p"], dir);
    for part in [
        "--- a/d/text\n+++ b/d/text\n@@ -7,7 +7,7 @@\n",
        "-line 9\n+line nine\n",
        "deleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-x\n-y\n\\ No newline",
        "Binary files a/binary and b/binary differ\n",
        "rename from moved\nrename to d/moved to\n",
        "Files a/large and b/large are not compared: over 1048576 bytes\n",
        "new file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+one\n",
        "diff --git \"a/n\\377\" \"b/n\\377\"\n",
    ] {
        assert!(patch.contains(part), "{part} is not in {patch}");
    }
}

/// What a comparison of a session reads is there to its end, whatever is collected meanwhile and
/// whatever the session has by then.
#[tokio::test(flavor = "multi_thread")]
async fn collections_take_nothing_from_comparisons() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start("up", dir);
    let (session, mut files) = mounted(&server, dir, &[]).await;
    let rounds = 12;
    for file in 0..20 {
        files
            .write(format!("f{file}"), format!("{file}\n").repeat(9_000))
            .await;
    }
    publish(dir, &session, &["-m", "one"]);
    std::thread::scope(|scope| {
        let (session, dir) = (&session, dir);
        scope.spawn(move || {
            for _ in 0..rounds {
                json(&["gc"], dir);
                json(&["session", "checkpoint", id(session)], dir);
            }
        });
        for round in 0..rounds {
            let runtime = tokio::runtime::Handle::current();
            tokio::task::block_in_place(|| {
                runtime.block_on(async {
                    let text = format!("round {round}\n").repeat(9_000);
                    files.write(format!("f{}", round % 20), &text).await;
                });
            });
            let told = json(
                &["diff", "--session", id(session), "--from", "main", "-p"],
                dir,
            );
            let items = told["items"].as_array().unwrap();
            assert_eq!(items.len(), round + 1, "{round}");
            for item in items {
                let patch = item["patch"].as_str().unwrap();
                assert_eq!(patch.matches("\n+round ").count(), 9_000, "{round}");
            }
        }
    });
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(json(&["check"], dir)["clean"], true);
}

/// Everything of a version, in a directory of its own.
fn take_out(dir: &Path, version: &str) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    let found = json(&["find", version], dir);
    for entry in found.as_array().unwrap() {
        let path = entry["path"].as_str().unwrap();
        let at = to.path().join(path);
        match entry["kind"].as_str().unwrap() {
            "directory" => std::fs::create_dir(at).unwrap(),
            "symlink" => {
                std::os::unix::fs::symlink(entry["target"].as_str().unwrap(), at).unwrap();
            }
            _ => {
                std::fs::write(&at, out(&["cat", version, path], dir)).unwrap();
                let mode = u32::try_from(entry["mode"].as_u64().unwrap()).unwrap();
                let mode = if mode & 0o100 == 0 { 0o644 } else { 0o755 };
                std::fs::set_permissions(at, std::fs::Permissions::from_mode(mode)).unwrap();
            }
        }
    }
    to
}

/// Files and links below a directory: mode, and content or target.
fn shown(top: &Path) -> BTreeMap<std::path::PathBuf, (u32, Vec<u8>)> {
    let (mut all, mut dirs) = (BTreeMap::new(), vec![top.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            if metadata.is_dir() {
                dirs.push(path);
                continue;
            }
            let content = if metadata.is_symlink() {
                std::fs::read_link(&path)
                    .unwrap()
                    .into_os_string()
                    .into_encoded_bytes()
            } else {
                std::fs::read(&path).unwrap()
            };
            let relative = path.strip_prefix(top).unwrap().to_owned();
            all.insert(relative, (metadata.permissions().mode(), content));
        }
    }
    all
}

/// What is told as text leads from one version to the other, as git reads it.
#[tokio::test]
async fn differences_can_be_applied_by_git() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start("up", dir);
    let (session, mut files) = mounted(&server, dir, &[]).await;
    let text = |from: usize| -> String { (from..from + 30).map(|at| format!("{at}\n")).collect() };
    files.mkdir("d").await;
    files.mkdir("e").await;
    for (number, path) in ["a", "b", "c", "d/f", "d/g", "h", "i", "j", "k", "m"]
        .iter()
        .enumerate()
    {
        files.write(path, text(number)).await;
    }
    files.symlink("l", "a").await;
    files.write("tab\tname", "x").await;
    publish(dir, &session, &["-m", "one"]);
    files.write("a", text(0).replace("7\n", "seven\n")).await;
    files.rename("b", "c").await;
    files.rename("d/f", "e/f").await;
    files.write("e/f", text(3) + "more").await;
    files.chmod("h", 0o755).await;
    files.chmod("i", 0o600).await;
    files.remove("l").await;
    files.write("l", "a file now").await;
    files.remove("j").await;
    files.symlink("j", "k").await;
    files.write("m~", text(9).replace("20\n", "")).await;
    files.rename("m~", "m").await;
    files.remove("d/g").await;
    files.link("k", "k2").await;
    files.write("tab\tname", "y").await;
    files.write("new", "").await;
    publish(dir, &session, &["-m", "two"]);

    let patch = out(&["diff", "main~1", "main", "-p"], dir);
    let shown_patch = String::from_utf8_lossy(&patch).into_owned();
    assert!(
        shown_patch.contains("# file i: mode 0644 -> 0600\n"),
        "{shown_patch}"
    );
    let (old, new) = (take_out(dir, "main~1"), take_out(dir, "main"));
    assert_ne!(shown(old.path()), shown(new.path()));
    let mut git = Command::new("git")
        .args(["apply", "-"])
        .current_dir(old.path())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut git.stdin.take().unwrap(), &patch).unwrap();
    let done = git.wait_with_output().unwrap();
    assert!(done.status.success(), "{done:?}: {shown_patch}");
    assert_eq!(shown(old.path()), shown(new.path()), "{shown_patch}");
}
