//! What differs between a version and either of two that were made from it.

use std::cmp::Ordering;

use bytes::Bytes;

use super::TreeError;
use super::diff::{Change, Diff};

/// A key that either side changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreeWay {
    /// The key.
    pub key: Bytes,
    /// Its value in the common version.
    pub base: Option<Bytes>,
    /// Its value on our side.
    pub ours: Option<Bytes>,
    /// Its value on their side.
    pub theirs: Option<Bytes>,
}

/// Compares a version with two others: the two comparisons, joined by key.
#[derive(Debug)]
pub struct Diff3 {
    ours: Ahead,
    theirs: Ahead,
}

/// A comparison and its next change.
#[derive(Debug)]
struct Ahead {
    diff: Diff,
    next: Option<Change>,
    ended: bool,
}

impl Ahead {
    fn new(diff: Diff) -> Self {
        Self {
            diff,
            next: None,
            ended: false,
        }
    }

    async fn fill(&mut self) -> Result<(), TreeError> {
        if self.next.is_none() && !self.ended {
            self.next = self.diff.next().await?;
            self.ended = self.next.is_none();
        }
        Ok(())
    }
}

impl Diff3 {
    pub(super) fn new(ours: Diff, theirs: Diff) -> Self {
        Self {
            ours: Ahead::new(ours),
            theirs: Ahead::new(theirs),
        }
    }

    /// The next key that either side changed; `None` after the last. That both sides made the same
    /// change shows in equal values. Values share the memory of their nodes.
    ///
    /// # Errors
    ///
    /// A node is missing or damaged, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Safe to drop; nothing is skipped.
    pub async fn next(&mut self) -> Result<Option<ThreeWay>, TreeError> {
        self.ours.fill().await?;
        self.theirs.fill().await?;
        let order = match (&self.ours.next, &self.theirs.next) {
            (None, None) => return Ok(None),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(ours), Some(theirs)) => ours.key.cmp(&theirs.key),
        };
        let ours = self.ours.next.take_if(|_| order.is_le());
        let theirs = self.theirs.next.take_if(|_| order.is_ge());
        Ok(match (ours, theirs) {
            (Some(ours), Some(theirs)) => Some(ThreeWay {
                key: ours.key,
                base: ours.old,
                ours: ours.new,
                theirs: theirs.new,
            }),
            (Some(ours), None) => Some(ThreeWay {
                key: ours.key,
                theirs: ours.old.clone(),
                base: ours.old,
                ours: ours.new,
            }),
            (None, Some(theirs)) => Some(ThreeWay {
                key: theirs.key,
                ours: theirs.old.clone(),
                base: theirs.old,
                theirs: theirs.new,
            }),
            (None, None) => None,
        })
    }
}
