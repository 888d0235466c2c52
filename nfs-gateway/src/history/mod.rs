//! Checkpoints and publishing: from a live session to commits and refs
//! (`docs/design/0004-history.md`).
//!
//! Everything here holds the chunk store: what it refers to is not collected before a commit or a
//! session's record names it.

mod content;
mod merge;
mod plan;
mod read;
mod resolve;
mod restore;
mod sync;

use std::sync::Arc;

pub(crate) use read::part_of;
pub use read::{FileReader, Look, ReadError, Versions};

use base::{CommitId, OperationId, SessionId, TenantId, WorkspaceId};
use metadata::compare::{SnapshotError, statistics};
use metadata::conflicts::count;
use metadata::image::NameHasher;
use metadata::layers::ImageError;
use metadata::merge::{MergeError, Policy};
use metadata::record::commit::{Provenance, check_about};
use metadata::record::conflict::Conflict;
use metadata::record::operation::Cause;
use metadata::record::reference::{RefKind, RefName, RefState};
use metadata::record::workspace::WorkspaceRecord;
use metadata::restore::RestoreError;
use metadata::session::tree_of;
use metadata::store::{
    CommitInfo, KeyedCall, NewCommit, RefWritten, SessionInfo, Store, StoreError,
};
use metadata::tree::{Root, Tree, TreeError};

use crate::gateway::Gateway;
use crate::session::FreezeError;
use plan::{Ahead, Tip, Way};

pub use plan::{Carried, Clashes, Plan};
pub use resolve::{ListedConflict, ResolveError, Resolved, SessionConflicts, Which};

pub use restore::Restored;
pub use sync::{Attempt, SyncOutcome, Synced};

/// How often a publish begins anew because the branch moved meanwhile.
const ATTEMPTS_MAX: u32 = 16;

/// Why a checkpoint or a publish failed. Nothing was published then.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The session cannot be frozen.
    #[error(transparent)]
    Freeze(#[from] FreezeError),
    /// The store refuses or fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A tree cannot be read or made.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// What changed cannot be counted.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// An image cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The merge cannot be made.
    #[error("merge: {0}")]
    Merge(#[from] MergeError),
    /// Both sides changed the same things.
    #[error(
        "clashes with what branch {branch:?} has, in {}: publish with a policy, to another branch, \
         or make the changes again in a session of that branch",
        places(conflicts)
    )]
    Conflicts {
        /// The branch.
        branch: String,
        /// What clashes.
        conflicts: Vec<Conflict>,
    },
    /// The session and its branch changed the same things.
    #[error(
        "the session clashes with what branch {branch:?} has, in {}: sync with a policy, or \
         make the changes again in a session of that branch",
        places(conflicts)
    )]
    SyncConflicts {
        /// The branch.
        branch: String,
        /// What clashes.
        conflicts: Vec<Conflict>,
    },
    /// It cannot be restored so.
    #[error("{0}")]
    Restore(#[from] RestoreError),
    /// The image would take more than the session may have.
    #[error("it would take more than the session's quota allows")]
    OverQuota,
    /// Something is in the way.
    #[error("{why}")]
    Refused {
        /// What, and what to do.
        why: String,
    },
    /// The session has conflicts that nobody has resolved.
    #[error(
        "unresolved conflicts of the session ({}) would come to branch {branch:?} or stay there: resolve \
         them (`holdfast conflicts ls --session`, `conflicts resolve`), or publish with policy \
         \"keep-both\", which takes them along",
        conflicts.total
    )]
    Unresolved {
        /// The branch.
        branch: String,
        /// The conflicts.
        conflicts: Carried,
    },
    /// The session and what it is to be merged with have no common ancestor, and did not both begin with an
    /// empty workspace.
    #[error(
        "commit {session}, on which the session stands, and commit {other} have no common history, so \
         there is no saying what either changed: publish to a branch of its own (`--branch NEW`), or \
         bring the files over by hand, in a session of the other version"
    )]
    Unrelated {
        /// What the session stands on.
        session: Box<CommitId>,
        /// What it is to be merged with.
        other: Box<CommitId>,
    },
    /// Another commit of the session was made while this one was.
    #[error("another commit of the session was made meanwhile: try again")]
    Overtaken,
    /// It is not known whether the session's image was exchanged: the store has failed, or the session was
    /// lost, before that was known.
    #[error(
        "the session may have been changed: it was if `holdfast op log` has operation {operation}; look \
         before trying again"
    )]
    Unknown {
        /// The entry that the operation log has if it was.
        operation: OperationId,
    },
    /// The branch moved each time.
    #[error("branch {branch:?} moves all the time; try again")]
    Busy {
        /// The branch.
        branch: String,
    },
}

/// A checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The commit that the session stands on now.
    pub commit: CommitInfo,
    /// It was made now. Otherwise nothing had changed since the last one.
    pub is_new: bool,
}

/// What publishing came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The branch was made.
    Created,
    /// The branch went forward to the session's commit.
    FastForward,
    /// The branch went on to a merge of what it had and the session's commit.
    Merged,
    /// The branch had all of it.
    UpToDate,
}

/// A publish.
#[derive(Clone, Debug)]
pub struct Published {
    /// The session's commit.
    pub commit: CommitInfo,
    /// Where the branch is now.
    pub head: CommitId,
    /// The branch.
    pub branch: RefName,
    /// How it got there.
    pub outcome: Outcome,
    /// What clashed: the policy decided it, or, if that keeps both, it is recorded.
    pub conflicts: Vec<Conflict>,
    /// The operation on the branch, which can be undone.
    pub operation: Option<OperationId>,
}

/// What a commit is to say beside its content.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// What it is about.
    pub message: String,
    /// Who and what made it. Agent, run and session are the session's if they are not said.
    pub provenance: Provenance,
}

impl About {
    /// Also where nothing has changed, so that it is not used.
    fn check(&self) -> Result<(), StoreError> {
        let checked = check_about(&self.message, &self.provenance);
        checked.map_err(|error| StoreError::Invalid {
            why: error.to_string(),
        })
    }
}

/// How many places clash.
fn places(conflicts: &[Conflict]) -> String {
    match conflicts.len() {
        1 => "1 place".to_owned(),
        count => format!("{count} places"),
    }
}

/// What all steps of one call need.
struct Scene {
    tenant: TenantId,
    workspace: WorkspaceId,
    hasher: NameHasher,
    session: SessionInfo,
    tree: Tree,
}

impl Gateway {
    /// Makes a commit of a session's image as of some moment during this call, on top of the one
    /// that it stands on. It is on no branch yet. If nothing has changed there is no new commit.
    ///
    /// # Errors
    ///
    /// See [`HistoryError`].
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: the commit may or may not have been made.
    pub async fn checkpoint(
        self: &Arc<Self>,
        tenant: TenantId,
        session: SessionId,
        about: About,
    ) -> Result<Checkpoint, HistoryError> {
        self.checkpoint_for(None, tenant, session, about).await
    }

    /// As [`Gateway::checkpoint`], for a call with a key, which is answered by way of [`Checkpoint`].
    ///
    /// # Errors
    ///
    /// As [`Gateway::checkpoint`].
    pub async fn checkpoint_for(
        self: &Arc<Self>,
        call: Option<KeyedCall>,
        tenant: TenantId,
        session: SessionId,
        about: About,
    ) -> Result<Checkpoint, HistoryError> {
        about.check()?;
        let _hold = self.chunks.hold();
        let scene = self.scene(tenant, session).await?;
        self.commit_session(&scene, about, call).await
    }

    /// Makes a checkpoint, and brings it to a branch: the session's, or another. A branch that has
    /// gone on meanwhile gets a merge; all of it is published or nothing.
    ///
    /// # Errors
    ///
    /// See [`HistoryError`].
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not have been published.
    pub async fn publish(
        self: &Arc<Self>,
        tenant: TenantId,
        session: SessionId,
        about: About,
        branch: Option<RefName>,
        policy: Policy,
    ) -> Result<Published, HistoryError> {
        let whole = (about, branch, policy);
        self.publish_for(None, tenant, session, whole).await
    }

    /// As [`Gateway::publish`], for a call with a key, which is answered by way of [`Published`] with
    /// the change of the branch.
    ///
    /// # Errors
    ///
    /// As [`Gateway::publish`].
    pub async fn publish_for(
        self: &Arc<Self>,
        call: Option<KeyedCall>,
        tenant: TenantId,
        session: SessionId,
        (about, branch, policy): (About, Option<RefName>, Policy),
    ) -> Result<Published, HistoryError> {
        about.check()?;
        let _hold = self.chunks.hold();
        let scene = self.scene(tenant, session).await?;
        let branch = branch.unwrap_or_else(|| scene.branch());
        let ahead = self.merge_ahead(&scene, &branch, policy).await?;
        let done = self.commit_session(&scene, about, None).await?;
        for _ in 0..ATTEMPTS_MAX {
            let by = (policy, ahead, call.as_ref());
            match self.advance(&scene, &done.commit, &branch, by).await {
                // It moved meanwhile: what it has now is looked at.
                Err(HistoryError::Store(
                    StoreError::Changed { .. } | StoreError::Exists { .. },
                )) => {}
                result => return result,
            }
        }
        let branch = branch.as_str().to_owned();
        Err(HistoryError::Busy { branch })
    }

    async fn scene(&self, tenant: TenantId, id: SessionId) -> Result<Scene, HistoryError> {
        let session = self.store.session(tenant, id).await?;
        let workspace = self.store.workspace(session.record.workspace).await?;
        let tree = self.tree(tenant, &workspace.record).await?;
        Ok(Scene {
            tenant,
            workspace: workspace.id,
            hasher: NameHasher::new(workspace.record.name_key),
            session,
            tree,
        })
    }

    /// The trees of a workspace.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn tree(
        &self,
        tenant: TenantId,
        workspace: &WorkspaceRecord,
    ) -> Result<Tree, StoreError> {
        let owner = self.store.tenant(tenant).await?;
        Ok(tree_of(&self.trees, tenant, &owner, workspace))
    }

    async fn commit_session(
        self: &Arc<Self>,
        scene: &Scene,
        about: About,
        call: Option<KeyedCall>,
    ) -> Result<Checkpoint, HistoryError> {
        let (id, record) = (scene.session.id, &scene.session.record);
        let root = self.snapshot(id).await?;
        let or = |said: String, own: &str| {
            if said.is_empty() {
                own.to_owned()
            } else {
                said
            }
        };
        let provenance = Provenance {
            agent: or(about.provenance.agent, &record.agent),
            run: or(about.provenance.run, &record.run),
            session: Some(id),
            ..about.provenance
        };
        let about = About {
            message: about.message,
            provenance,
        };
        let checkpoint = self.keep(scene, record.commit, root, about).await?;
        if checkpoint.is_new {
            let commit = checkpoint.commit.id;
            let made = checkpoint.clone();
            let call = call.map(|call| call.by_way_of(move |(): &()| made.clone()));
            let stands = (self.store.for_call(call))
                .set_session_commit(scene.tenant, id, record.commit, commit)
                .await;
            stands.map_err(|error| match error {
                StoreError::Refused { .. } => HistoryError::Overtaken,
                error => error.into(),
            })?;
            tracing::info!(session = %id, %commit, "session committed");
        }
        Ok(checkpoint)
    }

    /// A commit that has the image `root` of a session: the one that it stands on, or a new one that
    /// is on no branch.
    async fn keep(
        &self,
        scene: &Scene,
        stands: Option<CommitId>,
        root: Root,
        about: About,
    ) -> Result<Checkpoint, HistoryError> {
        let (store, workspace) = (&self.store, scene.workspace);
        let parent = match stands {
            Some(id) => Some(store.commit(workspace, id).await?),
            None => None,
        };
        let before = parent.as_ref().map(|parent| parent.record.root());
        if let Some(commit) = parent
            && before == Some(root)
        {
            return Ok(Checkpoint {
                commit,
                is_new: false,
            });
        }
        let new = NewCommit {
            parents: stands.into_iter().collect(),
            message: about.message,
            provenance: about.provenance,
            ..commit_of::<HistoryError>(&scene.tree, &scene.hasher, before, root).await?
        };
        Ok(Checkpoint {
            commit: store.put_commit(workspace, new).await?,
            is_new: true,
        })
    }

    /// Brings a commit to a branch as it is now.
    async fn advance(
        self: &Arc<Self>,
        scene: &Scene,
        commit: &CommitInfo,
        branch: &RefName,
        (policy, ahead, call): (Policy, Option<Ahead>, Option<&KeyedCall>),
    ) -> Result<Published, HistoryError> {
        let workspace = scene.workspace;
        let cause = Cause::Published(scene.session.id);
        let published = |head, outcome, operation| Published {
            commit: commit.clone(),
            head,
            branch: branch.clone(),
            outcome,
            conflicts: Vec::new(),
            operation,
        };
        let tip = Tip {
            root: commit.record.root(),
            on: Some(commit.id),
            is_committed: true,
        };
        let (head, sides) = match self.admit(scene, branch, &tip, policy).await? {
            Way::Create => {
                let state = RefState {
                    commit: commit.id,
                    kind: RefKind::Branch,
                    protected: false,
                };
                let done = published(commit.id, Outcome::Created, None);
                let store = self.answering(call, done);
                let made = store.create_ref(workspace, branch, state, cause).await?;
                return Ok(published(commit.id, Outcome::Created, Some(made)));
            }
            Way::UpToDate(head) => return Ok(published(head, Outcome::UpToDate, None)),
            Way::Merge(head, sides) => (head, sides),
            Way::Forward(head) => {
                let done = published(commit.id, Outcome::FastForward, None);
                let moved = self
                    .answering(call, done)
                    .move_ref(workspace, branch, head, commit.id, cause)
                    .await?;
                return Ok(published(commit.id, Outcome::FastForward, moved));
            }
        };
        let ahead = ahead.filter(|ahead| (ahead.head, ahead.theirs) == (head, tip.root));
        let (root, conflicts) = match (ahead, policy) {
            (Some(ahead), _) => (ahead.merged, Vec::new()),
            (None, Policy::Fail) => {
                let merged = self.merge_or_fail(scene, branch, &sides).await?;
                (merged, Vec::new())
            }
            (None, _) => self.merge_sides(scene, &sides, policy).await?,
        };
        let merge = self
            .merge_commit(scene, commit, (branch, head), (sides.roots.ours, root))
            .await?;
        let done = Published {
            conflicts: conflicts.clone(),
            ..published(head, Outcome::Merged, None)
        };
        let (merged, moved) = self
            .answering(call, done)
            .move_ref_to_merge(workspace, branch, head, merge, cause)
            .await?;
        Ok(Published {
            conflicts,
            ..published(merged, Outcome::Merged, moved)
        })
    }
}

impl Gateway {
    /// The store for the change of a branch that ends a publish with a key.
    fn answering(&self, call: Option<&KeyedCall>, done: Published) -> Store {
        let merged = done.outcome == Outcome::Merged;
        self.store.for_call(call.map(|call| {
            if merged {
                call.by_way_of(move |(head, written): &(CommitId, RefWritten)| Published {
                    head: *head,
                    operation: written.operation,
                    ..done.clone()
                })
            } else {
                call.by_way_of(move |written: &RefWritten| Published {
                    operation: written.operation,
                    ..done.clone()
                })
            }
        }))
    }
}

impl Scene {
    /// The branch that the session is published to unless another is said.
    fn branch(&self) -> RefName {
        let named = RefName::new(&self.session.record.branch);
        named.unwrap_or_else(|_| RefName::main())
    }

    /// What a commit that is made for the session by itself says of who made it.
    fn provenance(&self) -> Provenance {
        let record = &self.session.record;
        Provenance {
            agent: record.agent.clone(),
            run: record.run.clone(),
            session: Some(self.session.id),
            ..Provenance::default()
        }
    }
}

/// A commit of the image `root`, which was made from the image `before`; without parents, message
/// and provenance.
pub(crate) async fn commit_of<E>(
    tree: &Tree,
    hasher: &NameHasher,
    before: Option<Root>,
    root: Root,
) -> Result<NewCommit, E>
where
    E: From<TreeError> + From<SnapshotError> + From<ImageError>,
{
    Ok(NewCommit {
        tree: root.name(),
        usage: tree.counters(root).await?.usage(),
        parents: Vec::new(),
        statistics: statistics(tree, hasher, before, root).await?,
        conflicts: count(tree, root).await?,
        message: String::new(),
        provenance: Provenance::default(),
    })
}
