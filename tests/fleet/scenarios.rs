//! One test for each promise of a fleet, and for each bug there was.

use std::sync::Arc;
use std::time::Duration;

use base::simulation::{Rule, leave_out};
use base::{Caller, GatewayId, InodeId, Tasks, Timestamp};
use bytes::Bytes;
use metadata::FsError;
use metadata::fleet::{Member, leases};
use metadata::kv::faulty::{FaultRates, FaultyKv};
use metadata::kv::memory::MemoryKv;
use metadata::ops::How;
use metadata::record::gateway::{GatewayState, LeaseRecord};
use metadata::stat::SetAttrs;
use system_tests::subject::{Answer, Call, Op};

use crate::client::End;
use crate::codec::{self, Listing};
use crate::gateways::{LEASE, Setting};
use crate::relay::Flow;
use crate::rig::Rig;

const NOW: Timestamp = Timestamp::new(1_700_000_000, 0);

fn root(op: Op) -> Call {
    Call {
        caller: Caller::root(),
        now: NOW,
        op,
    }
}

fn create(name: &str) -> Op {
    Op::Create {
        dir: InodeId::ROOT,
        name: Bytes::copy_from_slice(name.as_bytes()),
        how: How::Guarded(SetAttrs::default()),
    }
}

fn remove(name: &str) -> Op {
    Op::Remove {
        dir: InodeId::ROOT,
        name: Bytes::copy_from_slice(name.as_bytes()),
    }
}

fn lookup(name: &str) -> Op {
    Op::Lookup {
        dir: InodeId::ROOT,
        name: Bytes::copy_from_slice(name.as_bytes()),
    }
}

/// Gateways at places, all clients of which are connected to one of them.
fn rig(places: usize) -> Rig {
    let setting = Setting {
        places,
        ..Setting::default()
    };
    Rig::new(setting, 7)
}

impl Rig {
    /// Clients are connected to one gateway from now on.
    fn connect_to(&mut self, place: usize) {
        let address = self.gateways.address(place).unwrap();
        self.client.move_to(address);
    }

    fn good(&mut self, op: Op) -> Answer {
        let reply = self.call(&root(op.clone())).unwrap();
        assert_eq!(reply.answer.error(), None, "{op:?}");
        reply.answer
    }

    fn owner(&self) -> Option<usize> {
        self.gateways.owner_of(self.gateways.sessions[0].id)
    }

    /// Sends a call and does not wait for its reply.
    fn sent(&mut self, op: Op) -> u32 {
        let xid = self.client.xid();
        let record = codec::encode(&self.handles[0], xid, &root(op), Listing::Plain);
        let client = &mut self.client;
        self.gateways.run(async {
            client.send(xid, record);
            client.transmit().await;
        });
        self.gateways.sleep(Duration::from_millis(1));
        xid
    }

    fn reply(&mut self, xid: u32, op: &Op) -> Answer {
        let end = self.gateways.run(self.client.wait_for(xid));
        let reply = end.unwrap();
        let result = codec::result(&reply);
        codec::decode(
            &mut self.handles[0],
            &root(op.clone()),
            Listing::Plain,
            result,
        )
        .answer
    }

    /// How long it takes until a call is answered.
    fn time_of(&mut self, op: Op) -> Duration {
        let began = self.gateways.now();
        self.good(op);
        self.gateways.now() - began
    }
}

#[test]
fn a_call_for_a_session_of_another_gateway_is_passed_on() {
    let mut rig = rig(2);
    rig.connect_to(0);
    rig.good(create("a"));
    let owner = rig.owner().unwrap();
    let before = rig.gateways.counted();
    for place in [1 - owner, owner, 1 - owner] {
        rig.connect_to(place);
        rig.good(create(&format!("b{}", rig.calls)));
        rig.good(lookup("a"));
    }
    assert_eq!(rig.owner(), Some(owner));
    let after = rig.gateways.counted();
    assert_eq!(after.takeovers, before.takeovers);
    assert_eq!(after.passed_on - before.passed_on, 4);
    assert_eq!(after.passed_back, 0);
}

#[test]
fn the_sessions_of_a_dead_gateway_are_served_by_another_after_its_lease() {
    let mut rig = rig(2);
    rig.good(create("a"));
    let owner = rig.owner().unwrap();
    rig.gateways.kill(owner);
    rig.connect_to(1 - owner);
    let took = rig.time_of(lookup("a"));
    assert!(took > LEASE / 2, "{took:?}");
    assert!(took < LEASE * 2, "{took:?}");
    assert_eq!(rig.owner(), Some(1 - owner));
}

#[test]
fn a_gateway_that_drains_gives_its_sessions_away_without_a_pause() {
    let mut rig = rig(2);
    rig.good(create("a"));
    let owner = rig.owner().unwrap();
    rig.gateways.begin_leaving(owner);
    rig.connect_to(1 - owner);
    for _ in 0..5 {
        rig.idle(Duration::from_millis(20));
        let took = rig.time_of(lookup("a"));
        assert!(took < LEASE / 4, "{took:?}");
    }
    rig.idle(Duration::from_secs(5));
    assert!(rig.gateways.has_left(owner));
    assert_eq!(rig.owner(), Some(1 - owner));
    assert_eq!(rig.gateways.counted().let_go, 1);
    assert_eq!(rig.gateways.counted().lapses, 0);
}

#[test]
fn a_zombie_shows_nothing_old() {
    let mut rig = rig(2);
    rig.good(create("a"));
    let owner = rig.owner().unwrap();
    rig.connect_to(owner);
    rig.good(lookup("a"));
    rig.gateways.freeze(owner, true);
    rig.connect_to(1 - owner);
    rig.good(create("b"));
    assert_eq!(rig.owner(), Some(1 - owner));
    rig.connect_to(owner);
    let xid = rig.sent(lookup("b"));
    rig.gateways.freeze(owner, false);
    let found = rig.reply(xid, &lookup("b"));
    assert_eq!(found.error(), None);
    assert_eq!(rig.gateways.counted().lapses, 1);
    assert_eq!(rig.owner(), Some(1 - owner));
}

#[test]
fn calls_with_a_gateway_that_stands_still_go_to_the_next_owner_when_it_is_dead() {
    let mut rig = rig(2);
    rig.good(create("a"));
    let owner = rig.owner().unwrap();
    rig.connect_to(1 - owner);
    rig.good(lookup("a"));
    rig.gateways.freeze(owner, true);
    let took = rig.time_of(create("b"));
    assert!(took < LEASE * 2, "{took:?}");
    assert_eq!(rig.owner(), Some(1 - owner));
    let end = rig.gateways.run(rig.client.wait(Default::default()));
    assert_eq!(end, End::Answered);
}

/// An attempt at a renewal that was committed unnoticed may be old when the next one begins: others
/// count from when they first saw its counter.
#[test]
fn attempts_at_a_renewal_have_counters_of_their_own() {
    let rig = rig(1);
    rig.gateways.run(async {
        let clock = rig.gateways.clock.clone();
        let memory = MemoryKv::new(clock.clone());
        let rates = FaultRates {
            unknown_applied: 500,
            ..FaultRates::default()
        };
        let kv = FaultyKv::new(Arc::new(memory.clone()), 3, rates);
        let lease = LeaseRecord {
            counter: 0,
            state: GatewayState::Serving,
            started: NOW,
            nfs: String::new(),
            peers: String::new(),
            api: String::new(),
            sessions: 0,
            release: String::new(),
            lease: Duration::from_secs(2),
            token: [0; 8],
            now: NOW,
        };
        let mut member = Member::new(GatewayId::new(7), lease);
        let mut renewed = 0;
        while renewed < 20 {
            renewed += u32::from(member.renew(&kv, clock.as_ref()).await.is_ok());
            let leases = leases(&memory).await.unwrap();
            assert_eq!(leases[0].1.counter, kv.commits());
        }
        assert!(kv.commits() > 30);
    });
}

/// Two gateways drain at once, and each takes the other for one that takes sessions. Returns how often
/// a call was passed on within some milliseconds.
fn passed_to_and_fro() -> u64 {
    let mut rig = rig(2);
    rig.good(create("a"));
    for life in rig.gateways.lives.iter().flatten() {
        let gateway = Arc::clone(&life.gateway);
        let drain = async move {
            gateway.drain().await;
        };
        let _inside = rig.gateways.runtime.enter();
        life.process.within(|| Tasks::new().spawn(drain));
    }
    while rig.owner().is_some() {
        rig.gateways.sleep(Duration::from_millis(1));
    }
    rig.gateways.sleep(Duration::from_millis(5));
    let before = rig.gateways.counted().passed_on;
    let client = &mut rig.client;
    let xid = client.xid();
    let record = codec::encode(&rig.handles[0], xid, &root(lookup("a")), Listing::Plain);
    rig.gateways.run(async {
        client.send(xid, record);
        client.transmit().await;
        // Time passes even if something is done all the time.
        for _ in 0..10 {
            tokio::time::advance(Duration::from_millis(1)).await;
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
        }
    });
    rig.gateways.counted().passed_on - before
}

#[test]
fn a_call_is_passed_on_once() {
    let kept = passed_to_and_fro();
    assert!(kept <= 3, "{kept}");
    leave_out(Some(Rule::PassedOnce));
    let left_out = passed_to_and_fro();
    leave_out(None);
    assert!(left_out > 10, "{left_out}");
}

#[test]
fn a_gateway_that_dies_when_it_has_read_a_notice_is_waited_for_no_longer_than_another() {
    let mut rig = rig(2);
    rig.good(create("a"));
    let owner = rig.owner().unwrap();
    rig.connect_to(1 - owner);
    rig.gateways.cut_from_gateways(owner, Flow::Resets);
    let xid = rig.sent(lookup("a"));
    // The other one takes the session from it, since it cannot be reached.
    while rig.gateways.counted().notices == 0 {
        rig.gateways.sleep(Duration::from_millis(1));
        assert!(rig.gateways.now() < LEASE * 10);
    }
    rig.gateways.kill(owner);
    let killed = rig.gateways.now();
    assert_eq!(rig.reply(xid, &lookup("a")).error(), None);
    let took = rig.gateways.now() - killed;
    assert!(took < LEASE * 2, "{took:?}");
    assert_eq!(rig.gateways.counted().taken_from_living, 1);
}

/// Bug: a link that was made before a network broke, and carried nothing since, was waited for until its
/// calls were hung up on; and the ends of other links counted as if their gateway had been reached.
#[test]
fn a_link_that_carries_nothing_is_given_up_and_the_session_taken() {
    let mut rig = rig(2);
    rig.good(create("a"));
    let owner = rig.owner().unwrap();
    rig.connect_to(1 - owner);
    rig.good(lookup("a"));
    rig.gateways.cut_from_gateways(owner, Flow::Stalls);
    let closed = rig.client.closed_by_server;
    let took = rig.time_of(create("b"));
    assert!(took < LEASE * 6, "{took:?}");
    assert_eq!(rig.client.closed_by_server, closed);
    assert_eq!(rig.owner(), Some(1 - owner));
    assert_eq!(rig.gateways.counted().taken_from_living, 1);
}

/// The owner's address leads to another gateway, here to the one that asks: that one is not taken for it.
#[test]
fn an_address_that_leads_to_another_gateway_is_no_way_to_the_owner() {
    let mut rig = rig(2);
    rig.good(create("a"));
    let owner = rig.owner().unwrap();
    let own = rig.gateways.peers_of(1 - owner).unwrap();
    rig.gateways.cut_from_gateways(owner, Flow::Astray(own));
    rig.connect_to(1 - owner);
    let took = rig.time_of(create("b"));
    assert!(took < LEASE * 6, "{took:?}");
    assert_eq!(rig.owner(), Some(1 - owner));
    assert_eq!(rig.gateways.counted().taken_from_living, 1);
}

/// A call that takes its owner long is not taken for a link that carries nothing.
#[test]
fn a_call_that_takes_long_is_waited_for() {
    let setting = Setting {
        places: 2,
        block_bytes: 64 * 1024,
        ..Setting::default()
    };
    let mut rig = Rig::new(setting, 7);
    rig.good(create("a"));
    let owner = rig.owner().unwrap();
    rig.connect_to(1 - owner);
    rig.good(lookup("a"));
    let Answer::Created(Ok(file)) = rig.good(create("b")) else {
        unreachable!("it was made")
    };
    let before = rig.gateways.counted();
    // Longer than a silent link is waited for, and not as long as a call.
    rig.gateways.delay_chunks(LEASE * 7);
    let took = rig.time_of(Op::Write {
        inode: file.object.inode,
        offset: 0,
        data: Bytes::from(vec![7; 200_000]),
        stable: true,
    });
    assert!(took > LEASE * 5, "{took:?}");
    let after = rig.gateways.counted();
    assert_eq!(after.taken_from_living, before.taken_from_living);
    assert_eq!(after.passed_back, before.passed_back);
    assert_eq!(rig.owner(), Some(owner));
}

/// A call arrives at a gateway that stands still. Its client asks again elsewhere, and goes on. When the
/// gateway goes on the call must not run: nobody remembers that it has been answered, since it changed
/// nothing, and its owner is another one now.
#[test]
fn a_call_does_not_begin_long_after_its_client_has_gone_elsewhere() {
    let mut rig = rig(3);
    rig.good(create("a"));
    let owner = rig.owner().unwrap();
    let (zombie, heir) = ((owner + 1) % 3, (owner + 2) % 3);
    rig.connect_to(zombie);
    rig.good(lookup("a"));
    rig.gateways.freeze(zombie, true);
    let xid = rig.sent(create("a"));
    rig.connect_to(owner);
    let first = rig.reply(xid, &create("a"));
    assert_eq!(first.error(), Some(FsError::Exists));
    rig.idle(LEASE * 2);
    rig.gateways.begin_leaving(owner);
    rig.connect_to(heir);
    rig.idle(Duration::from_secs(1));
    rig.good(remove("a"));
    assert_eq!(rig.owner(), Some(heir));
    rig.gateways.freeze(zombie, false);
    rig.idle(LEASE * 2);
    let found = rig.call(&root(lookup("a"))).unwrap();
    assert_eq!(found.answer.error(), Some(FsError::NotFound));
}
