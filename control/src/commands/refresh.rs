//! `holdfast refresh`: what a mount's kernel has cached of paths that changed from outside is asked for
//! again.
//!
//! NFSv3 has no way to tell a client, and a mount of ours trusts what it has for ten minutes. What makes
//! the Linux client look anew is statx with `AT_STATX_FORCE_SYNC`: of a directory, so that the names
//! found and not found in it are looked up again; of a file, so that its pages are dropped with the next
//! read, which is done here, so that whoever has it mapped sees it, too. A path is only as good as the
//! directories it leads through, so these come first.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use metadata::store::{LIST_EVERYTHING, LIST_POSITION, LIST_ROOT};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::session::path_of;
use super::{client, served};
use crate::cli_outside::RefreshArgs;
use crate::client::Client;
use crate::failure::{Failure, FailureKind};
use crate::output;
use crate::outside::Acknowledge;
use crate::reading::parse_path;

/// Where a mount tells what changed.
const FILE: &str = ".holdfast/changed";

/// Failures that are told one by one.
const FAILURES_SHOWN: usize = 10;

/// So many files are looked at between notes of how far it is.
const TOLD_EVERY: u64 = 10_000;

/// Tries at a path whose handle has just become stale: its name is looked up again.
const TRIES_MAX: u32 = 3;

/// What has to be looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct List {
    everything: bool,
    paths: Vec<Vec<u8>>,
    /// What to acknowledge.
    position: Option<u64>,
}

/// Where the list is from, and acknowledged.
enum Source {
    Server(Box<Client>, String),
    File(PathBuf),
}

/// What something is, and the device that it is on.
type Kind = (FileType, (u32, u32));

/// What was looked at.
#[derive(Debug, Default)]
struct Looked {
    count: u64,
    failures: Vec<String>,
    failed: u64,
}

pub(super) fn run(args: &RefreshArgs, json: bool) -> Result<(), Failure> {
    let dir = &args.dir;
    match std::fs::metadata(dir) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => {
            let message = format!("{} is no directory", dir.display());
            return Err(Failure::new(FailureKind::Usage, message));
        }
        Err(error) => {
            return Err(Failure::io(
                format_args!("look at {}", dir.display()),
                &error,
            ));
        }
    }
    let below = args.directory.as_deref().unwrap_or(Path::new(""));
    let below = parse_path(below.as_os_str().as_bytes())
        .map_err(|why| Failure::new(FailureKind::Usage, why))?;
    let source = source(args)?;
    let list = source.list()?;
    let everything = list.everything || args.all;
    let mut looked = Looked::default();
    if everything {
        looked.everything(dir);
    } else {
        let paths: Vec<&[u8]> = list
            .paths
            .iter()
            .filter_map(|path| within(path, &below))
            .collect();
        for path in with_directories(&paths) {
            looked.at(&join(dir, &path));
        }
    }
    looked.check(dir)?;
    // Only when all has been looked at: who dies before that leaves the list as it is.
    if let Some(position) = list.position {
        source.acknowledge(position)?;
    }
    let count = looked.count;
    if json {
        let answer = serde_json::json!({
            "refreshed": count, "everything": everything, "position": list.position,
        });
        return output::json(&answer);
    }
    output::text(&match (everything, count) {
        (true, _) => format!("looked at everything: {count} files and directories"),
        (false, 0) => "nothing changed from outside".to_owned(),
        (false, 1) => "looked at 1 path".to_owned(),
        (false, _) => format!("looked at {count} paths"),
    })
}

fn source(args: &RefreshArgs) -> Result<Source, Failure> {
    let file = args.dir.join(FILE);
    if args.session.is_none() && file.exists() {
        return Ok(Source::File(file));
    }
    let client = client(&args.server)?;
    let session = served(&client, args.session.clone())?;
    let path = path_of(&session, "/changed")?;
    Ok(Source::Server(Box::new(client), path))
}

impl Source {
    fn list(&self) -> Result<List, Failure> {
        let raw = match self {
            Self::Server(client, path) => client.get_bytes(&format!("{path}?raw=true"))?,
            Self::File(path) => std::fs::read(path)
                .map_err(|error| Failure::io(format_args!("read {}", path.display()), &error))?,
        };
        parse(&raw).ok_or_else(|| {
            Failure::error(
                "the list of what changed cannot be read: is the server of this release?",
            )
        })
    }

    fn acknowledge(&self, position: u64) -> Result<(), Failure> {
        match self {
            Self::Server(client, path) => client.post_for_nothing(path, &Acknowledge { position }),
            Self::File(path) => std::fs::write(path, format!("{position}\n"))
                .map_err(|error| Failure::io(format_args!("write {}", path.display()), &error)),
        }
    }
}

fn parse(raw: &[u8]) -> Option<List> {
    let mut list = List::default();
    let items = match raw.strip_suffix(b"\0") {
        Some(items) => items,
        None if raw.is_empty() => return Some(list),
        None => return None,
    };
    for item in items.split(|byte| *byte == 0) {
        if item == LIST_EVERYTHING {
            list.everything = true;
        } else if let Some(position) = item.strip_prefix(LIST_POSITION) {
            list.position = Some(std::str::from_utf8(position).ok()?.parse().ok()?);
        } else if item == LIST_ROOT {
            list.paths.push(Vec::new());
        } else {
            // What is written below the mount's directory stays below it.
            let plain = parse_path(item).ok()?;
            if plain != item {
                return None;
            }
            list.paths.push(plain);
        }
    }
    Some(list)
}

/// The path below a directory of the session that is mounted; `None` if it is not there. What holds
/// the directory concerns the mount as its root.
fn within<'a>(path: &'a [u8], directory: &[u8]) -> Option<&'a [u8]> {
    if directory.is_empty() {
        return Some(path);
    }
    let rest = path.strip_prefix(directory)?;
    match rest.split_first() {
        None => Some(rest),
        Some((b'/', rest)) => Some(rest),
        Some(_) => None,
    }
}

/// The paths and all directories above them, these first.
fn with_directories(paths: &[&[u8]]) -> BTreeSet<Vec<u8>> {
    let mut all = BTreeSet::new();
    for path in paths {
        all.insert(Vec::new());
        all.insert(path.to_vec());
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (at, _) in slashes {
            all.insert(path.get(..at).unwrap_or_default().to_vec());
        }
    }
    all
}

fn join(dir: &Path, path: &[u8]) -> PathBuf {
    if path.is_empty() {
        return dir.to_owned();
    }
    dir.join(OsStr::from_bytes(path))
}

impl Looked {
    /// Makes the kernel ask for what is at a path. Gives what it is.
    fn at(&mut self, path: &Path) -> Option<Kind> {
        self.count += 1;
        for _ in 0..TRIES_MAX {
            match look(path) {
                Ok(found) => return found,
                // The name leads to something else now.
                Err(Errno::STALE) => {}
                Err(error) => {
                    self.fail(path, &error.into());
                    return None;
                }
            }
        }
        self.fail(path, &Errno::STALE.into());
        None
    }

    fn fail(&mut self, path: &Path, error: &std::io::Error) {
        self.failed += 1;
        if self.failures.len() < FAILURES_SHOWN {
            let path = output::in_line(&path.to_string_lossy());
            self.failures.push(format!("{path}: {error}"));
        }
    }

    /// Looks at all that is mounted at `dir`; says on a terminal how far it is.
    fn everything(&mut self, dir: &Path) {
        let tells = std::io::stderr().is_terminal();
        let Some((_, device)) = self.at(dir) else {
            return;
        };
        let mut dirs = vec![dir.to_owned()];
        while let Some(dir) = dirs.pop() {
            let names = match names(&dir) {
                Ok(names) => names,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => {
                    self.fail(&dir, &error);
                    continue;
                }
            };
            for name in names {
                if tells && self.count.is_multiple_of(TOLD_EVERY) {
                    output::note(&format!("looked at {} files and directories", self.count));
                }
                let path = dir.join(name);
                if let Some((FileType::Directory, on)) = self.at(&path)
                    && on == device
                {
                    dirs.push(path);
                }
            }
        }
    }

    fn check(&self, dir: &Path) -> Result<(), Failure> {
        if self.failed == 0 {
            return Ok(());
        }
        let message = format!(
            "{} of {} paths in {} could not be looked at, so nothing is acknowledged: unmount it and \
             mount it again, or try again as the owner of the files:\n{}",
            self.failed,
            self.count,
            dir.display(),
            self.failures.join("\n")
        );
        Err(Failure::error(message))
    }
}

fn names(dir: &Path) -> std::io::Result<Vec<std::ffi::OsString>> {
    let entries = std::fs::read_dir(dir)?;
    entries.map(|entry| Ok(entry?.file_name())).collect()
}

/// What is at a path, and on which device, as the server says now. `None` if nothing is.
fn look(path: &Path) -> Result<Option<Kind>, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
    let found = match rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS) {
        Ok(found) => found,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(error),
    };
    let kind = FileType::from_raw_mode(found.stx_mode.into());
    if kind == FileType::RegularFile {
        // A read drops the pages of what has changed. Who may not read has none of them.
        match drop_pages(path) {
            Ok(()) | Err(Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::LOOP) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some((kind, (found.stx_dev_major, found.stx_dev_minor))))
}

fn drop_pages(path: &Path) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let mut first = [0; 1];
    rustix::io::pread(&file, &mut first, 0)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(dir: &Path) -> RefreshArgs {
        use clap::Parser;
        let line = ["holdfast", "refresh", dir.to_str().unwrap()];
        match crate::cli::Cli::parse_from(line).command {
            crate::cli::Command::Refresh(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lists_are_read_as_they_are_written() {
        let list = parse(b"a/\xff\0.\0/position=12\0").unwrap();
        let paths = vec![b"a/\xff".to_vec(), Vec::new()];
        let expected = List {
            everything: false,
            paths,
            position: Some(12),
        };
        assert_eq!(list, expected);
        assert!(parse(b"/everything\0/position=1\0").unwrap().everything);
        assert_eq!(parse(b""), Some(List::default()));
        for wrong in [
            &b"a"[..],
            b"../a\0",
            b"/other\0",
            b"/position=x\0",
            b"a//b\0",
        ] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn directories_come_before_what_is_in_them() {
        let all = with_directories(&[b"a/b/c", b"a-b/x"]);
        let all: Vec<Vec<u8>> = all.into_iter().collect();
        for (at, path) in all.iter().enumerate() {
            let parent: Vec<u8> = match path.iter().rposition(|byte| *byte == b'/') {
                Some(slash) => path[..slash].to_vec(),
                None => Vec::new(),
            };
            assert!(path.is_empty() || all[..at].contains(&parent), "{all:?}");
        }
        assert_eq!(all.len(), 6);
        assert_eq!(within(b"a/b", b"a"), Some(&b"b"[..]));
        assert_eq!(within(b"a", b"a"), Some(&b""[..]));
        assert_eq!(within(b"ab/c", b"a"), None);
    }

    /// The list that a mount has is acknowledged there, and not if something could not be looked at.
    #[test]
    fn what_the_mount_says_is_looked_at_and_acknowledged() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        std::fs::create_dir(dir.path().join(".holdfast")).unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::fs::write(dir.path().join("d/f"), "x").unwrap();
        let list = b"d/f\0gone/x\0/position=5\0";
        std::fs::write(&file, list).unwrap();
        run(&args(dir.path()), true).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"5\n");
        let long = [&[b'x'; 255][..]; 20].join(&b'/');
        std::fs::write(&file, [&long[..], b"\0/position=6\0"].concat()).unwrap();
        let failed = run(&args(dir.path()), true).unwrap_err();
        assert!(
            failed.message.contains("nothing is acknowledged"),
            "{failed}"
        );
        assert_ne!(std::fs::read(&file).unwrap(), b"6\n");
    }

    #[test]
    fn everything_is_walked() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/f"), "x").unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("a/l")).unwrap();
        let mut looked = Looked::default();
        looked.everything(dir.path());
        looked.check(dir.path()).unwrap();
        assert_eq!(looked.count, 5);
    }
}
