//! What differs between versions, and between sessions and versions.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use base::TenantId;
use metadata::compare::{Options, PathChange, Snapshot, Tally, compare, count, is_within};
use metadata::store::{CommitInfo, StoreError, WorkspaceInfo};
use metadata::tree::Root;
use nfs_gateway::{Look, Versions};
use serde::Deserialize;
use serde::de::IgnoredAny;
use utoipa::ToSchema;

use super::ApiState;
use super::input::{Parameters, Place, Tenant, session_id, told_limit};
use super::patch::Patches;
use super::paths::Bytes;
use crate::history::{Change, Diff, Stat};
use crate::room::Room;
use crate::status::ApiError;

/// Most changes that a comparison tells.
pub(crate) const CHANGES_MAX: usize = 10_000;

/// Changes that a comparison tells unless the caller says otherwise.
const CHANGES_DEFAULT: usize = 1000;

/// Most changes that are looked at for those at a path.
const LOOKED_AT_MAX: u64 = 200_000;

/// Most changes that are counted.
const COUNTED_MAX: u64 = 1_000_000;

/// What a change takes in an answer beside its paths, about.
const CHANGE_BYTES: usize = 300;

/// What is told of nothing.
const NOTHING: &str = "empty";

/// What is to be compared, and what of it told.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// The older version; the first parent of the newer one, or what a session stands on, if left out.
    from: Option<String>,
    /// The newer version; `main` if left out.
    to: Option<String>,
    /// A session in place of the newer version.
    session: Option<String>,
    /// How many files at most: 1,000 if left out, up to 10,000.
    limit: Option<usize>,
    /// Sums, too.
    #[serde(default)]
    stat: bool,
    /// The differences of texts, too.
    #[serde(default)]
    text: bool,
    /// A path from the root directory; bytes that are not UTF-8 behind percent signs.
    #[schema(value_type = Option<String>)]
    #[serde(rename = "path")]
    _path: Option<IgnoredAny>,
}

/// One side.
struct Side {
    name: String,
    root: Root,
    /// What it comes from, unless that is said.
    parent: Option<base::CommitId>,
    _look: Option<Look>,
}

impl Side {
    fn of(commit: &CommitInfo) -> Self {
        Self {
            name: commit.id.to_string(),
            root: root_of(commit),
            parent: commit.record.parents.first().copied(),
            _look: None,
        }
    }

    /// What there was before the first commit.
    fn nothing() -> Self {
        Self {
            name: NOTHING.to_owned(),
            root: Root::EMPTY,
            parent: None,
            _look: None,
        }
    }
}

fn root_of(commit: &CommitInfo) -> Root {
    Root::from_bytes(*commit.record.tree.as_bytes())
}

pub(super) async fn diff(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(workspace): Place<String>,
    bytes: Bytes,
    Parameters(wanted): Parameters<Wanted>,
) -> Result<Json<Diff>, ApiError> {
    let workspace = state.store.workspace_by_name(tenant, &workspace).await?;
    let to = newer(&state, tenant, &workspace, &wanted).await?;
    let from = match (wanted.from.as_deref(), to.parent) {
        (Some(from), _) => Side::of(&state.store.resolve_version(workspace.id, from).await?),
        (None, Some(parent)) => Side::of(&state.store.commit(workspace.id, parent).await?),
        (None, None) => Side::nothing(),
    };
    let versions = state.counted.gateway.versions(tenant, &workspace).await?;
    let limit = told_limit("limit", wanted.limit, (CHANGES_DEFAULT, CHANGES_MAX))?;
    let sides = Sides {
        old: versions.snapshot(from.root),
        new: versions.snapshot(to.root),
        versions,
        top: bytes.path.unwrap_or_default(),
    };
    let reading = async {
        let (items, more) = sides.changes(limit, wanted.text).await?;
        let stat = match wanted.stat {
            true => Some(sides.stat().await?),
            false => None,
        };
        Ok((items, more, stat))
    };
    let (items, more, stat) = state.work.reading(reading).await?;
    Ok(Json(Diff {
        from: from.name,
        to: to.name,
        items,
        more,
        stat,
    }))
}

async fn newer(
    state: &ApiState,
    tenant: TenantId,
    workspace: &WorkspaceInfo,
    wanted: &Wanted,
) -> Result<Side, ApiError> {
    let Some(session) = &wanted.session else {
        let to = wanted.to.as_deref().unwrap_or("main");
        let commit = state.store.resolve_version(workspace.id, to).await?;
        return Ok(Side::of(&commit));
    };
    if wanted.to.is_some() {
        return Err(ApiError::invalid("say a session or to, not both"));
    }
    let id = session_id(state, tenant, session).await?;
    let found = state.store.session(tenant, id).await?;
    if found.record.workspace != workspace.id {
        let what = format!("session {id} in this workspace");
        return Err(StoreError::NotFound { what }.into());
    }
    let look = async { Ok(state.counted.gateway.look(tenant, id).await?) };
    let look = state.work.reading(look).await?;
    Ok(Side {
        name: format!("session {id}"),
        root: look.root,
        parent: look.session.record.commit,
        _look: Some(look),
    })
}

/// What a commit changed against its first parent, at most `limit` files, and whether there are more.
pub(super) async fn changes_of(
    state: &ApiState,
    tenant: TenantId,
    workspace: &WorkspaceInfo,
    commit: &CommitInfo,
    limit: usize,
) -> Result<(Vec<Change>, bool), ApiError> {
    let before = match commit.record.parents.first() {
        Some(parent) => root_of(&state.store.commit(workspace.id, *parent).await?),
        None => Root::EMPTY,
    };
    let versions = state.counted.gateway.versions(tenant, workspace).await?;
    let sides = Sides {
        old: versions.snapshot(before),
        new: versions.of(commit),
        versions,
        top: Vec::new(),
    };
    let changes = sides.changes(limit, false);
    state.work.reading(changes).await
}

/// Two snapshots, and the path that matters.
struct Sides {
    versions: Versions,
    old: Snapshot,
    new: Snapshot,
    top: Vec<u8>,
}

impl Sides {
    fn compare(&self) -> metadata::compare::Comparison {
        let roots = (self.old.root(), self.new.root());
        let (tree, hasher) = (self.versions.tree(), self.versions.hasher());
        compare(tree, hasher, roots, Options::default())
    }

    fn is_within(&self, change: &PathChange) -> bool {
        let old = change.old_path.as_deref();
        is_within(&change.path, &self.top) || old.is_some_and(|path| is_within(path, &self.top))
    }

    async fn changes(
        &self,
        limit: usize,
        with_text: bool,
    ) -> Result<(Vec<Change>, bool), ApiError> {
        let mut comparison = self.compare();
        let mut patches = with_text.then(|| Patches::new(&self.versions, &self.old, &self.new));
        let (mut items, mut room) = (Vec::new(), Room::default());
        for _ in 0..LOOKED_AT_MAX {
            let Some(change) = comparison.next().await? else {
                return Ok((items, false));
            };
            if !self.is_within(&change) {
                continue;
            }
            if items.len() >= limit || room.is_full() {
                return Ok((items, true));
            }
            let old_path = change.old_path.as_ref().map_or(0, Vec::len);
            // Without its text, which has a bound of its own.
            room.add(CHANGE_BYTES + 4 * (change.path.len() + old_path));
            let patch = match &mut patches {
                Some(patches) => match patches.of(&change).await? {
                    Some(patch) => Some(patch),
                    None => return Ok((items, true)),
                },
                None => None,
            };
            let mut item = Change::from(change);
            if let Some((patch, is_partial)) = patch {
                // It is UTF-8: what is not is told without its content.
                item.patch = Some(String::from_utf8_lossy(&patch).into_owned());
                item.patch_partial = is_partial;
            }
            items.push(item);
        }
        Ok((items, true))
    }

    async fn stat(&self) -> Result<Stat, ApiError> {
        if self.top.is_empty() {
            let roots = (self.old.root(), self.new.root());
            let (tree, hasher) = (self.versions.tree(), self.versions.hasher());
            let counted = count(tree, hasher, roots, COUNTED_MAX).await?;
            return Ok(Stat::new(counted.statistics, counted.more));
        }
        let mut comparison = self.compare();
        let mut tally = Tally::default();
        for _ in 0..LOOKED_AT_MAX {
            let Some(change) = comparison.next().await? else {
                return Ok(Stat::new(tally.sums(), false));
            };
            if self.is_within(&change) {
                tally.add(&change);
            }
        }
        Ok(Stat::new(tally.sums(), true))
    }
}
