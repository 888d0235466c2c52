//! File content that is not in packs of the data directory.
#![allow(missing_docs)]

mod support;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::support::files::Mount;
    use crate::support::{ANY_PORTS, Server, fails, json, publish, run};

    const USAGE: i32 = 2;
    const CONFLICT: i32 = 3;

    fn large(seed: u32) -> Vec<u8> {
        let mut bytes = vec![0; 400_000];
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&seed.to_be_bytes())
            .finalize_xof()
            .fill(&mut bytes);
        bytes
    }

    fn refused(dir: &Path, chunks: &str, parts: &[&str]) {
        let args = [&["serve", "--chunks", chunks], &ANY_PORTS[..]].concat();
        fails(&args, dir, CONFLICT, parts);
    }

    /// Files, trees and history work with content in the metadata store, are there after a kill, and
    /// nobody can use the installation with other chunks.
    #[tokio::test]
    async fn content_is_in_the_metadata_store() {
        let root = tempfile::tempdir().unwrap();
        let (dir, other) = (root.path().join("kv"), root.path().join("local"));
        let server = Server::start_with("up", &dir, &["--chunks", "kv"]);
        let session = json(&["session", "ls"], &dir)[0].clone();
        let mut mount = Mount::of(&server, &server.ready).await;
        mount.write_durably("large", large(3)).await;
        publish(&dir, &session, &[]);
        mount.write_durably("large", large(5)).await;
        mount.write_durably("twice", large(9)).await;
        mount.write_durably("twice", large(10)).await;
        drop(mount);
        let dry = json(&["gc", "--dry-run"], &dir);
        assert!(dry["dead_bytes"].as_u64().unwrap() > 390_000, "{dry}");
        assert_eq!(dry["freed_bytes"], 0, "{dry}");
        let collected = json(&["gc"], &dir);
        assert_eq!(collected["state"], "done", "{collected}");
        assert_eq!(collected["freed_bytes"], dry["dead_bytes"], "{collected}");
        let again = json(&["gc"], &dir);
        assert_eq!(again["dead_chunks"], 0, "{again}");
        let metrics = server.call("GET", "/metrics", None, b"").1;
        let staged = metrics
            .as_str()
            .unwrap()
            .lines()
            .find_map(|line| line.strip_prefix("holdfast_chunkstore_staged_bytes "));
        assert!(staged.unwrap().parse::<f64>().unwrap() > 780_000.0);
        server.kill();
        assert!(!dir.join("chunks").exists());
        let report = json(&["check"], &dir);
        assert_eq!(report["clean"], true, "{report}");
        fails(&["check", "--deep"], &dir, USAGE, &["leave out --deep"]);
        refused(&dir, "local", &["is in kv: start with --chunks kv"]);
        let server = Server::start_with("up", &dir, &["--chunks", "kv"]);
        let mut mount = Mount::of(&server, &server.ready).await;
        assert!(mount.read("large").await == Some(large(5)));
        drop(mount);
        let old = run(&["cat", "main", "large"], &dir);
        assert!(old.status.success() && old.stdout == large(3));
        server.kill();
        // Without the file that says where the content is, the store says it.
        std::fs::remove_file(dir.join("chunks.json")).unwrap();
        std::fs::create_dir(dir.join("chunks")).unwrap();
        refused(&dir, "local", &["files is in kv, not in local"]);

        let server = Server::start("up", &other);
        let mut mount = Mount::of(&server, &server.ready).await;
        mount.write_durably("large", large(7)).await;
        drop(mount);
        server.kill();
        refused(&other, "kv", &["is in its chunks/"]);
        std::fs::remove_dir_all(other.join("chunks")).unwrap();
        std::fs::create_dir(other.join("chunks")).unwrap();
        refused(&other, "kv", &["is in its chunks/"]);
    }
}
