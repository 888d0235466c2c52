//! The history of one path: which commits changed it, and which of them wrote what of it.
//!
//! A file is followed from a commit to its parents by inode, as `compare` has it: where a commit
//! put another inode in its place, to that which stood there before. Nothing is guessed from
//! content. At a merge that took a parent's version as it is, only that parent is followed: what
//! others did to the file did not come to anything. Costs a few lookups a commit; content is read
//! only where it differs, and for blame only.

mod blame;
mod log;

#[cfg(test)]
mod tests;

use base::{CommitId, WorkspaceId};

use crate::compare::{Options, Origin, Snapshot, SnapshotError, What, compare, is_within, origin};
use crate::image::NameHasher;
use crate::merge::ContentError;
use crate::record::inode::InodeRecord;
use crate::store::{CommitInfo, Store, StoreError};
use crate::tree::{Root, Tree};

pub use blame::{Blame, LINES_MAX, Lines, NoLines, Span, TEXT_BYTES_MAX, TextFuture, Texts};
pub use log::{PathChanged, PathCommit, PathHeads, PathHeadsError, PathLogPage, PathLogQuery};

/// Most versions of a path that are followed side by side. A place to go on at names them all, and
/// has to fit the head of a request.
const FRONTIER_MAX: usize = 150;

/// Most changed files that are looked at to find whether one of them is in a directory, for one
/// commit and parent.
const CHANGES_MAX: usize = 100_000;

/// Why the history of a path cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum LineageError {
    /// The store refuses or fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A snapshot cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Content of a file cannot be read.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// A place to go on at is none of this path.
    #[error("this is no place to go on at in the log of this path")]
    Position,
    /// There is nothing at the path.
    #[error("there is nothing at the path")]
    Missing,
    /// Too many lines of work have to be followed at a time.
    #[error(
        "history is too wide: the path has more than {FRONTIER_MAX} versions side by side; follow \
         first parents only"
    )]
    TooWide,
}

/// The histories of paths in one workspace. Cloning shares everything.
#[derive(Clone, Debug)]
pub struct Lineage {
    store: Store,
    workspace: WorkspaceId,
    tree: Tree,
    hasher: NameHasher,
}

/// A file at a commit.
#[derive(Clone, Debug)]
struct Target {
    record: InodeRecord,
    path: Vec<u8>,
}

/// What a file at a commit was at one of its parents.
#[derive(Debug)]
struct Before {
    commit: CommitInfo,
    /// `None` if it was not there.
    origin: Option<Origin>,
    /// What is in it, if it is a directory and that was asked for.
    inside: Inside,
    /// Nothing of it differs.
    is_same: bool,
}

/// Whether what is in a directory differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    Same,
    Differs,
    /// Too much differs elsewhere to look for it.
    Unsure,
}

impl Lineage {
    /// Histories in a workspace, whose trees are `tree` and whose names `hasher` hashes.
    #[must_use]
    pub fn new(store: Store, workspace: WorkspaceId, tree: Tree, hasher: NameHasher) -> Self {
        Self {
            store,
            workspace,
            tree,
            hasher,
        }
    }

    fn snapshot(&self, commit: &CommitInfo) -> Snapshot {
        Snapshot::new(self.tree.clone(), self.hasher.clone(), commit.record.root())
    }

    /// A parent, which is earlier: all walks end because it is.
    async fn parent(&self, child: &CommitInfo, id: CommitId) -> Result<CommitInfo, LineageError> {
        let parent = self.store.commit(self.workspace, id).await?;
        if parent.record.time >= child.record.time {
            let (what, why) = (
                format!("commit {}", child.id),
                format!("its parent {id} is not earlier"),
            );
            return Err(StoreError::Corrupt { what, why }.into());
        }
        Ok(parent)
    }

    /// What a file was at the first `count` parents. If it was the same at one, only that one is
    /// given. What is in a directory counts if there is a number of changes that may be looked at
    /// for that, which is counted down.
    async fn before(
        &self,
        commit: &CommitInfo,
        target: &Target,
        count: usize,
        mut changes_left: Option<&mut usize>,
    ) -> Result<Vec<Before>, LineageError> {
        let new = self.snapshot(commit);
        let mut before = Vec::new();
        for id in commit.record.parents.iter().take(count) {
            let parent = self.parent(commit, *id).await?;
            let found = if parent.record.tree == commit.record.tree {
                Some(unchanged(target))
            } else {
                let old = self.snapshot(&parent);
                origin(&old, &new, &target.record, &target.path).await?
            };
            let mut inside = Inside::Same;
            if let (Some(origin), Some(left)) = (&found, changes_left.as_deref_mut())
                && target.record.stat.is_dir()
            {
                let roots = (parent.record.root(), commit.record.root());
                let paths = (origin.path.as_slice(), target.path.as_slice());
                inside = self.inside(roots, paths, left).await?;
            }
            let is_unchanged = found.as_ref().is_some_and(|origin| is_same(target, origin));
            let is_same = is_unchanged && inside == Inside::Same;
            let one = Before {
                commit: parent,
                origin: found,
                inside,
                is_same,
            };
            if is_same {
                return Ok(vec![one]);
            }
            before.push(one);
        }
        Ok(before)
    }

    /// Whether something differs in a directory that has these paths in two snapshots.
    async fn inside(
        &self,
        roots: (Root, Root),
        (old_path, new_path): (&[u8], &[u8]),
        changes_left: &mut usize,
    ) -> Result<Inside, LineageError> {
        if roots.0 == roots.1 {
            return Ok(Inside::Same);
        }
        let is_below = |path: &[u8], top: &[u8]| path != top && is_within(path, top);
        let mut changes = compare(&self.tree, &self.hasher, roots, Options::default());
        for _ in 0..CHANGES_MAX {
            let change = match changes.next().await {
                Ok(Some(change)) => change,
                Ok(None) => return Ok(Inside::Same),
                Err(SnapshotError::PathTooLong(_)) => continue,
                Err(error) => return Err(error.into()),
            };
            *changes_left = changes_left.saturating_sub(1);
            let is_found = match change.what {
                What::Removed => is_below(&change.path, old_path),
                _ => {
                    let old = change.old_path.as_ref();
                    is_below(&change.path, new_path)
                        || old.is_some_and(|path| is_below(path, old_path))
                }
            };
            if is_found {
                return Ok(Inside::Differs);
            }
        }
        Ok(Inside::Unsure)
    }
}

fn unchanged(target: &Target) -> Origin {
    Origin {
        record: target.record.clone(),
        path: target.path.clone(),
        content: false,
        mode: false,
        owner: false,
    }
}

fn is_same(target: &Target, origin: &Origin) -> bool {
    !origin.content
        && !origin.mode
        && !origin.owner
        && origin.record.stat.kind == target.record.stat.kind
        && origin.path == target.path
}
