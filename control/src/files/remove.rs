//! Removing a tree that was made here.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chmodat, fchmod, openat};
use rustix::fs::{statat, unlinkat};
use rustix::io::Errno;
use rustix::path::Arg;

use super::levels::{DIRECTORY, Levels};

/// A directory that is being emptied.
struct Emptied {
    name: CString,
    /// Directories in it; nothing else is there any more.
    dirs: Vec<CString>,
}

/// Removes a directory and all that is in it. Follows no link. Memory is bounded by the depth and the
/// directories beside the way down.
///
/// # Errors
///
/// The system's; what is left is smaller than it was.
pub(crate) fn remove_tree(dir: &Path) -> std::io::Result<()> {
    let root = open(CWD, dir)?;
    let root_of = |fd: &OwnedFd| emptied(fd, CString::default());
    let with = root_of(&root)?;
    let mut levels = Levels::new(root, with)?;
    loop {
        let next = levels.last_mut().and_then(|level| level.dirs.pop());
        if let (Some(name), Some(here)) = (next, levels.here()) {
            let fd = open(here, name.as_c_str())?;
            let with = emptied(&fd, name)?;
            levels.push(fd, with)?;
            continue;
        }
        let left = levels.pop()?;
        match (left, levels.here()) {
            (Some((_, left)), Some(here)) => {
                unlinkat(here, left.name.as_c_str(), AtFlags::REMOVEDIR)?;
            }
            _ => return std::fs::remove_dir(dir),
        }
    }
}

/// Opens a directory, also one of ours whose mode does not let us.
fn open(dir: impl AsFd, name: impl Arg + Copy) -> Result<OwnedFd, Errno> {
    match openat(&dir, name, DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) => {}
        opened => return opened,
    }
    // The very directory and no link: without reading it that needs no permission.
    let found = openat(&dir, name, DIRECTORY | OFlags::PATH, Mode::empty())?;
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let changed = chmodat(CWD, path, Mode::from_raw_mode(0o700), AtFlags::empty());
    changed.map_err(|_| Errno::ACCESS)?;
    openat(&found, ".", DIRECTORY, Mode::empty())
}

/// Removes all but directories from one.
fn emptied(fd: &OwnedFd, name: CString) -> Result<Emptied, Errno> {
    // It may have got a mode already that does not let us. If that does not help, what follows says so.
    fchmod(fd, Mode::from_raw_mode(0o700)).unwrap_or_default();
    let mut dirs = Vec::new();
    for entry in Dir::read_from(fd)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let stat = statat(fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(stat.st_mode)
            }
            kind => kind,
        };
        if kind == FileType::Directory {
            dirs.push(name.to_owned());
        } else {
            unlinkat(fd, name, AtFlags::empty())?;
        }
    }
    Ok(Emptied { name, dirs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    use std::os::unix::fs::PermissionsExt;

    use crate::files::tests::kept_out;
    use rustix::fs::mkdirat;

    #[test]
    fn a_tree_deeper_than_a_stack_goes() {
        let place = tempfile::tempdir().unwrap();
        let (tree, outside) = (place.path().join("tree"), place.path().join("outside"));
        fs::create_dir_all(tree.join("wide/1")).unwrap();
        fs::create_dir_all(tree.join("wide/2/3")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), b"stays").unwrap();
        symlink(&outside, tree.join("wide/link")).unwrap();
        let mut fd = openat(CWD, &tree, DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..40_000 {
            mkdirat(&fd, "d", Mode::from_raw_mode(0o700)).unwrap();
            fd = openat(&fd, "d", DIRECTORY, Mode::empty()).unwrap();
        }
        let flags = OFlags::WRONLY | OFlags::CREATE;
        openat(&fd, "f", flags, Mode::from_raw_mode(0o400)).unwrap();
        fchmod(&fd, Mode::from_raw_mode(0o500)).unwrap();
        drop(fd);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert_eq!(fs::read(outside.join("file")).unwrap(), b"stays");
        remove_tree(&tree).unwrap_err();
    }

    /// Bug: an export that failed could not be removed, as one directory had got its mode already.
    #[test]
    fn directories_that_nobody_may_read_go() {
        let place = tempfile::tempdir().unwrap();
        let (tree, outside) = (place.path().join("tree"), place.path().join("outside"));
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(tree.join("a/b/c/file"), b"x").unwrap();
        symlink(&outside, tree.join("a/b/link")).unwrap();
        let set = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o000));
        for path in ["a/b/c", "a/b", "a", ""] {
            set(&tree.join(path)).unwrap();
        }
        set(&outside).unwrap();
        kept_out(|| remove_tree(&tree)).unwrap();
        assert!(!tree.exists());
        let mode = fs::metadata(&outside).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0);
    }
}
