//! Bringing what a branch has into a live session (`docs/design/0012-outside.md`, invariant 11).

use std::sync::Arc;

use base::{CommitId, OperationId, SessionId, TenantId};
use metadata::merge::{Pair, Policy};
use metadata::record::changed::ChangedPaths;
use metadata::record::conflict::Conflict;
use metadata::record::reference::RefName;
use metadata::restore::{Newcomers, is_as};
use metadata::store::{KeyedCall, NewCommit};
use metadata::tree::Root;

use super::restore::{Commits, Prepared};
use super::{HistoryError, Scene, commit_of};
use crate::gateway::Gateway;
use crate::session::{Change, Target};

/// How a session got what its branch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncOutcome {
    /// It had all of it.
    UpToDate,
    /// It had nothing of its own and stands on the branch's commit now.
    FastForward,
    /// It stands on a merge now.
    Merged,
}

/// What syncing came to, or would come to.
#[derive(Clone, Debug)]
pub struct Synced {
    /// The branch.
    pub branch: RefName,
    /// The branch's commit.
    pub head: CommitId,
    /// How the session got it.
    pub outcome: SyncOutcome,
    /// The commit that the session stands on now.
    pub commit: Option<CommitId>,
    /// A commit that has what the session had, and the operation, which can be undone. `None` if
    /// nothing was changed.
    pub done: Option<(CommitId, OperationId)>,
    /// Conflicts that the policy settled.
    pub conflicts: Vec<Conflict>,
    /// What clients have to look at anew.
    pub changed: ChangedPaths,
}

/// What is known before the calls of clients are held up.
#[derive(Clone, Debug)]
struct Plan {
    /// The commit that the session stood on.
    stands: Option<CommitId>,
    head: CommitId,
    outcome: SyncOutcome,
    /// A commit that has what the session had, if there is one yet.
    before: Option<CommitId>,
    /// What the commit of the merge is to be, if there is one and that is known yet.
    merge: Option<NewCommit>,
    conflicts: Vec<Conflict>,
    prepared: Prepared,
}

/// All that an exchange takes.
struct Ready {
    plan: Plan,
    before: CommitId,
    /// None if the session gets what the branch has.
    merge: Option<NewCommit>,
}

struct Syncing<'a> {
    gateway: &'a Arc<Gateway>,
    scene: &'a Scene,
    branch: RefName,
    policy: Policy,
    attempt: Attempt,
    plan: Option<Plan>,
    made: Option<Made>,
    call: Option<KeyedCall>,
}

/// An exchange that was made ready.
struct Made {
    before: CommitId,
    after: CommitId,
    operation: OperationId,
}

impl Gateway {
    /// Brings what the session's branch has into the session, under its clients: the session's own
    /// changes are merged with it. A trial changes nothing, and
    /// conflicts are no error of it.
    ///
    /// # Errors
    ///
    /// See [`HistoryError`]. Nothing was changed then, but for `Unknown`.
    ///
    /// # Cancellation
    ///
    /// A trial is safe to drop. Else not cancel-safe: it may or may not be done.
    pub async fn sync(
        self: &Arc<Self>,
        tenant: TenantId,
        session: SessionId,
        policy: Policy,
        attempt: Attempt,
    ) -> Result<Synced, HistoryError> {
        let how = (policy, attempt);
        self.sync_for(None, tenant, session, how).await
    }

    /// As [`Gateway::sync`], for a call with a key, which is answered by way of [`Synced`] with the
    /// exchange of the session's image.
    ///
    /// # Errors
    ///
    /// As [`Gateway::sync`].
    pub async fn sync_for(
        self: &Arc<Self>,
        call: Option<KeyedCall>,
        tenant: TenantId,
        session: SessionId,
        (policy, attempt): (Policy, Attempt),
    ) -> Result<Synced, HistoryError> {
        let _hold = self.chunks.hold();
        let scene = self.writable_scene(tenant, session).await?;
        let named = RefName::new(&scene.session.record.branch);
        let mut syncing = Syncing {
            gateway: self,
            scene: &scene,
            branch: named.unwrap_or_else(|_| RefName::main()),
            policy,
            attempt,
            plan: None,
            made: None,
            call,
        };
        let happened = match attempt {
            Attempt::Trial => {
                let root = self.snapshot(session).await?;
                syncing.plan(root).await?;
                false
            }
            Attempt::Real => self.exchange(session, &mut syncing).await?,
        };
        if happened {
            tracing::info!(%session, branch = syncing.branch.as_str(), "session synced");
        }
        // What was made last may have been in vain.
        let made = syncing.made.filter(|_| happened);
        let Some(plan) = syncing.plan else {
            let branch = syncing.branch.as_str().to_owned();
            return Err(HistoryError::Busy { branch });
        };
        Ok(Synced {
            branch: syncing.branch,
            head: plan.head,
            outcome: plan.outcome,
            commit: made.as_ref().map_or(plan.stands, |made| Some(made.after)),
            done: made.map(|made| (made.before, made.operation)),
            conflicts: plan.conflicts,
            changed: plan.prepared.changed,
        })
    }
}

/// Whether it is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Do it.
    Real,
    /// Only say what it would come to.
    Trial,
}

impl Syncing<'_> {
    /// Makes the plan for the image with this root, unless there is one for just that.
    async fn plan(&mut self, root: Root) -> Result<Plan, HistoryError> {
        let (gateway, scene) = (self.gateway, self.scene);
        let stands = gateway.record_of(scene).await?.commit;
        let found = gateway.store.reference(scene.workspace, &self.branch);
        let head = found.await?.record.state.commit;
        if let Some(plan) = &self.plan
            && (plan.prepared.from, plan.stands, plan.head) == (root, stands, head)
        {
            return Ok(plan.clone());
        }
        let plan = self.plan_for(root, stands, head).await?;
        self.plan = Some(plan.clone());
        Ok(plan)
    }

    async fn plan_for(
        &self,
        root: Root,
        stands: Option<CommitId>,
        head: CommitId,
    ) -> Result<Plan, HistoryError> {
        let plan = |outcome, prepared| Plan {
            stands,
            head,
            outcome,
            before: None,
            merge: None,
            conflicts: Vec::new(),
            prepared,
        };
        let (gateway, scene) = (self.gateway, self.scene);
        let (store, workspace) = (&gateway.store, scene.workspace);
        if let Some(stands) = stands
            && store.is_ancestor(workspace, head, stands).await?
        {
            let prepared = Prepared {
                from: root,
                root,
                changed: ChangedPaths::default(),
            };
            return Ok(plan(SyncOutcome::UpToDate, prepared));
        }
        let theirs = store.commit(workspace, head).await?.record.root();
        let stood = gateway.image_of(scene, stands).await?;
        let is_behind = match stands {
            Some(stands) => store.is_ancestor(workspace, stands, head).await?,
            None => true,
        };
        if is_behind && is_as(&scene.tree, (stood, root)).await? {
            let made = gateway.make_as(scene, (root, theirs), Newcomers::Keep);
            return Ok(plan(SyncOutcome::FastForward, made.await?));
        }
        let before = if self.names_ours() {
            Some(self.keep(stands, root).await?)
        } else {
            None
        };
        let sides = Pair {
            ours: (root, before),
            theirs: (theirs, Some(head)),
        };
        let base = gateway.base_of(scene, stands, Some(head)).await?;
        let (merged, conflicts) = gateway.merge_roots(scene, base, sides, self.policy).await?;
        let prepared = gateway.make_as(scene, (root, merged), Newcomers::Renew);
        Ok(Plan {
            before,
            conflicts,
            ..plan(SyncOutcome::Merged, prepared.await?)
        })
    }

    /// Whether something of a merge is named after the session's side. Under `fail` nothing is: either
    /// nothing clashes, or there is no merge, and then no commit is to be left of it.
    fn names_ours(&self) -> bool {
        self.attempt == Attempt::Real && self.policy != Policy::Fail
    }

    /// A commit that has what the session has.
    async fn keep(&self, stands: Option<CommitId>, root: Root) -> Result<CommitId, HistoryError> {
        let kept = self
            .gateway
            .keep_for(self.scene, stands, root, "Before a sync");
        Ok(kept.await?.id)
    }

    /// What the merge of what the session had with its branch's commit is to be.
    async fn merge_commit(&self, plan: &Plan, ours: CommitId) -> Result<NewCommit, HistoryError> {
        let scene = self.scene;
        let from = Some(plan.prepared.from);
        Ok(NewCommit {
            parents: vec![ours, plan.head],
            message: format!("Merge {} into the session", self.branch.as_str()),
            provenance: scene.provenance(),
            ..commit_of::<HistoryError>(&scene.tree, &scene.hasher, from, plan.prepared.root)
                .await?
        })
    }

    /// All that giving the image with this root what the branch has takes. `None` if it has it.
    async fn ready(&mut self, root: Root) -> Result<Option<Ready>, HistoryError> {
        let plan = self.plan(root).await?;
        if self.policy == Policy::Fail && !plan.conflicts.is_empty() {
            return Err(HistoryError::SyncConflicts {
                branch: self.branch.as_str().to_owned(),
                conflicts: plan.conflicts,
            });
        }
        if plan.outcome == SyncOutcome::UpToDate {
            return Ok(None);
        }
        let before = match plan.before {
            Some(before) => before,
            None => self.keep(plan.stands, root).await?,
        };
        let merge = match (plan.merge.clone(), plan.outcome) {
            (None, SyncOutcome::Merged) => Some(self.merge_commit(&plan, before).await?),
            (known, _) => known,
        };
        self.plan = Some(Plan {
            before: Some(before),
            merge: merge.clone(),
            ..plan.clone()
        });
        Ok(Some(Ready {
            plan,
            before,
            merge,
        }))
    }
}

impl Change for Syncing<'_> {
    async fn prepare(&mut self, root: Root) -> Result<bool, HistoryError> {
        Ok(self.ready(root).await?.is_some())
    }

    async fn make(&mut self, root: Root) -> Result<Option<Target>, HistoryError> {
        let Some(ready) = self.ready(root).await? else {
            return Ok(None);
        };
        let (plan, before) = (ready.plan, ready.before);
        let (gateway, scene) = (self.gateway, self.scene);
        let after = match ready.merge {
            Some(new) => gateway.store.put_commit(scene.workspace, new).await?.id,
            None => plan.head,
        };
        let commits = Commits {
            before,
            after,
            stands: Some(after),
        };
        let mut target = gateway
            .target(scene, plan.stands, &plan.prepared, commits)
            .await?;
        self.made = Some(Made {
            before,
            after,
            operation: target.exchange.operation,
        });
        let synced = Synced {
            branch: self.branch.clone(),
            head: plan.head,
            outcome: plan.outcome,
            commit: Some(after),
            done: Some((before, target.exchange.operation)),
            conflicts: plan.conflicts,
            changed: plan.prepared.changed,
        };
        let call = self.call.as_ref();
        target.exchange.call = call.map(|call| call.by_way_of(move |(): &()| synced.clone()));
        Ok(Some(target))
    }
}
