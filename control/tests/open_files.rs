//! A server whose limit of open files is low.
#![allow(missing_docs, clippy::indexing_slicing, clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::Value;

use support::{ANY_PORTS, Server, holdfast};

/// For how long an answer that has to come is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that may have so many open files, and more if it asks for them.
fn start(dir: &Path, now: u32, most: u32) -> Server {
    let program = holdfast().get_program().to_owned();
    let line = format!("ulimit -Sn {now}; ulimit -Hn {most}; exec \"$0\" \"$@\"");
    let mut child: Child = Command::new("sh")
        .args(["-c", &line])
        .arg(program)
        .args(["--json", "up", "--data-dir"])
        .arg(dir)
        .args(ANY_PORTS)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    Server { child, ready }
}

/// Lets this process have more connections than the server.
fn raise() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// NULL of NFS.
fn null() -> Vec<u8> {
    let words = [1 << 31 | 40, 7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0_u32];
    words.into_iter().flat_map(u32::to_be_bytes).collect()
}

/// A connection on which a call was made.
fn connect(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.text("nfs_address")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&null()).unwrap();
    stream
}

fn answered(mut stream: &TcpStream) {
    stream.read_exact(&mut [0; 28]).unwrap();
}

/// Bug: the limit was left as low as shells and service managers have it, 1,024 mostly, though 8,192
/// connections were promised.
#[test]
fn as_many_files_as_the_system_allows_are_opened() {
    raise();
    let root = tempfile::tempdir().unwrap();
    let server = start(root.path(), 128, 1024);
    let open: Vec<TcpStream> = (0..300).map(|_| connect(&server)).collect();
    open.iter().for_each(answered);
    server.kill();
}

/// Bug: NFS connections took all open files, and then the API could accept nothing and stores could open
/// nothing.
#[test]
fn connections_leave_files_for_the_rest() {
    raise();
    let root = tempfile::tempdir().unwrap();
    let mut server = start(root.path(), 128, 600);
    let open: Vec<TcpStream> = (0..200).map(|_| connect(&server)).collect();
    // 600 without the 512 for others.
    open[..88].iter().for_each(answered);
    let url = format!("http://{}/readyz", server.text("api_address"));
    assert_eq!(ureq::get(&url).call().unwrap().status(), 200);
    let session = support::open(root.path(), &["default"]);
    assert!(session["mount_path"].is_string());
    // Whoever waits is served when others leave.
    drop(open);
    answered(&connect(&server));
    let mut said = server.child.stderr.take().unwrap();
    server.kill();
    let mut text = String::new();
    said.read_to_string(&mut text).unwrap();
    assert!(text.contains("has room for 88 NFS connections"), "{text}");
    assert!(
        text.contains("all 88 places for NFS connections are taken"),
        "{text}"
    );
}
