//! Exactly once: what became of calls that must not run twice.
//!
//! A call is known by its xid and a hash of its whole message; the connection it came over says
//! nothing (addresses and ports change). While it runs, a copy of it waits with it for the reply.
//! Afterwards a copy gets the reply again. Replies of calls that changed something
//! are also stored, in the flush that carries the change, so that they outlive this process.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::connection::CallGuard;
use crate::fleet::CALL_PATIENCE;

/// Stored replies kept per session, however old. A client has at most a few hundred calls outstanding when
/// its connection breaks; it forgets a call as soon as its reply arrives.
const STORED_MIN: usize = 1024;

/// For how long more are kept. A gateway that passed a call on and got no reply asks again for as long as
/// a call waits, and its client once more.
const STORED_FOR: Duration = CALL_PATIENCE.saturating_mul(2);

/// Most stored replies of a session, however young: a takeover reads them all, and reads somewhat more.
const STORED_MAX: usize = 6144;

/// Replies kept in memory only: of WRITEs, and of calls that changed nothing. On their own, so that
/// a busy writer does not push out what must outlive the process. As many as one connection may
/// have in flight, and as many again.
const VOLATILE_MAX: usize = 2048;

/// What a call is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallKey {
    pub(crate) xid: u32,
    pub(crate) hash: [u8; 16],
}

impl CallKey {
    /// The key of the call in `record`. All of it counts, the data of a WRITE too: a WRITE that is
    /// taken for a copy of another is lost without a trace.
    pub(crate) fn of(xid: u32, record: &Bytes) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(record);
        let mut hash = [0; 16];
        hasher.finalize_xof().fill(&mut hash);
        Self { xid, hash }
    }
}

#[derive(Debug)]
enum Known {
    /// It runs; its reply goes here.
    Running(CallGuard),
    /// It ran. The result part of its reply, and whether that is in the store.
    Done {
        result: Bytes,
        /// It is in the store.
        stored: bool,
        /// It came from the store: an owner before this one ran the call.
        loaded: bool,
    },
}

/// What to do with a call that has arrived.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Run it.
    New,
    /// It runs already; this copy gets the reply with the others.
    Running {
        /// Earlier copies, which get none. Dropped without the session's lock.
        _left: Vec<CallGuard>,
    },
    /// It ran; this is its result.
    Done {
        result: Bytes,
        loaded: bool,
        /// The copy.
        guard: CallGuard,
    },
}

/// Calls of one session.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    known: HashMap<CallKey, Known>,
    /// Done calls whose replies are stored, oldest first, and since when.
    stored: VecDeque<(CallKey, Duration)>,
    /// Done calls whose replies are not, oldest first.
    volatile: VecDeque<CallKey>,
    /// Stored replies to remove from the store with the next flush.
    forgotten: Vec<(u32, [u8; 16])>,
}

impl Calls {
    /// The calls whose replies were stored, oldest first. How old they are is not known: they are as
    /// good as new. `now` is the time by a monotonic clock.
    pub(crate) fn from_stored(replies: Vec<(u32, [u8; 16], Bytes)>, now: Duration) -> Self {
        let mut calls = Self::default();
        for (xid, hash, result) in replies {
            let done = Known::Done {
                result,
                stored: true,
                loaded: true,
            };
            calls.remember(CallKey { xid, hash }, done, now);
        }
        calls
    }

    /// Takes note of a call; `guard` is where its reply goes.
    pub(crate) fn arrive(&mut self, key: CallKey, guard: CallGuard) -> Arrival {
        match self.known.get_mut(&key) {
            None => {
                self.known.insert(key, Known::Running(guard));
                Arrival::New
            }
            Some(Known::Running(waiting)) => {
                let before = std::mem::replace(waiting, guard);
                let _left = waiting.also(before);
                Arrival::Running { _left }
            }
            Some(Known::Done { result, loaded, .. }) => Arrival::Done {
                result: result.clone(),
                loaded: *loaded,
                guard,
            },
        }
    }

    /// Takes note of a call's result; returns where its reply goes.
    pub(crate) fn finish(
        &mut self,
        key: CallKey,
        result: Bytes,
        stored: bool,
        now: Duration,
    ) -> Option<CallGuard> {
        let before = self.known.remove(&key);
        let done = Known::Done {
            result,
            stored,
            loaded: false,
        };
        self.remember(key, done, now);
        match before {
            Some(Known::Running(guard)) => Some(guard),
            _ => None,
        }
    }

    /// Forgets a running call that gets no reply.
    pub(crate) fn abandon(&mut self, key: CallKey) -> Option<CallGuard> {
        match self.known.remove(&key) {
            Some(Known::Running(guard)) => Some(guard),
            Some(done) => {
                self.known.insert(key, done);
                None
            }
            None => None,
        }
    }

    /// Closes the connections that wait for a running call. The call goes on.
    pub(crate) fn close_connection(&self, key: CallKey) {
        if let Some(Known::Running(guard)) = self.known.get(&key) {
            guard.close_connections();
        }
    }

    /// Where the replies of all running calls would go.
    pub(crate) fn abandon_all(&mut self) -> Vec<CallGuard> {
        let running = |(_, known)| match known {
            Known::Running(guard) => Some(guard),
            Known::Done { .. } => None,
        };
        self.stored.clear();
        self.volatile.clear();
        self.known.drain().filter_map(running).collect()
    }

    /// Whether no call runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.known.len() == self.stored.len() + self.volatile.len()
    }

    /// Stored replies that the next flush removes.
    pub(crate) fn take_forgotten(&mut self) -> Vec<(u32, [u8; 16])> {
        std::mem::take(&mut self.forgotten)
    }

    /// The flush that was to remove these did not happen.
    pub(crate) fn give_back_forgotten(&mut self, forgotten: Vec<(u32, [u8; 16])>) {
        self.forgotten.extend(forgotten);
    }

    fn remember(&mut self, key: CallKey, done: Known, now: Duration) {
        let is_stored = matches!(done, Known::Done { stored: true, .. });
        self.known.insert(key, done);
        if !is_stored {
            self.volatile.push_back(key);
            while self.volatile.len() > VOLATILE_MAX
                && let Some(oldest) = self.volatile.pop_front()
            {
                self.known.remove(&oldest);
            }
            return;
        }
        self.stored.push_back((key, now));
        // Two for one: no flush has many to remove.
        for _ in 0..2 {
            let Some((oldest, since)) = self.stored.front().copied() else {
                return;
            };
            if !self.has_enough(now.saturating_sub(since)) {
                return;
            }
            self.stored.pop_front();
            if self.known.remove(&oldest).is_some() {
                self.forgotten.push((oldest.xid, oldest.hash));
            }
        }
    }

    /// Whether the oldest stored reply, which is so old, is one too many.
    fn has_enough(&self, age: Duration) -> bool {
        let kept = self.stored.len();
        kept > STORED_MAX || kept > STORED_MIN && age > STORED_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(calls: &mut Calls, xids: std::ops::Range<u32>, now: Duration) {
        for xid in xids {
            let key = CallKey { xid, hash: [0; 16] };
            assert!(calls.finish(key, Bytes::new(), true, now).is_none());
        }
    }

    #[test]
    fn replies_are_kept_while_copies_may_come() {
        let (now, later) = (Duration::from_secs(1), Duration::from_secs(2) + STORED_FOR);
        let mut calls = Calls::default();
        done(&mut calls, 0..5_000, now);
        assert!(calls.take_forgotten().is_empty());
        // Then only so many, bit by bit.
        done(&mut calls, 5_000..5_001, later);
        assert_eq!(calls.take_forgotten(), [(0, [0; 16]), (1, [0; 16])]);
        done(&mut calls, 5_001..9_900, later);
        assert_eq!(calls.stored.len(), 4_900);
        assert_eq!(calls.stored.len(), calls.known.len());
        done(&mut calls, 9_900..9_901, later + STORED_FOR * 2);
        assert_eq!(calls.stored.len(), 4_899);
        // And never more than a takeover reads.
        done(&mut calls, 10_000..20_000, later);
        assert_eq!(calls.stored.len(), STORED_MAX);
        assert!(calls.is_idle());
    }

    #[test]
    fn what_was_stored_before_is_as_good_as_new() {
        let stored = (0..3_000).map(|xid| (xid, [0; 16], Bytes::new())).collect();
        let mut calls = Calls::from_stored(stored, STORED_FOR);
        done(&mut calls, 3_000..3_001, STORED_FOR * 2);
        assert!(calls.take_forgotten().is_empty());
    }
}
