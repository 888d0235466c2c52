//! The built binary as a process, and an independent NFS client of it.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)] // Shared by several test binaries.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nfs3_client::{ConnectError, MountError, Nfs3Connection, Nfs3ConnectionBuilder};
use nfs3_types::nfs3::{
    CREATE3args, Nfs3Option, Nfs3Result, READ3args, WRITE3args, createhow3, diropargs3, filename3,
    nfs_fh3, nfsstat3, sattr3, stable_how,
};
use nfs3_types::xdr_codec::Opaque;
use serde_json::Value;

use socket::{Socket, SocketsFrom};

#[path = "socket.rs"]
mod socket;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

pub type Mount = Nfs3Connection<Socket>;

pub fn binary() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/holdfast");
    let binary = std::env::var_os("HOLDFAST_BIN").map_or(built, PathBuf::from);
    assert!(
        binary.exists(),
        "build it first: cargo build --release ({})",
        binary.display()
    );
    binary
}

pub struct Server {
    pub child: Child,
    pub ready: Value,
}

/// Where a server's API is, and the right to use it.
#[derive(Clone, Debug)]
pub struct Api {
    address: String,
    token: String,
}

impl Api {
    /// Calls the API; gives status and answer, or why there is none.
    pub fn call(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<(u16, Value), ureq::Error> {
        self.send(method, path, serde_json::to_vec(body).unwrap())
    }

    /// The same, with any body.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(u16, Value), ureq::Error> {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json")
            .body(body)?;
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE));
        let agent: ureq::Agent = config.build().into();
        let mut response = agent.run(request)?;
        let text = response.body_mut().read_to_string()?;
        let answer = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok((response.status().as_u16(), answer))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Has ended already in most tests.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Server {
    /// Starts it; `nfs` is the NFS address, port 0 for any.
    pub fn start(dir: &Path, nfs: &str) -> Self {
        Self::start_with(dir, nfs, "127.0.0.1:0", |command| {
            command.args(["--log", "warn"]);
        })
    }

    /// The same, with the API at `api` and what `more` adds.
    pub fn start_with(dir: &Path, nfs: &str, api: &str, more: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(binary());
        for (name, _) in std::env::vars() {
            if name.starts_with("HOLDFAST_") {
                command.env_remove(name);
            }
        }
        command.args(["up", "--json", "--data-dir"]).arg(dir).args([
            "--listen",
            nfs,
            "--api-listen",
            api,
        ]);
        more(&mut command);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let ready = serde_json::from_str(&line).unwrap();
        Self { child, ready }
    }

    pub fn text(&self, field: &str) -> &str {
        self.ready[field].as_str().unwrap()
    }

    /// Calls the API; gives status and answer.
    pub fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        self.api().call(method, path, body).unwrap()
    }

    pub fn api(&self) -> Api {
        Api {
            address: self.text("api_address").to_owned(),
            token: self.text("api_token").to_owned(),
        }
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Makes something; gives its description.
    pub fn make(&self, path: &str, body: &Value) -> Value {
        let (status, made) = self.call("POST", path, body);
        assert_eq!(status, 201, "{path}: {made}");
        made
    }

    pub async fn mount(&self, path: &str) -> Result<Mount, ConnectError> {
        mount(self.text("nfs_address"), path).await
    }

    /// Why `path` cannot be mounted.
    pub async fn refusal(&self, path: &str) -> String {
        match self.mount(path).await {
            Err(ConnectError::Mount(MountError::Denied(why))) => format!("{why:?}"),
            Err(other) => panic!("{path}: {other}"),
            Ok(_) => panic!("{path} is mounted"),
        }
    }
}

/// Mounts `path` of the server at `address`.
pub async fn mount(address: &str, path: &str) -> Result<Mount, ConnectError> {
    mount_from("0.0.0.0", address, path).await
}

/// The same, from an address of this machine.
pub async fn mount_from(from: &str, address: &str, path: &str) -> Result<Mount, ConnectError> {
    let (host, port) = address.split_once(':').unwrap();
    let port = port.parse().unwrap();
    let sockets = SocketsFrom(from.parse().unwrap());
    Nfs3ConnectionBuilder::new(sockets, host, path)
        .connect_from_privileged_port(false)
        .mount_port(port)
        .nfs3_port(port)
        .mount()
        .await
}

pub fn path_of(made: &Value) -> &str {
    made["mount_path"].as_str().unwrap()
}

pub async fn create(mount: &mut Mount, name: &[u8]) -> Result<nfs_fh3, nfsstat3> {
    let args = CREATE3args {
        where_: diropargs3 {
            dir: mount.root_nfs_fh3(),
            name: filename3(Opaque::borrowed(name)),
        },
        how: createhow3::GUARDED(sattr3::default()),
    };
    match mount.create(&args).await.unwrap() {
        Nfs3Result::Ok(made) => match made.obj {
            Nfs3Option::Some(handle) => Ok(handle),
            Nfs3Option::None => panic!("no handle"),
        },
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

pub async fn write(mount: &mut Mount, file: &nfs_fh3, data: &[u8]) {
    let args = WRITE3args {
        file: file.clone(),
        offset: 0,
        count: u32::try_from(data.len()).unwrap(),
        stable: stable_how::FILE_SYNC,
        data: Opaque::borrowed(data),
    };
    let done = mount.write(&args).await.unwrap().unwrap();
    assert_eq!(done.committed, stable_how::FILE_SYNC);
}

pub async fn read(mount: &mut Mount, file: &nfs_fh3) -> Vec<u8> {
    let args = READ3args {
        file: file.clone(),
        offset: 0,
        count: 1 << 20,
    };
    mount.read(&args).await.unwrap().unwrap().data.to_vec()
}
