//! Putting an image together entry by entry, as an archive tells it.
//!
//! What is made goes to the open layer of a session of its own ([`Store::open_staging`]), by fenced
//! flushes, so that memory is bounded, collections see what is referred to, and a process that dies
//! leaves an image like any other. At each flush the image is whole: attributes say what is there.
//! Nothing is on a branch before somebody makes a commit of the session's image.
//!
//! Where another image was given to compare with, what has the same path and kind keeps its inode
//! number, and what is the same altogether keeps its times: so what does not change between two
//! imports has the same keys and values, and the trees share it.
//!
//! A path is here once. A directory may come again, for its attributes; whatever else comes to a
//! path that is taken is refused, and so is what would lead out of the tree.

mod keep;
mod objects;
mod paths;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use base::limits::{LINKS_MAX, SYMLINK_BYTES_MAX};
use base::{InodeId, Name, SessionId, TenantId, Timestamp, WorkspaceId};
use bytes::Bytes;

use crate::compare::{Snapshot, SnapshotError};
use crate::image::{Block, Changes, InodeNumbers, NameHasher, Totals, Usage, allocated};
use crate::keyspace::image as keys;
use crate::kv::{Kv, KvError};
use crate::layers::{ImageError, Layers};
use crate::record::entry::Entry;
use crate::record::inode::InodeRecord;
use crate::record::{RecordError, block};
use crate::session::{Fence, FlushBatch, FlushError, Owned};
use crate::stat::{Device, FileKind};
use crate::store::{Store, StoreError};
use crate::tree::TreeError;

pub use keep::Keeping;

use objects::Held;
pub use paths::DIRS_AT_ONCE_MAX;
use paths::{DirCache, split};

/// Bytes of changes that one flush carries at most, about: half a transaction.
pub const FLUSH_BYTES: usize = 4 << 20;

/// Why something could not be taken in, cut by what the caller does next.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// What is to be made is not acceptable.
    #[error("{path:?}: {why}")]
    Refused {
        /// Where.
        path: String,
        /// Why, and what to do.
        why: String,
    },
    /// Somebody else owns the session now, or it has ended.
    #[error(
        "the import's session was taken from it (by a mount, or because it took too long); import again"
    )]
    Lost,
    /// The device is full, or the tenant's limit is reached.
    #[error("{0}")]
    NoSpace(String),
    /// The store of metadata fails.
    #[error("store what is imported: {0}")]
    Kv(KvError),
    /// The store refuses or fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What was made before cannot be read.
    #[error("read what was imported: {0}")]
    Image(#[from] ImageError),
    /// What it is compared with cannot be read.
    #[error("read the version before: {0}")]
    Snapshot(#[from] SnapshotError),
}

impl From<RecordError> for ImportError {
    fn from(error: RecordError) -> Self {
        ImageError::from(error).into()
    }
}

impl From<TreeError> for ImportError {
    fn from(error: TreeError) -> Self {
        ImageError::from(error).into()
    }
}

/// Attributes of something that comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, at most `0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last access.
    pub atime: Timestamp,
}

/// What something that comes in is, unless it is a file, a directory or a further name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Special {
    /// A symbolic link to this.
    Symlink(Bytes),
    /// A block device.
    BlockDevice(Device),
    /// A character device.
    CharDevice(Device),
    /// A pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl Special {
    fn kind(&self) -> FileKind {
        match self {
            Self::Symlink(_) => FileKind::Symlink,
            Self::BlockDevice(_) => FileKind::BlockDevice,
            Self::CharDevice(_) => FileKind::CharDevice,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
        }
    }
}

/// An image that is being put together.
#[derive(Debug)]
pub struct Import {
    kv: Arc<dyn Kv>,
    store: Store,
    tenant: TenantId,
    workspace: WorkspaceId,
    session: SessionId,
    owned: Owner,
    hasher: NameHasher,
    /// The image whose numbers are kept.
    old: Option<Snapshot>,
    now: Timestamp,
    changes: Changes,
    usage: Usage,
    numbers: InodeNumbers,
    /// First number of those given to this import: smaller ones are of the image before.
    fresh: u64,
    /// What has changed since the last flush, and some directories.
    held: HashMap<InodeId, Held>,
    /// What it adds to the next flush, in bytes.
    waiting: usize,
    /// What `changes` adds to the next flush, in bytes.
    written: usize,
    /// The file whose content comes.
    open: Option<InodeId>,
    dirs: DirCache,
    /// Directories that were made, and the root if it was told.
    dirs_made: u64,
    is_root_told: bool,
}

/// What of a session's owner is needed.
#[derive(Debug)]
struct Owner {
    fence: Fence,
    layers: Layers,
    block_bytes: u32,
    bytes_max: u64,
    inodes_max: u64,
}

impl Import {
    /// Begins in a session that was just opened by [`Store::open_staging`] and taken over. `old` is the
    /// image that is compared with; `now` becomes the time of change of what differs from it.
    ///
    /// # Errors
    ///
    /// The store fails.
    ///
    /// # Cancellation
    ///
    /// Safe to drop: at worst inode numbers are lost.
    pub async fn begin(
        kv: Arc<dyn Kv>,
        store: Store,
        owned: Owned,
        old: Option<Snapshot>,
        now: Timestamp,
    ) -> Result<Self, ImportError> {
        let workspace = owned.session.workspace;
        let numbers = store.allocate_inodes(workspace).await?;
        Ok(Self {
            kv,
            store,
            tenant: owned.session.tenant,
            workspace,
            session: owned.fence.session(),
            hasher: NameHasher::new(owned.workspace.name_key),
            owned: Owner {
                fence: owned.fence,
                layers: owned.layers,
                block_bytes: owned.workspace.block_bytes,
                bytes_max: owned.tenant.bytes_max,
                inodes_max: owned.tenant.inodes_max,
            },
            old,
            now,
            changes: Changes::default(),
            usage: owned.totals.usage,
            fresh: numbers.next,
            numbers,
            held: HashMap::new(),
            waiting: 0,
            written: 0,
            open: None,
            dirs: DirCache::default(),
            dirs_made: 0,
            is_root_told: false,
        })
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// How many directories have come: those that were told of, and those that were made because
    /// something is in them.
    #[must_use]
    pub fn directories(&self) -> u64 {
        self.dirs_made + u64::from(self.is_root_told)
    }

    /// How many bytes the next flush adds to a transaction, or a few less.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.written + self.waiting
    }

    /// A directory with these attributes, made or there already. The empty path is the root.
    ///
    /// # Errors
    ///
    /// See [`ImportError`]. After `Refused` the image is as it was.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe, like all that follow: the import is to be given up then.
    pub async fn directory(&mut self, path: &[u8], with: Attributes) -> Result<(), ImportError> {
        let names = split(path)?;
        self.is_root_told |= names.is_empty();
        let dir = self.walk(&names).await?;
        self.change(dir, |record| {
            objects::set(record, with);
            Ok(())
        })
        .await
    }

    /// A new file without content; gives its number.
    ///
    /// # Errors
    ///
    /// As [`Import::directory`].
    ///
    /// # Cancellation
    ///
    /// As [`Import::directory`].
    pub async fn file(&mut self, path: &[u8], with: Attributes) -> Result<InodeId, ImportError> {
        let file = self.make(path, FileKind::File, with).await?;
        self.open = Some(file);
        Ok(file)
    }

    /// A symbolic link, a device, a pipe or a socket.
    ///
    /// # Errors
    ///
    /// As [`Import::directory`].
    ///
    /// # Cancellation
    ///
    /// As [`Import::directory`].
    pub async fn special(
        &mut self,
        path: &[u8],
        with: Attributes,
        special: Special,
    ) -> Result<(), ImportError> {
        if let Special::Symlink(target) = &special {
            let is_target = !target.is_empty() && !target.contains(&0);
            if !is_target || target.len() > SYMLINK_BYTES_MAX {
                let why = format!(
                    "a symbolic link leads to 1 to {SYMLINK_BYTES_MAX} bytes without NUL, this one \
                     has {}",
                    target.len()
                );
                return Err(refused(path, why));
            }
        }
        let inode = self.make(path, special.kind(), with).await?;
        self.change(inode, |record| {
            match special {
                Special::Symlink(target) => {
                    record.stat.mode = 0o777;
                    record.stat.size = length(&target);
                    record.inline = Some(target);
                }
                Special::BlockDevice(device) | Special::CharDevice(device) => {
                    record.stat.device = device;
                }
                Special::Fifo | Special::Socket => {}
            }
            Ok(())
        })
        .await
    }

    /// A further name of what is at `target`, which is no directory.
    ///
    /// # Errors
    ///
    /// As [`Import::directory`].
    ///
    /// # Cancellation
    ///
    /// As [`Import::directory`].
    pub async fn link(&mut self, path: &[u8], target: &[u8]) -> Result<(), ImportError> {
        let what = |why: &str| {
            let target = String::from_utf8_lossy(target);
            refused(path, format!("it is a hard link to {target:?}, {why}"))
        };
        let names = split(target).map_err(|_| what("which leads out of the tree: leave it out"))?;
        let Some(entry) = self.find(&names).await? else {
            return Err(what("which was not there before it: put the file first"));
        };
        if entry.kind == FileKind::Directory {
            return Err(what("which is a directory: leave it out"));
        }
        let inode = entry.inode;
        let (parent, name) = self.place(path, FileKind::File).await?;
        self.change(inode, |record| {
            if record.stat.nlink >= LINKS_MAX {
                return Err(what("which has as many names as there can be"));
            }
            record.stat.nlink += 1;
            Ok(())
        })
        .await?;
        self.set(keys::link(inode, parent, &name), Bytes::new());
        self.enter(parent, &name, entry).await
    }

    /// Sets a block of a file, once for each. Says nothing of the file's size.
    ///
    /// # Errors
    ///
    /// See [`ImportError`].
    ///
    /// # Cancellation
    ///
    /// As [`Import::directory`].
    pub async fn block(
        &mut self,
        file: InodeId,
        index: u32,
        content: &Block,
    ) -> Result<(), ImportError> {
        let key = keys::block(file, index);
        let value = block::encode(content);
        let is_same = match &self.old {
            Some(old) if file.raw() < self.fresh => old.value(&key).await?.as_ref() == Some(&value),
            _ => false,
        };
        let held = self.hold(file).await?;
        held.same_content &= is_same;
        self.set(key, value);
        Ok(())
    }

    /// Most bytes that a file can have.
    #[must_use]
    pub fn file_bytes_max(&self) -> u64 {
        u64::from(self.owned.block_bytes) * u64::from(u32::MAX)
    }

    /// Refuses a file that would be longer than one can be.
    ///
    /// # Errors
    ///
    /// `Refused`.
    pub fn check_size(&self, path: &[u8], size: u64) -> Result<(), ImportError> {
        let max = self.file_bytes_max();
        if size <= max {
            return Ok(());
        }
        let why = format!("it has {size} bytes, and a file here can have {max}");
        Err(refused(path, why))
    }

    /// Says how long a file is now, and how much of it is allocated by its blocks.
    ///
    /// # Errors
    ///
    /// `Refused` if that is more than can be; see [`ImportError`].
    ///
    /// # Cancellation
    ///
    /// As [`Import::directory`].
    pub async fn resize(
        &mut self,
        (path, file): (&[u8], InodeId),
        size: u64,
        used: u64,
    ) -> Result<(), ImportError> {
        self.check_size(path, size)?;
        let before = self
            .change(file, |record| {
                record.stat.size = size;
                Ok(std::mem::replace(&mut record.stat.used, used))
            })
            .await?;
        self.count_bytes(before, used)
    }

    /// Sets all content of a file that is small enough to live in its attributes.
    ///
    /// # Errors
    ///
    /// See [`ImportError`].
    ///
    /// # Cancellation
    ///
    /// As [`Import::directory`].
    pub async fn small(&mut self, file: InodeId, content: Bytes) -> Result<(), ImportError> {
        let used = allocated(Some(&Block::inline(content.clone())), [None, None]);
        let before = self
            .change(file, |record| {
                record.stat.size = length(&content);
                record.inline = Some(content);
                Ok(std::mem::replace(&mut record.stat.used, used))
            })
            .await?;
        self.count_bytes(before, used)
    }

    fn count_bytes(&mut self, before: u64, after: u64) -> Result<(), ImportError> {
        let bytes = self
            .usage
            .bytes
            .saturating_sub(before)
            .saturating_add(after);
        self.usage.bytes = bytes;
        if bytes > self.owned.bytes_max {
            let max = self.owned.bytes_max;
            let why = format!("the import has more than the {max} bytes that its tenant may have");
            return Err(ImportError::NoSpace(why));
        }
        Ok(())
    }

    /// Makes all that was done so far durable. What its blocks name is durable before.
    ///
    /// # Errors
    ///
    /// See [`ImportError`]. The import is to be given up then.
    ///
    /// # Cancellation
    ///
    /// As [`Import::directory`].
    pub async fn flush(&mut self) -> Result<(), ImportError> {
        self.write_held().await?;
        self.written = 0;
        if self.changes.is_empty() {
            return Ok(());
        }
        let batch = FlushBatch {
            changes: std::mem::take(&mut self.changes),
            totals: Totals {
                usage: self.usage,
                numbers: self.numbers,
            },
            ..FlushBatch::default()
        };
        let Owner { fence, layers, .. } = &mut self.owned;
        let flushed = fence.flush(self.kv.as_ref(), layers, &batch).await;
        flushed.map_err(|error| match error {
            // Nobody exchanges the image of an import's session.
            // An import exchanges nothing.
            FlushError::Fenced | FlushError::Moved | FlushError::Gone | FlushError::Call(_) => {
                ImportError::Lost
            }
            FlushError::NoSpace => ImportError::NoSpace("no space is left for the import".into()),
            FlushError::Kv(error) => ImportError::Kv(error),
        })
    }

    /// Lets the session end `seconds` from now, instead of sooner.
    ///
    /// # Errors
    ///
    /// See [`ImportError`].
    ///
    /// # Cancellation
    ///
    /// As [`Import::directory`].
    pub async fn extend(&mut self, seconds: u64) -> Result<(), ImportError> {
        let extended = self
            .store
            .extend_session(self.tenant, self.session, seconds);
        match extended.await {
            Err(StoreError::NotFound { .. }) => Err(ImportError::Lost),
            result => Ok(result?),
        }
    }
}

/// That something is not acceptable.
fn refused(path: &[u8], why: impl Into<String>) -> ImportError {
    ImportError::Refused {
        path: String::from_utf8_lossy(path).into_owned(),
        why: why.into(),
    }
}

fn length(bytes: &Bytes) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// An entry of what is new.
fn entry_of(record: &InodeRecord) -> Entry {
    Entry {
        inode: record.stat.inode,
        kind: record.stat.kind,
    }
}

/// A name and the directory it is in.
type Place = (InodeId, Name);
