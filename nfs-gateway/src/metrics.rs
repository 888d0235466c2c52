//! What the gateway counts. `docs/metrics.md` lists them.

use std::time::Duration;

use base::Histogram;

use crate::counters::Counter;

/// Counters of sessions and calls. Read them with [`Counter::value`].
#[derive(Debug, Default)]
pub struct GatewayCounters {
    /// NFS calls taken.
    pub calls: Counter,
    /// Calls that memory could not answer.
    pub slow_calls: Counter,
    /// Loads of parts of an image.
    pub loads: Counter,
    /// Open layers frozen, for forks and snapshots.
    pub freezes: Counter,
    /// Times frozen layers became a tree.
    pub folds: Counter,
    /// Times a session got another image by a restore or a sync.
    pub exchanges: Counter,
    /// Sessions taken over.
    pub takeovers: Counter,
    /// Sessions dropped from memory after being idle.
    pub retired: Counter,
    /// Flushes that took effect or failed.
    pub flushes: Counter,
    /// Flushes that failed and made the session be loaded anew.
    pub flush_failures: Counter,
    /// Flushes that the metadata store had no room for: the changes in them were refused.
    pub flushes_refused: Counter,
    /// Flushes refused because another gateway owns the session.
    pub fenced: Counter,
    /// Calls answered with the reply of an earlier copy.
    pub replayed: Counter,
    /// Calls answered with a reply that this process found in the store.
    pub replayed_from_store: Counter,
    /// Copies of calls that were still running.
    pub duplicates_running: Counter,
    /// Handles that are not, or no longer, good.
    pub stale_handles: Counter,
    /// Mounts granted.
    pub mounts: Counter,
    /// Mounts refused.
    pub mounts_refused: Counter,
    /// Files whose unwritten data was given up for want of space.
    pub discarded: Counter,
    /// Stored data found damaged.
    pub corrupt: Counter,
    /// Calls passed on to the gateway that owns their session.
    pub passed_on: Counter,
    /// Calls that came back without a reply, and were asked again.
    pub passed_back: Counter,
    /// Times the lease had lapsed.
    pub lapses: Counter,
    /// Calls that waited for the lease.
    pub lease_waits: Counter,
    /// Notices of other gateways that were obeyed.
    pub notices: Counter,
    /// Sessions taken from a gateway that lives and cannot be reached.
    pub taken_from_living: Counter,
    /// Sessions let go of.
    pub let_go: Counter,
    /// How long flushes took.
    pub flush_took: Histogram,
    /// How long calls for a session waited until it was taken over, from the first of them.
    pub takeover_took: Histogram,
    /// How long calls that were passed on took to be answered.
    pub passed_on_took: Histogram,
}

impl GatewayCounters {
    pub(crate) fn flushed(&self, took: Duration) {
        self.flushes.count();
        self.flush_took.observe(took);
    }
}
