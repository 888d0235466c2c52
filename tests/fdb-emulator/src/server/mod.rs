//! The cluster: what it holds ([`cluster`]), what it does wrong on request ([`faults`]), and how it
//! is reached ([`serve`]).

pub mod asked;
pub mod cluster;
pub mod faults;
mod metadata_version;
mod reads;
pub mod serve;
