//! Data that is damaged, or of another release: named, and left as it is.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{InodeId, NodeId, Rng, SystemClock, TenantId};
use chunkstore::local::{LocalOptions, LocalStore};
use metadata::keyspace;
use metadata::kv::Kv;
use metadata::kv::embedded::{EmbeddedKv, EmbeddedOptions};
use metadata::record::workspace::{DATA_VERSION, FormatRecord};
use metadata::session::{session_layers, tree_of};
use metadata::store::{NewCommit, Store};
use nfs_gateway::ChunkTrees;
use support::{ANY_PORTS, Server, fails, holdfast, json, run};

/// A data directory that a server has used and left.
fn used() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(Server::start("up", root.path()).terminate(), Some(0));
    root
}

fn set(dir: &Path, key: Vec<u8>, value: Vec<u8>) {
    let clock = Arc::new(SystemClock::new());
    let path = dir.join("meta.redb");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let kv = EmbeddedKv::open(&path, &EmbeddedOptions::default(), clock).unwrap();
        let mut txn = kv.begin();
        txn.set(&key, &value);
        txn.commit().await.unwrap();
    });
}

fn up_fails(dir: &Path, parts: &[&str]) {
    fails(&[&["up"], &ANY_PORTS[..]].concat(), dir, 1, parts);
}

#[test]
fn another_version_is_named() {
    let root = used();
    let format = FormatRecord {
        data_version: 9,
        installation: [1; 16],
        created: base::Timestamp::EPOCH,
    };
    set(root.path(), keyspace::format(), format.encode().to_vec());
    let reads = format!("reads version {DATA_VERSION}");
    let parts = ["version 9", &reads, "nothing was changed"];
    up_fails(root.path(), &parts);
    up_fails(root.path(), &parts);
    let file = root.path().join("FORMAT");
    let newer = std::fs::read_to_string(&file)
        .unwrap()
        .replace(":1}", ":8}");
    std::fs::write(&file, newer).unwrap();
    up_fails(root.path(), &["version 8", "nothing was changed"]);
}

#[test]
fn a_damaged_record_is_named() {
    let root = used();
    set(root.path(), keyspace::handle_keys(), vec![1, 2, 3]);
    up_fails(root.path(), &["handle keys is damaged", "holdfast check"]);
}

#[test]
fn a_damaged_store_is_named_and_left() {
    let root = used();
    let file = root.path().join("meta.redb");
    std::fs::write(&file, vec![7; 10_000]).unwrap();
    up_fails(root.path(), &["meta.redb is damaged", "backup"]);
    assert_eq!(std::fs::read(&file).unwrap(), vec![7; 10_000]);
}

#[test]
fn a_store_that_was_cut_or_emptied_is_named_and_left() {
    let root = used();
    let file = root.path().join("meta.redb");
    let whole = std::fs::read(&file).unwrap();
    for damaged in [&[][..], &whole[..100], &whole[..whole.len() / 2]] {
        std::fs::write(&file, damaged).unwrap();
        up_fails(root.path(), &["meta.redb is damaged", "backup"]);
        assert_eq!(std::fs::read(&file).unwrap(), damaged);
    }
    std::fs::write(&file, &whole).unwrap();
    assert_eq!(json(&["check"], root.path())["clean"], true);
}

/// The header of `meta.redb` has two commit slots, at 64 and at 192. With a damaged one the engine
/// would use the other, older one, without a word.
#[test]
fn a_lost_commit_is_named_and_the_store_is_left() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start("up", root.path());
    let token = server.text("api_token");
    for name in ["one", "two", "three"] {
        let body = format!("{{\"name\":\"{name}\"}}");
        let (status, _) = server.call("POST", "/v1/workspaces", Some(&token), body.as_bytes());
        assert_eq!(status, 201);
    }
    server.kill();
    let file = root.path().join("meta.redb");
    let seen = root.path().join("meta.redb.seen");
    let (whole, witness) = (std::fs::read(&file).unwrap(), std::fs::read(&seen).unwrap());
    let mut refused = 0;
    for at in [64 + 20, 192 + 20] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        std::fs::write(&file, &damaged).unwrap();
        std::fs::write(&seen, &witness).unwrap();
        if run(&["check"], root.path()).status.success() {
            continue;
        }
        refused += 1;
        let parts = [
            "was acknowledged",
            "meta.redb.seen",
            "left as it is",
            "backup",
        ];
        fails(&["check"], root.path(), 1, &parts);
        up_fails(root.path(), &parts);
        assert_eq!(std::fs::read(&file).unwrap(), damaged);
        // Whoever accepts the loss goes on.
        std::fs::remove_file(&seen).unwrap();
        let server = Server::start("up", root.path());
        let (_, found) = server.call("GET", "/v1/workspaces", Some(&token), b"");
        let names = found.to_string();
        assert!(names.contains("two") && !names.contains("three"), "{names}");
    }
    assert_eq!(refused, 1);
}

#[test]
fn a_store_that_is_gone_is_not_made_anew() {
    let root = used();
    std::fs::remove_file(root.path().join("meta.redb")).unwrap();
    up_fails(root.path(), &["meta.redb is missing", "backup"]);
    fails(&["check"], root.path(), 1, &["meta.redb is missing"]);
    assert!(!root.path().join("meta.redb").exists());
}

#[test]
fn a_damaged_small_file_is_named_and_left() {
    let root = used();
    for (name, damaged, parts) in [
        (
            "session.json",
            &b"{\"session\""[..],
            &["makes a new session", "session ticket"][..],
        ),
        (
            "session.json",
            b"\xff",
            &["makes a new session", "session ls"],
        ),
        ("session.json", b"", &["move it away"]),
        (
            "session.json",
            b"{\"session\":\"x\",\"ticket\":\"y\"}",
            &["move it away"],
        ),
        ("FORMAT", b"", &["restore it from a backup"]),
        (
            "api-token",
            b"\xff\xfe",
            &["move it away", "makes a new token"],
        ),
    ] {
        let path = root.path().join(name);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, damaged).unwrap();
        let before = content_of(root.path());
        let named = format!("{} is damaged", path.display());
        let parts = [&[named.as_str(), "nothing was changed"], parts].concat();
        up_fails(root.path(), &parts);
        if name != "FORMAT" {
            let checked = run(&["--json", "check"], root.path());
            assert_eq!(checked.status.code(), Some(1), "{name}: {checked:?}");
            let report: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
            assert_eq!(report["problems"][0]["place"], name, "{report}");
            let advice = report["problems"][0]["advice"].as_str().unwrap();
            assert!(advice.contains("move that file away"), "{report}");
        }
        let changed = |file: &&(PathBuf, Vec<u8>)| {
            !before.contains(file) && !file.0.ends_with("meta.redb") && !file.0.ends_with("LOCK")
        };
        let after = content_of(root.path());
        assert_eq!(after.iter().find(changed), None, "{name}");
        // What it says to do works, and the session is still there.
        if name == "FORMAT" {
            std::fs::write(&path, &whole).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        let server = Server::start("up", root.path());
        let listed = json(&["session", "ls"], root.path());
        let old: serde_json::Value =
            serde_json::from_slice(&whole).unwrap_or_else(|_| serde_json::json!({}));
        if let Some(old) = old["session"].as_str() {
            let open = listed.as_array().unwrap();
            assert!(open.iter().any(|session| session["id"] == old), "{name}");
            json(&["session", "ticket", old], root.path());
        }
        server.terminate();
    }
    let control = root.path().join("control.json");
    std::fs::write(control, "{").unwrap();
    let parts = ["control.json is damaged", "restart the server"];
    fails(&["session", "ls"], root.path(), 1, &parts);
}

#[test]
fn a_session_whose_ticket_is_gone_gets_a_new_one() {
    let root = used();
    let path = root.path().join("session.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ticket = file["ticket"].as_str().unwrap();
    let changed = text.replace(ticket, &ticket.replace(['a', 'b', 'c'], "d"));
    std::fs::write(&path, changed).unwrap();
    let server = Server::start("up", root.path());
    assert_eq!(server.text("session"), file["session"].as_str().unwrap());
    let mount_path = server.text("mount_path");
    server.terminate();
    let server = Server::start("up", root.path());
    assert_eq!(server.text("mount_path"), mount_path);
    assert_eq!(server.text("session"), file["session"].as_str().unwrap());
}

#[test]
fn a_foreign_pack_is_named() {
    let root = used();
    let pack = root.path().join("chunks/pack-00000000.dat");
    std::fs::write(&pack, vec![7; 10_000]).unwrap();
    up_fails(root.path(), &["not a pack of this release", "backup"]);
}

#[test]
fn a_check_says_whether_data_is_good() {
    let root = used();
    let report = json(&["check"], root.path());
    assert_eq!(report["clean"], true);
    assert_eq!(report["counts"]["sessions"], 1);
    set(root.path(), b"zzz".to_vec(), vec![]);
    let output = run(&["check", "--metadata-only"], root.path());
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stdout);
    for part in ["key zzz", "what to do: ", "1 problem: "] {
        assert!(said.contains(part), "{said}");
    }
    set(root.path(), keyspace::handle_keys(), vec![1, 2, 3]);
    let output = run(&["--json", "check"], root.path());
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["problems_total"], 2);
    assert_eq!(report["problems"][0]["place"], "handle keys");
}

/// Every file below `dir`, with what is in it.
fn content_of(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(content_of(&path));
        } else {
            found.push((path.clone(), std::fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn a_check_changes_nothing() {
    // Stopped well, and killed, which leaves work to the next server.
    for is_killed in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let server = Server::start("up", root.path());
        json(&["session", "open"], root.path());
        if is_killed {
            server.kill();
        } else {
            server.terminate();
        }
        std::fs::remove_file(root.path().join("meta.redb.lock")).unwrap();
        let before = content_of(root.path());
        let report = json(&["check"], root.path());
        assert_eq!(report["counts"]["sessions"], 2);
        assert_eq!(report["content"]["unreadable_packs"], 0);
        assert_eq!(report["notes"], serde_json::json!([]));
        assert!(content_of(root.path()) == before);
    }
}

#[test]
fn a_check_needs_no_right_to_write() {
    if !rustix::process::geteuid().is_root() {
        return; // Only root can mount something read-only.
    }
    let root = used();
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,ro,bind \"$1\" || exit 9; \
                  ! touch \"$1/new\" 2>/dev/null && exec \"$2\" check --json --data-dir \"$1\"";
    let output = std::process::Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(root.path())
        .arg(env!("CARGO_BIN_EXE_holdfast"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["clean"], true);
}

#[test]
fn a_check_tells_of_packs_that_are_torn_and_that_cannot_be_read() {
    let root = used();
    let chunks = root.path().join("chunks");
    std::fs::write(chunks.join("pack-00000000.dat"), [0; 40]).unwrap();
    std::fs::write(chunks.join("pack-00000001.dat"), [7; 10_000]).unwrap();
    std::fs::create_dir(chunks.join("pack-00000002.dat")).unwrap();
    let before = content_of(root.path());
    let output = run(&["--json", "check"], root.path());
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["clean"], false);
    assert_eq!(report["problems_total"], 2);
    assert_eq!(report["content"]["unreadable_packs"], 2);
    let output = run(&["check"], root.path());
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stdout);
    for part in [
        "pack-00000001.dat: cannot be read",
        "not a pack of this release",
        "pack-00000002.dat: cannot be read",
        "2 packs unreadable",
        "2 problems",
    ] {
        assert!(said.contains(part), "{said} does not say {part}");
    }
    assert!(content_of(root.path()) == before);

    // What was never finished is no damage.
    std::fs::remove_file(chunks.join("pack-00000001.dat")).unwrap();
    std::fs::remove_dir(chunks.join("pack-00000002.dat")).unwrap();
    let torn = [&[0; 64][..], b"HFtorn"].concat();
    std::fs::write(chunks.join("pack-00000000.dat"), &torn).unwrap();
    let report = json(&["check"], root.path());
    assert_eq!(report["clean"], true);
    let note = report["notes"][0].as_str().unwrap();
    assert!(note.contains("pack-00000000.dat ends in 6 bytes"), "{note}");
    assert_eq!(
        std::fs::read(chunks.join("pack-00000000.dat")).unwrap(),
        torn
    );
}

#[test]
fn a_check_needs_a_directory_that_nobody_uses() {
    let root = tempfile::tempdir().unwrap();
    let nothing = root.path().join("nothing");
    fails(&["check"], &nothing, 4, &["not a Holdfast data directory"]);
    assert!(!nothing.exists());
    let dir = root.path().join("data");
    let server = Server::start("up", &dir);
    fails(
        &["check"],
        &dir,
        3,
        &["in use by process", "stop that server"],
    );
    drop(server);
    assert_eq!(json(&["check"], &dir)["clean"], true);
}

/// Makes a tree in `chunks/` and a commit of it, without a server. Gives the commit's id.
fn commit(dir: &Path) -> String {
    let clock: Arc<dyn base::Clock> = Arc::new(SystemClock::new());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let path = dir.join("meta.redb");
        let kv = EmbeddedKv::open(&path, &EmbeddedOptions::default(), Arc::clone(&clock));
        let kv: Arc<dyn Kv> = Arc::new(kv.unwrap());
        let local = LocalStore::open(&dir.join("chunks"), LocalOptions::default(), clock.clone());
        let trees = ChunkTrees::new(Arc::new(local.unwrap()), 0);
        let store = Store::open(kv, clock, Arc::new(Rng::system().unwrap()));
        let store = store.await.unwrap();
        let tenant = store.tenant(TenantId::DEFAULT).await.unwrap();
        let workspace = store.workspace_by_name(TenantId::DEFAULT, "default").await;
        let workspace = workspace.unwrap();
        let sessions = store.sessions(TenantId::DEFAULT, None, None, 1).await;
        let session = sessions.unwrap().remove(0);
        let tree = tree_of(&trees, session.record.tenant, &tenant, &workspace.record);
        let layers = session_layers(session.id, &session.record, &workspace.record, tree);
        let root = keyspace::image::inode(InodeId::ROOT);
        let attributes = layers.base().get(&root).await.unwrap().unwrap();
        let made = layers.base().tree().build([(root, attributes)]).await;
        let new = NewCommit::of_tree(NodeId::new(made.unwrap().root.to_bytes()));
        let made = store.put_commit(workspace.id, new).await.unwrap();
        made.id.to_string()
    })
}

/// A commit's tree is read, and what is wrong with it is told with the commit.
#[test]
fn a_commit_whose_tree_is_damaged_is_named() {
    let root = used();
    let id = commit(root.path());
    let clean = json(&["check"], root.path());
    assert_eq!(
        (&clean["clean"], &clean["counts"]["trees"]),
        (&serde_json::json!(true), &serde_json::json!(1)),
        "{clean}"
    );
    let server = Server::start("up", root.path());
    let collected = json(&["gc"], root.path());
    assert_eq!(
        (&collected["state"], &collected["nodes"]),
        (&"done".into(), &1.into())
    );
    assert_eq!(server.terminate(), Some(0));
    let packs = |extension: &str| {
        let listed = std::fs::read_dir(root.path().join("chunks")).unwrap();
        let paths = listed.map(|entry| entry.unwrap().path());
        let found: Vec<_> = paths
            .filter(|path| path.extension().is_some_and(|found| found == extension))
            .collect();
        found
    };
    let pack = packs("dat").remove(0);
    let whole = std::fs::read(&pack).unwrap();
    let tells = |what: &str| {
        let output = run(&["check"], root.path());
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stdout).unwrap();
        let line = said
            .lines()
            .find(|line| line.contains(&format!("commit {id}")));
        let line = line.unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains("tree node") && line.contains(what), "{line}");
    };
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    std::fs::write(&pack, &flipped).unwrap();
    tells("is damaged");
    // Nothing is collected while it is so.
    let server = Server::start("up", root.path());
    fails(
        &["gc"],
        root.path(),
        1,
        &[&id, "tree node", "holdfast check"],
    );
    server.terminate();
    for path in [packs("dat"), packs("idx")].concat() {
        std::fs::remove_file(path).unwrap();
    }
    tells("is missing");
    std::fs::write(&pack, &whole).unwrap();
    assert_eq!(json(&["check"], root.path())["clean"], true);
    json(&["check", "--metadata-only"], root.path());
}

/// Commands that open data by themselves take from a server's file where it is.
#[test]
fn a_servers_file_says_where_data_is() {
    let root = used();
    let config = root.path().join("holdfast.toml");
    let dir = root.path().display();
    let write = |more: &str| {
        std::fs::write(
            &config,
            format!("data_dir = '{dir}'\nlisten = '127.0.0.1:1'\n{more}"),
        )
    };
    let call = |args: &[&str]| {
        let mut command = holdfast();
        let command = command.args(args).current_dir("/");
        let output = command.arg("--config").arg(&config).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    write("").unwrap();
    for args in [&["check"][..], &["keys", "rotate"]] {
        assert_eq!(call(args), (Some(0), String::new()), "{args:?}");
    }
    // What is said on the command line wins.
    let (code, said) = call(&["check", "--data-dir", "/nonexistent"]);
    assert!(code != Some(0) && said.contains("/nonexistent"), "{said}");
    write("metadata = 'fdb:/none'").unwrap();
    // It is not there; without FoundationDB in the program it cannot even be looked for.
    let refused = if cfg!(feature = "fdb") { 3 } else { 2 };
    for args in [&["check"][..], &["keys", "rotate"]] {
        let (code, said) = call(args);
        assert_eq!(code, Some(refused), "{args:?}: {said}");
        assert_eq!(
            call(&[args, &["--metadata", "embedded"]].concat()).0,
            Some(0)
        );
    }
    write("metadta = 'fdb:/none'").unwrap();
    let (code, said) = call(&["check"]);
    assert_eq!(code, Some(2), "{said}");
    for part in ["holdfast.toml", "line 3", "expected one of"] {
        assert!(said.contains(part), "{said}");
    }
}
