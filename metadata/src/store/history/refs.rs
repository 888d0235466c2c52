//! Refs: reading them now and as of a time, and changing them by comparing.

use base::{CommitId, OperationId, Timestamp, WorkspaceId};

use super::super::deletion::require_workspace;
use super::super::{Store, StoreError, damaged};
use super::PAGE;
use super::commits::{NewCommit, require_commit, write_commit};
use super::operations::{bad_key, is_logged, write_operation};
use crate::keyspace;
use crate::kv::{Isolation, KeyRange, RangeLimit, Transaction};
use crate::record::operation::{Action, Actor, Cause, OperationRecord};
use crate::record::reference::{RefChange, RefKind, RefLogRecord, RefName, RefRecord, RefState};
use crate::transact::Earlier;
use crate::tree::Root;
use crate::version::rfc3339;

/// A ref.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefInfo {
    /// Its name.
    pub name: RefName,
    /// What it says.
    pub record: RefRecord,
}

/// An entry of a ref's own log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefLogEntry {
    /// Since when.
    pub time: Timestamp,
    /// The operation that made it so.
    pub operation: OperationId,
    /// What the ref said from then on; `None` if there was no such ref.
    pub state: Option<RefState>,
}

/// What a transaction that changes a ref has written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefWritten {
    /// The operation; `None` if the ref said that already.
    pub operation: Option<OperationId>,
    /// What the ref says, if it is there and was changed.
    pub record: Option<RefRecord>,
}

/// A ref, as a transaction that changes it sees it.
#[derive(Debug)]
pub(super) struct RefSeen {
    /// What it says.
    pub(super) state: Option<RefState>,
    /// The last entry of its log.
    last: Option<(Timestamp, RefLogRecord)>,
}

/// What a ref is to say, by what it says.
pub(super) type Decide<'a> =
    &'a (dyn Fn(&RefSeen) -> Result<Option<RefState>, StoreError> + Send + Sync + 'a);

/// A change of a ref that is asked for.
#[derive(Clone, Copy, Debug)]
struct Wanted<'a> {
    workspace: WorkspaceId,
    name: &'a RefName,
    cause: Cause,
    operation: OperationId,
    actor: &'a Actor,
    now: Timestamp,
}

impl Store {
    /// A ref.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    pub async fn reference(
        &self,
        workspace: WorkspaceId,
        name: &RefName,
    ) -> Result<RefInfo, StoreError> {
        let what = what(name);
        let key = keyspace::reference(workspace, name.as_str());
        let record = RefRecord::decode(&self.read(&key, &what).await?).map_err(damaged(&what))?;
        Ok(RefInfo {
            name: name.clone(),
            record,
        })
    }

    /// Up to `limit` refs after `after`, by name.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn refs(
        &self,
        workspace: WorkspaceId,
        after: Option<&RefName>,
        limit: usize,
    ) -> Result<Vec<RefInfo>, StoreError> {
        let mut range = keyspace::references(workspace);
        if let Some(name) = after {
            range.start = KeyRange::key(&keyspace::reference(workspace, name.as_str())).end;
        }
        let limit = RangeLimit::pairs(limit.clamp(1, PAGE));
        let pairs = self.pairs(&range, limit).await?;
        let mut refs = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            let (_, name) = keyspace::decode_reference(&key).map_err(bad_key)?;
            let name = RefName::new(&name).map_err(|error| StoreError::Corrupt {
                what: format!("ref {name:?}"),
                why: error.to_string(),
            })?;
            let record = RefRecord::decode(&value).map_err(damaged(&what(&name)))?;
            refs.push(RefInfo { name, record });
        }
        Ok(refs)
    }

    /// What a ref said at a time.
    ///
    /// # Errors
    ///
    /// `NotFound` if there was no such ref then; or the store fails.
    pub async fn reference_at(
        &self,
        workspace: WorkspaceId,
        name: &RefName,
        time: Timestamp,
    ) -> Result<RefState, StoreError> {
        let hash = keyspace::ref_name_hash(name.as_str());
        let range = keyspace::ref_log_until(workspace, &hash, time);
        let at = rfc3339(time);
        let what = |why: String| StoreError::NotFound {
            what: format!("ref {:?} at {at}: {why}", name.as_str()),
        };
        let Some((key, value)) = self.newest(&range, 1).await?.pop() else {
            let first = self.first_of_ref(workspace, &hash).await?;
            let horizon = self.retention(workspace).await?.horizon;
            if let Some(horizon) = horizon.filter(|horizon| time < *horizon) {
                return Err(what(format!(
                    "the workspace's retention keeps what refs were since {} only",
                    rfc3339(horizon)
                )));
            }
            return Err(what(match first {
                Some(first) => format!("it was first made at {}", rfc3339(first)),
                None => "there never was one".into(),
            }));
        };
        let entry = decode_entry(&key, &value)?;
        entry
            .state
            .ok_or_else(|| what(format!("it was deleted at {}", rfc3339(entry.time))))
    }

    /// When a ref was made for the first time.
    async fn first_of_ref(
        &self,
        workspace: WorkspaceId,
        hash: &[u8; 16],
    ) -> Result<Option<Timestamp>, StoreError> {
        let range = keyspace::ref_log_all(workspace, hash);
        let pairs = self.pairs(&range, RangeLimit::pairs(1)).await?;
        let first = pairs.first();
        first
            .map(|(key, _)| keyspace::decode_ref_log(key).map_err(bad_key))
            .transpose()
    }

    /// Up to `limit` entries of a ref's log from before `before`, newest first. Refs that are gone
    /// have theirs too.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn reference_log(
        &self,
        workspace: WorkspaceId,
        name: &RefName,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<RefLogEntry>, StoreError> {
        let hash = keyspace::ref_name_hash(name.as_str());
        let mut range = keyspace::ref_log_all(workspace, &hash);
        if let Some(time) = before {
            range.end = keyspace::ref_log(workspace, &hash, time).into();
        }
        let entries = self.newest(&range, limit).await?;
        entries
            .iter()
            .map(|(key, value)| decode_entry(key, value))
            .collect()
    }

    /// Makes a ref.
    ///
    /// # Errors
    ///
    /// `Exists`, `NotFound` for its commit, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not exist afterwards.
    pub async fn create_ref(
        &self,
        workspace: WorkspaceId,
        name: &RefName,
        state: RefState,
        cause: Cause,
    ) -> Result<OperationId, StoreError> {
        let made = self
            .change_ref(workspace, name, cause, &|seen| match seen.state {
                Some(_) => Err(StoreError::Exists { what: what(name) }),
                None => Ok(Some(state)),
            })
            .await?;
        // There was none and now is one: a change.
        made.operation
            .ok_or_else(|| StoreError::Exists { what: what(name) })
    }

    /// Moves a branch that is at `from` to `to`. A protected one moves to descendants only.
    /// Returns the operation; `None` if `from` is `to`.
    ///
    /// # Errors
    ///
    /// `NotFound` for the ref or `to`; `Changed`, with where it is, if it is not at `from`;
    /// `Refused` for a tag or a protected branch; or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not have moved.
    pub async fn move_ref(
        &self,
        workspace: WorkspaceId,
        name: &RefName,
        from: CommitId,
        to: CommitId,
        cause: Cause,
    ) -> Result<Option<OperationId>, StoreError> {
        // Whatever the ref does meanwhile: history does not change.
        let forward = match self.is_ancestor(workspace, from, to).await {
            Ok(forward) => forward,
            // The transaction says what is missing, or that the ref is elsewhere.
            Err(StoreError::NotFound { .. }) => false,
            Err(error) => return Err(error),
        };
        let written = self
            .change_ref(workspace, name, cause, &|seen| {
                move_to(seen, name, (from, to), forward)
            })
            .await?;
        Ok(written.operation)
    }

    /// Stores a merge, whose first parent is `from`, and moves a branch that is at `from` to it: both or
    /// neither. Returns the commit and the operation.
    ///
    /// The caller holds the chunk store as for [`Store::put_commit`].
    ///
    /// # Errors
    ///
    /// As [`Store::put_commit`] and [`Store::move_ref`]; `Invalid` if `from` is not the first parent.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not have been done.
    pub async fn move_ref_to_merge(
        &self,
        workspace: WorkspaceId,
        name: &RefName,
        from: CommitId,
        new: NewCommit,
        cause: Cause,
    ) -> Result<(CommitId, Option<OperationId>), StoreError> {
        if new.parents.first() != Some(&from) {
            let why = "a branch moves to a merge of what it has".to_owned();
            return Err(StoreError::Invalid { why });
        }
        let (wanted, new) = (self.wanted(workspace, name, cause), &new);
        let root = Root::named(&new.tree);
        self.copying(workspace, root);
        let (merged, written) = self
            .effect(|txn, earlier| {
                Box::pin(async move {
                    self.tell_in(txn, workspace, root).await?;
                    let merged = write_commit(txn, workspace, new, wanted.now).await?.id;
                    let decide = |seen: &RefSeen| move_to(seen, name, (from, merged), true);
                    let moved = wanted.write(txn, earlier, &decide).await?;
                    Ok((merged, moved))
                })
            })
            .await?;
        Ok((merged, written.operation))
    }

    /// Removes a ref that is at `from`. Its log stays.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Changed`, with where it is, if it is not at `from`; `Refused` if it is
    /// protected; or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not exist afterwards.
    pub async fn delete_ref(
        &self,
        workspace: WorkspaceId,
        name: &RefName,
        from: CommitId,
    ) -> Result<OperationId, StoreError> {
        let removed = self
            .change_ref(workspace, name, Cause::Asked, &|seen| {
                let state = require_at(seen, name, from)?;
                is_kept(name, Some(state), None, false)?;
                Ok(None)
            })
            .await?;
        // There was one and now is none: a change.
        removed
            .operation
            .ok_or_else(|| StoreError::NotFound { what: what(name) })
    }

    /// Protects a ref: it cannot be removed, and moves to descendants of its commit only. Returns
    /// the operation; `None` if it was protected already.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not be protected afterwards.
    pub async fn protect_ref(
        &self,
        workspace: WorkspaceId,
        name: &RefName,
    ) -> Result<Option<OperationId>, StoreError> {
        self.set_protected(workspace, name, true).await
    }

    /// Takes a ref's protection away. Returns the operation; `None` if it had none.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not be protected afterwards.
    pub async fn unprotect_ref(
        &self,
        workspace: WorkspaceId,
        name: &RefName,
    ) -> Result<Option<OperationId>, StoreError> {
        self.set_protected(workspace, name, false).await
    }

    async fn set_protected(
        &self,
        workspace: WorkspaceId,
        name: &RefName,
        protected: bool,
    ) -> Result<Option<OperationId>, StoreError> {
        let written = self
            .change_ref(workspace, name, Cause::Asked, &|seen| {
                Ok(Some(RefState {
                    protected,
                    ..require(seen, name)?
                }))
            })
            .await?;
        Ok(written.operation)
    }

    fn wanted<'a>(&'a self, workspace: WorkspaceId, name: &'a RefName, cause: Cause) -> Wanted<'a> {
        Wanted {
            workspace,
            name,
            cause,
            operation: self.new_operation(),
            actor: &self.actor,
            now: self.clock.wall(),
        }
    }

    /// Changes a ref as `decide` says, and logs it. Returns the operation; `None` if it says that
    /// already.
    pub(super) async fn change_ref(
        &self,
        workspace: WorkspaceId,
        name: &RefName,
        cause: Cause,
        decide: Decide<'_>,
    ) -> Result<RefWritten, StoreError> {
        let wanted = self.wanted(workspace, name, cause);
        self.effect(|txn, earlier| {
            Box::pin(async move { wanted.write(txn, earlier, decide).await })
        })
        .await
    }
}

impl Wanted<'_> {
    /// The body of a transaction that changes a ref.
    ///
    /// If an attempt before was committed, its operation is there. If not, but still may be: it
    /// read the ref and the end of its log, and so does this one. Either that is as it was, and this
    /// one writes it and the other conflicts; or it has changed, and the other conflicts with that
    /// even if this one refuses and writes nothing.
    async fn write(
        self,
        txn: &mut dyn Transaction,
        earlier: Earlier,
        decide: Decide<'_>,
    ) -> Result<RefWritten, StoreError> {
        let Self {
            workspace,
            name,
            operation,
            ..
        } = self;
        if earlier == Earlier::Unknown && is_logged(txn, workspace, operation).await? {
            return Ok(RefWritten {
                operation: Some(operation),
                record: None,
            });
        }
        let seen = self.look(txn).await?;
        let (before, after) = (seen.state, decide(&seen)?);
        if before == after {
            return Ok(RefWritten::default());
        }
        require_workspace(txn, workspace).await?;
        if let Some(after) = after
            && before.is_none_or(|before| before.commit != after.commit)
        {
            require_commit(txn, workspace, after.commit).await?;
        }
        // Later than all before, whatever the clock says: the log is in the order of changes.
        let time = match &seen.last {
            Some((last, _)) => self.now.max(last.tick()),
            None => self.now,
        };
        if seen.last.as_ref().is_some_and(|(last, _)| time <= *last) {
            return Err(StoreError::Corrupt {
                what: what(name),
                why: "the last time in its log is the last there is".into(),
            });
        }
        let key = keyspace::reference(workspace, name.as_str());
        let updated = time;
        let record = after.map(|state| RefRecord { state, updated });
        match &record {
            Some(record) => txn.set(&key, &record.encode()),
            None => txn.clear(&key),
        }
        let entry = RefLogRecord {
            name: name.clone(),
            operation,
            state: after,
        };
        let hash = keyspace::ref_name_hash(name.as_str());
        txn.set(&keyspace::ref_log(workspace, &hash, time), &entry.encode());
        let logged = OperationRecord {
            actor: self.actor.clone(),
            action: Action::RefChanged {
                change: RefChange {
                    name: name.clone(),
                    before,
                    after,
                },
                cause: self.cause,
            },
        };
        write_operation(txn, workspace, operation, time, &logged);
        Ok(RefWritten {
            operation: Some(operation),
            record,
        })
    }

    /// Reads the ref and the end of its log, so that any change of it conflicts.
    async fn look(&self, txn: &dyn Transaction) -> Result<RefSeen, StoreError> {
        let key = keyspace::reference(self.workspace, self.name.as_str());
        let record = match txn.get(&key, Isolation::Serializable).await? {
            Some(found) => Some(RefRecord::decode(&found).map_err(damaged(&what(self.name)))?),
            None => None,
        };
        let hash = keyspace::ref_name_hash(self.name.as_str());
        let limit = RangeLimit {
            reverse: true,
            ..RangeLimit::pairs(1)
        };
        let page = txn
            .get_range(
                &keyspace::ref_log_all(self.workspace, &hash),
                limit,
                Isolation::Serializable,
            )
            .await?;
        let last = match page.pairs.first() {
            Some((key, value)) => {
                let entry = RefLogRecord::decode(value).map_err(damaged("log of a ref"))?;
                Some((keyspace::decode_ref_log(key).map_err(bad_key)?, entry))
            }
            None => None,
        };
        Ok(RefSeen {
            state: record.map(|record| record.state),
            last,
        })
    }
}

/// Refuses what a protected ref does not do.
pub(super) fn is_kept(
    name: &RefName,
    before: Option<RefState>,
    after: Option<RefState>,
    forward: bool,
) -> Result<(), StoreError> {
    let why = match (before, after) {
        (Some(before), None) if before.protected => "it cannot be deleted",
        (Some(before), Some(after))
            if before.protected && before.commit != after.commit && !forward =>
        {
            "it moves to descendants of its commit only"
        }
        _ => return Ok(()),
    };
    Err(StoreError::Refused {
        why: format!(
            "ref {:?} is protected: {why}; take its protection away first",
            name.as_str()
        ),
    })
}

fn what(name: &RefName) -> String {
    format!("ref {:?}", name.as_str())
}

fn require(seen: &RefSeen, name: &RefName) -> Result<RefState, StoreError> {
    seen.state
        .ok_or_else(|| StoreError::NotFound { what: what(name) })
}

fn require_at(seen: &RefSeen, name: &RefName, from: CommitId) -> Result<RefState, StoreError> {
    let state = require(seen, name)?;
    if state.commit == from {
        Ok(state)
    } else {
        Err(StoreError::Changed {
            what: what(name),
            now: Some(state.commit),
        })
    }
}

/// A branch that is at `from`, moved; `forward` says that `to` comes from that.
fn move_to(
    seen: &RefSeen,
    name: &RefName,
    (from, to): (CommitId, CommitId),
    forward: bool,
) -> Result<Option<RefState>, StoreError> {
    let state = require_at(seen, name, from)?;
    let after = Some(RefState {
        commit: to,
        ..state
    });
    if state.kind == RefKind::Tag && from != to {
        let why = format!(
            "tag {:?} stays where it is: delete it and make it anew",
            name.as_str()
        );
        return Err(StoreError::Refused { why });
    }
    is_kept(name, Some(state), after, forward)?;
    Ok(after)
}

fn decode_entry(key: &[u8], value: &[u8]) -> Result<RefLogEntry, StoreError> {
    let time = keyspace::decode_ref_log(key).map_err(bad_key)?;
    let record = RefLogRecord::decode(value).map_err(damaged("log of a ref"))?;
    Ok(RefLogEntry {
        time,
        operation: record.operation,
        state: record.state,
    })
}
