//! Taking over what the image before has, without its content coming in again.

use base::{ChunkId, InodeId};

use super::{FLUSH_BYTES, Import, ImportError, entry_of, refused};
use crate::image::{Body, allocated};
use crate::keyspace::image::{self as keys, ImageKey};
use crate::record::block;
use crate::stat::FileKind;
use crate::tree::Scan;

/// A file whose blocks are being taken over.
#[derive(Debug)]
pub struct Keeping {
    path: Vec<u8>,
    inode: InodeId,
    size: u64,
    /// Allocated by the blocks so far.
    used: u64,
    blocks: Scan,
}

impl Import {
    /// What the image before has at this path, which is no directory and has no other name there, with
    /// all its attributes. The blocks of a file come by [`Import::keep_blocks`].
    ///
    /// # Errors
    ///
    /// `Refused` if there is no such thing, it has several names, or its inode is in use already; see
    /// [`ImportError`].
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: the import is to be given up then.
    pub async fn keep(&mut self, path: &[u8]) -> Result<Option<Keeping>, ImportError> {
        let nothing = || {
            let why = "the version before has nothing to keep there: import it whole, or name the \
                       parent that the archive was made against";
            refused(path, why)
        };
        let Some(old) = self.old.clone() else {
            return Err(nothing());
        };
        let (parent, name) = self.place(path, FileKind::File).await?;
        // A directory that is new has no entries there.
        let found = if parent.raw() < self.fresh {
            old.entry(parent, name.as_bytes()).await?
        } else {
            None
        };
        let found = found.filter(|entry| entry.kind != FileKind::Directory);
        let entry = found.ok_or_else(nothing)?;
        let inode = entry.inode;
        let is_there =
            self.held.contains_key(&inode) || self.value(&keys::inode(inode)).await?.is_some();
        let mut record = old.attributes(inode).await?.ok_or_else(nothing)?;
        // Another of its names may have come with other content.
        if is_there || record.stat.nlink != 1 {
            let why = "what is to be kept there has several names: such a thing comes whole, and its \
                       other names as hard links; make the archive anew";
            return Err(refused(path, why));
        }
        let (size, used) = (record.stat.size, record.stat.used);
        record.link = Some((parent, name.clone()));
        let entry = entry_of(&record);
        let has_blocks = record.stat.kind == FileKind::File && record.inline.is_none();
        if has_blocks {
            // At each flush it is as long as its blocks so far make it.
            (record.stat.size, record.stat.used) = (0, 0);
        }
        self.hold_new(record)?;
        self.enter(parent, &name, entry).await?;
        if !has_blocks {
            self.count_bytes(0, used)?;
            return Ok(None);
        }
        self.open = Some(inode);
        Ok(Some(Keeping {
            path: path.to_vec(),
            inode,
            size,
            used: 0,
            blocks: old.blocks(inode, 0, u32::MAX),
        }))
    }

    /// Takes over the next blocks of a file. `true` if there are more: to be called again, after a
    /// flush.
    ///
    /// `touch` is called for each chunk that is referred to, before anything refers to it anew. The
    /// caller holds the chunk store, and the image before stays.
    ///
    /// # Errors
    ///
    /// See [`ImportError`].
    ///
    /// # Cancellation
    ///
    /// As [`Import::keep`].
    pub async fn keep_blocks(
        &mut self,
        keeping: &mut Keeping,
        mut touch: impl FnMut(ChunkId) + Send,
    ) -> Result<bool, ImportError> {
        while let Some((key, value)) = keeping.blocks.next().await? {
            let content = block::decode(&value)?;
            if let Body::Chunk { id, .. } = &content.body {
                touch(*id);
            }
            keeping.used += allocated(Some(&content), [None, None]);
            let end = match keys::decode(&key) {
                Ok(ImageKey::Block { index, .. }) => {
                    u64::from(index) * u64::from(self.owned.block_bytes) + u64::from(content.end())
                }
                _ => keeping.size,
            };
            self.set(key.to_vec(), value);
            let at = (keeping.path.as_slice(), keeping.inode);
            self.resize(at, end, keeping.used).await?;
            if self.pending_bytes() >= FLUSH_BYTES {
                return Ok(true);
            }
        }
        let at = (keeping.path.as_slice(), keeping.inode);
        self.resize(at, keeping.size, keeping.used).await?;
        Ok(false)
    }
}
