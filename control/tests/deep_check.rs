//! Damage, and what `holdfast check` says of it.
#![allow(missing_docs)]

mod support;

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use base::SystemClock;
    use metadata::kv::embedded::{EmbeddedKv, EmbeddedOptions};
    use serde_json::Value;

    use crate::support::files::{content, mounted};
    use crate::support::{ANY_PORTS, Server, fails, id, open, publish, run};

    /// A data directory with a file `big` that a commit and a session have, and a session over it that
    /// has another one. Gives the commit.
    async fn used(dir: &Path) -> String {
        let server = Server::start("up", dir);
        let (session, mut mount) = mounted(&server, dir, &[]).await;
        mount.write_durably("big", &content(1, 200_000)).await;
        let published = publish(dir, &session, &["-m", "first"]);
        mount.write_durably("later", &content(2, 200_000)).await;
        open(dir, &["--version", "main"]);
        drop(mount);
        assert_eq!(server.terminate(), Some(0));
        id(&published["commit"]).to_owned()
    }

    fn pack(dir: &Path) -> PathBuf {
        let listed = std::fs::read_dir(dir.join("chunks")).unwrap();
        let mut packs: Vec<_> = listed
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|found| found == "dat"))
            .collect();
        packs.sort();
        packs.remove(0)
    }

    fn check(dir: &Path, args: &[&str]) -> (Option<i32>, Value) {
        let output = run(&[&["--json", "check"], args].concat(), dir);
        (
            output.status.code(),
            serde_json::from_slice(&output.stdout).unwrap(),
        )
    }

    /// The paths that are told of what is damaged, with who has them.
    fn uses(report: &Value) -> Vec<(String, String)> {
        let uses = report["uses"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
        uses.map(|used| (text(&used["of"]), text(&used["path"])))
            .collect()
    }

    #[tokio::test]
    async fn damage_is_told_with_the_files_that_have_it() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        let commit = used(dir).await;
        for args in [&[][..], &["--deep"]] {
            let (code, report) = check(dir, args);
            assert_eq!(
                (code, &report["clean"]),
                (Some(0), &true.into()),
                "{report}"
            );
            assert_eq!(report["content"]["deep"], !args.is_empty());
        }
        let pack = pack(dir);
        let whole = std::fs::read(&pack).unwrap();
        // A byte of the first chunk, which is of `big`.
        let mut flipped = whole.clone();
        flipped[5000] ^= 1;
        std::fs::write(&pack, &flipped).unwrap();
        for args in [&[][..], &["--deep"]] {
            let (code, report) = check(dir, args);
            assert_eq!(code, Some(1));
            let uses = uses(&report);
            let of_commit = format!("commit {commit}");
            let has =
                |of: &str| (uses.iter()).any(|(who, path)| who.starts_with(of) && path == "big");
            assert!(has(&of_commit) && has("session "), "{report}");
            assert!(uses.iter().all(|(_, path)| path == "big"), "{report}");
        }
        let said = run(&["check", "--deep"], dir);
        let said = String::from_utf8(said.stdout).unwrap();
        assert!(said.contains("\"big\" uses chunk"), "{said}");
        // A pack that ends early: what is behind the cut is lost, here the whole tree.
        let file = std::fs::OpenOptions::new().write(true).open(&pack).unwrap();
        file.set_len(1000).unwrap();
        let (code, report) = check(dir, &["--deep"]);
        assert_eq!(code, Some(1));
        let told = report["uses"].to_string();
        assert!(
            told.contains(&commit) && told.contains("tree node"),
            "{told}"
        );
        // A byte of each record in turn: one is a node of the commit's tree.
        std::fs::write(&pack, &whole).unwrap();
        assert_eq!(check(dir, &["--deep"]).0, Some(0));
        let records = (64..whole.len() - 4).filter(|at| whole[*at..].starts_with(b"HFCK"));
        let mut nodes = 0;
        for record in records {
            let mut flipped = whole.clone();
            flipped[record + 100] ^= 1;
            std::fs::write(&pack, &flipped).unwrap();
            let (code, report) = check(dir, &["--deep"]);
            assert_eq!(code, Some(1));
            let is_node = report["uses"].to_string().contains("tree node");
            nodes += u32::from(is_node);
            assert!(
                !is_node || report["uses"].to_string().contains(&commit),
                "{report}"
            );
        }
        assert!(nodes > 0);
    }

    #[tokio::test]
    async fn a_missing_directory_of_content_is_told() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        used(dir).await;
        std::fs::rename(dir.join("chunks"), dir.join("moved")).unwrap();
        let start = [&["up"], &ANY_PORTS[..]].concat();
        let parts = ["chunks is missing", "backup", "Nothing was changed"];
        fails(&start, dir, 1, &parts);
        assert!(!dir.join("chunks").exists());
        let (code, report) = check(dir, &[]);
        assert_eq!(code, Some(1));
        assert!(
            report["problems"].to_string().contains("chunks"),
            "{report}"
        );
        // What is in no doubt is not asked for.
        assert_eq!(check(dir, &["--metadata-only"]).0, Some(0));
        std::fs::rename(dir.join("moved"), dir.join("chunks")).unwrap();
        assert_eq!(check(dir, &[]).0, Some(0));
        assert_eq!(Server::start("up", dir).terminate(), Some(0));
    }

    /// A pipe would be waited for without end.
    #[tokio::test]
    async fn pipes_in_the_place_of_files_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        used(dir).await;
        let start = [&["up"], &ANY_PORTS[..]].concat();
        for name in [
            "chunks/pack-0000ffff.dat",
            "meta.redb",
            "meta.redb.lock",
            "LOCK",
            "FORMAT",
            "api-token",
            "session.json",
        ] {
            let path = dir.join(name);
            let aside = dir.join("aside");
            let was = path.exists();
            if was {
                std::fs::rename(&path, &aside).unwrap();
            }
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            let fifo = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, &path, fifo, mode, 0).unwrap();
            let started = run(&start, dir);
            assert_eq!(started.status.code(), Some(1), "{name}: {started:?}");
            let said = String::from_utf8_lossy(&started.stderr).into_owned();
            // The metadata store's length is looked at first.
            let is_told = said.contains("not a regular file") || said.contains("the file is empty");
            assert!(is_told, "{name}: {said}");
            if !matches!(
                name,
                "meta.redb.lock" | "LOCK" | "api-token" | "session.json"
            ) {
                let checked = run(&["check"], dir);
                assert_eq!(checked.status.code(), Some(1), "{name}: {checked:?}");
            }
            std::fs::remove_file(&path).unwrap();
            if was {
                std::fs::rename(&aside, &path).unwrap();
            }
        }
        assert_eq!(check(dir, &[]).0, Some(0));
    }

    /// A server that was killed before it had written anything leaves no damage.
    #[test]
    fn a_first_start_that_was_killed_leaves_no_damage() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        assert_eq!(Server::start("up", dir).terminate(), Some(0));
        for name in ["meta.redb", "meta.redb.seen", "api-token", "session.json"] {
            std::fs::remove_file(dir.join(name)).unwrap();
        }
        std::fs::remove_dir_all(dir.join("chunks")).unwrap();
        let kv = EmbeddedKv::open(
            &dir.join("meta.redb"),
            &EmbeddedOptions::default(),
            Arc::new(SystemClock::new()),
        );
        kv.unwrap().close();
        let (code, report) = check(dir, &[]);
        assert_eq!(
            (code, &report["clean"]),
            (Some(0), &true.into()),
            "{report}"
        );
        let notes = report["notes"].to_string();
        assert!(notes.contains("not finished being made"), "{notes}");
        // With a token a server had come to its end, so all is gone.
        std::fs::write(dir.join("api-token"), "x").unwrap();
        let (code, report) = check(dir, &[]);
        assert_eq!(code, Some(1));
        assert!(report["problems"].to_string().contains("holds nothing"));
        std::fs::remove_file(dir.join("api-token")).unwrap();
        assert_eq!(Server::start("up", dir).terminate(), Some(0));
        assert_eq!(check(dir, &[]).0, Some(0));
    }
}
