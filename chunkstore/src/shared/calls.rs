//! What is counted of calls to the object store.

use std::time::Duration;

use crate::counters::Counter;

/// Upper ends of the histogram's parts, in milliseconds; one more part has all that is slower.
pub const BUCKETS_MILLIS: [u64; 11] = [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000];

/// What is asked of an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// A part of an object.
    Get,
    /// A new object, or a part of one.
    Put,
    /// An object's length.
    Head,
    /// No object any more.
    Delete,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Get, Self::Put, Self::Head, Self::Delete];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Head => "head",
            Self::Delete => "delete",
        }
    }
}

/// Calls of one verb, each try counted by itself.
#[derive(Debug, Default)]
pub struct VerbCounters {
    /// Those that were answered as wanted.
    pub done: Counter,
    /// Those that failed.
    pub failed: Counter,
    /// Those that were given up for want of an answer in time.
    pub late: Counter,
    /// How many took how long: the parts of [`BUCKETS_MILLIS`], and slower ones.
    pub buckets: [Counter; 12],
    /// Time of all together, in microseconds.
    pub micros: Counter,
}

impl VerbCounters {
    pub(super) fn took(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let part = BUCKETS_MILLIS.iter().position(|end| millis < *end);
        if let Some(bucket) = self.buckets.get(part.unwrap_or(BUCKETS_MILLIS.len())) {
            bucket.increment();
        }
        self.micros
            .add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }
}

/// Calls to an object store.
#[derive(Debug, Default)]
pub struct ObjectCounters {
    get: VerbCounters,
    put: VerbCounters,
    head: VerbCounters,
    delete: VerbCounters,
    /// Tries after the first.
    pub retries: Counter,
    /// Second requests for what was slow to come.
    pub hedges: Counter,
    /// Second requests that were answered first.
    pub hedges_won: Counter,
    /// Bytes of objects that came.
    pub received_bytes: Counter,
    /// Bytes of objects that were sent.
    pub sent_bytes: Counter,
}

impl ObjectCounters {
    /// Those of one verb.
    #[must_use]
    pub fn of(&self, verb: Verb) -> &VerbCounters {
        match verb {
            Verb::Get => &self.get,
            Verb::Put => &self.put,
            Verb::Head => &self.head,
            Verb::Delete => &self.delete,
        }
    }
}
