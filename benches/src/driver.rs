//! Keeps a connection's calls in flight the way the kernel's slot table does: as many as there are
//! slots, the next one sent as soon as a reply frees its slot.

use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use hdrhistogram::Histogram;

use crate::connection::{Connection, split_xid};
use crate::report::Step;
use crate::{Error, Outgoing, Pattern};

/// Most calls in flight on one connection.
pub const DEPTH_MAX: usize = 1024;

/// Most calls of one operation whose sizes are kept.
pub const STEPS_MAX: usize = 64;

/// Longest latency told apart, in nanoseconds: two minutes, longer than a reply is waited for.
const LATENCY_NS_MAX: u64 = 120_000_000_000;

/// Length of a reply's number, in bytes.
const XID_BYTES: usize = 4;

/// Most errors on one connection before it gives up.
const ERRORS_MAX: u64 = 1000;

/// Operations to run, each a call or a sequence of calls, one sequence per slot at a time.
pub trait Workload: Send {
    /// Begins an operation in `slot`; `false` if there is none left.
    fn start(&mut self, slot: usize) -> bool {
        let _ = slot;
        true
    }

    /// Encodes the next call of the operation in `slot`.
    fn call(&mut self, slot: usize, call: &mut Outgoing);

    /// Checks the reply to that call, given without its number.
    ///
    /// # Errors
    ///
    /// If the reply is not what it should be; the operation is then over.
    fn reply(&mut self, slot: usize, reply: &[u8], pattern: &Pattern) -> Result<Progress, Error>;

    /// Checks after the run what could not be checked during it.
    ///
    /// # Errors
    ///
    /// If the server has lost or changed something.
    fn verify(&mut self, connection: &mut Connection) -> Result<(), Error> {
        let _ = connection;
        Ok(())
    }
}

/// What a reply means for its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Another call follows.
    More,
    /// The operation is complete, and has moved this many bytes of content.
    Done(u64),
}

/// When to stop, and from when to count.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Calls in flight.
    pub depth: usize,
    /// Clock reading from which operations count.
    pub count_from: Duration,
    /// Clock reading after which no operation begins.
    pub until: Duration,
    /// Most operations of this connection.
    pub operations_max: u64,
}

/// What one connection saw.
#[derive(Debug)]
pub struct Tally {
    /// Latency of each counted operation, in nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// Calls of counted operations.
    pub calls: u64,
    /// Content moved by counted operations, in bytes.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// The first failure.
    pub first_error: Option<String>,
    /// Calls of one operation.
    pub steps: Vec<Step>,
    /// Clock reading at the last reply.
    pub last: Duration,
}

impl Tally {
    /// Nothing seen yet.
    ///
    /// # Errors
    ///
    /// If the histogram's bounds are impossible.
    pub fn new() -> Result<Self, Error> {
        Ok(Self {
            latency_ns: Histogram::new_with_max(LATENCY_NS_MAX, 3)
                .map_err(|error| Error::Setup(error.to_string()))?,
            calls: 0,
            bytes: 0,
            errors: 0,
            first_error: None,
            steps: Vec::new(),
            last: Duration::ZERO,
        })
    }

    /// Counts a failure.
    pub fn fail(&mut self, error: &Error) {
        self.errors += 1;
        if self.first_error.is_none() {
            self.first_error = Some(error.to_string());
        }
    }
}

/// An operation in flight.
#[derive(Debug, Clone, Copy)]
struct Slot {
    xid: u32,
    started: Duration,
    calls: u64,
    busy: bool,
}

/// Runs `workload` on `connection` as `plan` says and gives what was seen, errors included.
///
/// # Errors
///
/// Only if nothing could be measured at all.
pub fn drive(
    connection: &mut Connection,
    workload: &mut dyn Workload,
    plan: &Plan,
    clock: &Arc<dyn Clock>,
) -> Result<Tally, Error> {
    let idle = Slot {
        xid: 0,
        started: Duration::ZERO,
        calls: 0,
        busy: false,
    };
    let mut driver = Driver {
        workload,
        plan,
        slots: vec![idle; plan.depth.clamp(1, DEPTH_MAX)],
        started: 0,
        in_flight: 0,
        tally: Tally::new()?,
        generation: connection.next_xid(),
        noting: true,
    };
    if let Err(error) = driver.run(connection, clock) {
        driver.tally.fail(&error);
    }
    Ok(driver.tally)
}

struct Driver<'a> {
    workload: &'a mut dyn Workload,
    plan: &'a Plan,
    slots: Vec<Slot>,
    started: u64,
    in_flight: usize,
    tally: Tally,
    generation: u32,
    /// Whether the first operation of slot 0 is still on.
    noting: bool,
}

impl Driver<'_> {
    fn run(&mut self, connection: &mut Connection, clock: &Arc<dyn Clock>) -> Result<(), Error> {
        for slot in 0..self.slots.len() {
            self.begin(slot, clock.monotonic(), connection)?;
        }
        connection.outgoing.flush(&mut connection.stream)?;
        while self.in_flight > 0 {
            if !connection.inbox.fill(&mut connection.stream)? {
                return Err(Error::Stream("the server closed the connection"));
            }
            while let Some(range) = connection.inbox.next()? {
                let now = clock.monotonic();
                let (xid, reply) = split_xid(connection.inbox.bytes(range))?;
                let slot = self.slot_of(xid)?;
                self.note_reply(slot, reply.len());
                let pattern = connection.outgoing.pattern();
                match self.workload.reply(slot, reply, pattern) {
                    Ok(Progress::More) => self.issue(slot, connection)?,
                    Ok(Progress::Done(bytes)) => {
                        self.finish(slot, now, bytes);
                        self.begin(slot, now, connection)?;
                    }
                    Err(error) => {
                        self.fail(slot, error)?;
                        self.begin(slot, now, connection)?;
                    }
                }
                self.tally.last = now;
            }
            connection.outgoing.flush(&mut connection.stream)?;
        }
        Ok(())
    }

    /// Which slot a reply belongs to. The low bits of a call's number say so.
    fn slot_of(&self, xid: u32) -> Result<usize, Error> {
        let index = usize::try_from(xid).unwrap_or(usize::MAX) % DEPTH_MAX;
        match self.slots.get(index) {
            Some(slot) if slot.busy && slot.xid == xid => Ok(index),
            _ => Err(Error::Stream("a reply to a call not made")),
        }
    }

    fn begin(
        &mut self,
        index: usize,
        now: Duration,
        connection: &mut Connection,
    ) -> Result<(), Error> {
        let over = now >= self.plan.until || self.started >= self.plan.operations_max;
        if over || !self.workload.start(index) {
            return Ok(());
        }
        self.started += 1;
        if let Some(slot) = self.slots.get_mut(index) {
            slot.started = now;
            slot.calls = 0;
            slot.busy = true;
            self.in_flight += 1;
        }
        self.issue(index, connection)
    }

    fn issue(&mut self, index: usize, connection: &mut Connection) -> Result<(), Error> {
        self.generation = self.generation.wrapping_add(1);
        // Depth is at most 1024, so ten bits hold the slot.
        let low = u32::try_from(index % DEPTH_MAX).unwrap_or(0);
        let xid = (self.generation << 10) | low;
        if let Some(slot) = self.slots.get_mut(index) {
            slot.xid = xid;
            slot.calls += 1;
        }
        let outgoing = &mut connection.outgoing;
        outgoing.open(xid);
        self.workload.call(index, outgoing);
        let length = outgoing.close()?;
        self.note_call(index, outgoing.call_name(), length);
        if outgoing.is_full() {
            outgoing.flush(&mut connection.stream)?;
        }
        Ok(())
    }

    fn finish(&mut self, index: usize, now: Duration, bytes: u64) {
        let Some(slot) = self.release(index) else {
            return;
        };
        if slot.started < self.plan.count_from {
            return;
        }
        let latency = now.saturating_sub(slot.started).as_nanos();
        self.tally
            .latency_ns
            .saturating_record(u64::try_from(latency).unwrap_or(LATENCY_NS_MAX));
        self.tally.calls += slot.calls;
        self.tally.bytes += bytes;
    }

    fn fail(&mut self, index: usize, error: Error) -> Result<(), Error> {
        if error.ends_connection() {
            return Err(error);
        }
        self.release(index);
        self.tally.fail(&error);
        if self.tally.errors >= ERRORS_MAX {
            return Err(Error::Stream("given up after too many errors"));
        }
        Ok(())
    }

    fn release(&mut self, index: usize) -> Option<Slot> {
        if index == 0 {
            self.noting = false;
        }
        let slot = self.slots.get_mut(index)?;
        slot.busy = false;
        self.in_flight -= 1;
        Some(*slot)
    }

    /// Keeps the sizes of the calls of the first operation in slot 0.
    fn note_call(&mut self, index: usize, call: &'static str, length: usize) {
        if index == 0 && self.noting && self.tally.steps.len() < STEPS_MAX {
            self.tally.steps.push(Step {
                call: call.into(),
                request_bytes: length,
                reply_bytes: 0,
            });
        }
    }

    fn note_reply(&mut self, index: usize, length: usize) {
        if index == 0
            && self.noting
            && let Some(step) = self.tally.steps.last_mut()
        {
            step.reply_bytes = length + XID_BYTES;
        }
    }
}
