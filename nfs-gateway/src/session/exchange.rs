//! Exchanging a session's image under its clients (`docs/design/0012-outside.md`).
//!
//! Calls that change something wait while the last changes are folded and the target is computed
//! from them; all calls wait while the transaction runs. Then the image in memory is dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::{OperationId, SessionId, Told};
use metadata::image::{Totals, Usage};
use metadata::layers::{Base, Layers};
use metadata::session::{Exchange, FlushBatch};
use metadata::store::StoreError;
use metadata::tree::Root;
use tokio::sync::oneshot;

use super::Session;
use super::fold::For;
use super::freeze::{ATTEMPTS_MAX, FreezeError};
use super::slow::PATIENCE;
use super::state::State;
use crate::history::HistoryError;
use crate::wire::args::NfsCall;

/// How often what an exchange makes is computed before calls are held up, at most.
const PREPARATIONS_MAX: u32 = 4;

/// What takes no longer may be computed once more while calls wait.
const SHORT: Duration = Duration::from_millis(250);

/// Who waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Held {
    /// Nobody.
    #[default]
    Nobody,
    /// Calls that change something.
    Changes,
    /// All calls: the image is being exchanged.
    Everything,
}

impl Held {
    pub(super) fn holds(self, call: &NfsCall<'_>) -> bool {
        match self {
            Self::Nobody => false,
            Self::Changes => super::is_tracked(call),
            Self::Everything => true,
        }
    }
}

/// What a session is to get.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The tree that it was computed from.
    pub(crate) from: Root,
    /// What the new image uses.
    pub(crate) usage: Usage,
    /// The rest.
    pub(crate) exchange: Exchange,
}

/// An exchange that waits for its flush, and who is told how it ended.
#[derive(Debug)]
pub(super) struct Wanted {
    target: Target,
    tell: oneshot::Sender<Result<(), Unexchanged>>,
}

/// Why an image was not exchanged. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unexchanged {
    /// The session is not what the target was computed from.
    Moved,
    /// There is no room to write it.
    NoSpace,
    /// A commit that it names has been removed.
    Gone,
    /// The call that it is all of is done already, or its record is damaged.
    Call(StoreError),
}

/// An exchange whose transaction runs.
#[derive(Debug)]
pub(super) struct TakenExchange {
    root: Root,
    tell: oneshot::Sender<Result<(), Unexchanged>>,
}

/// Holds calls up until it is dropped.
struct Holding(Arc<Session>);

impl Drop for Holding {
    fn drop(&mut self) {
        {
            let mut state = self.0.lock();
            if state.held != Held::Changes {
                // Who gives up does not end the transaction: that lets the calls go on.
                return;
            }
            state.held = Held::Nobody;
        }
        self.0.released.notify_waiters();
    }
}

/// What makes an image another one.
pub(crate) trait Change: Send {
    /// Computes what the image with this root is to become, as far as can be done while clients go
    /// on. `false` if there is nothing to do.
    fn prepare(&mut self, root: Root) -> impl Future<Output = Result<bool, HistoryError>> + Send;

    /// The target for the image with this root, which does not change meanwhile. `None` if there is
    /// nothing to do.
    fn make(
        &mut self,
        root: Root,
    ) -> impl Future<Output = Result<Option<Target>, HistoryError>> + Send;
}

impl crate::gateway::Gateway {
    /// Exchanges a session's image for what `change` makes of it. `false` if there was nothing to
    /// do.
    ///
    /// The caller holds the chunk store. One exchange of a session runs at a time; others wait.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: the image may or may not be exchanged.
    pub(crate) async fn exchange(
        self: &Arc<Self>,
        id: SessionId,
        change: &mut impl Change,
    ) -> Result<bool, HistoryError> {
        if !self.prepare(id, change).await? {
            return Ok(false);
        }
        let mut attempted = None;
        let ended = self.exchange_in_attempts(id, change, &mut attempted).await;
        match attempted {
            Some(operation) => ended.map_err(|error| {
                tracing::warn!(session = %id, %operation, error = %Told(&error), "look whether an image was exchanged");
                HistoryError::Unknown { operation }
            }),
            None => ended,
        }
    }

    /// The same, once it is prepared. It is not known whether what is `attempted` when this ends has
    /// happened: an entry of the operation log would tell.
    async fn exchange_in_attempts(
        self: &Arc<Self>,
        id: SessionId,
        change: &mut impl Change,
        attempted: &mut Option<OperationId>,
    ) -> Result<bool, HistoryError> {
        for _ in 0..ATTEMPTS_MAX {
            if let Some(ended) = self.exchange_once(id, change, attempted).await? {
                return Ok(ended);
            }
        }
        let session = self.session(id).await.map_err(FreezeError::from)?;
        if self.has_happened(&session, attempted).await? {
            return Ok(true);
        }
        Err(FreezeError::Unavailable.into())
    }

    /// Tries to exchange it. `None` if it has to be tried again.
    async fn exchange_once(
        self: &Arc<Self>,
        id: SessionId,
        change: &mut impl Change,
        attempted: &mut Option<OperationId>,
    ) -> Result<Option<bool>, HistoryError> {
        let session = self.session(id).await.map_err(FreezeError::from)?;
        let _one_at_a_time = session.exchanging.lock().await;
        let Some(_holding) = session.hold().await else {
            return Err(FreezeError::Unavailable.into());
        };
        if self.has_happened(&session, attempted).await? {
            return Ok(Some(true));
        }
        if session.freeze().await?.is_none() {
            self.forget(&session);
            return Ok(None);
        }
        let Some(root) = session.fold(For::Sharing).await? else {
            return Ok(None);
        };
        let Some(target) = change.make(root).await? else {
            return Ok(Some(false));
        };
        session.check_room(target.usage)?;
        let operation = target.exchange.operation;
        match session.exchange_now(target).await {
            Some(Ok(())) => Ok(Some(true)),
            Some(Err(Unexchanged::NoSpace)) => Err(FreezeError::NoSpace.into()),
            // Judged anew: a commit may have been made meanwhile, or the session been lost.
            Some(Err(Unexchanged::Moved)) => {
                if session.is_lost() {
                    self.forget(&session);
                }
                Ok(None)
            }
            Some(Err(Unexchanged::Gone)) => {
                let why = "a commit that is needed for it was removed meanwhile: try again";
                let why = why.to_owned();
                Err(HistoryError::Refused { why })
            }
            Some(Err(Unexchanged::Call(error))) => Err(error.into()),
            None => {
                *attempted = Some(operation);
                self.forget(&session);
                Ok(None)
            }
        }
    }

    /// Whether an attempt has happened of which nothing was heard. The session is owned anew: an attempt
    /// with an owner before has happened by now or never will.
    async fn has_happened(
        &self,
        session: &Session,
        attempted: &mut Option<OperationId>,
    ) -> Result<bool, HistoryError> {
        let Some(operation) = *attempted else {
            return Ok(false);
        };
        let is_logged = self.is_logged(session, operation).await?;
        *attempted = None;
        Ok(is_logged)
    }

    /// Does most of the work while clients go on: until what they change meanwhile takes little time,
    /// for they wait while that is seen to, or does not take much less than before. `false` if there is
    /// nothing to do.
    async fn prepare(
        self: &Arc<Self>,
        id: SessionId,
        change: &mut impl Change,
    ) -> Result<bool, HistoryError> {
        let (mut before, mut took_before) = (None, Duration::MAX);
        for _ in 0..PREPARATIONS_MAX {
            let root = self.snapshot(id).await?;
            if before.replace(root) == Some(root) {
                break;
            }
            let began = self.clock.monotonic();
            if !change.prepare(root).await? {
                return Ok(false);
            }
            let took = self.clock.monotonic().saturating_sub(began);
            // What is computed from the beginning each time takes as long each time, and leaves commits behind.
            if took <= SHORT || took > took_before / 2 {
                break;
            }
            took_before = took;
        }
        Ok(true)
    }

    /// Whether an exchange of a session's image has happened: its entry is in the operation log then.
    async fn is_logged(
        &self,
        session: &Session,
        operation: OperationId,
    ) -> Result<bool, HistoryError> {
        let workspace = session.record.workspace;
        match self.store.operation(workspace, operation).await {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Session {
    /// `None` if others hold calls up for long.
    async fn hold(self: &Arc<Self>) -> Option<Holding> {
        // So that it stays in memory meanwhile.
        self.last_used_ms
            .store(self.shared.now_ms(), Ordering::Relaxed);
        loop {
            if !self.wait_for_release().await {
                return None;
            }
            let mut state = self.lock();
            if state.lost || state.held == Held::Nobody {
                state.held = Held::Changes;
                return Some(Holding(Arc::clone(self)));
            }
        }
    }

    /// The transaction of an exchange has ended: calls go on.
    pub(super) fn exchange_done(
        &self,
        taken: TakenExchange,
        totals: Totals,
        result: Result<(), Unexchanged>,
    ) {
        {
            let mut state = self.lock();
            state.held = Held::Nobody;
            if result.is_ok() {
                self.shared.counters.exchanges.count();
                state.durable_totals = totals;
                state.exchanged(taken.root, totals);
            }
        }
        self.released.notify_waiters();
        self.flushed.notify_waiters();
        self.written.notify_waiters();
        // Nobody has to wait for it.
        drop(taken.tell.send(result));
    }

    /// Waits until calls are not held up any more. `false` if that takes as long as a call may wait.
    pub(super) async fn wait_for_release(&self) -> bool {
        let patience = self.shared.clock.sleep(PATIENCE);
        tokio::select! {
            is_released = self.released() => is_released,
            () = patience => false,
        }
    }

    async fn released(&self) -> bool {
        loop {
            let released = self.released.notified();
            let stalls = {
                let state = self.lock();
                if state.lost || state.held == Held::Nobody {
                    return true;
                }
                state.stalls
            };
            released.await;
            if self.lock().stalls != stalls {
                return false;
            }
        }
    }

    /// Refuses an image beyond the quota, unless it takes less than the one that is there.
    fn check_room(&self, usage: Usage) -> Result<(), HistoryError> {
        let state = self.lock();
        let (config, now) = (state.image.config(), state.image.usage());
        let is_more = |new: u64, old: u64, max: u64| new > max && new > old;
        if is_more(usage.bytes, now.bytes, config.bytes_max)
            || is_more(usage.inodes, now.inodes, config.inodes_max)
        {
            return Err(HistoryError::OverQuota);
        }
        Ok(())
    }

    /// `None` if the session is lost, and it may have been exchanged.
    async fn exchange_now(self: &Arc<Self>, target: Target) -> Option<Result<(), Unexchanged>> {
        let done = {
            let mut state = self.lock();
            if state.lost {
                // Whoever owns it now is asked.
                return Some(Err(Unexchanged::Moved));
            }
            let (tell, done) = oneshot::channel();
            state.exchange = Some(Wanted { target, tell });
            self.kick_flush(&mut state);
            done
        };
        done.await.ok()
    }
}

impl State {
    /// The flush that makes the exchange that is wanted, if the image is as it was when the target
    /// was computed; else says so.
    pub(super) fn take_exchange(&mut self) -> Option<(FlushBatch, TakenExchange)> {
        let wanted = self.exchange.take()?;
        let is_as_it_was = self.image.is_clean()
            && self.open_is_empty
            && self.layers.frozen().is_empty()
            && self.layers.base().root() == Some(wanted.target.from);
        if is_as_it_was {
            self.held = Held::Everything;
            let Wanted { target, tell } = wanted;
            let root = target.exchange.root;
            let batch = FlushBatch {
                totals: Totals {
                    usage: target.usage,
                    numbers: self.durable_totals.numbers,
                },
                forgotten: self.calls.take_forgotten(),
                exchange: Some(Box::new(target.exchange)),
                ..FlushBatch::default()
            };
            return Some((batch, TakenExchange { root, tell }));
        }
        // Nobody has to wait for it.
        drop(wanted.tell.send(Err(Unexchanged::Moved)));
        None
    }

    /// The image is another one from here on.
    fn exchanged(&mut self, root: Root, totals: Totals) {
        let base = Base::Tree {
            tree: self.layers.base().tree().clone(),
            root,
        };
        self.layers = Arc::new(Layers::new(self.layers.open(), Vec::new(), base));
        self.open_is_empty = true;
        self.image.replace(totals);
        // What was begun before is begun anew.
        self.generation += 1;
    }
}
