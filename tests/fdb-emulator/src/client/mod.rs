//! The client's half, in safe code: futures, the network thread, connections, transactions.
//!
//! Locks are taken in this order: a transaction's state, a link's outbox or pending calls, the
//! network's queue. No callback runs while a lock is held.

pub mod database;
pub mod future;
mod link;
pub mod network;
pub mod options;
pub mod transaction;
