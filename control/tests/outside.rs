//! Live sessions that are changed from outside: restored, synced, undone.
#![allow(missing_docs)]

mod support;

#[cfg(test)]
mod tests {

    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use crate::support::files::{Mount, mounted};
    use crate::support::{Server, fails, holdfast, id, json, publish, run};
    use nfs3_types::nfs3::{fattr3, nfsstat3, stable_how};
    use serde_json::Value;

    /// Exit code if something else is in the way.
    const CONFLICT: i32 = 3;

    fn restore(dir: &Path, session: &Value, more: &[&str]) -> Value {
        json(&[&["session", "restore", id(session)], more].concat(), dir)
    }

    fn sync(dir: &Path, session: &Value, more: &[&str]) -> Value {
        json(&[&["session", "sync", id(session)], more].concat(), dir)
    }

    /// The paths that changed from outside, and what to acknowledge.
    fn changed(dir: &Path, session: &Value) -> (Vec<String>, Option<u64>) {
        let changed = json(&["session", "changed", id(session)], dir);
        assert_eq!(changed["everything"], false);
        let paths = changed["paths"].as_array().unwrap();
        let text = |path: &Value| path.as_str().unwrap().to_owned();
        let paths = paths.iter().map(text).collect();
        (paths, changed["position"].as_u64())
    }

    fn later(new: &fattr3, old: &fattr3) -> bool {
        (new.ctime.seconds, new.ctime.nseconds) > (old.ctime.seconds, old.ctime.nseconds)
    }

    #[tokio::test]
    async fn a_live_session_is_restored_under_its_mount_and_back() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        let edited = files.write("edited", b"one").await;
        files.write("large", &[1; 700_000]).await;
        let removed = files.write("removed", b"removed").await;
        files.mkdir("d").await;
        files.write("d/moved", b"moved").await;
        let v1 = publish(dir, &session, &["-m", "v1"]);
        let version = v1["head"].as_str().unwrap();

        files.write("edited", b"two, and not committed").await;
        files.write("large", &[2; 900_000]).await;
        files.remove("removed").await;
        files.rename("d/moved", "moved").await;
        let added = files.write("added", b"added").await;
        let before = files.attributes(&edited).await.unwrap();
        let root = files.root();
        let root_before = files.attributes(&root).await.unwrap();

        let done = restore(dir, &session, &["--version", "main"]);
        assert_eq!(
            (&done["outcome"], &done["version"]),
            (&"restored".into(), &version.into())
        );
        assert_eq!(files.read_at(&edited, 0).await.unwrap(), b"one");
        assert_eq!(files.read("edited").await.unwrap(), b"one");
        assert_eq!(files.read("large").await.unwrap(), [1; 700_000]);
        assert_eq!(files.find("removed").await.unwrap(), removed);
        assert_eq!(files.read("d/moved").await.unwrap(), b"moved");
        assert_eq!(files.find("moved").await, None);
        let stale = files.read_at(&added, 0).await;
        assert_eq!(stale, Err(nfsstat3::NFS3ERR_STALE));
        assert!(later(&files.attributes(&edited).await.unwrap(), &before));
        assert!(later(&files.attributes(&root).await.unwrap(), &root_before));
        let (paths, position) = changed(dir, &session);
        for path in ["edited", "large", "removed", "d/moved", "moved", "added"] {
            assert!(paths.iter().any(|found| found == path), "{path}: {paths:?}");
        }
        let again = restore(dir, &session, &["--version", version]);
        assert_eq!(again["outcome"], "unchanged");

        // It is an ordinary change: durable, and undone like others.
        server.kill();
        let server = Server::start("up", dir);
        let mut files = Mount::of(&server, &json(&["session", "ticket", id(&session)], dir)).await;
        assert_eq!(files.read("edited").await.unwrap(), b"one");
        assert_eq!(changed(dir, &session), (paths, position));
        let operation = done["operation"].as_str().unwrap();
        json(&["op", "undo", operation], dir);
        assert_eq!(
            files.read("edited").await.unwrap(),
            b"two, and not committed"
        );
        assert_eq!(files.read("large").await.unwrap(), [2; 900_000]);
        assert_eq!(files.read_at(&added, 0).await.unwrap(), b"added");
        assert_eq!(files.find("removed").await, None);
        let log = json(&["op", "log", "--limit", "1"], dir);
        let undoing = log[0]["id"].as_str().unwrap();
        assert_ne!(undoing, operation);
        json(&["op", "undo", undoing], dir);
        assert_eq!(files.read("edited").await.unwrap(), b"one");

        later_work_stays(dir, &mut files).await;
        // What it shares with versions is not taken for garbage.
        assert!(json(&["gc"], dir)["error"].is_null());
        assert_eq!(files.read("large").await.unwrap(), [1; 700_000]);
        let published = publish(dir, &session, &["-m", "v2"]);
        assert_eq!(published["outcome"], "fast-forward");
        assert_eq!(server.terminate(), Some(0));
        assert_eq!(json(&["check"], dir)["clean"], true);
    }

    /// What came after it is not dropped by undoing.
    async fn later_work_stays(dir: &Path, files: &mut Mount) {
        files.write("edited", b"three").await;
        let log = json(&["op", "log", "--limit", "1"], dir);
        let last = log[0]["id"].as_str().unwrap();
        fails(
            &["op", "undo", last],
            dir,
            CONFLICT,
            &["changed since", "session restore"],
        );
        assert_eq!(files.read("edited").await.unwrap(), b"three");
    }

    #[tokio::test]
    async fn paths_are_restored_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        files.mkdir("src").await;
        files.write("src/a", b"a1").await;
        files.write("src/b", b"b1").await;
        files.write("other", b"o1").await;
        files.write(b"odd\xff", b"x1").await;
        publish(dir, &session, &["-m", "v1"]);
        files.write("src/a", b"a2").await;
        files.remove("src/b").await;
        files.write("src/new", b"n").await;
        files.write("other", b"o2").await;
        files.write(b"odd\xff", b"x2").await;

        let done = restore(dir, &session, &["--version", "main", "src/a"]);
        assert_eq!(done["changed"], 1);
        assert_eq!(files.read("src/a").await.unwrap(), b"a1");
        assert_eq!(files.read("other").await.unwrap(), b"o2");
        restore(dir, &session, &["--version", "main", "/src/"]);
        assert_eq!(files.read("src/b").await.unwrap(), b"b1");
        assert_eq!(files.find("src/new").await, None);
        assert_eq!(files.read("other").await.unwrap(), b"o2");
        assert_eq!(files.read(b"odd\xff").await.unwrap(), b"x2");
        let odd = holdfast()
            .args(["session", "restore", id(&session), "--version", "main"])
            .arg(OsStr::from_bytes(b"odd\xff"))
            .arg("--data-dir")
            .arg(dir)
            .output()
            .unwrap();
        assert!(odd.status.success(), "{odd:?}");
        assert_eq!(files.read(b"odd\xff").await.unwrap(), b"x1");
        let changed = json(&["session", "changed", id(&session)], dir);
        assert_eq!(changed["paths_bytes"][0], "odd%FF");

        let fail = |path: &str, code, part: &str| {
            let line = [
                "session",
                "restore",
                id(&session),
                "--version",
                "main",
                path,
            ];
            fails(&line, dir, code, &[part]);
        };
        fail("nowhere", 4, "neither");
        fail("a/../b", 2, "..");
        fails(
            &["session", "restore", id(&session), "--version", "v9"],
            dir,
            4,
            &["v9"],
        );
        // The whole of it is undone.
        let log = json(&["op", "log", "--limit", "1"], dir);
        json(&["op", "undo", log[0]["id"].as_str().unwrap()], dir);
        assert_eq!(files.read(b"odd\xff").await.unwrap(), b"x2");
        let read_only = json(&["session", "open", "--read-only"], dir);
        let line = ["session", "restore", id(&read_only), "--version", "main"];
        fails(&line, dir, CONFLICT, &["read-only"]);
        assert_eq!(server.terminate(), Some(0));
        assert_eq!(json(&["check"], dir)["clean"], true);
    }

    #[tokio::test]
    async fn a_session_gets_what_its_branch_has() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (first, mut first_files) = mounted(&server, dir, &[]).await;
        let line = ["session", "sync", id(&first)];
        fails(&line, dir, 4, &["main"]);
        first_files.write("shared", b"one\ntwo\nthree\n").await;
        publish(dir, &first, &["-m", "begin"]);
        let (second, mut second_files) = mounted(&server, dir, &[]).await;
        assert_eq!(sync(dir, &second, &[])["outcome"], "up-to-date");

        // Nothing of its own: it goes forward.
        first_files.write("news", b"news").await;
        let head = publish(dir, &first, &["-m", "news"])["head"].clone();
        let tried = sync(dir, &second, &["--dry-run"]);
        assert_eq!(tried["outcome"], "fast-forward");
        assert_eq!(second_files.find("news").await, None);
        let synced = sync(dir, &second, &[]);
        assert_eq!(
            (&synced["outcome"], &synced["commit"]),
            (&"fast-forward".into(), &head)
        );
        assert_eq!(second_files.read("news").await.unwrap(), b"news");
        assert_eq!(changed(dir, &second).0, ["news"]);
        let shown = json(&["session", "show", id(&second)], dir);
        assert_eq!(shown["commit"], head);
        // The trees are equal, so there is nothing to publish.
        assert_eq!(publish(dir, &second, &[])["outcome"], "up-to-date");

        // Work of its own is merged, text by lines, and publishing goes forward then.
        let shared = second_files.write("shared", b"ONE\ntwo\nthree\n").await;
        second_files.write("own", b"own").await;
        first_files.write("shared", b"one\ntwo\nTHREE\n").await;
        publish(dir, &first, &["-m", "three"]);
        let synced = sync(dir, &second, &[]);
        assert_eq!(synced["outcome"], "merged");
        assert_eq!(
            second_files.read_at(&shared, 0).await.unwrap(),
            b"ONE\ntwo\nTHREE\n"
        );
        assert_eq!(second_files.read("own").await.unwrap(), b"own");
        let undo = synced["operation"].as_str().unwrap();
        json(&["op", "undo", undo], dir);
        assert_eq!(
            second_files.read("shared").await.unwrap(),
            b"ONE\ntwo\nthree\n"
        );
        let shown = json(&["session", "show", id(&second)], dir);
        assert_eq!(shown["commit"], synced["before"]);
        assert_eq!(sync(dir, &second, &[])["outcome"], "merged");
        assert_eq!(
            publish(dir, &second, &["-m", "both"])["outcome"],
            "fast-forward"
        );
        assert_eq!(sync(dir, &first, &[])["outcome"], "fast-forward");
        assert_eq!(first_files.read("own").await.unwrap(), b"own");

        clashes(
            dir,
            (&first, &mut first_files),
            (&second, &mut second_files),
        )
        .await;
        assert_eq!(server.terminate(), Some(0));
        assert_eq!(json(&["check"], dir)["clean"], true);
    }

    /// Both sessions change the same line; the first publishes it.
    async fn clashes(dir: &Path, first: (&Value, &mut Mount), second: (&Value, &mut Mount)) {
        let ((first, first_files), (second, second_files)) = (first, second);
        let mut round = 0_u8;
        // Both are kept last: what is not resolved stays on the branch.
        for policy in ["ours", "theirs", "keep-both"] {
            round += 1;
            let (ours, theirs) = ([round; 3], [round + 100; 3]);
            second_files.write("shared", &ours).await;
            first_files.write("shared", &theirs).await;
            publish(dir, first, &["-m", policy, "--policy", "theirs"]);
            let line = ["session", "sync", id(second), "--policy", "fail"];
            fails(&line, dir, CONFLICT, &["shared", "policy"]);
            let tried = sync(dir, second, &["--dry-run"]);
            assert_eq!(tried["conflicts"][0]["path"], "shared");
            let aside = tried["conflicts"][0]["aside"].as_str().unwrap();
            let said = run(&["session", "sync", id(second), "--dry-run"], dir);
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            let told = format!("shared, the other version is at {aside}\n");
            assert!(said.contains(&told), "{said}");
            assert_eq!(second_files.read("shared").await.unwrap(), ours);
            let said = ["--policy", policy];
            // Both are kept if nobody says otherwise.
            let is_default = policy == "keep-both";
            let synced = sync(dir, second, if is_default { &[] } else { &said });
            assert_eq!(synced["outcome"], "merged", "{policy}");
            let expected = if policy == "theirs" { theirs } else { ours };
            assert_eq!(
                second_files.read("shared").await.unwrap(),
                expected,
                "{policy}"
            );
            if policy == "keep-both" {
                let aside = synced["conflicts"][0]["aside"].as_str().unwrap();
                assert_eq!(second_files.read(aside).await.unwrap(), theirs);
            }
            if policy == "keep-both" {
                let line = ["session", "publish", id(second)];
                fails(&line, dir, CONFLICT, &["unresolved", "shared"]);
            }
            let published = publish(dir, second, &["-m", policy, "--policy", policy]);
            assert_eq!(published["outcome"], "fast-forward", "{policy}");
            sync(dir, first, &["--policy", "theirs"]);
        }
    }

    /// Writes a file that may be restored away between its making and its content.
    async fn write_meanwhile(files: &mut Mount, number: u32) {
        let file = files.open(format!("n{number}"), Some(0)).await;
        let content = number.to_be_bytes();
        match files.put(&file, 0, &content, stable_how::UNSTABLE).await {
            Ok(()) => {}
            // It was not written then.
            Err(status) => assert_eq!(status, nfsstat3::NFS3ERR_STALE),
        }
    }

    /// Whatever is written while a session is restored is before that, or after it and there.
    #[tokio::test]
    async fn nothing_that_is_written_meanwhile_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_owned();
        let server = Server::start("up", &dir);
        let (session, mut files) = mounted(&server, &dir, &[]).await;
        files.write("kept", b"kept").await;
        publish(&dir, &session, &["-m", "empty"]);
        let restored = {
            let (dir, session) = (dir.clone(), session.clone());
            tokio::task::spawn_blocking(move || {
                let done = (0..12).map(|_| restore(&dir, &session, &["--version", "main"]));
                let restored = |done: &Value| done["outcome"] == "restored";
                done.filter(restored).count()
            })
        };
        let mut written = 0_u32;
        while !restored.is_finished() {
            write_meanwhile(&mut files, written).await;
            written += 1;
        }
        write_meanwhile(&mut files, written).await;
        assert!(restored.await.unwrap() > 3);
        // What is there is all that was written after some moment.
        let mut there = false;
        for number in 0..=written {
            let found = files.read(format!("n{number}")).await;
            if let Some(content) = &found {
                assert_eq!(content[..], number.to_be_bytes(), "n{number}");
            }
            assert!(
                found.is_some() || !there,
                "n{number} of {written} is missing"
            );
            there |= found.is_some();
        }
        assert!(there);
        assert_eq!(files.read("kept").await.unwrap(), b"kept");
        server.kill();
        assert_eq!(json(&["check"], &dir)["clean"], true);
    }

    #[tokio::test]
    async fn what_changed_is_told_until_it_is_acknowledged() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        assert_eq!(changed(dir, &session), (Vec::new(), None));
        files.write("f", b"1").await;
        publish(dir, &session, &["-m", "v1"]);
        files.write("f", b"2").await;
        restore(dir, &session, &["--version", "main"]);
        let (paths, first) = changed(dir, &session);
        assert_eq!(paths, ["f"]);
        files.write("g", b"2").await;
        restore(dir, &session, &["--version", "main"]);
        let (paths, second) = changed(dir, &session);
        assert_eq!(paths, ["f", "g"]);
        assert!(second > first);
        let acknowledge = |position: Option<u64>| {
            let position = position.unwrap().to_string();
            let line = [
                "session",
                "changed",
                id(&session),
                "--acknowledge",
                &position,
            ];
            json(&line, dir)
        };
        acknowledge(first);
        assert_eq!(changed(dir, &session), (vec!["g".to_owned()], second));
        // A fork begins with none, and its mounts with nothing cached.
        let fork = json(&["session", "fork", id(&session)], dir);
        assert_eq!(changed(dir, &fork), (Vec::new(), None));

        // `refresh` looks at what it is told, and acknowledges.
        let at = tempfile::tempdir().unwrap();
        let mount = at.path().to_str().unwrap();
        let refreshed = json(&["refresh", mount, "--session", id(&session)], dir);
        assert_eq!(
            (&refreshed["refreshed"], &refreshed["everything"]),
            (&2.into(), &false.into())
        );
        assert_eq!(changed(dir, &session), (Vec::new(), None));
        fails(
            &["refresh", "/nonexistent", "--session", id(&session)],
            dir,
            4,
            &["/nonexistent"],
        );
        assert_eq!(server.terminate(), Some(0));
    }
}
