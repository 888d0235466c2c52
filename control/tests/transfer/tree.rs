//! Trees: made, and described in all that is to be the same of them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, SeekFrom, Timespec, Timestamps, makedev, mknodat, seek, utimensat,
};

/// A block of a file in a workspace, in bytes.
pub(crate) const BLOCK: u64 = 128 * 1024;

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
pub(crate) fn described(root: &Path) -> BTreeMap<Vec<u8>, String> {
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
pub(crate) fn content_hash(path: &Path) -> String {
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

pub(crate) fn sparse(path: &Path, size: u64, parts: &[(u64, usize)]) {
    let file = File::create(path).unwrap();
    for (number, (offset, length)) in parts.iter().enumerate() {
        let byte = u8::try_from(number + 1).unwrap();
        file.write_all_at(&vec![byte; *length], *offset).unwrap();
    }
    file.set_len(size).unwrap();
}

pub(crate) fn node(path: &Path, kind: FileType, mode: u32, device: (u32, u32)) -> bool {
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

pub(crate) fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Bytes that cannot be compressed.
pub(crate) fn noise() -> Vec<u8> {
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
pub(crate) fn odd_tree(root: &Path) {
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
pub(crate) fn times_everywhere(root: &Path) {
    let all = walked(root);
    for (number, (path, _)) in all.iter().enumerate().rev() {
        set_times(path, i64::try_from(number).unwrap());
    }
}

pub(crate) fn compare(found: &BTreeMap<Vec<u8>, String>, wanted: &BTreeMap<Vec<u8>, String>) {
    for (path, line) in wanted {
        assert_eq!(found.get(path), Some(line), "{}", path.escape_ascii());
    }
    assert_eq!(found.len(), wanted.len());
}
