//! Hostile bytes: nothing that arrives on a connection may panic the gateway, cost memory that
//! was not sent, or disturb others.
//!
//! The corpus in `tests/corpus/` has one stream per file, with what it has to come to. The fuzzer
//! mutates these streams from a seed, so a failure names the seed and round that repeat it:
//!
//! ```text
//! WIRE_FUZZ_SEED=1 WIRE_FUZZ_ROUNDS=1000000 cargo test -p system-tests --test wire_fuzz
//! ```

#[cfg(test)]
mod answer;
#[cfg(test)]
mod corpus;
#[cfg(test)]
mod decoders;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod server;
