//! Writing a session's changes, fenced.
//!
//! Invariants (docs/design/0001-session-engine.md has the reasoning):
//!
//! 1. A flush commits only while the owner record is the one this owner wrote: it reads at a cached
//!    version and conflicts with any change of that record since. No read, one round trip, but for
//!    freezes, exchanges and what clients are told of.
//! 2. A flush takes effect once: it carries the next flush number, and a commit whose outcome is
//!    unknown is settled by first changing the owner record's nonce, so that a straggler must
//!    conflict, and then reading the number.
//! 3. One flush is in flight per session, so flushes take effect in order.

use base::simulation::{Rule, is_kept};
use base::{Epoch, SessionId};
use bytes::Bytes;

use super::exchange::Exchange;
use crate::image::{Changes, Totals};
use crate::keyspace;
use crate::kv::{Isolation, KeyRange, Kv, KvError, Transaction, Version};
use crate::layers::{LayerId, Layers};
use crate::record::changed::ChangedRecord;
use crate::record::session::{FlushRecord, OwnerRecord, ReplyRecord, SessionRecord};
use crate::store::{StoreError, write_changed};

/// Attempts at one flush before its failure is reported.
const ATTEMPTS_MAX: u32 = 50;

/// A reply that must be the same whenever its call comes again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredReply {
    /// The call's transaction id.
    pub xid: u32,
    /// Hash of the call.
    pub hash: [u8; 16],
    /// The encoded reply.
    pub reply: Bytes,
}

/// What one flush writes.
#[derive(Debug, Default)]
pub struct FlushBatch {
    /// Changes of the image.
    pub changes: Changes,
    /// Totals as of these changes.
    pub totals: Totals,
    /// Replies of the calls that made the changes.
    pub replies: Vec<StoredReply>,
    /// Replies to forget: xid and hash.
    pub forgotten: Vec<(u32, [u8; 16])>,
    /// What of the changes no client has made. None with an exchange, which tells by itself.
    pub told: Vec<ChangedRecord>,
    /// Freeze the open layer as of these changes: afterwards the session's layers are
    /// [`frozen`] of those before.
    pub freeze: bool,
    /// Exchange the image. There are no changes then, and nothing is frozen.
    pub exchange: Option<Box<Exchange>>,
}

/// The layers after a flush that froze the open one.
#[must_use]
pub fn frozen(layers: &Layers) -> Layers {
    let open = layers.open();
    layers.freeze(LayerId {
        session: open.session,
        generation: open.generation.saturating_add(1),
    })
}

/// Why a flush failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlushError {
    /// Another gateway owns the session now. Nothing was written, unless an attempt before had an
    /// unknown outcome.
    #[error("the session was taken over")]
    Fenced,
    /// The session is not what an exchange of its image was made for. Nothing was written.
    #[error("the session has changed meanwhile")]
    Moved,
    /// A commit that an exchange of the image names has been removed. Nothing was written.
    #[error("a commit that it names was removed meanwhile")]
    Gone,
    /// The answer of the call that an exchange of the image is all of cannot be kept: it is done already,
    /// or its record is damaged. Nothing was written.
    #[error(transparent)]
    Call(StoreError),
    /// The device is full. Nothing was written.
    #[error("no space is left for the metadata store")]
    NoSpace,
    /// The store failed. It may be tried again with the same batch, and with no other: whether
    /// this one was written may be unknown.
    #[error("flush the session")]
    Kv(#[source] KvError),
}

/// The right to flush a session.
#[derive(Debug)]
pub struct Fence {
    session: SessionId,
    owner: OwnerRecord,
    number: u64,
    version: Version,
    refresh: bool,
    /// The outcome of the last attempt is unknown. Nothing may be written before it is settled.
    unsettled: bool,
}

impl Fence {
    pub(super) fn new(
        session: SessionId,
        owner: OwnerRecord,
        number: u64,
        version: Version,
        refresh: bool,
    ) -> Self {
        Self {
            session,
            owner,
            number,
            version,
            refresh,
            unsettled: false,
        }
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The owner's epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.owner.epoch
    }

    /// Number of the last flush that took effect.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Writes `batch` durably, once.
    ///
    /// # Errors
    ///
    /// See [`FlushError`]. After [`FlushError::Kv`] the same batch may be flushed again.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: the outcome is then unknown and the fence must not be used again.
    pub async fn flush(
        &mut self,
        kv: &dyn Kv,
        layers: &Layers,
        batch: &FlushBatch,
    ) -> Result<(), FlushError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            if self.unsettled && self.settle(kv).await.map_err(outlived)? {
                return Ok(());
            }
            let error = match self.try_flush(kv, layers, batch).await {
                Ok(version) => {
                    self.version = version;
                    self.number += 1;
                    return Ok(());
                }
                Err(FlushError::Kv(error)) => error,
                Err(error) => return Err(error),
            };
            match error {
                KvError::NoSpace => return Err(FlushError::NoSpace),
                // What it refers to may be gone.
                KvError::Outlived => return Err(FlushError::Fenced),
                // The next attempt reads the owner record: it is ours, or we are fenced.
                KvError::Conflict | KvError::VersionTooOld if attempt < ATTEMPTS_MAX => {
                    self.refresh = true;
                }
                KvError::OutcomeUnknown => {
                    self.unsettled = true;
                    if attempt >= ATTEMPTS_MAX {
                        return Err(FlushError::Kv(KvError::OutcomeUnknown));
                    }
                }
                error => return Err(FlushError::Kv(error)),
            }
        }
    }

    async fn try_flush(
        &mut self,
        kv: &dyn Kv,
        layers: &Layers,
        batch: &FlushBatch,
    ) -> Result<Version, FlushError> {
        let owner_key = keyspace::session_owner(self.session);
        let mut txn = kv.begin();
        // A freeze and an exchange read the session's record, so they need a read version of their
        // own.
        // So does what is told, if the cached one is older than what was told last.
        let behind = kv.versions_behind();
        let reads = batch.freeze || batch.exchange.is_some();
        if self.refresh || reads || behind > 0 && !batch.told.is_empty() {
            let found = txn.get(&owner_key, Isolation::Serializable).await;
            self.check_owner(found.map_err(FlushError::Kv)?.as_ref())?;
            self.refresh = false;
        } else {
            txn.set_read_version(Version(self.version.0.saturating_sub(behind)));
            if is_kept(Rule::Fence) {
                txn.add_read_conflict_range(&KeyRange::key(&owner_key));
            }
        }
        layers.write(txn.as_mut(), &batch.changes);
        if batch.freeze {
            self.write_freeze(txn.as_mut(), layers, batch).await?;
        }
        let number = self.number + 1;
        if let Some(exchange) = &batch.exchange {
            exchange.write(txn.as_mut(), layers, batch, number).await?;
        }
        if !batch.told.is_empty() {
            write_changed(txn.as_mut(), self.session, number, &batch.told)
                .await
                .map_err(FlushError::Kv)?;
        }
        for reply in &batch.replies {
            let record = ReplyRecord {
                flush: number,
                reply: reply.reply.clone(),
            };
            let key = keyspace::session_reply(self.session, reply.xid, &reply.hash);
            txn.set(&key, &record.encode());
        }
        for (xid, hash) in &batch.forgotten {
            txn.clear(&keyspace::session_reply(self.session, *xid, hash));
        }
        let record = FlushRecord {
            number,
            totals: batch.totals,
        };
        txn.set(&keyspace::session_flush(self.session), &record.encode());
        txn.commit()
            .await
            .map(|committed| committed.version)
            .map_err(FlushError::Kv)
    }

    /// Puts a new open layer over the layers in the session's record.
    async fn write_freeze(
        &self,
        txn: &mut dyn Transaction,
        layers: &Layers,
        batch: &FlushBatch,
    ) -> Result<(), FlushError> {
        let key = keyspace::session_meta(self.session);
        let found = txn.get(&key, Isolation::Serializable).await;
        let Some(found) = found.map_err(FlushError::Kv)? else {
            return Err(FlushError::Fenced);
        };
        let mut record = SessionRecord::decode(&found).map_err(corrupt)?;
        let (open, after) = (layers.open(), frozen(layers));
        if record.generation != open.generation {
            return Err(FlushError::Fenced);
        }
        record.generation = after.open().generation;
        // The record's own list: a fold may have shortened it.
        record.frozen.insert(0, open);
        record.frozen_usage = batch.totals.usage;
        txn.set(&key, &record.encode());
        let user = keyspace::layer_user(open.session, open.generation, self.session);
        txn.set(&user, &[]);
        Ok(())
    }

    /// Finds out whether the flush whose outcome is unknown took effect.
    async fn settle(&mut self, kv: &dyn Kv) -> Result<bool, FlushError> {
        let mut last = KvError::OutcomeUnknown;
        for _ in 0..ATTEMPTS_MAX {
            match self.try_settle(kv).await {
                Ok(settled) => return Ok(settled),
                Err(FlushError::Kv(
                    error @ (KvError::Conflict | KvError::VersionTooOld | KvError::OutcomeUnknown),
                )) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(FlushError::Kv(last))
    }

    async fn try_settle(&mut self, kv: &dyn Kv) -> Result<bool, FlushError> {
        let mut txn = kv.begin();
        let owner_key = keyspace::session_owner(self.session);
        let found = txn
            .get(&owner_key, Isolation::Serializable)
            .await
            .map_err(FlushError::Kv)?;
        self.check_owner(found.as_ref())?;
        let flush_key = keyspace::session_flush(self.session);
        let flush = txn
            .get(&flush_key, Isolation::Serializable)
            .await
            .map_err(FlushError::Kv)?;
        let number = match flush {
            Some(record) => FlushRecord::decode(&record).map_err(corrupt)?.number,
            None => 0,
        };
        let owner = OwnerRecord {
            nonce: self.owner.nonce.wrapping_add(1),
            ..self.owner
        };
        txn.set(&owner_key, &owner.encode());
        self.owner = owner;
        let committed = txn.commit().await.map_err(FlushError::Kv)?;
        self.version = committed.version;
        self.refresh = kv.versions_behind() > 0;
        self.unsettled = false;
        if number == self.number + 1 {
            self.number = number;
            return Ok(true);
        }
        Ok(false)
    }

    /// Fails unless this owner's epoch is still the current one. The nonce may differ: only this
    /// owner changes it.
    fn check_owner(&self, found: Option<&Bytes>) -> Result<(), FlushError> {
        let Some(record) = found else {
            return Err(FlushError::Fenced);
        };
        let owner = OwnerRecord::decode(record).map_err(corrupt)?;
        let ours = (owner.gateway, owner.epoch) == (self.owner.gateway, self.owner.epoch);
        if ours || !is_kept(Rule::Fence) {
            Ok(())
        } else {
            Err(FlushError::Fenced)
        }
    }
}

/// Who outlived a collection has lost its sessions.
fn outlived(error: FlushError) -> FlushError {
    match error {
        FlushError::Kv(KvError::Outlived) => FlushError::Fenced,
        error => error,
    }
}

pub(super) fn corrupt(error: crate::record::RecordError) -> FlushError {
    FlushError::Kv(KvError::Corrupt(error.to_string()))
}
