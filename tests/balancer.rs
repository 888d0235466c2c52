//! A server behind HAProxy, as `deploy/` has it: whose connections these are, and what a drain is
//! for those who write meanwhile. And whether the files of `deploy/` for HAProxy, nginx and systemd are
//! good, as the programs that read them see it; `control/src/settings.rs` looks at the configuration. The
//! files for Docker and Kubernetes are not looked at here.
//!
//! Needs what `tests/balancers` installs. The binary is `HOLDFAST_BIN`, else
//! `target/release/holdfast`.

#[cfg(test)]
#[path = "support/server.rs"]
mod server;

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::unix::net::UnixDatagram;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use nfs3_types::nfs3::{READ3args, WRITE3args, nfs_fh3, stable_how};
    use nfs3_types::xdr_codec::Opaque;
    use rustix::process::{Pid, Signal, kill_process};
    use serde_json::Value;

    use crate::server::{Mount, Server, binary, create, mount_from, read, write};

    /// Where the tests' client is; HAProxy is at 127.0.0.1.
    const CLIENT: &str = "127.0.0.2";

    /// What a write of the drain test has, in bytes.
    const BLOCK_BYTES: u64 = 4096;

    /// Looks at something that comes by itself, each [`LOOK_PAUSE`] apart.
    const LOOKS_MAX: usize = 1200;
    const LOOK_PAUSE: Duration = Duration::from_millis(50);

    fn deploy(file: &str) -> PathBuf {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
        tests.parent().unwrap().join("deploy").join(file)
    }

    fn tool(name: &str) -> Command {
        let mut command = Command::new(name);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        command
    }

    async fn await_that(what: &str, mut condition: impl FnMut() -> bool) {
        for _ in 0..LOOKS_MAX {
            if condition() {
                return;
            }
            pause().await;
        }
        panic!("waited in vain: {what}");
    }

    async fn pause() {
        base::Clock::sleep(&base::SystemClock::new(), LOOK_PAUSE).await;
    }

    /// An address of this machine that nobody uses now.
    fn free() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    }

    struct Balancer {
        child: Child,
        address: String,
        log: PathBuf,
    }

    impl Drop for Balancer {
        fn drop(&mut self) {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }

    impl Balancer {
        /// HAProxy with the configuration of `deploy/`, but for addresses.
        fn start(dir: &Path, server: &Server) -> Self {
            let address = free().to_string();
            let (_, api) = server.text("api_address").split_once(':').unwrap();
            let mut text = std::fs::read_to_string(deploy("haproxy/holdfast.cfg")).unwrap();
            for (from, to) in [
                ("bind :2049", format!("bind {address}")),
                ("10.0.0.11:2049", server.text("nfs_address").to_owned()),
                ("connect port 12080", format!("connect port {api}")),
            ] {
                assert_eq!(text.matches(from).count(), 1, "{from}");
                text = text.replace(from, &to);
            }
            let config = dir.join("haproxy.cfg");
            std::fs::write(&config, text).unwrap();
            let log = dir.join("haproxy.log");
            let child = tool("haproxy")
                .arg("-db")
                .arg("-f")
                .arg(&config)
                .stdout(Stdio::null())
                .stderr(File::create(&log).unwrap())
                .spawn()
                .expect("install it: tests/balancers");
            Self {
                child,
                address,
                log,
            }
        }

        async fn mount(&self, path: &str) -> Mount {
            for _ in 0..LOOKS_MAX {
                if let Ok(mount) = mount_from(CLIENT, &self.address, path).await {
                    return mount;
                }
                pause().await;
            }
            panic!("cannot mount: {}", text(&self.log));
        }
    }

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    /// A server that takes HAProxy for a balancer, and logs to `log`.
    fn start(dir: &Path, nfs: &str, api: &str, log: &Path) -> Server {
        Server::start_with(&dir.join("data"), nfs, api, |command| {
            command.args(["--log", "info", "--proxy-from", "127.0.0.1,192.0.2.0/24"]);
            command.args(["--drain-delay", "3s"]);
            command.stderr(File::options().append(true).create(true).open(log).unwrap());
        })
    }

    /// One number of `/metrics`.
    fn metric(server: &Server, name: &str) -> u64 {
        let mut stream = TcpStream::connect(server.text("api_address")).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let line = answer.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().parse().unwrap()
    }

    #[tokio::test]
    async fn the_clients_address_is_known_and_nobody_else_can_say_one() {
        let root = tempfile::tempdir().unwrap();
        let log = root.path().join("server.log");
        let server = start(root.path(), "127.0.0.1:0", "127.0.0.1:0", &log);
        let balancer = Balancer::start(root.path(), &server);
        let mut mount = balancer.mount(server.text("mount_path")).await;
        let file = create(&mut mount, b"f").await.unwrap();
        let data: Vec<u8> = (0..300_000_u32).map(|at| at.to_le_bytes()[1]).collect();
        write(&mut mount, &file, &data).await;
        assert_eq!(read(&mut mount, &file).await, data);
        let mounted = text(&log);
        let mounted = mounted.lines().find(|line| line.contains("mounted"));
        let mounted = mounted.unwrap();
        assert!(mounted.contains("peer=127.0.0.2:"), "{mounted}");
        assert!(mounted.contains("balancer=127.0.0.1:"), "{mounted}");

        // HAProxy's own connections are good: it looks again and again, and none is refused.
        let accepted = metric(&server, "holdfast_transport_accepted_total");
        await_that("checks come", || {
            metric(&server, "holdfast_transport_accepted_total") > accepted + 3
        })
        .await;
        assert!(
            !text(&balancer.log).contains("DOWN"),
            "{}",
            text(&balancer.log)
        );
        assert_eq!(metric(&server, "holdfast_transport_ended_proxy_total"), 0);
        assert!(metric(&server, "holdfast_transport_proxied_total") >= 1);

        // From HAProxy's address, without a header; and from elsewhere, with and without one.
        let (nfs, path) = (server.text("nfs_address"), server.text("mount_path"));
        assert!(mount_from("127.0.0.1", nfs, path).await.is_err());
        await_that("it is told", || {
            text(&log).contains("does not begin with a PROXY header; peers in proxy_from")
        })
        .await;
        let header =
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x01\x02\x03\x04\x7f\0\0\x01\0\x01\x08\x01";
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{CLIENT}:0").parse().unwrap()).unwrap();
        let stream = socket.connect(nfs.parse().unwrap()).await.unwrap();
        let mut stream = stream.into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.write_all(header).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
        await_that("it is told", || text(&log).contains("not in proxy_from")).await;
        assert!(!text(&log).contains("1.2.3.4"));
        assert!(mount_from(CLIENT, nfs, path).await.is_ok());
    }

    /// Writes block after block, each durable, and connects again when a connection ends, as the
    /// kernel does. Any answer that is an error is a failure.
    struct Writer {
        balancer: Balancer,
        path: String,
        file: nfs_fh3,
        written: AtomicU64,
        reconnected: AtomicU64,
        is_over: AtomicBool,
    }

    fn block(at: u64) -> Vec<u8> {
        let size = usize::try_from(BLOCK_BYTES).unwrap();
        (at + 1).to_le_bytes().repeat(size / 8)
    }

    impl Writer {
        async fn run(self: Arc<Self>) {
            let mut mount = self.balancer.mount(&self.path).await;
            while !self.is_over.load(Ordering::SeqCst) {
                let at = self.written.load(Ordering::SeqCst);
                let data = block(at);
                let args = WRITE3args {
                    file: self.file.clone(),
                    offset: at * BLOCK_BYTES,
                    count: u32::try_from(BLOCK_BYTES).unwrap(),
                    stable: stable_how::FILE_SYNC,
                    data: Opaque::borrowed(&data),
                };
                match mount.write(&args).await {
                    Ok(answer) => {
                        answer.unwrap();
                        self.written.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(_) => {
                        self.reconnected.fetch_add(1, Ordering::SeqCst);
                        mount = self.balancer.mount(&self.path).await;
                    }
                }
            }
        }

        async fn await_further(&self, number: u64) {
            let until = self.written.load(Ordering::SeqCst) + number;
            await_that("writes go on", || {
                self.written.load(Ordering::SeqCst) >= until
            })
            .await;
        }
    }

    fn drain(data: &Path, more: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(["--json", "drain", "--data-dir"]).arg(data);
        command.args(more).env_remove("HOLDFAST_API");
        command
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_drain_is_a_pause_for_those_who_write() {
        let root = tempfile::tempdir().unwrap();
        let log = root.path().join("server.log");
        let mut server = start(root.path(), "127.0.0.1:0", "127.0.0.1:0", &log);
        let balancer = Balancer::start(root.path(), &server);
        let path = server.text("mount_path").to_owned();
        let file = create(&mut balancer.mount(&path).await, b"f")
            .await
            .unwrap();
        let writer = Arc::new(Writer {
            balancer,
            path: path.clone(),
            file: file.clone(),
            written: AtomicU64::new(0),
            reconnected: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let tasks = base::Tasks::new();
        tasks.spawn(Arc::clone(&writer).run());
        writer.await_further(20).await;

        // Not ready at once, and serving all the same.
        let data = root.path().join("data");
        let asked = drain(&data, &[]).output().unwrap();
        assert!(asked.status.success(), "{asked:?}");
        let told: Value = serde_json::from_slice(&asked.stdout).unwrap();
        assert_eq!(told["asked"]["state"], "draining");
        assert_eq!(told["asked"]["delay_ms"], 3000);
        assert_eq!(server.call("GET", "/readyz", &Value::Null).0, 503);
        assert_eq!(server.call("GET", "/livez", &Value::Null).0, 200);
        writer.await_further(5).await;
        assert_eq!(writer.reconnected.load(Ordering::SeqCst), 0);
        let (status, now) = server.call("GET", "/v1/drain", &Value::Null);
        assert_eq!((status, now["state"].as_str()), (200, Some("draining")));
        // Whoever asked may send SIGTERM, too: it changes nothing.
        let pid = Pid::from_child(&server.child);
        kill_process(pid, Signal::TERM).unwrap();
        let waited = tokio::task::spawn_blocking(move || drain(&data, &["--wait"]).output());
        let waited = waited.await.unwrap().unwrap();
        assert!(waited.status.success(), "{waited:?}");
        let told: Value = serde_json::from_slice(&waited.stdout).unwrap();
        assert_eq!(told["ended"], true);
        let status = server.child.try_wait().unwrap();
        assert_eq!(
            status.and_then(|it| it.code()),
            Some(0),
            "it has ended, and well"
        );

        let (nfs, api) = (server.text("nfs_address"), server.text("api_address"));
        let again = start(root.path(), nfs, api, &log);
        writer.await_further(20).await;
        writer.is_over.store(true, Ordering::SeqCst);
        tasks.join().await;
        assert!(writer.reconnected.load(Ordering::SeqCst) >= 1);
        let written = writer.written.load(Ordering::SeqCst);
        let mut mount = mount_from(CLIENT, again.text("nfs_address"), &path)
            .await
            .unwrap();
        for at in 0..written {
            let args = READ3args {
                file: file.clone(),
                offset: at * BLOCK_BYTES,
                count: u32::try_from(BLOCK_BYTES).unwrap(),
            };
            let answer = mount.read(&args).await.unwrap().unwrap();
            assert_eq!(*answer.data, block(at), "block {at} of {written}");
        }
        let nobody = drain(&root.path().join("nothing"), &["--wait"]).output();
        assert_eq!(nobody.unwrap().status.code(), Some(6));
    }

    #[test]
    fn the_service_manager_is_told_when_it_serves_and_when_it_ends() {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("notify");
        let manager = UnixDatagram::bind(&socket).unwrap();
        let patience = Duration::from_secs(60);
        manager.set_read_timeout(Some(patience)).unwrap();
        let heard = || {
            let mut bytes = [0; 256];
            let count = manager.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..count].to_vec()).unwrap()
        };
        let data = root.path().join("data");
        let mut server = Server::start_with(&data, "127.0.0.1:0", "127.0.0.1:0", |command| {
            command
                .args(["--log", "warn"])
                .env("NOTIFY_SOCKET", &socket);
        });
        assert_eq!(heard().trim(), "READY=1");
        kill_process(Pid::from_child(&server.child), Signal::TERM).unwrap();
        assert_eq!(heard().trim(), "STOPPING=1");
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
    }

    /// Places of the configuration that a server writes to are those that the unit makes.
    #[test]
    fn the_unit_may_write_where_the_configuration_says() {
        let unit = text(&deploy("systemd/holdfast.service"));
        let config = text(&deploy("config/holdfast.toml"));
        let told = config.split('"').skip(1).step_by(2);
        let places: Vec<_> = told.filter(|told| told.starts_with("/var/")).collect();
        assert!(places.len() > 2, "{places:?}");
        for place in places {
            let line = match place.split('/').take(4).collect::<Vec<_>>()[..] {
                ["", "var", "lib", "holdfast"] => "StateDirectory=holdfast",
                ["", "var", "log", "holdfast"] => "LogsDirectory=holdfast",
                _ => panic!("{place}: how does the unit make it?"),
            };
            assert!(unit.lines().any(|is| is == line), "{place}");
        }
    }

    #[test]
    fn the_files_of_deploy_are_good() {
        let check = |command: &mut Command| {
            let done = command.output().expect("install it: tests/balancers");
            let told = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{command:?}: {told}");
            told.into_owned()
        };
        for config in ["haproxy/holdfast.cfg", "haproxy/fleet.cfg"] {
            let told = check(tool("haproxy").arg("-c").arg("-f").arg(deploy(config)));
            assert!(!told.contains("WARNING"), "{config}: {told}");
        }
        check(
            tool("nginx")
                .arg("-t")
                .arg("-c")
                .arg(deploy("nginx/holdfast.conf")),
        );
        let unit = text(&deploy("systemd/holdfast.service"));
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("holdfast.service");
        let binary = binary().canonicalize().unwrap();
        let unit = unit.replace("/usr/bin/holdfast", binary.to_str().unwrap());
        std::fs::write(&path, unit).unwrap();
        check(tool("systemd-analyze").arg("verify").arg(&path));
    }

    /// Images and the fleet to try set what there is to be set. (Nothing here can start them.)
    #[test]
    fn examples_set_settings_that_exist() {
        let help = Command::new(binary()).args(["serve", "--help"]).output();
        let help = String::from_utf8(help.unwrap().stdout).unwrap();
        for file in [
            "docker/Dockerfile",
            "docker/Dockerfile.fdb",
            "compose/compose.yaml",
            "kubernetes/holdfast.yaml",
        ] {
            let text = text(&deploy(file));
            let is_of_name = |letter: char| letter.is_ascii_uppercase() || letter == '_';
            for (at, _) in text.match_indices("HOLDFAST_") {
                let name = text[at..].split(|letter| !is_of_name(letter)).next();
                let set = format!("[env: {}=", name.unwrap());
                assert!(help.contains(&set), "{file}: {set}");
            }
        }
    }
}
