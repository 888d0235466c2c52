//! Reading layers as one, in key order.

use std::collections::VecDeque;

use base::InodeId;
use bytes::Bytes;

use super::{ImageError, LayerId, join, untag};
use crate::keyspace::image::{self as keys, ImageKey};
use crate::kv::{Isolation, KeyRange, Kv, RangeLimit};

/// Pairs read at a time from each layer.
const PAGE: usize = 1000;

/// Something that the layers say, newest first, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A key has this value.
    Put(ImageKey, Bytes, Bytes),
    /// A key has no value, whatever lies below the layers.
    Remove(Bytes),
    /// An inode is gone with everything of it, whatever lies below.
    RemoveInode(InodeId),
    /// Blocks of an inode from here on are gone in what lies below. Blocks that follow stay.
    Cut(InodeId, u32),
}

impl Item {
    /// Where in the order of keys it comes.
    #[must_use]
    pub fn key(&self) -> Bytes {
        match self {
            Self::Put(_, key, _) | Self::Remove(key) => key.clone(),
            Self::RemoveInode(inode) => keys::inode(*inode).into(),
            Self::Cut(inode, first) => keys::cut(*inode, *first).into(),
        }
    }
}

/// Reads layers from the first key to the last.
///
/// Each page is a transaction of its own: the layers must be frozen, or nobody may write to them.
#[derive(Debug)]
pub struct LayerScan<'a> {
    kv: &'a dyn Kv,
    /// Newest first.
    cursors: Vec<Cursor>,
    inode: Option<Passing>,
}

/// A position in one layer.
#[derive(Debug)]
struct Cursor {
    prefix: Vec<u8>,
    /// What has not been read.
    rest: Option<KeyRange>,
    /// Read and not yet passed: image key, tagged value.
    page: VecDeque<(Bytes, Bytes)>,
}

/// The inode whose keys are being passed.
#[derive(Debug)]
struct Passing {
    inode: InodeId,
    is_gone: bool,
    /// Per layer, newest first: its lowest cut.
    cuts: Vec<Option<u32>>,
    told: Option<u32>,
}

impl<'a> LayerScan<'a> {
    /// Reads `layers`, newest first, all they hold.
    #[must_use]
    pub fn new(kv: &'a dyn Kv, layers: impl IntoIterator<Item = LayerId>) -> Self {
        let cursors = layers.into_iter().map(Cursor::new).collect();
        Self {
            kv,
            cursors,
            inode: None,
        }
    }

    /// Reads what `layers`, newest first, hold in a range of image keys. It begins where an inode's
    /// keys do.
    #[must_use]
    pub fn within(
        kv: &'a dyn Kv,
        layers: impl IntoIterator<Item = LayerId>,
        range: &KeyRange,
    ) -> Self {
        let cursors = layers.into_iter().map(|layer| {
            let mut cursor = Cursor::new(layer);
            cursor.rest = Some(KeyRange {
                start: join(&cursor.prefix, &range.start),
                end: join(&cursor.prefix, &range.end),
            });
            cursor
        });
        Self {
            kv,
            cursors: cursors.collect(),
            inode: None,
        }
    }

    /// The next thing the layers say.
    ///
    /// # Errors
    ///
    /// The store fails, or a key or a value is damaged.
    ///
    /// # Cancellation
    ///
    /// Safe to drop; the scan must not be used afterwards.
    pub async fn next(&mut self) -> Result<Option<Item>, ImageError> {
        loop {
            for cursor in &mut self.cursors {
                cursor.fill(self.kv).await?;
            }
            let first = |cursor: &Cursor| cursor.page.front().map(|(key, _)| key.clone());
            let Some(key) = self.cursors.iter().filter_map(first).min() else {
                return Ok(None);
            };
            let values: Vec<Option<Bytes>> = self
                .cursors
                .iter_mut()
                .map(|cursor| cursor.take(&key))
                .collect();
            if let Some(item) = self.judge(key, &values)? {
                return Ok(Some(item));
            }
        }
    }

    /// What the values of a key, newest first, amount to.
    fn judge(&mut self, key: Bytes, values: &[Option<Bytes>]) -> Result<Option<Item>, ImageError> {
        let decoded = keys::decode(&key)?;
        let inode = decoded.inode();
        let Some((newest, value)) = (values.iter().enumerate())
            .find_map(|(at, value)| value.as_ref().map(|value| (at, value)))
        else {
            return Ok(None);
        };
        let passing = match &mut self.inode {
            Some(passing) if passing.inode == inode => passing,
            passing => passing.insert(Passing {
                inode,
                is_gone: false,
                cuts: vec![None; values.len()],
                told: None,
            }),
        };
        if passing.is_gone {
            return Ok(None);
        }
        let value = untag(value)?;
        match decoded {
            ImageKey::Inode(inode) if value.is_none() => {
                passing.is_gone = true;
                Ok(Some(Item::RemoveInode(inode)))
            }
            ImageKey::Cut { first, .. } => Ok(passing.cut(first, values)),
            ImageKey::Block { index, .. } if passing.hides(newest, index) => Ok(None),
            _ => Ok(Some(match value {
                Some(value) => Item::Put(decoded, key, value),
                None => Item::Remove(key),
            })),
        }
    }
}

impl Passing {
    /// Takes note of a cut that is in some layers. Cuts come in order, so the first is the lowest.
    fn cut(&mut self, first: u32, values: &[Option<Bytes>]) -> Option<Item> {
        for (cut, value) in self.cuts.iter_mut().zip(values) {
            if value.is_some() && cut.is_none() {
                *cut = Some(first);
            }
        }
        if self.told.is_some() {
            return None;
        }
        self.told = Some(first);
        Some(Item::Cut(self.inode, first))
    }

    /// Whether a newer layer's cut hides block `index` of layer `newest`.
    fn hides(&self, newest: usize, index: u32) -> bool {
        (self.cuts.iter().take(newest).flatten()).any(|cut| *cut <= index)
    }
}

impl Cursor {
    fn new(layer: LayerId) -> Self {
        let prefix = layer.prefix();
        Self {
            rest: Some(KeyRange::prefix(&prefix)),
            prefix,
            page: VecDeque::new(),
        }
    }

    async fn fill(&mut self, kv: &dyn Kv) -> Result<(), ImageError> {
        while self.page.is_empty()
            && let Some(range) = self.rest.take()
        {
            let page = kv
                .begin()
                .get_range(&range, RangeLimit::pairs(PAGE), Isolation::Snapshot)
                .await?;
            let last = page.pairs.last().map(|(key, _)| key.clone());
            if page.more
                && let Some(last) = last
            {
                self.rest = Some(KeyRange {
                    start: join(&last, &[0]),
                    end: range.end,
                });
            }
            let skip = self.prefix.len();
            let pairs = page.pairs.into_iter();
            self.page = pairs
                .map(|(key, value)| (key.slice(skip..), value))
                .collect();
        }
        Ok(())
    }

    /// The value of `key`, if that is where the cursor stands.
    fn take(&mut self, key: &Bytes) -> Option<Bytes> {
        let (_, value) = self.page.pop_front_if(|(at, _)| at == key)?;
        Some(value)
    }
}
