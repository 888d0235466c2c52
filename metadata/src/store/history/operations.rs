//! The operation log, and undoing what is in it.

use base::{OperationId, Timestamp, WorkspaceId};

use super::super::{Store, StoreError, damaged};
use super::PAGE;
use super::refs::{RefSeen, is_kept};
use crate::keyspace::{self, KeyError};
use crate::kv::{Isolation, KeyRange, RangeLimit, Transaction};
use crate::record::operation::{Action, Actor, Cause, OperationRecord};
use crate::record::reference::{RefChange, RefState};
use crate::version::rfc3339;

/// An entry of the operation log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationInfo {
    /// Names it.
    pub id: OperationId,
    /// When it was done.
    pub time: Timestamp,
    /// What was done, and by whom.
    pub record: OperationRecord,
}

/// A place in the operation log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperationPosition {
    /// Time of the operation there.
    pub time: Timestamp,
    /// The operation there.
    pub id: OperationId,
}

impl OperationInfo {
    /// Where it is in the log.
    #[must_use]
    pub fn position(&self) -> OperationPosition {
        OperationPosition {
            time: self.time,
            id: self.id,
        }
    }
}

impl Store {
    /// This store, as used by somebody: what is done through it is logged as done by `actor`.
    /// Where a call names an agent and a run itself, those are logged.
    ///
    /// # Errors
    ///
    /// `Invalid`: a name is not acceptable.
    pub fn acting_as(&self, actor: Actor) -> Result<Self, StoreError> {
        actor.check().map_err(|error| StoreError::Invalid {
            why: error.to_string(),
        })?;
        Ok(Self {
            actor: actor.into(),
            ..self.clone()
        })
    }

    /// A fresh name for an operation.
    #[must_use]
    pub fn new_operation(&self) -> OperationId {
        // 63 random bits: never 0, and nothing to conflict about.
        OperationId::new((self.rng.u64() >> 1).max(1))
    }

    /// An entry of the operation log that says that the user of this store did it.
    #[must_use]
    pub fn log_entry(&self, action: Action) -> OperationRecord {
        OperationRecord {
            actor: Actor::clone(&self.actor),
            action,
        }
    }

    /// Up to `limit` operations from before `before`, newest first.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn operations(
        &self,
        workspace: WorkspaceId,
        before: Option<OperationPosition>,
        limit: usize,
    ) -> Result<Vec<OperationInfo>, StoreError> {
        let mut range = keyspace::operation_log_all(workspace);
        if let Some(OperationPosition { time, id }) = before {
            range.end = keyspace::operation_log(workspace, time, id).into();
        }
        let mut operations = Vec::new();
        for (key, value) in self.newest(&range, limit).await? {
            let (time, id) = keyspace::decode_operation_log(&key).map_err(bad_key)?;
            let record =
                OperationRecord::decode(&value).map_err(damaged(&format!("operation {id}")))?;
            operations.push(OperationInfo { id, time, record });
        }
        Ok(operations)
    }

    /// An operation.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    pub async fn operation(
        &self,
        workspace: WorkspaceId,
        id: OperationId,
    ) -> Result<OperationInfo, StoreError> {
        let what = format!("operation {id}");
        let time = match self.read(&keyspace::operation(workspace, id), &what).await {
            Err(StoreError::NotFound { what }) => {
                return Err(match self.retention(workspace).await?.horizon {
                    Some(horizon) => StoreError::NotFound {
                        what: format!(
                            "{what}; those from before {} are gone, by the workspace's retention",
                            rfc3339(horizon)
                        ),
                    },
                    None => StoreError::NotFound { what },
                });
            }
            other => other?,
        };
        let time = keyspace::decode_time(&time).map_err(bad_key)?;
        let key = keyspace::operation_log(workspace, time, id);
        let record = OperationRecord::decode(&self.read(&key, &what).await?);
        Ok(OperationInfo {
            id,
            time,
            record: record.map_err(damaged(&what))?,
        })
    }

    /// Undoes an operation on a ref: the ref says again what it said before. That is an operation
    /// too, and can be undone.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Changed` if the ref was changed since; `Refused` if the operation cannot be
    /// undone or the ref is protected; or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not be undone.
    pub async fn undo(
        &self,
        workspace: WorkspaceId,
        id: OperationId,
    ) -> Result<OperationId, StoreError> {
        let operation = self.operation(workspace, id).await?;
        let change = match operation.record.action {
            Action::RefChanged { change, .. } => change,
            other => return Err(not_undone(id, &other)),
        };
        let horizon = self.retention(workspace).await?.horizon;
        if let Some(horizon) = horizon.filter(|horizon| operation.time < *horizon) {
            let why = format!(
                "operation {id} cannot be undone: it is older than what the workspace's retention \
                 keeps, which goes back to {}, and what it replaced may be gone",
                rfc3339(horizon)
            );
            return Err(StoreError::Refused { why });
        }
        let forward = match (&change.after, &change.before) {
            (Some(after), Some(before)) => {
                self.is_ancestor(workspace, after.commit, before.commit)
                    .await?
            }
            _ => false,
        };
        let change = &change;
        let undone = self
            .change_ref(workspace, &change.name, Cause::Undone(id), &|seen| {
                undone_state(seen, change, id, forward)
            })
            .await?;
        // Before and after differ, so there was something to change.
        undone.operation.ok_or_else(|| StoreError::Corrupt {
            what: format!("operation {id}"),
            why: "it changed nothing".into(),
        })
    }

    /// The last pairs of a range, the last first.
    pub(super) async fn newest(
        &self,
        range: &KeyRange,
        limit: usize,
    ) -> Result<Vec<(bytes::Bytes, bytes::Bytes)>, StoreError> {
        let limit = RangeLimit {
            reverse: true,
            ..RangeLimit::pairs(limit.clamp(1, PAGE))
        };
        self.pairs(range, limit).await
    }
}

/// What a ref says after a change of it was undone.
fn undone_state(
    seen: &RefSeen,
    change: &RefChange,
    id: OperationId,
    forward: bool,
) -> Result<Option<RefState>, StoreError> {
    let target = match (seen.state, change.before, change.after) {
        (now, before, after) if now == after => before,
        // It was protected since, or is not any more: that stays as it is.
        (Some(now), Some(before), Some(after))
            if before.protected == after.protected
                && RefState {
                    protected: after.protected,
                    ..now
                } == after =>
        {
            Some(RefState {
                protected: now.protected,
                ..before
            })
        }
        _ => {
            return Err(StoreError::Changed {
                what: format!("ref {:?} (since operation {id})", change.name.as_str()),
                now: seen.state.map(|state| state.commit),
            });
        }
    };
    is_kept(&change.name, seen.state, target, forward)?;
    Ok(target)
}

fn not_undone(id: OperationId, action: &Action) -> StoreError {
    let why = match action {
        Action::SessionOpened { session, .. } => {
            format!("it opened session {session}: close the session")
        }
        Action::SessionForked { session, .. } => {
            format!("it forked session {session}: close the session")
        }
        Action::SessionClosed {
            session,
            commit: Some(commit),
        } => format!(
            "it closed session {session}, and what was not committed is gone: open a session on \
             commit {commit}"
        ),
        Action::SessionClosed {
            session,
            commit: None,
        } => format!("it closed session {session}, and what was not committed is gone"),
        Action::SessionRestored {
            session,
            before: Some(before),
            ..
        } => format!("it restored session {session}: restore the session to commit {before}"),
        Action::SessionRestored {
            session,
            before: None,
            ..
        } => format!("it restored session {session}, and what was there before was not kept"),
        Action::RefChanged { .. } => "it is of a kind that can be undone".into(),
    };
    StoreError::Refused {
        why: format!("operation {id} cannot be undone: {why}"),
    }
}

pub(super) fn bad_key(error: KeyError) -> StoreError {
    StoreError::Corrupt {
        what: "log".into(),
        why: error.to_string(),
    }
}

/// Whether the operation log has this entry: then the transaction that was to write it has been
/// committed. If not, one that still may be conflicts with this one, which writes it.
pub(crate) async fn is_logged(
    txn: &dyn Transaction,
    workspace: WorkspaceId,
    id: OperationId,
) -> Result<bool, StoreError> {
    let key = keyspace::operation(workspace, id);
    Ok(txn.get(&key, Isolation::Serializable).await?.is_some())
}

/// Writes an entry of the operation log. Of several attempts to write the same one, one takes effect.
pub(crate) fn write_operation(
    txn: &mut dyn Transaction,
    workspace: WorkspaceId,
    id: OperationId,
    time: Timestamp,
    record: &OperationRecord,
) {
    let key = keyspace::operation_log(workspace, time, id);
    txn.set(&key, &record.encode());
    let time = keyspace::encode_time(time);
    let key = keyspace::operation(workspace, id);
    // `id` is fresh: nobody conflicts but an attempt of the same that comes late.
    txn.add_read_conflict_range(&KeyRange::key(&key));
    txn.set(&key, &time);
}
