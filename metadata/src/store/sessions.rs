//! Sessions: opening, listing, closing.

use base::{CommitId, Epoch, GatewayId, SessionId, TenantId, Timestamp, WorkspaceId};
use bytes::Bytes;

use super::deletion::require_workspace;
use super::history::{CommitInfo, is_logged, require_commit, write_operation};
use super::tickets::{NewTicket, TICKETS_READ_MAX, hash_in_index, write_ticket};
use super::{Store, StoreError, damaged};
use crate::fleet;
use crate::image::{InodeNumbers, Totals, Usage};
use crate::keyspace::{self, Key};
use crate::kv::{Isolation, KeyRange, RangeLimit, Transaction, pairs_of};
use crate::layers::LayerId;
use crate::record::operation::{Action, Actor, OperationRecord};
use crate::record::reference::{RefKind, RefName};
use crate::record::session::{FlushRecord, Identity, OwnerRecord, SessionRecord, SessionState};
use crate::transact::{Budget, Earlier};
use crate::tree::Root;

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
    /// The version whose content it begins with; the branch `main` if `None`, and nothing if there
    /// is none yet.
    pub version: Option<String>,
    /// The branch that it publishes to; the one that `version` names, else `main`, if `None`.
    pub branch: Option<String>,
}

impl OpenSession {
    /// A session of a workspace for a client that asks for nothing else: it may write, as whoever its calls say they are,
    /// stays until it is closed, and has what `main` has.
    #[must_use]
    pub fn new(workspace: impl Into<String>) -> Self {
        Self {
            workspace: workspace.into(),
            read_only: false,
            identity: Identity::Passthrough,
            agent: String::new(),
            run: String::new(),
            ttl_seconds: None,
            version: None,
            branch: None,
        }
    }
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

/// A place in the list of all sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPosition(Bytes);

/// The sessions of a part of the list that have ended by themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredPage {
    /// Each with its tenant.
    pub sessions: Vec<(TenantId, SessionId)>,
    /// Where the next part begins, if there is one.
    pub next: Option<SessionPosition>,
}

/// How a session is to be forked.
#[derive(Clone, Debug)]
pub struct ForkSession {
    /// Refuse every change.
    pub read_only: bool,
    /// Whose identity calls run as; the source's if `None`.
    pub identity: Option<Identity>,
    /// The agent that opens it.
    pub agent: String,
    /// The run it belongs to.
    pub run: String,
    /// Seconds until it ends by itself.
    pub ttl_seconds: Option<u64>,
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
        let (commit, branch) = self.starting_point(workspace.id, &open).await?;
        let id = SessionId::new((self.rng.u64() >> 1).max(1));
        let now = self.clock.wall();
        let (base, usage) = content_of(commit.as_ref());
        let commit = commit.map(|commit| commit.id);
        let record = SessionRecord {
            tenant,
            workspace: workspace.id,
            state: SessionState::Open,
            read_only: open.read_only,
            identity: open.identity,
            generation: 1,
            frozen: Vec::new(),
            commit,
            branch,
            base,
            frozen_usage: usage,
            revocation: 1,
            agent: open.agent,
            run: open.run,
            created: now,
            expires: open.ttl_seconds.map(|seconds| now.plus_seconds(seconds)),
        };
        let expires = record.expires;
        let ticket = NewTicket {
            expires,
            ..NewTicket::of(id)
        };
        let text = self.ticket_text();
        let flush = first_flush(usage);
        let session = id;
        let action = Action::SessionOpened { session, commit };
        let log = self.logged(&record.agent, &record.run, action);
        let (kept, kept_ticket, kept_text) = (&record, &ticket, text.as_str());
        let (log, operation) = (&log, self.new_operation());
        let opened = || Opened {
            session: SessionInfo {
                id,
                record: kept.clone(),
                flush,
            },
            ticket: kept_text.to_owned(),
        };
        let opened = &opened;
        self.effect(|txn, earlier| {
            Box::pin(async move {
                // It may have been listed, and changed or closed, since an attempt whose outcome was
                // unknown.
                if earlier == Earlier::Unknown && is_logged(txn, kept.workspace, operation).await? {
                    return Ok(opened());
                }
                require_workspace(txn, kept.workspace).await?;
                // One that is removed meanwhile takes its tree along.
                if let Some(commit) = commit {
                    require_commit(txn, kept.workspace, commit).await?;
                }
                txn.set(&keyspace::session_meta(id), &kept.encode());
                if kept.base.is_some() {
                    txn.set(&keyspace::session_flush(id), &flush.encode());
                }
                txn.set(&keyspace::session_of(tenant, kept.workspace, id), &[]);
                write_expiry(txn, tenant, id, kept.expires);
                write_ticket(txn, kept_ticket, kept_text);
                write_operation(txn, kept.workspace, operation, now, log);
                Ok(opened())
            })
        })
        .await
    }

    /// The commit that a session is to begin with, and the branch that it is to publish to.
    async fn starting_point(
        &self,
        workspace: WorkspaceId,
        open: &OpenSession,
    ) -> Result<(Option<CommitInfo>, String), StoreError> {
        let main = RefName::main();
        let named = |text: &str| RefName::new(text).ok();
        let (commit, name) = match &open.version {
            Some(text) => {
                let commit = self.resolve_version(workspace, text).await?;
                (Some(commit), named(text))
            }
            None => match self.reference(workspace, &main).await {
                Ok(found) => {
                    let id = found.record.state.commit;
                    (Some(self.commit(workspace, id).await?), Some(main.clone()))
                }
                Err(StoreError::NotFound { .. }) => (None, Some(main.clone())),
                Err(error) => return Err(error),
            },
        };
        if let Some(branch) = &open.branch {
            let branch = RefName::new(branch).map_err(|error| StoreError::Invalid {
                why: format!("branch {branch:?}: {error}"),
            })?;
            match self.reference(workspace, &branch).await {
                Ok(found) if found.record.state.kind == RefKind::Tag => {
                    return Err(StoreError::Invalid {
                        why: format!(
                            "{:?} is a tag, which stays where it is: name a branch to publish to, there or new",
                            branch.as_str()
                        ),
                    });
                }
                Ok(_) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
            return Ok((commit, branch.as_str().to_owned()));
        }
        // A version that is a branch's name is to be published there; a tag's or an id is not.
        let branch = match name {
            Some(name) if open.version.is_some() => match self.reference(workspace, &name).await {
                Ok(found) if found.record.state.kind == RefKind::Branch => name,
                Ok(_) | Err(StoreError::NotFound { .. }) => main,
                Err(error) => return Err(error),
            },
            _ => main,
        };
        Ok((commit, branch.as_str().to_owned()))
    }

    /// Says that a session now stands on the commit `to`, if it stood on `from`.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Refused` if it stands on another; or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not have been changed.
    pub async fn set_session_commit(
        &self,
        tenant: TenantId,
        id: SessionId,
        from: Option<CommitId>,
        to: CommitId,
    ) -> Result<(), StoreError> {
        self.effect(|txn, _| {
            Box::pin(async move {
                let mut record = require_session(txn, tenant, id).await?;
                // Right however often it is applied.
                if record.commit == Some(to) {
                    return Ok(());
                }
                if record.commit != from {
                    let why = "another commit of the session was made meanwhile: look at the \
                                   log and try again"
                        .to_owned();
                    return Err(StoreError::Refused { why });
                }
                record.commit = Some(to);
                txn.set(&keyspace::session_meta(id), &record.encode());
                Ok(())
            })
        })
        .await
    }

    /// Opens a session with the image that the frozen layers of `source` make, with a first ticket.
    /// What is in the source's open layer is not in the fork: its owner freezes it before.
    ///
    /// The caller holds the chunk store from before this call until its end, which is the end of
    /// the transaction (`docs/design/0002-collection.md`).
    ///
    /// # Errors
    ///
    /// `NotFound`, `Invalid`, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not exist afterwards.
    pub async fn fork_session(
        &self,
        tenant: TenantId,
        source: SessionId,
        fork: ForkSession,
    ) -> Result<Opened, StoreError> {
        check_label("agent", &fork.agent)?;
        check_label("run", &fork.run)?;
        let id = SessionId::new((self.rng.u64() >> 1).max(1));
        let now = self.clock.wall();
        let expires = fork.ttl_seconds.map(|seconds| now.plus_seconds(seconds));
        let ticket = NewTicket {
            expires,
            ..NewTicket::of(id)
        };
        let text = self.ticket_text();
        let action = Action::SessionForked {
            session: id,
            source,
            commit: None,
        };
        let log = self.logged(&fork.agent, &fork.run, action);
        let (fork, kept_ticket, kept_text) = (&fork, &ticket, text.as_str());
        let (log, operation) = (&log, self.new_operation());
        let opened = |session| Opened {
            session,
            ticket: kept_text.to_owned(),
        };
        let opened = &opened;
        // As in opening: what was made is not made again, whatever became of it. A source never
        // changes its workspace.
        let workspace = self.session(tenant, source).await?.record.workspace;
        self.effect(|txn, earlier| {
            Box::pin(async move {
                if earlier == Earlier::Unknown && is_logged(txn, workspace, operation).await? {
                    return Ok(opened(read_session(txn, tenant, id).await?));
                }
                // A fold or the end of the source conflicts with this read, so what is listed
                // here exists when this is committed.
                let from = require_session(txn, tenant, source).await?;
                require_workspace(txn, from.workspace).await?;
                // Before this is committed, and while the source still has it.
                if let Some(root) = from.base {
                    self.copying(from.workspace, root);
                    self.tell_in(txn, from.workspace, root).await?;
                }
                let record = SessionRecord {
                    tenant,
                    workspace: from.workspace,
                    state: SessionState::Open,
                    read_only: fork.read_only,
                    identity: fork.identity.unwrap_or(from.identity),
                    generation: 1,
                    frozen: from.frozen,
                    commit: from.commit,
                    branch: from.branch,
                    base: from.base,
                    frozen_usage: from.frozen_usage,
                    revocation: 1,
                    agent: fork.agent.clone(),
                    run: fork.run.clone(),
                    created: now,
                    expires,
                };
                let flush = first_flush(record.frozen_usage);
                txn.set(&keyspace::session_meta(id), &record.encode());
                txn.set(&keyspace::session_flush(id), &flush.encode());
                txn.set(&keyspace::session_of(tenant, record.workspace, id), &[]);
                write_expiry(txn, tenant, id, record.expires);
                for layer in &record.frozen {
                    let user = keyspace::layer_user(layer.session, layer.generation, id);
                    txn.set(&user, &[]);
                }
                write_ticket(txn, kept_ticket, kept_text);
                write_operation(txn, record.workspace, operation, now, log);
                Ok(opened(SessionInfo { id, record, flush }))
            })
        })
        .await
    }

    /// What is logged of a session that an agent makes for a run.
    pub(super) fn logged(&self, agent: &str, run: &str, action: Action) -> OperationRecord {
        let said = |given: &str, else_: &str| {
            let name = if given.is_empty() { else_ } else { given };
            name.to_owned()
        };
        OperationRecord {
            actor: Actor {
                agent: said(agent, &self.actor.agent),
                run: said(run, &self.actor.run),
                token: self.actor.token,
            },
            action,
        }
    }

    /// Puts a tree in place of a session's last frozen layers and its base, which have the same
    /// content, and drops those layers that nobody else lists. `false` if the session's layers are
    /// not the ones that were said, or `owner` does not own it any more; nothing is changed then.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: it may or may not have been done.
    pub async fn replace_layers(
        &self,
        id: SessionId,
        owner: (GatewayId, Epoch),
        (frozen, base): (&[LayerId], Option<Root>),
        root: Root,
    ) -> Result<bool, StoreError> {
        self.transactor
            .transact(Budget::default(), |txn, earlier| {
                Box::pin(async move {
                    let what = format!("session {id}");
                    let key = keyspace::session_meta(id);
                    let found = txn.get(&key, Isolation::Serializable).await?;
                    let Some(found) = found else {
                        return Err(StoreError::NotFound { what });
                    };
                    let mut record = SessionRecord::decode(&found).map_err(damaged(&what))?;
                    if earlier == Earlier::Unknown && record.base == Some(root) {
                        // Only the owner folds, so it was an attempt of ours.
                        let done = frozen.iter().all(|layer| !record.frozen.contains(layer));
                        return Ok(done);
                    }
                    // Another owner may be reading the layers.
                    let found = txn
                        .get(&keyspace::session_owner(id), Isolation::Serializable)
                        .await?;
                    let found = found.map(|found| OwnerRecord::decode(&found)).transpose();
                    let found = found.map_err(damaged(&what))?;
                    if found.is_none_or(|found| (found.gateway, found.epoch) != owner) {
                        return Ok(false);
                    }
                    if record.base != base || !record.frozen.ends_with(frozen) {
                        return Ok(false);
                    }
                    let kept = record.frozen.len().saturating_sub(frozen.len());
                    record.frozen.truncate(kept);
                    record.base = Some(root);
                    txn.set(&key, &record.encode());
                    for layer in frozen {
                        leave_layer(txn, *layer, id).await?;
                    }
                    Ok(true)
                })
            })
            .await
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
        self.look(|txn| Box::pin(read_session(txn, tenant, id)))
            .await
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
        let limit = RangeLimit::pairs(limit.clamp(1, PAGE));
        let range = &range;
        self.look(|txn| {
            Box::pin(async move {
                // Nothing is written, so there is nothing to conflict with.
                let pairs = pairs_of(txn, range.clone(), limit, Isolation::Snapshot).await?;
                let mut sessions = Vec::with_capacity(pairs.len());
                for (key, _) in pairs {
                    let (_, _, id) =
                        keyspace::decode_session_of(&key).map_err(|error| StoreError::Corrupt {
                            what: "session index".into(),
                            why: error.to_string(),
                        })?;
                    // As of the same version: one closed meanwhile is no error.
                    sessions.push(read_session(txn, tenant, id).await?);
                }
                Ok(sessions)
            })
        })
        .await
    }

    /// Those of the next sessions after `after` (of all tenants, a page of them) that have ended
    /// by themselves and still exist. Each is to be closed.
    ///
    /// # Errors
    ///
    /// The store fails. A damaged record does not hide the sessions after it: it is logged and
    /// left.
    pub async fn expired_sessions(
        &self,
        after: Option<SessionPosition>,
    ) -> Result<ExpiredPage, StoreError> {
        let mut range = keyspace::expired_until(self.clock.wall());
        if let Some(SessionPosition(key)) = after {
            range.start = KeyRange::key(&key).end;
        }
        // A look that only says what to close; closing reads again.
        let page = self.page(&range, RangeLimit::pairs(PAGE)).await?;
        let mut expired = Vec::new();
        for (key, _) in &page.pairs {
            match keyspace::decode(key) {
                Ok(Key::Expiry(_, tenant, id)) => expired.push((tenant, id)),
                _ => tracing::warn!("key in the index of expiries is damaged"),
            }
        }
        let last = page.pairs.last().filter(|_| page.more);
        Ok(ExpiredPage {
            sessions: expired,
            next: last.map(|(key, _)| SessionPosition(key.clone())),
        })
    }

    /// Closes a session and drops what it held. Its handles become stale. A gateway that has it in
    /// memory is told in the same transaction, and gives it up with the next renewal of its lease.
    /// Closing one that is closed already finishes what an interrupted close left.
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
        let workspace = info.record.workspace;
        let action = Action::SessionClosed {
            session: id,
            commit: None,
        };
        let log = OperationRecord {
            actor: Actor::clone(&self.actor),
            action,
        };
        let (log, operation, now) = (&log, self.new_operation(), self.clock.wall());
        let nonce = self.rng.u64();
        self.effect(|txn, _| {
            Box::pin(async move {
                let limit = RangeLimit::pairs(TICKETS_READ_MAX);
                let range = keyspace::tickets_of(id);
                let tickets = pairs_of(&*txn, range, limit, Isolation::Serializable).await?;
                let record = match txn
                    .get(&keyspace::session_meta(id), Isolation::Serializable)
                    .await?
                {
                    Some(found) => {
                        let record = SessionRecord::decode(&found);
                        Some(record.map_err(damaged("session"))?)
                    }
                    None => None,
                };
                if let Some(record) = record {
                    if let Some(expires) = record.expires {
                        txn.clear(&keyspace::expiry(expires, tenant, id));
                    }
                    txn.clear_range(&keyspace::delta_range(id, record.generation));
                    for layer in record.frozen {
                        leave_layer(txn, layer, id).await?;
                    }
                    // Once only: an attempt that finds it closed logs nothing.
                    write_operation(txn, workspace, operation, now, log);
                }
                fleet::tell_owner(txn, id, nonce).await?;
                // With the owner record: whoever owns the session can flush no more, for a flush
                // conflicts with any change of it and finds none. Its epoch is not begun again,
                // for a session's number is not given again and nobody takes over a session
                // that is gone.
                txn.clear_range(&keyspace::session_all(id));
                txn.clear(&keyspace::session_of(tenant, workspace, id));
                txn.clear_range(&keyspace::tickets_of(id));
                for (key, _) in tickets {
                    txn.clear(&keyspace::ticket(&hash_in_index(&key)?));
                }
                Ok(())
            })
        })
        .await
    }
}

impl SessionInfo {
    /// Whether the session has ended by itself.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.record.is_expired(now)
    }
}

/// Puts a session where it is found when it has ended.
pub(super) fn write_expiry(
    txn: &mut dyn Transaction,
    tenant: TenantId,
    id: SessionId,
    expires: Option<Timestamp>,
) {
    if let Some(expires) = expires {
        txn.set(&keyspace::expiry(expires, tenant, id), &[]);
    }
}

/// The tree of a commit, and what it uses; nothing without a commit.
fn content_of(commit: Option<&CommitInfo>) -> (Option<Root>, Usage) {
    match commit {
        Some(CommitInfo { record, .. }) => {
            let root = record.root();
            (Some(root), record.usage)
        }
        None => (None, Usage::default()),
    }
}

/// What stands in place of a flush in a session that has had none.
fn first_flush(usage: Usage) -> FlushRecord {
    FlushRecord {
        number: 0,
        totals: Totals {
            usage,
            numbers: InodeNumbers::default(),
        },
    }
}

/// Takes a frozen layer off the list of session `user`, and drops it if nobody else lists it.
pub(super) async fn leave_layer(
    txn: &mut dyn Transaction,
    layer: LayerId,
    user: SessionId,
) -> Result<(), StoreError> {
    let (session, generation) = (layer.session, layer.generation);
    let own = keyspace::layer_user(session, generation, user);
    txn.clear(&own);
    // Two who leave at once conflict here, and the later one sees that it is the last.
    let others = txn
        .get_range(
            &keyspace::layer_users(session, generation),
            RangeLimit::pairs(1),
            Isolation::Serializable,
        )
        .await?;
    if others.pairs.is_empty() {
        txn.clear_range(&keyspace::delta_range(session, generation));
    }
    Ok(())
}

/// An open session of the tenant, read so that any change of it conflicts.
pub(super) async fn require_session(
    txn: &dyn Transaction,
    tenant: TenantId,
    id: SessionId,
) -> Result<SessionRecord, StoreError> {
    let record = record_of(txn, tenant, id, Isolation::Serializable).await?;
    if record.state != SessionState::Open {
        let what = format!("session {id}");
        return Err(StoreError::NotFound { what });
    }
    Ok(record)
}

/// A session of the tenant, open or not.
async fn record_of(
    txn: &dyn Transaction,
    tenant: TenantId,
    id: SessionId,
    isolation: Isolation,
) -> Result<SessionRecord, StoreError> {
    let what = format!("session {id}");
    let found = txn.get(&keyspace::session_meta(id), isolation).await?;
    let Some(found) = found else {
        return Err(StoreError::NotFound { what });
    };
    let record = SessionRecord::decode(&found).map_err(damaged(&what))?;
    if record.tenant != tenant {
        return Err(StoreError::NotFound { what });
    }
    Ok(record)
}

/// Reads a session, of which the transaction then writes nothing, so there is nothing to conflict with.
async fn read_session(
    txn: &dyn Transaction,
    tenant: TenantId,
    id: SessionId,
) -> Result<SessionInfo, StoreError> {
    let record = record_of(txn, tenant, id, Isolation::Snapshot).await?;
    let found = txn
        .get(&keyspace::session_flush(id), Isolation::Snapshot)
        .await?;
    let what = format!("session {id}");
    let flush = match found {
        Some(found) => FlushRecord::decode(&found).map_err(damaged(&what))?,
        None => FlushRecord::default(),
    };
    Ok(SessionInfo { id, record, flush })
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
