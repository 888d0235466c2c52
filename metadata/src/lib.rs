//! Images, sessions and the metadata store. Knows files, nothing of NFS.

pub mod kv;
pub mod transact;
