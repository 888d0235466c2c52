//! Removes workspaces that somebody asked to be removed: `docs/design/0009-retention.md`.
//!
//! What is to be removed is in the metadata store, so that what was begun goes on after a restart,
//! whichever process was asked.

use std::sync::Arc;
use std::time::Duration;

use base::{Clock, Tasks, Told};
use metadata::store::{DeletionInfo, Removal, Store, StoreError};
use nfs_gateway::Gateway;
use tokio::sync::Notify;

/// Time between two looks, if nobody asks.
const PAUSE: Duration = Duration::from_secs(30);

/// Keys that a transaction removes.
const KEYS: usize = 500;

/// Removes workspaces, until its tasks shut down.
#[derive(Clone, Debug)]
pub(crate) struct Remover {
    store: Store,
    gateway: Arc<Gateway>,
    clock: Arc<dyn Clock>,
    until: Tasks,
    asked: Arc<Notify>,
}

impl Remover {
    /// Starts looking.
    pub(crate) fn start(
        tasks: &Tasks,
        store: Store,
        gateway: Arc<Gateway>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let remover = Self {
            store,
            gateway,
            clock,
            until: tasks.clone(),
            asked: Arc::default(),
        };
        let serving = remover.clone();
        tasks.spawn(async move { serving.serve().await });
        remover
    }

    /// Says that there is something to remove.
    pub(crate) fn wake(&self) {
        self.asked.notify_one();
    }

    async fn serve(&self) {
        // What was begun before the start is gone on with by the first look.
        let mut is_asked = false;
        loop {
            // Of several gateways one looks, and the one that was asked.
            if (is_asked || self.gateway.is_caretaker())
                && let Err(error) = self.remove_all().await
            {
                tracing::warn!(error = %Told(&error), "remove workspaces: will be tried again");
            }
            is_asked = tokio::select! {
                () = self.asked.notified() => true,
                () = self.clock.sleep(PAUSE) => false,
                () = self.until.shutdown_begun() => return,
            };
        }
    }

    async fn remove_all(&self) -> Result<(), StoreError> {
        for deletion in self.store.deletions().await? {
            match self.remove(&deletion).await {
                Ok(()) => {}
                // Must not keep the others.
                Err(error @ StoreError::Corrupt { .. }) => {
                    tracing::warn!(workspace = %deletion.id, error = %Told(&error), "remove a workspace");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn remove(&self, deletion: &DeletionInfo) -> Result<(), StoreError> {
        let mut closed = Vec::new();
        while !self.until.is_shutting_down() {
            match self.store.remove_deleted(deletion, KEYS).await? {
                Removal::Sessions(sessions) => {
                    if sessions == closed {
                        return Err(StoreError::Corrupt {
                            what: format!("workspace {}", deletion.id),
                            why: "it lists sessions that cannot be closed".into(),
                        });
                    }
                    closed.clone_from(&sessions);
                    for id in sessions {
                        let tenant = deletion.record.tenant;
                        match self.store.close_session(tenant, id).await {
                            // Somebody else was faster.
                            Ok(()) | Err(StoreError::NotFound { .. }) => {}
                            Err(error) => return Err(error),
                        }
                        self.gateway.drop_session(id);
                    }
                }
                Removal::Removed(_) => {}
                Removal::Done => {
                    let (id, name) = (deletion.id, &deletion.record.name);
                    tracing::info!(workspace = %id, name, "workspace is removed");
                    return Ok(());
                }
            }
            // Calls of clients go first.
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}
