//! What each side had, resolutions of all ways, and others meanwhile.

use serde_json::Value;

use crate::cases::{CASES, begin};
use crate::common::{CONFLICT, list, resolve, text, with_a_conflict};
use crate::support::files::mounted;
use crate::support::{Server, fails, id, json, publish, run};

#[tokio::test]
async fn what_each_side_had_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start("up", dir);
    let (session, mut files) = with_a_conflict(&server, dir).await;
    let conflict = list(dir, &session).remove(0);
    let by_version = json(&["conflicts", "ls", "--workspace", "w"], dir);
    assert_eq!(by_version[0], conflict);
    for (side, agent, content) in [
        ("base", None, "a"),
        ("ours", Some("left"), "b"),
        ("theirs", Some("right"), "c"),
    ] {
        let version = &conflict[side];
        assert_eq!(
            (&version["kind"], &version["size"]),
            (&"file".into(), &1.into())
        );
        assert_eq!(version["agent"].as_str(), agent, "{conflict}");
        assert_eq!(version["mode"], 0o644);
        let at = ["w", "--read-only", "--version", text(&version["commit"])];
        let (_, mut then) = mounted(&server, dir, &at).await;
        let path = text(&version["path"]);
        assert_eq!(then.read(path).await.unwrap(), content.as_bytes());
        if let Some(here) = version["here"].as_str() {
            assert_eq!(files.read(here).await.unwrap(), content.as_bytes());
        }
    }
    assert_eq!(conflict["ours"]["here"], "d/f");
    assert_eq!(conflict["theirs"]["here"], conflict["aside"]);
    let ids = ["base", "ours", "theirs"].map(|side| text(&conflict[side]["content_id"]));
    assert!(
        ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2],
        "{ids:?}"
    );
    // Renamed since: it is told, and found, where it is.
    files.script(&["mv d e", "mv e/f g"]).await;
    let moved = list(dir, &session).remove(0);
    assert_eq!(
        (&moved["path"], &moved["id"]),
        (&"g".into(), &conflict["id"])
    );
    assert!(text(&moved["aside"]).starts_with("e/f~theirs."), "{moved}");
    assert_eq!(moved["ours"]["path"], "d/f");
    let printed = run(&["conflicts", "ls", "--session", id(&session)], dir);
    let printed = String::from_utf8(printed.stdout).unwrap();
    for part in [
        "g\n",
        "content",
        "agent left",
        "agent right",
        "now at e/f~theirs.",
    ] {
        assert!(printed.contains(part), "{printed} does not say {part}");
    }
    assert_eq!(
        resolve(dir, &session, &["g", "--take", "theirs"])["left"],
        0
    );
    assert_eq!(files.lines().await, ["e/", "g = c"]);
}

#[tokio::test]
async fn what_an_agent_edited_is_taken_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start("up", dir);
    let (session, mut files) = with_a_conflict(&server, dir).await;
    // Not committed, even.
    files.write("d/f", "merged by hand").await;
    let ours = [
        "conflicts",
        "resolve",
        id(&session),
        "d/f",
        "--take",
        "ours",
    ];
    fails(&ours, dir, CONFLICT, &["has been changed since", "`file`"]);
    assert_eq!(list(dir, &session).len(), 1);
    let (dir_before, file_before) = (files.stat("d").await, files.stat("d/f").await);
    resolve(dir, &session, &["d/f", "--take", "file"]);
    // For clients of a live mount it is a change as any other.
    let (dir_after, file_after) = (files.stat("d").await, files.stat("d/f").await);
    let time = |it: &nfs3_types::nfs3::nfstime3| (it.seconds, it.nseconds);
    assert!(time(&dir_after.ctime) > time(&dir_before.ctime));
    assert!(time(&dir_after.mtime) > time(&dir_before.mtime));
    assert_eq!(time(&file_after.ctime), time(&file_before.ctime));
    assert_eq!(files.lines().await, ["d/", "d/f = merged by hand"]);
    publish(dir, &session, &["-m", "by hand"]);
    let (_, mut files) = mounted(&server, dir, &["w", "--read-only"]).await;
    assert_eq!(files.lines().await, ["d/", "d/f = merged by hand"]);
}

#[tokio::test]
async fn others_are_not_stopped_and_resolutions_merge() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start("up", dir);
    let (early, mut early_files) = {
        let [ours, theirs] = begin(&server, dir, "w", &CASES[0]).await;
        let early = mounted(&server, dir, &["w"]).await;
        publish(dir, &ours, &[]);
        publish(dir, &theirs, &["--policy", "keep-both"]);
        early
    };
    let (first, mut first_files) = mounted(&server, dir, &["w"]).await;
    let (second, mut second_files) = mounted(&server, dir, &["w"]).await;
    let (third, mut third_files) = mounted(&server, dir, &["w"]).await;
    // What the branch alone has stops nobody who cannot resolve it.
    early_files.script(&["write early 1"]).await;
    assert_eq!(publish(dir, &early, &[])["outcome"], "merged");
    assert_eq!(json(&["show", "--workspace", "w"], dir)["conflicts"], 1);
    // Whoever wants to may take them along.
    first_files.script(&["write first 1"]).await;
    fails(
        &["session", "publish", id(&first)],
        dir,
        CONFLICT,
        &["unresolved"],
    );
    let done = publish(dir, &first, &["--policy", "keep-both"]);
    assert_eq!(
        (&done["outcome"], &done["conflicts"]),
        (&"merged".into(), &Value::Array(vec![]))
    );
    assert_eq!(json(&["show", "--workspace", "w"], dir)["conflicts"], 1);
    // One resolves it; then it stops the others no more.
    resolve(dir, &second, &["d/f", "--take", "ours"]);
    second_files.script(&["write second 1"]).await;
    assert_eq!(publish(dir, &second, &[])["outcome"], "merged");
    assert_eq!(json(&["show", "--workspace", "w"], dir)["conflicts"], 0);
    third_files.script(&["write third 1"]).await;
    assert_eq!(list(dir, &third).len(), 1);
    let plan = publish(dir, &third, &["--dry-run"]);
    assert_eq!(
        (&plan["publishes"], &plan["unresolved_total"]),
        (&true.into(), &0.into())
    );
    publish(dir, &third, &[]);
    let (_, mut files) = mounted(&server, dir, &["w"]).await;
    let expected = [
        "d/",
        "d/f = b",
        "early = 1",
        "first = 1",
        "second = 1",
        "third = 1",
    ];
    assert_eq!(files.lines().await, expected);
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(json(&["check"], dir)["clean"], true);
}

#[tokio::test]
async fn names_that_are_no_text_are_resolved_by_id() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start("up", dir);
    json(&["workspace", "create", "w"], dir);
    let name = b"caf\xe9";
    let base = json(&["session", "open", "w"], dir);
    publish(dir, &base, &[]);
    let (one, mut files) = mounted(&server, dir, &["w"]).await;
    files.write(name, b"1").await;
    let (two, mut files) = mounted(&server, dir, &["w"]).await;
    files.write(name, b"2").await;
    publish(dir, &one, &[]);
    publish(dir, &two, &["--policy", "keep-both"]);
    let (session, mut files) = mounted(&server, dir, &["w"]).await;
    let conflict = list(dir, &session).remove(0);
    assert_eq!(conflict["path"], "caf\u{fffd}");
    assert_eq!(conflict["path_bytes"], "caf%E9");
    resolve(
        dir,
        &session,
        &["--id", text(&conflict["id"]), "--take", "theirs"],
    );
    assert_eq!(files.read(name).await.unwrap(), b"2");
    assert_eq!(files.names("").await, ["caf\u{fffd}"]);
}
