//! From an archive to a directory.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use base::{Name, Timestamp};
use metadata::stat::Device;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, chmodat, chownat, fchmod,
    fchown, fstat, ftruncate, futimens, linkat, makedev, mkdirat, mknodat, openat, statat,
    symlinkat, syncfs, unlinkat, utimensat,
};
use rustix::io::{Errno, pwrite};
use rustix::process::{getegid, geteuid, umask};

use super::levels::{DIRECTORY, Levels};
use super::{Progress, failed, timestamp};
use crate::failure::{Failure, FailureKind};
use crate::tar::{Kind, Member, Reader, TarError};
use crate::transfer::Counts;

/// How an archive is unpacked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Files that are there are replaced.
    pub(crate) force: bool,
}

/// What was unpacked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unpacked {
    /// What there was.
    pub(crate) counts: Counts,
    /// Things that belong to somebody else now than they did: only the superuser can give them away.
    pub(crate) owners_left: u64,
}

/// Makes what the archive `from` holds in the directory `dest`, which exists.
///
/// Memory is bounded by the depth of the tree.
pub(crate) fn unpack(
    from: impl Read,
    dest: &Path,
    options: Options,
    progress: &mut Progress,
) -> Result<Unpacked, Failure> {
    // Modes are what the archive says.
    let before = umask(Mode::empty());
    let unpacked = Unpacker::open(dest, options, progress).and_then(|mut unpacker| {
        unpacker.all(&mut Reader::new(from))?;
        unpacker.finish()
    });
    umask(before);
    unpacked
}

/// What an archive that comes from a server and cannot be read comes to.
pub(crate) fn unreadable(error: &TarError) -> Failure {
    let message = match error {
        TarError::Truncated(_) => format!("{error}: export again"),
        TarError::Malformed { .. } | TarError::Io(_) => error.to_string(),
    };
    Failure::new(FailureKind::Retry, message)
}

struct Unpacker<'a> {
    dest: &'a Path,
    options: Options,
    progress: &'a mut Progress,
    /// The superuser can give files away.
    is_root: bool,
    /// The directory that is written to, after those above it; the first is `dest`.
    levels: Levels<Level>,
    /// The member that is made.
    path: Vec<u8>,
    unpacked: Unpacked,
}

/// A directory that is written to.
struct Level {
    name: Vec<u8>,
    /// What it gets when it is left.
    with: Option<Attributes>,
}

#[derive(Clone, Copy)]
struct Attributes {
    mode: u32,
    /// Nothing if they are not to be changed.
    owner: Option<(u32, u32)>,
    atime: Timestamp,
    mtime: Timestamp,
}

impl Attributes {
    fn of(member: &Member) -> Self {
        Self {
            mode: member.mode,
            owner: Some((member.uid, member.gid)),
            atime: member.atime.unwrap_or(member.mtime),
            mtime: member.mtime,
        }
    }

    fn times(&self) -> Timestamps {
        let spec = |time: Timestamp| Timespec {
            tv_sec: i64::try_from(time.seconds()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.nanos()),
        };
        Timestamps {
            last_access: spec(self.atime),
            last_modification: spec(self.mtime),
        }
    }
}

/// The names of a path, none of which leads out.
fn names(path: &[u8]) -> Result<Vec<&[u8]>, Failure> {
    let refuse = |why: &str| {
        let path = String::from_utf8_lossy(path);
        Failure::error(format!("the archive holds {path:?}, {why}"))
    };
    if path.first() == Some(&b'/') {
        return Err(refuse("which begins with '/'"));
    }
    let names = path.split(|byte| *byte == b'/');
    let names: Vec<&[u8]> = names.filter(|name| !matches!(*name, b"" | b".")).collect();
    for name in &names {
        Name::check(name).map_err(|error| refuse(&format!("where a {error}")))?;
    }
    Ok(names)
}

impl<'a> Unpacker<'a> {
    fn open(dest: &'a Path, options: Options, progress: &'a mut Progress) -> Result<Self, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(CWD, dest, flags, Mode::empty());
        let root = Level {
            name: Vec::new(),
            with: None,
        };
        let levels = fd.and_then(|fd| Levels::new(fd, root));
        Ok(Self {
            dest,
            options,
            progress,
            is_root: geteuid().is_root(),
            levels: levels.map_err(|error| failed("open directory", dest, error))?,
            path: Vec::new(),
            unpacked: Unpacked::default(),
        })
    }

    fn whole_path(&self) -> PathBuf {
        self.dest.join(OsStr::from_bytes(&self.path))
    }

    fn failed(&self, doing: &str, error: Errno) -> Failure {
        let path = self.whole_path();
        match error {
            Errno::EXIST | Errno::LOOP | Errno::NOTDIR | Errno::ISDIR => {
                let message = format!(
                    "{doing} {}: something else is there; choose an empty directory",
                    path.display()
                );
                Failure::new(FailureKind::Conflict, message)
            }
            error => failed(doing, &path, error),
        }
    }

    fn all<R: Read>(&mut self, from: &mut Reader<R>) -> Result<(), Failure> {
        while let Some(member) = from.next().map_err(|error| unreadable(&error))? {
            self.progress.name();
            self.path = member.path.clone();
            let names = names(&member.path)?;
            let Some((name, parents)) = names.split_last() else {
                self.root(&member)?;
                continue;
            };
            self.enter(parents)?;
            self.one(name, &member, from)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Unpacked, Failure> {
        while let Some(fd) = self.leave()? {
            if self.levels.len() == 0 {
                let synced = syncfs(&fd);
                synced.map_err(|error| failed("write to the disk", self.dest, error))?;
            }
        }
        Ok(self.unpacked)
    }

    fn root(&mut self, member: &Member) -> Result<(), Failure> {
        if member.kind != Kind::Directory {
            let message = "the archive's root is no directory";
            return Err(Failure::error(message));
        }
        self.unpacked.counts.directories += 1;
        if let Some(root) = self.levels.first_mut() {
            root.with = Some(Attributes::of(member));
        }
        Ok(())
    }

    fn here(&self) -> Result<BorrowedFd<'_>, Failure> {
        let here = self.levels.here();
        here.ok_or_else(|| Failure::error("no directory to write to"))
    }

    /// Goes to a directory; it and those above it are made if they are missing.
    fn enter(&mut self, names: &[&[u8]]) -> Result<(), Failure> {
        let open = self.levels.all().skip(1);
        let common = open
            .zip(names)
            .take_while(|(level, name)| level.name == **name)
            .count();
        while self.levels.len() > common + 1 {
            self.leave()?;
        }
        for name in names.get(common..).unwrap_or_default() {
            self.push(name, None)?;
        }
        Ok(())
    }

    /// Goes to a directory of the current one, which is made if it is missing.
    fn push(&mut self, name: &[u8], with: Option<Attributes>) -> Result<(), Failure> {
        let here = self.here()?;
        let made = match mkdirat(here, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => true,
            Err(Errno::EXIST) => {
                if self.options.force && !self.is_dir(here, name)? {
                    self.remove(here, name)?;
                    mkdirat(here, name, Mode::from_raw_mode(0o700))
                        .map_err(|error| self.failed("make directory", error))?;
                }
                false
            }
            Err(error) => return Err(self.failed("make directory", error)),
        };
        let fd = openat(here, name, DIRECTORY, Mode::empty());
        let fd = fd.map_err(|error| self.failed("open directory", error))?;
        let mut with = with;
        if !made {
            // It was there, with attributes of its own; writing to it must not change them.
            let stat = fstat(&fd).map_err(|error| self.failed("read", error))?;
            let mode = stat.st_mode & 0o7777;
            if mode & 0o300 != 0o300 && !self.is_root {
                let writable = Mode::from_raw_mode(mode | 0o700);
                fchmod(&fd, writable).map_err(|error| self.failed("write to", error))?;
            }
            with = with.or(Some(Attributes {
                mode,
                owner: None,
                atime: timestamp(stat.st_atime, stat.st_atime_nsec),
                mtime: timestamp(stat.st_mtime, stat.st_mtime_nsec),
            }));
        }
        let name = name.to_vec();
        let pushed = self.levels.push(fd, Level { name, with });
        pushed.map_err(|error| self.failed("read", error))
    }

    /// Leaves a directory, if there is one, and gives it its attributes: all that is in it is made.
    fn leave(&mut self) -> Result<Option<OwnedFd>, Failure> {
        let left = self.levels.pop();
        let left = left.map_err(|error| self.failed("go back to the directory of", error))?;
        let Some((fd, level)) = left else {
            return Ok(None);
        };
        if let Some(with) = level.with {
            self.set(&fd, with)?;
        }
        Ok(Some(fd))
    }

    /// Sets attributes of what is open.
    fn set(&mut self, fd: &OwnedFd, with: Attributes) -> Result<(), Failure> {
        let wrong = |error| failed("set attributes of", &self.whole_path(), error);
        let mut mode = with.mode;
        if let Some((uid, gid)) = with.owner {
            if self.is_root {
                fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))).map_err(wrong)?;
            } else if (uid, gid) != (geteuid().as_raw(), getegid().as_raw()) {
                // Whoever runs it must not run as us.
                mode &= 0o1777;
                self.unpacked.owners_left += 1;
            }
        }
        let wrong = |error| failed("set attributes of", &self.whole_path(), error);
        fchmod(fd, Mode::from_raw_mode(mode)).map_err(wrong)?;
        futimens(fd, &with.times()).map_err(wrong)
    }

    fn is_dir(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<bool, Failure> {
        let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(|error| self.failed("read", error))?;
        Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    fn remove(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Failure> {
        match unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.failed("replace", error)),
        }
    }

    fn one<R: Read>(
        &mut self,
        name: &[u8],
        member: &Member,
        from: &mut Reader<R>,
    ) -> Result<(), Failure> {
        let with = Attributes::of(member);
        if member.kind == Kind::Directory {
            self.unpacked.counts.directories += 1;
            return self.push(name, Some(with));
        }
        if self.options.force {
            self.remove(self.here()?, name)?;
        }
        match &member.kind {
            Kind::Directory => Ok(()),
            Kind::Kept => Err(Failure::error(
                "the archive leaves out what another version has",
            )),
            Kind::File { size } => {
                self.unpacked.counts.files += 1;
                self.file(name, *size, with, from)
            }
            Kind::Symlink(target) => {
                self.unpacked.counts.symlinks += 1;
                let made = symlinkat(target.as_slice(), self.here()?, name);
                made.map_err(|error| self.failed("make link", error))?;
                self.set_at(name, with)
            }
            Kind::Link(target) => {
                self.unpacked.counts.links += 1;
                self.link(name, target)
            }
            Kind::CharDevice(device) => self.node(name, (FileType::CharacterDevice, *device), with),
            Kind::BlockDevice(device) => self.node(name, (FileType::BlockDevice, *device), with),
            Kind::Fifo => self.node(name, (FileType::Fifo, Device::default()), with),
            Kind::Socket => self.node(name, (FileType::Socket, Device::default()), with),
        }
    }

    fn file<R: Read>(
        &mut self,
        name: &[u8],
        size: u64,
        with: Attributes,
        from: &mut Reader<R>,
    ) -> Result<(), Failure> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(self.here()?, name, flags, Mode::from_raw_mode(0o600));
        let fd = fd.map_err(|error| self.failed("make", error))?;
        while let Some((mut offset, data)) = from.data().map_err(|error| unreadable(&error))? {
            let mut rest = data.as_slice();
            while !rest.is_empty() {
                let written = match pwrite(&fd, rest, offset) {
                    Ok(written) => written,
                    Err(Errno::INTR) => continue,
                    Err(error) => return Err(self.failed("write", error)),
                };
                rest = rest.get(written..).unwrap_or_default();
                offset += u64::try_from(written).unwrap_or(0);
            }
            self.progress.add(data.len());
            self.unpacked.counts.bytes += u64::try_from(data.len()).unwrap_or(0);
        }
        ftruncate(&fd, size).map_err(|error| self.failed("write", error))?;
        self.set(&fd, with)
    }

    fn link(&mut self, name: &[u8], target: &[u8]) -> Result<(), Failure> {
        let names = names(target)?;
        let Some((last, parents)) = names.split_last() else {
            return Err(self.failed("link to", Errno::ISDIR));
        };
        let mut dir: Option<OwnedFd> = None;
        for parent in parents {
            let at = match (&dir, self.levels.root()) {
                (Some(dir), _) => dir.as_fd(),
                (None, Some(root)) => root,
                (None, None) => break,
            };
            let next = openat(at, *parent, DIRECTORY, Mode::empty());
            dir = Some(next.map_err(|error| self.failed("link to the other name of", error))?);
        }
        let from = match (&dir, self.levels.root()) {
            (Some(dir), _) => dir.as_fd(),
            (None, Some(root)) => root,
            (None, None) => return Ok(()),
        };
        let linked = linkat(from, *last, self.here()?, name, AtFlags::empty());
        linked.map_err(|error| self.failed("link to the other name of", error))
    }

    fn node(
        &mut self,
        name: &[u8],
        (kind, device): (FileType, Device),
        with: Attributes,
    ) -> Result<(), Failure> {
        self.unpacked.counts.others += 1;
        let dev = makedev(device.major, device.minor);
        // Who may give it away sets the mode after that.
        let mode = Mode::from_raw_mode(with.mode & 0o1777);
        match mknodat(self.here()?, name, kind, mode, dev) {
            Ok(()) => self.set_at(name, with),
            Err(Errno::PERM) => {
                let message = format!(
                    "{} is a device, and making it is not allowed: export as root, or to a tar \
                     archive",
                    self.whole_path().display()
                );
                Err(Failure::new(FailureKind::Denied, message))
            }
            Err(error) => Err(self.failed("make", error)),
        }
    }

    /// Sets attributes of what was just made and cannot be opened. Follows no link.
    fn set_at(&mut self, name: &[u8], with: Attributes) -> Result<(), Failure> {
        let here = self.here()?;
        let wrong = |error| failed("set attributes of", &self.whole_path(), error);
        let (uid, gid) = with.owner.unwrap_or_default();
        if self.is_root {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            chownat(here, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(wrong)?;
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = openat(here, name, flags, Mode::empty()).map_err(wrong)?;
            let stat = fstat(&fd).map_err(wrong)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                // The very thing that is open, wherever its name leads by now.
                let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
                let mode = Mode::from_raw_mode(with.mode);
                chmodat(CWD, path, mode, AtFlags::empty()).map_err(wrong)?;
            }
        }
        utimensat(here, name, &with.times(), AtFlags::SYMLINK_NOFOLLOW).map_err(wrong)?;
        let is_ours = (uid, gid) == (geteuid().as_raw(), getegid().as_raw());
        self.unpacked.owners_left += u64::from(!self.is_root && !is_ours);
        Ok(())
    }
}
