//! The store in memory, for tests and simulation. Nothing survives the process, but a store can
//! be reopened as after a crash, with exactly what was committed.
//!
//! It has no tasks and no threads: a commit is done when its future is made, so that a seed
//! decides everything.

use std::collections::{BTreeMap, VecDeque};
use std::future::ready;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use super::core::{
    Batch, BatchWrites, CommitRequest, CoreTransaction, RangeSet, Snapshot, Store, Versions, Visit,
    Window,
};
use super::{Committed, Kv, KvError, KvFuture, Transaction, Version};

/// A store in memory. Cloning shares it.
#[derive(Clone, Debug)]
pub struct MemoryKv {
    store: Arc<Memory>,
}

/// All values that can still be read. `committing` is taken before `content`.
struct Memory {
    clock: Arc<dyn Clock>,
    committing: Mutex<Window>,
    content: RwLock<Content>,
}

#[derive(Debug)]
struct Content {
    keys: BTreeMap<Bytes, History>,
    /// Keys written at each version, so that old values are found when they are too old.
    written: VecDeque<(Version, Vec<Bytes>)>,
    versions: Versions<()>,
    crashed: bool,
    capacity_bytes: Option<u64>,
}

/// The values of one key, oldest first. No value means that the key was removed.
type History = Vec<(Version, Option<Bytes>)>;

#[derive(Clone, Debug)]
struct MemorySnapshot {
    store: Arc<Memory>,
    version: Version,
}

impl MemoryKv {
    /// An empty store. `clock` says when read versions are too old.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with(clock, Version(0), BTreeMap::new())
    }

    fn with(clock: Arc<dyn Clock>, version: Version, keys: BTreeMap<Bytes, History>) -> Self {
        let content = Content {
            keys,
            written: VecDeque::new(),
            versions: Versions::new(version, clock.monotonic(), ()),
            crashed: false,
            capacity_bytes: None,
        };
        Self {
            store: Arc::new(Memory {
                clock,
                committing: Mutex::new(Window::new(version)),
                content: RwLock::new(content),
            }),
        }
    }

    /// Crashes the store and opens it anew: the result has what was committed, and nothing else.
    /// This handle and its transactions are of no use afterwards, whatever they were doing.
    #[must_use]
    pub fn reopen(&self) -> Self {
        let _committing = self.store.committing.lock();
        let mut content = self.store.content.write();
        content.crashed = true;
        let version = content.versions.newest();
        let keys = std::mem::take(&mut content.keys);
        let newest = keys
            .into_iter()
            .filter_map(|(key, mut history)| match history.pop() {
                Some((version, value @ Some(_))) => Some((key, vec![(version, value)])),
                _ => None,
            });
        Self::with(Arc::clone(&self.store.clock), version, newest.collect())
    }

    /// Sets what [`Kv::available_bytes`] says; at 0, commits that set a value are refused with
    /// [`KvError::NoSpace`].
    pub fn set_available_bytes(&self, bytes: Option<u64>) {
        self.store.content.write().capacity_bytes = bytes;
    }

    /// Makes the next commit's version greater by `count` than it would be, as time does in
    /// FoundationDB.
    pub fn skip_versions(&self, count: u64) {
        if count > 0 {
            self.store.skip(count, false);
        }
    }

    /// Skips `count` versions, at least one, and makes all earlier ones too old, as a recovery of a
    /// FoundationDB cluster does.
    pub fn recover(&self, count: u64) {
        self.store.skip(count.max(1), true);
    }

    /// The newest version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.store.content.read().versions.newest()
    }

    /// All pairs at the newest version, in order.
    #[must_use]
    pub fn dump(&self) -> Vec<(Bytes, Bytes)> {
        let content = self.store.content.read();
        content
            .keys
            .iter()
            .filter_map(|(key, history)| {
                let (_, value) = history.last()?;
                Some((key.clone(), value.clone()?))
            })
            .collect()
    }
}

impl Kv for MemoryKv {
    fn begin(&self) -> Box<dyn Transaction> {
        Box::new(CoreTransaction::new(Arc::clone(&self.store)))
    }

    fn available_bytes(&self) -> Option<u64> {
        self.store.content.read().capacity_bytes
    }
}

impl Memory {
    fn commit(self: &Arc<Self>, request: &CommitRequest) -> Result<Committed, KvError> {
        let mut window = self.committing.lock();
        let now = self.now();
        let mut batch = {
            let content = self.content.read();
            content.check_alive()?;
            let version = Version(content.versions.newest().0 + 1);
            Batch::new(version)
        };
        batch.check(&window, request, now)?;
        let stored = MemorySnapshot {
            store: Arc::clone(self),
            version: Version(batch.version().0 - 1),
        };
        let committed = batch.accept(request, &stored)?;
        let version = batch.version();
        let (conflicts, writes) = batch.into_parts();
        let mut content = self.content.write();
        let adds = writes.values.values().any(Option::is_some);
        if adds && content.capacity_bytes == Some(0) {
            return Err(KvError::NoSpace);
        }
        content.write(version, writes);
        content.versions.publish(version, now, ());
        content.expire();
        window.add(&conflicts, version);
        window.expire(content.versions.floor(), conflicts.len());
        Ok(committed)
    }
}

impl Memory {
    fn skip(&self, count: u64, recovery: bool) {
        let mut window = self.committing.lock();
        let mut content = self.content.write();
        let version = Version(content.versions.newest().0.saturating_add(count));
        content
            .versions
            .publish(version, self.clock.monotonic(), ());
        if recovery {
            content.versions.forget_older();
        }
        content.expire();
        window.add(&RangeSet::default(), version);
        window.expire(content.versions.floor(), 0);
    }
}

impl Store for Memory {
    type Snapshot = MemorySnapshot;

    fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    fn latest(self: &Arc<Self>) -> Result<(Version, MemorySnapshot), KvError> {
        let content = self.content.read();
        content.check_alive()?;
        let version = content.versions.newest();
        let store = Arc::clone(self);
        Ok((version, MemorySnapshot { store, version }))
    }

    fn at(self: &Arc<Self>, version: Version) -> Result<MemorySnapshot, KvError> {
        let content = self.content.read();
        content.check_alive()?;
        content.versions.made_at(version)?;
        let store = Arc::clone(self);
        Ok(MemorySnapshot { store, version })
    }

    fn made_at(&self, version: Version) -> Result<Duration, KvError> {
        self.content.read().versions.made_at(version)
    }

    fn submit(self: Arc<Self>, request: CommitRequest) -> KvFuture<'static, Committed> {
        Box::pin(ready(self.commit(&request)))
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Content {
    fn check_alive(&self) -> Result<(), KvError> {
        if self.crashed {
            Err(KvError::Unavailable("store has crashed".to_owned()))
        } else {
            Ok(())
        }
    }

    fn check_readable(&self, version: Version) -> Result<(), KvError> {
        self.check_alive()?;
        if version < self.versions.floor() {
            return Err(KvError::VersionTooOld);
        }
        Ok(())
    }

    fn write(&mut self, version: Version, writes: BatchWrites) {
        let mut written: Vec<Bytes> = writes.values.keys().cloned().collect();
        for (start, end) in writes.cleared.iter() {
            let bounds = (Bound::Included(start), Bound::Excluded(end));
            for (key, history) in self.keys.range_mut::<Bytes, _>(bounds) {
                if is_set(history) {
                    history.push((version, None));
                    written.push(key.clone());
                }
            }
        }
        for (key, value) in writes.values {
            let history = self.keys.entry(key).or_default();
            // A clear of the same batch comes first and does not show.
            if history.last().is_some_and(|(last, _)| *last == version) {
                history.pop();
            }
            history.push((version, value));
        }
        self.written.push_back((version, written));
    }

    /// Drops values that no version above the floor can read.
    fn expire(&mut self) {
        let floor = self.versions.floor();
        while let Some((version, _)) = self.written.front()
            && *version <= floor
        {
            let Some((_, keys)) = self.written.pop_front() else {
                return;
            };
            for key in keys {
                let Some(history) = self.keys.get_mut(&key) else {
                    continue;
                };
                let older = history.iter().filter(|(version, _)| *version <= floor);
                let unread = older.count().saturating_sub(1);
                history.drain(..unread);
                if let [(_, None)] = history.as_slice() {
                    self.keys.remove(&key);
                }
            }
        }
    }
}

fn is_set(history: &History) -> bool {
    matches!(history.last(), Some((_, Some(_))))
}

fn value_at(history: &History, version: Version) -> Option<&Bytes> {
    history
        .iter()
        .rev()
        .find(|(written, _)| *written <= version)?
        .1
        .as_ref()
}

impl Snapshot for MemorySnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let content = self.store.content.read();
        content.check_readable(self.version)?;
        let history = content.keys.get(key);
        Ok(history.and_then(|history| value_at(history, self.version).cloned()))
    }

    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        reverse: bool,
        visit: &mut Visit<'_>,
    ) -> Result<(), KvError> {
        let content = self.store.content.read();
        content.check_readable(self.version)?;
        let mut see = |key: &Bytes, history: &History| match value_at(history, self.version) {
            Some(value) => visit(key, value),
            None => ControlFlow::Continue(()),
        };
        let bounds = (Bound::Included(start), Bound::Excluded(end));
        let mut pairs = content.keys.range::<[u8], _>(bounds);
        // Broken off or not, the scan has done what it was asked for.
        let _finished = if reverse {
            pairs.rev().try_for_each(|(key, history)| see(key, history))
        } else {
            pairs.try_for_each(|(key, history)| see(key, history))
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use base::{ManualClock, Timestamp};

    use super::super::Isolation;
    use super::super::core::AGE_MAX;
    use super::*;

    /// A recovery makes what was read before useless, and loses nothing.
    #[tokio::test]
    async fn versions_jump() {
        let kv = MemoryKv::new(Arc::new(ManualClock::new(Timestamp::EPOCH)));
        let mut transaction = kv.begin();
        transaction.set(b"a", b"1");
        let first = transaction.commit().await.unwrap().version;
        kv.skip_versions(100);
        assert_eq!(kv.version(), Version(first.0 + 100));
        let mut known = kv.begin();
        known.set_read_version(first);
        let value = known.get(b"a", Isolation::Serializable).await.unwrap();
        assert_eq!(value.as_deref(), Some(&b"1"[..]), "still readable");
        kv.recover(1000);
        let again = known.get(b"a", Isolation::Serializable).await;
        assert_eq!(again, Err(KvError::VersionTooOld));
        known.set(b"b", b"");
        assert_eq!(known.commit().await, Err(KvError::VersionTooOld));
        let mut transaction = kv.begin();
        let value = transaction
            .get(b"a", Isolation::Serializable)
            .await
            .unwrap();
        assert_eq!(value.as_deref(), Some(&b"1"[..]));
        transaction.set(b"a", b"2");
        let second = transaction.commit().await.unwrap();
        assert_eq!(second.version, Version(first.0 + 1101));
        assert_eq!(second.stamp[..8], second.version.0.to_be_bytes());
    }

    /// What no transaction can read any more is not kept.
    #[tokio::test]
    async fn old_values_are_dropped() {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let kv = MemoryKv::new(clock.clone());
        for round in 0..100_u8 {
            let mut transaction = kv.begin();
            transaction.set(b"rewritten", &[round]);
            transaction.set(&[b'k', round], b"");
            if let Some(before) = round.checked_sub(1) {
                transaction.clear(&[b'k', before]);
            }
            transaction.commit().await.unwrap();
            clock.advance(AGE_MAX / 10);
        }
        let content = kv.store.content.read();
        let values: usize = content.keys.values().map(Vec::len).sum();
        assert!(content.keys.len() < 20, "{} keys", content.keys.len());
        assert!(values < 50, "{values} values");
        assert!(content.written.len() < 20);
    }
}
