//! Versions that are read without a mount: listed, found, printed, compared, and told by whom.
#![allow(missing_docs)]

mod support;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use crate::support::{Server, fails, holdfast, json, run};
    use nfs3_client::tokio::{TokioConnector, TokioIo};
    use nfs3_client::{Nfs3Connection, Nfs3ConnectionBuilder};
    use nfs3_types::nfs3::{
        CREATE3args, LINK3args, LOOKUP3args, MKDIR3args, Nfs3Option, Nfs3Result, REMOVE3args,
        RENAME3args, SETATTR3args, SYMLINK3args, WRITE3args, createhow3, diropargs3, filename3,
        nfs_fh3, nfspath3, sattr3, stable_how, symlinkdata3,
    };
    use nfs3_types::xdr_codec::Opaque;
    use serde_json::Value;
    use tokio::net::TcpStream;

    const USAGE: i32 = 2;
    const NOT_FOUND: i32 = 4;

    /// A session that is mounted without a kernel. Paths have `/` between names.
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

        async fn place<'a>(&mut self, path: &'a [u8]) -> diropargs3<'a> {
            let mut dir = self.0.root_nfs_fh3();
            let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
            let last = names.pop().unwrap();
            for name in names {
                let what = diropargs3 {
                    dir,
                    name: filename3(Opaque::borrowed(name)),
                };
                dir = match self.0.lookup(&LOOKUP3args { what }).await.unwrap() {
                    Nfs3Result::Ok(found) => found.object,
                    Nfs3Result::Err(_) => panic!("{} is not found", path.escape_ascii()),
                };
            }
            diropargs3 {
                dir,
                name: filename3(Opaque::borrowed(last)),
            }
        }

        async fn open(&mut self, path: &[u8], size: Option<u64>) -> nfs_fh3 {
            let where_ = self.place(path).await;
            let how = createhow3::UNCHECKED(sattr3 {
                size: size.map_or(Nfs3Option::None, Nfs3Option::Some),
                ..sattr3::default()
            });
            let made = self.0.create(&CREATE3args { where_, how }).await.unwrap();
            let Nfs3Result::Ok(made) = made else {
                panic!("{} is not made", path.escape_ascii());
            };
            let Nfs3Option::Some(file) = made.obj else {
                panic!("no handle");
            };
            file
        }

        /// Writes, and does not commit.
        async fn write_at(&mut self, path: &[u8], offset: u64, content: &[u8]) {
            let file = self.open(path, None).await;
            for (index, part) in content.chunks(500_000).enumerate() {
                let args = WRITE3args {
                    file: file.clone(),
                    offset: offset + u64::try_from(index * 500_000).unwrap(),
                    count: u32::try_from(part.len()).unwrap(),
                    stable: stable_how::UNSTABLE,
                    data: Opaque::borrowed(part),
                };
                let written = self.0.write(&args).await.unwrap();
                assert!(matches!(written, Nfs3Result::Ok(_)));
            }
        }

        async fn write(&mut self, path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) {
            self.open(path.as_ref(), Some(0)).await;
            self.write_at(path.as_ref(), 0, content.as_ref()).await;
        }

        async fn mkdir(&mut self, path: impl AsRef<[u8]>) {
            let args = MKDIR3args {
                where_: self.place(path.as_ref()).await,
                attributes: sattr3::default(),
            };
            let made = self.0.mkdir(&args).await.unwrap();
            assert!(matches!(made, Nfs3Result::Ok(_)));
        }

        async fn symlink(&mut self, path: &str, target: &str) {
            let args = SYMLINK3args {
                where_: self.place(path.as_bytes()).await,
                symlink: symlinkdata3 {
                    symlink_attributes: sattr3::default(),
                    symlink_data: nfspath3(Opaque::borrowed(target.as_bytes())),
                },
            };
            let made = self.0.symlink(&args).await.unwrap();
            assert!(matches!(made, Nfs3Result::Ok(_)));
        }

        async fn link(&mut self, path: &str, to: &str) {
            let what = self.place(path.as_bytes()).await;
            let found = self.0.lookup(&LOOKUP3args { what }).await.unwrap();
            let Nfs3Result::Ok(found) = found else {
                panic!("{path} is not found");
            };
            let args = LINK3args {
                file: found.object,
                link: self.place(to.as_bytes()).await,
            };
            let linked = self.0.link(&args).await.unwrap();
            assert!(matches!(linked, Nfs3Result::Ok(_)));
        }

        async fn chmod(&mut self, path: &str, mode: u32) {
            let args = SETATTR3args {
                object: self.open(path.as_bytes(), None).await,
                new_attributes: sattr3 {
                    mode: Nfs3Option::Some(mode),
                    ..sattr3::default()
                },
                guard: Nfs3Option::None,
            };
            let set = self.0.setattr(&args).await.unwrap();
            assert!(matches!(set, Nfs3Result::Ok(_)));
        }

        async fn rename(&mut self, from: &str, to: &str) {
            let args = RENAME3args {
                from: self.place(from.as_bytes()).await,
                to: self.place(to.as_bytes()).await,
            };
            let renamed = self.0.rename(&args).await.unwrap();
            assert!(matches!(renamed, Nfs3Result::Ok(_)));
        }

        async fn remove(&mut self, path: &str) {
            let object = self.place(path.as_bytes()).await;
            let removed = self.0.remove(&REMOVE3args { object }).await.unwrap();
            assert!(matches!(removed, Nfs3Result::Ok(_)));
        }
    }

    async fn mounted(server: &Server, dir: &Path, more: &[&str]) -> (Value, Mount) {
        let session = json(&[&["session", "open"], more].concat(), dir);
        let mount = Mount::of(server, &session).await;
        (session, mount)
    }

    fn id(session: &Value) -> &str {
        session["id"].as_str().unwrap()
    }

    fn publish(dir: &Path, session: &Value, more: &[&str]) -> String {
        let done = json(&[&["session", "publish", id(session)], more].concat(), dir);
        done["head"].as_str().unwrap().to_owned()
    }

    /// What a command that succeeds prints.
    fn out(args: &[&str], dir: &Path) -> Vec<u8> {
        let output = run(args, dir);
        assert!(output.status.success(), "{args:?}: {output:?}");
        output.stdout
    }

    fn text(args: &[&str], dir: &Path) -> String {
        String::from_utf8(out(args, dir)).unwrap()
    }

    fn field<'a>(items: &'a Value, name: &str) -> Vec<&'a str> {
        let items = items.as_array().unwrap().iter();
        items.map(|item| item[name].as_str().unwrap()).collect()
    }

    #[tokio::test]
    async fn versions_are_listed_found_and_printed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        let large: Vec<u8> = (0..1_300_000_u32)
            .map(|at| u8::try_from(at % 251).unwrap())
            .collect();
        files.mkdir("src").await;
        files.mkdir("src/deep").await;
        files.write("src/main.rs", b"fn main() {}\n").await;
        files.write("src/deep/lib.rs", b"").await;
        files.write("large", &large).await;
        files.symlink("link", "src/main.rs").await;
        files.write(b"odd\xff%\n".as_slice(), b"odd").await;
        files.write_at(b"sparse", 900_000, b"end").await;
        // More than is asked for at a time.
        files.write_at(b"src/vast", 70 << 20, b"end").await;
        publish(dir, &session, &["-m", "one"]);
        files.remove("src/vast").await;
        files.write("src/main.rs", b"fn main() { run() }\n").await;
        files.remove("large").await;
        publish(dir, &session, &["-m", "two"]);

        list(dir);
        print(dir, &large);
        look_for(dir);
        refuse(dir);
        ask_for_pages(&server);
        ask_for_ranges(&server, &large);
        assert_eq!(server.terminate(), Some(0));
        assert_eq!(json(&["check"], dir)["clean"], true);
    }

    fn list(dir: &Path) {
        let listed = json(&["ls", "main~1"], dir);
        assert_eq!(
            field(&listed, "path"),
            ["large", "link", "odd\u{fffd}%\n", "sparse", "src"]
        );
        assert_eq!(listed[2]["path_bytes"], "odd%FF%25%0A");
        assert_eq!(
            (&listed[0]["size"], &listed[0]["kind"]),
            (&1_300_000.into(), &"file".into())
        );
        assert_eq!(listed[1]["target"], "src/main.rs");
        assert_eq!(listed[3]["size"], 900_003);
        assert!(listed[3]["used"].as_u64().unwrap() < 300_000);
        assert_eq!(text(&["ls", "main", "/src/"], dir), "deep\nmain.rs\n");
        assert_eq!(text(&["ls", "main", "src/main.rs"], dir), "main.rs\n");
        assert_eq!(
            text(&["ls", "main"], dir),
            "link\nodd\\xff%\\n\nsparse\nsrc\n"
        );
        let long = text(&["ls", "-l", "main"], dir);
        assert!(
            long.contains("link -> src/main.rs") && long.contains("900003"),
            "{long}"
        );
    }

    fn print(dir: &Path, large: &[u8]) {
        assert_eq!(out(&["cat", "main~1", "large"], dir), large);
        assert_eq!(
            out(&["cat", "main~1", "src/main.rs"], dir),
            b"fn main() {}\n"
        );
        assert_eq!(out(&["cat", "main", "src/deep/lib.rs"], dir), b"");
        let mut sparse = vec![0; 900_000];
        sparse.extend_from_slice(b"end");
        assert_eq!(out(&["cat", "main", "sparse"], dir), sparse);
        let part = [
            "cat", "main~1", "large", "--offset", "500000", "--length", "300000",
        ];
        assert_eq!(out(&part, dir), large[500_000..800_000]);
        assert_eq!(
            out(&["cat", "main~1", "large", "--offset", "1299999"], dir),
            large[1_299_999..]
        );
        assert_eq!(
            out(&["cat", "main~1", "large", "--offset", "1300000"], dir),
            b""
        );
        // Bytes that are no UTF-8, as they are on the command line.
        let odd = holdfast()
            .args(["cat", "main"])
            .arg(OsStr::from_bytes(b"odd\xff%\n"))
            .arg("--data-dir")
            .arg(dir)
            .output()
            .unwrap();
        assert_eq!(odd.stdout, b"odd", "{odd:?}");
    }

    fn look_for(dir: &Path) {
        let sorted = |args: &[&str]| {
            let mut lines: Vec<String> = text(args, dir).lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let all = sorted(&["find", "main"]);
        let expected = [
            "link",
            "odd\\xff%\\n",
            "sparse",
            "src",
            "src/deep",
            "src/deep/lib.rs",
            "src/main.rs",
        ];
        assert_eq!(all, expected);
        assert_eq!(
            sorted(&["find", "main", "src", "--type", "d"]),
            ["src/deep"]
        );
        assert_eq!(sorted(&["find", "main", "--type", "l"]), ["link"]);
        let rust = sorted(&["find", "main", "--name", "*.rs", "--type", "f"]);
        assert_eq!(rust, ["src/deep/lib.rs", "src/main.rs"]);
        assert_eq!(
            sorted(&["find", "main", "src/main.rs", "--name", "m*"]),
            ["src/main.rs"]
        );
        assert_eq!(sorted(&["find", "main", "--name", "none"]), [""; 0]);
        assert_eq!(
            out(&["find", "main", "--name", "odd*", "-0"], dir),
            b"odd\xff%\n\0"
        );
        let found = json(&["find", "main~1", "--name", "l[ai]*", "--limit", "9"], dir);
        let mut names = field(&found, "path");
        names.sort_unstable();
        assert_eq!(names, ["large", "link", "src/deep/lib.rs"]);
        assert_eq!(
            json(&["find", "main", "--name", "none"], dir),
            Value::Array(vec![])
        );
        assert_eq!(
            json(&["find", "main", "--limit", "2"], dir)
                .as_array()
                .unwrap()
                .len(),
            2
        );
    }

    fn refuse(dir: &Path) {
        for verb in ["ls", "cat", "find", "blame"] {
            fails(
                &[verb, "main", "src/none"],
                dir,
                NOT_FOUND,
                &["no such path", "src/none", "main"],
            );
            fails(
                &[verb, "main", "src/main.rs/x"],
                dir,
                NOT_FOUND,
                &["src/main.rs is a file"],
            );
            fails(
                &[verb, "main", "link/x"],
                dir,
                NOT_FOUND,
                &["symbolic link", "not followed"],
            );
            fails(
                &[verb, "main", "src/../x"],
                dir,
                USAGE,
                &["'..'", "root directory"],
            );
            fails(&[verb, "none", "src"], dir, NOT_FOUND, &["none"]);
        }
        fails(&["cat", "main", "src"], dir, USAGE, &["src is a directory"]);
        fails(&["cat", "main", "/"], dir, USAGE, &["root directory"]);
        fails(
            &["cat", "main", "link"],
            dir,
            USAGE,
            &["symbolic link", "src/main.rs"],
        );
        fails(
            &["--json", "cat", "main", "sparse"],
            dir,
            USAGE,
            &["no JSON"],
        );
        fails(&["find", "main", "--name", "["], dir, USAGE, &["no ]"]);
        fails(&["find", "main", "--type", "x"], dir, USAGE, &["x"]);
    }

    const BASE: &str = "/v1/workspaces/default";

    /// Pages and paths over HTTP.
    fn ask_for_pages(server: &Server) {
        let token = server.text("api_token");
        let get = |path: &str| server.call("GET", path, Some(&token), b"");
        let base = BASE;
        let mut names = Vec::new();
        let mut after = String::new();
        loop {
            let (status, page) = get(&format!("{base}/entries?version=main~1&limit=2{after}"));
            assert_eq!(status, 200, "{page}");
            names.extend(field(&page["items"], "path").into_iter().map(str::to_owned));
            assert!(page["items"].as_array().unwrap().len() <= 2);
            match page["next"].as_str() {
                Some(next) => after = format!("&after={}", next.replace('%', "%25")),
                None => break,
            }
        }
        names.sort();
        assert_eq!(names, ["large", "link", "odd\u{fffd}%\n", "sparse", "src"]);
        let (_, whole) = get(&format!("{base}/find?version=main~1"));
        let mut pieces = Vec::new();
        let mut after = String::new();
        loop {
            let (_, page) = get(&format!("{base}/find?version=main~1&limit=1{after}"));
            pieces.extend(page["items"].as_array().unwrap().clone());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={}", next.replace('%', "%25")),
                None => break,
            }
        }
        assert_eq!(Value::Array(pieces), whole["items"]);
        for (query, status) in [
            ("entries?path=odd%FF%25%0A", 200),
            ("entries?path=odd%EF%BF%BD%25%0A", 404),
            ("entries?path=%", 400),
            ("entries?path=a%00", 400),
            ("entries?path=a&path=b", 400),
            ("entries?after=x", 400),
            ("find?type=q", 400),
            ("find?name=%5B", 400),
            ("content", 400),
            ("content?path=src", 400),
            ("content?path=link", 400),
            ("content?path=sparse&limit=1", 400),
            ("content?path=sparse&version=none", 404),
            ("blame", 400),
            ("log?path=sparse&after=x", 400),
            ("diff?session=00ff", 404),
            ("diff?session=x", 400),
        ] {
            let (is, body) = get(&format!("{base}/{query}"));
            assert_eq!(is, status, "{query}: {body}");
        }
    }

    fn ask_for_ranges(server: &Server, large: &[u8]) {
        let token = server.text("api_token");
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build();
        let agent: ureq::Agent = agent.into();
        for (range, status, part, told) in [
            ("bytes=0-9", 206, 0..10, "bytes 0-9/1300000"),
            (
                "bytes=1299990-",
                206,
                1_299_990..1_300_000,
                "bytes 1299990-1299999/1300000",
            ),
            (
                "bytes=-5",
                206,
                1_299_995..1_300_000,
                "bytes 1299995-1299999/1300000",
            ),
            ("bytes=1300000-", 416, 0..0, "bytes */1300000"),
            ("bytes=0-1,5-6", 200, 0..1_300_000, ""),
        ] {
            let url = format!(
                "http://{}{BASE}/content?version=main~1&path=large",
                server.text("api_address")
            );
            let request = ureq::http::Request::builder()
                .uri(url)
                .header("authorization", format!("Bearer {token}"))
                .header("range", range);
            let mut response = agent.run(request.body(()).unwrap()).unwrap();
            assert_eq!(response.status().as_u16(), status, "{range}");
            let header = |name: &str| {
                response
                    .headers()
                    .get(name)
                    .map(|it| it.to_str().unwrap().to_owned())
            };
            assert_eq!(header("content-range").unwrap_or_default(), told);
            if status != 416 {
                assert_eq!(header("content-length").unwrap(), part.len().to_string());
                assert_eq!(header("holdfast-commit").unwrap().len(), 64);
                let body = response.body_mut().read_to_vec().unwrap();
                assert_eq!(body, large[part], "{range}");
            }
        }
    }

    /// Writes here and there, and other sizes: every version reads as it was, whole and in parts.
    #[tokio::test]
    async fn every_version_has_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        let rng = base::Rng::seeded(7);
        let pick = |of: usize| usize::try_from(rng.u64()).unwrap() % of;
        let (mut content, mut versions) = (Vec::new(), Vec::new());
        for round in 0..8 {
            for _ in 0..=pick(5) {
                let offset = pick(700_000);
                let length = [10, 5_000, 200_000][pick(3)];
                let written: Vec<u8> = (0..length)
                    .map(|_| u8::try_from(pick(256)).unwrap())
                    .collect();
                files
                    .write_at(b"f", u64::try_from(offset).unwrap(), &written)
                    .await;
                content.resize(content.len().max(offset + length), 0);
                content[offset..offset + length].copy_from_slice(&written);
            }
            if round % 3 == 2 {
                let size = pick(content.len());
                files.open(b"f", Some(u64::try_from(size).unwrap())).await;
                content.truncate(size);
            }
            let commit = publish(dir, &session, &["-m", "round"]);
            versions.push((commit, content.clone()));
        }
        for (commit, content) in &versions {
            assert!(out(&["cat", commit, "f"], dir) == *content, "{commit}");
            for _ in 0..3 {
                let (from, length) = (pick(content.len()), 1 + pick(300_000));
                let to = content.len().min(from + length);
                let (offset, length) = (from.to_string(), length.to_string());
                let part = ["cat", commit, "f", "--offset", &offset, "--length", &length];
                assert!(out(&part, dir) == content[from..to], "{part:?}");
            }
        }
        assert_eq!(server.terminate(), Some(0));
    }

    /// What is damaged is told, and what is before it is printed.
    #[tokio::test]
    async fn damaged_content_ends_with_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        let rng = base::Rng::seeded(8);
        let byte = || u8::try_from(rng.u64() % 256).unwrap();
        let content: Vec<u8> = (0..1_000_000).map(|_| byte()).collect();
        files.write("f", &content).await;
        publish(dir, &session, &["-m", "one"]);
        assert_eq!(server.terminate(), Some(0));
        let marked = &content[700_000..700_032];
        let mut damaged = 0;
        for pack in std::fs::read_dir(dir.join("chunks")).unwrap() {
            let pack = pack.unwrap().path();
            if !pack.is_file() {
                continue;
            }
            let mut bytes = std::fs::read(&pack).unwrap();
            if let Some(at) = bytes.windows(32).position(|window| window == marked) {
                bytes[at] ^= 1;
                std::fs::write(&pack, &bytes).unwrap();
                damaged += 1;
            }
        }
        assert_eq!(damaged, 1);
        let server = Server::start("up", dir);
        let output = run(&["cat", "main", "f"], dir);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("is damaged"), "{said}");
        let printed = output.stdout.len();
        assert!((500_000..=700_000).contains(&printed), "{printed}");
        assert!(output.stdout == content[..printed]);
        // What is not damaged is still there.
        let rest = out(&["cat", "main", "f", "--offset", "900000"], dir);
        assert!(rest == content[900_000..]);
        assert_eq!(server.terminate(), Some(0));
    }

    #[tokio::test]
    async fn differences_are_told_as_text_and_sums() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        let base: String = (0..20).map(|line| format!("line {line}\n")).collect();
        files.mkdir("d").await;
        files.write("d/text", &base).await;
        files.write("gone", "x\ny").await;
        files.write("binary", [0, 1, 2]).await;
        files.write("moved", &base).await;
        files.write("large", vec![b'a'; 1_100_000]).await;
        // Of a session that stands on nothing.
        let first = json(&["diff", "--session", id(&session)], dir);
        assert_eq!(first["from"], "empty");
        assert_eq!(first["items"].as_array().unwrap().len(), 6, "{first}");
        publish(dir, &session, &["-m", "one"]);
        let none = json(&["diff", "--session", id(&session)], dir);
        assert_eq!(none["items"], Value::Array(vec![]));
        assert_eq!(text(&["diff", "--session", id(&session)], dir), "");

        files
            .write("d/text", base.replace("line 9\n", "line nine\n"))
            .await;
        files.remove("gone").await;
        files.write("binary", [0, 1, 3]).await;
        files.rename("moved", "d/moved to").await;
        files.write("large", vec![b'b'; 1_100_000]).await;
        files.write("new", "one\n").await;
        files.write(b"n\xff".as_slice(), "odd\n").await;
        // Not published, not even committed by the client.
        let diff = json(&["diff", "--session", id(&session)], dir);
        let told = |what: &str| -> Vec<String> {
            let items = diff["items"].as_array().unwrap().iter();
            let mut paths: Vec<_> = items
                .filter(|item| item["what"] == what)
                .map(|item| item["path"].as_str().unwrap().to_owned())
                .collect();
            paths.sort();
            paths
        };
        assert_eq!(told("added"), ["new", "n\u{fffd}"]);
        assert_eq!(told("removed"), ["gone"]);
        assert_eq!(told("modified"), ["binary", "d/text", "large"]);
        assert_eq!(told("renamed"), ["d/moved to"]);
        assert!(diff["to"].as_str().unwrap().contains(id(&session)));
        told_in_full(dir, &session);
        let against = json(&["diff", "--session", id(&session), "--from", "main"], dir);
        assert_eq!(against["items"], diff["items"]);
        let two = json(&["diff", "main", "main"], dir);
        assert_eq!(two["items"], Value::Array(vec![]));
        let thrice = ["diff", "main", "main", "--from", "main"];
        fails(&thrice, dir, USAGE, &["two versions"]);
        let both = ["diff", "main", "--session", id(&session)];
        fails(&both, dir, USAGE, &["cannot be used"]);
        let shown = text(&["show", "main"], dir);
        assert!(shown.contains("A  d/text"), "{shown}");
        json(&["session", "close", id(&session)], dir);
        fails(&["diff", "--session", id(&session)], dir, NOT_FOUND, &[]);
        assert_eq!(server.terminate(), Some(0));
        assert_eq!(json(&["check"], dir)["clean"], true);
    }

    /// Sums and texts.
    fn told_in_full(dir: &Path, session: &Value) {
        let stat = json(&["diff", "--session", id(session), "--stat"], dir)["stat"].clone();
        assert_eq!(stat["files"], serde_json::json!([2, 4, 1]));
        assert_eq!(stat["bytes"][0], 8);
        let shown = text(&["diff", "--session", id(session), "--stat"], dir);
        assert!(shown.contains("A  new | 4 bytes\n"), "{shown}");
        assert!(shown.contains("D  gone | 3 bytes\n"), "{shown}");
        assert!(shown.contains("R  moved -> d/moved to"), "{shown}");
        assert!(shown.contains("2 added (8 bytes), 4 changed ("), "{shown}");
        let within = json(
            &["diff", "--session", id(session), "--path", "d", "--stat"],
            dir,
        );
        assert_eq!(within["items"].as_array().unwrap().len(), 2, "{within}");
        assert_eq!(within["stat"]["files"], serde_json::json!([0, 2, 0]));

        let patch = text(&["diff", "--session", id(session), "-p"], dir);
        for part in [
            "--- a/d/text\n+++ b/d/text\n@@ -7,7 +7,7 @@\n",
            "-line 9\n+line nine\n",
            "deleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-x\n-y\n\\ No newline",
            "Binary files a/binary and b/binary differ\n",
            "rename from moved\nrename to d/moved to\n",
            "Files a/large and b/large are not compared: over 1048576 bytes\n",
            "new file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+one\n",
            "diff --git \"a/n\\377\" \"b/n\\377\"\n",
        ] {
            assert!(patch.contains(part), "{part} is not in {patch}");
        }
    }

    /// What a comparison of a session reads is there to its end, whatever is collected meanwhile and
    /// whatever the session has by then.
    #[tokio::test(flavor = "multi_thread")]
    async fn collections_take_nothing_from_comparisons() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        let rounds = 12;
        for file in 0..20 {
            files
                .write(format!("f{file}"), format!("{file}\n").repeat(9_000))
                .await;
        }
        publish(dir, &session, &["-m", "one"]);
        std::thread::scope(|scope| {
            let (session, dir) = (&session, dir);
            scope.spawn(move || {
                for _ in 0..rounds {
                    json(&["gc"], dir);
                    json(&["session", "checkpoint", id(session)], dir);
                }
            });
            for round in 0..rounds {
                let runtime = tokio::runtime::Handle::current();
                tokio::task::block_in_place(|| {
                    runtime.block_on(async {
                        let text = format!("round {round}\n").repeat(9_000);
                        files.write(format!("f{}", round % 20), &text).await;
                    });
                });
                let told = json(
                    &["diff", "--session", id(session), "--from", "main", "-p"],
                    dir,
                );
                let items = told["items"].as_array().unwrap();
                assert_eq!(items.len(), round + 1, "{round}");
                for item in items {
                    let patch = item["patch"].as_str().unwrap();
                    assert_eq!(patch.matches("\n+round ").count(), 9_000, "{round}");
                }
            }
        });
        assert_eq!(server.terminate(), Some(0));
        assert_eq!(json(&["check"], dir)["clean"], true);
    }

    /// Everything of a version, in a directory of its own.
    fn take_out(dir: &Path, version: &str) -> tempfile::TempDir {
        let to = tempfile::tempdir().unwrap();
        let found = json(&["find", version], dir);
        for entry in found.as_array().unwrap() {
            let path = entry["path"].as_str().unwrap();
            let at = to.path().join(path);
            match entry["kind"].as_str().unwrap() {
                "directory" => std::fs::create_dir(at).unwrap(),
                "symlink" => {
                    std::os::unix::fs::symlink(entry["target"].as_str().unwrap(), at).unwrap();
                }
                _ => {
                    std::fs::write(&at, out(&["cat", version, path], dir)).unwrap();
                    let mode = u32::try_from(entry["mode"].as_u64().unwrap()).unwrap();
                    let mode = if mode & 0o100 == 0 { 0o644 } else { 0o755 };
                    std::fs::set_permissions(at, std::fs::Permissions::from_mode(mode)).unwrap();
                }
            }
        }
        to
    }

    /// Files and links below a directory: mode, and content or target.
    fn shown(top: &Path) -> BTreeMap<std::path::PathBuf, (u32, Vec<u8>)> {
        let (mut all, mut dirs) = (BTreeMap::new(), vec![top.to_owned()]);
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let metadata = path.symlink_metadata().unwrap();
                if metadata.is_dir() {
                    dirs.push(path);
                    continue;
                }
                let content = if metadata.is_symlink() {
                    std::fs::read_link(&path)
                        .unwrap()
                        .into_os_string()
                        .into_encoded_bytes()
                } else {
                    std::fs::read(&path).unwrap()
                };
                let relative = path.strip_prefix(top).unwrap().to_owned();
                all.insert(relative, (metadata.permissions().mode(), content));
            }
        }
        all
    }

    /// What is told as text leads from one version to the other, as git reads it.
    #[tokio::test]
    async fn differences_can_be_applied_by_git() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        let text =
            |from: usize| -> String { (from..from + 30).map(|at| format!("{at}\n")).collect() };
        files.mkdir("d").await;
        files.mkdir("e").await;
        for (number, path) in ["a", "b", "c", "d/f", "d/g", "h", "i", "j", "k", "m"]
            .iter()
            .enumerate()
        {
            files.write(path, text(number)).await;
        }
        files.symlink("l", "a").await;
        files.write("tab\tname", "x").await;
        publish(dir, &session, &["-m", "one"]);
        files.write("a", text(0).replace("7\n", "seven\n")).await;
        files.rename("b", "c").await;
        files.rename("d/f", "e/f").await;
        files.write("e/f", text(3) + "more").await;
        files.chmod("h", 0o755).await;
        files.chmod("i", 0o600).await;
        files.remove("l").await;
        files.write("l", "a file now").await;
        files.remove("j").await;
        files.symlink("j", "k").await;
        files.write("m~", text(9).replace("20\n", "")).await;
        files.rename("m~", "m").await;
        files.remove("d/g").await;
        files.link("k", "k2").await;
        files.write("tab\tname", "y").await;
        files.write("new", "").await;
        publish(dir, &session, &["-m", "two"]);

        let patch = out(&["diff", "main~1", "main", "-p"], dir);
        let shown_patch = String::from_utf8_lossy(&patch).into_owned();
        assert!(
            shown_patch.contains("# file i: mode 0644 -> 0600\n"),
            "{shown_patch}"
        );
        let (old, new) = (take_out(dir, "main~1"), take_out(dir, "main"));
        assert_ne!(shown(old.path()), shown(new.path()));
        let mut git = Command::new("git")
            .args(["apply", "-"])
            .current_dir(old.path())
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut git.stdin.take().unwrap(), &patch).unwrap();
        let done = git.wait_with_output().unwrap();
        assert!(done.status.success(), "{done:?}: {shown_patch}");
        assert_eq!(shown(old.path()), shown(new.path()), "{shown_patch}");
    }

    #[tokio::test]
    async fn the_history_of_a_file_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let about = ["--agent", "maker", "--run", "r1"];
        let (session, mut files) = mounted(&server, dir, &about).await;
        files.mkdir("d").await;
        files.write("d/f", "one\ntwo\nthree\nfour\nfive\n").await;
        files.write("other", "x").await;
        files.write("blob", [0; 10]).await;
        let made = publish(
            dir,
            &session,
            &["-m", "make", "--model", "m1", "--tool-call", "t1"],
        );

        // Two change it side by side, and one thing else.
        let (left, mut left_files) = mounted(&server, dir, &["--agent", "left"]).await;
        let (right, mut right_files) = mounted(&server, dir, &["--agent", "right"]).await;
        let (aside, mut aside_files) = mounted(&server, dir, &["--agent", "aside"]).await;
        left_files
            .write("d/f", "ONE\ntwo\nthree\nfour\nfive\n")
            .await;
        right_files
            .write("d/f", "one\ntwo\nthree\nfour\nFIVE\n")
            .await;
        aside_files.write("other", "y").await;
        let left_commit = publish(dir, &left, &["-m", "left"]);
        let merge = publish(dir, &right, &["-m", "right"]);
        publish(dir, &aside, &["-m", "aside"]);
        // And one moves it, saves it as editors do, and writes it.
        let (last, mut last_files) = mounted(&server, dir, &["--agent", "last"]).await;
        last_files.rename("d", "e").await;
        let moved = publish(dir, &last, &["-m", "move"]);
        last_files
            .write("e/f~", "ONE\ntwo\n3\nfour\nFIVE\nsix\n")
            .await;
        last_files.rename("e/f~", "e/f").await;
        let saved = publish(dir, &last, &["-m", "save"]);

        let log = json(&["log", "--path", "e/f"], dir);
        let ids = told_by_commits(dir, &log, [&made, &left_commit, &merge, &moved, &saved]);
        told_by_lines(dir, [&made, &left_commit, &saved]);
        let shown = json(&["show", &merge], dir);
        assert_eq!(field(&shown["changes"], "path"), ["d/f"]);
        assert!(text(&["show", &merge], dir).ends_with("M  d/f\n"));
        server.kill();
        let server = Server::start("up", dir);
        assert_eq!(field(&json(&["log", "--path", "e/f"], dir), "id"), ids);
        assert_eq!(server.terminate(), Some(0));
    }

    fn told_by_commits<'a>(
        dir: &Path,
        log: &'a Value,
        [made, left_commit, merge, moved, saved]: [&str; 5],
    ) -> Vec<&'a str> {
        let ids = field(log, "id");
        assert_eq!(ids.len(), 6, "{log}");
        assert_eq!(
            (ids[0], ids[1], ids[2], ids[5]),
            (saved, moved, merge, made)
        );
        assert_eq!(log[0]["change"]["what"], "modified");
        assert_eq!(log[1]["change"]["old_path"], "d/f");
        assert_eq!(log[5]["change"]["what"], "added");
        let left_only = json(&["log", "--path", "e/f", "--agent", "left"], dir);
        assert_eq!(field(&left_only, "id"), [left_commit]);
        let first = json(&["log", "--path", "e/f", "--first-parent"], dir);
        assert_eq!(
            field(&first, "id"),
            [saved, moved, merge, left_commit, made]
        );
        assert_eq!(
            json(&["log", "--path", "e/f", "--limit", "2"], dir)
                .as_array()
                .unwrap()
                .len(),
            2
        );
        // A directory is changed by what is in it; a path may be gone.
        let all = json(&["log", "--path", "e"], dir);
        assert_eq!(field(&all, "id"), ids);
        assert_eq!(
            json(&["log", "--path", "d/f"], dir)[0]["change"]["path"],
            "e/f"
        );
        assert_eq!(json(&["log", "--path", "never"], dir), Value::Array(vec![]));
        assert!(text(&["log", "--path", "e/f"], dir).contains("R  d/f -> e/f"));
        ids
    }

    fn told_by_lines(dir: &Path, [made, left, saved]: [&str; 3]) {
        let blame = json(&["blame", "main", "e/f"], dir);
        let of = |line: usize| {
            let line = u64::try_from(line).unwrap();
            let mut runs = blame["lines"].as_array().unwrap().iter();
            let run = runs.rfind(|run| run["first"].as_u64().unwrap() <= line);
            let run = run.unwrap();
            let source = usize::try_from(run["source"].as_u64().unwrap()).unwrap();
            blame["sources"][source].clone()
        };
        let by: Vec<_> = (1..=6)
            .map(|line| of(line)["agent"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(
            by,
            ["left", "maker", "last", "maker", "right", "last"],
            "{blame}"
        );
        assert_eq!(
            (of(1)["commit"].as_str(), of(2)["commit"].as_str()),
            (Some(left), Some(made))
        );
        assert_eq!(
            (&of(2)["model"], &of(2)["run"]),
            (&"m1".into(), &"r1".into())
        );
        assert_eq!(
            (&of(2)["tool_call"], &of(2)["path"]),
            (&"t1".into(), &"d/f".into())
        );
        assert_eq!(of(2)["subject"], "make");
        assert_eq!(blame["created"]["commit"], made);
        assert_eq!(blame["written"]["commit"], saved);
        assert_eq!(blame["complete"], true);
        let shown = text(&["blame", "main", "e/f"], dir);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 6, "{shown}");
        assert!(
            lines[1].contains(&made[..8]) && lines[1].contains("d/f (maker"),
            "{shown}"
        );
        assert!(lines[1].ends_with(" 2) two"), "{shown}");
        let whole = text(&["blame", "main", "e/f", "--whole"], dir);
        assert!(
            whole.contains("model   m1") && whole.contains(saved),
            "{whole}"
        );

        let binary = json(&["blame", "main", "blob"], dir);
        assert!(binary["lines"].is_null());
        assert!(binary["no_lines"].as_str().unwrap().contains("NUL"));
        assert_eq!(binary["created"]["commit"], made);
        assert!(text(&["blame", "main", "blob"], dir).contains("not told by lines"));
        assert_eq!(json(&["blame", "main", "e"], dir)["kind"], "directory");
    }
}
