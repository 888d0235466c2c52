//! What holds for all merges.
