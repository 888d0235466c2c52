//! Turns errors into HTTP answers. The only place that does.

#![deny(clippy::wildcard_enum_match_arm)] // A new error has to be thought about here.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use metadata::kv::KvError;
use metadata::session::OwnError;
use metadata::store::StoreError;

use chunkstore::ChunkError;
use metadata::FsError;
use metadata::compare::SnapshotError;
use metadata::import::ImportError;
use metadata::layers::ImageError;
use metadata::lineage::LineageError;
use metadata::merge::MergeError;
use metadata::record::conflict::{Conflict, ConflictKind};
use metadata::restore::RestoreError;
use metadata::tree::TreeError;
use nfs_gateway::{ForkError, FreezeError, HistoryError, ReadError, ResolveError, TransferError};

use crate::types::Problem;

/// Seconds after which a client may try again what failed for want of something.
const RETRY_AFTER_SECONDS: &str = "1";

/// Conflicts that an error names.
const CONFLICTS_SHOWN: usize = 50;

/// A failed call of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    detail: String,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            detail: detail.into(),
        }
    }

    /// The call carries no token that is known.
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "send `Authorization: Bearer TOKEN` with a token of this server; commands on its \
             machine find one in its data directory",
        )
    }

    /// An argument is not acceptable.
    #[must_use]
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", detail)
    }

    /// The request's form is not acceptable, as the HTTP layer says.
    #[must_use]
    pub fn rejected(status: StatusCode, detail: impl Into<String>) -> Self {
        Self::new(status, "invalid", detail)
    }

    /// There is no such thing.
    #[must_use]
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", detail)
    }

    /// Something else is in the way.
    #[must_use]
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", detail)
    }

    /// The token does not allow it.
    #[must_use]
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    /// There is no such path.
    #[must_use]
    pub fn no_route() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not-found",
            "no such path: the API is under /v1/workspaces, /v1/sessions, /v1/tokens, /v1/gateways and \
             /v1/gc",
        )
    }

    /// The path takes other methods.
    #[must_use]
    pub fn no_method() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            "this path does not take that method",
        )
    }

    /// The call is for another server.
    #[must_use]
    pub fn misdirected(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::MISDIRECTED_REQUEST, "misdirected", detail)
    }

    /// The server is not, or no longer, ready.
    #[must_use]
    pub fn not_ready(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    }
}

/// An error with what it comes from.
fn told(error: &dyn std::error::Error) -> String {
    base::Told(error).to_string()
}

impl From<FreezeError> for ApiError {
    fn from(error: FreezeError) -> Self {
        let detail = told(&error);
        let (status, kind) = match error {
            FreezeError::Own(OwnError::NotFound) => (StatusCode::NOT_FOUND, "not-found"),
            FreezeError::Own(OwnError::Kv(error)) => of_store(&error),
            FreezeError::Own(OwnError::Elsewhere(..)) => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable")
            }
            FreezeError::Own(OwnError::Record(_)) | FreezeError::Corrupt => {
                (StatusCode::INTERNAL_SERVER_ERROR, "corrupt")
            }
            FreezeError::NoSpace => (StatusCode::INSUFFICIENT_STORAGE, "no-space"),
            FreezeError::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        Self::new(status, kind, detail)
    }
}

impl From<ForkError> for ApiError {
    fn from(error: ForkError) -> Self {
        match error {
            ForkError::Freeze(error) => error.into(),
            ForkError::Store(error) => error.into(),
        }
    }
}

impl From<HistoryError> for ApiError {
    fn from(error: HistoryError) -> Self {
        let detail = told(&error);
        match error {
            HistoryError::Freeze(error) => error.into(),
            HistoryError::Store(error) => error.into(),
            HistoryError::Tree(error) => of_tree(&error, detail),
            HistoryError::Snapshot(error) => error.into(),
            HistoryError::Merge(error) => of_merge(&error, detail),
            HistoryError::Conflicts { conflicts, .. }
            | HistoryError::SyncConflicts { conflicts, .. } => {
                let detail = listing(detail, conflicts.iter(), conflicts.len());
                Self::new(StatusCode::CONFLICT, "conflicts", detail)
            }
            HistoryError::Unresolved { conflicts, .. } => {
                let total = usize::try_from(conflicts.total).unwrap_or(usize::MAX);
                let first = conflicts.first.iter().map(|it| &it.conflict);
                Self::new(
                    StatusCode::CONFLICT,
                    "unresolved",
                    listing(detail, first, total),
                )
            }
            HistoryError::Image(error) => of_image(&error, detail),
            HistoryError::Restore(error) => of_restore(error, detail),
            HistoryError::OverQuota => Self::new(StatusCode::CONFLICT, "quota", detail),
            HistoryError::Refused { .. } => Self::new(StatusCode::CONFLICT, "refused", detail),
            HistoryError::Unrelated { .. } => Self::new(StatusCode::CONFLICT, "unrelated", detail),
            HistoryError::Busy { .. } | HistoryError::Overtaken => Self::not_ready(detail),
            HistoryError::Unknown { .. } => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "outcome-unknown", detail)
            }
        }
    }
}

impl From<TransferError> for ApiError {
    fn from(error: TransferError) -> Self {
        let detail = told(&error);
        match error {
            TransferError::Import(error) => of_import(error, detail),
            TransferError::Chunk(error) => of_chunk(&error, detail),
            TransferError::Own(error) => FreezeError::Own(error).into(),
            TransferError::Freeze(error) => error.into(),
            TransferError::Store(error) => error.into(),
            TransferError::Snapshot(error) => error.into(),
            TransferError::Tree(error) => of_tree(&error, detail),
            TransferError::Moved { .. } => Self::new(StatusCode::CONFLICT, "changed", detail),
        }
    }
}

/// An error's detail with the first conflicts that it is about, a line for each.
fn listing<'a>(
    mut detail: String,
    conflicts: impl Iterator<Item = &'a Conflict>,
    total: usize,
) -> String {
    for conflict in conflicts.take(CONFLICTS_SHOWN) {
        let path = crate::reading::text_of(&conflict.place.path);
        let path = crate::output::in_line(&path);
        detail.push_str(&format!("\n{}: {path}", conflict.kind.word()));
    }
    if total > CONFLICTS_SHOWN {
        let more = total - CONFLICTS_SHOWN;
        detail.push_str(&format!("\nand {more} more"));
    }
    detail
}

impl From<ResolveError> for ApiError {
    fn from(error: ResolveError) -> Self {
        let detail = told(&error);
        match error {
            ResolveError::Own(error) => FreezeError::Own(error).into(),
            ResolveError::Store(error) => error.into(),
            ResolveError::Image(error) => of_image(&error, detail),
            ResolveError::Snapshot(error) => error.into(),
            ResolveError::NotFound => Self::not_found(detail),
            ResolveError::Several(ids) => {
                let line = |(id, kind): &(_, ConflictKind)| {
                    format!("\n{}  {}", metadata::conflicts::show_id(id), kind.word())
                };
                let lines: String = ids.iter().take(CONFLICTS_SHOWN).map(line).collect();
                Self::new(StatusCode::BAD_REQUEST, "ambiguous", detail + &lines)
            }
            ResolveError::Refused(_) => Self::new(StatusCode::CONFLICT, "refused", detail),
            ResolveError::Fs(error) => of_filesystem(error, detail),
            ResolveError::Unavailable => Self::not_ready(detail),
            ResolveError::Unknown { .. } => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "outcome-unknown", detail)
            }
        }
    }
}

fn of_import(error: ImportError, detail: String) -> ApiError {
    let (status, kind) = match error {
        ImportError::Refused { .. } => (StatusCode::BAD_REQUEST, "invalid"),
        ImportError::Lost => (StatusCode::CONFLICT, "changed"),
        ImportError::NoSpace(_) => (StatusCode::INSUFFICIENT_STORAGE, "no-space"),
        ImportError::Kv(error) | ImportError::Image(ImageError::Kv(error)) => of_store(&error),
        ImportError::Store(error) => return error.into(),
        ImportError::Image(ImageError::Tree(error)) => return of_tree(&error, detail),
        ImportError::Image(ImageError::Record(_) | ImageError::Key(_)) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "corrupt")
        }
        ImportError::Snapshot(error) => return error.into(),
    };
    ApiError::new(status, kind, detail)
}

fn of_chunk(error: &ChunkError, detail: String) -> ApiError {
    let (status, kind) = match error {
        ChunkError::NoSpace => (StatusCode::INSUFFICIENT_STORAGE, "no-space"),
        ChunkError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        ChunkError::NotFound(_) | ChunkError::Corrupt(_) | ChunkError::TooLarge(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "corrupt")
        }
    };
    ApiError::new(status, kind, detail)
}

/// A change of a session that its image refuses.
fn of_filesystem(error: FsError, detail: String) -> ApiError {
    let (status, kind) = match error {
        FsError::NoSpace => (StatusCode::INSUFFICIENT_STORAGE, "no-space"),
        FsError::Corrupt => (StatusCode::INTERNAL_SERVER_ERROR, "corrupt"),
        FsError::NotFound
        | FsError::Exists
        | FsError::NotDirectory
        | FsError::IsDirectory
        | FsError::NotEmpty
        | FsError::AccessDenied
        | FsError::NotPermitted
        | FsError::ReadOnly
        | FsError::Stale
        | FsError::Invalid
        | FsError::BadType
        | FsError::GuardMismatch
        | FsError::TooLarge
        | FsError::TooManyLinks
        | FsError::QuotaExceeded
        | FsError::NameTooLong
        | FsError::CrossSession => (StatusCode::CONFLICT, "refused"),
    };
    ApiError::new(status, kind, detail)
}

impl From<SnapshotError> for ApiError {
    fn from(error: SnapshotError) -> Self {
        let detail = told(&error);
        match error {
            SnapshotError::Tree(error) => of_tree(&error, detail),
            SnapshotError::PathTooLong(_) => Self::new(StatusCode::CONFLICT, "refused", detail),
            SnapshotError::Key(_)
            | SnapshotError::Record { .. }
            | SnapshotError::Damaged { .. } => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "corrupt", detail)
            }
        }
    }
}

fn of_restore(error: RestoreError, detail: String) -> ApiError {
    match error {
        RestoreError::Snapshot(error) => error.into(),
        RestoreError::NoPath { .. } => ApiError::not_found(detail),
        RestoreError::NoParent { .. } | RestoreError::TooLarge => {
            ApiError::new(StatusCode::CONFLICT, "refused", detail)
        }
        RestoreError::NoNumbers => {
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
        }
    }
}

impl From<ReadError> for ApiError {
    fn from(error: ReadError) -> Self {
        Self::from(&error)
    }
}

impl From<&ReadError> for ApiError {
    fn from(error: &ReadError) -> Self {
        let (status, kind) = match error {
            ReadError::Snapshot(error) => return error.clone().into(),
            ReadError::Chunk(ChunkError::NoSpace) => (StatusCode::INSUFFICIENT_STORAGE, "no-space"),
            ReadError::Chunk(ChunkError::Unavailable(_)) => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable")
            }
            ReadError::Chunk(
                ChunkError::NotFound(_) | ChunkError::Corrupt(_) | ChunkError::TooLarge(_),
            ) => (StatusCode::INTERNAL_SERVER_ERROR, "corrupt"),
        };
        Self::new(status, kind, told(&error))
    }
}

impl From<LineageError> for ApiError {
    fn from(error: LineageError) -> Self {
        let detail = told(&error);
        match error {
            LineageError::Store(error) => error.into(),
            LineageError::Snapshot(error) => error.into(),
            LineageError::Content(error) => match error.source.downcast_ref::<ReadError>() {
                Some(error) => error.into(),
                None => Self::not_ready(detail),
            },
            LineageError::Position => Self::invalid(detail),
            LineageError::Missing => Self::not_found(detail),
            LineageError::TooWide => Self::new(StatusCode::CONFLICT, "refused", detail),
        }
    }
}

fn of_tree(error: &TreeError, detail: String) -> ApiError {
    let (status, kind) = match error {
        TreeError::NoSpace => (StatusCode::INSUFFICIENT_STORAGE, "no-space"),
        TreeError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        TreeError::Missing(_)
        | TreeError::Damaged { .. }
        | TreeError::Misshapen { .. }
        | TreeError::Order
        | TreeError::TooLong
        | TreeError::TooDeep
        | TreeError::Broken => (StatusCode::INTERNAL_SERVER_ERROR, "corrupt"),
    };
    ApiError::new(status, kind, detail)
}

fn of_merge(error: &MergeError, detail: String) -> ApiError {
    let (status, kind) = match error {
        MergeError::TooLarge | MergeError::NoName => (StatusCode::CONFLICT, "refused"),
        MergeError::Content(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        MergeError::Image(error) => return of_image(error, detail),
        MergeError::NoNumbers | MergeError::Damaged(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "corrupt")
        }
    };
    ApiError::new(status, kind, detail)
}

fn of_image(error: &ImageError, detail: String) -> ApiError {
    let (status, kind) = match error {
        ImageError::Tree(error) => return of_tree(error, detail),
        ImageError::Kv(error) => of_store(error),
        ImageError::Record(_) | ImageError::Key(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "corrupt")
        }
    };
    ApiError::new(status, kind, detail)
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let detail = told(&error);
        let (status, kind) = match error {
            StoreError::NotFound { .. } => (StatusCode::NOT_FOUND, "not-found"),
            StoreError::Exists { .. } => (StatusCode::CONFLICT, "exists"),
            StoreError::Changed { .. } => (StatusCode::CONFLICT, "changed"),
            StoreError::Refused { .. } => (StatusCode::CONFLICT, "refused"),
            StoreError::Ambiguous { .. } => (StatusCode::BAD_REQUEST, "ambiguous"),
            StoreError::Invalid { .. } => (StatusCode::BAD_REQUEST, "invalid"),
            StoreError::Full { .. } => (StatusCode::CONFLICT, "quota"),
            StoreError::Settled => (StatusCode::CONFLICT, "changed"),
            StoreError::Expired { .. } => (StatusCode::GONE, "expired"),
            StoreError::Version { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "version"),
            StoreError::Corrupt { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "corrupt"),
            StoreError::Unavailable(error) => of_store(&error),
        };
        if status.is_server_error() {
            tracing::warn!(error = %detail, "control call failed");
        }
        Self::new(status, kind, detail)
    }
}

fn of_store(error: &KvError) -> (StatusCode, &'static str) {
    match error {
        KvError::Conflict | KvError::VersionTooOld | KvError::Unavailable(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, "unavailable")
        }
        // It may have happened: look before trying again.
        KvError::OutcomeUnknown => (StatusCode::INTERNAL_SERVER_ERROR, "outcome-unknown"),
        KvError::NoSpace => (StatusCode::INSUFFICIENT_STORAGE, "no-space"),
        KvError::Limit(_) | KvError::Usage(_) | KvError::Corrupt(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "internal")
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let problem = Problem {
            r#type: format!("urn:holdfast:problem:{}", self.kind),
            title: self.kind.replace('-', " "),
            status: self.status.as_u16(),
            detail: self.detail,
        };
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, json);
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            let seconds = HeaderValue::from_static(RETRY_AFTER_SECONDS);
            headers.insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_tells_what_it_comes_from_once() {
        let full = FreezeError::Own(OwnError::Kv(KvError::NoSpace));
        let told = told(&full);
        assert_eq!(
            told,
            "take the session over: no space is left for the metadata store"
        );
        let plain = HistoryError::Freeze(FreezeError::NoSpace);
        assert_eq!(super::told(&plain), plain.to_string());
        // Its text ends with what it comes from.
        let merge = HistoryError::Merge(MergeError::Damaged("a node"));
        assert!(std::error::Error::source(&merge).is_some());
        assert_eq!(super::told(&merge), merge.to_string());
    }

    #[test]
    fn errors_have_their_status() {
        let what = || String::from("x");
        for (error, status) in [
            (StoreError::NotFound { what: what() }, 404),
            (StoreError::Exists { what: what() }, 409),
            (StoreError::Invalid { why: what() }, 400),
            (StoreError::Refused { why: what() }, 409),
            (
                StoreError::Changed {
                    what: what(),
                    now: None,
                },
                409,
            ),
            (
                StoreError::Ambiguous {
                    what: what(),
                    candidates: vec![],
                },
                400,
            ),
            (StoreError::Unavailable(KvError::NoSpace), 507),
            (StoreError::Unavailable(KvError::Conflict), 503),
            (StoreError::Unavailable(KvError::OutcomeUnknown), 500),
        ] {
            assert_eq!(ApiError::from(error).into_response().status(), status);
        }
    }
}
