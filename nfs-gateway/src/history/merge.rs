//! Merging a session's commit with what its branch has.

use std::sync::Arc;

use base::{CommitId, DomainId};
use chunkstore::Domain;
use metadata::compare::statistics;
use metadata::merge::{MergeInput, MergeOptions, Pair, Policy, ShortId, TreeView, merge};
use metadata::record::commit::Provenance;
use metadata::record::conflict::{Conflict, Sources};
use metadata::record::reference::RefName;
use metadata::session::empty_image;
use metadata::store::{CommitInfo, NewCommit};
use metadata::tree::Root;

use super::content::TreeContent;
use super::{HistoryError, Scene, node_of, root_of};
use crate::gateway::Gateway;

/// Digits of a commit's id in names of what is put aside.
const LABEL_DIGITS: usize = 8;

/// A merge that is on no branch yet.
pub(super) struct MergeCommit {
    pub(super) commit: CommitInfo,
    pub(super) conflicts: Vec<Conflict>,
}

impl Gateway {
    /// Merges `theirs`, the session's commit, into what a branch has at `head`.
    pub(super) async fn merge_into(
        self: &Arc<Self>,
        scene: &Scene,
        theirs: &CommitInfo,
        (branch, head): (&RefName, CommitId),
        policy: Policy,
    ) -> Result<MergeCommit, HistoryError> {
        let (store, workspace, tree) = (&self.store, scene.workspace, &scene.tree);
        let (root, conflicts) = self
            .merge_trees(scene, theirs, (branch, head), policy)
            .await?;
        let ours = root_of(&store.commit(workspace, head).await?.record.tree);
        let stored = match policy {
            Policy::KeepBoth => u64::try_from(conflicts.len()).unwrap_or(u64::MAX),
            Policy::Fail | Policy::Ours | Policy::Theirs => 0,
        };
        let new = NewCommit {
            tree: node_of(root),
            usage: self.usage(tree, root).await?,
            parents: vec![head, theirs.id],
            statistics: statistics(tree, &scene.hasher, Some(ours), root).await?,
            conflicts: stored,
            message: format!("Merge {} into {}", label_text(theirs.id), branch.as_str()),
            provenance: Provenance {
                pairs: std::collections::BTreeMap::new(),
                ..theirs.record.provenance.clone()
            },
        };
        let commit = store.put_commit(workspace, new).await?;
        Ok(MergeCommit { commit, conflicts })
    }

    /// The tree of a merge, and what clashed.
    async fn merge_trees(
        self: &Arc<Self>,
        scene: &Scene,
        theirs: &CommitInfo,
        (branch, head): (&RefName, CommitId),
        policy: Policy,
    ) -> Result<(Root, Vec<Conflict>), HistoryError> {
        let (store, workspace, tree) = (&self.store, scene.workspace, &scene.tree);
        let ours = store.commit(workspace, head).await?;
        let bases = store.merge_bases(workspace, head, theirs.id).await?;
        let config = store.workspace(workspace).await?.record;
        let base = match bases.first() {
            Some(base) => root_of(&store.commit(workspace, *base).await?.record.tree),
            // Whatever has no parent began with an empty workspace.
            None => empty_image(tree, &config).await?,
        };
        let roots = Pair {
            ours: root_of(&ours.record.tree),
            theirs: root_of(&theirs.record.tree),
        };
        let options = MergeOptions {
            policy,
            hasher: scene.hasher.clone(),
            labels: Pair {
                ours: label(head),
                theirs: label(theirs.id),
            },
            sources: Sources {
                base: bases.first().copied(),
                ours: Some(head),
                theirs: Some(theirs.id),
            },
            unite_execute_bits: false,
        };
        let content = TreeContent {
            tree: tree.clone(),
            base,
            roots,
            block_bytes: config.block_bytes,
            chunks: Arc::clone(&self.chunks),
            domain: Domain {
                id: DomainId::new(scene.tenant.raw()),
                key: store.tenant(scene.tenant).await?.domain_key,
            },
        };
        let views = Pair {
            ours: TreeView::new(tree.clone(), roots.ours),
            theirs: TreeView::new(tree.clone(), roots.theirs),
        };
        let (mut left, mut right) = (tree.diff(base, roots.ours), tree.diff(base, roots.theirs));
        let input = MergeInput {
            views: Pair {
                ours: &views.ours,
                theirs: &views.theirs,
            },
            differences: Pair {
                ours: &mut left,
                theirs: &mut right,
            },
            content: &content,
        };
        let mut numbers = store.allocate_inodes(workspace).await?;
        let merged = merge(input, &options, &mut numbers).await?;
        if policy == Policy::Fail && !merged.conflicts.is_empty() {
            return Err(HistoryError::Conflicts {
                branch: branch.as_str().to_owned(),
                conflicts: merged.conflicts,
            });
        }
        // What the delta brings over from theirs is not put anew.
        content.touch(&merged.delta)?;
        let root = tree.apply(roots.ours, merged.delta).await?.root;
        Ok((root, merged.conflicts))
    }
}

fn label_text(commit: CommitId) -> String {
    commit.to_string().chars().take(LABEL_DIGITS).collect()
}

fn label(commit: CommitId) -> ShortId {
    let text = label_text(commit);
    // Hexadecimal digits are letters and digits.
    ShortId::new(&text).unwrap_or_else(|_| ShortId::unnamed())
}
