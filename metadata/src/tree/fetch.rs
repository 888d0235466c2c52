//! Nodes that are asked for before they are needed.
//!
//! They are read by tasks of their own, so that they arrive also while the reader does something
//! else, and so that a reader that pauses holds up nobody else who wants the same node.

use std::collections::HashMap;

use tokio::sync::oneshot;

use super::node::{Child, Node};
use super::store::Nodes;
use super::{NodeId, TreeError};

/// Most nodes one reader asks for in advance. They take at most 1 MiB, and at a latency of 1 ms
/// are 16,000 nodes, a quarter of a gigabyte, a second.
pub(super) const FETCHES_MAX: usize = 16;

/// Reads nodes, some of them in advance.
#[derive(Debug)]
pub(super) struct Fetcher {
    nodes: Nodes,
    pending: HashMap<NodeId, oneshot::Receiver<Result<Node, TreeError>>>,
}

impl Fetcher {
    pub(super) fn new(nodes: Nodes) -> Self {
        Self {
            nodes,
            pending: HashMap::new(),
        }
    }

    pub(super) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Asks for a child that will be needed soon. `false` if there is no room for more.
    pub(super) fn hint(&mut self, child: &Child) -> bool {
        if self.pending.contains_key(&child.id) || self.nodes.is_cached(child) {
            return true;
        }
        if self.pending.len() >= FETCHES_MAX {
            return false;
        }
        let (sender, receiver) = oneshot::channel();
        let (nodes, child) = (self.nodes.clone(), child.clone());
        self.pending.insert(child.id, receiver);
        self.nodes.tasks().spawn(async move {
            // If the reader is gone, the node is in the cache at least.
            drop(sender.send(nodes.child(&child).await));
        });
        true
    }

    /// Says that a child will not be needed after all.
    pub(super) fn forget(&mut self, id: NodeId) {
        self.pending.remove(&id);
    }

    /// Reads a child. Safe to drop.
    pub(super) async fn take(&mut self, child: &Child) -> Result<Node, TreeError> {
        if let Some(pending) = self.pending.remove(&child.id)
            && let Ok(read) = pending.await
        {
            return read;
        }
        // Not asked for, or its task ended with the runtime.
        self.nodes.child(child).await
    }
}
