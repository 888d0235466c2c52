//! A server in a process of its own: this program, started anew in that role; and a client.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing
)] // For tests.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base::{Clock, SystemClock};
use nfs3_client::Nfs3Connection;
use nfs3_client::Nfs3ConnectionBuilder;
use nfs3_client::tokio::{TokioConnector, TokioIo};
use nfs3_types::nfs3::{
    CREATE3args, LOOKUP3args, Nfs3Option, READ3args, WRITE3args, createhow3, diropargs3, filename3,
    nfs_fh3, sattr3, stable_how,
};
use nfs3_types::xdr_codec::Opaque;
use serde_json::Value;

use crate::server::{KEY, S3, SECRET};

/// Says that this process is to be `holdfast`; its arguments follow, one a line.
const ROLE: &str = "HOLDFAST_S3_TEST_ARGS";

/// Runs as `holdfast` if that is this process's role; its exit code.
pub(crate) fn as_holdfast() -> Option<i32> {
    let args = std::env::var(ROLE).ok()?;
    let args = ["holdfast"].into_iter().chain(args.lines());
    Some(i32::from(control::run(args.map(OsString::from))))
}

/// `holdfast` with these arguments. In a test program it is the test `tests::servers` that takes the role.
pub(crate) fn holdfast(args: &[&str], secret: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let own = [
        "tests::servers",
        "--exact",
        "--nocapture",
        "--test-threads=1",
    ];
    command
        .args(own)
        .env(ROLE, args.join("\n"))
        .env("AWS_ACCESS_KEY_ID", KEY)
        .env("AWS_SECRET_ACCESS_KEY", secret)
        .env("AWS_ALLOW_HTTP", "true")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(&seed.to_be_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// A server that runs. Killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    ready: Value,
}

impl Server {
    pub(crate) fn start(dir: &Path, chunks: &str, s3: &S3) -> Self {
        Self::start_with(dir, chunks, s3, "256MiB")
    }

    /// With so much memory for content.
    pub(crate) fn start_with(dir: &Path, chunks: &str, s3: &S3, cache: &str) -> Self {
        let options = format!("aws_endpoint=http://{}", s3.address);
        let dir = dir.to_str().unwrap();
        let args = [
            &["--json", "up", "--data-dir", dir, "--chunks", chunks][..],
            &["--chunks-options", &options, "--log", "warn"],
            &["--content-cache", cache],
            &["--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0"],
        ];
        let mut child = holdfast(&args.concat(), SECRET).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.find_map(|line| {
            let line = line.unwrap();
            let at = line.find('{')?;
            serde_json::from_str(&line[at..]).ok()
        });
        Self {
            ready: ready.expect("the server says how to reach it"),
            child,
        }
    }

    pub(crate) fn text(&self, field: &str) -> String {
        self.ready[field].as_str().unwrap().to_owned()
    }

    /// A number of its metrics.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let mut stream = TcpStream::connect(self.text("api_address")).unwrap();
        let request = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let line = answer.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().parse().unwrap()
    }

    pub(crate) async fn mount(&self) -> Mount {
        let address: SocketAddr = self.text("nfs_address").parse().unwrap();
        let connection = Nfs3ConnectionBuilder::new(
            TokioConnector,
            Ipv4Addr::LOCALHOST.to_string(),
            self.text("mount_path"),
        )
        .mount_port(address.port())
        .nfs3_port(address.port())
        .connect_from_privileged_port(false)
        .mount()
        .await
        .unwrap();
        Mount(connection)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Waits until nothing of a server is staged.
pub(crate) async fn packed(server: &Server) {
    for _ in 0..3000 {
        let packs = server.metric("holdfast_chunkstore_packed_total ");
        if packs > 0.0 && server.metric("holdfast_chunkstore_staged_bytes ") == 0.0 {
            return;
        }
        SystemClock::new().sleep(Duration::from_millis(20)).await;
    }
    panic!("content stays staged");
}

/// A mounted session.
pub(crate) struct Mount(Nfs3Connection<TokioIo<tokio::net::TcpStream>>);

impl Mount {
    fn name<'n>(&self, name: &'n str) -> diropargs3<'n> {
        diropargs3 {
            dir: self.0.root_nfs_fh3(),
            name: filename3(Opaque::borrowed(name.as_bytes())),
        }
    }

    pub(crate) async fn create(&mut self, name: &str) -> nfs_fh3 {
        let create = CREATE3args {
            where_: self.name(name),
            how: createhow3::UNCHECKED(sattr3::default()),
        };
        match self.0.create(&create).await.unwrap().unwrap().obj {
            Nfs3Option::Some(handle) => handle,
            Nfs3Option::None => panic!("no handle"),
        }
    }

    pub(crate) async fn find(&mut self, name: &str) -> nfs_fh3 {
        let what = self.name(name);
        let found = self.0.lookup(&LOOKUP3args { what }).await.unwrap();
        found.unwrap().object
    }

    /// A durable WRITE.
    pub(crate) async fn write_at(&mut self, file: &nfs_fh3, offset: u64, content: &[u8]) {
        let write = WRITE3args {
            file: file.clone(),
            offset,
            count: u32::try_from(content.len()).unwrap(),
            stable: stable_how::FILE_SYNC,
            data: Opaque::borrowed(content),
        };
        self.0.write(&write).await.unwrap().unwrap();
    }

    /// A READ of up to 1 MiB.
    pub(crate) async fn read_at(&mut self, file: &nfs_fh3, offset: u64) -> Vec<u8> {
        let read = READ3args {
            file: file.clone(),
            offset,
            count: 1 << 20,
        };
        let read = self.0.read(&read).await.unwrap().unwrap();
        read.data.as_ref().to_vec()
    }

    pub(crate) async fn write(&mut self, name: &str, content: &[u8]) {
        let file = self.create(name).await;
        self.write_at(&file, 0, content).await;
    }

    pub(crate) async fn read(&mut self, name: &str) -> Vec<u8> {
        let file = self.find(name).await;
        self.read_at(&file, 0).await
    }
}
