//! A call in flight, and its answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::SessionId;
use bytes::Bytes;

use super::Connection;
use crate::calls::Asked;
use crate::wire::outcome::Outcome;
use crate::wire::reply::Reply;

/// Most earlier copies of a call that are answered with it. A client that asks more often has given up the first.
const COPIES_MAX: usize = 4;

/// A call that has been taken and not answered. Whoever holds it owes the reply, once; dropping it
/// says that there will be none, and lets the connection go on.
#[derive(Debug)]
pub struct CallGuard {
    connection: Arc<Connection>,
    held_bytes: usize,
    /// Until when another gateway may take to answer, once it is asked.
    deadline: Option<Duration>,
    /// Until it has been counted.
    asked: Option<Asked>,
    /// Earlier copies of the call, over other connections, which get the same reply.
    copies: Vec<Self>,
}

/// The reply to a call that has been counted as answered: from [`CallGuard::answer`].
#[derive(Debug)]
pub struct Answer(Reply);

impl Answer {
    pub(crate) fn into_reply(self) -> Reply {
        self.0
    }
}

impl CallGuard {
    pub(super) fn new(connection: &Arc<Connection>, record: &Bytes) -> Self {
        connection.calls.fetch_add(1, Ordering::SeqCst);
        connection.charge(record.len());
        Self {
            asked: Some(Asked::new(record, connection.shared.clock.as_ref())),
            connection: Arc::clone(connection),
            held_bytes: record.len(),
            deadline: None,
            copies: Vec::new(),
        }
    }

    /// Has an earlier copy of the call answered, too, when this one is: which of them the client listens for
    /// cannot be known, as the one that was sent first may arrive last. Gives what gets no reply: a copy over the
    /// same connection, or over one that has ended, or the oldest of many.
    #[must_use]
    pub(crate) fn also(&mut self, mut earlier: Self) -> Vec<Self> {
        let mut all = std::mem::take(&mut earlier.copies);
        all.push(earlier);
        let (mut kept, mut left): (Vec<Self>, Vec<Self>) = all.into_iter().partition(|copy| {
            !Arc::ptr_eq(&copy.connection, &self.connection) && !copy.connection.has_ended()
        });
        left.extend(kept.drain(..kept.len().saturating_sub(COPIES_MAX)));
        self.copies = kept;
        left
    }

    /// Until when others may be asked for the reply: as was said first.
    pub(crate) fn patience_until(&mut self, deadline: Duration) -> Duration {
        *self.deadline.get_or_insert(deadline)
    }

    /// Whether that time is over.
    pub(crate) fn is_late(&self, now: Duration) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Notes whose files the call is about, for logs.
    pub(crate) fn note_session(&mut self, session: SessionId) {
        if let Some(asked) = &mut self.asked {
            asked.session = Some(session);
        }
    }

    /// Notes that another gateway was asked, for logs.
    pub(crate) fn note_passed_on(&mut self) {
        if let Some(asked) = &mut self.asked {
            asked.is_passed_on = true;
        }
    }

    /// Where the call came from and its reply goes.
    #[must_use]
    pub const fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Counts `bytes` of a big reply to come as held already until the call is answered, so that
    /// not too many big replies are asked for at once.
    pub fn reserve(&mut self, bytes: usize) {
        self.connection.charge(bytes);
        self.held_bytes += bytes;
    }

    /// Answers the call, from any thread.
    pub fn send(mut self, reply: Reply) {
        self.send_copies(&reply);
        self.count(reply.outcome());
        let bytes = reply.wire_bytes();
        self.connection.send(bytes, std::iter::once(reply));
    }

    /// Ends the call with a reply that is sent by whoever asked for the answer: the connection's own
    /// task, see [`Service::call`](crate::Service::call).
    #[must_use]
    pub fn answer(mut self, reply: Reply) -> Answer {
        self.send_copies(&reply);
        self.count(reply.outcome());
        Answer(reply)
    }

    /// Closes the connection, see [`Connection::close`].
    pub fn close(self) {
        self.close_connections();
    }

    /// The same, and the call goes on.
    pub(crate) fn close_connections(&self) {
        for copy in &self.copies {
            copy.connection.close();
        }
        self.connection.close();
    }

    fn send_copies(&mut self, reply: &Reply) {
        for copy in std::mem::take(&mut self.copies) {
            copy.send(reply.clone());
        }
    }

    fn count(&mut self, outcome: Outcome) {
        if let Some(asked) = self.asked.take() {
            asked.end(&self.connection, outcome);
        }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.count(Outcome::HUNG_UP);
        self.connection.calls.fetch_sub(1, Ordering::SeqCst);
        self.connection.release(self.held_bytes);
        self.connection.wake_task();
    }
}
