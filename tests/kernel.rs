//! The kernel tier: real workloads through the Linux kernel's NFS client.
//!
//! Each test is one `tests/kernel/run WORKLOAD`, in a size for every change. The runner boots User
//! Mode Linux beside the server under test (`HOLDFAST_BIN`, else `target/release/holdfast`), mounts
//! it and runs the workload in the guest. Without User Mode Linux, root or the binary a test fails
//! and says what to install: it never passes empty. `KERNEL_RUN_OPTIONS="--peer knfsd"` runs the
//! same against Linux's own server, to compare. `tests/kernel/README.md` has the long runs.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Options and seconds of a workload's run.
struct Run {
    workload: &'static str,
    args: &'static [&'static str],
    options: &'static [&'static str],
    seconds: u32,
    /// Host directory for the job, to look at afterwards.
    job: Option<String>,
}

/// A run that ends well with room to spare ends within this many seconds.
const USUAL_SECONDS: u32 = 300;

impl Run {
    fn of(workload: &'static str, args: &'static [&'static str]) -> Self {
        Self {
            workload,
            args,
            options: &[],
            seconds: USUAL_SECONDS,
            job: None,
        }
    }

    fn options(self, options: &'static [&'static str]) -> Self {
        Self { options, ..self }
    }

    fn job(self, job: &str) -> Self {
        Self {
            job: Some(job.to_owned()),
            ..self
        }
    }

    fn seconds(self, seconds: u32) -> Self {
        Self { seconds, ..self }
    }

    /// Runs it and fails with all that the guest and the runner said.
    fn passes(self) {
        let root = root();
        let _one_guest_at_a_time = guest_lock();
        let output = self
            .command(&root)
            .output()
            .expect("tests/kernel/run can be started");
        assert!(
            output.status.success(),
            "{} {:?} ended with {:?}\n{}",
            self.workload,
            self.args,
            output.status.code(),
            said(&output),
        );
    }

    fn command(&self, root: &Path) -> Command {
        let mut command = Command::new(root.join("tests/kernel/run"));
        command
            .arg("--bin")
            .arg(binary(root))
            .args(["--timeout", &self.seconds.to_string()])
            .args(self.options)
            .args(
                std::env::var("KERNEL_RUN_OPTIONS")
                    .unwrap_or_default()
                    .split_whitespace(),
            )
            .args(self.job.iter().flat_map(|job| ["--job", job.as_str()]))
            .arg(self.workload)
            .args(self.args)
            .current_dir(root);
        command
    }
}

/// The workspace's directory.
fn binary(root: &Path) -> PathBuf {
    std::env::var_os("HOLDFAST_BIN")
        .map_or_else(|| root.join("target/release/holdfast"), PathBuf::from)
}

fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("the package is in the workspace")
        .to_owned()
}

/// Every guest is pinned to the same CPU and is timed, so tests wait for one another, also when the
/// test runner gives each a process of its own.
fn guest_lock() -> File {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernel-guest.lock");
    let file = File::create(path).expect("a lock file in the target directory");
    file.lock().expect("the lock file can be locked");
    file
}

fn said(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    format!("{out}\n{err}")
}

#[test]
fn pjdfstest() {
    Run::of("pjdfstest", &[]).passes();
}

#[test]
fn fsx() {
    Run::of("fsx", &["20000"]).passes();
}

/// Small transfers cut every read and write into many calls.
#[test]
fn fsx_in_small_transfers() {
    Run::of("fsx", &["4000", "11"])
        .options(&["--more-opts", "rsize=4096,wsize=4096"])
        .passes();
}

/// A session that others write to as well is mounted with short attribute caching.
#[test]
fn fsx_with_short_attribute_caching() {
    Run::of("fsx", &["4000", "21"])
        .options(&["--more-opts", "actimeo=1,cto"])
        .passes();
}

#[test]
fn git() {
    Run::of("git", &["1500"]).passes();
}

#[test]
fn sqlite() {
    Run::of("sqlite", &["3000"]).passes();
}

#[test]
fn tar() {
    Run::of("tar", &["600"]).passes();
}

#[test]
fn build() {
    Run::of("build", &["12"]).passes();
}

#[test]
fn npm_tree() {
    Run::of("npm-tree", &["4000"]).passes();
}

#[test]
fn big_directory() {
    Run::of("bigdir", &["10000"]).passes();
}

#[test]
fn removal_while_listing() {
    Run::of("rm-while-list", &["3000"]).passes();
}

#[test]
fn two_appenders() {
    Run::of("append2", &["3000"]).passes();
}

#[test]
fn directory_storm() {
    Run::of("dirstorm", &["300"]).passes();
}

#[test]
fn sparse_files() {
    Run::of("sparse", &[]).passes();
}

#[test]
fn errors() {
    Run::of("errors", &[]).passes();
}

/// Writers get ENOSPC, nothing is harmed, and room is used again without a restart.
#[test]
fn full_disk() {
    Run::of("full-disk", &[])
        .options(&[
            "--data-size",
            "320m",
            "--after",
            "{bin} check --data-dir {data}",
        ])
        .passes();
}

/// Sessions that are mounted at once change a repository apart, publish, clash and are forked, with
/// a kill in between.
#[test]
fn history() {
    with_api("history", &["8"]);
}

/// Edit, publish, see the log, restore and settle a clash with nothing but the mount, whatever the
/// client has cached, with kills in between.
#[test]
fn inside() {
    with_api("inside", &["5"]);
}

/// Runs a workload that calls the server's API from the guest.
fn with_api(workload: &'static str, args: &'static [&'static str]) {
    let binary = format!("HOLDFAST_BIN={}", binary(&root()).display());
    let options = [
        "--serve",
        "exec {bin} up --data-dir {data} --listen 0.0.0.0:{port} --api-listen 0.0.0.0:12080 --json",
        "--env",
        Box::leak(binary.into_boxed_str()),
        "--after",
        "{bin} check --data-dir {data}",
    ];
    Run::of(workload, args)
        .options(Box::leak(Box::new(options)))
        .passes();
}

#[test]
fn mount_time() {
    Run::of("mount-time", &["20"]).passes();
}

#[test]
fn restart_under_the_mount() {
    Run::of("restart", &[]).passes();
}

#[test]
fn chaos() {
    Run::of("chaos", &["2"]).passes();
}

/// After kill rounds nothing is damaged, and at least one call was answered with the reply that an
/// earlier process had stored: without such a call the rounds would prove nothing about them.
#[test]
fn chaos_while_the_server_is_killed() {
    let job = tempfile::tempdir().expect("a directory");
    let path = job.path().to_str().expect("UTF-8").to_owned();
    Run::of("chaos", &[])
        .options(&["--kill-every", "2,4", "--rounds", "20", "--keep"])
        .job(&path)
        .seconds(3 * USUAL_SECONDS)
        .passes();
    let log = std::fs::read_to_string(job.path().join("server.err")).expect("server.err");
    assert!(
        log.contains("call has its stored reply"),
        "no reply came from the store\n{log}"
    );
    let output = Command::new(binary(&root()))
        .arg("check")
        .arg("--data-dir")
        .arg(job.path().join("data"))
        .output()
        .expect("holdfast check can be started");
    assert!(output.status.success(), "{}", said(&output));
}

/// A run without its requirements is a failure that says what to do.
#[test]
fn without_the_server_binary_a_run_fails() {
    let output = Command::new(root().join("tests/kernel/run"))
        .args(["--bin", "/nonexistent/holdfast", "errors"])
        .output()
        .expect("tests/kernel/run can be started");
    assert_eq!(output.status.code(), Some(125), "{}", said(&output));
    assert!(said(&output).contains("rig: "), "{}", said(&output));
}
