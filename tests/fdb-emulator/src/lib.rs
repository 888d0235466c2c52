//! FoundationDB for tests: a library with the C functions that the crate `foundationdb` imports,
//! and a small server that it talks to.
//!
//! The server holds one "cluster" in memory, over the same core (read versions, conflict ranges,
//! own writes, atomic operations, versionstamps, limits) as the other engines, and does on request
//! what a real cluster does on a bad day: see [`server::faults`]. The library is a thin client of
//! it. A transaction's state is in the server; futures, timeouts, retries and options are in
//! [`client`]. All `unsafe` code is in the module `capi`.

mod capi;
pub mod client;
pub mod codes;
pub mod server;
pub mod wire;
