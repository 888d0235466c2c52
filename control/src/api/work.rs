//! What calls do, bounded.
//!
//! What writes runs as a task of its own to its end, for the HTTP layer drops the handler of a caller
//! that went away; a permit is held until then. What only reads ends with its caller. If it reads much
//! it waits for its turn: few such calls run at a time, some more wait, and each for a bounded time.

use std::sync::Arc;
use std::time::Duration;

use base::{Clock, Tasks};
use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::serving::CALLS_MAX;
use crate::status::ApiError;

/// Most calls that run to their end, with those whose callers have gone.
const LASTING_MAX: usize = CALLS_MAX;

/// Most calls with keys that run to their end. What such a call does runs to its end, too, and has its place
/// among the others: of one bound for both, those that see to keys could leave nothing for what they do.
const KEYED_MAX: usize = CALLS_MAX;

/// Most calls that read much at a time. Each takes a processor, and has some MiB in memory.
const READS_MAX: usize = 8;

/// Most further ones that wait: many times what people and agents ask for, and few enough that other
/// calls have room beside them.
const WAITING_MAX: usize = 64;

/// How long one waits for its turn.
const TURN_PATIENCE: Duration = Duration::from_secs(20);

const _: () = assert!(READS_MAX + WAITING_MAX <= CALLS_MAX / 2);

/// Bounds what calls do.
#[derive(Debug)]
pub(super) struct Work {
    tasks: Tasks,
    clock: Arc<dyn Clock>,
    lasting: Arc<Semaphore>,
    keyed: Arc<Semaphore>,
    reads: Turns,
}

/// Work of one kind: some at a time, and some more that waits for its turn.
#[derive(Debug)]
pub(super) struct Turns {
    /// What it is, for those who are told that there is too much of it.
    what: &'static str,
    max: usize,
    /// What is done and what waits.
    places: Arc<Semaphore>,
    turns: Arc<Semaphore>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _turn: OwnedSemaphorePermit,
    _place: OwnedSemaphorePermit,
}

impl Turns {
    /// `max` of `what` at a time; `waiting` more wait.
    pub(super) fn new(what: &'static str, max: usize, waiting: usize) -> Self {
        Self {
            what,
            max,
            places: Arc::new(Semaphore::new(max + waiting)),
            turns: Arc::new(Semaphore::new(max)),
        }
    }

    /// A turn, waited for no longer than [`TURN_PATIENCE`].
    ///
    /// # Errors
    ///
    /// There is too much of it: try again later.
    pub(super) async fn take(&self, clock: &dyn Clock) -> Result<Turn, ApiError> {
        let busy = || {
            let (max, what) = (self.max, self.what);
            ApiError::not_ready(format!(
                "{max} {what} are under way already: try again later"
            ))
        };
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| busy())?;
        let turn = tokio::select! {
            biased;
            turn = Arc::clone(&self.turns).acquire_owned() => turn.map_err(|_| busy())?,
            () = clock.sleep(TURN_PATIENCE) => return Err(busy()),
        };
        Ok(Turn {
            _turn: turn,
            _place: place,
        })
    }
}

impl Work {
    /// What runs to its end runs as `tasks`.
    pub(super) fn new(tasks: Tasks, clock: Arc<dyn Clock>) -> Self {
        Self {
            tasks,
            clock,
            lasting: Arc::new(Semaphore::new(LASTING_MAX)),
            keyed: Arc::new(Semaphore::new(KEYED_MAX)),
            reads: Turns::new("calls that read much", READS_MAX, WAITING_MAX),
        }
    }

    /// Runs `work` to its end, also if the caller goes away.
    ///
    /// # Cancellation
    ///
    /// Safe to drop: the work goes on.
    pub(super) fn to_end<'a, T, F>(&'a self, work: F) -> BoxFuture<'a, Result<T, ApiError>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ApiError>> + Send + 'static,
    {
        self.among(&self.lasting, work)
    }

    /// As [`to_end`](Self::to_end), for what sees to the key of a call and may run others to their end.
    ///
    /// # Cancellation
    ///
    /// Safe to drop: the work goes on.
    pub(super) fn keyed_to_end<'a, T, F>(&'a self, work: F) -> BoxFuture<'a, Result<T, ApiError>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ApiError>> + Send + 'static,
    {
        self.among(&self.keyed, work)
    }

    fn among<'a, T, F>(
        &'a self,
        places: &'a Arc<Semaphore>,
        work: F,
    ) -> BoxFuture<'a, Result<T, ApiError>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ApiError>> + Send + 'static,
    {
        // It can be large.
        let work = Box::pin(work);
        Box::pin(async move {
            let permit = Arc::clone(places).try_acquire_owned();
            let permit =
                permit.map_err(|_| ApiError::not_ready("too many calls at once: try again"))?;
            let (done, result) = tokio::sync::oneshot::channel();
            self.tasks.spawn(async move {
                // Nobody waits any more if the caller has gone.
                drop(done.send(work.await));
                drop(permit);
            });
            match result.await {
                Ok(result) => result,
                Err(_) => Err(ApiError::not_ready(
                    "the call did not end: look before trying again",
                )),
            }
        })
    }

    /// Runs `work`, which reads much and changes nothing, when it is its turn.
    ///
    /// # Cancellation
    ///
    /// As safe as `work`, which is dropped as well.
    pub(super) fn reading<'a, T: Send + 'a>(
        &'a self,
        work: impl Future<Output = Result<T, ApiError>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, ApiError>> {
        // It can be large.
        let work = Box::pin(work);
        Box::pin(async move {
            let _turn = self.reads.take(self.clock.as_ref()).await?;
            work.await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use axum::http::StatusCode;
    use axum::response::IntoResponse;
    use base::{ManualClock, SystemClock, Timestamp};

    type Call<'a> = Pin<Box<dyn Future<Output = Result<(), ApiError>> + 'a>>;

    fn poll(call: &mut Call<'_>) -> Poll<Result<(), ApiError>> {
        call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    fn is_refused(polled: Poll<Result<(), ApiError>>) -> bool {
        let Poll::Ready(Err(error)) = polled else {
            return false;
        };
        error.into_response().status() == StatusCode::SERVICE_UNAVAILABLE
    }

    /// Callers that go away do not make room for others before what they began is done.
    #[tokio::test]
    async fn what_runs_on_counts() {
        let tasks = Tasks::new();
        let work = Work::new(tasks.clone(), Arc::new(SystemClock::new()));
        let end = Arc::new(Semaphore::new(0));
        let call = || -> Call<'_> {
            let end = Arc::clone(&end);
            Box::pin(work.to_end(async move {
                end.acquire().await.unwrap().forget();
                Ok(())
            }))
        };
        for _ in 0..LASTING_MAX {
            assert!(poll(&mut call()).is_pending());
        }
        assert_eq!(tasks.running(), LASTING_MAX);
        assert!(is_refused(poll(&mut call())));
        end.add_permits(1);
        while tasks.running() == LASTING_MAX {
            tokio::task::yield_now().await;
        }
        let mut last = call();
        assert!(poll(&mut last).is_pending());
        end.add_permits(LASTING_MAX);
        assert_eq!(last.await, Ok(()));
        tasks.join().await;
    }

    #[tokio::test]
    async fn few_read_much_at_a_time_and_nobody_waits_for_ever() {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let work = Work::new(Tasks::new(), clock.clone());
        let running = Semaphore::new(0);
        let end = Semaphore::new(0);
        let call = || -> Call<'_> {
            Box::pin(work.reading(async {
                running.add_permits(1);
                end.acquire().await.unwrap().forget();
                Ok(())
            }))
        };
        let mut calls: Vec<_> = (0..READS_MAX + WAITING_MAX).map(|_| call()).collect();
        for call in &mut calls {
            assert!(poll(call).is_pending());
        }
        assert_eq!(running.available_permits(), READS_MAX);
        assert!(is_refused(poll(&mut call())));
        // One goes away, and another one's turn has come.
        drop(calls.remove(0));
        let next = READS_MAX - 1;
        assert!(poll(&mut calls[next]).is_pending());
        assert_eq!(running.available_permits(), READS_MAX + 1);
        let mut late = call();
        assert!(poll(&mut late).is_pending());
        // Those that wait are refused in the end, and those that run are not.
        clock.advance(TURN_PATIENCE);
        assert!(is_refused(poll(&mut late)));
        for mut call in calls.split_off(READS_MAX) {
            assert!(is_refused(poll(&mut call)));
        }
        end.add_permits(READS_MAX);
        for call in calls {
            assert_eq!(call.await, Ok(()));
        }
    }
}
