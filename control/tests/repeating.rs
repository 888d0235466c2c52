//! Calls that are repeated with an idempotency key, against a server that is killed.
#![allow(missing_docs, clippy::indexing_slicing, clippy::unwrap_used)]
#![allow(clippy::disallowed_methods)] // Plain threads: no runtime here.

mod support;

use std::path::Path;
use std::process::Output;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use support::{Server, fails, holdfast, json as run_json};

/// An answer: status, whether it is that of an earlier call, body.
type Answer = (u16, bool, Value);

fn call(server: &Server, method: &str, path: &str, key: &str, body: &Value) -> Answer {
    let url = format!("http://{}{path}", server.text("api_address"));
    let token = server.text("api_token");
    let request = ureq::http::Request::builder()
        .method(method)
        .uri(url)
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {token}"))
        .header("idempotency-key", key)
        .body(body.to_string().into_bytes())
        .unwrap();
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(60)));
    let agent: ureq::Agent = config.build().into();
    let mut response = agent.run(request).unwrap();
    let replayed = response.headers().contains_key("idempotent-replayed");
    let text = response.body_mut().read_to_string().unwrap();
    let value = serde_json::from_str(&text).unwrap_or_default();
    (response.status().as_u16(), replayed, value)
}

fn check(dir: &Path) -> Output {
    let mut command = holdfast();
    command.arg("check").arg("--data-dir").arg(dir);
    command.output().unwrap()
}

#[test]
fn answers_outlive_a_killed_server() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let server = Server::start("up", dir);
    let open = json!({ "workspace": "default", "agent": "a" });
    let opened = call(&server, "POST", "/v1/sessions", "open", &open);
    assert_eq!((opened.0, opened.1), (201, false));
    let token = call(
        &server,
        "POST",
        "/v1/tokens",
        "token",
        &json!({ "name": "ci" }),
    );
    let close = format!("/v1/sessions/{}", opened.2["id"].as_str().unwrap());
    let fork = call(
        &server,
        "POST",
        &format!("{close}/fork"),
        "fork",
        &json!({}),
    );
    assert_eq!(fork.0, 201, "{fork:?}");
    assert_eq!(
        call(&server, "DELETE", &close, "close", &Value::Null).0,
        204
    );
    server.kill();

    let server = Server::start("up", dir);
    let again = call(&server, "POST", "/v1/sessions", "open", &open);
    assert_eq!(again, (201, true, opened.2.clone()));
    let again = call(
        &server,
        "POST",
        "/v1/tokens",
        "token",
        &json!({ "name": "ci" }),
    );
    assert_eq!(again, (201, true, token.2.clone()));
    let again = call(
        &server,
        "POST",
        &format!("{close}/fork"),
        "fork",
        &json!({}),
    );
    assert_eq!(again, (201, true, fork.2));
    let again = call(&server, "DELETE", &close, "close", &Value::Null);
    assert_eq!(again, (204, true, Value::Null));
    // The token works; it was made once.
    let made = token.2["token"].as_str().unwrap();
    let (status, tokens) = server.call("GET", "/v1/tokens", Some(made), b"");
    assert_eq!(
        (status, tokens["items"].as_array().unwrap().len()),
        (200, 2)
    );
    let (_, sessions) = server.call("GET", "/v1/sessions", Some(made), b"");
    assert_eq!(sessions["items"].as_array().unwrap().len(), 2);
    assert_eq!(server.terminate(), Some(0));
    let checked = check(dir);
    assert!(checked.status.success(), "{checked:?}");
    fails(&["workspace", "ls"], dir, 6, &["no server uses"]);
}

#[test]
fn a_server_that_is_killed_at_any_time_opens_one_session_for_a_key() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let open = json!({ "workspace": "default" });
    for round in 0..6_u64 {
        let key = format!("round {round}").replace(' ', "-");
        let server = Server::start("up", dir);
        let before = count(&server);
        let address = server.text("api_address");
        let token = server.text("api_token");
        let sender = {
            let (key, open) = (key.clone(), open.clone());
            thread::spawn(move || {
                // Whether it is answered does not matter.
                let agent: ureq::Agent = ureq::Agent::config_builder().build().into();
                drop(
                    agent
                        .post(format!("http://{address}/v1/sessions"))
                        .header("authorization", format!("Bearer {token}"))
                        .header("idempotency-key", key)
                        .header("content-type", "application/json")
                        .send(open.to_string()),
                );
            })
        };
        thread::sleep(Duration::from_millis(round * 2));
        server.kill();
        sender.join().unwrap();
        let server = Server::start("up", dir);
        let first = call(&server, "POST", "/v1/sessions", &key, &open);
        assert_eq!(first.0, 201);
        let second = call(&server, "POST", "/v1/sessions", &key, &open);
        assert_eq!((second.0, second.1, second.2), (201, true, first.2));
        assert_eq!(count(&server), before + 1);
        assert_eq!(server.terminate(), Some(0));
    }
    assert!(check(dir).status.success());
}

/// Commands with a key, each run twice: the second tells what the first did.
#[test]
fn commands_are_repeated_with_a_key() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let server = Server::start("up", dir);
    let twice = |args: &[&str]| {
        let key = args[..2].join("-");
        let args = [args, &["--idempotency-key", &key]].concat();
        let (first, second) = (run_json(&args, dir), run_json(&args, dir));
        assert_eq!(first, second, "{args:?}");
        first
    };
    let session = server.text("session");
    twice(&["workspace", "create", "w"]);
    twice(&["token", "create", "ci"]);
    let made = twice(&["session", "checkpoint", &session, "-m", "one"]);
    let commit = made["commit"]["id"].as_str().unwrap();
    twice(&["session", "publish", &session, "-m", "two"]);
    twice(&["ref", "create", "v1", commit, "--tag"]);
    twice(&["session", "open"]);
    twice(&["session", "fork", &session]);
    twice(&["session", "ticket", &session]);
    twice(&["session", "restore", &session, "--version", commit]);
    twice(&["session", "sync", &session]);
    let sessions = run_json(&["session", "ls"], dir);
    assert_eq!(sessions.as_array().unwrap().len(), 3);
    let other = [
        "session",
        "open",
        "--agent",
        "b",
        "--idempotency-key",
        "session-open",
    ];
    fails(&other, dir, 2, &["another request"]);
    fails(
        &["session", "open", "--idempotency-key", "a b"],
        dir,
        2,
        &["visible ASCII"],
    );
    assert_eq!(server.terminate(), Some(0));
}

fn count(server: &Server) -> usize {
    let token = server.text("api_token");
    let (_, page) = server.call("GET", "/v1/sessions?limit=500", Some(&token), b"");
    page["items"].as_array().unwrap().len()
}
