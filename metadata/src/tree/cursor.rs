//! A place among the entries of one level of a version. Moves forward only.

use bytes::Bytes;

use super::fetch::{FETCHES_MAX, Fetcher};
use super::node::{Child, Node, Position};
use super::store::Nodes;
use super::{Counters, NodeError, Root, TreeError};

/// A path from the root to an entry of a level. All methods are safe to drop.
#[derive(Debug)]
pub(super) struct Cursor {
    fetch: Fetcher,
    root: Option<Node>,
    level: u8,
    /// One position a level, the root's first. Empty at the end, and before the first seek.
    path: Vec<Position>,
    started: bool,
    /// How many leaves are asked for in advance.
    window: usize,
    /// No leaf that begins here or later is asked for in advance.
    until: Option<Bytes>,
}

impl Cursor {
    /// Before the entries of `level` in `root`; there may be none.
    pub(super) async fn new(nodes: Nodes, root: Root, level: u8) -> Result<Self, TreeError> {
        let node = nodes.root(root).await?;
        Ok(Self::below(nodes, node, level))
    }

    /// Before the entries of `level` below a root node.
    pub(super) fn below(nodes: Nodes, root: Option<Node>, level: u8) -> Self {
        Self {
            fetch: Fetcher::new(nodes),
            root: root.filter(|root| root.level() >= level),
            level,
            path: Vec::new(),
            started: false,
            window: 0,
            until: None,
        }
    }

    /// Asks for leaves in advance, ever more, but for none that begins at `until` or later.
    pub(super) fn read_ahead(&mut self, until: Option<Bytes>) {
        self.window = 1;
        self.until = until;
    }

    /// Whether the version has nothing at this level.
    pub(super) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// The node the cursor is in.
    pub(super) fn node(&self) -> Option<&Node> {
        Some(self.path.last()?.node())
    }

    /// The entry's key; `None` at the end.
    pub(super) fn key(&self) -> Option<&[u8]> {
        self.path.last()?.key()
    }

    /// The entry: key, value and what it adds to the counters.
    pub(super) fn entry(&self) -> Option<(&[u8], Bytes, Counters)> {
        let at = self.path.last()?;
        Some((at.key()?, at.value(), at.counters()))
    }

    /// Whether the cursor is at the first entry of a node.
    pub(super) fn is_at_node_start(&self) -> bool {
        self.path.last().is_some_and(|at| at.index() == 0)
    }

    /// Goes to the start of the node that holds `key` or would hold it, but not back. Tells whether
    /// that is another node than before.
    pub(super) async fn seek_node(&mut self, key: &[u8]) -> Result<bool, TreeError> {
        if self.started {
            let first = self.node().map(Node::first_key);
            if first.is_none_or(|first| first >= key) {
                self.rewind();
                return Ok(false);
            }
        }
        self.descend(key).await
    }

    /// Goes to the first entry whose key is `key` or more, but not back.
    pub(super) async fn seek_item(&mut self, key: &[u8]) -> Result<(), TreeError> {
        if self.started && self.key().is_none_or(|at| at >= key) {
            return Ok(());
        }
        self.descend(key).await?;
        let Some(at) = self.path.last_mut() else {
            return Ok(());
        };
        *at = Position::seek(at.node(), key);
        match at.key() {
            Some(_) => Ok(()),
            None => self.next_node().await,
        }
    }

    /// Goes to the end.
    pub(super) fn seek_end(&mut self) {
        self.started = true;
        self.path.clear();
    }

    /// Goes to the next entry.
    pub(super) async fn advance(&mut self) -> Result<(), TreeError> {
        let Some(at) = self.path.last_mut() else {
            return Ok(());
        };
        at.advance();
        match at.key() {
            Some(_) => Ok(()),
            None => self.next_node().await,
        }
    }

    /// Goes to the start of the node that the cursor is in.
    fn rewind(&mut self) {
        if let Some(at) = self.path.last_mut() {
            *at = Position::first(at.node());
        }
    }

    /// Goes to the start of the node that `key` belongs to. Keeps what it can of the path.
    async fn descend(&mut self, key: &[u8]) -> Result<bool, TreeError> {
        let mut moved = false;
        if !self.started {
            self.started = true;
            self.path = self.root.iter().map(Position::first).collect();
            moved = true;
        }
        let mut depth = 0;
        while let Some(at) = self.path.get(depth)
            && at.node().level() > self.level
        {
            let covering = Position::covering(at.node(), key);
            if covering.index() != at.index() || self.path.len() == depth + 1 {
                let child = self.fetch.take(&child_at(&covering)?).await?;
                self.path.truncate(depth);
                self.path.extend([covering, Position::first(&child)]);
                moved = true;
            }
            depth += 1;
        }
        self.rewind();
        if moved {
            self.ask_ahead();
        }
        Ok(moved)
    }

    /// Goes to the first entry of the next node, or to the end.
    async fn next_node(&mut self) -> Result<(), TreeError> {
        for depth in (0..self.path.len().saturating_sub(1)).rev() {
            let Some(mut at) = self.path.get(depth).cloned() else {
                break;
            };
            at.advance();
            if at.key().is_none() {
                continue;
            }
            let mut path = vec![at];
            while let Some(last) = path.last()
                && last.node().level() > self.level
            {
                let child = self.fetch.take(&child_at(last)?).await?;
                path.push(Position::first(&child));
            }
            self.path.truncate(depth);
            self.path.append(&mut path);
            self.window = (self.window * 2).min(FETCHES_MAX);
            self.ask_ahead();
            return Ok(());
        }
        self.path.clear();
        Ok(())
    }

    /// The position in the node above the one that the cursor is in.
    fn parent(&self) -> Option<&Position> {
        self.path.get(self.path.len().checked_sub(2)?)
    }

    /// Asks for the leaves that come next.
    fn ask_ahead(&mut self) {
        let Some(mut ahead) = self.parent().filter(|_| self.window > 0).cloned() else {
            return;
        };
        for _ in 0..self.window {
            ahead.advance();
            let Some(child) = ahead.child() else { return };
            let is_wanted = self
                .until
                .as_ref()
                .is_none_or(|end| *child.first_key < **end);
            if !is_wanted || !self.fetch.hint(&child) {
                return;
            }
        }
    }

    /// Asks for the nodes that hold `keys`, which come next in this order.
    pub(super) fn hint_keys<'a>(&mut self, keys: impl Iterator<Item = &'a [u8]>) {
        let Some(parent) = self.parent().cloned() else {
            return;
        };
        let mut last = parent.index();
        for key in keys {
            let covering = Position::covering(parent.node(), key);
            let index = covering.index();
            if index == last {
                continue;
            }
            // The last child holds the key only if the next node does not begin before it.
            if index + 1 == parent.node().count() {
                return;
            }
            last = index;
            if covering
                .child()
                .is_some_and(|child| !self.fetch.hint(&child))
            {
                return;
            }
        }
    }
}

/// The child at a position of an inner node.
///
/// # Errors
///
/// There is none; a checked node has one for each entry.
pub(super) fn child_at(position: &Position) -> Result<Child, TreeError> {
    position.child().ok_or_else(|| TreeError::Damaged {
        id: position.node().id(),
        error: NodeError::Form("damaged child entry"),
    })
}
