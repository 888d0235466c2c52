//! Trees in and out, through a real server: directories, archives, hostile ones, and a kill.
#![allow(missing_docs)]

mod support;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsStr;
    use std::fs::{self, File};
    use std::io::{Read, Write};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};

    use crate::support::{Server, fails, holdfast, json, run};
    use proptest::prelude::*;
    use rustix::fs::{
        AtFlags, CWD, FileType, Mode, SeekFrom, Timespec, Timestamps, makedev, mknodat, seek,
        utimensat,
    };
    use serde_json::Value;

    /// Exit codes.
    const USAGE: i32 = 2;
    const CONFLICT: i32 = 3;
    const NOT_FOUND: i32 = 4;
    const RETRY: i32 = 6;

    /// A block of a file in a workspace, in bytes.
    const BLOCK: u64 = 128 * 1024;

    fn text(path: &Path) -> &str {
        path.to_str().unwrap()
    }

    fn set_times(path: &Path, number: i64) {
        let spec = |seconds: i64, nanos: i64| Timespec {
            tv_sec: seconds,
            tv_nsec: nanos,
        };
        let times = Timestamps {
            last_access: spec(1_600_000_000 + number, 987_654_321),
            last_modification: spec(1_500_000_000 + number, 123_456_789 + number),
        };
        utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }

    /// All that is in a tree, directories before what is in them, with attributes that no reading
    /// has changed.
    fn walked(root: &Path) -> Vec<(PathBuf, fs::Metadata)> {
        let mut found = Vec::new();
        let mut rest = vec![root.to_owned()];
        while let Some(path) = rest.pop() {
            let stat = fs::symlink_metadata(&path).unwrap();
            if stat.is_dir() {
                let mut below: Vec<PathBuf> = fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path())
                    .collect();
                below.sort();
                rest.extend(below.into_iter().rev());
            }
            found.push((path, stat));
        }
        found
    }

    /// All that is to be the same of a tree: by path, one line each.
    fn described(root: &Path) -> BTreeMap<Vec<u8>, String> {
        let mut found = BTreeMap::new();
        let mut firsts: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (path, stat) in walked(root) {
            let name = path.strip_prefix(root).unwrap();
            let name = name.as_os_str().as_bytes().to_vec();
            let mut line = format!(
                "{:o} {}:{} m{}.{} a{}.{} rdev {}",
                stat.mode(),
                stat.uid(),
                stat.gid(),
                stat.mtime(),
                stat.mtime_nsec(),
                stat.atime(),
                stat.atime_nsec(),
                stat.rdev()
            );
            if !stat.is_dir() {
                let first = firsts.entry(stat.ino()).or_insert_with(|| name.clone());
                line += &format!(" links {} first {}", stat.nlink(), first.escape_ascii());
            }
            if stat.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                line += &format!(" -> {}", target.as_os_str().as_bytes().escape_ascii());
            }
            if stat.is_file() {
                let (size, hash) = (stat.len(), content_hash(&path));
                line += &format!(" size {size} holes {:?} {hash}", holes(&path, size));
            }
            found.insert(name, line);
        }
        found
    }

    /// A hash of what is not zero, wherever there are holes.
    fn content_hash(path: &Path) -> String {
        let file = File::open(path).unwrap();
        let size = file.metadata().unwrap().len();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&size.to_le_bytes());
        for (start, end) in holes(path, size) {
            let mut at = start / 4096 * 4096;
            while at < end {
                let mut page = [0; 4096];
                let read = file.read_at(&mut page, at).unwrap();
                if page[..read] != [0; 4096][..read] {
                    hasher.update(&at.to_le_bytes());
                    hasher.update(&page[..read]);
                }
                at += 4096;
            }
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Where the parts are that are no holes.
    fn holes(path: &Path, size: u64) -> Vec<(u64, u64)> {
        let file = File::open(path).unwrap();
        let (mut at, mut parts) = (0, Vec::new());
        while at < size {
            let Ok(start) = seek(&file, SeekFrom::Data(at)) else {
                break;
            };
            at = seek(&file, SeekFrom::Hole(start)).unwrap();
            parts.push((start, at));
        }
        parts
    }

    fn sparse(path: &Path, size: u64, parts: &[(u64, usize)]) {
        let file = File::create(path).unwrap();
        for (number, (offset, length)) in parts.iter().enumerate() {
            let byte = u8::try_from(number + 1).unwrap();
            file.write_all_at(&vec![byte; *length], *offset).unwrap();
        }
        file.set_len(size).unwrap();
    }

    fn node(path: &Path, kind: FileType, mode: u32, device: (u32, u32)) -> bool {
        let made = mknodat(
            CWD,
            path,
            kind,
            Mode::from_raw_mode(mode),
            makedev(device.0, device.1),
        );
        made.is_ok()
    }

    fn owned(path: &Path, uid: u32, gid: u32) {
        // Only root may; whoever else keeps what he has.
        drop(std::os::unix::fs::lchown(path, Some(uid), Some(gid)));
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Bytes that cannot be compressed.
    fn noise() -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 32
        };
        (0..600_000)
            .flat_map(|_| u32::try_from(next()).unwrap().to_le_bytes())
            .collect()
    }

    /// A tree with all there is.
    fn odd_tree(root: &Path) {
        fs::create_dir_all(root.join("deep/er/and deeper")).unwrap();
        fs::create_dir(root.join("empty")).unwrap();
        fs::write(root.join("small"), b"hello").unwrap();
        fs::write(root.join("nothing"), b"").unwrap();
        let noise = noise();
        fs::write(root.join("deep/large"), &noise[..2_345_678]).unwrap();
        for size in [1, 4095, 4096, 4097, 16_384, 16_385, 131_072, 131_073] {
            fs::write(root.join(format!("deep/size {size}")), &noise[..size]).unwrap();
        }
        let odd: [&[u8]; 6] = [
            b"caf\xc3\xa9",
            b"\xff\xfe\x80",
            b"new\nline",
            b"-rf",
            b" ",
            b"\x1b[31m",
        ];
        for (number, name) in odd.iter().enumerate() {
            fs::write(
                root.join("deep/er").join(OsStr::from_bytes(name)),
                [u8::try_from(number).unwrap()],
            )
            .unwrap();
        }
        let long = "n".repeat(255);
        fs::write(root.join("deep").join(&long), b"long").unwrap();
        let mut path = root.join("deep");
        for _ in 0..12 {
            path.push(&long[..200]);
            fs::create_dir(&path).unwrap();
        }
        odd_links(root, &path);
        odd_kinds(root);
        times_everywhere(root);
    }

    fn odd_links(root: &Path, path: &Path) {
        symlink("../../etc/passwd", path.join("out")).unwrap();
        symlink("t".repeat(3000), root.join("far")).unwrap();
        symlink(OsStr::from_bytes(b"\xff"), root.join("deep/raw")).unwrap();
        for name in ["deep/er/second", "third", "zz"] {
            fs::hard_link(root.join("deep/large"), root.join(name)).unwrap();
        }
        fs::hard_link(root.join("far"), root.join("far again")).unwrap();
    }

    fn odd_kinds(root: &Path) {
        sparse(&root.join("hole only"), 5_000_000, &[]);
        sparse(
            &root.join("holes"),
            40 * BLOCK + 77,
            &[
                (0, 4096),
                (3 * BLOCK, 4096),
                (10 * BLOCK, 300_000),
                (40 * BLOCK, 77),
            ],
        );
        sparse(&root.join("tail hole"), 1 << 30, &[(0, 65_536)]);
        assert!(node(&root.join("pipe"), FileType::Fifo, 0o640, (0, 0)));
        assert!(node(&root.join("socket"), FileType::Socket, 0o600, (0, 0)));
        if rustix::process::geteuid().is_root() {
            assert!(node(
                &root.join("null"),
                FileType::CharacterDevice,
                0o666,
                (1, 3)
            ));
            assert!(node(
                &root.join("disk"),
                FileType::BlockDevice,
                0o600,
                (259, 1_048_575)
            ));
        }
        owned(&root.join("small"), 1234, 4_000_000_000);
        owned(&root.join("far"), 77, 88);
        owned(&root.join("empty"), 5, 6);
        mode(&root.join("small"), 0o4751);
        mode(&root.join("nothing"), 0o000);
        mode(&root.join("deep/er"), 0o2775);
        mode(&root.join("empty"), 0o1777);
    }

    /// Gives everything times of its own; what is below a directory before the directory.
    fn times_everywhere(root: &Path) {
        let all = walked(root);
        for (number, (path, _)) in all.iter().enumerate().rev() {
            set_times(path, i64::try_from(number).unwrap());
        }
    }

    fn import(dir: &Path, path: &Path, more: &[&str]) -> Value {
        json(&[&["import", text(path)], more].concat(), dir)
    }

    fn export(dir: &Path, version: &str, dest: &Path, more: &[&str]) -> Value {
        json(&[&["export", version, text(dest)], more].concat(), dir)
    }

    fn is_sound(dir: &Path) {
        let checked = run(&["check"], dir);
        assert!(checked.status.success(), "{checked:?}");
    }

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
        assert_eq!(json(&["session", "ls"], &dir).as_array().unwrap().len(), 1);
        archives(&dir, place.path());
        server.kill();
        is_sound(&dir);
    }

    fn compare(found: &BTreeMap<Vec<u8>, String>, wanted: &BTreeMap<Vec<u8>, String>) {
        for (path, line) in wanted {
            assert_eq!(found.get(path), Some(line), "{}", path.escape_ascii());
        }
        assert_eq!(found.len(), wanted.len());
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
            let out = place.join(format!("out of {end}"));
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

    /// A header of ustar.
    fn header(name: &[u8], flag: u8, size: usize, target: &[u8]) -> Vec<u8> {
        let mut block = vec![0; 512];
        block[..name.len().min(100)].copy_from_slice(&name[..name.len().min(100)]);
        block[100..107].copy_from_slice(b"0000644");
        block[108..115].copy_from_slice(b"0000000");
        block[116..123].copy_from_slice(b"0000000");
        block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        block[136..147].copy_from_slice(b"00000000001");
        block[156] = flag;
        block[157..157 + target.len()].copy_from_slice(target);
        block[257..265].copy_from_slice(b"ustar\x0000");
        block[148..156].copy_from_slice(b"        ");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        block
    }

    fn file(name: &[u8], content: &[u8]) -> Vec<u8> {
        let mut bytes = header(name, b'0', content.len(), b"");
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn tar(members: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = members.concat();
        bytes.extend([0; 1024]);
        bytes
    }

    fn long_name(name: &[u8]) -> Vec<u8> {
        let mut bytes = header(b"././@LongLink", b'L', name.len() + 1, b"");
        bytes.extend(name);
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    /// A name, an archive, and what is said of it.
    type Hostile = (&'static str, Vec<u8>, Vec<&'static str>);

    /// Archives with members that cannot be.
    fn hostile_members() -> Vec<Hostile> {
        let ok = || file(b"ok", b"fine");
        let big = || file(b"big", &noise());
        vec![
            (
                "up",
                tar(&[big(), file(b"a/../../b", b"x")]),
                vec!["a/../../b", "'..'"],
            ),
            (
                "absolute",
                tar(&[ok(), file(b"/etc/passwd", b"x")]),
                vec!["/etc/passwd", "-P"],
            ),
            (
                "link out",
                tar(&[ok(), header(b"l", b'1', 0, b"../../etc/passwd")]),
                vec!["hard link", "out of the tree"],
            ),
            (
                "link to nothing",
                tar(&[header(b"l", b'1', 0, b"none")]),
                vec!["\"l\"", "not there before"],
            ),
            (
                "link to a directory",
                tar(&[header(b"d/", b'5', 0, b""), header(b"l", b'1', 0, b"d")]),
                vec!["a directory"],
            ),
            (
                "twice",
                tar(&[ok(), file(b"./ok", b"other")]),
                vec!["ok", "twice"],
            ),
            (
                "file for directory",
                tar(&[ok(), file(b"ok/below", b"x")]),
                vec!["\"ok\"", "directory is needed"],
            ),
            (
                "through a link",
                tar(&[header(b"l", b'2', 0, b"/tmp"), file(b"l/x", b"x")]),
                vec!["\"l\"", "directory is needed"],
            ),
            (
                "directory for file",
                tar(&[header(b"d/", b'5', 0, b""), file(b"d", b"x")]),
                vec!["\"d\"", "directory is there"],
            ),
            (
                "directory over file",
                tar(&[ok(), header(b"ok/", b'5', 0, b"")]),
                vec!["\"ok\"", "directory is needed"],
            ),
            (
                "long name",
                tar(&[long_name(&[b'n'; 256]), file(b"n", b"x")]),
                vec!["256 bytes", "255"],
            ),
            (
                "long path",
                tar(&[long_name(&b"d/".repeat(40_000)), file(b"n", b"x")]),
                vec!["65536"],
            ),
            (
                "root as file",
                tar(&[file(b".", b"x")]),
                vec!["root of the tree"],
            ),
        ]
    }

    /// Archives that are none.
    fn hostile_bytes() -> Vec<Hostile> {
        let ok = || file(b"ok", b"fine");
        let big = || file(b"big", &noise());
        let cut = |bytes: Vec<u8>, length: usize| bytes[..length].to_vec();
        let wrong_sum = {
            let mut bytes = tar(&[ok(), ok()]);
            bytes[1024 + 10] ^= 1;
            bytes
        };
        vec![
            (
                "cut in content",
                cut(tar(&[big()]), 100_000),
                vec!["cut off", "big"],
            ),
            (
                "cut in header",
                cut(tar(&[ok(), ok()]), 1024 + 100),
                vec!["cut off"],
            ),
            (
                "cut before the end",
                cut(tar(&[ok()]), 1024),
                vec!["cut off"],
            ),
            ("empty", Vec::new(), vec!["cut off"]),
            (
                "no archive",
                b"#!/bin/sh\n".repeat(100),
                vec!["no tar archive"],
            ),
            ("wrong sum", wrong_sum, vec!["after \"ok\"", "checksum"]),
            (
                "more after the end",
                [tar(&[ok()]), tar(&[ok()])].concat(),
                vec!["after its end"],
            ),
            (
                "unknown kind",
                tar(&[header(b"v", b'V', 0, b"")]),
                vec!["'V'"],
            ),
            (
                "empty link",
                tar(&[header(b"l", b'2', 0, b"")]),
                vec!["symbolic link"],
            ),
        ]
    }

    #[test]
    fn hostile_archives_leave_nothing() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("data");
        let server = Server::start("up", &dir);
        let good = place.path().join("good.tar");
        fs::write(&good, tar(&[file(b"good", b"good")])).unwrap();
        let made = import(&dir, &good, &[]);
        for (name, bytes, parts) in [hostile_members(), hostile_bytes()].concat() {
            let bad = place.path().join("bad.tar");
            fs::write(&bad, bytes).unwrap();
            fails(&["import", text(&bad)], &dir, USAGE, &parts);
            assert_eq!(json(&["show"], &dir)["id"], made["commit"]["id"], "{name}");
            assert_eq!(
                json(&["session", "ls"], &dir).as_array().unwrap().len(),
                1,
                "{name}"
            );
        }
        // What a failed import stored is collected.
        let collected = json(&["gc"], &dir);
        assert!(
            collected["dead_chunks"].as_u64().unwrap() > 0,
            "{collected}"
        );
        assert!(
            collected["freed_bytes"].as_u64().unwrap() > 0,
            "{collected}"
        );
        // Damaged packing is noticed before the server sees an end.
        for (end, bytes) in [
            ("gz", &b"\x1f\x8b\x08\0\0\0\0\0\0\x03junk"[..]),
            ("zst", b"\x28\xb5\x2f\xfdjunkjunk"),
        ] {
            let bad = place.path().join(format!("bad.tar.{end}"));
            fs::write(&bad, bytes).unwrap();
            fails(&["import", text(&bad)], &dir, 1, &["nothing was imported"]);
        }
        fails(&["import", "/no/such"], &dir, NOT_FOUND, &["/no/such"]);
        fails(
            &["import", text(&good), "--workspace", "none"],
            &dir,
            NOT_FOUND,
            &["none"],
        );
        fails(
            &["import", text(&good), "--branch", "a b"],
            &dir,
            USAGE,
            &["branch"],
        );
        let message = "x".repeat(40_000);
        fails(
            &["import", text(&good), "-m", &message, "--branch", "long"],
            &dir,
            USAGE,
            &["message", "32 KiB"],
        );
        fails(
            &["export", "none", text(&place.path().join("x"))],
            &dir,
            NOT_FOUND,
            &["none"],
        );
        assert_eq!(json(&["show"], &dir)["id"], made["commit"]["id"]);
        server.kill();
        is_sound(&dir);
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

    #[test]
    fn a_branch_that_moves_meanwhile_stays() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("data");
        let server = Server::start("up", &dir);
        let good = place.path().join("good.tar");
        fs::write(&good, tar(&[file(b"good", b"good")])).unwrap();
        import(&dir, &good, &[]);
        let slow = Upload::begin(&server, "?branch=main");
        slow.wait_for_session(&dir);
        let other = place.path().join("other.tar");
        fs::write(&other, tar(&[file(b"other", b"other")])).unwrap();
        let moved = import(&dir, &other, &[]);
        let answer = slow.end(&tar(&[file(b"slow", b"slow")]));
        assert!(
            answer.starts_with("HTTP/1.1 409") && answer.contains("has moved"),
            "{answer}"
        );
        assert_eq!(json(&["show"], &dir)["id"], moved["commit"]["id"]);
        fails(&["export", "main", "-", "--json"], &dir, USAGE, &["--json"]);
        drop(server);
    }

    /// An import that is sent by hand.
    struct Upload(std::net::TcpStream);

    impl Upload {
        fn begin(server: &Server, query: &str) -> Self {
            let address = server.text("api_address");
            let mut stream = std::net::TcpStream::connect(&address).unwrap();
            let token = server.text("api_token");
            write!(
                stream,
                "POST /v1/workspaces/default/import{query} HTTP/1.1\r\nhost: x\r\nauthorization: \
                 Bearer {token}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
            )
            .unwrap();
            Self(stream)
        }

        fn send(&mut self, bytes: &[u8]) {
            write!(self.0, "{:x}\r\n", bytes.len()).unwrap();
            self.0.write_all(bytes).unwrap();
            self.0.write_all(b"\r\n").unwrap();
        }

        fn end(mut self, bytes: &[u8]) -> String {
            self.send(bytes);
            self.0.write_all(b"0\r\n\r\n").unwrap();
            let mut answer = String::new();
            self.0.read_to_string(&mut answer).unwrap();
            answer
        }

        /// Waits until the server has a session for it.
        fn wait_for_session(&self, dir: &Path) {
            self.wait_until(dir, |_| true);
        }

        fn wait_until(&self, dir: &Path, holds: impl Fn(&Value) -> bool) {
            loop {
                let sessions = json(&["session", "ls"], dir);
                let staged = sessions
                    .as_array()
                    .unwrap()
                    .iter()
                    .find(|session| session["agent"] == "holdfast-import");
                if staged.is_some_and(&holds) {
                    return;
                }
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_killed_server_has_the_old_branch_and_no_damage() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("data");
        let server = Server::start("up", &dir);
        let good = place.path().join("good.tar");
        fs::write(&good, tar(&[file(b"good", b"good")])).unwrap();
        let made = import(&dir, &good, &[]);
        let mut upload = Upload::begin(&server, "");
        // Stops in the midst of a file: what has come is flushed after a while.
        let mut bytes = tar(&[
            header(b"d/", b'5', 0, b""),
            file(b"d/small", b"small"),
            header(b"d/link", b'1', 0, b"d/small"),
            file(b"d/large", &[3; 1_000_000]),
            file(b"d/later", &[4; 500_000]),
        ]);
        bytes.truncate(1_200_000);
        upload.send(&bytes);
        upload.wait_until(&dir, |session| session["inodes"].as_u64().unwrap() >= 4);
        server.kill();
        is_sound(&dir);
        let server = Server::start("up", &dir);
        assert_eq!(json(&["show"], &dir)["id"], made["commit"]["id"]);
        // Sent again it is all there.
        let tree = tar(&[
            header(b"d/", b'5', 0, b""),
            file(b"d/large", &[3; 1_000_000]),
        ]);
        fs::write(&good, tree).unwrap();
        import(&dir, &good, &[]);
        let out = place.path().join("out");
        export(&dir, "main", &out, &[]);
        assert_eq!(fs::read(out.join("d/large")).unwrap(), [3; 1_000_000]);
        server.kill();
        is_sound(&dir);
    }

    #[test]
    fn kills_at_any_time_leave_the_old_or_the_new() {
        let place = tempfile::tempdir().unwrap();
        let (dir, tree) = (place.path().join("data"), place.path().join("tree"));
        fs::create_dir(&tree).unwrap();
        for number in 0..200_usize {
            let content = &noise()[number..number + 40_000];
            fs::write(tree.join(format!("file {number}")), content).unwrap();
        }
        let mut server = Server::start("up", &dir);
        import(&dir, &tree, &["-m", "first"]);
        let mut last = json(&["show"], &dir);
        for round in 0..6 {
            fs::write(tree.join("round"), format!("{round}")).unwrap();
            let message = format!("round {round}");
            let mut importing = holdfast()
                .args([
                    "import",
                    text(&tree),
                    "-m",
                    &message,
                    "--data-dir",
                    text(&dir),
                ])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            // Calls take their time: so many of them are a moment of their own in each round.
            for _ in 0..round {
                json(&["session", "ls"], &dir);
            }
            server.kill();
            let is_done = importing.wait().unwrap().success();
            is_sound(&dir);
            server = Server::start("up", &dir);
            let now = json(&["show"], &dir);
            let is_new = now["id"] != last["id"];
            assert!(is_new || !is_done, "what was told is gone");
            if is_new {
                assert_eq!(now["message"], message.as_str());
                assert_eq!(now["parents"][0], last["id"]);
            }
            let out = place.path().join(format!("out {round}"));
            export(&dir, "main", &out, &[]);
            assert_eq!(fs::read(out.join("file 77")).unwrap(), noise()[77..40_077]);
            last = now;
        }
    }

    #[test]
    fn slow_imports_and_collections_do_not_mind_each_other() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("data");
        let server = Server::start("up", &dir);
        let mut slow = Upload::begin(&server, "");
        let archive = tar(&[file(b"first", &noise()), file(b"second", &noise()[5..])]);
        let (begin, rest) = archive.split_at(2_000_000);
        slow.send(begin);
        // What has come is flushed after a while, and refers to its chunks from then on.
        slow.wait_until(&dir, |session| {
            session["used_bytes"].as_u64().unwrap() > 1_000_000
        });
        let collected = json(&["gc"], &dir);
        assert_eq!(collected["state"], "done", "{collected}");
        assert!(
            collected["live_chunks"].as_u64().unwrap() >= 10,
            "{collected}"
        );
        let answer = slow.end(rest);
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
        json(&["gc"], &dir);
        let out = place.path().join("out");
        export(&dir, "main", &out, &[]);
        assert_eq!(fs::read(out.join("first")).unwrap(), noise());
        assert_eq!(fs::read(out.join("second")).unwrap(), noise()[5..]);
        server.kill();
        is_sound(&dir);
    }

    #[test]
    fn who_sends_much_hears_why_it_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("data");
        let server = Server::start("up", &dir);
        let bad = place.path().join("bad.tar");
        let archive = File::create(&bad).unwrap();
        archive
            .write_all_at(&tar(&[file(b"a/../b", b"x")]), 0)
            .unwrap();
        archive.set_len(256 << 20).unwrap();
        fails(&["import", text(&bad)], &dir, USAGE, &["a/../b", "'..'"]);
        drop(server);
    }

    #[test]
    fn a_sender_that_breaks_off_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("data");
        let server = Server::start("up", &dir);
        let mut upload = Upload::begin(&server, "");
        upload.send(&file(b"half", &[9; 200_000])[..100_000]);
        upload.wait_for_session(&dir);
        drop(upload);
        while json(&["session", "ls"], &dir).as_array().unwrap().len() > 1 {
            std::thread::yield_now();
        }
        fails(&["show"], &dir, NOT_FOUND, &["main"]);
        // Too many at once are told to wait.
        let mut held: Vec<Upload> = (0..4).map(|_| Upload::begin(&server, "")).collect();
        while json(&["session", "ls"], &dir).as_array().unwrap().len() < 5 {
            std::thread::yield_now();
        }
        let good = place.path().join("good.tar");
        fs::write(&good, tar(&[file(b"good", b"good")])).unwrap();
        fails(&["import", text(&good)], &dir, RETRY, &["under way"]);
        held.pop().unwrap().end(&tar(&[file(b"one", b"one")]));
        import(&dir, &good, &[]);
        drop(held);
        server.kill();
        is_sound(&dir);
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
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("data");
        let server = Server::start("up", &dir);
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
        server.kill();
        is_sound(&dir);
    }
}
