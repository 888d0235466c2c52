//! Servers that stop, or break off, in the midst of a transfer.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::thread::JoinHandle;

use crate::commands::{RETRY, import, is_sound, started, text};
use crate::interrupted::Upload;
use crate::support::{Server, holdfast};
use crate::tar::{directory, file};
use crate::tree::noise;

/// Waits until a server that was told to end takes no further connections.
fn wait_until_it_stops(address: &str) {
    while TcpStream::connect(address).is_ok() {
        std::thread::yield_now();
    }
}

fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let thread = std::thread::Builder::new().name("peer".into());
    thread.spawn(work).unwrap()
}

fn terminated(server: Server) -> JoinHandle<Option<i32>> {
    spawn(move || server.terminate())
}

#[test]
fn a_server_that_stops_ends_an_import() {
    let (_place, dir, server) = started();
    let mut upload = Upload::begin(&server, "");
    upload.send(&file(b"half", &[9; 200_000])[..100_000]);
    upload.wait_for_session(&dir);
    let ending = terminated(server);
    let answer = upload.answer();
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("being stopped"),
        "{answer}"
    );
    assert_eq!(ending.join().unwrap(), Some(0));
    is_sound(&dir);
}

#[test]
fn a_server_that_stops_leaves_an_export_visibly_cut_off() {
    let (place, dir, server) = started();
    let tree = place.path().join("tree");
    fs::create_dir(&tree).unwrap();
    // More than all buffers on the way hold.
    fs::write(tree.join("large"), noise().repeat(16)).unwrap();
    import(&dir, &tree, &[]);
    let address = server.text("api_address");
    let mut stream = TcpStream::connect(&address).unwrap();
    write!(
        stream,
        "GET /v1/workspaces/default/export HTTP/1.1\r\nhost: x\r\nauthorization: Bearer \
         {}\r\n\r\n",
        server.text("api_token")
    )
    .unwrap();
    let mut begin = [0; 12];
    stream.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    let ending = terminated(server);
    wait_until_it_stops(&address);
    let mut rest = Vec::new();
    // Reset or closed.
    drop(stream.read_to_end(&mut rest));
    assert!(rest.len() < noise().len() * 16, "{} bytes came", rest.len());
    assert!(!rest.ends_with(b"0\r\n\r\n"), "it looks whole");
    assert_eq!(ending.join().unwrap(), Some(0));
}

/// Answers one connection after the other.
fn answering(answers: Vec<Vec<u8>>) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let answering = spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while !lines.next().unwrap().unwrap().is_empty() {}
            stream.write_all(&answer).unwrap();
        }
    });
    (address, answering)
}

fn of_length(bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    [head.as_bytes(), bytes].concat()
}

/// An archive whose sender goes in the midst of it.
fn broken_off() -> Vec<u8> {
    let bytes = [directory(b"d/"), file(b"d/f", &[7; 4000])[..1000].to_vec()].concat();
    let head = format!(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n",
        bytes.len()
    );
    [head.as_bytes(), &bytes, b"\r\n"].concat()
}

fn exported(args: &[&str], answers: Vec<Vec<u8>>) -> Output {
    let (address, answering) = answering(answers);
    let output = holdfast()
        .args([&["export", "main"], args].concat())
        .args(["--api", &address, "--token", "token"])
        .output()
        .unwrap();
    answering.join().unwrap();
    output
}

/// What is said of an export that does not work.
fn said(args: &[&str], answers: Vec<Vec<u8>>) -> String {
    let output = exported(args, answers);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(RETRY), "{args:?}: {said}");
    said
}

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn what_is_said_of_an_export_that_breaks_off_is_true() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let cut = [directory(b"d/"), file(b"d/f", b"x")].concat();
    for (dest, is_there) in [("new", false), ("there", true), ("a.tar", false)] {
        let dest = place.join(dest);
        if is_there {
            fs::create_dir(&dest).unwrap();
        }
        for (answer, why) in [(broken_off(), "broke off"), (of_length(&cut), "cut off")] {
            let said = said(&[text(&dest), "--force"], vec![answer]);
            assert!(said.contains(why), "{said}");
            assert_eq!(said.contains("export again"), why == "cut off", "{said}");
            assert!(!said.contains("nothing"), "{said}");
            let left = if is_there {
                "is not complete"
            } else {
                "stays as it was"
            };
            assert!(said.contains(left), "{said}");
        }
    }
    assert_eq!(names(place), ["there"]);
    assert_eq!(names(&place.join("there")), ["d"]);
}

/// What the API says of a commit.
fn commit() -> Vec<u8> {
    let id = "1".repeat(64);
    let commit = serde_json::json!({
        "id": id, "parents": [], "time": "2026-01-01T00:00:00Z", "message": "m", "author": "",
        "agent": "", "session": null, "run": "", "model": "", "tool_call": "", "pairs": {},
        "tree": "", "used_bytes": 0, "inodes": 0, "conflicts": 0, "files": [0, 0, 0],
        "bytes": [0, 0, 0],
    });
    of_length(commit.to_string().as_bytes())
}

#[test]
fn an_export_to_git_that_breaks_off_may_be_tried_again() {
    let place = tempfile::tempdir().unwrap();
    let repository = place.path().join("repository");
    let args = [text(&repository), "--git"];
    let refs = of_length(br#"{"items":[],"next":null}"#);
    let said = said(&args, vec![refs, commit(), broken_off()]);
    assert!(
        said.contains("broke off") && !said.contains("fatal"),
        "{said}"
    );
    assert!(names(place.path()).is_empty());
}
