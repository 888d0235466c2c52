//! What a caller holds: reads at one version, buffered writes, and the ranges that conflict.

use std::future::ready;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use base::limits::{KV_KEY_BYTES_MAX, KV_TRANSACTION_BYTES_MAX, KV_VALUE_BYTES_MAX};
use bytes::Bytes;
use parking_lot::Mutex;

use super::super::admission::{Admission, check_key_is_ours, check_range};
use super::super::{
    AtomicOp, Committed, Isolation, KeyRange, KvError, KvFuture, RangeLimit, RangePage,
    Transaction, Version,
};
use super::overlay::{Entry, Overlay, unreadable};
use super::ranges::RangeSet;
use super::stamp::{STAMP_BYTES, Template};
use super::{AGE_MAX, CommitRequest, ReadSet, Snapshot, Store, batch, check_age};

/// What FoundationDB adds to a transaction's size for a conflict range, besides its keys.
const RANGE_OVERHEAD_BYTES: usize = 32;

/// A transaction on any engine.
#[derive(Debug)]
pub(in crate::kv) struct CoreTransaction<S: Store> {
    store: Arc<S>,
    point: Mutex<ReadPoint<S::Snapshot>>,
    read_conflicts: Mutex<RangeSet>,
    overlay: Overlay,
    write_conflicts: RangeSet,
    admission: Admission,
}

/// Where a transaction reads.
#[derive(Clone, Debug)]
enum ReadPoint<S> {
    /// Not said yet.
    Open,
    /// At a version named by the caller, not read from yet.
    Named(Version),
    /// Fixed by a first read.
    Fixed {
        version: Version,
        deadline: Duration,
        snapshot: S,
    },
}

impl<S: Store> CoreTransaction<S> {
    /// Begins a transaction; costs nothing yet.
    pub(in crate::kv) fn new(store: Arc<S>) -> Self {
        Self {
            store,
            point: Mutex::new(ReadPoint::Open),
            read_conflicts: Mutex::new(RangeSet::default()),
            overlay: Overlay::default(),
            write_conflicts: RangeSet::default(),
            admission: Admission::default(),
        }
    }

    /// Fixes the read version if it is not yet, and checks that it may still be read at.
    fn snapshot(&self) -> Result<(Version, S::Snapshot), KvError> {
        self.admission.check()?;
        let mut point = self.point.lock();
        let now = self.store.now();
        let (version, deadline, snapshot) = match &*point {
            ReadPoint::Fixed {
                version,
                deadline,
                snapshot,
            } => {
                check_age(*deadline, now)?;
                return Ok((*version, snapshot.clone()));
            }
            ReadPoint::Named(version) => {
                let deadline = self.store.made_at(*version)?.saturating_add(AGE_MAX);
                check_age(deadline, now)?;
                (*version, deadline, self.store.at(*version)?)
            }
            ReadPoint::Open => {
                let (version, snapshot) = self.store.latest()?;
                (version, now.saturating_add(AGE_MAX), snapshot)
            }
        };
        *point = ReadPoint::Fixed {
            version,
            deadline,
            snapshot: snapshot.clone(),
        };
        Ok((version, snapshot))
    }

    /// The version read at, as far as it is known without asking the store.
    fn version_if_known(&self) -> Version {
        match &*self.point.lock() {
            ReadPoint::Open => Version(0),
            ReadPoint::Named(version) | ReadPoint::Fixed { version, .. } => *version,
        }
    }

    fn read(&self, key: &[u8], isolation: Isolation) -> Result<Option<Bytes>, KvError> {
        let (_, snapshot) = self.snapshot()?;
        check_key_is_ours(key)?;
        if key.len() > KV_KEY_BYTES_MAX {
            // Nothing can be stored there.
            return Ok(None);
        }
        let seen = self.overlay.see(key)?;
        if let super::overlay::Seen::Known(value) = seen {
            return Ok(value);
        }
        if isolation == Isolation::Serializable {
            self.read_conflicts.lock().insert(&KeyRange::key(key));
        }
        Ok(seen.value(snapshot.get(key)?))
    }

    fn read_range(
        &self,
        range: &KeyRange,
        limit: RangeLimit,
        isolation: Isolation,
    ) -> Result<RangePage, KvError> {
        let (_, snapshot) = self.snapshot()?;
        let range = check_range(range, Bytes::clone)?;
        if limit.pairs == 0 {
            return Err(KvError::Usage("range read with a limit of no pairs"));
        }
        if range.start >= range.end {
            return Ok(RangePage::default());
        }
        let mut page = PageBuilder::new(limit, self.overlay.unreadable_in(&range));
        let finished = self.merge(&snapshot, &range, &mut page)?;
        page.touch_end_if(finished.is_continue());
        if page.touched_unreadable {
            return Err(unreadable());
        }
        let page = RangePage {
            pairs: page.pairs,
            more: finished.is_break(),
        };
        if isolation == Isolation::Serializable {
            let read = part_read(&range, &page, limit.reverse);
            let parts = self.overlay.dependent_parts(&read);
            let mut conflicts = self.read_conflicts.lock();
            for (start, end) in parts.iter() {
                conflicts.insert(&KeyRange {
                    start: start.clone(),
                    end: end.clone(),
                });
            }
        }
        Ok(page)
    }

    /// Walks stored pairs and own entries in one order. Breaks when the page is full.
    fn merge(
        &self,
        snapshot: &S::Snapshot,
        range: &KeyRange,
        page: &mut PageBuilder,
    ) -> Result<ControlFlow<()>, KvError> {
        let mut own = OwnEntries::new(&self.overlay, range, page.limit.reverse);
        let mut flow = ControlFlow::Continue(());
        snapshot.scan(
            &range.start,
            &range.end,
            page.limit.reverse,
            &mut |key, value| {
                flow = self.merge_one(&mut own, page, key, value);
                flow
            },
        )?;
        while flow.is_continue()
            && let Some((key, entry)) = own.next()
        {
            flow = page.push(key, entry.see().value(None));
        }
        Ok(flow)
    }

    fn merge_one(
        &self,
        own: &mut OwnEntries<'_>,
        page: &mut PageBuilder,
        key: &[u8],
        value: &[u8],
    ) -> ControlFlow<()> {
        while let Some((own_key, entry)) = own.next_before(key) {
            page.push(own_key, entry.see().value(None))?;
        }
        if let Some((own_key, entry)) = own.next_at(key) {
            let stored = Some(Bytes::copy_from_slice(value));
            return page.push(own_key, entry.see().value(stored));
        }
        if self.overlay.hides(key) {
            return ControlFlow::Continue(());
        }
        page.push(
            &Bytes::copy_from_slice(key),
            Some(Bytes::copy_from_slice(value)),
        )
    }

    fn set_stamped(&mut self, op: AtomicOp, key: &[u8], operand: &[u8]) -> Result<(), KvError> {
        if op == AtomicOp::SetVersionstampedKey {
            let template = Template::key(key)?;
            if template.len() > KV_KEY_BYTES_MAX {
                return Err(KvError::Limit("key is too long"));
            }
            let read = self.version_if_known();
            let value = Bytes::copy_from_slice(operand);
            self.overlay.set_stamped_key(template, value, read);
        } else {
            let template = Template::parse(operand)?;
            self.overlay
                .set_stamped_value(Bytes::copy_from_slice(key), template);
        }
        Ok(())
    }

    /// Ends the transaction: the request for the engine, or the result if nothing is to be done.
    fn finish(&mut self) -> Result<Result<CommitRequest, Committed>, KvError> {
        self.admission.check()?;
        if self.overlay.is_empty() && self.write_conflicts.is_empty() {
            let version = match &*self.point.lock() {
                ReadPoint::Named(version) | ReadPoint::Fixed { version, .. } => Some(*version),
                ReadPoint::Open => None,
            };
            let version = match version {
                Some(version) => version,
                None => self.store.latest()?.0,
            };
            return Ok(Err(Committed {
                version,
                stamp: [0; STAMP_BYTES],
            }));
        }
        let read = self.read_set()?;
        let version = self.version_if_known();
        let mut write_conflicts = std::mem::take(&mut self.write_conflicts);
        self.overlay.add_conflicts(version, &mut write_conflicts);
        let ranges = |set: &RangeSet| set.bytes() + set.len() * RANGE_OVERHEAD_BYTES;
        let bytes = self.overlay.bytes()
            + ranges(&write_conflicts)
            + read.as_ref().map_or(0, |read| ranges(&read.conflicts));
        if bytes > KV_TRANSACTION_BYTES_MAX {
            return Err(KvError::Limit("transaction is too large"));
        }
        Ok(Ok(CommitRequest {
            read,
            write_conflicts,
            writes: std::mem::take(&mut self.overlay),
            bytes,
        }))
    }

    /// What the commit must check. Nothing for a transaction without read conflicts: blind
    /// writes never conflict and have no age.
    fn read_set(&mut self) -> Result<Option<ReadSet>, KvError> {
        let conflicts = std::mem::take(self.read_conflicts.get_mut());
        if conflicts.is_empty() {
            return Ok(None);
        }
        let now = self.store.now();
        let (version, deadline) = match self.point.get_mut() {
            ReadPoint::Fixed {
                version, deadline, ..
            } => (*version, *deadline),
            ReadPoint::Named(version) => {
                let made_at = self.store.made_at(*version)?;
                (*version, made_at.saturating_add(AGE_MAX))
            }
            ReadPoint::Open => (self.store.latest()?.0, now.saturating_add(AGE_MAX)),
        };
        check_age(deadline, now)?;
        Ok(Some(ReadSet {
            version,
            deadline,
            conflicts,
        }))
    }
}

impl<S: Store> Transaction for CoreTransaction<S> {
    fn read_version(&self) -> KvFuture<'_, Version> {
        Box::pin(ready(self.snapshot().map(|(version, _)| version)))
    }

    fn set_read_version(&mut self, version: Version) {
        let point = self.point.get_mut();
        if matches!(point, ReadPoint::Open) {
            *point = ReadPoint::Named(version);
        } else {
            self.admission
                .fail(KvError::Usage("read version is already fixed"));
        }
    }

    fn get<'a>(&'a self, key: &'a [u8], isolation: Isolation) -> KvFuture<'a, Option<Bytes>> {
        Box::pin(ready(self.read(key, isolation)))
    }

    fn get_range<'a>(
        &'a self,
        range: &'a KeyRange,
        limit: RangeLimit,
        isolation: Isolation,
    ) -> KvFuture<'a, RangePage> {
        Box::pin(ready(self.read_range(range, limit, isolation)))
    }

    fn set(&mut self, key: &[u8], value: &[u8]) {
        if self.admission.admit_write(key, key.len(), value.len()) {
            self.overlay
                .set(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        }
    }

    fn clear(&mut self, key: &[u8]) {
        // Nothing can be stored under a longer key, so that there is nothing to clear.
        if key.len() <= KV_KEY_BYTES_MAX && self.admission.admit_write(key, key.len(), 0) {
            self.overlay.clear(Bytes::copy_from_slice(key));
        }
    }

    fn clear_range(&mut self, range: &KeyRange) {
        if let Some(range) = self.admission.admit_range(check_range(range, Bytes::clone)) {
            self.overlay.clear_range(&range);
        }
    }

    fn atomic(&mut self, op: AtomicOp, key: &[u8], operand: &[u8]) {
        if batch::is_stamped(op) {
            if !self.admission.admit(key.len(), operand.len()) {
                return;
            }
            let offset_bytes = size_of::<u32>();
            let value_bytes = match op {
                AtomicOp::SetVersionstampedValue => operand.len().saturating_sub(offset_bytes),
                _ => operand.len(),
            };
            let plain_key = op == AtomicOp::SetVersionstampedValue;
            if plain_key && !self.admission.admit_write(key, key.len(), value_bytes) {
                return;
            }
            if value_bytes > KV_VALUE_BYTES_MAX {
                self.admission.fail(KvError::Limit("value is too long"));
            } else if let Err(error) = self.set_stamped(op, key, operand) {
                self.admission.fail(error);
            }
        } else if self.admission.admit_write(key, key.len(), operand.len()) {
            let operand = Bytes::copy_from_slice(operand);
            self.overlay
                .operate(op, Bytes::copy_from_slice(key), operand);
        }
    }

    fn add_read_conflict_range(&mut self, range: &KeyRange) {
        if let Some(range) = self.admission.admit_range(check_range(range, Bytes::clone)) {
            // Keys that this transaction wrote cannot conflict, whatever is stored.
            let parts = self.overlay.dependent_parts(&range);
            let conflicts = self.read_conflicts.get_mut();
            for (start, end) in parts.iter() {
                conflicts.insert(&KeyRange {
                    start: start.clone(),
                    end: end.clone(),
                });
            }
        }
    }

    fn add_write_conflict_range(&mut self, range: &KeyRange) {
        if let Some(range) = self.admission.admit_range(check_range(range, Bytes::clone)) {
            self.write_conflicts.insert(&range);
        }
    }

    fn commit(mut self: Box<Self>) -> KvFuture<'static, Committed> {
        match self.finish() {
            Ok(Ok(request)) => Arc::clone(&self.store).submit(request),
            Ok(Err(committed)) => Box::pin(ready(Ok(committed))),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }
}

/// Collects the pairs of a range read up to its limit.
struct PageBuilder {
    limit: RangeLimit,
    unreadable: Option<KeyRange>,
    touched_unreadable: bool,
    pairs: Vec<(Bytes, Bytes)>,
    bytes: usize,
}

impl PageBuilder {
    fn new(limit: RangeLimit, unreadable: Option<KeyRange>) -> Self {
        Self {
            limit,
            unreadable,
            touched_unreadable: false,
            pairs: Vec::new(),
            bytes: 0,
        }
    }

    /// Adds a pair; breaks if the page is full.
    fn push(&mut self, key: &Bytes, value: Option<Bytes>) -> ControlFlow<()> {
        let passed = self.unreadable.as_ref().is_some_and(|unreadable| {
            if self.limit.reverse {
                *key < unreadable.end
            } else {
                *key >= unreadable.start
            }
        });
        if passed {
            self.touched_unreadable = true;
            return ControlFlow::Break(());
        }
        let Some(value) = value else {
            return ControlFlow::Continue(());
        };
        self.bytes = self.bytes.saturating_add(key.len() + value.len());
        self.pairs.push((key.clone(), value));
        if self.pairs.len() >= self.limit.pairs || self.bytes >= self.limit.bytes {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// A read to the end of the range has passed all of its unreadable keys.
    fn touch_end_if(&mut self, finished: bool) {
        self.touched_unreadable |= finished && self.unreadable.is_some();
    }
}

/// The part of `range` that a page tells about.
fn part_read(range: &KeyRange, page: &RangePage, reverse: bool) -> KeyRange {
    let mut read = range.clone();
    if page.more
        && let Some((last, _)) = page.pairs.last()
    {
        if reverse {
            read.start = last.clone();
        } else {
            read.end = KeyRange::key(last).end;
        }
    }
    read
}

/// Own entries of a range, in the order of the read, with one looked at ahead.
struct OwnEntries<'a> {
    entries: std::collections::btree_map::Range<'a, Bytes, Entry>,
    ahead: Option<(&'a Bytes, &'a Entry)>,
    reverse: bool,
}

impl<'a> OwnEntries<'a> {
    fn new(overlay: &'a Overlay, range: &KeyRange, reverse: bool) -> Self {
        let mut own = Self {
            entries: overlay.entries_in(range),
            ahead: None,
            reverse,
        };
        own.next();
        own
    }

    fn next(&mut self) -> Option<(&'a Bytes, &'a Entry)> {
        let next = if self.reverse {
            self.entries.next_back()
        } else {
            self.entries.next()
        };
        std::mem::replace(&mut self.ahead, next)
    }

    /// The next entry, if it comes before `key` in the order of the read.
    fn next_before(&mut self, key: &[u8]) -> Option<(&'a Bytes, &'a Entry)> {
        let (ahead, _) = self.ahead?;
        let before = if self.reverse {
            **ahead > *key
        } else {
            **ahead < *key
        };
        if before { self.next() } else { None }
    }

    /// The next entry, if it is that of `key`.
    fn next_at(&mut self, key: &[u8]) -> Option<(&'a Bytes, &'a Entry)> {
        let (ahead, _) = self.ahead?;
        if **ahead == *key { self.next() } else { None }
    }
}
