//! History as JSON says it: commits, refs, operations, and the verbs that make them.

use std::collections::BTreeMap;

use metadata::compare::PathChange;
use metadata::merge::Policy;
use metadata::record::commit::{Provenance, Statistics};
use metadata::record::conflict::Conflict as StoredConflict;
use metadata::record::operation::Action;
use metadata::record::reference::RefKind;
use metadata::store::{CommitInfo, OperationInfo, RefInfo};
use nfs_gateway::{About, Outcome};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::reading::{ChangedPath, bytes_of, text_of};
use crate::room::Room;
use crate::types::show_time;

/// Most conflicts that an answer names.
const CONFLICTS_TOLD_MAX: usize = 10_000;

/// What a commit is to say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// What it is about.
    #[serde(default)]
    pub message: String,
    /// The person or system on whose behalf.
    #[serde(default)]
    pub author: String,
    /// The model.
    #[serde(default)]
    pub model: String,
    /// The tool call.
    #[serde(default)]
    pub tool_call: String,
    /// Whatever else is to be known, by key.
    #[serde(default)]
    pub pairs: BTreeMap<String, String>,
}

/// A session to be published.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Publish {
    /// What its commit is to say.
    #[serde(default)]
    pub about: Checkpoint,
    /// The branch; the session's if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// What to do where both sides changed the same thing: `fail` (if left out), `keep-both`, `ours`
    /// (the branch's) or `theirs` (the session's).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Only tell what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// A commit.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Commit {
    /// Its id.
    pub id: String,
    /// Commits it comes from.
    pub parents: Vec<String>,
    /// When it was made.
    pub time: String,
    /// What it is about.
    pub message: String,
    /// The person or system on whose behalf.
    pub author: String,
    /// The agent.
    pub agent: String,
    /// The session.
    pub session: Option<String>,
    /// The run.
    pub run: String,
    /// The model.
    pub model: String,
    /// The tool call.
    pub tool_call: String,
    /// Whatever else is known, by key.
    pub pairs: BTreeMap<String, String>,
    /// Root of its tree.
    pub tree: String,
    /// Bytes its files take.
    pub used_bytes: u64,
    /// Files, directories and the like that it has.
    pub inodes: u64,
    /// Unresolved conflicts in it.
    pub conflicts: u64,
    /// Files added, changed and removed against its first parent.
    pub files: [u64; 3],
    /// Bytes of these.
    pub bytes: [u64; 3],
}

/// A session's commit.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Checkpointed {
    /// The commit.
    pub commit: Commit,
    /// Whether it was made now; else nothing had changed.
    pub is_new: bool,
}

/// Something that both sides of a merge changed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Conflict {
    /// What kind, such as `content` or `edit-delete`.
    pub kind: String,
    /// How it was settled: `kept-both`, `ours` or `theirs`.
    pub resolution: String,
    /// Where it is.
    pub path: String,
    /// The path's bytes, behind percent signs, if the path is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// Where the other version was put.
    pub aside: Option<String>,
    /// That path's bytes, behind percent signs, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aside_bytes: Option<String>,
}

/// A session that was published.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Published {
    /// The session's commit.
    pub commit: Commit,
    /// The branch.
    pub branch: String,
    /// The commit that the branch is at now.
    pub head: String,
    /// `created`, `fast-forward`, `merged` or `up-to-date`.
    pub outcome: String,
    /// What clashed: the policy decided it, or, if that is `keep-both`, it is unresolved. The first of
    /// these, if there are more than an answer has room for.
    pub conflicts: Vec<Conflict>,
    /// How many there are.
    #[serde(default)]
    pub conflicts_total: u64,
    /// The operation, which can be undone.
    pub operation: Option<String>,
}

/// A file that differs between two versions.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Change {
    /// What became of its path.
    #[serde(flatten)]
    pub changed: ChangedPath,
    /// Size in bytes before.
    pub old_size: Option<u64>,
    /// Size in bytes now.
    pub new_size: Option<u64>,
    /// How many further names of the same file changed alike.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub further: u32,
    /// The change as `git diff` has it, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
    /// `patch` says only that content differs: it is binary, not UTF-8, or too large.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub patch_partial: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde calls it.
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Sums of what differs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct Stat {
    /// Files added, changed and removed.
    pub files: [u64; 3],
    /// Bytes of these.
    pub bytes: [u64; 3],
    /// So much differs that not all of it was counted.
    pub more: bool,
}

impl Stat {
    /// Describes sums.
    #[must_use]
    pub fn new(sums: Statistics, more: bool) -> Self {
        let all = [sums.added, sums.changed, sums.removed];
        Self {
            files: all.map(|volume| volume.files),
            bytes: all.map(|volume| volume.bytes),
            more,
        }
    }
}

/// A commit, and what it changed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Shown {
    /// The commit.
    #[serde(flatten)]
    pub commit: Commit,
    /// Files that differ from its first parent, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<Change>>,
    /// There are more of these than were asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more_changes: bool,
}

/// What differs between two versions.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Diff {
    /// The commit that was compared with; `empty` for nothing.
    pub from: String,
    /// The commit that was compared; or `session ID`.
    pub to: String,
    /// Files that differ, in the order of their inode numbers.
    pub items: Vec<Change>,
    /// There are more than were asked for, or than an answer can have.
    pub more: bool,
    /// Sums of all that differs, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stat: Option<Stat>,
}

impl From<PathChange> for Change {
    fn from(change: PathChange) -> Self {
        let old_path = change.old_path.as_deref();
        Self {
            changed: ChangedPath {
                content: change.content,
                mode: change.mode,
                owner: change.owner,
                ..ChangedPath::new(change.what, &change.path, old_path, change.kind)
            },
            old_size: change.old_size,
            new_size: change.new_size,
            further: change.further,
            patch: None,
            patch_partial: false,
        }
    }
}

/// A branch or a tag.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Ref {
    /// Its name.
    pub name: String,
    /// `branch` or `tag`.
    pub kind: String,
    /// The commit it names.
    pub commit: String,
    /// It is not removed, and moves to descendants only.
    pub protected: bool,
    /// When it was changed last.
    pub updated: String,
}

/// A branch or a tag to be made.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRef {
    /// Its name.
    pub name: String,
    /// The version it is to name.
    pub version: String,
    /// A tag, which does not move.
    #[serde(default)]
    pub tag: bool,
    /// Protect it.
    #[serde(default)]
    pub protected: bool,
}

/// An entry of the operation log.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Operation {
    /// Its id.
    pub id: String,
    /// When.
    pub time: String,
    /// What was done.
    pub what: String,
    /// The agent that did it.
    pub agent: String,
    /// The run.
    pub run: String,
}

/// An operation to be undone.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Undo {
    /// Its id.
    pub operation: String,
}

impl From<Checkpoint> for About {
    fn from(asked: Checkpoint) -> Self {
        Self {
            message: asked.message,
            provenance: Provenance {
                author: asked.author,
                model: asked.model,
                tool_call: asked.tool_call,
                pairs: asked.pairs,
                ..Provenance::default()
            },
        }
    }
}

impl From<CommitInfo> for Commit {
    fn from(info: CommitInfo) -> Self {
        let record = info.record;
        let made = record.provenance;
        let Statistics {
            added,
            changed,
            removed,
        } = record.statistics;
        Self {
            id: info.id.to_string(),
            parents: record.parents.iter().map(ToString::to_string).collect(),
            time: show_time(record.time),
            message: record.message,
            author: made.author,
            agent: made.agent,
            session: made.session.map(|session| session.to_string()),
            run: made.run,
            model: made.model,
            tool_call: made.tool_call,
            pairs: made.pairs,
            tree: record.tree.to_string(),
            used_bytes: record.usage.bytes,
            inodes: record.usage.inodes,
            conflicts: record.conflicts,
            files: [added.files, changed.files, removed.files],
            bytes: [added.bytes, changed.bytes, removed.bytes],
        }
    }
}

/// The first of some conflicts, as many as an answer has room for: whoever published must hear so,
/// however much clashed.
pub(crate) fn first_of<'a>(all: impl Iterator<Item = &'a StoredConflict>) -> Vec<Conflict> {
    let (mut told, mut room) = (Vec::new(), Room::default());
    for conflict in all.take(CONFLICTS_TOLD_MAX) {
        let conflict = Conflict::from(conflict);
        room.put(&conflict);
        told.push(conflict);
        if room.is_full() {
            break;
        }
    }
    told
}

/// How many conflicts there are.
pub(crate) fn total_of(all: &[StoredConflict]) -> u64 {
    u64::try_from(all.len()).unwrap_or(u64::MAX)
}

impl From<&StoredConflict> for Conflict {
    fn from(conflict: &StoredConflict) -> Self {
        let path = &conflict.place.path;
        let aside = conflict.aside.as_ref().map(|place| place.path.as_ref());
        Self {
            kind: kebab(&format!("{:?}", conflict.kind)),
            resolution: kebab(&format!("{:?}", conflict.resolution)),
            path: text_of(path),
            path_bytes: bytes_of(path),
            aside: aside.map(text_of),
            aside_bytes: aside.and_then(bytes_of),
        }
    }
}

/// What a publish does about clashes if nobody says: a branch gets only what was merged without any.
pub const PUBLISH_POLICY: &str = "fail";

/// What a sync does about clashes if nobody says: the session gets both versions, and cannot be
/// published before they are settled.
pub const SYNC_POLICY: &str = "keep-both";

/// Reads what is to be done where both sides changed the same thing.
///
/// # Errors
///
/// Says what may be written.
pub fn parse_policy(word: &str) -> Result<Policy, String> {
    match word {
        "fail" => Ok(Policy::Fail),
        "keep-both" => Ok(Policy::KeepBoth),
        "ours" => Ok(Policy::Ours),
        "theirs" => Ok(Policy::Theirs),
        other => Err(format!(
            "policy {other:?} is none of fail, keep-both, ours, theirs"
        )),
    }
}

/// How a branch got on, in a word.
pub(crate) fn outcome_word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Created => "created",
        Outcome::FastForward => "fast-forward",
        Outcome::Merged => "merged",
        Outcome::UpToDate => "up-to-date",
    }
}

impl From<nfs_gateway::Published> for Published {
    fn from(published: nfs_gateway::Published) -> Self {
        Self {
            commit: published.commit.into(),
            branch: published.branch.as_str().to_owned(),
            head: published.head.to_string(),
            outcome: outcome_word(published.outcome).to_owned(),
            conflicts: first_of(published.conflicts.iter()),
            conflicts_total: total_of(&published.conflicts),
            operation: published.operation.map(|operation| operation.to_string()),
        }
    }
}

impl From<RefInfo> for Ref {
    fn from(info: RefInfo) -> Self {
        let state = info.record.state;
        let kind = match state.kind {
            RefKind::Branch => "branch",
            RefKind::Tag => "tag",
        };
        Self {
            name: info.name.as_str().to_owned(),
            kind: kind.to_owned(),
            commit: state.commit.to_string(),
            protected: state.protected,
            updated: show_time(info.record.updated),
        }
    }
}

impl From<OperationInfo> for Operation {
    fn from(info: OperationInfo) -> Self {
        let at = |commit: Option<base::CommitId>| {
            commit.map_or_else(|| "nothing".to_owned(), |commit| short(&commit.to_string()))
        };
        let what = match &info.record.action {
            Action::SessionOpened { session, commit } => {
                format!("opened session {session} at {}", at(*commit))
            }
            Action::SessionForked {
                session, source, ..
            } => format!("forked session {session} from {source}"),
            Action::SessionClosed { session, .. } => format!("closed session {session}"),
            Action::SessionRestored { session, after, .. } => {
                format!("restored session {session} to {}", at(*after))
            }
            Action::RefChanged { change, .. } => {
                let name = change.name.as_str();
                if let (Some(before), Some(after)) = (change.before, change.after)
                    && before.commit == after.commit
                    && before.protected != after.protected
                {
                    let how = if after.protected {
                        "protected"
                    } else {
                        "unprotected"
                    };
                    let what = format!("{name} {how}");
                    return Self::new(info, what);
                }
                let said = |state: Option<metadata::record::reference::RefState>| {
                    at(state.map(|state| state.commit))
                };
                let (before, after) = (said(change.before), said(change.after));
                format!("{name} from {before} to {after}")
            }
        };
        Self::new(info, what)
    }
}

impl Operation {
    fn new(info: OperationInfo, what: String) -> Self {
        Self {
            id: info.id.to_string(),
            time: show_time(info.time),
            what,
            agent: info.record.actor.agent,
            run: info.record.actor.run,
        }
    }
}

/// About how many bytes conflicts take at most in an answer that is kept for a key.
const KEPT_CONFLICT_BYTES_MAX: usize = 32 << 10;

/// Leaves the first conflicts, as far as an answer that is kept has room for them.
pub(crate) fn shorten(conflicts: &mut Vec<Conflict>) {
    let mut room = KEPT_CONFLICT_BYTES_MAX;
    let mut fits = 0;
    for conflict in conflicts.iter() {
        let size = serde_json::to_vec(conflict).map_or(usize::MAX, |json| json.len());
        let Some(left) = room.checked_sub(size) else {
            break;
        };
        (room, fits) = (left, fits + 1);
    }
    conflicts.truncate(fits);
}

/// The first digits of an id, enough for people.
pub(crate) fn short(id: &str) -> String {
    id.chars().take(12).collect()
}

/// `EditDelete` as `edit-delete`.
pub(crate) fn kebab(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}
