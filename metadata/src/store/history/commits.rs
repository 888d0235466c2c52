//! Commits: writing, reading, finding by the first digits of an id.

use base::{CommitId, NodeId, Timestamp, WorkspaceId};

use super::super::deletion::require_workspace;
use super::super::{Store, StoreError, damaged};
use crate::image::Usage;
use crate::keyspace::{self, Key};
use crate::kv::{Isolation, RangeLimit, Transaction};
use crate::record::commit::{CommitRecord, Provenance, Statistics, id_of};
use crate::record::retention::KEEP_SECONDS_MIN;
use crate::transact::Budget;
use crate::tree::Root;
use crate::version::IdPrefix;

/// Most ids that are named where the digits of an id fit several.
const CANDIDATES_MAX: usize = 8;

/// A commit that is younger than this is kept by every policy, also if the clocks of two processes
/// differ by half an hour.
const YOUNG_SECONDS: u64 = KEEP_SECONDS_MIN / 2;

/// What a new commit is to be. Its time is given when it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCommit {
    /// Root of its tree, which is durable with all that is under it.
    pub tree: NodeId,
    /// What the image uses.
    pub usage: Usage,
    /// Commits it comes from.
    pub parents: Vec<CommitId>,
    /// What it changed against its first parent.
    pub statistics: Statistics,
    /// Number of unresolved conflicts in the image.
    pub conflicts: u64,
    /// What it is about.
    pub message: String,
    /// Who and what made it.
    pub provenance: Provenance,
}

#[cfg(any(test, feature = "testing"))]
impl NewCommit {
    /// One of a tree, of which nothing else is said.
    #[must_use]
    pub fn of_tree(tree: NodeId) -> Self {
        Self {
            tree,
            usage: Usage::default(),
            parents: Vec::new(),
            statistics: Statistics::default(),
            conflicts: 0,
            message: String::new(),
            provenance: Provenance::default(),
        }
    }
}

/// A commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitInfo {
    /// Its name.
    pub id: CommitId,
    /// What it is.
    pub record: CommitRecord,
}

impl Store {
    /// Stores a commit. It is on no ref yet.
    ///
    /// The caller holds the chunk store from before it took the tree's root from where it is, until
    /// the end of this call (`docs/design/0002-collection.md`).
    ///
    /// # Errors
    ///
    /// `NotFound` for the workspace or a parent, `Invalid`, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not exist afterwards. Nothing names it then.
    pub async fn put_commit(
        &self,
        workspace: WorkspaceId,
        new: NewCommit,
    ) -> Result<CommitInfo, StoreError> {
        let (now, new) = (self.clock.wall(), &new);
        let root = Root::named(&new.tree);
        self.copying(workspace, root);
        self.transactor
            .transact(Budget::default(), |txn, _| {
                // Its parents never change, so neither does what is written: right however often
                // it is applied.
                Box::pin(async move {
                    self.tell_in(txn, workspace, root).await?;
                    write_commit(txn, workspace, new, now).await
                })
            })
            .await
    }

    /// A commit.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    pub async fn commit(
        &self,
        workspace: WorkspaceId,
        id: CommitId,
    ) -> Result<CommitInfo, StoreError> {
        let what = format!("commit {id}");
        let record = self.read(&keyspace::commit(workspace, id), &what).await?;
        let record = CommitRecord::decode(&record).map_err(damaged(&what))?;
        Ok(CommitInfo { id, record })
    }

    /// The commit whose id begins with these digits.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Ambiguous`, or the store fails.
    pub async fn commit_by_prefix(
        &self,
        workspace: WorkspaceId,
        prefix: &IdPrefix,
    ) -> Result<CommitId, StoreError> {
        let (first, last) = prefix.bounds();
        let range = keyspace::commits(workspace, first, last);
        // One more tells whether there are more.
        let limit = RangeLimit::pairs(CANDIDATES_MAX + 1);
        let pairs = self.pairs(&range, limit).await?;
        let mut found = Vec::new();
        for (key, _) in &pairs {
            match keyspace::decode(key) {
                Ok(Key::Commit(_, id)) => found.push(id),
                Ok(_) | Err(_) => {
                    return Err(StoreError::Corrupt {
                        what: "commit".into(),
                        why: "its key is damaged".into(),
                    });
                }
            }
        }
        match found.as_slice() {
            [] => Err(StoreError::NotFound {
                what: format!("commit {}", prefix.as_str()),
            }),
            [id] => Ok(*id),
            several => {
                let mut candidates: Vec<String> = several
                    .iter()
                    .take(CANDIDATES_MAX)
                    .map(CommitId::to_string)
                    .collect();
                if several.len() > CANDIDATES_MAX {
                    candidates.push("others".into());
                }
                Err(StoreError::Ambiguous {
                    what: format!("commit {}", prefix.as_str()),
                    candidates,
                })
            }
        }
    }
}

/// Writes a commit. What is written depends on `new` and `now` and on nothing that changes.
pub(super) async fn write_commit(
    txn: &mut dyn Transaction,
    workspace: WorkspaceId,
    new: &NewCommit,
    now: Timestamp,
) -> Result<CommitInfo, StoreError> {
    require_workspace(txn, workspace).await?;
    let mut record = CommitRecord {
        tree: new.tree,
        usage: new.usage,
        parents: new.parents.clone(),
        time: now,
        statistics: new.statistics,
        conflicts: new.conflicts,
        message: new.message.clone(),
        provenance: new.provenance.clone(),
    };
    record.check().map_err(|error| StoreError::Invalid {
        why: error.to_string(),
    })?;
    let mut oldest_parent: Option<Timestamp> = None;
    for parent in &new.parents {
        let before = require_commit(txn, workspace, *parent).await?.time;
        oldest_parent = Some(oldest_parent.map_or(before, |oldest| oldest.min(before)));
        record.time = record.time.max(before.tick());
        if record.time <= before {
            return Err(StoreError::Corrupt {
                what: format!("commit {parent}"),
                why: "its time is the last there is".into(),
            });
        }
    }
    let encoded = record.encode();
    let id = id_of(&encoded);
    // Nobody may know of its parents any more but this.
    let old = now.seconds().saturating_sub(YOUNG_SECONDS);
    if oldest_parent.is_some_and(|time| time.seconds() < old)
        && let Some(stamp) = id.as_bytes().first_chunk::<8>()
    {
        txn.set(&keyspace::grown(workspace), stamp);
    }
    txn.set(&keyspace::commit(workspace, id), &encoded);
    Ok(CommitInfo { id, record })
}

/// A commit, read so that its removal conflicts.
pub(in crate::store) async fn require_commit(
    txn: &dyn Transaction,
    workspace: WorkspaceId,
    id: CommitId,
) -> Result<CommitRecord, StoreError> {
    let what = format!("commit {id}");
    let found = txn
        .get(&keyspace::commit(workspace, id), Isolation::Serializable)
        .await?;
    match found {
        Some(found) => CommitRecord::decode(&found).map_err(damaged(&what)),
        None => Err(StoreError::NotFound { what }),
    }
}
