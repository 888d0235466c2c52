//! One test for each promise of a fleet, and for each bug there was.

use std::time::Duration;

use base::{Caller, InodeId, Timestamp};
use bytes::Bytes;
use metadata::ops::How;
use metadata::stat::SetAttrs;
use system_tests::subject::{Answer, Call, Op};

use crate::client::End;
use crate::codec::{self, Listing};
use crate::gateways::{LEASE, Setting};
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
