//! Every key this system stores is defined in this file.
//!
//! A key is one table byte, then fixed-width fields, then at most one variable-length tail.
//! Integers are big-endian, so that the store's byte order is the order of the fields. Session
//! keys begin with 16 bits of a hash of the session, so that sessions spread over the store.
//! `docs/keyspace.md` has the same table; a test compares the two.
//!
//! | byte | table | fields after the byte | value |
//! |------|-------|-----------------------|-------|
//! | `v` | format | | `FormatRecord`: data version, installation id |
//! | `h` | handle keys | | `HandleKeysRecord`: the live handle keys |
//! | `t` | tenant | tenant: u64 | `TenantRecord`: name, limits, domain key |
//! | `T` | tenant name | name: bytes to end | tenant: u64 |
//! | `p` | API token | hash: 32 bytes | `TokenRecord`: tenant, created, name |
//! | `w` | workspace | workspace: u64 | `WorkspaceRecord`: tenant, name, block size, name key |
//! | `W` | workspace name | tenant: u64, name: bytes to end | workspace: u64 |
//! | `i` | inode blocks | workspace: u64 | next free number: u64 LE, by atomic add |
//! | `S` | sessions | tenant: u64, workspace: u64, session: u64 | empty |
//! | `e` | expiry | time, tenant: u64, session: u64 | empty: the session ends by itself then |
//! | `m` | ticket | hash: 32 bytes | `TicketRecord`: session, rights, expiry |
//! | `M` | tickets of a session | session: u64, hash: 32 bytes | empty |
//! | `s` | session | h16, session: u64, `m` | `SessionRecord`: workspace, state, agent, run, flags |
//! | `s` | session | h16, session: u64, `o` | `OwnerRecord`: gateway, epoch, nonce: the fence |
//! | `s` | session | h16, session: u64, `q` | `FlushRecord`: number of the last flush, totals |
//! | `s` | session | h16, session: u64, `x`, xid: u32, hash: 16 bytes | `ReplyRecord`: a stored reply |
//! | `s` | session | h16, session: u64, `y`, position: u64, part: u32 | `ChangedRecord`: what changed from outside |
//! | `d` | delta | h16, session: u64, generation: u32, image key | tag byte, then the image value |
//! | `G` | layer users | session: u64, generation: u32, user: u64 | empty: session `user` lists the frozen layer |
//! | `k` | commit | workspace: u64, id: 32 bytes | `CommitRecord`: tree, parents, message, provenance |
//! | `r` | ref | workspace: u64, name: bytes to end | `RefRecord`: commit, kind, protected |
//! | `R` | log of a ref | workspace: u64, hash of the name: 16 bytes, time | `RefLogRecord`: what the ref said from then on |
//! | `o` | operation log | workspace: u64, time, operation: u64 | `OperationRecord`: who did what, before and after |
//! | `O` | operation | workspace: u64, operation: u64 | time: where it is in the log |
//! | `N` | commit on an old one | workspace: u64 | the first 8 bytes of the id of the last commit that was made on an old one |
//! | `P` | retention | workspace: u64 | `RetentionRecord`: policy, horizon |
//! | `n` | pin | workspace: u64, commit: 32 bytes | `PinRecord`: when, why |
//! | `x` | workspace that is being removed | workspace: u64 | `DeletionRecord`: tenant, name, since when |
//! | `I` | call with an idempotency key | tenant: u64, hash of the key: 32 bytes | `CallRecord`: the request, how far it is, the answer |
//! | `C` | totals of such calls | tenant: u64, what: u8 | `0` how many, `1` bytes of their records: u64 LE, by atomic add |
//! | `l` | gateway | gateway: u64 | `LeaseRecord`: its lease and addresses |
//! | `L` | notice to a gateway | gateway: u64, session: u64 | `NoticeRecord`: the session is no longer what it has in memory |
//! | `c` | place of a chunk | domain: u64, chunk: 32 bytes | `PlaceRecord`: staged or in a pack, lengths, cycle |
//! | `b` | body of a staged chunk | domain: u64, chunk: 32 bytes, piece: u8 | a part of its entry, at most 90,000 bytes |
//! | `B` | pack of chunks | pack: 16 bytes | `PackRecord`: whether it is written, bytes, live bytes |
//! | `g` | shared chunks | `c` | `CycleRecord`: the current cycle of collections, and how far it is |
//! | `g` | shared chunks | `h`, gateway: u64 | `SettledRecord`: the oldest cycle of which it has holds |
//! | `g` | shared chunks | `r`, workspace: u64, root: 32 bytes | empty: a root that was copied during a collection |
//! | `g` | shared chunks | `s` | bytes of all staged entries: u64 LE, by atomic add |
//! | `g` | shared chunks | `t` | `TierRecord`: where the chunks of the installation are |
//!
//! A time is its seconds (u64) and nanoseconds (u32).
//!
//! Image keys, within a delta (and later a tree):
//!
//! | fields | value |
//! |--------|-------|
//! | inode: u64, `0` | `InodeRecord`: attributes, symlink target, content of a small file |
//! | inode: u64, `0`, block: u32 | empty, in deltas only: blocks from here on in lower layers are gone |
//! | inode: u64, `1`, h62(name): u64, name: bytes to end | `Entry` |
//! | inode: u64, `2`, block: u32 | `Block` |
//! | inode: u64, `4`, parent: u64, name: bytes to end | empty: a further hard link |
//! | `0`: u64, `5`, id: 16 bytes | `Conflict`: what a merge could not decide |

mod decode;
mod expiry;
mod gateways;
pub mod image;
mod shared;

use base::{CommitId, OperationId, SessionId, TenantId, Timestamp, WorkspaceId};

pub use decode::{Key, decode, decode_delta_layer};
pub use expiry::{expired_until, expiry};
pub(crate) use gateways::is_of_a_gateway;
pub use gateways::{decode_lease, decode_notice, lease, leases, notice, notices};
pub use shared::{
    bodies, body, body_pieces, cycle, decode_body, grey, greys, pack, packs, place, places,
    settled, settled_all, staged_bytes, tier,
};

use crate::kv::KeyRange;

/// Table bytes. Never reused for something else.
mod table {
    pub(super) const FORMAT: u8 = b'v';
    pub(super) const HANDLE_KEYS: u8 = b'h';
    pub(super) const TENANT: u8 = b't';
    pub(super) const TENANT_NAME: u8 = b'T';
    pub(super) const TOKEN: u8 = b'p';
    pub(super) const WORKSPACE: u8 = b'w';
    pub(super) const WORKSPACE_NAME: u8 = b'W';
    pub(super) const INODES: u8 = b'i';
    pub(super) const SESSIONS: u8 = b'S';
    pub(super) const TICKET: u8 = b'm';
    pub(super) const TICKETS_OF: u8 = b'M';
    pub(super) const SESSION: u8 = b's';
    pub(super) const DELTA: u8 = b'd';
    pub(super) const LAYER_USERS: u8 = b'G';
    pub(super) const COMMIT: u8 = b'k';
    pub(super) const REF: u8 = b'r';
    pub(super) const REF_LOG: u8 = b'R';
    pub(super) const OPERATION_LOG: u8 = b'o';
    pub(super) const OPERATION: u8 = b'O';
    pub(super) const GROWN: u8 = b'N';
    pub(super) const RETENTION: u8 = b'P';
    pub(super) const PIN: u8 = b'n';
    pub(super) const DELETION: u8 = b'x';
    pub(super) const CALL: u8 = b'I';
    pub(super) const CALL_TOTAL: u8 = b'C';
    pub(super) const EXPIRY: u8 = b'e';
    pub(super) const LEASE: u8 = b'l';
    pub(super) const NOTICE: u8 = b'L';
    pub(super) const PLACE: u8 = b'c';
    pub(super) const BODY: u8 = b'b';
    pub(super) const PACK: u8 = b'B';
    pub(super) const SHARED: u8 = b'g';
}

/// Sub-tables of a session.
mod session_table {
    pub(super) const META: u8 = b'm';
    pub(super) const OWNER: u8 = b'o';
    pub(super) const FLUSH: u8 = b'q';
    pub(super) const REPLY: u8 = b'x';
    pub(super) const CHANGED: u8 = b'y';
}

/// Sub-tables of what is known of shared chunks.
mod shared_table {
    pub(super) const CYCLE: u8 = b'c';
    pub(super) const SETTLED: u8 = b'h';
    pub(super) const GREY: u8 = b'r';
    pub(super) const STAGED: u8 = b's';
    pub(super) const TIER: u8 = b't';
}

/// A stored key that is not ours or is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The key ends too early.
    #[error("key is truncated")]
    Truncated,
    /// The key goes on after its end.
    #[error("key has trailing bytes")]
    Trailing,
    /// The key belongs to another table, or to none.
    #[error("key belongs to no known table")]
    WrongTable,
    /// The name in the key cannot be a name.
    #[error("key holds an impossible name")]
    BadName,
    /// The time in the key cannot be a time.
    #[error("key holds an impossible time")]
    BadTime,
    /// The key's spread is not that of its session.
    #[error("key is not where its session's keys are")]
    Misplaced,
}

/// Reads a key's fields front to back.
#[derive(Debug)]
pub(crate) struct KeyReader<'a>(&'a [u8]);

impl<'a> KeyReader<'a> {
    pub(crate) fn new(key: &'a [u8]) -> Self {
        Self(key)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], KeyError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(KeyError::Truncated)?;
        self.0 = rest;
        Ok(*field)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, KeyError> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, KeyError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, KeyError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, KeyError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, KeyError> {
        let (seconds, nanos) = (self.u64()?, self.u32()?);
        if nanos >= 1_000_000_000 {
            return Err(KeyError::BadTime);
        }
        Ok(Timestamp::new(seconds, nanos))
    }

    pub(crate) fn tail(self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn end(self) -> Result<(), KeyError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(KeyError::Trailing)
        }
    }
}

fn key(table: u8, fields: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + fields.iter().map(|field| field.len()).sum::<usize>());
    key.push(table);
    for field in fields {
        key.extend_from_slice(field);
    }
    key
}

/// The data's format and the installation's id.
#[must_use]
pub fn format() -> Vec<u8> {
    key(table::FORMAT, &[])
}

/// The keys that sign file handles.
#[must_use]
pub fn handle_keys() -> Vec<u8> {
    key(table::HANDLE_KEYS, &[])
}

/// A tenant.
#[must_use]
pub fn tenant(tenant: TenantId) -> Vec<u8> {
    key(table::TENANT, &[&tenant.raw().to_be_bytes()])
}

/// All tenants.
#[must_use]
pub fn tenants() -> KeyRange {
    KeyRange::prefix(&[table::TENANT])
}

/// A tenant's number by its name.
#[must_use]
pub fn tenant_name(name: &str) -> Vec<u8> {
    key(table::TENANT_NAME, &[name.as_bytes()])
}

/// An API token by the hash of its text.
#[must_use]
pub fn token(hash: &[u8; 32]) -> Vec<u8> {
    key(table::TOKEN, &[hash])
}

/// A workspace.
#[must_use]
pub fn workspace(workspace: WorkspaceId) -> Vec<u8> {
    key(table::WORKSPACE, &[&workspace.raw().to_be_bytes()])
}

/// All workspaces.
#[must_use]
pub fn all_workspaces() -> KeyRange {
    KeyRange::prefix(&[table::WORKSPACE])
}

/// A workspace's number by its name.
#[must_use]
pub fn workspace_name(tenant: TenantId, name: &str) -> Vec<u8> {
    key(
        table::WORKSPACE_NAME,
        &[&tenant.raw().to_be_bytes(), name.as_bytes()],
    )
}

/// All workspace names of a tenant.
#[must_use]
pub fn workspace_names(tenant: TenantId) -> KeyRange {
    KeyRange::prefix(&key(table::WORKSPACE_NAME, &[&tenant.raw().to_be_bytes()]))
}

/// The counter of a workspace's inode numbers.
#[must_use]
pub fn inodes(workspace: WorkspaceId) -> Vec<u8> {
    key(table::INODES, &[&workspace.raw().to_be_bytes()])
}

/// The mark that a session belongs to a workspace.
#[must_use]
pub fn session_of(tenant: TenantId, workspace: WorkspaceId, session: SessionId) -> Vec<u8> {
    let fields = [tenant.raw(), workspace.raw(), session.raw()].map(u64::to_be_bytes);
    key(table::SESSIONS, &[&fields.concat()])
}

/// All sessions of all tenants.
#[must_use]
pub fn sessions_of_all() -> KeyRange {
    KeyRange::prefix(&[table::SESSIONS])
}

/// All sessions of a tenant.
#[must_use]
pub fn sessions_of_tenant(tenant: TenantId) -> KeyRange {
    KeyRange::prefix(&key(table::SESSIONS, &[&tenant.raw().to_be_bytes()]))
}

/// All sessions of a workspace.
#[must_use]
pub fn sessions_of_workspace(tenant: TenantId, workspace: WorkspaceId) -> KeyRange {
    let fields = [tenant.raw(), workspace.raw()].map(u64::to_be_bytes);
    KeyRange::prefix(&key(table::SESSIONS, &[&fields.concat()]))
}

/// The session in a key of [`sessions_of_tenant`], with its workspace.
///
/// # Errors
///
/// The key is of another table or damaged.
pub fn decode_session_of(key: &[u8]) -> Result<(TenantId, WorkspaceId, SessionId), KeyError> {
    let mut fields = KeyReader::new(key);
    if fields.u8()? != table::SESSIONS {
        return Err(KeyError::WrongTable);
    }
    let ids = (fields.u64()?, fields.u64()?, fields.u64()?);
    fields.end()?;
    Ok((
        TenantId::new(ids.0),
        WorkspaceId::new(ids.1),
        SessionId::new(ids.2),
    ))
}

/// A mount ticket by the hash of its text.
#[must_use]
pub fn ticket(hash: &[u8; 32]) -> Vec<u8> {
    key(table::TICKET, &[hash])
}

/// The mark that a ticket belongs to a session.
#[must_use]
pub fn ticket_of(session: SessionId, hash: &[u8; 32]) -> Vec<u8> {
    key(table::TICKETS_OF, &[&session.raw().to_be_bytes(), hash])
}

/// All tickets of a session.
#[must_use]
pub fn tickets_of(session: SessionId) -> KeyRange {
    KeyRange::prefix(&key(table::TICKETS_OF, &[&session.raw().to_be_bytes()]))
}

/// 16 bits that spread sessions over the store: the high bits of a multiplicative hash.
fn spread(session: SessionId) -> [u8; 2] {
    let mixed = session
        .raw()
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_be_bytes();
    [mixed[0], mixed[1]]
}

fn session_key(session: SessionId, part: u8, tail: &[&[u8]]) -> Vec<u8> {
    let mut fields: Vec<&[u8]> = Vec::with_capacity(3 + tail.len());
    let (spread, raw, part) = (spread(session), session.raw().to_be_bytes(), [part]);
    fields.extend([&spread[..], &raw, &part]);
    fields.extend(tail);
    key(table::SESSION, &fields)
}

/// What a session is.
#[must_use]
pub fn session_meta(session: SessionId) -> Vec<u8> {
    session_key(session, session_table::META, &[])
}

/// Who owns a session: the fence of every flush.
#[must_use]
pub fn session_owner(session: SessionId) -> Vec<u8> {
    session_key(session, session_table::OWNER, &[])
}

/// What the last flush of a session was.
#[must_use]
pub fn session_flush(session: SessionId) -> Vec<u8> {
    session_key(session, session_table::FLUSH, &[])
}

/// The stored reply of one call.
#[must_use]
pub fn session_reply(session: SessionId, xid: u32, hash: &[u8; 16]) -> Vec<u8> {
    session_key(session, session_table::REPLY, &[&xid.to_be_bytes(), hash])
}

/// All stored replies of a session.
#[must_use]
pub fn session_replies(session: SessionId) -> KeyRange {
    KeyRange::prefix(&session_key(session, session_table::REPLY, &[]))
}

/// The call in a key of [`session_replies`].
///
/// # Errors
///
/// The key is damaged.
pub fn decode_session_reply(key: &[u8]) -> Result<(u32, [u8; 16]), KeyError> {
    let mut fields = KeyReader::new(key);
    let table = fields.u8()?;
    let _: (u16, u64) = (fields.u16()?, fields.u64()?);
    if table != table::SESSION || fields.u8()? != session_table::REPLY {
        return Err(KeyError::WrongTable);
    }
    let call = (fields.u32()?, fields.array()?);
    fields.end()?;
    Ok(call)
}

/// Part of what one exchange of a session's image changed. `position` is the number of its flush.
#[must_use]
pub fn session_changed(session: SessionId, position: u64, part: u32) -> Vec<u8> {
    let (position, part) = (position.to_be_bytes(), part.to_be_bytes());
    session_key(session, session_table::CHANGED, &[&position, &part])
}

/// What changed from outside in a session, and was not yet seen to.
#[must_use]
pub fn session_changes(session: SessionId) -> KeyRange {
    KeyRange::prefix(&session_key(session, session_table::CHANGED, &[]))
}

/// The part of [`session_changes`] up to a position, and at it.
#[must_use]
pub fn session_changes_until(session: SessionId, position: u64) -> KeyRange {
    KeyRange {
        start: session_changes(session).start,
        end: KeyRange::prefix(&session_key(
            session,
            session_table::CHANGED,
            &[&position.to_be_bytes()],
        ))
        .end,
    }
}

/// The position in a key of [`session_changes`].
///
/// # Errors
///
/// The key is of another table or damaged.
pub fn decode_session_changed(key: &[u8]) -> Result<u64, KeyError> {
    match decode(key)? {
        Key::Changed(_, position, _) => Ok(position),
        _ => Err(KeyError::WrongTable),
    }
}

/// Everything stored under a session but its delta.
#[must_use]
pub fn session_all(session: SessionId) -> KeyRange {
    KeyRange::prefix(&key(
        table::SESSION,
        &[&spread(session), &session.raw().to_be_bytes()],
    ))
}

/// The start of all keys of one generation of a session's delta.
#[must_use]
pub fn delta(session: SessionId, generation: u32) -> Vec<u8> {
    let (spread, raw) = (spread(session), session.raw().to_be_bytes());
    key(table::DELTA, &[&spread, &raw, &generation.to_be_bytes()])
}

/// The mark that session `user` lists a frozen layer.
#[must_use]
pub fn layer_user(session: SessionId, generation: u32, user: SessionId) -> Vec<u8> {
    let (session, user) = (session.raw().to_be_bytes(), user.raw().to_be_bytes());
    key(
        table::LAYER_USERS,
        &[&session, &generation.to_be_bytes(), &user],
    )
}

/// The marks of all sessions that list a frozen layer.
#[must_use]
pub fn layer_users(session: SessionId, generation: u32) -> KeyRange {
    let session = session.raw().to_be_bytes();
    KeyRange::prefix(&key(
        table::LAYER_USERS,
        &[&session, &generation.to_be_bytes()],
    ))
}

/// One generation of a session's delta.
#[must_use]
pub fn delta_range(session: SessionId, generation: u32) -> KeyRange {
    KeyRange::prefix(&delta(session, generation))
}

/// All generations of a session's delta.
#[must_use]
pub fn delta_all(session: SessionId) -> KeyRange {
    KeyRange::prefix(&key(
        table::DELTA,
        &[&spread(session), &session.raw().to_be_bytes()],
    ))
}

/// Every session record and every delta: what `check` walks.
#[must_use]
pub fn all_sessions() -> KeyRange {
    KeyRange::prefix(&[table::SESSION])
}

/// Every delta.
#[must_use]
pub fn all_deltas() -> KeyRange {
    KeyRange::prefix(&[table::DELTA])
}

/// A time, as a key holds it and as a value that is nothing but a time.
#[must_use]
pub fn encode_time(time: Timestamp) -> [u8; 12] {
    let mut bytes = [0; 12];
    let (seconds, nanos) = bytes.split_at_mut(8);
    seconds.copy_from_slice(&time.seconds().to_be_bytes());
    nanos.copy_from_slice(&time.nanos().to_be_bytes());
    bytes
}

/// Reads what [`encode_time`] writes.
///
/// # Errors
///
/// The bytes are damaged.
pub fn decode_time(bytes: &[u8]) -> Result<Timestamp, KeyError> {
    let mut fields = KeyReader::new(bytes);
    let time = fields.time()?;
    fields.end()?;
    Ok(time)
}

/// A commit.
#[must_use]
pub fn commit(workspace: WorkspaceId, commit: CommitId) -> Vec<u8> {
    let workspace = workspace.raw().to_be_bytes();
    key(table::COMMIT, &[&workspace, commit.as_bytes()])
}

/// The commits from `first` to `last`, both of them too.
#[must_use]
pub fn commits(workspace: WorkspaceId, first: CommitId, last: CommitId) -> KeyRange {
    KeyRange {
        start: commit(workspace, first).into(),
        end: KeyRange::key(&commit(workspace, last)).end,
    }
}

/// The commits of all workspaces.
#[must_use]
pub fn all_commits() -> KeyRange {
    KeyRange::prefix(&[table::COMMIT])
}

/// A ref.
#[must_use]
pub fn reference(workspace: WorkspaceId, name: &str) -> Vec<u8> {
    let workspace = workspace.raw().to_be_bytes();
    key(table::REF, &[&workspace, name.as_bytes()])
}

/// All refs of a workspace.
#[must_use]
pub fn references(workspace: WorkspaceId) -> KeyRange {
    KeyRange::prefix(&key(table::REF, &[&workspace.raw().to_be_bytes()]))
}

/// The ref's name in a key of [`references`].
///
/// # Errors
///
/// The key is of another table or damaged.
pub fn decode_reference(key: &[u8]) -> Result<(WorkspaceId, String), KeyError> {
    match decode(key)? {
        Key::Reference(workspace, name) => Ok((workspace, name)),
        _ => Err(KeyError::WrongTable),
    }
}

/// Stands for a ref's name where a field must have a fixed width.
#[must_use]
pub fn ref_name_hash(name: &str) -> [u8; 16] {
    let hash = blake3::hash(name.as_bytes());
    // The first half of 32 bytes.
    hash.as_bytes().first_chunk().copied().unwrap_or_default()
}

/// What a ref said from a time on.
#[must_use]
pub fn ref_log(workspace: WorkspaceId, name: &[u8; 16], time: Timestamp) -> Vec<u8> {
    let workspace = workspace.raw().to_be_bytes();
    key(table::REF_LOG, &[&workspace, name, &encode_time(time)])
}

/// All that a ref ever said.
#[must_use]
pub fn ref_log_all(workspace: WorkspaceId, name: &[u8; 16]) -> KeyRange {
    KeyRange::prefix(&key(
        table::REF_LOG,
        &[&workspace.raw().to_be_bytes(), name],
    ))
}

/// What a ref said up to a time, and at it. The last of it is what the ref said then.
#[must_use]
pub fn ref_log_until(workspace: WorkspaceId, name: &[u8; 16], time: Timestamp) -> KeyRange {
    KeyRange {
        start: ref_log_all(workspace, name).start,
        end: KeyRange::key(&ref_log(workspace, name, time)).end,
    }
}

/// The time in a key of [`ref_log_all`].
///
/// # Errors
///
/// The key is of another table or damaged.
pub fn decode_ref_log(key: &[u8]) -> Result<Timestamp, KeyError> {
    match decode(key)? {
        Key::RefLog(_, _, time) => Ok(time),
        _ => Err(KeyError::WrongTable),
    }
}

/// An entry of the operation log.
#[must_use]
pub fn operation_log(workspace: WorkspaceId, time: Timestamp, operation: OperationId) -> Vec<u8> {
    let (workspace, time) = (workspace.raw().to_be_bytes(), encode_time(time));
    key(
        table::OPERATION_LOG,
        &[&workspace, &time, &operation.raw().to_be_bytes()],
    )
}

/// A workspace's operation log.
#[must_use]
pub fn operation_log_all(workspace: WorkspaceId) -> KeyRange {
    KeyRange::prefix(&key(
        table::OPERATION_LOG,
        &[&workspace.raw().to_be_bytes()],
    ))
}

/// The time and the operation in a key of [`operation_log_all`].
///
/// # Errors
///
/// The key is of another table or damaged.
pub fn decode_operation_log(key: &[u8]) -> Result<(Timestamp, OperationId), KeyError> {
    match decode(key)? {
        Key::OperationLog(_, time, operation) => Ok((time, operation)),
        _ => Err(KeyError::WrongTable),
    }
}

/// Where an operation is in the log.
#[must_use]
pub fn operation(workspace: WorkspaceId, operation: OperationId) -> Vec<u8> {
    let fields = [workspace.raw(), operation.raw()].map(u64::to_be_bytes);
    key(table::OPERATION, &[&fields.concat()])
}

/// The operations of a workspace by their numbers.
#[must_use]
pub fn operations(workspace: WorkspaceId) -> KeyRange {
    KeyRange::prefix(&key(table::OPERATION, &[&workspace.raw().to_be_bytes()]))
}

/// The logs of all refs of a workspace, one after the other.
#[must_use]
pub fn ref_logs(workspace: WorkspaceId) -> KeyRange {
    KeyRange::prefix(&key(table::REF_LOG, &[&workspace.raw().to_be_bytes()]))
}

/// All commits of a workspace.
#[must_use]
pub fn commits_of(workspace: WorkspaceId) -> KeyRange {
    KeyRange::prefix(&key(table::COMMIT, &[&workspace.raw().to_be_bytes()]))
}

/// Changes when a commit is made on top of an old one.
#[must_use]
pub fn grown(workspace: WorkspaceId) -> Vec<u8> {
    key(table::GROWN, &[&workspace.raw().to_be_bytes()])
}

/// What a workspace keeps of its history.
#[must_use]
pub fn retention(workspace: WorkspaceId) -> Vec<u8> {
    key(table::RETENTION, &[&workspace.raw().to_be_bytes()])
}

/// What all workspaces keep.
#[must_use]
pub fn all_retention() -> KeyRange {
    KeyRange::prefix(&[table::RETENTION])
}

/// A pin.
#[must_use]
pub fn pin(workspace: WorkspaceId, commit: CommitId) -> Vec<u8> {
    let workspace = workspace.raw().to_be_bytes();
    key(table::PIN, &[&workspace, commit.as_bytes()])
}

/// All pins of a workspace.
#[must_use]
pub fn pins(workspace: WorkspaceId) -> KeyRange {
    KeyRange::prefix(&key(table::PIN, &[&workspace.raw().to_be_bytes()]))
}

/// The tombstone of a workspace.
#[must_use]
pub fn deletion(workspace: WorkspaceId) -> Vec<u8> {
    key(table::DELETION, &[&workspace.raw().to_be_bytes()])
}

/// All workspaces that are being removed.
#[must_use]
pub fn deletions() -> KeyRange {
    KeyRange::prefix(&[table::DELETION])
}

/// A tenant's call, by the hash of its idempotency key.
#[must_use]
pub fn call(tenant: TenantId, hash: &[u8; 32]) -> Vec<u8> {
    key(table::CALL, &[&tenant.raw().to_be_bytes(), hash])
}

/// All calls with idempotency keys, of all tenants.
#[must_use]
pub fn calls() -> KeyRange {
    KeyRange::prefix(&[table::CALL])
}

/// A tenant's calls with idempotency keys.
#[must_use]
pub fn calls_of(tenant: TenantId) -> KeyRange {
    KeyRange::prefix(&key(table::CALL, &[&tenant.raw().to_be_bytes()]))
}

/// A total of a tenant's calls: 0 how many, 1 the bytes of their records.
#[must_use]
pub fn call_total(tenant: TenantId, what: u8) -> Vec<u8> {
    key(table::CALL_TOTAL, &[&tenant.raw().to_be_bytes(), &[what]])
}

/// All API tokens, of all tenants.
#[must_use]
pub fn tokens() -> KeyRange {
    KeyRange::prefix(&[table::TOKEN])
}

/// The API tokens whose hash begins so.
#[must_use]
pub fn tokens_from(prefix: &[u8; 8]) -> KeyRange {
    KeyRange::prefix(&key(table::TOKEN, &[prefix]))
}

#[cfg(test)]
mod tests;
