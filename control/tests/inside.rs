//! `.holdfast` in a mount: history seen, restored and made by a client that has nothing else.
#![allow(missing_docs)]

mod support;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use crate::support::{Server, json};
    use nfs3_client::tokio::{TokioConnector, TokioIo};
    use nfs3_client::{Nfs3Connection, Nfs3ConnectionBuilder};
    use nfs3_types::nfs3::{
        ACCESS3args, COMMIT3args, CREATE3args, FSSTAT3args, GETATTR3args, LINK3args, LOOKUP3args,
        MKDIR3args, Nfs3Option, Nfs3Result, READ3args, READDIR3args, READDIRPLUS3args, REMOVE3args,
        RENAME3args, RMDIR3args, SETATTR3args, SYMLINK3args, WRITE3args, cookieverf3, createhow3,
        diropargs3, fattr3, filename3, nfs_fh3, nfspath3, nfsstat3, sattr3, sattrguard3, set_mtime,
        stable_how, symlinkdata3,
    };
    use nfs3_types::xdr_codec::Opaque;
    use serde_json::Value;
    use tokio::net::TcpStream;

    type Failed = nfsstat3;

    struct Mount(Nfs3Connection<TokioIo<TcpStream>>);

    /// Takes what a call gives, or its status.
    macro_rules! call {
        ($mount:expr, $procedure:ident, $args:expr) => {
            match $mount.0.$procedure($args).await.unwrap() {
                Nfs3Result::Ok(ok) => Ok(ok),
                Nfs3Result::Err((status, ..)) => Err(status),
            }
        };
    }

    fn some<T: nfs3_types::xdr_codec::Pack + nfs3_types::xdr_codec::Unpack>(
        option: Nfs3Option<T>,
    ) -> Option<T> {
        match option {
            Nfs3Option::Some(it) => Some(it),
            Nfs3Option::None => None,
        }
    }

    fn times(of: &fattr3) -> [(u32, u32); 2] {
        [of.mtime, of.ctime].map(|time| (time.seconds, time.nseconds))
    }

    fn place<'a>(dir: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
        diropargs3 {
            dir: dir.clone(),
            name: filename3(Opaque::borrowed(name.as_bytes())),
        }
    }

    /// What a LOOKUP finds.
    struct Found {
        handle: nfs_fh3,
        attributes: fattr3,
        dir: fattr3,
    }

    impl Mount {
        async fn of(server: &Server, path: &Value) -> Self {
            let address = server.text("nfs_address");
            let (host, port) = address.split_once(':').unwrap();
            let port = port.parse().unwrap();
            let path = path.as_str().unwrap().to_owned();
            let mount = Nfs3ConnectionBuilder::new(TokioConnector, host, path)
                .connect_from_privileged_port(false)
                .mount_port(port)
                .nfs3_port(port)
                .mount()
                .await;
            Self(mount.unwrap())
        }

        fn root(&self) -> nfs_fh3 {
            self.0.root_nfs_fh3()
        }

        async fn lookup(&mut self, dir: &nfs_fh3, name: &str) -> Result<Found, Failed> {
            let what = place(dir, name);
            call!(self, lookup, &LOOKUP3args { what }).map(|ok| Found {
                handle: ok.object,
                attributes: some(ok.obj_attributes).unwrap(),
                dir: some(ok.dir_attributes).unwrap(),
            })
        }

        /// Walks as a client does that trusts no name.
        async fn walk(&mut self, path: &str) -> Result<Found, Failed> {
            let mut dir = self.root();
            let mut found = self.lookup(&dir, ".").await?;
            for name in path.split('/') {
                found = self.lookup(&dir, name).await?;
                dir = found.handle.clone();
            }
            Ok(found)
        }

        async fn attributes(&mut self, object: &nfs_fh3) -> Result<fattr3, Failed> {
            let object = object.clone();
            call!(self, getattr, &GETATTR3args { object }).map(|ok| ok.obj_attributes)
        }

        async fn read_at(&mut self, file: &nfs_fh3, offset: u64) -> Result<Vec<u8>, Failed> {
            let (file, count) = (file.clone(), 1 << 20);
            let args = READ3args {
                file,
                offset,
                count,
            };
            call!(self, read, &args).map(|ok| ok.data.as_ref().to_vec())
        }

        /// Opens and reads: the size that LOOKUP told is that of the content.
        async fn read(&mut self, path: &str) -> String {
            let found = self.walk(path).await.unwrap();
            let content = self.read_at(&found.handle, 0).await.unwrap();
            assert_eq!(u64::try_from(content.len()).unwrap(), found.attributes.size);
            String::from_utf8(content).unwrap()
        }

        async fn put(
            &mut self,
            file: &nfs_fh3,
            text: &[u8],
            how: stable_how,
        ) -> Result<(), Failed> {
            let args = WRITE3args {
                file: file.clone(),
                offset: 0,
                count: u32::try_from(text.len()).unwrap(),
                stable: how,
                data: Opaque::borrowed(text),
            };
            let written = call!(self, write, &args)?;
            assert_eq!(written.committed, how);
            Ok(())
        }

        async fn commit(&mut self, file: &nfs_fh3) -> Result<(), Failed> {
            let args = COMMIT3args {
                file: file.clone(),
                offset: 0,
                count: 0,
            };
            call!(self, commit, &args).map(|_| ())
        }

        /// A file in the root, written and committed.
        async fn write(&mut self, name: &str, content: &[u8]) {
            let args = CREATE3args {
                where_: place(&self.root(), name),
                how: createhow3::UNCHECKED(sattr3 {
                    size: Nfs3Option::Some(0),
                    ..sattr3::default()
                }),
            };
            let made = call!(self, create, &args).unwrap();
            let file = some(made.obj).unwrap();
            self.put(&file, content, stable_how::FILE_SYNC)
                .await
                .unwrap();
        }

        /// What `echo TEXT > .holdfast/VERB` sends: truncation, one stable WRITE. The status is that
        /// of `close`.
        async fn say(&mut self, verb: &str, text: &str) -> Result<(), Failed> {
            let file = self.walk(&format!(".holdfast/{verb}")).await?.handle;
            let args = SETATTR3args {
                object: file.clone(),
                new_attributes: sattr3 {
                    size: Nfs3Option::Some(0),
                    mtime: set_mtime::SET_TO_SERVER_TIME,
                    ..sattr3::default()
                },
                guard: sattrguard3::None,
            };
            call!(self, setattr, &args)?;
            let text = format!("{text}\n");
            self.put(&file, text.as_bytes(), stable_how::FILE_SYNC)
                .await
        }

        async fn access(&mut self, object: &nfs_fh3) -> u32 {
            let args = ACCESS3args {
                object: object.clone(),
                access: 0x3f,
            };
            call!(self, access, &args).unwrap().access
        }

        /// Names and file ids of a directory, by READDIR and READDIRPLUS.
        async fn list(&mut self, dir: &nfs_fh3) -> Vec<(String, u64)> {
            let args = READDIR3args {
                dir: dir.clone(),
                cookie: 0,
                cookieverf: cookieverf3::default(),
                count: 60_000,
            };
            let listed = call!(self, readdir, &args).unwrap();
            assert!(listed.reply.eof);
            let name = |name: &filename3<'_>| String::from_utf8(name.0.as_ref().to_vec()).unwrap();
            let entries = listed.reply.entries.into_inner().into_iter();
            let plain: Vec<_> = entries
                .map(|entry| (name(&entry.name), entry.fileid))
                .collect();
            let args = READDIRPLUS3args {
                dir: dir.clone(),
                cookie: 0,
                cookieverf: cookieverf3::default(),
                dircount: 60_000,
                maxcount: 60_000,
            };
            let listed = call!(self, readdirplus, &args).unwrap();
            let entries = listed.reply.entries.into_inner().into_iter();
            let plus: Vec<_> = entries
                .map(|entry| (name(&entry.name), entry.fileid))
                .collect();
            assert_eq!(plain, plus);
            plain
        }
    }

    /// The value after a word in a text.
    fn value<'a>(text: &'a str, word: &str) -> &'a str {
        let line = text.lines().find_map(|line| {
            let (first, rest) = line.split_once(' ')?;
            (first == word).then(|| rest.trim())
        });
        line.unwrap_or_else(|| panic!("no {word} in {text}"))
    }

    fn open(dir: &Path, more: &[&str]) -> Value {
        json(&[&["session", "open"], more].concat(), dir)
    }

    async fn mounted(server: &Server, dir: &Path, more: &[&str]) -> (String, Mount) {
        let session = open(dir, more);
        let mount = Mount::of(server, &session["mount_path"]).await;
        (session["id"].as_str().unwrap().to_owned(), mount)
    }

    /// Edit, publish, see the log, restore what was there: with nothing but the mount.
    #[tokio::test]
    async fn a_mount_is_enough() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (id, mut mount) = mounted(&server, dir, &["--agent", "claude", "--run", "r1"]).await;
        let status = mount.read(".holdfast/status").await;
        assert_eq!(value(&status, "session"), id);
        assert_eq!(value(&status, "branch-at"), "none");
        assert_eq!(mount.read(".holdfast/log").await, "");

        mount.write("file", b"first").await;
        mount.write("odd\nname", &[7; 300_000]).await;
        assert_eq!(
            mount.read(".holdfast/diff").await,
            "A  file\nA  \"odd\\nname\"\n"
        );
        assert_eq!(mount.say("publish", "the first version").await, Ok(()));
        let first = mount.read(".holdfast/publish").await;
        assert_eq!(value(&first, "published"), "created");
        assert_eq!(value(&first, "branch"), "main");
        assert_eq!(mount.read(".holdfast/diff").await, "");

        mount.write("file", b"second, and wrong").await;
        assert_eq!(mount.read(".holdfast/diff").await, "M  file\n");
        assert_eq!(mount.say("checkpoint", "on the way").await, Ok(()));
        let on_the_way = mount.read(".holdfast/checkpoint").await;
        assert_eq!(value(&on_the_way, "checkpoint"), "new");
        assert_eq!(mount.say("checkpoint", "again").await, Ok(()));
        let again = mount.read(".holdfast/checkpoint").await;
        assert_eq!(value(&again, "checkpoint"), "unchanged");
        assert_eq!(value(&again, "commit"), value(&on_the_way, "commit"));
        assert_eq!(mount.say("publish", "the second version").await, Ok(()));
        let second = mount.read(".holdfast/publish").await;
        assert_eq!(value(&second, "published"), "fast-forward");
        assert_eq!(value(&second, "branch-at"), value(&on_the_way, "commit"));

        let log = mount.read(".holdfast/log").await;
        let at = |text: &str| {
            log.find(text)
                .unwrap_or_else(|| panic!("no {text} in {log}"))
        };
        assert!(at("(main, this session)") < at("    on the way"));
        assert!(at("    on the way") < at("    the first version"));
        assert_eq!((value(&log, "agent"), value(&log, "run")), ("claude", "r1"));
        // The same history as everywhere else.
        let told = json(&["log"], dir);
        assert_eq!(told[0]["id"], value(&second, "commit"));
        assert_eq!(told[1]["message"], "the first version");

        assert_eq!(mount.read(".holdfast/at/main~1/file").await, "first");
        let whole = mount.walk(".holdfast/at/main/odd\nname").await.unwrap();
        let content = mount.read_at(&whole.handle, 100_000).await.unwrap();
        assert_eq!(content, [7; 200_000]);
        mount.write("file", b"first").await;
        assert_eq!(mount.say("publish", "back to the first").await, Ok(()));
        let status = mount.read(".holdfast/status").await;
        assert_eq!(value(&status, "branch-at"), value(&status, "commit"));
        assert_eq!(mount.read(".holdfast/at/main/file").await, "first");
        assert_eq!(
            mount.read(".holdfast/at/main~1/file").await,
            "second, and wrong"
        );
        assert_eq!(server.terminate(), Some(0));
        assert_eq!(json(&["check"], dir)["clean"], true);
    }

    /// It is not listed, cannot be made, taken away or written into, and shares no file id.
    #[tokio::test]
    async fn it_is_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (_, mut mount) = mounted(&server, dir, &[]).await;
        let root = mount.root();
        mount.write("file", b"content").await;
        mount.say("publish", "one").await.unwrap();
        mount.write("file", b"other").await;
        mount.say("publish", "two").await.unwrap();
        let names: Vec<_> = mount.list(&root).await;
        let names: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [".", "..", "file"]);

        let file = mount.walk("file").await.unwrap();
        let top = mount.walk(".holdfast").await.unwrap();
        let versions = mount.walk(".holdfast/at").await.unwrap().handle;
        let old = mount.walk(".holdfast/at/main~").await.unwrap();
        let listed = mount.list(&top.handle).await;
        let names: Vec<&str> = listed.iter().map(|(name, _)| name.as_str()).collect();
        let inside = [
            "at",
            "changed",
            "checkpoint",
            "conflicts",
            "diff",
            "log",
            "publish",
            "status",
        ];
        assert_eq!(names, [&[".", ".."][..], &inside].concat());
        assert_eq!(mount.list(&versions).await.len(), 2);
        let listed_old = mount.list(&old.handle).await;
        let names: Vec<&str> = listed_old.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [".", "..", "file"]);

        // Each object has an id of its own, the same wherever it is told, in one filesystem.
        let mut ids = HashSet::new();
        let mut paths = vec!["file".to_owned(), ".holdfast".to_owned()];
        paths.extend(inside.map(|name| format!(".holdfast/{name}")));
        for version in ["main", "main~"] {
            paths.push(format!(".holdfast/at/{version}"));
            paths.push(format!(".holdfast/at/{version}/file"));
        }
        for path in &paths {
            let found = mount.walk(path).await.unwrap();
            let attributes = mount.attributes(&found.handle).await.unwrap();
            assert_eq!(attributes.fileid, found.attributes.fileid, "{path}");
            assert_eq!(attributes.fsid, file.attributes.fsid, "{path}");
            assert!(ids.insert(attributes.fileid), "{path}");
        }
        for (name, id) in listed.iter().skip(2) {
            let found = mount.lookup(&top.handle, name).await.unwrap();
            assert_eq!(found.attributes.fileid, *id, "{name}");
        }
        let old_file = mount.lookup(&old.handle, "file").await.unwrap();
        assert_eq!(old_file.attributes.fileid, listed_old[2].1);
        // Attributes beside an error are those of the object, too.
        let what = place(&old.handle, "nothing");
        let missing = mount.0.lookup(&LOOKUP3args { what }).await.unwrap();
        let Nfs3Result::Err((nfsstat3::NFS3ERR_NOENT, beside)) = missing else {
            panic!("{missing:?}");
        };
        let beside = some(beside.dir_attributes).unwrap();
        assert_eq!(beside.fileid, old.attributes.fileid);

        changes_are_refused(&mut mount, &[root, top.handle, versions, old.handle]).await;
        between_trees_nothing_moves(&mut mount, &file.handle, &old_file.handle).await;
        assert_eq!(mount.read("file").await, "other");
        assert_eq!(server.terminate(), Some(0));
        assert_eq!(json(&["check"], dir)["clean"], true);
    }

    /// `dirs`: the root, `.holdfast`, `at`, and the root of a commit.
    async fn changes_are_refused(mount: &mut Mount, dirs: &[nfs_fh3; 4]) {
        use nfsstat3::{NFS3ERR_EXIST, NFS3ERR_ROFS};
        let [root, rest @ ..] = dirs;
        let all = [(root, ".holdfast", NFS3ERR_EXIST)];
        let inside = rest.iter().map(|dir| (dir, "new", NFS3ERR_ROFS));
        for (dir, name, wanted) in all.into_iter().chain(inside) {
            let where_ = || place(dir, name);
            let how = createhow3::GUARDED(sattr3::default());
            let (where_of_file, where_of_dir, where_of_link) = (where_(), where_(), where_());
            let args = CREATE3args {
                where_: where_of_file,
                how,
            };
            assert_eq!(call!(mount, create, &args).err(), Some(wanted), "{name}");
            let args = MKDIR3args {
                where_: where_of_dir,
                attributes: sattr3::default(),
            };
            assert_eq!(call!(mount, mkdir, &args).err(), Some(wanted), "{name}");
            let args = SYMLINK3args {
                where_: where_of_link,
                symlink: symlinkdata3 {
                    symlink_attributes: sattr3::default(),
                    symlink_data: nfspath3(Opaque::borrowed(b"x")),
                },
            };
            assert_eq!(call!(mount, symlink, &args).err(), Some(wanted), "{name}");
        }
        removals_are_refused(mount, dirs).await;
        let [top, _, old] = rest;
        for (dir, name) in [(top, "status"), (top, "at"), (old, "file"), (old, ".")] {
            let object = mount.lookup(dir, name).await.unwrap().handle;
            let args = SETATTR3args {
                object: object.clone(),
                new_attributes: sattr3 {
                    mode: Nfs3Option::Some(0o777),
                    ..sattr3::default()
                },
                guard: sattrguard3::None,
            };
            let set = call!(mount, setattr, &args);
            assert_eq!(set.err(), Some(NFS3ERR_ROFS), "{name}");
            // MODIFY, EXTEND and DELETE are not granted.
            assert_eq!(mount.access(&object).await & 0x1c, 0, "{name}");
            if name == "status" || name == "file" {
                let put = mount.put(&object, b"x", stable_how::FILE_SYNC).await;
                assert_eq!(put, Err(NFS3ERR_ROFS), "{name}");
                assert_eq!(mount.commit(&object).await, Err(NFS3ERR_ROFS), "{name}");
            }
            let fsroot = object;
            assert!(call!(mount, fsstat, &FSSTAT3args { fsroot }).is_ok());
        }
    }

    async fn removals_are_refused(mount: &mut Mount, dirs: &[nfs_fh3; 4]) {
        use nfsstat3::NFS3ERR_ROFS;
        let [root, top, versions, old] = dirs;
        for (dir, name) in [
            (root, ".holdfast"),
            (top, "status"),
            (top, "publish"),
            (top, "at"),
            (versions, "main"),
            (old, "file"),
        ] {
            let object = place(dir, name);
            let removed = call!(mount, remove, &REMOVE3args { object });
            assert_eq!(removed.err(), Some(NFS3ERR_ROFS), "{name}");
            let object = place(dir, name);
            let removed = call!(mount, rmdir, &RMDIR3args { object });
            assert_eq!(removed.err(), Some(NFS3ERR_ROFS), "{name}");
            for (from, to) in [(name, "new"), ("file", name)] {
                let (from, to) = (place(dir, from), place(dir, to));
                let renamed = call!(mount, rename, &RENAME3args { from, to });
                assert_eq!(renamed.err(), Some(NFS3ERR_ROFS), "{name}");
            }
        }
    }

    async fn between_trees_nothing_moves(mount: &mut Mount, live: &nfs_fh3, old: &nfs_fh3) {
        use nfsstat3::{NFS3ERR_EXIST, NFS3ERR_XDEV};
        let root = mount.root();
        let main = mount.walk(".holdfast/at/main").await.unwrap().handle;
        let before = mount.walk(".holdfast/at/main~").await.unwrap().handle;
        let top = mount.walk(".holdfast").await.unwrap().handle;
        for (from, to) in [
            (&main, &root),
            (&root, &main),
            (&main, &before),
            (&root, &top),
        ] {
            let (from, to) = (place(from, "file"), place(to, "moved"));
            let renamed = call!(mount, rename, &RENAME3args { from, to });
            assert_eq!(renamed.err(), Some(NFS3ERR_XDEV));
        }
        for (file, dir) in [(old, &root), (live, &main), (old, &main), (live, &top)] {
            let (file, link) = (file.clone(), place(dir, "linked"));
            let linked = call!(mount, link, &LINK3args { file, link });
            assert_eq!(linked.err(), Some(NFS3ERR_XDEV));
        }
        let (file, link) = (live.clone(), place(&root, ".holdfast"));
        let linked = call!(mount, link, &LINK3args { file, link });
        assert_eq!(linked.err(), Some(NFS3ERR_EXIST));
    }

    /// A client trusts names as long as their directory has not changed, and content as long as its
    /// file has not.
    #[tokio::test]
    async fn nothing_is_trusted_for_longer_than_it_holds() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (_, mut mount) = mounted(&server, dir, &[]).await;
        let top = mount.walk(".holdfast").await.unwrap().handle;
        let at = mount.walk(".holdfast/at").await.unwrap().handle;
        let mut last = [(0, 0); 2];
        for (dir, name) in [
            (&top, "status"),
            (&at, "main"),
            (&top, "none"),
            (&at, "none"),
        ] {
            for _ in 0..2 {
                let what = place(dir, name);
                let told = match mount.0.lookup(&LOOKUP3args { what }).await.unwrap() {
                    Nfs3Result::Ok(ok) => some(ok.dir_attributes),
                    Nfs3Result::Err((_, beside)) => some(beside.dir_attributes),
                };
                let now = times(&told.unwrap());
                assert!(now[0] > last[0] && now[1] > last[1], "{name}");
                last = now;
            }
        }
        // Between two LOOKUPs the directory is as it was, or a listing would begin anew all the time.
        let listed = times(&mount.attributes(&top).await.unwrap());
        assert_eq!(listed, times(&mount.attributes(&top).await.unwrap()));

        let log = mount.lookup(&top, "log").await.unwrap();
        let again = mount.lookup(&top, "log").await.unwrap();
        assert_eq!(times(&log.attributes), times(&again.attributes));
        mount.write("file", b"x").await;
        mount.say("publish", "one").await.unwrap();
        // A reader who looked it up before goes on reading what it looked up.
        assert_eq!(mount.read_at(&log.handle, 0).await.unwrap(), b"");
        let later = mount.lookup(&top, "log").await.unwrap();
        assert_eq!(later.handle, log.handle);
        assert!(times(&later.attributes) > times(&again.attributes));
        assert!(times(&later.dir) > times(&again.dir));
        // What `publish` shows has changed even if it says the same.
        mount.say("publish", "two").await.unwrap();
        let first = mount.lookup(&top, "publish").await.unwrap().attributes;
        mount.say("publish", "three").await.unwrap();
        let second = mount.lookup(&top, "publish").await.unwrap().attributes;
        assert_eq!(first.size, second.size);
        assert!(times(&second) > times(&first));
    }

    /// What a version can be, and what it is not.
    #[tokio::test]
    async fn versions_are_found_by_all_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (_, mut mount) = mounted(&server, dir, &[]).await;
        mount.write("file", b"first").await;
        mount.say("publish", "one").await.unwrap();
        json(&["ref", "create", "v1", "main", "--tag"], dir);
        json(&["ref", "create", "agent/fix-12", "main"], dir);
        mount.write("file", b"second").await;
        mount.say("publish", "two").await.unwrap();
        let log = json(&["log"], dir);
        let (first, second) = (
            log[1]["id"].as_str().unwrap(),
            log[0]["id"].as_str().unwrap(),
        );
        for (version, content) in [
            ("main", "second"),
            ("main~1", "first"),
            ("main^", "first"),
            ("v1", "first"),
            ("agent,fix-12", "first"),
            (first, "first"),
            (&first[..12], "first"),
            (&second[..12], "second"),
            ("now", "second"),
            ("main@{now}", "second"),
            ("agent,fix-12@{now}", "first"),
            ("2100-01-01T10:00Z", "second"),
        ] {
            let path = format!(".holdfast/at/{version}/file");
            assert_eq!(mount.read(&path).await, content, "{version}");
        }
        let at = mount.walk(".holdfast/at").await.unwrap().handle;
        let long = "x".repeat(256);
        for (version, wanted) in [
            ("nothing", nfsstat3::NFS3ERR_NOENT),
            ("main~2", nfsstat3::NFS3ERR_NOENT),
            ("agent", nfsstat3::NFS3ERR_NOENT),
            (".git", nfsstat3::NFS3ERR_NOENT),
            ("2001-01-01", nfsstat3::NFS3ERR_NOENT),
            (&long, nfsstat3::NFS3ERR_NAMETOOLONG),
        ] {
            let found = mount.lookup(&at, version).await;
            assert_eq!(found.err(), Some(wanted), "{version}");
        }
        // The way back up.
        let main = mount.walk(".holdfast/at/main").await.unwrap().handle;
        assert_eq!(mount.lookup(&main, "..").await.unwrap().handle, at);
        let top = mount.walk(".holdfast").await.unwrap().handle;
        assert_eq!(mount.lookup(&at, "..").await.unwrap().handle, top);
        let up = mount.lookup(&top, "..").await.unwrap();
        assert_eq!(up.handle, mount.root());
        let status = mount.read(".holdfast/status").await;
        for line in [
            format!("ref         {first} branch agent/fix-12\n"),
            format!("ref         {second} branch main\n"),
            format!("ref         {first} tag v1\n"),
        ] {
            assert!(status.contains(&line), "{line} in {status}");
        }
        // Another version under the same name is another tree; who is in the old one stays there.
        let file = mount.lookup(&main, "file").await.unwrap();
        mount.write("file", b"third").await;
        mount.say("publish", "three").await.unwrap();
        let moved = mount.walk(".holdfast/at/main").await.unwrap().handle;
        assert_ne!(moved, main);
        assert_eq!(mount.read_at(&file.handle, 0).await.unwrap(), b"second");
    }

    /// Handles need no memory of the server, and end with the session.
    #[tokio::test]
    async fn handles_survive_kills_and_end_with_the_session() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let session = open(dir, &[]);
        let mut mount = Mount::of(&server, &session["mount_path"]).await;
        mount.write("small", b"small").await;
        mount.write("large", &[9; 500_000]).await;
        mount.say("publish", "kept").await.unwrap();
        let mut handles = Vec::new();
        for path in [
            ".holdfast/status",
            ".holdfast/publish",
            ".holdfast/at/main/small",
            ".holdfast/at/main/large",
        ] {
            handles.push(mount.walk(path).await.unwrap().handle);
        }
        server.kill();
        let server = Server::start("up", dir);
        let mut mount = Mount::of(&server, &session["mount_path"]).await;
        let [status, publish, small, large] = handles.as_slice() else {
            panic!("four handles");
        };
        assert_eq!(mount.read_at(small, 0).await.unwrap(), b"small");
        assert_eq!(mount.read_at(large, 0).await.unwrap(), [9; 500_000]);
        let text = String::from_utf8(mount.read_at(status, 0).await.unwrap()).unwrap();
        assert_eq!(value(&text, "session"), session["id"].as_str().unwrap());
        // A message that was not committed is lost, and the verifier says so; the next one works.
        mount.write("small", b"changed").await;
        let put = mount
            .put(publish, b"after a kill", stable_how::FILE_SYNC)
            .await;
        assert_eq!(put, Ok(()));
        assert_eq!(json(&["log"], dir)[0]["message"], "after a kill");
        let (_, mut other) = mounted(&server, dir, &[]).await;
        json(&["session", "close", session["id"].as_str().unwrap()], dir);
        for handle in &handles {
            let stale = Some(nfsstat3::NFS3ERR_STALE);
            assert_eq!(other.attributes(handle).await.err(), stale);
        }
        assert_eq!(other.read(".holdfast/at/main/small").await, "changed");
    }

    /// What clashes fails the `close`, is told by path, and can be settled with the mount alone.
    #[tokio::test]
    async fn a_clash_is_told_and_settled() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (_, mut first) = mounted(&server, dir, &[]).await;
        first.write("file", b"begin\n").await;
        first.say("publish", "begin").await.unwrap();
        let (_, mut one) = mounted(&server, dir, &[]).await;
        let (_, mut two) = mounted(&server, dir, &[]).await;
        one.write("file", b"one\n").await;
        two.write("file", b"two\n").await;
        two.write("beside", b"beside\n").await;
        one.say("publish", "one").await.unwrap();
        assert_eq!(two.read(".holdfast/conflicts").await, "");
        let handle = two.walk(".holdfast/publish").await.unwrap().handle;
        let refused = two.say("publish", "two").await;
        assert_eq!(refused, Err(nfsstat3::NFS3ERR_EXIST));
        // Bug: the Linux client told of a failed `close` again at the next one of the same inode.
        let found = two.walk(".holdfast/publish").await.unwrap();
        let found = (found.handle, found.attributes.fileid);
        assert_ne!(found.0, handle);
        let old = two.attributes(&handle).await.unwrap();
        assert_ne!(old.fileid, found.1);
        let conflicts = two.read(".holdfast/conflicts").await;
        assert_eq!(conflicts, "content           file\n");
        let said = two.read(".holdfast/publish").await;
        assert!(value(&said, "failed").contains("\"main\""), "{said}");
        assert!(said.ends_with(&conflicts), "{said}");
        // Nothing of it is there.
        assert!(two.walk(".holdfast/at/main/beside").await.is_err());
        // What the branch has is taken, and the own version is put beside it.
        let theirs = two.read(".holdfast/at/main/file").await;
        two.write("file", theirs.as_bytes()).await;
        two.write("file.two", b"two\n").await;
        two.say("publish", "two, settled").await.unwrap();
        assert_eq!(two.read(".holdfast/conflicts").await, "");
        assert_eq!(
            value(&two.read(".holdfast/publish").await, "published"),
            "merged"
        );
        assert_eq!(two.read(".holdfast/at/main/file").await, "one\n");
        assert_eq!(two.read(".holdfast/at/main/file.two").await, "two\n");
        let again = two.walk(".holdfast/publish").await.unwrap();
        assert_eq!((again.handle, again.attributes.fileid), found);
        // The branch's name is somebody else's.
        let head = json(&["show"], dir)["id"].as_str().unwrap().to_owned();
        json(&["ref", "delete", "main"], dir);
        json(&["ref", "create", "main", &head, "--tag"], dir);
        two.write("beside", b"later").await;
        let refused = two.say("publish", "to a tag").await;
        assert_eq!(refused, Err(nfsstat3::NFS3ERR_PERM));
        let said = two.read(".holdfast/publish").await;
        assert!(value(&said, "failed").contains("tag \"main\""), "{said}");
    }

    /// Messages in several parts, bad ones, and mounts that must not change anything.
    #[tokio::test]
    async fn messages_are_taken_as_clients_send_them() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (_, mut mount) = mounted(&server, dir, &[]).await;
        let file = mount.walk(".holdfast/publish").await.unwrap();
        assert_eq!(file.attributes.mode, 0o666);
        let file = file.handle;
        // In parts, which only COMMIT makes a message.
        mount.write("file", b"x").await;
        for (offset, part) in [(6, "long message\n"), (0, "a very")] {
            let args = WRITE3args {
                file: file.clone(),
                offset,
                count: u32::try_from(part.len()).unwrap(),
                stable: stable_how::UNSTABLE,
                data: Opaque::borrowed(part.as_bytes()),
            };
            assert!(call!(mount, write, &args).is_ok());
        }
        assert!(mount.walk(".holdfast/at/main").await.is_err());
        assert_eq!(mount.commit(&file).await, Ok(()));
        assert_eq!(json(&["log"], dir)[0]["message"], "a verylong message");
        // A COMMIT that comes again.
        assert_eq!(mount.commit(&file).await, Ok(()));
        let status = mount.read(".holdfast/publish").await;
        assert_eq!(value(&status, "published"), "created");

        let invalid = Err(nfsstat3::NFS3ERR_INVAL);
        mount.write("file", b"y").await;
        for bad in [&b"\xff\xfe"[..], b"\x1b[2J", &[b'x'; 33_000]] {
            assert_eq!(mount.put(&file, bad, stable_how::FILE_SYNC).await, invalid);
            let said = mount.read(".holdfast/publish").await;
            assert!(value(&said, "failed").starts_with("the message"), "{said}");
        }
        let large = mount
            .put(&file, &[b'x'; 70_000], stable_how::UNSTABLE)
            .await;
        assert_eq!(large, Err(nfsstat3::NFS3ERR_FBIG));
        assert_eq!(json(&["log"], dir).as_array().unwrap().len(), 1);
        assert_eq!(mount.put(&file, b"bad", stable_how::UNSTABLE).await, Ok(()));
        // Newer kernels truncate with CREATE. It takes the message back.
        let top = mount.walk(".holdfast").await.unwrap().handle;
        let args = CREATE3args {
            where_: place(&top, "publish"),
            how: createhow3::UNCHECKED(sattr3 {
                size: Nfs3Option::Some(0),
                ..sattr3::default()
            }),
        };
        let made = call!(mount, create, &args).unwrap();
        let now = mount.lookup(&top, "publish").await.unwrap().handle;
        assert_eq!(some(made.obj), Some(now));
        assert_eq!(some(made.obj_attributes).unwrap().size, 0);
        assert_eq!(
            mount.put(&file, b"good", stable_how::FILE_SYNC).await,
            Ok(())
        );
        assert_eq!(json(&["log"], dir)[0]["message"], "good");
        // An empty message is one; opening without writing is none.
        mount.write("file", b"z").await;
        assert_eq!(mount.say("publish", "").await, Ok(()));
        assert_eq!(json(&["log"], dir)[0]["message"], "");
    }

    /// What is seen and published there is all of the session, so only its root has it. Elsewhere the
    /// name is one as any other.
    /// What a restore changed under the mount is read and acknowledged through it.
    #[tokio::test]
    async fn what_changed_from_outside_is_in_the_mount() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (id, mut mount) = mounted(&server, dir, &[]).await;
        mount.write("file", b"first").await;
        assert_eq!(mount.say("publish", "first").await, Ok(()));
        assert_eq!(mount.read(".holdfast/changed").await, "");
        mount.write("file", b"second").await;
        mount.write("new", b"new").await;
        assert_eq!(mount.read(".holdfast/changed").await, "");
        json(&["session", "restore", &id, "--version", "main"], dir);

        let listed = mount.read(".holdfast/changed").await;
        let items: Vec<&str> = listed.split_terminator('\0').collect();
        let (position, paths) = items.split_last().unwrap();
        for path in ["file", "new"] {
            assert!(paths.contains(&path), "{listed:?}");
        }
        let position = position.strip_prefix("/position=").unwrap().to_owned();
        assert!(mount.say("changed", "nonsense").await.is_err());
        assert_eq!(mount.read(".holdfast/changed").await, listed);
        assert_eq!(mount.say("changed", &format!("{position}\n")).await, Ok(()));
        assert_eq!(mount.read(".holdfast/changed").await, "");
        assert_eq!(mount.say("changed", &position).await, Ok(()));
        assert_eq!(server.terminate(), Some(0));
        assert_eq!(json(&["check"], dir)["clean"], true);
    }

    #[tokio::test]
    async fn a_mount_of_a_subdirectory_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (id, mut mount) = mounted(&server, dir, &[]).await;
        let args = MKDIR3args {
            where_: place(&mount.root(), "sub"),
            attributes: sattr3::default(),
        };
        assert!(call!(mount, mkdir, &args).is_ok());
        let ticket = json(&["session", "ticket", &id, "--directory", "sub"], dir);
        let mut below = Mount::of(&server, &ticket["mount_path"]).await;
        let root = below.root();
        let missing = below.lookup(&root, ".holdfast").await;
        assert_eq!(missing.err(), Some(nfsstat3::NFS3ERR_NOENT));
        below.write(".holdfast", b"a file").await;
        assert_eq!(below.read(".holdfast").await, "a file");
        assert_eq!(below.list(&root).await.len(), 3);
        mount.say("publish", "one").await.unwrap();
        assert_eq!(
            mount.read(".holdfast/at/main/sub/.holdfast").await,
            "a file"
        );
    }

    /// What must not be changed publishes nothing, and shows the same.
    #[tokio::test]
    async fn read_only_mounts_only_look() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (id, mut mount) = mounted(&server, dir, &[]).await;
        mount.write("file", b"z").await;
        mount.say("publish", "one").await.unwrap();
        let ticket = json(&["session", "ticket", &id, "--read-only"], dir);
        let session = open(dir, &["--read-only"]);
        for path in [&ticket["mount_path"], &session["mount_path"]] {
            let mut looking = Mount::of(&server, path).await;
            let file = looking.walk(".holdfast/publish").await.unwrap();
            assert_eq!(file.attributes.mode, 0o444);
            assert_eq!(looking.access(&file.handle).await & 0x0c, 0);
            let refused = Err(nfsstat3::NFS3ERR_ROFS);
            assert_eq!(looking.say("publish", "x").await, refused);
            let put = looking.put(&file.handle, b"x", stable_how::FILE_SYNC).await;
            assert_eq!(put, refused);
            assert_eq!(looking.commit(&file.handle).await, refused);
            assert_eq!(looking.read(".holdfast/at/main/file").await, "z");
        }
    }
}
