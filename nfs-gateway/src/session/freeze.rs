//! Freezing a session's open layer, so that its image as of now can be shared
//! (`docs/design/0004-history.md`).
//!
//! A freeze rides on a flush. Clients notice nothing: calls go on in memory, and what they change
//! after the flush has begun goes to the new open layer.

use std::sync::Arc;

use metadata::FsError;
use metadata::session::OwnError;
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
    pub async fn freeze(self: &Arc<Self>, session: base::SessionId) -> Result<(), FreezeError> {
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
}

impl Session {
    /// `None` if the session is lost.
    async fn freeze(self: &Arc<Self>) -> Result<Option<()>, FreezeError> {
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
