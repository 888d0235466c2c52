//! Memory for records that are being received, and what happens when there is none.
//!
//! A connection holds a little as it likes. For a big record it borrows the whole length before it
//! reads on, in the order of asking; a borrower never waits for more, so one of them can always
//! finish. While anybody waits for memory, those who are slow to send or to take what they asked
//! for are given up much sooner than else ([`Pressure`]).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Clock;
use base::limits::RECORD_BYTES_MAX;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::counters::TransportCounters;
use crate::wire::record::{RECEIVE_BYTES_FREE, RECEIVE_BYTES_IDLE};

/// Bytes that all connections together may hold of records in the making.
#[derive(Debug)]
pub(crate) struct Receiving {
    room: Arc<Semaphore>,
    counters: Arc<TransportCounters>,
}

impl Receiving {
    /// Room for `bytes_max`, but at least for the largest record.
    pub(crate) fn new(bytes_max: usize, counters: Arc<TransportCounters>) -> Self {
        let least = RECORD_BYTES_MAX + RECEIVE_BYTES_IDLE;
        Self {
            room: Arc::new(Semaphore::new(
                bytes_max.clamp(least, Semaphore::MAX_PERMITS),
            )),
            counters,
        }
    }
}

type Asked = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

/// What one connection has borrowed.
pub(crate) struct Loan {
    receiving: Arc<Receiving>,
    granted: Option<OwnedSemaphorePermit>,
    asked: Option<Asked>,
    /// What of the connection's memory is in `TransportCounters::receiving_bytes`.
    noted: usize,
}

impl Loan {
    pub(crate) fn new(receiving: Arc<Receiving>) -> Self {
        Self {
            receiving,
            granted: None,
            asked: None,
            noted: 0,
        }
    }

    /// Asks for `bytes`. Says whether they are granted at once; else [`Loan::wait`] for them.
    pub(crate) fn ask(&mut self, bytes: usize) -> bool {
        if self.granted.is_some() {
            return true;
        }
        if self.asked.is_none() {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            let room = Arc::clone(&self.receiving.room);
            match Arc::clone(&room).try_acquire_many_owned(bytes) {
                Ok(granted) => self.granted = Some(granted),
                // Fails only if the semaphore is closed, which nobody does.
                Err(_) => {
                    let asked = async move { room.acquire_many_owned(bytes).await.ok() };
                    self.asked = Some(Box::pin(asked));
                }
            }
        }
        self.granted.is_some()
    }

    /// Completes when what was asked for is granted. Safe to drop: the place in the queue is kept.
    pub(crate) async fn wait(&mut self) {
        if let Some(asked) = &mut self.asked {
            self.granted = asked.await;
            self.asked = None;
        }
    }

    /// Whether something was asked for that is not granted yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.asked.is_some()
    }

    /// Whether something is borrowed.
    pub(crate) fn is_granted(&self) -> bool {
        self.granted.is_some()
    }

    /// Gives back what is borrowed.
    pub(crate) fn give_back(&mut self) {
        self.granted = None;
        self.asked = None;
    }

    /// Notes that the connection's reader holds `bytes`.
    pub(crate) fn note(&mut self, bytes: usize) {
        let now = bytes.saturating_sub(RECEIVE_BYTES_FREE);
        let held = &self.receiving.counters.receiving_bytes;
        if now > self.noted {
            held.add(now - self.noted);
        } else if now < self.noted {
            held.sub(self.noted - now);
        }
        self.noted = now;
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.note(0);
    }
}

/// Tells all connections that somebody waits for memory.
#[derive(Debug)]
pub(crate) struct Pressure {
    told: Notify,
    last_ms: AtomicU64,
    every: Duration,
}

impl Pressure {
    /// Tells it once in each `every`, while somebody waits.
    pub(crate) fn new(every: Duration) -> Self {
        Self {
            told: Notify::new(),
            last_ms: AtomicU64::new(0),
            every: every.max(Duration::from_millis(1)),
        }
    }

    /// Waits for `room`, and meanwhile tells everybody. As safe to drop as `room` is.
    pub(crate) async fn until<T>(&self, clock: &dyn Clock, room: impl Future<Output = T>) -> T {
        let mut room = std::pin::pin!(room);
        loop {
            tokio::select! {
                biased;
                found = &mut room => return found,
                () = clock.sleep(self.every) => self.tell(clock.monotonic()),
            }
        }
    }

    /// Completes when somebody waits. Safe to drop; what was told before is not heard.
    pub(crate) async fn told(&self) {
        self.told.notified().await;
    }

    /// However many wait, everybody is told once.
    fn tell(&self, now: Duration) {
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let every = u64::try_from(self.every.as_millis()).unwrap_or(u64::MAX);
        let last = self.last_ms.load(Ordering::Relaxed);
        let is_due = now.saturating_sub(last) >= every / 2;
        if is_due
            && self
                .last_ms
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.told.notify_waiters();
        }
    }
}

/// What one connection has not moved since when, as seen each time it is told of pressure.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stuck {
    looked: Duration,
    /// The number that should go up, and since when it has not.
    last: Option<(u64, Duration)>,
}

impl Stuck {
    /// Looks at `number`, which should go up. Returns for how long it has not, as far as looks
    /// that came without a pause of `pause` can tell.
    pub(crate) fn look(&mut self, number: u64, now: Duration, pause: Duration) -> Duration {
        let is_new = now.saturating_sub(self.looked) >= pause;
        self.looked = now;
        match self.last {
            Some((last, since)) if last == number && !is_new => now.saturating_sub(since),
            _ => {
                self.last = Some((number, now));
                Duration::ZERO
            }
        }
    }

    /// Nothing is owed.
    pub(crate) fn clear(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loan_is_bounded_and_counts_until_it_is_given_back() {
        let counters = Arc::new(TransportCounters::default());
        let receiving = Arc::new(Receiving::new(0, Arc::clone(&counters)));
        let held = || counters.receiving_bytes.value();
        let largest = RECORD_BYTES_MAX + RECEIVE_BYTES_IDLE;
        let (mut first, mut second) = (
            Loan::new(Arc::clone(&receiving)),
            Loan::new(Arc::clone(&receiving)),
        );
        assert!(first.ask(largest));
        assert!(!second.ask(1));
        first.note(largest);
        assert_eq!(held(), largest - RECEIVE_BYTES_FREE);
        first.note(RECEIVE_BYTES_FREE);
        assert_eq!(held(), 0);
        first.note(largest);
        drop(first);
        assert_eq!(held(), 0);
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(second.wait());
        assert!(second.is_granted());
    }

    #[test]
    fn what_does_not_move_is_noticed_by_looks_that_follow_each_other() {
        let second = Duration::from_secs;
        let mut stuck = Stuck::default();
        let mut look = |number, now| stuck.look(number, second(now), second(5));
        assert_eq!(look(7, 1), second(0));
        assert_eq!(look(7, 3), second(2));
        assert_eq!(look(8, 4), second(0));
        assert_eq!(look(8, 8), second(4));
        // Nobody looked for long: it may have moved and come to rest again.
        assert_eq!(look(8, 20), second(0));
        stuck.clear();
        assert_eq!(stuck.look(8, second(21), second(5)), second(0));
    }
}
