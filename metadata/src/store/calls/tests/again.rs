//! A change whose outcome was unknown, though it was made, and which somebody else takes back before its
//! transaction runs again: that does not make it once more.

use std::sync::atomic::{AtomicBool, Ordering};

use base::WorkspaceId;

use super::*;
use crate::record::retention::Policy;
use crate::record::session::SessionRecord;
use crate::store::{ForkSession, NewCommit, NewTicket, WorkspaceInfo};

/// A world, and a store on it that works until told.
struct Doubtful {
    world: World,
    faulty: FaultyKv,
    store: Store,
    workspace: WorkspaceId,
}

impl Doubtful {
    async fn new() -> Self {
        let world = World::new().await;
        let faulty = FaultyKv::new(world.memory.clone(), 1, FaultRates::default());
        let store = store_on(Arc::new(faulty.clone()), &world.clock, 2).await;
        let workspace = world.store.workspace_by_name(TENANT, "w").await.unwrap().id;
        Self {
            world,
            faulty,
            store,
            workspace,
        }
    }

    /// Runs `change`, whose first commit is made without its knowing. Before it runs again, `meanwhile`
    /// runs, which takes it back.
    async fn run<T>(
        &self,
        change: impl Future<Output = T>,
        meanwhile: impl Future<Output = ()>,
    ) -> T {
        let before = self.faulty.commits();
        let taken_back = AtomicBool::new(false);
        self.faulty.set_rates(FaultRates {
            unknown_applied: 1000,
            ..FaultRates::default()
        });
        let meanwhile = async || -> Infallible {
            while self.faulty.commits() == before {
                tokio::task::yield_now().await;
            }
            self.faulty.set_rates(FaultRates::default());
            meanwhile.await;
            taken_back.store(true, Ordering::Relaxed);
            loop {
                self.world.clock.advance(Duration::from_millis(1));
                tokio::task::yield_now().await;
            }
        };
        let ended = tokio::select! {
            biased;
            ended = change => ended,
            never = meanwhile() => match never {},
        };
        assert!(taken_back.load(Ordering::Relaxed), "it ran once only");
        self.world.check().await;
        ended
    }

    /// The same for a call with a key. Whoever takes it back has its answer.
    async fn keyed<T>(
        &self,
        key: u8,
        describe: impl Fn(&T) -> String + Send + Sync + 'static,
        change: impl AsyncFnOnce(Store) -> Result<T, StoreError>,
        meanwhile: impl AsyncFnOnce(String),
    ) where
        T: Any + Sync + std::fmt::Debug,
    {
        let call = run(begin(&self.world.store, id(key, 1), 1).await);
        let call = call.answered_by(move |made: &T| (201, describe(made).into()));
        let store = self.store.for_call(Some(call));
        let meanwhile = async {
            let begun = begin(&self.world.store, id(key, 1), 2).await;
            meanwhile(told(&self.world.store, begun).await).await;
        };
        let ended = self.run(change(store), meanwhile).await;
        // Then the answer is looked for, which is there. A fork is not found any more.
        let error = ended.unwrap_err();
        let is_said = matches!(error, StoreError::Settled | StoreError::NotFound { .. });
        assert!(is_said, "{error}");
        let begun = begin(&self.world.store, id(key, 1), 3).await;
        told(&self.world.store, begun).await;
        self.world.check().await;
    }

    async fn record(&self, session: SessionId) -> SessionRecord {
        let found = self.world.store.session(TENANT, session).await;
        found.unwrap().record
    }

    async fn commit(&self) -> base::CommitId {
        let new = NewCommit::of_tree(base::NodeId::new([7; 32]));
        let made = self.world.store.put_commit(self.workspace, new).await;
        made.unwrap().id
    }
}

fn fork() -> ForkSession {
    ForkSession {
        read_only: false,
        identity: None,
        agent: String::new(),
        run: String::new(),
        ttl_seconds: None,
    }
}

fn session_in(said: &str) -> SessionId {
    said.parse().unwrap()
}

#[tokio::test]
async fn a_session_that_was_told_and_closed_stays_closed() {
    let doubtful = Doubtful::new().await;
    let world = &doubtful.world;
    let number = |opened: &Opened| opened.session.id.to_string();
    let close = async |said: String| {
        let closed = world.store.close_session(TENANT, session_in(&said));
        closed.await.unwrap();
    };
    let opening = async |store: Store| store.open_session(TENANT, open()).await;
    doubtful.keyed(1, number, opening, close).await;
    assert!(world.sessions().await.is_empty());

    let source = world.store.open_session(TENANT, open()).await.unwrap();
    let source = source.session.id;
    let forking = async |store: Store| store.fork_session(TENANT, source, fork()).await;
    doubtful.keyed(2, number, forking, close).await;
    assert_eq!(world.sessions().await, [source]);
}

/// What was done with a session since it was told is in its record.
#[tokio::test]
async fn a_session_that_was_told_and_used_keeps_what_was_done() {
    let doubtful = Doubtful::new().await;
    let commit = doubtful.commit().await;
    let used = parking_lot::Mutex::new(None);
    let opening = async |store: Store| store.open_session(TENANT, open()).await;
    let number = |opened: &Opened| opened.session.id.to_string();
    let using = async |said: String| {
        let session = session_in(&said);
        let store = &doubtful.world.store;
        let set = store.set_session_commit(TENANT, session, None, commit);
        set.await.unwrap();
        *used.lock() = Some(session);
    };
    doubtful.keyed(1, number, opening, using).await;
    let session = used.lock().unwrap();
    assert_eq!(doubtful.record(session).await.commit, Some(commit));
}

#[tokio::test]
async fn a_ticket_and_a_token_that_were_told_and_revoked_stay_so() {
    let doubtful = Doubtful::new().await;
    let store = &doubtful.world.store;
    let session = store.open_session(TENANT, open()).await.unwrap().session.id;
    let making = async |store: Store| store.create_ticket(TENANT, NewTicket::of(session)).await;
    let revoking = async |text: String| {
        let id = crate::store::ticket_id(&text);
        store.revoke_ticket(TENANT, session, &id).await.unwrap();
    };
    doubtful.keyed(1, String::clone, making, revoking).await;
    assert_eq!(store.tickets(TENANT, session).await.unwrap().len(), 1);

    let making = async |store: Store| store.create_token(TENANT).await;
    let call = async |store: Store| {
        let text = making(store).await?;
        Ok(crate::record::workspace::TokenRecord {
            tenant: TENANT,
            created: Timestamp::EPOCH,
            name: text,
        })
    };
    let describe = |made: &crate::record::workspace::TokenRecord| made.name.clone();
    let revoking = async |_: String| {
        let [token] = &store.tokens(TENANT).await.unwrap()[..] else {
            panic!("not one token");
        };
        store.revoke_token(TENANT, token.id).await.unwrap();
    };
    doubtful.keyed(2, describe, call, revoking).await;
    assert!(store.tokens(TENANT).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_pin_and_a_policy_that_were_told_and_taken_away_stay_so() {
    let doubtful = Doubtful::new().await;
    let (store, workspace) = (&doubtful.world.store, doubtful.workspace);
    let commit = doubtful.commit().await;
    let pinning = async |store: Store| store.pin(workspace, commit, "why").await;
    let unpinning = async |_: String| store.unpin(workspace, commit).await.unwrap();
    let describe = |_: &crate::store::PinInfo| String::new();
    doubtful.keyed(1, describe, pinning, unpinning).await;
    assert!(store.pins(workspace, None, 9).await.unwrap().is_empty());

    let policy = Policy {
        keep_seconds: 3600,
        keep_last: 1,
    };
    let setting = async |store: Store| store.set_retention(workspace, Some(policy)).await;
    let ending = async |_: String| {
        store.set_retention(workspace, None).await.unwrap();
    };
    let describe = |_: &crate::record::retention::RetentionRecord| String::new();
    doubtful.keyed(2, describe, setting, ending).await;
    assert_eq!(store.retention(workspace).await.unwrap().policy, None);
}

/// Without a key nobody has the answer, but lists show what was made.
#[tokio::test]
async fn what_was_listed_and_removed_does_not_come_back() {
    let doubtful = Doubtful::new().await;
    let (world, store) = (&doubtful.world, &doubtful.store);
    let close_all = async |but: &[SessionId]| {
        for session in world.sessions().await {
            if !but.contains(&session) {
                world.store.close_session(TENANT, session).await.unwrap();
            }
        }
    };
    let opening = store.open_session(TENANT, open());
    doubtful.run(opening, close_all(&[])).await.unwrap();
    assert!(world.sessions().await.is_empty());

    let source = world.store.open_session(TENANT, open()).await.unwrap();
    let source = source.session.id;
    let forking = store.fork_session(TENANT, source, fork());
    let forked = doubtful.run(forking, close_all(&[source])).await;
    assert!(
        matches!(forked, Err(StoreError::NotFound { .. })),
        "{forked:?}"
    );
    assert_eq!(world.sessions().await, [source]);
    // One that stays is found.
    let forking = store.fork_session(TENANT, source, fork());
    let forked = doubtful.run(forking, async {}).await.unwrap();
    assert_eq!(
        forked.session.record,
        doubtful.record(forked.session.id).await
    );
    assert_eq!(
        world
            .store
            .find_ticket(&forked.ticket)
            .await
            .unwrap()
            .session,
        forked.session.id
    );

    let new = NewWorkspace {
        name: "other".into(),
        root: (0o777, 0, 0),
    };
    let making = store.create_workspace(TENANT, new);
    let removing = async {
        let removed = world.store.delete_workspace(TENANT, "other", false).await;
        removed.unwrap();
    };
    let made: WorkspaceInfo = doubtful.run(making, removing).await.unwrap();
    let found = world.store.workspace_by_name(TENANT, "other").await;
    assert!(
        matches!(found, Err(StoreError::NotFound { .. })),
        "{found:?}"
    );
    let [deletion] = &world.store.deletions().await.unwrap()[..] else {
        panic!("not one removal");
    };
    assert_eq!(deletion.id, made.id);
}

/// A record that belongs to another request by now is not this call's to write.
#[tokio::test]
async fn an_attempt_whose_key_is_another_requests_does_nothing() {
    let world = World::new().await;
    let slow = run(begin(&world.store, id(1, 1), 1).await);
    world.clock.advance(LEASE);
    let fast = run(begin(&world.store, id(1, 1), 2).await);
    world.store.abandon_call(&fast).await.unwrap();
    let other = run(begin(&world.store, id(1, 2), 3).await);
    let late = world.store.for_call(Some(answered(&slow)));
    let late = late.open_session(TENANT, open()).await;
    assert_eq!(late, Err(StoreError::Settled));
    assert!(world.sessions().await.is_empty());
    // The other goes on.
    let store = world.store.for_call(Some(answered(&other)));
    store.open_session(TENANT, open()).await.unwrap();
    world.check().await;
}

/// A transaction that makes something of which its call's answer says nothing makes nothing.
#[tokio::test]
async fn what_a_call_is_not_answered_by_is_not_made() {
    let world = World::new().await;
    let call = run(begin(&world.store, id(1, 1), 1).await);
    let store = world
        .store
        .for_call(Some(call.answered_by(|_: &u8| (201, Bytes::new()))));
    let opened = store.open_session(TENANT, open()).await;
    let usage = matches!(opened, Err(StoreError::Unavailable(KvError::Usage(_))));
    assert!(usage, "{opened:?}");
    assert!(world.sessions().await.is_empty());
    assert!(world.store.renew_call(&call).await.unwrap());
    world.check().await;
}
