//! The HTTP API: rights, errors, limits.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::io::Write;
use std::net::TcpStream;

use support::{Server, json};

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
fn odd_requests_are_refused_in_the_same_form() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start("up", root.path());
    let token = server.text("api_token");
    let session = format!("/v1/sessions/{}", server.text("session"));
    let tickets = format!("{session}/tickets");
    let bad_ticket = format!("{tickets}/%ff");
    let deep = "[".repeat(20_000);
    let long_path = format!("/v1/workspaces/{}", "x".repeat(5000));
    let long_name = format!("{{\"name\":\"{}\"}}", "x".repeat(60_000));
    let ttl = |seconds: &str| format!("{{\"workspace\":\"default\",\"ttl_seconds\":{seconds}}}");
    let cases: &[(&str, &str, &str, u16)] = &[
        ("GET", "/v1/workspaces/%ff", "", 400),
        ("GET", "/v1/workspaces/%00", "", 404),
        ("GET", &long_path, "", 404),
        ("GET", "/v1/sessions/%ff", "", 400),
        ("GET", "/v1/sessions/+1", "", 400),
        ("GET", "/v1/sessions/00000000000000001", "", 400),
        ("DELETE", "/v1/sessions/%20", "", 400),
        ("DELETE", "/v1/sessions/ffffffffffffffff", "", 404),
        ("DELETE", &bad_ticket, "", 400),
        ("GET", "/v1/sessions?limit=-1", "", 400),
        ("GET", "/v1/sessions?limit=1&limit=2", "", 400),
        ("POST", "/v1/workspaces", &deep, 422),
        ("POST", "/v1/workspaces", "null", 422),
        ("POST", "/v1/workspaces", "", 400),
        (
            "POST",
            "/v1/workspaces",
            "{\"name\":\"a\",\"name\":\"b\"}",
            422,
        ),
        ("POST", "/v1/workspaces", "{\"name\":\"a\"}x", 400),
        ("POST", "/v1/workspaces", "{\"name\":\"..\"}", 400),
        ("POST", "/v1/workspaces", &long_name, 400),
        ("POST", "/v1/sessions", &ttl("18446744073709551615"), 400),
        ("POST", "/v1/sessions", &ttl("3153600001000"), 400),
        ("POST", "/v1/sessions", &ttl("-1"), 422),
        (
            "POST",
            &tickets,
            "{\"ttl_seconds\":18446744073709551615}",
            400,
        ),
        ("POST", &tickets, "{\"directory\":\"\\u0000\"}", 400),
        ("PATCH", &session, "", 405),
    ];
    for (method, path, body, wanted) in cases {
        let (status, problem) = server.call(method, path, Some(&token), body.as_bytes());
        assert_eq!(status, *wanted, "{method} {path}: {problem}");
        assert_eq!(problem["status"], *wanted, "{method} {path}: {problem}");
        assert!(!problem["detail"].as_str().unwrap().is_empty());
    }
    assert_eq!(server.call("GET", &session, Some(&token), b"").0, 200);
}

#[test]
fn calls_at_the_same_time_have_one_winner() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start("up", root.path());
    let token = server.text("api_token");
    let at_once = |method: &str, path: &str, body: &str| {
        let mut answers: Vec<u16> = std::thread::scope(|scope| {
            let calls: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| server.call(method, path, Some(&token), body.as_bytes()).0))
                .collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        answers.sort_unstable();
        answers
    };
    let made = at_once("POST", "/v1/workspaces", "{\"name\":\"w\"}");
    assert_eq!(made, [&[201][..], &[409; 7]].concat());
    let session = format!("/v1/sessions/{}", server.text("session"));
    let closed = at_once("DELETE", &session, "");
    assert!(closed[0] == 204 && closed.iter().all(|status| [204, 404].contains(status)));
    assert_eq!(server.call("DELETE", &session, Some(&token), b"").0, 404);
    assert_eq!(server.call("GET", "/readyz", None, b"").0, 200);
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(json(&["check"], root.path())["clean"], true);
}

#[test]
fn half_requests_keep_nobody_out() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start("up", root.path());
    let token = server.text("api_token");
    let address = server.text("api_address");
    let half = |text: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    let head = "GET /v1/sessions HTTP/1.1\r\nhost: ";
    let body = "POST /v1/sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{";
    let _half: Vec<TcpStream> = (0..400)
        .map(|number| half(if number % 2 == 0 { head } else { body }))
        .collect();
    for path in ["/livez", "/readyz", "/metrics", "/v1/sessions"] {
        assert_eq!(server.call("GET", path, Some(&token), b"").0, 200, "{path}");
    }
    assert_eq!(
        json(&["session", "ls"], root.path())
            .as_array()
            .unwrap()
            .len(),
        1
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
    let made_id = made["ticket_id"].as_str().unwrap();
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
    assert_eq!(id, made_id);
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

/// A server that has its stores for itself is one gateway, and its sessions are mounted at it.
#[test]
fn a_server_by_itself_is_the_only_gateway() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start("up", root.path());
    let token = server.text("api_token");
    let token = Some(token.as_str());
    let (status, told) = server.call("GET", "/v1/gateways", token, b"");
    assert_eq!(status, 200, "{told}");
    let items = told["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{told}");
    assert_eq!(items[0]["this"], true);
    assert_eq!(items[0]["alive"], true);
    assert_eq!(items[0]["state"], "serving");
    assert_eq!(items[0]["nfs"], server.text("nfs_address"));
    assert_eq!(items[0]["peers"], "");
    let api = format!("http://{}", server.text("api_address"));
    assert_eq!(items[0]["api"], api);
    assert_eq!(server.call("GET", "/v1/gateways", None, b"").0, 401);
    let session = format!("/v1/sessions/{}", server.text("session"));
    let (_, shown) = server.call("GET", &session, token, b"");
    assert_eq!(shown["gateway"], server.text("nfs_address"), "{shown}");
    let (_, listed) = server.call("GET", "/v1/sessions", token, b"");
    assert_eq!(listed["items"][0], shown);
    let listed = json(&["gateways"], root.path());
    assert_eq!(listed, told["items"]);
}

#[test]
fn a_server_that_is_told_to_end_says_so_and_ends() {
    let root = tempfile::tempdir().unwrap();
    let mut server = Server::start("up", root.path());
    let token = server.text("api_token");
    let token = Some(token.as_str());
    let (status, told) = server.call("GET", "/v1/drain", token, b"");
    assert_eq!((status, &told["state"]), (200, &"serving".into()), "{told}");
    assert_eq!(server.call("POST", "/v1/drain", None, b"").0, 401);
    assert_eq!(server.call("DELETE", "/v1/drain", token, b"").0, 405);
    let (_, told) = server.call("GET", "/v1/drain", token, b"");
    assert_eq!(told["state"], "serving");
    let (status, told) = server.call("POST", "/v1/drain", token, b"");
    // With no delay it may be a step further by the time it answers.
    let state = told["state"].as_str().unwrap();
    assert_eq!(status, 202, "{told}");
    assert!(["draining", "stopping"].contains(&state), "{told}");
    let ended = server.child.wait().unwrap();
    assert_eq!(ended.code(), Some(0));
}
