//! The server of an emulated cluster, for a test. It ends with this.
#![allow(dead_code)] // Shared by test binaries.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A cluster for as long as this lives.
pub(crate) struct Emulator {
    pub(crate) child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    directory: tempfile::TempDir,
}

impl Emulator {
    /// A new cluster, empty, with these faults.
    pub(crate) fn start(seed: u64, faults: &str) -> Self {
        let test = std::env::current_exe().unwrap();
        let program = test.ancestors().nth(2).unwrap().join("fdb-emulator-server");
        assert!(program.exists(), "run tests/fdb/run, which builds it");
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new(program)
            .args(["--seed", &seed.to_string(), "--faults", faults])
            .arg("--cluster-file")
            .arg(directory.path().join("fdb.cluster"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        assert!(line.contains('@'), "the server says: {line}");
        Self {
            commands: child.stdin.take(),
            child,
            answers,
            directory,
        }
    }

    /// Its cluster file.
    pub(crate) fn file(&self) -> PathBuf {
        self.directory.path().join("fdb.cluster")
    }

    /// Has the server obey a line; what it says before its "ok".
    pub(crate) fn tell(&mut self, line: &str) -> String {
        writeln!(self.commands.as_mut().unwrap(), "{line}").unwrap();
        let mut said = String::new();
        loop {
            let mut line = String::new();
            let bytes = self.answers.read_line(&mut line).unwrap();
            assert!(bytes > 0, "the server has ended");
            assert!(!line.starts_with("error"), "{line}");
            if line == "ok\n" {
                return said;
            }
            said.push_str(&line);
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // It ends when its input does.
        self.commands = None;
        self.child.wait().unwrap();
    }
}
