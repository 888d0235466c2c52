//! The one loop that runs transactions.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base::limits::FDB_TIMEOUT_MAX;
use base::{Clock, Rng, Told};
use bytes::Bytes;

use crate::kv::{Committed, Isolation, KeyRange, Kv, KvError, RangeLimit, Transaction, pairs_of};

/// Attempts of a transaction unless the caller says otherwise: with the pauses between them far
/// more than any conflict between a few writers needs.
pub const ATTEMPTS_MAX_DEFAULT: u32 = 50;

/// Time for a transaction unless the caller says otherwise.
pub const TIME_MAX_DEFAULT: Duration = Duration::from_secs(10);

/// A transaction that times out in FoundationDB is run again, and looked up if it may have happened: each
/// of both may take as long as one may.
const _: () = assert!(2 * FDB_TIMEOUT_MAX.as_millis() <= TIME_MAX_DEFAULT.as_millis());

/// Longest pause after the first conflict. Doubles with each attempt; the pause is a random part.
const PAUSE_AFTER_CONFLICT: Duration = Duration::from_millis(1);

/// Longest pause after the first failure of the store itself.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(10);

/// Longest pause (FoundationDB's).
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long to go on trying. Both bounds hold; they are looked at between attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Most attempts; at least one is made.
    pub attempts_max: u32,
    /// No attempt begins later than this after the first.
    pub time_max: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            attempts_max: ATTEMPTS_MAX_DEFAULT,
            time_max: TIME_MAX_DEFAULT,
        }
    }
}

/// What is known of the attempts before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// None of them can have been committed.
    Failed,
    /// At least one may have been, or may still be. Never goes back to [`Earlier::Failed`].
    Unknown,
}

/// One run of a body.
///
/// A boxed future, since a bound on an async closure cannot say that its future may be sent to
/// another thread, as a task needs.
pub type Attempt<'t, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 't>>;

/// An error that may come from the store.
pub trait TransactError: From<KvError> + Send {
    /// The store's error, if that is what this is.
    fn as_kv(&self) -> Option<&KvError>;
}

impl TransactError for KvError {
    fn as_kv(&self) -> Option<&KvError> {
        Some(self)
    }
}

/// Runs transactions on a store. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Transactor {
    kv: Arc<dyn Kv>,
    clock: Arc<dyn Clock>,
    rng: Arc<Rng>,
}

impl Transactor {
    /// Runs transactions on `kv`. Pauses are random, so that writers that met do not meet again.
    #[must_use]
    pub fn new(kv: Arc<dyn Kv>, clock: Arc<dyn Clock>, rng: Arc<Rng>) -> Self {
        Self { kv, clock, rng }
    }

    /// The store, for what needs no loop.
    #[must_use]
    pub fn kv(&self) -> &Arc<dyn Kv> {
        &self.kv
    }

    /// Runs `body` in a transaction and commits it. `body` takes effect once, or not at all.
    ///
    /// `body` runs anew for every attempt. It must depend on nothing but its arguments and what
    /// it reads through the transaction: ids, times and random numbers are drawn before the call.
    ///
    /// It is written `|transaction, earlier| Box::pin(async move { … })`. What the block uses it
    /// moves, so anything that is not `Copy` is used through a reference taken before.
    ///
    /// With [`Earlier::Unknown`] an attempt before may be in the store, so `body` must look first
    /// for what that attempt would have written: a record, an id, a sequence number. If it is
    /// there, `body` returns its result and writes nothing. If not, `body` goes on as usual. The
    /// look must be a serializable read: then an attempt that comes late conflicts with this one
    /// and can no longer happen. A body that is right however often it is applied may ignore the
    /// argument. A body that refuses (returns an error of its own) writes nothing that a late
    /// attempt could conflict with; where that matters, it must write instead.
    ///
    /// # Errors
    ///
    /// - What `body` returns, unchanged, unless it is an error of the store that another attempt
    ///   may heal. The transaction is then dropped.
    /// - The store's last error when the budget is spent and no attempt can have been committed,
    ///   or at once if it is none that another attempt heals.
    /// - [`KvError::OutcomeUnknown`] in place of any error of the store if an attempt may have
    ///   been committed.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: dropping the future leaves the outcome unknown.
    pub async fn transact<'env, T, E, F>(&self, budget: Budget, body: F) -> Result<T, E>
    where
        T: Send,
        E: TransactError,
        F: for<'t> Fn(&'t mut (dyn Transaction + 'env), Earlier) -> Attempt<'t, T, E> + Send + Sync,
    {
        let (value, _) = self.transact_at(budget, body).await?;
        Ok(value)
    }

    /// The first pairs of a range behind a key of it, `count` at most and at least one if there is one. For whoever goes
    /// through a table and reads again what it acts on.
    ///
    /// # Errors
    ///
    /// The store fails.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn pairs_after(
        &self,
        mut range: KeyRange,
        after: Option<Vec<u8>>,
        count: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, KvError> {
        if let Some(after) = after {
            range.start = KeyRange::key(&after).end;
        }
        let range = &range;
        let pairs = self.transact(Budget::default(), |txn, _| {
            let limit = RangeLimit::pairs(count.max(1));
            // Writes nothing: nothing to conflict with.
            Box::pin(async move {
                let pairs = pairs_of(&*txn, range.clone(), limit, Isolation::Snapshot).await?;
                Ok(pairs)
            })
        });
        pairs.await
    }

    /// As [`Transactor::transact`], and tells the commit's version.
    ///
    /// # Errors
    ///
    /// As [`Transactor::transact`].
    ///
    /// # Cancellation
    ///
    /// As [`Transactor::transact`].
    pub async fn transact_at<'env, T, E, F>(
        &self,
        budget: Budget,
        body: F,
    ) -> Result<(T, Committed), E>
    where
        T: Send,
        E: TransactError,
        F: for<'t> Fn(&'t mut (dyn Transaction + 'env), Earlier) -> Attempt<'t, T, E> + Send + Sync,
    {
        let deadline = self.clock.monotonic().saturating_add(budget.time_max);
        let mut earlier = Earlier::Failed;
        let mut attempt = 1;
        loop {
            let mut transaction = self.kv.begin();
            let error = match body(&mut *transaction, earlier).await {
                Ok(value) => match transaction.commit().await {
                    Ok(committed) => return Ok((value, committed)),
                    Err(error) => {
                        if error == KvError::OutcomeUnknown {
                            earlier = Earlier::Unknown;
                        }
                        error
                    }
                },
                Err(error) => match error.as_kv() {
                    Some(inner) => inner.clone(),
                    None => return Err(error),
                },
            };
            let Some(pause_max) = pause_after(&error, attempt) else {
                return Err(ended(error, earlier).into());
            };
            let pause = self.part_of(pause_max);
            let late = self.clock.monotonic().saturating_add(pause) > deadline;
            if late || attempt >= budget.attempts_max {
                return Err(ended(error, earlier).into());
            }
            tracing::debug!(error = %Told(&error), attempt, ?earlier, "transaction runs again");
            if !pause.is_zero() {
                self.clock.sleep(pause).await;
            }
            attempt = attempt.saturating_add(1);
        }
    }

    /// A random part of `whole`.
    fn part_of(&self, whole: Duration) -> Duration {
        let micros = u64::try_from(whole.as_micros()).unwrap_or(u64::MAX);
        match self.rng.u64().checked_rem(micros) {
            Some(part) => Duration::from_micros(part),
            None => Duration::ZERO,
        }
    }
}

/// The longest pause before another attempt; `None` if that would end the same.
fn pause_after(error: &KvError, attempt: u32) -> Option<Duration> {
    let first = match error {
        // A new read version is all that was missing.
        KvError::VersionTooOld if attempt == 1 => return Some(Duration::ZERO),
        KvError::Conflict | KvError::VersionTooOld => PAUSE_AFTER_CONFLICT,
        KvError::Unavailable(_) | KvError::OutcomeUnknown => PAUSE_AFTER_FAILURE,
        KvError::NoSpace
        | KvError::Limit(_)
        | KvError::Usage(_)
        | KvError::Outlived
        | KvError::Corrupt(_) => return None,
    };
    let doublings = attempt.saturating_sub(1).min(16);
    Some(first.saturating_mul(1 << doublings).min(PAUSE_MAX))
}

/// The error to end with. Whatever stopped the loop, an attempt before may have been committed.
fn ended(error: KvError, earlier: Earlier) -> KvError {
    match earlier {
        Earlier::Failed => error,
        Earlier::Unknown => {
            tracing::warn!(error = %Told(&error), "outcome of a transaction stays unknown");
            KvError::OutcomeUnknown
        }
    }
}

#[cfg(test)]
mod tests;
