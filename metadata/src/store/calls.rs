//! Calls of the API that carry an idempotency key (`docs/design/0013-idempotency.md`).
//!
//! A call has a record under its key. It is written before the call does anything, and says from then
//! on which request the key belongs to. The transaction that carries the call's effect writes the
//! answer into it, so an effect and its answer are there together or not at all, and whoever runs the
//! call once more finds it.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use base::{TenantId, Timestamp};
use bytes::Bytes;

use super::{Store, StoreError, damaged};
use crate::keyspace::{self, Key};
use crate::kv::{AtomicOp, Isolation, KeyRange, KvError, RangeLimit, Transaction};
use crate::record::call::{ANSWER_BYTES_MAX, CallAnswer, CallRecord, CallState, Holder, SECRET};
use crate::transact::{Attempt, Budget, Earlier};

/// How long a key is kept after it was given first.
pub const CALLS_KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// For so long the holder of a call is taken to live if nothing is heard of it.
pub const LEASE: Duration = Duration::from_secs(15);

/// Records that a transaction reads and removes at a time: with their answers far less than it may.
const PAGE: usize = 50;

/// How many keys a tenant may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// Keys.
    pub keys: u64,
    /// Bytes of their records.
    pub bytes: u64,
}

/// Which call it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    /// Whose.
    pub tenant: TenantId,
    /// Hash of the key.
    pub key: [u8; 32],
    /// Hash of the request.
    pub request: [u8; 32],
}

/// What came of beginning a call.
#[derive(Clone, Debug)]
pub enum BegunCall {
    /// It is to be run.
    Run(KeyedCall),
    /// It is done.
    Done(CallAnswer, [u8; 16]),
    /// Somebody else runs it.
    Running,
    /// The key belongs to another request.
    Other,
}

/// What turns what was made into the answer. `None` if it is of another kind.
type Describe = Arc<dyn Fn(&(dyn Any + Sync)) -> Option<(u16, Bytes)> + Send + Sync>;

/// A call that is being run, by this attempt.
#[derive(Clone)]
pub struct KeyedCall {
    id: CallId,
    holder: Holder,
    salt: [u8; 16],
    secret: String,
    describe: Option<Describe>,
}

impl std::fmt::Debug for KeyedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let holder = self.holder;
        f.debug_struct("KeyedCall")
            .field("holder", &holder)
            .finish_non_exhaustive()
    }
}

impl KeyedCall {
    /// Says how the call is answered if it makes a `T`: with a status and a body.
    #[must_use]
    pub fn answered_by<T: Any + Sync>(
        &self,
        describe: impl Fn(&T) -> (u16, Bytes) + Send + Sync + 'static,
    ) -> Self {
        let describe = move |made: &(dyn Any + Sync)| {
            let made: &dyn Any = made;
            made.downcast_ref::<T>().map(&describe)
        };
        Self {
            describe: Some(Arc::new(describe)),
            ..self.clone()
        }
    }

    /// The same for what makes a `P`, of which `T` is then known.
    #[must_use]
    pub fn by_way_of<P: Any + Sync, T: Any + Sync>(
        &self,
        make: impl Fn(&P) -> T + Send + Sync + 'static,
    ) -> Self {
        let Some(answer) = self.describe.clone() else {
            return self.clone();
        };
        let describe = move |made: &(dyn Any + Sync)| {
            let made: &dyn Any = made;
            let made = make(made.downcast_ref::<P>()?);
            answer(&made)
        };
        Self {
            describe: Some(Arc::new(describe)),
            ..self.clone()
        }
    }

    /// The secret that the call's answer may have.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Who runs it.
    #[must_use]
    pub fn holder(&self) -> Holder {
        self.holder
    }

    /// What is kept of an answer.
    fn kept(&self, status: u16, body: &[u8]) -> CallAnswer {
        let body = cut(body, self.secret.as_bytes());
        CallAnswer {
            status,
            body: (body.len() <= ANSWER_BYTES_MAX).then(|| body.into()),
        }
    }

    /// Writes the answer for what a transaction makes, as a part of it.
    ///
    /// # Errors
    ///
    /// `Settled` if the call is done: by somebody else, or by an attempt of this very transaction whose
    /// outcome was unknown. Whoever asked may know its answer and have gone on from there, so nothing
    /// must be done then. `Unavailable` if what was made is not what the answer is about: a mistake in
    /// the program.
    pub(crate) async fn finish<T: Any + Sync>(
        &self,
        txn: &mut dyn Transaction,
        made: &T,
    ) -> Result<(), StoreError> {
        let Some(describe) = &self.describe else {
            return Ok(());
        };
        let (status, body) = describe(made).ok_or(KvError::Usage(
            "a call with a key makes what its answer does not tell of",
        ))?;
        self.write(txn, self.kept(status, &body)).await
    }

    async fn write(&self, txn: &mut dyn Transaction, answer: CallAnswer) -> Result<(), StoreError> {
        let key = keyspace::call(self.id.tenant, &self.id.key);
        let found = read_call(txn, &key).await?;
        let created = match &found {
            // Another request has the key by now.
            Some((record, _)) if record.request != self.id.request => {
                return Err(StoreError::Settled);
            }
            Some((record, _)) if matches!(record.state, CallState::Done(_)) => {
                return Err(StoreError::Settled);
            }
            Some((record, _)) => record.created,
            // Given back by whoever took the call over, or removed for its age.
            None => return Err(StoreError::Settled),
        };
        let record = CallRecord {
            request: self.id.request,
            created,
            salt: self.salt,
            holder: self.holder,
            state: CallState::Done(answer),
        };
        put(
            txn,
            self.id.tenant,
            &key,
            &record,
            found.map(|(_, size)| size),
        );
        Ok(())
    }
}

/// A body with every secret cut out.
fn cut(body: &[u8], secret: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some((first, behind)) = rest.split_first() {
        if !secret.is_empty() && rest.starts_with(secret) {
            kept.push(SECRET);
            rest = rest.get(secret.len()..).unwrap_or_default();
        } else {
            kept.push(*first);
            rest = behind;
        }
    }
    kept
}

/// A body as it was, with the secret that was cut out of it.
#[must_use]
pub fn with_secret(kept: &[u8], secret: &str) -> Vec<u8> {
    let mut body = Vec::with_capacity(kept.len());
    for byte in kept {
        if *byte == SECRET {
            body.extend_from_slice(secret.as_bytes());
        } else {
            body.push(*byte);
        }
    }
    body
}

impl Store {
    /// The same store for a call with a key: what it does in one transaction is answered there.
    #[must_use]
    pub fn for_call(&self, call: Option<KeyedCall>) -> Self {
        Self {
            call: call.map(Arc::new),
            ..self.clone()
        }
    }

    /// Runs a transaction that is all of what a call does; with the call's answer, if it has a key.
    ///
    /// # Errors
    ///
    /// What `body` returns; `Settled` if the call is done, also by an attempt of this transaction whose
    /// outcome was unknown; or the store fails.
    pub(super) async fn effect<'env, T, F>(&'env self, body: F) -> Result<T, StoreError>
    where
        T: Any + Send + Sync,
        F: for<'t> Fn(&'t mut (dyn Transaction + 'env), Earlier) -> Attempt<'t, T, StoreError>
            + Send
            + Sync
            + 'env,
    {
        let body = Arc::new(body);
        let call = self.call.as_deref();
        self.transactor
            .transact(Budget::default(), move |txn, earlier| {
                let body = Arc::clone(&body);
                Box::pin(async move {
                    let made = (*body)(&mut *txn, earlier).await?;
                    if let Some(call) = call {
                        call.finish(&mut *txn, &made).await?;
                    }
                    Ok(made)
                })
            })
            .await
    }

    /// Begins a call, which `holder` is to run, or tells what is known of it. `is_gone` says of a holder whether it has ended
    /// for sure.
    ///
    /// # Errors
    ///
    /// `Refused` if the tenant has as many keys as it may; or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: the call may or may not have begun, for as long as a lease.
    pub async fn begin_call(
        &self,
        id: CallId,
        holder: Holder,
        limits: CallLimits,
        is_gone: impl Fn(Holder) -> bool + Send + Sync,
    ) -> Result<BegunCall, StoreError> {
        let now = self.clock.wall();
        let fresh = CallRecord {
            request: id.request,
            created: now,
            salt: self.rng.bytes(),
            holder,
            state: begun(now),
        };
        let domain_key = self.tenant(id.tenant).await?.domain_key;
        let key = keyspace::call(id.tenant, &id.key);
        let (key, fresh, is_gone) = (&key, &fresh, &is_gone);
        let run = |salt: [u8; 16]| KeyedCall {
            id,
            holder: fresh.holder,
            salt,
            secret: secret_of(&domain_key, &salt),
            describe: None,
        };
        let run = &run;
        self.transactor
            .transact(Budget::default(), |txn, _| {
                Box::pin(async move {
                    let Some((found, size)) = read_call(txn, key).await? else {
                        require_room(txn, id.tenant, limits).await?;
                        put(txn, id.tenant, key, fresh, None);
                        return Ok(BegunCall::Run(run(fresh.salt)));
                    };
                    if found.request != id.request {
                        return Ok(BegunCall::Other);
                    }
                    let until = match found.state {
                        CallState::Done(answer) => return Ok(BegunCall::Done(answer, found.salt)),
                        CallState::Begun { until } => until,
                    };
                    // An attempt of this transaction, whose outcome was unknown.
                    let is_ours = found.holder == fresh.holder;
                    if !is_ours && until > now && !is_gone(found.holder) {
                        return Ok(BegunCall::Running);
                    }
                    let taken = CallRecord {
                        created: found.created,
                        salt: found.salt,
                        ..fresh.clone()
                    };
                    put(txn, id.tenant, key, &taken, Some(size));
                    Ok::<_, StoreError>(BegunCall::Run(run(found.salt)))
                })
            })
            .await
    }

    /// The answer to a call, if it is done, and what its secret is derived from.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn call_answer(
        &self,
        id: CallId,
    ) -> Result<Option<(CallAnswer, [u8; 16])>, StoreError> {
        let key = keyspace::call(id.tenant, &id.key);
        let found = match self.read(&key, "idempotency key").await {
            Ok(found) => CallRecord::decode(&found).map_err(damaged("idempotency key"))?,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(match found.state {
            CallState::Done(answer) if found.request == id.request => Some((answer, found.salt)),
            CallState::Done(_) | CallState::Begun { .. } => None,
        })
    }

    /// Says that a call that was begun is still being run. `false` if it is not ours any more.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn renew_call(&self, call: &KeyedCall) -> Result<bool, StoreError> {
        let now = self.clock.wall();
        self.change_call(call, move |record| {
            Some(CallRecord {
                state: begun(now),
                ..record.clone()
            })
        })
        .await
    }

    /// Gives a key back whose call has done nothing, and will not.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn abandon_call(&self, call: &KeyedCall) -> Result<(), StoreError> {
        self.change_call(call, |_| None).await.map(drop)
    }

    /// Keeps the answer of a call that was not kept with its effect. Does nothing if there is one.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn finish_call(
        &self,
        call: &KeyedCall,
        status: u16,
        body: &[u8],
    ) -> Result<(), StoreError> {
        let answer = &call.kept(status, body);
        self.change_call(call, move |record| {
            Some(CallRecord {
                state: CallState::Done(answer.clone()),
                ..record.clone()
            })
        })
        .await
        .map(drop)
    }

    /// Changes the record of a call that runs and is ours, or removes it.
    async fn change_call(
        &self,
        call: &KeyedCall,
        change: impl Fn(&CallRecord) -> Option<CallRecord> + Send + Sync,
    ) -> Result<bool, StoreError> {
        let key = keyspace::call(call.id.tenant, &call.id.key);
        let (key, change) = (&key, &change);
        self.transactor
            .transact(Budget::default(), |txn, _| {
                // Right however often it is applied.
                Box::pin(async move {
                    let Some((record, size)) = read_call(txn, key).await? else {
                        return Ok(false);
                    };
                    let runs = matches!(record.state, CallState::Begun { .. });
                    if record.holder != call.holder || !runs {
                        return Ok(false);
                    }
                    match change(&record) {
                        Some(record) => put(txn, call.id.tenant, key, &record, Some(size)),
                        None => remove(txn, call.id.tenant, key, size),
                    }
                    Ok::<_, StoreError>(true)
                })
            })
            .await
    }

    /// The secret of the answer to a call that is done.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn call_secret(
        &self,
        tenant: TenantId,
        salt: &[u8; 16],
    ) -> Result<String, StoreError> {
        Ok(secret_of(&self.tenant(tenant).await?.domain_key, salt))
    }

    /// Removes keys that were given first longer than [`CALLS_KEPT_FOR`] ago, of all tenants. Returns
    /// how many.
    ///
    /// # Errors
    ///
    /// The store fails. A damaged record is left for `check` to tell.
    ///
    /// # Cancellation
    ///
    /// Safe: what was removed is removed.
    pub async fn remove_old_calls(&self) -> Result<u64, StoreError> {
        let now = self.clock.wall();
        let mut range = keyspace::calls();
        let mut removed = 0;
        loop {
            let (from, page) = (&range, RangeLimit::pairs(PAGE));
            let (count, last) = self
                .transactor
                .transact(Budget::default(), |txn, _| {
                    Box::pin(async move {
                        let found = txn.get_range(from, page, Isolation::Snapshot).await?;
                        let mut count = 0_u64;
                        for (key, value) in &found.pairs {
                            let Ok(Key::Call(tenant, _)) = keyspace::decode(key) else {
                                continue;
                            };
                            // One that is damaged is left for `check` to tell.
                            let record = CallRecord::decode(value);
                            if !record.is_ok_and(|record| is_old(&record, now)) {
                                continue;
                            }
                            // Again, so that whoever uses it conflicts.
                            if let Some((record, size)) = read_call(txn, key).await?
                                && is_old(&record, now)
                            {
                                remove(txn, tenant, key, size);
                                count += 1;
                            }
                        }
                        let last = found.pairs.last().filter(|_| found.more);
                        Ok::<_, StoreError>((count, last.map(|(key, _)| key.clone())))
                    })
                })
                .await?;
            removed += count;
            match last {
                Some(last) => range.start = KeyRange::key(&last).end,
                None => return Ok(removed),
            }
        }
    }
}

fn begun(now: Timestamp) -> CallState {
    CallState::Begun {
        until: now.plus_seconds(LEASE.as_secs()),
    }
}

/// Whether a key has been kept for long enough, and nobody runs its call.
fn is_old(record: &CallRecord, now: Timestamp) -> bool {
    let is_held = match record.state {
        CallState::Begun { until } => until > now,
        CallState::Done(_) => false,
    };
    !is_held && record.created.plus_seconds(CALLS_KEPT_FOR.as_secs()) <= now
}

/// Derived, so that it need not be stored: whoever reads the store's keys of calls has no ticket.
fn secret_of(domain_key: &[u8; 32], salt: &[u8; 16]) -> String {
    let key = blake3::derive_key("holdfast 2026 idempotency secret v1", domain_key);
    super::tickets::text_of(blake3::keyed_hash(&key, salt).as_bytes())
}

/// A call's record, and its size.
async fn read_call(
    txn: &dyn Transaction,
    key: &[u8],
) -> Result<Option<(CallRecord, usize)>, StoreError> {
    let Some(found) = txn.get(key, Isolation::Serializable).await? else {
        return Ok(None);
    };
    let record = CallRecord::decode(&found).map_err(damaged("idempotency key"))?;
    Ok(Some((record, found.len())))
}

/// Refuses a further key if there are too many. Those that come at once may go a little beyond.
async fn require_room(
    txn: &dyn Transaction,
    tenant: TenantId,
    limits: CallLimits,
) -> Result<(), StoreError> {
    let mut counted = [0; 2];
    for (kind, count) in counted.iter_mut().enumerate() {
        let key = keyspace::call_total(tenant, u8::try_from(kind).unwrap_or_default());
        // A total that all calls of the tenant change: nobody is to conflict for it.
        let found = txn.get(&key, Isolation::Snapshot).await?;
        let bytes = found.as_deref().and_then(|found| found.try_into().ok());
        *count = bytes.map_or(0, u64::from_le_bytes);
    }
    let [keys, bytes] = counted;
    let what = if keys >= limits.keys {
        format!("{} idempotency keys", limits.keys)
    } else if bytes >= limits.bytes {
        format!(
            "{} bytes of answers to calls with idempotency keys",
            limits.bytes
        )
    } else {
        return Ok(());
    };
    let hours = CALLS_KEPT_FOR.as_secs() / 3600;
    let why = format!(
        "the tenant has {what}, the most there may be: each goes {hours} hours after its first call; \
         until then send the call without a key"
    );
    Err(StoreError::Full { why })
}

fn put(
    txn: &mut dyn Transaction,
    tenant: TenantId,
    key: &[u8],
    record: &CallRecord,
    replaced: Option<usize>,
) {
    let value = record.encode();
    let count = u64::from(replaced.is_none());
    add(
        txn,
        tenant,
        [
            count,
            size(value.len()).wrapping_sub(size(replaced.unwrap_or(0))),
        ],
    );
    txn.set(key, &value);
}

fn remove(txn: &mut dyn Transaction, tenant: TenantId, key: &[u8], removed: usize) {
    add(
        txn,
        tenant,
        [1_u64.wrapping_neg(), size(removed).wrapping_neg()],
    );
    txn.clear(key);
}

fn size(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Changes the totals: numbers and bytes. They wrap, so that less is more of nearly everything.
fn add(txn: &mut dyn Transaction, tenant: TenantId, by: [u64; 2]) {
    for (kind, by) in by.into_iter().enumerate() {
        let key = keyspace::call_total(tenant, u8::try_from(kind).unwrap_or_default());
        txn.atomic(AtomicOp::Add, &key, &by.to_le_bytes());
    }
}

#[cfg(test)]
mod tests;
