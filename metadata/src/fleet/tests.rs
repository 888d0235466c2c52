//! The rules of `docs/design/0015-fleet.md`, with the real records and transactions.

use std::sync::Arc;

use base::{ManualClock, Rng, TenantId};

use super::*;
use crate::kv::faulty::{FaultRates, FaultyKv};
use crate::kv::memory::MemoryKv;
use crate::layers::Layers;
use crate::session::{
    Fence, FlushBatch, FlushError, Notice, OwnError, Owned, Taker, let_go, take_over,
};
use crate::store::{NewWorkspace, OpenSession, Store};
use crate::tree::{MemoryNodes, MemoryTrees};

const LEASE: Duration = Duration::from_secs(2);

/// Steps of a run.
const STEPS: usize = 400;

/// Runs with which the rules hold.
const RUNS: u64 = 150;

/// Runs in which a rule that is left out must be missed.
const RUNS_TO_FAIL: u64 = 3_000;

fn lease() -> LeaseRecord {
    LeaseRecord {
        counter: 0,
        state: GatewayState::Serving,
        started: Timestamp::EPOCH,
        nfs: String::new(),
        peers: "127.0.0.1:1".into(),
        api: String::new(),
        sessions: 0,
        release: String::new(),
        lease: LEASE,
        token: [0; 8],
        now: Timestamp::EPOCH,
    }
}

/// A rule that a run leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeftOut {
    Nothing,
    /// Rule 1: memory answers without a lease.
    Lease,
    /// Rule 2: nothing is looked into after a lapse.
    Look,
    /// Rule 3b: who was dead once is.
    Counter,
    /// Rule 3b: who has a longer lease is dead after the length of one's own.
    Length,
    /// Rule 3c: nobody waits for a notice.
    Wait,
    /// Rule 3, at its end: notices of others are not looked for.
    Unobeyed,
    /// Rule 4: notices are not obeyed.
    Obey,
}

/// A session that a gateway has in memory.
struct Held {
    fence: Fence,
    layers: Layers,
}

struct Gateway {
    id: GatewayId,
    member: Member,
    seen: Sightings,
    lease: Duration,
    holds_until: Duration,
    lapses: u64,
    held: Option<Held>,
    /// Taken, and not to be served before these notices are obeyed. With the lapses as of then.
    taken: Option<(Held, Vec<Notice>, u64)>,
    /// A notice was read and not obeyed yet.
    is_told: bool,
    /// It does nothing for so many steps.
    asleep: usize,
}

struct World {
    clock: Arc<ManualClock>,
    kv: FaultyKv,
    rng: Rng,
    trees: MemoryTrees,
    session: SessionId,
    gateways: Vec<Gateway>,
    next: u64,
    left_out: LeftOut,
    /// The number of the last flush that somebody was told of.
    told: u64,
    /// What happened, to see that it does.
    taken: [u64; 3],
}

impl World {
    async fn new(seed: u64, left_out: LeftOut) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::new(1_000, 0)));
        let memory = MemoryKv::new(clock.clone());
        let kv = FaultyKv::new(Arc::new(memory), seed, FaultRates::default());
        let store = Store::open(
            Arc::new(kv.clone()),
            clock.clone(),
            Arc::new(Rng::seeded(seed)),
        );
        let store = store.await.unwrap();
        let new = NewWorkspace {
            name: "w".into(),
            root: (0o777, 0, 0),
        };
        store
            .create_workspace(TenantId::DEFAULT, new)
            .await
            .unwrap();
        let open = OpenSession::new("w");
        let opened = store.open_session(TenantId::DEFAULT, open).await.unwrap();
        let mut world = Self {
            clock,
            kv,
            rng: Rng::seeded(seed),
            trees: MemoryTrees::new(Arc::new(MemoryNodes::new())),
            session: opened.session.id,
            gateways: Vec::new(),
            next: 1,
            left_out,
            told: 0,
            taken: [0; 3],
        };
        for _ in 0..3 {
            let gateway = world.gateway();
            world.gateways.push(gateway);
        }
        world
    }

    fn gateway(&mut self) -> Gateway {
        let id = GatewayId::new(self.next);
        self.next += 1;
        // Not all have the same.
        let length = LEASE * u32::try_from(1 + self.below(2) * 3).unwrap();
        let mut seen = Sightings::new(length);
        seen.ignores_counters = self.left_out == LeftOut::Counter;
        seen.ignores_lengths = self.left_out == LeftOut::Length;
        let lease = LeaseRecord {
            lease: length,
            ..lease()
        };
        Gateway {
            id,
            member: Member::new(id, lease),
            lease: length,
            seen,
            holds_until: Duration::ZERO,
            lapses: 0,
            held: None,
            taken: None,
            is_told: false,
            asleep: 0,
        }
    }

    fn below(&self, bound: u64) -> u64 {
        self.rng.u64() % bound
    }

    fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// One step. `Err` if somebody was told less than was told before.
    async fn step(&mut self) -> Result<(), String> {
        if self.below(4) == 0 {
            self.clock.advance(Duration::from_millis(self.below(900)));
        }
        if self.below(40) == 0 {
            let rate = self.below(120);
            self.kv.set_rates(FaultRates::all(rate));
        }
        let at = usize::try_from(self.below(3)).unwrap();
        let mut gateway = self.gateways.remove(at);
        let done = self.act(&mut gateway).await;
        if self.below(150) == 0 {
            // It dies where it is, and another starts.
            gateway = self.gateway();
        }
        self.gateways.insert(at, gateway);
        done
    }

    async fn act(&mut self, gateway: &mut Gateway) -> Result<(), String> {
        if let Some(left) = gateway.asleep.checked_sub(1) {
            gateway.asleep = left;
            return Ok(());
        }
        match self.below(16) {
            0..6 => self.renew(gateway).await,
            6 => self.obey(gateway),
            7 => self.take(gateway, false).await,
            8 => self.take(gateway, true).await,
            9..11 => self.go_on(gateway).await,
            11..13 => self.write(gateway).await,
            13..15 => return self.read(gateway),
            _ if self.below(3) == 0 => gateway.asleep = usize::try_from(self.below(30)).unwrap(),
            _ => self.part(gateway).await,
        }
        Ok(())
    }

    fn obey(&self, gateway: &mut Gateway) {
        if std::mem::take(&mut gateway.is_told) && self.left_out != LeftOut::Obey {
            (gateway.held, gateway.taken) = (None, None);
        }
    }

    async fn renew(&mut self, gateway: &mut Gateway) {
        self.obey(gateway);
        let renewed = gateway.member.renew(&self.kv, self.clock.as_ref()).await;
        let Ok(renewal) = renewed else { return };
        let now = self.now();
        gateway.seen.saw(now, self.clock.wall(), renewal.others);
        gateway.is_told = renewal.notices.contains(&self.session);
        if now >= gateway.holds_until {
            gateway.lapses += 1;
            if self.left_out != LeftOut::Look {
                let Ok(owners) = owners(&self.kv, &[self.session]).await else {
                    return;
                };
                gateway.held = gateway.held.take().filter(|held| {
                    owners[0].is_some_and(|owner| {
                        (owner.gateway, owner.epoch) == (gateway.id, held.fence.epoch())
                    })
                });
            }
        }
        gateway.holds_until = renewal.began + gateway.lease;
    }

    async fn take(&mut self, gateway: &mut Gateway, from_living: bool) {
        if gateway.held.is_some() || gateway.taken.is_some() {
            return;
        }
        let taker = Taker {
            gateway: gateway.id,
            nonce: self.rng.u64(),
            seen: Some((&gateway.seen, self.now())),
            from_living,
        };
        let lapses = gateway.lapses;
        let owned = take_over(&self.kv, &self.trees, self.session, taker).await;
        match owned {
            Ok(Owned {
                fence,
                layers,
                notices,
                ..
            }) => {
                self.taken[usize::from(!notices.is_empty())] += 1;
                gateway.taken = Some((Held { fence, layers }, notices, lapses));
            }
            Err(OwnError::Elsewhere(owner, _)) => {
                assert_ne!(owner, gateway.id);
                self.taken[2] += 1;
            }
            Err(OwnError::Kv(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }

    async fn go_on(&mut self, gateway: &mut Gateway) {
        let Some((held, notices, lapses)) = gateway.taken.take() else {
            return;
        };
        for notice in &notices {
            let is_dead = gateway
                .seen
                .is_dead(notice.gateway, notice.counter, self.now());
            let is_obeyed = is_obeyed(&self.kv, notice.gateway, self.session).await;
            let may = is_dead || is_obeyed == Ok(true) || self.left_out == LeftOut::Wait;
            if !may {
                // Sometimes it gives up, and begins anew without knowing.
                if self.below(8) > 0 || self.left_out == LeftOut::Unobeyed {
                    gateway.taken = Some((held, notices, lapses));
                }
                if self.left_out == LeftOut::Unobeyed {
                    // As if it had taken the session again and found no notice.
                    let again = gateway.taken.take();
                    gateway.taken = again.map(|(held, _, lapses)| (held, Vec::new(), lapses));
                }
                return;
            }
        }
        if lapses == gateway.lapses || self.left_out == LeftOut::Look {
            gateway.held = Some(held);
        }
    }

    async fn write(&mut self, gateway: &mut Gateway) {
        let Some(held) = &mut gateway.held else {
            return;
        };
        let batch = FlushBatch::default();
        match held.fence.flush(&self.kv, &held.layers, &batch).await {
            Ok(()) => {
                assert!(held.fence.number() > self.told, "a flush got lost");
                self.told = held.fence.number();
            }
            Err(FlushError::Fenced) => gateway.held = None,
            // Flushed again or not, its outcome has to be settled first: as a session that is lost.
            Err(_) => gateway.held = None,
        }
    }

    fn read(&self, gateway: &Gateway) -> Result<(), String> {
        let holds = self.now() < gateway.holds_until || self.left_out == LeftOut::Lease;
        let Some(held) = gateway.held.as_ref().filter(|_| holds) else {
            return Ok(());
        };
        let number = held.fence.number();
        if number < self.told {
            return Err(format!(
                "gateway {} shows flush {number}, and {} was told of",
                gateway.id.raw(),
                self.told
            ));
        }
        Ok(())
    }

    async fn part(&mut self, gateway: &mut Gateway) {
        if let Some(held) = gateway.held.take() {
            let epoch = held.fence.epoch();
            drop(let_go(&self.kv, self.session, gateway.id, epoch).await);
        }
    }
}

async fn run(seed: u64, left_out: LeftOut, happened: &mut [u64; 4]) -> Result<(), String> {
    let mut world = World::new(seed, left_out).await;
    for _ in 0..STEPS {
        world.step().await?;
    }
    for (sum, number) in happened.iter_mut().zip(world.taken) {
        *sum += number;
    }
    happened[3] += world.told;
    Ok(())
}

#[tokio::test]
async fn memory_never_shows_less_than_was_told() {
    let mut happened = [0; 4];
    for seed in 0..RUNS {
        if let Err(error) = run(seed, LeftOut::Nothing, &mut happened).await {
            panic!("seed {seed}: {error}");
        }
    }
    for number in happened {
        assert!(number > RUNS, "{happened:?}");
    }
}

#[tokio::test]
async fn each_rule_is_missed() {
    for left_out in [
        LeftOut::Lease,
        LeftOut::Look,
        LeftOut::Counter,
        LeftOut::Length,
        LeftOut::Wait,
        LeftOut::Unobeyed,
        LeftOut::Obey,
    ] {
        let mut fails = false;
        for seed in 0..RUNS_TO_FAIL {
            fails = run(seed, left_out, &mut [0; 4]).await.is_err();
            if fails {
                break;
            }
        }
        assert!(fails, "{left_out:?}");
    }
}

async fn seen_by(kv: &dyn Kv, clock: &ManualClock, seen: &mut Sightings) {
    let leases = leases(kv).await.unwrap();
    seen.saw(clock.monotonic(), clock.wall(), leases);
}

async fn tell(
    kv: &dyn Kv,
    gateway: GatewayId,
    session: SessionId,
    nonce: u64,
) -> Result<(), KvError> {
    let mut txn = kv.begin();
    write_notice(txn.as_mut(), gateway, session, nonce);
    txn.commit().await?;
    Ok(())
}

/// Also if the outcome of the transaction that closes it is unknown, and the call is never made again.
#[tokio::test]
async fn the_owner_of_a_session_that_is_closed_is_told() {
    for seed in 0..40 {
        let mut world = World::new(seed, LeftOut::Nothing).await;
        let mut gateway = world.gateway();
        while gateway.taken.is_none() {
            world.renew(&mut gateway).await;
            world.take(&mut gateway, false).await;
        }
        let store = Store::open(
            Arc::new(world.kv.clone()),
            world.clock.clone(),
            Arc::new(Rng::seeded(seed)),
        );
        let store = store.await.unwrap();
        let closed = store.close_session(TenantId::DEFAULT, world.session).await;
        let is_open = store
            .session(TenantId::DEFAULT, world.session)
            .await
            .is_ok();
        assert!(closed.is_err() || !is_open, "seed {seed}");
        if is_open {
            continue;
        }
        let renewal = loop {
            match gateway.member.renew(&world.kv, world.clock.as_ref()).await {
                Ok(renewal) => break renewal,
                Err(error) => assert!(matches!(error, FleetError::Kv(_)), "{error:?}"),
            }
        };
        assert_eq!(renewal.notices, [world.session], "seed {seed}");
    }
}

#[tokio::test]
async fn a_gateway_that_has_left_is_told_nothing() {
    let world = World::new(1, LeftOut::Nothing).await;
    let owner = GatewayId::new(77);
    let taker = Taker::alone(owner, 1);
    while take_over(&world.kv, &world.trees, world.session, taker)
        .await
        .is_err()
    {}
    let mut txn = world.kv.begin();
    tell_owner(txn.as_mut(), world.session, 1).await.unwrap();
    assert!(
        !has_notice(txn.as_ref(), owner, world.session)
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn a_gateway_is_dead_when_its_counter_stands_still() {
    let clock = ManualClock::new(Timestamp::EPOCH);
    let kv = MemoryKv::new(Arc::new(ManualClock::new(Timestamp::EPOCH)));
    let id = GatewayId::new(1);
    let mut member = Member::new(id, lease());
    let mut seen = Sightings::new(LEASE);
    for _ in 0..5 {
        member.renew(&kv, &clock).await.unwrap();
        seen_by(&kv, &clock, &mut seen).await;
        clock.advance(LEASE);
        assert!(!seen.peer(id, clock.monotonic()).unwrap().is_dead);
    }
    seen_by(&kv, &clock, &mut seen).await;
    clock.advance(LEASE / 4);
    let peer = seen.peer(id, clock.monotonic()).unwrap();
    assert!(peer.is_dead);
    assert!(!seen.is_dead(id, peer.lease.counter + 1, clock.monotonic()));
    // It was only slow.
    member.renew(&kv, &clock).await.unwrap();
    seen_by(&kv, &clock, &mut seen).await;
    assert!(!seen.peer(id, clock.monotonic()).unwrap().is_dead);
    // And then it is gone for good.
    clock.advance(LEASE * 60);
    let now = clock.monotonic();
    tell(&kv, id, SessionId::new(9), 1).await.unwrap();
    assert_eq!(remove_dead(&kv, &seen, now).await, Ok(vec![id]));
    assert!(leases(&kv).await.unwrap().is_empty());
    assert!(is_obeyed(&kv, id, SessionId::new(9)).await.unwrap());
}

/// A store that was emptied or replaced: nothing is written there, and it is good again when the old one is back.
#[tokio::test]
async fn a_gateway_leaves_a_store_alone_that_it_did_not_join() {
    let clock = ManualClock::new(Timestamp::EPOCH);
    let kv = MemoryKv::new(Arc::new(ManualClock::new(Timestamp::EPOCH)));
    let put = async |value: Option<&[u8]>| {
        let mut txn = kv.begin();
        match value {
            Some(value) => txn.set(&keyspace::format(), value),
            None => txn.clear(&keyspace::format()),
        }
        txn.commit().await.unwrap();
    };
    put(Some(b"ours")).await;
    let mut member = Member::new(GatewayId::new(1), lease());
    assert_eq!(member.is_joined(&kv).await, Ok(true));
    member.renew(&kv, &clock).await.unwrap();
    let before = leases(&kv).await.unwrap();
    for other in [None, Some(&b"another"[..])] {
        put(other).await;
        let renewed = member.renew(&kv, &clock).await;
        assert!(matches!(renewed, Err(FleetError::Foreign)));
        assert_eq!(member.is_joined(&kv).await, Ok(false));
        assert_eq!(leases(&kv).await.unwrap(), before);
    }
    put(Some(b"ours")).await;
    member.renew(&kv, &clock).await.unwrap();
    assert_eq!(member.is_joined(&kv).await, Ok(true));
}

/// Of three the one that differs; of two both, as nobody can say which is right.
#[tokio::test]
async fn clocks_that_differ_from_most_are_wrong() {
    let noon = Timestamp::new(100_000, 0);
    let own = GatewayId::new(1);
    let at = |id: u64, ahead: u64| {
        let lease = LeaseRecord {
            counter: 1,
            now: noon.plus_seconds(ahead),
            ..lease()
        };
        (GatewayId::new(id), lease)
    };
    let wrong = |leases: Vec<(GatewayId, LeaseRecord)>, wall: Timestamp| {
        let mut seen = Sightings::new(LEASE);
        seen.saw(Duration::ZERO, wall, leases);
        let mut found = seen.with_wrong_clocks(own, Duration::ZERO);
        found.sort();
        found
            .into_iter()
            .map(|(id, _)| id.raw())
            .collect::<Vec<_>>()
    };
    assert_eq!(wrong(vec![], noon), []);
    assert_eq!(wrong(vec![at(2, 0), at(3, 10)], noon), []);
    assert_eq!(wrong(vec![at(2, 0), at(3, 7200)], noon), [3]);
    assert_eq!(wrong(vec![at(2, 7200), at(3, 7203)], noon), [1]);
    assert_eq!(wrong(vec![at(2, 7200)], noon), [1, 2]);
    assert_eq!(wrong(vec![at(2, 0), at(3, 1)], noon.plus_seconds(60)), [1]);
}

#[tokio::test]
async fn who_lives_is_seen_by_looking_twice() {
    let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
    let kv = MemoryKv::new(clock.clone());
    assert_eq!(living(&kv, clock.as_ref()).await, Ok(Vec::new()));
    let [mut one, mut two] = [1, 2].map(|id| Member::new(GatewayId::new(id), lease()));
    one.renew(&kv, clock.as_ref()).await.unwrap();
    two.renew(&kv, clock.as_ref()).await.unwrap();
    let looking = async { living(&kv, clock.as_ref()).await.unwrap() };
    let meanwhile = async {
        tokio::task::yield_now().await;
        two.renew(&kv, clock.as_ref()).await.unwrap();
        clock.advance(LEASE);
    };
    let (living, ()) = tokio::join!(looking, meanwhile);
    let ids: Vec<_> = living.iter().map(|(id, _)| id.raw()).collect();
    assert_eq!(ids, [2]);
}

#[tokio::test]
async fn a_lease_that_went_on_is_not_removed() {
    let clock = ManualClock::new(Timestamp::EPOCH);
    let kv = MemoryKv::new(Arc::new(ManualClock::new(Timestamp::EPOCH)));
    let mut member = Member::new(GatewayId::new(1), lease());
    let mut seen = Sightings::new(LEASE);
    member.renew(&kv, &clock).await.unwrap();
    seen_by(&kv, &clock, &mut seen).await;
    clock.advance(LEASE * 60);
    member.renew(&kv, &clock).await.unwrap();
    let now = clock.monotonic();
    assert_eq!(remove_dead(&kv, &seen, now).await, Ok(Vec::new()));
    assert_eq!(leases(&kv).await.unwrap().len(), 1);
    member.leave(&kv).await.unwrap();
    assert!(leases(&kv).await.unwrap().is_empty());
}

/// A notice that is written while an earlier one is obeyed stays.
#[tokio::test]
async fn only_what_was_obeyed_is_removed() {
    let clock = ManualClock::new(Timestamp::EPOCH);
    let kv = MemoryKv::new(Arc::new(ManualClock::new(Timestamp::EPOCH)));
    let id = GatewayId::new(1);
    let (one, two) = (SessionId::new(1), SessionId::new(2));
    let mut member = Member::new(id, lease());
    member.renew(&kv, &clock).await.unwrap();
    for session in [one, two] {
        tell(&kv, id, session, 1).await.unwrap();
    }
    let renewal = member.renew(&kv, &clock).await.unwrap();
    assert_eq!(renewal.notices, [one, two]);
    assert!(!is_obeyed(&kv, id, one).await.unwrap());
    tell(&kv, id, two, 2).await.unwrap();
    let renewal = member.renew(&kv, &clock).await.unwrap();
    assert_eq!(renewal.notices, [two]);
    assert!(is_obeyed(&kv, id, one).await.unwrap());
    assert!(!is_obeyed(&kv, id, two).await.unwrap());
    let renewal = member.renew(&kv, &clock).await.unwrap();
    assert!(renewal.notices.is_empty());
    assert!(is_obeyed(&kv, id, two).await.unwrap());
}
