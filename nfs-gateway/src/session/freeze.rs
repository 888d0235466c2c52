//! Freezing a session's open layer, so that its image as of now can be shared
//! (`docs/design/0004-history.md`).
//!
//! A freeze rides on a flush. Clients notice nothing: calls go on in memory, and what they change
//! after the flush has begun goes to the new open layer.

use std::sync::Arc;

use base::{SessionId, TenantId};
use metadata::FsError;
use metadata::session::OwnError;
use metadata::store::{ForkSession, KeyedCall, Opened, StoreError};
use tokio::sync::oneshot;

use super::Session;
use super::slow::Stop;

/// How often a freeze begins anew because the session was lost meanwhile.
pub(super) const ATTEMPTS_MAX: u32 = 5;

/// Why a session could not be frozen. Nothing of it was changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FreezeError {
    /// The session could not be taken over.
    #[error(transparent)]
    Own(#[from] OwnError),
    /// There is no room to store what clients have written.
    #[error("no space is left to store what clients have written")]
    NoSpace,
    /// Stored data is damaged.
    #[error("stored data is damaged")]
    Corrupt,
    /// The stores do not serve at present.
    #[error("the session's changes cannot be stored at present; try again")]
    Unavailable,
}

/// Why a session could not be forked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForkError {
    /// What clients have written could not be stored. There is no fork.
    #[error(transparent)]
    Freeze(#[from] FreezeError),
    /// The fork's records could not be written. After [`StoreError::Unavailable`] there may be a
    /// fork, which nobody can mount.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Told how a freeze ended.
pub(super) type Freezer = oneshot::Sender<Result<(), FreezeError>>;

impl crate::gateway::Gateway {
    /// Stores what clients of a session have written so far, committed or not, and freezes its open
    /// layer. Afterwards the frozen layers in the session's record make its image as of some moment
    /// during this call. Calls of clients go on meanwhile.
    ///
    /// # Errors
    ///
    /// See [`FreezeError`].
    ///
    /// # Cancellation
    ///
    /// Safe to drop; the layer may be frozen or not.
    pub async fn freeze(self: &Arc<Self>, session: SessionId) -> Result<(), FreezeError> {
        for _ in 0..ATTEMPTS_MAX {
            let session = self.session(session).await?;
            match session.freeze().await {
                // Lost meanwhile: whoever owns it now is asked.
                Ok(None) => self.forget(&session),
                Ok(Some(())) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Err(FreezeError::Unavailable)
    }

    /// Opens a session with what clients of `source` have written so far, committed or not.
    ///
    /// # Errors
    ///
    /// See [`ForkError`].
    ///
    /// # Cancellation
    ///
    /// What was begun is done all the same: there may be a fork, or not.
    pub async fn fork(
        self: &Arc<Self>,
        tenant: TenantId,
        source: SessionId,
        fork: ForkSession,
    ) -> Result<Opened, ForkError> {
        self.fork_for(None, tenant, source, fork).await
    }

    /// As [`crate::Gateway::fork`], for a call with a key, which is answered by way of [`Opened`].
    ///
    /// # Errors
    ///
    /// As [`crate::Gateway::fork`].
    pub async fn fork_for(
        self: &Arc<Self>,
        call: Option<KeyedCall>,
        tenant: TenantId,
        source: SessionId,
        fork: ForkSession,
    ) -> Result<Opened, ForkError> {
        self.freeze(source).await?;
        let (tell, done) = oneshot::channel();
        let gateway = Arc::clone(self);
        // A task of its own, so that the hold outlives the transaction whoever gives up.
        self.tasks.spawn(async move {
            // From before the source's record is read until the fork's is durable.
            let hold = gateway.chunks.hold();
            let store = gateway.store.for_call(call);
            let forked = store.fork_session(tenant, source, fork).await;
            drop(hold);
            drop(tell.send(forked));
        });
        match done.await {
            Ok(forked) => Ok(forked?),
            Err(_) => Err(FreezeError::Unavailable.into()),
        }
    }
}

impl Session {
    /// `None` if the session is lost.
    pub(super) async fn freeze(self: &Arc<Self>) -> Result<Option<()>, FreezeError> {
        let (until, files) = {
            let state = self.lock();
            (state.image.last_write(), state.image.unwritten_inodes())
        };
        for inode in files {
            match self.store_writes(inode, until).await {
                Ok(()) => {}
                Err(Stop::HangUp) if self.lock().lost => return Ok(None),
                Err(Stop::HangUp) => return Err(FreezeError::Unavailable),
                Err(Stop::Fail(FsError::NoSpace)) => return Err(FreezeError::NoSpace),
                Err(Stop::Fail(_)) => return Err(FreezeError::Corrupt),
            }
        }
        self.freeze_stored().await
    }

    /// The same, without what is buffered: that goes to the new open layer.
    pub(super) async fn freeze_stored(self: &Arc<Self>) -> Result<Option<()>, FreezeError> {
        self.make_room_for_layer().await?;
        let done = {
            let mut state = self.lock();
            if state.lost {
                return Ok(None);
            }
            let (tell, done) = oneshot::channel();
            state.freezers.push(tell);
            self.kick_flush(&mut state);
            done
        };
        match done.await {
            Ok(Ok(())) => Ok(Some(())),
            Ok(Err(error)) => Err(error),
            Err(_) => Ok(None),
        }
    }
}
