//! A cache of entries on a local disk. Bounded, there again after a restart, and never believed: whoever
//! reads from it verifies.
//!
//! One file for each entry, in 256 directories. Nothing is flushed: a file that a crash has spoiled is found out
//! when it is read.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::files::open_regular;
use base::limits::CHUNK_BYTES_MAX;
use base::{ChunkId, DomainId};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::ledger::ChunkKey;
use crate::counters::Counter;

/// Longest entry, in bytes.
const ENTRY_BYTES_MAX: u64 = 2 * 1024 * 1024;

const _: () = assert!(CHUNK_BYTES_MAX < 2 * 1024 * 1024);

/// Entries that are written at the same time. While so many are, others are not kept.
const WRITES_AT_ONCE: usize = 32;

/// What a file takes beside its content: an inode, and its part of a directory.
const FILE_BYTES: u64 = 1024;

/// A cache on disk.
#[derive(Debug)]
pub struct DiskCache {
    dir: PathBuf,
    bytes_max: u64,
    state: Mutex<Lru>,
    writes: Semaphore,
    /// Names files that are being written.
    next_file: AtomicU64,
    /// What was counted.
    pub counters: DiskCounters,
}

/// What is counted of a cache on disk.
#[derive(Debug, Default)]
pub struct DiskCounters {
    /// Reads that found what they wanted.
    pub hits: Counter,
    /// Reads that did not.
    pub misses: Counter,
    /// Entries that were damaged, and dropped.
    pub damaged: Counter,
    /// Entries written.
    pub writes: Counter,
    /// Entries removed for want of room.
    pub evicted: Counter,
}

/// Which entries there are, and when each was used last.
#[derive(Debug, Default)]
struct Lru {
    entries: HashMap<ChunkKey, (u64, u64)>,
    order: BTreeMap<u64, ChunkKey>,
    bytes: u64,
    next: u64,
}

impl Lru {
    fn insert(&mut self, key: ChunkKey, bytes: u64) {
        self.remove(key);
        let tick = self.next;
        self.next += 1;
        self.entries.insert(key, (bytes, tick));
        self.order.insert(tick, key);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Whether it is there; then it is the one that was used last.
    fn touch(&mut self, key: ChunkKey) -> bool {
        match self.entries.get(&key).copied() {
            Some((bytes, _)) => {
                self.insert(key, bytes);
                true
            }
            None => false,
        }
    }

    fn remove(&mut self, key: ChunkKey) {
        if let Some((bytes, tick)) = self.entries.remove(&key) {
            self.order.remove(&tick);
            self.bytes = self.bytes.saturating_sub(bytes);
        }
    }

    /// Takes out what was not used for longest, until no more than `bytes_max` are left.
    fn evict(&mut self, bytes_max: u64) -> Vec<ChunkKey> {
        let mut evicted = Vec::new();
        while self.bytes > bytes_max
            && let Some((_, key)) = self
                .order
                .first_key_value()
                .map(|(tick, key)| (*tick, *key))
        {
            self.remove(key);
            evicted.push(key);
        }
        evicted
    }
}

impl DiskCache {
    /// Opens the cache in `dir`, which is made if it is missing, with at most about `bytes_max` bytes. What
    /// is no entry is removed. Blocks while the directory is read.
    ///
    /// # Errors
    ///
    /// The directory cannot be made or read.
    pub fn open(dir: &Path, bytes_max: u64) -> io::Result<Self> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)?;
        let mut found = Vec::new();
        for shard in 0..=u8::MAX {
            let shard = dir.join(format!("{shard:02x}"));
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&shard)?;
            for file in fs::read_dir(&shard)? {
                let file = file?;
                let metadata = file.metadata()?;
                let key = file.file_name().to_str().and_then(parse);
                match key.filter(|_| metadata.is_file()) {
                    Some(key) => {
                        let used = (metadata.mtime(), metadata.mtime_nsec());
                        found.push((used, key, metadata.len()));
                    }
                    // What a crash left half written.
                    None => fs::remove_file(file.path())?,
                }
            }
        }
        found.sort_unstable();
        let mut state = Lru::default();
        for (_, key, len) in found {
            state.insert(key, len.saturating_add(FILE_BYTES));
        }
        let cache = Self {
            dir: dir.to_owned(),
            bytes_max,
            state: Mutex::new(state),
            writes: Semaphore::new(WRITES_AT_ONCE),
            next_file: AtomicU64::new(0),
            counters: DiskCounters::default(),
        };
        let evicted = cache.state.lock().evict(bytes_max);
        cache.unlink(&evicted);
        Ok(cache)
    }

    /// Bytes that the entries take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    fn path(&self, key: ChunkKey) -> PathBuf {
        let id = key.id.to_string();
        let shard: String = id.chars().take(2).collect();
        self.dir
            .join(shard)
            .join(format!("{:016x}-{id}", key.domain.raw()))
    }

    /// An entry, as it is on the disk: to be verified.
    pub(super) async fn get(self: &Arc<Self>, key: ChunkKey) -> Option<Bytes> {
        let is_known = self.state.lock().touch(key);
        let read = if is_known {
            let this = Arc::clone(self);
            let read = tokio::task::spawn_blocking(move || this.read(key)).await;
            read.ok().and_then(Result::ok)
        } else {
            None
        };
        match &read {
            Some(_) => self.counters.hits.increment(),
            None => {
                self.counters.misses.increment();
                self.state.lock().remove(key);
            }
        }
        read
    }

    fn read(&self, key: ChunkKey) -> io::Result<Bytes> {
        let mut bytes = Vec::new();
        let file = open_regular(&self.path(key))?;
        file.take(ENTRY_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes.into())
    }

    /// Whether an entry is there.
    pub(super) fn has(&self, key: ChunkKey) -> bool {
        self.state.lock().entries.contains_key(&key)
    }

    /// Drops an entry that turned out damaged.
    pub(super) fn drop_damaged(self: &Arc<Self>, key: ChunkKey) {
        self.counters.damaged.increment();
        self.state.lock().remove(key);
        let this = Arc::clone(self);
        drop(tokio::task::spawn_blocking(move || this.unlink(&[key])));
    }

    /// Keeps an entry, in the background. Not if the disk is busy, or full.
    pub(super) fn keep(self: &Arc<Self>, key: ChunkKey, entry: &Bytes) {
        let len = u64::try_from(entry.len()).unwrap_or(u64::MAX);
        if self.has(key) || len.saturating_add(FILE_BYTES) > self.bytes_max {
            return;
        }
        let Ok(permit) = self.writes.try_acquire() else {
            return;
        };
        permit.forget();
        let (this, entry) = (Arc::clone(self), entry.clone());
        drop(tokio::task::spawn_blocking(move || {
            if let Err(error) = this.write(key, &entry) {
                tracing::debug!(%error, "keep a chunk on disk");
            }
            this.writes.add_permits(1);
        }));
    }

    fn write(&self, key: ChunkKey, entry: &Bytes) -> io::Result<()> {
        let path = self.path(key);
        let number = self.next_file.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_extension(format!("{number}.new"));
        let written = fs::write(&temporary, entry).and_then(|()| fs::rename(&temporary, &path));
        if written.is_err() {
            // It is removed at the next start at the latest.
            drop(fs::remove_file(&temporary));
            return written;
        }
        self.counters.writes.increment();
        let len = u64::try_from(entry.len()).unwrap_or(u64::MAX);
        let evicted = {
            let mut state = self.state.lock();
            state.insert(key, len.saturating_add(FILE_BYTES));
            state.evict(self.bytes_max)
        };
        self.counters
            .evicted
            .add(u64::try_from(evicted.len()).unwrap_or(u64::MAX));
        self.unlink(&evicted);
        Ok(())
    }

    fn unlink(&self, keys: &[ChunkKey]) {
        for key in keys {
            // One that stays is found at the next start.
            drop(fs::remove_file(self.path(*key)));
        }
    }
}

/// The chunk that a file's name says.
fn parse(name: &str) -> Option<ChunkKey> {
    let (domain, id) = name.split_once('-')?;
    let is_plain = |text: &str| {
        text.bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    if domain.len() != 16 || id.len() != 64 || !is_plain(domain) || !is_plain(id) {
        return None;
    }
    let mut bytes = [0; 32];
    for (number, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(id.get(2 * number..2 * number + 2)?, 16).ok()?;
    }
    Some(ChunkKey {
        domain: DomainId::new(u64::from_str_radix(domain, 16).ok()?),
        id: ChunkId::new(bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> ChunkKey {
        ChunkKey {
            domain: DomainId::new(0xab),
            id: ChunkId::new([number; 32]),
        }
    }

    fn open(dir: &Path, bytes_max: u64) -> Arc<DiskCache> {
        Arc::new(DiskCache::open(dir, bytes_max).unwrap())
    }

    #[tokio::test]
    async fn what_was_used_last_stays_and_is_there_again() {
        let dir = tempfile::tempdir().unwrap();
        let cache = open(dir.path(), 5 * (FILE_BYTES + 100));
        let entry = |number: u8| Bytes::from(vec![number; 100]);
        for number in 0..5 {
            cache.write(key(number), &entry(number)).unwrap();
        }
        assert_eq!(cache.get(key(0)).await, Some(entry(0)));
        cache.write(key(5), &entry(5)).unwrap();
        assert_eq!(cache.get(key(1)).await, None, "it was used least");
        assert_eq!(cache.get(key(0)).await, Some(entry(0)));
        assert_eq!(cache.counters.evicted.count(), 1);
        fs::write(cache.path(key(7)).with_extension("1.new"), "x").unwrap();
        let bytes = cache.bytes();
        drop(cache);
        let cache = open(dir.path(), 5 * (FILE_BYTES + 100));
        assert_eq!(cache.bytes(), bytes);
        assert_eq!(cache.get(key(5)).await, Some(entry(5)));
        cache.drop_damaged(key(5));
        assert_eq!(cache.get(key(5)).await, None);
        fs::remove_file(cache.path(key(0))).unwrap();
        assert_eq!(cache.get(key(0)).await, None, "somebody has removed it");
        drop(cache);
        let small = open(dir.path(), FILE_BYTES + 100);
        assert!(small.bytes() <= FILE_BYTES + 100);
    }

    #[test]
    fn names_are_keys_or_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let cache = DiskCache::open(dir.path(), 1 << 20).unwrap();
        let path = cache.path(key(9));
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_eq!(parse(name), Some(key(9)));
        for wrong in [
            "",
            "x",
            &name[1..],
            &name.replace("09", "0G"),
            &format!("{name}0"),
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
