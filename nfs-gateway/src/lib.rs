//! The NFSv3 gateway.
//!
//! The path of a request: [`Server`] accepts, the connection's task reads (behind a balancer first
//! whose connection it is, [`wire::proxy`]), [`wire::record`] joins
//! fragments into a record, the [`Service`] takes it: [`wire::rpc`] parses the call,
//! [`wire::args`] decodes the arguments, [`wire::results`] encodes the result, and the
//! [`Connection`] sends it.

mod calls;
mod connection;
mod convert;
mod counters;
mod fleet;
mod gate;
mod gateway;
mod handle;
mod history;
mod ledger;
mod metrics;
mod mount;
mod network;
mod nodes;
mod outbound;
mod procedures;
mod proxied;
mod receiving;
mod server;
mod session;
mod status;
mod transfer;
pub mod wire;

pub use calls::{CallCounts, ProcedureCounts};
pub use connection::{Answer, CallGuard, Connection};
pub use counters::{Counter, Gauge, TransportCounters};
pub use fleet::{FleetOptions, LEASE_DEFAULT, Whereabouts};
pub use gate::Gate;
pub use gateway::{Engines, Gateway, GatewayOptions};
pub use handle::{FileHandle, HANDLE_BYTES, HandleKey, HandleKeys, Selector, SignedHandle, Stale};
pub use history::{
    About, Attempt, Carried, Checkpoint, Clashes, HistoryError, ListedConflict, Outcome, Plan,
    Published, ResolveError, Resolved, Restored, SessionConflicts, SyncOutcome, Synced, Which,
};
pub use history::{FileReader, Look, ReadError, Versions};
pub use ledger::KvLedger;
pub use metrics::GatewayCounters;
pub use network::{Network, NetworkError};
pub use nodes::{ChunkNodes, ChunkTrees};
pub use server::{Server, ServerLimits, Service};
pub use session::{ForkError, FreezeError};
pub use transfer::{Exporting, Found, Imported, Importing, Plan as ImportPlan, TransferError};
