//! Folding frozen layers and a base into a new base (page 0004, invariants 11 to 13).

use base::{ChunkId, InodeId};
use bytes::Bytes;

use crate::image::Body;
use crate::keyspace::image::{self as keys, ImageKey};
use crate::kv::Kv;
use crate::layers::{Base, ImageError, Item, LayerId, LayerScan};
use crate::record::block;
use crate::tree::{Edited, Editor, Root, Scan, Tree};

/// Makes the tree whose content is the image that `frozen` (newest first) and `base` make. It and all
/// below it are durable afterwards.
///
/// `touch` is called for each chunk that the new part of the tree refers to, before anything refers
/// to it. The caller holds the chunk store (`docs/design/0002-collection.md`).
///
/// # Errors
///
/// The stores fail or something is damaged. Nothing but unused nodes is left then.
///
/// # Cancellation
///
/// Safe to drop, as after an error.
pub async fn fold(
    kv: &dyn Kv,
    frozen: &[LayerId],
    base: &Base,
    mut touch: impl FnMut(ChunkId) + Send,
) -> Result<Edited, ImageError> {
    let tree = base.tree();
    let root = base_root(base).await?;
    let mut fold = Fold {
        tree,
        root,
        editor: tree.edit(root).await?,
        cut: None,
    };
    let mut scan = LayerScan::new(kv, frozen.iter().copied());
    while let Some(item) = scan.next().await? {
        let at = item.key();
        fold.remove_cut_before(&at).await?;
        match item {
            Item::Put(key, _, value) => {
                if let ImageKey::Block { .. } = key
                    && let Body::Chunk { id, .. } = block::decode(&value)?.body
                {
                    touch(id);
                }
                fold.editor.put(&at, &value).await?;
            }
            Item::Remove(_) => fold.editor.remove(&at).await?,
            Item::RemoveInode(inode) => {
                let mut doomed = tree.scan(root, &keys::inode_range(inode));
                while let Some((key, _)) = doomed.next().await? {
                    fold.editor.remove(&key).await?;
                }
            }
            Item::Cut(inode, first) => fold.begin_cut(inode, first).await?,
        }
    }
    fold.remove_cut().await?;
    Ok(fold.editor.finish().await?)
}

/// The base as a tree.
async fn base_root(base: &Base) -> Result<Root, ImageError> {
    match base {
        Base::Tree { root, .. } => Ok(*root),
        Base::Empty { tree, root } => {
            let key = keys::inode(InodeId::ROOT);
            Ok(tree.build([(key, root.encode())]).await?.root)
        }
    }
}

/// A fold in progress.
struct Fold<'a> {
    tree: &'a Tree,
    root: Root,
    editor: Editor,
    /// Blocks of the base that a cut removes: the next one, and those after it.
    cut: Option<(Bytes, Scan)>,
}

impl Fold<'_> {
    async fn begin_cut(&mut self, inode: InodeId, first: u32) -> Result<(), ImageError> {
        let mut doomed = self.tree.scan(self.root, &keys::blocks_from(inode, first));
        self.cut = doomed.next().await?.map(|(key, _)| (key, doomed));
        Ok(())
    }

    /// Removes blocks that a cut takes, up to a key that has a say of its own.
    async fn remove_cut_before(&mut self, at: &Bytes) -> Result<(), ImageError> {
        while let Some((key, mut rest)) = self.cut.take_if(|(key, _)| *key <= *at) {
            if key < *at {
                self.editor.remove(&key).await?;
            }
            self.cut = rest.next().await?.map(|(key, _)| (key, rest));
        }
        Ok(())
    }

    async fn remove_cut(&mut self) -> Result<(), ImageError> {
        while let Some((key, mut rest)) = self.cut.take() {
            self.editor.remove(&key).await?;
            self.cut = rest.next().await?.map(|(key, _)| (key, rest));
        }
        Ok(())
    }
}
