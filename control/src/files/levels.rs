//! Directories from the root of a walk down to where it is, however deep.
//!
//! Only the root and the last few are open: further up the way is found by `..`, and whoever has moved
//! a directory meanwhile is noticed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fstat, openat};
use rustix::io::Errno;

/// Directories that are open at a time, besides the root.
const OPEN_MAX: usize = 64;

/// How a directory is opened: no link is followed.
pub(super) const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Directories, each in the one before, and what is to be known of each.
#[derive(Debug)]
pub(super) struct Levels<T>(Vec<Level<T>>);

#[derive(Debug)]
struct Level<T> {
    /// Always there for the first and the last.
    fd: Option<OwnedFd>,
    /// Device and number.
    id: (u64, u64),
    with: T,
}

impl<T> Level<T> {
    fn new(fd: OwnedFd, with: T) -> Result<Self, Errno> {
        let id = id(&fd)?;
        let fd = Some(fd);
        Ok(Self { fd, id, with })
    }
}

fn id(fd: &OwnedFd) -> Result<(u64, u64), Errno> {
    let stat = fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

impl<T> Levels<T> {
    /// A walk that is at its root.
    pub(super) fn new(root: OwnedFd, with: T) -> Result<Self, Errno> {
        Ok(Self(vec![Level::new(root, with)?]))
    }

    /// Goes down to a directory of the last one.
    pub(super) fn push(&mut self, fd: OwnedFd, with: T) -> Result<(), Errno> {
        self.0.push(Level::new(fd, with)?);
        let far = self.0.len().saturating_sub(OPEN_MAX + 1);
        if far > 0
            && let Some(level) = self.0.get_mut(far)
        {
            level.fd = None;
        }
        Ok(())
    }

    /// Leaves the last directory, and gives it. `None` if there is no more. `ESTALE` if it is not where
    /// it was.
    pub(super) fn pop(&mut self) -> Result<Option<(OwnedFd, T)>, Errno> {
        let Some(left) = self.0.pop() else {
            return Ok(None);
        };
        let fd = left.fd.ok_or(Errno::STALE)?;
        if let Some(above) = self.0.last_mut()
            && above.fd.is_none()
        {
            let found = openat(&fd, "..", DIRECTORY, Mode::empty())?;
            if id(&found)? != above.id {
                return Err(Errno::STALE);
            }
            above.fd = Some(found);
        }
        Ok(Some((fd, left.with)))
    }

    /// The last directory.
    pub(super) fn here(&self) -> Option<BorrowedFd<'_>> {
        self.0.last()?.fd.as_ref().map(AsFd::as_fd)
    }

    /// The first.
    pub(super) fn root(&self) -> Option<BorrowedFd<'_>> {
        self.0.first()?.fd.as_ref().map(AsFd::as_fd)
    }

    /// What is known of each, from the root on.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|level| &level.with)
    }

    /// What is known of the root.
    pub(super) fn first_mut(&mut self) -> Option<&mut T> {
        self.0.first_mut().map(|level| &mut level.with)
    }

    /// What is known of the last.
    pub(super) fn last_mut(&mut self) -> Option<&mut T> {
        self.0.last_mut().map(|level| &mut level.with)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use rustix::fs::{CWD, mkdirat, renameat};

    /// Goes down, and makes each directory on the way.
    fn down(root: &Path, depth: usize) -> Levels<usize> {
        let fd = openat(CWD, root, DIRECTORY, Mode::empty()).unwrap();
        let mut levels = Levels::new(fd, 0).unwrap();
        for number in 1..=depth {
            let here = levels.here().unwrap();
            mkdirat(here, "d", Mode::from_raw_mode(0o700)).unwrap();
            let fd = openat(here, "d", DIRECTORY, Mode::empty()).unwrap();
            levels.push(fd, number).unwrap();
        }
        levels
    }

    #[test]
    fn few_are_open_and_the_way_back_is_found() {
        let place = tempfile::tempdir().unwrap();
        let mut levels = down(place.path(), 3 * OPEN_MAX);
        let mut ids: Vec<(u64, u64)> = levels.0.iter().map(|level| level.id).collect();
        let open = |levels: &Levels<usize>| {
            let open = levels.0.iter().filter(|level| level.fd.is_some());
            open.count()
        };
        assert_eq!(open(&levels), OPEN_MAX + 1);
        while let Some((fd, number)) = levels.pop().unwrap() {
            assert_eq!(id(&fd).unwrap(), ids.pop().unwrap());
            assert_eq!((number, levels.len()), (ids.len(), ids.len()));
            assert!(open(&levels) <= OPEN_MAX + 1);
            assert_eq!(levels.here().is_some(), number > 0);
        }
        assert!(ids.is_empty());
    }

    #[test]
    fn a_directory_that_was_moved_is_noticed() {
        let place = tempfile::tempdir().unwrap();
        let mut levels = down(place.path(), OPEN_MAX + 5);
        // Below `d/d/d`, of which nothing is open any more.
        let moved = place.path().join("d/d/d/d");
        renameat(CWD, moved, CWD, place.path().join("elsewhere")).unwrap();
        let mut left = levels.len();
        let error = loop {
            match levels.pop() {
                Ok(_) => left -= 1,
                Err(error) => break error,
            }
        };
        assert_eq!((error, left), (Errno::STALE, 5));
    }
}
