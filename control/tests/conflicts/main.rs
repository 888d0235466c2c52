//! Conflicts through the API: foretold, stored, listed, resolved, published.
#![allow(missing_docs)]

#[cfg(test)]
mod cases;
#[cfg(test)]
mod common;
#[cfg(test)]
mod foretold;
#[cfg(test)]
mod killed;
#[cfg(test)]
mod kinds;
#[cfg(test)]
mod long;
#[cfg(test)]
mod refused;
#[cfg(test)]
mod resolving;
#[path = "../support/mod.rs"]
mod support;
