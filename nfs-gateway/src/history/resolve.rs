//! Listing and resolving the conflicts of a live session (`docs/design/0005-merge.md`).

use std::sync::Arc;

use base::{Caller, SessionId, TenantId};
use metadata::compare::{Snapshot, SnapshotError};
use metadata::conflicts::{ConflictId, PAGE_MAX, Unresolved};
use metadata::image::NameHasher;
use metadata::layers::ImageError;
use metadata::merge::Side;
use metadata::ops::{self, Context, Home, Located, Refusal, Resolve, Take};
use metadata::record::conflict::{Conflict, ConflictKind};
use metadata::session::OwnError;
use metadata::store::StoreError;
use metadata::{FsError, OpError};

use crate::gateway::Gateway;
use crate::session::{ChangeError, Session};

/// How often it is tried again because the session was lost meanwhile.
const ATTEMPTS_MAX: u32 = 5;

/// Which conflict is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one with this id.
    Id(ConflictId),
    /// The one at this path, or with its other version there: a path from the root, without a slash
    /// in front.
    Path(Vec<u8>),
}

/// A conflict, and where its objects are now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedConflict {
    /// The conflict.
    pub unresolved: Unresolved,
    /// Where its objects are in the session.
    pub located: Located,
}

/// Part of a session's conflicts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionConflicts {
    /// Conflicts in the order of their ids.
    pub items: Vec<ListedConflict>,
    /// There are more after the last of them.
    pub more: bool,
}

/// A conflict that was resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// What it was.
    pub conflict: ListedConflict,
    /// How many the session still has.
    pub left: u64,
}

/// Why a conflict was not resolved, or conflicts not listed.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The session could not be taken over.
    #[error(transparent)]
    Own(#[from] OwnError),
    /// The store refuses or fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The session's image cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// What a side had cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// There is no such conflict.
    #[error("the session has no such conflict; it may have been resolved already")]
    NotFound,
    /// Several conflicts are at the path.
    #[error("there are several conflicts at this path: say which by its id")]
    Several(Vec<(ConflictId, ConflictKind)>),
    /// It cannot be resolved so. Nothing was changed.
    #[error("{0}")]
    Refused(Refusal),
    /// The session's image refuses it. Nothing was changed.
    #[error("{0}")]
    Fs(FsError),
    /// The stores do not serve at present. Nothing was changed.
    #[error("the session cannot be changed at present; try again")]
    Unavailable,
    /// The stores do not serve at present. It will be resolved, unless the server ends before.
    #[error("it may have been resolved: look before trying again")]
    Unknown,
}

impl Gateway {
    /// At most `limit` of a session's unresolved conflicts, those after `after`.
    ///
    /// # Errors
    ///
    /// See [`ResolveError`].
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn session_conflicts(
        self: &Arc<Self>,
        tenant: TenantId,
        session: SessionId,
        after: Option<ConflictId>,
        limit: usize,
    ) -> Result<SessionConflicts, ResolveError> {
        // It is this tenant's, and open.
        self.store.session(tenant, session).await?;
        let session = self.session(session).await?;
        list(&session, after, limit).await
    }

    /// Resolves a conflict of a session, as one change that is durable when this returns. Whoever
    /// asks again finds no such conflict.
    ///
    /// # Errors
    ///
    /// See [`ResolveError`].
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not have been resolved.
    pub async fn resolve_conflict(
        self: &Arc<Self>,
        tenant: TenantId,
        id: SessionId,
        mut which: Which,
        take: Take,
    ) -> Result<Resolved, ResolveError> {
        self.store.session(tenant, id).await?;
        let caller = Caller::root();
        let mut begun: Option<ListedConflict> = None;
        for _ in 0..ATTEMPTS_MAX {
            let session = self.session(id).await?;
            // So that what is found is in the image that is changed: none is exchanged meanwhile.
            let _one_at_a_time = session.exchanging.lock().await;
            let found = match (find(&session, &which).await, begun.take()) {
                // The change was made, though the session was lost before that was known.
                (Err(ResolveError::NotFound), Some(conflict)) => {
                    return resolved(&session, conflict).await;
                }
                (found, _) => found?,
            };
            let conflict = &found.unresolved.conflict;
            let asked = Resolve {
                id: found.unresolved.id,
                conflict,
                take,
                home: self.home(tenant, &session, conflict, take).await?,
            };
            which = Which::Id(asked.id);
            let change = session.change_with(|image, now| {
                let paths = ops::touched(image, &asked)?;
                let caller = &caller;
                let done = ops::resolve(image, Context { caller, now }, &asked)?;
                Ok((done, paths))
            });
            match change.await {
                Ok(Ok(())) => {
                    tracing::info!(session = %id, kind = conflict.kind.word(), "conflict resolved");
                    return resolved(&session, found).await;
                }
                Ok(Err(Refusal::NotThere)) => return Err(ResolveError::NotFound),
                Ok(Err(refusal)) => return Err(ResolveError::Refused(refusal)),
                Err(ChangeError::Lost { applied }) => {
                    // Whoever owns it now is asked.
                    self.forget(&session);
                    begun = applied.then_some(found);
                }
                Err(ChangeError::Fs(error)) => return Err(ResolveError::Fs(error)),
                Err(ChangeError::Unavailable) => return Err(ResolveError::Unavailable),
                Err(ChangeError::Unknown) => return Err(ResolveError::Unknown),
            }
        }
        Err(match begun {
            Some(_) => ResolveError::Unknown,
            None => ResolveError::Unavailable,
        })
    }

    /// Where the side that is taken has the object that makes room.
    async fn home(
        &self,
        tenant: TenantId,
        session: &Session,
        conflict: &Conflict,
        take: Take,
    ) -> Result<Home, ResolveError> {
        let Some((inode, side)) = ops::making_room(conflict, take) else {
            return Ok(Home::Unknown);
        };
        let commit = match side {
            Side::Ours => conflict.sources.ours,
            Side::Theirs => conflict.sources.theirs,
        };
        let Some(commit) = commit else {
            return Ok(Home::Unknown);
        };
        let workspace = self.store.workspace(session.record.workspace).await?;
        let commit = match self.store.commit(workspace.id, commit).await {
            Ok(commit) => commit,
            Err(StoreError::NotFound { .. }) => return Ok(Home::Unknown),
            Err(error) => return Err(error.into()),
        };
        let tree = self.tree(tenant, &workspace.record).await?;
        let hasher = NameHasher::new(workspace.record.name_key);
        let snapshot = Snapshot::new(tree, hasher, commit.record.root());
        let found = snapshot.attributes(inode).await?;
        Ok(Home::of(found.as_ref()))
    }
}

/// A page of conflicts, with where their objects are.
async fn list(
    session: &Arc<Session>,
    after: Option<ConflictId>,
    limit: usize,
) -> Result<SessionConflicts, ResolveError> {
    let page = session.conflicts(after, limit).await?;
    let mut items = Vec::with_capacity(page.items.len());
    for unresolved in page.items {
        items.push(locate(session, unresolved).await?);
    }
    let more = page.more;
    Ok(SessionConflicts { items, more })
}

/// Looks for the objects of a conflict.
async fn locate(
    session: &Arc<Session>,
    unresolved: Unresolved,
) -> Result<ListedConflict, ResolveError> {
    let conflict = &unresolved.conflict;
    let located = session
        .peek_with(|image, _| ops::locate(image, conflict))
        .await
        .ok_or(ResolveError::Unavailable)?;
    let located = located.map_err(|error| match error {
        OpError::Fs(error) => ResolveError::Fs(error),
        OpError::Miss(_) => ResolveError::Unavailable,
    })?;
    Ok(ListedConflict {
        unresolved,
        located,
    })
}

/// The conflict that is meant.
async fn find(session: &Arc<Session>, which: &Which) -> Result<ListedConflict, ResolveError> {
    match which {
        Which::Id(id) => match session.conflict(*id).await? {
            Some(unresolved) => locate(session, unresolved).await,
            None => Err(ResolveError::NotFound),
        },
        Which::Path(path) => find_at(session, path).await,
    }
}

/// The conflict at a path, which can be said only when all have been located.
async fn find_at(session: &Arc<Session>, path: &[u8]) -> Result<ListedConflict, ResolveError> {
    let mut found: Vec<ListedConflict> = Vec::new();
    let mut after = None;
    loop {
        let page = list(session, after, PAGE_MAX).await?;
        after = page.items.last().map(|last| last.unresolved.id);
        found.extend(page.items.into_iter().filter(|it| it.is_at(path)));
        if !page.more {
            break;
        }
    }
    let name = |it: &ListedConflict| (it.unresolved.id, it.unresolved.conflict.kind);
    let ids: Vec<_> = found.iter().map(name).collect();
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => Ok(one),
        (Some(_), false) => Err(ResolveError::Several(ids)),
        (None, _) => Err(ResolveError::NotFound),
    }
}

async fn resolved(
    session: &Arc<Session>,
    conflict: ListedConflict,
) -> Result<Resolved, ResolveError> {
    let (mut left, mut after) = (0, None);
    loop {
        let page = session.conflicts(after, PAGE_MAX).await?;
        after = page.items.last().map(|last| last.id);
        left += u64::try_from(page.items.len()).unwrap_or(u64::MAX);
        if !page.more {
            return Ok(Resolved { conflict, left });
        }
    }
}

impl ListedConflict {
    /// The path of what is in its place; where it was, if it is gone.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        let now = self.located.path.as_deref();
        now.unwrap_or(&self.unresolved.conflict.place.path)
    }

    fn is_at(&self, path: &[u8]) -> bool {
        self.path() == path || self.located.aside.as_deref() == Some(path)
    }
}
