//! Checks every invariant of the keyspace. Reads only.
//!
//! The store must not change meanwhile: nobody else may use it. Keys are read in order, page by
//! page; what crosses inodes is looked up where it should be. So memory does not grow with the
//! store, but for a set of directories already seen, one number range per session, and about 300
//! bytes for each commit, session and tree.
//!
//! Trees of a workspace are compared with one that was checked before, a commit's with its first
//! parent's; only what differs is read and checked (`changes.rs`). So a check costs about the number
//! of distinct nodes, not the number of commits times the size of each. What is wrong in what they
//! share is told once, of the one that was read first; but who uses a damaged node or chunk is told
//! of all, if anything is damaged (`users.rs`), for which the id of each node is remembered, 40 to 80
//! bytes.

mod calls;
mod changes;
mod history;
mod image;
mod reader;
mod report;
mod retention;
mod shared;
mod tables;
mod trees;
mod users;

#[cfg(test)]
mod tests;

pub use report::{Counts, PROBLEMS_MAX, Problem, Remedy, Report, USES_MAX, Use};

use std::collections::HashMap;
use std::fmt::{Debug, Formatter};

use base::{ChunkId, CommitId, DomainId, SessionId, Timestamp, WorkspaceId};

use crate::image::{InodeNumbers, Usage};
use crate::kv::{Kv, KvError};
use crate::tree::{Root, Survey, Trees};
use image::Of;
use reader::Reader;

/// Says whether a chunk is stored.
pub type ChunkExists<'a> = &'a (dyn Fn(DomainId, ChunkId) -> bool + Sync);

/// Hears of progress, after each page of keys.
pub type Progress<'a> = &'a (dyn Fn(&Counts) + Sync);

/// What to check beside the keyspace itself.
#[derive(Clone, Copy, Default)]
pub struct CheckOptions<'a> {
    /// Where the trees of sessions and commits are. Without it sessions that have one are not looked
    /// into, and neither are commits.
    pub trees: Option<&'a dyn Trees>,
    /// Asked for every chunk that a file names.
    pub chunk_exists: Option<ChunkExists<'a>>,
    /// Called after each page.
    pub progress: Option<Progress<'a>>,
}

impl Debug for CheckOptions<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckOptions").finish_non_exhaustive()
    }
}

/// A check in progress.
struct Checker<'a> {
    reader: Reader<'a>,
    options: CheckOptions<'a>,
    report: Report,
    /// What each session may still give out: no two may overlap.
    numbers: Vec<(WorkspaceId, InodeNumbers, SessionId)>,
    /// Trees that have been read, and what they hold.
    trees: HashMap<(WorkspaceId, Root), Result<trees::Verified, String>>,
    /// Trees that have been read as images without anything over them, and what these use.
    images: HashMap<(WorkspaceId, Root), Usage>,
    /// A tree of each workspace that is right, and has been read as an image.
    checked: HashMap<WorkspaceId, Root>,
    /// Commits whose images are to be read.
    commits: Vec<PendingCommit>,
    /// All that has a tree: the tree's domain may share nodes.
    owners: Vec<Owner>,
    /// Something in a tree is damaged or missing.
    is_damaged: bool,
    survey: HashMap<DomainId, Survey>,
    shared: shared::Seen,
}

/// A commit whose image is to be read, after those that it comes from.
#[derive(Clone, Copy, Debug)]
struct PendingCommit {
    workspace: WorkspaceId,
    time: Timestamp,
    id: CommitId,
    root: Root,
    usage: Usage,
    conflicts: u64,
    parent: Option<CommitId>,
}

/// Something that has a tree.
#[derive(Clone, Copy, Debug)]
struct Owner {
    of: Of,
    workspace: WorkspaceId,
    root: Root,
}

/// Checks all that is in `kv`, which nobody else may use meanwhile.
///
/// # Errors
///
/// The store cannot be read. Damaged records are problems in the report, not errors.
///
/// # Cancellation
///
/// Safe to drop.
pub async fn check(kv: &dyn Kv, options: CheckOptions<'_>) -> Result<Report, KvError> {
    let mut checker = Checker {
        reader: Reader::new(kv),
        options,
        report: Report::default(),
        numbers: Vec::new(),
        trees: HashMap::new(),
        images: HashMap::new(),
        checked: HashMap::new(),
        commits: Vec::new(),
        owners: Vec::new(),
        is_damaged: false,
        survey: HashMap::new(),
        shared: shared::Seen::default(),
    };
    checker.check_tables().await?;
    checker.check_numbers();
    checker.check_shared_totals();
    checker.tell_uses().await?;
    Ok(checker.report)
}

impl Checker<'_> {
    /// No inode number may be given out by two sessions.
    fn check_numbers(&mut self) {
        self.numbers
            .sort_by_key(|(workspace, numbers, session)| (*workspace, numbers.next, *session));
        let pairs = self.numbers.iter().zip(self.numbers.iter().skip(1));
        let overlaps: Vec<_> = pairs
            .filter(|((one, first, _), (other, second, _))| one == other && second.next < first.end)
            .map(|((_, _, one), (_, _, other))| (*one, *other))
            .collect();
        for (one, other) in overlaps {
            self.report.add(
                format!("session {one}"),
                format!("may give out the same inode numbers as session {other}"),
                Remedy::Session,
            );
        }
    }

    fn progressed(&self) {
        if let Some(progress) = self.options.progress {
            progress(&self.report.counts);
        }
    }
}
