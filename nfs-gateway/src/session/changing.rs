//! Changes of a session that no client's call asked for: they take part in its one order, ride on a
//! flush, and are done when that is durable.

use std::sync::Arc;

use base::Timestamp;
use metadata::conflicts::{self, ConflictId, ConflictPage, Unresolved};
use metadata::image::{Image, Ran};
use metadata::layers::ImageError;
use metadata::record::changed::ChangedPaths;
use metadata::{FsError, OpError, OpResult};
use tokio::sync::oneshot;

use super::Session;
use super::exchange::Held;
use super::slow::{LOADS_MAX, Stop};
use super::state::State;

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

/// Changes of our own that wait until they are durable. Dropped, they learn that the session is lost.
#[derive(Debug, Default)]
pub(super) struct Waiting(Vec<(u64, oneshot::Sender<Waited>)>);

/// What became of a change that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// It is durable.
    Durable,
    /// The image was set back: the change is gone with all else that was not stored.
    SetBack,
    /// The store fails for long.
    Stalled,
}

/// The waiter's side.
struct Waits {
    changed: bool,
    /// None if it is durable already.
    until: Option<oneshot::Receiver<Waited>>,
}

impl Waits {
    /// Waits until what an operation saw and did is durable.
    async fn end(self) -> Result<(), ChangeError> {
        let Some(until) = self.until else {
            return Ok(());
        };
        let applied = self.changed;
        match until.await {
            Ok(Waited::Durable) => Ok(()),
            Ok(Waited::SetBack) => Err(ChangeError::Fs(FsError::NoSpace)),
            Ok(Waited::Stalled) if applied => Err(ChangeError::Unknown),
            Ok(Waited::Stalled) => Err(ChangeError::Unavailable),
            Err(_) => Err(ChangeError::Lost { applied }),
        }
    }
}

impl Waiting {
    /// Waits for the change with this number.
    fn add(&mut self, number: u64) -> oneshot::Receiver<Waited> {
        let (tell, told) = oneshot::channel();
        self.0.push((number, tell));
        told
    }

    /// Changes up to this number are durable, whatever happens to the image after it.
    pub(super) fn tell_durable(&mut self, number: u64) {
        for (_, tell) in self.0.extract_if(.., |(after, _)| *after <= number) {
            let _: Result<(), Waited> = tell.send(Waited::Durable);
        }
    }

    /// Tells all whose changes are not durable.
    pub(super) fn tell(&mut self, what: Waited) {
        for (_, tell) in self.0.drain(..) {
            let _: Result<(), Waited> = tell.send(what);
        }
    }

    /// The session is lost.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Session {
    /// Runs an operation that may change the image, loading what it misses, and waits until all
    /// that it saw and did is durable. The operation does nothing before it has all it needs, as all
    /// operations; so it takes effect once. It gives with its result the paths that it changes, which
    /// clients are told of (`docs/design/0012-outside.md`).
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
        operation: impl Fn(&mut Image, Timestamp) -> OpResult<(T, ChangedPaths)>,
    ) -> Result<T, ChangeError> {
        if !self.wait_for_flush().await {
            return Err(ChangeError::Unavailable);
        }
        self.until_durable(|| self.try_change(&operation)).await
    }

    /// Runs a reading operation, loading what it misses, and waits until all that it saw is durable.
    ///
    /// # Errors
    ///
    /// See [`ChangeError`]. `Fs(NoSpace)` may mean that what was seen has been set back.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub(crate) async fn look_with<T>(
        self: &Arc<Self>,
        operation: impl Fn(&mut Image, Timestamp) -> OpResult<T>,
    ) -> Result<T, ChangeError> {
        self.until_durable(|| self.try_look(&operation)).await
    }

    async fn until_durable<T>(
        self: &Arc<Self>,
        once: impl Fn() -> Result<Option<(OpResult<T>, Waits)>, ChangeError>,
    ) -> Result<T, ChangeError> {
        let mut loading = self.loaders.enter().await;
        for _ in 0..LOADS_MAX {
            let Some((result, waits)) = once()? else {
                // The image is being exchanged.
                drop(loading.take());
                if !self.wait_for_release().await {
                    return Err(ChangeError::Unavailable);
                }
                loading = self.loaders.enter().await;
                continue;
            };
            match result {
                Ok(value) => {
                    drop(loading);
                    return waits.end().await.map(|()| value);
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

    /// Runs an operation once. `None` if changes are held up.
    fn try_change<T>(
        self: &Arc<Self>,
        operation: impl Fn(&mut Image, Timestamp) -> OpResult<(T, ChangedPaths)>,
    ) -> Result<Option<(OpResult<T>, Waits)>, ChangeError> {
        let now = self.shared.clock.wall();
        let mut state = self.lock();
        if state.lost {
            return Err(ChangeError::Lost { applied: false });
        }
        if state.held != Held::Nobody {
            return Ok(None);
        }
        if state.is_full(self.shared.clock.as_ref()) {
            return Err(ChangeError::Fs(FsError::NoSpace));
        }
        let (result, ran) = state.image.run(|image| operation(image, now));
        let result = result.map(|(value, paths)| {
            if ran.changed {
                state.told = std::mem::take(&mut state.told).and(paths);
            }
            value
        });
        let waits = self.waits(&mut state, ran, result.is_ok());
        Ok(Some((result, waits)))
    }

    /// Runs a reading operation once. `None` if the image is being exchanged.
    fn try_look<T>(
        self: &Arc<Self>,
        operation: impl Fn(&mut Image, Timestamp) -> OpResult<T>,
    ) -> Result<Option<(OpResult<T>, Waits)>, ChangeError> {
        let now = self.shared.clock.wall();
        let mut state = self.lock();
        if state.lost {
            return Err(ChangeError::Lost { applied: false });
        }
        if state.held == Held::Everything {
            return Ok(None);
        }
        let (result, ran) = state.image.run(|image| operation(image, now));
        let waits = self.waits(&mut state, ran, result.is_ok());
        Ok(Some((result, waits)))
    }

    /// What there is to wait for after an operation that `is_done`.
    fn waits(self: &Arc<Self>, state: &mut State, ran: Ran, is_done: bool) -> Waits {
        self.limit_memory(state);
        let is_pending = ran.durable_after > state.image.durable();
        let is_awaited = is_done && is_pending;
        let until = is_awaited.then(|| state.waiting.add(ran.durable_after));
        if ran.changed || is_pending {
            self.kick_flush(state);
        }
        let changed = ran.changed;
        Waits { changed, until }
    }

    /// Whether the session is no longer held: whoever owns it now has to be asked.
    pub(crate) fn is_lost(&self) -> bool {
        self.lock().lost
    }

    /// Counts how often another image took the place of the one in memory.
    pub(crate) fn generation(&self) -> u64 {
        self.lock().generation
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

    /// The session's unresolved conflict with this id, if it has it.
    ///
    /// # Errors
    ///
    /// The store fails, or the record is damaged.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub(crate) async fn conflict(&self, id: ConflictId) -> Result<Option<Unresolved>, ImageError> {
        loop {
            let layers = Arc::clone(&self.lock().layers);
            let kv = self.shared.kv.as_ref();
            let found = conflicts::one_in_layers(kv, &layers, id).await;
            if Arc::ptr_eq(&self.lock().layers, &layers) {
                return found;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: a change that was durable was said to have found no room if the next flush found none
    /// before its waiter ran.
    #[test]
    fn what_is_durable_stays_so() {
        let mut waiting = Waiting::default();
        let (mut stored, mut not_stored, mut lost) =
            (waiting.add(3), waiting.add(4), waiting.add(5));
        waiting.tell_durable(3);
        assert!(not_stored.try_recv().is_err());
        waiting.tell(Waited::SetBack);
        waiting.tell_durable(9);
        assert_eq!(stored.try_recv(), Ok(Waited::Durable));
        assert_eq!(not_stored.try_recv(), Ok(Waited::SetBack));
        assert_eq!(lost.try_recv(), Ok(Waited::SetBack));
        lost = waiting.add(6);
        waiting.clear();
        assert_eq!(lost.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }
}
