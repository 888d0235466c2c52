//! Exactly once: what became of calls that must not run twice.
//!
//! A call is known by its xid and a hash of its whole message; the connection it came over says
//! nothing (addresses and ports change). While it runs, a copy of it waits with it for the reply.
//! Afterwards a copy gets the reply again. Replies of calls that changed something
//! are also stored, in the flush that carries the change, so that they outlive this process.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use crate::connection::CallGuard;

/// Stored replies kept per session. A client has at most a few hundred calls outstanding when its
/// connection breaks; it forgets a call as soon as its reply arrives.
const STORED_MAX: usize = 1024;

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
    /// Done calls whose replies are stored, oldest first.
    stored: VecDeque<CallKey>,
    /// Done calls whose replies are not, oldest first.
    volatile: VecDeque<CallKey>,
    /// Stored replies to remove from the store with the next flush.
    forgotten: Vec<(u32, [u8; 16])>,
}

impl Calls {
    /// The calls whose replies were stored, oldest first.
    pub(crate) fn from_stored(replies: Vec<(u32, [u8; 16], Bytes)>) -> Self {
        let mut calls = Self::default();
        for (xid, hash, result) in replies {
            calls.remember(
                CallKey { xid, hash },
                Known::Done {
                    result,
                    stored: true,
                    loaded: true,
                },
            );
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
    ) -> Option<CallGuard> {
        let before = self.known.remove(&key);
        self.remember(
            key,
            Known::Done {
                result,
                stored,
                loaded: false,
            },
        );
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

    fn remember(&mut self, key: CallKey, done: Known) {
        let (order, max) = match &done {
            Known::Done { stored: true, .. } => (&mut self.stored, STORED_MAX),
            _ => (&mut self.volatile, VOLATILE_MAX),
        };
        self.known.insert(key, done);
        order.push_back(key);
        while order.len() > max
            && let Some(oldest) = order.pop_front()
        {
            if let Some(Known::Done { stored: true, .. }) = self.known.remove(&oldest) {
                self.forgotten.push((oldest.xid, oldest.hash));
            }
        }
    }
}
