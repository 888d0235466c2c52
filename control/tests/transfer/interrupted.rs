//! Imports that something comes in the way of: others, collections, kills.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::commands::{
    NOT_FOUND, RETRY, USAGE, export, import, is_sound, killed_is_sound, sessions, started, text,
};
use crate::support::{Server, fails, holdfast, json};
use crate::tar::{directory, file, header, import_members, tar};
use crate::tree::noise;

#[test]
fn a_branch_that_moves_meanwhile_stays() {
    let (place, dir, server) = started();
    let good = place.path().join("good.tar");
    import_members(&dir, &good, &[file(b"good", b"good")]);
    let slow = Upload::begin(&server, "?branch=main");
    slow.wait_for_session(&dir);
    let other = place.path().join("other.tar");
    let moved = import_members(&dir, &other, &[file(b"other", b"other")]);
    let answer = slow.end(&tar(&[file(b"slow", b"slow")]));
    assert!(
        answer.starts_with("HTTP/1.1 409") && answer.contains("has moved"),
        "{answer}"
    );
    assert_eq!(json(&["show"], &dir)["id"], moved["commit"]["id"]);
    fails(&["export", "main", "-", "--json"], &dir, USAGE, &["--json"]);
    drop(server);
}

/// An import that is sent by hand.
pub(crate) struct Upload(std::net::TcpStream);

impl Upload {
    pub(crate) fn begin(server: &Server, query: &str) -> Self {
        let address = server.text("api_address");
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        let token = server.text("api_token");
        write!(
            stream,
            "POST /v1/workspaces/default/import{query} HTTP/1.1\r\nhost: x\r\nauthorization: \
             Bearer {token}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        Self(stream)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        write!(self.0, "{:x}\r\n", bytes.len()).unwrap();
        self.0.write_all(bytes).unwrap();
        self.0.write_all(b"\r\n").unwrap();
    }

    /// Sends bytes that are no chunk, or not a whole one.
    fn send_raw(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn end(mut self, bytes: &[u8]) -> String {
        self.send(bytes);
        self.0.write_all(b"0\r\n\r\n").unwrap();
        self.answer()
    }

    pub(crate) fn answer(mut self) -> String {
        let mut answer = String::new();
        self.0.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Waits until the server has a session for it.
    pub(crate) fn wait_for_session(&self, dir: &Path) {
        self.wait_until(dir, |_| true);
    }

    fn wait_until(&self, dir: &Path, holds: impl Fn(&Value) -> bool) {
        loop {
            let sessions = json(&["session", "ls"], dir);
            let staged = sessions
                .as_array()
                .unwrap()
                .iter()
                .find(|session| session["agent"] == "holdfast-import");
            if staged.is_some_and(&holds) {
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// Four run at a time. Of those before it some may end without their senders, who have gone.
#[test]
fn an_import_waits_for_its_turn() {
    let (_place, dir, server) = started();
    let running: Vec<Upload> = (0..4)
        .map(|number| Upload::begin(&server, &format!("?branch=b{number}")))
        .collect();
    let staged = || {
        let sessions = json(&["session", "ls"], &dir);
        let all = sessions.as_array().unwrap().iter();
        all.filter(|session| session["agent"] == "holdfast-import")
            .count()
    };
    while staged() < running.len() {
        std::thread::yield_now();
    }
    let mut next = Upload::begin(&server, "?branch=next");
    next.send(&tar(&[file(b"f", b"next")]));
    // It has begun by now, if it is refused.
    assert_eq!(staged(), running.len());
    for upload in running {
        drop(upload);
    }
    next.0.write_all(b"0\r\n\r\n").unwrap();
    let answer = next.answer();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    killed_is_sound(server, &dir);
}

/// What a session stands on is kept by every policy: so each parent of an import that runs has one.
#[test]
fn each_parent_of_an_import_is_kept_while_it_runs() {
    let (place, dir, server) = started();
    let archive = place.path().join("a.tar");
    let parents = ["one", "two", "three"].map(|branch| {
        fs::write(&archive, tar(&[file(b"f", branch.as_bytes())])).unwrap();
        let made = import(&dir, &archive, &["--branch", branch]);
        made["commit"]["id"].as_str().unwrap().to_owned()
    });
    let mut wanted = parents.to_vec();
    wanted.sort_unstable();
    let upload = Upload::begin(&server, &format!("?parents={}", parents.join(",")));
    loop {
        let sessions = json(&["session", "ls"], &dir);
        let staged = sessions.as_array().unwrap().iter();
        let staged = staged.filter(|session| session["agent"] == "holdfast-import");
        let mut kept: Vec<&str> = staged.map(|one| one["commit"].as_str().unwrap()).collect();
        kept.sort_unstable();
        if kept == wanted {
            break;
        }
        std::thread::yield_now();
    }
    let answer = upload.end(&tar(&[file(b"f", b"merged")]));
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    assert_eq!(sessions(&dir), 1);
    let many = vec!["0".repeat(64); 17].join(",");
    let answer = Upload::begin(&server, &format!("?parents={many}")).answer();
    assert!(answer.contains("at most 16 parents"), "{answer}");
    killed_is_sound(server, &dir);
}

#[test]
fn a_killed_server_has_the_old_branch_and_no_damage() {
    let (place, dir, server) = started();
    let good = place.path().join("good.tar");
    let made = import_members(&dir, &good, &[file(b"good", b"good")]);
    let mut upload = Upload::begin(&server, "");
    // Stops in the midst of a file: what has come is flushed after a while.
    let mut bytes = tar(&[
        directory(b"d/"),
        file(b"d/small", b"small"),
        header(b"d/link", b'1', 0, b"d/small"),
        file(b"d/large", &[3; 1_000_000]),
        file(b"d/later", &[4; 500_000]),
    ]);
    bytes.truncate(1_200_000);
    upload.send(&bytes);
    upload.wait_until(&dir, |session| session["inodes"].as_u64().unwrap() >= 4);
    server.kill();
    is_sound(&dir);
    let server = Server::start("up", &dir);
    assert_eq!(json(&["show"], &dir)["id"], made["commit"]["id"]);
    // Sent again it is all there.
    let members = [directory(b"d/"), file(b"d/large", &[3; 1_000_000])];
    import_members(&dir, &good, &members);
    let out = place.path().join("out");
    export(&dir, "main", &out, &[]);
    assert_eq!(fs::read(out.join("d/large")).unwrap(), [3; 1_000_000]);
    killed_is_sound(server, &dir);
}

#[test]
fn kills_at_any_time_leave_the_old_or_the_new() {
    let place = tempfile::tempdir().unwrap();
    let (dir, tree) = (place.path().join("data"), place.path().join("tree"));
    fs::create_dir(&tree).unwrap();
    for number in 0..200_usize {
        let content = &noise()[number..number + 40_000];
        fs::write(tree.join(format!("file {number}")), content).unwrap();
    }
    let mut server = Server::start("up", &dir);
    import(&dir, &tree, &["-m", "first"]);
    let mut last = json(&["show"], &dir);
    for round in 0..6 {
        fs::write(tree.join("round"), format!("{round}")).unwrap();
        let message = format!("round {round}");
        let mut importing = holdfast()
            .args([
                "import",
                text(&tree),
                "-m",
                &message,
                "--data-dir",
                text(&dir),
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Calls take their time: so many of them are a moment of their own in each round.
        for _ in 0..round {
            json(&["session", "ls"], &dir);
        }
        server.kill();
        let is_done = importing.wait().unwrap().success();
        is_sound(&dir);
        server = Server::start("up", &dir);
        let now = json(&["show"], &dir);
        let is_new = now["id"] != last["id"];
        assert!(is_new || !is_done, "what was told is gone");
        if is_new {
            assert_eq!(now["message"], message.as_str());
            assert_eq!(now["parents"][0], last["id"]);
        }
        let out = place.path().join(format!("out {round}"));
        export(&dir, "main", &out, &[]);
        assert_eq!(fs::read(out.join("file 77")).unwrap(), noise()[77..40_077]);
        last = now;
    }
}

#[test]
fn slow_imports_and_collections_do_not_mind_each_other() {
    let (place, dir, server) = started();
    let mut slow = Upload::begin(&server, "");
    let archive = tar(&[file(b"first", &noise()), file(b"second", &noise()[5..])]);
    let (begin, rest) = archive.split_at(2_000_000);
    slow.send(begin);
    // What has come is flushed after a while, and refers to its chunks from then on.
    slow.wait_until(&dir, |session| {
        session["used_bytes"].as_u64().unwrap() > 1_000_000
    });
    let collected = json(&["gc"], &dir);
    assert_eq!(collected["state"], "done", "{collected}");
    assert!(
        collected["live_chunks"].as_u64().unwrap() >= 10,
        "{collected}"
    );
    let answer = slow.end(rest);
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    json(&["gc"], &dir);
    let out = place.path().join("out");
    export(&dir, "main", &out, &[]);
    assert_eq!(fs::read(out.join("first")).unwrap(), noise());
    assert_eq!(fs::read(out.join("second")).unwrap(), noise()[5..]);
    killed_is_sound(server, &dir);
}

#[test]
fn a_body_that_is_none_is_the_senders_fault() {
    let (_place, dir, server) = started();
    for raw in ["nothing\r\n", "5\r\nhello!!", "fffffffffffffffff\r\n"] {
        let mut upload = Upload::begin(&server, "");
        upload.send(&file(b"half", &[9; 200_000])[..100_000]);
        upload.send_raw(raw.as_bytes());
        let answer = upload.answer();
        assert!(
            answer.starts_with("HTTP/1.1 400") && answer.contains("nothing of it was kept"),
            "{raw:?}: {answer}"
        );
    }
    fails(&["show"], &dir, NOT_FOUND, &["main"]);
    killed_is_sound(server, &dir);
}

#[test]
fn a_sender_that_breaks_off_leaves_nothing() {
    let (place, dir, server) = started();
    let mut upload = Upload::begin(&server, "");
    upload.send(&file(b"half", &[9; 200_000])[..100_000]);
    upload.wait_for_session(&dir);
    drop(upload);
    while sessions(&dir) > 1 {
        std::thread::yield_now();
    }
    fails(&["show"], &dir, NOT_FOUND, &["main"]);
    // Too many at once are told to wait.
    let mut held: Vec<Upload> = (0..4).map(|_| Upload::begin(&server, "")).collect();
    while sessions(&dir) < 5 {
        std::thread::yield_now();
    }
    let good = place.path().join("good.tar");
    fs::write(&good, tar(&[file(b"good", b"good")])).unwrap();
    fails(&["import", text(&good)], &dir, RETRY, &["under way"]);
    held.pop().unwrap().end(&tar(&[file(b"one", b"one")]));
    import(&dir, &good, &[]);
    drop(held);
    killed_is_sound(server, &dir);
}
