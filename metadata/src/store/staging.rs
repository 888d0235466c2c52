//! Sessions that nobody mounts: where an import puts an image together.
//!
//! Such a session has no ticket, and ends by itself soon unless it is extended: so what a process that
//! died has left is dropped like any session that has expired.

use base::{CommitId, SessionId, TenantId, WorkspaceId};

use super::deletion::require_workspace;
use super::history::{is_logged, require_commit, write_operation};
use super::sessions::{require_session, write_expiry};
use super::{Store, StoreError};
use crate::keyspace;
use crate::record::operation::Action;
use crate::record::session::{Identity, SessionRecord, SessionState};
use crate::transact::{Budget, Earlier};

/// The agent that such a session names.
pub const STAGING_AGENT: &str = "holdfast-import";

impl Store {
    /// Opens a session with an empty image, which takes no changes from clients and has no ticket. It
    /// ends by itself after `ttl_seconds`. While it lives `commit`, which its image will be put on top of,
    /// is kept by every policy.
    ///
    /// # Errors
    ///
    /// `NotFound` for the workspace or the commit, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not exist afterwards, and ends by itself.
    pub async fn open_staging(
        &self,
        tenant: TenantId,
        workspace: WorkspaceId,
        (branch, commit): (&str, Option<CommitId>),
        ttl_seconds: u64,
    ) -> Result<SessionId, StoreError> {
        let id = SessionId::new((self.rng.u64() >> 1).max(1));
        let now = self.clock.wall();
        let record = SessionRecord {
            tenant,
            workspace,
            state: SessionState::Open,
            read_only: true,
            identity: Identity::AllSquash {
                uid: 65534,
                gid: 65534,
            },
            generation: 1,
            frozen: Vec::new(),
            commit,
            branch: branch.to_owned(),
            base: None,
            frozen_usage: crate::image::Usage::default(),
            revocation: 1,
            agent: STAGING_AGENT.to_owned(),
            run: String::new(),
            created: now,
            expires: Some(now.plus_seconds(ttl_seconds)),
        };
        let action = Action::SessionOpened {
            session: id,
            commit,
        };
        let log = self.logged(STAGING_AGENT, "", action);
        let (kept, log, operation) = (&record, &log, self.new_operation());
        self.transactor
            .transact(Budget::default(), |txn, earlier| {
                Box::pin(async move {
                    // As in opening: it may have been listed and closed since.
                    if earlier == Earlier::Unknown && is_logged(txn, workspace, operation).await? {
                        return Ok(());
                    }
                    require_workspace(txn, workspace).await?;
                    if let Some(commit) = commit {
                        require_commit(txn, workspace, commit).await?;
                    }
                    txn.set(&keyspace::session_meta(id), &kept.encode());
                    txn.set(&keyspace::session_of(tenant, workspace, id), &[]);
                    write_expiry(txn, tenant, id, kept.expires);
                    write_operation(txn, workspace, operation, now, log);
                    Ok::<(), StoreError>(())
                })
            })
            .await?;
        Ok(id)
    }

    /// Lets a session end `ttl_seconds` from now.
    ///
    /// # Errors
    ///
    /// `NotFound` if it has ended, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not have been extended.
    pub async fn extend_session(
        &self,
        tenant: TenantId,
        id: SessionId,
        ttl_seconds: u64,
    ) -> Result<(), StoreError> {
        let expires = self.clock.wall().plus_seconds(ttl_seconds);
        self.transactor
            .transact(Budget::default(), |txn, _| {
                Box::pin(async move {
                    let mut record = require_session(txn, tenant, id).await?;
                    if let Some(before) = record.expires.replace(expires) {
                        txn.clear(&keyspace::expiry(before, tenant, id));
                    }
                    write_expiry(txn, tenant, id, record.expires);
                    txn.set(&keyspace::session_meta(id), &record.encode());
                    Ok(())
                })
            })
            .await
    }
}
