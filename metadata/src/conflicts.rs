//! Unresolved conflicts: the records that merges leave in an image until somebody resolves them.

use bytes::Bytes;

use crate::keyspace::KeyError;
use crate::keyspace::image::{self as keys, ImageKey};
use crate::kv::{KeyRange, Kv};
use crate::layers::{ImageError, Layers};
use crate::record::conflict::Conflict;
use crate::tree::{Root, Tree};

/// Most conflicts that are read at a time.
pub const PAGE_MAX: usize = 1000;

/// The id of a stored conflict: the key it is under.
pub type ConflictId = [u8; 16];

/// The id of a conflict, as people write it: 32 hexadecimal digits.
#[must_use]
pub fn show_id(id: &ConflictId) -> String {
    format!("{:032x}", u128::from_be_bytes(*id))
}

/// Reads what [`show_id`] writes, in either case.
#[must_use]
pub fn parse_id(text: &str) -> Option<ConflictId> {
    let plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = plain.then(|| u128::from_str_radix(text, 16).ok()).flatten();
    number.map(u128::to_be_bytes)
}

/// A conflict that an image holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// Its id.
    pub id: ConflictId,
    /// What clashed, and what the merge did about it.
    pub conflict: Conflict,
}

/// Part of an image's conflicts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConflictPage {
    /// Conflicts in the order of their ids, which says nothing else.
    pub items: Vec<Unresolved>,
    /// There are more after the last of them.
    pub more: bool,
}

/// At most `limit` conflicts of a snapshot, those after `after`.
///
/// # Errors
///
/// The tree cannot be read, or a record is damaged.
///
/// # Cancellation
///
/// Safe to drop.
pub async fn list(
    tree: &Tree,
    root: Root,
    after: Option<ConflictId>,
    limit: usize,
) -> Result<ConflictPage, ImageError> {
    let mut scan = tree.scan(root, &range_after(after));
    let mut page = ConflictPage::default();
    while let Some((key, value)) = scan.next().await? {
        if page.items.len() >= limit.min(PAGE_MAX) {
            page.more = true;
            break;
        }
        page.items.push(decode(&key, &value)?);
    }
    Ok(page)
}

/// A conflict of a session as its layers hold it, if they do. As with [`in_layers`] that is what is
/// durable.
///
/// # Errors
///
/// The store fails, or the record is damaged.
///
/// # Cancellation
///
/// Safe to drop.
pub async fn one_in_layers(
    kv: &dyn Kv,
    layers: &Layers,
    id: ConflictId,
) -> Result<Option<Unresolved>, ImageError> {
    // Never committed: nothing to conflict with.
    let txn = kv.begin();
    let key = keys::conflict(&id);
    let found = layers.get(txn.as_ref(), &key).await?;
    found.map(|value| decode(&key, &value)).transpose()
}

/// How many conflicts a snapshot holds: what its commit says.
///
/// # Errors
///
/// The tree cannot be read.
///
/// # Cancellation
///
/// Safe to drop.
pub async fn count(tree: &Tree, root: Root) -> Result<u64, ImageError> {
    let mut scan = tree.scan(root, &keys::conflicts());
    let mut count = 0;
    while scan.next().await?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// At most `limit` conflicts of a session as its layers hold them, those after `after`.
///
/// Reads only what is durable: whoever resolves a conflict waits until that is.
///
/// # Errors
///
/// The store fails, or a record is damaged.
///
/// # Cancellation
///
/// Safe to drop.
pub async fn in_layers(
    kv: &dyn Kv,
    layers: &Layers,
    after: Option<ConflictId>,
    limit: usize,
) -> Result<ConflictPage, ImageError> {
    let limit = limit.min(PAGE_MAX);
    // Never committed: nothing to conflict with.
    let txn = kv.begin();
    let mut range = range_after(after);
    let mut page = ConflictPage::default();
    loop {
        let scanned = layers.scan(txn.as_ref(), &range, limit + 1).await?;
        for (key, value) in &scanned.pairs {
            if page.items.len() >= limit {
                page.more = true;
                return Ok(page);
            }
            page.items.push(decode(key, value)?);
        }
        let Some(last) = scanned.covered_to else {
            return Ok(page);
        };
        range.start = KeyRange::key(&last).end;
    }
}

fn range_after(after: Option<ConflictId>) -> KeyRange {
    let mut range = keys::conflicts();
    if let Some(id) = after {
        range.start = KeyRange::key(&keys::conflict(&id)).end;
    }
    range
}

fn decode(key: &[u8], value: &Bytes) -> Result<Unresolved, ImageError> {
    let ImageKey::Conflict(id) = keys::decode(key)? else {
        return Err(KeyError::WrongTable.into());
    };
    let conflict = Conflict::decode(value)?;
    Ok(Unresolved { id, conflict })
}

#[cfg(test)]
mod tests;
