//! Listing and resolving the conflicts of a live session (`docs/design/0005-merge.md`).

use std::sync::Arc;

use base::{Caller, SessionId, TenantId};
use metadata::FsError;
use metadata::compare::{Snapshot, SnapshotError};
use metadata::conflicts::{ConflictId, PAGE_MAX, Unresolved, show_id};
use metadata::image::NameHasher;
use metadata::layers::ImageError;
use metadata::merge::Side;
use metadata::ops::{self, Context, Home, Located, Refusal, Resolve, Take};
use metadata::record::conflict::{Conflict, ConflictKind, Place};
use metadata::session::OwnError;
use metadata::store::StoreError;

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
    /// The stores do not serve at present, or ceased to before it was known whether it was resolved. It
    /// may have been, or will be, unless the server ends before.
    #[error(
        "conflict {} may have been resolved: look before trying again",
        show_id(id)
    )]
    Unknown {
        /// Which one.
        id: ConflictId,
        /// What kind of conflict it is.
        kind: ConflictKind,
    },
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
        for _ in 0..ATTEMPTS_MAX {
            let session = self.session(session).await?;
            match list(&session, after, limit).await {
                // Lost meanwhile: whoever owns it now is asked.
                Err(_) if session.is_lost() => self.forget(&session),
                listed => return listed,
            }
        }
        Err(ResolveError::Unavailable)
    }

    /// Where the objects of some conflicts of a session are now, of those that it still has.
    ///
    /// # Errors
    ///
    /// See [`ResolveError`].
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub(crate) async fn locate_conflicts(
        self: &Arc<Self>,
        session: SessionId,
        conflicts: &[Unresolved],
    ) -> Result<Vec<ListedConflict>, ResolveError> {
        let session = self.session(session).await?;
        let mut listed = Vec::with_capacity(conflicts.len());
        for unresolved in conflicts {
            listed.extend(locate(&session, unresolved.clone()).await?);
        }
        Ok(listed)
    }

    /// How many conflicts a session has.
    ///
    /// # Errors
    ///
    /// See [`ResolveError`].
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub(crate) async fn count_conflicts(
        self: &Arc<Self>,
        session: SessionId,
    ) -> Result<u64, ResolveError> {
        let session = self.session(session).await?;
        count(&session).await
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
        which: Which,
        take: Take,
    ) -> Result<Resolved, ResolveError> {
        self.store.session(tenant, id).await?;
        let mut resolving = Resolving {
            gateway: self,
            tenant,
            id,
            which,
            take,
            begun: None,
        };
        for _ in 0..ATTEMPTS_MAX {
            match resolving.attempt().await {
                Ok(Some(resolved)) => return Ok(resolved),
                Ok(None) => {}
                Err(error) => return Err(resolving.judged(error)),
            }
        }
        Err(resolving.judged(ResolveError::Unavailable))
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

/// A conflict that is being resolved.
struct Resolving<'a> {
    gateway: &'a Arc<Gateway>,
    tenant: TenantId,
    id: SessionId,
    which: Which,
    take: Take,
    /// An attempt was begun, and it is not known that it failed.
    begun: Option<ListedConflict>,
}

impl Resolving<'_> {
    /// Tries to resolve it. `None` if the session was lost meanwhile.
    async fn attempt(&mut self) -> Result<Option<Resolved>, ResolveError> {
        let gateway = self.gateway;
        let session = gateway.session(self.id).await?;
        // So that what is found is in the image that is changed: none is exchanged meanwhile.
        let _one_at_a_time = session.exchanging.lock().await;
        let found = match (find(&session, &self.which).await, &self.begun) {
            (Err(_), _) if session.is_lost() => {
                gateway.forget(&session);
                return Ok(None);
            }
            // The change was made, though the session was lost before that was known.
            (Err(ResolveError::NotFound), Some(conflict)) => {
                return resolved(&session, conflict.clone()).await.map(Some);
            }
            (found, _) => found?,
        };
        // The session is ours: an attempt with an owner before would have been seen, or never will be.
        self.begun = None;
        let conflict = &found.unresolved.conflict;
        let asked = Resolve {
            id: found.unresolved.id,
            conflict,
            take: self.take,
            home: gateway
                .home(self.tenant, &session, conflict, self.take)
                .await?,
        };
        self.which = Which::Id(asked.id);
        let caller = Caller::root();
        let change = session.change_with(|image, now| {
            let paths = ops::touched(image, &asked)?;
            let caller = &caller;
            let done = ops::resolve(image, Context { caller, now }, &asked)?;
            Ok((done, paths))
        });
        match change.await {
            Ok(Ok(())) => {
                let kind = conflict.kind.word();
                tracing::info!(session = %self.id, kind, "conflict resolved");
                self.begun = Some(found.clone());
                resolved(&session, found).await.map(Some)
            }
            Ok(Err(Refusal::NotThere)) => Err(ResolveError::NotFound),
            Ok(Err(refusal)) => Err(ResolveError::Refused(refusal)),
            Err(ChangeError::Lost { applied }) => {
                // Whoever owns it now is asked.
                gateway.forget(&session);
                self.begun = applied.then_some(found);
                Ok(None)
            }
            Err(ChangeError::Fs(error)) => Err(ResolveError::Fs(error)),
            Err(ChangeError::Unavailable) => Err(ResolveError::Unavailable),
            Err(ChangeError::Unknown) => {
                self.begun = Some(found);
                Err(ResolveError::Unavailable)
            }
        }
    }

    /// What an error means: not that nothing was changed, if something may have been.
    fn judged(&self, error: ResolveError) -> ResolveError {
        match &self.begun {
            None => error,
            Some(begun) => ResolveError::Unknown {
                id: begun.unresolved.id,
                kind: begun.unresolved.conflict.kind,
            },
        }
    }
}

/// A page of conflicts, with where their objects are: all of one image, and durable.
async fn list(
    session: &Arc<Session>,
    after: Option<ConflictId>,
    limit: usize,
) -> Result<SessionConflicts, ResolveError> {
    for _ in 0..ATTEMPTS_MAX {
        let generation = session.generation();
        let listed = list_once(session, after, limit).await;
        if session.generation() == generation {
            return listed;
        }
    }
    Err(ResolveError::Unavailable)
}

async fn list_once(
    session: &Arc<Session>,
    after: Option<ConflictId>,
    limit: usize,
) -> Result<SessionConflicts, ResolveError> {
    let page = session.conflicts(after, limit).await?;
    let mut items = Vec::with_capacity(page.items.len());
    for unresolved in page.items {
        items.extend(locate(session, unresolved).await?);
    }
    let more = page.more;
    Ok(SessionConflicts { items, more })
}

/// Looks for the objects of a conflict. `None` if it has been resolved, in memory only so far.
async fn locate(
    session: &Arc<Session>,
    unresolved: Unresolved,
) -> Result<Option<ListedConflict>, ResolveError> {
    let (id, conflict) = (&unresolved.id, &unresolved.conflict);
    let looked = session.look_with(|image, _| ops::locate(image, id, conflict));
    let located = looked.await.map_err(of_look)?;
    Ok(located.map(|located| ListedConflict {
        unresolved,
        located,
    }))
}

/// The conflict that is meant, in one image.
async fn find(session: &Arc<Session>, which: &Which) -> Result<ListedConflict, ResolveError> {
    for _ in 0..ATTEMPTS_MAX {
        let generation = session.generation();
        let found = match which {
            Which::Id(id) => find_by_id(session, *id).await,
            Which::Path(path) => find_at(session, path).await,
        };
        if session.generation() == generation {
            return found;
        }
    }
    Err(ResolveError::Unavailable)
}

async fn find_by_id(
    session: &Arc<Session>,
    id: ConflictId,
) -> Result<ListedConflict, ResolveError> {
    let unresolved = session.conflict(id).await?;
    let unresolved = unresolved.ok_or(ResolveError::NotFound)?;
    let located = locate(session, unresolved).await?;
    located.ok_or(ResolveError::NotFound)
}

/// The conflict at a path. Only of those that may be there it is looked where they are.
async fn find_at(session: &Arc<Session>, path: &[u8]) -> Result<ListedConflict, ResolveError> {
    let there = session.look_with(|image, _| ops::at_path(image, path));
    let there = there.await.map_err(of_look)?;
    let may_be_there = |it: &Place| Some(it.inode) == there || it.path == path;
    let mut found: Vec<ListedConflict> = Vec::new();
    let mut after = None;
    loop {
        let page = session.conflicts(after, PAGE_MAX).await?;
        after = page.items.last().map(|last| last.id);
        for unresolved in page.items {
            let (place, aside) = (&unresolved.conflict.place, &unresolved.conflict.aside);
            if may_be_there(place) || aside.as_ref().is_some_and(may_be_there) {
                found.extend(
                    locate(session, unresolved)
                        .await?
                        .filter(|it| it.is_at(path)),
                );
            }
        }
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
    let left = count(session).await?;
    Ok(Resolved { conflict, left })
}

/// How many conflicts a session has.
async fn count(session: &Session) -> Result<u64, ResolveError> {
    let (mut count, mut after) = (0, None);
    loop {
        let page = session.conflicts(after, PAGE_MAX).await?;
        after = page.items.last().map(|last| last.id);
        count += u64::try_from(page.items.len()).unwrap_or(u64::MAX);
        if !page.more {
            return Ok(count);
        }
    }
}

fn of_look(error: ChangeError) -> ResolveError {
    match error {
        ChangeError::Fs(error) => ResolveError::Fs(error),
        ChangeError::Lost { .. } | ChangeError::Unavailable | ChangeError::Unknown => {
            ResolveError::Unavailable
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
