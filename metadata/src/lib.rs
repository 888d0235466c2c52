//! Images, sessions and the metadata store. Knows files, nothing of NFS.

pub mod check;
pub mod collections;
pub mod compare;
pub mod conflicts;
pub mod error;
pub mod fleet;
pub mod image;
pub mod import;
pub mod keyspace;
pub mod kv;
pub mod layers;
pub mod lineage;
pub mod lines;
pub mod merge;
pub mod ops;
pub mod permission;
pub mod places;
pub mod record;
pub mod references;
pub mod restore;
pub mod session;
pub mod stat;
pub mod store;
pub mod text;
pub mod transact;
pub mod tree;
pub mod version;

pub use error::{FsError, Miss, OpError, OpResult};
