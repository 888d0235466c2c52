//! A disk that is full of file content: removing files makes room, without anybody's help.
//!
//! The test runs itself again in a mount namespace of its own, with a small tmpfs as the disk.
#![allow(missing_docs)]

mod support;

#[cfg(test)]
mod tests {

    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::time::Duration;

    use crate::support::files::{Mount, answer, content, name_in, some};
    use crate::support::{Server, json};
    use nfs3_types::nfs3::{CREATE3args, createhow3, nfs_fh3, nfsstat3, sattr3, stable_how};

    const DIR_VARIABLE: &str = "CONTROL_TEST_DIR";
    const FILE_BYTES: usize = 512 * 1024;

    /// So small that its content is kept in the metadata store.
    const SMALL_FILE_BYTES: usize = 3000;

    /// Looks at something that comes by itself, each [`LOOK_PAUSE`] apart.
    const LOOKS_MAX: usize = 600;
    const LOOK_PAUSE: Duration = Duration::from_millis(100);

    fn name(number: u32) -> String {
        format!("file-{number}")
    }

    /// Makes a file and writes it. `Err` if there is no space; then it is removed again.
    async fn make(mount: &mut Mount, number: u32) -> Result<nfs_fh3, ()> {
        make_of(mount, number, FILE_BYTES).await
    }

    async fn make_of(mount: &mut Mount, number: u32, len: usize) -> Result<nfs_fh3, ()> {
        let name = name(number);
        let args = CREATE3args {
            where_: name_in(&mount.root(), &name),
            how: createhow3::GUARDED(sattr3::default()),
        };
        let file = match answer(mount.nfs.create(&args).await) {
            Ok(made) => some(made.obj).unwrap(),
            Err(status) => {
                assert_eq!(status, nfsstat3::NFS3ERR_NOSPC);
                return Err(());
            }
        };
        let data = content(number, len);
        match mount.put(&file, 0, &data, stable_how::FILE_SYNC).await {
            Ok(()) => Ok(file),
            Err(status) => {
                assert_eq!(status, nfsstat3::NFS3ERR_NOSPC);
                mount.remove(&name).await;
                Err(())
            }
        }
    }

    /// Writes files from `first` on until the disk is full.
    async fn fill(mount: &mut Mount, first: u32) -> BTreeMap<u32, nfs_fh3> {
        let mut files = BTreeMap::new();
        for number in first.. {
            match make(mount, number).await {
                Ok(file) => files.insert(number, file),
                Err(()) => break,
            };
        }
        files
    }

    async fn assert_intact(mount: &mut Mount, numbers: impl Iterator<Item = u32>) {
        for number in numbers {
            let name = name(number);
            let read = mount.read(&name).await.unwrap();
            assert!(read == content(number, FILE_BYTES), "{name}");
        }
    }

    /// Fills the disk, removes most, fills it again, three times.
    async fn child(dir: &Path) {
        let data = dir.join("data");
        let mut kept = BTreeMap::new();
        let mut first_filled = 0;
        for round in 0..3_u32 {
            let server = Server::start_with("up", &data, &["--disk-reserve", "8MiB"]);
            let mut mount = Mount::of(&server, &server.ready).await;
            assert_intact(&mut mount, kept.keys().copied()).await;
            let first = round * 10_000;
            let mut files = fill(&mut mount, first).await;
            let filled = files.len() + kept.len();
            if round == 0 {
                first_filled = filled;
            }
            assert!(
                filled * 5 > first_filled * 4,
                "round {round}: {filled} of {first_filled}"
            );
            let all: Vec<_> = files.keys().copied().collect();
            // Every second one first: packs of which half is live are rewritten, too.
            let kept_of = [2, 3, 7][usize::try_from(round).unwrap()];
            for number in all.iter().filter(|number| **number % kept_of != 0) {
                mount.remove(name(*number)).await;
                files.remove(number);
            }
            kept.append(&mut files);
            // By itself, soon.
            let mut again = None;
            for _ in 0..LOOKS_MAX {
                again = make(&mut mount, first + 9_999).await.ok();
                if again.is_some() {
                    break;
                }
                std::thread::park_timeout(LOOK_PAUSE);
            }
            assert!(again.is_some(), "round {round}: no space came back");
            mount.remove(name(first + 9_999)).await;
            // And when told, which leaves nothing over.
            let dry = json(&["gc", "--dry-run"], &data);
            assert_eq!(
                (&dry["state"], &dry["dry_run"]),
                (&"done".into(), &true.into())
            );
            assert_eq!(dry["freed_bytes"], 0);
            let done = json(&["gc"], &data);
            assert_eq!(done["state"], "done", "{done}");
            let live = done["live_bytes"].as_u64().unwrap();
            let bytes = u64::try_from(kept.len() * FILE_BYTES).unwrap();
            assert!(
                (bytes..bytes + bytes / 50).contains(&live),
                "{live}, {bytes}"
            );
            let stored = done["stored_bytes"].as_u64().unwrap();
            assert!(stored < live * 5 / 2, "{stored} bytes for {live}");
            assert_intact(&mut mount, kept.keys().copied()).await;
            drop(mount);
            if round == 1 {
                server.kill();
            } else {
                assert_eq!(server.terminate(), Some(0));
            }
            let report = json(&["check"], &data);
            assert_eq!(report["clean"], true, "{report}");
        }
        println!("full disk passed with {} files kept", kept.len());
    }

    /// Fills the disk with small files and removes them all.
    async fn child_with_small_files(dir: &Path) {
        let data = dir.join("data");
        let server = Server::start_with("up", &data, &["--disk-reserve", "8MiB"]);
        let mut mount = Mount::of(&server, &server.ready).await;
        let file_bytes = || std::fs::metadata(data.join("meta.redb")).unwrap().len();
        let mut made = 0;
        while make_of(&mut mount, made, SMALL_FILE_BYTES).await.is_ok() {
            made += 1;
        }
        println!(
            "full after {made} files; meta.redb has {} bytes",
            file_bytes()
        );
        assert!(made > 1000, "{made} files filled the disk");
        for number in 0..made {
            mount.remove(name(number)).await;
        }
        // Both kinds again, for more than one file.
        let (mut small, mut big) = (0, 0);
        for _ in 0..LOOKS_MAX {
            while small < 100
                && make_of(&mut mount, 50_000 + small, SMALL_FILE_BYTES)
                    .await
                    .is_ok()
            {
                small += 1;
            }
            while big < 16 && make(&mut mount, 60_000 + big).await.is_ok() {
                big += 1;
            }
            if (small, big) == (100, 16) {
                break;
            }
            std::thread::park_timeout(LOOK_PAUSE);
        }
        assert_eq!(
            (small, big),
            (100, 16),
            "no space came back from {made} files; meta.redb has {} bytes",
            file_bytes()
        );
        assert_intact(&mut mount, 60_000..60_016).await;
        drop(mount);
        server.kill();
        let report = json(&["check"], &data);
        assert_eq!(report["clean"], true, "{report}");
        println!("full disk passed with {made} small files");
    }

    /// Where a child has its disk; `None` if this is not a child.
    fn child_dir() -> Option<PathBuf> {
        std::env::var_os(DIR_VARIABLE).map(PathBuf::from)
    }

    #[tokio::test]
    async fn child_on_a_small_disk() {
        if let Some(dir) = child_dir() {
            child(&dir).await;
        }
    }

    #[tokio::test]
    async fn child_on_a_small_disk_with_small_files() {
        if let Some(dir) = child_dir() {
            child_with_small_files(&dir).await;
        }
    }

    #[test]
    fn removing_files_makes_room_on_a_full_disk() {
        run_on_a_disk_of("64m", "child_on_a_small_disk");
    }

    #[test]
    fn removing_small_files_makes_room_on_a_full_disk() {
        run_on_a_disk_of("40m", "child_on_a_small_disk_with_small_files");
    }

    /// Runs a test of this file again, in a mount namespace of its own.
    fn run_on_a_disk_of(size: &str, child: &str) {
        let dir = tempfile::tempdir().unwrap();
        let mount = format!("mount -t tmpfs -o size={size} none \"$1\"");
        let namespace = |script: &str| {
            Command::new("unshare")
                .args([
                    "--user",
                    "--map-root-user",
                    "--mount",
                    "sh",
                    "-c",
                    script,
                    "sh",
                ])
                .arg(dir.path())
                .arg(std::env::current_exe().unwrap())
                .output()
        };
        if !namespace(&mount).is_ok_and(|output| output.status.success()) {
            println!("skipped: cannot mount a tmpfs in a namespace of its own");
            return;
        }
        let script = format!(
            "{mount} && {DIR_VARIABLE}=\"$1\" exec \"$2\" --exact tests::{child} --nocapture"
        );
        let output = namespace(&script).unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{out}\n{err}");
        assert!(out.contains("full disk passed"), "{out}");
    }
}
