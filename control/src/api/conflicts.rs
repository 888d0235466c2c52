//! Unresolved conflicts: listed, resolved, and foretold.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use base::{CommitId, InodeId, SessionId, TenantId};
use metadata::compare::Snapshot;
use metadata::conflicts::{ConflictId, Unresolved, parse_id, show_id};
use metadata::image::NameHasher;
use metadata::layers::ImageError;
use metadata::ops::Located;
use metadata::record::conflict::{Conflict as StoredConflict, Version as StoredVersion};
use metadata::stat::FileKind;
use metadata::store::{CommitInfo, StoreError, WorkspaceInfo};
use metadata::tree::{Root, Tree};
use nfs_gateway::{HistoryError, Which};
use serde::Deserialize;
use utoipa::ToSchema;

use super::ApiState;
use super::input::{
    Body, Parameters, Place, Tenant, how_many, not_a_position, page_limit, told_limit,
};
use super::passing::{Behalf, stored_elsewhere};
use super::routes::{Routes, get, post};
use crate::conflicts::{Clash, Clashes, Conflict, Resolve, Resolved, Version, parse_take};
use crate::history::kebab;
use crate::reading::{bytes_of, parse_path, text_of};
use crate::room::Room;
use crate::status::ApiError;
use crate::types::{Page, show_time};

/// Largest file whose content is named, in bytes: its block map has 65,536 blocks of the usual size.
const CONTENT_ID_BYTES_MAX: u64 = 8 << 30;

/// Most clashes that are told.
pub(crate) const CLASHES_MAX: usize = 10_000;

/// Clashes that are told unless the caller says otherwise.
const CLASHES_DEFAULT: usize = 1000;

/// Conflicts that are read at a time.
const LISTED_MAX: usize = 32;

/// How much content may be named for a page, in bytes: that takes reading block maps.
const NAMED_BYTES_MAX: u64 = 64 << 30;

/// Which conflicts of a version are wanted.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct OfVersion {
    /// The version; `main` if left out.
    version: Option<String>,
    /// What an answer gave as `next`.
    after: Option<String>,
    /// How many at most: up to 500.
    #[serde(default, deserialize_with = "how_many")]
    limit: Option<usize>,
}

/// Which conflicts of a session are wanted.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct OfSession {
    /// What an answer gave as `next`.
    after: Option<String>,
    /// How many at most: up to 500.
    #[serde(default, deserialize_with = "how_many")]
    limit: Option<usize>,
}

/// The other session.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct With {
    /// The other session's id.
    #[schema(required = true)]
    with: Option<String>,
    /// What an answer gave as `next`.
    after: Option<String>,
    /// How many at most: 1,000 if left out, up to 10,000.
    #[schema(maximum = 10_000)]
    #[serde(default, deserialize_with = "how_many")]
    limit: Option<usize>,
}

/// Paths of the API that are about conflicts.
pub(super) fn routes() -> Routes {
    Routes::new()
        .route(
            "/v1/workspaces/{name}/conflicts",
            get(
                "list_conflicts_of_version",
                "List the unresolved conflicts of a version.",
                of_version,
            ),
        )
        .route(
            "/v1/sessions/{session}/conflicts",
            get(
                "list_conflicts_of_session",
                "List the unresolved conflicts of a session.",
                of_session,
            ),
        )
        .route(
            "/v1/sessions/{session}/conflicts/resolve",
            post(
                "resolve_conflict",
                "Resolve a conflict of a session.",
                resolve,
            ),
        )
        .route(
            "/v1/sessions/{session}/clashes",
            get(
                "foretell_clashes",
                "Tell on what two sessions would clash.",
                clashes,
            ),
        )
}

async fn of_version(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(workspace): Place<String>,
    Parameters(part): Parameters<OfVersion>,
) -> Result<Json<Page<Conflict>>, ApiError> {
    let workspace = state.store.workspace_by_name(tenant, &workspace).await?;
    let version = part.version.as_deref().unwrap_or("main");
    let commit = state.store.resolve_version(workspace.id, version).await?;
    let after = position(part.after.as_deref())?;
    let limit = page_limit(part.limit);
    let mut reader = Reader::new(&state, tenant, workspace).await?;
    let of = Of::Version(Box::new(reader.snapshot(root_of(&commit))));
    let page = reader.page(&of, after, limit);
    Ok(Json(state.work.reading(page).await?))
}

async fn of_session(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(session): Place<String>,
    Parameters(part): Parameters<OfSession>,
) -> Result<Json<Page<Conflict>>, ApiError> {
    let session = super::sessions::usable(&state, tenant, &session).await?;
    let after = position(part.after.as_deref())?;
    let limit = page_limit(part.limit);
    let workspace = state.store.workspace(session.record.workspace).await?;
    let mut reader = Reader::new(&state, tenant, workspace).await?;
    let of = Of::Session(session.id);
    let page = reader.page(&of, after, limit);
    Ok(Json(state.work.reading(page).await?))
}

async fn resolve(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(session): Place<String>,
    Body(asked): Body<Resolve>,
) -> Result<Json<Resolved>, ApiError> {
    let take = parse_take(&asked.take).map_err(ApiError::invalid)?;
    let which = match (&asked.path, &asked.id) {
        (Some(path), None) => Which::Path(parse_path(path.as_bytes()).map_err(ApiError::invalid)?),
        (None, Some(id)) => Which::Id(parse_id(id).ok_or_else(no_id)?),
        _ => return Err(ApiError::invalid("give either a path or an id")),
    };
    let session = super::sessions::usable(&state, tenant, &session).await?;
    let gateway = Arc::clone(&state.counted.gateway);
    let id = session.id;
    let work = async move { Ok(gateway.resolve_conflict(tenant, id, which, take).await?) };
    let resolved = state.work.to_end(work).await?;
    Ok(Json(Resolved {
        id: show_id(&resolved.conflict.unresolved.id),
        kind: resolved.conflict.unresolved.conflict.kind.word().to_owned(),
        path: text_of(resolved.conflict.path()),
        take: asked.take,
        left: resolved.left,
    }))
}

async fn clashes(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(session): Place<String>,
    behalf: Behalf,
    Parameters(asked): Parameters<With>,
) -> Result<Json<Clashes>, ApiError> {
    let with = asked.with.as_deref();
    let with = with.ok_or_else(|| ApiError::invalid("with which session? Give ?with=ID"))?;
    let one = super::sessions::usable(&state, tenant, &session).await?;
    let two = super::sessions::usable(&state, tenant, with).await?;
    let gateway = Arc::clone(&state.counted.gateway);
    let limit = told_limit("limit", asked.limit, (CLASHES_DEFAULT, CLASHES_MAX))?.max(1);
    let skipped = match asked.after.as_deref() {
        Some(after) => after.parse::<usize>().map_err(|_| not_a_position())?,
        None => 0,
    };
    let workspace = state.store.workspace(one.record.workspace).await?;
    let found = async {
        let is_stored = stored_elsewhere(&state, behalf, &workspace.record.name, two.id).await;
        Ok(gateway.clashes(tenant, one.id, two.id, is_stored).await?)
    };
    let found = state.work.reading(found).await?;
    let mut reader = Reader::new(&state, tenant, workspace).await?;
    let page = reader.clashes(found, skipped, limit);
    Ok(Json(state.work.reading(page).await?))
}

/// Whose conflicts are listed.
enum Of {
    Version(Box<Snapshot>),
    Session(SessionId),
}

/// Reads what the sides of conflicts had.
struct Reader<'a> {
    state: &'a ApiState,
    tenant: TenantId,
    workspace: WorkspaceInfo,
    tree: Tree,
    commits: HashMap<CommitId, Option<CommitInfo>>,
    /// Bytes of files whose content was named.
    named_bytes: u64,
}

impl<'a> Reader<'a> {
    async fn new(
        state: &'a ApiState,
        tenant: TenantId,
        workspace: WorkspaceInfo,
    ) -> Result<Self, ApiError> {
        let gateway = &state.counted.gateway;
        let tree = gateway.tree(tenant, &workspace.record).await?;
        Ok(Self {
            state,
            tenant,
            workspace,
            tree,
            commits: HashMap::new(),
            named_bytes: 0,
        })
    }

    fn snapshot(&self, root: Root) -> Snapshot {
        let hasher = NameHasher::new(self.workspace.record.name_key);
        Snapshot::new(self.tree.clone(), hasher, root)
    }

    /// At most `limit` conflicts, and whether there are more.
    async fn listed(
        &self,
        of: &Of,
        after: Option<ConflictId>,
        limit: usize,
    ) -> Result<(Vec<(Unresolved, Located)>, bool), ApiError> {
        match of {
            Of::Version(snapshot) => {
                let listed =
                    metadata::conflicts::list(&self.tree, snapshot.root(), after, limit).await;
                let listed = listed.map_err(unreadable)?;
                let mut items = Vec::with_capacity(listed.items.len());
                for unresolved in listed.items {
                    let located = locate(snapshot, &unresolved.conflict).await?;
                    items.push((unresolved, located));
                }
                Ok((items, listed.more))
            }
            Of::Session(id) => {
                let gateway = &self.state.counted.gateway;
                let listed = gateway.session_conflicts(self.tenant, *id, after, limit);
                let listed = listed.await?;
                let items = listed.items.into_iter();
                let items = items.map(|listed| (listed.unresolved, listed.located));
                Ok((items.collect(), listed.more))
            }
        }
    }

    /// A page of conflicts.
    async fn page(
        &mut self,
        of: &Of,
        mut after: Option<ConflictId>,
        limit: usize,
    ) -> Result<Page<Conflict>, ApiError> {
        let (mut items, mut room) = (Vec::new(), Room::default());
        loop {
            let wanted = (limit - items.len()).min(LISTED_MAX);
            let (listed, is_more) = self.listed(of, after, wanted).await?;
            let last = listed.len();
            for (at, (unresolved, located)) in listed.into_iter().enumerate() {
                let item = self.describe(&unresolved, &located).await?;
                room.put(&item);
                items.push(item);
                let is_full = self.is_full(room) || items.len() == limit;
                if is_full && (is_more || at + 1 < last) {
                    let next = Some(show_id(&unresolved.id));
                    return Ok(Page { items, next });
                }
                after = Some(unresolved.id);
            }
            if !is_more || last == 0 {
                return Ok(Page { items, next: None });
            }
        }
    }

    /// Whether a page gets nothing more.
    fn is_full(&self, room: Room) -> bool {
        room.is_full() || self.named_bytes >= NAMED_BYTES_MAX
    }

    /// What two sessions would clash on, without the first that are `skipped`.
    async fn clashes(
        &mut self,
        found: nfs_gateway::Clashes,
        skipped: usize,
        limit: usize,
    ) -> Result<Clashes, ApiError> {
        let (mut items, mut room) = (Vec::new(), Room::default());
        let mut rest = found.conflicts.iter().skip(skipped);
        for conflict in rest.by_ref() {
            let [base, one, two] = self.versions(conflict).await?;
            let path = &conflict.place.path;
            let item = Clash {
                kind: conflict.kind.word().to_owned(),
                path: text_of(path),
                path_bytes: bytes_of(path),
                base,
                one,
                two,
            };
            room.put(&item);
            items.push(item);
            if self.is_full(room) || items.len() == limit {
                break;
            }
        }
        let more = rest.next().is_some();
        Ok(Clashes {
            base: found.base.map(|base| base.to_string()),
            next: more.then(|| (skipped + items.len()).to_string()),
            items,
        })
    }

    async fn describe(
        &mut self,
        unresolved: &Unresolved,
        located: &Located,
    ) -> Result<Conflict, ApiError> {
        let versions = self.versions(&unresolved.conflict).await?;
        Ok(Conflict::new(unresolved, located, versions))
    }

    /// What base, ours and theirs had.
    async fn versions(
        &mut self,
        conflict: &StoredConflict,
    ) -> Result<[Option<Version>; 3], ApiError> {
        let sources = conflict.sources;
        Ok([
            self.version(conflict.base.as_ref(), sources.base).await?,
            self.version(conflict.ours.as_ref(), sources.ours).await?,
            (self.version(conflict.theirs.as_ref(), sources.theirs)).await?,
        ])
    }

    async fn version(
        &mut self,
        stored: Option<&StoredVersion>,
        commit: Option<CommitId>,
    ) -> Result<Option<Version>, ApiError> {
        let Some(stored) = stored else {
            return Ok(None);
        };
        let stat = &stored.record.stat;
        let target = (stat.kind == FileKind::Symlink)
            .then(|| stored.record.inline.as_deref().map(text_of))
            .flatten();
        let mut version = Version {
            kind: kebab(&format!("{:?}", stat.kind)),
            size: stat.size,
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            modified: show_time(stat.mtime),
            target,
            ..Version::default()
        };
        if let Some(commit) = self.commit(commit).await? {
            self.read(&mut version, stored.inode, &commit).await?;
        }
        Ok(Some(version))
    }

    /// The commit, unless it is gone.
    async fn commit(&mut self, id: Option<CommitId>) -> Result<Option<CommitInfo>, ApiError> {
        let Some(id) = id else {
            return Ok(None);
        };
        if let Some(known) = self.commits.get(&id) {
            return Ok(known.clone());
        }
        let found = match self.state.store.commit(self.workspace.id, id).await {
            Ok(commit) => Some(commit),
            Err(StoreError::NotFound { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        self.commits.insert(id, found.clone());
        Ok(found)
    }

    /// Adds what the commit says of an inode.
    async fn read(
        &mut self,
        version: &mut Version,
        inode: InodeId,
        commit: &CommitInfo,
    ) -> Result<(), ApiError> {
        let snapshot = self.snapshot(root_of(commit));
        let Some(record) = snapshot.attributes(inode).await? else {
            return Ok(());
        };
        let path = path_of(&snapshot, inode).await?;
        if record.stat.kind == FileKind::File && record.stat.size <= CONTENT_ID_BYTES_MAX {
            let block_bytes = self.workspace.record.block_bytes;
            let pieces = snapshot.read(&record, block_bytes, 0..record.stat.size);
            self.named_bytes = self.named_bytes.saturating_add(record.stat.size);
            version.content_id = Some(pieces.id().await?.to_hex().to_string());
        }
        let made = &commit.record.provenance;
        let said = |text: &String| (!text.is_empty()).then(|| text.clone());
        version.commit = Some(commit.id.to_string());
        version.path = path.as_deref().map(text_of);
        version.path_bytes = path.as_deref().and_then(bytes_of);
        version.agent = said(&made.agent);
        version.session = made.session.map(|session| session.to_string());
        version.run = said(&made.run);
        Ok(())
    }
}

/// Where the objects of a conflict are in a version.
async fn locate(snapshot: &Snapshot, conflict: &StoredConflict) -> Result<Located, ApiError> {
    let mut located = Located {
        path: path_of(snapshot, conflict.place.inode).await?,
        aside: None,
    };
    if let Some(aside) = &conflict.aside {
        located.aside = path_of(snapshot, aside.inode).await?;
    }
    Ok(located)
}

/// A path of an inode, if it is there and its path can be told.
async fn path_of(snapshot: &Snapshot, inode: InodeId) -> Result<Option<Vec<u8>>, ApiError> {
    match snapshot.paths_of(inode).next().await {
        Ok(path) => Ok(path),
        Err(metadata::compare::SnapshotError::PathTooLong(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn position(after: Option<&str>) -> Result<Option<ConflictId>, ApiError> {
    let after = after.map(|text| parse_id(text).ok_or_else(not_a_position));
    after.transpose()
}

fn root_of(commit: &CommitInfo) -> Root {
    Root::from_bytes(*commit.record.tree.as_bytes())
}

fn unreadable(error: ImageError) -> ApiError {
    HistoryError::Image(error).into()
}

fn no_id() -> ApiError {
    ApiError::invalid("id is not one of a conflict: 32 hexadecimal digits, as a list shows them")
}
