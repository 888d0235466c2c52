//! Walks over commits: the log, and how two commits are related.
//!
//! A commit is later than its parents. So a walk that always takes the latest commit it knows of has
//! seen all children of a commit before it takes the commit, and needs no memory of what it took:
//! only the frontier, commits that are known and not yet taken, one for each line of work that was
//! open at that time.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use base::{CommitId, SessionId, Timestamp, WorkspaceId};

use super::super::{Store, StoreError};
use super::PAGE;
use super::commits::CommitInfo;
use crate::record::commit::CommitRecord;

/// Most commits on a frontier: a few hundred bytes each.
const FRONTIER_MAX: usize = 10_000;

/// Most commits of a frontier whose records are kept rather than read again: up to 90 KiB each.
const KEPT_MAX: usize = 64;

/// Most commits that one page of a log looks at.
const LOOKED_AT_MAX: usize = 5_000;

/// About how many bytes of texts one page of a log has: a page is one answer.
pub(crate) const LOG_BYTES_MAX: usize = 4 << 20;

/// Which parents a log follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// The first: what a branch was at, one after the other.
    FirstParent,
    /// All.
    AllParents,
}

/// Which commits a log shows. What is `None` does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFilter {
    /// Made by this agent.
    pub agent: Option<String>,
    /// Made in this session.
    pub session: Option<SessionId>,
    /// Made in this run.
    pub run: Option<String>,
}

impl LogFilter {
    /// Whether a log shows this commit.
    #[must_use]
    pub fn shows(&self, commit: &CommitRecord) -> bool {
        let made = &commit.provenance;
        self.agent.as_ref().is_none_or(|agent| *agent == made.agent)
            && self.run.as_ref().is_none_or(|run| *run == made.run)
            && self
                .session
                .is_none_or(|session| made.session == Some(session))
    }
}

/// Where a log begins, or goes on: the newest commits that are not shown yet. Printed, ids with
/// commas between them; to be passed on as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogHeads(Vec<CommitId>);

impl LogHeads {
    /// A log from one commit down.
    #[must_use]
    pub fn of(commit: CommitId) -> Self {
        Self(vec![commit])
    }
}

/// A text that is no [`LogHeads`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a place in a log is 1 to {FRONTIER_MAX} commit ids with commas between them")]
pub struct LogHeadsError;

impl fmt::Display for LogHeads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, id) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{id}")?;
        }
        Ok(())
    }
}

impl FromStr for LogHeads {
    type Err = LogHeadsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut ids = Vec::new();
        for id in text.split(',') {
            if ids.len() == FRONTIER_MAX {
                return Err(LogHeadsError);
            }
            ids.push(id.parse().map_err(|_| LogHeadsError)?);
        }
        Ok(Self(ids))
    }
}

/// Which part of a log is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogQuery {
    /// Where to begin.
    pub heads: LogHeads,
    /// Which parents to follow.
    pub walk: Walk,
    /// What to show.
    pub filter: LogFilter,
    /// Most commits to show.
    pub limit: usize,
}

/// A part of a log, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPage {
    /// The commits. There may be fewer than were asked for, or none, though the log goes on: a page
    /// looks at a bounded number of commits.
    pub commits: Vec<CommitInfo>,
    /// Where the log goes on; `None` at its end.
    pub next: Option<LogHeads>,
}

/// What is known of a commit on a frontier.
#[derive(Debug)]
struct Waiting {
    marks: u8,
    record: Option<CommitRecord>,
}

/// A commit comes from the first of two.
const ONE: u8 = 1;
/// A commit comes from the second of two.
const TWO: u8 = 2;
/// A commit comes from one that both come from.
const BELOW: u8 = 4;

/// Commits that are known and not yet taken.
#[derive(Debug, Default)]
struct Frontier {
    /// By time. No two commits are the same at the same time, so a commit is here once.
    waiting: BTreeMap<(Timestamp, CommitId), Waiting>,
    /// How many of them are not marked as [`BELOW`].
    not_below: usize,
}

impl Frontier {
    fn add(&mut self, commit: CommitInfo, marks: u8) -> Result<(), StoreError> {
        let key = (commit.record.time, commit.id);
        if let Some(waiting) = self.waiting.get_mut(&key) {
            if waiting.marks & BELOW == 0 && marks & BELOW != 0 {
                self.not_below = self.not_below.saturating_sub(1);
            }
            waiting.marks |= marks;
            return Ok(());
        }
        // Where a log goes on can be as long as this, and is read within the same bound.
        if self.waiting.len() >= FRONTIER_MAX {
            let why = format!(
                "history is too wide: more than {FRONTIER_MAX} lines of work were open at a time; \
                 follow first parents only"
            );
            return Err(StoreError::Refused { why });
        }
        if marks & BELOW == 0 {
            self.not_below += 1;
        }
        let record = (self.waiting.len() < KEPT_MAX).then_some(commit.record);
        self.waiting.insert(key, Waiting { marks, record });
        Ok(())
    }

    /// Takes the latest.
    fn take(&mut self) -> Option<(Timestamp, CommitId, Waiting)> {
        let ((time, id), waiting) = self.waiting.pop_last()?;
        if waiting.marks & BELOW == 0 {
            self.not_below = self.not_below.saturating_sub(1);
        }
        Some((time, id, waiting))
    }
}

impl Store {
    /// A part of the log.
    ///
    /// # Errors
    ///
    /// `NotFound` for a commit to begin with; `Refused` if too many lines of work are open at a
    /// time; or the store fails.
    pub async fn log(
        &self,
        workspace: WorkspaceId,
        query: LogQuery,
    ) -> Result<LogPage, StoreError> {
        let limit = query.limit.clamp(1, PAGE);
        let mut frontier = Frontier::default();
        for id in query.heads.0 {
            frontier.add(self.commit(workspace, id).await?, 0)?;
        }
        let mut commits = Vec::new();
        let mut bytes = 0;
        for _ in 0..LOOKED_AT_MAX {
            if bytes >= LOG_BYTES_MAX {
                break;
            }
            let Some((commit, _)) = self.take(workspace, &mut frontier).await? else {
                break;
            };
            let followed = match query.walk {
                Walk::FirstParent => 1,
                Walk::AllParents => usize::MAX,
            };
            for parent in commit.record.parents.iter().take(followed) {
                let parent = self.parent(workspace, &commit, *parent).await?;
                frontier.add(parent, 0)?;
            }
            if query.filter.shows(&commit.record) {
                bytes += commit.record.text_bytes();
                commits.push(commit);
            }
            if commits.len() == limit {
                break;
            }
        }
        let heads: Vec<CommitId> = frontier.waiting.into_keys().map(|(_, id)| id).collect();
        Ok(LogPage {
            commits,
            next: (!heads.is_empty()).then_some(LogHeads(heads)),
        })
    }

    /// Whether `of` comes from `ancestor`, or is it. Looks at no commit that is older than
    /// `ancestor` but the parents of newer ones.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Refused` if too many lines of work are open at a time; or the store fails.
    pub async fn is_ancestor(
        &self,
        workspace: WorkspaceId,
        ancestor: CommitId,
        of: CommitId,
    ) -> Result<bool, StoreError> {
        let last = (
            self.commit(workspace, ancestor).await?.record.time,
            ancestor,
        );
        let mut frontier = Frontier::default();
        frontier.add(self.commit(workspace, of).await?, 0)?;
        while let Some((commit, _)) = self.take(workspace, &mut frontier).await? {
            if commit.id == ancestor {
                return Ok(true);
            }
            for parent in &commit.record.parents {
                let parent = self.parent(workspace, &commit, *parent).await?;
                if (parent.record.time, parent.id) >= last {
                    frontier.add(parent, 0)?;
                }
            }
        }
        Ok(false)
    }

    /// The best common ancestors of two commits, newest first: all that both come from and that no
    /// other such commit comes from. Often one; several after merges that cross; none for histories
    /// that have nothing in common.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Refused` if too many lines of work are open at a time; or the store fails.
    pub async fn merge_bases(
        &self,
        workspace: WorkspaceId,
        one: CommitId,
        two: CommitId,
    ) -> Result<Vec<CommitId>, StoreError> {
        let mut frontier = Frontier::default();
        frontier.add(self.commit(workspace, one).await?, ONE)?;
        frontier.add(self.commit(workspace, two).await?, TWO)?;
        let mut bases = Vec::new();
        // What is below a base is none, and nor is what is below that.
        while frontier.not_below > 0 {
            let Some((commit, mut marks)) = self.take(workspace, &mut frontier).await? else {
                break;
            };
            if marks == ONE | TWO {
                bases.push(commit.id);
                marks |= BELOW;
            }
            for parent in &commit.record.parents {
                let parent = self.parent(workspace, &commit, *parent).await?;
                frontier.add(parent, marks)?;
            }
        }
        Ok(bases)
    }

    /// Whether what a commit has began in an empty workspace: it comes from a commit without parents
    /// that a session made, or, if one is given, that this session made. Imported histories begin with
    /// something that came from elsewhere.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Refused` if too many lines of work are open at a time; or the store fails.
    pub async fn began_empty(
        &self,
        workspace: WorkspaceId,
        of: CommitId,
        by: Option<SessionId>,
    ) -> Result<bool, StoreError> {
        let mut frontier = Frontier::default();
        frontier.add(self.commit(workspace, of).await?, 0)?;
        while let Some((commit, _)) = self.take(workspace, &mut frontier).await? {
            let record = &commit.record;
            let made = record.provenance.session;
            if record.parents.is_empty() && made.is_some() && (by.is_none() || made == by) {
                return Ok(true);
            }
            for parent in &record.parents {
                frontier.add(self.parent(workspace, &commit, *parent).await?, 0)?;
            }
        }
        Ok(false)
    }

    /// Takes the latest commit, with its marks.
    async fn take(
        &self,
        workspace: WorkspaceId,
        frontier: &mut Frontier,
    ) -> Result<Option<(CommitInfo, u8)>, StoreError> {
        let Some((_, id, waiting)) = frontier.take() else {
            return Ok(None);
        };
        let commit = match waiting.record {
            Some(record) => CommitInfo { id, record },
            None => self.commit(workspace, id).await?,
        };
        Ok(Some((commit, waiting.marks)))
    }

    /// A parent. Everything here relies on its being earlier, and ends because it is.
    pub(super) async fn parent(
        &self,
        workspace: WorkspaceId,
        child: &CommitInfo,
        id: CommitId,
    ) -> Result<CommitInfo, StoreError> {
        let wrong = |why| StoreError::Corrupt {
            what: format!("commit {}", child.id),
            why,
        };
        match self.commit(workspace, id).await {
            Ok(parent) if parent.record.time < child.record.time => Ok(parent),
            Ok(_) => Err(wrong(format!("its parent {id} is not earlier"))),
            Err(StoreError::NotFound { .. }) => Err(wrong(format!("its parent {id} is missing"))),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::NodeId;

    use super::*;
    use crate::image::Usage;
    use crate::record::commit::{Provenance, Statistics};

    fn commit(number: u64) -> CommitInfo {
        let record = CommitRecord {
            tree: NodeId::new([1; 32]),
            usage: Usage::default(),
            parents: vec![],
            time: Timestamp::new(number, 0),
            statistics: Statistics::default(),
            conflicts: 0,
            message: String::new(),
            provenance: Provenance::default(),
        };
        let id = record.id();
        CommitInfo { id, record }
    }

    #[test]
    fn a_frontier_is_bounded_and_keeps_few_records() {
        let mut frontier = Frontier::default();
        for number in 0..10_000 {
            frontier.add(commit(number), ONE).unwrap();
        }
        let refused = frontier.add(commit(10_000), ONE).unwrap_err();
        assert!(refused.to_string().contains("too wide"), "{refused}");
        // One that is known needs no room.
        frontier.add(commit(5), TWO).unwrap();
        let kept = frontier.waiting.values().filter(|at| at.record.is_some());
        assert_eq!(kept.count(), KEPT_MAX);
        let heads: Vec<_> = frontier.waiting.keys().map(|(_, id)| *id).collect();
        let heads = LogHeads(heads);
        assert_eq!(heads.to_string().parse(), Ok(heads));
        let latest = frontier.take().unwrap();
        assert_eq!(latest.0, Timestamp::new(9_999, 0));
        frontier.add(commit(9_999), ONE).unwrap();
    }
}
