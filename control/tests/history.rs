//! Sessions that become commits: opened, forked, published, merged, looked at.
#![allow(missing_docs)]

mod support;

#[cfg(test)]
mod tests {

    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use crate::support::files::{Mount, mounted};
    use crate::support::{Server, fails, id, json, open, publish, run};
    use serde_json::Value;

    /// Exit code if something else is in the way.
    const CONFLICT: i32 = 3;

    #[tokio::test]
    async fn disjoint_work_merges_and_clashes_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (first, mut mount) = mounted(&server, dir, &["--agent", "one"]).await;
        mount
            .write("shared", b"one\ntwo\nthree\nfour\nfive\n")
            .await;
        mount.write("binary", &[0; 200_000]).await;
        let made = publish(dir, &first, &["-m", "begin", "--pair", "ticket=7"]);
        assert_eq!(made["outcome"], "created");
        let again = publish(dir, &first, &[]);
        assert_eq!(
            (&again["outcome"], &again["head"]),
            (&"up-to-date".into(), &made["head"])
        );

        // Three that begin with the same.
        let (left, mut left_files) = mounted(&server, dir, &["--agent", "left"]).await;
        let (right, mut right_files) = mounted(&server, dir, &["--run", "r2"]).await;
        let (third, mut third_files) = mounted(&server, dir, &[]).await;
        for files in [&mut left_files, &mut right_files, &mut third_files] {
            assert_eq!(files.read("binary").await.unwrap(), [0; 200_000]);
        }
        left_files.write("left", b"left").await;
        left_files
            .write("shared", b"ONE\ntwo\nthree\nfour\nfive\n")
            .await;
        right_files.write("right", &[7; 300_000]).await;
        right_files
            .write("shared", b"one\ntwo\nthree\nfour\nFIVE\n")
            .await;
        third_files
            .write("shared", b"1\ntwo\nthree\nfour\nfive\n")
            .await;
        third_files.write("third", b"third").await;
        assert_eq!(
            publish(dir, &left, &["-m", "left"])["outcome"],
            "fast-forward"
        );
        assert_eq!(publish(dir, &right, &["-m", "right"])["outcome"], "merged");
        let head = json(&["show"], dir)["id"].clone();
        let publish_third = ["session", "publish", id(&third), "-m", "third"];
        let stands_on = || json(&["session", "show", id(&third)], dir)["commit"].clone();
        let stood_on = stands_on();
        fails(
            &publish_third,
            dir,
            CONFLICT,
            &["shared", "in 1 place:", "policy"],
        );
        // Nothing of it is there, and no commit is left that nobody knows of.
        assert_eq!(json(&["show"], dir)["id"], head);
        assert_eq!(stands_on(), stood_on);

        settle(&server, dir, &third).await;
        look_back(server, dir, &made).await;
    }

    /// Publishes what clashes with a policy.
    async fn settle(server: &Server, dir: &Path, third: &Value) {
        let (_, mut merged) = mounted(server, dir, &["--read-only"]).await;
        assert_eq!(merged.read("left").await.unwrap(), b"left");
        assert_eq!(merged.read("right").await.unwrap(), [7; 300_000]);
        assert_eq!(
            merged.read("shared").await.unwrap(),
            b"ONE\ntwo\nthree\nfour\nFIVE\n"
        );
        assert_eq!(merged.read("third").await, None);

        let settled = publish(dir, third, &["--policy", "keep-both"]);
        assert_eq!(settled["outcome"], "merged");
        let aside = settled["conflicts"][0]["aside"]
            .as_str()
            .unwrap()
            .to_owned();
        let (_, mut both) = mounted(server, dir, &[]).await;
        assert_eq!(
            both.read("shared").await.unwrap(),
            b"ONE\ntwo\nthree\nfour\nFIVE\n"
        );
        assert_eq!(
            both.read(&aside).await.unwrap(),
            b"1\ntwo\nthree\nfour\nfive\n"
        );
        assert_eq!(both.read("third").await.unwrap(), b"third");
    }

    /// Looks at what there was, also after a kill.
    async fn look_back(server: Server, dir: &Path, made: &Value) {
        let diff = json(&["diff", "--from", "main~2"], dir);
        let told: Vec<_> = (diff["items"].as_array().unwrap().iter())
            .map(|change| {
                (
                    change["what"].as_str().unwrap(),
                    change["path"].as_str().unwrap(),
                )
            })
            .collect();
        assert!(
            told.contains(&("added", "third")) && told.contains(&("added", "right")),
            "{diff}"
        );
        assert!(told.contains(&("modified", "shared")), "{diff}");

        // Every commit says who made it; all of it outlives a kill.
        server.kill();
        let server = Server::start("up", dir);
        let log = json(&["log"], dir);
        let by = |agent: &str| {
            let log = log.as_array().unwrap();
            log.iter().filter(|commit| commit["agent"] == agent).count()
        };
        assert_eq!((by("one"), by("left")), (1, 1));
        assert_eq!(log.as_array().unwrap().len(), 6, "{log}");
        assert_eq!(
            json(&["log", "--agent", "left"], dir)
                .as_array()
                .unwrap()
                .len(),
            1
        );
        let old = made["head"].as_str().unwrap();
        let (_, mut before) = mounted(&server, dir, &["--version", &old[..10]]).await;
        assert_eq!(before.read("left").await, None);
        assert_eq!(
            before.read("shared").await.unwrap(),
            b"one\ntwo\nthree\nfour\nfive\n"
        );
        assert_eq!(json(&["show", &old[..10]], dir)["pairs"]["ticket"], "7");
        assert_eq!(server.terminate(), Some(0));
        let checked = json(&["check"], dir);
        assert_eq!(checked["clean"], true, "{checked}");
    }

    #[tokio::test]
    async fn forks_have_all_that_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (source, mut files) = mounted(&server, dir, &[]).await;
        files.write("small", b"small").await;
        files.write("large", &[3; 700_000]).await;
        let mut forks = Vec::new();
        for round in 0..8_u8 {
            let fork = json(&["session", "fork", id(&source), "--agent", "f"], dir);
            files.write("later", &[round; 100]).await;
            files.write("large", &[round; 200_000]).await;
            forks.push((round, fork));
        }
        assert_eq!(
            json(&["session", "close", id(&source)], dir)["closed"],
            source["id"]
        );
        for (round, fork) in &forks {
            let mut files = Mount::of(&server, fork).await;
            assert_eq!(files.read("small").await.unwrap(), b"small");
            let (large, later) = (files.read("large").await, files.read("later").await);
            match round.checked_sub(1) {
                None => {
                    assert_eq!(large.unwrap(), [3; 700_000]);
                    assert_eq!(later, None);
                }
                Some(before) => {
                    assert_eq!(large.unwrap(), [before; 200_000]);
                    assert_eq!(later.unwrap(), [before; 100]);
                }
            }
            files.write("small", &[*round; 10]).await;
            let branch = format!("fork/{round}");
            let done = publish(dir, fork, &["--branch", &branch, "-m", "fork"]);
            assert_eq!(done["outcome"], "created");
            // What has no commit in common began with an empty workspace.
            let done = publish(dir, fork, &["--policy", "theirs"]);
            let expected = if *round == 0 { "created" } else { "merged" };
            assert_eq!(done["outcome"], expected);
        }
        let (_, mut files) = mounted(&server, dir, &[]).await;
        assert_eq!(files.read("small").await.unwrap(), [7; 10]);
        let refs = json(&["ref", "ls"], dir);
        assert_eq!(refs.as_array().unwrap().len(), forks.len() + 1);
        assert!(json(&["gc"], dir)["error"].is_null());
        let (_, mut files) = mounted(&server, dir, &["--version", "fork/5"]).await;
        assert_eq!(files.read("small").await.unwrap(), [5; 10]);
        assert_eq!(files.read("large").await.unwrap(), [4; 200_000]);
        assert_eq!(server.terminate(), Some(0));
        assert_eq!(json(&["check"], dir)["clean"], true);
    }

    #[tokio::test]
    async fn a_session_is_closed_published_kept_or_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let is_open = |session: &Value| {
            let all = json(&["session", "ls"], dir);
            let all = all.as_array().unwrap();
            all.iter().any(|one| one["id"] == session["id"])
        };
        let (first, mut files) = mounted(&server, dir, &[]).await;
        let (second, mut others) = mounted(&server, dir, &[]).await;
        files.write("f", b"first").await;
        others.write("f", b"second").await;
        let args = ["session", "close", id(&first), "--publish", "-m", "done"];
        let closed = json(&args, dir);
        assert_eq!(closed["published"]["outcome"], "created");
        assert_eq!(json(&["show"], dir)["message"], "done");
        assert!(!is_open(&first));
        // What cannot be published is not dropped.
        let args = ["session", "close", id(&second), "--publish"];
        fails(&args, dir, CONFLICT, &["create-create: f"]);
        assert!(is_open(&second));
        for wrong in [
            &["--publish", "--keep"][..],
            &["-m", "lost"],
            &["--branch", "b"],
            &["--keep", "--policy", "ours"],
        ] {
            let args = [&["session", "close", id(&second)], wrong].concat();
            fails(&args, dir, 2, &["--"]);
        }
        assert!(is_open(&second));
        let closed = json(&["session", "close", id(&second), "--keep"], dir);
        assert!(!is_open(&second));
        let kept = closed["kept"]["id"].as_str().unwrap();
        assert_eq!(json(&["pin", "ls"], dir)[0]["commit"], kept);
        let (third, mut files) = mounted(&server, dir, &["--version", kept]).await;
        assert_eq!(files.read("f").await.unwrap(), b"second");
        assert_eq!(
            json(&["session", "close", id(&third)], dir)["closed"],
            third["id"]
        );
        assert_eq!(server.terminate(), Some(0));
    }

    #[test]
    fn refs_are_kept_and_undone() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let _server = Server::start("up", dir);
        fails(&["log"], dir, 4, &["main"]);
        let session = open(dir, &[]);
        publish(dir, &session, &["-m", "empty"]);
        json(&["ref", "create", "v1", "main", "--tag"], dir);
        json(&["ref", "create", "work/a"], dir);
        fails(&["ref", "create", "work/a"], dir, CONFLICT, &["work/a"]);
        // Bug: it was told when the work was done and was to be published.
        fails(
            &["session", "open", "--branch", "v1"],
            dir,
            2,
            &["v1", "a tag"],
        );
        fails(&["ref", "create", "bad..name"], dir, 2, &[".."]);
        fails(&["show", "nothing"], dir, 4, &["nothing"]);
        json(&["ref", "protect", "work/a"], dir);
        fails(&["ref", "delete", "work/a"], dir, CONFLICT, &["protected"]);
        json(&["ref", "unprotect", "work/a"], dir);
        json(&["ref", "delete", "work/a"], dir);
        let log = json(&["op", "log", "--limit", "1"], dir);
        json(&["op", "undo", log[0]["id"].as_str().unwrap()], dir);
        let refs = json(&["ref", "ls"], dir);
        let names: Vec<_> = (refs.as_array().unwrap().iter())
            .map(|found| found["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["main", "v1", "work/a"]);
        let done = publish(dir, &session, &["--policy", "ours"]);
        assert_eq!(done["outcome"], "up-to-date");
        fails(
            &["session", "publish", id(&session), "--policy", "both"],
            dir,
            2,
            &["keep-both"],
        );
        fails(
            &["session", "publish", "00ff", "-m", "x"],
            dir,
            4,
            &["no such session"],
        );
    }

    /// What is said before there is anything, where nothing has changed, and of what is not there.
    #[tokio::test]
    async fn what_is_said_of_nothing_is_true() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        for args in [&["log"][..], &["show"], &["export", "main", "nowhere"]] {
            fails(args, dir, 4, &["main", "nothing was published yet"]);
        }
        let publishing = ["session", "publish", id(&session)];
        let long = "x".repeat(100_000);
        let said = |more: [&'static str; 2]| [&publishing[..], &more].concat();
        let args = [&publishing[..], &["-m", &long]].concat();
        fails(&args, dir, 2, &["at most 32 KiB", "100000"]);
        files.write("file", b"x").await;
        publish(dir, &session, &["-m", "one"]);
        // Also where it is not used.
        fails(&said(["--author", "a\nb"]), dir, 2, &["author"]);
        fails(&said(["--pair", "=x"]), dir, 2, &["pair"]);
        json(&["ref", "protect", "main"], dir);
        json(&["ref", "unprotect", "main"], dir);
        let log = json(&["op", "log", "--limit", "2"], dir);
        let what: Vec<&Value> = log
            .as_array()
            .unwrap()
            .iter()
            .map(|it| &it["what"])
            .collect();
        assert_eq!(what, ["main unprotected", "main protected"]);
        let none = run(&["log", "--path", "never"], dir);
        assert!(none.status.success() && none.stdout.is_empty(), "{none:?}");
        let said = String::from_utf8_lossy(&none.stderr);
        assert!(
            said.contains("no such commit of main changed never"),
            "{said}"
        );
        json(&["pin", "add", "main", "--note", "kept"], dir);
        json(&["pin", "add", "main"], dir);
        assert_eq!(json(&["pin", "ls"], dir)[0]["note"], "kept");
        json(&["pin", "add", "main", "--note", "other"], dir);
        assert_eq!(json(&["pin", "ls"], dir)[0]["note"], "other");
        drop(server);
    }

    /// One is done; who was overtaken may try again.
    #[tokio::test]
    async fn publishes_of_one_session_at_once_are_done_or_may_be_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        for round in 0..4 {
            files.write("file", format!("{round}")).await;
            let codes: Vec<Option<i32>> = std::thread::scope(|scope| {
                let one = || {
                    run(&["session", "publish", id(&session)], dir)
                        .status
                        .code()
                };
                let all: Vec<_> = (0..6)
                    .map(|_| {
                        std::thread::Builder::new()
                            .spawn_scoped(scope, one)
                            .unwrap()
                    })
                    .collect();
                all.into_iter().map(|it| it.join().unwrap()).collect()
            });
            let is_good = |code: &Option<i32>| matches!(code, Some(0 | 6));
            assert!(codes.iter().all(is_good), "{codes:?}");
            assert!(codes.contains(&Some(0)), "{codes:?}");
        }
        drop(server);
    }

    /// What was imported apart has nothing to be merged by; what began empty has the empty version.
    #[tokio::test]
    async fn unrelated_histories_are_told() {
        let place = tempfile::tempdir().unwrap();
        let dir = &place.path().join("data");
        let server = Server::start("up", dir);
        let (early, mut early_files) = mounted(&server, dir, &[]).await;
        let (first, mut first_files) = mounted(&server, dir, &[]).await;
        first_files.write("first", b"first").await;
        publish(dir, &first, &["--branch", "made"]);
        for (branch, name) in [("main", "ours"), ("vendor", "theirs")] {
            let from = place.path().join(branch);
            std::fs::create_dir(&from).unwrap();
            std::fs::write(from.join(name), branch).unwrap();
            std::fs::write(from.join("README"), branch).unwrap();
            let all = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(&from, all).unwrap();
            let path = from.to_str().unwrap();
            json(&["import", path, "--branch", branch], dir);
        }
        let (vendor, mut files) = mounted(&server, dir, &["--version", "vendor"]).await;
        let ours = open(dir, &[]);
        files.write("more", b"more").await;
        let before = json(&["show", "main"], dir)["id"].clone();
        let line = ["session", "publish", id(&vendor), "--branch", "main"];
        for more in [&[][..], &["--dry-run"], &["--policy", "keep-both"]] {
            let line = [&line[..], more].concat();
            fails(&line, dir, CONFLICT, &["no common history", "--branch NEW"]);
        }
        for pair in [[id(&vendor), id(&ours)], [id(&ours), id(&vendor)]] {
            let line = [&["conflicts", "between"][..], &pair].concat();
            fails(&line, dir, CONFLICT, &["no common history"]);
        }
        // Nor does what another session made go to what was imported.
        let (earlier, mut earlier_files) = mounted(&server, dir, &["--version", "made"]).await;
        earlier_files.write("later", b"later").await;
        let line = ["session", "publish", id(&earlier), "--branch", "main"];
        fails(&line, dir, CONFLICT, &["no common history"]);
        assert_eq!(json(&["show", "main"], dir)["id"], before);
        let other = publish(dir, &vendor, &["--branch", "new"]);
        assert_eq!(other["outcome"], "created");
        // This one was there before anything was imported.
        early_files.write("early", b"early").await;
        let merged = publish(dir, &early, &["--branch", "main"]);
        assert_eq!(merged["outcome"], "merged");
        let (_, mut found) = mounted(&server, dir, &[]).await;
        assert_eq!(found.read("early").await.unwrap(), b"early");
        assert_eq!(found.read("ours").await.unwrap(), b"main");
        // Two that began so are merged, too.
        publish(dir, &early, &["--branch", "alone"]);
        let merged = publish(dir, &earlier, &["--branch", "alone"]);
        assert_eq!(merged["outcome"], "merged");
        drop(server);
    }
}
