//! The cases of `cluster.rs`, by what they are about.

pub(crate) mod commits;
pub(crate) mod errors;
pub(crate) mod faults;
pub(crate) mod processes;
pub(crate) mod reads;
pub(crate) mod watches;
pub(crate) mod writes;
