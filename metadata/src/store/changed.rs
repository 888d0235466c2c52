//! What changed from outside in a session, until its clients have seen to it.

use base::{SessionId, TenantId};

use super::{Store, StoreError, damaged};
use crate::keyspace;
use bytes::Bytes;

use crate::kv::{Isolation, KvError, RangeLimit, Transaction, pairs_of};
use crate::record::changed::{ChangedPaths, ChangedRecord};
use crate::transact::Budget;

/// Most records that are kept for a session: about 1.5 MB of paths.
const RECORDS_MAX: usize = 64;

/// What changed from outside in a session since it was last seen to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// What changed.
    pub paths: ChangedPaths,
    /// What to acknowledge when all of it has been seen to; `None` if nothing changed.
    pub position: Option<u64>,
}

/// In a list of paths: everything may have changed. No path from the root begins with a slash.
pub const LIST_EVERYTHING: &[u8] = b"/everything";

/// In a list of paths: what to acknowledge, in decimal digits after this.
pub const LIST_POSITION: &[u8] = b"/position=";

/// In a list of paths: the root directory.
pub const LIST_ROOT: &[u8] = b".";

impl Changed {
    /// The list as programs read it: items with a NUL after each. Paths are relative to the root
    /// directory, which is [`LIST_ROOT`]; what begins with a slash is about the list. Empty if
    /// nothing changed.
    #[must_use]
    pub fn list(&self) -> Vec<u8> {
        let mut list = Vec::new();
        let mut put = |item: &[u8]| {
            list.extend_from_slice(item);
            list.push(0);
        };
        let Some(position) = self.position else {
            return list;
        };
        match &self.paths {
            ChangedPaths::Everything => put(LIST_EVERYTHING),
            ChangedPaths::These(paths) => {
                for path in paths {
                    put(if path.is_empty() { LIST_ROOT } else { path });
                }
            }
        }
        put(&[LIST_POSITION, position.to_string().as_bytes()].concat());
        list
    }
}

impl Store {
    /// What changed from outside in a session and was not acknowledged.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    pub async fn changed(&self, tenant: TenantId, id: SessionId) -> Result<Changed, StoreError> {
        self.session(tenant, id).await?;
        let kept = self.look(|txn| Box::pin(async move { Ok(kept(txn, id).await?) }));
        let kept = kept.await?;
        let mut all = Vec::new();
        let mut changed = Changed::default();
        for (key, value) in &kept {
            let position = keyspace::decode_session_changed(key);
            let what = "changes from outside";
            let position = position.map_err(|error| StoreError::Corrupt {
                what: what.into(),
                why: error.to_string(),
            })?;
            changed.position = changed.position.max(Some(position));
            match ChangedRecord::decode(value).map_err(damaged(what))?.0 {
                ChangedPaths::Everything => changed.paths = ChangedPaths::Everything,
                ChangedPaths::These(paths) => all.extend(paths),
            }
        }
        if let ChangedPaths::These(paths) = &mut changed.paths {
            all.sort_unstable();
            all.dedup();
            *paths = all;
        }
        Ok(changed)
    }

    /// Says that what changed up to `position`, which [`Store::changed`] told, has been seen to.
    /// What changed later stays.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not have been done, and may be done again.
    pub async fn acknowledge_changed(
        &self,
        tenant: TenantId,
        id: SessionId,
        position: u64,
    ) -> Result<(), StoreError> {
        self.session(tenant, id).await?;
        let range = keyspace::session_changes_until(id, position);
        let range = &range;
        self.transactor
            .transact(Budget::default(), |txn, _| {
                // Right however often it is applied: what comes later has a later position.
                Box::pin(async move {
                    txn.clear_range(range);
                    Ok::<(), StoreError>(())
                })
            })
            .await
    }
}

/// All that is kept for a session. No exchange is told in part.
async fn kept(txn: &dyn Transaction, session: SessionId) -> Result<Vec<(Bytes, Bytes)>, KvError> {
    let limit = RangeLimit::pairs(RECORDS_MAX + 1);
    let range = keyspace::session_changes(session);
    pairs_of(txn, range, limit, Isolation::Snapshot).await
}

/// Adds what the exchange at `position` changed. If too much is kept then, a mark that everything may
/// have changed takes its place.
pub(crate) async fn write_changed(
    txn: &mut dyn Transaction,
    session: SessionId,
    position: u64,
    records: &[ChangedRecord],
) -> Result<(), KvError> {
    let all = keyspace::session_changes(session);
    // What is acknowledged meanwhile is less: the mark then says more than has to be.
    let kept = kept(txn, session).await?;
    let mut put = |part: usize, record: &ChangedRecord| {
        let part = u32::try_from(part).unwrap_or(u32::MAX);
        let key = keyspace::session_changed(session, position, part);
        txn.set(&key, &record.encode());
    };
    if kept.len() + records.len() <= RECORDS_MAX {
        for (part, record) in records.iter().enumerate() {
            put(part, record);
        }
        return Ok(());
    }
    put(0, &ChangedRecord(ChangedPaths::Everything));
    txn.clear_range(&crate::kv::KeyRange {
        start: all.start,
        end: keyspace::session_changed(session, position, 0).into(),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::{ManualClock, Rng, Timestamp};

    use super::*;
    use crate::kv::Kv;
    use crate::kv::memory::MemoryKv;

    use crate::store::{NewWorkspace, OpenSession};

    async fn opened() -> (Store, Arc<MemoryKv>, SessionId) {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let kv = Arc::new(MemoryKv::new(clock.clone()));
        let store = Store::open(kv.clone(), clock, Arc::new(Rng::seeded(1)));
        let (store, tenant) = (store.await.unwrap(), TenantId::DEFAULT);
        let workspace = NewWorkspace {
            name: "w".into(),
            root: (0o777, 0, 0),
        };
        store.create_workspace(tenant, workspace).await.unwrap();
        let open = OpenSession::new("w");
        let id = store.open_session(tenant, open).await.unwrap().session.id;
        (store, kv, id)
    }

    /// However often nobody looks, what is kept is bounded, and says at least what changed.
    #[tokio::test]
    async fn what_is_kept_is_bounded() {
        let (store, kv, id) = opened().await;
        let tenant = TenantId::DEFAULT;
        let changed = async || store.changed(tenant, id).await.unwrap();
        assert_eq!(changed().await, Changed::default());
        let paths = |number: u64| vec![format!("p{number}").into_bytes()];
        for position in 1..=200 {
            let records = ChangedPaths::These(paths(position)).into_records();
            let mut txn = kv.begin();
            write_changed(txn.as_mut(), id, position, &records)
                .await
                .unwrap();
            txn.commit().await.unwrap();
            let now = changed().await;
            assert_eq!(now.position, Some(position));
            match now.paths {
                ChangedPaths::Everything => assert!(position > 60, "{position}"),
                ChangedPaths::These(told) => {
                    assert_eq!(u64::try_from(told.len()), Ok(position));
                }
            }
        }
        let all = keyspace::session_changes(id);
        let limit = RangeLimit::pairs(1000);
        let kept = kv.begin().get_range(&all, limit, Isolation::Snapshot).await;
        assert!(kept.unwrap().pairs.len() <= RECORDS_MAX);
        // What came after that which is acknowledged stays.
        store.acknowledge_changed(tenant, id, 199).await.unwrap();
        let last = changed().await;
        assert_eq!(
            (last.position, last.paths),
            (Some(200), ChangedPaths::These(paths(200)))
        );
        store.acknowledge_changed(tenant, id, 200).await.unwrap();
        store.acknowledge_changed(tenant, id, 200).await.unwrap();
        assert_eq!(changed().await, Changed::default());
        store.close_session(tenant, id).await.unwrap();
        assert!(store.changed(tenant, id).await.is_err());
    }

    /// Bug: a mebibyte of what is kept was looked at. The rest of an exchange was never told, and what
    /// was beyond did not count towards the bound.
    #[tokio::test]
    async fn full_records_are_told_and_bounded() {
        let (store, kv, id) = opened().await;
        let tenant = TenantId::DEFAULT;
        let paths = |exchange: u64| -> Vec<Vec<u8>> {
            let path = |number| format!("{exchange}/{number:05}/{}", "x".repeat(100)).into_bytes();
            (0..6_000).map(path).collect()
        };
        let mut all = Vec::new();
        for position in 1..=40 {
            let records = ChangedPaths::These(paths(position)).into_records();
            let mut txn = kv.begin();
            write_changed(txn.as_mut(), id, position, &records)
                .await
                .unwrap();
            txn.commit().await.unwrap();
            all.extend(paths(position));
            let now = store.changed(tenant, id).await.unwrap();
            assert_eq!(now.position, Some(position));
            if position <= 2 {
                all.sort_unstable();
                assert_eq!(now.paths, ChangedPaths::These(all.clone()));
            } else {
                assert_eq!(now.paths, ChangedPaths::Everything);
            }
            let txn = kv.begin();
            let kept = pairs_of(
                &*txn,
                keyspace::session_changes(id),
                RangeLimit::pairs(10_000),
                Isolation::Snapshot,
            );
            assert!(kept.await.unwrap().len() <= RECORDS_MAX);
        }
    }

    #[test]
    fn a_list_keeps_bytes_and_says_what_to_acknowledge() {
        let of = |paths, position| Changed { paths, position };
        let these = ChangedPaths::These(vec![Vec::new(), b"a/\xff".to_vec()]);
        assert_eq!(of(these, Some(7)).list(), b".\0a/\xff\0/position=7\0");
        let all = of(ChangedPaths::Everything, Some(8)).list();
        assert_eq!(all, b"/everything\0/position=8\0");
        assert_eq!(Changed::default().list(), b"");
    }
}
