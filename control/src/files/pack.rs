//! From a directory to an archive.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::vec;

use metadata::stat::Device;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, SeekFrom, Stat, fstat, major, minor, openat,
    readlinkat, seek, statat,
};
use rustix::io::{Errno, pread};

use super::levels::Levels;
use super::{Progress, failed, timestamp};
use crate::failure::{Failure, FailureKind};
use crate::tar::{self, EXTENTS_MAX, Extent, Kind, Member};

/// Bytes read at a time.
const READ_BYTES: usize = 256 * 1024;

/// What was packed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Packed {
    /// Files that were written to while they were read.
    pub(crate) changed: u64,
}

/// Writes all that is in the directory `dir`, and its own attributes, to `to` as an archive.
///
/// Memory is bounded by the largest directory, the depth, and the files with several names whose other
/// names have not come yet.
pub(crate) fn pack(
    dir: &Path,
    to: &mut dyn Write,
    progress: &mut Progress,
) -> Result<Packed, Failure> {
    let root = open(CWD, dir.as_os_str(), OFlags::DIRECTORY)
        .map_err(|error| failed("open directory", dir, error))?;
    let stat = fstat(&root).map_err(|error| failed("read", dir, error))?;
    let mut packer = Packer {
        dir,
        path: Vec::new(),
        to,
        progress,
        links: HashMap::new(),
        buffer: vec![0; READ_BYTES],
        packed: Packed::default(),
    };
    packer.header(&stat, b".", Kind::Directory, &[])?;
    let level = packer.level(&root)?;
    let mut levels = Levels::new(root, level).map_err(|error| failed("read", dir, error))?;
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.next() else {
            levels.pop().map_err(|error| match error {
                // It is somewhere else now.
                Errno::STALE => packer.changed(),
                error => packer.failed("read what is above", error),
            })?;
            continue;
        };
        packer.path.truncate(level.path);
        if !packer.path.is_empty() {
            packer.path.push(b'/');
        }
        packer.path.extend_from_slice(name.as_bytes());
        let Some(here) = levels.here() else { break };
        if let Some(below) = packer.one(here, &name)? {
            let level = packer.level(&below)?;
            let pushed = levels.push(below, level);
            pushed.map_err(|error| packer.failed("read", error))?;
        }
    }
    packer.write(&tar::END)?;
    Ok(packer.packed)
}

struct Packer<'a> {
    dir: &'a Path,
    /// Where it is.
    path: Vec<u8>,
    to: &'a mut dyn Write,
    progress: &'a mut Progress,
    /// Files with several names: under which they were packed, and how many names are to come.
    links: HashMap<(u64, u64), (Vec<u8>, u64)>,
    buffer: Vec<u8>,
    packed: Packed,
}

/// A directory that is being read.
struct Level {
    names: vec::IntoIter<CString>,
    path: usize,
}

/// Opens without following a link, and without changing the time of access where that is allowed.
fn open(
    dir: BorrowedFd<'_>,
    name: impl rustix::path::Arg + Copy,
    more: OFlags,
) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | more;
    match openat(dir, name, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => openat(dir, name, flags, Mode::empty()),
        result => result,
    }
}

impl Packer<'_> {
    fn whole_path(&self) -> PathBuf {
        self.dir.join(OsStr::from_bytes(&self.path))
    }

    fn failed(&self, doing: &str, error: Errno) -> Failure {
        if error == Errno::NOENT {
            return self.changed();
        }
        failed(doing, &self.whole_path(), error)
    }

    fn changed(&self) -> Failure {
        let message = format!(
            "{} was changed while it was read, and nothing was imported: try again when nothing \
             writes there, or import a snapshot",
            self.whole_path().display()
        );
        Failure::new(FailureKind::Retry, message)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.to.write_all(bytes);
        written.map_err(|error| Failure::io("send the archive", &error))
    }

    fn level(&self, fd: &OwnedFd) -> Result<Level, Failure> {
        let wrong = |error| self.failed("read directory", error);
        let mut names = Vec::new();
        for entry in Dir::read_from(fd).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            let name = entry.file_name();
            if !matches!(name.to_bytes(), b"." | b"..") {
                names.push(name.to_owned());
            }
        }
        // So that the same tree is the same archive.
        names.sort_unstable();
        Ok(Level {
            names: names.into_iter(),
            path: self.path.len(),
        })
    }

    /// Packs what `name` in a directory is; gives the directory that it is.
    fn one(&mut self, dir: BorrowedFd<'_>, name: &CString) -> Result<Option<OwnedFd>, Failure> {
        self.progress.name();
        let name = name.as_c_str();
        let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| self.failed("read", error))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let path = self.path.clone();
        if kind != FileType::Directory && stat.st_nlink > 1 && self.is_linked(&stat, &path)? {
            return Ok(None);
        }
        let device = Device {
            major: major(stat.st_rdev),
            minor: minor(stat.st_rdev),
        };
        let kind = match kind {
            FileType::Directory => {
                let fd = open(dir, name, OFlags::DIRECTORY | OFlags::NOFOLLOW)
                    .map_err(|error| self.failed("open directory", error))?;
                let stat = fstat(&fd).map_err(|error| self.failed("read", error))?;
                self.header(&stat, &path, Kind::Directory, &[])?;
                return Ok(Some(fd));
            }
            FileType::RegularFile => {
                let fd = open(dir, name, OFlags::NOFOLLOW)
                    .map_err(|error| self.failed("open", error))?;
                self.file(&fd, &path)?;
                return Ok(None);
            }
            FileType::Symlink => {
                let target = readlinkat(dir, name, Vec::new())
                    .map_err(|error| self.failed("read link", error))?;
                Kind::Symlink(target.into_bytes())
            }
            FileType::CharacterDevice => Kind::CharDevice(device),
            FileType::BlockDevice => Kind::BlockDevice(device),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::Unknown => {
                let path = self.whole_path();
                let message = format!("{} is of a kind that is not known", path.display());
                return Err(Failure::error(message));
            }
        };
        self.header(&stat, &path, kind, &[])?;
        Ok(None)
    }

    /// Packs a further name of what is packed already. Remembers the first name of others.
    fn is_linked(&mut self, stat: &Stat, path: &[u8]) -> Result<bool, Failure> {
        let key = (stat.st_dev, stat.st_ino);
        let Some((first, left)) = self.links.get_mut(&key) else {
            #[allow(clippy::useless_conversion)] // It is narrower on other machines.
            let others = u64::try_from(stat.st_nlink).unwrap_or(u64::MAX) - 1;
            self.links.insert(key, (path.to_vec(), others));
            return Ok(false);
        };
        let first = first.clone();
        *left -= 1;
        if *left == 0 {
            self.links.remove(&key);
        }
        self.header(stat, path, Kind::Link(first), &[])?;
        Ok(true)
    }

    fn file(&mut self, fd: &OwnedFd, path: &[u8]) -> Result<(), Failure> {
        let stat = fstat(fd).map_err(|error| self.failed("read", error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.changed());
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let extents = extents(fd, &stat, size).map_err(|error| self.failed("read", error))?;
        self.header(&stat, path, Kind::File { size }, &extents)?;
        let mut sum = 0;
        for extent in &extents {
            self.extent(fd, *extent)?;
            sum += extent.length;
        }
        self.write(tar::padding(sum))?;
        let after = fstat(fd).map_err(|error| self.failed("read", error))?;
        let times = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
        self.packed.changed += u64::from(times(&stat) != times(&after));
        Ok(())
    }

    fn extent(&mut self, fd: &OwnedFd, extent: Extent) -> Result<(), Failure> {
        let (mut at, end) = (extent.offset, extent.offset + extent.length);
        while at < end {
            let wanted = usize::try_from(end - at)
                .unwrap_or(READ_BYTES)
                .min(READ_BYTES);
            let mut buffer = std::mem::take(&mut self.buffer);
            let to = buffer.get_mut(..wanted).unwrap_or_default();
            let read = match pread(fd, to, at) {
                Ok(read) => read,
                Err(Errno::INTR) => {
                    self.buffer = buffer;
                    continue;
                }
                Err(error) => return Err(self.failed("read", error)),
            };
            if read == 0 {
                // It became shorter.
                return Err(self.changed());
            }
            self.write(buffer.get(..read).unwrap_or_default())?;
            self.buffer = buffer;
            self.progress.add(read);
            at += u64::try_from(read).unwrap_or(0);
        }
        Ok(())
    }

    fn header(
        &mut self,
        stat: &Stat,
        path: &[u8],
        kind: Kind,
        extents: &[Extent],
    ) -> Result<(), Failure> {
        let member = Member {
            path: path.to_vec(),
            kind,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: timestamp(stat.st_mtime, stat.st_mtime_nsec),
            atime: Some(timestamp(stat.st_atime, stat.st_atime_nsec)),
        };
        self.write(&tar::header(&member, extents))
    }
}

/// The parts of a file that are no holes.
fn extents(fd: &OwnedFd, stat: &Stat, size: u64) -> Result<Vec<Extent>, Errno> {
    let allocated = u64::try_from(stat.st_blocks)
        .unwrap_or(0)
        .saturating_mul(512);
    let all = Extent {
        offset: 0,
        length: size,
    };
    if size == 0 {
        return Ok(Vec::new());
    }
    if allocated >= size {
        return Ok(vec![all]);
    }
    let mut extents: Vec<Extent> = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(fd, SeekFrom::Data(at)) {
            Ok(start) if start < size => start,
            // Nothing but a hole is left.
            Ok(_) | Err(Errno::NXIO) => break,
            // A file system that does not tell.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(vec![all]),
            Err(error) => return Err(error),
        };
        let end = seek(fd, SeekFrom::Hole(start))?.min(size).max(start + 1);
        let is_full = extents.len() >= EXTENTS_MAX;
        match extents.last_mut() {
            // One of very many: what is between them is read as zeros.
            Some(last) if is_full => last.length = end - last.offset,
            _ => extents.push(Extent {
                offset: start,
                length: end - start,
            }),
        }
        at = end;
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use crate::files::tests::kept_out;

    /// Changes the mode of a directory as soon as a file in it is written.
    struct Shuts<'a>(&'a Path);

    impl Write for Shuts<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if bytes.windows(6).any(|part| part == b"bottom") {
                fs::set_permissions(self.0, Permissions::from_mode(0o000))?;
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Bug: whatever failed on the way up was told as a change by somebody else, to be tried again.
    #[test]
    fn what_may_not_be_read_any_more_is_not_said_to_have_changed() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().join("d");
        let deep = place.path().join("d/".repeat(100));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("bottom"), b"x").unwrap();
        let failure = kept_out(|| {
            let mut progress = Progress::new("packed");
            pack(place.path(), &mut Shuts(&top), &mut progress).unwrap_err()
        });
        fs::set_permissions(&top, Permissions::from_mode(0o700)).unwrap();
        assert_eq!(failure.kind, FailureKind::Denied, "{failure}");
    }
}
