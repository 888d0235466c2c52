//! File content as a merge reads and stores it.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::InodeId;
use base::limits::INLINE_BLOCK_BYTES_MAX;
use bytes::{Bytes, BytesMut};
use chunkstore::{ChunkStore, Domain};
use metadata::image::{Block, Body, Piece};
use metadata::keyspace::image::{self as keys, ImageKey};
use metadata::merge::{Content, ContentError, MergeError, MergeFuture, Origin, Pair};
use metadata::record::block;
use metadata::record::inode::InodeRecord;
use metadata::tree::{Root, Tree};

/// Content of files of three versions.
#[derive(Debug)]
pub(super) struct TreeContent {
    pub(super) tree: Tree,
    pub(super) base: Root,
    pub(super) roots: Pair<Root>,
    pub(super) block_bytes: u32,
    pub(super) chunks: Arc<dyn ChunkStore>,
    pub(super) domain: Domain,
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

impl TreeContent {
    /// Says that the chunks which a delta refers to are referred to from a new place.
    pub(super) fn touch(&self, delta: &BTreeMap<Bytes, Option<Bytes>>) -> Result<(), MergeError> {
        for (key, value) in delta {
            if let Some(value) = value
                && let ImageKey::Block { .. } = keys::decode(key)?
                && let Body::Chunk { id, .. } = block::decode(value)?.body
            {
                self.chunks.touch(self.domain.id, id);
            }
        }
        Ok(())
    }

    async fn read_file(
        &self,
        root: Root,
        inode: InodeId,
        record: &InodeRecord,
    ) -> Result<Bytes, AnyError> {
        let size = usize::try_from(record.stat.size)?;
        let mut content = BytesMut::with_capacity(size);
        if let Some(inline) = &record.inline {
            content.extend_from_slice(inline);
        } else {
            let blocks = record.stat.size.div_ceil(u64::from(self.block_bytes));
            for index in 0..u32::try_from(blocks)? {
                let key = keys::block(inode, index);
                if let Some(value) = self.tree.get(root, &key).await? {
                    let start = u64::from(index) * u64::from(self.block_bytes);
                    content.resize(usize::try_from(start)?, 0);
                    self.read_block(&block::decode(&value)?, &mut content)
                        .await?;
                }
            }
        }
        content.resize(size, 0);
        Ok(content.freeze())
    }

    async fn read_block(&self, block: &Block, content: &mut BytesMut) -> Result<(), AnyError> {
        // A block has at most one.
        let mut chunk: Option<Bytes> = None;
        for piece in block.pieces(0, block.end(), [None, None]) {
            match piece {
                Piece::Bytes(bytes) => content.extend_from_slice(&bytes),
                Piece::Zero(length) => {
                    let end = content.len() + usize::try_from(length)?;
                    content.resize(end, 0);
                }
                Piece::Chunk { id, offset, length } => {
                    let whole = match chunk.take() {
                        Some(chunk) => chunk,
                        None => self.chunks.get(self.domain, id).await?,
                    };
                    let (from, length) = (usize::try_from(offset)?, usize::try_from(length)?);
                    let end = content.len() + length;
                    if let Some(part) = whole.get(from..) {
                        content.extend_from_slice(part.get(..length).unwrap_or(part));
                    }
                    content.resize(end, 0);
                    chunk = Some(whole);
                }
            }
        }
        Ok(())
    }

    async fn store_file(&self, content: &Bytes) -> Result<Vec<(u32, Block)>, AnyError> {
        let size = usize::try_from(self.block_bytes)?;
        let mut blocks = Vec::new();
        for (index, part) in content.chunks(size).enumerate() {
            let part = content.slice_ref(part);
            let block = if part.len() <= INLINE_BLOCK_BYTES_MAX {
                Block::inline(part)
            } else {
                let length = u32::try_from(part.len())?;
                Block::chunk(self.chunks.put(self.domain, part).await?, length)
            };
            blocks.push((u32::try_from(index)?, block));
        }
        self.chunks.sync().await?;
        Ok(blocks)
    }
}

impl Content for TreeContent {
    fn read<'a>(
        &'a self,
        origin: Origin,
        inode: InodeId,
        record: &'a InodeRecord,
    ) -> MergeFuture<'a, Bytes, ContentError> {
        let root = match origin {
            Origin::Base => self.base,
            Origin::Of(side) => *self.roots.of(side),
        };
        Box::pin(async move {
            let read = self.read_file(root, inode, record).await;
            read.map_err(|source| ContentError {
                what: "read a file to merge",
                source,
            })
        })
    }

    fn merge_texts(
        &self,
        base: Bytes,
        ours: Bytes,
        theirs: Bytes,
    ) -> MergeFuture<'_, Option<Bytes>, ContentError> {
        // Not among the tasks that answer calls: they would wait for it.
        let work = move || metadata::merge::merge_texts(&base, &ours, &theirs);
        Box::pin(async move {
            let merged = tokio::task::spawn_blocking(work).await;
            merged.map_err(|source| ContentError {
                what: "merge texts",
                source: source.into(),
            })
        })
    }

    fn store(&self, content: Bytes) -> MergeFuture<'_, Vec<(u32, Block)>, ContentError> {
        Box::pin(async move {
            let stored = self.store_file(&content).await;
            stored.map_err(|source| ContentError {
                what: "store a merged file",
                source,
            })
        })
    }
}
