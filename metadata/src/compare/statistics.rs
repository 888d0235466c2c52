//! How much differs, for a commit to say.

use base::InodeId;

use super::SnapshotError;
use super::difference::{Options, PathChange, What, compare};
use crate::image::NameHasher;
use crate::record::commit::{Statistics, Volume};
use crate::stat::FileKind;
use crate::tree::{Root, Tree};

/// What `new` changed against `old`, or against nothing, counted.
///
/// Files are counted by their names. Bytes are counted once an inode: what was added and removed
/// with it, and the new size of what holds something else. Directories hold no bytes. What was
/// renamed over something else counts as changed, and what was there as removed.
///
/// # Errors
///
/// A tree cannot be read, or something is damaged.
pub async fn statistics(
    tree: &Tree,
    hasher: &NameHasher,
    old: Option<Root>,
    new: Root,
) -> Result<Statistics, SnapshotError> {
    let roots = (old.unwrap_or(Root::EMPTY), new);
    let counted = count(tree, hasher, roots, u64::MAX).await?;
    Ok(counted.statistics)
}

/// How much of what differs was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The sums.
    pub statistics: Statistics,
    /// Changes that were not counted are left.
    pub more: bool,
}

/// As [`statistics`] between two roots, of the first `limit` changes.
///
/// # Errors
///
/// A tree cannot be read, or something is damaged.
pub async fn count(
    tree: &Tree,
    hasher: &NameHasher,
    roots: (Root, Root),
    limit: u64,
) -> Result<Counted, SnapshotError> {
    let mut comparison = compare(tree, hasher, roots, Options::default());
    let mut tally = Tally::default();
    let mut looked_at = 0;
    while let Some(change) = comparison.next_event().await? {
        let more = looked_at == limit;
        if more {
            let statistics = tally.sums();
            return Ok(Counted { statistics, more });
        }
        looked_at += 1;
        tally.add(&change);
    }
    Ok(Counted {
        statistics: tally.sums(),
        more: false,
    })
}

/// Counts changes that are given to it in the order in which they were told.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    sums: Statistics,
    /// Changes of an inode come one after the other.
    last_changed: Option<InodeId>,
}

impl Tally {
    /// Counts a change.
    pub fn add(&mut self, change: &PathChange) {
        let names = 1 + u64::from(change.further);
        let sums = &mut self.sums;
        match change.what {
            What::Added => add(&mut sums.added, names, bytes(change, change.new_size)),
            What::Removed => add(&mut sums.removed, names, bytes(change, change.old_size)),
            What::Modified | What::Renamed | What::TypeChanged => {
                let is_first = self.last_changed.replace(change.inode) != Some(change.inode);
                let size = change.new_size.filter(|_| change.content && is_first);
                add(&mut sums.changed, names, bytes(change, size));
            }
        }
        if let Some(gone) = change.replaced.filter(|_| change.what == What::Renamed) {
            let size = Some(gone.size).filter(|_| !gone.remains && holds_bytes(gone.kind));
            add(&mut sums.removed, 1, size.unwrap_or(0));
        }
    }

    /// What was counted.
    #[must_use]
    pub fn sums(&self) -> Statistics {
        self.sums
    }
}

/// The bytes that a change of this size adds to a sum.
fn bytes(change: &PathChange, size: Option<u64>) -> u64 {
    size.filter(|_| holds_bytes(change.kind) && !change.linked)
        .unwrap_or(0)
}

fn holds_bytes(kind: FileKind) -> bool {
    kind != FileKind::Directory
}

fn add(volume: &mut Volume, files: u64, bytes: u64) {
    volume.files = volume.files.saturating_add(files);
    volume.bytes = volume.bytes.saturating_add(bytes);
}
