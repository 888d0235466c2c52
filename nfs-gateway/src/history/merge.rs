//! Merging two versions of a workspace, or trying to.

use base::{CommitId, SessionId};
use metadata::merge::{
    MergeInput, MergeOptions, Pair, Policy, ShortId, TreeView, conflicts, merge,
};
use metadata::record::commit::Provenance;
use metadata::record::conflict::{Conflict, Sources};
use metadata::record::reference::RefName;
use metadata::session::empty_image;
use metadata::store::{CommitInfo, NewCommit};
use metadata::tree::{Diff, Root};

use super::content::TreeContent;
use super::plan::Tip;
use super::{HistoryError, Scene, commit_of};
use crate::gateway::Gateway;

/// Digits of a commit's id in names of what is put aside.
const LABEL_DIGITS: usize = 8;

/// Two versions, and what both came from.
#[derive(Clone, Debug)]
pub(super) struct Sides {
    pub(super) base: Root,
    pub(super) roots: Pair<Root>,
    pub(super) labels: Pair<ShortId>,
    pub(super) sources: Sources,
}

/// What a merge reads, ready to be borrowed.
struct Arranged {
    content: TreeContent,
    options: MergeOptions,
    views: Pair<TreeView>,
    differences: Pair<Diff>,
}

impl Gateway {
    /// The tree of a merge in which nothing clashes.
    pub(super) async fn merge_or_fail(
        &self,
        scene: &Scene,
        branch: &RefName,
        sides: &Sides,
    ) -> Result<Root, HistoryError> {
        let (root, conflicts) = self.merge_sides(scene, sides, Policy::Fail).await?;
        if conflicts.is_empty() {
            return Ok(root);
        }
        Err(HistoryError::Conflicts {
            branch: branch.as_str().to_owned(),
            conflicts,
        })
    }

    /// What the commit of a merge of `theirs`, the session's commit, into what a branch has is to be.
    pub(super) async fn merge_commit(
        &self,
        scene: &Scene,
        theirs: &CommitInfo,
        (branch, head): (&RefName, CommitId),
        (ours, root): (Root, Root),
    ) -> Result<NewCommit, HistoryError> {
        let (tree, hasher) = (&scene.tree, &scene.hasher);
        Ok(NewCommit {
            parents: vec![head, theirs.id],
            message: format!("Merge {} into {}", label_text(theirs.id), branch.as_str()),
            provenance: Provenance {
                pairs: std::collections::BTreeMap::new(),
                ..theirs.record.provenance.clone()
            },
            ..commit_of::<HistoryError>(tree, hasher, Some(ours), root).await?
        })
    }

    /// What it takes to merge a session's image into what a branch has at `head`.
    pub(super) async fn sides_of(
        &self,
        scene: &Scene,
        head: CommitId,
        tip: &Tip,
    ) -> Result<Sides, HistoryError> {
        let (store, workspace) = (&self.store, scene.workspace);
        let ours = store.commit(workspace, head).await?;
        let base = self.base_of(scene, tip.on, Some(head)).await?;
        let committed = tip.on.filter(|_| tip.is_committed);
        Ok(Sides {
            base: base.1,
            roots: Pair {
                ours: ours.record.root(),
                theirs: tip.root,
            },
            labels: Pair {
                ours: label(head),
                // What is only tried has no commit to be named after.
                theirs: committed.map_or_else(ShortId::unnamed, label),
            },
            sources: Sources {
                base: base.0,
                ours: Some(head),
                theirs: committed,
            },
        })
    }

    /// What the session of a scene and another version came from: the newest of the best common ancestors
    /// of the commits they stand on, or the empty image.
    pub(super) async fn base_of(
        &self,
        scene: &Scene,
        session: Option<CommitId>,
        other: Option<CommitId>,
    ) -> Result<(Option<CommitId>, Root), HistoryError> {
        let bases = match (session, other) {
            (Some(one), Some(two)) => self.store.merge_bases(scene.workspace, one, two).await?,
            _ => Vec::new(),
        };
        let base = bases.first().copied();
        if base.is_none() {
            let by = scene.session.id;
            self.check_related(scene, (by, session), other).await?;
        }
        Ok((base, self.image_of(scene, base).await?))
    }

    /// Refuses a session that has no common ancestor with another version, unless both began with the
    /// empty version, or the session itself did: then all that is there came after that.
    pub(super) async fn check_related(
        &self,
        scene: &Scene,
        (by, session): (SessionId, Option<CommitId>),
        other: Option<CommitId>,
    ) -> Result<(), HistoryError> {
        let (Some(session), Some(other)) = (session, other) else {
            return Ok(());
        };
        let began = |of, by| self.store.began_empty(scene.workspace, of, by);
        if began(session, Some(by)).await?
            || (began(session, None).await? && began(other, None).await?)
        {
            return Ok(());
        }
        Err(HistoryError::Unrelated {
            session: Box::new(session),
            other: Box::new(other),
        })
    }

    /// The image of a commit; the empty image without one.
    pub(super) async fn image_of(
        &self,
        scene: &Scene,
        commit: Option<CommitId>,
    ) -> Result<Root, HistoryError> {
        let (store, workspace) = (&self.store, scene.workspace);
        match commit {
            Some(commit) => Ok(store.commit(workspace, commit).await?.record.root()),
            None => {
                let config = store.workspace(workspace).await?.record;
                Ok(empty_image(&scene.tree, &config).await?)
            }
        }
    }

    /// The tree of a merge, and what clashed. Our tree if the policy is to fail and something did.
    pub(super) async fn merge_sides(
        &self,
        scene: &Scene,
        sides: &Sides,
        policy: Policy,
    ) -> Result<(Root, Vec<Conflict>), HistoryError> {
        let mut arranged = self.arrange(scene, sides, policy).await?;
        let options = arranged.options.clone();
        let mut numbers = self.store.allocate_inodes(scene.workspace).await?;
        let merged = merge(arranged.input(), &options, &mut numbers).await?;
        // What the delta brings over from theirs is not put anew.
        arranged.content.touch(&merged.delta)?;
        let root = scene.tree.apply(sides.roots.ours, merged.delta).await?.root;
        Ok((root, merged.conflicts))
    }

    /// Merges a session's image and what its branch has. The commit of each side, if it has one, names
    /// it in names of what is put aside, and is its source in records. With the policy `Fail` and
    /// conflicts the root is ours.
    pub(super) async fn merge_roots(
        &self,
        scene: &Scene,
        (base, base_root): (Option<CommitId>, Root),
        sides: Pair<(Root, Option<CommitId>)>,
        policy: Policy,
    ) -> Result<(Root, Vec<Conflict>), HistoryError> {
        let sides = Sides {
            base: base_root,
            roots: Pair {
                ours: sides.ours.0,
                theirs: sides.theirs.0,
            },
            labels: Pair {
                ours: sides.ours.1.map_or_else(ShortId::unnamed, label),
                theirs: sides.theirs.1.map_or_else(ShortId::unnamed, label),
            },
            sources: Sources {
                base,
                ours: sides.ours.1,
                theirs: sides.theirs.1,
            },
        };
        self.merge_sides(scene, &sides, policy).await
    }

    /// What would clash in a merge.
    pub(super) async fn try_merge(
        &self,
        scene: &Scene,
        sides: &Sides,
        policy: Policy,
    ) -> Result<Vec<Conflict>, HistoryError> {
        let mut arranged = self.arrange(scene, sides, policy).await?;
        let options = arranged.options.clone();
        Ok(conflicts(arranged.input(), &options).await?)
    }

    async fn arrange(
        &self,
        scene: &Scene,
        sides: &Sides,
        policy: Policy,
    ) -> Result<Arranged, HistoryError> {
        let tree = &scene.tree;
        let workspace = self.store.workspace(scene.workspace).await?;
        let Sides { base, roots, .. } = sides;
        Ok(Arranged {
            content: TreeContent {
                versions: self
                    .versions_in(tree.clone(), scene.tenant, &workspace)
                    .await?,
                base: *base,
                roots: *roots,
            },
            options: MergeOptions {
                policy,
                hasher: scene.hasher.clone(),
                labels: sides.labels.clone(),
                sources: sides.sources,
                unite_execute_bits: false,
            },
            views: Pair {
                ours: TreeView::new(tree.clone(), roots.ours),
                theirs: TreeView::new(tree.clone(), roots.theirs),
            },
            differences: Pair {
                ours: tree.diff(*base, roots.ours),
                theirs: tree.diff(*base, roots.theirs),
            },
        })
    }
}

impl Arranged {
    fn input(&mut self) -> MergeInput<'_> {
        MergeInput {
            views: Pair {
                ours: &self.views.ours,
                theirs: &self.views.theirs,
            },
            differences: Pair {
                ours: &mut self.differences.ours,
                theirs: &mut self.differences.theirs,
            },
            content: &self.content,
        }
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
