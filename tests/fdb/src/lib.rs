//! FoundationDB's client crate against the emulator, or against a real cluster. The tests are in
//! `cluster.rs`; `tests/fdb/run` builds the emulator first and runs them.
