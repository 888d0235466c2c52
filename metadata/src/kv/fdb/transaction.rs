//! One transaction of the library, with what the trait asks for beyond it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::limits::{KV_KEY_BYTES_MAX, KV_VALUE_BYTES_MAX};
use bytes::Bytes;
use foundationdb::future::FdbValues;
use foundationdb::options::{ConflictRangeType, MutationType, StreamingMode};
use foundationdb::{FdbError, KeySelector, RangeOption};

use super::super::admission::{Admission, check_key_is_ours, check_range};
use super::super::core::{STAMP_BYTES, Template};
use super::super::{
    AtomicOp, Committed, Isolation, KeyRange, KvError, KvFuture, RangeLimit, RangePage,
    Transaction, Version,
};
use super::Shared;
use super::errors::{Call, kv_error};

/// A transaction. What is found wrong before the library is called is as in the other engines.
#[derive(Debug)]
pub(super) struct FdbTransaction {
    shared: Arc<Shared>,
    /// None if the library did not give one; the next read or the commit says why.
    library: Option<foundationdb::Transaction>,
    admission: Admission,
    /// The read version that the caller has named.
    named: Option<Version>,
    /// The read version, as soon as something was read at it.
    version: OnceLock<Version>,
    /// Whether something was read, so that the read version is fixed.
    has_read: AtomicBool,
    /// Whether the commit has something to write, or to make others conflict.
    writes: bool,
}

impl FdbTransaction {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let mut admission = Admission::default();
        let library = match shared.database.create_trx() {
            Ok(library) => Some(library),
            Err(error) => {
                admission.fail(kv_error(error, Call::Read));
                None
            }
        };
        Self {
            shared,
            library,
            admission,
            named: None,
            version: OnceLock::new(),
            has_read: AtomicBool::new(false),
            writes: false,
        }
    }

    /// What reads, if this may still be read from. Fixes the read version.
    fn reader(&self) -> Result<&foundationdb::Transaction, KvError> {
        self.admission.check()?;
        self.has_read.store(true, Ordering::Relaxed);
        self.library.as_ref().ok_or_else(closed)
    }

    /// Counts a call, and turns its error into one of the store.
    fn counted<T>(&self, since: Duration, result: Result<T, FdbError>) -> Result<T, KvError> {
        let now = self.shared.clock.monotonic();
        self.shared.calls.reads.observe(now.saturating_sub(since));
        result.map_err(|error| kv_error(error, Call::Read))
    }

    /// Counts a failure, of whatever kind.
    fn told<T>(&self, result: Result<T, KvError>) -> Result<T, KvError> {
        if let Err(error) = &result {
            self.shared.calls.failed(error);
        }
        result
    }

    async fn ask_version(&self) -> Result<Version, KvError> {
        let library = self.reader()?;
        if let Some(version) = self.version.get() {
            return Ok(*version);
        }
        let since = self.shared.clock.monotonic();
        let version = self.counted(since, library.get_read_version().await)?;
        Ok(self.fix(version))
    }

    fn fix(&self, version: i64) -> Version {
        *self.version.get_or_init(|| self.shared.saw(version))
    }

    /// The outcome of a read that has been begun. The read version is asked for beside the first: the
    /// library needs it anyway, and may not tell it any more when it is too old.
    async fn outcome<T>(
        &self,
        library: &foundationdb::Transaction,
        read: impl Future<Output = Result<T, FdbError>>,
    ) -> Result<T, KvError> {
        let since = self.shared.clock.monotonic();
        let both = async {
            if self.version.get().is_none() {
                self.fix(library.get_read_version().await?);
            }
            read.await
        };
        let outcome = both.await;
        self.counted(since, outcome)
    }

    async fn read(&self, key: &[u8], isolation: Isolation) -> Result<Option<Bytes>, KvError> {
        let library = self.reader()?;
        check_key_is_ours(key)?;
        let key = self.shared.key(key);
        if key.len() > KV_KEY_BYTES_MAX {
            // Nothing can be stored there.
            return Ok(None);
        }
        let value = library.get(&key, is_snapshot(isolation));
        let value = self.outcome(library, value).await?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    /// Reads until the page is full or the range ends: the library stops where it likes.
    async fn read_range(
        &self,
        range: &KeyRange,
        limit: RangeLimit,
        isolation: Isolation,
    ) -> Result<RangePage, KvError> {
        let library = self.reader()?;
        let mut rest = self.shared.range(range)?;
        if limit.pairs == 0 {
            return Err(KvError::Usage("range read with a limit of no pairs"));
        }
        let mut page = RangePage::default();
        let mut bytes = 0_usize;
        while rest.start < rest.end {
            let options = RangeOption {
                begin: KeySelector::first_greater_or_equal(&*rest.start),
                end: KeySelector::first_greater_or_equal(&*rest.end),
                limit: Some(limit.pairs - page.pairs.len()),
                target_bytes: limit.bytes.saturating_sub(bytes).max(1),
                mode: StreamingMode::WantAll,
                reverse: limit.reverse,
                ..RangeOption::default()
            };
            let values = library.get_range(&options, 1, is_snapshot(isolation));
            let values = self.outcome(library, values).await?;
            let before = page.pairs.len();
            bytes = bytes.saturating_add(self.take(&values, &mut page)?);
            let Some(last) = values.last() else { break };
            if page.pairs.len() >= limit.pairs || bytes >= limit.bytes {
                page.more = true;
                break;
            }
            if !values.more() || page.pairs.len() == before {
                break;
            }
            if limit.reverse {
                rest.end = Bytes::copy_from_slice(last.key());
            } else {
                rest.start = KeyRange::key(last.key()).end;
            }
        }
        Ok(page)
    }

    /// Adds pairs to a page; gives their bytes.
    fn take(&self, values: &FdbValues, page: &mut RangePage) -> Result<usize, KvError> {
        let mut bytes = 0_usize;
        for pair in values {
            let Some(key) = pair.key().strip_prefix(&*self.shared.prefix) else {
                let message = "FoundationDB gave a key outside the range that was asked for";
                return Err(KvError::Corrupt(message.into()));
            };
            let value = pair.value();
            bytes = bytes.saturating_add(key.len()).saturating_add(value.len());
            page.pairs
                .push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
        }
        Ok(bytes)
    }

    /// Checks and counts a write of one key: the key as the cluster has it, if it may be buffered.
    fn admit_write(&mut self, key: &[u8], value_bytes: usize) -> Option<Vec<u8>> {
        let full = self.shared.key(key);
        let admitted = self.admission.admit_write(key, full.len(), value_bytes);
        admitted.then_some(full)
    }

    /// Checks and counts a call on a range; none if there is nothing to do.
    fn admit_range(&mut self, range: &KeyRange) -> Option<KeyRange> {
        self.admission.admit_range(self.shared.range(range))
    }

    fn add_conflict_range(&mut self, range: &KeyRange, kind: ConflictRangeType) {
        let Some(range) = self.admit_range(range) else {
            return;
        };
        if let ConflictRangeType::Write = kind {
            self.writes = true;
        }
        let Some(library) = &self.library else { return };
        if let Err(error) = library.add_conflict_range(&range.start, &range.end, kind) {
            self.admission.fail(kv_error(error, Call::Read));
        }
    }

    /// The key and the operand of a stamped write as the library takes them.
    fn stamped(&mut self, op: AtomicOp, key: &[u8], operand: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        if op == AtomicOp::SetVersionstampedValue {
            let template = Template::parse(operand).map_err(|error| self.admission.fail(error));
            let full = self.admit_write(key, template.ok()?.len())?;
            return Some((full, operand.to_vec()));
        }
        match self.shared.stamped_key(key) {
            Ok(full) if operand.len() <= KV_VALUE_BYTES_MAX => {
                let admitted = self.admission.admit(full.len(), operand.len());
                admitted.then(|| (full, operand.to_vec()))
            }
            Ok(_) => {
                self.admission.fail(KvError::Limit("value is too long"));
                None
            }
            Err(error) => {
                self.admission.fail(error);
                None
            }
        }
    }

    async fn finish(mut self) -> Result<Committed, KvError> {
        self.admission.check()?;
        if !self.writes {
            // Nothing to send: what was read was so at its version, and is not checked.
            let version = match self.named {
                Some(version) => version,
                None => self.ask_version().await?,
            };
            let stamp = [0; STAMP_BYTES];
            return Ok(Committed { version, stamp });
        }
        let library = self.library.take().ok_or_else(closed)?;
        // Asked for before the commit, known after it.
        let stamp = library.get_versionstamp();
        let since = self.shared.clock.monotonic();
        let outcome = library.commit().await;
        let took = self.shared.clock.monotonic().saturating_sub(since);
        self.shared.calls.commits.observe(took);
        let committed = outcome.map_err(|error| kv_error(FdbError::from(error), Call::Commit))?;
        // It has happened: whatever fails from here on must not say that it has not.
        let unknown = |_: FdbError| KvError::OutcomeUnknown;
        let version = committed.committed_version().map_err(unknown)?;
        if version < 0 {
            // The library saw that nothing would change.
            let library = foundationdb::Transaction::from(committed);
            let version = library.get_read_version().await.map_err(unknown)?;
            let version = self.shared.saw(version);
            let stamp = [0; STAMP_BYTES];
            return Ok(Committed { version, stamp });
        }
        let version = self.shared.saw(version);
        let stamp = stamp.await.map_err(unknown)?;
        let stamp = (*stamp).try_into().map_err(|_| KvError::OutcomeUnknown)?;
        Ok(Committed { version, stamp })
    }
}

impl Transaction for FdbTransaction {
    fn read_version(&self) -> KvFuture<'_, Version> {
        Box::pin(async move { self.told(self.ask_version().await) })
    }

    fn set_read_version(&mut self, version: Version) {
        if self.named.is_some() || *self.has_read.get_mut() {
            self.admission
                .fail(KvError::Usage("read version is already fixed"));
            return;
        }
        self.named = Some(version);
        if !self.shared.knows(version) {
            // The cluster would wait for it, or take a commit at it for a good one.
            self.admission.fail(KvError::VersionTooOld);
        } else if let (Some(library), Ok(number)) = (&self.library, i64::try_from(version.0)) {
            library.set_read_version(number);
        }
    }

    fn get<'a>(&'a self, key: &'a [u8], isolation: Isolation) -> KvFuture<'a, Option<Bytes>> {
        Box::pin(async move { self.told(self.read(key, isolation).await) })
    }

    fn get_range<'a>(
        &'a self,
        range: &'a KeyRange,
        limit: RangeLimit,
        isolation: Isolation,
    ) -> KvFuture<'a, RangePage> {
        Box::pin(async move { self.told(self.read_range(range, limit, isolation).await) })
    }

    fn set(&mut self, key: &[u8], value: &[u8]) {
        if let Some(key) = self.admit_write(key, value.len())
            && let Some(library) = &self.library
        {
            library.set(&key, value);
            self.writes = true;
        }
    }

    fn clear(&mut self, key: &[u8]) {
        // Nothing can be stored under a longer key, so that there is nothing to clear.
        let fits = self.shared.prefix.len().saturating_add(key.len()) <= KV_KEY_BYTES_MAX;
        if fits
            && let Some(key) = self.admit_write(key, 0)
            && let Some(library) = &self.library
        {
            library.clear(&key);
            self.writes = true;
        }
    }

    fn clear_range(&mut self, range: &KeyRange) {
        if let Some(range) = self.admit_range(range)
            && let Some(library) = &self.library
        {
            library.clear_range(&range.start, &range.end);
            self.writes = true;
        }
    }

    fn atomic(&mut self, op: AtomicOp, key: &[u8], operand: &[u8]) {
        let (kind, is_stamped) = mutation(op);
        let call = if is_stamped {
            self.stamped(op, key, operand)
        } else {
            let full = self.admit_write(key, operand.len());
            full.map(|full| (full, operand.to_vec()))
        };
        if let Some((key, operand)) = call
            && let Some(library) = &self.library
        {
            library.atomic_op(&key, &operand, kind);
            self.writes = true;
        }
    }

    fn add_read_conflict_range(&mut self, range: &KeyRange) {
        self.add_conflict_range(range, ConflictRangeType::Read);
    }

    fn add_write_conflict_range(&mut self, range: &KeyRange) {
        self.add_conflict_range(range, ConflictRangeType::Write);
    }

    fn commit(self: Box<Self>) -> KvFuture<'static, Committed> {
        let calls = Arc::clone(&self.shared.calls);
        Box::pin(async move {
            let finished = self.finish().await;
            if let Err(error) = &finished {
                calls.failed(error);
            }
            finished
        })
    }
}

impl Shared {
    /// A key as the cluster has it.
    fn key(&self, key: &[u8]) -> Vec<u8> {
        [&*self.prefix, key].concat()
    }

    /// A range as the cluster has it, its bounds cut to a length that loses no key.
    fn range(&self, range: &KeyRange) -> Result<KeyRange, KvError> {
        check_range(range, |key| Bytes::from(self.key(key)))
    }

    /// A key with a place for a versionstamp as the cluster takes it.
    fn stamped_key(&self, operand: &[u8]) -> Result<Vec<u8>, KvError> {
        let template = Template::key(operand)?;
        let mut full = self.key(template.raw());
        if full.len() > KV_KEY_BYTES_MAX {
            return Err(KvError::Limit("key is too long"));
        }
        let offset = u32::try_from(self.prefix.len().saturating_add(template.offset()))
            .map_err(|_| KvError::Limit("key is too long"))?;
        full.extend(offset.to_le_bytes());
        Ok(full)
    }
}

/// The library's name of an operation, and whether it stamps.
fn mutation(op: AtomicOp) -> (MutationType, bool) {
    match op {
        AtomicOp::Add => (MutationType::Add, false),
        AtomicOp::Max => (MutationType::Max, false),
        AtomicOp::Min => (MutationType::Min, false),
        AtomicOp::ByteMax => (MutationType::ByteMax, false),
        AtomicOp::CompareAndClear => (MutationType::CompareAndClear, false),
        AtomicOp::SetVersionstampedKey => (MutationType::SetVersionstampedKey, true),
        AtomicOp::SetVersionstampedValue => (MutationType::SetVersionstampedValue, true),
    }
}

fn is_snapshot(isolation: Isolation) -> bool {
    isolation == Isolation::Snapshot
}

fn closed() -> KvError {
    KvError::Unavailable("FoundationDB gave no transaction".to_owned())
}
