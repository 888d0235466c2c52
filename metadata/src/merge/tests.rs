//! Merges.
