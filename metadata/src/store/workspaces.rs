//! Workspaces.

use base::limits::{BLOCK_BYTES_DEFAULT, INODE_BLOCK};
use base::{TenantId, WorkspaceId};

use super::{Store, StoreError, check_name, damaged};
use crate::image::InodeNumbers;
use crate::keyspace;
use crate::kv::{AtomicOp, Isolation, KeyRange, RangeLimit};
use crate::record::workspace::WorkspaceRecord;
use crate::transact::{Budget, Earlier};

/// Workspaces read at a time when listing.
const PAGE: usize = 500;

/// What a new workspace is to be.
#[derive(Clone, Debug)]
pub struct NewWorkspace {
    /// Its name, unique in the tenant.
    pub name: String,
    /// Mode, owner and group of its root directory.
    pub root: (u32, u32, u32),
}

/// A workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceInfo {
    /// Its number.
    pub id: WorkspaceId,
    /// What it is.
    pub record: WorkspaceRecord,
}

impl Store {
    /// Makes a workspace.
    ///
    /// # Errors
    ///
    /// `Exists`, `Invalid`, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not exist afterwards.
    pub async fn create_workspace(
        &self,
        tenant: TenantId,
        new: NewWorkspace,
    ) -> Result<WorkspaceInfo, StoreError> {
        check_name("workspace", &new.name)?;
        // 63 random bits: never 0, and nothing to conflict about.
        let id = WorkspaceId::new((self.rng.u64() >> 1).max(1));
        let record = WorkspaceRecord {
            tenant,
            name: new.name,
            block_bytes: BLOCK_BYTES_DEFAULT,
            name_key: self.rng.bytes(),
            root: (new.root.0 & 0o7777, new.root.1, new.root.2),
            created: self.clock.wall(),
        };
        let name_key = keyspace::workspace_name(tenant, &record.name);
        let (name_key, kept) = (&name_key, &record);
        let made = || WorkspaceInfo {
            id,
            record: kept.clone(),
        };
        let made = &made;
        self.effect(|txn, earlier| {
            Box::pin(async move {
                // It may have been listed and removed since an attempt whose outcome was unknown.
                let tombstone = keyspace::deletion(id);
                if earlier == Earlier::Unknown
                    && txn
                        .get(&tombstone, Isolation::Serializable)
                        .await?
                        .is_some()
                {
                    return Ok(made());
                }
                match txn.get(name_key, Isolation::Serializable).await? {
                    // An attempt whose outcome was unknown has been made after all.
                    Some(found) if *found == id.raw().to_be_bytes() => return Ok(made()),
                    Some(_) => {
                        let what = format!("workspace {:?}", kept.name);
                        return Err(StoreError::Exists { what });
                    }
                    None => {}
                }
                txn.set(name_key, &id.raw().to_be_bytes());
                txn.set(&keyspace::workspace(id), &kept.encode());
                // Numbers below the first block are for the system: the root is 1.
                txn.set(&keyspace::inodes(id), &INODE_BLOCK.to_le_bytes());
                Ok(made())
            })
        })
        .await
    }

    /// A workspace by its name.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    pub async fn workspace_by_name(
        &self,
        tenant: TenantId,
        name: &str,
    ) -> Result<WorkspaceInfo, StoreError> {
        let what = format!("workspace {name:?}");
        let id = self
            .read(&keyspace::workspace_name(tenant, name), &what)
            .await?;
        self.workspace(decode_id(&id)?).await
    }

    /// A workspace.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    pub async fn workspace(&self, id: WorkspaceId) -> Result<WorkspaceInfo, StoreError> {
        let record = self.read(&keyspace::workspace(id), "workspace").await?;
        let record = WorkspaceRecord::decode(&record).map_err(damaged("workspace"))?;
        Ok(WorkspaceInfo { id, record })
    }

    /// The tenant's workspaces by name, up to `limit` after the name `after`.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn workspaces(
        &self,
        tenant: TenantId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<WorkspaceInfo>, StoreError> {
        let mut range = keyspace::workspace_names(tenant);
        if let Some(name) = after {
            range.start = KeyRange::key(&keyspace::workspace_name(tenant, name)).end;
        }
        let limit = RangeLimit::pairs(limit.clamp(1, PAGE));
        let pairs = self.pairs(&range, limit).await?;
        let mut workspaces = Vec::with_capacity(pairs.len());
        for (_, id) in pairs {
            workspaces.push(self.workspace(decode_id(&id)?).await?);
        }
        Ok(workspaces)
    }

    /// Gives out a block of inode numbers, never to be given again.
    ///
    /// # Errors
    ///
    /// The store fails.
    ///
    /// # Cancellation
    ///
    /// Safe: at worst a block is lost.
    pub async fn allocate_inodes(&self, id: WorkspaceId) -> Result<InodeNumbers, StoreError> {
        let key = keyspace::inodes(id);
        let key = &key;
        let next = self
            .transactor
            .transact(Budget::default(), |txn, _| {
                Box::pin(async move {
                    let found = txn.get(key, Isolation::Serializable).await?;
                    let counter = found.as_deref().and_then(|value| value.try_into().ok());
                    let Some(counter) = counter else {
                        return Err(StoreError::Corrupt {
                            what: "inode counter".into(),
                            why: "missing or not 8 bytes".into(),
                        });
                    };
                    txn.atomic(AtomicOp::Add, key, &INODE_BLOCK.to_le_bytes());
                    Ok(u64::from_le_bytes(counter))
                })
            })
            .await?;
        Ok(InodeNumbers {
            next,
            end: next.saturating_add(INODE_BLOCK),
        })
    }
}

fn decode_id(value: &[u8]) -> Result<WorkspaceId, StoreError> {
    let raw = value
        .try_into()
        .map(u64::from_be_bytes)
        .map_err(|_| StoreError::Corrupt {
            what: "workspace name".into(),
            why: "does not hold a number".into(),
        })?;
    Ok(WorkspaceId::new(raw))
}
