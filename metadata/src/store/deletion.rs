//! Removing workspaces: `docs/design/0009-retention.md` has the rules.

use base::{SessionId, TenantId, WorkspaceId};
use bytes::Bytes;

use super::{Store, StoreError, damaged};
use crate::keyspace::{self, Key};
use crate::kv::{Isolation, KeyRange, RangeLimit, Transaction};
use crate::record::retention::DeletionRecord;
use crate::transact::{Budget, Earlier};

/// Tombstones read at a time, and sessions told at a time.
const PAGE: usize = 500;

/// Sessions that a refusal counts.
const COUNTED_MAX: usize = 1000;

/// A workspace that is being removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletionInfo {
    /// Its number.
    pub id: WorkspaceId,
    /// What it was, and since when.
    pub record: DeletionRecord,
}

/// What is next to be done about a workspace that is being removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// These sessions are to be closed; there may be more.
    Sessions(Vec<SessionId>),
    /// So many keys were removed; there may be more.
    Removed(usize),
    /// Nothing of it is left.
    Done,
}

impl Store {
    /// Begins to remove a workspace. Its name is free from now on, nothing can be added to it, and
    /// [`Store::remove_deleted`] removes the rest.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Refused` if it has sessions and `force` is false; or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not have begun.
    pub async fn delete_workspace(
        &self,
        tenant: TenantId,
        name: &str,
        force: bool,
    ) -> Result<DeletionInfo, StoreError> {
        let id = self.workspace_by_name(tenant, name).await?.id;
        let record = DeletionRecord {
            tenant,
            name: name.to_owned(),
            time: self.clock.wall(),
        };
        let (kept, name_key) = (&record, &keyspace::workspace_name(tenant, name));
        let deletion = || DeletionInfo {
            id,
            record: kept.clone(),
        };
        let deletion = &deletion;
        self.effect(|txn, earlier| {
            Box::pin(async move {
                let tombstone = keyspace::deletion(id);
                let found = txn.get(&tombstone, Isolation::Serializable).await?;
                if earlier == Earlier::Unknown && found.as_deref() == Some(&kept.encode()) {
                    return Ok(deletion());
                }
                let named = txn.get(name_key, Isolation::Serializable).await?;
                if named.as_deref() != Some(&id.raw().to_be_bytes()) {
                    let what = format!("workspace {:?}", kept.name);
                    return Err(StoreError::NotFound { what });
                }
                if !force {
                    require_no_session(txn, tenant, id, &kept.name).await?;
                }
                txn.set(&tombstone, &kept.encode());
                txn.clear(name_key);
                Ok(deletion())
            })
        })
        .await
    }

    /// The workspaces that are being removed, the first of them.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn deletions(&self) -> Result<Vec<DeletionInfo>, StoreError> {
        let range = keyspace::deletions();
        let page = self.page(&range, RangeLimit::pairs(PAGE)).await?;
        let mut deletions = Vec::with_capacity(page.pairs.len());
        for (key, value) in &page.pairs {
            let Ok(Key::Deletion(id)) = keyspace::decode(key) else {
                return Err(StoreError::Corrupt {
                    what: "list of removed workspaces".into(),
                    why: "a key is damaged".into(),
                });
            };
            let record = DeletionRecord::decode(value).map_err(damaged("removed workspace"))?;
            deletions.push(DeletionInfo { id, record });
        }
        Ok(deletions)
    }

    /// Removes up to `limit` keys of a workspace that is being removed, or tells its sessions, which
    /// are to be closed first.
    ///
    /// # Errors
    ///
    /// The store fails.
    ///
    /// # Cancellation
    ///
    /// Safe: calling again goes on.
    pub async fn remove_deleted(
        &self,
        deletion: &DeletionInfo,
        limit: usize,
    ) -> Result<Removal, StoreError> {
        let (id, tenant) = (deletion.id, deletion.record.tenant);
        let sessions = self.sessions_of(tenant, id, PAGE).await?;
        if !sessions.is_empty() {
            return Ok(Removal::Sessions(sessions));
        }
        // Nothing is added any more, so each may be read and removed for itself. What names others
        // goes first.
        for range in history_of(id) {
            let limit = RangeLimit::pairs(limit.max(1));
            let page = self.page(&range, limit).await?;
            let Some((last, _)) = page.pairs.last() else {
                continue;
            };
            let passed = &KeyRange {
                start: range.start,
                end: KeyRange::key(last).end,
            };
            self.transactor
                .transact(Budget::default(), |txn, _| {
                    // Right however often it is applied: nothing is put there again.
                    Box::pin(async move {
                        txn.clear_range(passed);
                        Ok::<(), StoreError>(())
                    })
                })
                .await?;
            return Ok(Removal::Removed(page.pairs.len()));
        }
        self.transactor
            .transact(Budget::default(), |txn, _| {
                Box::pin(async move {
                    txn.clear(&keyspace::retention(id));
                    txn.clear(&keyspace::grown(id));
                    txn.clear(&keyspace::inodes(id));
                    txn.clear(&keyspace::workspace(id));
                    txn.clear(&keyspace::deletion(id));
                    Ok::<(), StoreError>(())
                })
            })
            .await?;
        Ok(Removal::Done)
    }

    /// Some of the sessions of a workspace, also of one that is being removed.
    async fn sessions_of(
        &self,
        tenant: TenantId,
        id: WorkspaceId,
        limit: usize,
    ) -> Result<Vec<SessionId>, StoreError> {
        let range = keyspace::sessions_of_workspace(tenant, id);
        let page = self.page(&range, RangeLimit::pairs(limit)).await?;
        session_ids(&page.pairs)
    }
}

fn session_ids(pairs: &[(Bytes, Bytes)]) -> Result<Vec<SessionId>, StoreError> {
    let decoded = pairs
        .iter()
        .map(|(key, _)| keyspace::decode_session_of(key).map(|(_, _, session)| session));
    decoded
        .collect::<Result<_, _>>()
        .map_err(|error| StoreError::Corrupt {
            what: "session index".into(),
            why: error.to_string(),
        })
}

/// Everything of a workspace's history. What names commits comes before them.
fn history_of(id: WorkspaceId) -> [KeyRange; 6] {
    [
        keyspace::references(id),
        keyspace::ref_logs(id),
        keyspace::operation_log_all(id),
        keyspace::operations(id),
        keyspace::pins(id),
        keyspace::commits_of(id),
    ]
}

/// Refuses a workspace that has sessions. One that is opened at the same time conflicts.
async fn require_no_session(
    txn: &dyn Transaction,
    tenant: TenantId,
    id: WorkspaceId,
    name: &str,
) -> Result<(), StoreError> {
    let page = txn
        .get_range(
            &keyspace::sessions_of_workspace(tenant, id),
            RangeLimit::pairs(COUNTED_MAX),
            Isolation::Serializable,
        )
        .await?;
    let are = match page.pairs.len() {
        0 => return Ok(()),
        1 => "a session is".to_owned(),
        count if page.more => format!("more than {count} sessions are"),
        count => format!("{count} sessions are"),
    };
    let why = format!(
        "workspace {name:?} is in use: {are} open in it; close them, or ask for it to be removed with \
         them (force)"
    );
    Err(StoreError::Refused { why })
}

/// Refuses to add anything to a workspace that does not exist or is being removed; its removal
/// conflicts.
pub(super) async fn require_workspace(
    txn: &dyn Transaction,
    id: WorkspaceId,
) -> Result<(), StoreError> {
    let key = keyspace::workspace(id);
    let is_there = txn.get(&key, Isolation::Serializable).await?.is_some();
    let tombstone = keyspace::deletion(id);
    if is_there
        && txn
            .get(&tombstone, Isolation::Serializable)
            .await?
            .is_none()
    {
        return Ok(());
    }
    Err(StoreError::NotFound {
        what: format!("workspace {id}: it does not exist, or is being removed"),
    })
}
