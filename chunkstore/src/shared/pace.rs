//! How fast the object store is, and how fast it may be asked.

use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use parking_lot::Mutex;

/// Calls that are remembered to tell what is slow.
const REMEMBERED: usize = 128;

/// Of so many calls one is slower than what counts as usual.
const SLOW_PART: usize = 20;

/// Lets bytes pass at a bounded rate.
#[derive(Debug)]
pub(super) struct Throttle {
    per_second: Option<u64>,
    clock: Arc<dyn Clock>,
    /// When all that has passed is paid for.
    paid_at: Mutex<Duration>,
}

impl Throttle {
    pub(super) fn new(per_second: Option<u64>, clock: Arc<dyn Clock>) -> Self {
        Self {
            per_second: per_second.filter(|rate| *rate > 0),
            clock,
            paid_at: Mutex::default(),
        }
    }

    /// Waits until `bytes` may pass. Safe to drop; then they do not count.
    pub(super) async fn pass(&self, bytes: usize) {
        let Some(per_second) = self.per_second else {
            return;
        };
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let micros = bytes.saturating_mul(1_000_000) / per_second;
        let mut charge = Charge {
            throttle: self,
            time: Duration::from_micros(micros),
        };
        let wait = {
            let now = self.clock.monotonic();
            let mut paid_at = self.paid_at.lock();
            let begin = now.max(*paid_at);
            *paid_at = begin.saturating_add(charge.time);
            begin.saturating_sub(now)
        };
        if !wait.is_zero() {
            self.clock.sleep(wait).await;
        }
        charge.time = Duration::ZERO;
    }
}

/// What is charged for bytes that wait. Taken back if they are not sent.
#[derive(Debug)]
struct Charge<'a> {
    throttle: &'a Throttle,
    time: Duration,
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        let mut paid_at = self.throttle.paid_at.lock();
        *paid_at = paid_at.saturating_sub(self.time);
    }
}

/// The last calls' times.
#[derive(Debug, Default)]
pub(super) struct Latencies(Mutex<(Vec<Duration>, usize)>);

impl Latencies {
    pub(super) fn add(&self, took: Duration) {
        let (times, next) = &mut *self.0.lock();
        match times.get_mut(*next) {
            Some(old) => *old = took,
            None => times.push(took),
        }
        *next = (*next + 1) % REMEMBERED;
    }

    /// What only one call in twenty takes longer than; `None` as long as too few are known.
    pub(super) fn slow(&self) -> Option<Duration> {
        let mut times = self.0.lock().0.clone();
        if times.len() < SLOW_PART {
            return None;
        }
        times.sort_unstable();
        let rank = times.len() - times.len().div_ceil(SLOW_PART);
        times.get(rank).copied()
    }
}

#[cfg(test)]
mod tests {
    use base::{ManualClock, Timestamp};

    use super::*;

    #[test]
    fn what_is_slow_is_what_few_are() {
        let latencies = Latencies::default();
        for millis in 0..19 {
            latencies.add(Duration::from_millis(millis));
        }
        assert_eq!(latencies.slow(), None);
        for millis in 0..1000 {
            latencies.add(Duration::from_millis(millis % 100));
        }
        let slow = latencies.slow().unwrap();
        assert!(slow > Duration::from_millis(90), "{slow:?}");
    }

    #[tokio::test]
    async fn bytes_wait_for_those_before() {
        let clock = Arc::new(ManualClock::new(Timestamp::new(1, 0)));
        let throttle = Throttle::new(Some(1000), clock.clone());
        throttle.pass(2000).await;
        let mut second = Box::pin(throttle.pass(1));
        let mut is_pending = async || {
            std::future::poll_fn(|cx| std::task::Poll::Ready(second.as_mut().poll(cx).is_pending()))
                .await
        };
        assert!(is_pending().await);
        clock.advance(Duration::from_millis(1900));
        assert!(is_pending().await);
        clock.advance(Duration::from_millis(200));
        assert!(!is_pending().await);
        Throttle::new(None, clock).pass(usize::MAX).await;
    }

    /// Who gives up while it waits leaves no debt to others.
    #[tokio::test]
    async fn bytes_that_are_given_up_do_not_count() {
        let clock = Arc::new(ManualClock::new(Timestamp::new(1, 0)));
        let throttle = Throttle::new(Some(1000), clock.clone());
        throttle.pass(2000).await;
        for _ in 0..10 {
            let mut given_up = Box::pin(throttle.pass(50_000));
            std::future::poll_fn(|cx| {
                assert!(given_up.as_mut().poll(cx).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
        }
        clock.advance(Duration::from_millis(2100));
        let mut next = Box::pin(throttle.pass(1));
        std::future::poll_fn(|cx| {
            assert!(next.as_mut().poll(cx).is_ready());
            std::task::Poll::Ready(())
        })
        .await;
    }
}
