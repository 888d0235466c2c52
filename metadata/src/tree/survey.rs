//! Where in versions something bad is: a node that cannot be read, or an entry that somebody knows
//! to be bad.
//!
//! A [`Survey`] remembers of each node that it has seen whether anything bad is below it, so that
//! what many versions share is read once: 40 to 80 bytes a node.

use std::collections::HashMap;

use bytes::Bytes;

use super::node::{KeyBuffer, Node, Position};
use super::{NodeId, Root, Tree, TreeError};

/// What is known of nodes of one deduplication domain.
#[derive(Debug, Default)]
pub struct Survey {
    /// Whether anything bad is below.
    nodes: HashMap<NodeId, bool>,
}

/// Something bad in a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadPlace {
    /// An entry of a leaf: key and value.
    Entry(Bytes, Bytes),
    /// A node that cannot be read.
    Node {
        /// Which.
        id: NodeId,
        /// The first key below it; empty if it is not known.
        first: Bytes,
        /// The first key that comes after it; `None` at the end.
        next: Option<Bytes>,
        /// Why it cannot be read.
        error: TreeError,
    },
}

/// A node on the way, and what is known of what is below it.
#[derive(Debug)]
struct Frame {
    at: Position,
    id: NodeId,
    is_bad: bool,
}

impl Frame {
    fn new(node: &Node, is_bad: bool) -> Self {
        Self {
            at: Position::first(node),
            id: node.id(),
            is_bad,
        }
    }
}

/// Whether a store will go on failing to give this node.
fn is_lasting(error: &TreeError) -> bool {
    matches!(
        error,
        TreeError::Missing(_) | TreeError::Damaged { .. } | TreeError::Misshapen { .. }
    )
}

fn has_bad_entry(node: &Node, is_bad: &mut (dyn FnMut(&[u8], &Bytes) -> bool + Send)) -> bool {
    let mut entries = node.leaf_entries();
    let mut found = false;
    while let Some((key, value)) = entries.next_entry() {
        found |= is_bad(key, &value);
    }
    found
}

impl Tree {
    /// Whether anything bad is in a version: a node that cannot be read, or an entry for which
    /// `is_bad` says so. Reads each node once for all versions that `survey` is used for.
    ///
    /// # Errors
    ///
    /// The store cannot serve.
    pub async fn survey(
        &self,
        root: Root,
        survey: &mut Survey,
        is_bad: &mut (dyn FnMut(&[u8], &Bytes) -> bool + Send),
    ) -> Result<bool, TreeError> {
        let Some(id) = root.id() else {
            return Ok(false);
        };
        if let Some(known) = survey.nodes.get(&id) {
            return Ok(*known);
        }
        let mut path: Vec<Frame> = Vec::new();
        match self.nodes.root(root).await {
            Ok(Some(node)) => path.push(Frame::new(&node, has_bad_entry(&node, is_bad))),
            Ok(None) => return Ok(false),
            Err(error) if is_lasting(&error) => {
                survey.nodes.insert(id, true);
                return Ok(true);
            }
            Err(error) => return Err(error),
        }
        let mut result = false;
        while let Some(frame) = path.last_mut() {
            let Some(child) = frame.at.child() else {
                // Past the last child, or a leaf.
                let (id, is_bad) = (frame.id, frame.is_bad);
                survey.nodes.insert(id, is_bad);
                path.pop();
                match path.last_mut() {
                    Some(parent) => parent.is_bad |= is_bad,
                    None => result = is_bad,
                }
                continue;
            };
            frame.at.advance();
            if let Some(known) = survey.nodes.get(&child.id) {
                frame.is_bad |= known;
                continue;
            }
            match self.nodes.child(&child).await {
                Ok(node) => path.push(Frame::new(&node, has_bad_entry(&node, is_bad))),
                Err(error) if is_lasting(&error) => {
                    survey.nodes.insert(child.id, true);
                    frame.is_bad = true;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(result)
    }

    /// Calls `each` for what is bad in a version that [`Tree::survey`] was called for, in the order
    /// of keys, until `each` says `false`. Reads only what leads there.
    ///
    /// # Errors
    ///
    /// The store cannot serve.
    pub async fn bad_places(
        &self,
        root: Root,
        survey: &Survey,
        is_bad: &mut (dyn FnMut(&[u8], &Bytes) -> bool + Send),
        each: &mut (dyn FnMut(BadPlace) -> bool + Send),
    ) -> Result<(), TreeError> {
        let Some(id) = root.id() else {
            return Ok(());
        };
        // Each position with the key that comes after its node.
        let mut path: Vec<(Position, Option<KeyBuffer>)> = Vec::new();
        match self.nodes.root(root).await {
            Ok(node) => path.extend(node.iter().map(|node| (Position::first(node), None))),
            Err(error) if is_lasting(&error) => {
                each(BadPlace::Node {
                    id,
                    first: Bytes::new(),
                    next: None,
                    error,
                });
            }
            Err(error) => return Err(error),
        }
        while let Some((at, after)) = path.last_mut() {
            let Some(key) = at.key().map(KeyBuffer::from_slice) else {
                path.pop();
                continue;
            };
            let (child, value) = (at.child(), at.value());
            at.advance();
            let Some(child) = child else {
                let is_leaf = at.node().level() == 0;
                if is_leaf
                    && is_bad(&key, &value)
                    && !each(BadPlace::Entry(Bytes::copy_from_slice(&key), value))
                {
                    return Ok(());
                }
                continue;
            };
            if survey.nodes.get(&child.id) == Some(&false) {
                continue;
            }
            let next = at.key().map(KeyBuffer::from_slice).or(after.clone());
            match self.nodes.child(&child).await {
                Ok(node) => path.push((Position::first(&node), next)),
                Err(error) if is_lasting(&error) => {
                    let place = BadPlace::Node {
                        id: child.id,
                        first: Bytes::copy_from_slice(&key),
                        next: next.map(|next| Bytes::copy_from_slice(&next)),
                        error,
                    };
                    if !each(place) {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Calls `each` for every entry that can be read, in the order of keys, until it says `false`.
    ///
    /// # Errors
    ///
    /// The store cannot serve.
    pub async fn each_readable(
        &self,
        root: Root,
        each: &mut (dyn FnMut(&[u8], &Bytes) -> bool + Send),
    ) -> Result<(), TreeError> {
        let mut path: Vec<Position> = Vec::new();
        match self.nodes.root(root).await {
            Ok(node) => path.extend(node.iter().map(Position::first)),
            Err(error) if is_lasting(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
        while let Some(at) = path.last_mut() {
            let Some(key) = at.key().map(KeyBuffer::from_slice) else {
                path.pop();
                continue;
            };
            let (child, value, is_leaf) = (at.child(), at.value(), at.node().level() == 0);
            at.advance();
            match child {
                Some(child) => match self.nodes.child(&child).await {
                    Ok(node) => path.push(Position::first(&node)),
                    Err(error) if is_lasting(&error) => {}
                    Err(error) => return Err(error),
                },
                None if is_leaf && !each(&key, &value) => return Ok(()),
                None => {}
            }
        }
        Ok(())
    }
}
