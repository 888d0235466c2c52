//! Whole servers whose file content is in an object store. A server is this test's program, started anew in
//! that role.
#![allow(missing_docs)]

#[cfg(test)]
mod server;

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, TcpStream};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use base::{Clock, SystemClock};
    use nfs3_client::Nfs3Connection;
    use nfs3_client::Nfs3ConnectionBuilder;
    use nfs3_client::tokio::{TokioConnector, TokioIo};
    use nfs3_types::nfs3::{
        CREATE3args, LOOKUP3args, Nfs3Option, READ3args, WRITE3args, createhow3, diropargs3,
        filename3, nfs_fh3, sattr3, stable_how,
    };
    use nfs3_types::xdr_codec::Opaque;
    use serde_json::Value;

    use super::server::{BUCKET, KEY, S3, SECRET};

    /// Says that this process is to be `holdfast`; its arguments follow, one a line.
    const ROLE: &str = "HOLDFAST_S3_TEST_ARGS";

    type Connection = Nfs3Connection<TokioIo<tokio::net::TcpStream>>;

    fn holdfast(args: &[&str], secret: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let own = [
            "tests::servers",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ];
        command
            .args(own)
            .env(ROLE, args.join("\n"))
            .env("AWS_ACCESS_KEY_ID", KEY)
            .env("AWS_SECRET_ACCESS_KEY", secret)
            .env("AWS_ALLOW_HTTP", "true")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command
    }

    struct Server {
        child: Child,
        ready: Value,
    }

    impl Server {
        fn start(dir: &Path, chunks: &str, s3: &S3) -> Self {
            let options = format!("aws_endpoint=http://{}", s3.address);
            let dir = dir.to_str().unwrap();
            let args = [
                &["--json", "up", "--data-dir", dir, "--chunks", chunks][..],
                &["--chunks-options", &options, "--content-cache", "1MiB"],
                &["--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0"],
            ];
            let mut child = holdfast(&args.concat(), SECRET).spawn().unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let ready = lines.find_map(|line| {
                let line = line.unwrap();
                let at = line.find('{')?;
                serde_json::from_str(&line[at..]).ok()
            });
            Self {
                ready: ready.expect("the server says how to reach it"),
                child,
            }
        }

        fn text(&self, field: &str) -> String {
            self.ready[field].as_str().unwrap().to_owned()
        }

        /// A number of its metrics.
        fn metric(&self, name: &str) -> f64 {
            let mut stream = TcpStream::connect(self.text("api_address")).unwrap();
            let request = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let line = answer.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().parse().unwrap()
        }

        async fn mount(&self) -> Connection {
            let address: SocketAddr = self.text("nfs_address").parse().unwrap();
            Nfs3ConnectionBuilder::new(
                TokioConnector,
                Ipv4Addr::LOCALHOST.to_string(),
                self.text("mount_path"),
            )
            .mount_port(address.port())
            .nfs3_port(address.port())
            .connect_from_privileged_port(false)
            .mount()
            .await
            .unwrap()
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }

    fn name<'a>(dir: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
        diropargs3 {
            dir: dir.clone(),
            name: filename3(Opaque::borrowed(name.as_bytes())),
        }
    }

    async fn write_file(connection: &mut Connection, file: &str, content: &[u8]) {
        let root = connection.root_nfs_fh3();
        let create = CREATE3args {
            where_: name(&root, file),
            how: createhow3::UNCHECKED(sattr3::default()),
        };
        let made = connection.create(&create).await.unwrap().unwrap();
        let Nfs3Option::Some(handle) = made.obj else {
            unreachable!("no handle")
        };
        let write = WRITE3args {
            file: handle,
            offset: 0,
            count: u32::try_from(content.len()).unwrap(),
            stable: stable_how::FILE_SYNC,
            data: Opaque::borrowed(content),
        };
        connection.write(&write).await.unwrap().unwrap();
    }

    async fn read_file(connection: &mut Connection, file: &str) -> Vec<u8> {
        let root = connection.root_nfs_fh3();
        let lookup = LOOKUP3args {
            what: name(&root, file),
        };
        let found = connection.lookup(&lookup).await.unwrap().unwrap();
        let read = READ3args {
            file: found.object,
            offset: 0,
            count: 1 << 20,
        };
        let read = connection.read(&read).await.unwrap().unwrap();
        read.data.as_ref().to_vec()
    }

    fn large(seed: u32) -> Vec<u8> {
        let mut bytes = vec![0; 900_000];
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&seed.to_be_bytes())
            .finalize_xof()
            .fill(&mut bytes);
        bytes
    }

    async fn packed(server: &Server) {
        for _ in 0..1500 {
            let packs = server.metric("holdfast_chunkstore_packed_total ");
            if packs > 0.0 && server.metric("holdfast_chunkstore_staged_bytes ") == 0.0 {
                return;
            }
            SystemClock::new().sleep(Duration::from_millis(20)).await;
        }
        panic!("content stays staged");
    }

    /// Runs a command that fails; its exit code and what it says.
    fn fails(args: &[&str], secret: &str) -> (i32, String) {
        let mut command = holdfast(args, secret);
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), told)
    }

    /// Content comes back after a kill and without the object store, from the cache on disk.
    async fn content_is_in_the_object_store(s3: &S3, root: &Path) {
        let dir = root.join("data");
        let chunks = format!("s3://{BUCKET}/one");
        let server = Server::start(&dir, &chunks, s3);
        let mut connection = server.mount().await;
        for number in 0..4 {
            write_file(&mut connection, &format!("f{number}"), &large(number)).await;
        }
        packed(&server).await;
        assert!(!s3.packs("one").is_empty());
        drop(server);
        // Nothing of it is on this disk any more.
        std::fs::remove_dir_all(dir.join("cache")).unwrap();
        assert!(!dir.join("chunks").exists());
        let server = Server::start(&dir, &chunks, s3);
        let mut connection = server.mount().await;
        for number in 0..4 {
            assert!(read_file(&mut connection, &format!("f{number}")).await == large(number));
        }
        assert!(server.metric("holdfast_object_received_bytes_total ") >= 3.0e6);
        for _ in 0..500 {
            if server.metric("holdfast_chunkstore_disk_cache_bytes ") >= 3.0e6 {
                break;
            }
            SystemClock::new().sleep(Duration::from_millis(20)).await;
        }
        s3.set_down(true);
        write_file(&mut connection, "meanwhile", &large(9)).await;
        for number in 0..4 {
            assert!(read_file(&mut connection, &format!("f{number}")).await == large(number));
        }
        assert!(server.metric("holdfast_chunkstore_disk_cache_hits_total ") > 0.0);
        s3.set_down(false);
        packed(&server).await;
        assert!(read_file(&mut connection, "meanwhile").await == large(9));
        drop(server);
        let endpoint = format!("aws_endpoint=http://{}", s3.address);
        let shown = dir.to_str().unwrap();
        let check = ["check", "--data-dir", shown, "--chunks-options", &endpoint];
        let (code, told) = fails(&check, SECRET);
        assert_eq!(code, 0, "{told}");
    }

    /// What is in the way at a start is told, and what to do.
    fn starts_are_refused(s3: &S3, root: &Path) {
        let endpoint = format!("aws_endpoint=http://{}", s3.address);
        let start = |dir: &str, chunks: &str, options: &str, secret: &str| {
            let dir = root.join(dir);
            let args = [
                &[
                    "serve",
                    "--data-dir",
                    dir.to_str().unwrap(),
                    "--chunks",
                    chunks,
                ][..],
                &["--chunks-options", options],
                &["--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0"],
            ];
            fails(&args.concat(), secret)
        };
        let one = format!("s3://{BUCKET}/one");
        let new = format!("s3://{BUCKET}/new");
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let nobody = format!("aws_endpoint=http://{}", unused.local_addr().unwrap());
        drop(unused);
        for (dir, chunks, options, secret, code, told) in [
            (
                "a",
                one.as_str(),
                endpoint.as_str(),
                SECRET,
                3,
                "another installation has its chunks there",
            ),
            (
                "b",
                "s3://nowhere/x",
                &endpoint,
                SECRET,
                4,
                "make the bucket",
            ),
            ("c", &new, &endpoint, "wrong", 5, "AWS_SECRET_ACCESS_KEY"),
            ("d", &new, &nobody, SECRET, 6, "is it the right endpoint"),
            ("e", &new, "aws_regoin=x", SECRET, 2, "is no option"),
            (
                "data",
                &new,
                &endpoint,
                SECRET,
                3,
                "start with --chunks s3://chunks/one",
            ),
            (
                "data",
                "local",
                &endpoint,
                SECRET,
                3,
                "start with --chunks s3://chunks/one",
            ),
        ] {
            let (found, said) = start(dir, chunks, options, secret);
            assert_eq!(found, code, "{dir}: {said}");
            assert!(said.contains(told), "{dir}: {said}");
        }
        // Without its packs nothing is served.
        let prefix = s3.bucket().join("one");
        std::fs::rename(&prefix, s3.bucket().join("moved")).unwrap();
        let (code, said) = start("data", &one, &endpoint, SECRET);
        assert!(code == 3 && said.contains("is not to be found"), "{said}");
    }

    #[test]
    fn servers() {
        if let Ok(args) = std::env::var(ROLE) {
            let args = ["holdfast"].into_iter().chain(args.lines());
            let code = control::run(args.map(OsString::from));
            std::process::exit(i32::from(code));
        }
        let root = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let s3 = runtime.block_on(S3::start(1));
        runtime.block_on(content_is_in_the_object_store(&s3, root.path()));
        starts_are_refused(&s3, root.path());
    }
}
