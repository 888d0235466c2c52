//! What a command makes: it has another name, in the same directory, until it is whole.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::failure::{Failure, FailureKind};
use crate::files::remove_tree;

/// A file or a directory that is being made. [`Partial::end`] ends it, well or not.
#[derive(Debug)]
pub(super) struct Partial {
    dest: PathBuf,
    path: PathBuf,
    is_dir: bool,
}

impl Partial {
    /// Makes a directory that becomes `dest`, with a mode.
    ///
    /// # Errors
    ///
    /// `dest` has no name, or the system's.
    pub(super) fn directory(dest: &Path, mode: u32) -> Result<Self, Failure> {
        let path = beside(dest)?;
        let made = DirBuilder::new().mode(mode).create(&path);
        made.map_err(|error| {
            Failure::io(format_args!("make directory {}", path.display()), &error)
        })?;
        Ok(Self::new(dest, path, true))
    }

    /// Makes a file that becomes `dest`, for nobody but its owner.
    ///
    /// # Errors
    ///
    /// `dest` has no name, or the system's.
    pub(super) fn file(dest: &Path) -> Result<(Self, File), Failure> {
        let path = beside(dest)?;
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        let file =
            file.map_err(|error| Failure::io(format_args!("write {}", path.display()), &error))?;
        Ok((Self::new(dest, path, false), file))
    }

    fn new(dest: &Path, path: PathBuf, is_dir: bool) -> Self {
        Self {
            dest: dest.to_owned(),
            path,
            is_dir,
        }
    }

    /// Where it is meanwhile.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts it in its place, over what is there with `force`; if that fails, or making it did, removes
    /// it. The failure says what is there then.
    pub(super) fn end<T>(self, made: Result<T, Failure>, force: bool) -> Result<T, Failure> {
        let placed = made.and_then(|made| self.put_in_place(force).map(|()| made));
        placed.map_err(|failure| {
            let left = match self.remove() {
                Ok(()) => format!("{} stays as it was", self.dest.display()),
                Err(error) => format!("{} is left over, remove it ({error})", self.path.display()),
            };
            Failure::new(failure.kind, format_args!("{failure}; {left}"))
        })
    }

    fn put_in_place(&self, force: bool) -> Result<(), Failure> {
        let placed = if force {
            std::fs::rename(&self.path, &self.dest)
        } else {
            let flags = RenameFlags::NOREPLACE;
            match renameat_with(CWD, &self.path, CWD, &self.dest, flags) {
                // NFS clients and some others have no such rename.
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => self.put_where_nothing_is(),
                renamed => renamed.map_err(Error::from),
            }
        };
        placed.map_err(|error| {
            let dest = self.dest.display();
            Failure::io(format_args!("put {dest} in place"), &error)
        })
    }

    /// Puts it in its place without a rename that replaces nothing. What is there, or is made there
    /// meanwhile, stays as it is. If this process is killed in between, a file may be left with both
    /// names, and of a directory an empty one in its place.
    fn put_where_nothing_is(&self) -> Result<(), Error> {
        if self.is_dir {
            // Who makes it has it; a rename replaces it as long as nothing is in it.
            DirBuilder::new().mode(0o700).create(&self.dest)?;
            return std::fs::rename(&self.path, &self.dest).inspect_err(|_| {
                // Goes only if it is empty still.
                drop(std::fs::remove_dir(&self.dest));
            });
        }
        match std::fs::hard_link(&self.path, &self.dest) {
            // A server that is asked twice, as its answer was lost, says so of what it did itself.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && self.is_in_place() => {}
            linked => linked?,
        }
        std::fs::remove_file(&self.path).or_else(|error| {
            // It is not to be in its place if that is called a failure.
            match error.kind() {
                ErrorKind::NotFound => Ok(()),
                _ => std::fs::remove_file(&self.dest).and(Err(error)),
            }
        })
    }

    /// Whether both names are those of one file.
    fn is_in_place(&self) -> bool {
        let identity = |path: &Path| {
            let found = std::fs::symlink_metadata(path).ok()?;
            Some((found.dev(), found.ino()))
        };
        let own = identity(&self.path);
        own.is_some() && own == identity(&self.dest)
    }

    /// Nobody but us knows of it.
    fn remove(&self) -> Result<(), Error> {
        let removed = if self.is_dir {
            remove_tree(&self.path)
        } else {
            std::fs::remove_file(&self.path)
        };
        match removed {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

fn beside(dest: &Path) -> Result<PathBuf, Failure> {
    let Some(name) = dest.file_name() else {
        let message = format!("{} has no name: name a directory", dest.display());
        return Err(Failure::new(FailureKind::Usage, message));
    };
    let mut partial = OsString::from(".");
    partial.push(name);
    partial.push(format!(".partial-{}", std::process::id()));
    Ok(dest.with_file_name(partial))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;

    fn names(place: &Path) -> Vec<OsString> {
        let names = fs::read_dir(place).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    fn broken() -> Result<(), Failure> {
        Err(Failure::new(FailureKind::Retry, "it broke off"))
    }

    #[test]
    fn it_is_there_when_it_is_whole() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let (file, dir) = (place.join("file"), place.join("dir"));
        let (partial, _) = Partial::file(&file).unwrap();
        assert!(!file.exists());
        partial.end(Ok(()), false).unwrap();
        let partial = Partial::directory(&dir, 0o700).unwrap();
        fs::write(partial.path().join("in it"), b"x").unwrap();
        partial.end(Ok(()), false).unwrap();
        assert!(dir.join("in it").exists());
        let (partial, _) = Partial::file(&file).unwrap();
        let failure = partial.end(Ok(()), false).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Conflict);
        let (partial, _) = Partial::file(&file).unwrap();
        partial.end(Ok(()), true).unwrap();
        assert_eq!(names(place), ["dir", "file"]);
        assert!(Partial::file(Path::new("/")).is_err());
    }

    /// As where the file system has no rename that replaces nothing.
    #[test]
    fn nothing_is_replaced_without_a_rename_that_says_so() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let (file, dir) = (place.join("file"), place.join("dir"));
        let make_file = || {
            let (partial, mut made) = Partial::file(&file).unwrap();
            made.write_all(b"whole").unwrap();
            partial
        };
        let make_dir = || {
            let partial = Partial::directory(&dir, 0o711).unwrap();
            fs::write(partial.path().join("in it"), b"x").unwrap();
            partial
        };
        make_file().put_where_nothing_is().unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"whole");
        make_dir().put_where_nothing_is().unwrap();
        assert_eq!(names(&dir), ["in it"]);
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o711);
        assert_eq!(names(place), ["dir", "file"]);
        // What is there stays, an empty directory, too.
        fs::write(&file, b"theirs").unwrap();
        fs::remove_file(dir.join("in it")).unwrap();
        for partial in [make_file(), make_dir()] {
            let error = partial.put_where_nothing_is().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
            partial.remove().unwrap();
        }
        assert_eq!(fs::read(&file).unwrap(), b"theirs");
        assert!(names(&dir).is_empty());
        assert_eq!(names(place), ["dir", "file"]);
        // It was done by a call whose answer was lost.
        fs::remove_file(&file).unwrap();
        let partial = make_file();
        fs::hard_link(partial.path(), &file).unwrap();
        partial.put_where_nothing_is().unwrap();
        assert_eq!(names(place), ["dir", "file"]);
    }

    #[test]
    fn what_is_left_of_a_failure_is_told() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let dest = place.join("dest");
        let partial = Partial::directory(&dest, 0o700).unwrap();
        fs::write(partial.path().join("in it"), b"x").unwrap();
        let failure = partial.end(broken(), false).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Retry);
        assert!(failure.message.contains("stays as it was"), "{failure}");
        assert!(names(place).is_empty());
        // What was made there meanwhile is not ours to remove.
        let (partial, _) = Partial::file(&dest).unwrap();
        let path = partial.path().to_owned();
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let failure = partial.end(broken(), false).unwrap_err();
        let said = format!("{} is left over", path.display());
        assert!(failure.message.contains(&said), "{failure}");
        // So it is before anything was begun.
        assert!(Partial::file(&dest).is_err() && path.is_dir());
    }
}
