//! How often a call goes to the store, by procedure, counted exactly: `docs/performance.md` has the table.
//! The server is this test's program, started anew in that role.

#[cfg(test)]
mod emulator;
#[cfg(test)]
#[expect(dead_code, reason = "shared with other tests, which use the rest")]
mod holdfast;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::{Clock, SystemClock};
    use futures_util::future::join_all;
    use nfs3_types::nfs3::{
        ACCESS3args, COMMIT3args, GETATTR3args, Nfs3Result, READ3args, READDIRPLUS3args,
        REMOVE3args, RENAME3args, SETATTR3args, cookieverf3, nfs_fh3, sattr3, sattrguard3,
        set_mode3, stable_how,
    };

    use super::emulator::Emulator;
    use super::holdfast::{
        Connection, Server, create, lookup, name, runtime_unless_holdfast, write, write_file,
    };

    /// Calls of each kind.
    const CALLS: u32 = 100;

    /// Sessions that are open and do nothing.
    const SESSIONS: usize = 300;

    /// For how long a server is watched that does nothing.
    const WATCHED: Duration = Duration::from_secs(4);

    /// Connections that make calls at the same time.
    const TOGETHER: usize = 16;

    /// What went to the store.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Trips {
        reads: f64,
        commits: f64,
    }

    impl Server {
        fn trips(&self) -> Trips {
            Trips {
                reads: self.metric("holdfast_fdb_reads_total"),
                commits: self.metric("holdfast_fdb_commits_total"),
            }
        }
    }

    async fn commit(to: &mut Connection, file: nfs_fh3) {
        let args = COMMIT3args {
            file,
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
            let (file, other) = (format!("f{who}-{number}"), format!("g{who}-{number}"));
            match self {
                Self::Getattr => drop(to.getattr(&GETATTR3args { object: root }).await.unwrap()),
                Self::Lookup => drop(lookup(to, "kept").await),
                Self::Access => {
                    let args = ACCESS3args {
                        object: root,
                        access: 0x3f,
                    };
                    assert_ne!(to.access(&args).await.unwrap().unwrap().access, 0);
                }
                Self::Read => {
                    let args = READ3args {
                        file: lookup(to, "kept").await,
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
                _ => self.change(to, &file, &other).await,
            }
        }

        /// A call that changes `file`, or renames it to `other`, or removes that.
        async fn change(self, to: &mut Connection, file: &str, other: &str) {
            let root = to.root_nfs_fh3();
            match self {
                Self::Create => drop(create(to, file).await),
                Self::Setattr => {
                    let args = SETATTR3args {
                        object: lookup(to, file).await,
                        new_attributes: sattr3 {
                            mode: set_mode3::Some(0o600),
                            ..sattr3::default()
                        },
                        guard: sattrguard3::None,
                    };
                    let set = to.setattr(&args).await.unwrap();
                    assert!(matches!(set, Nfs3Result::Ok(_)));
                }
                Self::WriteStable | Self::WriteAndCommit => {
                    let file = lookup(to, file).await;
                    if self == Self::WriteStable {
                        write(to, file, &[1; 4096], stable_how::FILE_SYNC).await;
                    } else {
                        write(to, file.clone(), &[2; 4096], stable_how::UNSTABLE).await;
                        commit(to, file).await;
                    }
                }
                Self::Rename => {
                    let args = RENAME3args {
                        from: name(&root, file),
                        to: name(&root, other),
                    };
                    to.rename(&args).await.unwrap().unwrap();
                }
                Self::Remove => {
                    let object = name(&root, other);
                    to.remove(&REMOVE3args { object }).await.unwrap().unwrap();
                }
                _ => unreachable!("it changes nothing"),
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
        write_file(&mut connections[0], "kept", &[7; 1 << 16]).await;
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
        SystemClock::new().sleep(WATCHED).await;
        let after = server.trips();
        after.reads - before.reads + after.commits - before.commits
    }

    /// What a gateway costs that does nothing does not grow with the sessions that it has.
    async fn resting(server: &Server) {
        let few = idle(server).await;
        assert!(few > 0.0, "it has a lease to renew");
        let mut mounts = Vec::new();
        for _ in 0..SESSIONS {
            let mut mount = server.mount_path(&server.open()).await;
            create(&mut mount, "f").await;
            mounts.push(mount);
        }
        let many = idle(server).await;
        println!("idle for {WATCHED:?}: {few} calls of the store, {many} with {SESSIONS} sessions");
        assert!(many < 1.5 * few + 5.0, "{few}, {many}");
    }

    #[test]
    fn trips() {
        let Some(runtime) = runtime_unless_holdfast() else {
            return;
        };
        let root = tempfile::tempdir().unwrap();
        let mut emulator = Emulator::start(3, "delay=50%");
        let place = format!("fdb:{}", emulator.file().display());
        let server = Server::start("up", &root.path().join("one"), &place, &[]);
        // What is slow at times gathers more; what is counted here is to be the worst.
        emulator.tell("faults none");
        runtime.block_on(table(&server));
        drop(server);
        let emulator = Emulator::start(4, "none");
        let place = format!("fdb:{}", emulator.file().display());
        let server = Server::start("up", &root.path().join("two"), &place, &["--chunks", "kv"]);
        runtime.block_on(resting(&server));
    }
}
