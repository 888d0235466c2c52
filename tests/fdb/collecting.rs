//! Collection of what several servers share, whole: space is given back while both write, and a server that stood
//! still through collections loses nothing that was acknowledged. The servers are this test's program, started anew
//! in that role, as it is linked to the client library already.

#[cfg(test)]
mod emulator;
#[cfg(test)]
#[expect(dead_code, reason = "shared with other tests, which use the rest")]
mod holdfast;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
    use std::thread::{JoinHandle, park_timeout};
    use std::time::Duration;

    use nfs3_client::Nfs3ConnectionBuilder;
    use nfs3_client::tokio::TokioConnector;
    use nfs3_types::nfs3::{
        CREATE3args, Nfs3Option, Nfs3Result, REMOVE3args, WRITE3args, createhow3, sattr3,
        stable_how,
    };
    use nfs3_types::xdr_codec::Opaque;
    use rustix::process::Signal;
    use serde_json::Value;

    use super::emulator::Emulator;
    use super::holdfast::{
        Connection, Server, name, read_file, run, runtime_unless_holdfast, write_file,
    };

    /// More than is kept in the metadata store itself.
    const FILE_BYTES: u64 = 100_000;
    const FILES: u64 = 6;
    /// Few, so that what was removed is soon put again.
    const CONTENTS: u64 = 12;
    const TRIES_MAX: u32 = 200;

    fn content(seed: u64) -> Vec<u8> {
        let words = (0..FILE_BYTES / 8).map(|word| (word + 1).wrapping_mul(seed * 0x9e37 + 1));
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// Collects by asking `server`, as often as it says that it should be tried again.
    fn collect(server: &Server) -> Value {
        let dir = server.dir.to_str().unwrap();
        for _ in 0..TRIES_MAX {
            let (code, out, error) = run(&["--json", "gc", "--data-dir", dir]);
            if code == 6 {
                park_timeout(Duration::from_millis(100));
                continue;
            }
            assert_eq!(code, 0, "{out}{error}");
            let mut lines = out.lines().filter_map(|line| {
                let at = line.find('{')?;
                serde_json::from_str(&line[at..]).ok()
            });
            return lines.next_back().expect(&out);
        }
        panic!("it is never done");
    }

    /// Somebody who writes files all the time.
    struct Writer {
        stop: Arc<AtomicBool>,
        done: Arc<AtomicU64>,
        /// Gives what each file has.
        thread: JoinHandle<BTreeMap<String, u64>>,
    }

    impl Writer {
        fn start(server: &Server, path: &str, salt: u64) -> Self {
            let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::default());
            let address: SocketAddr = server.text("nfs_address").parse().unwrap();
            let (until, count) = (Arc::clone(&stop), Arc::clone(&done));
            let path = path.to_owned();
            let writer = std::thread::Builder::new().name("writer".into());
            let thread = writer.spawn(move || {
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                let runtime = runtime.enable_all().build().unwrap();
                runtime.block_on(write_on((address, &path), salt, (&until, &count)))
            });
            let thread = thread.unwrap();
            Self { stop, done, thread }
        }

        /// Waits until so many more files were written.
        fn wait_for(&self, more: u64) {
            let wanted = self.done.load(SeqCst) + more;
            while self.done.load(SeqCst) < wanted && !self.thread.is_finished() {
                park_timeout(Duration::from_millis(2));
            }
        }

        fn stop(self) -> BTreeMap<String, u64> {
            self.stop.store(true, SeqCst);
            self.thread.join().unwrap()
        }
    }

    /// Whoever is hung up on connects and writes anew, as a client does.
    async fn write_on(
        (address, path): (SocketAddr, &str),
        salt: u64,
        (until, count): (&AtomicBool, &AtomicU64),
    ) -> BTreeMap<String, u64> {
        let mut files = BTreeMap::new();
        let mut connection = None;
        let mut number = salt;
        while !until.load(SeqCst) {
            number += 1;
            let (file, seed) = (format!("f{}", number % FILES), number % CONTENTS);
            let data = content(seed);
            loop {
                if connection.is_none() {
                    connection = connect(address, path).await;
                }
                if let Some(connected) = &mut connection
                    && try_write(connected, &file, &data).await.is_some()
                {
                    break;
                }
                connection = None;
            }
            files.insert(file, seed);
            count.fetch_add(1, SeqCst);
        }
        files
    }

    async fn connect(address: SocketAddr, path: &str) -> Option<Connection> {
        let host = Ipv4Addr::LOCALHOST.to_string();
        let connected = Nfs3ConnectionBuilder::new(TokioConnector, host, path)
            .mount_port(address.port())
            .nfs3_port(address.port())
            .connect_from_privileged_port(false)
            .mount();
        connected.await.ok()
    }

    async fn try_write(to: &mut Connection, file: &str, data: &[u8]) -> Option<()> {
        let root = to.root_nfs_fh3();
        let create = CREATE3args {
            where_: name(&root, file),
            how: createhow3::UNCHECKED(sattr3::default()),
        };
        let Nfs3Result::Ok(created) = to.create(&create).await.ok()? else {
            return None;
        };
        let Nfs3Option::Some(file) = created.obj else {
            return None;
        };
        let write = WRITE3args {
            file,
            offset: 0,
            count: u32::try_from(data.len()).unwrap(),
            stable: stable_how::FILE_SYNC,
            data: Opaque::borrowed(data),
        };
        match to.write(&write).await.ok()? {
            Nfs3Result::Ok(_) => Some(()),
            Nfs3Result::Err(_) => None,
        }
    }

    async fn remove(to: &mut Connection, file: &str) {
        let root = to.root_nfs_fh3();
        let object = name(&root, file);
        to.remove(&REMOVE3args { object }).await.unwrap().unwrap();
    }

    async fn holds(server: &Server, path: &str, files: &BTreeMap<String, u64>) {
        let mut connection = server.mount_path(path).await;
        for (file, seed) in files {
            let read = read_file(&mut connection, file).await;
            assert!(read == content(*seed), "{file} is not {seed}");
        }
    }

    /// What is removed is given back, and what is written meanwhile stays.
    fn both_write(runtime: &tokio::runtime::Runtime, one: &Server, two: &Server) {
        let path = one.text("mount_path").to_owned();
        let dir = two.dir.to_str().unwrap();
        let open = ["--json", "session", "open", "default", "--data-dir", dir];
        let (code, out, error) = run(&open);
        assert_eq!(code, 0, "{error}");
        let at = out.find('{').unwrap();
        let opened: Value = serde_json::from_str(out[at..].lines().next().unwrap()).unwrap();
        let other = opened["mount_path"].as_str().unwrap().to_owned();
        runtime.block_on(async {
            let mut connection = one.mount_path(&path).await;
            write_file(&mut connection, "large", &content(100)).await;
            write_file(&mut connection, "kept", &content(101)).await;
            remove(&mut connection, "large").await;
        });
        let dry = ["--json", "gc", "--dry-run", "--data-dir", dir];
        let (code, out, error) = run(&dry);
        assert_eq!(code, 0, "{out}{error}");
        let first = collect(two);
        assert!(first["freed_bytes"].as_u64().unwrap() > 1000, "{first}");
        let writers = [
            (Writer::start(one, &path, 1), &path),
            (Writer::start(two, &other, 7), &other),
        ];
        for server in [one, two, one, two] {
            for (writer, _) in &writers {
                writer.wait_for(8);
            }
            let collected = collect(server);
            assert_eq!(collected["state"], "done", "{collected}");
        }
        for (writer, path) in writers {
            let files = writer.stop();
            runtime.block_on(holds(one, path, &files));
            runtime.block_on(holds(two, path, &files));
        }
        let kept = BTreeMap::from([("kept".to_owned(), 101)]);
        runtime.block_on(holds(two, &path, &kept));
    }

    /// A server that stands still with writes under way, while another collects twice.
    fn stands_still(runtime: &tokio::runtime::Runtime, one: &Server, two: &Server) {
        let path = one.text("mount_path").to_owned();
        let writer = Writer::start(one, &path, 3);
        for round in 0..4 {
            writer.wait_for(5);
            park_timeout(Duration::from_millis(round * 3));
            one.signal(Signal::STOP);
            let cycles = [collect(two), collect(two)];
            one.signal(Signal::CONT);
            assert_eq!(cycles[1]["state"], "done");
            // It comes back.
            writer.wait_for(3);
        }
        let files = writer.stop();
        runtime.block_on(holds(one, &path, &files));
        collect(one);
        runtime.block_on(holds(two, &path, &files));
    }

    #[test]
    fn collecting() {
        let Some(runtime) = runtime_unless_holdfast() else {
            return;
        };
        let root = tempfile::tempdir().unwrap();
        let emulator = Emulator::start(11, "none");
        let place = format!("fdb:{}", emulator.file().display());
        let start = |command, name: &str| {
            let dir = root.path().join(name);
            Server::start(command, &dir, &place, &["--chunks", "kv"])
        };
        let (one, two) = (start("up", "one"), start("serve", "two"));
        both_write(&runtime, &one, &two);
        stands_still(&runtime, &one, &two);
        let dir = one.dir.to_str().unwrap().to_owned();
        assert_eq!(one.stop(), Some(0));
        assert_eq!(two.stop(), Some(0));
        let (code, out, error) = run(&["check", "--data-dir", &dir, "--metadata", &place]);
        assert_eq!(code, 0, "{out}{error}");
    }
}
