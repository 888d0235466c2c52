//! Reading any key of the store: what `check` needs.

use base::WorkspaceId;
use base::{ChunkId, CommitId, DomainId, GatewayId, OperationId, SessionId, TenantId, Timestamp};

use super::image::{self, ImageKey};
use super::{KeyError, KeyReader, session_table, shared_table, spread, table};
use crate::record::place::PackId;
use crate::tree::Root;

/// A key of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// The data's format.
    Format,
    /// Keys that sign file handles.
    HandleKeys,
    /// A tenant.
    Tenant(TenantId),
    /// A tenant's number by its name.
    TenantName(String),
    /// An API token by its hash.
    Token([u8; 32]),
    /// A workspace.
    Workspace(WorkspaceId),
    /// A workspace's number by its name.
    WorkspaceName(TenantId, String),
    /// The counter of a workspace's inode numbers.
    Inodes(WorkspaceId),
    /// The mark that a session belongs to a workspace.
    SessionOf(TenantId, WorkspaceId, SessionId),
    /// When a session ends by itself.
    Expiry(Timestamp, TenantId, SessionId),
    /// A ticket by its hash.
    Ticket([u8; 32]),
    /// The mark that a ticket belongs to a session.
    TicketOf(SessionId, [u8; 32]),
    /// What a session is.
    Meta(SessionId),
    /// Who owns a session.
    Owner(SessionId),
    /// What a session's last flush was.
    Flush(SessionId),
    /// A stored reply: xid and hash of its call.
    Reply(SessionId, u32, [u8; 16]),
    /// What changed from outside in a session: the position, and which part of it.
    Changed(SessionId, u64, u32),
    /// Part of a session's image: the generation and the image key.
    Delta(SessionId, u32, ImageKey),
    /// The mark that a session (the last) lists a frozen layer.
    LayerUser(SessionId, u32, SessionId),
    /// A commit.
    Commit(WorkspaceId, CommitId),
    /// A ref by its name.
    Reference(WorkspaceId, String),
    /// What a ref, given by the hash of its name, said from a time on.
    RefLog(WorkspaceId, [u8; 16], Timestamp),
    /// An entry of the operation log.
    OperationLog(WorkspaceId, Timestamp, OperationId),
    /// Where an operation is in the log.
    Operation(WorkspaceId, OperationId),
    /// The last commit on top of an old one.
    Grown(WorkspaceId),
    /// What a workspace keeps of its history.
    Retention(WorkspaceId),
    /// A pinned commit.
    Pin(WorkspaceId, CommitId),
    /// A workspace that is being removed.
    Deletion(WorkspaceId),
    /// A call, by the hash of its idempotency key.
    Call(TenantId, [u8; 32]),
    /// A total of a tenant's calls.
    CallTotal(TenantId, u8),
    /// A gateway's lease.
    Lease(GatewayId),
    /// What a gateway is told of a session.
    Notice(GatewayId, SessionId),
    /// Where a chunk is.
    Place(DomainId, ChunkId),
    /// A part of a staged chunk.
    Body(DomainId, ChunkId, u8),
    /// A pack of chunks.
    Pack(PackId),
    /// The current cycle of collections.
    Cycle,
    /// What a gateway says of its holds.
    Settled(GatewayId),
    /// A root that was copied while references are read.
    Grey(WorkspaceId, Root),
    /// The counter of staged bytes.
    StagedBytes,
    /// Where the chunks of the installation are.
    Tier,
}

/// Decodes any key.
///
/// # Errors
///
/// The key is none that this system writes.
pub fn decode(key: &[u8]) -> Result<Key, KeyError> {
    let mut fields = KeyReader::new(key);
    let table = fields.u8()?;
    let decoded = match table {
        table::FORMAT => Key::Format,
        table::HANDLE_KEYS => Key::HandleKeys,
        table::TENANT => Key::Tenant(TenantId::new(fields.u64()?)),
        table::TOKEN => Key::Token(fields.array()?),
        table::WORKSPACE => Key::Workspace(WorkspaceId::new(fields.u64()?)),
        table::INODES => Key::Inodes(WorkspaceId::new(fields.u64()?)),
        table::SESSIONS => session_of(&mut fields)?,
        table::TICKET => Key::Ticket(fields.array()?),
        table::TICKETS_OF => Key::TicketOf(SessionId::new(fields.u64()?), fields.array()?),
        table::LAYER_USERS => Key::LayerUser(
            SessionId::new(fields.u64()?),
            fields.u32()?,
            SessionId::new(fields.u64()?),
        ),
        table::COMMIT => Key::Commit(
            WorkspaceId::new(fields.u64()?),
            CommitId::new(fields.array()?),
        ),
        table::REF_LOG => Key::RefLog(
            WorkspaceId::new(fields.u64()?),
            fields.array()?,
            fields.time()?,
        ),
        table::OPERATION_LOG => Key::OperationLog(
            WorkspaceId::new(fields.u64()?),
            fields.time()?,
            OperationId::new(fields.u64()?),
        ),
        table::OPERATION => Key::Operation(
            WorkspaceId::new(fields.u64()?),
            OperationId::new(fields.u64()?),
        ),
        table::GROWN => Key::Grown(WorkspaceId::new(fields.u64()?)),
        table::RETENTION => Key::Retention(WorkspaceId::new(fields.u64()?)),
        table::PIN => Key::Pin(
            WorkspaceId::new(fields.u64()?),
            CommitId::new(fields.array()?),
        ),
        table::DELETION => Key::Deletion(WorkspaceId::new(fields.u64()?)),
        table::CALL => Key::Call(TenantId::new(fields.u64()?), fields.array()?),
        table::CALL_TOTAL => Key::CallTotal(TenantId::new(fields.u64()?), fields.u8()?),
        table::LEASE | table::NOTICE => gateway(table, &mut fields)?,
        table::EXPIRY => expiry(&mut fields)?,
        table::PLACE | table::BODY | table::PACK | table::SHARED => shared(table, &mut fields)?,
        table::REF => {
            let workspace = WorkspaceId::new(fields.u64()?);
            return Ok(Key::Reference(workspace, text(fields.tail())?));
        }
        table::TENANT_NAME => return Ok(Key::TenantName(text(fields.tail())?)),
        table::WORKSPACE_NAME => {
            let tenant = TenantId::new(fields.u64()?);
            return Ok(Key::WorkspaceName(tenant, text(fields.tail())?));
        }
        table::SESSION => session_part(&mut fields)?,
        table::DELTA => {
            let session = session(&mut fields)?;
            let generation = fields.u32()?;
            let image = image::decode(fields.tail())?;
            return Ok(Key::Delta(session, generation, image));
        }
        _ => return Err(KeyError::WrongTable),
    };
    fields.end()?;
    Ok(decoded)
}

/// The session and the generation in a key of a delta, also if the rest of the key is damaged.
///
/// # Errors
///
/// The key is of another table, or damaged in what comes first.
pub fn decode_delta_layer(key: &[u8]) -> Result<(SessionId, u32), KeyError> {
    let mut fields = KeyReader::new(key);
    if fields.u8()? != table::DELTA {
        return Err(KeyError::WrongTable);
    }
    Ok((session(&mut fields)?, fields.u32()?))
}

fn session_part(fields: &mut KeyReader<'_>) -> Result<Key, KeyError> {
    let session = session(fields)?;
    Ok(match fields.u8()? {
        session_table::META => Key::Meta(session),
        session_table::OWNER => Key::Owner(session),
        session_table::FLUSH => Key::Flush(session),
        session_table::REPLY => Key::Reply(session, fields.u32()?, fields.array()?),
        session_table::CHANGED => Key::Changed(session, fields.u64()?, fields.u32()?),
        _ => return Err(KeyError::WrongTable),
    })
}

fn shared(table: u8, fields: &mut KeyReader<'_>) -> Result<Key, KeyError> {
    Ok(match table {
        table::PLACE => Key::Place(DomainId::new(fields.u64()?), ChunkId::new(fields.array()?)),
        table::BODY => Key::Body(
            DomainId::new(fields.u64()?),
            ChunkId::new(fields.array()?),
            fields.u8()?,
        ),
        table::PACK => Key::Pack(PackId(fields.array()?)),
        _ => match fields.u8()? {
            shared_table::CYCLE => Key::Cycle,
            shared_table::SETTLED => Key::Settled(GatewayId::new(fields.u64()?)),
            shared_table::GREY => Key::Grey(
                WorkspaceId::new(fields.u64()?),
                Root::from_bytes(fields.array()?),
            ),
            shared_table::STAGED => Key::StagedBytes,
            shared_table::TIER => Key::Tier,
            _ => return Err(KeyError::WrongTable),
        },
    })
}

fn session_of(fields: &mut KeyReader<'_>) -> Result<Key, KeyError> {
    Ok(Key::SessionOf(
        TenantId::new(fields.u64()?),
        WorkspaceId::new(fields.u64()?),
        SessionId::new(fields.u64()?),
    ))
}

fn expiry(fields: &mut KeyReader<'_>) -> Result<Key, KeyError> {
    Ok(Key::Expiry(
        fields.time()?,
        TenantId::new(fields.u64()?),
        SessionId::new(fields.u64()?),
    ))
}

fn gateway(table: u8, fields: &mut KeyReader<'_>) -> Result<Key, KeyError> {
    let gateway = GatewayId::new(fields.u64()?);
    if table == table::LEASE {
        return Ok(Key::Lease(gateway));
    }
    Ok(Key::Notice(gateway, SessionId::new(fields.u64()?)))
}

fn session(fields: &mut KeyReader<'_>) -> Result<SessionId, KeyError> {
    let (found, session) = (fields.array()?, SessionId::new(fields.u64()?));
    if found == spread(session) {
        Ok(session)
    } else {
        Err(KeyError::Misplaced)
    }
}

fn text(bytes: &[u8]) -> Result<String, KeyError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| KeyError::BadName)
}

#[cfg(test)]
mod tests {
    use base::{InodeId, Name};
    use proptest::prelude::*;

    use super::super::session_changed;
    use super::super::session_of;
    use super::super::{body, cycle, grey, pack, place, settled, staged_bytes, tier};
    use super::super::{call, call_total, lease, notice};
    use super::super::{commit, operation, operation_log, ref_log, reference};
    use super::super::{deletion, grown, pin, retention};
    use super::super::{delta, handle_keys, inodes, layer_user, session_flush, session_meta};
    use super::super::{session_owner, session_reply, tenant, tenant_name, ticket, ticket_of};
    use super::super::{token, workspace, workspace_name};
    use super::*;

    fn encode(key: &Key) -> Vec<u8> {
        match key {
            Key::Format => super::super::format(),
            Key::HandleKeys => handle_keys(),
            Key::Tenant(id) => tenant(*id),
            Key::TenantName(name) => tenant_name(name),
            Key::Token(hash) => token(hash),
            Key::Workspace(id) => workspace(*id),
            Key::WorkspaceName(tenant, name) => workspace_name(*tenant, name),
            Key::Inodes(id) => inodes(*id),
            Key::SessionOf(tenant, workspace, session) => session_of(*tenant, *workspace, *session),
            Key::Ticket(hash) => ticket(hash),
            Key::TicketOf(session, hash) => ticket_of(*session, hash),
            Key::Meta(session) => session_meta(*session),
            Key::Owner(session) => session_owner(*session),
            Key::Flush(session) => session_flush(*session),
            Key::Reply(session, xid, hash) => session_reply(*session, *xid, hash),
            Key::Changed(session, position, part) => session_changed(*session, *position, *part),
            Key::LayerUser(session, generation, user) => layer_user(*session, *generation, *user),
            Key::Commit(workspace, id) => commit(*workspace, *id),
            Key::Reference(workspace, name) => reference(*workspace, name),
            Key::RefLog(workspace, name, time) => ref_log(*workspace, name, *time),
            Key::OperationLog(workspace, time, id) => operation_log(*workspace, *time, *id),
            Key::Operation(workspace, id) => operation(*workspace, *id),
            Key::Grown(workspace) => grown(*workspace),
            Key::Retention(workspace) => retention(*workspace),
            Key::Pin(workspace, id) => pin(*workspace, *id),
            Key::Deletion(workspace) => deletion(*workspace),
            Key::Call(tenant, hash) => call(*tenant, hash),
            Key::CallTotal(tenant, what) => call_total(*tenant, *what),
            Key::Expiry(time, tenant, session) => super::super::expiry(*time, *tenant, *session),
            Key::Lease(gateway) => lease(*gateway),
            Key::Notice(gateway, session) => notice(*gateway, *session),
            Key::Place(domain, chunk) => place(*domain, *chunk),
            Key::Body(domain, chunk, piece) => body(*domain, *chunk, *piece),
            Key::Pack(id) => pack(*id),
            Key::Cycle => cycle(),
            Key::Settled(gateway) => settled(*gateway),
            Key::Grey(workspace, root) => grey(*workspace, *root),
            Key::StagedBytes => staged_bytes(),
            Key::Tier => tier(),
            Key::Delta(session, generation, part) => {
                let mut key = delta(*session, *generation);
                key.extend(match part {
                    ImageKey::Inode(inode) => image::inode(*inode),
                    ImageKey::Entry { dir, hash, name } => {
                        image::entry(*dir, *hash, name.as_bytes())
                    }
                    ImageKey::Block { inode, index } => image::block(*inode, *index),
                    ImageKey::Link {
                        inode,
                        parent,
                        name,
                    } => image::link(*inode, *parent, name),
                    ImageKey::Cut { inode, first } => image::cut(*inode, *first),
                    ImageKey::Conflict(id) => image::conflict(id),
                });
                key
            }
        }
    }

    #[test]
    fn every_key_round_trips() {
        let (tenant, workspace) = (TenantId::new(1), WorkspaceId::new(2));
        let (session, inode) = (SessionId::new(3), InodeId::new(4));
        let name = Name::new(b"n").unwrap();
        let delta = |key| Key::Delta(session, 5, key);
        for key in [
            Key::Format,
            Key::HandleKeys,
            Key::Tenant(tenant),
            Key::TenantName("t".into()),
            Key::Token([6; 32]),
            Key::Workspace(workspace),
            Key::WorkspaceName(tenant, "w".into()),
            Key::Inodes(workspace),
            Key::SessionOf(tenant, workspace, session),
            Key::Ticket([7; 32]),
            Key::TicketOf(session, [7; 32]),
            Key::Meta(session),
            Key::Owner(session),
            Key::Flush(session),
            Key::Reply(session, 8, [9; 16]),
            Key::Changed(session, 10, 11),
            Key::LayerUser(session, 5, SessionId::new(6)),
            Key::Commit(workspace, CommitId::new([1; 32])),
            Key::Reference(workspace, "main".into()),
            Key::RefLog(workspace, [1; 16], Timestamp::new(2, 3)),
            Key::OperationLog(workspace, Timestamp::new(2, 3), OperationId::new(4)),
            Key::Operation(workspace, OperationId::new(4)),
            Key::Grown(workspace),
            Key::Retention(workspace),
            Key::Pin(workspace, CommitId::new([1; 32])),
            Key::Deletion(workspace),
            Key::Call(tenant, [12; 32]),
            Key::CallTotal(tenant, 1),
            Key::Expiry(Timestamp::new(14, 15), tenant, session),
            Key::Lease(GatewayId::new(13)),
            Key::Notice(GatewayId::new(13), session),
            Key::Place(DomainId::new(1), ChunkId::new([1; 32])),
            Key::Body(DomainId::new(1), ChunkId::new([1; 32]), 2),
            Key::Pack(PackId([3; 16])),
            Key::Cycle,
            Key::Settled(GatewayId::new(13)),
            Key::Grey(workspace, Root::from_bytes([4; 32])),
            Key::StagedBytes,
            Key::Tier,
            delta(ImageKey::Cut { inode, first: 7 }),
            delta(ImageKey::Conflict([8; 16])),
            delta(ImageKey::Inode(inode)),
            delta(ImageKey::Block { inode, index: 1 }),
            delta(ImageKey::Entry {
                dir: inode,
                hash: 1,
                name: name.clone(),
            }),
            delta(ImageKey::Link {
                inode,
                parent: inode,
                name,
            }),
        ] {
            assert_eq!(decode(&encode(&key)), Ok(key));
        }
        let mut late = operation_log(workspace, Timestamp::EPOCH, OperationId::new(4));
        late[17] = 0xff;
        assert_eq!(decode(&late), Err(KeyError::BadTime));
        let mut moved = session_meta(session);
        moved[1] ^= 1;
        assert_eq!(decode(&moved), Err(KeyError::Misplaced));
    }

    proptest! {
        #[test]
        fn decode_is_total(
            table in prop_oneof![
                any::<u8>(),
                Just(table::SESSION),
                Just(table::DELTA),
                Just(table::REF_LOG),
                Just(table::OPERATION_LOG),
                Just(table::SHARED),
            ],
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let mut all = vec![table];
            all.extend(bytes);
            if let Ok(key) = decode(&all) {
                prop_assert_eq!(encode(&key), all);
            }
        }
    }
}
