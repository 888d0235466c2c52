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
    #[error("the path of inode {0} is too long")]
    PathTooLong(InodeId),
}

/// A name in a directory.
type Place = (InodeId, Name);

#[cfg(test)]
pub(crate) mod tests;
