//! Every chunk that the store refers to: what a collection must keep.
//!
//! The roots today are the deltas of all sessions. Whatever else comes to refer to chunks (trees of
//! commits, pins) is added to [`References`], and must follow the rules of
//! `docs/design/0002-collection.md`: a reference that is made while a walk runs is made under a
//! hold, by a `put` or with a `touch`.

use base::{ChunkId, DomainId};
use bytes::Bytes;

use crate::image::Body;
use crate::keyspace::image::ImageKey;
use crate::keyspace::{self, Key};
use crate::kv::{Isolation, KeyRange, Kv, KvError, RangeLimit, Transaction};
use crate::layers::{LayerId, untag};
use crate::record::block;
use crate::record::session::SessionRecord;

/// Keys read in one transaction.
const PAGE: usize = 1000;

/// Why not every reference is known. Nothing may then be collected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The store failed; a later try may succeed.
    #[error("read references to chunks: {0}")]
    Kv(#[from] KvError),
    /// A record is damaged or of another release, so that what it refers to is not known.
    #[error("{what} is damaged: {why}; `holdfast check` tells more")]
    Corrupt {
        /// Which.
        what: String,
        /// In what way.
        why: String,
    },
}

/// What a walk has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReferenceCounts {
    /// Keys read.
    pub keys: u64,
    /// References to chunks, the same chunk as often as it is referred to.
    pub references: u64,
}

/// A walk over every reference to a chunk, page by page.
///
/// Each page is a transaction of its own. So a reference that exists all the time is seen, and one
/// that is made or removed meanwhile may be seen or not. A chunk that is referred to more than once
/// is named more than once.
#[derive(Clone, Debug)]
pub struct References {
    rest: Option<KeyRange>,
    counts: ReferenceCounts,
}

impl References {
    /// A walk from the start.
    #[must_use]
    pub fn new() -> Self {
        Self {
            rest: Some(keyspace::all_deltas()),
            counts: ReferenceCounts::default(),
        }
    }

    /// What has been seen by now.
    #[must_use]
    pub fn counts(&self) -> ReferenceCounts {
        self.counts
    }

    /// Calls `each` for the references of the next page. Tells whether there are more pages.
    ///
    /// # Errors
    ///
    /// See [`ReferenceError`]. After an error the walk is of no use.
    ///
    /// # Cancellation
    ///
    /// Safe to drop: the same page is read again.
    pub async fn next(
        &mut self,
        kv: &dyn Kv,
        mut each: impl FnMut(DomainId, ChunkId) + Send,
    ) -> Result<bool, ReferenceError> {
        let Some(range) = &self.rest else {
            return Ok(false);
        };
        let txn = kv.begin();
        // Never committed: nothing to conflict with.
        let page = txn
            .get_range(range, RangeLimit::pairs(PAGE), Isolation::Snapshot)
            .await?;
        let mut domain: Option<(LayerId, DomainId)> = None;
        for (key, stored) in &page.pairs {
            self.counts.keys += 1;
            let Some((layer, id)) = reference(key, stored)? else {
                continue;
            };
            let owner = match domain {
                Some((of, owner)) if of == layer => owner,
                _ => domain_of(txn.as_ref(), layer).await?,
            };
            domain = Some((layer, owner));
            self.counts.references += 1;
            each(owner, id);
        }
        self.rest = match page.pairs.last() {
            Some((last, _)) if page.more => Some(KeyRange {
                start: KeyRange::key(last).end,
                end: range.end.clone(),
            }),
            _ => None,
        };
        Ok(self.rest.is_some())
    }
}

impl Default for References {
    fn default() -> Self {
        Self::new()
    }
}

/// The layer and the chunk that a stored pair refers to, if it does.
fn reference(key: &Bytes, stored: &Bytes) -> Result<Option<(LayerId, ChunkId)>, ReferenceError> {
    let corrupt = |why: String| ReferenceError::Corrupt {
        what: format!("key {}", key.escape_ascii()),
        why,
    };
    let decoded = keyspace::decode(key).map_err(|why| corrupt(why.to_string()))?;
    let Key::Delta(session, generation, ImageKey::Block { .. }) = decoded else {
        return Ok(None);
    };
    // A tombstone refers to nothing; what it hides is a key of its own.
    let Some(value) = untag(stored).map_err(|why| corrupt(why.to_string()))? else {
        return Ok(None);
    };
    let block = block::decode(&value).map_err(|why| corrupt(why.to_string()))?;
    Ok(match block.body {
        Body::Chunk { id, .. } => {
            let layer = LayerId {
                session,
                generation,
            };
            Some((layer, id))
        }
        Body::Empty | Body::Inline(_) => None,
    })
}

/// The domain of a layer's chunks, read in the transaction that found its blocks: a layer goes with
/// the last session that lists it. That need not be the one that wrote it.
async fn domain_of(txn: &dyn Transaction, layer: LayerId) -> Result<DomainId, ReferenceError> {
    let (session, generation) = (layer.session, layer.generation);
    let corrupt = |why: String| ReferenceError::Corrupt {
        what: format!("session {session}"),
        why,
    };
    // Never committed: nothing to conflict with.
    let mut record = txn
        .get(&keyspace::session_meta(session), Isolation::Snapshot)
        .await?;
    if record.is_none() {
        let users = keyspace::layer_users(session, generation);
        let users = txn
            .get_range(&users, RangeLimit::pairs(1), Isolation::Snapshot)
            .await?;
        if let Some((key, _)) = users.pairs.first()
            && let Ok(Key::LayerUser(_, _, user)) = keyspace::decode(key)
        {
            record = txn
                .get(&keyspace::session_meta(user), Isolation::Snapshot)
                .await?;
        }
    }
    let record = record.ok_or_else(|| corrupt("it has files and no record".to_owned()))?;
    let record = SessionRecord::decode(&record).map_err(|why| corrupt(why.to_string()))?;
    Ok(DomainId::new(record.tenant.raw()))
}

#[cfg(test)]
mod tests;
