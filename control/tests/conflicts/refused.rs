//! Requests that are refused.

use serde_json::Value;

use crate::common::{CONFLICT, with_a_conflict};
use crate::support::{Server, fails, id, json};

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
