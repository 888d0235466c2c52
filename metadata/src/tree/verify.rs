//! Whether a version is what it should be: every node there, right, and where the content puts it.
//!
//! A version is a function of its content, so making it anew must give the same root. One that was
//! made from another needs only what differs: a node that both have is right in one if it is in the
//! other.

use bytes::Bytes;

use super::edit::{Edited, Editor};
use super::scan::Scan;
use super::{Change, Counters, Root, Tree, TreeError};

impl Tree {
    /// Reads a whole version and makes it anew: every node must be there, right, and where the
    /// content puts it.
    ///
    /// # Errors
    ///
    /// What is wrong first.
    pub async fn verify(&self, root: Root) -> Result<Counters, TreeError> {
        self.verify_each(root, |_, _| {}).await
    }

    /// As [`Tree::verify`]; calls `each` for every key and its value, in order.
    ///
    /// # Errors
    ///
    /// As [`Tree::verify`]. `each` may have been called.
    pub async fn verify_each(
        &self,
        root: Root,
        mut each: impl FnMut(&[u8], &Bytes) + Send,
    ) -> Result<Counters, TreeError> {
        let nowhere = self.nodes.storing_nowhere();
        let mut editor = Editor::new(nowhere, self.rule.clone(), Root::EMPTY).await?;
        let mut scan = Scan::all(self.nodes.clone(), root);
        while let Some((key, value)) = scan.next().await? {
            editor.put(&key, &value).await?;
            each(&key, &value);
        }
        same(root, &editor.finish().await?)
    }

    /// As [`Tree::verify`], for a version that has much in common with `verified`, which is right:
    /// reads what differs, and calls `each` for it, in the order of keys.
    ///
    /// # Errors
    ///
    /// As [`Tree::verify`]. `each` may have been called.
    pub async fn verify_change(
        &self,
        verified: Root,
        root: Root,
        mut each: impl FnMut(&Change) + Send,
    ) -> Result<Counters, TreeError> {
        let nodes = self.nodes.without_storing();
        let mut editor = Editor::new(nodes, self.rule.clone(), verified).await?;
        let mut diff = self.diff(verified, root);
        while let Some(change) = diff.next().await? {
            match &change.new {
                Some(value) => editor.put(&change.key, value).await?,
                None => editor.remove(&change.key).await?,
            }
            each(&change);
        }
        same(root, &editor.finish().await?)
    }
}

fn same(root: Root, edited: &Edited) -> Result<Counters, TreeError> {
    match (root.id(), edited.root.id()) {
        (Some(found), Some(wanted)) if found != wanted => {
            Err(TreeError::Misshapen { found, wanted })
        }
        _ => Ok(edited.counters),
    }
}
