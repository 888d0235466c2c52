//! How often a call goes to the store, by procedure, counted exactly: `docs/performance.md` has the table.
//! The server is this test's program, started anew in that role.

#[cfg(test)]
mod emulator;

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, TcpStream};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use futures_util::future::join_all;
    use nfs3_client::tokio::{TokioConnector, TokioIo};
    use nfs3_client::{Nfs3Connection, Nfs3ConnectionBuilder};
    use nfs3_types::nfs3::{
        ACCESS3args, COMMIT3args, CREATE3args, GETATTR3args, LOOKUP3args, Nfs3Option, READ3args,
        READDIRPLUS3args, REMOVE3args, RENAME3args, SETATTR3args, WRITE3args, cookieverf3,
        createhow3, diropargs3, filename3, nfs_fh3, sattr3, sattrguard3, set_mode3, stable_how,
    };
    use nfs3_types::xdr_codec::Opaque;
    use serde_json::Value;

    use super::emulator::Emulator;

    /// Says that this process is to be `holdfast`; its arguments follow, one a line.
    const ROLE: &str = "HOLDFAST_FDB_TEST_ARGS";

    /// Calls of each kind.
    const CALLS: u32 = 100;

    /// Sessions that are open and do nothing.
    const SESSIONS: usize = 300;

    /// For how long a server is watched that does nothing.
    const WATCHED: Duration = Duration::from_secs(4);

    /// Connections that make calls at the same time.
    const TOGETHER: usize = 16;

    type Connection = Nfs3Connection<TokioIo<tokio::net::TcpStream>>;

    /// A server that runs. Killed when it is dropped.
    struct Server {
        child: Child,
        ready: Value,
    }

    /// What went to the store.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Trips {
        reads: f64,
        commits: f64,
    }

    impl Server {
        fn start(dir: &Path, place: &str, chunks: &str) -> Self {
            let args = [
                "--json",
                "up",
                "--data-dir",
                dir.to_str().unwrap(),
                "--metadata",
                place,
                "--chunks",
                chunks,
                "--listen",
                "127.0.0.1:0",
                "--api-listen",
                "127.0.0.1:0",
            ];
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["tests::trips", "--exact", "--nocapture"])
                .env(ROLE, args.join("\n"))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
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

        fn text(&self, field: &str) -> &str {
            self.ready[field].as_str().unwrap()
        }

        /// The answer to a call of the API.
        fn ask(&self, line: &str, body: &str) -> String {
            let mut stream = TcpStream::connect(self.text("api_address")).unwrap();
            let patience = Some(Duration::from_secs(30));
            stream.set_read_timeout(patience).unwrap();
            let (token, length) = (self.text("api_token"), body.len());
            let head = format!(
                "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\
                 content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
            );
            stream.write_all(head.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        }

        /// Opens a session; gives the path to mount.
        fn open(&self) -> String {
            let answer = self.ask("POST /v1/sessions", r#"{"workspace":"default"}"#);
            let body = &answer[answer.find("\r\n\r\n").unwrap()..];
            let opened: Value = serde_json::from_str(&body[body.find('{').unwrap()..]).unwrap();
            opened["mount_path"].as_str().expect(body).to_owned()
        }

        fn trips(&self) -> Trips {
            let answer = self.ask("GET /metrics", "");
            let value = |name: &str| -> f64 {
                let of = format!("{name} ");
                let line = answer.lines().find_map(|line| line.strip_prefix(&of));
                line.expect(name).trim().parse().unwrap()
            };
            Trips {
                reads: value("holdfast_fdb_reads_total"),
                commits: value("holdfast_fdb_commits_total"),
            }
        }

        async fn mount(&self) -> Connection {
            self.mount_path(self.text("mount_path").to_owned()).await
        }

        async fn mount_path(&self, path: String) -> Connection {
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

    fn at<'a>(dir: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
        diropargs3 {
            dir: dir.clone(),
            name: filename3(Opaque::borrowed(name.as_bytes())),
        }
    }

    async fn create(to: &mut Connection, name: &str) -> nfs_fh3 {
        let root = to.root_nfs_fh3();
        let args = CREATE3args {
            where_: at(&root, name),
            how: createhow3::UNCHECKED(sattr3::default()),
        };
        match to.create(&args).await.unwrap().unwrap().obj {
            Nfs3Option::Some(handle) => handle,
            Nfs3Option::None => unreachable!("no handle"),
        }
    }

    async fn write(to: &mut Connection, file: &nfs_fh3, data: &[u8], stable: stable_how) {
        let args = WRITE3args {
            file: file.clone(),
            offset: 0,
            count: u32::try_from(data.len()).unwrap(),
            stable,
            data: Opaque::borrowed(data),
        };
        to.write(&args).await.unwrap().unwrap();
    }

    async fn commit(to: &mut Connection, file: &nfs_fh3) {
        let args = COMMIT3args {
            file: file.clone(),
            offset: 0,
            count: 0,
        };
        to.commit(&args).await.unwrap().unwrap();
    }

    /// The calls of one row of the table.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Row {
        Getattr,
        Lookup,
        Access,
        Read,
        Readdirplus,
        Create,
        Setattr,
        WriteStable,
        WriteAndCommit,
        Rename,
        Remove,
    }

    impl Row {
        const ALL: [Self; 11] = [
            Self::Getattr,
            Self::Lookup,
            Self::Access,
            Self::Read,
            Self::Readdirplus,
            Self::Create,
            Self::Setattr,
            Self::WriteStable,
            Self::WriteAndCommit,
            Self::Rename,
            Self::Remove,
        ];

        /// It changes something.
        fn writes(self) -> bool {
            !matches!(
                self,
                Self::Getattr | Self::Lookup | Self::Access | Self::Read | Self::Readdirplus
            )
        }

        /// One call, the `number`th of connection `who`; a WRITE with its COMMIT counts as one.
        async fn call(self, to: &mut Connection, who: usize, number: u32) {
            let root = to.root_nfs_fh3();
            let (name, other) = (format!("f{who}-{number}"), format!("g{who}-{number}"));
            let what = at(&root, &name);
            match self {
                Self::Getattr => drop(to.getattr(&GETATTR3args { object: root }).await.unwrap()),
                Self::Lookup => {
                    let kept = at(&root, "kept");
                    drop(
                        to.lookup(&LOOKUP3args { what: kept })
                            .await
                            .unwrap()
                            .unwrap(),
                    );
                }
                Self::Access => {
                    let args = ACCESS3args {
                        object: root,
                        access: 0x3f,
                    };
                    drop(to.access(&args).await.unwrap().unwrap());
                }
                Self::Read => {
                    let kept = at(&root, "kept");
                    let file = to.lookup(&LOOKUP3args { what: kept }).await.unwrap();
                    let args = READ3args {
                        file: file.unwrap().object,
                        offset: 0,
                        count: 1 << 16,
                    };
                    let read = to.read(&args).await.unwrap().unwrap();
                    assert_eq!(read.count, 1 << 16);
                }
                Self::Readdirplus => {
                    let args = READDIRPLUS3args {
                        dir: root,
                        cookie: 0,
                        cookieverf: cookieverf3::default(),
                        dircount: 4096,
                        maxcount: 16_384,
                    };
                    drop(to.readdirplus(&args).await.unwrap().unwrap());
                }
                Self::Create => drop(create(to, &name).await),
                Self::Setattr => {
                    let file = to.lookup(&LOOKUP3args { what }).await.unwrap();
                    let args = SETATTR3args {
                        object: file.unwrap().object,
                        new_attributes: sattr3 {
                            mode: set_mode3::Some(0o600),
                            ..sattr3::default()
                        },
                        guard: sattrguard3::None,
                    };
                    drop(to.setattr(&args).await.unwrap().unwrap());
                }
                Self::WriteStable | Self::WriteAndCommit => {
                    let file = to.lookup(&LOOKUP3args { what }).await.unwrap();
                    let file = file.unwrap().object;
                    if self == Self::WriteStable {
                        write(to, &file, &[1; 4096], stable_how::FILE_SYNC).await;
                    } else {
                        write(to, &file, &[2; 4096], stable_how::UNSTABLE).await;
                        commit(to, &file).await;
                    }
                }
                Self::Rename => {
                    let args = RENAME3args {
                        from: what,
                        to: at(&root, &other),
                    };
                    to.rename(&args).await.unwrap().unwrap();
                }
                Self::Remove => {
                    let object = at(&root, &other);
                    to.remove(&REMOVE3args { object }).await.unwrap().unwrap();
                }
            }
        }
    }

    /// Makes the calls of a row on each of some connections at the same time; trips for each call.
    async fn count(
        server: &Server,
        row: Row,
        connections: &mut [Connection],
        base: usize,
    ) -> Trips {
        let calls = f64::from(CALLS) * f64::from(u32::try_from(connections.len()).unwrap());
        let before = server.trips();
        let all = connections
            .iter_mut()
            .enumerate()
            .map(|(who, to)| async move {
                for number in 0..CALLS {
                    row.call(to, base + who, number).await;
                }
            });
        join_all(all).await;
        let after = server.trips();
        Trips {
            reads: (after.reads - before.reads) / calls,
            commits: (after.commits - before.commits) / calls,
        }
    }

    async fn table(server: &Server) {
        let mut connections = Vec::new();
        for _ in 0..=TOGETHER {
            connections.push(server.mount().await);
        }
        let kept = create(&mut connections[0], "kept").await;
        write(
            &mut connections[0],
            &kept,
            &[7; 1 << 16],
            stable_how::FILE_SYNC,
        )
        .await;
        // Memory has what the calls ask for, and numbers for the inodes to come.
        Row::Read.call(&mut connections[0], 0, 0).await;
        Row::Readdirplus.call(&mut connections[0], 0, 0).await;
        println!("| procedure | alone: reads | commits | {TOGETHER} at once: reads | commits |");
        println!("| --- | --- | --- | --- | --- |");
        for row in Row::ALL {
            let alone = count(server, row, &mut connections[..1], 0).await;
            let together = count(server, row, &mut connections[1..], 1).await;
            println!(
                "| {row:?} | {:.2} | {:.2} | {:.2} | {:.2} |",
                alone.reads, alone.commits, together.reads, together.commits
            );
            // Housekeeping asks the store now and then.
            let (few, one) = (0.05, 1.05);
            if row.writes() {
                assert!((0.9..one).contains(&alone.commits), "{row:?}: {alone:?}");
                assert!(together.commits < 0.9, "{row:?}: {together:?}");
            } else {
                assert!(alone.commits < few, "{row:?}: {alone:?}");
                assert!(together.commits < few, "{row:?}: {together:?}");
            }
            // A read version grows old, and then the owner is read anew.
            assert!(alone.reads < 0.1, "{row:?}: {alone:?}");
            assert!(together.reads < few, "{row:?}: {together:?}");
        }
    }

    /// Calls of the store in some time in which nobody asks for anything.
    async fn idle(server: &Server) -> f64 {
        let before = server.trips();
        tokio::time::sleep(WATCHED).await;
        let after = server.trips();
        after.reads - before.reads + after.commits - before.commits
    }

    /// What a gateway costs that does nothing does not grow with the sessions that it has.
    async fn resting(server: &Server) {
        let few = idle(server).await;
        assert!(few > 0.0, "it has a lease to renew");
        let mut mounts = Vec::new();
        for _ in 0..SESSIONS {
            let mut mount = server.mount_path(server.open()).await;
            create(&mut mount, "f").await;
            mounts.push(mount);
        }
        let many = idle(server).await;
        println!("idle for {WATCHED:?}: {few} calls of the store, {many} with {SESSIONS} sessions");
        assert!(many < 1.5 * few + 5.0, "{few}, {many}");
    }

    #[test]
    fn trips() {
        if let Ok(args) = std::env::var(ROLE) {
            let args = ["holdfast"].into_iter().chain(args.lines());
            let code = control::run(args.map(OsString::from));
            std::process::exit(i32::from(code));
        }
        if std::env::var_os("HOLDFAST_FDB_CLUSTER_FILE").is_some() {
            println!("left out: it needs a cluster of its own");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let mut emulator = Emulator::start(3, "delay=50%");
        let place = format!("fdb:{}", emulator.file().display());
        let server = Server::start(&root.path().join("one"), &place, "local");
        // What is slow at times gathers more; what is counted here is to be the worst.
        emulator.tell("faults none");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(table(&server));
        drop(server);
        let emulator = Emulator::start(4, "none");
        let place = format!("fdb:{}", emulator.file().display());
        let server = Server::start(&root.path().join("two"), &place, "kv");
        runtime.block_on(resting(&server));
    }
}
