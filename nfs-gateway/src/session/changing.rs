//! Changes of a session that no client's call asked for: they take part in its one order, ride on a
//! flush, and are done when that is durable.

use std::sync::Arc;

use base::Timestamp;
use metadata::conflicts::{self, ConflictId, ConflictPage};
use metadata::image::Image;
use metadata::layers::ImageError;
use metadata::{FsError, OpError, OpResult};

use super::Session;
use super::slow::{LOADS_MAX, Stop};

/// Why a change was not made, or not seen to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeError {
    /// It failed; nothing was changed.
    Fs(FsError),
    /// The session is no longer ours. The change may have been made if it was `applied`.
    Lost {
        /// It was made in memory.
        applied: bool,
    },
    /// The store fails for long; nothing was changed.
    Unavailable,
    /// The store fails for long, and the change is in memory: it is made as soon as the store
    /// serves again, unless the process dies before.
    Unknown,
}

impl Session {
    /// Runs an operation that may change the image, loading what it misses, and waits until all
    /// that it saw and did is durable. The operation does nothing before it has all it needs, as all
    /// operations; so it takes effect once.
    ///
    /// # Errors
    ///
    /// See [`ChangeError`].
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: the change may or may not have been made.
    pub(crate) async fn change_with<T>(
        self: &Arc<Self>,
        operation: impl Fn(&mut Image, Timestamp) -> OpResult<T>,
    ) -> Result<T, ChangeError> {
        if !self.wait_for_flush().await {
            return Err(ChangeError::Unavailable);
        }
        let loading = self.loaders.enter().await;
        for _ in 0..LOADS_MAX {
            let now = self.shared.clock.wall();
            let (result, ran, seen) = {
                let mut state = self.lock();
                if state.lost {
                    return Err(ChangeError::Lost { applied: false });
                }
                if state.is_full(self.shared.clock.as_ref()) {
                    return Err(ChangeError::Fs(FsError::NoSpace));
                }
                let (result, ran) = state.image.run(|image| operation(image, now));
                self.limit_memory(&mut state);
                if ran.changed {
                    self.kick_flush(&mut state);
                }
                (result, ran, (state.generation, state.stalls))
            };
            match result {
                Ok(value) => {
                    drop(loading);
                    self.wait_until_durable(ran, seen).await?;
                    return Ok(value);
                }
                Err(OpError::Fs(error)) => return Err(ChangeError::Fs(error)),
                Err(OpError::Miss(miss)) => match self.load_all(&[miss]).await {
                    Ok(()) => {}
                    Err(Stop::Fail(error)) => return Err(ChangeError::Fs(error)),
                    Err(Stop::HangUp) => return Err(ChangeError::Unavailable),
                },
            }
        }
        Err(ChangeError::Unavailable)
    }

    /// Waits until what an operation saw and did is durable.
    async fn wait_until_durable(
        self: &Arc<Self>,
        ran: metadata::image::Ran,
        (generation, stalls): (u64, u64),
    ) -> Result<(), ChangeError> {
        loop {
            let flushed = self.flushed.notified();
            {
                let mut state = self.lock();
                if state.lost {
                    let applied = ran.changed;
                    return Err(ChangeError::Lost { applied });
                }
                // The image was set back: the change is gone with all else that was not stored.
                if state.generation != generation {
                    return Err(ChangeError::Fs(FsError::NoSpace));
                }
                if ran.durable_after <= state.image.durable() {
                    return Ok(());
                }
                if state.stalls != stalls {
                    return Err(match ran.changed {
                        true => ChangeError::Unknown,
                        false => ChangeError::Unavailable,
                    });
                }
                self.kick_flush(&mut state);
            }
            flushed.await;
        }
    }

    /// At most `limit` of the session's unresolved conflicts, those after `after`.
    ///
    /// # Errors
    ///
    /// The store fails, or a record is damaged.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub(crate) async fn conflicts(
        &self,
        after: Option<ConflictId>,
        limit: usize,
    ) -> Result<ConflictPage, ImageError> {
        loop {
            let layers = Arc::clone(&self.lock().layers);
            let kv = self.shared.kv.as_ref();
            let page = conflicts::in_layers(kv, &layers, after, limit).await;
            // Else what was read may have been folded and cleared meanwhile.
            if Arc::ptr_eq(&self.lock().layers, &layers) {
                return page;
            }
        }
    }
}
