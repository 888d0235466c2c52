//! Keeping commits that come in one after another until a branch has them.
//!
//! Nothing names them meanwhile, and a workspace's policy lets go what nothing names after a time
//! (`docs/design/0009-retention.md`). So the newest of them are pinned; what they come from is kept
//! with them.

use super::escape;
use super::pages::pages;
use crate::client::Client;
use crate::failure::{Failure, FailureKind};
use crate::history::Commit;
use crate::keeping::{AddPin, Pin};
use crate::output;

/// Commits that are pinned until a branch has them.
#[derive(Debug)]
pub(super) struct Holding {
    workspace: String,
    note: String,
    pinned: Vec<String>,
}

impl Holding {
    /// Holds nothing yet. `what` runs and says that it holds them; `tip` names what comes in, the same
    /// each time that it is tried.
    pub(super) fn new(workspace: &str, what: &str, tip: &str) -> Self {
        Self {
            workspace: workspace.to_owned(),
            note: format!("until {what} of {tip} ends"),
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

    /// Lets go of all: branches have what was to come in. What an earlier try, which did not get so
    /// far, has left goes as well.
    pub(super) fn done(self, client: &Client) {
        match pages::<Pin>(client, &self.path(), usize::MAX) {
            Ok(pins) => {
                for pin in pins.iter().filter(|pin| pin.note == self.note) {
                    if !self.pinned.contains(&pin.commit) {
                        self.unpin_or_tell(client, &pin.commit);
                    }
                }
            }
            Err(failure) => output::note(&format!(
                "pins with the note {:?} may be left, take them away: {failure}",
                self.note
            )),
        }
        self.give_up(client);
    }

    /// Lets go of what this try has brought: nobody wants it any more.
    pub(super) fn give_up(mut self, client: &Client) {
        for commit in std::mem::take(&mut self.pinned) {
            self.unpin_or_tell(client, &commit);
        }
    }

    fn unpin_or_tell(&self, client: &Client, commit: &str) {
        if let Err(failure) = self.unpin(client, commit) {
            output::note(&format!("pin {commit} is left, take it away: {failure}"));
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
