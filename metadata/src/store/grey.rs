//! Roots of trees that are copied while a collection reads references.
//!
//! A walk over all roots may have passed the place of a copy before there is one, and come to the
//! original when it names another root already. So whoever copies a root says so first, and a
//! collection walks what was copied as well (`docs/design/0002-collection.md`, rule 9).
//!
//! Where chunks are local the collection is in this process, and is told in memory. Where they are shared it is told
//! by records (`docs/design/0016-fleet-collection.md`, 6).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use base::{SessionId, WorkspaceId};
use parking_lot::Mutex;

use super::{Store, StoreError, damaged};
use crate::collections;
use crate::keyspace;
use crate::kv::{Isolation, Transaction};
use crate::record::session::SessionRecord;
use crate::transact::Budget;
use crate::tree::Root;

/// A root that was copied, or was about to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GreyRoot {
    /// The workspace of the tree.
    pub workspace: WorkspaceId,
    /// Its root.
    pub root: Root,
}

/// Those who want to know. Shared by all clones of a store.
#[derive(Debug, Default)]
pub(super) struct Watchers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// What each has not yet taken. Roots of records that exist or were about to, each once.
    grey: BTreeMap<u64, HashSet<GreyRoot>>,
}

/// Knows which roots were copied since this was made, in this process.
///
/// Made before a collection begins, and kept until it has taken what has no mark.
#[derive(Debug)]
#[must_use = "dropped, it knows nothing"]
pub struct GreyRoots {
    watchers: Arc<Watchers>,
    number: u64,
}

impl GreyRoots {
    /// The roots that were copied since the last call, in no order.
    #[must_use]
    pub fn take(&self) -> Vec<GreyRoot> {
        let mut state = self.watchers.0.lock();
        let grey = state.grey.get_mut(&self.number).map(std::mem::take);
        grey.unwrap_or_default().into_iter().collect()
    }
}

impl Drop for GreyRoots {
    fn drop(&mut self) {
        self.watchers.0.lock().grey.remove(&self.number);
    }
}

impl Store {
    /// Begins to take note of roots that are copied.
    pub fn grey_roots(&self) -> GreyRoots {
        let mut state = self.watchers.0.lock();
        let number = state.next;
        state.next += 1;
        state.grey.insert(number, HashSet::new());
        drop(state);
        GreyRoots {
            watchers: Arc::clone(&self.watchers),
            number,
        }
    }

    /// A store that tells all gateways of roots that are copied: for one whose chunks are shared.
    #[must_use]
    pub fn telling_fleet(self) -> Self {
        Self {
            tells_fleet: true,
            ..self
        }
    }

    /// Says that a root is about to be copied: made the root of another record than the one that has
    /// it. While that one still has it, and under a hold of the chunk store, which is kept until it is copied.
    ///
    /// # Errors
    ///
    /// The store fails or a record is damaged; only where chunks are shared.
    ///
    /// # Cancellation
    ///
    /// Safe to drop: it may or may not have been said.
    pub async fn tell_copied(&self, workspace: WorkspaceId, root: Root) -> Result<(), StoreError> {
        self.copying(workspace, root);
        if !self.tells_fleet {
            return Ok(());
        }
        let told = self.transactor.transact(Budget::default(), |txn, _| {
            // Right however often it is applied.
            Box::pin(collections::tell(txn, GreyRoot { workspace, root }))
        });
        told.await
    }

    /// As [`Store::tell_copied`], of the root that is a session's base. `false` if that is another one by now, and
    /// it must not be copied.
    ///
    /// # Errors
    ///
    /// As [`Store::tell_copied`].
    ///
    /// # Cancellation
    ///
    /// As [`Store::tell_copied`].
    pub async fn tell_base(
        &self,
        workspace: WorkspaceId,
        session: SessionId,
        root: Root,
    ) -> Result<bool, StoreError> {
        self.copying(workspace, root);
        if !self.tells_fleet {
            // Then who asks is the only one who changes it, and has made sure.
            return Ok(true);
        }
        let told = self.transactor.transact(Budget::default(), |txn, _| {
            // Right however often it is applied.
            Box::pin(async move {
                let key = keyspace::session_meta(session);
                // Who gives it another base meanwhile conflicts.
                let Some(found) = txn.get(&key, Isolation::Serializable).await? else {
                    return Ok(false);
                };
                let record = SessionRecord::decode(&found).map_err(damaged("session"))?;
                if record.base != Some(root) {
                    return Ok(false);
                }
                collections::tell(txn, GreyRoot { workspace, root }).await?;
                Ok::<_, StoreError>(true)
            })
        });
        told.await
    }

    /// Tells of a root in the transaction that copies it.
    pub(super) async fn tell_in(
        &self,
        txn: &mut dyn Transaction,
        workspace: WorkspaceId,
        root: Root,
    ) -> Result<(), StoreError> {
        if self.tells_fleet {
            collections::tell(txn, GreyRoot { workspace, root }).await?;
        }
        Ok(())
    }

    /// What [`Store::tell_copied`] says within this process.
    pub fn copying(&self, workspace: WorkspaceId, root: Root) {
        for grey in self.watchers.0.lock().grey.values_mut() {
            grey.insert(GreyRoot { workspace, root });
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{ManualClock, Rng, Timestamp};

    use super::*;
    use crate::kv::memory::MemoryKv;

    #[tokio::test]
    async fn each_watcher_hears_of_what_is_copied_while_it_lives() {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let kv = Arc::new(MemoryKv::new(clock.clone()));
        let store = Store::open(kv, clock, Arc::new(Rng::seeded(1)));
        let store = store.await.unwrap();
        let copy = |number| {
            let (workspace, root) = (WorkspaceId::new(1), Root::from_bytes([number; 32]));
            store.clone().copying(workspace, root);
            GreyRoot { workspace, root }
        };
        copy(1);
        let one = store.grey_roots();
        let second = copy(2);
        let other = store.grey_roots();
        assert_eq!(copy(2), second);
        assert_eq!(one.take(), [second]);
        assert_eq!(one.take(), []);
        assert_eq!(other.take(), [second]);
        drop(one);
        let third = copy(3);
        assert_eq!(other.take(), [third]);
        drop(other);
        copy(4);
        assert!(store.watchers.0.lock().grey.is_empty());
    }
}
