//! Roots of trees that are copied while a collection reads references.
//!
//! A walk over all roots may have passed the place of a copy before there is one, and come to the
//! original when it names another root already. So whoever copies a root says so first, and a
//! collection walks what was copied as well (`docs/design/0002-collection.md`, rule 9).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use base::WorkspaceId;
use parking_lot::Mutex;

use super::Store;
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

    /// Says that a root is about to be copied: made the root of another record than the one that has
    /// it. While that one still has it, and under a hold of the chunk store.
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
