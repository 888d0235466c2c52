//! Chunks in a directory: append-only pack files, no file per chunk.
//!
//! One pack takes new chunks. When it is full it is made durable and the next begins. What is where
//! is in memory, rebuilt at open from the headers in the packs. A pack that is not the last was made
//! durable as a whole; the last is checked record by record, and what was being written when the
//! machine stopped, behind the last good record, is cut off. Nobody refers to that: a reference is written after a `sync`.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::limits::CHUNK_BYTES_MAX;
use base::{ChunkId, Clock, DomainId};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use crate::chunk::{self, HEADER_BYTES, Header};
use crate::{ChunkError, ChunkFuture, ChunkStore, Domain};

/// Start of every pack: magic and format version.
const PACK_MAGIC: [u8; 8] = *b"HFPACK\0\x01";

/// Threads that hash, compress and write at a time.
const WRITERS_MAX: usize = 4;

/// How long a reading of the device's free space is good for.
const SPACE_FOR: Duration = Duration::from_millis(100);

/// How a local store behaves.
#[derive(Clone, Copy, Debug)]
pub struct LocalOptions {
    /// Size at which a pack is full, in bytes.
    pub pack_bytes: u64,
    /// Free space of the device that is left alone, in bytes.
    pub reserve_bytes: u64,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self {
            pack_bytes: 64 << 20,
            reserve_bytes: 64 << 20,
        }
    }
}

/// Why a local store did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory or a file in it could not be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A pack is not one of ours, or of another release.
    #[error(
        "{}: not a pack of this release; use the release that wrote it, or restore it from a backup",
        path.display()
    )]
    NotAPack {
        /// Which.
        path: PathBuf,
    },
}

/// Where a chunk is.
#[derive(Clone, Copy, Debug)]
struct Place {
    pack: u32,
    offset: u32,
}

/// The pack that takes new chunks.
#[derive(Debug)]
struct Active {
    number: u32,
    file: Arc<File>,
    end: u64,
}

/// What was counted. Read with [`LocalStore::counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalCounts {
    /// Chunks in the store.
    pub chunks: u64,
    /// Bytes in all packs.
    pub stored_bytes: u64,
    /// Device flushes.
    pub syncs: u64,
}

/// What [`LocalStore::verify`] found of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The chunk's domain.
    pub domain: DomainId,
    /// Its name.
    pub id: ChunkId,
    /// Whether its record is intact.
    pub intact: bool,
}

/// Chunks in a directory.
#[derive(Debug)]
pub struct LocalStore {
    inner: Arc<Inner>,
    writers: Semaphore,
    /// Held by whoever flushes the device; the others gather behind it.
    flush: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Inner {
    directory: PathBuf,
    options: LocalOptions,
    clock: Arc<dyn Clock>,
    index: RwLock<HashMap<(DomainId, ChunkId), Place>>,
    active: Mutex<Active>,
    /// Counts what was written and what of it is durable.
    written: AtomicU64,
    durable: AtomicU64,
    stored_bytes: AtomicU64,
    syncs: AtomicU64,
    /// A device flush failed: what the device holds is unknown, and asking again proves nothing.
    failed: AtomicBool,
    space: Mutex<Option<(Duration, u64)>>,
}

impl LocalStore {
    /// Opens the store in `directory`, and creates it if there is none. Blocks: reads the headers
    /// of all packs.
    ///
    /// # Errors
    ///
    /// [`OpenError`]; nothing that is there is replaced.
    pub fn open(
        directory: &Path,
        options: LocalOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        std::fs::create_dir_all(directory).map_err(at(directory))?;
        let mut index = HashMap::new();
        let mut stored_bytes = 0;
        let numbers = pack_numbers(directory)?;
        let mut last = None;
        for (position, number) in numbers.iter().enumerate() {
            let is_last = position + 1 == numbers.len();
            let end = scan(directory, *number, is_last, &mut index)?;
            stored_bytes += end;
            last = Some((*number, end));
        }
        let active = match last {
            Some((number, end)) if end < options.pack_bytes => {
                let path = pack_path(directory, number);
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(&path)
                    .map_err(at(&path))?;
                Active {
                    number,
                    file: Arc::new(file),
                    end,
                }
            }
            last => create(directory, last.map_or(1, |(number, _)| number + 1))?,
        };
        let inner = Inner {
            directory: directory.to_owned(),
            options,
            clock,
            index: RwLock::new(index),
            active: Mutex::new(active),
            written: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            stored_bytes: AtomicU64::new(stored_bytes),
            syncs: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            space: Mutex::new(None),
        };
        Ok(Self {
            inner: Arc::new(inner),
            writers: Semaphore::new(WRITERS_MAX),
            flush: tokio::sync::Mutex::new(()),
        })
    }

    /// Whether a chunk is stored.
    #[must_use]
    pub fn contains(&self, domain: DomainId, id: ChunkId) -> bool {
        self.inner.index.read().contains_key(&(domain, id))
    }

    /// What was counted.
    #[must_use]
    pub fn counts(&self) -> LocalCounts {
        let inner = &self.inner;
        LocalCounts {
            chunks: u64::try_from(inner.index.read().len()).unwrap_or(u64::MAX),
            stored_bytes: inner.stored_bytes.load(Ordering::Relaxed),
            syncs: inner.syncs.load(Ordering::Relaxed),
        }
    }

    /// Reads every chunk and says whether its record is intact. Blocks for long.
    pub fn verify(&self, mut report: impl FnMut(Verified)) {
        let all: Vec<_> = self
            .inner
            .index
            .read()
            .iter()
            .map(|(key, place)| (*key, *place))
            .collect();
        for ((domain, id), place) in all {
            let intact = self.inner.read_record(place).is_ok_and(|(header, body)| {
                header.matches(&body) && (header.domain, header.id) == (domain, id)
            });
            report(Verified { domain, id, intact });
        }
    }
}

impl ChunkStore for LocalStore {
    fn put(&self, domain: Domain, content: Bytes) -> ChunkFuture<'_, ChunkId> {
        Box::pin(async move {
            if content.len() > CHUNK_BYTES_MAX {
                return Err(ChunkError::TooLarge(content.len()));
            }
            let _writer = self.writers.acquire().await.map_err(unavailable)?;
            let inner = Arc::clone(&self.inner);
            let put = tokio::task::spawn_blocking(move || inner.put(domain, &content));
            put.await.map_err(unavailable)?
        })
    }

    fn sync(&self) -> ChunkFuture<'_, ()> {
        Box::pin(async move {
            let inner = &self.inner;
            let wanted = inner.written.load(Ordering::SeqCst);
            if inner.durable.load(Ordering::SeqCst) >= wanted {
                return inner.check();
            }
            let _flush = self.flush.lock().await;
            if inner.durable.load(Ordering::SeqCst) >= wanted {
                return inner.check();
            }
            let inner = Arc::clone(&self.inner);
            tokio::task::spawn_blocking(move || inner.sync())
                .await
                .map_err(unavailable)?
        })
    }

    fn get(&self, domain: Domain, id: ChunkId) -> ChunkFuture<'_, Bytes> {
        Box::pin(async move {
            let inner = Arc::clone(&self.inner);
            let get = tokio::task::spawn_blocking(move || inner.get(domain, id));
            get.await.map_err(unavailable)?
        })
    }

    fn cached(&self, _domain: Domain, _id: ChunkId) -> Option<Bytes> {
        None
    }

    fn available_bytes(&self) -> Option<u64> {
        self.inner.available_bytes()
    }
}

impl Inner {
    fn put(&self, domain: Domain, content: &Bytes) -> Result<ChunkId, ChunkError> {
        self.check()?;
        let id = domain.chunk_id(content);
        let key = (domain.id, id);
        if self.index.read().contains_key(&key) {
            return Ok(id);
        }
        let (header, body) = chunk::encode(domain.id, id, content);
        let mut active = self.active.lock();
        // Another put of the same content may have been first.
        if self.index.read().contains_key(&key) {
            return Ok(id);
        }
        if active.end >= self.options.pack_bytes {
            self.roll(&mut active)?;
        }
        let mut record = Vec::with_capacity(HEADER_BYTES + body.len());
        record.extend_from_slice(&header.encode());
        record.extend_from_slice(&body);
        if let Err(error) = active.file.write_all_at(&record, active.end) {
            // The next record overwrites what got there; without the cut a shorter one would not.
            drop(active.file.set_len(active.end));
            return Err(store_error(&error));
        }
        let offset = u32::try_from(active.end).map_err(unavailable)?;
        let place = Place {
            pack: active.number,
            offset,
        };
        active.end += header.record_bytes();
        self.stored_bytes
            .fetch_add(header.record_bytes(), Ordering::Relaxed);
        self.index.write().insert(key, place);
        self.written.fetch_add(1, Ordering::SeqCst);
        Ok(id)
    }

    /// Makes the full pack durable and begins the next.
    fn roll(&self, active: &mut Active) -> Result<(), ChunkError> {
        active
            .file
            .sync_data()
            .map_err(|error| self.flush_failed(&error))?;
        *active = create(&self.directory, active.number + 1).map_err(|error| match error {
            OpenError::Io { source, .. } => store_error(&source),
            OpenError::NotAPack { .. } => ChunkError::Unavailable(error.to_string()),
        })?;
        Ok(())
    }

    fn sync(&self) -> Result<(), ChunkError> {
        self.check()?;
        let (file, written) = {
            let active = self.active.lock();
            (
                Arc::clone(&active.file),
                self.written.load(Ordering::SeqCst),
            )
        };
        file.sync_data()
            .map_err(|error| self.flush_failed(&error))?;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.durable.fetch_max(written, Ordering::SeqCst);
        Ok(())
    }

    /// A failed flush may have dropped what it should have written, and a second one would say that
    /// all is well. So the store stops; opening it anew finds what is really there.
    fn flush_failed(&self, error: &io::Error) -> ChunkError {
        self.failed.store(true, Ordering::SeqCst);
        tracing::error!(%error, "device flush of the chunk store failed: restart the server");
        ChunkError::Unavailable(error.to_string())
    }

    fn check(&self) -> Result<(), ChunkError> {
        if self.failed.load(Ordering::SeqCst) {
            let why = "a device flush failed earlier: restart the server";
            return Err(ChunkError::Unavailable(why.into()));
        }
        Ok(())
    }

    fn get(&self, domain: Domain, id: ChunkId) -> Result<Bytes, ChunkError> {
        let place = self.index.read().get(&(domain.id, id)).copied();
        let place = place.ok_or(ChunkError::NotFound(id))?;
        let (header, body) = match self.read_record(place) {
            Ok(record) => record,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(ChunkError::Corrupt(id));
            }
            Err(error) => return Err(store_error(&error)),
        };
        let content = header.open(body).map_err(|_| ChunkError::Corrupt(id))?;
        if domain.chunk_id(&content) == id {
            Ok(content)
        } else {
            Err(ChunkError::Corrupt(id))
        }
    }

    fn read_record(&self, place: Place) -> io::Result<(Header, Vec<u8>)> {
        let file = {
            let active = self.active.lock();
            (active.number == place.pack).then(|| Arc::clone(&active.file))
        };
        let file = match file {
            Some(file) => file,
            None => Arc::new(File::open(pack_path(&self.directory, place.pack))?),
        };
        let damaged = || io::Error::from(io::ErrorKind::InvalidData);
        let mut header = [0; HEADER_BYTES];
        let offset = u64::from(place.offset);
        read_at(&file, &mut header, offset)?;
        let header = Header::decode(&header).map_err(|_| damaged())?;
        let mut body = vec![0; usize::try_from(header.stored_bytes).map_err(|_| damaged())?];
        read_at(
            &file,
            &mut body,
            offset + u64::try_from(HEADER_BYTES).unwrap_or(0),
        )?;
        Ok((header, body))
    }

    fn available_bytes(&self) -> Option<u64> {
        let now = self.clock.monotonic();
        let mut space = self.space.lock();
        if let Some((at, bytes)) = *space
            && now.saturating_sub(at) < SPACE_FOR
        {
            return Some(bytes);
        }
        let found = rustix::fs::statvfs(&self.directory).ok()?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        let bytes = free.saturating_sub(self.options.reserve_bytes);
        *space = Some((now, bytes));
        Some(bytes)
    }
}

/// Reads exactly, and takes a short file for damage.
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(buffer, offset)
        .map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::ErrorKind::InvalidData.into(),
            _ => error,
        })
}

fn at(path: &Path) -> impl Fn(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io {
        path: path.clone(),
        source,
    }
}

fn unavailable(error: impl std::fmt::Display) -> ChunkError {
    ChunkError::Unavailable(error.to_string())
}

fn store_error(error: &io::Error) -> ChunkError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ChunkError::NoSpace,
        _ => ChunkError::Unavailable(error.to_string()),
    }
}

fn pack_path(directory: &Path, number: u32) -> PathBuf {
    directory.join(format!("pack-{number:08x}.hfp"))
}

/// The numbers of the packs in a directory, ascending.
fn pack_numbers(directory: &Path) -> Result<Vec<u32>, OpenError> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(at(directory))? {
        let name = entry.map_err(at(directory))?.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix("pack-")?.strip_suffix(".hfp"))
            .and_then(|number| u32::from_str_radix(number, 16).ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Makes an empty pack, durably.
fn create(directory: &Path, number: u32) -> Result<Active, OpenError> {
    let path = pack_path(directory, number);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(at(&path))?;
    let made = file
        .set_len(0)
        .and_then(|()| file.write_all_at(&PACK_MAGIC, 0));
    made.and_then(|()| file.sync_all()).map_err(at(&path))?;
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(at(directory))?;
    let end = u64::try_from(PACK_MAGIC.len()).unwrap_or(0);
    Ok(Active {
        number,
        file: Arc::new(file),
        end,
    })
}

/// Reads the headers of a pack into the index; returns where its records end. In the last pack
/// bodies are checked, too, and what follows the last good record is cut off. Damage with good
/// records behind it is no torn tail: it is left as it is, and what follows is kept.
fn scan(
    directory: &Path,
    number: u32,
    is_last: bool,
    index: &mut HashMap<(DomainId, ChunkId), Place>,
) -> Result<u64, OpenError> {
    let path = pack_path(directory, number);
    let file = OpenOptions::new()
        .read(true)
        .write(is_last)
        .open(&path)
        .map_err(at(&path))?;
    let length = file.metadata().map_err(at(&path))?.len();
    let start = u64::try_from(PACK_MAGIC.len()).unwrap_or(0);
    let mut magic = [0; PACK_MAGIC.len()];
    if length < start && is_last {
        // Cut off while it was made; nothing was in it.
        return create(directory, number).map(|active| active.end);
    }
    if file.read_exact_at(&mut magic, 0).is_err() || magic != PACK_MAGIC {
        return Err(OpenError::NotAPack { path });
    }
    let mut offset = start;
    while offset < length {
        match read_header(&file, offset, length, is_last) {
            Some(header) => {
                let place = u32::try_from(offset).ok().map(|offset| Place {
                    pack: number,
                    offset,
                });
                if let Some(place) = place {
                    index.insert((header.domain, header.id), place);
                }
                offset += header.record_bytes();
            }
            None => {
                let Some(next) = next_record(&file, offset, length, is_last) else {
                    if is_last {
                        cut_off(&file, number, offset, length).map_err(at(&path))?;
                    } else {
                        tell_damage(number, offset, length);
                    }
                    break;
                };
                tell_damage(number, offset, next);
                offset = next;
            }
        }
    }
    if is_last {
        // What a killed server wrote may be in the system's memory only. From now on a put of the
        // same content finds it here and writes nothing, so it has to be durable.
        file.sync_all().map_err(at(&path))?;
    }
    Ok(offset)
}

/// Cuts off what was being written when the machine stopped.
fn cut_off(file: &File, pack: u32, offset: u64, length: u64) -> io::Result<()> {
    let bytes = length - offset;
    tracing::warn!(pack, offset, bytes, "cut off a torn tail");
    file.set_len(offset).and_then(|()| file.sync_all())
}

fn tell_damage(pack: u32, offset: u64, until: u64) {
    tracing::error!(
        pack,
        offset,
        until,
        "pack is damaged: what was stored here is lost, run `holdfast check`"
    );
}

/// The next place after `offset` where a record is, in a pack that is damaged at `offset`; with
/// `deep` one whose body is intact.
fn next_record(file: &File, offset: u64, length: u64, deep: bool) -> Option<u64> {
    // If only the body is damaged the header still tells.
    if let Some(header) = read_header(file, offset, length, false) {
        let next = offset + header.record_bytes();
        if read_header(file, next, length, deep).is_some() {
            return Some(next);
        }
    }
    let from = offset + 1;
    let mut rest = vec![0; usize::try_from(length.checked_sub(from)?).ok()?];
    file.read_exact_at(&mut rest, from).ok()?;
    rest.windows(HEADER_BYTES)
        .enumerate()
        .filter(|(_, window)| window.starts_with(&chunk::MAGIC))
        .filter_map(|(position, _)| Some(from + u64::try_from(position).ok()?))
        .find(|at| read_header(file, *at, length, deep).is_some())
}

/// The header at `offset`, if the record is whole, and with `deep` if its body is intact.
fn read_header(file: &File, offset: u64, length: u64, deep: bool) -> Option<Header> {
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, offset).ok()?;
    let header = Header::decode(&bytes).ok()?;
    if offset + header.record_bytes() > length {
        return None;
    }
    if deep {
        let mut body = vec![0; usize::try_from(header.stored_bytes).ok()?];
        file.read_exact_at(&mut body, offset + u64::try_from(HEADER_BYTES).ok()?)
            .ok()?;
        if !header.matches(&body) {
            return None;
        }
    }
    Some(header)
}

#[cfg(test)]
mod tests;
