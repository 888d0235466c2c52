//! Vocabulary that two or more crates share, and the sources of nondeterminism.
//!
//! What may live here: types named in the public API of two crates, and the clock, the random
//! generator and the task owner, so that a simulation can control them. No I/O.

mod clock;
mod context;
pub mod files;
mod histogram;
mod ids;
pub mod limits;
mod name;
mod rng;
pub mod simulation;
mod tasks;
mod time;
mod told;

pub use clock::{Clock, ManualClock, SystemClock};
pub use context::{Caller, Groups};
pub use histogram::{BUCKET_MICROS, Distribution, Histogram};
pub use ids::{
    ChunkId, CommitId, DomainId, Epoch, GatewayId, HashError, InodeId, NodeId, OperationId,
    SessionId, TenantId, WorkspaceId,
};
pub use name::{Name, NameError};
pub use rng::Rng;
pub use tasks::Tasks;
pub use time::Timestamp;
pub use told::Told;
