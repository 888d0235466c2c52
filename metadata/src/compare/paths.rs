//! From inodes to paths: up the first links, to the root.

use std::collections::{HashMap, VecDeque};

use base::{InodeId, Name};

use super::snapshot::{LinkScan, Snapshot};
use super::{LongPath, PATH_BYTES_MAX, Place, SnapshotError};

/// Bytes of paths that are remembered.
const CACHE_BYTES_MAX: usize = 4 << 20;

/// What remembering a path costs beside its bytes, roughly.
const CACHE_ENTRY_BYTES: usize = 64;

/// A longer path is remembered without those of the directories above it, which together could be
/// far longer.
const PREFIXES_BYTES_MAX: usize = 4096;

/// Directories above one with too long a path that are looked through for the front of that path. In a
/// damaged tree they may hang in a circle.
const CLIMB_MAX: usize = 64 * 1024;

/// First names of a path that are kept on the way up.
const FRONT_NAMES_MAX: usize = 160;

/// Finds paths of directories in one snapshot, and remembers some.
#[derive(Debug)]
pub(super) struct DirPaths {
    known: HashMap<InodeId, Vec<u8>>,
    /// What is remembered takes so many bytes, about.
    bytes: usize,
    pub(super) bytes_max: usize,
    /// The front of a path that is too long was looked for, which takes long.
    has_climbed: bool,
}

impl DirPaths {
    pub(super) fn new() -> Self {
        Self {
            known: HashMap::new(),
            bytes: 0,
            bytes_max: CACHE_BYTES_MAX,
            has_climbed: false,
        }
    }

    /// Bytes that what is remembered takes, about.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let costs = self
            .known
            .values()
            .map(|path| path.len() + CACHE_ENTRY_BYTES);
        costs.sum()
    }

    /// The path of a name in a directory. Safe to drop.
    pub(super) async fn path(
        &mut self,
        snapshot: &Snapshot,
        inode: InodeId,
        (dir, name): &Place,
    ) -> Result<Vec<u8>, SnapshotError> {
        let mut path = self.of_dir(snapshot, inode, *dir).await?;
        push(&mut path, name);
        if path.len() > PATH_BYTES_MAX {
            return Err(SnapshotError::PathTooLong(LongPath::new(inode, &path)));
        }
        Ok(path)
    }

    async fn of_dir(
        &mut self,
        snapshot: &Snapshot,
        inode: InodeId,
        dir: InodeId,
    ) -> Result<Vec<u8>, SnapshotError> {
        let (mut at, mut bytes) = (dir, 0);
        let mut below: Vec<Place> = Vec::new();
        let mut path = loop {
            if at == InodeId::ROOT {
                break Vec::new();
            }
            if let Some(path) = self.known.get(&at) {
                break path.clone();
            }
            let (parent, name) = first_link(snapshot, at).await?;
            bytes += name.as_bytes().len() + 1;
            // Also where directories hang in a circle.
            if bytes > PATH_BYTES_MAX {
                let front = match std::mem::replace(&mut self.has_climbed, true) {
                    true => Vec::new(),
                    false => front_of(snapshot, parent).await,
                };
                return Err(SnapshotError::PathTooLong(LongPath::new(inode, &front)));
            }
            below.push((at, name));
            at = parent;
        };
        for (at, name) in below.iter().rev() {
            push(&mut path, name);
            if *at == dir || path.len() <= PREFIXES_BYTES_MAX {
                self.remember(*at, &path);
            }
        }
        Ok(path)
    }

    fn remember(&mut self, dir: InodeId, path: &[u8]) {
        if self.bytes > self.bytes_max {
            self.known.clear();
            self.bytes = 0;
        }
        self.bytes += path.len() + CACHE_ENTRY_BYTES;
        self.known.insert(dir, path.to_vec());
    }
}

/// The first directories of the path of the directory `at`; empty if they cannot be found.
async fn front_of(snapshot: &Snapshot, mut at: InodeId) -> Vec<u8> {
    let mut names = VecDeque::new();
    for _ in 0..CLIMB_MAX {
        if at == InodeId::ROOT {
            let mut front = Vec::new();
            names.iter().for_each(|name| push(&mut front, name));
            return front;
        }
        let Ok((parent, name)) = first_link(snapshot, at).await else {
            break;
        };
        names.push_front(name);
        names.truncate(FRONT_NAMES_MAX);
        at = parent;
    }
    Vec::new()
}

/// The first link of something other than the root.
async fn first_link(snapshot: &Snapshot, inode: InodeId) -> Result<Place, SnapshotError> {
    let what = "has no name";
    let link = snapshot.named(inode).await?.link;
    link.ok_or(SnapshotError::Damaged { inode, what })
}

fn push(path: &mut Vec<u8>, name: &Name) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name.as_bytes());
}

/// Tells all paths of an inode.
#[derive(Debug)]
pub struct Paths {
    snapshot: Snapshot,
    inode: InodeId,
    dirs: DirPaths,
    first_told: bool,
    further: Option<LinkScan>,
    /// Read and not yet told.
    next: Option<Place>,
}

impl Paths {
    pub(super) fn new(snapshot: Snapshot, inode: InodeId) -> Self {
        Self {
            snapshot,
            inode,
            dirs: DirPaths::new(),
            first_told: false,
            further: None,
            next: None,
        }
    }

    /// The next path, relative to the root directory, whose own path is empty. `None` after the
    /// last, and at once if there is no such inode.
    ///
    /// # Errors
    ///
    /// The tree cannot be read, something is damaged, or the path is over
    /// [`PATH_BYTES_MAX`]; the next call then tells the next path.
    ///
    /// # Cancellation
    ///
    /// Safe to drop; nothing is skipped.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, SnapshotError> {
        if self.next.is_none() {
            match &mut self.further {
                Some(further) => self.next = further.next().await?,
                None => {
                    let found = self.snapshot.attributes(self.inode).await?;
                    let Some(record) = found.filter(|_| !self.first_told) else {
                        return Ok(None);
                    };
                    self.first_told = true;
                    if self.inode == InodeId::ROOT {
                        return Ok(Some(Vec::new()));
                    }
                    self.further = Some(self.snapshot.links(self.inode));
                    self.next = record.link;
                }
            }
        }
        let Some(place) = &self.next else {
            return Ok(None);
        };
        let path = self.dirs.path(&self.snapshot, self.inode, place).await;
        match &path {
            Ok(_) | Err(SnapshotError::PathTooLong(_)) => self.next = None,
            Err(_) => {}
        }
        path.map(Some)
    }
}
