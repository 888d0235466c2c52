//! What tests of several crates share: the model filesystem, the workload that compares it with a
//! real one, and the drivers that bring the two together.

pub mod hooked_kv;
pub mod image_check;
pub mod image_subject;
pub mod model;
pub mod subject;
pub mod workload;
