//! What the policies of workspaces let go: before a collection, on its task, so that no commit goes
//! while references are read (`docs/design/0009-retention.md`).

use base::{CommitId, WorkspaceId};
use metadata::references::References;
use metadata::store::{Expired, Store, StoreError};

use super::{CollectError, Collector, Found};

/// How often a workspace is looked at again in which something has changed meanwhile.
const LOOKS_MAX: u32 = 3;

/// Commits of a workspace, by name.
type Named = (WorkspaceId, CommitId);

impl Collector {
    /// Removes what is let go, or, in a dry run, tells which commits that are. A workspace that cannot
    /// be looked at keeps all it has.
    pub(super) async fn expire(
        &self,
        store: &Store,
        dry_run: bool,
        found: &mut Found,
    ) -> Result<Vec<Named>, CollectError> {
        let workspaces = match store.workspaces_with_policy().await {
            Ok(workspaces) => workspaces,
            Err(error) => {
                tracing::warn!(%error, "read what workspaces keep: all is kept");
                return Ok(Vec::new());
            }
        };
        let mut leaving = Vec::new();
        for workspace in workspaces {
            let done = if dry_run {
                self.look(store, workspace, &mut leaving).await
            } else {
                self.expire_workspace(store, workspace, found).await
            };
            if let Err(error) = done {
                tracing::warn!(%workspace, %error, "remove what its policy lets go: it is kept");
            }
            if self.until.is_shutting_down() {
                return Err(CollectError::Stopped);
            }
            tokio::task::yield_now().await;
        }
        if dry_run {
            found.expiry.commits = u64::try_from(leaving.len()).unwrap_or(u64::MAX);
        }
        Ok(leaving)
    }

    async fn look(
        &self,
        store: &Store,
        workspace: WorkspaceId,
        leaving: &mut Vec<Named>,
    ) -> Result<(), StoreError> {
        let expired = store.expired(workspace).await?;
        leaving.extend(expired.commits().iter().map(|commit| (workspace, *commit)));
        Ok(())
    }

    /// How many nodes only the commits have that a walk left out.
    pub(super) async fn nodes_of_left_out(
        &self,
        references: &mut References,
    ) -> Result<u64, CollectError> {
        let before = references.counts().nodes;
        let mut is_more = references.add_left_out();
        while is_more {
            is_more = references.next(self.kv.as_ref(), |_, _| {}).await?;
            if self.until.is_shutting_down() {
                return Err(CollectError::Stopped);
            }
            tokio::task::yield_now().await;
        }
        Ok(references.counts().nodes - before)
    }

    async fn expire_workspace(
        &self,
        store: &Store,
        workspace: WorkspaceId,
        found: &mut Found,
    ) -> Result<(), StoreError> {
        for look in 0..LOOKS_MAX {
            let mut expired = store.expired(workspace).await?;
            if look == 0 {
                let removed = store.remove_old_entries(&expired).await?;
                found.expiry.log_entries += removed.operations + removed.ref_entries;
            }
            if self.remove(store, &mut expired, found).await? {
                return Ok(());
            }
        }
        // The next collection goes on.
        Ok(())
    }

    /// `false` if something has changed.
    async fn remove(
        &self,
        store: &Store,
        expired: &mut Expired,
        found: &mut Found,
    ) -> Result<bool, StoreError> {
        while !expired.commits().is_empty() {
            let Some(removed) = store.remove_expired(expired).await? else {
                return Ok(false);
            };
            found.expiry.commits += removed;
            if self.until.is_shutting_down() {
                return Ok(true);
            }
            // Calls of clients go first.
            tokio::task::yield_now().await;
        }
        Ok(true)
    }
}
