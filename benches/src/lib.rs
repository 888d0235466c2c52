//! Measuring instruments: an independent NFSv3 client that pipelines, the loads it puts on a
//! server, and what it reports.
//!
//! Nothing here shares code with the gateway, so that a mistake in the gateway's encoding cannot
//! hide in its own mirror image. Read in this order: `xdr` and `rpc` (bytes), `nfs` (calls),
//! `connection` and `driver` (calls in flight), `workload` (which calls), `run` and `report`.

pub mod api;
pub mod connection;
pub mod driver;
pub mod echo;
mod error;
mod inbox;
pub mod many;
pub mod measure;
pub mod nfs;
mod outgoing;
mod pattern;
pub mod report;
mod rpc;
pub mod run;
pub mod tree;
pub mod workload;
mod xdr;

pub use error::Error;
pub use outgoing::Outgoing;
pub use pattern::{Pattern, Stamp};
