//! Runs the commands that the README shows, against a server of its own.
//!
//! Commands that build, mount or run all tests are run elsewhere: by CI and by the kernel tier. The
//! test knows them by name, so that a new command in the README fails until it is run somewhere.

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};

    /// Lines of the README that other tests run, and which.
    const ELSEWHERE: [(&str, &str); 16] = [
        (
            "cargo run --release --bin holdfast -- up",
            "this test starts the same binary",
        ),
        ("tests/run", "CI"),
        ("cargo build --release", "CI"),
        (
            "export PATH=\"$PWD/target/release:$PATH\"",
            "this test calls the binary by its path",
        ),
        ("holdfast up &", "this test starts it"),
        ("mkdir -p /tmp/agent", "kernel tier"),
        (
            "holdfast mount /tmp/agent",
            "kernel tier: the same line by hand",
        ),
        ("echo hello > /tmp/agent/hello.txt", "kernel tier"),
        ("git init /tmp/agent/repo", "kernel tier: git"),
        ("echo hi > /tmp/agent/greeting.txt", "kernel tier: inside"),
        (
            "/bin/echo \"greeting\" > /tmp/agent/.holdfast/publish",
            "kernel tier: inside",
        ),
        ("cat /tmp/agent/.holdfast/log", "kernel tier: inside"),
        (
            "cp /tmp/agent/.holdfast/at/main/hello.txt /tmp/agent/restored.txt",
            "kernel tier: inside",
        ),
        // Nothing wrote the file here.
        ("holdfast cat main hello.txt", "control/tests/reading"),
        ("holdfast log --path hello.txt", "control/tests/reading"),
        ("holdfast blame main hello.txt", "control/tests/reading"),
    ];

    struct Server {
        child: Child,
        directory: tempfile::TempDir,
    }

    impl Drop for Server {
        fn drop(&mut self) {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .unwrap()
            .to_owned()
    }

    fn binary() -> PathBuf {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/holdfast");
        let binary = std::env::var_os("HOLDFAST_BIN").map_or(built, PathBuf::from);
        assert!(
            binary.exists(),
            "build it first: cargo build --release ({})",
            binary.display()
        );
        binary
    }

    fn start() -> Server {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new(binary())
            .args([
                "up",
                "--json",
                "--listen",
                "127.0.0.1:0",
                "--api-listen",
                "127.0.0.1:0",
            ])
            .arg("--data-dir")
            .arg(directory.path().join("holdfast-data"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(ready["mount_path"].as_str().unwrap().starts_with('/'));
        assert!(
            ready["mount_command"]
                .as_str()
                .unwrap()
                .starts_with("mount -t nfs -o vers=3,")
        );
        Server { child, directory }
    }

    /// The commands in the README's `sh` blocks.
    fn commands() -> Vec<String> {
        let text = std::fs::read_to_string(root().join("README.md")).unwrap();
        let blocks = text.split("```sh\n").skip(1);
        blocks
            .flat_map(|block| block.split("```").next().unwrap().lines())
            .map(str::to_owned)
            .collect()
    }

    fn run(server: &Server, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        let output = Command::new(binary())
            .args(&words[1..])
            .current_dir(server.directory.path())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{command}: {} {errors}",
            output.status
        );
        assert!(!output.stdout.is_empty(), "{command} prints nothing");
    }

    #[test]
    fn the_tour_works() {
        let mut server = start();
        let mut ran = 0;
        for command in commands() {
            if ELSEWHERE.iter().any(|(line, _)| *line == command) {
                continue;
            }
            assert!(
                command.starts_with("holdfast "),
                "nothing runs this line: {command}"
            );
            if command == "holdfast check" {
                // It is for a server that is stopped.
                server.child.kill().unwrap();
                server.child.wait().unwrap();
            }
            run(&server, &command);
            ran += 1;
        }
        assert!(
            ran >= 7,
            "the README shows only {ran} commands that can be run here"
        );
    }
}
