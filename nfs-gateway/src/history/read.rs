//! Reading files of versions, and of sessions as they are now, without a mount
//! (`docs/design/0010-reading.md`).

use std::ops::Range;
use std::sync::Arc;

use base::{ChunkId, DomainId, SessionId, TenantId, WorkspaceId};
use bytes::{Bytes, BytesMut};
use chunkstore::{ChunkError, ChunkStore, Domain, Hold};
use metadata::compare::{FilePiece, FilePieces, Snapshot, SnapshotError, Source};
use metadata::image::NameHasher;
use metadata::lineage::{Lineage, TextFuture, Texts};
use metadata::merge::ContentError;
use metadata::record::inode::InodeRecord;
use metadata::store::{SessionInfo, StoreError, WorkspaceInfo};
use metadata::tree::{Root, Tree};

use super::HistoryError;
use crate::gateway::Gateway;

/// Zeros that are given at a time.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Why content cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The tree cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A chunk cannot be read.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
}

/// All versions of one workspace. Cloning shares everything.
#[derive(Clone, Debug)]
pub struct Versions {
    workspace: WorkspaceId,
    tree: Tree,
    hasher: NameHasher,
    pub(super) block_bytes: u32,
    pub(crate) chunks: Arc<dyn ChunkStore>,
    pub(crate) domain: Domain,
}

/// A session's image as it was during the call that made this. It stays readable as long as this
/// lives, also if the session has another base meanwhile: a collection that has not begun waits, and
/// one that has was told of it. So it is not to be kept for long.
#[derive(Debug)]
pub struct Look {
    /// The image.
    pub root: Root,
    /// The session.
    pub session: SessionInfo,
    _hold: Hold,
}

impl Gateway {
    /// The versions of a workspace.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn versions(
        &self,
        tenant: TenantId,
        workspace: &WorkspaceInfo,
    ) -> Result<Versions, StoreError> {
        let tree = self.tree(tenant, &workspace.record).await?;
        self.versions_in(tree, tenant, workspace).await
    }

    /// The versions of a workspace, whose trees are at hand.
    pub(super) async fn versions_in(
        &self,
        tree: Tree,
        tenant: TenantId,
        workspace: &WorkspaceInfo,
    ) -> Result<Versions, StoreError> {
        let record = &workspace.record;
        Ok(Versions {
            workspace: workspace.id,
            tree,
            hasher: NameHasher::new(record.name_key),
            block_bytes: record.block_bytes,
            chunks: Arc::clone(&self.chunks),
            domain: self.domain(tenant).await?,
        })
    }

    /// Where a tenant's chunks are.
    pub(crate) async fn domain(&self, tenant: TenantId) -> Result<Domain, StoreError> {
        Ok(Domain {
            id: DomainId::new(tenant.raw()),
            key: self.store.tenant(tenant).await?.domain_key,
        })
    }

    /// Stores what clients of a session have written so far, committed or not, and gives its image
    /// as of some moment during this call. Calls of clients go on meanwhile.
    ///
    /// # Errors
    ///
    /// See [`HistoryError`].
    ///
    /// # Cancellation
    ///
    /// Safe to drop: nothing that clients see changes.
    pub async fn look(
        self: &Arc<Self>,
        tenant: TenantId,
        session: SessionId,
    ) -> Result<Look, HistoryError> {
        // From before the tree is made: the session may soon have another.
        let hold = self.chunks.hold();
        // It is there, and the tenant's.
        self.store.session(tenant, session).await?;
        let root = self.snapshot(session).await?;
        Ok(Look {
            root,
            session: self.store.session(tenant, session).await?,
            _hold: hold,
        })
    }
}

impl Versions {
    /// The trees.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Hashes the names.
    #[must_use]
    pub fn hasher(&self) -> &NameHasher {
        &self.hasher
    }

    /// The files of one version.
    #[must_use]
    pub fn snapshot(&self, root: Root) -> Snapshot {
        Snapshot::new(self.tree.clone(), self.hasher.clone(), root)
    }

    /// The files of a commit.
    #[must_use]
    pub fn of(&self, commit: &metadata::store::CommitInfo) -> Snapshot {
        self.snapshot(commit.record.root())
    }

    /// The histories of paths.
    #[must_use]
    pub fn lineage(&self, store: metadata::store::Store) -> Lineage {
        Lineage::new(
            store,
            self.workspace,
            self.tree.clone(),
            self.hasher.clone(),
        )
    }

    /// Where the content of a part of a file is.
    pub(crate) fn pieces(
        &self,
        snapshot: &Snapshot,
        record: &InodeRecord,
        range: Range<u64>,
    ) -> FilePieces {
        snapshot.read(record, self.block_bytes, range)
    }

    /// Reads a part of a file's content, or of a symbolic link's target, as far as there is any.
    /// Other kinds have none.
    #[must_use]
    pub fn read(&self, snapshot: &Snapshot, record: &InodeRecord, range: Range<u64>) -> FileReader {
        FileReader {
            pieces: self.pieces(snapshot, record, range),
            zeros: 0,
            chunks: Arc::clone(&self.chunks),
            domain: self.domain,
            last: None,
        }
    }

    /// The content of a file that has at most `bytes_max` bytes; `None` if it has more.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub async fn read_whole(
        &self,
        snapshot: &Snapshot,
        record: &InodeRecord,
        bytes_max: u64,
    ) -> Result<Option<Bytes>, ReadError> {
        if record.stat.size > bytes_max {
            return Ok(None);
        }
        let mut reader = self.read(snapshot, record, 0..record.stat.size);
        let mut content = BytesMut::new();
        while let Some(part) = reader.next().await? {
            content.extend_from_slice(&part);
        }
        Ok(Some(content.freeze()))
    }
}

impl Texts for Versions {
    fn read<'a>(&'a self, snapshot: &'a Snapshot, record: &'a InodeRecord) -> TextFuture<'a> {
        Box::pin(async move {
            let read = self.read_whole(snapshot, record, u64::MAX).await;
            match read {
                Ok(text) => Ok(text.unwrap_or_default()),
                Err(source) => Err(ContentError {
                    what: "read a version of a file",
                    source: source.into(),
                }),
            }
        })
    }
}

/// Reads content in order, a chunk or less at a time. Holds one chunk.
#[derive(Debug)]
pub struct FileReader {
    pieces: FilePieces,
    /// Zeros that come before the next piece.
    zeros: u64,
    chunks: Arc<dyn ChunkStore>,
    domain: Domain,
    /// A block may have several parts of one.
    last: Option<(ChunkId, Bytes)>,
}

impl FileReader {
    /// The next part, which is not empty; `None` after the last.
    ///
    /// # Errors
    ///
    /// See [`ReadError`]. What was read before is right; there is nothing more to be read then.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: a part may be skipped.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            if self.zeros > 0 {
                let count = ZEROS
                    .len()
                    .min(usize::try_from(self.zeros).unwrap_or(usize::MAX));
                self.zeros -= u64::try_from(count).unwrap_or(self.zeros);
                return Ok(Some(Bytes::from_static(&ZEROS).slice(..count)));
            }
            let Some(piece) = self.pieces.next().await? else {
                return Ok(None);
            };
            let bytes = self.bytes(&piece).await?;
            let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            // Nor are zeros stored behind the end of a chunk.
            self.zeros = piece.length.saturating_sub(length);
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
    }

    /// What a piece holds, without zeros at its end.
    async fn bytes(&mut self, piece: &FilePiece) -> Result<Bytes, ReadError> {
        let (id, offset) = match &piece.source {
            Source::Hole => return Ok(Bytes::new()),
            Source::Bytes(bytes) => return Ok(bytes.clone()),
            Source::Chunk { id, offset } => (*id, *offset),
        };
        let whole = match self.last.take() {
            Some((last, whole)) if last == id => whole,
            _ => self.chunks.get(self.domain, id).await?,
        };
        let length = usize::try_from(piece.length).unwrap_or(usize::MAX);
        let bytes = part_of(&whole, offset, length);
        self.last = Some((id, whole));
        Ok(bytes)
    }
}

/// `length` bytes of a chunk, or as many as there are.
pub(crate) fn part_of(chunk: &Bytes, offset: u32, length: usize) -> Bytes {
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    let from = offset.min(chunk.len());
    let to = from.saturating_add(length).min(chunk.len());
    chunk.slice(from..to)
}
