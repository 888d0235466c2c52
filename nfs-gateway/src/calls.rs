//! What is counted of each call, and what is told of it in the log.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Clock, Distribution, Histogram, SessionId};
use bytes::Bytes;

use crate::connection::Connection;
use crate::wire::outcome::Outcome;
use crate::wire::procedure::Target;

/// A call that took this long is told of, whatever is logged otherwise.
const SLOW: Duration = Duration::from_secs(1);

/// Where calls are told of.
const LOG_TARGET: &str = "nfs_gateway::call";

/// Connections count in one of so many places, to keep processors out of each other's memory.
const PLACES: u64 = 8;

/// What calls for no procedure are counted as.
const OTHER: &str = "other";

/// Calls by procedure and outcome, and how long they took.
#[derive(Debug)]
pub struct CallCounts(Box<[Place]>);

/// One of the places where calls are counted: by the number of the target, and last the others.
#[derive(Debug)]
struct Place([Counts; Target::COUNT + 1]);

#[derive(Debug)]
struct Counts {
    outcomes: [AtomicU64; Outcome::COUNT],
    took: Histogram,
}

/// What was counted of one procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcedureCounts {
    /// The procedure's name, in lower case.
    pub name: &'static str,
    /// The calls by the name of their outcome.
    pub outcomes: Vec<(&'static str, u64)>,
    /// From when a call was taken to when its reply went to its connection.
    pub took: Distribution,
}

impl Default for CallCounts {
    fn default() -> Self {
        Self((0..PLACES).map(|_| Place::new()).collect())
    }
}

impl Place {
    fn new() -> Self {
        Self(array::from_fn(|_| Counts {
            outcomes: array::from_fn(|_| AtomicU64::new(0)),
            took: Histogram::default(),
        }))
    }
}

impl CallCounts {
    fn count(&self, connection: u64, target: Option<Target>, outcome: Outcome, took: Duration) {
        let place = usize::try_from(connection % PLACES).unwrap_or(0);
        let at = target.map_or(Target::COUNT, Target::index);
        let Some(counts) = self.0.get(place).and_then(|place| place.0.get(at)) else {
            return;
        };
        if let Some(count) = counts.outcomes.get(outcome.index()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        counts.took.observe(took);
    }

    /// What was counted so far: the procedures of NFS and MOUNT, and what is none of them.
    #[must_use]
    pub fn read(&self) -> Vec<ProcedureCounts> {
        let names = Target::all().map(Target::name).chain([OTHER]);
        let read = |(at, name)| {
            let places = || self.0.iter().filter_map(move |place| place.0.get(at));
            let count = |outcome: Outcome| {
                let of = |counts: &Counts| {
                    let count = counts.outcomes.get(outcome.index());
                    count.map_or(0, |count| count.load(Ordering::Relaxed))
                };
                (outcome.name(), places().map(of).sum())
            };
            let mut took = Distribution::default();
            for counts in places() {
                took.add(&counts.took);
            }
            ProcedureCounts {
                name,
                outcomes: Outcome::all().map(count).collect(),
                took,
            }
        };
        names.enumerate().map(read).collect()
    }
}

/// What is known of a call from when it was taken until it is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    taken: Duration,
    xid: u32,
    target: Option<Target>,
    /// Whose files it is about, once that is known.
    pub(crate) session: Option<SessionId>,
    /// Another gateway was asked.
    pub(crate) is_passed_on: bool,
}

impl Asked {
    /// The call in `record`, which has just been taken.
    pub(crate) fn new(record: &Bytes, clock: &dyn Clock) -> Self {
        let xid = record
            .first_chunk()
            .map_or(0, |xid| u32::from_be_bytes(*xid));
        Self {
            taken: clock.monotonic(),
            xid,
            target: Target::peek(record),
            session: None,
            is_passed_on: false,
        }
    }

    /// Counts the call, which has ended.
    pub(crate) fn end(&self, connection: &Connection, outcome: Outcome) {
        let now = connection.shared().clock.monotonic();
        let took = now.saturating_sub(self.taken);
        let counts = &connection.shared().counters.calls;
        counts.count(connection.id(), self.target, outcome, took);
        if took >= SLOW || tracing::enabled!(target: LOG_TARGET, tracing::Level::DEBUG) {
            self.tell(connection, outcome, now);
        }
    }

    #[cold]
    fn tell(&self, connection: &Connection, outcome: Outcome, now: Duration) {
        let took = now.saturating_sub(self.taken);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let procedure = self.target.map_or(OTHER, Target::name);
        let session = self.session.map(tracing::field::display);
        let (xid, peer, outcome) = (self.xid, connection.peer(), outcome.name());
        let passed_on = self.is_passed_on;
        let turn = match took >= SLOW {
            true => connection.shared().slow_calls.turn(now),
            false => None,
        };
        match turn {
            Some(untold) => tracing::info!(
                target: LOG_TARGET,
                procedure, session, xid, %peer, outcome, micros, passed_on, untold, "slow call"
            ),
            None => tracing::debug!(
                target: LOG_TARGET,
                procedure, session, xid, %peer, outcome, micros, passed_on, "call"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::procedure::{MountProcedure, Procedure};

    #[test]
    fn calls_are_counted_by_procedure_and_outcome_wherever_they_came() {
        let counts = CallCounts::default();
        let read = Some(Target::Nfs(Procedure::Read));
        let mount = Some(Target::Mount(MountProcedure::Mnt));
        let took = Duration::from_micros(70);
        for connection in 0..20 {
            counts.count(connection, read, Outcome::OK, took);
        }
        counts.count(3, read, Outcome::of_status(70), took);
        counts.count(3, mount, Outcome::HUNG_UP, took);
        counts.count(u64::MAX, None, Outcome::of_status(3), took);
        let all = counts.read();
        assert_eq!(all.len(), 22 + 6 + 1);
        let called = all.iter().filter(|it| it.took.count() > 0);
        let called: Vec<_> = called
            .map(|it| {
                let some = it.outcomes.iter().filter(|(_, count)| *count > 0);
                (it.name, it.took.micros(), some.copied().collect::<Vec<_>>())
            })
            .collect();
        assert_eq!(
            called,
            [
                ("read", 21 * 70, vec![("ok", 20), ("stale", 1)]),
                ("mount_mnt", 70, vec![("hung_up", 1)]),
                ("other", 70, vec![("other", 1)]),
            ]
        );
    }
}
