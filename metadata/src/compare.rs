//! Files of a snapshot, and what differs between two snapshots of one workspace, without a mount.
//! `docs/design/0007-compare.md` has the rules.
//!
//! Reads trees and nothing else: file content is told as chunks and bytes at hand.

mod content;
mod difference;
mod find;
mod group;
mod origin;
mod pair;
mod paths;
mod snapshot;
mod statistics;

use base::{InodeId, Name};

pub use content::{FilePiece, FilePieces, Source};
pub use difference::{Comparison, Options, PathChange, Replaced, What, compare};
pub use find::{Finder, Found, PathError, Resolved, is_within, parse_path};
pub use origin::{Origin, origin, path_in};
pub use paths::Paths;
pub use snapshot::{Listing, Snapshot};
pub use statistics::{Counted, Tally, count, statistics};

use crate::keyspace::KeyError;
use crate::record::RecordError;
use crate::tree::TreeError;

/// Longest path that is told, in bytes. Sixteen times what Linux takes in one call.
pub const PATH_BYTES_MAX: usize = 64 * 1024;

/// Steps after which long work lets others have the thread. A step takes microseconds.
const TURN: u64 = 256;

/// Why a snapshot could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// A node cannot be read.
    #[error("read the tree: {0}")]
    Tree(#[from] TreeError),
    /// A key is damaged. Never retried.
    #[error("decode a key: {0}")]
    Key(#[from] KeyError),
    /// A value is damaged or of another release. Never retried.
    #[error("decode a record of inode {inode}: {error}")]
    Record {
        /// Whose record it is.
        inode: InodeId,
        /// What is wrong with it.
        error: RecordError,
    },
    /// Records contradict each other. Never retried.
    #[error("inode {inode} is damaged: it {what}")]
    Damaged {
        /// The inode.
        inode: InodeId,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A path is over [`PATH_BYTES_MAX`].
    #[error("{0}")]
    PathTooLong(LongPath),
}

/// Most bytes of the front of a path that is too long.
const FRONT_BYTES_MAX: usize = 300;

/// A path that is over [`PATH_BYTES_MAX`]. As text it says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongPath {
    /// What is there.
    pub inode: InodeId,
    /// The first directories of the path; empty if they are not known.
    pub front: Vec<u8>,
}

impl LongPath {
    /// The path of `inode` that begins with `path`.
    #[must_use]
    pub fn new(inode: InodeId, path: &[u8]) -> Self {
        let whole = path.get(..=FRONT_BYTES_MAX).map(|cut| {
            // A name has at most 255 bytes.
            let end = cut.iter().rposition(|byte| *byte == b'/');
            cut.get(..end.unwrap_or(FRONT_BYTES_MAX))
        });
        let front = whole.flatten().unwrap_or(path).to_vec();
        Self { inode, front }
    }
}

impl std::fmt::Display for LongPath {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "the path of inode {} is too long: ", self.inode)?;
        if !self.front.is_empty() {
            let front = String::from_utf8_lossy(&self.front);
            write!(to, "below {front:?} ")?;
        }
        write!(
            to,
            "a path has more than {PATH_BYTES_MAX} bytes. In a session, move what is deep in there \
             to a shorter path, or remove it, then publish"
        )
    }
}

/// A name in a directory.
type Place = (InodeId, Name);

#[cfg(test)]
pub(crate) mod tests;
