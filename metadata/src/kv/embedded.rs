//! The store in one file of the machine it runs on.
//!
//! The file is a `redb` database. One thread writes it: it takes the transactions that came in
//! while the last ones were made durable, checks them in order, and makes them durable together
//! with one sync. Nothing is visible before. Reads go to a snapshot of the newest version and
//! never wait for the writer.
//!
//! A small file beside it witnesses the newest version that was acknowledged, for the engine goes
//! back to an older one without a word if the newest is damaged (`witness.rs`).
//!
//! After an I/O error the thread closes and reopens the file until that works. Which commits the
//! error left behind is then read from the file itself, so that an unknown outcome is rare.
//!
//! When the device is short of space and much of the file is free, the thread makes the file
//! smaller in place. Whoever reads is told to read again at a new version.
//!
//! Lock order: the queue, then the versions. Neither is held across I/O. A snapshot's own lock is
//! held for one read, and no other is taken meanwhile.

mod file;
mod queue;
mod space;
mod witness;
mod writer;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use base::Clock;
use parking_lot::{Mutex, RwLock};

use self::file::{File, FileSnapshot, Settings};
use self::queue::Queue;
use self::space::Space;
use super::core::{CommitRequest, CoreTransaction, Store, Versions};
use super::{Committed, Kv, KvError, KvFuture, Transaction, Version};

#[cfg(any(test, feature = "testing"))]
pub use self::file::{DiskChange, DiskFaults};

/// Disk space kept back from callers unless configured, in bytes: enough to delete and to finish
/// what was begun when the disk is full.
pub const RESERVE_BYTES_DEFAULT: u64 = 64 << 20;

/// Memory for pages of the file unless configured, in bytes.
pub const CACHE_BYTES_DEFAULT: usize = 256 << 20;

/// How to open an embedded store.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// Free disk space that [`Kv::available_bytes`] does not count.
    pub reserve_bytes: u64,
    /// Memory for pages of the file.
    pub cache_bytes: usize,
    /// Whether to read the whole file at every open and compare its checksums. After a crash
    /// that is done in any case. Without it, damage done by the device is not noticed.
    pub verify_on_open: bool,
    /// Errors for the file's device to have.
    #[cfg(any(test, feature = "testing"))]
    pub faults: Option<Arc<DiskFaults>>,
    /// The file is never made smaller, however full the machine's device is. Reads fail while it
    /// is, and what a test sees would depend on the device.
    #[cfg(any(test, feature = "testing"))]
    pub keeps_size: bool,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            reserve_bytes: RESERVE_BYTES_DEFAULT,
            cache_bytes: CACHE_BYTES_DEFAULT,
            verify_on_open: true,
            #[cfg(any(test, feature = "testing"))]
            faults: None,
            #[cfg(any(test, feature = "testing"))]
            keeps_size: false,
        }
    }
}

/// Why a store did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another server, or another store of this process, has the file open.
    #[error("{} is in use by another server", path.display())]
    InUse {
        /// The store's file.
        path: PathBuf,
    },
    /// The file cannot be created, read or written.
    #[error("open {}: {source}", path.display())]
    Io {
        /// The store's file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is damaged, or is not a store. It was left as it is.
    #[error("{} is damaged: {reason}", path.display())]
    Corrupt {
        /// The store's file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl From<OpenError> for KvError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Corrupt { .. } => Self::Corrupt(error.to_string()),
            OpenError::Io { source, .. } if file::is_full(&source) => Self::NoSpace,
            OpenError::InUse { .. } | OpenError::Io { .. } => Self::Unavailable(error.to_string()),
        }
    }
}

/// A store in a file. Dropping it finishes what was queued and closes the file.
#[derive(Debug)]
pub struct EmbeddedKv {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What transactions and the writer share.
#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    queue: Queue,
    versions: RwLock<Versions<FileSnapshot>>,
    /// Why the file is closed, while it is.
    down: Mutex<Option<KvError>>,
    space: Space,
}

impl EmbeddedKv {
    /// Opens the store in the file `path`, and creates it if there is no such file.
    ///
    /// `clock` says when read versions are too old. Blocks: for long, if the file is large and
    /// is verified.
    ///
    /// # Errors
    ///
    /// [`OpenError`]. A file that exists is never replaced, whatever is wrong with it.
    pub fn open(
        path: &Path,
        options: &EmbeddedOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        Self::start(Settings::new(path, options), path, options, clock)
    }

    /// Opens the store in the file `path` without changing it, to read what is in it: what would
    /// be written stays in memory and is forgotten. Commits are for nobody.
    ///
    /// # Errors
    ///
    /// As [`EmbeddedKv::open`], and if there is no such file.
    pub fn look_at(
        path: &Path,
        options: &EmbeddedOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        Self::start(Settings::to_look_at(path, options), path, options, clock)
    }

    fn start(
        settings: Settings,
        path: &Path,
        options: &EmbeddedOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let (file, lock, witness) = File::open_or_create(&settings)?;
        let newest = file.newest().map_err(|failure| failure.on_open(path))?;
        let version = newest.version;
        let space = Space::new(path, options.reserve_bytes, Arc::clone(&clock));
        space.set_stored_bytes(newest.bytes);
        let now = clock.monotonic();
        let shared = Arc::new(Shared {
            clock,
            queue: Queue::new(),
            versions: RwLock::new(Versions::new(version, now, newest.snapshot)),
            down: Mutex::new(None),
            space,
        });
        let writer = writer::start(
            Arc::clone(&shared),
            settings,
            file,
            (lock, witness),
            version,
        )
        .map_err(|source| OpenError::Io {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            shared,
            writer: Mutex::new(Some(writer)),
        })
    }

    /// Bytes of all keys and values stored.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.shared.space.stored_bytes()
    }

    /// Refuses new commits, finishes those in the queue, and closes the file. Blocks for that
    /// long. Later calls do nothing.
    pub fn close(&self) {
        self.shared.queue.close();
        let writer = self.writer.lock().take();
        if let Some(writer) = writer
            && writer.join().is_err()
        {
            tracing::error!("writer of the metadata store panicked");
        }
    }
}

impl Drop for EmbeddedKv {
    fn drop(&mut self) {
        self.close();
    }
}

impl Kv for EmbeddedKv {
    fn begin(&self) -> Box<dyn Transaction> {
        Box::new(CoreTransaction::new(Arc::clone(&self.shared)))
    }

    fn available_bytes(&self) -> Option<u64> {
        self.shared.space.available_bytes()
    }
}

impl Shared {
    fn why_down(&self) -> KvError {
        let down = self.down.lock().clone();
        down.unwrap_or_else(|| KvError::Unavailable("metadata store is closed".to_owned()))
    }
}

impl Store for Shared {
    type Snapshot = FileSnapshot;

    fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    fn latest(self: &Arc<Self>) -> Result<(Version, FileSnapshot), KvError> {
        let latest = self.versions.read().latest();
        let Some((version, snapshot)) = latest else {
            return Err(self.why_down());
        };
        if snapshot.has_failed() {
            // Only the writer can reopen the file, and nobody may be writing.
            self.queue.wake();
        }
        Ok((version, snapshot))
    }

    fn at(self: &Arc<Self>, version: Version) -> Result<FileSnapshot, KvError> {
        self.versions.read().at(version)
    }

    fn made_at(&self, version: Version) -> Result<Duration, KvError> {
        self.versions.read().made_at(version)
    }

    fn submit(self: Arc<Self>, request: CommitRequest) -> KvFuture<'static, Committed> {
        Box::pin(async move {
            let reply = self.queue.push(request).await?;
            // The writer answers everything it takes, unless it is gone.
            reply.await.unwrap_or(Err(KvError::OutcomeUnknown))
        })
    }
}
