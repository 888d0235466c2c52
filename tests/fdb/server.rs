//! A whole server with its metadata in FoundationDB: mounted, written to, killed, started again; and
//! what it says when it cannot start. The server is this test's program, started anew in that role, as
//! it is linked to the client library already.

#[cfg(test)]
mod emulator;
#[cfg(test)]
#[expect(dead_code, reason = "shared with other tests, which use the rest")]
mod holdfast;

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::emulator::Emulator;
    use super::holdfast::{Server, read_file, run, runtime_unless_holdfast, write_file};

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
        let server = Server::start("up", &dir, &place, &[]);
        runtime.block_on(async {
            let mut connection = server.mount().await;
            write_file(&mut connection, "small", b"hello").await;
            write_file(&mut connection, "large", &large).await;
        });
        assert_eq!(server.ask("GET /readyz", "").0, 200);
        // As by a power cut of the process.
        drop(server);
        assert!(!dir.join("meta.redb").exists());
        refusals(&dir, root.path(), &place);
        // Bug: an installation whose prefix another's begins with was taken for one with that one's keys.
        let beside = Server::start(
            "serve",
            &root.path().join("beside"),
            &place,
            &["--fdb-prefix", "hold"],
        );
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
        let server = Server::start("up", &dir, &place, &[]);
        runtime.block_on(async {
            let mut connection = server.mount().await;
            assert_eq!(read_file(&mut connection, "small").await, b"hello");
            assert_eq!(read_file(&mut connection, "large").await, large);
            for number in 0..30 {
                let file = format!("f{number}");
                write_file(&mut connection, &file, file.as_bytes()).await;
            }
        });
        assert!(server.metric("holdfast_fdb_commits_total") >= 30.0);
        assert!(server.metric("holdfast_fdb_reads_total") > 0.0);
        assert_eq!(server.stop(), Some(0));
        emulator.tell("faults none");
        let server = Server::start("up", &dir, &place, &[]);
        runtime.block_on(async {
            let mut connection = server.mount().await;
            for number in 0..30 {
                let file = format!("f{number}");
                assert_eq!(read_file(&mut connection, &file).await, file.as_bytes());
            }
        });
        // The cluster is gone: the server says so, and lives.
        drop(emulator);
        let (status, answer) = server.ask("GET /readyz", "");
        assert_eq!(status, 503, "{answer}");
        assert_eq!(server.ask("GET /livez", "").0, 200);
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
        let start = |command, name| {
            let dir = root.path().join(name);
            Server::start(command, &dir, &place, &["--chunks", "kv"])
        };
        let one = start("up", "one");
        let path = one.text("mount_path").to_owned();
        runtime.block_on(async {
            let mut connection = one.mount().await;
            write_file(&mut connection, "large", &content(1)).await;
        });
        let two = start("serve", "two");
        runtime.block_on(async {
            let mut connection = two.mount_path(&path).await;
            assert_eq!(read_file(&mut connection, "large").await, content(1));
            write_file(&mut connection, "other", &content(7)).await;
        });
        // As by a power cut of the process, and of its machine's disk.
        drop(one);
        std::fs::remove_dir_all(root.path().join("one")).unwrap();
        runtime.block_on(async {
            let mut connection = two.mount_path(&path).await;
            assert_eq!(read_file(&mut connection, "large").await, content(1));
            assert_eq!(read_file(&mut connection, "other").await, content(7));
        });
        // A server on a new data directory has all of it, too.
        let three = start("serve", "three");
        runtime.block_on(async {
            let mut connection = three.mount_path(&path).await;
            assert_eq!(read_file(&mut connection, "other").await, content(7));
        });
        assert_eq!(three.stop(), Some(0));
        let dir = root.path().join("two");
        let shown = dir.to_str().unwrap();
        let (code, out, error) = run(&["gc", "--data-dir", shown]);
        assert_eq!(code, 0, "{out}{error}");
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
        let Some(runtime) = runtime_unless_holdfast() else {
            return;
        };
        session(&runtime);
        shared(&runtime);
    }
}
