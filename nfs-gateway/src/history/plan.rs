//! How a session's image would come to a branch, and on what two sessions would clash.

use std::sync::Arc;

use base::{CommitId, SessionId, TenantId};
use metadata::conflicts::{self, PAGE_MAX, Unresolved};
use metadata::keyspace::image as keys;
use metadata::merge::{Pair, Policy, ShortId};
use metadata::record::conflict::{Conflict, Sources};
use metadata::record::reference::{RefKind, RefName};
use metadata::store::StoreError;
use metadata::tree::Root;

use super::merge::Sides;
use super::{HistoryError, Outcome, Scene};
use crate::gateway::Gateway;

/// A session's image on its way to a branch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tip {
    pub(super) root: Root,
    /// The commit that it is, or stands on.
    pub(super) on: Option<CommitId>,
    /// It is that commit's image.
    pub(super) is_committed: bool,
}

/// A merge without conflicts that was made before there was a commit to merge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    /// Where the branch was.
    pub(super) head: CommitId,
    /// The session's image.
    pub(super) theirs: Root,
    /// What both come to.
    pub(super) merged: Root,
}

/// How a branch takes an image in.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// There is no such branch: it is made.
    Create,
    /// It has all of it.
    UpToDate(CommitId),
    /// It goes forward.
    Forward(CommitId),
    /// It goes on to a merge of these.
    Merge(CommitId, Box<Sides>),
}

/// Conflicts that would come to a branch unresolved, or stay there.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    /// The first of them.
    pub first: Vec<Unresolved>,
    /// How many there are.
    pub total: u64,
}

/// What a publish would do. Nothing has been done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The branch.
    pub branch: RefName,
    /// Where it is.
    pub head: Option<CommitId>,
    /// How it would get on.
    pub outcome: Outcome,
    /// What would clash. Where the other version would be put is not known before it is done.
    pub conflicts: Vec<Conflict>,
    /// Conflicts of the session that would come to the branch.
    pub unresolved: Carried,
    /// It would be refused, because of one or the other.
    pub is_refused: bool,
}

/// What two sessions would clash on.
#[derive(Clone, Debug)]
pub struct Clashes {
    /// The commit that both came from; none if they have none in common.
    pub base: Option<CommitId>,
    /// What clashes: ours is the first session, theirs the second.
    pub conflicts: Vec<Conflict>,
}

impl Gateway {
    /// Tells what a publish would do now. It makes no commit and moves no branch.
    ///
    /// # Errors
    ///
    /// See [`HistoryError`]. What would be refused for conflicts is no error here.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn plan_publish(
        self: &Arc<Self>,
        tenant: TenantId,
        session: SessionId,
        branch: Option<RefName>,
        policy: Policy,
    ) -> Result<Plan, HistoryError> {
        let _hold = self.chunks.hold();
        let scene = self.scene(tenant, session).await?;
        let branch = branch.unwrap_or_else(|| scene.branch());
        let tip = self.tip(&scene).await?;
        let way = self.way(&scene, &branch, &tip).await?;
        let unresolved = self.carried(&scene, &tip, &way).await?;
        let conflicts = match way.sides() {
            Some(sides) => self.try_merge(&scene, sides, policy).await?,
            None => Vec::new(),
        };
        let clashes = policy == Policy::Fail && !conflicts.is_empty();
        let carries = policy != Policy::KeepBoth && unresolved.total > 0;
        Ok(Plan {
            branch,
            head: way.head(),
            outcome: way.outcome(),
            conflicts: conflicts.into_iter().map(without_aside).collect(),
            unresolved,
            is_refused: clashes || carries,
        })
    }

    /// Tells what two sessions of one workspace would clash on if both were published now. It makes
    /// no commit. With `is_stored` the second one stays where it is: what it has in the store is compared, which is
    /// all that its gateway has if that has compared it just now.
    ///
    /// # Errors
    ///
    /// See [`HistoryError`]; `Invalid` if they are of different workspaces.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn clashes(
        self: &Arc<Self>,
        tenant: TenantId,
        one: SessionId,
        two: SessionId,
        is_stored: bool,
    ) -> Result<Clashes, HistoryError> {
        let _hold = self.chunks.hold();
        let scene = self.scene(tenant, one).await?;
        let other = self.store.session(tenant, two).await?;
        if other.record.workspace != scene.workspace {
            let why = format!("sessions {one} and {two} are of different workspaces");
            return Err(StoreError::Invalid { why }.into());
        }
        let on = (scene.session.record.commit, other.record.commit);
        let roots = Pair {
            ours: self.snapshot(one).await?,
            theirs: match other.record.base.filter(|_| is_stored) {
                Some(root) => root,
                None => self.snapshot(two).await?,
            },
        };
        let (base, base_root) = self.base_of(&scene, on.0, on.1).await?;
        if base.is_none() {
            self.check_related(&scene, (two, on.1), on.0).await?;
        }
        let sides = Sides {
            base: base_root,
            roots,
            labels: Pair {
                ours: ShortId::unnamed(),
                theirs: ShortId::unnamed(),
            },
            sources: Sources {
                base,
                ..Sources::default()
            },
        };
        let conflicts = self.try_merge(&scene, &sides, Policy::KeepBoth).await?;
        let conflicts = conflicts.into_iter().map(without_aside).collect();
        Ok(Clashes { base, conflicts })
    }

    /// The session's image as it is now.
    async fn tip(self: &Arc<Self>, scene: &Scene) -> Result<Tip, HistoryError> {
        let root = self.snapshot(scene.session.id).await?;
        let on = scene.session.record.commit;
        let before = match on {
            Some(on) => {
                let commit = self.store.commit(scene.workspace, on).await?;
                Some(commit.record.root())
            }
            None => None,
        };
        Ok(Tip {
            root,
            on,
            is_committed: before == Some(root),
        })
    }

    /// Refuses a publish that would be refused, before a commit is made for it: nobody would know of
    /// that, and it would keep its content. The merge that this takes is made once: it comes to the
    /// same tree when there is a commit.
    pub(super) async fn merge_ahead(
        self: &Arc<Self>,
        scene: &Scene,
        branch: &RefName,
        policy: Policy,
    ) -> Result<Option<Ahead>, HistoryError> {
        let tip = self.tip(scene).await?;
        if tip.is_committed {
            return Ok(None);
        }
        let way = self.admit(scene, branch, &tip, policy).await?;
        let (Policy::Fail, Way::Merge(head, sides)) = (policy, way) else {
            return Ok(None);
        };
        Ok(Some(Ahead {
            head,
            theirs: tip.root,
            merged: self.merge_or_fail(scene, branch, &sides).await?,
        }))
    }

    /// How a branch would take an image in. Refuses what brings unresolved
    /// conflicts, unless the policy takes them along.
    pub(super) async fn admit(
        &self,
        scene: &Scene,
        branch: &RefName,
        tip: &Tip,
        policy: Policy,
    ) -> Result<Way, HistoryError> {
        let way = self.way(scene, branch, tip).await?;
        if policy != Policy::KeepBoth {
            let conflicts = self.carried(scene, tip, &way).await?;
            if conflicts.total > 0 {
                let branch = branch.as_str().to_owned();
                return Err(HistoryError::Unresolved { branch, conflicts });
            }
        }
        Ok(way)
    }

    /// How a branch, as it is now, would take an image in.
    pub(super) async fn way(
        &self,
        scene: &Scene,
        branch: &RefName,
        tip: &Tip,
    ) -> Result<Way, HistoryError> {
        let (store, workspace) = (&self.store, scene.workspace);
        let state = match store.reference(workspace, branch).await {
            Ok(found) => found.record.state,
            Err(StoreError::NotFound { .. }) => return Ok(Way::Create),
            Err(error) => return Err(error.into()),
        };
        let head = state.commit;
        if let Some(on) = tip.on
            && tip.is_committed
            && store.is_ancestor(workspace, on, head).await?
        {
            return Ok(Way::UpToDate(head));
        }
        if state.kind == RefKind::Tag {
            let name = branch.as_str();
            let why = format!("tag {name:?} stays where it is: publish to a branch");
            return Err(StoreError::Refused { why }.into());
        }
        match tip.on {
            Some(on) if store.is_ancestor(workspace, head, on).await? => Ok(Way::Forward(head)),
            _ => {
                let sides = self.sides_of(scene, head, tip).await?;
                Ok(Way::Merge(head, Box::new(sides)))
            }
        }
    }

    /// The session's conflicts that would be on the branch: all, but those that the branch has
    /// resolved since the base of the merge.
    pub(super) async fn carried(
        &self,
        scene: &Scene,
        tip: &Tip,
        way: &Way,
    ) -> Result<Carried, HistoryError> {
        let mut carried = Carried::default();
        if let Way::UpToDate(_) = way {
            return Ok(carried);
        }
        let tree = &scene.tree;
        let mut after = None;
        loop {
            let page = conflicts::list(tree, tip.root, after, PAGE_MAX).await?;
            after = page.items.last().map(|last| last.id);
            for unresolved in page.items {
                if let Some(sides) = way.sides() {
                    let key = keys::conflict(&unresolved.id);
                    let was_there = tree.get(sides.base, &key).await?.is_some();
                    if was_there && tree.get(sides.roots.ours, &key).await?.is_none() {
                        continue;
                    }
                }
                carried.total += 1;
                if carried.first.len() < PAGE_MAX {
                    carried.first.push(unresolved);
                }
            }
            if !page.more {
                return Ok(carried);
            }
        }
    }
}

impl Way {
    fn head(&self) -> Option<CommitId> {
        match self {
            Self::Create => None,
            Self::UpToDate(head) | Self::Forward(head) | Self::Merge(head, _) => Some(*head),
        }
    }

    /// What is merged.
    fn sides(&self) -> Option<&Sides> {
        match self {
            Self::Merge(_, sides) => Some(sides),
            Self::Create | Self::UpToDate(_) | Self::Forward(_) => None,
        }
    }

    fn outcome(&self) -> Outcome {
        match self {
            Self::Create => Outcome::Created,
            Self::UpToDate(_) => Outcome::UpToDate,
            Self::Forward(_) => Outcome::FastForward,
            Self::Merge(..) => Outcome::Merged,
        }
    }
}

/// A merge that was only tried has put nothing anywhere.
fn without_aside(conflict: Conflict) -> Conflict {
    Conflict {
        aside: None,
        ..conflict
    }
}
