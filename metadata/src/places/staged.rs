//! Which chunks are staged.

use bytes::{Bytes, BytesMut};

use super::{ChunkName, Places};
use crate::keyspace;
use crate::kv::{Isolation, KeyRange, RangeLimit, Transaction};
use crate::store::StoreError;
use crate::transact::Budget;

/// Pairs read at a time: all pieces of the largest entry, and more of small ones.
const PAGE: usize = 64;

/// A staged chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// Its name.
    pub name: ChunkName,
    /// Its entry.
    pub entry: Bytes,
}

/// Some of the staged chunks, in the order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StagedPage {
    /// They.
    pub chunks: Vec<Staged>,
    /// Whether there may be more behind the last.
    pub more: bool,
}

impl Places {
    /// Staged chunks behind `after`: at least one if there is one, and about `bytes` of entries at most.
    /// What is moved or staged meanwhile may be missing or not.
    ///
    /// # Errors
    ///
    /// The store fails or a key is damaged.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn staged(
        &self,
        after: Option<ChunkName>,
        bytes: usize,
    ) -> Result<StagedPage, StoreError> {
        let mut range = keyspace::bodies();
        if let Some((domain, chunk)) = after {
            range.start = keyspace::body_pieces(domain, chunk).end;
        }
        let range = &range;
        let page = self.transactor.transact(Budget::default(), |txn, _| {
            // Writes nothing: nothing to conflict with.
            Box::pin(page(&*txn, range.clone(), bytes))
        });
        page.await
    }
}

async fn page(
    txn: &dyn Transaction,
    mut rest: KeyRange,
    bytes: usize,
) -> Result<StagedPage, StoreError> {
    let mut found: Vec<(ChunkName, BytesMut)> = Vec::new();
    let mut taken = 0_usize;
    loop {
        let limit = RangeLimit::pairs(PAGE);
        let page = txn.get_range(&rest, limit, Isolation::Snapshot).await?;
        for (key, piece) in &page.pairs {
            let decoded = keyspace::decode_body(key);
            let (domain, chunk, _) = decoded.map_err(|error| StoreError::Corrupt {
                what: "key of a staged chunk".into(),
                why: error.to_string(),
            })?;
            taken = taken.saturating_add(piece.len());
            match found.last_mut() {
                Some((name, entry)) if *name == (domain, chunk) => entry.extend_from_slice(piece),
                _ => found.push(((domain, chunk), BytesMut::from(&piece[..]))),
            }
        }
        match page.pairs.last() {
            Some((last, _)) if page.more => rest.start = KeyRange::key(last).end,
            _ => return Ok(complete(found, false)),
        }
        // The last may go on behind the page.
        if taken >= bytes && found.len() > 1 {
            found.pop();
            return Ok(complete(found, true));
        }
    }
}

fn complete(found: Vec<(ChunkName, BytesMut)>, more: bool) -> StagedPage {
    let staged = |(name, entry): (ChunkName, BytesMut)| Staged {
        name,
        entry: entry.freeze(),
    };
    StagedPage {
        chunks: found.into_iter().map(staged).collect(),
        more,
    }
}
