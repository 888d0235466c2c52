//! Flushing: one transaction at a time carries all changes since the last, with the replies of the
//! calls that made them. While it runs the next gathers.

use std::sync::Arc;

use metadata::session::{FlushBatch, FlushError};

use super::{Parked, Recipient, Session, State};

impl Session {
    /// Begins a flush unless one runs or there is nothing to write.
    pub(super) fn kick_flush(self: &Arc<Self>, state: &mut State) {
        if state.lost || state.image.applied() == state.image.durable() {
            return;
        }
        let Some(fence) = state.fence.take() else {
            return;
        };
        let session = Arc::clone(self);
        self.shared
            .tasks
            .spawn(async move { session.flush_all(fence).await });
    }

    /// Flushes until nothing is left.
    async fn flush_all(self: Arc<Self>, mut fence: metadata::session::Fence) {
        loop {
            let (batch, number) = {
                let mut state = self.state.lock();
                if state.lost || state.image.applied() == state.image.durable() {
                    state.fence = Some(fence);
                    return;
                }
                let number = state.image.applied();
                let (changes, totals) = state.image.take_changes();
                let replies = std::mem::take(&mut state.replies);
                let forgotten = state.calls.take_forgotten();
                (
                    FlushBatch {
                        changes,
                        totals,
                        replies,
                        forgotten,
                    },
                    number,
                )
            };
            let began = self.shared.clock.monotonic();
            let result = fence
                .flush(self.shared.kv.as_ref(), &self.layers, &batch)
                .await;
            self.shared
                .counters
                .flushed(self.shared.clock.monotonic().saturating_sub(began));
            match result {
                Ok(()) => self.flush_done(number),
                Err(error) => return self.flush_failed(&error),
            }
        }
    }

    fn flush_done(&self, number: u64) {
        let (ready, mut guards) = {
            let mut state = self.state.lock();
            state.image.set_durable(number);
            state.holds.release(number);
            let mut ready = Vec::new();
            let mut later = Vec::new();
            for parked in std::mem::take(&mut state.parked) {
                if parked.after <= number {
                    ready.push(parked);
                } else {
                    later.push(parked);
                }
            }
            state.parked = later;
            // Their results are known from here on, whoever asks.
            let guards: Vec<_> = ready
                .iter()
                .map(|parked| match &parked.to {
                    Recipient::Direct(_) => None,
                    Recipient::Table { key, .. } => {
                        let result = bytes::Bytes::copy_from_slice(parked.reply.body());
                        state.calls.finish(*key, result, parked.stored)
                    }
                })
                .collect();
            (ready, guards.into_iter())
        };
        for Parked { reply, to, .. } in ready {
            let listed = guards.next().flatten();
            let guard = match to {
                Recipient::Direct(guard) => Some(guard),
                Recipient::Table { .. } => listed,
            };
            if let Some(guard) = guard {
                guard.send(reply);
            }
        }
        self.flushed.notify_waiters();
    }

    /// The image in memory is ahead of the store and cannot be written: it is given up. The
    /// clients ask again, and the session is loaded anew by whoever owns it then.
    fn flush_failed(self: Arc<Self>, error: &FlushError) {
        match error {
            FlushError::Fenced => {
                tracing::info!(session = %self.view.session, "session was taken over");
                self.shared.counters.fenced.count();
            }
            FlushError::NoSpace | FlushError::Kv(_) => {
                tracing::warn!(session = %self.view.session, %error, "flush failed");
                self.shared.counters.flush_failures.count();
            }
        }
        self.retire();
        self.shared.forget(&self);
    }
}
