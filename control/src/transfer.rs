//! Imports and exports as JSON says them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::history::Commit;

/// What an import came to.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Imported {
    /// The commit.
    pub commit: Commit,
    /// The branch that is at it now; `None` if it is on none.
    pub branch: Option<String>,
    /// It was made now. Otherwise the branch had the very same already.
    pub is_new: bool,
    /// The operation on the branch, which can be undone.
    pub operation: Option<String>,
    /// What came in.
    pub counts: Counts,
}

/// A version that can be exported.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Exportable {
    /// The commit that it is.
    pub commit: String,
}

/// What came in or went out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Counts {
    /// Files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files.
    pub links: u64,
    /// Devices, pipes and sockets.
    pub others: u64,
    /// Bytes of content, without holes.
    pub bytes: u64,
    /// What was kept of the version before.
    #[serde(default)]
    pub kept: u64,
    /// Extended attributes and the like, which are not kept.
    pub ignored: u64,
}

impl Counts {
    /// Everything that has a name.
    #[must_use]
    pub fn names(&self) -> u64 {
        self.files + self.directories + self.symlinks + self.links + self.others + self.kept
    }
}
