//! Where the transport waits: back-pressure is not reading the socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::counters::TransportCounters;

/// A gate in front of all connections. While it is closed no further call is taken from any.
#[derive(Debug, Default)]
pub struct Gate {
    is_closed: AtomicBool,
    opened: Notify,
}

impl Gate {
    /// An open gate.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes no further calls. Calls taken already go on, and have to be what opens the gate
    /// again: the COMMIT that would make room may be waiting outside.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    /// Takes calls again.
    pub fn open(&self) {
        if self.is_closed.swap(false, Ordering::SeqCst) {
            self.opened.notify_waiters();
        }
    }

    /// Whether calls are taken.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.is_closed.load(Ordering::SeqCst)
    }

    /// Completes when the gate is open. Safe to drop.
    pub async fn wait_open(&self) {
        wait_until(&self.opened, || self.is_open()).await;
    }
}

/// Bytes that all connections together may hold.
#[derive(Debug)]
pub(crate) struct Budget {
    counters: Arc<TransportCounters>,
    bytes_max: usize,
    freed: Notify,
}

impl Budget {
    pub(crate) fn new(bytes_max: usize, counters: Arc<TransportCounters>) -> Self {
        Self {
            counters,
            bytes_max,
            freed: Notify::new(),
        }
    }

    pub(crate) fn charge(&self, bytes: usize) {
        if bytes > 0 {
            self.counters.held_bytes.add(bytes);
        }
    }

    pub(crate) fn release(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let before = self.counters.held_bytes.sub(bytes);
        if before >= self.bytes_max && before - bytes < self.bytes_max {
            self.freed.notify_waiters();
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.counters.held_bytes.value() >= self.bytes_max
    }

    pub(crate) fn is_half_full(&self) -> bool {
        self.counters.held_bytes.value() >= self.bytes_max / 2
    }

    /// Completes when there is room. Safe to drop.
    pub(crate) async fn wait_room(&self) {
        wait_until(&self.freed, || !self.is_full()).await;
    }
}

/// Waits for `condition`, which `changed` announces.
async fn wait_until(changed: &Notify, condition: impl Fn() -> bool) {
    loop {
        let mut notified = std::pin::pin!(changed.notified());
        // Listen first and look then, so that no change falls between.
        notified.as_mut().enable();
        if condition() {
            return;
        }
        notified.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_closed_gate_is_waited_for() {
        let gate = Arc::new(Gate::new());
        gate.wait_open().await;
        gate.close();
        let tasks = base::Tasks::new();
        let waiter = Arc::clone(&gate);
        tasks.spawn(async move { waiter.wait_open().await });
        tokio::task::yield_now().await;
        assert_eq!(tasks.running(), 1);
        gate.open();
        tasks.join().await;
    }

    #[tokio::test]
    async fn a_full_budget_is_waited_for() {
        let budget = Arc::new(Budget::new(10, Arc::default()));
        budget.charge(9);
        budget.wait_room().await;
        budget.charge(5);
        assert!(budget.is_full());
        let tasks = base::Tasks::new();
        let waiter = Arc::clone(&budget);
        tasks.spawn(async move { waiter.wait_room().await });
        tokio::task::yield_now().await;
        budget.release(4);
        tokio::task::yield_now().await;
        assert_eq!(tasks.running(), 1);
        budget.release(10);
        tasks.join().await;
    }
}
