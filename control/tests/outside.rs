//! Live sessions that are changed from outside: restored, synced, undone.
#![allow(missing_docs)]

mod support;

#[cfg(test)]
mod tests {

    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use crate::support::{Server, fails, holdfast, json};
    use nfs3_client::tokio::{TokioConnector, TokioIo};
    use nfs3_client::{Nfs3Connection, Nfs3ConnectionBuilder};
    use nfs3_types::nfs3::{
        CREATE3args, GETATTR3args, LOOKUP3args, MKDIR3args, Nfs3Option, Nfs3Result, READ3args,
        REMOVE3args, RENAME3args, WRITE3args, createhow3, diropargs3, fattr3, filename3, nfs_fh3,
        nfsstat3, sattr3, stable_how,
    };
    use nfs3_types::xdr_codec::Opaque;
    use serde_json::Value;
    use tokio::net::TcpStream;

    /// Exit code if something else is in the way.
    const CONFLICT: i32 = 3;

    struct Mount(Nfs3Connection<TokioIo<TcpStream>>);

    impl Mount {
        async fn of(server: &Server, opened: &Value) -> Self {
            let address = server.text("nfs_address");
            let (host, port) = address.split_once(':').unwrap();
            let port = port.parse().unwrap();
            let path = opened["mount_path"].as_str().unwrap().to_owned();
            let mount = Nfs3ConnectionBuilder::new(TokioConnector, host, path)
                .connect_from_privileged_port(false)
                .mount_port(port)
                .nfs3_port(port)
                .mount()
                .await;
            Self(mount.unwrap())
        }

        /// The directory that a path's last name is in, and that name.
        async fn place<'a>(&mut self, path: &'a [u8]) -> diropargs3<'a> {
            let mut dir = self.0.root_nfs_fh3();
            let mut names = path.split(|byte| *byte == b'/').peekable();
            loop {
                let name = names.next().unwrap();
                let what = diropargs3 {
                    dir,
                    name: filename3(Opaque::borrowed(name)),
                };
                if names.peek().is_none() {
                    return what;
                }
                match self.0.lookup(&LOOKUP3args { what }).await.unwrap() {
                    Nfs3Result::Ok(found) => dir = found.object,
                    Nfs3Result::Err(error) => panic!("{name:?}: {error:?}"),
                }
            }
        }

        async fn find(&mut self, path: impl AsRef<[u8]>) -> Option<nfs_fh3> {
            let what = self.place(path.as_ref()).await;
            match self.0.lookup(&LOOKUP3args { what }).await.unwrap() {
                Nfs3Result::Ok(found) => Some(found.object),
                Nfs3Result::Err(_) => None,
            }
        }

        /// Writes a file, and does not commit it.
        async fn write(&mut self, path: impl AsRef<[u8]>, content: &[u8]) -> nfs_fh3 {
            let args = CREATE3args {
                where_: self.place(path.as_ref()).await,
                how: createhow3::UNCHECKED(sattr3 {
                    size: Nfs3Option::Some(0),
                    ..sattr3::default()
                }),
            };
            let Nfs3Result::Ok(made) = self.0.create(&args).await.unwrap() else {
                panic!("{:?} is not created", path.as_ref());
            };
            let Nfs3Option::Some(file) = made.obj else {
                panic!("no handle");
            };
            let args = WRITE3args {
                file: file.clone(),
                offset: 0,
                count: u32::try_from(content.len()).unwrap(),
                stable: stable_how::UNSTABLE,
                data: Opaque::borrowed(content),
            };
            match self.0.write(&args).await.unwrap() {
                Nfs3Result::Ok(_) => {}
                // Restored away since it was made: it was not written.
                Nfs3Result::Err((error, _)) => assert_eq!(error, nfsstat3::NFS3ERR_STALE),
            }
            file
        }

        async fn mkdir(&mut self, path: &str) {
            let args = MKDIR3args {
                where_: self.place(path.as_bytes()).await,
                attributes: sattr3::default(),
            };
            let made = self.0.mkdir(&args).await.unwrap();
            assert!(matches!(made, Nfs3Result::Ok(_)), "{path}");
        }

        async fn remove(&mut self, path: &str) {
            let object = self.place(path.as_bytes()).await;
            let removed = self.0.remove(&REMOVE3args { object }).await.unwrap();
            assert!(matches!(removed, Nfs3Result::Ok(_)), "{path}");
        }

        async fn rename(&mut self, from: &str, to: &str) {
            let args = RENAME3args {
                from: self.place(from.as_bytes()).await,
                to: self.place(to.as_bytes()).await,
            };
            let renamed = self.0.rename(&args).await.unwrap();
            assert!(matches!(renamed, Nfs3Result::Ok(_)), "{from} {to}");
        }

        async fn read(&mut self, path: impl AsRef<[u8]>) -> Option<Vec<u8>> {
            let file = self.find(path).await?;
            Some(self.read_handle(file).await.unwrap())
        }

        async fn read_handle(&mut self, file: nfs_fh3) -> Result<Vec<u8>, nfsstat3> {
            let args = READ3args {
                file,
                offset: 0,
                count: 1 << 20,
            };
            match self.0.read(&args).await.unwrap() {
                Nfs3Result::Ok(read) => Ok(read.data.as_ref().to_vec()),
                Nfs3Result::Err((error, _)) => Err(error),
            }
        }

        async fn attributes(&mut self, object: nfs_fh3) -> fattr3 {
            let args = GETATTR3args { object };
            match self.0.getattr(&args).await.unwrap() {
                Nfs3Result::Ok(found) => found.obj_attributes,
                Nfs3Result::Err((error, _)) => panic!("{error:?}"),
            }
        }
    }

    fn id(session: &Value) -> &str {
        session["id"].as_str().unwrap()
    }

    async fn mounted(server: &Server, dir: &Path, more: &[&str]) -> (Value, Mount) {
        let session = json(&[&["session", "open"], more].concat(), dir);
        let mount = Mount::of(server, &session).await;
        (session, mount)
    }

    fn publish(dir: &Path, session: &Value, more: &[&str]) -> Value {
        json(&[&["session", "publish", id(session)], more].concat(), dir)
    }

    fn restore(dir: &Path, session: &Value, more: &[&str]) -> Value {
        json(&[&["session", "restore", id(session)], more].concat(), dir)
    }

    fn sync(dir: &Path, session: &Value, more: &[&str]) -> Value {
        json(&[&["session", "sync", id(session)], more].concat(), dir)
    }

    /// The paths that changed from outside, and what to acknowledge.
    fn changed(dir: &Path, session: &Value) -> (Vec<String>, Option<u64>) {
        let changed = json(&["session", "changed", id(session)], dir);
        assert_eq!(changed["everything"], false);
        let paths = changed["paths"].as_array().unwrap();
        let text = |path: &Value| path.as_str().unwrap().to_owned();
        let paths = paths.iter().map(text).collect();
        (paths, changed["position"].as_u64())
    }

    fn later(new: &fattr3, old: &fattr3) -> bool {
        (new.ctime.seconds, new.ctime.nseconds) > (old.ctime.seconds, old.ctime.nseconds)
    }

    #[tokio::test]
    async fn a_live_session_is_restored_under_its_mount_and_back() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        let edited = files.write("edited", b"one").await;
        files.write("large", &[1; 700_000]).await;
        let removed = files.write("removed", b"removed").await;
        files.mkdir("d").await;
        files.write("d/moved", b"moved").await;
        let v1 = publish(dir, &session, &["-m", "v1"]);
        let version = v1["head"].as_str().unwrap();

        files.write("edited", b"two, and not committed").await;
        files.write("large", &[2; 900_000]).await;
        files.remove("removed").await;
        files.rename("d/moved", "moved").await;
        let added = files.write("added", b"added").await;
        let before = files.attributes(edited.clone()).await;
        let root = files.0.root_nfs_fh3();
        let root_before = files.attributes(root.clone()).await;

        let done = restore(dir, &session, &["--version", "main"]);
        assert_eq!(
            (&done["outcome"], &done["version"]),
            (&"restored".into(), &version.into())
        );
        assert_eq!(files.read_handle(edited.clone()).await.unwrap(), b"one");
        assert_eq!(files.read("edited").await.unwrap(), b"one");
        assert_eq!(files.read("large").await.unwrap(), [1; 700_000]);
        assert_eq!(files.find("removed").await.unwrap(), removed);
        assert_eq!(files.read("d/moved").await.unwrap(), b"moved");
        assert_eq!(files.find("moved").await, None);
        let stale = files.read_handle(added.clone()).await;
        assert_eq!(stale, Err(nfsstat3::NFS3ERR_STALE));
        assert!(later(&files.attributes(edited.clone()).await, &before));
        assert!(later(&files.attributes(root).await, &root_before));
        let (paths, position) = changed(dir, &session);
        for path in ["edited", "large", "removed", "d/moved", "moved", "added"] {
            assert!(paths.iter().any(|found| found == path), "{path}: {paths:?}");
        }
        let again = restore(dir, &session, &["--version", version]);
        assert_eq!(again["outcome"], "unchanged");

        // It is an ordinary change: durable, and undone like others.
        server.kill();
        let server = Server::start("up", dir);
        let mut files = Mount::of(&server, &json(&["session", "ticket", id(&session)], dir)).await;
        assert_eq!(files.read("edited").await.unwrap(), b"one");
        assert_eq!(changed(dir, &session), (paths, position));
        let operation = done["operation"].as_str().unwrap();
        json(&["op", "undo", operation], dir);
        assert_eq!(
            files.read("edited").await.unwrap(),
            b"two, and not committed"
        );
        assert_eq!(files.read("large").await.unwrap(), [2; 900_000]);
        assert_eq!(files.read_handle(added).await.unwrap(), b"added");
        assert_eq!(files.find("removed").await, None);
        let log = json(&["op", "log", "--limit", "1"], dir);
        let undoing = log[0]["id"].as_str().unwrap();
        assert_ne!(undoing, operation);
        json(&["op", "undo", undoing], dir);
        assert_eq!(files.read("edited").await.unwrap(), b"one");

        later_work_stays(dir, &mut files).await;
        // What it shares with versions is not taken for garbage.
        assert!(json(&["gc"], dir)["error"].is_null());
        assert_eq!(files.read("large").await.unwrap(), [1; 700_000]);
        let published = publish(dir, &session, &["-m", "v2"]);
        assert_eq!(published["outcome"], "fast-forward");
        assert_eq!(server.terminate(), Some(0));
        assert_eq!(json(&["check"], dir)["clean"], true);
    }

    /// What came after it is not dropped by undoing.
    async fn later_work_stays(dir: &Path, files: &mut Mount) {
        files.write("edited", b"three").await;
        let log = json(&["op", "log", "--limit", "1"], dir);
        let last = log[0]["id"].as_str().unwrap();
        fails(
            &["op", "undo", last],
            dir,
            CONFLICT,
            &["changed since", "session restore"],
        );
        assert_eq!(files.read("edited").await.unwrap(), b"three");
    }

    #[tokio::test]
    async fn paths_are_restored_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        files.mkdir("src").await;
        files.write("src/a", b"a1").await;
        files.write("src/b", b"b1").await;
        files.write("other", b"o1").await;
        files.write(b"odd\xff", b"x1").await;
        publish(dir, &session, &["-m", "v1"]);
        files.write("src/a", b"a2").await;
        files.remove("src/b").await;
        files.write("src/new", b"n").await;
        files.write("other", b"o2").await;
        files.write(b"odd\xff", b"x2").await;

        let done = restore(dir, &session, &["--version", "main", "src/a"]);
        assert_eq!(done["changed"], 1);
        assert_eq!(files.read("src/a").await.unwrap(), b"a1");
        assert_eq!(files.read("other").await.unwrap(), b"o2");
        restore(dir, &session, &["--version", "main", "/src/"]);
        assert_eq!(files.read("src/b").await.unwrap(), b"b1");
        assert_eq!(files.find("src/new").await, None);
        assert_eq!(files.read("other").await.unwrap(), b"o2");
        assert_eq!(files.read(b"odd\xff").await.unwrap(), b"x2");
        let odd = holdfast()
            .args(["session", "restore", id(&session), "--version", "main"])
            .arg(OsStr::from_bytes(b"odd\xff"))
            .arg("--data-dir")
            .arg(dir)
            .output()
            .unwrap();
        assert!(odd.status.success(), "{odd:?}");
        assert_eq!(files.read(b"odd\xff").await.unwrap(), b"x1");
        let changed = json(&["session", "changed", id(&session)], dir);
        assert_eq!(changed["paths_hex"][0], "6f6464ff");

        let fail = |path: &str, code, part: &str| {
            let line = [
                "session",
                "restore",
                id(&session),
                "--version",
                "main",
                path,
            ];
            fails(&line, dir, code, &[part]);
        };
        fail("nowhere", 4, "neither");
        fail("a/../b", 2, "..");
        fails(
            &["session", "restore", id(&session), "--version", "v9"],
            dir,
            4,
            &["v9"],
        );
        // The whole of it is undone.
        let log = json(&["op", "log", "--limit", "1"], dir);
        json(&["op", "undo", log[0]["id"].as_str().unwrap()], dir);
        assert_eq!(files.read(b"odd\xff").await.unwrap(), b"x2");
        let read_only = json(&["session", "open", "--read-only"], dir);
        let line = ["session", "restore", id(&read_only), "--version", "main"];
        fails(&line, dir, CONFLICT, &["read-only"]);
        assert_eq!(server.terminate(), Some(0));
        assert_eq!(json(&["check"], dir)["clean"], true);
    }

    #[tokio::test]
    async fn a_session_gets_what_its_branch_has() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (first, mut first_files) = mounted(&server, dir, &[]).await;
        let line = ["session", "sync", id(&first)];
        fails(&line, dir, 4, &["main"]);
        first_files.write("shared", b"one\ntwo\nthree\n").await;
        publish(dir, &first, &["-m", "begin"]);
        let (second, mut second_files) = mounted(&server, dir, &[]).await;
        assert_eq!(sync(dir, &second, &[])["outcome"], "up-to-date");

        // Nothing of its own: it goes forward.
        first_files.write("news", b"news").await;
        let head = publish(dir, &first, &["-m", "news"])["head"].clone();
        let tried = sync(dir, &second, &["--dry-run"]);
        assert_eq!(tried["outcome"], "fast-forward");
        assert_eq!(second_files.find("news").await, None);
        let synced = sync(dir, &second, &[]);
        assert_eq!(
            (&synced["outcome"], &synced["commit"]),
            (&"fast-forward".into(), &head)
        );
        assert_eq!(second_files.read("news").await.unwrap(), b"news");
        assert_eq!(changed(dir, &second).0, ["news"]);
        let shown = json(&["session", "show", id(&second)], dir);
        assert_eq!(shown["commit"], head);
        // The trees are equal, so there is nothing to publish.
        assert_eq!(publish(dir, &second, &[])["outcome"], "up-to-date");

        // Work of its own is merged, text by lines, and publishing goes forward then.
        let shared = second_files.write("shared", b"ONE\ntwo\nthree\n").await;
        second_files.write("own", b"own").await;
        first_files.write("shared", b"one\ntwo\nTHREE\n").await;
        publish(dir, &first, &["-m", "three"]);
        let synced = sync(dir, &second, &[]);
        assert_eq!(synced["outcome"], "merged");
        assert_eq!(
            second_files.read_handle(shared.clone()).await.unwrap(),
            b"ONE\ntwo\nTHREE\n"
        );
        assert_eq!(second_files.read("own").await.unwrap(), b"own");
        let undo = synced["operation"].as_str().unwrap();
        json(&["op", "undo", undo], dir);
        assert_eq!(
            second_files.read("shared").await.unwrap(),
            b"ONE\ntwo\nthree\n"
        );
        let shown = json(&["session", "show", id(&second)], dir);
        assert_eq!(shown["commit"], synced["before"]);
        assert_eq!(sync(dir, &second, &[])["outcome"], "merged");
        assert_eq!(
            publish(dir, &second, &["-m", "both"])["outcome"],
            "fast-forward"
        );
        assert_eq!(sync(dir, &first, &[])["outcome"], "fast-forward");
        assert_eq!(first_files.read("own").await.unwrap(), b"own");

        clashes(
            dir,
            (&first, &mut first_files),
            (&second, &mut second_files),
        )
        .await;
        assert_eq!(server.terminate(), Some(0));
        assert_eq!(json(&["check"], dir)["clean"], true);
    }

    /// Both sessions change the same line; the first publishes it.
    async fn clashes(dir: &Path, first: (&Value, &mut Mount), second: (&Value, &mut Mount)) {
        let ((first, first_files), (second, second_files)) = (first, second);
        let mut round = 0_u8;
        // Both are kept last: what is not resolved stays on the branch.
        for policy in ["ours", "theirs", "keep-both"] {
            round += 1;
            let (ours, theirs) = ([round; 3], [round + 100; 3]);
            second_files.write("shared", &ours).await;
            first_files.write("shared", &theirs).await;
            publish(dir, first, &["-m", policy, "--policy", "theirs"]);
            let line = ["session", "sync", id(second)];
            fails(&line, dir, CONFLICT, &["shared", "policy"]);
            let tried = sync(dir, second, &["--dry-run"]);
            assert_eq!(tried["conflicts"][0]["path"], "shared");
            assert_eq!(second_files.read("shared").await.unwrap(), ours);
            let synced = sync(dir, second, &["--policy", policy]);
            assert_eq!(synced["outcome"], "merged", "{policy}");
            let expected = if policy == "theirs" { theirs } else { ours };
            assert_eq!(
                second_files.read("shared").await.unwrap(),
                expected,
                "{policy}"
            );
            if policy == "keep-both" {
                let aside = synced["conflicts"][0]["aside"].as_str().unwrap();
                assert_eq!(second_files.read(aside).await.unwrap(), theirs);
            }
            if policy == "keep-both" {
                let line = ["session", "publish", id(second)];
                fails(&line, dir, CONFLICT, &["unresolved", "shared"]);
            }
            let published = publish(dir, second, &["-m", policy, "--policy", policy]);
            assert_eq!(published["outcome"], "fast-forward", "{policy}");
            sync(dir, first, &["--policy", "theirs"]);
        }
    }

    /// Whatever is written while a session is restored is before that, or after it and there.
    #[tokio::test]
    async fn nothing_that_is_written_meanwhile_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_owned();
        let server = Server::start("up", &dir);
        let (session, mut files) = mounted(&server, &dir, &[]).await;
        files.write("kept", b"kept").await;
        publish(&dir, &session, &["-m", "empty"]);
        let restored = {
            let (dir, session) = (dir.clone(), session.clone());
            tokio::task::spawn_blocking(move || {
                let done = (0..12).map(|_| restore(&dir, &session, &["--version", "main"]));
                let restored = |done: &Value| done["outcome"] == "restored";
                done.filter(restored).count()
            })
        };
        let mut written = 0_u32;
        while !restored.is_finished() {
            files
                .write(format!("n{written}"), &written.to_be_bytes())
                .await;
            written += 1;
        }
        files
            .write(format!("n{written}"), &written.to_be_bytes())
            .await;
        assert!(restored.await.unwrap() > 3);
        // What is there is all that was written after some moment.
        let mut there = false;
        for number in 0..=written {
            let found = files.read(format!("n{number}")).await;
            if let Some(content) = &found {
                assert_eq!(content[..], number.to_be_bytes(), "n{number}");
            }
            assert!(
                found.is_some() || !there,
                "n{number} of {written} is missing"
            );
            there |= found.is_some();
        }
        assert!(there);
        assert_eq!(files.read("kept").await.unwrap(), b"kept");
        server.kill();
        assert_eq!(json(&["check"], &dir)["clean"], true);
    }

    #[tokio::test]
    async fn what_changed_is_told_until_it_is_acknowledged() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        assert_eq!(changed(dir, &session), (Vec::new(), None));
        files.write("f", b"1").await;
        publish(dir, &session, &["-m", "v1"]);
        files.write("f", b"2").await;
        restore(dir, &session, &["--version", "main"]);
        let (paths, first) = changed(dir, &session);
        assert_eq!(paths, ["f"]);
        files.write("g", b"2").await;
        restore(dir, &session, &["--version", "main"]);
        let (paths, second) = changed(dir, &session);
        assert_eq!(paths, ["f", "g"]);
        assert!(second > first);
        let acknowledge = |position: Option<u64>| {
            let position = position.unwrap().to_string();
            let line = [
                "session",
                "changed",
                id(&session),
                "--acknowledge",
                &position,
            ];
            json(&line, dir)
        };
        acknowledge(first);
        assert_eq!(changed(dir, &session), (vec!["g".to_owned()], second));
        // A fork begins with none, and its mounts with nothing cached.
        let fork = json(&["session", "fork", id(&session)], dir);
        assert_eq!(changed(dir, &fork), (Vec::new(), None));

        // `refresh` looks at what it is told, and acknowledges.
        let at = tempfile::tempdir().unwrap();
        let mount = at.path().to_str().unwrap();
        let refreshed = json(&["refresh", mount, "--session", id(&session)], dir);
        assert_eq!(
            (&refreshed["refreshed"], &refreshed["everything"]),
            (&2.into(), &false.into())
        );
        assert_eq!(changed(dir, &session), (Vec::new(), None));
        fails(
            &["refresh", "/nonexistent", "--session", id(&session)],
            dir,
            4,
            &["/nonexistent"],
        );
        assert_eq!(server.terminate(), Some(0));
    }
}
