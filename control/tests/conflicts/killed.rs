//! Servers that die in the midst of resolutions.

use serde_json::Value;

use crate::common::{list, told, with_many, without_ids};
use crate::support::files::Mount;
use crate::support::{Server, id, json};

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
