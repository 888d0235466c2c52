//! Trials of publishing, and clashes of live sessions.

use serde_json::Value;

use crate::cases::{CASES, begin};
use crate::common::{CONFLICT, told};
use crate::support::files::{Mount, mounted};
use crate::support::{Server, fails, id, json, publish, run};

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
