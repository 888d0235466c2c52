//! Conflicts as JSON says them.

use metadata::conflicts::{Unresolved, show_id};
use metadata::merge::Side;
use metadata::ops::{Located, Take, side_in_place};
use metadata::record::conflict::Resolution;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::history;
use crate::reading::{bytes_of, text_of};

/// An unresolved conflict.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = UnresolvedConflict)]
pub struct Conflict {
    /// Its id.
    pub id: String,
    /// What kind, such as `content` or `edit-delete`.
    pub kind: String,
    /// What the merge did: `kept-both`, or took `ours` or `theirs`.
    pub resolution: String,
    /// Path of what is in its place; where it was, if that is gone.
    pub path: String,
    /// The path's bytes, behind percent signs, if the path is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// Nothing of what the merge left in its place is there any more.
    pub gone: bool,
    /// Where the other version was put, if it is there.
    pub aside: Option<String>,
    /// That path's bytes, behind percent signs, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aside_bytes: Option<String>,
    /// What both sides came from; nothing if there was no such thing.
    pub base: Option<Version>,
    /// What the branch had that was merged into; nothing if it had removed it.
    pub ours: Option<Version>,
    /// What the session had that was merged; nothing if it had removed it.
    pub theirs: Option<Version>,
}

/// An object as one side had it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// `file`, `directory`, `symlink` and so on.
    pub kind: String,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// When its content changed last.
    pub modified: String,
    /// What a symbolic link points to.
    pub target: Option<String>,
    /// Names a file's content: equal ids mean equal bytes. Absent if it cannot be read any more, or
    /// the file is over 8 GiB.
    pub content_id: Option<String>,
    /// The commit in which it can be read.
    pub commit: Option<String>,
    /// Its path there.
    pub path: Option<String>,
    /// That path's bytes, behind percent signs, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// The agent that made that commit.
    pub agent: Option<String>,
    /// The session that it was made of.
    pub session: Option<String>,
    /// The run.
    pub run: Option<String>,
    /// Where it is in the image that holds the conflict, if it is there.
    pub here: Option<String>,
}

/// A conflict to be resolved.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resolve {
    /// The path that it is at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its id, in place of a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `ours`, `theirs`, `both` or `file`.
    pub take: String,
}

/// A conflict that was resolved.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Resolved {
    /// Its id.
    pub id: String,
    /// What kind it was.
    pub kind: String,
    /// Where it was.
    pub path: String,
    /// What was taken.
    pub take: String,
    /// How many the session still has.
    pub left: u64,
}

/// Something on which two sessions would clash.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Clash {
    /// What kind, such as `content` or `edit-delete`.
    pub kind: String,
    /// Where.
    pub path: String,
    /// The path's bytes, behind percent signs, if the path is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// What both came from.
    pub base: Option<Version>,
    /// What the first session has.
    pub one: Option<Version>,
    /// What the second session has.
    pub two: Option<Version>,
}

/// What two sessions would clash on.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Clashes {
    /// The commit that both came from.
    pub base: Option<String>,
    /// What clashes, in the order of the paths.
    pub items: Vec<Clash>,
    /// What gives the further ones as `?after=`, if there are more than were asked for, or than an
    /// answer has room for.
    #[serde(default)]
    pub next: Option<String>,
}

/// What publishing would do.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Planned {
    /// Always true: nothing was done.
    pub dry_run: bool,
    /// The branch.
    pub branch: String,
    /// The commit that it is at.
    pub head: Option<String>,
    /// `created`, `fast-forward`, `merged` or `up-to-date`.
    pub outcome: String,
    /// It would be done. Otherwise conflicts are in the way.
    pub publishes: bool,
    /// What would clash, and how the policy would settle it. The first of these, if there are more
    /// than an answer has room for.
    pub conflicts: Vec<history::Conflict>,
    /// How many there are.
    #[serde(default)]
    pub conflicts_total: u64,
    /// Unresolved conflicts of the session that would come to the branch; at most the first 1,000.
    pub unresolved: Vec<history::Conflict>,
    /// How many there are.
    pub unresolved_total: u64,
}

/// The answer to a publish.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum PublishAnswer {
    /// It was done.
    Done(Box<history::Published>),
    /// It would be done so.
    Planned(Box<Planned>),
}

impl From<nfs_gateway::Plan> for Planned {
    fn from(plan: nfs_gateway::Plan) -> Self {
        let unresolved = plan.unresolved.first.iter().map(|it| &it.conflict);
        Self {
            dry_run: true,
            branch: plan.branch.as_str().to_owned(),
            head: plan.head.map(|head| head.to_string()),
            outcome: history::outcome_word(plan.outcome).to_owned(),
            publishes: !plan.is_refused,
            conflicts: history::first_of(plan.conflicts.iter()),
            conflicts_total: history::total_of(&plan.conflicts),
            unresolved: history::first_of(unresolved),
            unresolved_total: plan.unresolved.total,
        }
    }
}

impl Conflict {
    /// Describes a conflict whose objects are where `located` says; `versions` are those of base,
    /// ours and theirs.
    #[must_use]
    pub fn new(
        unresolved: &Unresolved,
        located: &Located,
        [base, mut ours, mut theirs]: [Option<Version>; 3],
    ) -> Self {
        let conflict = &unresolved.conflict;
        let now = located.path.as_deref();
        let path = now.unwrap_or(&conflict.place.path);
        let aside = located.aside.as_deref();
        let (ours_here, theirs_here) = match (&conflict.aside, &conflict.ours, &conflict.theirs) {
            (Some(_), _, _) => match side_in_place(conflict) {
                Side::Ours => (now, aside),
                Side::Theirs => (aside, now),
            },
            (None, Some(_), None) => (now, None),
            (None, None, Some(_)) => (None, now),
            // One object, put together of both.
            (None, _, _) => (None, None),
        };
        for (version, here) in [(&mut ours, ours_here), (&mut theirs, theirs_here)] {
            if let (Some(version), Some(here)) = (version, here) {
                version.here = Some(text_of(here));
            }
        }
        Self {
            id: show_id(&unresolved.id),
            kind: conflict.kind.word().to_owned(),
            resolution: match conflict.resolution {
                Resolution::KeptBoth => "kept-both",
                Resolution::Ours => "ours",
                Resolution::Theirs => "theirs",
            }
            .to_owned(),
            path: text_of(path),
            path_bytes: bytes_of(path),
            gone: now.is_none(),
            aside: aside.map(text_of),
            aside_bytes: aside.and_then(bytes_of),
            base,
            ours,
            theirs,
        }
    }
}

/// Reads what is to be taken.
///
/// # Errors
///
/// Says what may be written.
pub fn parse_take(word: &str) -> Result<Take, String> {
    match word {
        "ours" => Ok(Take::Side(Side::Ours)),
        "theirs" => Ok(Take::Side(Side::Theirs)),
        "both" => Ok(Take::Both),
        "file" => Ok(Take::File),
        _ => Err(format!("take {word:?} is none of ours, theirs, both, file")),
    }
}
