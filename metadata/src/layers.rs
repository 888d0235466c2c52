//! What a session's image is made of: generations of its delta over a base.
//!
//! Newer layers hide older ones, key by key. A removed key is a tombstone while anything below
//! could still show it, and simply absent in the lowest layer.

mod image;
mod scan;

use std::collections::HashSet;
use std::collections::btree_map::{BTreeMap, Entry};

use base::{InodeId, SessionId};
use bytes::{BufMut, Bytes, BytesMut};

use crate::image::{Changes, Clear};
use crate::keyspace;
use crate::kv::{Isolation, KeyRange, KvError, RangeLimit, Transaction};
use crate::record::RecordError;
use crate::record::inode::InodeRecord;
use crate::tree::{Root, Tree, TreeError};

pub use image::ImageScan;
pub use scan::{Item, LayerScan};

/// Tag of a key that is removed in this layer.
const TOMBSTONE: u8 = 0;
/// Tag before a value.
const VALUE: u8 = 1;

/// Why an image could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The store failed.
    #[error("read the image")]
    Kv(#[from] KvError),
    /// A record is damaged or of another release.
    #[error("decode the image")]
    Record(#[from] RecordError),
    /// A key is damaged.
    #[error("decode the image")]
    Key(#[from] keyspace::KeyError),
    /// A node of the tree below the layers cannot be read.
    #[error("read the tree: {0}")]
    Tree(#[from] TreeError),
}

/// A layer: one generation of one session's delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerId {
    /// The session whose delta it is.
    pub session: SessionId,
    /// The generation.
    pub generation: u32,
}

impl LayerId {
    fn prefix(self) -> Vec<u8> {
        keyspace::delta(self.session, self.generation)
    }
}

/// The immutable image below a session's layers.
#[derive(Clone, Debug)]
pub enum Base {
    /// A new workspace: nothing but a root directory.
    Empty {
        /// The trees of the workspace.
        tree: Tree,
        /// The root directory.
        root: Box<InodeRecord>,
    },
    /// A tree.
    Tree {
        /// The trees of the workspace.
        tree: Tree,
        /// Which of them.
        root: Root,
    },
}

/// A session's layers, as of one moment.
#[derive(Clone, Debug)]
pub struct Layers {
    /// The layer that takes changes.
    open: LayerId,
    /// Frozen layers, newest first.
    frozen: Vec<LayerId>,
    base: Base,
}

/// Part of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Image keys and values in order.
    pub pairs: Vec<(Bytes, Bytes)>,
    /// The scan covers the range up to and including this key; `None` means all of it.
    pub covered_to: Option<Bytes>,
}

impl Layers {
    /// Layers over a base; `frozen` newest first.
    #[must_use]
    pub fn new(open: LayerId, frozen: Vec<LayerId>, base: Base) -> Self {
        Self { open, frozen, base }
    }

    /// A tree and nothing over it: for reading only. No session has number 0, so no layer of it is
    /// ever found.
    #[must_use]
    pub fn of_tree(tree: Tree, root: Root) -> Self {
        let nothing = LayerId {
            session: SessionId::new(0),
            generation: 0,
        };
        Self::new(nothing, Vec::new(), Base::Tree { tree, root })
    }

    /// The layer that takes changes.
    #[must_use]
    pub fn open(&self) -> LayerId {
        self.open
    }

    /// The frozen layers, newest first.
    #[must_use]
    pub fn frozen(&self) -> &[LayerId] {
        &self.frozen
    }

    /// What lies below all layers.
    #[must_use]
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// The same image with the open layer frozen and a new one over it.
    #[must_use]
    pub fn freeze(&self, open: LayerId) -> Self {
        let mut frozen = Vec::with_capacity(1 + self.frozen.len());
        frozen.push(self.open);
        frozen.extend_from_slice(&self.frozen);
        Self {
            open,
            frozen,
            base: self.base.clone(),
        }
    }

    /// All layers, newest first.
    pub fn all(&self) -> impl Iterator<Item = LayerId> {
        std::iter::once(self.open).chain(self.frozen.iter().copied())
    }

    /// Whether nothing lies below the open layer.
    fn is_lowest(&self) -> bool {
        self.frozen.is_empty() && matches!(self.base, Base::Empty { .. })
    }

    /// The value of an image key that is not a block's.
    ///
    /// Reads are not checked for conflicts: only the owner changes these keys, and it never loads
    /// what it has in memory.
    ///
    /// # Errors
    ///
    /// The store fails or the value is damaged.
    pub async fn get(
        &self,
        txn: &dyn Transaction,
        key: &[u8],
    ) -> Result<Option<Bytes>, ImageError> {
        for layer in self.all() {
            let full = join(&layer.prefix(), key);
            if let Some(value) = txn.get(&full, Isolation::Snapshot).await? {
                return Ok(untag(&value)?);
            }
        }
        self.base.get(key).await
    }

    /// The first pairs of a range of image keys that has no blocks in it.
    ///
    /// # Errors
    ///
    /// The store fails or a value is damaged.
    pub async fn scan(
        &self,
        txn: &dyn Transaction,
        range: &KeyRange,
        pairs_max: usize,
    ) -> Result<Scanned, ImageError> {
        let mut merge = Merge::default();
        for layer in self.all() {
            merge.layer(txn, layer, range, pairs_max).await?;
        }
        merge.base(&self.base, range, pairs_max).await?;
        merge.finish()
    }

    /// The first blocks of a file among `first..=last`: like [`Layers::scan`], but a layer's cuts
    /// hide what lies below.
    ///
    /// # Errors
    ///
    /// As [`Layers::scan`].
    pub async fn scan_blocks(
        &self,
        txn: &dyn Transaction,
        inode: InodeId,
        (first, last): (u32, u32),
        pairs_max: usize,
    ) -> Result<Scanned, ImageError> {
        let mut merge = Merge::default();
        // The last block that shows through the layers so far.
        let mut visible = Some(last);
        for layer in self.all() {
            let Some(last) = visible.filter(|last| *last >= first) else {
                break;
            };
            let range = keyspace::image::blocks(inode, first, last);
            merge.layer(txn, layer, &range, pairs_max).await?;
            if let Some(cut) = lowest_cut(txn, layer, inode).await? {
                visible = cut.checked_sub(1).map(|kept| kept.min(last));
            }
        }
        if let Some(last) = visible.filter(|last| *last >= first) {
            let range = keyspace::image::blocks(inode, first, last);
            merge.base(&self.base, &range, pairs_max).await?;
        }
        merge.finish()
    }

    /// Writes changes to the open layer.
    pub fn write(&self, txn: &mut dyn Transaction, changes: &Changes) {
        let prefix = self.open.prefix();
        let lowest = self.is_lowest();
        let mut clear = |range: &KeyRange| {
            txn.clear_range(&KeyRange {
                start: join(&prefix, &range.start),
                end: join(&prefix, &range.end),
            });
        };
        for part in changes.clears() {
            clear(&part.range());
            if let Clear::Blocks(inode, first) = *part {
                clear(&keyspace::image::cuts_from(inode, first));
            }
        }
        if !lowest {
            for (key, value) in marks(changes.clears()) {
                txn.set(&join(&prefix, &key), &value);
            }
        }
        for (key, value) in changes.keys() {
            let full = join(&prefix, key);
            match value {
                Some(value) => txn.set(&full, &tagged(value)),
                None if lowest => txn.clear(&full),
                None => txn.set(&full, &tombstone()),
            }
        }
    }
}

/// What a layer says instead of clearing, where something lies below it.
fn marks(clears: &[Clear]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let gone = |part: &Clear| match *part {
        Clear::Inode(inode) => Some(inode),
        Clear::Blocks(..) => None,
    };
    let removed: HashSet<InodeId> = clears.iter().filter_map(gone).collect();
    let mark = |part: &Clear| match *part {
        Clear::Inode(inode) => Some((keyspace::image::inode(inode), tombstone())),
        // An inode that is gone needs nothing else (page 0004, invariant 4).
        Clear::Blocks(inode, _) if removed.contains(&inode) => None,
        Clear::Blocks(inode, first) => Some((keyspace::image::cut(inode, first), tagged(&[]))),
    };
    clears.iter().filter_map(mark).collect()
}

/// The first block that a layer's cuts of a file remove from the layers below.
async fn lowest_cut(
    txn: &dyn Transaction,
    layer: LayerId,
    inode: InodeId,
) -> Result<Option<u32>, ImageError> {
    let prefix = layer.prefix();
    let cuts = keyspace::image::cuts_from(inode, 0);
    let range = KeyRange {
        start: join(&prefix, &cuts.start),
        end: join(&prefix, &cuts.end),
    };
    let page = txn
        .get_range(&range, RangeLimit::pairs(1), Isolation::Snapshot)
        .await?;
    let Some((key, _)) = page.pairs.first() else {
        return Ok(None);
    };
    match keyspace::image::decode(&key.slice(prefix.len()..))? {
        keyspace::image::ImageKey::Cut { first, .. } => Ok(Some(first)),
        _ => Err(RecordError::Field("key of a cut").into()),
    }
}

/// A scan through layers, newest first.
#[derive(Debug, Default)]
struct Merge {
    /// Tagged values.
    merged: BTreeMap<Bytes, Bytes>,
    covered_to: Option<Bytes>,
}

impl Merge {
    async fn layer(
        &mut self,
        txn: &dyn Transaction,
        layer: LayerId,
        range: &KeyRange,
        pairs_max: usize,
    ) -> Result<(), ImageError> {
        let prefix = layer.prefix();
        let full = KeyRange {
            start: join(&prefix, &range.start),
            end: join(&prefix, &range.end),
        };
        let page = txn
            .get_range(&full, RangeLimit::pairs(pairs_max), Isolation::Snapshot)
            .await?;
        let last = page.pairs.last().map(|(key, _)| key.slice(prefix.len()..));
        if page.more
            && let Some(last) = last
        {
            self.ends_at(last);
        }
        for (key, value) in page.pairs {
            self.merged
                .entry(key.slice(prefix.len()..))
                .or_insert(value);
        }
        Ok(())
    }

    async fn base(
        &mut self,
        base: &Base,
        range: &KeyRange,
        pairs_max: usize,
    ) -> Result<(), ImageError> {
        let Base::Tree { tree, root } = base else {
            // A root directory has nothing that is scanned for.
            return Ok(());
        };
        // What lies beyond what the layers cover is not wanted.
        let mut range = range.clone();
        if let Some(covered) = &self.covered_to {
            range.end = range.end.min(KeyRange::key(covered).end);
        }
        let mut scan = tree.scan(*root, &range);
        let mut taken = 0;
        while let Some((key, value)) = scan.next().await? {
            if taken == pairs_max {
                return Ok(());
            }
            taken += 1;
            if taken == pairs_max {
                self.ends_at(key.clone());
            }
            if let Entry::Vacant(vacant) = self.merged.entry(key) {
                vacant.insert(tagged(&value).into());
            }
        }
        Ok(())
    }

    /// What lies beyond `last` is not known.
    fn ends_at(&mut self, last: Bytes) {
        let covered = self.covered_to.take();
        self.covered_to = Some(covered.map_or(last.clone(), |other| other.min(last)));
    }

    fn finish(self) -> Result<Scanned, ImageError> {
        let mut pairs = Vec::with_capacity(self.merged.len());
        for (key, value) in self.merged {
            let covered = self.covered_to.as_ref().is_none_or(|last| key <= *last);
            if covered && let Some(value) = untag(&value)? {
                pairs.push((key, value));
            }
        }
        Ok(Scanned {
            pairs,
            covered_to: self.covered_to,
        })
    }
}

impl Base {
    /// The value of an image key.
    ///
    /// # Errors
    ///
    /// A node is missing or damaged, or the store fails.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ImageError> {
        match self {
            Self::Empty { root, .. } => {
                let is_root = key == keyspace::image::inode(InodeId::ROOT);
                Ok(is_root.then(|| root.encode()))
            }
            Self::Tree { tree, root } => Ok(tree.get(*root, key).await?),
        }
    }

    /// The trees of the workspace.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        match self {
            Self::Empty { tree, .. } | Self::Tree { tree, .. } => tree,
        }
    }

    /// The tree, unless there is nothing but a root directory.
    #[must_use]
    pub fn root(&self) -> Option<Root> {
        match self {
            Self::Empty { .. } => None,
            Self::Tree { root, .. } => Some(*root),
        }
    }
}

fn join(prefix: &[u8], key: &[u8]) -> Bytes {
    let mut full = BytesMut::with_capacity(prefix.len() + key.len());
    full.put_slice(prefix);
    full.put_slice(key);
    full.freeze()
}

fn tagged(value: &[u8]) -> Vec<u8> {
    let mut tagged = Vec::with_capacity(1 + value.len());
    tagged.push(VALUE);
    tagged.extend_from_slice(value);
    tagged
}

fn tombstone() -> Vec<u8> {
    vec![TOMBSTONE]
}

/// The value under a tag; `None` for a tombstone.
///
/// # Errors
///
/// The tag is unknown.
pub fn untag(stored: &Bytes) -> Result<Option<Bytes>, RecordError> {
    match stored.first() {
        Some(&VALUE) => Ok(Some(stored.slice(1..))),
        Some(&TOMBSTONE) if stored.len() == 1 => Ok(None),
        Some(_) => Err(RecordError::Field("delta tag")),
        None => Err(RecordError::Truncated),
    }
}

#[cfg(test)]
mod tests;
