//! What a workspace keeps of its history, and removing the rest:
//! `docs/design/0009-retention.md` has the rules.

use std::collections::{HashMap, HashSet};

use base::{CommitId, OperationId, SessionId, TenantId, Timestamp, WorkspaceId};
use bytes::Bytes;

use super::super::deletion::require_workspace;
use super::super::{Store, StoreError, damaged};
use super::operations::bad_key;
use crate::keyspace::{self, Key, KeyError};
use crate::kv::{Isolation, KeyRange, RangeLimit, Transaction, pairs_of};
use crate::record::commit::CommitRecord;
use crate::record::operation::{Action, OperationRecord};
use crate::record::reference::{RefLogRecord, RefRecord, RefState};
use crate::record::retention::{Policy, RetentionRecord};
use crate::record::session::SessionRecord;
use crate::record::workspace::WorkspaceRecord;
use crate::transact::Budget;

/// Keys read at a time.
const PAGE: usize = 1000;

/// Most keys of logs that a transaction removes.
const REMOVED_MAX: usize = 200;

/// Most commits that a transaction removes: each reads all that names commits.
const COMMITS_REMOVED_MAX: usize = 1000;

/// Entries of the operation log may come to be this much later than their time says, in seconds:
/// that is taken before their transaction, and by another process's clock.
const LATE_SECONDS: u64 = 30 * 60;

/// What a policy lets go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The workspace.
    pub workspace: WorkspaceId,
    /// Commits, the newest first.
    commits: Vec<CommitId>,
    /// The same.
    going: HashSet<CommitId>,
    /// So many of the first are removed.
    gone: usize,
    /// Those that are not let go.
    pub kept: u64,
    /// By which policy.
    policy: Option<Policy>,
    /// The last commit on an old one, before anything was read.
    grown: Option<Bytes>,
    /// Entries of logs from before may go.
    cutoff: Timestamp,
    /// Entries of the operation log from before were there to be read.
    logged: Timestamp,
}

impl Expired {
    /// The commits that are still to be removed, the newest first.
    #[must_use]
    pub fn commits(&self) -> &[CommitId] {
        self.commits.get(self.gone..).unwrap_or_default()
    }
}

/// What was removed of logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogsRemoved {
    /// Entries of the operation log.
    pub operations: u64,
    /// Entries of refs' own logs.
    pub ref_entries: u64,
}

/// A commit as far as it matters here.
#[derive(Debug)]
struct Known {
    time: Timestamp,
    parents: Vec<CommitId>,
}

impl Store {
    /// What a workspace keeps, and from when on its logs have everything.
    ///
    /// # Errors
    ///
    /// The store fails or the record is damaged.
    pub async fn retention(&self, workspace: WorkspaceId) -> Result<RetentionRecord, StoreError> {
        match self
            .read(&keyspace::retention(workspace), "retention")
            .await
        {
            Ok(value) => RetentionRecord::decode(&value).map_err(damaged("retention")),
            Err(StoreError::NotFound { .. }) => Ok(RetentionRecord::default()),
            Err(error) => Err(error),
        }
    }

    /// Sets what a workspace keeps; everything without a policy.
    ///
    /// # Errors
    ///
    /// `NotFound` for the workspace, `Invalid` for the policy, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not have been set.
    pub async fn set_retention(
        &self,
        workspace: WorkspaceId,
        policy: Option<Policy>,
    ) -> Result<RetentionRecord, StoreError> {
        if let Some(policy) = policy {
            policy.check().map_err(|error| StoreError::Invalid {
                why: error.to_string(),
            })?;
        }
        self.effect(|txn, _| {
            // Sets a state, in the order of those who set it at the same time.
            Box::pin(async move {
                require_workspace(txn, workspace).await?;
                let found = retention_of(txn, workspace).await?;
                let record = RetentionRecord { policy, ..found };
                txn.set(&keyspace::retention(workspace), &record.encode());
                Ok(record)
            })
        })
        .await
    }

    /// The workspaces that have a policy.
    ///
    /// # Errors
    ///
    /// The store fails or a record is damaged.
    pub async fn workspaces_with_policy(&self) -> Result<Vec<WorkspaceId>, StoreError> {
        let mut workspaces = Vec::new();
        let mut scan = Pages::new(keyspace::all_retention());
        while let Some(page) = scan.next(self).await? {
            for (key, value) in page {
                let Key::Retention(id) = keyspace::decode(&key).map_err(bad_key)? else {
                    return Err(bad_key(KeyError::WrongTable));
                };
                let record = RetentionRecord::decode(&value).map_err(damaged("retention"))?;
                workspaces.extend(record.policy.map(|_| id));
            }
        }
        Ok(workspaces)
    }

    /// What a workspace's policy lets go now. Reads all its commits.
    ///
    /// # Errors
    ///
    /// The store fails, or a record is damaged; nothing may then be removed.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn expired(&self, workspace: WorkspaceId) -> Result<Expired, StoreError> {
        let policy = self.retention(workspace).await?.policy;
        let mut expired = Expired {
            workspace,
            commits: Vec::new(),
            going: HashSet::new(),
            gone: 0,
            kept: 0,
            policy,
            grown: None,
            cutoff: Timestamp::EPOCH,
            logged: Timestamp::EPOCH,
        };
        let Some(policy) = policy else {
            return Ok(expired);
        };
        expired.grown = match self.read(&keyspace::grown(workspace), "last commit").await {
            Ok(grown) => Some(grown),
            Err(StoreError::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let now = self.clock.wall();
        let seconds = now.seconds().saturating_sub(policy.keep_seconds);
        expired.cutoff = Timestamp::new(seconds, now.nanos());
        expired.logged = Timestamp::new(now.seconds().saturating_sub(LATE_SECONDS), now.nanos());
        let commits = self.commits_with_parents(workspace).await?;
        let mut roots = self.named(workspace).await?;
        roots.extend(self.named_by_logs(workspace, expired.cutoff).await?);
        let mut by_time: Vec<_> = commits.iter().map(|(id, at)| (at.time, *id)).collect();
        by_time.sort_unstable_by(|one, other| other.cmp(one));
        let last = usize::try_from(policy.keep_last).unwrap_or(usize::MAX);
        let young = |(at, (time, _)): &(usize, &(Timestamp, CommitId))| {
            *at < last || *time >= expired.cutoff
        };
        roots.extend(
            by_time
                .iter()
                .enumerate()
                .filter(young)
                .map(|(_, (_, id))| *id),
        );
        let needed = with_ancestors(&commits, roots);
        let unneeded = by_time.iter().map(|(_, id)| *id);
        expired.commits = unneeded.filter(|id| !needed.contains(id)).collect();
        expired.going = expired.commits.iter().copied().collect();
        expired.kept = u64::try_from(needed.len()).unwrap_or(u64::MAX);
        Ok(expired)
    }

    /// Removes some of the commits that a policy lets go, from the newest on. `None` if something has
    /// changed that they may be needed for: look anew.
    ///
    /// # Errors
    ///
    /// The store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: they may or may not have been removed.
    pub async fn remove_expired(&self, expired: &mut Expired) -> Result<Option<u64>, StoreError> {
        let workspace = expired.workspace;
        let left = expired.commits();
        let batch = left.get(..COMMITS_REMOVED_MAX).unwrap_or(left);
        if batch.is_empty() {
            return Ok(Some(0));
        }
        let (going, logged) = (&expired.going, expired.logged);
        let (policy, grown) = (expired.policy, &expired.grown);
        let is_removed = self
            .transactor
            .transact(Budget::default(), |txn, _| {
                // Right however often it is applied: what is gone stays so.
                Box::pin(async move {
                    require_workspace(txn, workspace).await?;
                    if retention_of(txn, workspace).await?.policy != policy {
                        return Ok(false);
                    }
                    let key = keyspace::grown(workspace);
                    if txn.get(&key, Isolation::Serializable).await? != *grown {
                        return Ok(false);
                    }
                    let mut named = named_in(txn, workspace, Isolation::Serializable).await?;
                    let log = KeyRange {
                        start: keyspace::operation_log(workspace, logged, OperationId::new(0))
                            .into(),
                        end: keyspace::operation_log_all(workspace).end,
                    };
                    for (_, value) in all_of(txn, log, Isolation::Serializable).await? {
                        let entry =
                            OperationRecord::decode(&value).map_err(damaged("operation"))?;
                        named.extend(commits_of(&entry.action));
                    }
                    if named.iter().any(|id| going.contains(id)) {
                        return Ok(false);
                    }
                    for id in batch {
                        txn.clear(&keyspace::commit(workspace, *id));
                    }
                    Ok::<bool, StoreError>(true)
                })
            })
            .await?;
        if !is_removed {
            return Ok(None);
        }
        let count = batch.len();
        expired.gone += count;
        Ok(Some(u64::try_from(count).unwrap_or(u64::MAX)))
    }

    /// Removes the entries of logs that are older than the policy keeps, until the workspace has
    /// another policy.
    ///
    /// # Errors
    ///
    /// The store fails, or a record is damaged.
    ///
    /// # Cancellation
    ///
    /// Safe: calling again goes on.
    pub async fn remove_old_entries(&self, expired: &Expired) -> Result<LogsRemoved, StoreError> {
        let mut removed = LogsRemoved::default();
        if expired.policy.is_some() && self.remove_entries_of_refs(expired, &mut removed).await? {
            self.remove_old_operations(expired, &mut removed).await?;
        }
        Ok(removed)
    }

    /// Removes entries of refs' own logs. `false` if the workspace has another policy now.
    async fn remove_entries_of_refs(
        &self,
        expired: &Expired,
        removed: &mut LogsRemoved,
    ) -> Result<bool, StoreError> {
        let (workspace, cutoff) = (expired.workspace, expired.cutoff);
        let count = &mut removed.ref_entries;
        let mut superseded = Vec::new();
        let mut last: Option<(Bytes, [u8; 16], Option<RefState>)> = None;
        let mut scan = Pages::new(keyspace::ref_logs(workspace));
        while let Some(page) = scan.next(self).await? {
            for (key, value) in page {
                let (hash, time, said) = entry_of_log(&key, &value)?;
                let is_old = time <= cutoff;
                match last.take() {
                    // What it says was over before the time that is kept, or is that there was none.
                    Some((old, of, state)) if (of == hash && is_old) || state.is_none() => {
                        superseded.push(old);
                    }
                    _ => {}
                }
                last = is_old.then_some((key, hash, said));
                let keys = &mut superseded;
                if !self
                    .remove_when_many(expired, keys, REMOVED_MAX, count)
                    .await?
                {
                    return Ok(false);
                }
            }
        }
        superseded.extend(
            last.filter(|(.., state)| state.is_none())
                .map(|(old, ..)| old),
        );
        self.remove_when_many(expired, &mut superseded, 1, count)
            .await
    }

    /// Removes what is old of the operation log, but for what the logs of refs still lead to, until
    /// the workspace has another policy.
    async fn remove_old_operations(
        &self,
        expired: &Expired,
        removed: &mut LogsRemoved,
    ) -> Result<(), StoreError> {
        let (workspace, cutoff) = (expired.workspace, expired.cutoff);
        let (mut old, mut keys) = (Vec::new(), 0);
        let mut scan = Pages::new(KeyRange {
            start: keyspace::operation_log_all(workspace).start,
            end: keyspace::operation_log(workspace, cutoff, OperationId::new(0)).into(),
        });
        while let Some(page) = scan.next(self).await? {
            for (key, value) in page {
                let (time, id) = keyspace::decode_operation_log(&key).map_err(bad_key)?;
                let record = OperationRecord::decode(&value).map_err(damaged("operation"))?;
                if let Action::RefChanged { change, .. } = record.action {
                    let hash = keyspace::ref_name_hash(change.name.as_str());
                    let entry = keyspace::ref_log(workspace, &hash, time);
                    match self.read(&entry, "log of a ref").await {
                        Ok(_) => continue,
                        Err(StoreError::NotFound { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                old.push(key);
                old.push(keyspace::operation(workspace, id).into());
                let going = self.remove_when_many(expired, &mut old, REMOVED_MAX, &mut keys);
                if !going.await? {
                    removed.operations = keys / 2;
                    return Ok(());
                }
            }
        }
        self.remove_when_many(expired, &mut old, 1, &mut keys)
            .await?;
        removed.operations = keys / 2;
        Ok(())
    }

    /// Removes keys of logs if there are at least `least` of them, and counts them. `false` if the
    /// workspace has another policy than the one that lets them go: nothing is removed then.
    async fn remove_when_many(
        &self,
        expired: &Expired,
        keys: &mut Vec<Bytes>,
        least: usize,
        count: &mut u64,
    ) -> Result<bool, StoreError> {
        if keys.len() < least {
            return Ok(true);
        }
        let (workspace, cutoff, policy) = (expired.workspace, expired.cutoff, expired.policy);
        let batch: &[Bytes] = keys;
        let is_removed = self
            .transactor
            .transact(Budget::default(), |txn, _| {
                // Right however often it is applied: what is gone stays so.
                Box::pin(async move {
                    require_workspace(txn, workspace).await?;
                    let mut record = retention_of(txn, workspace).await?;
                    if record.policy != policy {
                        return Ok(false);
                    }
                    let horizon = record.horizon.unwrap_or_default().max(cutoff);
                    if record.horizon != Some(horizon) {
                        record.horizon = Some(horizon);
                        txn.set(&keyspace::retention(workspace), &record.encode());
                    }
                    for key in batch {
                        txn.clear(key);
                    }
                    Ok::<bool, StoreError>(true)
                })
            })
            .await?;
        if is_removed {
            *count += u64::try_from(keys.len()).unwrap_or(u64::MAX);
            keys.clear();
        }
        Ok(is_removed)
    }

    async fn commits_with_parents(
        &self,
        workspace: WorkspaceId,
    ) -> Result<HashMap<CommitId, Known>, StoreError> {
        let mut commits = HashMap::new();
        let mut scan = Pages::new(keyspace::commits_of(workspace));
        while let Some(page) = scan.next(self).await? {
            for (key, value) in page {
                let Key::Commit(_, id) = keyspace::decode(&key).map_err(bad_key)? else {
                    return Err(bad_key(KeyError::WrongTable));
                };
                let what = format!("commit {id}");
                let record = CommitRecord::decode(&value).map_err(damaged(&what))?;
                let known = Known {
                    time: record.time,
                    parents: record.parents,
                };
                commits.insert(id, known);
            }
        }
        Ok(commits)
    }

    /// What refs, pins and sessions name.
    async fn named(&self, workspace: WorkspaceId) -> Result<HashSet<CommitId>, StoreError> {
        // Looked at again in the transaction that removes something.
        self.look(|txn| Box::pin(named_in(txn, workspace, Isolation::Snapshot)))
            .await
    }

    /// What logs name from `cutoff` on: also what refs said when that was.
    async fn named_by_logs(
        &self,
        workspace: WorkspaceId,
        cutoff: Timestamp,
    ) -> Result<HashSet<CommitId>, StoreError> {
        let mut named = HashSet::new();
        let mut scan = Pages::new(KeyRange {
            start: keyspace::operation_log(workspace, cutoff, OperationId::new(0)).into(),
            end: keyspace::operation_log_all(workspace).end,
        });
        while let Some(page) = scan.next(self).await? {
            for (_, value) in page {
                let record = OperationRecord::decode(&value).map_err(damaged("operation"))?;
                named.extend(commits_of(&record.action));
            }
        }
        let mut last: Option<([u8; 16], Option<CommitId>)> = None;
        let mut scan = Pages::new(keyspace::ref_logs(workspace));
        while let Some(page) = scan.next(self).await? {
            for (key, value) in page {
                let (hash, time, said) = entry_of_log(&key, &value)?;
                let commit = said.map(|state| state.commit);
                if let Some((of, commit)) = last.take()
                    && (of != hash || time > cutoff)
                {
                    named.extend(commit);
                }
                if time <= cutoff {
                    last = Some((hash, commit));
                } else {
                    named.extend(commit);
                }
            }
        }
        named.extend(last.and_then(|(_, commit)| commit));
        Ok(named)
    }
}

/// The name, the time and what is said in an entry of a log of a ref.
fn entry_of_log(
    key: &[u8],
    value: &[u8],
) -> Result<([u8; 16], Timestamp, Option<RefState>), StoreError> {
    let Key::RefLog(_, hash, time) = keyspace::decode(key).map_err(bad_key)? else {
        return Err(bad_key(KeyError::WrongTable));
    };
    let entry = RefLogRecord::decode(value).map_err(damaged("log of a ref"))?;
    Ok((hash, time, entry.state))
}

/// Reads a range page by page, each in a transaction of its own.
#[derive(Debug)]
struct Pages(Option<KeyRange>);

impl Pages {
    fn new(range: KeyRange) -> Self {
        Self(Some(range))
    }

    async fn next(&mut self, store: &Store) -> Result<Option<Vec<(Bytes, Bytes)>>, StoreError> {
        let Some(range) = self.0.take() else {
            return Ok(None);
        };
        let page = store.page(&range, RangeLimit::pairs(PAGE)).await?;
        if let Some((last, _)) = page.pairs.last().filter(|_| page.more) {
            self.0 = Some(KeyRange {
                start: KeyRange::key(last).end,
                end: range.end,
            });
        }
        Ok(Some(page.pairs))
    }
}

async fn retention_of(
    txn: &dyn Transaction,
    workspace: WorkspaceId,
) -> Result<RetentionRecord, StoreError> {
    let key = keyspace::retention(workspace);
    match txn.get(&key, Isolation::Serializable).await? {
        Some(found) => RetentionRecord::decode(&found).map_err(damaged("retention")),
        None => Ok(RetentionRecord::default()),
    }
}

/// All pairs of a range, as of one version.
async fn all_of(
    txn: &dyn Transaction,
    range: KeyRange,
    isolation: Isolation,
) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
    let limit = RangeLimit::pairs(usize::MAX);
    Ok(pairs_of(txn, range, limit, isolation).await?)
}

/// What refs, pins and sessions name, as of one version.
async fn named_in(
    txn: &dyn Transaction,
    workspace: WorkspaceId,
    isolation: Isolation,
) -> Result<HashSet<CommitId>, StoreError> {
    let mut named = HashSet::new();
    for (_, value) in all_of(txn, keyspace::references(workspace), isolation).await? {
        let record = RefRecord::decode(&value).map_err(damaged("ref"))?;
        named.insert(record.state.commit);
    }
    for (key, _) in all_of(txn, keyspace::pins(workspace), isolation).await? {
        match keyspace::decode(&key).map_err(bad_key)? {
            Key::Pin(_, id) => named.insert(id),
            _ => return Err(bad_key(KeyError::WrongTable)),
        };
    }
    let Some(tenant) = tenant_of(txn, workspace, isolation).await? else {
        return Ok(named);
    };
    let sessions = keyspace::sessions_of_workspace(tenant, workspace);
    for (key, _) in all_of(txn, sessions, isolation).await? {
        let (_, _, id) = keyspace::decode_session_of(&key).map_err(bad_key)?;
        named.extend(commit_of_session(txn, id, isolation).await?);
    }
    Ok(named)
}

async fn tenant_of(
    txn: &dyn Transaction,
    workspace: WorkspaceId,
    isolation: Isolation,
) -> Result<Option<TenantId>, StoreError> {
    let key = keyspace::workspace(workspace);
    let found = txn.get(&key, isolation).await?;
    let record = found.map(|found| WorkspaceRecord::decode(&found).map_err(damaged("workspace")));
    Ok(record.transpose()?.map(|record| record.tenant))
}

async fn commit_of_session(
    txn: &dyn Transaction,
    id: SessionId,
    isolation: Isolation,
) -> Result<Option<CommitId>, StoreError> {
    let found = txn.get(&keyspace::session_meta(id), isolation).await?;
    let what = format!("session {id}");
    let record = found.map(|found| SessionRecord::decode(&found).map_err(damaged(&what)));
    Ok(record.transpose()?.and_then(|record| record.commit))
}

/// The commits that an operation names, before and after.
pub(crate) fn commits_of(action: &Action) -> Vec<CommitId> {
    let named = match action {
        Action::SessionOpened { commit, .. }
        | Action::SessionForked { commit, .. }
        | Action::SessionClosed { commit, .. } => [*commit, None],
        Action::SessionRestored { before, after, .. } => [*before, *after],
        Action::RefChanged { change, .. } => {
            [change.before, change.after].map(|state| state.map(|state| state.commit))
        }
    };
    named.into_iter().flatten().collect()
}

/// Commits, and all that they come from.
fn with_ancestors(
    commits: &HashMap<CommitId, Known>,
    roots: HashSet<CommitId>,
) -> HashSet<CommitId> {
    let mut needed = HashSet::new();
    let mut next: Vec<CommitId> = roots.into_iter().collect();
    while let Some(id) = next.pop() {
        // A log may name one that is gone.
        let Some(known) = commits.get(&id) else {
            continue;
        };
        if needed.insert(id) {
            next.extend(&known.parents);
        }
    }
    needed
}
