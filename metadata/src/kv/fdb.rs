//! The store in a FoundationDB cluster, through its C client library.
//!
//! A transaction of the trait is one of the library, which knows reads of own writes, conflict ranges
//! and versionstamps by itself. What the trait has beyond it is here: keys below a prefix, limits that
//! are found at once, whole pages of ranges, read versions that nobody has told, what a commit of
//! reads tells, and errors cut by what the caller does next (`errors`).
//!
//! Nothing is retried here, and the library's own loop is not used: it forgets that an attempt may
//! have been committed. Whoever calls has a loop that does not (`transact`), or settles the outcome by
//! itself (`session`).
//!
//! Watches are not used: nothing waits for another gateway yet.

mod errors;
mod network;
mod transaction;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Clock;
use base::limits::{FDB_PREFIX_BYTES_MAX, FDB_TIMEOUT_DEFAULT, KV_TRANSACTION_BYTES_MAX};
use foundationdb::options::{DatabaseOption, TransactionOption};
use foundationdb::{Database, FdbError};

pub use self::network::{API_VERSION, NetworkOptions, stop_network};

use self::errors::{Call, kv_error};
use self::transaction::FdbTransaction;
use super::calls::KvCalls;
use super::{Kv, KvError, Transaction, Version};

/// Longest prefix of an installation's keys, in bytes, with the NUL that ends it.
const PREFIX_BYTES_MAX: usize = FDB_PREFIX_BYTES_MAX + 1;

/// Largest file that says where a cluster is, in bytes.
const CLUSTER_FILE_BYTES_MAX: u64 = 100_000;

/// How a store is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FdbOptions {
    /// The file that says where the cluster is; without it the client's default: the file that
    /// `FDB_CLUSTER_FILE` names, `fdb.cluster` here, or `/etc/foundationdb/fdb.cluster`.
    pub cluster_file: Option<PathBuf>,
    /// What all keys begin with, so that several installations share a cluster. None may be the
    /// beginning of another's.
    pub prefix: Vec<u8>,
    /// How long one transaction may take, from its begin, before its calls fail.
    pub timeout: Duration,
    /// How long the cluster may take to answer when the store is opened.
    pub open_timeout: Duration,
    /// Most affected bytes of a transaction.
    pub transaction_bytes_max: usize,
    /// TLS and traces, for the whole process.
    pub network: NetworkOptions,
}

impl Default for FdbOptions {
    fn default() -> Self {
        Self {
            cluster_file: None,
            prefix: Vec::new(),
            timeout: FDB_TIMEOUT_DEFAULT,
            open_timeout: FDB_TIMEOUT_DEFAULT,
            transaction_bytes_max: KV_TRANSACTION_BYTES_MAX,
            network: NetworkOptions::default(),
        }
    }
}

/// Why a store did not open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The file that says where the cluster is cannot be used.
    #[error(
        "cluster file {}: {why}; name the file that the cluster's machines have as \
         /etc/foundationdb/fdb.cluster",
        path.display()
    )]
    ClusterFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A file for TLS cannot be used.
    #[error("TLS file {}: {why}", path.display())]
    TlsFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The installed client library is too old.
    #[error(
        "the installed FoundationDB client library speaks API version {found} at most, this program \
         version {API_VERSION}: install the foundationdb-clients package of release 7.3 or later"
    )]
    ApiVersion {
        /// The newest version that it speaks.
        found: i32,
    },
    /// The client library's network did not start.
    #[error("the FoundationDB client's network cannot be started: {0}")]
    Network(String),
    /// An option cannot work.
    #[error("{0}")]
    Options(String),
    /// The cluster did not answer in time, or not as it should. A later try may succeed.
    #[error("the FoundationDB cluster cannot be used: {why}")]
    Unavailable {
        /// What happened, and what to do.
        why: String,
    },
}

/// A store in a cluster. Dropping it closes it; the network goes on (see [`stop_network`]).
#[derive(Debug)]
pub struct FdbKv {
    shared: Arc<Shared>,
}

/// What transactions share.
struct Shared {
    database: Database,
    clock: Arc<dyn Clock>,
    prefix: Vec<u8>,
    calls: Arc<KvCalls>,
    /// The newest version that the cluster has told this process.
    newest: AtomicU64,
}

impl FdbKv {
    /// Opens the store, and waits until the cluster answers.
    ///
    /// Starts the client library's network if no store of this process has. Call [`stop_network`]
    /// before the process ends.
    ///
    /// # Errors
    ///
    /// [`OpenError`]. The wait is bounded by [`FdbOptions::open_timeout`].
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn open(options: &FdbOptions, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        check(options)?;
        network::start(&options.network)?;
        let database = connect(options)?;
        let shared = Arc::new(Shared {
            database,
            clock,
            prefix: options.prefix.clone(),
            calls: Arc::default(),
            newest: AtomicU64::new(0),
        });
        shared.wait_for_cluster(options).await?;
        Ok(Self { shared })
    }

    /// What is counted of its calls.
    #[must_use]
    pub fn calls(&self) -> &Arc<KvCalls> {
        &self.shared.calls
    }
}

impl Kv for FdbKv {
    fn begin(&self) -> Box<dyn Transaction> {
        Box::new(FdbTransaction::new(Arc::clone(&self.shared)))
    }
}

impl Shared {
    /// Asks the cluster for its newest version.
    async fn wait_for_cluster(&self, options: &FdbOptions) -> Result<(), OpenError> {
        let unavailable = |why: String| OpenError::Unavailable { why };
        let patience = options.open_timeout;
        let ask = async {
            let transaction = self.database.create_trx()?;
            transaction.set_option(TransactionOption::Timeout(millis(patience)))?;
            transaction.get_read_version().await
        };
        tokio::select! {
            asked = ask => match asked {
                Ok(version) => {
                    self.saw(version);
                    Ok(())
                }
                Err(error) => Err(unavailable(match kv_error(error, Call::Read) {
                    KvError::Unavailable(why) => why,
                    other => other.to_string(),
                })),
            },
            // The library keeps its own time only while its network thread runs.
            () = self.clock.sleep(patience.saturating_add(Duration::from_secs(1))) => {
                Err(unavailable(format!("no answer in {patience:?}")))
            }
        }
    }

    /// Notes a version that the cluster has told.
    fn saw(&self, version: i64) -> Version {
        let version = u64::try_from(version).unwrap_or_default();
        self.newest.fetch_max(version, Ordering::Relaxed);
        Version(version)
    }

    /// Whether the cluster has told this version, or a newer one.
    fn knows(&self, version: Version) -> bool {
        version.0 <= self.newest.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

fn check(options: &FdbOptions) -> Result<(), OpenError> {
    let prefix = &options.prefix;
    if prefix.len() > PREFIX_BYTES_MAX || prefix.first() == Some(&0xff) {
        return Err(OpenError::Options(format!(
            "the prefix of keys may have {PREFIX_BYTES_MAX} bytes and not begin with the byte 255"
        )));
    }
    let network = &options.network;
    let tls = [&network.tls_certificate, &network.tls_key, &network.tls_ca];
    for path in tls.into_iter().flatten() {
        // The library says what is wrong with it in its trace files only, and goes on without.
        base::files::open_regular(path).map_err(|error| OpenError::TlsFile {
            path: path.clone(),
            why: error.to_string(),
        })?;
    }
    match &options.cluster_file {
        Some(path) => check_cluster_file(path),
        None => Ok(()),
    }
}

/// Looks at the file before the library does, whose words for what is wrong are few.
fn check_cluster_file(path: &Path) -> Result<(), OpenError> {
    let wrong = |why: String| OpenError::ClusterFile {
        path: path.to_owned(),
        why,
    };
    let file = base::files::open_regular(path).map_err(|error| wrong(error.to_string()))?;
    let bytes = file.metadata().map_err(|error| wrong(error.to_string()))?;
    if bytes.len() == 0 {
        return Err(wrong("it is empty".into()));
    }
    if bytes.len() > CLUSTER_FILE_BYTES_MAX {
        return Err(wrong("it is too long to be one".into()));
    }
    if path.to_str().is_none_or(|text| text.contains('\0')) {
        return Err(wrong(
            "its name is no text, as FoundationDB wants it".into(),
        ));
    }
    Ok(())
}

fn connect(options: &FdbOptions) -> Result<Database, OpenError> {
    let path = options.cluster_file.as_deref();
    let database = Database::new(path.and_then(Path::to_str)).map_err(|error| {
        let default = || PathBuf::from("(the client's default)");
        OpenError::ClusterFile {
            path: options.cluster_file.clone().unwrap_or_else(default),
            why: format!("{} (error {})", error.message(), error.code()),
        }
    })?;
    let bytes_max = i32::try_from(options.transaction_bytes_max).unwrap_or(i32::MAX);
    let settings = [
        DatabaseOption::TransactionTimeout(millis(options.timeout)),
        DatabaseOption::TransactionSizeLimit(bytes_max),
    ];
    let refused = |error: FdbError| {
        let (message, code) = (error.message(), error.code());
        OpenError::Options(format!(
            "FoundationDB refuses an option: {message} (error {code})"
        ))
    };
    for setting in settings {
        database.set_option(setting).map_err(refused)?;
    }
    Ok(database)
}

/// Milliseconds as the library takes them; 0 would mean no limit.
fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis())
        .unwrap_or(i32::MAX)
        .max(1)
}
