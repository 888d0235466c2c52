//! Flushing: one transaction at a time carries all changes since the last, with the replies of the
//! calls that made them. While it runs the next gathers.

use std::sync::Arc;
use std::time::Duration;

use metadata::kv::KvError;
use metadata::layers::Layers;
use metadata::session::{Fence, FlushBatch, FlushError, frozen};

use super::changing::Waited;
use super::exchange::{TakenExchange, Unexchanged};
use super::freeze::{FreezeError, Freezer};
use super::state::State;
use super::{Parked, Recipient, Retry, Session};

/// How long those who wait for a flush wait for a store that fails, before they are hung up on.
const PATIENCE: Duration = Duration::from_secs(20);

/// Pause between tries of a flush.
const PAUSE: Duration = Duration::from_millis(100);

impl Session {
    /// Begins a flush unless one runs or there is nothing to write.
    pub(super) fn kick_flush(self: &Arc<Self>, state: &mut State) {
        if state.lost || !state.has_to_flush() {
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
    async fn flush_all(self: Arc<Self>, mut fence: Fence) {
        loop {
            let (batch, mut taken) = {
                let mut state = self.lock();
                if state.lost || !state.has_to_flush() {
                    state.fence = Some(fence);
                    return;
                }
                state.take_batch()
            };
            let Some(batch) = batch else {
                // There is nothing to freeze.
                taken.tell(&Ok(()));
                continue;
            };
            let began = self.shared.clock.monotonic();
            let result = self
                .flush_patiently(&mut fence, &taken.layers, &batch)
                .await;
            self.shared
                .counters
                .flushed(self.shared.clock.monotonic().saturating_sub(began));
            if let Some(exchange) = taken.exchange.take() {
                match self.exchange_flushed(exchange, batch, result) {
                    Ok(()) => continue,
                    Err(error) => return self.flush_failed(&error),
                }
            }
            match result {
                Ok(()) => {
                    self.flush_done(&taken, &batch);
                    taken.tell(&Ok(()));
                    if batch.freeze {
                        self.fold_if_deep();
                    } else {
                        self.fold_if_large();
                    }
                }
                Err(FlushError::NoSpace) => {
                    taken.tell(&Err(FreezeError::NoSpace));
                    // What came meanwhile is seen to: nobody else begins a flush for it.
                    self.flush_refused(batch);
                }
                Err(error) => return self.flush_failed(&error),
            }
        }
    }

    /// Ends an exchange; `Err` if the session is lost with it.
    fn exchange_flushed(
        &self,
        exchange: TakenExchange,
        batch: FlushBatch,
        result: Result<(), FlushError>,
    ) -> Result<(), FlushError> {
        let refused = match result {
            Ok(()) => {
                self.exchange_done(exchange, batch.totals, Ok(()));
                return Ok(());
            }
            Err(FlushError::Moved) => Unexchanged::Moved,
            Err(FlushError::NoSpace) => Unexchanged::NoSpace,
            Err(FlushError::Gone) => Unexchanged::Gone,
            Err(FlushError::Call(error)) => Unexchanged::Call(error),
            Err(error) => return Err(error),
        };
        // Nothing was written, and the fence is still good.
        self.lock().calls.give_back_forgotten(batch.forgotten);
        self.exchange_done(exchange, batch.totals, Err(refused));
        Ok(())
    }

    /// Flushes one batch; a store that fails is only a pause. What waits for the flush waits as long
    /// as any call does and is hung up on then, while the flush goes on: what was acknowledged
    /// without being durable (UNSTABLE data) is not given up, and what is durable can be read.
    async fn flush_patiently(
        &self,
        fence: &mut Fence,
        layers: &Layers,
        batch: &FlushBatch,
    ) -> Result<(), FlushError> {
        let clock = &self.shared.clock;
        let mut began = clock.monotonic();
        loop {
            let result = fence.flush(self.shared.kv.as_ref(), layers, batch).await;
            let Err(FlushError::Kv(error)) = &result else {
                return result;
            };
            if !may_heal(error) || self.lock().lost {
                return result;
            }
            if clock.monotonic().saturating_sub(began) > PATIENCE {
                if self.shared.tasks.is_shutting_down() {
                    return result;
                }
                tracing::warn!(session = %self.view.session, error = %base::Told(&error), "the metadata store fails for long");
                self.hang_up_on_waiting();
                began = clock.monotonic();
            }
            tracing::debug!(session = %self.view.session, error = %base::Told(&error), "flush is tried again");
            clock.sleep(PAUSE).await;
        }
    }

    /// Closes the connections of calls that wait for a flush. Their clients ask again: a call that
    /// has changed something still has its place, where the new copy's connection is noted.
    fn hang_up_on_waiting(&self) {
        let looking = {
            let mut state = self.lock();
            state.stalls += 1;
            let (kept, looking): (Vec<_>, Vec<_>) = std::mem::take(&mut state.parked)
                .into_iter()
                .partition(|parked| matches!(parked.to, Recipient::Table { .. }));
            for parked in &kept {
                if let Recipient::Table { key, .. } = parked.to {
                    state.calls.close_connection(key);
                }
            }
            state.parked = kept;
            state.waiting.tell(Waited::Stalled);
            looking
        };
        for parked in looking {
            self.hang_up(parked.to);
        }
        self.flushed.notify_waiters();
        self.released.notify_waiters();
    }

    fn flush_done(&self, taken: &Taken, batch: &FlushBatch) {
        let number = taken.number;
        let now = self.shared.clock.monotonic();
        let (ready, mut guards) = {
            let mut state = self.lock();
            state.image.set_durable(number);
            state.durable_totals = batch.totals;
            if batch.freeze {
                self.shared.counters.freezes.count();
                // They may have been folded meanwhile.
                state.layers = Arc::new(frozen(&state.layers));
                state.open_is_empty = true;
                state.open_bytes = 0;
            } else if !batch.changes.is_empty() {
                state.open_is_empty = false;
                state.open_bytes = state.open_bytes.saturating_add(batch.changes.bytes());
            }
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
            state.waiting.tell_durable(number);
            // Their results are known from here on, whoever asks.
            let guards: Vec<_> = ready
                .iter()
                .map(|parked| match &parked.to {
                    Recipient::Direct(_) => None,
                    Recipient::Table { key, .. } => {
                        let result = bytes::Bytes::copy_from_slice(parked.reply.body());
                        state.calls.finish(*key, result, parked.stored, now)
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

    /// The store has no room for what changed. Nothing of it was written, so the image is set back
    /// to what is stored, and the session goes on: what waited runs again, which refuses changes
    /// and answers the rest from what is stored. Buffered data goes, too; the verifier says so.
    fn flush_refused(self: &Arc<Self>, batch: FlushBatch) {
        tracing::warn!(session = %self.view.session, "the metadata store is full, changes are refused");
        self.shared.counters.flushes_refused.count();
        let now = self.shared.clock.monotonic();
        let parked = {
            let mut state = self.lock();
            state.calls.give_back_forgotten(batch.forgotten);
            if state.lost {
                Vec::new()
            } else {
                state.set_back(now)
            }
        };
        for Parked { record, to, .. } in parked {
            self.go_slow(record, Retry::Again, to);
        }
        self.flushed.notify_waiters();
        self.written.notify_waiters();
    }

    /// The image in memory is ahead of the store and cannot be written: it is given up. The
    /// clients ask again, and the session is loaded anew by whoever owns it then.
    fn flush_failed(self: Arc<Self>, error: &FlushError) {
        match error {
            FlushError::Fenced => {
                tracing::info!(session = %self.view.session, "session was taken over");
                self.shared.counters.fenced.count();
            }
            FlushError::NoSpace
            | FlushError::Moved
            | FlushError::Gone
            | FlushError::Call(_)
            | FlushError::Kv(_) => {
                tracing::warn!(session = %self.view.session, error = %base::Told(&error), "flush failed");
                self.shared.counters.flush_failures.count();
            }
        }
        self.shared.forget(&self);
        // Among others the calls go to whoever took it. Alone, who took it is not known, and taking it
        // back at once might go on for ever.
        if matches!(error, FlushError::Fenced) && self.shared.fleet.is_some() {
            self.give_up();
        } else {
            self.retire();
        }
    }
}

/// What a flush needs to know when it is over.
struct Taken {
    /// It covers changes up to this number.
    number: u64,
    /// Where it writes.
    layers: Arc<Layers>,
    /// Who waits for the freeze that it makes.
    freezers: Vec<Freezer>,
    /// The exchange that it makes.
    exchange: Option<TakenExchange>,
}

impl Taken {
    fn tell(self, result: &Result<(), FreezeError>) {
        for freezer in self.freezers {
            // Nobody has to wait for it.
            drop(freezer.send(result.clone()));
        }
    }
}

impl State {
    fn has_to_flush(&self) -> bool {
        self.image.applied() != self.image.durable()
            || !self.freezers.is_empty()
            || self.exchange.is_some()
    }

    /// What the next flush writes; `None` if all that is wanted is a freeze of nothing.
    fn take_batch(&mut self) -> (Option<FlushBatch>, Taken) {
        let number = self.image.applied();
        if let Some((batch, exchange)) = self.take_exchange() {
            let taken = Taken {
                number,
                layers: Arc::clone(&self.layers),
                freezers: Vec::new(),
                exchange: Some(exchange),
            };
            return (Some(batch), taken);
        }
        let taken = Taken {
            number,
            layers: Arc::clone(&self.layers),
            freezers: std::mem::take(&mut self.freezers),
            exchange: None,
        };
        if number == self.image.durable() && self.open_is_empty {
            return (None, taken);
        }
        let (changes, totals) = self.image.take_changes();
        let is_empty = self.open_is_empty && changes.is_empty();
        let batch = FlushBatch {
            changes,
            totals,
            replies: std::mem::take(&mut self.replies),
            forgotten: self.calls.take_forgotten(),
            told: std::mem::take(&mut self.told).into_records(),
            freeze: !taken.freezers.is_empty() && !is_empty,
            exchange: None,
        };
        (Some(batch), taken)
    }
}

/// Whether another try of a flush may end otherwise. (`NoSpace` comes here only while the outcome
/// of a commit has to be settled.)
fn may_heal(error: &KvError) -> bool {
    match error {
        KvError::Conflict
        | KvError::VersionTooOld
        | KvError::OutcomeUnknown
        | KvError::Unavailable(_)
        | KvError::NoSpace => true,
        KvError::Limit(_) | KvError::Usage(_) | KvError::Corrupt(_) => false,
    }
}
