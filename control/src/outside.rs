//! Restoring, syncing and what changed from outside, as JSON says it.

use metadata::record::changed::ChangedPaths;
use metadata::store::{Changed as StoredChanged, LIST_ROOT};
use nfs_gateway::{Restored as DoneRestore, SyncOutcome, Synced as DoneSync};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::history::{Conflict, first_of, total_of};
use crate::reading::{escape_bytes, unescape_bytes};

/// A session to be restored.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    /// The version.
    pub version: String,
    /// Paths to restore, from the root directory; the whole session if there is none here and none
    /// in `paths_bytes`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Paths that are not UTF-8, their bytes behind percent signs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths_bytes: Vec<String>,
}

/// A session that was restored.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Restored {
    /// The commit that the version is.
    pub version: String,
    /// `restored`, or `unchanged` if the session was so already.
    pub outcome: String,
    /// A commit that has what the session had.
    pub before: Option<String>,
    /// The operation, which can be undone.
    pub operation: Option<String>,
    /// How many paths changed; none if everything may have.
    pub changed: Option<usize>,
}

/// A session that is to get what its branch has.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Sync {
    /// What to do where both changed the same thing: `fail` (if left out), `keep-both`, `ours` (the
    /// session's) or `theirs` (the branch's).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Change nothing, and say what it would come to.
    #[serde(default)]
    pub dry_run: bool,
}

/// A session that has what its branch has, or would have.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Synced {
    /// The branch.
    pub branch: String,
    /// The branch's commit.
    pub head: String,
    /// `up-to-date`, `fast-forward` or `merged`.
    pub outcome: String,
    /// The commit that the session stands on.
    pub commit: Option<String>,
    /// A commit that has what the session had.
    pub before: Option<String>,
    /// The operation, which can be undone.
    pub operation: Option<String>,
    /// Conflicts that the policy settles, or that stand in the way.
    pub conflicts: Vec<Conflict>,
    /// How many there are: an answer has no room for any number.
    #[serde(default)]
    pub conflicts_total: u64,
    /// How many paths changed or would; none if everything may have.
    pub changed: Option<usize>,
    /// Nothing was changed.
    pub dry_run: bool,
}

/// What changed from outside in a session and was not acknowledged.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// What to acknowledge when all of it has been seen to; none if nothing changed.
    pub position: Option<u64>,
    /// More changed than is told one by one.
    pub everything: bool,
    /// Paths from the root directory; its own is `.`.
    pub paths: Vec<String>,
    /// Paths that are not UTF-8, their bytes behind percent signs.
    pub paths_bytes: Vec<String>,
}

/// What has been seen to.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Acknowledge {
    /// All up to this position.
    pub position: u64,
}

/// Bytes of `paths` and `paths_bytes`.
///
/// # Errors
///
/// Says which has a percent sign without two hexadecimal digits.
pub fn path_bytes(paths: Vec<String>, escaped: &[String]) -> Result<Vec<Vec<u8>>, String> {
    let mut all: Vec<Vec<u8>> = paths.into_iter().map(String::into_bytes).collect();
    for text in escaped {
        let bytes = unescape_bytes(text);
        all.push(bytes.ok_or_else(|| {
            format!("paths_bytes: {text:?}: a percent sign begins two hexadecimal digits")
        })?);
    }
    Ok(all)
}

/// Paths as `paths` and `paths_bytes`.
#[must_use]
pub fn path_texts(paths: impl IntoIterator<Item = Vec<u8>>) -> (Vec<String>, Vec<String>) {
    let (mut texts, mut escaped) = (Vec::new(), Vec::new());
    for path in paths {
        match String::from_utf8(path) {
            Ok(text) => texts.push(text),
            Err(error) => escaped.push(escape_bytes(error.as_bytes())),
        }
    }
    (texts, escaped)
}

/// How many paths changed, if they are counted.
fn count(changed: &ChangedPaths) -> Option<usize> {
    match changed {
        ChangedPaths::Everything => None,
        ChangedPaths::These(paths) => Some(paths.len()),
    }
}

impl From<DoneRestore> for Restored {
    fn from(restored: DoneRestore) -> Self {
        let outcome = match restored.done {
            Some(_) => "restored",
            None => "unchanged",
        };
        Self {
            version: restored.commit.id.to_string(),
            outcome: outcome.to_owned(),
            before: restored.done.map(|(before, _)| before.to_string()),
            operation: restored.done.map(|(_, operation)| operation.to_string()),
            changed: count(&restored.changed),
        }
    }
}

impl Synced {
    /// What a sync, or a trial of one, came to.
    #[must_use]
    pub fn new(synced: &DoneSync, dry_run: bool) -> Self {
        let outcome = match synced.outcome {
            SyncOutcome::UpToDate => "up-to-date",
            SyncOutcome::FastForward => "fast-forward",
            SyncOutcome::Merged => "merged",
        };
        Self {
            branch: synced.branch.as_str().to_owned(),
            head: synced.head.to_string(),
            outcome: outcome.to_owned(),
            commit: synced.commit.map(|commit| commit.to_string()),
            before: synced.done.map(|(before, _)| before.to_string()),
            operation: synced.done.map(|(_, operation)| operation.to_string()),
            conflicts: first_of(synced.conflicts.iter()),
            conflicts_total: total_of(&synced.conflicts),
            changed: count(&synced.changed),
            dry_run,
        }
    }
}

impl From<StoredChanged> for Changed {
    fn from(changed: StoredChanged) -> Self {
        let (everything, paths) = match changed.paths {
            ChangedPaths::Everything => (true, Vec::new()),
            ChangedPaths::These(paths) => (false, paths),
        };
        let named = paths.into_iter().map(|path| {
            if path.is_empty() {
                LIST_ROOT.to_vec()
            } else {
                path
            }
        });
        let (paths, paths_bytes) = path_texts(named);
        Self {
            position: changed.position,
            everything,
            paths,
            paths_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_keep_their_bytes() {
        let paths = vec![
            b"a/b".to_vec(),
            b"\xff\x00%x".to_vec(),
            b"\xc3\xa4".to_vec(),
        ];
        let (texts, escaped) = path_texts(paths);
        assert_eq!(
            (texts.len(), escaped.as_slice()),
            (2, &["%FF%00%25x".to_owned()][..])
        );
        let back = path_bytes(texts, &escaped).unwrap();
        assert_eq!(back, [&b"a/b"[..], b"\xc3\xa4", b"\xff\x00%x"]);
        for wrong in ["%f", "%0g", "a%"] {
            assert!(
                path_bytes(Vec::new(), &[wrong.to_owned()]).is_err(),
                "{wrong}"
            );
        }
    }
}
