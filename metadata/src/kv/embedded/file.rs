//! The file itself. The only place that knows `redb`.
//!
//! Two tables: `data` with all keys, and `meta` with the format and the newest version. A batch
//! writes both in one `redb` transaction, so that the version in the file always tells what the
//! file holds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use redb::{
    Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, StorageBackend,
    StorageError, TableDefinition, backends::FileBackend,
};

use base::files::{open_regular, open_regular_with};

use super::super::core::{BatchWrites, Snapshot, Visit};
use super::super::{KvError, Version};
use super::witness::Witness;
use super::{EmbeddedOptions, OpenError, space};

mod disk;
mod shadow;
mod trial;

#[cfg(any(test, feature = "testing"))]
pub use self::disk::{DiskChange, DiskFaults};

/// All keys. A value has the check of its key and itself behind it: the engine compares its own sums
/// when it opens the file and never after.
const DATA: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("data");

/// Facts about the file.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

/// Key in `meta` of the file's format.
const META_FORMAT: &str = "format";

/// Key in `meta` of the newest version.
const META_VERSION: &str = "version";

/// Key in `meta` of the bytes of all keys and values.
const META_BYTES: &str = "bytes";

/// The format that this code reads and writes.
const FORMAT: u64 = 2;

/// Bytes of a value's check.
const CHECK_BYTES: usize = 8;

/// How to open the file.
#[derive(Debug)]
pub(super) struct Settings {
    path: PathBuf,
    options: EmbeddedOptions,
    access: Access,
}

/// What may become of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// It is written, and made if there is none.
    Change,
    /// It stays as it is.
    Look,
}

/// The open file.
#[derive(Debug)]
pub(super) struct File {
    database: Database,
    failed: Arc<AtomicBool>,
    /// The content that is given out, as far as somebody still has it.
    given: Mutex<Vec<Weak<GivenTable>>>,
}

/// A table that is read from until it is taken back.
type GivenTable = RwLock<Option<ReadOnlyTable<&'static [u8], &'static [u8]>>>;

/// Proof that no other server uses the file. Held as long as the store exists, also while the
/// file is reopened.
#[derive(Debug)]
pub(super) struct FileLock {
    _file: std::fs::File,
}

/// The newest content of the file.
#[derive(Debug)]
pub(super) struct Newest {
    /// Its version.
    pub(super) version: Version,
    /// Bytes of all keys and values.
    pub(super) bytes: u64,
    /// The content.
    pub(super) snapshot: FileSnapshot,
}

/// The content of the file at one version.
#[derive(Clone)]
pub(in crate::kv) struct FileSnapshot {
    table: Arc<GivenTable>,
    failed: Arc<AtomicBool>,
}

/// An error of the file, and whether it may have left a write behind.
#[derive(Debug)]
pub(super) struct Failure {
    error: redb::Error,
    unsure: bool,
}

impl Settings {
    /// Settings for the file `path`.
    pub(super) fn new(path: &Path, options: &EmbeddedOptions) -> Self {
        Self {
            path: path.to_owned(),
            options: options.clone(),
            access: Access::Change,
        }
    }

    /// Settings that leave the file as it is.
    pub(super) fn to_look_at(path: &Path, options: &EmbeddedOptions) -> Self {
        Self {
            access: Access::Look,
            ..Self::new(path, options)
        }
    }

    /// Whether the file may be changed.
    pub(super) fn may_change(&self) -> bool {
        self.access == Access::Change
    }

    /// Whether the file may be made smaller.
    pub(super) fn may_shrink(&self) -> bool {
        #[cfg(any(test, feature = "testing"))]
        if self.options.keeps_size {
            return false;
        }
        self.may_change()
    }
}

impl File {
    /// Opens the file, or creates it if there is none; with its lock and its witness.
    pub(super) fn open_or_create(
        settings: &Settings,
    ) -> Result<(Self, FileLock, Witness), OpenError> {
        let path = &settings.path;
        let lock = FileLock::take(path, settings.access)?;
        let witness = with_suffix(path, ".seen");
        let (witness, acknowledged) = match settings.access {
            Access::Change => Witness::open(witness),
            Access::Look => Witness::look(witness),
        };
        let io_error = |source| OpenError::Io {
            path: path.clone(),
            source,
        };
        match std::fs::metadata(path) {
            Ok(_) => {}
            Err(error)
                if error.kind() == std::io::ErrorKind::NotFound
                    && settings.access == Access::Change =>
            {
                if let Some(Version(number @ 1..)) = acknowledged {
                    let reason = format!(
                        "it is missing, though {number} commits to it were acknowledged, as {} \
                         tells",
                        witness.path().display()
                    );
                    let path = path.clone();
                    return Err(OpenError::Corrupt { path, reason });
                }
                Self::create(settings)?;
            }
            Err(error) => return Err(io_error(error)),
        }
        let file = Self::open(settings, acknowledged)?;
        Ok((file, lock, witness))
    }

    /// Opens the file again after an I/O error. It must have what was `acknowledged`.
    ///
    /// Pages that the system failed to write must not be taken for stored ones. So what can be
    /// synced is, and what the system still holds of the file is dropped before it is read.
    pub(super) fn reopen(settings: &Settings, acknowledged: Version) -> Result<Self, OpenError> {
        let io_error = |source| OpenError::Io {
            path: settings.path.clone(),
            source,
        };
        let file = open_regular(&settings.path).map_err(io_error)?;
        if let Err(error) = file.sync_all() {
            tracing::warn!(%error, "sync metadata store before it is reopened");
        }
        let advised = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        if let Err(error) = advised {
            tracing::debug!(%error, "drop cached pages of metadata store");
        }
        Self::open(settings, Some(acknowledged))
    }

    /// Creates the file under another name first, so that a crash leaves a whole file or none.
    fn create(settings: &Settings) -> Result<(), OpenError> {
        let path = &settings.path;
        let fresh = with_suffix(path, ".new");
        let io_error = |source| OpenError::Io {
            path: path.clone(),
            source,
        };
        match std::fs::remove_file(&fresh) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(io_error(error));
            }
            _ => {}
        }
        let made = (|| -> Result<(), Failure> {
            let (database, _) = open_database(&fresh, settings)?;
            let transaction = database.begin_write()?;
            transaction.open_table(DATA)?;
            {
                let mut meta = transaction.open_table(META)?;
                meta.insert(META_FORMAT, FORMAT)?;
                meta.insert(META_VERSION, 0)?;
                meta.insert(META_BYTES, 0)?;
            }
            transaction.commit()?;
            Ok(database.close()?)
        })();
        made.map_err(|failure| failure.on_open(path))?;
        std::fs::rename(&fresh, path)
            .and_then(|()| std::fs::File::open(space::parent(path))?.sync_all())
            .map_err(io_error)
    }

    /// Opens the file. It is refused, and left as it is, if it has less than was acknowledged.
    fn open(settings: &Settings, acknowledged: Option<Version>) -> Result<Self, OpenError> {
        let path = &settings.path;
        let corrupt = |reason: &str| OpenError::Corrupt {
            path: path.clone(),
            reason: reason.to_owned(),
        };
        let length = std::fs::metadata(path).map_err(|source| OpenError::Io {
            path: path.clone(),
            source,
        })?;
        if length.len() == 0 {
            // The engine would take it for a new store and lose what was there.
            return Err(corrupt("the file is empty"));
        }
        let opened = guarded(|| {
            let (database, disk) = open_database(path, settings)?;
            let format = read_format(&database)?;
            Ok((database, disk, format))
        });
        let (database, disk, format) = opened.map_err(|failure| failure.on_open(path))?;
        match format {
            Some(FORMAT) => {}
            Some(other) => {
                let why = format!(
                    "it has format {other}, and this release knows format {FORMAT} only: it is of another \
                     release"
                );
                return Err(corrupt(&why));
            }
            None => return Err(corrupt("the file is not a metadata store")),
        }
        let file = Self {
            database,
            failed: Arc::new(AtomicBool::new(false)),
            given: Mutex::new(Vec::new()),
        };
        let found = file.newest().map_err(|failure| failure.on_open(path))?;
        if let Some(lost) = acknowledged.filter(|acknowledged| found.version < *acknowledged) {
            return Err(corrupt(&less_than_acknowledged(path, found.version, lost)));
        }
        if let Some(disk) = disk {
            disk.end_trial()
                .map_err(|error| Failure::from(redb::Error::Io(error)).on_open(path))?;
        }
        Ok(file)
    }

    /// The newest content.
    pub(super) fn newest(&self) -> Result<Newest, Failure> {
        guarded(|| {
            let transaction = self.database.begin_read()?;
            let meta = transaction.open_table(META)?;
            let number = |name| match meta.get(name)? {
                Some(number) => Ok::<u64, Failure>(number.value()),
                None => {
                    let missing = format!("the file does not say its {name}");
                    Err(redb::Error::Corrupted(missing).into())
                }
            };
            let table = Arc::new(RwLock::new(Some(transaction.open_table(DATA)?)));
            let mut given = self.given.lock();
            given.retain(|table| table.strong_count() > 0);
            given.push(Arc::downgrade(&table));
            Ok(Newest {
                version: Version(number(META_VERSION)?),
                bytes: number(META_BYTES)?,
                snapshot: FileSnapshot {
                    table,
                    failed: Arc::clone(&self.failed),
                },
            })
        })
    }

    /// Applies a batch and makes it durable.
    pub(super) fn write(&self, version: Version, writes: &BatchWrites) -> Result<(), Failure> {
        guarded(|| self.write_unguarded(version, writes))
    }

    fn write_unguarded(&self, version: Version, writes: &BatchWrites) -> Result<(), Failure> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        {
            let mut data = transaction.open_table(DATA)?;
            let (mut added, mut removed) = (0, 0);
            for (start, end) in writes.cleared.iter() {
                data.retain_in::<&[u8], _>(start.as_ref()..end.as_ref(), |key, value| {
                    removed += key.len() + content_len(value);
                    false
                })?;
            }
            for (key, value) in &writes.values {
                let key = key.as_ref();
                let old = match value {
                    Some(value) => {
                        added += key.len() + value.len();
                        data.insert(key, checked(key, value).as_slice())?
                    }
                    None => data.remove(key)?,
                };
                removed += old.map_or(0, |old| key.len() + content_len(old.value()));
            }
            let mut meta = transaction.open_table(META)?;
            let bytes = meta.get(META_BYTES)?.map_or(0, |bytes| bytes.value());
            let bytes = bytes
                .saturating_add(u64::try_from(added).unwrap_or(u64::MAX))
                .saturating_sub(u64::try_from(removed).unwrap_or(u64::MAX));
            meta.insert(META_BYTES, bytes)?;
            meta.insert(META_VERSION, version.0)?;
        }
        // Up to here nothing of the old content was touched; from here on it may have been.
        transaction.commit().map_err(|error| Failure {
            error: error.into(),
            unsure: true,
        })
    }

    /// Frees pages that nothing reads any more, which the engine does as part of a commit. It
    /// takes two: the first gives back what the second may use.
    pub(super) fn collect_pages(&self) -> Result<(), Failure> {
        guarded(|| {
            for _ in 0..2 {
                let mut transaction = self.database.begin_write()?;
                transaction.set_durability(Durability::Immediate)?;
                transaction.commit()?;
            }
            Ok(())
        })
    }

    /// Moves what is at the end of the file to free pages before it, and cuts the end off. All
    /// content that was given out becomes too old. A few syncs for each million pages that are
    /// moved; what was durable is so at every moment.
    pub(super) fn shrink(&mut self) -> Result<(), Failure> {
        for table in self.given.get_mut().drain(..) {
            if let Some(table) = table.upgrade() {
                // Waits for one read, not for whoever reads.
                table.write().take();
            }
        }
        guarded(|| {
            self.database.compact()?;
            Ok(())
        })
    }

    /// Whether a read has failed, so that the file must be reopened.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Closes the file.
    pub(super) fn close(self) -> Result<(), Failure> {
        guarded(|| Ok(self.database.close()?))
    }

    /// Closes the file after an error, which it will only report again.
    pub(super) fn give_up(self) {
        if let Err(failure) = self.close() {
            tracing::debug!(error = %failure.error, "close failed metadata store");
        }
    }
}

/// Calls into the engine. It compares no checksums when it reads, and may panic on what a bad
/// device returns; that must neither end a task nor the writer.
fn guarded<T>(call: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        Err(Failure {
            error: redb::Error::Corrupted("the file's engine panicked".to_owned()),
            unsure: true,
        })
    })
}

fn less_than_acknowledged(path: &Path, found: Version, acknowledged: Version) -> String {
    format!(
        "commit {} was acknowledged, and the newest that is left whole is {}; to go on with that \
         one and lose what came after it, remove {}",
        acknowledged.0,
        found.0,
        with_suffix(path, ".seen").display()
    )
}

/// Opens the database on a disk that makes no change before its trial is ended; without a disk of
/// that kind if it is only looked at.
fn open_database(
    path: &Path,
    settings: &Settings,
) -> Result<(Database, Option<disk::Disk>), Failure> {
    let mut builder = Database::builder();
    builder
        .set_cache_size(settings.options.cache_bytes)
        .set_check_integrity_on_open(settings.options.verify_on_open);
    if settings.access == Access::Look {
        let file = open_regular(path).map_err(redb::Error::Io)?;
        let shadow = shadow::Shadow::new(file).map_err(redb::Error::Io)?;
        return Ok((builder.create_with_backend(shadow)?, None));
    }
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = open_regular_with(path, &mut options).map_err(redb::Error::Io)?;
    let disk = disk::Disk::new(FileBackend::new(file)?, &settings.options);
    let is_new = disk.len().map_err(redb::Error::Io)? == 0;
    if !is_new {
        disk.begin_trial();
    }
    let database = builder.create_with_backend(disk.clone())?;
    Ok((database, Some(disk)))
}

/// The format of the file; `None` if it is a database, but not one of ours.
fn read_format(database: &Database) -> Result<Option<u64>, Failure> {
    let transaction = database.begin_read()?;
    match transaction.open_table(META) {
        Ok(meta) => Ok(meta.get(META_FORMAT)?.map(|format| format.value())),
        Err(redb::TableError::Storage(error)) => Err(error.into()),
        Err(_) => Ok(None),
    }
}

impl FileLock {
    /// Takes the lock that belongs to the file `path`. It is a file of its own, since the store's
    /// file is closed at times and does not exist at first.
    fn take(path: &Path, access: Access) -> Result<Self, OpenError> {
        let io_error = |source| OpenError::Io {
            path: path.to_owned(),
            source,
        };
        let lock_path = with_suffix(path, ".lock");
        let file = match access {
            Access::Change => {
                let mut options = std::fs::OpenOptions::new();
                options.write(true).create(true).truncate(false);
                open_regular_with(&lock_path, &mut options)
            }
            // Without the lock's file nobody uses the store, unless it is begun at this moment.
            Access::Look => open_regular(&lock_path).or_else(|_| open_regular(path)),
        };
        let file = file.map_err(io_error)?;
        let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        match rustix::fs::flock(&file, exclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::InUse {
                path: path.to_owned(),
            }),
            Err(error) => Err(io_error(error.into())),
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

impl FileSnapshot {
    /// Whether a read has failed, so that the file must be reopened.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Reads, and notes an error that makes the file useless.
    fn reading<T>(
        &self,
        read: impl FnOnce(&ReadOnlyTable<&'static [u8], &'static [u8]>) -> Result<T, StorageError>,
    ) -> Result<T, KvError> {
        let table = self.table.read();
        let Some(table) = table.as_ref() else {
            return Err(KvError::VersionTooOld);
        };
        let failure = match guarded(|| Ok(read(table)?)) {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        if !matches!(failure.error, redb::Error::DatabaseClosed) {
            self.failed.store(true, Ordering::Release);
        }
        Err(failure.into_error())
    }
}

/// What of a key and its value is stored behind the value.
fn check_of(key: &[u8], value: &[u8]) -> [u8; CHECK_BYTES] {
    let mut hasher = blake3::Hasher::new();
    // A key is shorter than 2^32 bytes, so key and value cannot be divided in two ways.
    let key_len = u32::try_from(key.len()).unwrap_or(u32::MAX);
    hasher.update(&key_len.to_be_bytes());
    hasher.update(key);
    hasher.update(value);
    let hash = *hasher.finalize().as_bytes();
    hash.first_chunk().copied().unwrap_or_default()
}

/// A value as it is stored.
fn checked(key: &[u8], value: &[u8]) -> Vec<u8> {
    [value, &check_of(key, value)].concat()
}

/// The value in what is stored; `None` if it is damaged.
fn content<'a>(key: &[u8], stored: &'a [u8]) -> Option<&'a [u8]> {
    let (value, check) = stored.split_last_chunk::<CHECK_BYTES>()?;
    (*check == check_of(key, value)).then_some(value)
}

fn content_len(stored: &[u8]) -> usize {
    stored.len().saturating_sub(CHECK_BYTES)
}

fn damaged() -> KvError {
    KvError::Corrupt("a value in the metadata store is not what was written".to_owned())
}

impl Snapshot for FileSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let found = self.reading(|table| {
            let Some(value) = table.get(key)? else {
                return Ok(None);
            };
            Ok(Some(
                content(key, value.value()).map(Bytes::copy_from_slice),
            ))
        })?;
        // Others are as good as before: the file is not reopened for it.
        found.map(|value| value.ok_or_else(damaged)).transpose()
    }

    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        reverse: bool,
        visit: &mut Visit<'_>,
    ) -> Result<(), KvError> {
        let is_well = self.reading(|table| {
            let mut pairs = table.range::<&[u8]>(start..end)?;
            loop {
                let pair = if reverse {
                    pairs.next_back()
                } else {
                    pairs.next()
                };
                let Some(pair) = pair else {
                    return Ok(true);
                };
                let (key, value) = pair?;
                let Some(value) = content(key.value(), value.value()) else {
                    return Ok(false);
                };
                if visit(key.value(), value).is_break() {
                    return Ok(true);
                }
            }
        })?;
        if is_well { Ok(()) } else { Err(damaged()) }
    }
}

impl std::fmt::Debug for FileSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSnapshot").finish_non_exhaustive()
    }
}

impl Failure {
    /// The same error, of a write that may have been made.
    pub(super) fn into_unsure(self) -> Self {
        Self {
            unsure: true,
            ..self
        }
    }

    /// Whether the write may have been made all the same.
    pub(super) fn is_unsure(&self) -> bool {
        self.unsure
    }

    /// The error for whoever waits, if nothing was written.
    pub(super) fn into_error(self) -> KvError {
        match self.error {
            redb::Error::Corrupted(reason) => KvError::Corrupt(reason),
            redb::Error::Io(error) if is_full(&error) => KvError::NoSpace,
            redb::Error::Io(error) if is_damage(&error) => KvError::Corrupt(error.to_string()),
            other => KvError::Unavailable(other.to_string()),
        }
    }

    /// The error of opening the file `path`.
    pub(super) fn on_open(self, path: &Path) -> OpenError {
        let path = path.to_owned();
        match self.error {
            redb::Error::DatabaseAlreadyOpen | redb::Error::LockProtocolMismatch => {
                OpenError::InUse { path }
            }
            redb::Error::Io(source) if !is_damage(&source) => OpenError::Io { path, source },
            other => OpenError::Corrupt {
                path,
                reason: other.to_string(),
            },
        }
    }
}

impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self {
            error: error.into(),
            unsure: false,
        }
    }
}

/// Whether the device or the quota is full.
pub(super) fn is_full(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
    )
}

/// Whether the bytes of the file are wrong, rather than the device.
fn is_damage(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof
    )
}
