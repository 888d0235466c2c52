//! Runs the built binary, as people do.
#![allow(dead_code, missing_docs, unreachable_pub)] // Shared by several test binaries.
#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)] // For tests.

pub mod files;
pub mod scripted;
#[path = "../../../tests/support/socket.rs"]
pub mod socket;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

/// A command of the binary, without settings from outside.
pub fn holdfast() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    for (name, _) in std::env::vars() {
        if name.starts_with("HOLDFAST_") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command to its end.
pub fn run(args: &[&str], dir: &Path) -> Output {
    holdfast()
        .args(args)
        .arg("--data-dir")
        .arg(dir)
        .output()
        .unwrap()
}

/// Runs a command that succeeds, and gives the JSON it prints.
pub fn json(args: &[&str], dir: &Path) -> Value {
    let output = run(&[&["--json"], args].concat(), dir);
    assert!(output.status.success(), "{args:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a command that fails with `code` and says each of `parts`.
pub fn fails(args: &[&str], dir: &Path, code: i32, parts: &[&str]) {
    let output = run(args, dir);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    for part in parts {
        assert!(said.contains(part), "{args:?} says {said}, not {part}");
    }
}

/// Opens a session; gives what is told of it.
pub fn open(dir: &Path, more: &[&str]) -> Value {
    json(&[&["session", "open"], more].concat(), dir)
}

/// The id of a session, or of another thing that has one.
pub fn id(of: &Value) -> &str {
    of["id"].as_str().unwrap()
}

/// Publishes a session; gives what is told of that.
pub fn publish(dir: &Path, session: &Value, more: &[&str]) -> Value {
    json(&[&["session", "publish", id(session)], more].concat(), dir)
}

/// A running server.
pub struct Server {
    pub child: Child,
    pub ready: Value,
}

/// Arguments that let the system choose ports.
pub const ANY_PORTS: [&str; 4] = ["--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0"];

impl Server {
    pub fn start(verb: &str, dir: &Path) -> Self {
        Self::start_with(verb, dir, &[])
    }

    pub fn start_with(verb: &str, dir: &Path, more: &[&str]) -> Self {
        let mut child = holdfast()
            .args(["--json", verb, "--data-dir"])
            .arg(dir)
            .args(ANY_PORTS)
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let ready = serde_json::from_str(&line).unwrap();
        Self { child, ready }
    }

    pub fn text(&self, field: &str) -> String {
        self.ready.get(field).unwrap().as_str().unwrap().to_owned()
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, and gives its exit code.
    pub fn terminate(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        let asked = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert!(asked.success());
        self.child.wait().unwrap().code()
    }

    /// Calls the API; gives status and body.
    pub fn call(&self, method: &str, path: &str, token: Option<&str>, body: &[u8]) -> (u16, Value) {
        let url = format!("http://{}{path}", self.text("api_address"));
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(url)
            .header("content-type", "application/json");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(20)));
        let agent: ureq::Agent = config.build().into();
        let mut response = agent.run(request.body(body.to_vec()).unwrap()).unwrap();
        let text = response.body_mut().read_to_string().unwrap();
        let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        (response.status().as_u16(), value)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Has ended already in most tests.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
