//! Directories and archives that go in and come out as they were.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use proptest::prelude::*;
use rustix::fs::FileType;

use crate::commands::{CONFLICT, USAGE, export, import, killed_is_sound, sessions, started, text};
use crate::support::{Server, fails, holdfast, json, run};
use crate::tar::{file, import_members, long_name};
use crate::tree::{
    BLOCK, compare, content_hash, described, mode, node, odd_tree, sparse, times_everywhere,
};

#[test]
fn a_directory_goes_in_and_comes_out_as_it_was() {
    let place = tempfile::tempdir().unwrap();
    let (dir, tree) = (place.path().join("data"), place.path().join("tree"));
    odd_tree(&tree);
    let wanted = described(&tree);
    times_everywhere(&tree);
    let server = Server::start("up", &dir);
    let made = import(
        &dir,
        &tree,
        &["-m", "odd", "--author", "alice", "--pair", "k=v"],
    );
    assert_eq!(
        (&made["is_new"], &made["branch"]),
        (&true.into(), &"main".into())
    );
    assert_eq!(made["commit"]["message"], "odd");
    assert_eq!(made["commit"]["pairs"]["k"], "v");
    assert_eq!(made["counts"]["links"], 4);
    // The same again is the same: nothing is stored, and there is no commit.
    let again = import(&dir, &tree, &["-m", "again"]);
    assert_eq!(again["is_new"], false, "{again}");
    assert_eq!(again["commit"]["id"], made["commit"]["id"]);
    let out = place.path().join("out");
    let told = export(&dir, "main", &out, &[]);
    assert_eq!(told["commit"], made["commit"]["id"]);
    assert_eq!(told["counts"]["files"], made["counts"]["files"]);
    compare(&described(&out), &wanted);
    // A little change is a little commit, and what it is about is told by path.
    fs::write(tree.join("small"), b"changed").unwrap();
    fs::remove_file(tree.join("pipe")).unwrap();
    let next = import(&dir, &tree, &["-m", "next"]);
    assert_eq!(next["commit"]["parents"][0], made["commit"]["id"]);
    let diff = json(&["diff"], &dir);
    let changes: Vec<_> = diff["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| {
            (
                change["what"].as_str().unwrap(),
                change["path"].as_str().unwrap(),
            )
        })
        .filter(|(_, path)| !path.is_empty() && *path != "/")
        .collect();
    let mut changes: Vec<String> = changes
        .iter()
        .map(|(what, path)| format!("{what} {path}"))
        .collect();
    changes.sort();
    assert_eq!(changes, ["modified small", "removed pipe"]);
    // Nothing of the imports' sessions is left.
    assert_eq!(sessions(&dir), 1);
    archives(&dir, place.path());
    killed_is_sound(server, &dir);
}

/// All forms of archives, and those of another program.
fn archives(dir: &Path, place: &Path) {
    export(dir, "main", &place.join("last"), &[]);
    let wanted = &described(&place.join("last"));
    for end in ["tar", "tar.gz", "tar.zst"] {
        let file = place.join(format!("a.{end}"));
        export(dir, "main", &file, &[]);
        fails(
            &["export", "main", text(&file)],
            dir,
            CONFLICT,
            &["exists", "--force"],
        );
        export(dir, "main", &file, &["--force"]);
        let branch = format!("from-{end}");
        import(dir, &file, &["--branch", &branch]);
        let out = place.join(format!("out of {}", end.replace('.', " ")));
        export(dir, &branch, &out, &[]);
        compare(&described(&out), wanted);
    }
    // What another program reads is the same, but for what it does not know: sockets.
    let theirs = place.join("theirs");
    fs::create_dir(&theirs).unwrap();
    let unpacked = Command::new("tar")
        .args([
            "--numeric-owner",
            "-xpf",
            text(&place.join("a.tar")),
            "-C",
            text(&theirs),
        ])
        .output()
        .unwrap();
    assert!(unpacked.status.success(), "{unpacked:?}");
    let content = |tree: &Path, name: &str| content_hash(&tree.join(name));
    for name in ["holes", "tail hole", "deep/large", "zz", "deep/er/second"] {
        assert_eq!(
            content(&theirs, name),
            content(&place.join("out of tar"), name),
            "{name}"
        );
    }
    by_others(dir, place);
}

/// What another program packs.
fn by_others(dir: &Path, place: &Path) {
    let content = |tree: &Path, name: &str| content_hash(&tree.join(name));
    for form in ["gnu", "pax", "ustar", "posix"] {
        let file = place.join(format!("{form}.tar"));
        let mut command = Command::new("tar");
        command.args([
            "-cf",
            text(&file),
            "-C",
            text(&place.join("out of tar")),
            "--sort=name",
        ]);
        command.arg(format!("--format={form}"));
        if form == "ustar" {
            // Has no long names, no large numbers, no holes.
            command.args(["holes", "pipe2", "empty", "zz", "third"]);
            assert!(node(
                &place.join("out of tar/pipe2"),
                FileType::Fifo,
                0o600,
                (0, 0)
            ));
        } else {
            command.args(["--sparse", "."]);
        }
        let packed = command.output().unwrap();
        assert!(packed.status.success(), "{packed:?}");
        let branch = format!("by-{form}");
        import(dir, &file, &["--branch", &branch]);
        let out = place.join(format!("of {form}"));
        export(dir, &branch, &out, &[]);
        for name in ["holes", "zz", "third"] {
            assert_eq!(
                content(&out, name),
                content(&place.join("out of tar"), name),
                "{form} {name}"
            );
        }
        if form != "ustar" {
            let name = place.join("out of tar").join("deep").join("n".repeat(255));
            assert!(
                out.join(name.strip_prefix(place.join("out of tar")).unwrap())
                    .exists()
            );
            let size = fs::metadata(out.join("tail hole")).unwrap();
            assert!(
                size.blocks() * 512 < 1 << 20 && size.len() == 1 << 30,
                "{form}"
            );
        }
    }
}

#[test]
fn an_export_writes_where_it_was_told() {
    let place = tempfile::tempdir().unwrap();
    let (dir, tree) = (place.path().join("data"), place.path().join("tree"));
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/file"), b"new").unwrap();
    fs::write(tree.join("plain"), b"new").unwrap();
    let server = Server::start("up", &dir);
    import(&dir, &tree, &[]);
    let (out, outside) = (place.path().join("out"), place.path().join("outside"));
    fs::create_dir_all(&out).unwrap();
    fs::create_dir_all(outside.join("b")).unwrap();
    fs::write(outside.join("b/file"), b"old").unwrap();
    symlink(&outside, out.join("a")).unwrap();
    symlink(outside.join("b/file"), out.join("plain")).unwrap();
    fails(
        &["export", "main", text(&out)],
        &dir,
        CONFLICT,
        &["not empty", "--force"],
    );
    export(&dir, "main", &out, &["--force"]);
    assert_eq!(fs::read(outside.join("b/file")).unwrap(), b"old");
    assert_eq!(fs::read(out.join("a/b/file")).unwrap(), b"new");
    assert_eq!(fs::read(out.join("plain")).unwrap(), b"new");
    assert!(!out.join("a").is_symlink() && !out.join("plain").is_symlink());
    // A directory stands where a file is to be: refused, and told.
    fs::remove_file(out.join("plain")).unwrap();
    fs::create_dir(out.join("plain")).unwrap();
    fails(
        &["export", "main", text(&out), "--force"],
        &dir,
        CONFLICT,
        &["plain", "not complete"],
    );
    fails(
        &["export", "main", text(&tree.join("plain"))],
        &dir,
        CONFLICT,
        &["no directory"],
    );
    let empty = place.path().join("empty");
    fs::create_dir(&empty).unwrap();
    export(&dir, "main", &empty, &[]);
    assert_eq!(fs::read(empty.join("plain")).unwrap(), b"new");
    through_a_pipe(&dir, place.path());
    // Nobody who asks for an archive gets a directory.
    for name in ["x.tar.xz", "x.zip", "x.gz", "X.TBZ2"] {
        let out = place.path().join(name);
        fails(
            &["export", "main", text(&out)],
            &dir,
            USAGE,
            &[name, "not written", ".tar.zst"],
        );
        assert!(!out.exists());
    }
    let out = place.path().join("x.zip");
    fs::create_dir(&out).unwrap();
    export(&dir, "main", &out, &[]);
    assert_eq!(fs::read(out.join("plain")).unwrap(), b"new");
    drop(server);
}

/// A command that may have few open files.
fn with_few_files(args: &[&str], dir: &Path) {
    let ran = Command::new("sh")
        .args(["-c", "ulimit -n 200; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_holdfast"))
        .args(args)
        .arg("--data-dir")
        .arg(dir)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{args:?}: {ran:?}");
}

#[test]
fn trees_deeper_than_there_may_be_open_files_go_out_and_in() {
    const DEPTH: usize = 1500;
    let (place, dir, server) = started();
    let path = [&b"d/".repeat(DEPTH)[..], b"f"].concat();
    let (archive, out) = (place.path().join("a.tar"), place.path().join("out"));
    let members = [long_name(&path), file(&path[..100], b"deep")];
    let made = import_members(&dir, &archive, &members);
    assert_eq!(made["counts"]["directories"], DEPTH);
    with_few_files(&["export", "main", text(&out)], &dir);
    with_few_files(&["import", text(&out), "--branch", "again"], &dir);
    let (one, two) = (place.path().join("1.tar"), place.path().join("2.tar"));
    let told = export(&dir, "main", &one, &[]);
    assert_eq!(told["counts"]["directories"], DEPTH + 1);
    export(&dir, "again", &two, &[]);
    assert_eq!(fs::read(&one).unwrap().len(), fs::read(&two).unwrap().len());
    let cat = ["cat", "again", std::str::from_utf8(&path).unwrap()];
    assert_eq!(run(&cat, &dir).stdout, b"deep");
    killed_is_sound(server, &dir);
}

#[test]
fn both_kinds_of_export_tell_the_same_of_holes() {
    let (place, dir, server) = started();
    let tree = place.path().join("tree");
    fs::create_dir_all(tree.join("d")).unwrap();
    let holes = fs::File::create(tree.join("d/holes")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&holes, &[1; 200_000], 512 << 20).unwrap();
    holes.set_len(1 << 30).unwrap();
    import(&dir, &tree, &[]);
    let tar = export(&dir, "main", &place.path().join("a.tar.zst"), &[]);
    let plain = export(&dir, "main", &place.path().join("out"), &[]);
    assert_eq!(tar["counts"], plain["counts"]);
    assert!(tar["counts"]["bytes"].as_u64().unwrap() < 1 << 20, "{tar}");
    drop(server);
}

/// From one command to the other.
fn through_a_pipe(dir: &Path, place: &Path) {
    let mut out = holdfast()
        .args(["export", "main", "-", "--data-dir", text(dir)])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let status = holdfast()
        .args(["import", "-", "--branch", "piped", "--data-dir", text(dir)])
        .stdin(out.stdout.take().unwrap())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success() && out.wait().unwrap().success());
    export(dir, "piped", &place.join("piped"), &[]);
    assert_eq!(fs::read(place.join("piped/a/b/file")).unwrap(), b"new");
}

/// Name, kind, mode, and for a file its parts: blocks of hole before it, and its bytes.
type Thing = (Vec<u8>, u8, u32, Vec<(u64, usize)>);

fn trees() -> impl Strategy<Value = Vec<Thing>> {
    let name = proptest::collection::vec(
        any::<u8>().prop_filter("no name", |byte| !matches!(byte, 0 | b'/' | b'.')),
        1..8,
    );
    let parts = proptest::collection::vec((0..3_u64, 1..50_000_usize), 0..4);
    proptest::collection::vec((name, 0..6_u8, 0..0o1000_u32, parts), 1..12)
}

/// Makes a tree; each thing in one of the directories before it.
fn plant(root: &Path, things: &[Thing]) {
    fs::create_dir(root).unwrap();
    let (mut dirs, mut files) = (vec![root.to_owned()], Vec::new());
    for (number, (name, kind, bits, parts)) in things.iter().enumerate() {
        let path = dirs[number * 7 % dirs.len()].join(OsStr::from_bytes(name));
        if path.symlink_metadata().is_ok() {
            continue;
        }
        match kind {
            0 | 1 => {
                fs::create_dir(&path).unwrap();
                mode(&path, bits | 0o700);
                dirs.push(path);
            }
            2 => symlink(OsStr::from_bytes(name), &path).unwrap(),
            3 if !files.is_empty() => {
                let first: &PathBuf = &files[number % files.len()];
                fs::hard_link(first, &path).unwrap();
            }
            _ => {
                let (mut at, mut content) = (0, Vec::new());
                for (gap, length) in parts {
                    at += gap * BLOCK;
                    content.push((at, *length));
                    at = (at + u64::try_from(*length).unwrap()).next_multiple_of(BLOCK);
                }
                let end = content
                    .last()
                    .map_or(0, |(at, length)| at + u64::try_from(*length).unwrap());
                sparse(&path, end, &content);
                mode(&path, bits | 0o400);
                files.push(path);
            }
        }
    }
    times_everywhere(root);
}

#[test]
fn any_tree_comes_out_as_it_went_in() {
    let (place, dir, server) = started();
    let number = std::cell::Cell::new(0);
    let config = ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(things in trees())| {
        number.set(number.get() + 1);
        let number = number.get();
        let tree = place.path().join(format!("tree {number}"));
        plant(&tree, &things);
        let wanted = described(&tree);
        times_everywhere(&tree);
        import(&dir, &tree, &[]);
        let out = place.path().join(format!("out {number}"));
        export(&dir, "main", &out, &[]);
        compare(&described(&out), &wanted);
    });
    killed_is_sound(server, &dir);
}
