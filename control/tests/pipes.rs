//! What goes through pipes, and what does not.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::io::Read;
use std::process::Stdio;

use support::{Server, holdfast, json};

/// Bug: an export whose reader had enough, as `head`, ended with exit code 1.
#[test]
fn an_export_ends_with_its_reader() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let server = Server::start("up", &dir);
    let files = root.path().join("files");
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("large"), vec![7; 3 << 20]).unwrap();
    json(&["import", files.to_str().unwrap()], &dir);
    let mut command = holdfast();
    command
        .args(["export", "main", "-", "--data-dir"])
        .arg(&dir);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut begin = [0; 5];
    let mut reader = child.stdout.take().unwrap();
    reader.read_exact(&mut begin).unwrap();
    drop(reader);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    assert_eq!(server.terminate(), Some(0));
}

/// Bug: a bundle to `-` was written to a file of that name.
#[test]
fn a_bundle_goes_through_no_pipe() {
    let root = tempfile::tempdir().unwrap();
    for line in [
        &["bundle", "..", "-"][..],
        &["unbundle", "-", "--workspace", "w"],
    ] {
        let mut command = holdfast();
        let output = command
            .args(line)
            .current_dir(root.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("a bundle is a file"), "{said}");
        assert!(!root.path().join("-").exists());
    }
}
