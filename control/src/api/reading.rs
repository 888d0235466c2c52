//! Listing, finding and reading files of versions (`docs/design/0010-reading.md`).

use std::ops::Range;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use base::{CommitId, InodeId, Name, Tasks, TenantId, Told};
use bytes::Bytes as Data;
use futures_util::stream::try_unfold;
use metadata::compare::{Finder, Found, Snapshot};
use metadata::record::inode::InodeRecord;
use metadata::stat::FileKind;
use metadata::store::CommitInfo;
use nfs_gateway::{FileReader, Versions};
use serde::Deserialize;
use serde::de::IgnoredAny;
use utoipa::ToSchema;

use super::ApiState;
use super::describe::Ranged;
use super::glob::Glob;
use super::input::{Parameters, Place, Tenant, how_many, not_a_position, page_limit};
use super::paths::{Bytes, OneFile, resolve};
use crate::reading::{Entry, escape_bytes, show_bytes, unescape_bytes};
use crate::room::{ANSWER_BYTES, Room};
use crate::status::ApiError;
use crate::types::Page;

/// Most entries that one page of a search looks at.
const LOOKED_AT_MAX: usize = 10_000;

/// Most steps that a page compares names with a pattern.
const STEPS_MAX: u64 = 4 << 20;

/// What an entry takes in an answer beside its path, about.
const ENTRY_BYTES: usize = 512;

/// Most bytes of a path that says where to go on.
const POSITION_BYTES_MAX: usize = 2048;

/// Names the commit that an answer is of.
const COMMIT_HEADER: &str = "holdfast-commit";

/// What is wanted of a directory of a version.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Listing {
    /// The version; `main` if left out.
    version: Option<String>,
    /// What an answer gave as `next`.
    after: Option<String>,
    /// How many at most: up to 500.
    #[serde(default, deserialize_with = "how_many")]
    limit: Option<usize>,
    /// A path from the root directory; bytes that are not UTF-8 behind percent signs.
    #[schema(value_type = Option<String>)]
    #[serde(rename = "path")]
    _path: Option<IgnoredAny>,
}

/// What is wanted of what is below a directory of a version.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Search {
    /// The version; `main` if left out.
    version: Option<String>,
    /// What an answer gave as `next`.
    after: Option<String>,
    /// How many at most: up to 500.
    #[serde(default, deserialize_with = "how_many")]
    limit: Option<usize>,
    /// `f`, `d` or `l`: a file, a directory, a symbolic link.
    r#type: Option<String>,
    /// A path from the root directory; bytes that are not UTF-8 behind percent signs.
    #[schema(value_type = Option<String>)]
    #[serde(rename = "path")]
    _path: Option<IgnoredAny>,
    /// A pattern for the last part of the path: `*`, `?`, `[a-z]`, `[!a-z]`, `\`.
    #[schema(value_type = Option<String>)]
    #[serde(rename = "name")]
    _name: Option<IgnoredAny>,
}

/// A version that is being read.
struct Reading {
    versions: Versions,
    commit: CommitInfo,
    snapshot: Snapshot,
    /// As the caller said it.
    version: String,
    /// Where to go on.
    after: Option<Vec<u8>>,
}

impl Reading {
    async fn open(
        state: &ApiState,
        tenant: TenantId,
        workspace: &str,
        version: Option<&str>,
        after: Option<&str>,
    ) -> Result<Self, ApiError> {
        let workspace = state.store.workspace_by_name(tenant, workspace).await?;
        let version = version.unwrap_or("main");
        let (commit, after) = match after {
            None => {
                let found = state.store.resolve_version(workspace.id, version).await?;
                (found, None)
            }
            Some(after) => {
                let position = position(after).ok_or_else(not_a_position)?;
                let commit = state.store.commit(workspace.id, position.commit).await?;
                (commit, Some(position))
            }
        };
        let versions = state.counted.gateway.versions(tenant, &workspace).await?;
        let snapshot = versions.of(&commit);
        let after = match after {
            Some(position) => Some(position.last_in(&snapshot).await?),
            None => None,
        };
        Ok(Self {
            snapshot,
            versions,
            commit,
            version: version.to_owned(),
            after,
        })
    }

    async fn resolve(&self, path: &[u8]) -> Result<InodeRecord, ApiError> {
        resolve(&self.snapshot, path, &self.version).await
    }

    fn next(&self, last: &[u8]) -> String {
        format!("{}:{}", self.commit.id, escape_bytes(last))
    }

    /// Where to go on after something that was found. What is far down is told by its directory: a path
    /// may be longer than the head of a request.
    fn next_found(&self, last: &Found) -> String {
        if last.path.len() <= POSITION_BYTES_MAX {
            return self.next(&last.path);
        }
        let name = last.path.rsplit(|byte| *byte == b'/').next();
        let (dir, name) = (last.dir, escape_bytes(name.unwrap_or_default()));
        format!("{}@{dir}:{name}", self.commit.id)
    }

    /// Describes what was found.
    async fn entries(&self, found: Vec<(Vec<u8>, InodeId)>) -> Result<Vec<Entry>, ApiError> {
        let inodes: Vec<InodeId> = found.iter().map(|(_, inode)| *inode).collect();
        let records = self.snapshot.attributes_of(&inodes).await?;
        let mut entries = Vec::with_capacity(found.len());
        for ((path, inode), record) in found.into_iter().zip(records) {
            let what = "has a name and no attributes";
            let damaged = || metadata::compare::SnapshotError::Damaged { inode, what };
            entries.push(Entry::new(&path, &record.ok_or_else(damaged)?));
        }
        Ok(entries)
    }

    /// A page of what is below a directory at a path. What `fits` is told; it says, too, whether it has
    /// been asked enough.
    async fn search(
        &self,
        top: &[u8],
        dir: InodeId,
        limit: usize,
        mut fits: impl FnMut(&[u8], FileKind) -> (bool, bool),
    ) -> Result<Page<Entry>, ApiError> {
        let snapshot = self.snapshot.clone();
        let mut finder = match &self.after {
            None => Finder::new(snapshot, dir, top),
            Some(last) => {
                let after = Finder::after(snapshot, dir, top, last).await?;
                after.ok_or_else(not_a_position)?
            }
        };
        let (mut found, mut room, mut next) = (Vec::new(), Room::default(), None);
        for looked_at in 1..=LOOKED_AT_MAX {
            let Some(one) = finder.next().await? else {
                break;
            };
            let (fits, is_tired) = fits(&one.path, one.kind);
            let is_last = is_tired || looked_at == LOOKED_AT_MAX;
            let position = || self.next_found(&one);
            if !fits {
                next = is_last.then(position);
                if is_last {
                    break;
                }
                continue;
            }
            room.add(ENTRY_BYTES + 4 * one.path.len());
            let is_last = is_last || found.len() + 1 == limit || room.is_full();
            next = is_last.then(position);
            found.push((one.path, one.inode));
            if is_last {
                break;
            }
        }
        let items = self.entries(found).await?;
        Ok(Page { items, next })
    }
}

/// A place to go on at.
struct Position {
    commit: CommitId,
    /// The directory where `last` is a name; without it `last` is whatever the list has.
    dir: Option<InodeId>,
    last: Vec<u8>,
}

impl Position {
    async fn last_in(self, snapshot: &Snapshot) -> Result<Vec<u8>, ApiError> {
        let Some(dir) = self.dir else {
            return Ok(self.last);
        };
        let path = snapshot.paths_of(dir).next().await?;
        let mut path = path.ok_or_else(not_a_position)?;
        path.push(b'/');
        path.extend_from_slice(&self.last);
        Ok(path)
    }
}

/// Reads a place to go on at: a commit, and a path or a name.
fn position(after: &str) -> Option<Position> {
    let (commit, last) = after.split_once(':')?;
    let (commit, dir) = match commit.split_once('@') {
        Some((commit, dir)) => (commit, Some(u64::from_str_radix(dir, 16).ok()?)),
        None => (commit, None),
    };
    Some(Position {
        commit: commit.parse().ok()?,
        dir: dir.map(InodeId::new),
        last: unescape_bytes(last)?,
    })
}

/// What is in a directory; of anything else, itself.
pub(super) async fn entries(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(workspace): Place<String>,
    bytes: Bytes,
    Parameters(wanted): Parameters<Listing>,
) -> Result<Json<Page<Entry>>, ApiError> {
    let (version, after) = (wanted.version.as_deref(), wanted.after.as_deref());
    let reading = Reading::open(&state, tenant, &workspace, version, after).await?;
    let path = bytes.path.unwrap_or_default();
    let record = reading.resolve(&path).await?;
    if !record.stat.is_dir() {
        let items = vec![Entry::new(&path, &record)];
        return Ok(Json(Page { items, next: None }));
    }
    let after = reading.after.as_deref().map(Name::new).transpose();
    let after = after.map_err(|_| not_a_position())?;
    let limit = page_limit(wanted.limit);
    let limit = limit
        .min(ANSWER_BYTES / (ENTRY_BYTES + 4 * path.len()))
        .max(1);
    let snapshot = &reading.snapshot;
    let listing = snapshot
        .list(record.stat.inode, after.as_ref(), limit)
        .await?;
    let last = listing.entries.last().filter(|_| listing.more);
    let next = last.map(|(name, _)| reading.next(name.as_bytes()));
    let full = |name: &Name| {
        let mut full = path.clone();
        if !full.is_empty() {
            full.push(b'/');
        }
        full.extend_from_slice(name.as_bytes());
        full
    };
    let found = listing.entries.iter();
    let found = found.map(|(name, entry)| (full(name), entry.inode));
    let items = reading.entries(found.collect()).await?;
    Ok(Json(Page { items, next }))
}

/// What is below a directory; of anything else, itself.
pub(super) async fn find(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(workspace): Place<String>,
    bytes: Bytes,
    Parameters(wanted): Parameters<Search>,
) -> Result<Json<Page<Entry>>, ApiError> {
    let kind = wanted.r#type.as_deref().map(kind).transpose()?;
    let glob = bytes.name.as_deref().map(Glob::new).transpose();
    let glob = glob.map_err(|error| ApiError::invalid(format!("name: {error}")))?;
    let mut steps = 0;
    let mut fits = |path: &[u8], is: FileKind| {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let fits = kind.is_none_or(|kind| kind == is)
            && (glob.as_ref()).is_none_or(|glob| glob.fits(name, &mut steps));
        (fits, steps >= STEPS_MAX)
    };
    let (version, after) = (wanted.version.as_deref(), wanted.after.as_deref());
    let reading = Reading::open(&state, tenant, &workspace, version, after).await?;
    let top = bytes.path.unwrap_or_default();
    let record = reading.resolve(&top).await?;
    let stat = record.stat;
    if !stat.is_dir() {
        let items = fits(&top, stat.kind).0.then(|| Entry::new(&top, &record));
        return Ok(Json(Page {
            items: items.into_iter().collect(),
            next: None,
        }));
    }
    let page = reading.search(&top, stat.inode, page_limit(wanted.limit), fits);
    Ok(Json(state.work.reading(page).await?))
}

fn kind(letter: &str) -> Result<FileKind, ApiError> {
    match letter {
        "f" | "file" => Ok(FileKind::File),
        "d" | "directory" => Ok(FileKind::Directory),
        "l" | "symlink" => Ok(FileKind::Symlink),
        _ => Err(ApiError::invalid(
            "type is none of f (file), d (directory), l (symbolic link)",
        )),
    }
}

/// The content of a file.
pub(super) async fn content(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(workspace): Place<String>,
    headers: HeaderMap,
    bytes: Bytes,
    Parameters(wanted): Parameters<OneFile>,
) -> Result<Ranged, ApiError> {
    let path = bytes.which_file()?;
    let version = wanted.version.as_deref();
    let reading = Reading::open(&state, tenant, &workspace, version, None).await?;
    let record = reading.resolve(&path).await?;
    check_readable(&path, &record)?;
    let size = record.stat.size;
    let asked = headers
        .get(header::RANGE)
        .and_then(|range| range.to_str().ok());
    let part = match asked.map_or(Asked::Whole, |range| parse_range(range, size)) {
        Asked::Whole => None,
        Asked::Part(part) => Some(part),
        Asked::Beyond => return Ok(Ranged(beyond(size))),
    };
    let range = part.clone().unwrap_or(0..size);
    let mut reader = reading
        .versions
        .read(&reading.snapshot, &record, range.clone());
    // An error that is found now can still be told.
    let first = reader.next().await?;
    let body = Body::from_stream(parts(first, reader, state.tasks.clone()));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let number = HeaderValue::from(range.end.saturating_sub(range.start));
    headers.insert(header::CONTENT_LENGTH, number);
    for (name, value) in [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::ACCEPT_RANGES, "bytes"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(id) = HeaderValue::from_str(&reading.commit.id.to_string()) {
        headers.insert(COMMIT_HEADER, id);
    }
    if let Some(part) = part {
        let told = format!("bytes {}-{}/{size}", part.start, part.end.saturating_sub(1));
        if let Ok(told) = HeaderValue::from_str(&told) {
            headers.insert(header::CONTENT_RANGE, told);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(Ranged(response))
}

fn check_readable(path: &[u8], record: &InodeRecord) -> Result<(), ApiError> {
    let shown = show_bytes(path);
    let why = match record.stat.kind {
        FileKind::File => return Ok(()),
        FileKind::Directory if path.is_empty() => {
            "that is the root directory: say which file".to_owned()
        }
        FileKind::Directory => format!("{shown} is a directory: list it"),
        FileKind::Symlink => {
            let target = record.inline.as_deref().unwrap_or_default();
            let target = show_bytes(target);
            format!("{shown} is a symbolic link to {target:?}, and links are not followed")
        }
        FileKind::BlockDevice | FileKind::CharDevice | FileKind::Fifo | FileKind::Socket => {
            format!("{shown} is no file: it has no content")
        }
    };
    Err(ApiError::invalid(why))
}

/// The parts of a file as a body. It ends early, as broken, if a part cannot be read or the server
/// shuts down: the peer sees that it is shorter than was said.
fn parts(
    first: Option<Data>,
    reader: FileReader,
    tasks: Tasks,
) -> impl futures_util::Stream<Item = std::io::Result<Data>> {
    try_unfold((first, reader), move |(first, mut reader)| {
        let is_ending = tasks.is_shutting_down();
        async move {
            if is_ending {
                return Err(std::io::Error::other("the server shuts down"));
            }
            let part = match first {
                Some(part) => Some(part),
                None => reader.next().await.map_err(|error| {
                    tracing::warn!(error = %Told(&error), "content of a version cannot be read");
                    std::io::Error::other(error)
                })?,
            };
            Ok(part.map(|part| (part, (None, reader))))
        }
    })
}

/// What a `Range` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    /// Everything: also where it asks for several parts, or is not understood.
    Whole,
    Part(Range<u64>),
    /// Nothing that is there.
    Beyond,
}

fn parse_range(text: &str, size: u64) -> Asked {
    let Some((first, last)) = text
        .strip_prefix("bytes=")
        .and_then(|text| text.split_once('-'))
    else {
        return Asked::Whole;
    };
    let number = |text: &str| {
        let text = text.trim();
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // What is too large for a number is behind every end.
        is_number.then(|| text.parse::<u64>().unwrap_or(u64::MAX))
    };
    let range = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(size),
        (Some(first), None) if last.trim().is_empty() => first..size,
        (None, Some(count)) if first.trim().is_empty() => size.saturating_sub(count)..size,
        _ => return Asked::Whole,
    };
    if range.is_empty() {
        return Asked::Beyond;
    }
    Asked::Part(range)
}

fn beyond(size: u64) -> Response {
    use axum::response::IntoResponse;
    let detail = format!("the file has {size} bytes: nothing of the range is there");
    let error = ApiError::rejected(StatusCode::RANGE_NOT_SATISFIABLE, detail);
    let mut response = error.into_response();
    if let Ok(told) = HeaderValue::from_str(&format!("bytes */{size}")) {
        response.headers_mut().insert(header::CONTENT_RANGE, told);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let cases = [
            ("bytes=0-0", 10, Asked::Part(0..1)),
            ("bytes=2-", 10, Asked::Part(2..10)),
            ("bytes=2-99", 10, Asked::Part(2..10)),
            ("bytes=-3", 10, Asked::Part(7..10)),
            ("bytes=-99", 10, Asked::Part(0..10)),
            ("bytes=9-99999999999999999999999", 10, Asked::Part(9..10)),
            ("bytes=10-", 10, Asked::Beyond),
            ("bytes=-0", 10, Asked::Beyond),
            ("bytes=0-", 0, Asked::Beyond),
            ("bytes=99999999999999999999999-", 10, Asked::Beyond),
            ("bytes=3-2", 10, Asked::Whole),
            ("bytes=0-1,3-4", 10, Asked::Whole),
            ("bytes=+1-2", 10, Asked::Whole),
            ("bytes=-", 10, Asked::Whole),
            ("lines=1-2", 10, Asked::Whole),
        ];
        for (text, size, asked) in cases {
            assert_eq!(parse_range(text, size), asked, "{text}");
        }
    }
}
