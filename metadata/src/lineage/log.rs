//! The commits that changed a path.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use base::{CommitId, InodeId, Timestamp};

use super::{Before, CHANGES_MAX, FRONTIER_MAX, Inside, Lineage, LineageError, Target};
use crate::compare::{What, path_in};
use crate::stat::FileKind;
use crate::store::{CommitInfo, LOG_BYTES_MAX, LogFilter, Walk};

/// Most commits that one page looks at.
const LOOKED_AT_MAX: usize = 2000;

/// Most commits that one page shows.
const SHOWN_MAX: usize = 500;

/// What a line of history is followed for: an inode; or nothing, where there is none at the path.
type Aim = Option<InodeId>;

/// Where the log of a path begins, or goes on: commits, and what the path led to there. Printed, a
/// commit's id, `:`, and an inode's number or `-`, with commas between them; to be passed on as it
/// is, with the same path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathHeads(Vec<(CommitId, Aim)>);

/// A text that is no [`PathHeads`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a place in the log of a path is 1 to {FRONTIER_MAX} times COMMIT:INODE with commas between them"
)]
pub struct PathHeadsError;

impl fmt::Display for PathHeads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (commit, aim)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{commit}:")?;
            match aim {
                Some(inode) => write!(f, "{:x}", inode.raw())?,
                None => f.write_str("-")?,
            }
        }
        Ok(())
    }
}

impl FromStr for PathHeads {
    type Err = PathHeadsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut heads = Vec::new();
        for head in text.split(',') {
            if heads.len() == FRONTIER_MAX {
                return Err(PathHeadsError);
            }
            let (commit, aim) = head.split_once(':').ok_or(PathHeadsError)?;
            let aim = match aim {
                "-" => None,
                inode => Some(inode.parse().map_err(|_| PathHeadsError)?),
            };
            heads.push((commit.parse().map_err(|_| PathHeadsError)?, aim));
        }
        Ok(Self(heads))
    }
}

/// Which part of the log of a path is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathLogQuery {
    /// The path, as [`parse_path`](crate::compare::parse_path) gives it.
    pub path: Vec<u8>,
    /// Where to begin.
    pub heads: PathHeads,
    /// Which parents to follow.
    pub walk: Walk,
    /// What to show of what is followed.
    pub filter: LogFilter,
    /// Most commits to show.
    pub limit: usize,
}

/// What a commit did to a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathChanged {
    /// What happened.
    pub what: What,
    /// The path; for what was removed, the one it had.
    pub path: Vec<u8>,
    /// For what was renamed, the path it had. It may be a directory above that has another name.
    pub old_path: Option<Vec<u8>>,
    /// What is there, or was.
    pub kind: FileKind,
    /// The content differs; for a directory, that of something in it.
    pub content: bool,
    /// The permission bits differ.
    pub mode: bool,
    /// The owner or the group differs.
    pub owner: bool,
    /// So much differs in the commit that it was not looked for what of it is in the directory.
    pub unsure: bool,
}

/// A commit that changed a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathCommit {
    /// The commit.
    pub commit: CommitInfo,
    /// What it did.
    pub changed: PathChanged,
}

/// A part of the log of a path, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathLogPage {
    /// The commits. There may be fewer than were asked for, or none, though the log goes on: a page
    /// looks at a bounded number of commits.
    pub commits: Vec<PathCommit>,
    /// Where the log goes on; `None` at its end.
    pub next: Option<PathHeads>,
}

/// Commits that are known and not yet looked at, and what is followed from each.
#[derive(Debug, Default)]
struct Frontier {
    waiting: BTreeMap<(Timestamp, CommitId), (CommitInfo, BTreeSet<Aim>)>,
}

impl Frontier {
    fn add(&mut self, commit: CommitInfo, aim: Aim) -> Result<(), LineageError> {
        let key = (commit.record.time, commit.id);
        let aims = &mut self
            .waiting
            .entry(key)
            .or_insert((commit, BTreeSet::new()))
            .1;
        aims.insert(aim);
        let all: usize = self.waiting.values().map(|(_, aims)| aims.len()).sum();
        if all > FRONTIER_MAX {
            return Err(LineageError::TooWide);
        }
        Ok(())
    }

    /// Takes one thing to follow of the latest commit.
    fn take(&mut self) -> Option<(CommitInfo, Aim)> {
        let mut latest = self.waiting.last_entry()?;
        let aim = latest.get_mut().1.pop_first();
        match aim {
            Some(aim) if !latest.get().1.is_empty() => Some((latest.get().0.clone(), aim)),
            Some(aim) => Some((latest.remove().0, aim)),
            // None is empty.
            None => None,
        }
    }

    fn heads(self) -> Option<PathHeads> {
        let heads: Vec<(CommitId, Aim)> = (self.waiting.into_values())
            .flat_map(|(commit, aims)| aims.into_iter().map(move |aim| (commit.id, aim)))
            .collect();
        (!heads.is_empty()).then_some(PathHeads(heads))
    }
}

/// What one step found.
struct Step {
    changed: Option<PathChanged>,
    follow: Vec<(CommitInfo, Aim)>,
}

impl Lineage {
    /// Where the log of a path begins, from a commit down. There need not be anything at the path:
    /// then the log begins with what took it away.
    ///
    /// # Errors
    ///
    /// The tree cannot be read, or something is damaged.
    pub async fn begin(&self, commit: &CommitInfo, path: &[u8]) -> Result<PathHeads, LineageError> {
        let found = self.snapshot(commit).lookup(path).await?;
        let aim = found.map(|record| record.stat.inode);
        Ok(PathHeads(vec![(commit.id, aim)]))
    }

    /// A part of the log of a path: commits that changed it against their first parent; and of
    /// merges those where it differs from all parents. A file is followed to other names and to
    /// what it replaced; the log ends where it was made. A directory is changed by what happens to
    /// it and to all that is in it. Where lines of work come from different files at one commit, the
    /// commit is told for each.
    ///
    /// # Errors
    ///
    /// `NotFound` for a commit to begin with; [`LineageError::Position`] for what does not belong
    /// to the path; [`LineageError::TooWide`]; or the store fails.
    pub async fn log(&self, query: PathLogQuery) -> Result<PathLogPage, LineageError> {
        let limit = query.limit.clamp(1, SHOWN_MAX);
        let mut frontier = Frontier::default();
        for (id, aim) in query.heads.0 {
            let commit = self.store.commit(self.workspace, id).await?;
            frontier.add(commit, aim)?;
        }
        let mut commits = Vec::new();
        let (mut changes_left, mut bytes) = (2 * CHANGES_MAX, 0);
        for _ in 0..LOOKED_AT_MAX {
            if commits.len() == limit || bytes >= LOG_BYTES_MAX || changes_left < CHANGES_MAX {
                break;
            }
            let Some((commit, aim)) = frontier.take() else {
                break;
            };
            let step = match aim {
                Some(inode) => {
                    let target = self.target(&commit, inode, &query.path).await?;
                    self.step(&commit, &target, query.walk, &mut changes_left)
                        .await?
                }
                None => self.step_back(&commit, &query.path, query.walk).await?,
            };
            for (parent, aim) in step.follow {
                frontier.add(parent, aim)?;
            }
            // What is in memory is told without a wait: others want the thread as well.
            tokio::task::yield_now().await;
            if let Some(changed) = step.changed
                && query.filter.shows(&commit.record)
            {
                let old_path = changed.old_path.as_ref().map_or(0, Vec::len);
                bytes += commit.record.text_bytes() + changed.path.len() + old_path;
                commits.push(PathCommit { commit, changed });
            }
        }
        let next = frontier.heads();
        Ok(PathLogPage { commits, next })
    }

    async fn target(
        &self,
        commit: &CommitInfo,
        inode: InodeId,
        wanted: &[u8],
    ) -> Result<Target, LineageError> {
        let snapshot = self.snapshot(commit);
        let Some(record) = snapshot.attributes(inode).await? else {
            return Err(LineageError::Position);
        };
        let path = path_in(&snapshot, inode, wanted).await?;
        Ok(Target { record, path })
    }

    /// What a commit did to a file, and where to follow it.
    async fn step(
        &self,
        commit: &CommitInfo,
        target: &Target,
        walk: Walk,
        changes_left: &mut usize,
    ) -> Result<Step, LineageError> {
        let inside = Some(changes_left);
        let before = self.before(commit, target, followed(walk), inside).await?;
        let changed = match before.as_slice() {
            [only] if only.is_same => None,
            all => Some(told(target, all)),
        };
        let follow = before.into_iter().filter_map(|one| {
            let inode = one.origin?.record.stat.inode;
            Some((one.commit, Some(inode)))
        });
        Ok(Step {
            changed,
            follow: follow.collect(),
        })
    }

    /// What a commit that has nothing at a path did to what was there, and where to look on.
    async fn step_back(
        &self,
        commit: &CommitInfo,
        path: &[u8],
        walk: Walk,
    ) -> Result<Step, LineageError> {
        let mut changed = None;
        let (mut gone, mut without) = (Vec::new(), Vec::new());
        for id in commit.record.parents.iter().take(followed(walk)) {
            let parent = self.parent(commit, *id).await?;
            let there = match parent.record.tree == commit.record.tree {
                true => None,
                false => self.snapshot(&parent).lookup(path).await?,
            };
            let Some(was) = there else {
                without.push((parent, None));
                continue;
            };
            let target = Target {
                record: was,
                path: path.to_vec(),
            };
            if changed.is_none() {
                changed = Some(self.gone(commit, &target).await?);
            }
            gone.push((parent, Some(target.record.stat.inode)));
        }
        // A parent that has nothing there either is taken as it is.
        Ok(if without.is_empty() {
            Step {
                changed,
                follow: gone,
            }
        } else {
            Step {
                changed: None,
                follow: without,
            }
        })
    }

    /// What a commit did to a file that its parent has at a path and it has not.
    async fn gone(
        &self,
        commit: &CommitInfo,
        target: &Target,
    ) -> Result<PathChanged, LineageError> {
        let (inode, kind) = (target.record.stat.inode, target.record.stat.kind);
        let snapshot = self.snapshot(commit);
        let mut changed = PathChanged {
            what: What::Removed,
            path: target.path.clone(),
            old_path: None,
            kind,
            content: false,
            mode: false,
            owner: false,
            unsure: false,
        };
        if snapshot.attributes(inode).await?.is_some() {
            changed.what = What::Renamed;
            changed.path = path_in(&snapshot, inode, &target.path).await?;
            changed.old_path = Some(target.path.clone());
        }
        Ok(changed)
    }
}

fn followed(walk: Walk) -> usize {
    match walk {
        Walk::FirstParent => 1,
        Walk::AllParents => usize::MAX,
    }
}

/// What a commit did to a file that is not what it was at any of its parents.
fn told(target: &Target, before: &[Before]) -> PathChanged {
    let kind = target.record.stat.kind;
    let mut changed = PathChanged {
        what: What::Added,
        path: target.path.clone(),
        old_path: None,
        kind,
        content: false,
        mode: false,
        owner: false,
        unsure: false,
    };
    let first = before
        .iter()
        .find_map(|one| Some((one, one.origin.as_ref()?)));
    let Some((one, origin)) = first else {
        return changed;
    };
    changed.what = What::Modified;
    if origin.record.stat.kind != kind {
        changed.what = What::TypeChanged;
    }
    if origin.path != target.path {
        changed.what = What::Renamed;
        changed.old_path = Some(origin.path.clone());
    }
    changed.content = origin.content || one.inside != Inside::Same;
    changed.mode = origin.mode;
    changed.owner = origin.owner;
    changed.unsure = one.inside == Inside::Unsure;
    changed
}
