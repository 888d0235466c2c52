//! The wire: bytes to values and back. No I/O, no clock.
//!
//! A request meets the modules in this order: [`proxy`] reads what a balancer puts first,
//! [`record`] joins fragments, [`rpc`] reads the call header, [`procedure`] says whom it is for, [`args`] and [`mount`] decode the arguments,
//! [`results`] encodes the answer, [`reply`] holds it until it is sent. Decoding borrows from the
//! record, checks every length against a limit before using it, and never panics. The protocol's
//! types and their encoding come from the crate `nfsserve` where it has them.

pub mod args;
pub mod mount;
pub mod nfs3;
pub mod outcome;
pub mod procedure;
pub mod proxy;
pub mod record;
pub mod reply;
pub mod results;
pub mod rpc;
pub mod xdr;
