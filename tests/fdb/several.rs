//! Several servers on one store, whole: calls passed on, a drain, a kill, and what the API tells of them.
//! The servers are this test's program, started anew in that role, as it is linked to the client library
//! already.

#[cfg(test)]
mod emulator;

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, TcpStream};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use nfs3_client::Nfs3Connection;
    use nfs3_client::Nfs3ConnectionBuilder;
    use nfs3_client::tokio::{TokioConnector, TokioIo};
    use nfs3_types::nfs3::{
        CREATE3args, LOOKUP3args, Nfs3Option, READ3args, WRITE3args, createhow3, diropargs3,
        filename3, nfs_fh3, sattr3, stable_how,
    };
    use nfs3_types::xdr_codec::Opaque;
    use serde_json::Value;

    use super::emulator::Emulator;

    /// Says that this process is to be `holdfast`; its arguments follow, one a line.
    const ROLE: &str = "HOLDFAST_FDB_TEST_ARGS";

    /// Looks at something that is to become true soon.
    const LOOKS_MAX: u32 = 2000;

    type Connection = Nfs3Connection<TokioIo<tokio::net::TcpStream>>;

    /// `holdfast` with these arguments.
    fn holdfast(args: &[&str]) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "tests::several",
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, args.join("\n"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end: exit code, standard output and error.
    fn run(args: &[&str]) -> (i32, String, String) {
        let output = holdfast(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (
            output.status.code().unwrap(),
            text(&output.stdout),
            text(&output.stderr),
        )
    }

    /// What a line of JSON in a program's output says; the test's own lines come before it.
    fn json(out: &str) -> Value {
        let mut lines = out.lines().filter_map(|line| {
            let at = line.find(['{', '['])?;
            serde_json::from_str(&line[at..]).ok()
        });
        lines.next_back().expect(out)
    }

    fn arguments<'a>(command: &'a str, dir: &'a Path, place: &'a str) -> Vec<&'a str> {
        vec![
            "--json",
            command,
            "--data-dir",
            dir.to_str().unwrap(),
            "--metadata",
            place,
            "--chunks",
            "kv",
            "--fdb-timeout",
            "2s",
            "--api-listen",
            "127.0.0.1:0",
        ]
    }

    /// A server that runs. Killed when it is dropped.
    struct Server {
        child: Child,
        ready: Value,
        dir: PathBuf,
    }

    impl Server {
        fn start(command: &str, dir: PathBuf, place: &str) -> Self {
            let mut args = arguments(command, &dir, place);
            args.extend(["--listen", "127.0.0.1:0"]);
            let child = holdfast(&args).stderr(Stdio::inherit()).spawn();
            let mut child = child.unwrap();
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
                dir,
            }
        }

        fn text(&self, field: &str) -> String {
            self.ready[field].as_str().unwrap().to_owned()
        }

        /// What a command that asks this server prints as JSON.
        fn command(&self, args: &[&str]) -> Value {
            let dir = self.dir.to_str().unwrap();
            let all = [&["--json"], args, &["--data-dir", dir]].concat();
            let (code, out, error) = run(&all);
            assert_eq!(code, 0, "{args:?}: {error}");
            json(&out)
        }

        fn metric(&self, name: &str) -> f64 {
            let mut stream = TcpStream::connect(self.text("api_address")).unwrap();
            let patience = Some(Duration::from_secs(30));
            stream.set_read_timeout(patience).unwrap();
            let head = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let of = format!("{name} ");
            let line = answer.lines().find_map(|line| line.strip_prefix(&of));
            line.expect(name).trim().parse().unwrap()
        }

        /// Mounts with an address of this server's.
        async fn mount(&self, path: &str) -> Connection {
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

    /// Waits until something is true.
    fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
        for _ in 0..LOOKS_MAX {
            if is_so() {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        panic!("never: {what}");
    }

    fn name<'a>(dir: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
        diropargs3 {
            dir: dir.clone(),
            name: filename3(Opaque::borrowed(name.as_bytes())),
        }
    }

    async fn write_file(connection: &mut Connection, file: &str, content: &[u8]) {
        let root = connection.root_nfs_fh3();
        let create = CREATE3args {
            where_: name(&root, file),
            how: createhow3::UNCHECKED(sattr3::default()),
        };
        let made = connection.create(&create).await.unwrap().unwrap();
        let Nfs3Option::Some(handle) = made.obj else {
            unreachable!("no handle")
        };
        let write = WRITE3args {
            file: handle,
            offset: 0,
            count: u32::try_from(content.len()).unwrap(),
            stable: stable_how::FILE_SYNC,
            data: Opaque::borrowed(content),
        };
        connection.write(&write).await.unwrap().unwrap();
    }

    async fn read_file(connection: &mut Connection, file: &str) -> Vec<u8> {
        let root = connection.root_nfs_fh3();
        let lookup = LOOKUP3args {
            what: name(&root, file),
        };
        let found = connection.lookup(&lookup).await.unwrap().unwrap();
        let read = READ3args {
            file: found.object,
            offset: 0,
            count: 1 << 20,
        };
        let read = connection.read(&read).await.unwrap().unwrap();
        read.data.as_ref().to_vec()
    }

    /// Addresses that tell others nothing, and peers where there are none.
    fn refusals(place: &str) {
        for (chunks, more, told) in [
            ("kv", ["--listen", "0.0.0.0:0"], "set `advertise` to it"),
            (
                "kv",
                ["--peer-listen", "0.0.0.0:0"],
                "set `advertise` to it",
            ),
            ("kv", ["--lease", "100ms"], "give 500ms to 60s"),
            ("local", ["--peer-listen", "127.0.0.1:0"], "share both"),
        ] {
            let start = ["serve", "--check-config", "--metadata", place];
            let args = [&start[..], &["--chunks", chunks], &more].concat();
            let (code, _, error) = run(&args);
            assert_eq!(code, 2, "{more:?}: {error}");
            assert!(error.contains(told), "{more:?}: {error}");
        }
    }

    /// Calls and commands that come to a server for a session that another one has.
    async fn passed_on(one: &Server, two: &Server) {
        let path = one.text("mount_path");
        let mut first = one.mount(&path).await;
        write_file(&mut first, "file", b"one").await;
        let mut second = two.mount(&path).await;
        assert_eq!(read_file(&mut second, "file").await, b"one");
        write_file(&mut second, "other", b"two").await;
        assert_eq!(read_file(&mut first, "other").await, b"two");
        assert!(two.metric("holdfast_gateway_passed_on_total") > 0.0);
        assert!((one.metric("holdfast_gateway_others") - 1.0).abs() < 0.5);
        assert!((two.metric("holdfast_gateway_lease") - 1.0).abs() < 0.5);
        // The API, too: what it does is done where the session is.
        let session = one.text("session");
        let published = two.command(&["session", "publish", &session, "-m", "both"]);
        assert!(published["head"].is_string() || published["commit"].is_object());
        let fork = two.command(&["session", "fork", &session]);
        let shown = two.command(&["session", "show", &session]);
        for told in [&fork, &shown] {
            assert_eq!(told["gateway"], one.text("nfs_address"), "{told}");
        }
        assert!((two.metric("holdfast_gateway_sessions")).abs() < 0.5);
        // Its mount line is of the server that has it.
        let port = one.text("nfs_address");
        let port = port.rsplit_once(':').unwrap().1;
        let line = two.command(&["mount", "/mnt", "--session", &session, "--print-only"]);
        assert!(
            line.to_string().contains(&format!("port={port},")),
            "{line}"
        );
        let fork = fork["id"].as_str().unwrap();
        let closed = two.command(&["session", "close", fork]);
        assert_eq!(closed["closed"], fork);
    }

    fn states(server: &Server) -> Vec<(bool, String, bool)> {
        let listed = server.command(&["gateways"]);
        let all = listed.as_array().unwrap().iter();
        all.map(|one| {
            let state = one["state"].as_str().unwrap().to_owned();
            (one["this"] == true, state, one["alive"] == true)
        })
        .collect()
    }

    /// A server that drains has its sessions served by another before it ends.
    async fn drained(one: Server, two: &Server) {
        let path = one.text("mount_path");
        let dir = one.dir.to_str().unwrap();
        let mut waiting = holdfast(&["--json", "drain", "--wait", "--data-dir", dir]);
        let waiting = waiting.spawn().unwrap();
        let mut connection = two.mount(&path).await;
        assert_eq!(read_file(&mut connection, "other").await, b"two");
        let ended = waiting.wait_with_output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        let asked = json(&String::from_utf8(ended.stdout).unwrap());
        assert!(asked["asked"]["sessions"].is_number(), "{asked}");
        write_file(&mut connection, "third", b"three").await;
        assert_eq!(read_file(&mut connection, "third").await, b"three");
        assert!((two.metric("holdfast_gateway_taken_from_living_total")).abs() < 0.5);
        // It has said that it is gone.
        wait("one gateway", || {
            states(two) == [(true, "serving".into(), true)]
        });
    }

    /// A server that is killed is missed, and its sessions go on with another.
    async fn killed(three: Server, two: &Server) {
        let opened = three.command(&["session", "open", "default"]);
        let (session, path) = (&opened["id"], opened["mount_path"].as_str().unwrap());
        assert_eq!(opened["gateway"], three.text("nfs_address"));
        let mut connection = three.mount(path).await;
        write_file(&mut connection, "kept", b"kept").await;
        drop(three);
        let mut connection = two.mount(path).await;
        assert_eq!(read_file(&mut connection, "kept").await, b"kept");
        wait("a dead gateway", || {
            states(two).iter().any(|it| !it.0 && !it.2)
        });
        let session = session.as_str().unwrap();
        let shown = two.command(&["session", "show", session]);
        assert_eq!(shown["gateway"], two.text("nfs_address"));
        let kept = two.command(&["session", "checkpoint", session]);
        assert!(kept["commit"].is_object(), "{kept}");
    }

    #[test]
    fn several() {
        if let Ok(args) = std::env::var(ROLE) {
            let args = ["holdfast"].into_iter().chain(args.lines());
            let code = control::run(args.map(OsString::from));
            std::process::exit(i32::from(code));
        }
        if std::env::var_os("HOLDFAST_FDB_CLUSTER_FILE").is_some() {
            println!("left out: it needs a cluster of its own");
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let root = tempfile::tempdir().unwrap();
        let mut emulator = Emulator::start(5, "none");
        let place = format!("fdb:{}", emulator.file().display());
        refusals(&place);
        let start = |command, name: &str| Server::start(command, root.path().join(name), &place);
        let (one, two) = (start("up", "one"), start("serve", "two"));
        wait("two gateways", || states(&one).len() == 2);
        runtime.block_on(passed_on(&one, &two));
        runtime.block_on(drained(one, &two));
        let three = start("serve", "three");
        emulator.tell("faults unknown-applied=2%,unknown-dropped=2%,conflict=2%,too-old=2%");
        runtime.block_on(killed(three, &two));
    }
}
