use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use base::{ChunkId, DomainId, ManualClock, TenantId, Timestamp, WorkspaceId};
use bytes::Bytes;

use super::*;
use crate::check::{CheckOptions, check};
use crate::kv::faulty::{FaultRates, FaultyKv};
use crate::kv::held::HeldKv;
use crate::kv::memory::MemoryKv;
use crate::places::{Keep, Kept, Moved, PIECE_BYTES_MAX, Places};
use crate::session::{FlushBatch, FlushError, Taker, take_over};
use crate::store::{NewWorkspace, OpenSession, Store};
use crate::tree::{MemoryNodes, MemoryTrees, Root};

const ONE: Turn = Turn {
    gateway: GatewayId::new(1),
    run: 11,
};
const TWO: Turn = Turn {
    gateway: GatewayId::new(2),
    run: 22,
};
const PACK: PackId = PackId([7; 16]);

struct World {
    kv: Arc<dyn Kv>,
    collections: Collections,
    places: Places,
    store: Store,
}

async fn world_on(kv: Arc<dyn Kv>, clock: Arc<ManualClock>) -> World {
    let rng = Arc::new(Rng::seeded(1));
    let store = Store::open(Arc::clone(&kv), clock.clone(), Arc::clone(&rng)).await;
    World {
        collections: Collections::new(Arc::clone(&kv), clock.clone(), Arc::clone(&rng)),
        places: Places::new(Arc::clone(&kv), clock, rng),
        store: store.unwrap().telling_fleet(),
        kv,
    }
}

async fn world() -> World {
    let clock = Arc::new(ManualClock::new(Timestamp::new(1, 0)));
    world_on(Arc::new(MemoryKv::new(clock.clone())), clock).await
}

fn name(number: u8) -> ChunkName {
    (DomainId::new(1), ChunkId::new([number; 32]))
}

fn living(gateways: &[u64]) -> BTreeSet<GatewayId> {
    gateways.iter().copied().map(GatewayId::new).collect()
}

impl World {
    async fn stage(&self, number: u8, len: usize) -> Kept {
        let keep = Keep::Stage {
            entry: Bytes::from(vec![number; len]),
            plain_bytes: 5,
        };
        self.places
            .keep(&[(name(number), keep)])
            .await
            .unwrap()
            .kept[0]
    }

    async fn there(&self, number: u8) -> bool {
        self.places.find(&[name(number)]).await.unwrap()[0].is_some()
    }

    /// Up to the phase in which chunks are taken.
    async fn mark(&self, turn: Turn) -> u64 {
        let collections = &self.collections;
        collections
            .begin(turn, &living(&[]))
            .await
            .unwrap()
            .unwrap();
        let cycle = collections.begin_cycle(turn).await.unwrap();
        collections.raise_floor(turn).await.unwrap();
        let more = collections.end_marking(turn, &HashSet::new()).await;
        assert_eq!(more, Ok(Vec::new()));
        cycle
    }

    async fn problems(&self) -> Vec<String> {
        let report = check(&*self.kv, CheckOptions::default()).await.unwrap();
        let told = report.problems.into_iter();
        told.map(|it| format!("{} {}", it.place, it.what)).collect()
    }
}

fn root(number: u8) -> GreyRoot {
    GreyRoot {
        workspace: WorkspaceId::new(3),
        root: Root::from_bytes([number; 32]),
    }
}

#[tokio::test]
async fn phases_follow_each_other_and_one_has_the_turn() {
    let world = world().await;
    let collections = &world.collections;
    assert_eq!(collections.state().await.unwrap(), CycleRecord::default());
    assert_eq!(
        collections.begin_cycle(ONE).await,
        Err(CollectionError::Lost)
    );
    collections.begin(ONE, &living(&[])).await.unwrap().unwrap();
    assert_eq!(
        collections.raise_floor(ONE).await,
        Err(CollectionError::Lost)
    );
    let busy = collections.begin(TWO, &living(&[1])).await.unwrap();
    assert_eq!(busy, Err(ONE.gateway));
    assert_eq!(collections.begin_cycle(ONE).await, Ok(1));
    // Twice, as after an unknown outcome.
    assert_eq!(collections.begin_cycle(ONE).await, Ok(1));
    let state = collections.state().await.unwrap();
    assert_eq!((state.floor, state.phase), (0, CyclePhase::Settling));
    collections.raise_floor(ONE).await.unwrap();
    collections.raise_floor(ONE).await.unwrap();
    assert_eq!(collections.state().await.unwrap().floor, 1);
    assert_eq!(
        collections.sweep(ONE, &[name(1)]).await,
        Err(CollectionError::Lost)
    );
    let walked = HashSet::new();
    assert_eq!(collections.end_marking(ONE, &walked).await, Ok(Vec::new()));
    assert_eq!(collections.end_marking(ONE, &walked).await, Ok(Vec::new()));
    collections.sweep(ONE, &[name(1)]).await.unwrap();
    collections.still(ONE).await.unwrap();
    // One that is dead is followed, and can do nothing more.
    collections
        .begin(TWO, &living(&[2]))
        .await
        .unwrap()
        .unwrap();
    for lost in [
        collections.still(ONE).await,
        collections.begin_cycle(ONE).await.map(drop),
        collections.raise_floor(ONE).await,
        collections.end_marking(ONE, &walked).await.map(drop),
        collections.sweep(ONE, &[name(1)]).await.map(drop),
    ] {
        assert_eq!(lost, Err(CollectionError::Lost));
    }
    collections.end(ONE).await.unwrap();
    let state = collections.state().await.unwrap();
    assert_eq!((state.turn, state.phase), (TWO, CyclePhase::Preparing));
    assert_eq!(collections.begin_cycle(TWO).await, Ok(2));
    collections.end(TWO).await.unwrap();
    let state = collections.state().await.unwrap();
    assert_eq!((state.cycle, state.floor), (2, 1));
    assert_eq!(state.phase, CyclePhase::Idle);
    assert_eq!(
        collections.raise_floor(TWO).await,
        Err(CollectionError::Lost)
    );
    // One that is started anew lets others begin.
    collections.begin(ONE, &living(&[])).await.unwrap().unwrap();
    collections.end_of(TWO.gateway).await.unwrap();
    let busy = collections.begin(TWO, &living(&[1])).await.unwrap();
    assert_eq!(busy, Err(ONE.gateway));
    collections.end_of(ONE.gateway).await.unwrap();
    let begun = collections.begin(TWO, &living(&[1])).await.unwrap();
    assert_eq!(begun, Ok(()));
}

#[tokio::test]
async fn what_is_old_is_taken_with_all_it_has() {
    let world = world().await;
    world.stage(1, 10).await;
    world.stage(2, 2 * PIECE_BYTES_MAX).await;
    world.stage(3, 30).await;
    world.stage(4, 40).await;
    world.places.begin_pack(PACK, 100).await.unwrap();
    for (number, offset, entry_bytes) in [(3, 0, 30), (4, 30, 40)] {
        let moved = [Moved {
            name: name(number),
            offset,
            entry_bytes,
        }];
        world.places.settle(PACK, &moved).await.unwrap();
    }
    world.mark(ONE).await;
    // Put, touched and new since.
    assert_eq!(world.stage(1, 10).await, Kept::Found);
    assert_eq!(world.stage(5, 50).await, Kept::Stored);
    let names: Vec<_> = (1..=6).map(name).collect();
    let swept = world.collections.sweep(ONE, &names).await.unwrap();
    let staged_bytes = u64::try_from(2 * PIECE_BYTES_MAX).unwrap();
    assert_eq!(
        swept,
        Swept {
            chunks: 3,
            bytes: staged_bytes + 70,
            staged_bytes
        }
    );
    let again = world.collections.sweep(ONE, &names).await.unwrap();
    assert_eq!(again, Swept::default());
    for (number, there) in [(1, true), (2, false), (3, false), (4, false), (5, true)] {
        assert_eq!(world.there(number).await, there, "{number}");
    }
    assert_eq!(world.places.state().await.unwrap(), (1, 60));
    assert_eq!(world.problems().await, Vec::<String>::new());
    let listed = world.collections.places(None, 1).await.unwrap();
    assert_eq!(listed[0].0, name(1));
    let listed = world.collections.places(Some(name(1)), 9).await.unwrap();
    assert_eq!(listed.len(), 1);
    // It comes back like any other.
    assert_eq!(world.stage(3, 30).await, Kept::Stored);
    world.collections.end(ONE).await.unwrap();
    world.mark(TWO).await;
    let names = [name(1), name(3), name(5)];
    assert_eq!(
        world.collections.sweep(TWO, &names).await.unwrap().chunks,
        3
    );
    assert_eq!(world.places.state().await.unwrap(), (2, 0));
}

#[tokio::test]
async fn a_put_and_a_sweep_at_the_same_time_conflict() {
    let world = world().await;
    world.stage(1, 10).await;
    world.mark(ONE).await;
    let mut late = world.kv.begin();
    let swept = sweep(late.as_mut(), ONE, &[name(1)]).await.unwrap();
    assert_eq!(swept.chunks, 1);
    assert_eq!(world.stage(1, 10).await, Kept::Found);
    assert_eq!(late.commit().await, Err(KvError::Conflict));
    assert!(world.there(1).await);
    // And the turn of another.
    let mut late = world.kv.begin();
    sweep(late.as_mut(), ONE, &[name(1)]).await.unwrap();
    late.clear(b"w");
    world.mark(TWO).await;
    assert_eq!(late.commit().await, Err(KvError::Conflict));
}

#[tokio::test]
async fn roots_are_told_while_somebody_listens() {
    let world = world().await;
    let tell = async |number| {
        let grey = root(number);
        world.store.tell_copied(grey.workspace, grey.root).await
    };
    let greys = async || {
        let none = HashSet::new();
        let mut told = unwalked(&*world.kv.begin(), &none).await.unwrap();
        told.sort_by_key(|grey| grey.root.to_bytes());
        told
    };
    let collections = &world.collections;
    tell(1).await.unwrap();
    collections.begin(ONE, &living(&[])).await.unwrap().unwrap();
    tell(2).await.unwrap();
    assert_eq!(greys().await, []);
    collections.begin_cycle(ONE).await.unwrap();
    tell(3).await.unwrap();
    collections.raise_floor(ONE).await.unwrap();
    tell(4).await.unwrap();
    assert_eq!(greys().await, [root(3), root(4)]);
    let mut walked = HashSet::from([root(3)]);
    let more = collections.end_marking(ONE, &walked).await.unwrap();
    assert_eq!(more, [root(4)]);
    walked.insert(root(4));
    // A root that is told before the end is not overlooked.
    let mut late = world.kv.begin();
    tell_in(late.as_mut(), root(5)).await;
    let more = collections.end_marking(ONE, &walked).await.unwrap();
    assert_eq!(more, []);
    assert_eq!(late.commit().await, Err(KvError::Conflict));
    tell(6).await.unwrap();
    assert_eq!(greys().await, [root(3), root(4)]);
    assert_eq!(world.problems().await, Vec::<String>::new());
    collections.end(ONE).await.unwrap();
    assert_eq!(greys().await, []);
    // Those of one that died are no concern of the next.
    collections.begin(ONE, &living(&[])).await.unwrap().unwrap();
    collections.begin_cycle(ONE).await.unwrap();
    tell(7).await.unwrap();
    collections
        .begin(TWO, &living(&[2]))
        .await
        .unwrap()
        .unwrap();
    collections.begin_cycle(TWO).await.unwrap();
    assert_eq!(greys().await, []);
}

async fn tell_in(txn: &mut dyn Transaction, grey: GreyRoot) {
    tell(txn, grey).await.unwrap();
}

#[tokio::test]
async fn gateways_say_what_they_hold_until_they_go() {
    let world = world().await;
    let collections = &world.collections;
    collections.settle(GatewayId::new(1), 4).await.unwrap();
    collections.settle(GatewayId::new(2), 5).await.unwrap();
    let mut txn = world.kv.begin();
    txn.set(&keyspace::lease(GatewayId::new(2)), b"lease");
    txn.commit().await.unwrap();
    let settled = collections.settled().await.unwrap();
    assert_eq!(
        settled,
        [(GatewayId::new(1), 4), (GatewayId::new(2), 5)].into()
    );
    collections.begin(ONE, &living(&[])).await.unwrap().unwrap();
    collections.end(ONE).await.unwrap();
    let settled = collections.settled().await.unwrap();
    assert_eq!(settled, [(GatewayId::new(2), 5)].into());
}

/// However a store fails, phases come in order, and what is taken is what is not young.
#[tokio::test]
async fn a_store_that_fails_takes_nothing_that_is_young() {
    for seed in 0..40 {
        let clock = Arc::new(ManualClock::new(Timestamp::new(1, 0)));
        let inner: Arc<dyn Kv> = Arc::new(MemoryKv::new(clock.clone()));
        let good = world_on(Arc::clone(&inner), clock).await;
        for number in 1..=9 {
            good.stage(number, 10).await;
        }
        let faulty = FaultyKv::new(Arc::clone(&inner), seed, FaultRates::all(80));
        let clock: Arc<dyn Clock> = Arc::new(base::SystemClock::new());
        let collections = Collections::new(Arc::new(faulty), clock, Arc::new(Rng::seeded(seed)));
        let names: Vec<_> = (1..=9).map(name).collect();
        let mut young = Vec::new();
        for turn in [ONE, TWO] {
            let run = async {
                let begun = collections.begin(turn, &living(&[])).await?;
                assert_eq!(begun, Ok(()));
                collections.begin_cycle(turn).await?;
                collections.raise_floor(turn).await?;
                collections.end_marking(turn, &HashSet::new()).await?;
                good.stage(5, 10).await;
                young.push(5);
                collections.sweep(turn, &names[4..]).await?;
                collections.end(turn).await
            };
            let _may_fail = run.await;
            assert!(good.there(1).await);
            assert!(young.is_empty() || good.there(5).await);
            assert_eq!(good.problems().await, Vec::<String>::new());
        }
    }
}

#[tokio::test]
async fn what_prepares_a_collection_is_done_in_its_turn() {
    let world = world().await;
    let held = HeldKv::new(Arc::clone(&world.kv), Arc::new(Preparing(ONE)));
    let write = async || {
        let mut txn = held.begin();
        txn.set(b"w", b"");
        txn.commit().await.map(drop)
    };
    let collections = &world.collections;
    assert_eq!(write().await, Err(KvError::Outlived));
    collections.begin(ONE, &living(&[])).await.unwrap().unwrap();
    assert_eq!(write().await, Ok(()));
    let mut late = held.begin();
    late.get(b"w", Isolation::Serializable).await.unwrap();
    late.set(b"w", b"late");
    collections.begin(TWO, &living(&[])).await.unwrap().unwrap();
    // It has read the record before that.
    assert_eq!(late.commit().await.map(drop), Err(KvError::Conflict));
    assert_eq!(write().await, Err(KvError::Outlived));
    collections.begin(ONE, &living(&[])).await.unwrap().unwrap();
    assert_eq!(write().await, Ok(()));
    collections.begin_cycle(ONE).await.unwrap();
    assert_eq!(write().await, Err(KvError::Outlived));
}

/// The oldest hold; 0 if there is none.
#[derive(Debug, Default)]
struct Oldest(AtomicU64);

impl Admission for Oldest {
    fn is_asked(&self) -> bool {
        self.0.load(SeqCst) > 0
    }

    fn allows(&self, record: &CycleRecord) -> bool {
        self.0.load(SeqCst) >= record.floor
    }
}

#[tokio::test]
async fn a_session_whose_holds_a_collection_has_not_waited_for_is_lost() {
    let world = world().await;
    let new = NewWorkspace {
        name: "w".into(),
        root: (0o755, 0, 0),
    };
    let tenant = TenantId::DEFAULT;
    world.store.create_workspace(tenant, new).await.unwrap();
    let open = OpenSession::new("w");
    let opened = world.store.open_session(tenant, open).await.unwrap();
    let session = opened.session.id;
    let oldest = Arc::new(Oldest::default());
    let admission: Arc<dyn Admission> = Arc::<Oldest>::clone(&oldest);
    let held = HeldKv::new(Arc::clone(&world.kv), admission);
    let trees = MemoryTrees::new(Arc::new(MemoryNodes::new()));
    let taker = Taker::alone(GatewayId::new(7), 1);
    let mut owned = take_over(&held, &trees, session, taker).await.unwrap();
    let (fence, layers) = (&mut owned.fence, &owned.layers);
    let batch = FlushBatch::default();
    for hold in [0, 1, 1, 0, 1] {
        oldest.0.store(hold, SeqCst);
        fence.flush(&held, layers, &batch).await.unwrap();
    }
    // The floor is its hold's cycle: it is met, and passed.
    world.mark(ONE).await;
    fence.flush(&held, layers, &batch).await.unwrap();
    assert_eq!(fence.number(), 6);
    world.mark(TWO).await;
    for _ in 0..2 {
        let late = fence.flush(&held, layers, &batch).await;
        assert_eq!(late, Err(FlushError::Fenced));
    }
    let taker = Taker::alone(GatewayId::new(7), 2);
    let again = take_over(&*world.kv, &trees, session, taker).await.unwrap();
    assert_eq!(again.fence.number(), 6);
}
