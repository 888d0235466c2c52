//! What the transport counts.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::calls::CallCounts;

/// One count that only goes up.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one.
    pub fn count(&self) {
        self.add(1);
    }

    /// Counts `number`.
    pub fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    /// The count so far.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number of bytes that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicUsize);

impl Gauge {
    /// Adds `bytes`; returns what there was before.
    pub(crate) fn add(&self, bytes: usize) -> usize {
        self.0.fetch_add(bytes, Ordering::SeqCst)
    }

    /// Takes `bytes` off; returns what there was before.
    pub(crate) fn sub(&self, bytes: usize) -> usize {
        self.0.fetch_sub(bytes, Ordering::SeqCst)
    }

    /// How many there are, in bytes.
    #[must_use]
    pub fn value(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// All counts of the transport.
#[derive(Debug, Default)]
pub struct TransportCounters {
    /// Connections accepted.
    pub accepted: Counter,
    /// Times `accept` failed, as when file descriptors run out.
    pub accept_errors: Counter,
    /// Times all places for connections were taken when the next was to be accepted.
    pub crowded: Counter,
    /// Connections that have ended, whatever the reason.
    pub ended: Counter,
    /// Records received.
    pub records: Counter,
    /// Bytes received.
    pub received_bytes: Counter,
    /// Calls by procedure and outcome.
    pub calls: CallCounts,
    /// Replies sent completely.
    pub replies: Counter,
    /// Bytes sent.
    pub sent_bytes: Counter,
    /// Replies that came when their connection was gone.
    pub replies_dropped: Counter,
    /// Times a connection was not read for a while because a limit was reached.
    pub paused: Counter,
    /// Connections closed because their bytes were no records, or no calls.
    pub ended_garbage: Counter,
    /// Connections closed because a call panicked.
    pub ended_panic: Counter,
    /// Connections closed because a record did not arrive in time.
    pub ended_slow_record: Counter,
    /// Connections closed because replies were not taken in time.
    pub ended_slow_replies: Counter,
    /// Connections closed because nothing was asked for a long time.
    pub ended_idle: Counter,
    /// Connections that a balancer made for clients.
    pub proxied: Counter,
    /// Connections closed because their PROXY header was missing, malformed or not expected, or
    /// because a balancer's own connection asked for more than whether somebody answers.
    pub ended_proxy: Counter,
    /// Connections closed by the service.
    pub ended_by_service: Counter,
    /// Bytes of calls and replies held now, but for a little that each connection may always hold.
    pub held_bytes: Gauge,
    /// Bytes held now for records in the making, likewise.
    pub receiving_bytes: Gauge,
}

impl TransportCounters {
    /// Connections that are open now.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.accepted.value().saturating_sub(self.ended.value())
    }
}
