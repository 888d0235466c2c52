//! Changes of refs happen once, whatever the store does meanwhile.

use base::{SystemClock, Tasks};

use super::*;
use crate::kv::KvError;
use crate::kv::faulty::{FaultRates, FaultyKv};
use crate::store::OpenSession;

struct Faulty {
    faulty: FaultyKv,
    store: Store,
    workspace: WorkspaceId,
    memory: MemoryKv,
}

/// A workspace on a store that works until told.
async fn world(seed: u64) -> Faulty {
    let clock = Arc::new(SystemClock::new());
    let memory = MemoryKv::new(clock.clone());
    let faulty = FaultyKv::new(Arc::new(memory.clone()), seed, FaultRates::default());
    let store = Store::open(Arc::new(faulty.clone()), clock, Arc::new(Rng::seeded(seed)));
    let store = store.await.unwrap();
    let new = NewWorkspace {
        name: "w".into(),
        root: (0o777, 0, 0),
    };
    let workspace = store.create_workspace(TenantId::DEFAULT, new).await;
    Faulty {
        faulty,
        store,
        workspace: workspace.unwrap().id,
        memory,
    }
}

async fn put(world: &Faulty, message: &str, parents: &[CommitId]) -> CommitId {
    loop {
        let made = world
            .store
            .put_commit(world.workspace, new_commit(message, parents))
            .await;
        match made {
            Ok(made) => return made.id,
            Err(StoreError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads until the store does not fail.
async fn at(world: &Faulty, name: &RefName) -> CommitId {
    loop {
        match world.store.reference(world.workspace, name).await {
            Ok(found) => return found.record.state.commit,
            Err(StoreError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// What movers were told.
#[derive(Default)]
struct Told {
    /// Moves that were made: the operation, from where, and to where.
    done: parking_lot::Mutex<Vec<(base::OperationId, CommitId, CommitId)>>,
    /// Where moves that may have been made went to.
    unknown: parking_lot::Mutex<Vec<CommitId>>,
}

async fn move_often(world: &Faulty, task: u32, told: &Told) {
    let main = named("main");
    for number in 0..12 {
        let from = at(world, &main).await;
        let to = put(world, &format!("{task}/{number}"), &[from]).await;
        let moved = world
            .store
            .move_ref(world.workspace, &main, from, to, Cause::Asked);
        match moved.await {
            Ok(operation) => told.done.lock().push((operation.unwrap(), from, to)),
            Err(StoreError::Changed { now, .. }) => assert_ne!(now, Some(from)),
            Err(StoreError::Unavailable(KvError::OutcomeUnknown)) => {
                told.unknown.lock().push(to);
            }
            Err(StoreError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Several move one branch, each to commits of its own, by comparing. Each move that is said to be
/// done is in the log once, the log is a chain from the first to the last, and what is neither
/// said to be done nor unknown is not in it.
#[tokio::test]
async fn every_move_that_is_told_happened_once_and_no_other() {
    for seed in 0..4 {
        let world = Arc::new(world(seed).await);
        let main = named("main");
        let first = put(&world, "first", &[]).await;
        let created = world
            .store
            .create_ref(world.workspace, &main, branch(first), Cause::Asked);
        let created = created.await.unwrap();
        world.faulty.set_rates(FaultRates::all(40));
        let tasks = Tasks::new();
        let told = Arc::new(Told::default());
        for task in 0..3 {
            let (world, told) = (Arc::clone(&world), Arc::clone(&told));
            tasks.spawn(async move { move_often(&world, task, &told).await });
        }
        tasks.join().await;
        world.faulty.set_rates(FaultRates::default());
        // Stragglers come with later commits, if at all.
        for number in 0..30 {
            put(&world, &format!("later {number}"), &[]).await;
        }

        let (done, unknown) = (told.done.lock().clone(), told.unknown.lock().clone());
        let (mut last, mut found) = (None, 0);
        let log = world.store.reference_log(world.workspace, &main, None, 500);
        for entry in log.await.unwrap().iter().rev() {
            let operation = world.store.operation(world.workspace, entry.operation);
            let Action::RefChanged { change, .. } = operation.await.unwrap().record.action else {
                panic!("{entry:?}");
            };
            let both = (change.before, change.after);
            assert_eq!(both, (last, entry.state), "seed {seed}");
            let before = last.map(|state: RefState| state.commit);
            last = entry.state;
            let to = last.unwrap().commit;
            if done.contains(&(entry.operation, before.unwrap_or(to), to)) {
                found += 1;
            } else {
                let known = entry.operation == created || unknown.contains(&to);
                assert!(known, "seed {seed}");
            }
        }
        assert_eq!(found, done.len(), "seed {seed}");
        assert!(found > 5, "seed {seed}: {found}");
        assert_eq!(
            Some(at(&world, &main).await),
            last.map(|state| state.commit)
        );
        let report = check(&world.memory, CheckOptions::default()).await.unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    }
}

/// The first commit that is asked for is made, and nobody knows.
fn unknown_first(faulty: &FaultyKv) {
    // The clock of the loop makes pauses, after which the rates are as they were.
    faulty.set_rates(FaultRates {
        unknown_applied: 1000,
        ..FaultRates::default()
    });
}

/// Runs a change whose first attempt is made with an unknown outcome.
async fn settled<T>(world: &Faulty, change: impl Future<Output = T>) -> T {
    unknown_first(&world.faulty);
    let commits = world.faulty.commits();
    let faulty = world.faulty.clone();
    let watch = async move {
        loop {
            if faulty.commits() > commits {
                faulty.set_rates(FaultRates::default());
                std::future::pending::<()>().await;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        value = change => value,
        () = watch => unreachable!("it watches for ever"),
    }
}

#[tokio::test]
async fn each_change_knows_its_own_attempt() {
    let world = world(1).await;
    let (store, workspace, main) = (&world.store, world.workspace, named("main"));
    let one = settled(&world, put(&world, "1", &[])).await;
    let two = settled(&world, put(&world, "2", &[one])).await;
    let create = store.create_ref(workspace, &main, branch(one), Cause::Asked);
    // Not `Exists`, though the second attempt finds it.
    settled(&world, create).await.unwrap();
    // Not `Changed`, though the second attempt finds it moved.
    let moved = store.move_ref(workspace, &main, one, two, Cause::Asked);
    let moved = settled(&world, moved).await.unwrap().unwrap();
    settled(&world, store.protect_ref(workspace, &main))
        .await
        .unwrap()
        .unwrap();
    let unprotected = settled(&world, store.unprotect_ref(workspace, &main)).await;
    let back = settled(&world, store.undo(workspace, unprotected.unwrap().unwrap())).await;
    settled(&world, store.undo(workspace, back.unwrap()))
        .await
        .unwrap();
    // Not `NotFound`, though the second attempt finds it gone.
    let deleted = settled(&world, store.delete_ref(workspace, &main, two))
        .await
        .unwrap();
    settled(&world, store.undo(workspace, deleted))
        .await
        .unwrap();
    let log = store
        .reference_log(workspace, &main, None, 100)
        .await
        .unwrap();
    assert_eq!(log.len(), 8);
    assert_eq!(log[6].operation, moved);

    let open = OpenSession::new("w");
    let opened = settled(&world, store.open_session(TenantId::DEFAULT, open))
        .await
        .unwrap();
    settled(
        &world,
        store.close_session(TenantId::DEFAULT, opened.session.id),
    )
    .await
    .unwrap();
    let operations = store.operations(workspace, None, 100).await.unwrap();
    let of_sessions = operations.iter().filter(|operation| {
        matches!(
            operation.record.action,
            Action::SessionOpened { .. } | Action::SessionClosed { .. }
        )
    });
    assert_eq!(of_sessions.count(), 2);
    assert_eq!(operations.len(), 10);
    let report = check(&world.memory, CheckOptions::default()).await.unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// An attempt that went through unseen counts, also if the ref has moved on since.
#[tokio::test]
async fn a_move_that_was_made_is_told_though_the_ref_moved_on() {
    let world = world(2).await;
    let (store, workspace, main) = (&world.store, world.workspace, named("main"));
    let one = put(&world, "1", &[]).await;
    let two = put(&world, "2", &[one]).await;
    let three = put(&world, "3", &[two]).await;
    let created = store.create_ref(workspace, &main, branch(one), Cause::Asked);
    created.await.unwrap();
    // Somebody else, on the same data and without faults.
    let clock = Arc::new(SystemClock::new());
    let inner: Arc<dyn Kv> = Arc::new(world.memory.clone());
    let other = Store::open(inner, clock, Arc::new(Rng::seeded(9)))
        .await
        .unwrap();
    unknown_first(&world.faulty);
    let commits = world.faulty.commits();
    let (faulty, main) = (world.faulty.clone(), &main);
    let interfere = async move {
        while faulty.commits() == commits {
            tokio::task::yield_now().await;
        }
        let moved = other
            .move_ref(workspace, main, two, three, Cause::Asked)
            .await;
        faulty.set_rates(FaultRates::default());
        moved.unwrap().unwrap()
    };
    let moving = store.move_ref(workspace, main, one, two, Cause::Asked);
    let (moved, others) = tokio::join!(moving, interfere);
    let moved = moved.unwrap().unwrap();
    let log = store
        .reference_log(workspace, main, None, 10)
        .await
        .unwrap();
    let operations: Vec<_> = log.iter().map(|entry| entry.operation).take(2).collect();
    assert_eq!(operations, [others, moved]);
}
