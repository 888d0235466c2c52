//! Sessions: opening, listing, closing.

use base::{GatewayId, SessionId, TenantId, Timestamp, WorkspaceId};

use super::tickets::{NewTicket, write_ticket};
use super::{Store, StoreError, damaged};
use crate::keyspace;
use crate::kv::{Isolation, KeyRange, RangeLimit};
use crate::record::session::{FlushRecord, Identity, OwnerRecord, SessionRecord, SessionState};
use crate::transact::Budget;

/// Longest agent or run name, in bytes.
const LABEL_BYTES_MAX: usize = 256;

/// Sessions read at a time when listing.
const PAGE: usize = 500;

/// How a session is to be opened.
#[derive(Clone, Debug)]
pub struct OpenSession {
    /// The workspace's name.
    pub workspace: String,
    /// Refuse every change.
    pub read_only: bool,
    /// Whose identity calls run as.
    pub identity: Identity,
    /// The agent that opens it.
    pub agent: String,
    /// The run it belongs to.
    pub run: String,
    /// Seconds until it ends by itself.
    pub ttl_seconds: Option<u64>,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its number.
    pub id: SessionId,
    /// What it is.
    pub record: SessionRecord,
    /// What it held at its last flush.
    pub flush: FlushRecord,
}

/// A session that was just opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The session.
    pub session: SessionInfo,
    /// The text of its first ticket, which is nowhere stored.
    pub ticket: String,
}

impl Store {
    /// Opens a session on a workspace, with a first ticket. Reads nothing of its content.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Invalid`, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not exist afterwards.
    pub async fn open_session(
        &self,
        tenant: TenantId,
        open: OpenSession,
    ) -> Result<Opened, StoreError> {
        check_label("agent", &open.agent)?;
        check_label("run", &open.run)?;
        let workspace = self.workspace_by_name(tenant, &open.workspace).await?;
        let id = SessionId::new((self.rng.u64() >> 1).max(1));
        let now = self.clock.wall();
        let record = SessionRecord {
            tenant,
            workspace: workspace.id,
            state: SessionState::Open,
            read_only: open.read_only,
            identity: open.identity,
            generation: 1,
            revocation: 1,
            root: workspace.record.root,
            agent: open.agent,
            run: open.run,
            created: now,
            expires: open.ttl_seconds.map(|seconds| now.plus_seconds(seconds)),
        };
        let ticket = NewTicket {
            expires: record.expires,
            ..NewTicket::of(id)
        };
        let text = self.ticket_text();
        let (kept, kept_ticket, kept_text) = (&record, &ticket, text.as_str());
        self.transactor
            .transact(Budget::default(), |txn, _| {
                // Blind writes under a fresh number: right however often they are applied.
                Box::pin(async move {
                    txn.set(&keyspace::session_meta(id), &kept.encode());
                    txn.set(&keyspace::session_of(tenant, kept.workspace, id), &[]);
                    write_ticket(txn, kept_ticket, kept_text);
                    Ok::<(), StoreError>(())
                })
            })
            .await?;
        let session = SessionInfo {
            id,
            record,
            flush: FlushRecord::default(),
        };
        Ok(Opened {
            session,
            ticket: text,
        })
    }

    /// A session.
    ///
    /// # Errors
    ///
    /// `NotFound`, also for a session of another tenant; or the store fails.
    pub async fn session(
        &self,
        tenant: TenantId,
        id: SessionId,
    ) -> Result<SessionInfo, StoreError> {
        let what = format!("session {id}");
        let record = self.read(&keyspace::session_meta(id), &what).await?;
        let record = SessionRecord::decode(&record).map_err(damaged(&what))?;
        if record.tenant != tenant {
            return Err(StoreError::NotFound { what });
        }
        let flush = match self.read(&keyspace::session_flush(id), &what).await {
            Ok(value) => FlushRecord::decode(&value).map_err(damaged(&what))?,
            Err(StoreError::NotFound { .. }) => FlushRecord::default(),
            Err(error) => return Err(error),
        };
        Ok(SessionInfo { id, record, flush })
    }

    /// Up to `limit` of the tenant's sessions after `after`, by workspace and number.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn sessions(
        &self,
        tenant: TenantId,
        workspace: Option<WorkspaceId>,
        after: Option<(WorkspaceId, SessionId)>,
        limit: usize,
    ) -> Result<Vec<SessionInfo>, StoreError> {
        let mut range = match workspace {
            Some(workspace) => keyspace::sessions_of_workspace(tenant, workspace),
            None => keyspace::sessions_of_tenant(tenant),
        };
        if let Some((workspace, session)) = after {
            let key = keyspace::session_of(tenant, workspace, session);
            range.start = range.start.max(KeyRange::key(&key).end);
        }
        let txn = self.transactor.kv().begin();
        let limit = RangeLimit::pairs(limit.clamp(1, PAGE));
        // A listing of its own, never committed.
        let page = txn.get_range(&range, limit, Isolation::Snapshot).await?;
        let mut sessions = Vec::with_capacity(page.pairs.len());
        for (key, _) in page.pairs {
            let (_, _, id) =
                keyspace::decode_session_of(&key).map_err(|error| StoreError::Corrupt {
                    what: "session index".into(),
                    why: error.to_string(),
                })?;
            sessions.push(self.session(tenant, id).await?);
        }
        Ok(sessions)
    }

    /// Closes a session and drops what it held. Its handles become stale. Closing one that is
    /// closed already finishes what an interrupted close left.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: closing again finishes it.
    pub async fn close_session(&self, tenant: TenantId, id: SessionId) -> Result<(), StoreError> {
        let info = self.session(tenant, id).await?;
        let tickets = self.ticket_hashes(id).await?;
        let nonce = self.rng.u64();
        let (workspace, tickets) = (info.record.workspace, &tickets);
        self.transactor
            .transact(Budget::default(), |txn, _| {
                Box::pin(async move {
                    // Whoever owns the session can flush no more: its epoch is over.
                    let owner = txn
                        .get(&keyspace::session_owner(id), Isolation::Serializable)
                        .await?;
                    let epoch = match owner {
                        Some(record) => {
                            OwnerRecord::decode(&record)
                                .map_err(damaged("owner"))?
                                .epoch
                        }
                        None => base::Epoch::new(0),
                    };
                    let gateway = GatewayId::new(0);
                    let owner = OwnerRecord {
                        gateway,
                        epoch: epoch.next(),
                        nonce,
                    };
                    txn.clear_range(&keyspace::session_all(id));
                    txn.clear_range(&keyspace::delta_all(id));
                    txn.clear(&keyspace::session_of(tenant, workspace, id));
                    txn.clear_range(&keyspace::tickets_of(id));
                    for hash in tickets {
                        txn.clear(&keyspace::ticket(hash));
                    }
                    txn.set(&keyspace::session_owner(id), &owner.encode());
                    Ok::<(), StoreError>(())
                })
            })
            .await?;
        Ok(())
    }
}

impl SessionInfo {
    /// Whether the session has ended by itself.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.record.expires.is_some_and(|expires| expires <= now)
    }
}

fn check_label(what: &str, label: &str) -> Result<(), StoreError> {
    if label.len() > LABEL_BYTES_MAX || label.chars().any(char::is_control) {
        let why = format!(
            "{what} name is not acceptable: at most {LABEL_BYTES_MAX} bytes, no control characters"
        );
        return Err(StoreError::Invalid { why });
    }
    Ok(())
}
