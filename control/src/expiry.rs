//! Closes sessions that have ended by themselves.
//!
//! A ticket's own end stops new mounts at once. What is mounted already ends here, and what the
//! session held is dropped: at most [`PAUSE`] late. The list is read anew each time instead of
//! being kept in memory, so that it does not matter which process opened a session.

use std::sync::Arc;
use std::time::Duration;

use base::{Clock, Tasks, Told};
use metadata::store::{Store, StoreError};
use nfs_gateway::Gateway;

/// Time between two looks. A look reads what has ended, from a list in the order of ends.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);

/// Starts looking, until `tasks` shut down.
pub(crate) fn start(tasks: &Tasks, store: Store, gateway: Arc<Gateway>, clock: Arc<dyn Clock>) {
    let until = tasks.clone();
    tasks.spawn(async move {
        loop {
            // What ended while no server ran is closed by the first look. Of several gateways one looks.
            if gateway.is_caretaker()
                && let Err(error) = close_expired(&until, &store, &gateway).await
            {
                tracing::warn!(error = %Told(&error), "close sessions that have expired: will be tried again");
            }
            tokio::select! {
                () = clock.sleep(PAUSE) => {}
                () = until.shutdown_begun() => return,
            }
        }
    });
}

async fn close_expired(until: &Tasks, store: &Store, gateway: &Gateway) -> Result<(), StoreError> {
    let mut after = None;
    loop {
        let page = store.expired_sessions(after).await?;
        for (tenant, id) in page.sessions {
            if until.is_shutting_down() {
                return Ok(());
            }
            match store.close_session(tenant, id).await {
                Ok(()) => tracing::info!(session = %id, "session has expired and is closed"),
                // Somebody else was faster.
                Err(StoreError::NotFound { .. }) => {}
                // Must not keep the others open.
                Err(error @ StoreError::Corrupt { .. }) => {
                    tracing::warn!(session = %id, error = %Told(&error), "close a session that has expired");
                }
                Err(error) => return Err(error),
            }
            gateway.drop_session(id);
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}
