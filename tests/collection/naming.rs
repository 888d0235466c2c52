//! Commits that a policy lets go, while somebody comes to name one of them: in the middle of the
//! transaction that removes them, after it has looked (`docs/design/0009-retention.md`, 9).

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{
    Clock, CommitId, ManualClock, NodeId, Rng, SessionId, TenantId, Timestamp, WorkspaceId,
};
use metadata::keyspace;
use metadata::kv::Kv;
use metadata::kv::memory::MemoryKv;
use metadata::record::operation::{Action, Cause};
use metadata::record::reference::{RefKind, RefName, RefState};
use metadata::record::retention::Policy;
use metadata::store::{NewCommit, NewWorkspace, OpenSession, Store};
use system_tests::hooked_kv::{HookedKv, Hooks};

const TENANT: TenantId = TenantId::DEFAULT;
const HOUR: Duration = Duration::from_secs(3600);

type Act = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What happens before the next commit.
#[derive(Clone, Default)]
struct Meanwhile(Arc<Mutex<Option<Act>>>);

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Hooks for Meanwhile {
    async fn before_commit(&mut self) {
        let act = self.0.lock().unwrap().take();
        if let Some(act) = act {
            act.await;
        }
    }
}

struct World {
    clock: Arc<ManualClock>,
    memory: Arc<dyn Kv>,
    /// Whose transactions are disturbed.
    store: Store,
    /// That of somebody else.
    other: Store,
    meanwhile: Meanwhile,
    workspace: WorkspaceId,
}

impl World {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let memory: Arc<dyn Kv> = Arc::new(MemoryKv::new(clock.clone()));
        let meanwhile = Meanwhile::default();
        let hooked: Arc<dyn Kv> = Arc::new(HookedKv::new(memory.clone(), meanwhile.clone()));
        let other = Store::open(memory.clone(), clock.clone(), Arc::new(Rng::seeded(1)));
        let other = other.await.unwrap();
        let store = Store::open(hooked, clock.clone(), Arc::new(Rng::seeded(2)));
        let store = store.await.unwrap();
        let new = NewWorkspace {
            name: "w".into(),
            root: (0o755, 0, 0),
        };
        let workspace = other.create_workspace(TENANT, new).await.unwrap().id;
        Self {
            clock,
            memory,
            store,
            other,
            meanwhile,
            workspace,
        }
    }

    async fn commit(&self, message: &str, parents: &[CommitId]) -> CommitId {
        let new = new_commit(message, parents);
        self.other.put_commit(self.workspace, new).await.unwrap().id
    }

    /// Lets time go on until something is done: a transaction that conflicts pauses.
    async fn in_time<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::task::yield_now() => self.clock.advance(Duration::from_millis(1)),
            }
        }
    }

    fn before_the_next_commit(&self, act: impl Future<Output = ()> + Send + 'static) {
        *self.meanwhile.0.lock().unwrap() = Some(Box::pin(act));
    }
}

/// Who comes in between.
struct Somebody {
    clock: Arc<ManualClock>,
    memory: Arc<dyn Kv>,
    store: Store,
    workspace: WorkspaceId,
}

fn new_commit(message: &str, parents: &[CommitId]) -> NewCommit {
    NewCommit {
        parents: parents.to_vec(),
        message: message.into(),
        ..NewCommit::of_tree(NodeId::new([1; 32]))
    }
}

/// Comes to name a commit, or changes what lets it go.
async fn name(how: &str, world: Somebody, commit: CommitId) {
    let (store, workspace) = (&world.store, world.workspace);
    match how {
        "ref" => {
            let state = RefState {
                commit,
                kind: RefKind::Branch,
                protected: false,
            };
            let late = RefName::new("late").unwrap();
            let made = store.create_ref(workspace, &late, state, Cause::Asked);
            made.await.map(drop).unwrap();
        }
        "child" => {
            let made = store.put_commit(workspace, new_commit("child", &[commit]));
            made.await.map(drop).unwrap();
        }
        "pin" => store.pin(workspace, commit, "").await.map(drop).unwrap(),
        "log" => {
            let action = Action::SessionRestored {
                session: SessionId::new(7),
                before: Some(commit),
                after: None,
            };
            let (time, operation) = (world.clock.wall(), store.new_operation());
            let key = keyspace::operation_log(workspace, time, operation);
            let mut txn = world.memory.begin();
            txn.set(&key, &store.log_entry(action).encode());
            txn.commit().await.map(drop).unwrap();
        }
        "session" => {
            let open = OpenSession {
                version: Some(commit.to_string()),
                ..OpenSession::new("w")
            };
            store.open_session(TENANT, open).await.map(drop).unwrap();
        }
        _ => store
            .set_retention(workspace, policy(9))
            .await
            .map(drop)
            .unwrap(),
    }
}

fn policy(hours: u64) -> Option<Policy> {
    Some(Policy {
        keep_seconds: hours * HOUR.as_secs(),
        keep_last: 0,
    })
}

#[tokio::test]
async fn naming_within_the_removal_stops_it() {
    for how in ["ref", "child", "pin", "session", "log", "policy", "nothing"] {
        let world = World::new().await;
        let workspace = world.workspace;
        world
            .other
            .set_retention(workspace, policy(1))
            .await
            .unwrap();
        let base = world.commit("base", &[]).await;
        let tip = world.commit("tip", &[base]).await;
        world.clock.advance(2 * HOUR);
        let mut expired = world.store.expired(workspace).await.unwrap();
        assert_eq!(expired.commits(), [tip, base], "{how}");
        if how != "nothing" {
            let somebody = Somebody {
                clock: world.clock.clone(),
                memory: world.memory.clone(),
                store: world.other.clone(),
                workspace,
            };
            world.before_the_next_commit(name(how, somebody, base));
        }
        let remove = world.store.remove_expired(&mut expired);
        let removed = world.in_time(remove).await.unwrap();
        let expected = (how == "nothing").then_some(2);
        assert_eq!(removed, expected, "{how}");
        assert!(world.meanwhile.0.lock().unwrap().is_none(), "{how}");
        for commit in [base, tip] {
            let found = world.other.commit(workspace, commit).await;
            assert_eq!(found.is_ok(), how != "nothing", "{how}");
        }
    }
}
