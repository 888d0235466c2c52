//! A store in which nothing is committed that a collection of shared chunks has not waited for.
//!
//! `docs/design/0016-fleet-collection.md`, invariants 1 to 3. Whoever uses this store need not know: each commit
//! that writes reads the record of collections, if there is something to decide by it. (What gateways say of themselves
//! refers to nothing, and is committed in any case.)

use std::sync::Arc;

use base::simulation::{Rule, is_kept};
use bytes::Bytes;
use parking_lot::Mutex;

use super::{
    AtomicOp, Committed, Isolation, KeyRange, Kv, KvError, KvFuture, RangeLimit, RangePage,
    Transaction, Version,
};
use crate::keyspace::{self, is_of_a_gateway};
use crate::record::cycle::CycleRecord;

/// Decides what is committed.
pub trait Admission: std::fmt::Debug + Send + Sync + 'static {
    /// Whether there is anything to decide.
    fn is_asked(&self) -> bool;

    /// Whether to commit, with this record of collections.
    fn allows(&self, record: &CycleRecord) -> bool;
}

/// Hands on to another store what is admitted.
#[derive(Debug)]
pub struct HeldKv {
    inner: Arc<dyn Kv>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    admission: Arc<dyn Admission>,
    /// The record as it was at a version.
    known: Mutex<Option<(Version, CycleRecord)>>,
}

impl HeldKv {
    /// A store that commits to `inner` what `admission` allows.
    #[must_use]
    pub fn new(inner: Arc<dyn Kv>, admission: Arc<dyn Admission>) -> Self {
        Self {
            inner,
            shared: Arc::new(Shared {
                admission,
                known: Mutex::new(None),
            }),
        }
    }
}

impl Kv for HeldKv {
    fn begin(&self) -> Box<dyn Transaction> {
        Box::new(HeldTransaction {
            inner: self.inner.begin(),
            shared: Arc::clone(&self.shared),
            at: None,
            writes: false,
        })
    }

    fn available_bytes(&self) -> Option<u64> {
        self.inner.available_bytes()
    }

    /// What is known of the record is known up to the version before that of a commit.
    fn versions_behind(&self) -> u64 {
        1
    }
}

#[derive(Debug)]
struct HeldTransaction {
    inner: Box<dyn Transaction>,
    shared: Arc<Shared>,
    /// The read version, if it was given.
    at: Option<Version>,
    /// It writes something that may refer to chunks.
    writes: bool,
}

impl HeldTransaction {
    /// The record, among what the transaction conflicts with. `None` if nothing is to be decided by it.
    async fn record(&mut self) -> Result<Option<CycleRecord>, KvError> {
        let key = keyspace::cycle();
        let known = *self.shared.known.lock();
        if let (Some(at), Some((version, record))) = (self.at, known)
            && at <= version
        {
            // If it has changed since, it has changed since the read version.
            self.inner.add_read_conflict_range(&KeyRange::key(&key));
            return Ok(Some(record));
        }
        if !self.shared.admission.is_asked() {
            return Ok(None);
        }
        let found = self.inner.get(&key, Isolation::Serializable).await?;
        let record = found.map(|found| CycleRecord::decode(&found)).transpose();
        let record = record.map_err(|error| KvError::Corrupt(error.to_string()))?;
        Ok(Some(record.unwrap_or_default()))
    }

    async fn finish(mut self: Box<Self>) -> Result<Committed, KvError> {
        if !self.writes {
            return self.inner.commit().await;
        }
        let record = self.record().await?;
        let admission = &self.shared.admission;
        if let Some(record) = &record
            && admission.is_asked()
            && !admission.allows(record)
            && is_kept(Rule::Floor)
        {
            return Err(KvError::Outlived);
        }
        let Self { inner, shared, .. } = *self;
        let committed = inner.commit().await?;
        if let Some(record) = record {
            let version = Version(committed.version.0.saturating_sub(1));
            let mut known = shared.known.lock();
            if known.is_none_or(|(before, _)| before < version) {
                *known = Some((version, record));
            }
        }
        Ok(committed)
    }
}

impl Transaction for HeldTransaction {
    fn read_version(&self) -> KvFuture<'_, Version> {
        self.inner.read_version()
    }

    fn set_read_version(&mut self, version: Version) {
        self.at = Some(version);
        self.inner.set_read_version(version);
    }

    fn get<'a>(&'a self, key: &'a [u8], isolation: Isolation) -> KvFuture<'a, Option<Bytes>> {
        self.inner.get(key, isolation)
    }

    fn get_range<'a>(
        &'a self,
        range: &'a KeyRange,
        limit: RangeLimit,
        isolation: Isolation,
    ) -> KvFuture<'a, RangePage> {
        self.inner.get_range(range, limit, isolation)
    }

    fn set(&mut self, key: &[u8], value: &[u8]) {
        self.writes |= !is_of_a_gateway(key);
        self.inner.set(key, value);
    }

    fn clear(&mut self, key: &[u8]) {
        self.writes |= !is_of_a_gateway(key);
        self.inner.clear(key);
    }

    fn clear_range(&mut self, range: &KeyRange) {
        self.writes |= !is_of_a_gateway(&range.start);
        self.inner.clear_range(range);
    }

    fn atomic(&mut self, op: AtomicOp, key: &[u8], operand: &[u8]) {
        self.writes = true;
        self.inner.atomic(op, key, operand);
    }

    fn add_read_conflict_range(&mut self, range: &KeyRange) {
        self.inner.add_read_conflict_range(range);
    }

    fn add_write_conflict_range(&mut self, range: &KeyRange) {
        self.inner.add_write_conflict_range(range);
    }

    fn commit(self: Box<Self>) -> KvFuture<'static, Committed> {
        Box::pin(self.finish())
    }
}

#[cfg(test)]
mod tests;
