//! Several servers on one store, whole: calls passed on, a drain, a kill, and what the API tells of them.
//! The servers are this test's program, started anew in that role, as it is linked to the client library
//! already.

#[cfg(test)]
mod emulator;
#[cfg(test)]
#[expect(dead_code, reason = "shared with other tests, which use the rest")]
mod holdfast;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::emulator::Emulator;
    use super::holdfast::{Server, holdfast, read_file, run, runtime_unless_holdfast, write_file};

    /// Looks at something that is to become true soon.
    const LOOKS_MAX: u32 = 2000;

    /// What a line of JSON in a program's output says; the test's own lines come before it.
    fn json(out: &str) -> Value {
        let mut lines = out.lines().filter_map(|line| {
            let at = line.find(['{', '['])?;
            serde_json::from_str(&line[at..]).ok()
        });
        lines.next_back().expect(out)
    }

    impl Server {
        /// What a command that asks this server prints as JSON.
        fn command(&self, args: &[&str]) -> Value {
            let dir = self.dir.to_str().unwrap();
            let all = [&["--json"], args, &["--data-dir", dir]].concat();
            let (code, out, error) = run(&all);
            assert_eq!(code, 0, "{args:?}: {error}");
            json(&out)
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
        let path = one.text("mount_path").to_owned();
        let mut first = one.mount_path(&path).await;
        write_file(&mut first, "file", b"one").await;
        let mut second = two.mount_path(&path).await;
        assert_eq!(read_file(&mut second, "file").await, b"one");
        write_file(&mut second, "other", b"two").await;
        assert_eq!(read_file(&mut first, "other").await, b"two");
        assert!(two.metric("holdfast_gateway_passed_on_total") > 0.0);
        assert!((one.metric("holdfast_gateway_others") - 1.0).abs() < 0.5);
        assert!((two.metric("holdfast_gateway_lease") - 1.0).abs() < 0.5);
        // The API, too: what it does is done where the session is.
        let session = one.text("session").to_owned();
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
        let path = one.text("mount_path").to_owned();
        let dir = one.dir.to_str().unwrap();
        let mut waiting = holdfast(&["--json", "drain", "--wait", "--data-dir", dir]);
        let waiting = waiting.spawn().unwrap();
        let mut connection = two.mount_path(&path).await;
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
        let mut connection = three.mount_path(path).await;
        write_file(&mut connection, "kept", b"kept").await;
        drop(three);
        let mut connection = two.mount_path(path).await;
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
        let Some(runtime) = runtime_unless_holdfast() else {
            return;
        };
        let root = tempfile::tempdir().unwrap();
        let mut emulator = Emulator::start(5, "none");
        let place = format!("fdb:{}", emulator.file().display());
        refusals(&place);
        let start = |command, name: &str| {
            let dir = root.path().join(name);
            Server::start(command, &dir, &place, &["--chunks", "kv"])
        };
        let (one, two) = (start("up", "one"), start("serve", "two"));
        wait("two gateways", || states(&one).len() == 2);
        runtime.block_on(passed_on(&one, &two));
        runtime.block_on(drained(one, &two));
        let three = start("serve", "three");
        emulator.tell("faults unknown-applied=2%,unknown-dropped=2%,conflict=2%,too-old=2%");
        runtime.block_on(killed(three, &two));
    }
}
