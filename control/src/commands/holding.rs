//! Keeping commits that come in one after another until a branch has them.
//!
//! Nothing names them meanwhile, and a workspace's policy lets go what nothing names after a time
//! (`docs/design/0009-retention.md`). So the newest of them are pinned; what they come from is kept
//! with them. Others may bring in the same at the same time: each takes away its own pins only.

use base::Rng;

use super::escape;
use super::pages::pages;
use crate::client::Client;
use crate::failure::{Failure, FailureKind};
use crate::keeping::{AddPin, Pin};
use crate::output;
use crate::transfer::Imported;

/// Commits that are pinned until a branch has them.
#[derive(Debug)]
pub(super) struct Holding {
    workspace: String,
    /// What the notes of all begin with that bring in the same.
    what: String,
    /// The note of this one.
    note: String,
    pinned: Vec<String>,
}

impl Holding {
    /// Holds nothing yet. `what` runs and says that it holds them; `tip` names what comes in, the same
    /// each time that it is tried.
    ///
    /// # Errors
    ///
    /// The system has no randomness.
    pub(super) fn new(workspace: &str, what: &str, tip: &str) -> Result<Self, Failure> {
        let rng = Rng::system().map_err(|error| Failure::io("draw a number", &error))?;
        Ok(Self::numbered(workspace, what, tip, rng.u64()))
    }

    fn numbered(workspace: &str, what: &str, tip: &str, run: u64) -> Self {
        let what = format!("until {what} of {tip} ends");
        Self {
            workspace: workspace.to_owned(),
            note: format!("{what} (run {run:016x})"),
            what,
            pinned: Vec::new(),
        }
    }

    /// Holds a commit that came in, and with it those that it comes from, unless a branch has it.
    ///
    /// # Errors
    ///
    /// The server refuses to pin it, or does not answer.
    pub(super) fn add(&mut self, client: &Client, imported: &Imported) -> Result<(), Failure> {
        let commit = &imported.commit;
        let is_parent = |id: &String| commit.parents.contains(id);
        let (parents, others) = std::mem::take(&mut self.pinned)
            .into_iter()
            .partition(is_parent);
        self.pinned = others;
        let parents: Vec<String> = parents;
        let pinned = match imported.branch {
            Some(_) => Ok(()),
            None => {
                // First: it may be there although no answer says so.
                self.pinned.push(commit.id.clone());
                let pin = AddPin {
                    version: commit.id.clone(),
                    note: self.note.clone(),
                };
                client.post_for_nothing(&self.path(), &pin)
            }
        };
        for parent in parents {
            // What does not go now goes with the last.
            if pinned.is_err() || self.unpin(client, &parent).is_err() {
                self.pinned.push(parent);
            }
        }
        pinned
    }

    /// Lets go of all: branches have what was to come in. If pins of another try are there it says so.
    pub(super) fn done(self, client: &Client) {
        let (what, note) = (self.what.clone(), self.note.clone());
        let listed = self.path();
        self.give_up(client);
        let Ok(pins) = pages::<Pin>(client, &listed, usize::MAX) else {
            // Only what others have left was to be told.
            return;
        };
        let is_others = |pin: &&Pin| pin.note.starts_with(&what) && pin.note != note;
        let left: Vec<&str> = (pins.iter().filter(is_others))
            .map(|pin| pin.commit.as_str())
            .collect();
        if !left.is_empty() {
            output::note(&format!(
                "another run of the same has pins; if it runs no more, take them away with \
                 `holdfast pin rm`: {}",
                left.join(" ")
            ));
        }
    }

    /// Lets go of what this try has brought: nobody wants it any more, or a branch has it.
    pub(super) fn give_up(mut self, client: &Client) {
        for commit in std::mem::take(&mut self.pinned) {
            if let Err(failure) = self.unpin(client, &commit) {
                output::note(&format!(
                    "pin {commit} is left, take it away with `holdfast pin rm`: {failure}"
                ));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Commit;
    use crate::told::Told;
    use crate::transfer::Counts;

    const PINS: &str = "/v1/workspaces/w/pins";

    fn imported(id: &str, parents: &[&str], branch: Option<&str>) -> Imported {
        let commit = serde_json::json!({
            "id": id, "parents": parents, "time": "", "message": "", "author": "", "agent": "",
            "model": "", "run": "", "tool_call": "", "session": null, "pairs": {}, "conflicts": 0,
            "used_bytes": 0, "inodes": 0, "tree": "", "files": [0, 0, 0], "bytes": [0, 0, 0],
        });
        let commit: Commit = serde_json::from_value(commit).unwrap();
        Imported {
            commit,
            branch: branch.map(str::to_owned),
            is_new: true,
            operation: None,
            counts: Counts::default(),
        }
    }

    fn holding() -> Holding {
        Holding::numbered("w", "a test", "tip", 0xfe)
    }

    /// Methods, and the commits that they are about.
    fn short(heard: &[String]) -> Vec<String> {
        let about = |call: &String| {
            let call = call.replace(PINS, "");
            match serde_json::from_str::<AddPin>(call.trim_start_matches("POST ")) {
                Ok(pin) => format!("POST {}", pin.version),
                Err(_) => call,
            }
        };
        heard.iter().map(about).collect()
    }

    #[test]
    fn what_a_branch_has_is_not_pinned() {
        let server = Told::new(|_, _| (200, r#"{"items":[],"next":null}"#.into()));
        let client = server.client();
        let mut holding = holding();
        holding.add(&client, &imported("a", &[], None)).unwrap();
        holding
            .add(&client, &imported("b", &["a"], Some("main")))
            .unwrap();
        holding.done(&client);
        let heard = short(&server.heard());
        assert_eq!(heard[..2], ["POST a", "DELETE /a"]);
        assert!(
            heard[2].starts_with("GET ") && heard.len() == 3,
            "{heard:?}"
        );
    }

    /// A pin that does not go is tried again, and no reason to end.
    #[test]
    fn a_parent_that_stays_pinned_does_not_end_it() {
        let mut refused = false;
        let server = Told::new(move |call, _| {
            let refuses = call.ends_with("/a") && !std::mem::replace(&mut refused, true);
            (if refuses { 503 } else { 200 }, "{}".into())
        });
        let client = server.client();
        let mut holding = holding();
        holding.add(&client, &imported("a", &[], None)).unwrap();
        holding.add(&client, &imported("b", &["a"], None)).unwrap();
        holding.give_up(&client);
        let heard = short(&server.heard());
        assert_eq!(
            heard,
            ["POST a", "POST b", "DELETE /a", "DELETE /b", "DELETE /a"]
        );
    }

    /// Nobody knows whether a pin was made that got no good answer.
    #[test]
    fn a_pin_that_may_be_there_goes() {
        let server = Told::new(|call, body| {
            let refuses = call.starts_with("POST") && body.contains("\"b\"");
            (if refuses { 503 } else { 404 }, "{}".into())
        });
        let client = server.client();
        let mut holding = holding();
        holding.pinned = vec!["a".into()];
        holding
            .add(&client, &imported("b", &["a"], None))
            .unwrap_err();
        holding.give_up(&client);
        let heard = short(&server.heard());
        assert_eq!(heard, ["POST b", "DELETE /b", "DELETE /a"]);
    }

    #[test]
    fn pins_of_others_stay() {
        let pins = |notes: &[&str]| {
            let pins = notes
                .iter()
                .zip(["c1", "c2", "c3"])
                .map(|(note, commit)| Pin {
                    commit: commit.into(),
                    created: String::new(),
                    note: (*note).into(),
                });
            let items: Vec<Pin> = pins.collect();
            serde_json::json!({ "items": items, "next": null }).to_string()
        };
        let list = pins(&[
            "until a test of tip ends (run 00000000000000ff)",
            "until a test of tip ends",
            "mine",
        ]);
        let server = Told::new(move |_, _| (200, list.clone()));
        let client = server.client();
        let mut holding = holding();
        assert_eq!(
            holding.note,
            "until a test of tip ends (run 00000000000000fe)"
        );
        holding.add(&client, &imported("a", &[], None)).unwrap();
        holding.done(&client);
        let heard = short(&server.heard());
        assert!(
            !heard.iter().any(|call| call.starts_with("DELETE /c")),
            "{heard:?}"
        );
        assert_eq!(heard[..2], ["POST a", "DELETE /a"]);
    }
}
