//! What the API takes and gives, shared by server and client.

use std::borrow::Cow;

use base::Timestamp;
use metadata::record::session::{Identity, SessionState};
use metadata::store::{SESSION_DIGITS_MIN, SessionInfo};
use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::SchemaType;
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, Ref, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// A workspace to be made.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateWorkspace {
    /// Its name.
    pub name: String,
    /// Mode of its root directory; 0777 if left out, in decimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_mode: Option<u32>,
    /// Owner of its root directory.
    #[serde(default)]
    pub root_uid: u32,
    /// Group of its root directory.
    #[serde(default)]
    pub root_gid: u32,
}

/// A workspace.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Workspace {
    /// Its number, in hexadecimal.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Size of file blocks.
    pub block_bytes: u32,
    /// When it was made, as RFC 3339 says.
    pub created: String,
}

/// A session to be opened.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenSession {
    /// Name of its workspace.
    pub workspace: String,
    /// Refuse every change.
    #[serde(default)]
    pub read_only: bool,
    /// `passthrough`, `root-squash` or `all-squash=UID:GID`; the first if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// The agent that opens it.
    #[serde(default)]
    pub agent: String,
    /// The run it belongs to.
    #[serde(default)]
    pub run: String,
    /// Seconds until it ends by itself; without it stays until closed.
    #[schema(minimum = 1, maximum = 3_162_239_999_u64)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// The version to begin with; what branch `main` has if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The branch to publish to; the one that `version` names, else `main`, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
}

/// A session to be forked.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkSession {
    /// Refuse every change in the fork.
    #[serde(default)]
    pub read_only: bool,
    /// `passthrough`, `root-squash` or `all-squash=UID:GID`; as the source's if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// The agent that forks it.
    #[serde(default)]
    pub agent: String,
    /// The run it belongs to.
    #[serde(default)]
    pub run: String,
    /// Seconds until the fork ends by itself; without it stays until closed.
    #[schema(minimum = 1, maximum = 3_162_239_999_u64)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
}

/// A session.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Its number, in hexadecimal.
    pub id: String,
    /// Name of its workspace.
    pub workspace: String,
    /// `open`, `expired` or `closed`.
    pub state: String,
    /// Refuses every change.
    pub read_only: bool,
    /// Whose identity calls run as.
    pub identity: String,
    /// The agent that opened it.
    pub agent: String,
    /// The run it belongs to.
    pub run: String,
    /// When it was opened, as RFC 3339 says.
    pub created: String,
    /// When it ends by itself.
    pub expires: Option<String>,
    /// The commit it stands on.
    pub commit: Option<String>,
    /// The branch it publishes to.
    pub branch: String,
    /// Bytes its files take.
    pub used_bytes: u64,
    /// Files, directories and the like that it has.
    pub inodes: u64,
    /// Where it is best mounted, as host and port: at the gateway that has it in memory, if there is
    /// one.
    #[serde(default)]
    #[schema(required = true)]
    pub gateway: String,
}

/// A right to mount, and how. The ticket is nowhere stored: who loses it makes another.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Mount {
    /// The ticket.
    pub ticket: String,
    /// What names the ticket, to end it; grants nothing.
    pub ticket_id: String,
    /// The path to mount: a slash and the ticket.
    pub mount_path: String,
    /// The server and its path, `HOST:/TICKET`.
    pub mount_source: String,
    /// The command that mounts; it ends with the directory, here `/mnt`.
    pub mount_command: String,
    /// The data string of `mount(2)`, for machines without `mount.nfs`.
    pub mount_options: String,
    /// Options for `mount -o`.
    pub mount_command_options: String,
}

/// A session that was just opened.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OpenedSession {
    /// The session.
    #[serde(flatten)]
    pub session: Session,
    /// How to mount it.
    #[serde(flatten)]
    pub mount: Mount,
}

/// A ticket to be made.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTicket {
    /// Mount read-only, whatever the session allows.
    #[serde(default)]
    pub read_only: bool,
    /// Spent by the first mount.
    #[serde(default)]
    pub single_use: bool,
    /// Others change the session meanwhile: print mount options that show it soon.
    #[serde(default)]
    pub shared: bool,
    /// The directory to mount, a path from the root; the root if left out.
    #[serde(default)]
    pub directory: String,
    /// Seconds until it ends.
    #[schema(minimum = 1, maximum = 3_162_239_999_u64)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
}

/// Whether a server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DrainState {
    /// It does not.
    Serving,
    /// It says that it is not ready, and serves on.
    Draining,
    /// It answers what is in flight, stores what is buffered, and ends.
    Stopping,
}

/// How far a server is with ending.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drain {
    /// Whether it ends.
    pub state: DrainState,
    /// How long it serves on once it has been told to end, in milliseconds.
    pub delay_ms: u64,
    /// Sessions that it has in memory. If there are other gateways it lets go of them, one by one.
    #[serde(default)]
    #[schema(required = true)]
    pub sessions: u64,
    /// Its NFS connections.
    pub connections: u64,
    /// Bytes of file data in memory that are in no store yet.
    pub dirty_bytes: u64,
}

/// Whether a gateway takes sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It does.
    Serving,
    /// It lets go of those it has, and ends.
    Draining,
}

/// A gateway that shares the metadata.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FleetMember {
    /// Its number, in hexadecimal: another one after each start.
    pub id: String,
    /// It is the one that answers.
    pub this: bool,
    /// It renews its lease. One that is dead serves nothing, and others have its sessions as soon as
    /// they are asked for.
    pub alive: bool,
    /// Whether it takes sessions.
    pub state: MemberState,
    /// Sessions that it has in memory.
    pub sessions: u64,
    /// Where clients reach it with NFS, as host and port.
    pub nfs: String,
    /// Where other gateways pass calls on, as host and port; empty if there are none.
    pub peers: String,
    /// Its API, as a URL; empty if other machines cannot reach it.
    pub api: String,
    /// When it started, as RFC 3339 says.
    pub started: String,
    /// The release it runs.
    pub release: String,
}

/// A collection to be run.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartCollection {
    /// Only find out what could be removed.
    #[serde(default)]
    pub dry_run: bool,
}

/// Why a collection runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Trigger {
    /// Somebody asked.
    Asked,
    /// Space is short.
    Space,
    /// The packs have grown much since the last one.
    Growth,
    /// The last one was long ago.
    Interval,
}

/// How far a collection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CollectionState {
    /// It waits for the one that runs.
    Queued,
    /// It runs.
    Running,
    /// It came to its end.
    Done,
    /// It ended early.
    Failed,
}

/// A collection of file content that nothing refers to. Figures are 0 until they are known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Collection {
    /// Its number since the server's start.
    pub run: u64,
    /// Why it runs.
    pub trigger: Trigger,
    /// It only finds out what could be removed.
    pub dry_run: bool,
    /// How far it is.
    pub state: CollectionState,
    /// Why it ended early.
    pub error: Option<String>,
    /// A later try may do better.
    pub retry: bool,
    /// How long it took.
    pub millis: u64,
    /// References of files to chunks, a chunk as often as it is referred to.
    pub references: u64,
    /// Nodes of trees, each once.
    #[serde(default)]
    pub nodes: u64,
    /// Chunks that are referred to, nodes among them.
    pub live_chunks: u64,
    /// What these take.
    pub live_bytes: u64,
    /// Chunks that are not, and that no earlier collection found.
    pub dead_chunks: u64,
    /// What these take.
    pub dead_bytes: u64,
    /// By how much the packs became smaller.
    pub freed_bytes: u64,
    /// What had to be copied for that.
    pub copied_bytes: u64,
    /// Packs removed because nothing in them was live.
    pub packs_removed: u64,
    /// Packs removed after what was live had been copied.
    pub packs_rewritten: u64,
    /// Packs not rewritten for want of room.
    pub packs_without_room: u64,
    /// What packs take now.
    pub stored_bytes: u64,
    /// Commits that the policies of workspaces let go.
    #[serde(default)]
    pub expired_commits: u64,
    /// Entries of operation logs and logs of refs that they let go; not known of a dry run.
    #[serde(default)]
    pub expired_log_entries: u64,
    /// Nodes of trees that only these commits have; known of a dry run only.
    #[serde(default)]
    pub expired_nodes: u64,
}

impl Collection {
    /// One that has not begun.
    #[must_use]
    pub fn new(run: u64, trigger: Trigger, dry_run: bool) -> Self {
        Self {
            run,
            trigger,
            dry_run,
            state: CollectionState::Queued,
            error: None,
            retry: false,
            millis: 0,
            references: 0,
            nodes: 0,
            live_chunks: 0,
            live_bytes: 0,
            dead_chunks: 0,
            dead_bytes: 0,
            freed_bytes: 0,
            copied_bytes: 0,
            packs_removed: 0,
            packs_rewritten: 0,
            packs_without_room: 0,
            stored_bytes: 0,
            expired_commits: 0,
            expired_log_entries: 0,
            expired_nodes: 0,
        }
    }
}

impl std::fmt::Display for Trigger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Asked => "asked",
            Self::Space => "space",
            Self::Growth => "growth",
            Self::Interval => "interval",
        })
    }
}

/// The collections that are known, newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CollectionList {
    /// The collections.
    pub items: Vec<Collection>,
}

/// Part of a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Page<T> {
    /// Members of the list.
    pub items: Vec<T>,
    /// Give this as `after` to read on; absent at the end.
    pub next: Option<String>,
}

impl<T: ToSchema> PartialSchema for Page<T> {
    fn schema() -> RefOr<Schema> {
        let member = RefOr::Ref(Ref::from_schema_name(T::name()));
        let items = ArrayBuilder::new().items(member);
        let next = ObjectBuilder::new()
            .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
            .description(Some("Give this as `after` to read on; null at the end."));
        ObjectBuilder::new()
            .description(Some("Part of a list."))
            .property("items", items.description(Some("Members of the list.")))
            .property("next", next)
            .required("items")
            .required("next")
            .into()
    }
}

impl<T: ToSchema> ToSchema for Page<T> {
    fn name() -> Cow<'static, str> {
        // The derived one is the same for all kinds of members.
        format!("{}Page", T::name()).into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((T::name().into_owned(), T::schema()));
        T::schemas(schemas);
    }
}

/// An error, as RFC 9457 says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Names the kind of error.
    pub r#type: String,
    /// The same for people.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened and what to do.
    pub detail: String,
}

impl Session {
    /// Describes `info`, a session of the workspace named `workspace`, which is best mounted at
    /// `gateway`.
    #[must_use]
    pub fn new(info: &SessionInfo, workspace: String, gateway: String, now: Timestamp) -> Self {
        let record = &info.record;
        let state = match record.state {
            SessionState::Open if info.is_expired(now) => "expired",
            SessionState::Open => "open",
            SessionState::Closed => "closed",
        };
        Self {
            id: info.id.to_string(),
            workspace,
            state: state.into(),
            read_only: record.read_only,
            identity: show_identity(record.identity),
            agent: record.agent.clone(),
            run: record.run.clone(),
            created: show_time(record.created),
            expires: record.expires.map(show_time),
            commit: info.record.commit.map(|commit| commit.to_string()),
            branch: info.record.branch.clone(),
            used_bytes: info.flush.totals.usage.bytes,
            inodes: info.flush.totals.usage.inodes,
            gateway,
        }
    }
}

/// A time as RFC 3339 says.
#[must_use]
pub fn show_time(time: Timestamp) -> String {
    metadata::version::show_time(time)
}

fn show_identity(identity: Identity) -> String {
    match identity {
        Identity::Passthrough => "passthrough".into(),
        Identity::RootSquash => "root-squash".into(),
        Identity::AllSquash { uid, gid } => format!("all-squash={uid}:{gid}"),
    }
}

/// Reads an identity rule.
///
/// # Errors
///
/// Says what may be written.
pub fn parse_identity(text: &str) -> Result<Identity, String> {
    let wrong = || {
        format!(
            "identity {text:?} is not acceptable: use passthrough, root-squash or \
             all-squash=UID:GID"
        )
    };
    match text {
        "passthrough" => Ok(Identity::Passthrough),
        "root-squash" => Ok(Identity::RootSquash),
        _ => {
            let ids = text.strip_prefix("all-squash=").ok_or_else(wrong)?;
            let (uid, gid) = ids.split_once(':').ok_or_else(wrong)?;
            let uid = uid.parse().map_err(|_| wrong())?;
            let gid = gid.parse().map_err(|_| wrong())?;
            Ok(Identity::AllSquash { uid, gid })
        }
    }
}

/// What to say of a text that can name no session.
#[must_use]
pub fn no_session(text: &str) -> String {
    format!(
        "{text:?} is no session: use an id as `session ls` prints it, or at least \
         {SESSION_DIGITS_MIN} of its first digits"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_read_and_written() {
        for text in ["passthrough", "root-squash", "all-squash=1000:100"] {
            assert_eq!(show_identity(parse_identity(text).unwrap()), text);
        }
        for bad in ["", "all-squash", "all-squash=1", "all-squash=1:x", "none"] {
            assert!(parse_identity(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_shown_also_absurd_ones() {
        assert_eq!(show_time(Timestamp::new(0, 5)), "1970-01-01T00:00:00Z");
        assert_eq!(
            show_time(Timestamp::new(u64::MAX, 0)),
            format!("@{}", u64::MAX)
        );
    }
}
