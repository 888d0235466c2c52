//! The tree that a session gets when it, or a path in it, is made as a version has it
//! (docs/design/0012-outside.md, invariants 6, 9 and 10).
//!
//! What it costs depends on what differs: trees are compared, and what is equal is not read.

mod paths;
mod whole;
mod write;

#[cfg(test)]
mod tests;

use base::Timestamp;
use bytes::Bytes;

use crate::compare::SnapshotError;
use crate::image::{Body, NameHasher};
use crate::keyspace::image::ImageKey;
use crate::record::block;
use crate::record::changed::ChangedPaths;
use crate::record::inode::InodeRecord;
use crate::tree::{Root, Tree, TreeError};

pub use paths::paths;
pub use whole::{is_as, whole, whole_again};

/// Why an image could not be made as a version has it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// An image cannot be read, or one made.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Neither image has the path.
    #[error("neither the session nor the version has {:?}", text(path))]
    NoPath {
        /// The path.
        path: Vec<u8>,
    },
    /// The session has no place for the path.
    #[error(
        "the session has no directory {:?} for {:?}: restore that directory, or make it first",
        text(parent),
        text(path)
    )]
    NoParent {
        /// The path.
        path: Vec<u8>,
        /// The directory that it is in.
        parent: Vec<u8>,
    },
    /// More names differ than a restore of paths takes in.
    #[error("too much differs to restore paths: restore the whole session, or fewer at a time")]
    TooLarge,
    /// The numbers handed in do not suffice for copies.
    #[error("no inode numbers are left for what is copied")]
    NoNumbers,
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

impl From<TreeError> for RestoreError {
    fn from(error: TreeError) -> Self {
        Self::Snapshot(error.into())
    }
}

/// What ctime inodes get that the session does not have now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Newcomers {
    /// The time of the exchange at least: clients may know the inode with a later time than the
    /// version has.
    Renew,
    /// What the version has: clients never saw the inode.
    Keep,
}

/// When, and how, an image is made as another.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The time of the exchange.
    pub now: Timestamp,
    /// What ctime inodes get that the session does not have now.
    pub newcomers: Newcomers,
}

impl Rules {
    /// Whether a record is taken of which nothing but times differs: if trees are to be equal.
    fn takes_times(self, old: &InodeRecord, new: &InodeRecord) -> bool {
        self.newcomers == Newcomers::Keep && new.stat.ctime > old.stat.ctime
    }

    /// The record that takes the place of `old`: a later ctime, and for a directory whose entries
    /// differ with it a later time of modification.
    fn renewed(
        self,
        old: Option<&InodeRecord>,
        new: &InodeRecord,
        entries_differ: bool,
    ) -> InodeRecord {
        let mut record = new.clone();
        let time = match (old, self.newcomers) {
            (Some(old), _) if new.stat.ctime > old.stat.ctime => return record,
            (Some(old), _) => self.now.max(old.stat.ctime.tick()),
            (None, Newcomers::Keep) => return record,
            (None, Newcomers::Renew) => self.now.max(new.stat.ctime.tick()),
        };
        record.stat.ctime = time;
        if entries_differ && record.stat.is_dir() {
            record.stat.mtime = time;
        }
        record
    }
}

/// Whether two records of an inode differ in something that counts.
fn differs(old: &InodeRecord, new: &InodeRecord) -> bool {
    let mut like_old = new.clone();
    like_old.stat.ctime = old.stat.ctime;
    if old.stat.is_dir() {
        like_old.stat.mtime = old.stat.mtime;
    }
    like_old != *old
}

/// The chunk that an image value refers to.
fn chunk_of(key: &ImageKey, value: &Bytes) -> Result<Option<base::ChunkId>, SnapshotError> {
    let ImageKey::Block { inode, .. } = key else {
        return Ok(None);
    };
    let block = block::decode(value).map_err(|error| SnapshotError::Record {
        inode: *inode,
        error,
    })?;
    Ok(match block.body {
        Body::Chunk { id, .. } => Some(id),
        _ => None,
    })
}

/// The paths at which `old` and `new` differ for a client, in times and in which inode is there, too.
///
/// # Errors
///
/// A tree cannot be read, or something is damaged.
///
/// # Cancellation
///
/// Safe to drop.
pub async fn changed_paths(
    tree: &Tree,
    hasher: &NameHasher,
    (old, new): (Root, Root),
) -> Result<ChangedPaths, SnapshotError> {
    use crate::compare::{Options, Snapshot, What, compare};
    let snapshot = |root| Snapshot::new(tree.clone(), hasher.clone(), root);
    let mut changed = ChangedPaths::default();
    // A client that knows the old inode at a path finds it stale.
    let options = Options {
        times: true,
        inodes: true,
    };
    let mut comparison = compare(tree, hasher, (old, new), options);
    while changed != ChangedPaths::Everything {
        let change = match comparison.next().await {
            Ok(Some(change)) => change,
            Ok(None) => break,
            // No client has a path so long; what is there is found again by its directory.
            Err(SnapshotError::PathTooLong(_)) => {
                changed = ChangedPaths::Everything;
                break;
            }
            Err(error) => return Err(error),
        };
        let mut roots = Vec::new();
        if change.further > 0 {
            roots.push(if change.what == What::Removed {
                old
            } else {
                new
            });
        }
        if change.linked {
            // What the other names lead to has another number of links.
            roots.push(new);
        }
        for root in roots {
            let mut paths = snapshot(root).paths_of(change.inode);
            loop {
                match paths.next().await {
                    Ok(Some(path)) => changed.add(path),
                    Ok(None) => break,
                    Err(SnapshotError::PathTooLong(_)) => changed = ChangedPaths::Everything,
                    Err(error) => return Err(error),
                }
            }
        }
        changed.add(change.path);
        if let Some(path) = change.old_path {
            changed.add(path);
        }
    }
    Ok(changed)
}
