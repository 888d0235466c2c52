//! Every node of a version: what collection, copying and counting need.

use super::cursor::child_at;
use super::fetch::Fetcher;
use super::node::{Node, Position};
use super::store::Nodes;
use super::{NodeId, Root, TreeError};

/// Goes through the nodes, each before those below it, in the order of keys.
#[derive(Debug)]
pub struct Walk {
    fetch: Fetcher,
    /// The root, until it was given out.
    root: Option<Root>,
    /// The next child of each node on the way.
    path: Vec<Position>,
}

impl Walk {
    pub(super) fn new(nodes: Nodes, root: Root) -> Self {
        Self {
            fetch: Fetcher::new(nodes),
            root: Some(root),
            path: Vec::new(),
        }
    }

    /// The next node; `None` after the last. Nodes for which `skip` says so are not read, nor is
    /// anything below them.
    ///
    /// # Errors
    ///
    /// A node is missing or damaged, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Safe to drop; nothing is left out.
    pub async fn next(
        &mut self,
        skip: impl Fn(NodeId) -> bool + Send,
    ) -> Result<Option<Node>, TreeError> {
        if let Some(root) = self.root {
            let is_wanted = root.id().is_some_and(|id| !skip(id));
            let node = if is_wanted {
                self.fetch.nodes().root(root).await?
            } else {
                None
            };
            self.root = None;
            self.path = node.iter().map(Position::first).collect();
            return Ok(node);
        }
        while let Some(at) = self.path.last() {
            if at.node().level() == 0 || at.key().is_none() {
                self.path.pop();
                continue;
            }
            let child = child_at(at)?;
            let node = if skip(child.id) {
                self.fetch.forget(child.id);
                None
            } else {
                ask_ahead(&mut self.fetch, at, &skip);
                Some(self.fetch.take(&child).await?)
            };
            if let Some(at) = self.path.last_mut() {
                at.advance();
            }
            if let Some(node) = node {
                self.path.push(Position::first(&node));
                return Ok(Some(node));
            }
        }
        Ok(None)
    }
}

/// Asks for the siblings after `at`.
fn ask_ahead(fetch: &mut Fetcher, at: &Position, skip: &(impl Fn(NodeId) -> bool + Send)) {
    let mut ahead = at.clone();
    loop {
        ahead.advance();
        let Some(child) = ahead.child() else { return };
        if !skip(child.id) && !fetch.hint(&child) {
            return;
        }
    }
}
