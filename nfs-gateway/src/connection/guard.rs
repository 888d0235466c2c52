//! What is owed for a call.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Connection;
use crate::wire::reply::Reply;

/// A call that has been taken and not answered. Whoever holds it owes the reply, once; dropping it
/// says that there will be none, and lets the connection go on.
#[derive(Debug)]
pub struct CallGuard {
    connection: Arc<Connection>,
    held_bytes: usize,
    /// Until when another gateway may take to answer, once it is asked.
    deadline: Option<Duration>,
}

impl CallGuard {
    pub(super) fn new(connection: &Arc<Connection>, record_bytes: usize) -> Self {
        connection.calls.fetch_add(1, Ordering::SeqCst);
        connection.charge(record_bytes);
        Self {
            connection: Arc::clone(connection),
            held_bytes: record_bytes,
            deadline: None,
        }
    }

    /// Until when others may be asked for the reply: as was said first.
    pub(crate) fn patience_until(&mut self, deadline: Duration) -> Duration {
        *self.deadline.get_or_insert(deadline)
    }

    /// Whether that time is over.
    pub(crate) fn is_late(&self, now: Duration) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
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
    pub fn send(self, reply: Reply) {
        let bytes = reply.wire_bytes();
        self.connection.send(bytes, std::iter::once(reply));
    }

    /// Closes the connection, see [`Connection::close`].
    pub fn close(self) {
        self.connection.close();
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.connection.calls.fetch_sub(1, Ordering::SeqCst);
        self.connection.release(self.held_bytes);
        self.connection.wake_task();
    }
}
