//! What is kept of histories, pins, and workspaces that are being removed.

use base::{CommitId, Timestamp, WorkspaceId};

use super::{Checker, Remedy};
use crate::keyspace;
use crate::kv::KvError;
use crate::record::retention::{DeletionRecord, PinRecord, RetentionRecord};
use crate::record::workspace::WorkspaceRecord;

impl Checker<'_> {
    /// Whether a workspace is being removed: then what is left of it is in no order.
    pub(super) async fn is_removed(&self, workspace: WorkspaceId) -> Result<bool, KvError> {
        let key = keyspace::deletion(workspace);
        Ok(self.reader.get(&key).await?.is_some())
    }

    /// From when on a workspace's logs have everything. What cannot be decoded is told where it is
    /// read.
    pub(super) async fn horizon(
        &self,
        workspace: WorkspaceId,
    ) -> Result<Option<Timestamp>, KvError> {
        let value = self.reader.get(&keyspace::retention(workspace)).await?;
        let record = value.and_then(|value| RetentionRecord::decode(&value).ok());
        Ok(record.and_then(|record| record.horizon))
    }

    pub(super) async fn check_grown(
        &mut self,
        workspace: WorkspaceId,
        value: &[u8],
    ) -> Result<(), KvError> {
        let place = format!("last commit on an old one of workspace {workspace}");
        if value.len() != 8 {
            let what = "is not 8 bytes long";
            self.report.add(&place, what, Remedy::Store);
        }
        self.check_history_of(workspace, &place).await
    }

    pub(super) async fn check_retention(
        &mut self,
        workspace: WorkspaceId,
        value: &[u8],
    ) -> Result<(), KvError> {
        let place = format!("retention of workspace {workspace}");
        self.decoded(&place, RetentionRecord::decode(value));
        self.check_history_of(workspace, &place).await
    }

    /// That a pinned commit is there.
    pub(super) async fn check_pin(
        &mut self,
        workspace: WorkspaceId,
        id: CommitId,
        value: &[u8],
    ) -> Result<(), KvError> {
        if self.is_removed(workspace).await? {
            return Ok(());
        }
        let place = format!("pin of commit {id} of workspace {workspace}");
        self.decoded(&place, PinRecord::decode(value));
        let key = keyspace::commit(workspace, id);
        if self.reader.get(&key).await?.is_none() {
            self.report
                .add(place, "the commit is missing", Remedy::Store);
        }
        Ok(())
    }

    /// That what is being removed is a workspace of that tenant.
    pub(super) async fn check_deletion(
        &mut self,
        workspace: WorkspaceId,
        value: &[u8],
    ) -> Result<(), KvError> {
        let place = format!("workspace {workspace}, which is being removed");
        let Some(deletion) = self.decoded(&place, DeletionRecord::decode(value)) else {
            return Ok(());
        };
        let found = self.reader.get(&keyspace::workspace(workspace)).await?;
        // One that cannot be decoded is told where it is read.
        let is_right = found.is_some_and(|value| match WorkspaceRecord::decode(&value) {
            Ok(record) => (record.tenant, record.name) == (deletion.tenant, deletion.name),
            Err(_) => true,
        });
        if !is_right {
            let what = "has no record that fits";
            self.report.add(place, what, Remedy::Store);
        }
        Ok(())
    }
}
