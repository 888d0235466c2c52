//! Workspaces that are removed.

use base::NodeId;

use super::*;
use crate::check::{CheckOptions, check};
use crate::record::operation::Cause;
use crate::record::reference::{RefKind, RefName, RefState};

fn new_commit(message: String, parents: Vec<CommitId>) -> NewCommit {
    NewCommit {
        parents,
        message,
        ..NewCommit::of_tree(NodeId::new([1; 32]))
    }
}

/// A workspace with a history, a pin, a policy and a session.
async fn furnish(store: &Store, name: &str) -> (WorkspaceInfo, SessionId) {
    let tenant = TenantId::DEFAULT;
    let made = store
        .create_workspace(tenant, workspace(name))
        .await
        .unwrap();
    let (mut parents, id) = (Vec::new(), made.id);
    for number in 0..5 {
        let new = new_commit(number.to_string(), parents);
        parents = vec![store.put_commit(id, new).await.unwrap().id];
        let state = RefState {
            commit: parents[0],
            kind: RefKind::Branch,
            protected: number == 0,
        };
        let name = RefName::new(&format!("b{number}")).unwrap();
        let made = store.create_ref(id, &name, state, Cause::Asked);
        made.await.unwrap();
    }
    store.pin(id, parents[0], "kept").await.unwrap();
    let policy = crate::record::retention::Policy {
        keep_seconds: 3600,
        keep_last: 1,
    };
    store.set_retention(id, Some(policy)).await.unwrap();
    let opened = store.open_session(tenant, open(name)).await.unwrap();
    (made, opened.session.id)
}

async fn keys(kv: &Arc<dyn Kv>) -> Vec<Vec<u8>> {
    let all = KeyRange {
        start: Bytes::new(),
        end: Bytes::from_static(&[0xff]),
    };
    let txn = kv.begin();
    let page = txn.get_range(&all, RangeLimit::pairs(10_000), Isolation::Snapshot);
    let page = page.await.unwrap();
    assert!(!page.more);
    page.pairs.iter().map(|(key, _)| key.to_vec()).collect()
}

async fn assert_clean(kv: &Arc<dyn Kv>) {
    let report = check(kv.as_ref(), CheckOptions::default()).await.unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// Nothing of it is left, whatever the steps and wherever they are stopped, and nothing else is
/// touched.
#[tokio::test]
async fn all_of_a_workspace_is_removed_and_nothing_else() {
    for limit in [1, 3, 1000] {
        let (store, clock, kv) = store().await;
        furnish(&store, "other").await;
        let before = keys(&kv).await;
        let (_, session) = furnish(&store, "w").await;
        let deletion = store
            .delete_workspace(TenantId::DEFAULT, "w", true)
            .await
            .unwrap();
        assert_eq!(
            store.deletions().await.unwrap(),
            std::slice::from_ref(&deletion)
        );
        let mut steps = 0;
        loop {
            assert_clean(&kv).await;
            // As if the server had been started anew.
            let rng = Arc::new(Rng::seeded(100 + steps));
            let again = Store::open(Arc::clone(&kv), clock.clone(), rng);
            let again = again.await.unwrap();
            match again.remove_deleted(&deletion, limit).await.unwrap() {
                Removal::Sessions(sessions) => {
                    assert_eq!(sessions, [session]);
                    let closed = again.close_session(TenantId::DEFAULT, session);
                    closed.await.unwrap();
                }
                Removal::Removed(count) => assert!(count <= limit),
                Removal::Done => break,
            }
            steps += 1;
        }
        assert!(steps > 4);
        assert_eq!(keys(&kv).await, before);
        assert_eq!(store.deletions().await.unwrap(), []);
        assert_clean(&kv).await;
    }
}

#[tokio::test]
async fn the_name_is_free_at_once_and_nothing_is_added() {
    let (store, _, kv) = store().await;
    let tenant = TenantId::DEFAULT;
    let (made, session) = furnish(&store, "w").await;
    let refused = store.delete_workspace(tenant, "w", false).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("a session is open in it"), "{refused}");
    let commit = store.refs(made.id, None, 1).await.unwrap()[0]
        .record
        .state
        .commit;
    store.delete_workspace(tenant, "w", true).await.unwrap();
    let gone = store.delete_workspace(tenant, "w", true).await.unwrap_err();
    assert!(matches!(gone, StoreError::NotFound { .. }), "{gone}");
    assert_eq!(store.workspaces(tenant, None, 9).await.unwrap(), []);
    let new = store
        .create_workspace(tenant, workspace("w"))
        .await
        .unwrap();
    assert_ne!(new.id, made.id);
    let fork = ForkSession {
        read_only: false,
        identity: None,
        agent: String::new(),
        run: String::new(),
        ttl_seconds: None,
    };
    let state = RefState {
        commit,
        kind: RefKind::Branch,
        protected: false,
    };
    let name = RefName::new("late").unwrap();
    let commit_late = new_commit("late".into(), vec![]);
    for refused in [
        store.fork_session(tenant, session, fork).await.map(drop),
        store.put_commit(made.id, commit_late).await.map(drop),
        (store.create_ref(made.id, &name, state, Cause::Asked).await).map(drop),
        store.pin(made.id, commit, "").await.map(drop),
        store.set_retention(made.id, None).await.map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert!(refused.to_string().contains("being removed"), "{refused}");
    }
    store.open_session(tenant, open("w")).await.unwrap();
    assert_clean(&kv).await;
}

#[tokio::test]
async fn one_without_sessions_needs_no_force() {
    let (store, _, kv) = store().await;
    let tenant = TenantId::DEFAULT;
    let (_, session) = furnish(&store, "w").await;
    store.close_session(tenant, session).await.unwrap();
    let deletion = store.delete_workspace(tenant, "w", false).await.unwrap();
    while store.remove_deleted(&deletion, 10).await.unwrap() != Removal::Done {}
    assert_clean(&kv).await;
    let unknown = store
        .delete_workspace(tenant, "w", false)
        .await
        .unwrap_err();
    assert!(matches!(unknown, StoreError::NotFound { .. }));
    let other = TenantId::new(9);
    furnish(&store, "mine").await;
    let theirs = store
        .delete_workspace(other, "mine", true)
        .await
        .unwrap_err();
    assert!(matches!(theirs, StoreError::NotFound { .. }));
}
