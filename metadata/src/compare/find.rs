//! Paths as people write them, and finding what is below a directory.

use std::collections::VecDeque;

use base::{InodeId, Name};

use super::snapshot::Snapshot;
use super::{LongPath, PATH_BYTES_MAX, SnapshotError, TURN};
use crate::record::entry::Entry;
use crate::record::inode::InodeRecord;
use crate::stat::FileKind;

/// Entries of a directory that are read ahead, at most.
const AHEAD_MAX: usize = 256;

/// Entries that are read ahead in all directories of a path together, about.
const AHEAD_TOTAL: usize = 4096;

/// A path that cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// A part of it cannot be a name.
    #[error("the {0}")]
    Name(#[from] base::NameError),
    /// It is over [`PATH_BYTES_MAX`].
    #[error("the path is longer than {PATH_BYTES_MAX} bytes")]
    TooLong,
}

/// A path from the root directory as [`PathChange`](super::PathChange) and others have it: without
/// slashes in front, behind, or side by side. The root's own is empty.
///
/// # Errors
///
/// It has `.` or `..`, a NUL, a name that is too long, or is too long itself.
pub fn parse_path(text: &[u8]) -> Result<Vec<u8>, PathError> {
    let mut path = Vec::new();
    for name in text.split(|byte| *byte == b'/') {
        if name.is_empty() {
            continue;
        }
        Name::check(name)?;
        push(&mut path, name);
        if path.len() > PATH_BYTES_MAX {
            return Err(PathError::TooLong);
        }
    }
    Ok(path)
}

/// Whether a path is `top` or below it. Both as [`parse_path`] gives them.
#[must_use]
pub fn is_within(path: &[u8], top: &[u8]) -> bool {
    match path.strip_prefix(top) {
        Some(rest) => top.is_empty() || rest.is_empty() || rest.starts_with(b"/"),
        None => false,
    }
}

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// Something that is there.
    Found(InodeRecord),
    /// Nothing: there is no such name.
    Missing,
    /// Nothing: this much of it is something other than a directory.
    Through {
        /// The part of the path, in bytes.
        bytes: usize,
        /// What is there.
        kind: FileKind,
    },
}

/// Something below a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its path, relative to the root directory.
    pub path: Vec<u8>,
    /// The directory that has this name.
    pub dir: InodeId,
    /// The inode.
    pub inode: InodeId,
    /// What it is.
    pub kind: FileKind,
}

impl Snapshot {
    /// What is at a path, and if there is nothing, why. Symbolic links are not followed.
    ///
    /// # Errors
    ///
    /// The tree cannot be read, or something is damaged.
    pub async fn resolve(&self, path: &[u8]) -> Result<Resolved, SnapshotError> {
        let Some(mut at) = self.attributes(InodeId::ROOT).await? else {
            return Ok(Resolved::Missing);
        };
        let mut bytes = 0_usize;
        for name in path.split(|byte| *byte == b'/') {
            if name.is_empty() {
                bytes += 1;
                continue;
            }
            if !at.stat.is_dir() {
                let kind = at.stat.kind;
                let bytes = bytes.saturating_sub(1);
                return Ok(Resolved::Through { bytes, kind });
            }
            let Some(entry) = self.entry(at.stat.inode, name).await? else {
                return Ok(Resolved::Missing);
            };
            at = self.named(entry.inode).await?;
            bytes += name.len() + 1;
        }
        Ok(Resolved::Found(at))
    }
}

/// A directory that is being looked through.
#[derive(Debug)]
struct Level {
    dir: InodeId,
    /// Length of its path.
    path_bytes: usize,
    /// The name that was read last.
    after: Option<Name>,
    ready: VecDeque<(Name, Entry)>,
    more: bool,
}

impl Level {
    fn new(dir: InodeId, path_bytes: usize, after: Option<Name>) -> Self {
        Self {
            dir,
            path_bytes,
            after,
            ready: VecDeque::new(),
            more: true,
        }
    }
}

/// Tells everything below a directory: a directory before what is in it, names in an order that
/// is always the same in one snapshot. Holds a bounded number of entries and the path.
#[derive(Debug)]
pub struct Finder {
    snapshot: Snapshot,
    /// The directory that was asked for, and those in it down to where the search is.
    open: Vec<Level>,
    /// The path of the last of them.
    path: Vec<u8>,
    /// How often it was asked.
    told: u64,
}

impl Finder {
    /// Finds what is below the directory `dir`, which is at `path`.
    #[must_use]
    pub fn new(snapshot: Snapshot, dir: InodeId, path: &[u8]) -> Self {
        Self {
            snapshot,
            open: vec![Level::new(dir, path.len(), None)],
            path: path.to_vec(),
            told: 0,
        }
    }

    /// As [`Finder::new`], but goes on after `last`, a path that an earlier one told of the same
    /// snapshot. `None` if it is no such path.
    ///
    /// # Errors
    ///
    /// The tree cannot be read, or something is damaged.
    pub async fn after(
        snapshot: Snapshot,
        dir: InodeId,
        path: &[u8],
        last: &[u8],
    ) -> Result<Option<Self>, SnapshotError> {
        let mut finder = Self::new(snapshot, dir, path);
        finder.open.clear();
        let below = last.get(path.len()..).unwrap_or_default();
        let mut at = Some(dir);
        for part in below.split(|byte| *byte == b'/') {
            if part.is_empty() {
                continue;
            }
            let (Some(dir), Ok(name)) = (at, Name::new(part)) else {
                return Ok(None);
            };
            let Some(entry) = finder.snapshot.entry(dir, part).await? else {
                return Ok(None);
            };
            let level = Level::new(dir, finder.path.len(), Some(name));
            finder.open.push(level);
            push(&mut finder.path, part);
            at = (entry.kind == FileKind::Directory).then_some(entry.inode);
        }
        if finder.path != last || finder.open.is_empty() {
            return Ok(None);
        }
        if let Some(dir) = at {
            let level = Level::new(dir, finder.path.len(), None);
            finder.open.push(level);
        }
        Ok(Some(finder))
    }

    /// The next one; `None` after the last.
    ///
    /// # Errors
    ///
    /// The tree cannot be read, or something is damaged: the next call tries again.
    /// [`SnapshotError::PathTooLong`] stands for one thing and all below it, and the next call
    /// goes on behind it.
    ///
    /// # Cancellation
    ///
    /// Safe to drop; nothing is skipped.
    pub async fn next(&mut self) -> Result<Option<Found>, SnapshotError> {
        self.told = self.told.wrapping_add(1);
        if self.told.is_multiple_of(TURN) {
            // What is in memory is told without a wait: others want the thread as well.
            tokio::task::yield_now().await;
        }
        let ahead = (AHEAD_TOTAL / self.open.len().max(1)).clamp(4, AHEAD_MAX);
        let (dir, name, entry, path_bytes) = loop {
            let Some(level) = self.open.last_mut() else {
                return Ok(None);
            };
            if let Some((name, entry)) = level.ready.pop_front() {
                break (level.dir, name, entry, level.path_bytes);
            }
            if level.more {
                let after = level.after.as_ref();
                let listing = self.snapshot.list(level.dir, after, ahead).await?;
                level.more = listing.more;
                if let Some((name, _)) = listing.entries.last() {
                    level.after = Some(name.clone());
                }
                level.ready = listing.entries.into();
            } else {
                self.open.pop();
            }
        };
        self.path.truncate(path_bytes);
        push(&mut self.path, name.as_bytes());
        if self.path.len() > PATH_BYTES_MAX {
            let long = LongPath::new(entry.inode, &self.path);
            return Err(SnapshotError::PathTooLong(long));
        }
        if entry.kind == FileKind::Directory {
            let level = Level::new(entry.inode, self.path.len(), None);
            self.open.push(level);
        }
        Ok(Some(Found {
            path: self.path.clone(),
            dir,
            inode: entry.inode,
            kind: entry.kind,
        }))
    }
}

fn push(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}
