//! A workspace's history: commits, refs and logs.

use base::{CommitId, OperationId, Timestamp, WorkspaceId};

use super::{Checker, PendingCommit, Remedy};
use crate::keyspace;
use crate::kv::{KeyRange, KvError};
use crate::record::commit::{CommitRecord, id_of};
use crate::record::operation::{Action, OperationRecord};
use crate::record::reference::{RefChange, RefLogRecord, RefName, RefRecord, RefState};

impl Checker<'_> {
    /// That a commit is what its name says, and that it comes from what there is.
    pub(super) async fn check_commit(
        &mut self,
        workspace: WorkspaceId,
        id: CommitId,
        value: &[u8],
    ) -> Result<(), KvError> {
        self.report.counts.commits += 1;
        let place = format!("commit {id} of workspace {workspace}");
        self.check_history_of(workspace, &place).await?;
        if id_of(value) != id {
            let what = format!("its content is that of commit {}", id_of(value));
            self.report.add(&place, what, Remedy::Store);
        }
        let Some(commit) = self.decoded(&place, CommitRecord::decode(value)) else {
            return Ok(());
        };
        for parent in &commit.parents {
            let what = match self.commit(workspace, *parent).await? {
                None => format!("its parent {parent} is missing"),
                Some(parent_record) if parent_record.time >= commit.time => {
                    format!("its parent {parent} is not earlier")
                }
                Some(_) => continue,
            };
            self.report.add(&place, what, Remedy::Store);
        }
        self.commits.push(PendingCommit {
            workspace,
            time: commit.time,
            id,
            root: commit.root(),
            usage: commit.usage,
            conflicts: commit.conflicts,
            parent: commit.parents.first().copied(),
        });
        Ok(())
    }

    /// That a ref leads to a commit, and that its log says so.
    pub(super) async fn check_reference(
        &mut self,
        workspace: WorkspaceId,
        name: &str,
        value: &[u8],
    ) -> Result<(), KvError> {
        self.report.counts.refs += 1;
        let place = format!("ref {name:?} of workspace {workspace}");
        self.check_history_of(workspace, &place).await?;
        if let Err(error) = RefName::new(name) {
            let what = format!("cannot be called so: {error}");
            self.report.add(&place, what, Remedy::Store);
        }
        let Some(record) = self.decoded(&place, RefRecord::decode(value)) else {
            return Ok(());
        };
        let commit = record.state.commit;
        if self.commit(workspace, commit).await?.is_none() {
            let what = format!("leads to commit {commit}, which is missing");
            self.report.add(&place, what, Remedy::Store);
        }
        let hash = keyspace::ref_name_hash(name);
        let all = keyspace::ref_log_all(workspace, &hash);
        if self.last_of(&all).await? != Some((record.updated, Some(record.state))) {
            let what = "is not what its log says";
            self.report.add(place, what, Remedy::Store);
        }
        Ok(())
    }

    /// That an entry of a ref's log is in the operation log, follows from the one before, and is
    /// followed by what is there.
    pub(super) async fn check_ref_log(
        &mut self,
        workspace: WorkspaceId,
        hash: &[u8; 16],
        time: Timestamp,
        value: &[u8],
    ) -> Result<(), KvError> {
        let place = format!("log of a ref of workspace {workspace} at {time}");
        let Some(entry) = self.decoded(&place, RefLogRecord::decode(value)) else {
            return Ok(());
        };
        let place = format!("log of ref {:?} at {time}", entry.name.as_str());
        if keyspace::ref_name_hash(entry.name.as_str()) != *hash {
            self.report
                .add(&place, "is in the log of another ref", Remedy::Store);
        }
        let here = keyspace::ref_log(workspace, hash, time);
        let before = KeyRange {
            end: here.clone().into(),
            ..keyspace::ref_log_all(workspace, hash)
        };
        let before = self.last_of(&before).await?;
        // What came before may have been older than what the workspace keeps.
        let is_cut = before.is_none() && self.horizon(workspace).await?.is_some();
        let before = before.and_then(|(_, state)| state);
        let change = RefChange {
            name: entry.name.clone(),
            before,
            after: entry.state,
        };
        let logged = self.operation(workspace, time, entry.operation).await?;
        let is_logged = logged.is_some_and(|logged| match logged.action {
            Action::RefChanged { change: logged, .. } if is_cut => {
                (logged.name, logged.after) == (change.name.clone(), change.after)
            }
            Action::RefChanged { change: logged, .. } => logged == change,
            _ => false,
        });
        if !is_logged {
            let what = format!("operation {} does not say so", entry.operation);
            self.report.add(&place, what, Remedy::Store);
        }
        let after = KeyRange {
            start: KeyRange::key(&here).end,
            ..keyspace::ref_log_all(workspace, hash)
        };
        // A ref that is there and not what its log says is told with the ref.
        let key = keyspace::reference(workspace, entry.name.as_str());
        let is_last = self.reader.first(&after).await?.is_none();
        if is_last && entry.state.is_some() != self.reader.get(&key).await?.is_some() {
            let what = "it is the last, and the ref is not so";
            self.report.add(place, what, Remedy::Store);
        }
        Ok(())
    }

    /// That an entry of the operation log can be found, and that a ref's log says the same.
    pub(super) async fn check_operation_log(
        &mut self,
        workspace: WorkspaceId,
        time: Timestamp,
        id: OperationId,
        value: &[u8],
    ) -> Result<(), KvError> {
        self.report.counts.operations += 1;
        let place = format!("operation {id} of workspace {workspace}");
        self.check_history_of(workspace, &place).await?;
        let found = self.reader.get(&keyspace::operation(workspace, id)).await?;
        if found.as_deref() != Some(&keyspace::encode_time(time)) {
            self.report
                .add(&place, "cannot be found by its number", Remedy::Store);
        }
        let Some(record) = self.decoded(&place, OperationRecord::decode(value)) else {
            return Ok(());
        };
        if let Action::RefChanged { change, .. } = record.action {
            let hash = keyspace::ref_name_hash(change.name.as_str());
            let key = keyspace::ref_log(workspace, &hash, time);
            let entry = RefLogRecord {
                name: change.name,
                operation: id,
                state: change.after,
            };
            let horizon = self.horizon(workspace).await?;
            // A ref's log goes first when what is old is removed.
            let is_old = horizon.is_some_and(|horizon| time < horizon);
            let found = self.reader.get(&key).await?;
            if found != Some(entry.encode()) && !(is_old && found.is_none()) {
                let what = format!("the log of ref {:?} does not say so", entry.name.as_str());
                self.report.add(place, what, Remedy::Store);
            }
        }
        Ok(())
    }

    /// That an operation's number leads to it.
    pub(super) async fn check_operation(
        &mut self,
        workspace: WorkspaceId,
        id: OperationId,
        value: &[u8],
    ) -> Result<(), KvError> {
        let found = match keyspace::decode_time(value) {
            Ok(time) => {
                let key = keyspace::operation_log(workspace, time, id);
                self.reader.get(&key).await?
            }
            Err(_) => None,
        };
        if found.is_none() {
            let place = format!("operation {id} of workspace {workspace}");
            self.report
                .add(place, "its number leads nowhere", Remedy::Store);
        }
        Ok(())
    }

    pub(super) async fn check_history_of(
        &mut self,
        workspace: WorkspaceId,
        place: &str,
    ) -> Result<(), KvError> {
        let key = keyspace::workspace(workspace);
        if self.reader.get(&key).await?.is_none() {
            self.report
                .add(place, "the workspace does not exist", Remedy::Store);
        }
        Ok(())
    }

    // What cannot be decoded is told where it is read, and taken for missing here.

    async fn commit(
        &self,
        workspace: WorkspaceId,
        id: CommitId,
    ) -> Result<Option<CommitRecord>, KvError> {
        let value = self.reader.get(&keyspace::commit(workspace, id)).await?;
        Ok(value.and_then(|value| CommitRecord::decode(&value).ok()))
    }

    async fn operation(
        &self,
        workspace: WorkspaceId,
        time: Timestamp,
        id: OperationId,
    ) -> Result<Option<OperationRecord>, KvError> {
        let key = keyspace::operation_log(workspace, time, id);
        let value = self.reader.get(&key).await?;
        Ok(value.and_then(|value| OperationRecord::decode(&value).ok()))
    }

    /// The last entry of a part of a ref's log: since when, and what the ref said.
    async fn last_of(
        &self,
        range: &KeyRange,
    ) -> Result<Option<(Timestamp, Option<RefState>)>, KvError> {
        let Some((key, value)) = self.reader.last(range).await? else {
            return Ok(None);
        };
        let time = keyspace::decode_ref_log(&key).ok();
        let entry = RefLogRecord::decode(&value).ok();
        Ok(time.zip(entry).map(|(time, entry)| (time, entry.state)))
    }
}
