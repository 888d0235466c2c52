//! Conflicts through the API: foretold, stored, listed, resolved, published.
#![allow(missing_docs)]

mod support;

#[cfg(test)]
mod tests {

    use std::collections::BTreeSet;
    use std::path::Path;

    use crate::support::files::{Mount, mounted};
    use crate::support::{Server, fails, id, json, publish, run};
    use serde_json::Value;

    /// Exit code if something else is in the way.
    const CONFLICT: i32 = 3;

    fn text(value: &Value) -> &str {
        value
            .as_str()
            .unwrap_or_else(|| panic!("{value} is no text"))
    }

    fn resolve(dir: &Path, session: &Value, more: &[&str]) -> Value {
        let args = [&["conflicts", "resolve", id(session)], more].concat();
        json(&args, dir)
    }

    fn list(dir: &Path, session: &Value) -> Vec<Value> {
        let found = json(&["conflicts", "ls", "--session", id(session)], dir);
        found.as_array().unwrap().clone()
    }

    /// `KIND PATH` of each.
    fn told(conflicts: &Value) -> Vec<String> {
        let line = |it: &Value| format!("{} {}", text(&it["kind"]), text(&it["path"]));
        let mut lines: Vec<String> = conflicts.as_array().unwrap().iter().map(line).collect();
        lines.sort();
        lines
    }

    /// Without the digits of commits in names of what was put aside.
    fn without_ids(lines: Vec<String>) -> Vec<String> {
        let short = |mut line: String| {
            for side in ["~ours.", "~theirs."] {
                if let Some(at) = line.find(side) {
                    let start = at + side.len() - 1;
                    line.replace_range(start..start + 9, "");
                }
            }
            line
        };
        let mut lines: Vec<String> = lines.into_iter().map(short).collect();
        lines.sort();
        lines
    }

    /// Two sessions that begin with one commit, and what comes of publishing both.
    struct Case {
        name: &'static str,
        base: &'static [&'static str],
        ours: &'static [&'static str],
        theirs: &'static [&'static str],
        /// The merge that keeps both.
        tree: &'static [&'static str],
        conflicts: &'static [&'static str],
        /// How each is resolved: path and take.
        resolved: &'static [(&'static str, &'static str)],
        /// What is there then.
        end: &'static [&'static str],
        /// What policy `ours` makes of it, and `theirs`.
        policies: [&'static [&'static str]; 2],
    }

    const CASES: &[Case] = &[
        Case {
            name: "content",
            base: &["mkdir d", "write d/f a"],
            ours: &["write d/f b"],
            theirs: &["save d/f c"],
            tree: &["d/", "d/f = b", "d/f~theirs = c"],
            conflicts: &["content d/f"],
            resolved: &[("d/f", "theirs")],
            end: &["d/", "d/f = c"],
            policies: [&["d/", "d/f = b"], &["d/", "d/f = c"]],
        },
        Case {
            name: "edit-delete",
            base: &["write f a", "write g a"],
            ours: &["rm f", "write g b"],
            theirs: &["write f b", "rm g"],
            tree: &["f = b", "g = b"],
            conflicts: &["edit-delete f", "edit-delete g"],
            resolved: &[("f", "ours"), ("g", "ours")],
            end: &["g = b"],
            policies: [&["g = b"], &["f = b"]],
        },
        Case {
            name: "rename-rename",
            base: &["write f a", "mkdir d", "write d/x x"],
            ours: &["mv f g", "mv d e"],
            theirs: &["mv f h", "mv d k"],
            tree: &["e/", "e/x = x", "g = a"],
            conflicts: &["rename-rename e", "rename-rename g"],
            resolved: &[("e", "theirs"), ("/g", "ours")],
            end: &["g = a", "k/", "k/x = x"],
            policies: [&["e/", "e/x = x", "g = a"], &["h = a", "k/", "k/x = x"]],
        },
        Case {
            name: "rename-delete",
            base: &["write f a"],
            ours: &["rm f"],
            theirs: &["mv f g"],
            tree: &["g = a"],
            conflicts: &["rename-delete g"],
            resolved: &[("g", "ours")],
            end: &[],
            policies: [&[], &["g = a"]],
        },
        Case {
            name: "create-create",
            base: &[],
            ours: &["write f a"],
            theirs: &["write f b"],
            tree: &["f = a", "f~theirs = b"],
            conflicts: &["create-create f"],
            resolved: &[("f", "both")],
            end: &["f = a", "f~theirs = b"],
            policies: [&["f = a"], &["f = b"]],
        },
        Case {
            name: "name-taken",
            base: &["write f a", "write g b"],
            ours: &["mv f h"],
            theirs: &["mv g h"],
            tree: &["h = a", "h~theirs = b"],
            conflicts: &["name-taken h"],
            // What ours has elsewhere goes back there.
            resolved: &[("h", "ours")],
            end: &["g = b", "h = a"],
            policies: [&["g = b", "h = a"], &["f = a", "h = b"]],
        },
        Case {
            name: "directory-name",
            base: &[],
            ours: &["write n a"],
            theirs: &["mkdir n", "write n/x x"],
            tree: &["n/", "n/x = x", "n~ours = a"],
            conflicts: &["directory-name n"],
            resolved: &[("n", "theirs")],
            end: &["n/", "n/x = x"],
            policies: [
                &["n/", "n/x = x", "n~ours = a"],
                &["n/", "n/x = x", "n~ours = a"],
            ],
        },
        Case {
            name: "directory-deleted",
            base: &["mkdir a", "mkdir a/b", "write a/b/old o"],
            ours: &["rm a/b/old", "rmdir a/b", "rmdir a"],
            theirs: &["write a/b/new n"],
            tree: &["a/", "a/b/", "a/b/new = n"],
            conflicts: &["directory-deleted a/b"],
            resolved: &[("a/b", "theirs")],
            end: &["a/", "a/b/", "a/b/new = n"],
            policies: [
                &["a/", "a/b/", "a/b/new = n"],
                &["a/", "a/b/", "a/b/new = n"],
            ],
        },
        Case {
            name: "cycle",
            base: &["mkdir a", "mkdir b"],
            ours: &["mv a b/a"],
            theirs: &["mv b a/b"],
            tree: &["b/", "b/a/"],
            conflicts: &["cycle b"],
            resolved: &[("b", "ours")],
            end: &["b/", "b/a/"],
            policies: [&["b/", "b/a/"], &["a/", "a/b/"]],
        },
        Case {
            name: "links",
            base: &["write f a", "ln f g"],
            ours: &["rm f"],
            theirs: &["rm g"],
            tree: &["g = a"],
            conflicts: &["links g"],
            resolved: &[("g", "theirs")],
            end: &["f = a"],
            policies: [&["g = a"], &["f = a"]],
        },
        Case {
            name: "attributes",
            base: &["write f a"],
            ours: &["chmod f 600"],
            theirs: &["chmod f 755"],
            tree: &["f = a 600"],
            conflicts: &["attributes f"],
            resolved: &[("f", "theirs")],
            end: &["f = a 755"],
            policies: [&["f = a 600"], &["f = a 755"]],
        },
        Case {
            name: "target",
            base: &["symlink l a"],
            ours: &["rm l", "symlink l b"],
            theirs: &["rm l", "symlink l c"],
            tree: &["l -> b", "l~theirs -> c"],
            conflicts: &["target l"],
            resolved: &[("l", "theirs")],
            end: &["l -> c"],
            policies: [&["l -> b"], &["l -> c"]],
        },
        Case {
            name: "type",
            base: &["write f a"],
            ours: &["write f b"],
            theirs: &["rm f", "symlink f t"],
            tree: &["f = b", "f~theirs -> t"],
            conflicts: &["type f"],
            resolved: &[("f", "theirs")],
            end: &["f -> t"],
            policies: [&["f = b"], &["f -> t"]],
        },
    ];

    /// Publishes the base and our side; gives both sessions.
    async fn begin(server: &Server, dir: &Path, workspace: &str, case: &Case) -> [Value; 2] {
        json(&["workspace", "create", workspace], dir);
        let (base, mut files) = mounted(server, dir, &[workspace]).await;
        files.script(case.base).await;
        publish(dir, &base, &["-m", "base"]);
        let (ours, mut files) = mounted(server, dir, &[workspace, "--agent", "left"]).await;
        files.script(case.ours).await;
        let (theirs, mut files) = mounted(server, dir, &[workspace, "--agent", "right"]).await;
        files.script(case.theirs).await;
        [ours, theirs]
    }

    async fn play(server: &Server, dir: &Path, case: &Case) {
        let (name, main) = (case.name, ["--workspace", case.name]);
        let [ours, theirs] = begin(server, dir, name, case).await;
        // Foretold while both live, and by a trial.
        let clashes = json(&["conflicts", "between", id(&ours), id(&theirs)], dir);
        assert_eq!(told(&clashes["items"]), case.conflicts, "{name}: {clashes}");
        assert_eq!(
            publish(dir, &ours, &["-m", "ours"])["outcome"],
            "fast-forward"
        );
        let head = json(&[&["show"], &main[..]].concat(), dir)["id"].clone();
        let plan = publish(dir, &theirs, &["--dry-run"]);
        assert_eq!(told(&plan["conflicts"]), case.conflicts, "{name}: {plan}");
        assert_eq!((&plan["publishes"], &plan["head"]), (&false.into(), &head));
        assert_eq!(plan["outcome"], "merged");
        fails(
            &["session", "publish", id(&theirs)],
            dir,
            CONFLICT,
            &["clashes"],
        );
        assert_eq!(
            json(&[&["show"], &main[..]].concat(), dir)["id"],
            head,
            "{name}"
        );

        let done = publish(dir, &theirs, &["--policy", "keep-both"]);
        assert_eq!(told(&done["conflicts"]), case.conflicts, "{name}: {done}");
        let stored = json(&[&["conflicts", "ls"], &main[..]].concat(), dir);
        assert_eq!(told(&stored), case.conflicts, "{name}: {stored}");
        let commit = json(&[&["show"], &main[..]].concat(), dir);
        assert_eq!(commit["conflicts"], case.conflicts.len(), "{name}");

        settle(server, dir, case).await;
    }

    /// A session of the branch has them, and does not publish anything before they are resolved.
    async fn settle(server: &Server, dir: &Path, case: &Case) {
        let name = case.name;
        let (session, mut files) = mounted(server, dir, &[name, "--agent", "judge"]).await;
        assert_eq!(without_ids(files.lines().await), case.tree, "{name}");
        assert_eq!(
            told(&Value::Array(list(dir, &session))),
            case.conflicts,
            "{name}"
        );
        files.script(&["write x 1"]).await;
        let refused = ["session", "publish", id(&session)];
        fails(
            &refused,
            dir,
            CONFLICT,
            &[
                "unresolved",
                "keep-both",
                case.conflicts[0].split(' ').next().unwrap(),
            ],
        );
        let plan = publish(dir, &session, &["--dry-run"]);
        assert_eq!(plan["unresolved_total"], case.conflicts.len(), "{name}");
        assert_eq!(
            (&plan["publishes"], &plan["outcome"]),
            (&false.into(), &"fast-forward".into())
        );
        files.script(&["rm x"]).await;
        for (at, (path, take)) in case.resolved.iter().enumerate() {
            let done = resolve(dir, &session, &[path, "--take", take]);
            assert_eq!(done["left"], case.resolved.len() - at - 1, "{name}: {done}");
            assert_eq!(done["path"], path.trim_start_matches('/'));
            fails(
                &["conflicts", "resolve", id(&session), path, "--take", take],
                dir,
                4,
                &["no such conflict"],
            );
        }
        assert_eq!(without_ids(files.lines().await), case.end, "{name}");
        assert_eq!(list(dir, &session), Vec::<Value>::new());
        let done = publish(dir, &session, &["-m", "resolved"]);
        assert_eq!(
            (&done["outcome"], &done["commit"]["conflicts"]),
            (&"fast-forward".into(), &0.into())
        );
    }

    #[tokio::test]
    async fn conflicts_of_each_kind_are_foretold_stored_and_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let mut kinds: Vec<&str> = Vec::new();
        for case in CASES {
            play(&server, dir, case).await;
            kinds.extend(
                case.conflicts
                    .iter()
                    .map(|it| it.split(' ').next().unwrap()),
            );
        }
        kinds.dedup();
        let all = metadata::record::conflict::ConflictKind::ALL;
        assert!(
            all.iter().all(|kind| kinds.contains(&kind.word())),
            "{kinds:?}"
        );
        assert!(json(&["gc"], dir)["error"].is_null());
        assert_eq!(server.terminate(), Some(0));
        let checked = json(&["check"], dir);
        assert_eq!(checked["clean"], true, "{checked}");
    }

    #[tokio::test]
    async fn policies_decide_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        for case in CASES {
            for (policy, tree) in ["ours", "theirs"].into_iter().zip(case.policies) {
                let workspace = format!("{}-{policy}", case.name);
                let [ours, theirs] = begin(&server, dir, &workspace, case).await;
                publish(dir, &ours, &[]);
                let plan = publish(dir, &theirs, &["--dry-run", "--policy", policy]);
                assert_eq!(plan["publishes"], true, "{workspace}: {plan}");
                let done = publish(dir, &theirs, &["--policy", policy]);
                assert_eq!(
                    done["conflicts"].as_array().unwrap().len(),
                    plan["conflicts"].as_array().unwrap().len()
                );
                let (session, mut files) = mounted(&server, dir, &[&workspace]).await;
                assert_eq!(without_ids(files.lines().await), tree, "{workspace}");
                assert_eq!(list(dir, &session), Vec::<Value>::new());
            }
        }
    }

    /// A session with one conflict about `f`.
    async fn with_a_conflict(server: &Server, dir: &Path) -> (Value, Mount) {
        let [ours, theirs] = begin(server, dir, "w", &CASES[0]).await;
        publish(dir, &ours, &["-m", "left"]);
        publish(dir, &theirs, &["-m", "right", "--policy", "keep-both"]);
        mounted(server, dir, &["w"]).await
    }

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
    async fn a_trial_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        files.script(&["write f 1"]).await;
        let plan = publish(dir, &session, &["--dry-run"]);
        assert_eq!(
            (&plan["outcome"], &plan["head"]),
            (&"created".into(), &Value::Null)
        );
        assert_eq!(
            (&plan["publishes"], &plan["dry_run"]),
            (&true.into(), &true.into())
        );
        fails(&["show"], dir, 4, &["main"]);
        assert_eq!(
            json(&["session", "show", id(&session)], dir)["commit"],
            Value::Null
        );
        let made = publish(dir, &session, &[]);
        assert_eq!(
            publish(dir, &session, &["--dry-run"])["outcome"],
            "up-to-date"
        );
        files.script(&["write f 2"]).await;
        let plan = publish(dir, &session, &["--dry-run"]);
        assert_eq!(
            (&plan["outcome"], &plan["head"]),
            (&"fast-forward".into(), &made["head"])
        );
        assert_eq!(json(&["log"], dir).as_array().unwrap().len(), 1);
        json(&["ref", "create", "v1", "main", "--tag"], dir);
        for dry_run in [&["--dry-run"][..], &[]] {
            let args = [
                &["session", "publish", id(&session), "--branch", "v1"],
                dry_run,
            ]
            .concat();
            fails(&args, dir, CONFLICT, &["v1", "tag"]);
        }
        let printed = run(&["session", "publish", id(&session), "--dry-run"], dir);
        let printed = String::from_utf8(printed.stdout).unwrap();
        assert!(printed.contains("would go forward"), "{printed}");
    }

    #[tokio::test]
    async fn clashes_of_live_sessions() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let [one, two] = begin(&server, dir, "w", &CASES[0]).await;
        let found = json(&["conflicts", "between", id(&one), id(&two)], dir);
        assert_eq!(told(&found["items"]), ["content d/f"]);
        assert_eq!(
            found["base"],
            json(&["show", "--workspace", "w"], dir)["id"]
        );
        let sizes = ["base", "one", "two"].map(|side| found["items"][0][side]["size"].clone());
        assert_eq!(sizes, [1, 1, 1]);
        // A fork has the same work: that is no clash, and what it does on its own is.
        let fork = json(&["session", "fork", id(&one)], dir);
        let found = json(&["conflicts", "between", id(&one), id(&fork)], dir);
        assert_eq!(told(&found["items"]), [""; 0]);
        let printed = run(&["conflicts", "between", id(&one), id(&fork)], dir);
        assert_eq!(String::from_utf8(printed.stdout).unwrap(), "no clashes\n");
        let mut files = Mount::of(&server, &fork).await;
        files.script(&["write d/f z", "write d/new 1"]).await;
        let found = json(&["conflicts", "between", id(&one), id(&fork)], dir);
        assert_eq!(told(&found["items"]), ["content d/f"]);
        let elsewhere = json(&["session", "open"], dir);
        fails(
            &["conflicts", "between", id(&one), id(&elsewhere)],
            dir,
            2,
            &["different workspaces"],
        );
        fails(
            &["conflicts", "between", id(&one), "00ff"],
            dir,
            4,
            &["no such session"],
        );
        fails(
            &["conflicts", "between", id(&one), "x"],
            dir,
            2,
            &["no session"],
        );
    }

    #[tokio::test]
    async fn bad_requests_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = with_a_conflict(&server, dir).await;
        let before = files.lines().await;
        let resolve = |more: &[&str], code, part: &str| {
            let args = [&["conflicts", "resolve", id(&session)], more].concat();
            fails(&args, dir, code, &[part]);
        };
        resolve(&["d/f", "--take", "mine"], 2, "ours, theirs, both, file");
        resolve(&["d/f"], 2, "--take");
        resolve(&["--take", "ours"], 2, "PATH");
        resolve(&["d", "--take", "ours"], 4, "no such conflict");
        resolve(
            &["--id", "12", "--take", "ours"],
            2,
            "32 hexadecimal digits",
        );
        resolve(
            &["--id", &"0".repeat(32), "--take", "ours"],
            4,
            "no such conflict",
        );
        let nobody = ["conflicts", "resolve", "00ff", "f", "--take", "both"];
        fails(&nobody, dir, 4, &["no such session"]);
        fails(
            &["conflicts", "ls", "--session", "x"],
            dir,
            2,
            &["no session"],
        );
        fails(
            &[
                "conflicts",
                "ls",
                "--workspace",
                "w",
                "--version",
                "nothing",
            ],
            dir,
            4,
            &["nothing"],
        );
        let read_only = json(&["session", "open", "w", "--read-only"], dir);
        let args = [
            "conflicts",
            "resolve",
            id(&read_only),
            "d/f",
            "--take",
            "both",
        ];
        fails(&args, dir, CONFLICT, &["read-only"]);
        assert_eq!(files.lines().await, before);

        call_badly(&server, &session);
    }

    fn call_badly(server: &Server, session: &Value) {
        let token = server.text("api_token");
        let path = format!("/v1/sessions/{}/conflicts", id(session));
        for (method, rest, body, status) in [
            ("POST", "/resolve", r#"{"take":"ours"}"#, 400),
            (
                "POST",
                "/resolve",
                r#"{"take":"ours","path":"d/f","id":"0"}"#,
                400,
            ),
            (
                "POST",
                "/resolve",
                r#"{"take":"ours","path":"d/f","x":1}"#,
                422,
            ),
            ("GET", "?after=x", "", 400),
            ("GET", "?version=main", "", 400),
        ] {
            let url = format!("{path}{rest}");
            let (found, said) = server.call(method, &url, Some(&token), body.as_bytes());
            assert_eq!(found, status, "{body}: {said}");
        }
        let (status, page) = server.call("GET", &format!("{path}?limit=1"), Some(&token), b"");
        assert_eq!((status, &page["next"]), (200, &Value::Null), "{page}");
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

    /// Two sides that both made these files, published with their conflicts; a session that has them.
    async fn with_many(server: &Server, dir: &Path, paths: &[String]) -> Value {
        json(&["workspace", "create", "w"], dir);
        let base = json(&["session", "open", "w"], dir);
        publish(dir, &base, &[]);
        let mut sides = Vec::new();
        for content in ["ours", "theirs"] {
            let (session, mut files) = mounted(server, dir, &["w"]).await;
            for path in paths {
                files.write(path, content).await;
            }
            sides.push(session);
        }
        publish(dir, &sides[0], &[]);
        publish(dir, &sides[1], &["--policy", "keep-both"]);
        json(&["session", "open", "w"], dir)
    }

    /// Resolves one after the other until the server is gone; gives those that were acknowledged.
    fn resolve_until_killed(url: &str, token: &str, todo: Vec<String>) -> Vec<String> {
        let resolved = |path: &String| {
            let agent = ureq::Agent::new_with_defaults();
            let body = serde_json::json!({ "path": path, "take": "theirs" });
            let request = ureq::http::Request::post(url)
                .header("content-type", "application/json")
                .header("authorization", format!("Bearer {token}"))
                .body(body.to_string())
                .unwrap();
            agent.run(request).is_ok()
        };
        todo.into_iter().filter(resolved).collect()
    }

    /// Whenever the server dies, a conflict is resolved with all that belongs to it, or not at all;
    /// and what was acknowledged is.
    #[tokio::test]
    async fn a_kill_leaves_no_half_of_a_resolution() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut server = Server::start("up", dir);
        let paths: Vec<String> = (0..24).map(|at| format!("f{at:02}")).collect();
        let session = with_many(&server, dir, &paths).await;
        let mut acknowledged: Vec<String> = Vec::new();
        for round in 0..4 {
            let (api, token) = (server.text("api_address"), server.text("api_token"));
            let url = format!(
                "http://{api}/v1/sessions/{}/conflicts/resolve",
                id(&session)
            );
            let is_open = |path: &&String| !acknowledged.contains(*path);
            let todo = paths.iter().filter(is_open).cloned().collect();
            let work = std::thread::Builder::new()
                .name("resolver".into())
                .spawn(move || resolve_until_killed(&url, &token, todo))
                .unwrap();
            // After a few; which ones does not matter.
            let enough = 2 + 3 * round;
            while !work.is_finished() && paths.len() - list(dir, &session).len() < enough {}
            server.kill();
            acknowledged.extend(work.join().unwrap());
            server = Server::start("up", dir);
            let left = told(&Value::Array(list(dir, &session)));
            let ticket = json(&["session", "ticket", id(&session)], dir);
            let lines = without_ids(Mount::of(&server, &ticket).await.lines().await);
            for path in &paths {
                let is_left = left.contains(&format!("create-create {path}"));
                let has = |line: String| lines.contains(&line);
                assert_ne!(
                    is_left,
                    has(format!("{path} = theirs")),
                    "{path}: {lines:?}"
                );
                assert_eq!(is_left, has(format!("{path} = ours")), "{path}: {lines:?}");
                let aside = format!("{path}~theirs = theirs");
                assert_eq!(is_left, has(aside), "{path}: {lines:?}");
                assert!(
                    !(is_left && acknowledged.contains(path)),
                    "{path} was acknowledged"
                );
            }
        }
        assert!(!acknowledged.is_empty());
        assert_eq!(server.terminate(), Some(0));
        let checked = json(&["check"], dir);
        assert_eq!(checked["clean"], true, "{checked}");
    }

    /// All pages of a list of the API, each a page's members and the length of its text.
    fn all_pages(server: &Server, path: &str) -> Vec<(usize, usize)> {
        let token = server.text("api_token");
        let (mut pages, mut after) = (Vec::new(), String::new());
        loop {
            let (status, page) = server.call("GET", &format!("{path}{after}"), Some(&token), b"");
            assert_eq!(status, 200, "{page}");
            let items = page["items"].as_array().unwrap().len();
            pages.push((items, page.to_string().len()));
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return pages,
            }
        }
    }

    /// Paths can be long: a page of conflicts is bounded in bytes, and so is every other answer.
    #[tokio::test]
    async fn long_lists_of_conflicts_come_in_pages() {
        const FILES: usize = 50;
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        let mut top = String::new();
        for _ in 0..200 {
            top += &"d".repeat(255);
            files.mkdir(&top).await;
            top.push('/');
        }
        for number in 0..FILES {
            files.write(format!("{top}{number}"), b"base").await;
        }
        publish(dir, &session, &["-m", "base"]);
        let (ours, mut files) = mounted(&server, dir, &[]).await;
        for number in 0..FILES {
            files.write(format!("{top}{number}"), b"ours").await;
        }
        let (theirs, mut files) = mounted(&server, dir, &[]).await;
        for number in 0..FILES {
            files.write(format!("{top}{number}"), b"theirs").await;
        }
        let bounded = |path: &str| {
            let pages = all_pages(&server, path);
            assert!(pages.len() > 1, "{pages:?}");
            assert_eq!(pages.iter().map(|(items, _)| items).sum::<usize>(), FILES);
            assert!(pages.iter().all(|(_, bytes)| *bytes < 5 << 20), "{pages:?}");
        };
        let (one, two) = (id(&ours), id(&theirs));
        bounded(&format!("/v1/sessions/{one}/clashes?with={two}&limit=30"));
        let between = json(&["conflicts", "between", one, two], dir);
        let paths = |of: &Value| -> BTreeSet<String> {
            let items = of.as_array().unwrap();
            items
                .iter()
                .map(|it| text(&it["path"]).to_owned())
                .collect()
        };
        assert_eq!(paths(&between["items"]).len(), FILES);
        assert_eq!(between["more"], false);
        publish(dir, &ours, &["-m", "ours"]);
        let merged = publish(dir, &theirs, &["-m", "theirs", "--policy", "keep-both"]);
        assert_eq!(merged["conflicts_total"], FILES);
        bounded("/v1/workspaces/default/conflicts?version=main");
        let listed = json(&["conflicts", "ls"], dir);
        assert_eq!(paths(&listed).len(), FILES);
        let (merged, _) = mounted(&server, dir, &[]).await;
        bounded(&format!("/v1/sessions/{}/conflicts?limit=500", id(&merged)));
        assert_eq!(list(dir, &merged).len(), FILES);
    }
}
