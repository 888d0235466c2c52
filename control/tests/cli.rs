//! The command line: the main job, and what it says of bad input.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use support::{Server, fails, holdfast, json, run};

#[test]
fn up_serves_one_session_across_restarts() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let server = Server::start("up", &dir);
    let (path, session) = (server.text("mount_path"), server.text("session"));
    let command = server.text("mount_command");
    assert!(command.starts_with("mount -t nfs -o vers=3,"), "{command}");
    assert!(command.ends_with(&format!(" 127.0.0.1:{path} /mnt")));
    assert!(server.text("mount_options").contains("addr=127.0.0.1"));
    server.kill();
    // What a killed server left behind names no server; commands say so.
    fails(&["workspace", "ls"], &dir, 6, &["is the server running?"]);

    let server = Server::start("up", &dir);
    assert_eq!(server.text("mount_path"), path);
    assert_eq!(server.text("session"), session);
    assert_eq!(server.terminate(), Some(0));
    assert!(!dir.join("control.json").exists());
    fails(
        &["workspace", "ls"],
        &dir,
        6,
        &["no server uses", "holdfast up"],
    );

    let server = Server::start("up", &dir);
    assert_eq!(
        json(&["session", "close", &session], &dir)["closed"],
        *session
    );
    assert_eq!(server.terminate(), Some(0));
    let server = Server::start("up", &dir);
    assert_ne!(server.text("session"), session);
    assert_eq!(
        json(&["workspace", "ls"], &dir).as_array().unwrap().len(),
        1
    );
}

#[test]
fn workspaces_and_sessions_are_managed() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let server = Server::start("serve", dir);
    assert!(server.ready.get("session").is_none());
    json(&["workspace", "create", "w"], dir);
    fails(&["workspace", "create", "w"], dir, 3, &["exists already"]);
    fails(&["workspace", "create", "a/b"], dir, 2, &["use 1 to 64 of"]);
    fails(&["session", "open", "nope"], dir, 4, &["no such workspace"]);
    let opened = json(
        &[
            "session",
            "open",
            "w",
            "--read-only",
            "--ttl",
            "1h",
            "--identity",
            "all-squash=7:8",
        ],
        dir,
    );
    let id = opened["id"].as_str().unwrap();
    assert!(
        opened["mount_command"]
            .as_str()
            .unwrap()
            .contains("-o ro,vers=3")
    );
    let shown = json(&["session", "show", id], dir);
    assert_eq!(shown["identity"], "all-squash=7:8");
    assert_eq!(shown["state"], "open");
    assert_eq!(shown["workspace"], "w");
    let listed = json(&["session", "ls", "--workspace", "w"], dir);
    assert_eq!(listed.as_array().unwrap().len(), 1);
    let ticket = json(
        &["session", "ticket", id, "--directory", "a/b", "--shared"],
        dir,
    );
    let line = ticket["mount_command"].as_str().unwrap();
    assert!(line.contains("actimeo=1,"), "{line}");
    fails(
        &["session", "ticket", id, "--directory", "../x"],
        dir,
        2,
        &["'..'"],
    );
    let line = json(&["mount", "/mnt", "--session", id, "--print-only"], dir);
    assert!(line["mount_command"].as_str().unwrap().ends_with(" /mnt"));
    fails(
        &["mount", "/mnt", "--print-only"],
        dir,
        2,
        &["which session?"],
    );
    json(&["session", "close", id], dir);
    fails(&["session", "show", id], dir, 4, &["no such session"]);
    fails(&["session", "show", "xyz"], dir, 2, &["is no session"]);
    let text = run(&["session", "ls"], dir);
    assert!(String::from_utf8_lossy(&text.stdout).starts_with("SESSION"));
    let errors = run(&["--json", "session", "show", id], dir).stderr;
    let error: serde_json::Value = serde_json::from_slice(&errors).unwrap();
    assert_eq!(error["exit_code"], 4);
    fails(&["--token", "x", "workspace", "ls"], dir, 2, &["--token"]);
    fails(
        &["workspace", "ls", "--token", "x"],
        dir,
        5,
        &["Authorization"],
    );
}

#[test]
fn the_local_token_is_shown_to_the_local_server_only() {
    let root = tempfile::tempdir().unwrap();
    let _server = Server::start("serve", root.path());
    fails(
        &["workspace", "ls", "--api", "http://127.0.0.1:9"],
        root.path(),
        2,
        &["which token?", "HOLDFAST_TOKEN"],
    );
}

#[test]
fn mount_opens_a_session_of_a_workspace() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let _server = Server::start("serve", dir);
    json(&["workspace", "create", "w"], dir);
    let args = ["mount", "/m n", "--workspace", "w", "--print-only"];
    let line = json(&args, dir);
    let command = line["mount_command"].as_str().unwrap();
    assert!(command.ends_with(" '/m n'"), "{command}");
    let opened = json(&["session", "ls"], dir);
    assert_eq!(opened.as_array().unwrap().len(), 1);
    assert_eq!(opened[0]["id"], line["session"]);
    fails(
        &["mount", "/nonexistent", "--workspace", "w"],
        dir,
        4,
        &["make it first"],
    );
    fails(
        &["mount", "/mnt", "--workspace", "x", "--print-only"],
        dir,
        4,
        &["no such workspace"],
    );
    // A session that was opened in vain is closed.
    let directory = [&args[..], &["--directory", ".."]].concat();
    fails(&directory, dir, 2, &["'..'"]);
    assert_eq!(json(&["session", "ls"], dir).as_array().unwrap().len(), 1);
}

#[test]
fn a_directory_that_may_not_be_read_is_named() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    std::fs::create_dir(&dir).unwrap();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    mode(&dir, 0);
    let output = as_nobody(root.path())
        .args(["up", "--data-dir"])
        .arg(&dir)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    mode(&dir, 0o700);
    assert_eq!(output.status.code(), Some(5), "{said}");
    for part in ["data directory", "Permission denied", "--data-dir"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn sessions_end_by_themselves() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let server = Server::start("serve", dir);
    json(&["workspace", "create", "w"], dir);
    json(&["session", "open", "w"], dir);
    json(&["session", "open", "w", "--ttl", "1s"], dir);
    let listed = || json(&["session", "ls"], dir).as_array().unwrap().len();
    // What is looked at every few seconds ends well before the bound on this loop.
    let mut looks = 0;
    while listed() == 2 {
        looks += 1;
        assert!(looks < 300, "the session stays open");
        std::thread::park_timeout(Duration::from_millis(100));
    }
    assert_eq!(listed(), 1);
    // Also what ended while no server ran.
    json(&["session", "open", "w", "--ttl", "1s"], dir);
    assert_eq!(server.terminate(), Some(0));
    std::thread::park_timeout(Duration::from_millis(1_100));
    let _server = Server::start("serve", dir);
    looks = 0;
    while listed() == 2 {
        looks += 1;
        assert!(looks < 300, "the session stays open");
        std::thread::park_timeout(Duration::from_millis(100));
    }
    assert_eq!(listed(), 1);
}

#[test]
fn with_json_a_wrong_command_line_is_a_json_error() {
    for args in [
        &["--json"][..],
        &["--json", "sesion"],
        &["session", "--json"],
        &["--json", "session", "show"],
        &["session", "show", "x", "--json", "--unknown"],
        &["mount", "--json"],
        &["--json", "session", "open", "--ttl", "soon"],
        &["serve", "--listen", "here", "--json"],
        &["--json", "workspace", "create", "w", "--root-mode", "9"],
    ] {
        let output = holdfast().args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(output.stdout, b"", "{args:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        let error: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(error["exit_code"], 2, "{args:?}");
        assert!(!error["error"].as_str().unwrap().is_empty());
    }
    // Else it is for people; and help is no error.
    let output = holdfast()
        .args(["session", "--", "--json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stderr.starts_with(b"error: "), "{output:?}");
    for args in [["--json", "--help"], ["--json", "--version"]] {
        let output = holdfast().args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(output.stderr.is_empty() && !output.stdout.is_empty());
    }
}

/// A command of the binary for somebody who may not do everything, from a place where they find it.
fn as_nobody(root: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return holdfast();
    }
    std::fs::set_permissions(root, Permissions::from_mode(0o755)).unwrap();
    let copy = root.join("holdfast");
    // Not copied by this process: one that another test begins meanwhile would inherit the open file,
    // and a file that is open for writing cannot be run.
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_holdfast"))
        .arg(&copy)
        .status()
        .unwrap();
    assert!(copied.success());
    let mut command = Command::new(copy);
    command.uid(65_534).gid(65_534).env_clear().current_dir("/");
    command
}

#[test]
fn a_data_directory_that_cannot_be_written_is_named() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, Permissions::from_mode(0o555)).unwrap();
    for below in ["", "below"] {
        let output = as_nobody(root.path())
            .args(["up", "--data-dir"])
            .arg(dir.join(below))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{said}");
        for part in ["data directory", "run as the user", "--data-dir"] {
            assert!(said.contains(part), "{said}");
        }
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

/// Runs `up` in a mount namespace of its own where `dir` is a disk of `kib` KiB that `prepare`, a
/// script, has worked on.
fn up_on_a_small_disk(dir: &Path, kib: u32, prepare: &str) -> Output {
    let script = format!(
        "mount -t tmpfs -o size={kib}k tmpfs \"$1\" || exit 9; echo mounted; cd \"$1\"; {prepare}; \
         exec \"$2\" up --data-dir \"$1/data\" --listen 127.0.0.1:0 --api-listen 127.0.0.1:0"
    );
    Command::new("unshare")
        .args(["-m", "sh", "-c", &script, "sh"])
        .arg(dir)
        .arg(env!("CARGO_BIN_EXE_holdfast"))
        .output()
        .unwrap()
}

#[test]
fn a_start_on_a_full_disk_says_what_is_needed() {
    if !rustix::process::geteuid().is_root() {
        return; // Only root can make a small disk.
    }
    let root = tempfile::tempdir().unwrap();
    // A first start, of which more or less fits; and a later one, where the disk filled up since.
    let fill = "\"$2\" up --data-dir data --listen 127.0.0.1:0 --api-listen 127.0.0.1:0 >out & \
                until grep -q Ctrl out; do sleep 0.05; done; kill $!; wait $!; \
                cat /dev/zero >filler 2>/dev/null";
    for (kib, prepare) in [(4, "true"), (40, "true"), (400, "true"), (8000, fill)] {
        let output = up_on_a_small_disk(root.path(), kib, prepare);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{kib} KiB: {said}");
        let last = said.lines().last().unwrap();
        for part in [
            "the disk of",
            "free: a server needs 4MiB to start, and 64MiB more",
            "Give that disk more space",
            "what is stored is left as it is",
        ] {
            assert!(last.contains(part), "{kib} KiB: {said}");
        }
        let shown = String::from_utf8_lossy(&output.stdout);
        assert_eq!(shown, "mounted\n", "it does not say that it serves");
        if kib != 8000 {
            assert!(!said.contains("serving"), "{said}");
        }
    }
}

#[test]
fn what_is_said_twice_or_beyond_measure_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let server = Server::start("up", dir);
    let pairs = ["--pair", "k=1", "--pair", "j=1", "--pair", "k=2"];
    let session = server.text("session");
    for command in [
        &["session", "checkpoint"][..],
        &["session", "publish"],
        &["session", "close", &session, "--keep"],
        &["import", dir.to_str().unwrap()],
    ] {
        fails(
            &[command, &pairs].concat(),
            dir,
            2,
            &["\"k\"", "more than once"],
        );
    }
    json(&["session", "publish"], dir);
    for command in ["show", "diff"] {
        json(&[command, "--limit", "10000"], dir);
        fails(&[command, "--limit", "10001"], dir, 2, &["at most 10000"]);
    }
    json(&["session", "show", &session], dir);
    json(
        &[
            "conflicts",
            "between",
            &session,
            &session,
            "--limit",
            "20000",
        ],
        dir,
    );
    let token = server.text("api_token");
    for path in [
        "/v1/workspaces/default/diff?limit=10001",
        "/v1/workspaces/default/commit?changes=10001",
        &format!("/v1/sessions/{session}/clashes?with={session}&limit=10001"),
    ] {
        let (status, answer) = server.call("GET", path, Some(&token), b"");
        assert_eq!(status, 400, "{path}");
        let detail = answer["detail"].as_str().unwrap();
        assert!(detail.contains("at most 10000"), "{detail}");
    }
}

/// Bug: nothing was said of a misspelt variable where the command line was wrong, too.
#[test]
fn misspelt_variables_are_told_of_wrong_lines() {
    for json in [&[][..], &["--json"]] {
        let mut command = holdfast();
        let command = command.args(json).args(["serve", "--wrong"]);
        let output = command.env("HOLDFAST_LISEN", "127.0.0.1:1").output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        let (warned, wrong) = said.split_once('\n').unwrap();
        assert!(warned.contains("HOLDFAST_LISTEN"), "{said}");
        assert!(wrong.contains("--wrong"), "{said}");
    }
}

#[test]
fn misspelt_variables_are_told() {
    let root = tempfile::tempdir().unwrap();
    let serve = ["serve", "--check-config"];
    let misspelt = |json: &[&str]| {
        let mut command = holdfast();
        command
            .args(json)
            .args(serve)
            .arg("--data-dir")
            .arg(root.path());
        command
            .env("HOLDFAST_LISEN", "127.0.0.1:1")
            .output()
            .unwrap()
    };
    let output = misspelt(&[]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("HOLDFAST_LISEN") && said.contains("HOLDFAST_LISTEN"),
        "{said}"
    );
    let said: serde_json::Value = serde_json::from_slice(&misspelt(&["--json"]).stderr).unwrap();
    assert!(
        said["warning"]
            .as_str()
            .unwrap()
            .contains("HOLDFAST_LISTEN")
    );
}

#[test]
fn first_digits_name_a_session() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let server = Server::start("up", dir);
    let [one, two] = ["first", "second"].map(|agent| {
        let opened = json(&["session", "open", "--agent", agent], dir);
        opened["id"].as_str().unwrap().to_owned()
    });
    let short = &one[..12];
    assert_eq!(json(&["session", "show", short], dir)["agent"], "first");
    json(&["session", "ticket", short], dir);
    json(&["session", "publish", short], dir);
    for query in [
        &["log", "--session", short][..],
        &["log", "--session", &one],
    ] {
        assert_eq!(json(query, dir)[0]["session"], one.as_str());
    }
    assert_eq!(
        json(&["log", "--session", &two[..12]], dir),
        serde_json::json!([])
    );
    let clashes = json(&["conflicts", "between", short, &two[..12]], dir);
    assert_eq!(clashes["items"], serde_json::json!([]));
    json(&["diff", "--session", short], dir);
    let line = ["mount", "/mnt", "--print-only", "--session", short];
    assert_eq!(json(&line, dir)["session"], one.as_str());
    let token = server.text("api_token");
    let path = format!("/v1/sessions/{short}");
    assert_eq!(server.call("GET", &path, Some(&token), b"").0, 200);
    // What is told is the whole id.
    assert_eq!(
        json(&["session", "close", short], dir)["closed"],
        one.as_str()
    );
    fails(
        &["session", "show", short],
        dir,
        4,
        &["no such session", short],
    );
    // Commits know sessions that are gone; only all digits say which.
    assert_eq!(
        json(&["log", "--session", &one], dir)[0]["session"],
        one.as_str()
    );
    fails(&["log", "--session", short], dir, 4, &["no such session"]);
    fails(
        &["session", "show", &two[..3]],
        dir,
        2,
        &["is no session", "at least 4"],
    );
}

#[test]
fn odd_arguments_are_named() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let file = dir.join("file");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    let data = &dir.join("data");
    let _server = Server::start("up", data);
    for id in ["", "..", "+1", "x y", "00000000000000001"] {
        for args in [
            &["session", "show", id][..],
            &["session", "close", id],
            &["session", "ticket", id],
            &["mount", "/", "--print-only", "--session", id],
        ] {
            fails(args, data, 2, &["is no session", "session ls"]);
        }
    }
    fails(
        &["session", "open", "--ttl", "40000d"],
        data,
        2,
        &["over 100 years"],
    );
    fails(&["mount", file], data, 3, &["is a file: name a directory"]);
    fails(&["mount", "/nonexistent/x"], data, 4, &["make it first"]);
    for api in ["ftp://x", "http://[", "http://", "https://x", "a b"] {
        let args = ["workspace", "ls", "--api", api, "--token", "x"];
        fails(
            &args,
            data,
            2,
            &["is no address of an API", "http://HOST:PORT"],
        );
    }
    for (args, part) in [
        (["serve", "--config", "/dev/zero"], "is longer than"),
        (
            ["serve", "--config", env!("CARGO_BIN_EXE_holdfast")],
            "is longer than",
        ),
        (["serve", "--check-config", "--log=[["], "log filter"),
    ] {
        fails(&args, data, 2, &[part]);
    }
    // Empty variables are none.
    let output = holdfast()
        .args(["session", "ls", "--json", "--data-dir"])
        .arg(data)
        .envs([("HOLDFAST_API", ""), ("HOLDFAST_TOKEN", "")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn mounting_needs_root() {
    let root = tempfile::tempdir().unwrap();
    let output = as_nobody(root.path())
        .args(["mount", "/", "--data-dir"])
        .arg(root.path().join("data"))
        .output()
        .unwrap();
    let has_helper = Path::new("/sbin/mount.nfs").exists();
    let (code, part) = if has_helper {
        (5, "needs root")
    } else {
        (6, "no server uses")
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(part), "{said}");
}

/// Bug: a mount that failed left a ticket that nobody knows.
#[test]
fn a_mount_that_fails_leaves_no_ticket() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start("up", &root.path().join("data"));
    let session = server.text("session");
    let listed = format!("/v1/sessions/{session}/tickets");
    let tickets = || server.call("GET", &listed, Some(&server.text("api_token")), b"");
    let before = tickets();
    // The kernel refuses: not everybody may mount.
    let output = as_nobody(root.path())
        .args(["mount", "/mnt", "--no-helper", "--session", &session])
        .args(["--api", &format!("http://{}", server.text("api_address"))])
        .args(["--token", &server.text("api_token")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("mount on /mnt"), "{said}");
    assert_eq!(tickets(), before);
}

#[test]
fn a_result_that_cannot_be_written_is_told() {
    let root = tempfile::tempdir().unwrap();
    let _server = Server::start("up", root.path());
    let full = || {
        std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap()
    };
    for args in [
        &["session", "open"][..],
        &["session", "ls"],
        &["session", "ls", "--json"],
    ] {
        let mut command = holdfast();
        command.args(args).arg("--data-dir").arg(root.path());
        let output = command.stdout(full()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("print the result: No space left"), "{said}");
    }
    // A reader that went away wants no more.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = holdfast();
    command
        .args(["session", "ls", "--data-dir"])
        .arg(root.path());
    let output = command.stdout(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stderr, b"");
}

#[test]
fn a_signal_ends_a_start_that_takes_long() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(Server::start("up", root.path()).terminate(), Some(0));
    // A pack without a side index is read, and this one takes hours: a hole of a tebibyte.
    let chunks = root.path().join("chunks");
    let pack = std::fs::File::create(chunks.join("pack-00000000.dat")).unwrap();
    pack.set_len(1 << 40).unwrap();
    std::fs::write(chunks.join("pack-00000001.dat"), "").unwrap();
    let mut child = holdfast()
        .args([
            "up",
            "--listen",
            "127.0.0.1:0",
            "--api-listen",
            "127.0.0.1:0",
            "--data-dir",
        ])
        .arg(root.path())
        .spawn()
        .unwrap();
    // It has come to the packs when it has the metadata store; signals are taken long before.
    let lock = root.path().join("LOCK");
    let pid = child.id().to_string();
    let mut looks = 0;
    while std::fs::read_to_string(&lock).unwrap().trim() != pid {
        looks += 1;
        assert!(looks < 300, "it does not begin");
        std::thread::park_timeout(Duration::from_millis(100));
    }
    let asked = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert!(asked.success());
    let mut ended = None;
    for _ in 0..100 {
        ended = child.try_wait().unwrap();
        if ended.is_some() {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    if ended.is_none() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(ended.and_then(|status| status.code()), Some(0));
}

#[test]
fn bad_starts_say_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    fails(
        &["up", "--lisen", "x"],
        &dir,
        2,
        &["unexpected argument '--lisen'"],
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    fails(
        &["up", "--listen", &taken, "--api-listen", "127.0.0.1:0"],
        &dir,
        3,
        &["listen on", "for NFS", "choose another with --listen"],
    );
    fails(
        &["up", "--listen", "127.0.0.1:0", "--api-listen", &taken],
        &dir,
        3,
        &["for the API", "choose another with --api-listen"],
    );
    let server = Server::start("up", &dir);
    fails(
        &["serve"],
        &dir,
        3,
        &["in use by process", "stop that server"],
    );
    drop(server);
    let file = root.path().join("file");
    std::fs::write(&file, "").unwrap();
    for path in [&file, &file.join("below")] {
        fails(
            &["up"],
            path,
            3,
            &["make data directory", "is a file", "--data-dir"],
        );
    }
    fails(&["check"], &file, 3, &["read data directory", "is a file"]);
    let filled = root.path().join("filled");
    std::fs::create_dir(&filled).unwrap();
    std::fs::write(filled.join("x"), "").unwrap();
    fails(
        &["up"],
        &filled,
        3,
        &["neither empty nor a Holdfast data directory"],
    );
}

#[test]
fn settings_come_from_flag_environment_and_file() {
    let root = tempfile::tempdir().unwrap();
    let config = root.path().join("holdfast.toml");
    std::fs::write(
        &config,
        "listen = '127.0.0.1:1'\napi_listen = '127.0.0.1:1'\nlog = 'warn'\n",
    )
    .unwrap();
    let output = holdfast()
        .args([
            "serve",
            "--print-config",
            "--json",
            "--listen",
            "127.0.0.1:3",
        ])
        .env("HOLDFAST_CONFIG", &config)
        .env("HOLDFAST_LISTEN", "127.0.0.1:2")
        .env("HOLDFAST_API_LISTEN", "127.0.0.1:2")
        .output()
        .unwrap();
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed["listen"], "127.0.0.1:3");
    assert_eq!(printed["api_listen"], "127.0.0.1:2");
    assert_eq!(printed["log"], "warn");
    let check = |text: &str| {
        std::fs::write(&config, text).unwrap();
        let mut command = holdfast();
        command.args(["serve", "--check-config", "--config"]);
        command.arg(&config).output().unwrap()
    };
    assert!(check("log_format = 'json'").status.success());
    let wrong = check("lisen = '127.0.0.1:1'");
    assert_eq!(wrong.status.code(), Some(2));
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        said.contains("unknown field `lisen`") && said.contains("holdfast.toml"),
        "{said}"
    );
    assert_eq!(
        check("log = 'info'\ndirty_memory = '1B'").status.code(),
        Some(2)
    );
    let missing = holdfast()
        .args(["serve", "--config", "/nonexistent/holdfast.toml"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(4));
}
