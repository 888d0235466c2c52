//! Paths in queries. They are bytes, and need not be UTF-8 behind their percent signs.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use metadata::compare::{Resolved, Snapshot};
use metadata::record::inode::InodeRecord;
use metadata::stat::FileKind;
use serde::Deserialize;
use serde::de::IgnoredAny;
use utoipa::ToSchema;

use super::ApiState;
use crate::reading::{kind_of, parse_path, show_bytes, unescape_bytes};
use crate::status::ApiError;

/// The parameters `path` and `name`, byte by byte.
#[derive(Clone, Debug, Default)]
pub(super) struct Bytes {
    /// As `parse_path` gives it.
    pub(super) path: Option<Vec<u8>>,
    pub(super) name: Option<Vec<u8>>,
}

impl Bytes {
    /// The path, where a call is about one.
    pub(super) fn which_file(self) -> Result<Vec<u8>, ApiError> {
        (self.path).ok_or_else(|| ApiError::invalid("say which file with path"))
    }
}

/// Which file of which version is wanted.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OneFile {
    /// The version; `main` if left out.
    pub(super) version: Option<String>,
    /// A path from the root directory; bytes that are not UTF-8 behind percent signs.
    #[schema(value_type = Option<String>, required = true)]
    #[serde(rename = "path")]
    _path: Option<IgnoredAny>,
}

impl FromRequestParts<Arc<ApiState>> for Bytes {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<ApiState>) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        let path = parameter(query, "path")?;
        let path = path.map(|path| parse_path(&path)).transpose();
        let path = path.map_err(ApiError::invalid)?;
        let name = parameter(query, "name")?;
        Ok(Self { path, name })
    }
}

fn parameter(query: &str, name: &str) -> Result<Option<Vec<u8>>, ApiError> {
    let mut found = None;
    for pair in query.split('&') {
        let Some((key, value)) = pair.split_once('=') else {
            continue;
        };
        if key != name {
            continue;
        }
        if found.is_some() {
            return Err(ApiError::invalid(format!("{name} is given twice")));
        }
        let value = unescape_bytes(&value.replace('+', "%20"));
        found = Some(value.ok_or_else(|| {
            ApiError::invalid(format!(
                "{name}: a percent sign begins two hexadecimal digits"
            ))
        })?);
    }
    Ok(found)
}

/// What is at a path of a version.
pub(super) async fn resolve(
    snapshot: &Snapshot,
    path: &[u8],
    version: &str,
) -> Result<InodeRecord, ApiError> {
    match snapshot.resolve(path).await? {
        Resolved::Found(record) => Ok(record),
        Resolved::Missing => {
            let detail = format!("no such path in version {version}: {}", show_bytes(path));
            Err(ApiError::not_found(detail))
        }
        Resolved::Through { bytes, kind } => {
            let through = show_bytes(path.get(..bytes).unwrap_or(path));
            let why = match kind {
                FileKind::Symlink => "a symbolic link, and links are not followed".to_owned(),
                kind => format!("a {}", kind_of(kind)),
            };
            let detail = format!(
                "no such path in version {version}: {}: {through} is {why}",
                show_bytes(path)
            );
            Err(ApiError::not_found(detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_bytes() {
        let of = |query: &str| parameter(query, "path");
        assert_eq!(
            of("version=x&path=a%FF+b%2Bc"),
            Ok(Some(b"a\xff b+c".to_vec()))
        );
        assert_eq!(of("path="), Ok(Some(Vec::new())));
        assert_eq!(of("x=1&paths=2"), Ok(None));
        assert!(of("path=%f").is_err() && of("path=a&path=b").is_err());
    }
}
