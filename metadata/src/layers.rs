//! What a session's image is made of: generations of its delta over a base.
//!
//! Newer layers hide older ones, key by key. A removed key is a tombstone while anything below
//! could still show it, and simply absent in the lowest layer.

use base::{InodeId, SessionId};
use bytes::{BufMut, Bytes, BytesMut};

use crate::image::Changes;
use crate::keyspace;
use crate::kv::{Isolation, KeyRange, KvError, RangeLimit, Transaction};
use crate::record::RecordError;
use crate::record::inode::InodeRecord;

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
}

/// The immutable tree below a session's delta.
#[derive(Clone, Debug)]
pub enum Base {
    /// A new workspace: nothing but a root directory.
    Empty {
        /// The root directory.
        root: Box<InodeRecord>,
    },
}

/// A session's layers, as of one moment.
#[derive(Clone, Debug)]
pub struct Layers {
    session: SessionId,
    /// Newest first. The first takes changes.
    generations: Vec<u32>,
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
    /// The layers of a session that has one generation over an empty base.
    #[must_use]
    pub fn new(session: SessionId, generation: u32, base: Base) -> Self {
        Self {
            session,
            generations: vec![generation],
            base,
        }
    }

    /// The value of an image key.
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
        for generation in &self.generations {
            let mut full = keyspace::delta(self.session, *generation);
            full.extend_from_slice(key);
            if let Some(value) = txn.get(&full, Isolation::Snapshot).await? {
                return Ok(untag(&value)?);
            }
        }
        Ok(self.base.get(key))
    }

    /// The first pairs of a range of image keys.
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
        let mut merged = std::collections::BTreeMap::new();
        let mut covered_to: Option<Bytes> = None;
        for generation in &self.generations {
            let prefix = keyspace::delta(self.session, *generation);
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
                covered_to = Some(covered_to.map_or(last.clone(), |other| other.min(last)));
            }
            for (key, value) in page.pairs {
                merged.entry(key.slice(prefix.len()..)).or_insert(value);
            }
        }
        let mut pairs = Vec::with_capacity(merged.len());
        for (key, value) in merged {
            let covered = covered_to.as_ref().is_none_or(|last| key <= *last);
            if covered && let Some(value) = untag(&value)? {
                pairs.push((key, value));
            }
        }
        Ok(Scanned { pairs, covered_to })
    }

    /// Writes changes to the newest generation.
    pub fn write(&self, txn: &mut dyn Transaction, changes: &Changes) {
        let Some(generation) = self.generations.first() else {
            return;
        };
        let prefix = keyspace::delta(self.session, *generation);
        for range in changes.clears() {
            txn.clear_range(&KeyRange {
                start: join(&prefix, &range.start),
                end: join(&prefix, &range.end),
            });
        }
        // Nothing lies below: what is removed needs no tombstone. (A cleared range would need one
        // for each key that a lower layer holds.)
        let lowest = self.generations.len() == 1 && matches!(self.base, Base::Empty { .. });
        for (key, value) in changes.keys() {
            let full = join(&prefix, key);
            match value {
                Some(value) => txn.set(&full, &tagged(value)),
                None if lowest => txn.clear(&full),
                None => txn.set(&full, &[TOMBSTONE]),
            }
        }
    }
}

impl Base {
    fn get(&self, key: &[u8]) -> Option<Bytes> {
        match self {
            Self::Empty { root } => {
                (key == keyspace::image::inode(InodeId::ROOT)).then(|| root.encode())
            }
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
