//! Reading a whole image, layers and base, in key order.

use base::InodeId;
use bytes::Bytes;

use super::{Base, ImageError, Item, LayerScan, Layers};
use crate::keyspace::image::{self as keys, ImageKey};
use crate::kv::{KeyRange, Kv};
use crate::tree::{Scan, TreeError};

/// Reads an image from the first key to the last. See [`LayerScan`] for who may write meanwhile.
#[derive(Debug)]
pub struct ImageScan<'a> {
    layers: LayerScan<'a>,
    /// Read and not yet passed.
    item: Option<Item>,
    base: BaseScan,
    pair: Option<(Bytes, Bytes)>,
    /// An inode of the base that is gone.
    gone: Option<InodeId>,
    /// An inode of the base whose blocks are gone from one on.
    cut: Option<(InodeId, u32)>,
}

/// A position in the base.
#[derive(Debug)]
enum BaseScan {
    One(Option<(Bytes, Bytes)>),
    Tree(Box<Scan>),
}

impl<'a> ImageScan<'a> {
    /// Reads the image that `layers` make.
    #[must_use]
    pub fn new(kv: &'a dyn Kv, layers: &Layers) -> Self {
        Self::over(layers.base(), LayerScan::new(kv, layers.all()), &all())
    }

    /// Reads what the image that `layers` make has in a range of keys. It begins where an inode's keys
    /// do.
    #[must_use]
    pub fn within(kv: &'a dyn Kv, layers: &Layers, range: &KeyRange) -> Self {
        let scan = LayerScan::within(kv, layers.all(), range);
        Self::over(layers.base(), scan, range)
    }

    /// Reads what the image that is `base` and nothing else has in a range of keys.
    #[must_use]
    pub fn of_base_within(kv: &'a dyn Kv, base: &Base, range: &KeyRange) -> Self {
        Self::over(base, LayerScan::new(kv, []), range)
    }

    /// Reads the image that is `base` and nothing else.
    #[must_use]
    pub fn of_base(kv: &'a dyn Kv, base: &Base) -> Self {
        Self::over(base, LayerScan::new(kv, []), &all())
    }

    fn over(base: &Base, layers: LayerScan<'a>, range: &KeyRange) -> Self {
        let base = match base {
            Base::Empty { root, .. } => {
                let key: Bytes = keys::inode(InodeId::ROOT).into();
                let is_in = range.start <= key && key < range.end;
                BaseScan::One(is_in.then(|| (key, root.encode())))
            }
            Base::Tree { tree, root } => BaseScan::Tree(Box::new(tree.scan(*root, range))),
        };
        Self {
            layers,
            item: None,
            base,
            pair: None,
            gone: None,
            cut: None,
        }
    }

    /// The next key and its value. After an error of a record or a key the scan goes on behind it.
    ///
    /// # Errors
    ///
    /// The store fails, or a key, a value or a node is damaged.
    ///
    /// # Cancellation
    ///
    /// Safe to drop; the scan must not be used afterwards.
    pub async fn next(&mut self) -> Result<Option<(ImageKey, Bytes)>, ImageError> {
        loop {
            if self.item.is_none() {
                self.item = self.layers.next().await?;
            }
            if self.pair.is_none() {
                self.pair = self.base.next().await?;
            }
            let at = self.item.as_ref().map(Item::key);
            let base_first = match (&at, &self.pair) {
                (None, None) => return Ok(None),
                (Some(at), Some((key, _))) => *key < *at,
                (at, _) => at.is_none(),
            };
            if base_first {
                if let Some((key, value)) = self.pair.take() {
                    let decoded = keys::decode(&key)?;
                    if !self.hides(&decoded) {
                        return Ok(Some((decoded, value)));
                    }
                }
                continue;
            }
            if self
                .pair
                .as_ref()
                .is_some_and(|(key, _)| Some(key) == at.as_ref())
            {
                self.pair = None;
            }
            match self.item.take() {
                Some(Item::Put(key, _, value)) => return Ok(Some((key, value))),
                Some(Item::RemoveInode(inode)) => self.gone = Some(inode),
                Some(Item::Cut(inode, first)) => self.cut = Some((inode, first)),
                Some(Item::Remove(_)) | None => {}
            }
        }
    }

    /// Whether the layers hide a key of the base without naming it.
    fn hides(&self, key: &ImageKey) -> bool {
        if self.gone == Some(key.inode()) {
            return true;
        }
        match key {
            ImageKey::Block { inode, index } => self
                .cut
                .is_some_and(|(of, first)| of == *inode && *index >= first),
            _ => false,
        }
    }
}

impl BaseScan {
    async fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, TreeError> {
        match self {
            Self::One(pair) => Ok(pair.take()),
            Self::Tree(scan) => scan.next().await,
        }
    }
}

/// Every image key.
fn all() -> KeyRange {
    KeyRange {
        start: Bytes::new(),
        // The last inode number is never given out.
        end: Bytes::from_static(&[0xff; 8]),
    }
}
