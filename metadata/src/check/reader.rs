//! Reading the store, page by page and key by key.

use bytes::Bytes;

use crate::kv::{Isolation, KeyRange, Kv, KvError, RangeLimit};

/// Keys read at a time.
const PAGE: usize = 1000;

/// Reads a store that nobody changes: each read may be a transaction of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    kv: &'a dyn Kv,
}

/// What is left of a range.
#[derive(Clone, Debug)]
pub(super) struct Scan {
    rest: Option<KeyRange>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(kv: &'a dyn Kv) -> Self {
        Self { kv }
    }

    pub(super) fn kv(&self) -> &'a dyn Kv {
        self.kv
    }

    pub(super) async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        // Never committed: nothing to conflict with.
        self.kv.begin().get(key, Isolation::Snapshot).await
    }

    /// The next page of a scan; empty at its end.
    pub(super) async fn next(&self, scan: &mut Scan) -> Result<Vec<(Bytes, Bytes)>, KvError> {
        let Some(range) = &scan.rest else {
            return Ok(Vec::new());
        };
        let limit = RangeLimit::pairs(PAGE);
        // Never committed: nothing to conflict with.
        let page = self
            .kv
            .begin()
            .get_range(range, limit, Isolation::Snapshot)
            .await?;
        scan.rest = match page.pairs.last() {
            Some((last, _)) if page.more => Some(KeyRange {
                start: KeyRange::key(last).end,
                end: range.end.clone(),
            }),
            _ => None,
        };
        Ok(page.pairs)
    }

    /// The first key of a range.
    pub(super) async fn first(&self, range: &KeyRange) -> Result<Option<Bytes>, KvError> {
        let limit = RangeLimit::pairs(1);
        // Never committed: nothing to conflict with.
        let page = self
            .kv
            .begin()
            .get_range(range, limit, Isolation::Snapshot)
            .await?;
        Ok(page.pairs.into_iter().next().map(|(key, _)| key))
    }

    /// The last pair of a range.
    pub(super) async fn last(&self, range: &KeyRange) -> Result<Option<(Bytes, Bytes)>, KvError> {
        let limit = RangeLimit {
            reverse: true,
            ..RangeLimit::pairs(1)
        };
        // Never committed: nothing to conflict with.
        let page = self
            .kv
            .begin()
            .get_range(range, limit, Isolation::Snapshot)
            .await?;
        Ok(page.pairs.into_iter().next())
    }
}

impl Scan {
    pub(super) fn new(range: KeyRange) -> Self {
        Self { rest: Some(range) }
    }
}
