//! Restoring a live session, or paths in it, and undoing that
//! (`docs/design/0012-outside.md`, invariants 7 to 10).

use std::sync::Arc;

use base::{CommitId, OperationId, SessionId, TenantId, WorkspaceId};
use metadata::record::changed::ChangedPaths;
use metadata::record::operation::Action;
use metadata::record::session::SessionRecord;
use metadata::restore::{Newcomers, Rules, changed_paths, is_as, paths, whole, whole_again};
use metadata::session::Exchange;
use metadata::store::{Changed, CommitInfo, KeyedCall, RefWritten, StoreError};
use metadata::tree::Root;

use super::{About, HistoryError, Scene};
use crate::gateway::Gateway;
use crate::session::{Change, Target};

/// What restoring came to.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The version.
    pub commit: CommitInfo,
    /// A commit that has what the session had, and the operation, which can be undone. `None` if
    /// the session was as the version already.
    pub done: Option<(CommitId, OperationId)>,
    /// What clients have to look at anew.
    pub changed: ChangedPaths,
}

/// What an exchange is to be, but for commits.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    /// Computed from this image.
    pub(super) from: Root,
    /// The image it becomes.
    pub(super) root: Root,
    pub(super) changed: ChangedPaths,
}

/// Commits of an exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct Commits {
    /// Has what the session had.
    pub(super) before: CommitId,
    /// Has what the session gets.
    pub(super) after: CommitId,
    /// The one that the session stands on afterwards.
    pub(super) stands: Option<CommitId>,
}

/// A session or paths in it, made as a version has them.
struct Restoring<'a> {
    gateway: &'a Arc<Gateway>,
    scene: &'a Scene,
    to: CommitInfo,
    paths: &'a [Vec<u8>],
    /// An exchange that is undone led here.
    undoes: Option<CommitInfo>,
    prepared: Option<Prepared>,
    /// A commit that has what the session had when it was prepared first.
    kept: Option<CommitInfo>,
    done: Option<(CommitId, OperationId)>,
    call: Option<KeyedCall>,
}

impl Gateway {
    /// Makes a session's image as of some moment during this call as a version has it, under its
    /// clients; or, if there are any, only these paths, relative to the root directory. Afterwards
    /// the session stands on the same commit as before.
    ///
    /// # Errors
    ///
    /// See [`HistoryError`]. Nothing was changed then, but for `Unknown`.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not be restored.
    pub async fn restore(
        self: &Arc<Self>,
        tenant: TenantId,
        session: SessionId,
        version: &str,
        paths: &[Vec<u8>],
    ) -> Result<Restored, HistoryError> {
        let what = (version, paths);
        self.restore_for(None, tenant, session, what).await
    }

    /// As [`Gateway::restore`], for a call with a key, which is answered by way of [`Restored`] with the
    /// exchange of the session's image.
    ///
    /// # Errors
    ///
    /// As [`Gateway::restore`].
    pub async fn restore_for(
        self: &Arc<Self>,
        call: Option<KeyedCall>,
        tenant: TenantId,
        session: SessionId,
        (version, paths): (&str, &[Vec<u8>]),
    ) -> Result<Restored, HistoryError> {
        let _hold = self.chunks.hold();
        let scene = self.writable_scene(tenant, session).await?;
        let to = self.store.resolve_version(scene.workspace, version).await?;
        self.restore_to(&scene, to, paths, (None, call)).await
    }

    /// Undoes an operation: of a ref, as [`metadata::store::Store::undo`] does; of a session that
    /// was restored or synced, by giving it back what it had, if it was not changed since.
    ///
    /// # Errors
    ///
    /// See [`HistoryError`]. Nothing was changed then, but for `Unknown`.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not be undone.
    pub async fn undo(
        self: &Arc<Self>,
        tenant: TenantId,
        workspace: WorkspaceId,
        operation: OperationId,
    ) -> Result<(), HistoryError> {
        self.undo_for(None, tenant, workspace, operation).await
    }

    /// As [`Gateway::undo`], for a call with a key, which is answered by way of `()`.
    ///
    /// # Errors
    ///
    /// As [`Gateway::undo`].
    pub async fn undo_for(
        self: &Arc<Self>,
        call: Option<KeyedCall>,
        tenant: TenantId,
        workspace: WorkspaceId,
        operation: OperationId,
    ) -> Result<(), HistoryError> {
        let found = self.store.operation(workspace, operation).await?;
        let Action::SessionRestored {
            session,
            before: Some(before),
            after: Some(after),
        } = found.record.action
        else {
            let call = call.map(|call| call.by_way_of(|_: &RefWritten| ()));
            self.store.for_call(call).undo(workspace, operation).await?;
            return Ok(());
        };
        let _hold = self.chunks.hold();
        let scene = self.writable_scene(tenant, session).await?;
        let to = self.store.commit(workspace, before).await?;
        let undoes = self.store.commit(workspace, after).await?;
        let call = call.map(|call| call.by_way_of(|_: &Restored| ()));
        self.restore_to(&scene, to, &[], (Some(undoes), call))
            .await?;
        Ok(())
    }

    /// What changed from outside in a session and was not seen to by its clients.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    pub async fn changed(
        &self,
        tenant: TenantId,
        session: SessionId,
    ) -> Result<Changed, StoreError> {
        self.store.changed(tenant, session).await
    }

    /// Says that what changed up to a position, which [`Gateway::changed`] told, was seen to.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not have been done, and may be done again.
    pub async fn acknowledge_changed(
        &self,
        tenant: TenantId,
        session: SessionId,
        position: u64,
    ) -> Result<(), StoreError> {
        self.store
            .acknowledge_changed(tenant, session, position)
            .await
    }

    async fn restore_to(
        self: &Arc<Self>,
        scene: &Scene,
        to: CommitInfo,
        paths: &[Vec<u8>],
        (undoes, call): (Option<CommitInfo>, Option<KeyedCall>),
    ) -> Result<Restored, HistoryError> {
        let mut restoring = Restoring {
            gateway: self,
            scene,
            to,
            paths,
            undoes,
            prepared: None,
            kept: None,
            done: None,
            call,
        };
        let id = scene.session.id;
        let happened = self.exchange(id, &mut restoring).await?;
        let (commit, done) = (restoring.to, restoring.done.filter(|_| happened));
        let prepared = restoring.prepared.filter(|_| happened);
        if happened {
            tracing::info!(session = %id, commit = %commit.id, "session restored");
        }
        Ok(Restored {
            commit,
            done,
            changed: prepared.map(|made| made.changed).unwrap_or_default(),
        })
    }

    /// The scene of a session that may be changed.
    pub(super) async fn writable_scene(
        &self,
        tenant: TenantId,
        session: SessionId,
    ) -> Result<Scene, HistoryError> {
        let scene = self.scene(tenant, session).await?;
        if scene.session.record.read_only {
            let why = "the session is read-only: open or fork one that is not".to_owned();
            return Err(HistoryError::Refused { why });
        }
        Ok(scene)
    }

    /// The session's record as it is now.
    pub(super) async fn record_of(&self, scene: &Scene) -> Result<SessionRecord, HistoryError> {
        let found = self.store.session(scene.tenant, scene.session.id).await?;
        Ok(found.record)
    }

    /// A commit that has the image `root` of a session, made for the exchange.
    pub(super) async fn keep_for(
        &self,
        scene: &Scene,
        stands: Option<CommitId>,
        root: Root,
        message: &str,
    ) -> Result<CommitInfo, HistoryError> {
        let about = About {
            message: message.to_owned(),
            provenance: scene.provenance(),
        };
        Ok(self.keep(scene, stands, root, about).await?.commit)
    }

    /// The target of an exchange.
    pub(super) async fn target(
        &self,
        scene: &Scene,
        stands: Option<CommitId>,
        prepared: &Prepared,
        commits: Commits,
    ) -> Result<Target, HistoryError> {
        let action = Action::SessionRestored {
            session: scene.session.id,
            before: Some(commits.before),
            after: Some(commits.after),
        };
        // While what has it has it.
        let told = self.store.tell_copied(scene.workspace, prepared.root);
        told.await?;
        Ok(Target {
            from: prepared.from,
            usage: scene.tree.counters(prepared.root).await?.usage(),
            exchange: Exchange {
                root: prepared.root,
                commit: stands,
                commit_after: commits.stands,
                changed: prepared.changed.clone().into_records(),
                operation: self.store.new_operation(),
                time: self.clock.wall(),
                log: self.store.log_entry(action),
                call: None,
            },
        })
    }

    /// The rules for an exchange now.
    pub(super) fn rules(&self, newcomers: Newcomers) -> Rules {
        Rules {
            now: self.clock.wall(),
            newcomers,
        }
    }

    /// Paths of an image made as another has them.
    async fn make_paths_as(
        &self,
        scene: &Scene,
        (from, to): (Root, Root),
        of: &[Vec<u8>],
    ) -> Result<Prepared, HistoryError> {
        let domain = base::DomainId::new(scene.tenant.raw());
        let touch = |chunk| self.chunks.touch(domain, chunk);
        let rules = self.rules(Newcomers::Renew);
        let mut numbers = self.store.allocate_inodes(scene.workspace).await?;
        let image = (&scene.tree, &scene.hasher);
        let root = paths(image, (from, to), of, rules, &mut numbers, touch).await?;
        Prepared::of(scene, (from, root)).await
    }

    /// An image made as another.
    pub(super) async fn make_as(
        &self,
        scene: &Scene,
        (from, to): (Root, Root),
        newcomers: Newcomers,
    ) -> Result<Prepared, HistoryError> {
        let domain = base::DomainId::new(scene.tenant.raw());
        let touch = |chunk| self.chunks.touch(domain, chunk);
        let rules = self.rules(newcomers);
        let root = whole(&scene.tree, (from, to), rules, touch).await?;
        Prepared::of(scene, (from, root)).await
    }
}

impl Prepared {
    /// An image that becomes another.
    async fn of(scene: &Scene, (from, root): (Root, Root)) -> Result<Self, HistoryError> {
        let changed = changed_paths(&scene.tree, &scene.hasher, (from, root)).await?;
        Ok(Self {
            from,
            root,
            changed,
        })
    }
}

impl Restoring<'_> {
    /// Refuses to undo what is not there any more.
    async fn check_undone(&self, root: Root) -> Result<(), HistoryError> {
        let Some(after) = &self.undoes else {
            return Ok(());
        };
        let expected = after.record.root();
        if is_as(&self.scene.tree, (expected, root)).await? {
            return Ok(());
        }
        let why = format!(
            "the session was changed since: what it had before is commit {before}, and `holdfast \
             session restore {session} --version {before}` gives it back and drops the changes",
            before = self.to.id,
            session = self.scene.session.id
        );
        Err(HistoryError::Refused { why })
    }

    /// The commit that the session stands on afterwards. To undo a sync takes it back.
    async fn stands(
        &self,
        stands: Option<CommitId>,
        before: CommitId,
    ) -> Result<Option<CommitId>, HistoryError> {
        let Some(after) = &self.undoes else {
            return Ok(stands);
        };
        let (store, workspace) = (&self.gateway.store, self.scene.workspace);
        let is_back =
            stands == Some(after.id) && store.is_ancestor(workspace, before, after.id).await?;
        Ok(if is_back { Some(before) } else { stands })
    }
}

impl Restoring<'_> {
    /// What the image with this root becomes. Most of what was prepared for another is of use.
    async fn prepared(&self, root: Root) -> Result<Prepared, HistoryError> {
        let (gateway, scene) = (self.gateway, self.scene);
        let to = self.to.record.root();
        match &self.prepared {
            Some(made) if made.from == root => Ok(made.clone()),
            Some(made) if self.paths.is_empty() => {
                let (tree, moved) = (&scene.tree, (made.from, root));
                let rules = gateway.rules(Newcomers::Renew);
                let again = whole_again(tree, made.root, moved, to, rules).await?;
                let meanwhile = changed_paths(tree, &scene.hasher, moved).await?;
                Ok(Prepared {
                    from: root,
                    root: again,
                    changed: made.changed.clone().and(meanwhile),
                })
            }
            None if self.paths.is_empty() => {
                gateway.make_as(scene, (root, to), Newcomers::Renew).await
            }
            _ => gateway.make_paths_as(scene, (root, to), self.paths).await,
        }
    }

    /// A commit that has what the session has. Most of what it takes is done before calls wait.
    async fn keep(
        &mut self,
        stands: Option<CommitId>,
        root: Root,
    ) -> Result<CommitInfo, HistoryError> {
        let parent = match &self.kept {
            Some(kept) => Some(kept.id),
            None => stands,
        };
        let made = self
            .gateway
            .keep_for(self.scene, parent, root, "Before a restore");
        let kept = made.await?;
        self.kept = Some(kept.clone());
        Ok(kept)
    }
}

/// What an exchange needs but for the commit that has what it gives.
struct Ready {
    prepared: Prepared,
    /// The commit that the session stands on.
    stands: Option<CommitId>,
    /// A commit that has what the session has.
    before: CommitInfo,
}

impl Restoring<'_> {
    /// Makes ready what the image with this root takes. `None` if it is as the version.
    async fn ready(&mut self, root: Root) -> Result<Option<Ready>, HistoryError> {
        self.check_undone(root).await?;
        let prepared = self.prepared(root).await?;
        self.prepared = Some(prepared.clone());
        if prepared.root == root {
            return Ok(None);
        }
        let stands = self.gateway.record_of(self.scene).await?.commit;
        let before = self.keep(stands, root).await?;
        Ok(Some(Ready {
            prepared,
            stands,
            before,
        }))
    }
}

impl Change for Restoring<'_> {
    async fn prepare(&mut self, root: Root) -> Result<bool, HistoryError> {
        Ok(self.ready(root).await?.is_some())
    }

    async fn make(&mut self, root: Root) -> Result<Option<Target>, HistoryError> {
        let Some(ready) = self.ready(root).await? else {
            return Ok(None);
        };
        let Ready {
            prepared,
            stands,
            before,
        } = ready;
        let (gateway, scene) = (self.gateway, self.scene);
        let after = if self.paths.is_empty() {
            self.to.id
        } else {
            let message = format!("Paths restored from {}", self.to.id);
            let after = gateway.keep_for(scene, Some(before.id), prepared.root, &message);
            after.await?.id
        };
        let commits = Commits {
            before: before.id,
            after,
            stands: self.stands(stands, self.to.id).await?,
        };
        let mut target = gateway.target(scene, stands, &prepared, commits).await?;
        self.done = Some((before.id, target.exchange.operation));
        let restored = Restored {
            commit: self.to.clone(),
            done: self.done,
            changed: prepared.changed,
        };
        let call = self.call.as_ref();
        target.exchange.call = call.map(|call| call.by_way_of(move |(): &()| restored.clone()));
        Ok(Some(target))
    }
}
