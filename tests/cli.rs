//! The binary from end to end: its HTTP API on one side, an independent NFS client on the other.
//!
//! The binary is `HOLDFAST_BIN`, else `target/release/holdfast`. What its commands say of bad input
//! is tested beside the crate `control`.

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use nfs3_client::tokio::{TokioConnector, TokioIo};
    use nfs3_client::{ConnectError, MountError, Nfs3Connection, Nfs3ConnectionBuilder};
    use nfs3_types::nfs3::{
        CREATE3args, GETATTR3args, Nfs3Option, Nfs3Result, READ3args, WRITE3args, createhow3,
        diropargs3, filename3, nfs_fh3, nfsstat3, sattr3, stable_how,
    };
    use nfs3_types::xdr_codec::Opaque;
    use serde_json::{Value, json};
    use tokio::net::TcpStream;

    /// Looks at something that comes by itself, each [`LOOK_PAUSE`] apart.
    const LOOKS_MAX: usize = 300;
    const LOOK_PAUSE: Duration = Duration::from_millis(100);

    type Mount = Nfs3Connection<TokioIo<TcpStream>>;

    fn binary() -> PathBuf {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/holdfast");
        let binary = std::env::var_os("HOLDFAST_BIN").map_or(built, PathBuf::from);
        assert!(
            binary.exists(),
            "build it first: cargo build --release ({})",
            binary.display()
        );
        binary
    }

    struct Server {
        child: Child,
        ready: Value,
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
        fn start(dir: &Path, nfs: &str) -> Self {
            let mut command = Command::new(binary());
            for (name, _) in std::env::vars() {
                if name.starts_with("HOLDFAST_") {
                    command.env_remove(name);
                }
            }
            let mut child = command
                .args(["up", "--json", "--log", "warn", "--data-dir"])
                .arg(dir)
                .args(["--listen", nfs, "--api-listen", "127.0.0.1:0"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap())
                .read_line(&mut line)
                .unwrap();
            let ready = serde_json::from_str(&line).unwrap();
            Self { child, ready }
        }

        fn text(&self, field: &str) -> &str {
            self.ready[field].as_str().unwrap()
        }

        /// Calls the API; gives status and answer.
        fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
            let request = ureq::http::Request::builder()
                .method(method)
                .uri(format!("http://{}{path}", self.text("api_address")))
                .header(
                    "authorization",
                    format!("Bearer {}", self.text("api_token")),
                )
                .header("content-type", "application/json")
                .body(serde_json::to_vec(body).unwrap())
                .unwrap();
            let config = ureq::Agent::config_builder().http_status_as_error(false);
            let agent: ureq::Agent = config.build().into();
            let mut response = agent.run(request).unwrap();
            let text = response.body_mut().read_to_string().unwrap();
            let answer = serde_json::from_str(&text).unwrap_or(Value::Null);
            (response.status().as_u16(), answer)
        }

        /// Makes something; gives its description.
        fn make(&self, path: &str, body: &Value) -> Value {
            let (status, made) = self.call("POST", path, body);
            assert_eq!(status, 201, "{path}: {made}");
            made
        }

        async fn mount(&self, path: &str) -> Result<Mount, ConnectError> {
            let (host, port) = self.text("nfs_address").split_once(':').unwrap();
            let port = port.parse().unwrap();
            Nfs3ConnectionBuilder::new(TokioConnector, host, path)
                .connect_from_privileged_port(false)
                .mount_port(port)
                .nfs3_port(port)
                .mount()
                .await
        }

        /// Why `path` cannot be mounted.
        async fn refusal(&self, path: &str) -> String {
            match self.mount(path).await {
                Err(ConnectError::Mount(MountError::Denied(why))) => format!("{why:?}"),
                Err(other) => panic!("{path}: {other}"),
                Ok(_) => panic!("{path} is mounted"),
            }
        }
    }

    fn path_of(made: &Value) -> &str {
        made["mount_path"].as_str().unwrap()
    }

    async fn create(mount: &mut Mount, name: &[u8]) -> Result<nfs_fh3, nfsstat3> {
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

    async fn write(mount: &mut Mount, file: &nfs_fh3, data: &[u8]) {
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

    async fn read(mount: &mut Mount, file: &nfs_fh3) -> Vec<u8> {
        let args = READ3args {
            file: file.clone(),
            offset: 0,
            count: 1 << 20,
        };
        mount.read(&args).await.unwrap().unwrap().data.to_vec()
    }

    /// What a GETATTR of the root says, `None` if it is well.
    async fn root_status(mount: &mut Mount) -> Option<nfsstat3> {
        let object = mount.root_nfs_fh3();
        match mount.getattr(&GETATTR3args { object }).await.unwrap() {
            Nfs3Result::Ok(_) => None,
            Nfs3Result::Err((status, _)) => Some(status),
        }
    }

    #[tokio::test]
    async fn what_was_stable_is_there_after_a_kill_under_the_same_handle() {
        let root = tempfile::tempdir().unwrap();
        let mut server = Server::start(root.path(), "127.0.0.1:0");
        let mut mount = server.mount(server.text("mount_path")).await.unwrap();
        let small = create(&mut mount, b"small").await.unwrap();
        write(&mut mount, &small, b"hello").await;
        let large: Vec<u8> = (0..700_000_u32).map(|at| at.to_le_bytes()[1]).collect();
        let file = create(&mut mount, b"large").await.unwrap();
        write(&mut mount, &file, &large).await;
        server.child.kill().unwrap();
        server.child.wait().unwrap();

        // The clients' mounts name the port.
        let again = Server::start(root.path(), server.text("nfs_address"));
        for field in ["mount_path", "mount_command", "mount_options", "session"] {
            assert_eq!(again.text(field), server.text(field));
        }
        let mut mount = again.mount(again.text("mount_path")).await.unwrap();
        assert_eq!(read(&mut mount, &small).await, b"hello");
        assert_eq!(read(&mut mount, &file).await, large);
        assert_eq!(
            create(&mut mount, b"small").await.unwrap_err(),
            nfsstat3::NFS3ERR_EXIST
        );
    }

    #[tokio::test]
    async fn a_closed_session_is_stale_and_cannot_be_mounted() {
        let root = tempfile::tempdir().unwrap();
        let server = Server::start(root.path(), "127.0.0.1:0");
        let opened = server.make("/v1/sessions", &json!({ "workspace": "default" }));
        let mut mount = server.mount(path_of(&opened)).await.unwrap();
        let mut other = server.mount(server.text("mount_path")).await.unwrap();
        create(&mut mount, b"f").await.unwrap();
        let path = format!("/v1/sessions/{}", opened["id"].as_str().unwrap());
        assert_eq!(server.call("DELETE", &path, &Value::Null).0, 204);
        let stale = Some(nfsstat3::NFS3ERR_STALE);
        assert_eq!(root_status(&mut mount).await, stale);
        assert_eq!(
            create(&mut mount, b"g").await.unwrap_err(),
            nfsstat3::NFS3ERR_STALE
        );
        assert_eq!(server.refusal(path_of(&opened)).await, "MNT3ERR_NOENT");
        assert_eq!(server.refusal("/").await, "MNT3ERR_NOENT");
        assert_eq!(server.refusal("/nonsense").await, "MNT3ERR_NOENT");
        // Sessions of one workspace know nothing of each other.
        assert_eq!(root_status(&mut other).await, None);
        create(&mut other, b"f").await.unwrap();
    }

    #[tokio::test]
    async fn a_session_ends_by_itself_also_where_it_is_mounted() {
        let root = tempfile::tempdir().unwrap();
        let server = Server::start(root.path(), "127.0.0.1:0");
        let asked = json!({ "workspace": "default", "ttl_seconds": 2 });
        let opened = server.make("/v1/sessions", &asked);
        let mut mount = server.mount(path_of(&opened)).await.unwrap();
        assert_eq!(root_status(&mut mount).await, None);
        let mut ended = None;
        for _ in 0..LOOKS_MAX {
            ended = root_status(&mut mount).await;
            if ended.is_some() {
                break;
            }
            std::thread::park_timeout(LOOK_PAUSE);
        }
        assert_eq!(ended, Some(nfsstat3::NFS3ERR_STALE));
        assert_eq!(server.refusal(path_of(&opened)).await, "MNT3ERR_NOENT");
    }

    #[tokio::test]
    async fn handles_outlive_one_rotation_of_keys() {
        let root = tempfile::tempdir().unwrap();
        let server = Server::start(root.path(), "127.0.0.1:0");
        let (address, path) = (
            server.text("nfs_address").to_owned(),
            path_of(&server.ready),
        );
        let path = path.to_owned();
        let mut mount = server.mount(&path).await.unwrap();
        let old = create(&mut mount, b"f").await.unwrap();
        let rotate = || {
            let mut command = Command::new(binary());
            let args = ["--json", "keys", "rotate", "--data-dir"];
            command.args(args).arg(root.path()).output().unwrap()
        };
        // Not under a running server, which would go on with the old ones.
        assert_eq!(rotate().status.code(), Some(3));
        let (root_handle, mut server) = (mount.root_nfs_fh3(), server);
        for stale in [None, Some(nfsstat3::NFS3ERR_STALE)] {
            server.child.kill().unwrap();
            server.child.wait().unwrap();
            let rotated = rotate();
            assert!(rotated.status.success(), "{rotated:?}");
            server = Server::start(root.path(), &address);
            let mut mount = server.mount(&path).await.unwrap();
            for handle in [&root_handle, &old] {
                let object = handle.clone();
                let found = match mount.getattr(&GETATTR3args { object }).await.unwrap() {
                    Nfs3Result::Ok(_) => None,
                    Nfs3Result::Err((status, _)) => Some(status),
                };
                assert_eq!(found, stale);
            }
            // New mounts have new handles.
            assert_ne!(mount.root_nfs_fh3(), root_handle);
            assert_eq!(root_status(&mut mount).await, None);
        }
    }

    #[tokio::test]
    async fn tickets_grant_what_they_say() {
        let root = tempfile::tempdir().unwrap();
        let server = Server::start(root.path(), "127.0.0.1:0");
        let tickets = format!("/v1/sessions/{}/tickets", server.text("session"));
        let mut mount = server.mount(server.text("mount_path")).await.unwrap();
        create(&mut mount, b"f").await.unwrap();

        let reader = server.make(&tickets, &json!({ "read_only": true }));
        assert!(reader["mount_options"].as_str().unwrap().starts_with("ro,"));
        let mut reading = server.mount(path_of(&reader)).await.unwrap();
        assert_eq!(root_status(&mut reading).await, None);
        assert_eq!(
            create(&mut reading, b"g").await.unwrap_err(),
            nfsstat3::NFS3ERR_ROFS
        );

        let once = server.make(&tickets, &json!({ "single_use": true }));
        server.mount(path_of(&once)).await.unwrap();
        assert_eq!(server.refusal(path_of(&once)).await, "MNT3ERR_NOENT");

        let short = server.make(&tickets, &json!({ "ttl_seconds": 1 }));
        std::thread::park_timeout(Duration::from_millis(1_100));
        assert_eq!(server.refusal(path_of(&short)).await, "MNT3ERR_ACCES");

        let file = server.make(&tickets, &json!({ "directory": "f" }));
        assert_eq!(server.refusal(path_of(&file)).await, "MNT3ERR_NOTDIR");
    }
}
