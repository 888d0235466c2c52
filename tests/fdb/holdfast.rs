//! `holdfast` for the tests of this package: the test's own program, started anew in that role, as it
//! is linked to the client library already. And a small NFS client.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nfs3_client::tokio::{TokioConnector, TokioIo};
use nfs3_client::{Nfs3Connection, Nfs3ConnectionBuilder};
use nfs3_types::nfs3::{
    CREATE3args, LOOKUP3args, Nfs3Option, READ3args, WRITE3args, createhow3, diropargs3, filename3,
    nfs_fh3, sattr3, stable_how,
};
use nfs3_types::xdr_codec::Opaque;
use serde_json::Value;

/// Says that this process is to be `holdfast`; its arguments follow, one a line.
const ROLE: &str = "HOLDFAST_FDB_TEST_ARGS";

/// How long an answer of the API may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) type Connection = Nfs3Connection<TokioIo<tokio::net::TcpStream>>;

/// The runtime for a test that needs a cluster of its own. `None` if it is left out: the one that it is
/// given belongs to others. In the role of `holdfast` it does not return.
pub(crate) fn runtime_unless_holdfast() -> Option<tokio::runtime::Runtime> {
    if let Ok(args) = std::env::var(ROLE) {
        let args = ["holdfast"].into_iter().chain(args.lines());
        let code = control::run(args.map(OsString::from));
        std::process::exit(i32::from(code));
    }
    if std::env::var_os("HOLDFAST_FDB_CLUSTER_FILE").is_some() {
        println!("left out: it needs clusters of its own");
        return None;
    }
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    Some(runtime.enable_all().build().unwrap())
}

/// `holdfast` with these arguments.
pub(crate) fn holdfast(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        // Every test program here has one test, which takes the role first.
        .args(["tests::", "--nocapture", "--test-threads=1"])
        .env(ROLE, args.join("\n"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a command to its end: exit code, standard output and error.
pub(crate) fn run(args: &[&str]) -> (i32, String, String) {
    let output = holdfast(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        output.status.code().unwrap(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// A server that runs. Killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    ready: Value,
    pub(crate) dir: PathBuf,
}

impl Server {
    /// Starts `up` or `serve` with its metadata at `place`, and `more` settings.
    pub(crate) fn start(command: &str, dir: &Path, place: &str, more: &[&str]) -> Self {
        let settings = [
            "--json",
            command,
            "--data-dir",
            dir.to_str().unwrap(),
            "--metadata",
            place,
            "--fdb-timeout",
            "2s",
            "--listen",
            "127.0.0.1:0",
            "--api-listen",
            "127.0.0.1:0",
        ];
        let mut command = holdfast(&[&settings, more].concat());
        let mut child = command.stderr(Stdio::inherit()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The test's own first lines come before it.
        let ready = lines.find_map(|line| {
            let line = line.unwrap();
            let at = line.find('{')?;
            serde_json::from_str(&line[at..]).ok()
        });
        Self {
            ready: ready.expect("the server says how to reach it"),
            child,
            dir: dir.to_owned(),
        }
    }

    pub(crate) fn text(&self, field: &str) -> &str {
        self.ready[field].as_str().unwrap()
    }

    /// Ends it as an operator does; gives its exit code.
    pub(crate) fn stop(mut self) -> Option<i32> {
        self.signal(rustix::process::Signal::TERM);
        self.child.wait().unwrap().code()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Opens a session of the first workspace; gives the path to mount.
    pub(crate) fn open(&self) -> String {
        let (_, answer) = self.ask("POST /v1/sessions", r#"{"workspace":"default"}"#);
        let body = &answer[answer.find("\r\n\r\n").unwrap()..];
        let opened: Value = serde_json::from_str(&body[body.find('{').unwrap()..]).unwrap();
        opened["mount_path"].as_str().expect(body).to_owned()
    }

    /// Status and whole answer of a call to the API; without a body if that is empty.
    pub(crate) fn ask(&self, line: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.text("api_address")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (token, length) = (self.text("api_token"), body.len());
        let head = format!(
            "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }

    /// One number of its metrics.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let (_, answer) = self.ask("GET /metrics", "");
        let of = format!("{name} ");
        let line = answer.lines().find_map(|line| line.strip_prefix(&of));
        line.expect(name).trim().parse().unwrap()
    }

    /// Mounts the session of `up`.
    pub(crate) async fn mount(&self) -> Connection {
        self.mount_path(self.text("mount_path")).await
    }

    /// Mounts with an address of this server's.
    pub(crate) async fn mount_path(&self, path: &str) -> Connection {
        let address: SocketAddr = self.text("nfs_address").parse().unwrap();
        let host = Ipv4Addr::LOCALHOST.to_string();
        Nfs3ConnectionBuilder::new(TokioConnector, host, path)
            .mount_port(address.port())
            .nfs3_port(address.port())
            .connect_from_privileged_port(false)
            .mount()
            .await
            .unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(crate) fn name<'a>(dir: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
    diropargs3 {
        dir: dir.clone(),
        name: filename3(Opaque::borrowed(name.as_bytes())),
    }
}

/// Makes a file in the root.
pub(crate) async fn create(to: &mut Connection, file: &str) -> nfs_fh3 {
    let root = to.root_nfs_fh3();
    let create = CREATE3args {
        where_: name(&root, file),
        how: createhow3::UNCHECKED(sattr3::default()),
    };
    match to.create(&create).await.unwrap().unwrap().obj {
        Nfs3Option::Some(handle) => handle,
        Nfs3Option::None => unreachable!("no handle"),
    }
}

pub(crate) async fn write(to: &mut Connection, file: nfs_fh3, data: &[u8], stable: stable_how) {
    let write = WRITE3args {
        file,
        offset: 0,
        count: u32::try_from(data.len()).unwrap(),
        stable,
        data: Opaque::borrowed(data),
    };
    to.write(&write).await.unwrap().unwrap();
}

/// Makes a file in the root, with content that is stored.
pub(crate) async fn write_file(to: &mut Connection, file: &str, content: &[u8]) {
    let handle = create(to, file).await;
    write(to, handle, content, stable_how::FILE_SYNC).await;
}

pub(crate) async fn lookup(to: &mut Connection, file: &str) -> nfs_fh3 {
    let root = to.root_nfs_fh3();
    let lookup = LOOKUP3args {
        what: name(&root, file),
    };
    to.lookup(&lookup).await.unwrap().unwrap().object
}

pub(crate) async fn read_file(to: &mut Connection, file: &str) -> Vec<u8> {
    let read = READ3args {
        file: lookup(to, file).await,
        offset: 0,
        count: 1 << 20,
    };
    let read = to.read(&read).await.unwrap().unwrap();
    read.data.as_ref().to_vec()
}
