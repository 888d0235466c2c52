//! Key selectors and range reads, made of the core's plain range reads.

use bytes::Bytes;
use futures_util::FutureExt;
use metadata::kv::{Isolation, KeyRange, KvError, KvFuture, RangeLimit, RangePage, Transaction};

use crate::wire::{RangeRead, Selector};

/// First key after those of callers.
const KEYS_END: &[u8] = b"\xff";

/// Bytes of a page when a selector is resolved.
const SELECTOR_PAGE_BYTES: usize = 1 << 20;

/// The result of a call of the store in memory, which is always there at once.
pub(super) fn now<T>(future: KvFuture<'_, T>) -> Result<T, KvError> {
    future.now_or_never().unwrap_or_else(|| {
        Err(KvError::Unavailable(
            "store did not answer at once".to_owned(),
        ))
    })
}

/// How a read takes part in conflicts.
pub(super) fn isolation(snapshot: bool) -> Isolation {
    if snapshot {
        Isolation::Snapshot
    } else {
        Isolation::Serializable
    }
}

/// The key that `selector` means: empty before the first key, `\xff` after the last.
pub(super) fn resolve(
    transaction: &dyn Transaction,
    selector: &Selector,
    isolation: Isolation,
) -> Result<Bytes, KvError> {
    let from = position(selector);
    let forwards = selector.offset > 0;
    let steps = if forwards {
        i64::from(selector.offset)
    } else {
        1 - i64::from(selector.offset)
    };
    let mut left = usize::try_from(steps).unwrap_or(usize::MAX);
    let end = Bytes::from_static(KEYS_END);
    let mut range = if forwards {
        KeyRange { start: from, end }
    } else {
        KeyRange {
            start: Bytes::new(),
            end: from,
        }
    };
    loop {
        let limit = RangeLimit {
            pairs: left,
            bytes: SELECTOR_PAGE_BYTES,
            reverse: !forwards,
        };
        let page = now(transaction.get_range(&range, limit, isolation))?;
        left -= page.pairs.len();
        match page.pairs.last() {
            Some((key, _)) if left == 0 => return Ok(key.clone()),
            Some((key, _)) if page.more && forwards => range.start = KeyRange::key(key).end,
            Some((key, _)) if page.more => range.end = key.clone(),
            _ if forwards => return Ok(Bytes::from_static(KEYS_END)),
            _ => return Ok(Bytes::new()),
        }
    }
}

/// The place between keys that a selector counts from, as the first key after it.
fn position(selector: &Selector) -> Bytes {
    let key = if *selector.key > *KEYS_END {
        Bytes::from_static(KEYS_END)
    } else {
        selector.key.clone()
    };
    if selector.or_equal && *key < *KEYS_END {
        KeyRange::key(&key).end
    } else {
        key
    }
}

/// The bound of a range that `selector` means. The usual selectors need no read.
fn bound(
    transaction: &dyn Transaction,
    selector: &Selector,
    isolation: Isolation,
) -> Result<Bytes, KvError> {
    if selector.offset == 1 {
        Ok(position(selector))
    } else {
        resolve(transaction, selector, isolation)
    }
}

/// Reads part of a range; at most `rows` pairs.
pub(super) fn range(
    transaction: &dyn Transaction,
    read: &RangeRead,
    rows: u32,
) -> Result<RangePage, KvError> {
    let isolation = isolation(read.snapshot);
    let start = bound(transaction, &read.begin, isolation)?;
    let end = bound(transaction, &read.end, isolation)?;
    if start >= end {
        // Reads nothing, but what is wrong with the transaction is told.
        now(transaction.read_version())?;
        return Ok(RangePage::default());
    }
    let limit = RangeLimit {
        pairs: usize::try_from(rows).unwrap_or(usize::MAX),
        bytes: usize::try_from(read.bytes).unwrap_or(usize::MAX),
        reverse: read.reverse,
    };
    now(transaction.get_range(&KeyRange { start, end }, limit, isolation))
}
