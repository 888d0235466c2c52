//! Whole trees in and out: imports make a commit of what comes in, exports read what a commit has.
//!
//! An import is a session of its own that nobody mounts (`metadata::import`), written in batches. Each
//! batch holds the chunk store from before its first chunk is put until the flush that refers to it
//! is durable, and no longer than some seconds: so imports that run for hours neither lose anything
//! to collections nor keep them waiting (`docs/design/0002-collection.md`). A branch moves when all is
//! there, or not at all.

mod export;
mod import;
mod layout;

pub use export::{Exporting, Found};
pub use import::{Imported, Importing, Plan};

use chunkstore::ChunkError;
use metadata::compare::SnapshotError;
use metadata::import::ImportError;
use metadata::layers::ImageError;
use metadata::session::OwnError;
use metadata::store::StoreError;
use metadata::tree::TreeError;

use crate::session::FreezeError;

/// Why an import or an export failed. No branch has moved then, unless an outcome is unknown.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// What comes in cannot be taken, or is not acceptable.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// File content cannot be stored or read.
    #[error("file content: {0}")]
    Chunk(#[from] ChunkError),
    /// The session of an import cannot be taken over.
    #[error(transparent)]
    Own(#[from] OwnError),
    /// The session of an import cannot be made a tree.
    #[error(transparent)]
    Freeze(#[from] FreezeError),
    /// The store refuses or fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A version cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A tree cannot be read or made.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The branch has moved since the import began.
    #[error(
        "branch {branch:?} has moved while the import ran, and stays where it is; import again"
    )]
    Moved {
        /// The branch.
        branch: String,
    },
}

impl From<ImageError> for TransferError {
    fn from(error: ImageError) -> Self {
        ImportError::from(error).into()
    }
}
