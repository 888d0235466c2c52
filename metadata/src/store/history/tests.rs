//! Commits, refs and versions against simple models, and against a store with faults.

mod faults;
mod graph;
mod refs;
mod retention;
mod versions;

use std::sync::Arc;
use std::time::Duration;

use base::{CommitId, ManualClock, NodeId, Rng, TenantId, Timestamp, WorkspaceId};

use super::*;
use crate::check::{CheckOptions, check};
use crate::image::Usage;
use crate::kv::Kv;
use crate::kv::memory::MemoryKv;
use crate::record::commit::Provenance;
use crate::record::operation::{Action, Actor, Cause, OperationRecord};
use crate::record::reference::{RefKind, RefName, RefState};
use crate::store::{NewWorkspace, Store, StoreError};

/// A workspace, and a clock that stands still until told.
struct World {
    kv: Arc<dyn Kv>,
    clock: Arc<ManualClock>,
    store: Store,
    workspace: WorkspaceId,
}

const START: Timestamp = Timestamp::new(1_000_000, 0);

impl World {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::new(START));
        let kv: Arc<dyn Kv> = Arc::new(MemoryKv::new(clock.clone()));
        let rng = Arc::new(Rng::seeded(1));
        let store = Store::open(Arc::clone(&kv), clock.clone(), rng)
            .await
            .unwrap();
        let new = NewWorkspace {
            name: "w".into(),
            root: (0o777, 0, 0),
        };
        let workspace = store.create_workspace(TenantId::DEFAULT, new).await;
        Self {
            kv,
            clock,
            store,
            workspace: workspace.unwrap().id,
        }
    }

    fn pass(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    /// A commit with this message.
    async fn commit(&self, message: &str, parents: &[CommitId]) -> CommitId {
        let new = new_commit(message, parents);
        let made = self.store.put_commit(self.workspace, new).await.unwrap();
        made.id
    }

    async fn create(&self, name: &str, commit: CommitId) -> base::OperationId {
        self.store
            .create_ref(self.workspace, &named(name), branch(commit), Cause::Asked)
            .await
            .unwrap()
    }

    async fn go(
        &self,
        name: &str,
        from: CommitId,
        to: CommitId,
    ) -> Result<base::OperationId, StoreError> {
        let moved = self
            .store
            .move_ref(self.workspace, &named(name), from, to, Cause::Asked)
            .await?;
        Ok(moved.unwrap())
    }

    async fn at(&self, name: &str) -> Option<RefState> {
        match self.store.reference(self.workspace, &named(name)).await {
            Ok(found) => Some(found.record.state),
            Err(StoreError::NotFound { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    async fn assert_clean(&self) {
        let report = check(self.kv.as_ref(), CheckOptions::default())
            .await
            .unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    }
}

fn named(name: &str) -> RefName {
    RefName::new(name).unwrap()
}

fn branch(commit: CommitId) -> RefState {
    RefState {
        commit,
        kind: RefKind::Branch,
        protected: false,
    }
}

fn new_commit(message: &str, parents: &[CommitId]) -> NewCommit {
    NewCommit {
        parents: parents.to_vec(),
        message: message.into(),
        ..NewCommit::of_tree(NodeId::new([1; 32]))
    }
}

#[tokio::test]
async fn a_commit_is_stored_under_its_content() {
    let world = World::new().await;
    let new = NewCommit {
        usage: Usage {
            bytes: 1,
            inodes: 2,
        },
        conflicts: 3,
        provenance: Provenance {
            agent: "a".into(),
            pairs: [("k".into(), "v".into())].into(),
            ..Provenance::default()
        },
        ..new_commit("first\n", &[])
    };
    let put = |new| world.store.put_commit(world.workspace, new);
    let made = put(new.clone()).await.unwrap();
    assert_eq!(made.id, made.record.id());
    assert_eq!((made.record.time, made.record.conflicts), (START, 3));
    assert_eq!(made.record.message, "first\n");
    assert_eq!(made.record.provenance, new.provenance);
    let read = world.store.commit(world.workspace, made.id).await;
    assert_eq!(read.as_ref(), Ok(&made));
    // The same again is the same.
    assert_eq!(put(new.clone()).await, Ok(made.clone()));

    let missing = CommitId::new([9; 32]);
    let refused = put(new_commit("x", &[made.id, missing])).await;
    let what = format!("commit {missing}");
    assert_eq!(refused, Err(StoreError::NotFound { what: what.clone() }));
    let unknown = world.store.commit(world.workspace, missing).await;
    assert_eq!(unknown, Err(StoreError::NotFound { what }));
    let elsewhere = world.store.put_commit(WorkspaceId::new(7), new).await;
    assert!(matches!(elsewhere, Err(StoreError::NotFound { .. })));
    for (bad, named) in [
        (new_commit("\u{7}", &[]), "commit message"),
        (new_commit("twice", &[made.id, made.id]), "parents"),
    ] {
        let Err(StoreError::Invalid { why }) = put(bad).await else {
            panic!("{named} was accepted");
        };
        assert!(why.contains(named), "{why}");
    }
    world.assert_clean().await;
}

/// Two gateways whose clocks differ must not turn history around.
#[tokio::test]
async fn a_commit_is_later_than_its_parents_whatever_the_clock_says() {
    let world = World::new().await;
    let first = world.commit("first", &[]).await;
    world.clock.set_wall(Timestamp::new(5, 0));
    let second = world.commit("second", &[first]).await;
    world.clock.set_wall(Timestamp::new(2_000_000, 0));
    let third = world.commit("third", &[second]).await;
    let time = async |id| {
        let commit = world.store.commit(world.workspace, id).await.unwrap();
        commit.record.time
    };
    assert_eq!(time(second).await, START.tick());
    assert_eq!(time(third).await, Timestamp::new(2_000_000, 0));
    world.assert_clean().await;
}
