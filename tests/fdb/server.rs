//! A whole server with its metadata in FoundationDB: mounted, written to, killed, started again; and
//! what it says when it cannot start. The server is this test's program, started anew in that role, as
//! it is linked to the client library already.

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

    type Connection = Nfs3Connection<TokioIo<tokio::net::TcpStream>>;

    /// `holdfast` with these arguments.
    fn holdfast(args: &[&str]) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "tests::server",
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

    /// A server that runs. Killed when it is dropped.
    struct Server {
        child: Child,
        ready: Value,
    }

    impl Server {
        fn start(dir: &Path, place: &str, command: &str) -> Self {
            Self::start_below("holdfast/", dir, place, command)
        }

        /// With its keys below a prefix.
        fn start_below(prefix: &str, dir: &Path, place: &str, command: &str) -> Self {
            let dir = dir.to_str().unwrap();
            let (command, chunks) = command.split_once(' ').unwrap_or((command, "local"));
            let mut child = holdfast(&[
                "--json",
                command,
                "--data-dir",
                dir,
                "--metadata",
                place,
                "--chunks",
                chunks,
                "--fdb-prefix",
                prefix,
                "--fdb-timeout",
                "2s",
                "--listen",
                "127.0.0.1:0",
                "--api-listen",
                "127.0.0.1:0",
            ])
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
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
            }
        }

        fn text(&self, field: &str) -> String {
            self.ready[field].as_str().unwrap().to_owned()
        }

        /// Ends it as an operator does; gives its exit code.
        fn stop(mut self) -> Option<i32> {
            let pid = i32::try_from(self.child.id()).unwrap();
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
            self.child.wait().unwrap().code()
        }

        /// Status and body of a request without a token.
        fn ask(&self, path: &str) -> (u16, String) {
            let mut stream = TcpStream::connect(self.text("api_address")).unwrap();
            let patience = Some(Duration::from_secs(30));
            stream.set_read_timeout(patience).unwrap();
            write!(
                stream,
                "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
            )
            .unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
            (status, answer)
        }

        async fn mount(&self) -> Connection {
            self.mount_path(self.text("mount_path")).await
        }

        async fn mount_path(&self, path: String) -> Connection {
            let address: SocketAddr = self.text("nfs_address").parse().unwrap();
            Nfs3ConnectionBuilder::new(TokioConnector, Ipv4Addr::LOCALHOST.to_string(), path)
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

    /// The places that a data directory and a store are refused for each other.
    fn refusals(dir: &Path, root: &Path, place: &str) {
        let serve = |dir: &Path, place: &str| {
            let dir = dir.to_str().unwrap();
            run(&[
                "serve",
                "--data-dir",
                dir,
                "--metadata",
                place,
                "--fdb-timeout",
                "1s",
                "--listen",
                "127.0.0.1:0",
                "--api-listen",
                "127.0.0.1:0",
            ])
        };
        let empty = Emulator::start(2, "none");
        let elsewhere = format!("fdb:{}", empty.file().display());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = root.join("silent.cluster");
        let address = listener.local_addr().unwrap();
        std::fs::write(&silent, format!("test:test@{address}\n")).unwrap();
        let silent = format!("fdb:{}", silent.display());
        let fresh = |name: &str| root.join(name);
        let cases: [(PathBuf, &str, i32, &str); 5] = [
            (fresh("a"), place, 3, "is the data directory of another"),
            (
                dir.to_owned(),
                &elsewhere,
                1,
                "holds nothing with this fdb_prefix",
            ),
            (dir.to_owned(), "embedded", 3, "is in FoundationDB"),
            (
                fresh("b"),
                "fdb:/does/not/exist",
                2,
                "cluster file /does/not/exist",
            ),
            (fresh("c"), &silent, 6, "cluster cannot be used"),
        ];
        for (dir, place, code, told) in cases {
            let (found, _, error) = serve(&dir, place);
            assert_eq!(found, code, "{place}: {error}");
            assert!(error.contains(told), "{place}: {error}");
        }
        drop(listener);
        assert!(
            !fresh("a").join("metadata.json").exists(),
            "nothing was changed"
        );
    }

    fn session(runtime: &tokio::runtime::Runtime) {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("data");
        let mut emulator = Emulator::start(1, "none");
        let place = format!("fdb:{}", emulator.file().display());
        let large = vec![7_u8; 300_000];
        let server = Server::start(&dir, &place, "up");
        runtime.block_on(async {
            let mut connection = server.mount().await;
            write_file(&mut connection, "small", b"hello").await;
            write_file(&mut connection, "large", &large).await;
        });
        assert_eq!(server.ask("/readyz").0, 200);
        // As by a power cut of the process.
        drop(server);
        assert!(!dir.join("meta.redb").exists());
        refusals(&dir, root.path(), &place);
        // Bug: an installation whose prefix another's begins with was taken for one with that one's keys.
        let beside = Server::start_below("hold", &root.path().join("beside"), &place, "serve");
        assert_eq!(beside.stop(), Some(0));
        let shown = dir.to_str().unwrap();
        let (code, out, error) =
            run(&["check", "--deep", "--data-dir", shown, "--metadata", &place]);
        assert_eq!(code, 0, "{out}{error}");
        let rotate = ["keys", "rotate", "--data-dir", shown, "--metadata", &place];
        let (code, _, error) = run(&rotate);
        assert_eq!(code, 0, "{error}");
        emulator
            .tell("faults unknown-applied=3%,unknown-dropped=3%,conflict=3%,too-old=3%,cut=30%");
        let server = Server::start(&dir, &place, "up");
        runtime.block_on(async {
            let mut connection = server.mount().await;
            assert_eq!(read_file(&mut connection, "small").await, b"hello");
            assert_eq!(read_file(&mut connection, "large").await, large);
            for number in 0..30 {
                let file = format!("f{number}");
                write_file(&mut connection, &file, file.as_bytes()).await;
            }
        });
        let (_, metrics) = server.ask("/metrics");
        let count = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().parse::<f64>().unwrap()
        };
        assert!(count("holdfast_fdb_commits_total ") >= 30.0);
        assert!(count("holdfast_fdb_reads_total ") > 0.0);
        assert_eq!(server.stop(), Some(0));
        emulator.tell("faults none");
        let server = Server::start(&dir, &place, "up");
        runtime.block_on(async {
            let mut connection = server.mount().await;
            for number in 0..30 {
                let file = format!("f{number}");
                assert_eq!(read_file(&mut connection, &file).await, file.as_bytes());
            }
        });
        // The cluster is gone: the server says so, and lives.
        drop(emulator);
        let (status, answer) = server.ask("/readyz");
        assert_eq!(status, 503, "{answer}");
        assert_eq!(server.ask("/livez").0, 200);
    }

    /// Two servers with data directories of their own share all files through the metadata store.
    fn shared(runtime: &tokio::runtime::Runtime) {
        let root = tempfile::tempdir().unwrap();
        let emulator = Emulator::start(3, "none");
        let place = format!("fdb:{}", emulator.file().display());
        let content = |seed: u32| -> Vec<u8> {
            let words = (0..75_000_u32).map(|word| word.wrapping_mul(seed | 1));
            words.flat_map(u32::to_le_bytes).collect()
        };
        let one = Server::start(&root.path().join("one"), &place, "up kv");
        let path = one.text("mount_path");
        runtime.block_on(async {
            let mut connection = one.mount().await;
            write_file(&mut connection, "large", &content(1)).await;
        });
        let two = Server::start(&root.path().join("two"), &place, "serve kv");
        runtime.block_on(async {
            let mut connection = two.mount_path(path.clone()).await;
            assert_eq!(read_file(&mut connection, "large").await, content(1));
            write_file(&mut connection, "other", &content(7)).await;
        });
        // As by a power cut of the process, and of its machine's disk.
        drop(one);
        std::fs::remove_dir_all(root.path().join("one")).unwrap();
        runtime.block_on(async {
            let mut connection = two.mount_path(path.clone()).await;
            assert_eq!(read_file(&mut connection, "large").await, content(1));
            assert_eq!(read_file(&mut connection, "other").await, content(7));
        });
        // A server on a new data directory has all of it, too.
        let three = Server::start(&root.path().join("three"), &place, "serve kv");
        runtime.block_on(async {
            let mut connection = three.mount_path(path.clone()).await;
            assert_eq!(read_file(&mut connection, "other").await, content(7));
        });
        assert_eq!(three.stop(), Some(0));
        let dir = root.path().join("two");
        let shown = dir.to_str().unwrap();
        let (code, _, error) = run(&["gc", "--data-dir", shown]);
        assert_eq!(code, 3, "{error}");
        assert!(error.contains("is not collected yet"), "{error}");
        assert_eq!(two.stop(), Some(0));
        let fresh = root.path().join("four");
        for (dir, chunks, told) in [
            (&dir, "local", "is in kv: start with --chunks kv"),
            (&fresh, "local", "is the data directory of another"),
        ] {
            let dir = dir.to_str().unwrap();
            let (code, _, error) = run(&[
                "serve",
                "--data-dir",
                dir,
                "--metadata",
                &place,
                "--chunks",
                chunks,
                "--listen",
                "127.0.0.1:0",
                "--api-listen",
                "127.0.0.1:0",
            ]);
            assert_eq!(code, 3, "{error}");
            assert!(error.contains(told), "{error}");
        }
        let (code, out, error) = run(&["check", "--data-dir", shown, "--metadata", &place]);
        assert_eq!(code, 0, "{out}{error}");
    }

    #[test]
    fn server() {
        if let Ok(args) = std::env::var(ROLE) {
            let args = ["holdfast"].into_iter().chain(args.lines());
            let code = control::run(args.map(OsString::from));
            std::process::exit(i32::from(code));
        }
        if std::env::var_os("HOLDFAST_FDB_CLUSTER_FILE").is_some() {
            println!("left out: it needs clusters of its own");
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        session(&runtime);
        shared(&runtime);
    }
}
