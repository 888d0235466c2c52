//! What every engine must do, as one suite.
//!
//! The suite works below the prefix [`PREFIX`] and clears it first, so that it may run on a
//! store that holds other keys. A failed check panics.

mod conflicts;
mod limits;
mod random;
mod reads;
mod stamps;
mod steps;
mod versions;

use std::sync::Arc;
use std::time::Duration;

use base::{Clock, ManualClock, SystemClock};
use bytes::Bytes;

use super::{Committed, Isolation, KeyRange, Kv, KvError, RangeLimit, Transaction};

/// All keys of the suite start with this.
pub const PREFIX: &[u8] = b"conformance/";

/// A store under test.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The store.
    pub kv: Arc<dyn Kv>,
    /// The clock the store uses, if a test can move it. Without it the suite waits for real.
    pub clock: Option<Arc<ManualClock>>,
}

/// Runs all checks. `open` gives the store for each; it may be the same one again.
///
/// # Panics
///
/// If the store does not do what [`Kv`] says.
pub async fn suite<F: AsyncFn() -> Subject>(open: F) {
    macro_rules! check {
        ($($check:path),* $(,)?) => {
            $({
                tracing::debug!(check = stringify!($check), "conformance");
                let subject = open().await;
                subject.clear_all().await;
                $check(&subject).await;
            })*
        };
    }
    check!(
        reads::own_writes_are_read_back,
        reads::nothing_shows_before_the_commit,
        reads::range_reads_merge_stored_and_own_pairs,
        reads::pages_continue_where_they_ended,
        reads::atomic_operations_apply_in_order,
        conflicts::table,
        conflicts::write_skew_is_refused,
        conflicts::concurrent_increments_all_count,
        conflicts::concurrent_blind_additions_all_count,
        stamps::stamps_are_those_of_the_commit,
        stamps::stamped_keys_sort_in_commit_order,
        stamps::stamped_keys_are_unreadable_until_the_commit,
        stamps::wrong_placeholders_are_refused,
        stamps::stamped_keys_conflict_with_readers_of_their_range,
        limits::keys_and_values,
        limits::foreign_keys,
        limits::transactions,
        limits::wrong_uses,
        versions::reads_at_a_known_version,
        versions::unknown_versions_are_refused,
        versions::old_versions_are_refused,
        random::transactions_are_serializable,
    );
}

/// `name` below the suite's prefix.
fn key(name: impl AsRef<[u8]>) -> Vec<u8> {
    [PREFIX, name.as_ref()].concat()
}

/// `start..end` below the suite's prefix.
fn range(start: impl AsRef<[u8]>, end: impl AsRef<[u8]>) -> KeyRange {
    KeyRange {
        start: Bytes::from(key(start)),
        end: Bytes::from(key(end)),
    }
}

impl Subject {
    fn begin(&self) -> Box<dyn Transaction> {
        self.kv.begin()
    }

    async fn clear_all(&self) {
        let mut transaction = self.begin();
        transaction.clear_range(&KeyRange::prefix(PREFIX));
        transaction.commit().await.expect("clear the suite's keys");
    }

    /// Sets keys to values and commits.
    async fn put(&self, pairs: &[(&str, &[u8])]) -> Committed {
        let mut transaction = self.begin();
        for (name, value) in pairs {
            transaction.set(&key(name), value);
        }
        transaction.commit().await.expect("commit")
    }

    /// The committed value.
    async fn value(&self, name: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        let transaction = self.begin();
        let name = key(name);
        let value = transaction.get(&name, Isolation::Serializable).await;
        value.expect("get").map(|value| value.to_vec())
    }

    /// All committed pairs, without the prefix.
    async fn all(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        pairs(
            &*self.begin(),
            &KeyRange::prefix(PREFIX),
            RangeLimit::pairs(10_000),
        )
        .await
    }

    /// Lets time pass for the store.
    async fn pass(&self, duration: Duration) {
        match &self.clock {
            Some(clock) => clock.advance(duration),
            None => SystemClock::new().sleep(duration).await,
        }
    }
}

/// The pairs of a range, without the prefix.
async fn pairs(
    transaction: &dyn Transaction,
    range: &KeyRange,
    limit: RangeLimit,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let page = transaction
        .get_range(range, limit, Isolation::Serializable)
        .await
        .expect("get range");
    page.pairs
        .into_iter()
        .map(|(key, value)| (short(&key), value.to_vec()))
        .collect()
}

/// A key without the prefix.
fn short(key: &[u8]) -> Vec<u8> {
    key.strip_prefix(PREFIX)
        .expect("a key of the suite")
        .to_vec()
}

/// The outcome of a commit, when only failure or success matters.
async fn outcome(transaction: Box<dyn Transaction>) -> Result<(), KvError> {
    transaction.commit().await.map(|_| ())
}
