//! Exchanging a session's whole image for a tree, in one fenced transaction
//! (docs/design/0012-outside.md, invariants 1 and 7).

use base::{CommitId, OperationId, Timestamp};

use super::flush::{FlushBatch, FlushError, corrupt};
use crate::keyspace;
use crate::kv::{Isolation, RangeLimit, Transaction};
use crate::layers::Layers;
use crate::record::changed::ChangedRecord;
use crate::record::operation::OperationRecord;
use crate::record::session::SessionRecord;
use crate::store::{KeyedCall, StoreError, commits_of, write_changed, write_operation};
use crate::tree::Root;

/// What a session gets in place of its image. The totals are the flush's.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The new base, durable with all that is under it. The session's layers are empty then.
    pub root: Root,
    /// The commit that the session has to stand on, for the exchange to take place.
    pub commit: Option<CommitId>,
    /// The commit that it stands on afterwards.
    pub commit_after: Option<CommitId>,
    /// What clients have to look at anew.
    pub changed: Vec<ChangedRecord>,
    /// Name of the entry in the operation log.
    pub operation: OperationId,
    /// Time of that entry.
    pub time: Timestamp,
    /// The entry.
    pub log: OperationRecord,
    /// The call with a key that this is all of, answered by way of `()`.
    pub call: Option<KeyedCall>,
}

impl Exchange {
    /// Writes the exchange as part of the flush with this number.
    pub(super) async fn write(
        &self,
        txn: &mut dyn Transaction,
        layers: &Layers,
        batch: &FlushBatch,
        number: u64,
    ) -> Result<(), FlushError> {
        let open = layers.open();
        let session = open.session;
        let key = keyspace::session_meta(session);
        let found = txn.get(&key, Isolation::Serializable).await;
        let Some(found) = found.map_err(FlushError::Kv)? else {
            return Err(FlushError::Fenced);
        };
        let mut record = SessionRecord::decode(&found).map_err(corrupt)?;
        let delta = keyspace::delta_range(session, open.generation);
        let left = txn
            .get_range(&delta, RangeLimit::pairs(1), Isolation::Serializable)
            .await
            .map_err(FlushError::Kv)?;
        let is_what_it_was = record.generation == open.generation
            && record.frozen.is_empty()
            && layers.frozen().is_empty()
            && record.base == layers.base().root()
            && record.commit == self.commit
            && left.pairs.is_empty()
            && batch.changes.is_empty();
        if !is_what_it_was {
            return Err(FlushError::Moved);
        }
        let workspace = record.workspace;
        let named = [self.commit, self.commit_after];
        let named = named
            .into_iter()
            .flatten()
            .chain(commits_of(&self.log.action));
        for id in named {
            // So that whoever removes it conflicts (docs/design/0009-retention.md, 9).
            let key = keyspace::commit(workspace, id);
            let found = txn.get(&key, Isolation::Serializable).await;
            if found.map_err(FlushError::Kv)?.is_none() {
                return Err(FlushError::Gone);
            }
        }
        record.base = Some(self.root);
        record.frozen_usage = batch.totals.usage;
        record.commit = self.commit_after;
        txn.set(&key, &record.encode());
        write_changed(txn, session, number, &self.changed)
            .await
            .map_err(FlushError::Kv)?;
        write_operation(txn, workspace, self.operation, self.time, &self.log);
        match &self.call {
            Some(call) => call.finish(txn, &()).await.map_err(|error| match error {
                StoreError::Unavailable(error) => FlushError::Kv(error),
                error => FlushError::Call(error),
            }),
            None => Ok(()),
        }
    }
}
