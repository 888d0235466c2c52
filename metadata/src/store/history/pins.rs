//! Pins: commits that are kept whatever the policy says.

use base::{CommitId, WorkspaceId};

use super::super::deletion::require_workspace;
use super::super::{Store, StoreError, damaged};
use super::commits::require_commit;
use super::{PAGE, operations::bad_key};
use crate::keyspace::{self, Key, KeyError};
use crate::kv::{Isolation, KeyRange, RangeLimit};
use crate::record::retention::PinRecord;
use crate::transact::Earlier;

/// A pinned commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinInfo {
    /// The commit.
    pub commit: CommitId,
    /// When and why.
    pub record: PinRecord,
}

impl Store {
    /// Pins a commit, or changes the note of its pin: an empty one leaves the note that is there.
    ///
    /// # Errors
    ///
    /// `NotFound` for the commit, `Invalid` for the note, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not be pinned.
    pub async fn pin(
        &self,
        workspace: WorkspaceId,
        commit: CommitId,
        note: &str,
    ) -> Result<PinInfo, StoreError> {
        let new = PinRecord {
            created: self.clock.wall(),
            note: note.to_owned(),
        };
        new.check().map_err(|error| StoreError::Invalid {
            why: error.to_string(),
        })?;
        let new = &new;
        self.effect(|txn, _| {
            // Sets a state, in the order of those who set it at the same time.
            Box::pin(async move {
                require_workspace(txn, workspace).await?;
                require_commit(txn, workspace, commit).await?;
                let key = keyspace::pin(workspace, commit);
                let mut record = new.clone();
                if record.note.is_empty()
                    && let Some(held) = txn.get(&key, Isolation::Serializable).await?
                {
                    record.note = PinRecord::decode(&held).map_err(damaged("pin"))?.note;
                }
                txn.set(&key, &record.encode());
                Ok(PinInfo { commit, record })
            })
        })
        .await
    }

    /// Takes a pin away.
    ///
    /// # Errors
    ///
    /// `NotFound` if the commit is not pinned, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not be pinned.
    pub async fn unpin(&self, workspace: WorkspaceId, commit: CommitId) -> Result<(), StoreError> {
        self.effect(|txn, earlier| {
            Box::pin(async move {
                let key = keyspace::pin(workspace, commit);
                let found = txn.get(&key, Isolation::Serializable).await?;
                // Gone after an attempt of ours whose outcome was unknown.
                if found.is_none() && earlier == Earlier::Failed {
                    let what = format!("pin of commit {commit}");
                    return Err(StoreError::NotFound { what });
                }
                txn.clear(&key);
                Ok(())
            })
        })
        .await
    }

    /// Up to `limit` pins after that of `after`, by commit.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn pins(
        &self,
        workspace: WorkspaceId,
        after: Option<CommitId>,
        limit: usize,
    ) -> Result<Vec<PinInfo>, StoreError> {
        let mut range = keyspace::pins(workspace);
        if let Some(commit) = after {
            range.start = KeyRange::key(&keyspace::pin(workspace, commit)).end;
        }
        let limit = RangeLimit::pairs(limit.clamp(1, PAGE));
        let pairs = self.pairs(&range, limit).await?;
        let mut pins = Vec::with_capacity(pairs.len());
        for (key, value) in &pairs {
            let Key::Pin(_, commit) = keyspace::decode(key).map_err(bad_key)? else {
                return Err(bad_key(KeyError::WrongTable));
            };
            let what = format!("pin of commit {commit}");
            let record = PinRecord::decode(value).map_err(damaged(&what))?;
            pins.push(PinInfo { commit, record });
        }
        Ok(pins)
    }
}
