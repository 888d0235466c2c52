//! What differs between two versions.
//!
//! Each side is a sequence of entries and of whole subtrees not yet looked into. The heads of the
//! two sequences are compared by their first key:
//!
//! - The smaller key is in one version only. An entry is reported; a subtree is looked into, for it
//!   cannot be in the other version, where that key is missing.
//! - Equal keys, one subtree higher than the other: the higher is looked into.
//! - Equal keys and levels: equal entries and equal ids are skipped, unequal subtrees are looked into.
//!
//! So a subtree is looked into only if it differs from whatever could stand in its place, and a node
//! is read only if it differs or if the trees are of different height.

use std::cmp::Ordering;

use bytes::Bytes;

use super::cursor::child_at;
use super::fetch::Fetcher;
use super::node::Position;
use super::store::Nodes;
use super::{NodeId, Root, TreeError};

/// Siblings that are looked at for what to ask for in advance.
const SIBLINGS_AHEAD: usize = 32;

/// A key whose value differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Bytes,
    /// Its value in the first version.
    pub old: Option<Bytes>,
    /// Its value in the second.
    pub new: Option<Bytes>,
}

/// Compares two versions. Holds one path of nodes each and what it has asked for in advance.
#[derive(Debug)]
pub struct Diff {
    nodes: Nodes,
    old: Side,
    new: Side,
    /// The roots, until the comparison begins.
    roots: Option<(Root, Root)>,
}

/// One version as far as it is not compared yet.
#[derive(Debug)]
struct Side {
    fetch: Fetcher,
    /// The last is at the head; those before are at the nodes that the next one lies in.
    path: Vec<Position>,
}

/// What comes next on one side.
#[derive(Debug, PartialEq, Eq)]
struct Head<'a> {
    key: &'a [u8],
    /// Level of the node that the head lies in; 0 for an entry.
    level: u8,
    /// The subtree.
    child: Option<NodeId>,
}

/// What to do about two heads.
#[derive(Clone, Copy, Debug)]
enum Step {
    Old,
    New,
    Both,
}

impl Diff {
    pub(super) fn new(nodes: Nodes, old: Root, new: Root) -> Self {
        Self {
            old: Side::new(nodes.clone()),
            new: Side::new(nodes.clone()),
            nodes,
            roots: Some((old, new)),
        }
    }

    /// The next key that differs; `None` after the last. Values share the memory of their nodes.
    ///
    /// # Errors
    ///
    /// A node is missing or damaged, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Safe to drop; nothing is skipped.
    pub async fn next(&mut self) -> Result<Option<Change>, TreeError> {
        if let Some((old, new)) = self.roots {
            if old != new {
                let nodes = (self.nodes.root(old).await?, self.nodes.root(new).await?);
                self.old.path = nodes.0.iter().map(Position::first).collect();
                self.new.path = nodes.1.iter().map(Position::first).collect();
            }
            self.roots = None;
        }
        loop {
            let (old, new) = (self.old.head(), self.new.head());
            let Some(step) = step(old.as_ref(), new.as_ref()) else {
                return Ok(None);
            };
            let is_same = old.is_some() && old == new;
            let level = match step {
                Step::Old => old.map(|head| head.level),
                Step::New | Step::Both => new.map(|head| head.level),
            };
            let level = level.unwrap_or_default();
            if level > 0 && !(is_same && matches!(step, Step::Both)) {
                self.look_into(step, level).await?;
                continue;
            }
            if let Some(change) = self.pass(step) {
                return Ok(Some(change));
            }
        }
    }

    /// Goes past the heads; tells the change if they are entries that differ.
    fn pass(&mut self, step: Step) -> Option<Change> {
        let old = matches!(step, Step::Old | Step::Both).then(|| self.old.pass());
        let new = matches!(step, Step::New | Step::Both).then(|| self.new.pass());
        let (old, new) = (old.flatten(), new.flatten());
        let key = match (&old, &new) {
            (Some((_, old)), Some((_, new))) if old == new => return None,
            (Some((key, _)), _) | (None, Some((key, _))) => key.clone(),
            (None, None) => return None,
        };
        Some(Change {
            key,
            old: old.map(|(_, value)| value),
            new: new.map(|(_, value)| value),
        })
    }

    /// Puts the content of the head's subtree in its place.
    async fn look_into(&mut self, step: Step, level: u8) -> Result<(), TreeError> {
        if matches!(step, Step::Both) {
            // Both at once.
            self.old.hint();
            self.new.hint();
        }
        // Asked for before the first is waited for. What is below is asked for when it is known.
        self.old.hint_siblings(&self.new, level);
        self.new.hint_siblings(&self.old, level);
        let old = match step {
            Step::Old | Step::Both => Some(self.old.read().await?),
            Step::New => None,
        };
        let new = match step {
            Step::New | Step::Both => Some(self.new.read().await?),
            Step::Old => None,
        };
        self.old.path.extend(old.flatten());
        self.new.path.extend(new.flatten());
        Ok(())
    }
}

fn step(old: Option<&Head<'_>>, new: Option<&Head<'_>>) -> Option<Step> {
    let (old, new) = match (old, new) {
        (None, None) => return None,
        (Some(_), None) => return Some(Step::Old),
        (None, Some(_)) => return Some(Step::New),
        (Some(old), Some(new)) => (old, new),
    };
    let higher_last = old.key.cmp(new.key).then(new.level.cmp(&old.level));
    Some(match higher_last {
        Ordering::Less => Step::Old,
        Ordering::Greater => Step::New,
        Ordering::Equal => Step::Both,
    })
}

impl Side {
    fn new(nodes: Nodes) -> Self {
        Self {
            fetch: Fetcher::new(nodes),
            path: Vec::new(),
        }
    }

    fn head(&self) -> Option<Head<'_>> {
        let at = self.path.last()?;
        Some(Head {
            key: at.key()?,
            level: at.node().level(),
            child: at.child().map(|child| child.id),
        })
    }

    /// Goes past the head; tells key and value if it is an entry.
    fn pass(&mut self) -> Option<(Bytes, Bytes)> {
        let at = self.path.last()?;
        let is_entry = at.node().level() == 0;
        let key = at.key().filter(|_| is_entry).map(Bytes::copy_from_slice);
        let passed = key.map(|key| (key, at.value()));
        while let Some(at) = self.path.last_mut() {
            at.advance();
            if at.key().is_some() {
                break;
            }
            self.path.pop();
        }
        passed
    }

    /// Reads the head's subtree.
    async fn read(&mut self) -> Result<Option<Position>, TreeError> {
        let Some(at) = self.path.last() else {
            return Ok(None);
        };
        let child = self.fetch.take(&child_at(at)?).await?;
        Ok(Some(Position::first(&child)))
    }

    /// Asks for the head's subtree.
    fn hint(&mut self) {
        if let Some(child) = self.path.last().and_then(Position::child) {
            self.fetch.hint(&child);
        }
    }

    /// The position in the node of `level` that the head lies in.
    fn in_level(&self, level: u8) -> Option<&Position> {
        self.path.iter().find(|at| at.node().level() == level)
    }

    /// Asks for subtrees that come after the head in its node of `level`, if they are surely not in
    /// the other version.
    fn hint_siblings(&mut self, other: &Self, level: u8) {
        let Some(mut ahead) = self.in_level(level).cloned() else {
            return;
        };
        let other_node = other.in_level(level).map(Position::node);
        if other_node.is_none() && !other.path.is_empty() {
            return;
        }
        for _ in 0..SIBLINGS_AHEAD {
            ahead.advance();
            let Some(child) = ahead.child() else { return };
            if let Some(other_node) = other_node {
                let found = Position::seek(other_node, &child.first_key);
                match found.child() {
                    // It may be in the other version's next node.
                    None => return,
                    Some(found) if found == child => continue,
                    Some(_) => {}
                }
            }
            if !self.fetch.hint(&child) {
                return;
            }
        }
    }
}
