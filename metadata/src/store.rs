//! The durable objects beside files: tenants, workspaces, sessions, tickets, tokens, history.

mod calls;
mod changed;
mod deletion;
mod digits;
mod grey;
mod history;
mod sessions;
mod staging;
mod tickets;
mod tier;
mod tokens;
mod workspaces;

pub use calls::{BegunCall, CALLS_KEPT_FOR, CallId, CallLimits, KeyedCall, LEASE, with_secret};
pub use changed::{Changed, LIST_EVERYTHING, LIST_POSITION, LIST_ROOT};
pub use deletion::{DeletionInfo, Removal};
pub use digits::{SESSION_DIGITS, SESSION_DIGITS_MIN, names_a_session};
pub use grey::{GreyRoot, GreyRoots};
pub(crate) use history::LOG_BYTES_MAX;
pub use history::{
    CommitInfo, Expired, LogFilter, LogHeads, LogHeadsError, LogPage, LogQuery, LogsRemoved,
    NewCommit, OperationInfo, OperationPosition, PinInfo, RefInfo, RefLogEntry, RefWritten, Walk,
};
pub use sessions::{ExpiredPage, ForkSession, OpenSession, Opened, SessionInfo, SessionPosition};
pub use staging::STAGING_AGENT;
pub use tickets::{NewTicket, TICKET_TEXT_BYTES, TicketInfo, ticket_id, token_prefix};
pub use tier::TIER_LOCAL;
pub use tokens::TokenInfo;
pub use workspaces::{NewWorkspace, WorkspaceInfo};

pub(crate) use changed::write_changed;
pub(crate) use history::{commits_of, write_operation};

use std::sync::Arc;

use base::{Clock, CommitId, Rng, TenantId};
use bytes::Bytes;

use crate::keyspace;
use crate::kv::{Isolation, KeyRange, Kv, KvError, RangeLimit, RangePage, Transaction, pairs_of};
use crate::record::RecordError;
use crate::record::operation::Actor;
use crate::record::workspace::{DATA_VERSION, FormatRecord, HandleKeysRecord, TenantRecord};
use crate::transact::{Attempt, Budget, TransactError, Transactor};

/// Most bytes a session of a new tenant may allocate: 1 TiB.
const TENANT_BYTES_MAX: u64 = 1 << 40;

/// Most inodes a session of a new tenant may have.
const TENANT_INODES_MAX: u64 = 100_000_000;

/// Why a call failed, cut by what the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// There is no such thing.
    #[error("no such {what}")]
    NotFound {
        /// What was looked for, with its name.
        what: String,
    },
    /// There is one already.
    #[error("{what} exists already")]
    Exists {
        /// What, with its name.
        what: String,
    },
    /// A ref is not what the caller saw.
    #[error("{what} has changed: {}", told_now(*now))]
    Changed {
        /// Which, with its name.
        what: String,
        /// The commit that it names now; `None` if there is no such ref now.
        now: Option<CommitId>,
    },
    /// Something is in the way, which the caller can take away.
    #[error("{why}")]
    Refused {
        /// What is in the way, and what to do.
        why: String,
    },
    /// The digits fit several.
    #[error("{what} may be {}; give more digits", candidates.join(", "))]
    Ambiguous {
        /// What was looked for.
        what: String,
        /// What it may be.
        candidates: Vec<String>,
    },
    /// An argument is not acceptable.
    #[error("{why}")]
    Invalid {
        /// What is wrong, and what to do.
        why: String,
    },
    /// Something that is bounded has reached its bound.
    #[error("{why}")]
    Full {
        /// What, and what to do.
        why: String,
    },
    /// The same call has been done, by somebody else or by an attempt whose outcome was unknown, so
    /// nothing was done now. Its answer is kept.
    #[error("the call with this idempotency key has been done by another attempt: send it again")]
    Settled,
    /// The ticket or session has ended.
    #[error("{what} has expired")]
    Expired {
        /// What has.
        what: String,
    },
    /// The data was written by another release.
    #[error(
        "data has format version {found}, this release reads version {supported}: use a release \
         that reads version {found}; nothing was changed"
    )]
    Version {
        /// The data's version.
        found: u32,
        /// The version this release reads.
        supported: u32,
    },
    /// Stored data is damaged.
    #[error("stored {what} is damaged: {why}; run `holdfast check` and restore from a backup")]
    Corrupt {
        /// Which record.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The store cannot serve now; a later try may succeed.
    #[error("metadata store: {0}")]
    Unavailable(KvError),
}

fn told_now(now: Option<CommitId>) -> String {
    match now {
        Some(commit) => format!("it names commit {commit} now"),
        None => "it does not exist now".into(),
    }
}

impl From<KvError> for StoreError {
    fn from(error: KvError) -> Self {
        match error {
            KvError::Corrupt(why) => Self::Corrupt {
                what: "metadata store".into(),
                why,
            },
            error => Self::Unavailable(error),
        }
    }
}

impl TransactError for StoreError {
    fn as_kv(&self) -> Option<&KvError> {
        match self {
            Self::Unavailable(error) => Some(error),
            _ => None,
        }
    }
}

/// The store. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Store {
    transactor: Transactor,
    clock: Arc<dyn Clock>,
    rng: Arc<Rng>,
    /// Who is logged as doing what is done through this.
    actor: Arc<Actor>,
    /// The call with a key that this is for.
    call: Option<Arc<KeyedCall>>,
    /// Who wants to know of roots that are copied.
    watchers: Arc<grey::Watchers>,
    /// They are other processes.
    tells_fleet: bool,
}

impl Store {
    /// Opens the store on `kv`, and initialises it if it is empty: format, handle keys, and the
    /// tenant `default`.
    ///
    /// # Errors
    ///
    /// [`StoreError::Version`] if another release wrote the data; nothing is changed then.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe; opening again settles it.
    pub async fn open(
        kv: Arc<dyn Kv>,
        clock: Arc<dyn Clock>,
        rng: Arc<Rng>,
    ) -> Result<Self, StoreError> {
        let installation = rng.bytes();
        Self::open_as(kv, clock, rng, installation).await
    }

    /// As [`Store::open`]; an empty store gets this name of the installation. One that is not empty
    /// keeps its own, which [`Store::format`] tells.
    ///
    /// # Errors
    ///
    /// As [`Store::open`].
    ///
    /// # Cancellation
    ///
    /// As [`Store::open`].
    pub async fn open_as(
        kv: Arc<dyn Kv>,
        clock: Arc<dyn Clock>,
        rng: Arc<Rng>,
        installation: [u8; 16],
    ) -> Result<Self, StoreError> {
        let transactor = Transactor::new(kv, Arc::clone(&clock), Arc::clone(&rng));
        let store = Self {
            transactor,
            clock,
            rng,
            actor: Arc::default(),
            call: None,
            watchers: Arc::default(),
            tells_fleet: false,
        };
        store.initialise(installation).await?;
        Ok(store)
    }

    /// The same store through `kv`, which hands on to the one it was opened on.
    #[must_use]
    pub fn through(&self, kv: Arc<dyn Kv>) -> Self {
        Self {
            transactor: Transactor::new(kv, Arc::clone(&self.clock), Arc::clone(&self.rng)),
            ..self.clone()
        }
    }

    async fn initialise(&self, installation: [u8; 16]) -> Result<(), StoreError> {
        let now = self.clock.wall();
        let format = FormatRecord {
            data_version: DATA_VERSION,
            installation,
            created: now,
        };
        let keys = HandleKeysRecord {
            keys: vec![(1, self.rng.bytes())],
        };
        let tenant = TenantRecord {
            name: "default".into(),
            bytes_max: TENANT_BYTES_MAX,
            inodes_max: TENANT_INODES_MAX,
            domain_key: self.rng.bytes(),
            created: now,
        };
        let (format, keys, tenant) = (&format, &keys, &tenant);
        let body = |txn: &mut dyn Transaction| {
            txn.set(&keyspace::format(), &format.encode());
            txn.set(&keyspace::handle_keys(), &keys.encode());
            txn.set(&keyspace::tenant(TenantId::DEFAULT), &tenant.encode());
            let id = TenantId::DEFAULT.raw().to_be_bytes();
            txn.set(&keyspace::tenant_name(&tenant.name), &id);
        };
        self.transactor
            .transact(Budget::default(), |txn, _| {
                // Right however often it is applied: once there is a format nothing is written.
                Box::pin(async move {
                    match txn
                        .get(&keyspace::format(), Isolation::Serializable)
                        .await?
                    {
                        Some(record) => read_format(&record).map(drop),
                        None => {
                            body(txn);
                            Ok(())
                        }
                    }
                })
            })
            .await
    }

    /// The keys that sign file handles.
    ///
    /// # Errors
    ///
    /// The store fails or the record is damaged.
    pub async fn handle_keys(&self) -> Result<HandleKeysRecord, StoreError> {
        let record = self.read(&keyspace::handle_keys(), "handle keys").await?;
        HandleKeysRecord::decode(&record).map_err(damaged("handle keys"))
    }

    /// Makes a new key that signs file handles from the next start on. Handles under the key before
    /// stay good, those under older ones become stale; so do not rotate twice while clients still
    /// use handles from before.
    ///
    /// # Errors
    ///
    /// The store fails or the record is damaged.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: the keys may or may not have been rotated.
    pub async fn rotate_handle_keys(&self) -> Result<HandleKeysRecord, StoreError> {
        let secret: [u8; 32] = self.rng.bytes();
        self.transactor
            .transact(Budget::default(), |txn, _| {
                Box::pin(async move {
                    let key = keyspace::handle_keys();
                    let found = txn.get(&key, Isolation::Serializable).await?;
                    let found = found.ok_or_else(|| StoreError::NotFound {
                        what: "handle keys".into(),
                    })?;
                    let mut record =
                        HandleKeysRecord::decode(&found).map_err(damaged("handle keys"))?;
                    match record.keys.first().copied() {
                        // An attempt whose outcome was unknown has been made after all.
                        Some((_, newest)) if newest == secret => return Ok(record),
                        Some((id, old)) => {
                            // Key 0 is never given, as in the first record.
                            let next = id.checked_add(1).unwrap_or(1);
                            record.keys = vec![(next, secret), (id, old)];
                        }
                        None => record.keys = vec![(1, secret)],
                    }
                    txn.set(&key, &record.encode());
                    Ok(record)
                })
            })
            .await
    }

    /// A tenant.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    pub async fn tenant(&self, tenant: TenantId) -> Result<TenantRecord, StoreError> {
        let record = self.read(&keyspace::tenant(tenant), "tenant").await?;
        TenantRecord::decode(&record).map_err(damaged("tenant"))
    }

    /// What the data is.
    ///
    /// # Errors
    ///
    /// The store fails or the record is damaged.
    pub async fn format(&self) -> Result<FormatRecord, StoreError> {
        let record = self.read(&keyspace::format(), "format record").await?;
        FormatRecord::decode(&record).map_err(damaged("format record"))
    }

    /// Reads one key by itself, with patience for a store that fails for a moment.
    async fn read(&self, key: &[u8], what: &str) -> Result<Bytes, StoreError> {
        let value = self.look(|txn| {
            // Nothing is written: nothing to conflict with.
            Box::pin(async move { Ok(txn.get(key, Isolation::Snapshot).await?) })
        });
        let value: Option<Bytes> = value.await?;
        value.ok_or_else(|| StoreError::NotFound {
            what: what.to_owned(),
        })
    }

    /// Up to so many pairs of a range, as of one version, with the same patience.
    async fn pairs(
        &self,
        range: &KeyRange,
        limit: RangeLimit,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.look(|txn| {
            // As above.
            Box::pin(
                async move { Ok(pairs_of(txn, range.clone(), limit, Isolation::Snapshot).await?) },
            )
        })
        .await
    }

    /// A page of a range, with the same patience.
    async fn page(&self, range: &KeyRange, limit: RangeLimit) -> Result<RangePage, StoreError> {
        self.look(|txn| {
            // As above.
            Box::pin(async move { Ok(txn.get_range(range, limit, Isolation::Snapshot).await?) })
        })
        .await
    }

    /// Looks at the store in a transaction that writes nothing, with patience for a store that fails for
    /// a moment. `body` may run several times, each at a version of its own.
    async fn look<'env, T, F>(&'env self, body: F) -> Result<T, StoreError>
    where
        T: Send,
        F: for<'t> Fn(&'t (dyn Transaction + 'env)) -> Attempt<'t, T, StoreError> + Send + Sync,
    {
        let transactor = &self.transactor;
        transactor
            .transact(Budget::default(), |txn, _| body(txn))
            .await
    }
}

/// The name of the installation that a format record gives.
///
/// # Errors
///
/// The record is damaged, or another release wrote the data.
pub fn installation(record: &[u8]) -> Result<[u8; 16], StoreError> {
    Ok(read_format(record)?.installation)
}

fn read_format(record: &[u8]) -> Result<FormatRecord, StoreError> {
    let version = |found| StoreError::Version {
        found,
        supported: DATA_VERSION,
    };
    let format = FormatRecord::decode(record).map_err(|error| match error {
        RecordError::Version(found) => version(u32::from(found)),
        error => damaged("format record")(error),
    })?;
    if format.data_version == DATA_VERSION {
        Ok(format)
    } else {
        Err(version(format.data_version))
    }
}

/// Turns a decoding error into one that names the record.
fn damaged(what: &str) -> impl Fn(RecordError) -> StoreError {
    let what = what.to_owned();
    move |error| StoreError::Corrupt {
        what: what.clone(),
        why: error.to_string(),
    }
}

/// Checks a name that people give to things: 1 to 64 of `a-z A-Z 0-9 . _ -`, not beginning with
/// `.` or `-`.
fn check_name(what: &str, name: &str) -> Result<(), StoreError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let first_ok = !name.starts_with(['.', '-']);
    if name.is_empty() || name.len() > 64 || !name.bytes().all(allowed) || !first_ok {
        let why = format!(
            "{what} name {name:?} is not acceptable: use 1 to 64 of a-z, A-Z, 0-9, '.', '_' and \
             '-', and begin with none of '.' and '-'"
        );
        return Err(StoreError::Invalid { why });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
