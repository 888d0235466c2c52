//! The current cycle of collections, as far as this process knows.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tells the current cycle. A number that is too old costs a transaction, nothing else: the ledger
/// reads the true one.
pub trait Cycles: Debug + Send + Sync + 'static {
    /// The highest that is known.
    fn current(&self) -> u64;

    /// Takes note of one that the ledger has.
    fn learn(&self, cycle: u64);
}

/// A cycle that is known from the ledger's answers.
#[derive(Debug, Default)]
pub struct KnownCycle(AtomicU64);

impl Cycles for KnownCycle {
    fn current(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn learn(&self, cycle: u64) {
        self.0.fetch_max(cycle, Ordering::AcqRel);
    }
}
