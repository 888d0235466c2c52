//! Reads go on over moments in which the store cannot serve, and end when these do not.

use std::convert::Infallible;
use std::time::Duration;

use base::NodeId;

use super::*;
use crate::kv::faulty::{FaultRates, FaultyKv};
use crate::record::operation::Cause;
use crate::record::reference::{RefKind, RefName, RefState};
use crate::record::retention::Policy;

const TENANT: TenantId = TenantId::DEFAULT;

/// Workspaces with a session each.
const WORKSPACES: u32 = 60;

/// Runs while time passes.
async fn in_time<T>(clock: &ManualClock, run: impl Future<Output = T>) -> T {
    let pass = async || -> Infallible {
        loop {
            clock.advance(Duration::from_millis(1));
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        done = run => done,
        never = pass() => match never {},
    }
}

/// What is looked at.
struct Seen {
    workspace: WorkspaceId,
    session: SessionId,
    commit: CommitId,
    branch: RefName,
    time: Timestamp,
}

impl Seen {
    async fn new(store: &Store, clock: &ManualClock) -> Self {
        for number in 0..WORKSPACES {
            let name = format!("w{number}");
            let new = store.create_workspace(TENANT, workspace(&name));
            new.await.unwrap();
            let ttl_seconds = Some(60);
            let new = OpenSession {
                ttl_seconds,
                ..open(&name)
            };
            store.open_session(TENANT, new).await.unwrap();
        }
        let workspace = store.workspace_by_name(TENANT, "w0").await.unwrap().id;
        let found = store.sessions(TENANT, Some(workspace), None, 1).await;
        let session = found.unwrap()[0].id;
        store.create_token(TENANT).await.unwrap();
        let deleted = store.delete_workspace(TENANT, "w1", true).await;
        deleted.unwrap();
        let mut commits = Vec::new();
        for number in 1..=2 {
            let parents = commits.clone();
            let new = NewCommit {
                parents,
                ..NewCommit::of_tree(NodeId::new([number; 32]))
            };
            let made = store.put_commit(workspace, new).await.unwrap();
            commits.push(made.id);
        }
        let [first, commit] = commits[..] else {
            panic!("not two commits");
        };
        let branch = RefName::new("main").unwrap();
        let state = RefState {
            kind: RefKind::Branch,
            protected: false,
            commit: first,
        };
        let made = store.create_ref(workspace, &branch, state, Cause::Asked);
        made.await.unwrap();
        clock.advance(Duration::from_secs(7200));
        let time = clock.wall();
        let moved = store.move_ref(workspace, &branch, first, commit, Cause::Asked);
        moved.await.unwrap();
        store.pin(workspace, first, "why").await.unwrap();
        let policy = Policy {
            keep_seconds: 3600,
            keep_last: 1,
        };
        let set = store.set_retention(workspace, Some(policy));
        set.await.unwrap();
        Self {
            workspace,
            session,
            commit,
            branch,
            time,
        }
    }

    /// What each way to look says.
    async fn look(&self, store: &Store) -> Vec<String> {
        let Self {
            workspace,
            session,
            commit,
            ref branch,
            time,
        } = *self;
        let digits = &session.to_string()[..6];
        let prefix = &commit.to_string()[..12];
        let prefix = prefix.parse().unwrap();
        let before = Timestamp::EPOCH;
        let expired = async {
            let page = store.expired_sessions(None).await?;
            Ok::<_, StoreError>((page.sessions, page.next.is_some()))
        };
        vec![
            format!("{:?}", store.session(TENANT, session).await),
            format!("{:?}", store.sessions(TENANT, None, None, 2).await),
            format!("{:?}", expired.await),
            format!("{:?}", store.session_by_digits(TENANT, digits).await),
            format!("{:?}", store.tickets(TENANT, session).await),
            format!("{:?}", store.tokens(TENANT).await),
            format!("{:?}", store.changed(TENANT, session).await),
            format!("{:?}", store.workspaces(TENANT, None, 500).await),
            format!("{:?}", store.deletions().await),
            format!("{:?}", store.commit_by_prefix(workspace, &prefix).await),
            format!("{:?}", store.refs(workspace, None, 9).await),
            format!("{:?}", store.reference_at(workspace, branch, time).await),
            format!("{:?}", store.reference_at(workspace, branch, before).await),
            format!("{:?}", store.operations(workspace, None, 9).await),
            format!("{:?}", store.pins(workspace, None, 9).await),
            format!("{:?}", store.expired(workspace).await.map(drop)),
        ]
    }
}

/// Bug: lists and the like ended with the first error of the store, also one that passes at once.
#[tokio::test]
async fn moments_without_the_store_are_waited_for() {
    let (calm, clock, kv) = store().await;
    let seen = Seen::new(&calm, &clock).await;
    let expected = seen.look(&calm).await;
    let errors: Vec<_> = expected
        .iter()
        .filter(|said| !said.starts_with("Ok"))
        .collect();
    assert_eq!(
        errors.len(),
        1,
        "there was no branch that early: {errors:?}"
    );
    let faulty = FaultyKv::new(kv, 1, FaultRates::default());
    let rng = Arc::new(Rng::seeded(2));
    let store = Store::open(Arc::new(faulty.clone()), clock.clone(), rng).await;
    let store = store.unwrap();
    for (too_old, unavailable) in [(200, 0), (0, 100)] {
        faulty.set_rates(FaultRates {
            too_old,
            unavailable,
            ..FaultRates::default()
        });
        let said = in_time(&clock, seen.look(&store)).await;
        for (said, expected) in said.iter().zip(&expected) {
            assert_eq!(said, expected);
        }
    }
    // So is what a removal looks at.
    let deletion = &store.deletions().await.unwrap()[0];
    let Removal::Sessions(sessions) = calm.remove_deleted(deletion, 9).await.unwrap() else {
        panic!("it has a session");
    };
    calm.close_session(TENANT, sessions[0]).await.unwrap();
    let remove =
        async { while store.remove_deleted(deletion, 1).await.unwrap() != Removal::Done {} };
    in_time(&clock, remove).await;
    assert!(calm.deletions().await.unwrap().is_empty());
}

/// A store that stays away is not waited for without end.
#[tokio::test]
async fn a_store_that_stays_away_is_given_up() {
    let (calm, clock, kv) = store().await;
    let seen = Seen::new(&calm, &clock).await;
    let faulty = FaultyKv::new(kv, 1, FaultRates::default());
    let rng = Arc::new(Rng::seeded(2));
    let store = Store::open(Arc::new(faulty.clone()), clock.clone(), rng).await;
    let store = store.unwrap();
    faulty.set_rates(FaultRates {
        unavailable: 1000,
        ..FaultRates::default()
    });
    for said in in_time(&clock, seen.look(&store)).await {
        assert!(said.starts_with("Err(Unavailable("), "{said}");
    }
}
