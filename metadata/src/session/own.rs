//! Taking a session over.
//!
//! Whoever commits a raised epoch owns the session. Every flush conflicts with a change of the
//! owner record, so the owner before cannot write any more, whether it has noticed or not. It may
//! still answer from memory: when a session may be taken, and when its new owner may begin to answer, is in
//! `docs/design/0015-fleet.md`.

use std::time::Duration;

use base::simulation::{Rule, is_kept};
use base::{DomainId, Epoch, GatewayId, InodeId, SessionId, TenantId};
use bytes::Bytes;

use super::flush::Fence;
use crate::fleet::{self, FleetError, NOBODY, Sightings};
use crate::image::Totals;
use crate::keyspace;
use crate::kv::{Isolation, Kv, KvError, RangeLimit, Transaction};
use crate::layers::{Base, LayerId, Layers};
use crate::record::RecordError;
use crate::record::gateway::LeaseRecord;
use crate::record::inode::InodeRecord;
use crate::record::session::{FlushRecord, OwnerRecord, ReplyRecord, SessionRecord, SessionState};
use crate::record::workspace::{TenantRecord, WorkspaceRecord};
use crate::tree::{Root, Tree, TreeError, TreeKeys, Trees};

/// Most attempts at a takeover before the caller hears of it.
const ATTEMPTS_MAX: u32 = 20;

/// Most stored replies that are loaded; flushes keep fewer.
pub(crate) const REPLIES_MAX: usize = 8192;

/// Why a session could not be taken over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnError {
    /// There is no such session, or it was closed.
    #[error("no such session")]
    NotFound,
    /// The store failed; a later try may succeed.
    #[error("take the session over")]
    Kv(#[from] KvError),
    /// A record is damaged or of another release.
    #[error("decode the session's records")]
    Record(#[from] RecordError),
    /// Another gateway owns the session, and lives.
    #[error("the session is served by gateway {}", .0.raw())]
    Elsewhere(GatewayId, Box<LeaseRecord>),
}

impl From<FleetError> for OwnError {
    fn from(error: FleetError) -> Self {
        match error {
            FleetError::Kv(error) => Self::Kv(error),
            FleetError::Record(error) => Self::Record(error),
            FleetError::Foreign => Self::Kv(KvError::Unavailable(error.to_string())),
        }
    }
}

/// Who takes a session, and from whom it may.
#[derive(Clone, Copy, Debug)]
pub struct Taker<'a> {
    /// The gateway.
    pub gateway: GatewayId,
    /// A number that no other takeover has.
    pub nonce: u64,
    /// What it has seen of the leases of others, and the time. `None` for a gateway that has the store
    /// for itself: then no other can be the owner.
    pub seen: Option<(&'a Sightings, Duration)>,
    /// Also from an owner that lives, which is told by a notice.
    pub from_living: bool,
}

impl Taker<'_> {
    /// A gateway that has the store for itself.
    #[must_use]
    pub const fn alone(gateway: GatewayId, nonce: u64) -> Self {
        Self {
            gateway,
            nonce,
            seen: None,
            from_living: false,
        }
    }
}

/// A notice that an owner before has to obey before the new one may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Who has to.
    pub gateway: GatewayId,
    /// The counter of its lease. While that is seen for longer than a lease it is dead, and need not.
    pub counter: u64,
}

/// A session that this gateway now owns.
#[derive(Debug)]
pub struct Owned {
    /// What the session is.
    pub session: SessionRecord,
    /// Its workspace.
    pub workspace: WorkspaceRecord,
    /// Its tenant.
    pub tenant: TenantRecord,
    /// Where its image is.
    pub layers: Layers,
    /// Nothing is in the open layer.
    pub open_is_empty: bool,
    /// The right to flush.
    pub fence: Fence,
    /// Totals as of the last flush.
    pub totals: Totals,
    /// Stored replies, oldest first: xid, hash of the call, reply.
    pub replies: Vec<(u32, [u8; 16], Bytes)>,
    /// What has to be waited for before anything is answered.
    pub notices: Vec<Notice>,
}

/// Makes a gateway the owner of `session`.
///
/// # Errors
///
/// See [`OwnError`].
///
/// # Cancellation
///
/// Not cancel-safe: the session may or may not be owned afterwards. Taking over again settles it.
pub async fn take_over(
    kv: &dyn Kv,
    trees: &dyn Trees,
    session: SessionId,
    taker: Taker<'_>,
) -> Result<Owned, OwnError> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match try_take_over(kv, trees, session, taker).await {
            // Another takeover won, or we cannot tell: the next one is ours or conflicts again.
            Err(OwnError::Kv(
                KvError::Conflict | KvError::VersionTooOld | KvError::OutcomeUnknown,
            )) if attempt < ATTEMPTS_MAX => {}
            result => return result,
        }
    }
}

async fn try_take_over(
    kv: &dyn Kv,
    trees: &dyn Trees,
    id: SessionId,
    taker: Taker<'_>,
) -> Result<Owned, OwnError> {
    let mut txn = kv.begin();
    let session = require(txn.as_ref(), &keyspace::session_meta(id)).await?;
    let session = SessionRecord::decode(&session)?;
    if session.state != SessionState::Open {
        return Err(OwnError::NotFound);
    }
    let workspace = require(txn.as_ref(), &keyspace::workspace(session.workspace)).await?;
    let workspace = WorkspaceRecord::decode(&workspace)?;
    let tenant = require(txn.as_ref(), &keyspace::tenant(session.tenant)).await?;
    let tenant = TenantRecord::decode(&tenant)?;
    let before = fleet::read_owner(txn.as_ref(), id).await?;
    let mut notices = unobeyed(txn.as_ref(), id, taker).await?;
    if let Some(notice) = may_take(txn.as_ref(), before, taker).await? {
        fleet::write_notice(txn.as_mut(), notice.gateway, id, taker.nonce);
        notices.push(notice);
    }
    let flush = match txn
        .get(&keyspace::session_flush(id), Isolation::Serializable)
        .await?
    {
        Some(record) => FlushRecord::decode(&record)?,
        None => FlushRecord::default(),
    };
    let replies = stored_replies(txn.as_ref(), id).await?;
    let open = keyspace::delta_range(id, session.generation);
    // Only the owner writes there; see `stored_replies`.
    let first = txn
        .get_range(&open, RangeLimit::pairs(1), Isolation::Snapshot)
        .await?;
    let open_is_empty = first.pairs.is_empty();
    let owner = OwnerRecord {
        gateway: taker.gateway,
        epoch: before.map_or(Epoch::new(0), |before| before.epoch).next(),
        nonce: taker.nonce,
    };
    txn.set(&keyspace::session_owner(id), &owner.encode());
    let committed = txn.commit().await?;
    Ok(Owned {
        layers: session_layers(
            id,
            &session,
            &workspace,
            tree_of(trees, session.tenant, &tenant, &workspace),
        ),
        open_is_empty,
        fence: Fence::new(id, owner, flush.number, committed.version),
        totals: flush.totals,
        session,
        workspace,
        tenant,
        replies,
        notices,
    })
}

/// Notices of the session that are not obeyed yet: of a takeover before this one, by a gateway that
/// may have died before it had waited, or by this one, which does not know how it ended.
async fn unobeyed(
    txn: &dyn Transaction,
    session: SessionId,
    taker: Taker<'_>,
) -> Result<Vec<Notice>, OwnError> {
    let mut found = Vec::new();
    if taker.seen.is_none() {
        return Ok(found);
    }
    // Whoever wrote one wrote the owner record, too, which is read serializably.
    for (gateway, lease) in fleet::read_leases(txn, taker.gateway).await? {
        if fleet::has_notice(txn, gateway, session).await? {
            found.push(Notice {
                gateway,
                counter: lease.counter,
            });
        }
    }
    Ok(found)
}

/// Whether a session with this owner may be taken, and whom that has to be told.
async fn may_take(
    txn: &dyn Transaction,
    owner: Option<OwnerRecord>,
    taker: Taker<'_>,
) -> Result<Option<Notice>, OwnError> {
    let Some((seen, now)) = taker.seen else {
        return Ok(None);
    };
    let Some(owner) = owner.filter(|it| it.gateway != NOBODY && it.gateway != taker.gateway) else {
        return Ok(None);
    };
    let Some(lease) = fleet::read_lease(txn, owner.gateway).await? else {
        return Ok(None);
    };
    // The transaction conflicts with a renewal that comes before it.
    if seen.is_dead(owner.gateway, lease.counter, now) {
        return Ok(None);
    }
    if !taker.from_living {
        return Err(OwnError::Elsewhere(owner.gateway, Box::new(lease)));
    }
    Ok(Some(Notice {
        gateway: owner.gateway,
        counter: lease.counter,
    }))
}

/// Lets go of a session: nobody owns it afterwards. For an owner that has nothing of it in memory
/// only, and answers no more calls for it. Does nothing if it is not the owner any more.
///
/// # Errors
///
/// The store fails. The session may or may not be owned still; nothing is lost in either case.
///
/// # Cancellation
///
/// Safe: as after an error.
pub async fn let_go(
    kv: &dyn Kv,
    session: SessionId,
    gateway: GatewayId,
    epoch: Epoch,
) -> Result<(), OwnError> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match try_let_go(kv, session, gateway, epoch).await {
            Err(OwnError::Kv(
                KvError::Conflict | KvError::VersionTooOld | KvError::OutcomeUnknown,
            )) if attempt < ATTEMPTS_MAX => {}
            result => return result,
        }
    }
}

async fn try_let_go(
    kv: &dyn Kv,
    session: SessionId,
    gateway: GatewayId,
    epoch: Epoch,
) -> Result<(), OwnError> {
    let mut txn = kv.begin();
    let owner = fleet::read_owner(txn.as_ref(), session).await?;
    let Some(owner) = owner.filter(|it| (it.gateway, it.epoch) == (gateway, epoch)) else {
        return Ok(());
    };
    let nobody = OwnerRecord {
        gateway: NOBODY,
        epoch,
        nonce: owner.nonce.wrapping_add(1),
    };
    txn.set(&keyspace::session_owner(session), &nobody.encode());
    txn.commit().await?;
    Ok(())
}

async fn require(txn: &dyn Transaction, key: &[u8]) -> Result<Bytes, OwnError> {
    txn.get(key, Isolation::Serializable)
        .await?
        .ok_or(OwnError::NotFound)
}

async fn stored_replies(
    txn: &dyn Transaction,
    session: SessionId,
) -> Result<Vec<(u32, [u8; 16], Bytes)>, OwnError> {
    let range = keyspace::session_replies(session);
    // Only the owner writes replies, and a flush of the owner before conflicts with this
    // takeover's write of the owner record; so a snapshot read is enough.
    let limit = RangeLimit {
        pairs: REPLIES_MAX,
        bytes: 8 << 20,
        reverse: false,
    };
    let page = txn.get_range(&range, limit, Isolation::Snapshot).await?;
    let mut replies = Vec::with_capacity(page.pairs.len());
    for (key, value) in page.pairs {
        let (xid, hash) =
            keyspace::decode_session_reply(&key).map_err(|_| RecordError::Field("reply key"))?;
        let record = ReplyRecord::decode(&value)?;
        replies.push((record.flush, xid, hash, record.reply));
    }
    if !is_kept(Rule::StoredReplies) {
        replies.clear();
    }
    replies.sort_by_key(|(flush, ..)| *flush);
    Ok(replies
        .into_iter()
        .map(|(_, xid, hash, reply)| (xid, hash, reply))
        .collect())
}

/// The trees of a workspace.
#[must_use]
pub fn tree_of(
    trees: &dyn Trees,
    id: TenantId,
    tenant: &TenantRecord,
    workspace: &WorkspaceRecord,
) -> Tree {
    let domain = DomainId::new(id.raw());
    let keys = TreeKeys::new(domain, &tenant.domain_key, &workspace.name_key);
    trees.open(keys)
}

/// Where a session's image is.
#[must_use]
pub fn session_layers(
    id: SessionId,
    record: &SessionRecord,
    workspace: &WorkspaceRecord,
    tree: Tree,
) -> Layers {
    let open = LayerId {
        session: id,
        generation: record.generation,
    };
    let base = match record.base {
        Some(root) => Base::Tree { tree, root },
        None => Base::Empty {
            tree,
            root: Box::new(InodeRecord::root(workspace.root, workspace.created)),
        },
    };
    Layers::new(open, record.frozen.clone(), base)
}

/// The tree of an image in which nothing was ever changed: a root directory. Stores it.
///
/// # Errors
///
/// The store of nodes fails.
pub async fn empty_image(tree: &Tree, workspace: &WorkspaceRecord) -> Result<Root, TreeError> {
    let key = keyspace::image::inode(InodeId::ROOT);
    let value = InodeRecord::root(workspace.root, workspace.created).encode();
    Ok(tree.build([(key, value)]).await?.root)
}
