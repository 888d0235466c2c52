//! Versions in snapshot trees, as a merge reads them.

use bytes::Bytes;

use super::{Difference, Differences, ImageView, MergeFuture};
use crate::kv::KeyRange;
use crate::layers::{ImageError, Scanned};
use crate::tree::{Diff, Root, Tree};

/// A version in a tree.
#[derive(Clone, Debug)]
pub struct TreeView {
    tree: Tree,
    root: Root,
}

impl TreeView {
    /// The version `root` of `tree`.
    #[must_use]
    pub fn new(tree: Tree, root: Root) -> Self {
        Self { tree, root }
    }
}

impl ImageView for TreeView {
    fn get<'a>(&'a self, key: &'a [u8]) -> MergeFuture<'a, Option<Bytes>, ImageError> {
        Box::pin(async move { Ok(self.tree.get(self.root, key).await?) })
    }

    fn scan<'a>(
        &'a self,
        range: &'a KeyRange,
        pairs_max: usize,
    ) -> MergeFuture<'a, Scanned, ImageError> {
        Box::pin(async move {
            let mut scan = self.tree.scan(self.root, range);
            let mut found = Scanned::default();
            while let Some(pair) = scan.next().await? {
                found.pairs.push(pair);
                if found.pairs.len() >= pairs_max {
                    found.covered_to = found.pairs.last().map(|(key, _)| key.clone());
                    break;
                }
            }
            Ok(found)
        })
    }
}

impl Differences for Diff {
    fn next(&mut self) -> MergeFuture<'_, Option<Difference>, ImageError> {
        Box::pin(async move {
            let change = Self::next(self).await?;
            Ok(change.map(|change| Difference {
                key: change.key,
                old: change.old,
                new: change.new,
            }))
        })
    }
}
