//! What a cluster is asked.

use crate::wire::Request;

/// What was asked of the cluster, whatever became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Keys and ranges to read, and watches.
    pub reads: u64,
    /// Read versions.
    pub versions: u64,
    /// Commits of transactions that write.
    pub commits: u64,
}

impl Asked {
    pub(super) fn count(&mut self, request: &Request, wrote: bool) {
        match request {
            Request::Get { .. }
            | Request::GetKey { .. }
            | Request::GetRange(_)
            | Request::Watch(_) => self.reads += 1,
            Request::ReadVersion => self.versions += 1,
            Request::Commit if wrote => self.commits += 1,
            _ => {}
        }
    }
}
