//! Merges of images that real operations made, checked by the rules of `check`.

mod laws;
mod limits;
mod merging;
mod resolving;
mod rows;
mod trees;
mod world;
