//! Transactions that become durable together: who may, and what the result is.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::super::{AtomicOp, Committed, KeyRange, KvError, Version};
use super::overlay::{Base, Entry, Overlay, applied};
use super::ranges::RangeSet;
use super::stamp::{self, STAMP_BYTES};
use super::window::Window;
use super::{CommitRequest, Snapshot, check_age};

/// Transactions accepted one after another, all at one new version.
#[derive(Debug)]
pub(in crate::kv) struct Batch {
    version: Version,
    accepted: u16,
    conflicts: RangeSet,
    writes: BatchWrites,
}

/// What an engine applies atomically: first the clears, then the writes.
#[derive(Debug, Default)]
pub(in crate::kv) struct BatchWrites {
    /// Ranges to remove.
    pub(in crate::kv) cleared: RangeSet,
    /// New values, and keys to remove.
    pub(in crate::kv) values: BTreeMap<Bytes, Option<Bytes>>,
}

impl Batch {
    /// An empty batch for `version`.
    pub(in crate::kv) fn new(version: Version) -> Self {
        Self {
            version,
            accepted: 0,
            conflicts: RangeSet::default(),
            writes: BatchWrites::default(),
        }
    }

    /// Whether no transaction was accepted.
    pub(in crate::kv) fn is_empty(&self) -> bool {
        self.accepted == 0
    }

    /// The version that this batch makes.
    pub(in crate::kv) fn version(&self) -> Version {
        self.version
    }

    /// Whether `request` may commit after those accepted so far.
    pub(in crate::kv) fn check(
        &self,
        window: &Window,
        request: &CommitRequest,
        now: std::time::Duration,
    ) -> Result<(), KvError> {
        let Some(reads) = &request.read else {
            return Ok(());
        };
        check_age(reads.deadline, now)?;
        window.check(reads)?;
        // What was accepted before in this batch is newer than anything that can be read.
        let clash = reads.conflicts.iter().any(|(start, end)| {
            let range = KeyRange {
                start: start.clone(),
                end: end.clone(),
            };
            self.conflicts.overlap(&range).is_some()
        });
        if clash {
            return Err(KvError::Conflict);
        }
        Ok(())
    }

    /// Adds a checked request's writes. `stored` is the newest durable content.
    ///
    /// After an error of the store the batch is of no use.
    pub(in crate::kv) fn accept<S: Snapshot>(
        &mut self,
        request: &CommitRequest,
        stored: &S,
    ) -> Result<Committed, KvError> {
        let stamp = stamp::stamp(self.version, self.accepted);
        self.accepted = self
            .accepted
            .checked_add(1)
            .ok_or(KvError::Unavailable("commit batch is full".to_owned()))?;
        self.apply(&request.writes, stamp, stored)?;
        for (start, end) in request.write_conflicts.iter() {
            self.conflicts.insert(&KeyRange {
                start: start.clone(),
                end: end.clone(),
            });
        }
        Ok(Committed {
            version: self.version,
            stamp,
        })
    }

    /// Splits into what makes others conflict and what the engine writes.
    pub(in crate::kv) fn into_parts(self) -> (RangeSet, BatchWrites) {
        (self.conflicts, self.writes)
    }

    fn apply<S: Snapshot>(
        &mut self,
        writes: &Overlay,
        stamp: [u8; STAMP_BYTES],
        stored: &S,
    ) -> Result<(), KvError> {
        for (start, end) in writes.cleared().iter() {
            self.writes.clear_range(&KeyRange {
                start: start.clone(),
                end: end.clone(),
            });
        }
        for (key, entry) in writes.entries() {
            let value = self.value_after(key, entry, stamp, stored)?;
            self.writes.values.insert(key.clone(), value);
        }
        for (template, value) in writes.stamped_keys() {
            let key = template.filled(stamp);
            self.writes.values.insert(key, Some(value.clone()));
        }
        Ok(())
    }

    fn value_after<S: Snapshot>(
        &self,
        key: &Bytes,
        entry: &Entry,
        stamp: [u8; STAMP_BYTES],
        stored: &S,
    ) -> Result<Option<Bytes>, KvError> {
        let value = match &entry.base {
            Base::Known(value) => value.clone(),
            Base::Stamped(template) => Some(template.filled(stamp)),
            Base::Stored => match self.writes.values.get(key) {
                Some(value) => value.clone(),
                None if self.writes.cleared.contains(key) => None,
                None => stored.get(key)?,
            },
        };
        Ok(applied(&entry.operations, value))
    }
}

impl BatchWrites {
    fn clear_range(&mut self, range: &KeyRange) {
        let keys: Vec<Bytes> = self
            .values
            .range(range.start.clone()..range.end.clone())
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.values.remove(&key);
        }
        self.cleared.insert(range);
    }
}

/// Whether `op` needs the commit's versionstamp.
pub(super) fn is_stamped(op: AtomicOp) -> bool {
    match op {
        AtomicOp::SetVersionstampedKey | AtomicOp::SetVersionstampedValue => true,
        AtomicOp::Add
        | AtomicOp::Max
        | AtomicOp::Min
        | AtomicOp::ByteMax
        | AtomicOp::CompareAndClear => false,
    }
}
