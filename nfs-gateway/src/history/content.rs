//! File content as a merge reads and stores it.

use std::collections::BTreeMap;

use base::InodeId;
use base::limits::INLINE_BLOCK_BYTES_MAX;
use bytes::Bytes;
use metadata::image::{Block, Body};
use metadata::keyspace::image::{self as keys, ImageKey};
use metadata::merge::{Content, ContentError, MergeError, MergeFuture, Origin, Pair};
use metadata::record::block;
use metadata::record::inode::InodeRecord;
use metadata::tree::Root;

use super::read::Versions;

/// Content of files of three versions.
#[derive(Debug)]
pub(super) struct TreeContent {
    pub(super) versions: Versions,
    pub(super) base: Root,
    pub(super) roots: Pair<Root>,
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
                self.versions.chunks.touch(self.versions.domain.id, id);
            }
        }
        Ok(())
    }

    async fn store_file(&self, content: &Bytes) -> Result<Vec<(u32, Block)>, AnyError> {
        let Versions { chunks, domain, .. } = &self.versions;
        let size = usize::try_from(self.versions.block_bytes)?;
        let mut blocks = Vec::new();
        for (index, part) in content.chunks(size).enumerate() {
            let part = content.slice_ref(part);
            let block = if part.len() <= INLINE_BLOCK_BYTES_MAX {
                Block::inline(part)
            } else {
                let length = u32::try_from(part.len())?;
                Block::chunk(chunks.put(*domain, part).await?, length)
            };
            blocks.push((u32::try_from(index)?, block));
        }
        chunks.sync().await?;
        Ok(blocks)
    }
}

impl Content for TreeContent {
    fn read<'a>(
        &'a self,
        origin: Origin,
        _inode: InodeId,
        record: &'a InodeRecord,
    ) -> MergeFuture<'a, Bytes, ContentError> {
        let root = match origin {
            Origin::Base => self.base,
            Origin::Of(side) => *self.roots.of(side),
        };
        Box::pin(async move {
            let snapshot = self.versions.snapshot(root);
            let read = self.versions.read_whole(&snapshot, record, u64::MAX).await;
            match read {
                Ok(content) => Ok(content.unwrap_or_default()),
                Err(source) => Err(ContentError {
                    what: "read a file to merge",
                    source: source.into(),
                }),
            }
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
