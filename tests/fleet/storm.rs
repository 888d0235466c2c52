//! What happens to gateways, networks and clocks, by a seed.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use base::SessionId;
use metadata::kv::faulty::FaultRates;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::client::Client;
use crate::gateways::Gateways;
use crate::relay::Flow;
use crate::rig::CONNECTIONS;
use crate::slow_kv::Pace;
use crate::wire::Cut;

/// How long a gateway stands still, in milliseconds: within a lease, about one, and long.
const FREEZES: [u64; 7] = [300, 1600, 2100, 2600, 4000, 9000, 30_000];

/// How long something is cut, in milliseconds.
const CUTS: [u64; 5] = [200, 1900, 3000, 8000, 20_000];

/// Pauses between the restarts of a rolling one.
const ROLLING: Duration = Duration::from_secs(8);

/// How often it is looked whether a gateway has left.
const LOOK: Duration = Duration::from_millis(500);

/// Lines that are remembered.
const NOTES_MAX: usize = 60;

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// Something that is drawn then.
    Gust,
    Start(usize),
    GoOn(usize),
    /// The balancer sees that a gateway does not answer.
    Unhealthy(usize),
    WholeStore(usize),
    WholeNetwork(usize),
    Leave(usize),
    /// Looks whether a gateway has left.
    Reap(usize),
}

/// How often what happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Happened {
    pub(crate) kills: u64,
    pub(crate) freezes: u64,
    pub(crate) store_cuts: u64,
    pub(crate) network_cuts: u64,
    pub(crate) drains: u64,
    pub(crate) connection_cuts: u64,
}

/// The weather.
#[derive(Debug)]
pub(crate) struct Storm {
    rng: ChaCha8Rng,
    blows: bool,
    agenda: BTreeMap<(Duration, u64), Event>,
    next: u64,
    /// Gateways that the balancer sends nobody to.
    unhealthy: Vec<usize>,
    pub(crate) happened: Happened,
    pub(crate) notes: VecDeque<String>,
}

impl Storm {
    /// Good weather.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed ^ 0x5707),
            blows: false,
            agenda: BTreeMap::new(),
            next: 0,
            unhealthy: Vec::new(),
            happened: Happened::default(),
            notes: VecDeque::new(),
        }
    }

    pub(crate) fn blows(&self) -> bool {
        self.blows
    }

    /// Begins; the stores begin to fail.
    pub(crate) fn begin(&mut self, gateways: &mut Gateways) {
        if !self.blows {
            self.blows = true;
            self.note(gateways.now(), "storm begins");
            self.weather(gateways);
            let pause = self.ms(10..800);
            self.plan(gateways.now() + pause, Event::Gust);
        }
    }

    /// Nothing further happens but that everything becomes whole.
    pub(crate) fn end(&mut self, gateways: &mut Gateways) {
        if self.blows {
            self.note(gateways.now(), "storm ends");
        }
        self.blows = false;
        self.agenda.retain(|_, event| *event != Event::Gust);
        gateways.set_faults(FaultRates::default(), Pace::default());
    }

    /// When something happens next.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.agenda.keys().next().map(|(at, _)| *at)
    }

    pub(crate) fn note(&mut self, now: Duration, line: &str) {
        if self.notes.len() >= NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back(format!("{now:?}: {line}"));
    }

    fn ms(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.rng.random_range(range))
    }

    fn plan(&mut self, at: Duration, event: Event) {
        self.next += 1;
        self.agenda.insert((at, self.next), event);
    }

    /// Has everything happen whose time has come. `session` is what clients use most.
    pub(crate) fn pass(
        &mut self,
        gateways: &mut Gateways,
        client: &mut Client,
        session: SessionId,
    ) {
        while let Some((at, number)) = self.agenda.keys().next().copied() {
            let now = gateways.now();
            if at > now {
                return;
            }
            let Some(event) = self.agenda.remove(&(at, number)) else {
                return;
            };
            self.note(now, &format!("{event:?}"));
            self.happen(event, now, (gateways, client), session);
            let addresses: Vec<_> = (0..gateways.lives.len())
                .filter(|place| !self.unhealthy.contains(place))
                .filter_map(|place| gateways.address(place))
                .collect();
            if !addresses.is_empty() {
                client.balance(addresses);
            }
        }
    }

    fn happen(
        &mut self,
        event: Event,
        now: Duration,
        (gateways, client): (&mut Gateways, &mut Client),
        session: SessionId,
    ) {
        match event {
            Event::Gust => {
                self.gust(now, (gateways, client), session);
                let pause = self.ms(100..4000);
                self.plan(now + pause, Event::Gust);
            }
            Event::Start(place) if !gateways.lives_at(place) => {
                self.unhealthy.retain(|it| *it != place);
                let per_thousand = self.rng.random_range(950..=1050);
                gateways.start(place, per_thousand);
            }
            Event::Start(_) => {}
            Event::GoOn(place) => {
                self.unhealthy.retain(|it| *it != place);
                gateways.freeze(place, false);
            }
            Event::Unhealthy(place) => {
                if let Some(address) = gateways.address(place) {
                    cut_from(client, address);
                    self.unhealthy.push(place);
                }
            }
            Event::WholeStore(place) => gateways.cut_from_store(place, Cut::None),
            Event::WholeNetwork(place) => gateways.cut_from_gateways(place, Flow::Through),
            Event::Leave(place) => self.leave(place, now, gateways),
            Event::Reap(place) if gateways.has_left(place) => {
                gateways.kill(place);
                let pause = self.ms(0..2000);
                self.plan(now + pause, Event::Start(place));
            }
            Event::Reap(place) => self.plan(now + LOOK, Event::Reap(place)),
        }
    }

    /// Draws something.
    fn gust(
        &mut self,
        now: Duration,
        (gateways, client): (&mut Gateways, &mut Client),
        session: SessionId,
    ) {
        let owner = gateways.owner_of(session);
        let living: Vec<usize> = (0..gateways.lives.len())
            .filter(|place| gateways.lives_at(*place))
            .collect();
        let Some(any) = living.choose(&mut self.rng).copied() else {
            return;
        };
        let place = match owner {
            Some(owner) if self.rng.random_ratio(3, 5) => owner,
            _ => any,
        };
        let what = self.rng.random_range(0..100);
        self.note(now, &format!("  {what} of {place}; owner {owner:?}"));
        match what {
            0..14 => {
                self.happened.kills += 1;
                gateways.kill(place);
                let pause = self.ms(50..8000);
                self.plan(now + pause, Event::Start(place));
            }
            14..42 => self.freeze(place, now, gateways),
            42..55 => {
                self.happened.store_cuts += 1;
                let how = *[Cut::Fails, Cut::Hangs].choose(&mut self.rng).unwrap();
                gateways.cut_from_store(place, how);
                let until = now + self.one_of(&CUTS);
                self.plan(until, Event::WholeStore(place));
            }
            55..68 => {
                self.happened.network_cuts += 1;
                let how = *[Flow::Resets, Flow::Stalls].choose(&mut self.rng).unwrap();
                gateways.cut_from_gateways(place, how);
                let until = now + self.one_of(&CUTS);
                self.plan(until, Event::WholeNetwork(place));
            }
            68..76 => self.leave(place, now, gateways),
            76..78 => {
                for place in 0..gateways.lives.len() {
                    let after = ROLLING * u32::try_from(place).unwrap();
                    self.plan(now + after, Event::Leave(place));
                }
            }
            78..92 => {
                self.happened.connection_cuts += 1;
                client.cut(self.rng.random_range(0..CONNECTIONS));
            }
            _ => self.weather(gateways),
        }
    }

    fn freeze(&mut self, place: usize, now: Duration, gateways: &Gateways) {
        self.happened.freezes += 1;
        gateways.freeze(place, true);
        let until = now + self.one_of(&FREEZES);
        self.plan(until, Event::GoOn(place));
        if self.rng.random() {
            let seen = now + self.ms(500..5000);
            if seen < until {
                self.plan(seen, Event::Unhealthy(place));
            }
        }
    }

    fn leave(&mut self, place: usize, now: Duration, gateways: &mut Gateways) {
        if gateways.lives_at(place) && !gateways.is_leaving(place) {
            self.happened.drains += 1;
            gateways.begin_leaving(place);
            self.plan(now + LOOK, Event::Reap(place));
        }
    }

    fn one_of(&mut self, ms: &[u64]) -> Duration {
        Duration::from_millis(*ms.choose(&mut self.rng).unwrap())
    }

    /// The store fails in other ways, and is faster or slower.
    fn weather(&mut self, gateways: &mut Gateways) {
        let mut rate = |max: u64| self.rng.random_range(0..=max);
        let rates = FaultRates {
            conflict: rate(60),
            too_old: rate(30),
            unavailable: rate(20),
            unknown_applied: rate(60),
            unknown_not_applied: rate(40),
            unknown_late: rate(60),
        };
        let slowest = *[10, 30, 30, 300, 1200].choose(&mut self.rng).unwrap();
        let pace = Pace {
            read_ms_max: self.rng.random_range(1..6),
            commit_ms_max: self.rng.random_range(1..slowest),
        };
        gateways.set_faults(rates, pace);
    }
}

/// Breaks the connections to a gateway.
fn cut_from(client: &mut Client, address: SocketAddr) {
    for on in 0..CONNECTIONS {
        let to = client.connections[on].as_ref();
        if to.is_some_and(|it| it.stream.peer_addr().ok() == Some(address)) {
            client.cut(on);
        }
    }
}
