//! Versions that are read without a mount: listed, found, printed, compared, and told by whom.
#![allow(missing_docs)]

#[cfg(test)]
mod comparing;
#[cfg(test)]
mod lineage;
#[cfg(test)]
mod listing;
#[cfg(test)]
mod long;
#[cfg(test)]
mod printed;
#[path = "../support/mod.rs"]
mod support;
