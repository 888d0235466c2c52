//! Calls with keys: begun, waited for, taken over, done with their effect, removed in time.

mod again;

use std::convert::Infallible;

use base::{ManualClock, Rng, SessionId};

use super::*;
use crate::check::{CheckOptions, check};
use crate::kv::Kv;
use crate::kv::faulty::{CrashPoint, FaultRates, FaultyKv};
use crate::kv::memory::MemoryKv;
use crate::record::session::Identity;
use crate::store::{NewWorkspace, OpenSession, Opened};

const TENANT: TenantId = TenantId::DEFAULT;

const LIMITS: CallLimits = CallLimits {
    keys: 3,
    bytes: 100_000,
};

struct World {
    clock: Arc<ManualClock>,
    memory: Arc<MemoryKv>,
    store: Store,
}

async fn store_on(kv: Arc<dyn Kv>, clock: &Arc<ManualClock>, seed: u64) -> Store {
    let rng = Arc::new(Rng::seeded(seed));
    Store::open(kv, clock.clone(), rng).await.unwrap()
}

impl World {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::new(1_000_000, 0)));
        let memory = Arc::new(MemoryKv::new(clock.clone()));
        let store = store_on(memory.clone(), &clock, 1).await;
        let new = NewWorkspace {
            name: "w".into(),
            root: (0o777, 0, 0),
        };
        store.create_workspace(TENANT, new).await.unwrap();
        Self {
            clock,
            memory,
            store,
        }
    }

    /// That totals and records fit.
    async fn check(&self) {
        let report = check(self.memory.as_ref(), CheckOptions::default()).await;
        let report = report.unwrap();
        assert!(report.is_clean(), "{report:?}");
    }

    async fn sessions(&self) -> Vec<SessionId> {
        let found = self.store.sessions(TENANT, None, None, 100).await.unwrap();
        found.into_iter().map(|info| info.id).collect()
    }
}

fn id(key: u8, request: u8) -> CallId {
    CallId {
        tenant: TENANT,
        key: [key; 32],
        request: [request; 32],
    }
}

fn holder(process: u64) -> Holder {
    Holder {
        process,
        attempt: 1,
    }
}

async fn begin(store: &Store, id: CallId, process: u64) -> BegunCall {
    let begun = store.begin_call(id, holder(process), LIMITS, |_| false);
    begun.await.unwrap()
}

fn run(begun: BegunCall) -> KeyedCall {
    match begun {
        BegunCall::Run(call) => call,
        other => panic!("{other:?}"),
    }
}

fn open() -> OpenSession {
    OpenSession {
        workspace: "w".into(),
        read_only: false,
        identity: Identity::Passthrough,
        agent: String::new(),
        run: String::new(),
        ttl_seconds: None,
        version: None,
        branch: None,
    }
}

/// Answers with the session and its ticket.
fn answered(call: &KeyedCall) -> KeyedCall {
    call.answered_by(|opened: &Opened| {
        let body = format!("{} {}", opened.session.id, opened.ticket);
        (201, body.into())
    })
}

async fn told(store: &Store, begun: BegunCall) -> String {
    let BegunCall::Done(answer, salt) = begun else {
        panic!("{begun:?}");
    };
    let secret = store.call_secret(TENANT, &salt).await.unwrap();
    assert_eq!(answer.status, 201);
    String::from_utf8(with_secret(&answer.body.unwrap(), &secret)).unwrap()
}

#[tokio::test]
async fn a_key_is_for_one_request_of_one_tenant() {
    let world = World::new().await;
    let call = run(begin(&world.store, id(1, 1), 1).await);
    assert!(matches!(
        begin(&world.store, id(1, 2), 2).await,
        BegunCall::Other
    ));
    assert!(matches!(
        begin(&world.store, id(1, 1), 2).await,
        BegunCall::Running
    ));
    let store = world.store.for_call(Some(answered(&call)));
    let opened = store.open_session(TENANT, open()).await.unwrap();
    let again = begin(&world.store, id(1, 1), 2).await;
    let said = format!("{} {}", opened.session.id, opened.ticket);
    assert_eq!(told(&world.store, again).await, said);
    assert!(matches!(
        begin(&world.store, id(1, 2), 2).await,
        BegunCall::Other
    ));
    // The ticket is nowhere stored.
    let all = KeyRange {
        start: Bytes::new(),
        end: Bytes::from_static(&[0xff]),
    };
    let txn = world.memory.begin();
    let limit = RangeLimit::pairs(1000);
    let page = txn.get_range(&all, limit, Isolation::Snapshot).await;
    let ticket = opened.ticket.as_bytes();
    for (_, value) in page.unwrap().pairs {
        assert!(!value.windows(ticket.len()).any(|part| part == ticket));
    }
    world.check().await;
    // Another tenant's key is another one.
    let other = TenantId::new(77);
    assert_ne!(
        keyspace::call(other, &[1; 32]),
        keyspace::call(TENANT, &[1; 32])
    );
}

#[tokio::test]
async fn an_attempt_of_which_nothing_is_heard_is_taken_over_and_does_nothing_then() {
    let world = World::new().await;
    let slow = run(begin(&world.store, id(1, 1), 1).await);
    world.clock.advance(LEASE / 2);
    assert!(world.store.renew_call(&slow).await.unwrap());
    world.clock.advance(LEASE / 2);
    assert!(matches!(
        begin(&world.store, id(1, 1), 2).await,
        BegunCall::Running
    ));
    world.clock.advance(LEASE);
    let fast = run(begin(&world.store, id(1, 1), 2).await);
    assert!(!world.store.renew_call(&slow).await.unwrap());
    let opened = world.store.for_call(Some(answered(&fast)));
    let opened = opened.open_session(TENANT, open()).await.unwrap();
    // It wakes up late: on the same store, in another process.
    let late = world.store.for_call(Some(answered(&slow)));
    let late = late.open_session(TENANT, open()).await;
    assert_eq!(late, Err(StoreError::Settled));
    assert_eq!(world.sessions().await, [opened.session.id]);
    // Both had the same secret, for it was the same call.
    assert_eq!(slow.secret(), fast.secret());
    world.check().await;
}

#[tokio::test]
async fn an_attempt_that_was_given_back_by_another_does_nothing() {
    let world = World::new().await;
    let slow = run(begin(&world.store, id(1, 1), 1).await);
    world.clock.advance(LEASE);
    let fast = run(begin(&world.store, id(1, 1), 2).await);
    world.store.abandon_call(&fast).await.unwrap();
    let late = world.store.for_call(Some(answered(&slow)));
    let late = late.open_session(TENANT, open()).await;
    assert_eq!(late, Err(StoreError::Settled));
    assert!(world.sessions().await.is_empty());
    // It is free for another request, and makes another secret.
    let other = run(begin(&world.store, id(1, 2), 3).await);
    assert_ne!(other.secret(), slow.secret());
    world.check().await;
}

#[tokio::test]
async fn who_has_ended_for_sure_is_not_waited_for() {
    let world = World::new().await;
    let gone = run(begin(&world.store, id(1, 1), 1).await);
    let is_gone = |found| found == gone.holder();
    let begun = world.store.begin_call(id(1, 1), holder(2), LIMITS, is_gone);
    let call = run(begun.await.unwrap());
    world.store.finish_call(&call, 201, b"{}").await.unwrap();
    assert_eq!(
        told(&world.store, begin(&world.store, id(1, 1), 3).await).await,
        "{}"
    );
    // What is done stays done.
    world.store.finish_call(&gone, 201, b"other").await.unwrap();
    world.store.abandon_call(&gone).await.unwrap();
    world.store.finish_call(&call, 201, b"third").await.unwrap();
    let answer = world.store.call_answer(id(1, 1)).await.unwrap().unwrap().0;
    assert_eq!(answer.body.as_deref(), Some(&b"{}"[..]));
    assert_eq!(world.store.call_answer(id(1, 2)).await, Ok(None));
    assert_eq!(world.store.call_answer(id(2, 1)).await, Ok(None));
}

#[tokio::test]
async fn keys_are_bounded_and_go_in_time() {
    let world = World::new().await;
    for key in 1..=2 {
        let call = run(begin(&world.store, id(key, 1), 1).await);
        world.store.finish_call(&call, 200, b"[]").await.unwrap();
    }
    let running = run(begin(&world.store, id(3, 1), 1).await);
    let full = world
        .store
        .begin_call(id(4, 1), holder(1), LIMITS, |_| false)
        .await
        .unwrap_err();
    assert!(
        matches!(&full, StoreError::Full { why } if why.contains("3 idempotency keys")),
        "{full}"
    );
    let little = CallLimits {
        bytes: 100,
        keys: 10,
    };
    let full = world
        .store
        .begin_call(id(4, 1), holder(1), little, |_| false)
        .await
        .unwrap_err();
    assert!(full.to_string().contains("100 bytes of answers"), "{full}");
    // Those that are there are found all the same.
    told_nothing(begin(&world.store, id(1, 1), 2).await);
    world.check().await;

    world.clock.advance(CALLS_KEPT_FOR - Duration::from_secs(1));
    assert!(world.store.renew_call(&running).await.unwrap());
    assert_eq!(world.store.remove_old_calls().await, Ok(0));
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(world.store.remove_old_calls().await, Ok(2));
    assert_eq!(world.store.call_answer(id(1, 1)).await, Ok(None));
    world.check().await;
    // One that runs for so long is still known.
    assert!(matches!(
        begin(&world.store, id(3, 1), 2).await,
        BegunCall::Running
    ));
    world.clock.advance(LEASE);
    assert_eq!(world.store.remove_old_calls().await, Ok(1));
    world.check().await;
    run(begin(&world.store, id(1, 2), 2).await);
    world.check().await;
}

fn told_nothing(begun: BegunCall) {
    assert!(matches!(begun, BegunCall::Done(..)), "{begun:?}");
}

#[tokio::test]
async fn more_than_a_page_of_old_keys_goes() {
    let world = World::new().await;
    let limits = CallLimits {
        keys: 1000,
        bytes: 1 << 20,
    };
    let count = 2 * PAGE + 1;
    for key in 0..count {
        let id = CallId {
            key: *blake3::hash(&key.to_be_bytes()).as_bytes(),
            ..id(0, 1)
        };
        let begun = world.store.begin_call(id, holder(1), limits, |_| false);
        let call = run(begun.await.unwrap());
        world.store.finish_call(&call, 204, b"").await.unwrap();
    }
    world.check().await;
    world.clock.advance(CALLS_KEPT_FOR);
    let removed = world.store.remove_old_calls().await.unwrap();
    assert_eq!(usize::try_from(removed), Ok(count));
    world.check().await;
}

#[tokio::test]
async fn an_answer_that_is_too_long_is_known_to_have_been_given() {
    let world = World::new().await;
    let call = run(begin(&world.store, id(1, 1), 1).await);
    let long = vec![b'x'; ANSWER_BYTES_MAX + 1];
    world.store.finish_call(&call, 200, &long).await.unwrap();
    let answer = world.store.call_answer(id(1, 1)).await.unwrap().unwrap().0;
    assert_eq!((answer.status, answer.body), (200, None));
    world.check().await;
}

/// Each commit of opening a session may be the last that its process makes, and its own outcome be
/// unknown to it.
#[tokio::test]
async fn an_effect_and_its_answer_are_there_together() {
    for point in [CrashPoint::Before, CrashPoint::After] {
        for commit in 0.. {
            let world = World::new().await;
            let faulty = FaultyKv::new(world.memory.clone(), 1, FaultRates::default());
            let dying = store_on(Arc::new(faulty.clone()), &world.clock, 2).await;
            faulty.crash_at(faulty.commits() + commit, point);
            let attempt = async {
                let begun = dying.begin_call(id(1, 1), holder(1), LIMITS, |_| false);
                let call = run(begun.await.unwrap());
                let store = dying.for_call(Some(answered(&call)));
                store.open_session(TENANT, open()).await
            };
            let first = tokio::select! {
                opened = attempt => Some(opened.unwrap()),
                () = crashed(&faulty) => None,
            };
            let begun = world
                .store
                .begin_call(id(1, 1), holder(2), LIMITS, |_| true)
                .await
                .unwrap();
            match begun {
                BegunCall::Run(call) => {
                    assert!(world.sessions().await.is_empty());
                    let store = world.store.for_call(Some(answered(&call)));
                    store.open_session(TENANT, open()).await.unwrap();
                }
                done => told_nothing(done),
            }
            let [session] = world.sessions().await[..] else {
                panic!("not one session");
            };
            let again = begin(&world.store, id(1, 1), 3).await;
            let said = told(&world.store, again).await;
            assert!(said.starts_with(&session.to_string()));
            let ticket = said.split(' ').nth(1).unwrap();
            let found = world.store.find_ticket(ticket).await.unwrap();
            assert_eq!(found.session, session);
            world.check().await;
            if let Some(first) = first {
                assert_eq!((first.session.id, first.ticket), (session, ticket.into()));
                assert_eq!(commit, 2, "the call has two commits");
                break;
            }
        }
    }
}

/// Ends when the store has crashed.
async fn crashed(kv: &FaultyKv) {
    while !kv.has_crashed() {
        tokio::task::yield_now().await;
    }
}

/// Commits of which nothing is known are found to have been made.
#[tokio::test]
async fn unknown_outcomes_make_nothing_twice() {
    let mut settled = 0;
    for seed in 0..20 {
        let world = World::new().await;
        let faulty = FaultyKv::new(world.memory.clone(), seed, FaultRates::default());
        let store = store_on(Arc::new(faulty.clone()), &world.clock, seed).await;
        faulty.set_rates(FaultRates {
            conflict: 100,
            unknown_applied: 300,
            unknown_not_applied: 300,
            ..FaultRates::default()
        });
        let ticking = world.clock.clone();
        let tick = async || -> Infallible {
            loop {
                ticking.advance(Duration::from_millis(1));
                tokio::task::yield_now().await;
            }
        };
        let attempt = async {
            let begun = store.begin_call(id(1, 1), holder(1), LIMITS, |_| false);
            let call = run(begun.await.unwrap());
            let store = store.for_call(Some(answered(&call)));
            store.open_session(TENANT, open()).await
        };
        let opened = tokio::select! {
            opened = attempt => opened,
            never = tick() => match never {},
        };
        let [session] = world.sessions().await[..] else {
            panic!("not one session");
        };
        let again = begin(&world.store, id(1, 1), 2).await;
        let said = told(&world.store, again).await;
        let (number, ticket) = said.split_once(' ').unwrap();
        assert_eq!(number, session.to_string());
        let granted = world.store.find_ticket(ticket).await.unwrap();
        assert_eq!(granted.session, session);
        match opened {
            Ok(opened) => assert_eq!((opened.session.id, &*opened.ticket), (session, ticket)),
            // An attempt of which nothing was known had made it.
            Err(error) => {
                assert_eq!(error, StoreError::Settled);
                settled += 1;
            }
        }
        world.check().await;
    }
    assert!((1..20).contains(&settled), "both are seen: {settled}");
}

/// A key, what is put there, and what is told of it.
type Damage<'a> = (&'a [u8], Option<&'a [u8]>, &'a str);

#[tokio::test]
async fn damaged_records_and_totals_are_told() {
    let world = World::new().await;
    let call = run(begin(&world.store, id(1, 1), 1).await);
    world.store.finish_call(&call, 200, b"{}").await.unwrap();
    world.check().await;
    let key = keyspace::call(TENANT, &[1; 32]);
    let (count, bytes) = (
        keyspace::call_total(TENANT, 0),
        keyspace::call_total(TENANT, 1),
    );
    let unknown = keyspace::call_total(TENANT, 2);
    let cases: [Damage<'_>; 6] = [
        (&key, Some(b"\x01short"), "truncated"),
        (
            &count,
            Some(&[9, 0, 0, 0, 0, 0, 0, 0]),
            "says 9, there are 1",
        ),
        (&bytes, Some(&[1]), "is not 8 bytes long"),
        (&count, None, "is not counted"),
        (&unknown, Some(&[0; 8]), "is none that there is"),
        (&key, None, "says 1, there are 0"),
    ];
    for (key, value, wanted) in cases {
        let txn = world.memory.begin();
        let before = txn.get(key, Isolation::Snapshot).await.unwrap();
        set(&world, key, value).await;
        let report = check(world.memory.as_ref(), CheckOptions::default()).await;
        let problems = report.unwrap().problems;
        let told = problems.iter().any(|problem| problem.what.contains(wanted));
        assert!(told, "{wanted}: {problems:?}");
        set(&world, key, before.as_deref()).await;
        world.check().await;
    }
}

async fn set(world: &World, key: &[u8], value: Option<&[u8]>) {
    let mut txn = world.memory.begin();
    match value {
        Some(value) => txn.set(key, value),
        None => txn.clear(key),
    }
    txn.commit().await.unwrap();
}
