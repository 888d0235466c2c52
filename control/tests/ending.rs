//! `holdfast drain`: with keys, and on a terminal.
#![allow(missing_docs, clippy::indexing_slicing, clippy::unwrap_used)]
#![allow(clippy::disallowed_methods)] // Plain threads: no runtime here.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Command;

use serde_json::Value;

use support::{Server, holdfast, run};

/// A key does not keep a server going that is another one than the one that was drained.
#[test]
fn a_drain_with_a_key_is_done_each_time() {
    let root = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut server = Server::start("serve", root.path());
        let url = format!("http://{}/v1/drain", server.text("api_address"));
        let answer = ureq::post(url)
            .header(
                "authorization",
                format!("Bearer {}", server.text("api_token")),
            )
            .header("idempotency-key", "drain")
            .send_empty();
        let mut answer = answer.unwrap();
        assert_eq!(answer.status(), 202);
        assert!(!answer.headers().contains_key("idempotent-replayed"));
        let told: Value =
            serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap();
        assert_ne!(told["state"], "serving");
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
    }
}

/// What a drain that waits prints on a terminal.
fn drained(arguments: &str) -> String {
    let holdfast = holdfast().get_program().to_str().unwrap().to_owned();
    let line = format!("{holdfast} drain --wait {arguments}");
    let mut script = Command::new("script");
    let script = script.args(["-qec", &line, "/dev/null"]);
    let output = script.env("NO_COLOR", "1").output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn its_progress_goes_before_what_it_tells() {
    let root = tempfile::tempdir().unwrap();
    let mut server = Server::start("serve", root.path());
    let said = drained(&format!("--data-dir {}", root.path().display()));
    assert!(said.contains("bytes to store"), "{said:?}");
    assert!(said.contains("\r\x1b[Kdrained: the server"), "{said:?}");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    assert!(!run(&["drain", "--wait"], root.path()).status.success());
}

#[test]
fn its_progress_goes_before_a_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let api = listener.local_addr().unwrap();
    let draining = r#"{"state":"draining","delay_ms":0,"connections":1,"dirty_bytes":2}"#;
    let answers = std::thread::spawn(move || {
        for (status, body) in [(202, draining), (403, "{}")] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut from = BufReader::new(stream.try_clone().unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while from.read_line(&mut line).unwrap() > 2 {
                let (name, value) = line.split_once(':').unwrap_or_default();
                if name.eq_ignore_ascii_case("content-length") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            from.take(length).read_to_end(&mut Vec::new()).unwrap();
            let length = body.len();
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n");
            write!(stream, "{head}connection: close\r\n\r\n{body}").unwrap();
        }
    });
    let said = drained(&format!("--api http://{api} --token x"));
    answers.join().unwrap();
    assert!(said.contains("bytes to store"), "{said:?}");
    assert!(said.contains("\r\x1b[Kholdfast: "), "{said:?}");
}
