//! What differs between two snapshots, file by file.

use std::collections::VecDeque;

use base::InodeId;

use super::group::{Event, Group};
use super::pair::Pair;
use super::paths::DirPaths;
use super::snapshot::Snapshot;
use super::{SnapshotError, TURN};
use crate::image::NameHasher;
use crate::keyspace::image as keys;
use crate::stat::FileKind;
use crate::tree::{Change, Diff, Root, Tree};

/// What counts as a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Other times of access or modification, and nothing else, are a change too.
    pub times: bool,
    /// Another inode at a path is a change too, if it is the same in all else. Told as modified by
    /// being replaced, without anything that differs.
    pub inodes: bool,
}

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum What {
    /// The path is new.
    Added,
    /// The path is gone.
    Removed,
    /// What is at the path holds something else, or has other attributes.
    Modified,
    /// The file was at another path before.
    Renamed,
    /// What is at the path is of another kind.
    TypeChanged,
}

/// What stood at a path before, if it is told nowhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// The inode.
    pub inode: InodeId,
    /// What it was.
    pub kind: FileKind,
    /// Its size, in bytes.
    pub size: u64,
    /// It is still there, under other names.
    pub remains: bool,
}

/// A file that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathChange {
    /// What happened.
    pub what: What,
    /// The path in the new snapshot; for what was removed, in the old one. Relative to the root
    /// directory, whose own path is empty.
    pub path: Vec<u8>,
    /// For what was renamed: the path in the old snapshot.
    pub old_path: Option<Vec<u8>>,
    /// The inode at `path`.
    pub inode: InodeId,
    /// What it is.
    pub kind: FileKind,
    /// Another inode that was at `path` in the old snapshot.
    pub replaced: Option<Replaced>,
    /// The content differs: of a file its bytes, of a link its target, of a device its numbers.
    /// Content that was written anew may be the same; content that differs is always told.
    pub content: bool,
    /// The permission bits differ.
    pub mode: bool,
    /// The owner or the group differs.
    pub owner: bool,
    /// The time of access or of modification differs. Never told of a directory whose entries
    /// changed.
    pub times: bool,
    /// Size in bytes in the old snapshot; for what is modified by being replaced, that of the
    /// inode it replaced.
    pub old_size: Option<u64>,
    /// Size in bytes in the new snapshot.
    pub new_size: Option<u64>,
    /// How many further names of the inode changed alike. [`Snapshot::paths_of`] tells them.
    pub further: u32,
    /// Only a name was added or removed: the inode is in both snapshots.
    pub linked: bool,
}

/// What differs between the snapshots `old` and `new` of a workspace, whose names `hasher` hashes.
/// Nothing is read before the first change is asked for.
#[must_use]
pub fn compare(
    tree: &Tree,
    hasher: &NameHasher,
    (old, new): (Root, Root),
    options: Options,
) -> Comparison {
    let snapshot = |root| Snapshot::new(tree.clone(), hasher.clone(), root);
    Comparison {
        diff: tree.diff(old, new),
        pair: Pair::new(snapshot(old), snapshot(new)),
        options,
        ahead: None,
        ended: false,
        group: None,
        ready: VecDeque::new(),
        keys: 0,
        old_paths: DirPaths::new(),
        new_paths: DirPaths::new(),
    }
}

/// Compares two snapshots. Holds what differs of one inode, and a bounded number of directories.
#[derive(Debug)]
pub struct Comparison {
    diff: Diff,
    pub(super) pair: Pair,
    options: Options,
    /// A key that was read and not taken yet.
    ahead: Option<Change>,
    ended: bool,
    /// The inode whose keys are being read.
    group: Option<Group>,
    ready: VecDeque<Event>,
    /// How many keys were read.
    keys: u64,
    pub(super) old_paths: DirPaths,
    pub(super) new_paths: DirPaths,
}

impl Comparison {
    /// The next change, in the order of inode numbers; `None` after the last. An inode with several
    /// names may have several changes.
    ///
    /// # Errors
    ///
    /// A tree cannot be read, or something is damaged: the next call tries again, and goes past no
    /// damage.
    /// [`SnapshotError::PathTooLong`] stands for one change, and the next call goes on behind it.
    ///
    /// # Cancellation
    ///
    /// Safe to drop; nothing is skipped.
    pub async fn next(&mut self) -> Result<Option<PathChange>, SnapshotError> {
        self.fill().await?;
        let Some(event) = self.ready.front() else {
            return Ok(None);
        };
        let (old, new) = (&self.pair.old, &self.pair.new);
        let inode = event.change.inode;
        let is_old = event.change.what == What::Removed;
        let path = match &event.place {
            Some(place) if is_old => self.old_paths.path(old, inode, place).await,
            Some(place) => self.new_paths.path(new, inode, place).await,
            None => Ok(Vec::new()),
        };
        let old_path = match &event.old_place {
            Some(place) => self.old_paths.path(old, inode, place).await.map(Some),
            None => Ok(None),
        };
        match (path, old_path) {
            (Ok(path), Ok(old_path)) => Ok(self.ready.pop_front().map(|event| PathChange {
                path,
                old_path,
                ..event.change
            })),
            (Err(error), _) | (_, Err(error)) => {
                if matches!(error, SnapshotError::PathTooLong(_)) {
                    self.ready.pop_front();
                }
                Err(error)
            }
        }
    }

    /// The next change without its paths.
    pub(super) async fn next_event(&mut self) -> Result<Option<PathChange>, SnapshotError> {
        self.fill().await?;
        Ok(self.ready.pop_front().map(|event| event.change))
    }

    /// Sees to it that a change is ready, unless there is none any more.
    async fn fill(&mut self) -> Result<(), SnapshotError> {
        while self.ready.is_empty() {
            self.read_group().await?;
            let Some(group) = &self.group else {
                return Ok(());
            };
            let events = group.events(&mut self.pair, self.options).await?;
            self.ready.extend(events);
            self.group = None;
        }
        Ok(())
    }

    /// Reads what differs of the next inode.
    async fn read_group(&mut self) -> Result<(), SnapshotError> {
        loop {
            if self.ahead.is_none() && !self.ended {
                self.ahead = self.diff.next().await?;
                self.ended = self.ahead.is_none();
            }
            let Some(change) = &self.ahead else {
                return Ok(());
            };
            let key = keys::decode(&change.key)?;
            let inode = key.inode();
            let group = self.group.get_or_insert_with(|| Group::new(inode));
            if group.inode != inode {
                return Ok(());
            }
            group.take(key, change)?;
            self.ahead = None;
            self.keys = self.keys.wrapping_add(1);
            if self.keys.is_multiple_of(TURN) {
                // What is in memory is told without a wait: others want the thread as well.
                tokio::task::yield_now().await;
            }
        }
    }
}
