//! Transactions that wait for the writer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::super::core::CommitRequest;
use super::super::{Committed, KvError};

/// Most transactions made durable together.
pub(super) const GROUP_MAX: usize = 256;

/// Bytes after which a group takes no further transaction.
const GROUP_BYTES_MAX: usize = 16 << 20;

/// Unit in which room in the queue is counted. A transaction takes at least one, so that this
/// also bounds their number.
const ROOM_UNIT_BYTES: usize = 16 << 10;

/// Room in the queue, in units: 64 MiB, or 4096 small transactions.
const ROOM_UNITS: usize = 4096;

/// A transaction on its way.
#[derive(Debug)]
pub(super) struct Pending {
    /// What it wants.
    pub(super) request: CommitRequest,
    /// Who waits. Nobody may be left there.
    pub(super) reply: oneshot::Sender<Result<Committed, KvError>>,
    _room: OwnedSemaphorePermit,
}

/// What the writer is to do next.
#[derive(Debug)]
pub(super) enum Work {
    /// Commit these, in order.
    Group(Vec<Pending>),
    /// Look after the file: the time is over, or somebody asked for it.
    Nothing,
    /// Close the file; nothing is left to be done.
    Close,
}

/// A bounded queue with one taker.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    room: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Pending>,
    woken: bool,
    closed: bool,
}

impl Queue {
    /// An empty queue.
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            room: Arc::new(Semaphore::new(ROOM_UNITS)),
        }
    }

    /// Adds a transaction, once there is room. The receiver gives its outcome.
    pub(super) async fn push(
        &self,
        request: CommitRequest,
    ) -> Result<oneshot::Receiver<Result<Committed, KvError>>, KvError> {
        let closed = || KvError::Unavailable("metadata store is closed".to_owned());
        let units = request.bytes.div_ceil(ROOM_UNIT_BYTES).clamp(1, ROOM_UNITS);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room);
        let room = room.acquire_many_owned(units).await.map_err(|_| closed())?;
        let (reply, outcome) = oneshot::channel();
        let mut state = self.state.lock();
        if state.closed {
            return Err(closed());
        }
        state.waiting.push_back(Pending {
            request,
            reply,
            _room: room,
        });
        self.changed.notify_one();
        Ok(outcome)
    }

    /// Takes what waits, or waits for it up to `patience`.
    pub(super) fn take(&self, patience: Duration) -> Work {
        let mut state = self.state.lock();
        loop {
            if !state.waiting.is_empty() {
                return Work::Group(take_group(&mut state.waiting));
            }
            if state.closed {
                return Work::Close;
            }
            if std::mem::take(&mut state.woken) {
                return Work::Nothing;
            }
            if self.changed.wait_for(&mut state, patience).timed_out() {
                return Work::Nothing;
            }
        }
    }

    /// Has the taker look after the file.
    pub(super) fn wake(&self) {
        self.state.lock().woken = true;
        self.changed.notify_one();
    }

    /// Refuses what comes from now on. What waits is still taken.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.room.close();
        self.changed.notify_one();
    }

    /// Refuses what comes and forgets what waits, when nobody will take it any more.
    pub(super) fn abandon(&self) {
        self.close();
        self.state.lock().waiting.clear();
    }
}

fn take_group(waiting: &mut VecDeque<Pending>) -> Vec<Pending> {
    let mut group = Vec::new();
    let mut bytes = 0_usize;
    while group.len() < GROUP_MAX && bytes < GROUP_BYTES_MAX {
        let Some(pending) = waiting.pop_front() else {
            break;
        };
        bytes = bytes.saturating_add(pending.request.bytes);
        group.push(pending);
    }
    group
}
