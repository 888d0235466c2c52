//! Whole servers whose file content is in an object store. A server is this test's program, started anew in
//! that role.
#![allow(missing_docs)]

#[cfg(test)]
mod server;
#[cfg(test)]
#[path = "holdfast.rs"]
mod subject;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Stdio;
    use std::time::Duration;

    use base::{Clock, SystemClock};

    use super::server::{BUCKET, S3, SECRET};
    use super::subject::{Server, as_holdfast, holdfast, noise, packed};

    fn large(seed: u64) -> Vec<u8> {
        noise(seed, 900_000)
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
        let server = Server::start_with(&dir, &chunks, s3, "1MiB");
        let mut mount = server.mount().await;
        for number in 0..4 {
            mount.write(&format!("f{number}"), &large(number)).await;
        }
        packed(&server).await;
        assert!(!s3.packs("one").is_empty());
        drop(server);
        // Nothing of it is on this disk any more.
        std::fs::remove_dir_all(dir.join("cache")).unwrap();
        assert!(!dir.join("chunks").exists());
        let server = Server::start_with(&dir, &chunks, s3, "1MiB");
        let mut mount = server.mount().await;
        for number in 0..4 {
            assert!(mount.read(&format!("f{number}")).await == large(number));
        }
        assert!(server.metric("holdfast_object_received_bytes_total ") >= 3.0e6);
        for _ in 0..500 {
            if server.metric("holdfast_chunkstore_disk_cache_bytes ") >= 3.0e6 {
                break;
            }
            SystemClock::new().sleep(Duration::from_millis(20)).await;
        }
        s3.set_down(true);
        mount.write("meanwhile", &large(9)).await;
        for number in 0..4 {
            assert!(mount.read(&format!("f{number}")).await == large(number));
        }
        assert!(server.metric("holdfast_chunkstore_disk_cache_hits_total ") > 0.0);
        s3.set_down(false);
        packed(&server).await;
        assert!(mount.read("meanwhile").await == large(9));
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
        if let Some(code) = as_holdfast() {
            std::process::exit(code);
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
