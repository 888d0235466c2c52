//! The NFSv3 gateway.
//!
//! The path of a request: [`Server`] accepts, the connection's task reads, [`wire::record`] joins
//! fragments into a record, the [`Service`] takes it: [`wire::rpc`] parses the call,
//! [`wire::args`] decodes the arguments, [`wire::results`] encodes the result, and the
//! [`Connection`] sends it.

mod connection;
mod counters;
mod gate;
mod handle;
mod outbound;
mod server;
pub mod wire;

pub use connection::{CallGuard, Connection};
pub use counters::{Counter, TransportCounters};
pub use gate::Gate;
pub use handle::{FileHandle, HANDLE_BYTES, HandleKey, HandleKeys, SignedHandle, Stale};
pub use server::{Server, ServerLimits, Service};
