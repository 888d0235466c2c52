//! Keeping commits that come in one after another until a branch has them.
//!
//! Nothing names them meanwhile, and a workspace's policy lets go what nothing names after a time
//! (`docs/design/0009-retention.md`). So the newest of them are pinned; what they come from is kept
//! with them.

use super::escape;
use crate::client::Client;
use crate::failure::{Failure, FailureKind};
use crate::history::Commit;
use crate::keeping::AddPin;
use crate::output;

/// Commits that are pinned until a branch has them.
#[derive(Debug)]
pub(super) struct Holding {
    workspace: String,
    note: String,
    pinned: Vec<String>,
}

impl Holding {
    /// Holds nothing yet. `what` runs and says that it holds them.
    pub(super) fn new(workspace: &str, what: &str) -> Self {
        Self {
            workspace: workspace.to_owned(),
            note: format!("until {what} ends"),
            pinned: Vec::new(),
        }
    }

    /// Holds a commit that came in, and with it those that it comes from.
    ///
    /// # Errors
    ///
    /// The server refuses, or does not answer.
    pub(super) fn add(&mut self, client: &Client, commit: &Commit) -> Result<(), Failure> {
        let pin = AddPin {
            version: commit.id.clone(),
            note: self.note.clone(),
        };
        client.post_for_nothing(&self.path(), &pin)?;
        self.pinned.push(commit.id.clone());
        let is_parent = |id: &String| commit.parents.contains(id);
        let (parents, others) = std::mem::take(&mut self.pinned)
            .into_iter()
            .partition(is_parent);
        self.pinned = others;
        let parents: Vec<String> = parents;
        for parent in &parents {
            self.unpin(client, parent)?;
        }
        Ok(())
    }

    /// Lets go of all: a branch has them, or nobody wants them any more.
    pub(super) fn end(mut self, client: &Client) {
        for commit in std::mem::take(&mut self.pinned) {
            if let Err(failure) = self.unpin(client, &commit) {
                output::note(&format!("pin {commit} is left, take it away: {failure}"));
            }
        }
    }

    fn unpin(&self, client: &Client, commit: &str) -> Result<(), Failure> {
        match client.delete(&format!("{}/{commit}", self.path())) {
            Err(failure) if failure.kind == FailureKind::NotFound => Ok(()),
            done => done,
        }
    }

    fn path(&self) -> String {
        format!("/v1/workspaces/{}/pins", escape(&self.workspace))
    }
}
