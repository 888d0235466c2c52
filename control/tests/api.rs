//! The HTTP API: rights, errors, limits.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use support::Server;

#[test]
fn calls_need_a_token_and_errors_say_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start("up", root.path());
    let token = server.text("api_token");
    let token = Some(token.as_str());
    for (path, wanted) in [("/livez", 200), ("/readyz", 200), ("/v1/sessions", 401)] {
        assert_eq!(server.call("GET", path, None, b"").0, wanted, "{path}");
    }
    let long = "x".repeat(10_000);
    for bad in ["", "nonsense", long.as_str()] {
        let (status, problem) = server.call("GET", "/v1/workspaces", Some(bad), b"");
        assert_eq!(status, 401);
        assert_eq!(problem["type"], "urn:holdfast:problem:unauthorized");
    }
    let cases: [(&str, &str, &[u8], u16); 11] = [
        ("GET", "/v1/nothing", b"", 404),
        ("PUT", "/v1/sessions", b"", 405),
        ("GET", "/v1/sessions?limit=x", b"", 400),
        ("GET", "/v1/sessions?after=x", b"", 400),
        ("GET", "/v1/sessions?unknown=1", b"", 400),
        ("GET", "/v1/sessions/0000000000000001", b"", 404),
        ("POST", "/v1/sessions", b"{", 400),
        ("POST", "/v1/sessions", b"{\"workspac\":\"default\"}", 422),
        (
            "POST",
            "/v1/sessions",
            b"{\"workspace\":\"default\",\"ttl_seconds\":0}",
            400,
        ),
        (
            "POST",
            "/v1/workspaces",
            b"{\"name\":\"w\",\"root_mode\":99999}",
            400,
        ),
        ("POST", "/v1/sessions", &[b' '; 70_000], 413),
    ];
    for (method, path, body, wanted) in cases {
        let (status, problem) = server.call(method, path, token, body);
        assert_eq!(status, wanted, "{method} {path}: {problem}");
        assert_eq!(problem["status"], wanted, "{method} {path}: {problem}");
        assert!(!problem["detail"].as_str().unwrap().is_empty());
    }
    let (_, metrics) = server.call("GET", "/metrics", None, b"");
    assert!(
        metrics
            .as_str()
            .unwrap()
            .contains("\nholdfast_gateway_sessions 0\n")
    );
}

#[test]
fn lists_come_in_pages_and_tickets_end() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start("serve", root.path());
    let token = server.text("api_token");
    let call = |method: &str, path: &str, body: &str| {
        server.call(method, path, Some(&token), body.as_bytes())
    };
    for name in ["a", "b", "c"] {
        let body = format!("{{\"name\":\"{name}\"}}");
        assert_eq!(call("POST", "/v1/workspaces", &body).0, 201);
        let body = format!("{{\"workspace\":\"{name}\"}}");
        assert_eq!(call("POST", "/v1/sessions", &body).0, 201);
    }
    assert_eq!(call("GET", "/v1/workspaces/b", "").1["name"], "b");
    for list in ["/v1/workspaces", "/v1/sessions"] {
        let (mut after, mut seen) = (String::new(), 0);
        loop {
            let (status, page) = call("GET", &format!("{list}?limit=2{after}"), "");
            assert_eq!(status, 200);
            seen += page["items"].as_array().unwrap().len();
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        assert_eq!(seen, 3, "{list}");
    }
    let (_, page) = call("GET", "/v1/sessions?workspace=a", "");
    let session = page["items"][0]["id"].as_str().unwrap();
    let tickets = format!("/v1/sessions/{session}/tickets");
    let (status, made) = call("POST", &tickets, "{\"single_use\":true,\"ttl_seconds\":60}");
    assert_eq!(status, 201);
    let text = made["ticket"].as_str().unwrap();
    let (_, listed) = call("GET", &tickets, "");
    let listed = listed["items"].as_array().unwrap();
    assert_eq!(listed.len(), 2);
    assert!(!serde_json::to_string(listed).unwrap().contains(text));
    let id = listed
        .iter()
        .find(|ticket| ticket["single_use"] == true)
        .unwrap()["id"]
        .as_str()
        .unwrap();
    let one = format!("{tickets}/{id}");
    assert_eq!(call("DELETE", &one, "").0, 204);
    assert_eq!(call("DELETE", &one, "").0, 404);
    assert_eq!(
        call("DELETE", &format!("/v1/sessions/{session}"), "").0,
        204
    );
    assert_eq!(call("GET", &tickets, "").0, 404);
}

#[test]
fn collections_are_asked_for_and_told_of() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start("up", root.path());
    let token = server.text("api_token");
    let token = Some(token.as_str());
    let cases: [(&str, &str, &[u8], u16); 5] = [
        ("POST", "/v1/gc", b"{\"dry\":true}", 422),
        ("POST", "/v1/gc", b"", 400),
        ("GET", "/v1/gc/x", b"", 400),
        ("GET", "/v1/gc/77", b"", 404),
        ("DELETE", "/v1/gc", b"", 405),
    ];
    for (method, path, body, wanted) in cases {
        let (status, problem) = server.call(method, path, token, body);
        assert_eq!(status, wanted, "{method} {path}: {problem}");
    }
    assert_eq!(server.call("POST", "/v1/gc", None, b"{}").0, 401);
    let (status, asked) = server.call("POST", "/v1/gc", token, b"{\"dry_run\":true}");
    assert_eq!(status, 202, "{asked}");
    let path = format!("/v1/gc/{}", asked["run"]);
    let (status, done) = server.call("GET", &path, token, b"");
    assert_eq!((status, &done["state"]), (200, &"done".into()), "{done}");
    assert_eq!(done["dry_run"], true);
    let (_, list) = server.call("GET", "/v1/gc", token, b"");
    assert_eq!(list["items"][0], done);
}
