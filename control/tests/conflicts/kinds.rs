//! Each kind of conflict from both sides' changes to its resolution, and policies.

use std::path::Path;

use serde_json::Value;

use crate::cases::{CASES, Case, begin};
use crate::common::{CONFLICT, list, resolve, told, without_ids};
use crate::support::files::mounted;
use crate::support::{Server, fails, id, json, publish};

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
