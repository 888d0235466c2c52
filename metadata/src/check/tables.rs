//! Everything but files: tenants, workspaces, sessions, tickets, tokens, and that nothing else is
//! there.

use base::limits::INODE_BLOCK;
use base::{GatewayId, SessionId, TenantId, WorkspaceId};
use bytes::Bytes;

use super::reader::Scan;
use super::{Checker, Remedy};
use crate::keyspace::image::ImageKey;
use crate::keyspace::{self, Key};
use crate::kv::{KeyRange, KvError};
use crate::layers::{LayerId, untag};
use crate::record::RecordError;
use crate::record::changed::ChangedRecord;
use crate::record::gateway::{LeaseRecord, NoticeRecord};
use crate::record::session::{FlushRecord, OwnerRecord, ReplyRecord, SessionRecord};
use crate::record::workspace::{
    DATA_VERSION, FormatRecord, HandleKeysRecord, TenantRecord, TicketRecord, TokenRecord,
    WorkspaceRecord,
};
use crate::session::REPLIES_MAX;

/// What is known of the session whose records are being read. They are adjacent, and in this
/// order: what it is, its owner, its last flush, its replies, what changed from outside.
#[derive(Debug, Default)]
struct Current {
    id: Option<SessionId>,
    exists: bool,
    flush: u64,
    replies: usize,
}

impl Checker<'_> {
    /// Reads all keys in order. Those of another release are left alone.
    pub(super) async fn check_tables(&mut self) -> Result<(), KvError> {
        if let Some(value) = self.reader.get(&keyspace::format()).await?
            && is_of_another_release(&value)
        {
            self.check_format(&value);
            return Ok(());
        }
        let deltas = keyspace::all_deltas();
        let before = KeyRange {
            start: Bytes::new(),
            end: deltas.start.clone(),
        };
        let after = KeyRange {
            start: deltas.end.clone(),
            end: Bytes::from_static(&[0xff]),
        };
        let everything = KeyRange {
            start: before.start.clone(),
            end: after.end.clone(),
        };
        if self.reader.first(&everything).await?.is_none() {
            // Its first server was stopped before it began.
            return Ok(());
        }
        self.check_required().await?;
        self.check_range(before).await?;
        self.check_layers(deltas).await?;
        // Commits before sessions: what a session begins with is mostly one's.
        let sessions = keyspace::all_sessions();
        let between = KeyRange {
            start: after.start,
            end: sessions.start.clone(),
        };
        self.check_range(between).await?;
        self.check_commit_images().await?;
        let rest = KeyRange {
            start: sessions.start,
            end: after.end,
        };
        self.check_range(rest).await
    }

    /// That what a first start writes is there.
    async fn check_required(&mut self) -> Result<(), KvError> {
        for (key, what) in [
            (keyspace::format(), "format record"),
            (keyspace::handle_keys(), "handle keys"),
        ] {
            if self.reader.get(&key).await?.is_none() {
                self.report.add(what, "is missing", Remedy::Store);
            }
        }
        Ok(())
    }

    async fn check_range(&mut self, range: KeyRange) -> Result<(), KvError> {
        let mut scan = Scan::new(range);
        let mut current = Current::default();
        loop {
            let page = self.reader.next(&mut scan).await?;
            if page.is_empty() {
                return Ok(());
            }
            for (key, value) in page {
                self.report.counts.keys += 1;
                match keyspace::decode(&key) {
                    Ok(key) => self.check_key(key, &value, &mut current).await?,
                    Err(error) => {
                        let place = format!("key {}", key.escape_ascii());
                        self.report.add(place, error.to_string(), Remedy::Release);
                    }
                }
            }
            self.progressed();
        }
    }

    /// What images say is read with their sessions; here, that each layer is in use and each of its
    /// keys can be read. Goes from layer to layer.
    async fn check_layers(&mut self, deltas: KeyRange) -> Result<(), KvError> {
        let mut rest = deltas;
        while let Some(key) = self.reader.first(&rest).await? {
            rest.start = match keyspace::decode_delta_layer(&key) {
                Ok((session, generation)) => {
                    let layer = LayerId {
                        session,
                        generation,
                    };
                    self.check_layer(layer).await?;
                    keyspace::delta_range(session, generation).end
                }
                Err(error) => {
                    let place = format!("key {}", key.escape_ascii());
                    self.report.add(place, error.to_string(), Remedy::Release);
                    KeyRange::key(&key).end
                }
            };
        }
        Ok(())
    }

    async fn check_layer(&mut self, layer: LayerId) -> Result<(), KvError> {
        let Some(user) = self.user_of(layer).await? else {
            let what = match self.session(layer.session).await? {
                Some(_) => format!("its generation {} is not in use", layer.generation),
                None => "has files but no record".into(),
            };
            self.session_problem(layer.session, what);
            return Ok(());
        };
        // What nothing lies below has no reason to say that something is removed.
        let is_lowest =
            user.base.is_none() && user.frozen.last().is_none_or(|lowest| *lowest == layer);
        let mut scan = Scan::new(keyspace::delta_range(layer.session, layer.generation));
        loop {
            let page = self.reader.next(&mut scan).await?;
            if page.is_empty() {
                return Ok(());
            }
            for (key, stored) in page {
                self.report.counts.keys += 1;
                match (keyspace::decode(&key), untag(&stored)) {
                    (Err(error), _) => {
                        let what = format!("key {}: {error}", key.escape_ascii());
                        self.session_problem(layer.session, what);
                    }
                    (Ok(key), Err(error)) => {
                        self.session_problem(layer.session, format!("{key:?}: {error}"));
                    }
                    (Ok(Key::Delta(_, _, key)), Ok(None)) if is_lowest => {
                        let what = format!("{key:?} is marked as removed, but hides nothing");
                        self.session_problem(layer.session, what);
                    }
                    (Ok(Key::Delta(_, _, key @ ImageKey::Cut { .. })), Ok(_)) if is_lowest => {
                        self.session_problem(layer.session, format!("{key:?} hides nothing"));
                    }
                    (Ok(_), Ok(_)) => {}
                }
            }
            self.progressed();
        }
    }

    /// A session that has the layer in its list.
    async fn user_of(&self, layer: LayerId) -> Result<Option<SessionRecord>, KvError> {
        if let Some(own) = self.session(layer.session).await?
            && (own.generation == layer.generation || own.frozen.contains(&layer))
        {
            return Ok(Some(own));
        }
        let mut users = Scan::new(keyspace::layer_users(layer.session, layer.generation));
        loop {
            let page = self.reader.next(&mut users).await?;
            if page.is_empty() {
                return Ok(None);
            }
            for (key, _) in page {
                if let Ok(Key::LayerUser(_, _, user)) = keyspace::decode(&key)
                    && let Some(user) = self.session(user).await?
                    && user.frozen.contains(&layer)
                {
                    return Ok(Some(user));
                }
            }
        }
    }

    /// That a session which is said to list a layer does.
    async fn check_layer_user(&mut self, layer: LayerId, id: SessionId) -> Result<(), KvError> {
        let user = self.session(id).await?;
        if user.is_none_or(|user| !user.frozen.contains(&layer)) {
            let (session, generation) = (layer.session, layer.generation);
            let what = format!("is said to use generation {generation} of session {session}");
            self.session_problem(id, what);
        }
        Ok(())
    }

    /// That a session's list of frozen layers can be right, and is known to each layer.
    async fn check_frozen(&mut self, id: SessionId, record: &SessionRecord) -> Result<(), KvError> {
        let mut seen = std::collections::HashSet::new();
        for layer in &record.frozen {
            let (session, generation) = (layer.session, layer.generation);
            let is_open = self
                .session(session)
                .await?
                .is_some_and(|origin| origin.generation == generation);
            if is_open || !seen.insert(*layer) {
                let what = format!(
                    "lists generation {generation} of session {session}, which is not frozen or \
                     listed before"
                );
                self.session_problem(id, what);
            }
            let mark = keyspace::layer_user(session, generation, id);
            if self.reader.get(&mark).await?.is_none() {
                let what = format!("generation {generation} of session {session} may be dropped");
                self.session_problem(id, what);
            }
        }
        Ok(())
    }

    fn check_gateway(&mut self, key: &Key, id: GatewayId, value: &Bytes) {
        let checked = match key {
            Key::Lease(_) => LeaseRecord::decode(value).map(drop),
            _ => NoticeRecord::decode(value).map(drop),
        };
        if let Err(error) = checked {
            let place = format!("records of gateway {}", id.raw());
            self.report.add(place, error.to_string(), Remedy::Release);
        }
    }

    async fn check_key(
        &mut self,
        key: Key,
        value: &Bytes,
        current: &mut Current,
    ) -> Result<(), KvError> {
        match key {
            Key::Format => self.check_format(value),
            Key::HandleKeys => self.check_handle_keys(value),
            Key::Tenant(id) => self.check_tenant(id, value).await?,
            Key::TenantName(name) => self.check_tenant_name(&name, value).await?,
            Key::Token(_) => self.check_token(value).await?,
            Key::Workspace(id) => self.check_workspace(id, value).await?,
            Key::WorkspaceName(tenant, name) => {
                self.check_workspace_name(tenant, &name, value).await?;
            }
            Key::Inodes(id) => self.check_inodes(id, value).await?,
            Key::SessionOf(tenant, workspace, session) => {
                let wanted = Some((tenant, workspace));
                if self.owner_of(session).await? != wanted {
                    self.session_problem(session, "is in the list of a workspace it is not of");
                }
            }
            Key::Expiry(time, tenant, id) => {
                let record = self.session(id).await?;
                let is_its = |it: &SessionRecord| it.tenant == tenant && it.expires == Some(time);
                if !record.as_ref().is_some_and(is_its) {
                    self.session_problem(id, "is in the list of those that end at another time");
                }
            }
            Key::Ticket(hash) => self.check_ticket(&hash, value).await?,
            Key::TicketOf(session, hash) => self.check_ticket_of(session, &hash).await?,
            Key::Meta(id) => {
                *current = Current {
                    id: Some(id),
                    exists: true,
                    ..Current::default()
                };
                self.check_session(id, value).await?;
            }
            Key::Owner(id) => self.check_owner(id, value, current),
            Key::Flush(id) => self.check_flush(id, value, current),
            Key::Reply(id, ..) => self.check_reply(id, value, current),
            Key::Changed(id, position, _) => self.check_changed(id, position, value, current),
            Key::LayerUser(session, generation, user) => {
                let layer = LayerId {
                    session,
                    generation,
                };
                self.check_layer_user(layer, user).await?;
            }
            Key::Commit(..)
            | Key::Reference(..)
            | Key::RefLog(..)
            | Key::OperationLog(..)
            | Key::Operation(..) => self.check_history_key(key, value).await?,
            Key::Grown(id) => self.check_grown(id, value).await?,
            Key::Retention(id) => self.check_retention(id, value).await?,
            Key::Pin(workspace, id) => self.check_pin(workspace, id, value).await?,
            Key::Deletion(id) => self.check_deletion(id, value).await?,
            Key::Call(tenant, _) => self.check_call(tenant, value).await?,
            Key::CallTotal(tenant, what) => self.check_call_total(tenant, what, value).await?,
            Key::Lease(id) | Key::Notice(id, _) => self.check_gateway(&key, id, value),
            Key::Place(..)
            | Key::Body(..)
            | Key::Pack(_)
            | Key::Cycle
            | Key::Settled(_)
            | Key::Grey(..)
            | Key::StagedBytes
            | Key::Tier => self.check_shared(key, value).await?,
            // Not in the ranges that come here.
            Key::Delta(..) => {}
        }
        Ok(())
    }

    async fn check_history_key(&mut self, key: Key, value: &Bytes) -> Result<(), KvError> {
        // Half of what is being removed is gone.
        if let Key::Commit(workspace, _)
        | Key::Reference(workspace, _)
        | Key::RefLog(workspace, ..)
        | Key::OperationLog(workspace, ..)
        | Key::Operation(workspace, _) = &key
            && self.is_removed(*workspace).await?
        {
            return Ok(());
        }
        match key {
            Key::Commit(workspace, id) => self.check_commit(workspace, id, value).await,
            Key::Reference(workspace, name) => self.check_reference(workspace, &name, value).await,
            Key::RefLog(workspace, name, time) => {
                self.check_ref_log(workspace, &name, time, value).await
            }
            Key::OperationLog(workspace, time, id) => {
                self.check_operation_log(workspace, time, id, value).await
            }
            Key::Operation(workspace, id) => self.check_operation(workspace, id, value).await,
            _ => Ok(()),
        }
    }

    fn check_format(&mut self, value: &[u8]) {
        if let Some(format) = self.decoded("format record", FormatRecord::decode(value))
            && format.data_version != DATA_VERSION
        {
            let found = format.data_version;
            let what = format!("says version {found}, this release reads version {DATA_VERSION}");
            self.report.add("format record", what, Remedy::Release);
        }
    }

    fn check_handle_keys(&mut self, value: &[u8]) {
        if let Some(record) = self.decoded("handle keys", HandleKeysRecord::decode(value)) {
            let mut ids: Vec<u8> = record.keys.iter().map(|(id, _)| *id).collect();
            ids.sort_unstable();
            ids.dedup();
            if ids.len() != record.keys.len() {
                let what = "two have one number";
                self.report.add("handle keys", what, Remedy::Store);
            }
        }
    }

    async fn check_tenant(&mut self, id: TenantId, value: &[u8]) -> Result<(), KvError> {
        let place = format!("tenant {id}");
        let Some(tenant) = self.decoded(&place, TenantRecord::decode(value)) else {
            return Ok(());
        };
        let name = self
            .reader
            .get(&keyspace::tenant_name(&tenant.name))
            .await?;
        if name.as_deref() != Some(&id.raw().to_be_bytes()) {
            let what = format!("cannot be found by its name {:?}", tenant.name);
            self.report.add(place, what, Remedy::Store);
        }
        Ok(())
    }

    async fn check_tenant_name(&mut self, name: &str, value: &[u8]) -> Result<(), KvError> {
        let found = match number(value) {
            Some(id) => self.tenant(TenantId::new(id)).await?,
            None => None,
        };
        if found.is_none_or(|tenant| tenant.name != name) {
            let place = format!("tenant name {name:?}");
            let what = "leads to no tenant of that name";
            self.report.add(place, what, Remedy::Store);
        }
        Ok(())
    }

    async fn check_token(&mut self, value: &[u8]) -> Result<(), KvError> {
        if let Some(token) = self.decoded("API token", TokenRecord::decode(value))
            && self.tenant(token.tenant).await?.is_none()
        {
            let what = format!("is of tenant {}, which does not exist", token.tenant);
            self.report.add("API token", what, Remedy::Store);
        }
        Ok(())
    }

    async fn check_workspace(&mut self, id: WorkspaceId, value: &[u8]) -> Result<(), KvError> {
        self.report.counts.workspaces += 1;
        let place = format!("workspace {id}");
        let Some(record) = self.decoded(&place, WorkspaceRecord::decode(value)) else {
            return Ok(());
        };
        if self.tenant(record.tenant).await?.is_none() {
            let what = format!("is of tenant {}, which does not exist", record.tenant);
            self.report.add(&place, what, Remedy::Store);
        }
        let key = keyspace::workspace_name(record.tenant, &record.name);
        let leads_here = self.reader.get(&key).await?.as_deref() == Some(&id.raw().to_be_bytes());
        // One that is being removed has lost its name.
        if leads_here == self.is_removed(id).await? {
            let what = if leads_here {
                format!(
                    "is being removed, and still found by its name {:?}",
                    record.name
                )
            } else {
                format!("cannot be found by its name {:?}", record.name)
            };
            self.report.add(&place, what, Remedy::Store);
        }
        if self.reader.get(&keyspace::inodes(id)).await?.is_none() {
            let what = "has no counter of inode numbers";
            self.report.add(place, what, Remedy::Store);
        }
        Ok(())
    }

    async fn check_workspace_name(
        &mut self,
        tenant: TenantId,
        name: &str,
        value: &[u8],
    ) -> Result<(), KvError> {
        let found = match number(value) {
            Some(id) => self.workspace(WorkspaceId::new(id)).await?,
            None => None,
        };
        if found.is_none_or(|record| record.name != name || record.tenant != tenant) {
            let place = format!("workspace name {name:?} of tenant {tenant}");
            let what = "leads to no workspace of that name";
            self.report.add(place, what, Remedy::Store);
        }
        Ok(())
    }

    async fn check_inodes(&mut self, id: WorkspaceId, value: &[u8]) -> Result<(), KvError> {
        let place = format!("inode numbers of workspace {id}");
        match value.try_into().map(u64::from_le_bytes) {
            Ok(next) if next >= INODE_BLOCK => {}
            Ok(next) => {
                let what = format!("the next is {next}, which is for the system");
                self.report.add(&place, what, Remedy::Store);
            }
            Err(_) => self.report.add(&place, "is no number", Remedy::Store),
        }
        if self.workspace(id).await?.is_none() {
            self.report
                .add(place, "the workspace does not exist", Remedy::Store);
        }
        Ok(())
    }

    async fn check_ticket(&mut self, hash: &[u8; 32], value: &[u8]) -> Result<(), KvError> {
        self.report.counts.tickets += 1;
        let place = format!("ticket {}", blake3::Hash::from_bytes(*hash));
        let Some(ticket) = self.decoded(&place, TicketRecord::decode(value)) else {
            return Ok(());
        };
        let id = ticket.session;
        if self.owner_of(id).await?.is_none() {
            let what = format!("is for session {id}, which does not exist");
            self.report.add(&place, what, Remedy::Store);
        }
        let listed = keyspace::ticket_of(id, hash);
        if self.reader.get(&listed).await?.is_none() {
            let what = format!("is not in the list of session {id}");
            self.report.add(place, what, Remedy::Store);
        }
        Ok(())
    }

    async fn check_ticket_of(&mut self, id: SessionId, hash: &[u8; 32]) -> Result<(), KvError> {
        let found = self.reader.get(&keyspace::ticket(hash)).await?;
        // One that cannot be decoded is told where it is read.
        let of_this = found.is_some_and(|value| match TicketRecord::decode(&value) {
            Ok(ticket) => ticket.session == id,
            Err(_) => true,
        });
        if !of_this {
            self.session_problem(id, "lists a ticket that is not one of its tickets");
        }
        Ok(())
    }

    async fn check_session(&mut self, id: SessionId, value: &[u8]) -> Result<(), KvError> {
        self.report.counts.sessions += 1;
        let place = format!("session {id}");
        let Some(record) = self.decoded(&place, SessionRecord::decode(value)) else {
            return Ok(());
        };
        let listed = keyspace::session_of(record.tenant, record.workspace, id);
        if self.reader.get(&listed).await?.is_none() {
            self.session_problem(id, "is not in the list of its workspace");
        }
        if let Some(expires) = record.expires {
            let listed = keyspace::expiry(expires, record.tenant, id);
            if self.reader.get(&listed).await?.is_none() {
                self.session_problem(id, "is not in the list of those that end by themselves");
            }
        }
        self.check_frozen(id, &record).await?;
        match self.workspace(record.workspace).await? {
            Some(workspace) if workspace.tenant == record.tenant => {
                self.check_image(id, &record, &workspace).await?;
            }
            Some(_) => self.session_problem(id, "is of another tenant than its workspace"),
            None => self.session_problem(id, "its workspace does not exist"),
        }
        Ok(())
    }

    fn check_owner(&mut self, id: SessionId, value: &[u8], current: &Current) {
        let place = format!("owner of session {id}");
        if self.decoded(&place, OwnerRecord::decode(value)).is_none() {
            return;
        }
        // Closing takes it along.
        if !current.knows(id) {
            let what = "the session does not exist";
            self.report.add(place, what, Remedy::Session);
        }
    }

    fn check_flush(&mut self, id: SessionId, value: &[u8], current: &mut Current) {
        let place = format!("last flush of session {id}");
        if !current.knows(id) {
            let what = "the session does not exist";
            self.report.add(&place, what, Remedy::Session);
        }
        if let Some(flush) = self.decoded(&place, FlushRecord::decode(value)) {
            current.flush = flush.number;
        }
    }

    fn check_reply(&mut self, id: SessionId, value: &[u8], current: &mut Current) {
        self.report.counts.replies += 1;
        let place = format!("stored reply of session {id}");
        if !current.knows(id) {
            let what = "the session does not exist";
            self.report.add(&place, what, Remedy::Session);
        }
        current.replies += 1;
        if current.replies == REPLIES_MAX + 1 {
            self.session_problem(id, "has more stored replies than are ever kept");
        }
        if let Some(reply) = self.decoded(&place, ReplyRecord::decode(value))
            && reply.flush > current.flush
        {
            let what = format!(
                "is of flush {}, the last was {}",
                reply.flush, current.flush
            );
            self.report.add(place, what, Remedy::Session);
        }
    }

    fn check_changed(&mut self, id: SessionId, position: u64, value: &[u8], current: &Current) {
        let place = format!("changes from outside of session {id}");
        if !current.knows(id) {
            let what = "the session does not exist";
            self.report.add(&place, what, Remedy::Session);
        }
        let decoded = self.decoded(&place, ChangedRecord::decode(value));
        if decoded.is_some() && position > current.flush {
            let what = format!("are of flush {position}, the last was {}", current.flush);
            self.report.add(place, what, Remedy::Session);
        }
    }

    /// The record, or a problem.
    pub(super) fn decoded<T>(&mut self, place: &str, decoded: Result<T, RecordError>) -> Option<T> {
        decoded
            .map_err(|error| {
                let remedy = match error {
                    RecordError::Version(_) => Remedy::Release,
                    _ => Remedy::Store,
                };
                self.report.add(place, error.to_string(), remedy);
            })
            .ok()
    }

    pub(super) fn session_problem(&mut self, id: SessionId, what: impl Into<String>) {
        self.report
            .add(format!("session {id}"), what, Remedy::Session);
    }

    // What cannot be decoded is told where it is read, and taken for missing here.

    async fn tenant(&self, id: TenantId) -> Result<Option<TenantRecord>, KvError> {
        let value = self.reader.get(&keyspace::tenant(id)).await?;
        Ok(value.and_then(|value| TenantRecord::decode(&value).ok()))
    }

    async fn workspace(&self, id: WorkspaceId) -> Result<Option<WorkspaceRecord>, KvError> {
        let value = self.reader.get(&keyspace::workspace(id)).await?;
        Ok(value.and_then(|value| WorkspaceRecord::decode(&value).ok()))
    }

    async fn session(&self, id: SessionId) -> Result<Option<SessionRecord>, KvError> {
        let value = self.reader.get(&keyspace::session_meta(id)).await?;
        Ok(value.and_then(|value| SessionRecord::decode(&value).ok()))
    }

    async fn owner_of(&self, id: SessionId) -> Result<Option<(TenantId, WorkspaceId)>, KvError> {
        let record = self.session(id).await?;
        Ok(record.map(|record| (record.tenant, record.workspace)))
    }
}

impl Current {
    fn knows(&self, id: SessionId) -> bool {
        self.exists && self.id == Some(id)
    }
}

fn number(value: &[u8]) -> Option<u64> {
    value.try_into().map(u64::from_be_bytes).ok()
}

fn is_of_another_release(format: &[u8]) -> bool {
    match FormatRecord::decode(format) {
        Ok(format) => format.data_version != DATA_VERSION,
        Err(RecordError::Version(_)) => true,
        // Damaged, which is no reason not to look at the rest.
        Err(_) => false,
    }
}
