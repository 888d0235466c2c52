//! Settings of a server: from flags, the environment and a file, in this order of precedence.
//!
//! Flag `--data-dir`, variable `HOLDFAST_DATA_DIR` and key `data_dir` are one setting with one
//! name. `deploy/config/holdfast.toml` lists them all.

use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::limits::{FDB_PREFIX_BYTES_MAX, FDB_TIMEOUT_DEFAULT, FDB_TIMEOUT_MAX};
use nfs_gateway::LEASE_DEFAULT;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, FailureKind};
use crate::logging;
use crate::place::Place;
use crate::tier::Tier;
use crate::units::{Addresses, Period, Size};

/// Where data is kept unless told otherwise.
pub const DATA_DIR_DEFAULT: &str = "holdfast-data";

/// Largest configuration file, in bytes: far more than all settings with comments.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Most entries of `proxy_from`: each new connection is compared with all of them.
const PROXY_FROM_MAX: usize = 1024;

/// Longest `drain_delay`: no balancer takes so long to notice.
const DRAIN_DELAY_MAX: Duration = Duration::from_secs(3600);

/// Longest host name that gateways tell each other, in bytes: it goes with a port into an address of
/// at most 256.
const FLEET_HOST_BYTES_MAX: usize = 240;

/// Shortest and longest lease: below it a store that is slow for a moment makes gateways wait, beyond it
/// clients wait for as long when one dies.
const LEASE_MIN: Duration = Duration::from_millis(500);
const LEASE_MAX: Duration = Duration::from_secs(60);

/// What keys in FoundationDB begin with, unless told otherwise.
const PREFIX_DEFAULT: &str = "holdfast/";

/// Shortest time for a FoundationDB transaction: less would end some that do well.
const FDB_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// Least bandwidth for an object store, in bytes a second: a large chunk would never come in time.
const BANDWIDTH_MIN: u64 = 64 << 10;

/// Least memory for anything that a size setting limits.
const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// Settings as one source gives them: what is missing, another source may give.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct Given {
    /// Directory that holds everything; made if it is missing [default: ./holdfast-data]
    #[arg(long, env = "HOLDFAST_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Address to serve NFS on [default: 127.0.0.1:12049]
    #[arg(long, env = "HOLDFAST_LISTEN", value_name = "IP:PORT")]
    pub listen: Option<SocketAddr>,
    /// Address to serve the control API on [default: 127.0.0.1:12080]
    #[arg(long, env = "HOLDFAST_API_LISTEN", value_name = "IP:PORT")]
    pub api_listen: Option<SocketAddr>,
    /// Host name or IP address that goes into mount lines [default: that of --listen]
    #[arg(long, env = "HOLDFAST_ADVERTISE", value_name = "HOST")]
    pub advertise: Option<String>,
    /// What to log: a level or a list of targets and levels, as in `info,nfs_gateway=debug`
    #[arg(long, env = "HOLDFAST_LOG", value_name = "FILTER")]
    pub log: Option<String>,
    /// How to log
    #[arg(long, env = "HOLDFAST_LOG_FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,
    /// Most file data in memory that is in no store yet [default: 256MiB]
    #[arg(long, env = "HOLDFAST_DIRTY_MEMORY", value_name = "SIZE")]
    pub dirty_memory: Option<Size>,
    /// About how much memory one session's attributes and names may take [default: 256MiB]
    #[arg(long, env = "HOLDFAST_SESSION_MEMORY", value_name = "SIZE")]
    pub session_memory: Option<Size>,
    /// Memory for pages of the metadata store [default: 256MiB]
    #[arg(long, env = "HOLDFAST_METADATA_CACHE", value_name = "SIZE")]
    pub metadata_cache: Option<Size>,
    /// Memory for file content that was read or written [default: 256MiB]
    #[arg(long, env = "HOLDFAST_CONTENT_CACHE", value_name = "SIZE")]
    pub content_cache: Option<Size>,
    /// Disk space that clients cannot use, for deleting when the disk is full [default: 64MiB]
    #[arg(long, env = "HOLDFAST_DISK_RESERVE", value_name = "SIZE")]
    pub disk_reserve: Option<Size>,
    /// A session that nobody uses leaves memory after this time [default: 5m]
    #[arg(long, env = "HOLDFAST_SESSION_IDLE", value_name = "DURATION")]
    pub session_idle: Option<Period>,
    /// Most NFS connections [default: 8192]
    #[arg(long, env = "HOLDFAST_CONNECTIONS_MAX", value_name = "NUMBER")]
    pub connections_max: Option<u32>,
    /// Addresses of balancers, as in `10.0.0.7,10.1.0.0/24`: NFS connections from there must begin
    /// with a PROXY header of version 2 [default: none]
    #[arg(
        long,
        env = "HOLDFAST_PROXY_FROM",
        value_name = "ADDRESSES",
        value_delimiter = ','
    )]
    pub proxy_from: Option<Vec<Addresses>>,
    /// How long a server that is told to end says that it is not ready, and serves on, before it
    /// ends: what balancers take to notice [default: 0s]
    #[arg(long, env = "HOLDFAST_DRAIN_DELAY", value_name = "DURATION")]
    pub drain_delay: Option<Period>,
    /// Where metadata is: `embedded`, in the data directory, or `fdb:FILE`, in the FoundationDB
    /// cluster of a cluster file; `fdb:` means the client's default file [default: embedded]
    #[arg(long, env = "HOLDFAST_METADATA", value_name = "PLACE")]
    pub metadata: Option<Place>,
    /// Where the content of files is: `local`, in packs of the data directory; or shared by servers on
    /// several data directories: `kv`, in the metadata store, or an object store, `s3://BUCKET/PREFIX`,
    /// `gs://BUCKET/PREFIX`, `file:///DIRECTORY` [default: local]
    #[arg(long, env = "HOLDFAST_CHUNKS", value_name = "TIER")]
    pub chunks: Option<Tier>,
    /// Options of the object store, as in `aws_endpoint=https://minio:9000,aws_region=eu-1`; secrets are
    /// given in the environment (AWS_SECRET_ACCESS_KEY) [default: none]
    #[arg(
        long,
        env = "HOLDFAST_CHUNKS_OPTIONS",
        value_name = "NAME=VALUE",
        value_delimiter = ','
    )]
    pub chunks_options: Option<Vec<String>>,
    /// Most bytes a second to, and from, the object store [default: no limit]
    #[arg(long, env = "HOLDFAST_CHUNKS_BANDWIDTH", value_name = "SIZE")]
    pub chunks_bandwidth: Option<Size>,
    /// Disk space in the data directory for content that was read from the object store [default: 4GiB]
    #[arg(long, env = "HOLDFAST_CHUNKS_CACHE", value_name = "SIZE")]
    pub chunks_cache: Option<Size>,
    /// Most content, of all servers together, that waits in the metadata store to go to the object store
    /// [default: 1GiB]
    #[arg(long, env = "HOLDFAST_STAGING_MAX", value_name = "SIZE")]
    pub staging_max: Option<Size>,
    /// What all keys in FoundationDB begin with, so that installations share a cluster
    /// [default: holdfast/]
    #[arg(long, env = "HOLDFAST_FDB_PREFIX", value_name = "TEXT")]
    pub fdb_prefix: Option<String>,
    /// Address to take calls on that other gateways on the same metadata and content pass on; only if
    /// both are shared [default: that of --listen, and a free port]
    #[arg(long, env = "HOLDFAST_PEER_LISTEN", value_name = "IP:PORT")]
    pub peer_listen: Option<SocketAddr>,
    /// How long other gateways wait until they take this one for dead, when metadata and content are
    /// shared; the same for all of them [default: 2s]
    #[arg(long, env = "HOLDFAST_LEASE", value_name = "DURATION")]
    pub lease: Option<Period>,
    /// How long one FoundationDB transaction may take, at most 5s [default: 4s]
    #[arg(long, env = "HOLDFAST_FDB_TIMEOUT", value_name = "DURATION")]
    pub fdb_timeout: Option<Period>,
    /// File with the TLS certificate for FoundationDB; the key's password is given as
    /// FDB_TLS_PASSWORD in the environment only
    #[arg(long, env = "HOLDFAST_FDB_TLS_CERTIFICATE", value_name = "FILE")]
    pub fdb_tls_certificate: Option<PathBuf>,
    /// File with its key
    #[arg(long, env = "HOLDFAST_FDB_TLS_KEY", value_name = "FILE")]
    pub fdb_tls_key: Option<PathBuf>,
    /// File with the certificates that the cluster's must be signed by
    #[arg(long, env = "HOLDFAST_FDB_TLS_CA", value_name = "FILE")]
    pub fdb_tls_ca: Option<PathBuf>,
    /// What the cluster's certificates must say, as in `Check.Valid=1,O=Acme`
    #[arg(long, env = "HOLDFAST_FDB_TLS_VERIFY_PEERS", value_name = "RULES")]
    pub fdb_tls_verify_peers: Option<String>,
    /// Directory for trace files of the FoundationDB client [default: none are written]
    #[arg(long, env = "HOLDFAST_FDB_TRACE_DIR", value_name = "DIR")]
    pub fdb_trace_dir: Option<PathBuf>,
}

/// How FoundationDB is used, complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FdbSettings {
    /// What all keys begin with.
    pub fdb_prefix: String,
    /// How long one transaction may take.
    pub fdb_timeout: Period,
    /// File with the TLS certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fdb_tls_certificate: Option<PathBuf>,
    /// File with its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fdb_tls_key: Option<PathBuf>,
    /// File with the certificates of those who sign the cluster's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fdb_tls_ca: Option<PathBuf>,
    /// What the cluster's certificates must say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fdb_tls_verify_peers: Option<String>,
    /// Directory for trace files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fdb_trace_dir: Option<PathBuf>,
}

impl FdbSettings {
    fn check(&self) -> Result<(), Failure> {
        let wrong = |message: String| Err(Failure::new(FailureKind::Usage, message));
        if self.fdb_timeout.0 < FDB_TIMEOUT_MIN || self.fdb_timeout.0 > FDB_TIMEOUT_MAX {
            return wrong(format!(
                "fdb_timeout is {}: give 1s to {}s",
                self.fdb_timeout,
                FDB_TIMEOUT_MAX.as_secs()
            ));
        }
        if self.fdb_prefix.len() > FDB_PREFIX_BYTES_MAX {
            return wrong(format!(
                "fdb_prefix has {} bytes: give at most {FDB_PREFIX_BYTES_MAX}, as it is a part of \
                 every key",
                self.fdb_prefix.len()
            ));
        }
        if self.fdb_prefix.contains('\0') {
            return wrong("fdb_prefix has a NUL: that ends it in every key".into());
        }
        Ok(())
    }

    /// What all keys begin with in the cluster: none is the beginning of another's, as `dev` is of `devs`.
    #[must_use]
    pub fn key_prefix(&self) -> Vec<u8> {
        [self.fdb_prefix.as_bytes(), b"\0"].concat()
    }
}

/// How an object store is used, complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChunkSettings {
    /// Options of the object store: `NAME=VALUE`.
    pub chunks_options: Vec<String>,
    /// Most bytes a second to it, and from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunks_bandwidth: Option<Size>,
    /// Disk space for what was read from it.
    pub chunks_cache: Size,
    /// Most content that waits to go there.
    pub staging_max: Size,
}

impl ChunkSettings {
    fn check(&self) -> Result<(), Failure> {
        let wrong = |message: String| Err(Failure::new(FailureKind::Usage, message));
        self.pairs()?;
        if self
            .chunks_bandwidth
            .is_some_and(|rate| rate.0 < BANDWIDTH_MIN)
        {
            return wrong("chunks_bandwidth is too small: give at least 64KiB".into());
        }
        Ok(())
    }

    /// The options, each as its name and its value.
    ///
    /// # Errors
    ///
    /// One is none, or is a secret: settings are printed, and seen in lists of processes.
    pub(crate) fn pairs(&self) -> Result<Vec<(String, String)>, Failure> {
        let pair = |option: &String| {
            let wrong = |message: String| Failure::new(FailureKind::Usage, message);
            let (name, value) = option
                .split_once('=')
                .ok_or_else(|| wrong("chunks_options: give each as NAME=VALUE".to_owned()))?;
            let name = name.to_ascii_lowercase();
            let is_secret = ["secret", "token", "password", "service_account_key"];
            if is_secret.iter().any(|word| name.contains(word)) {
                return Err(wrong(format!(
                    "chunks_options has {name}: give secrets in the environment, under the provider's own \
                     name ({})",
                    name.to_ascii_uppercase()
                )));
            }
            Ok((name, value.to_owned()))
        };
        self.chunks_options.iter().map(pair).collect()
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Settings of a server, complete and checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Directory that holds everything.
    pub data_dir: PathBuf,
    /// Address to serve NFS on.
    pub listen: SocketAddr,
    /// Address to serve the control API on.
    pub api_listen: SocketAddr,
    /// Host that goes into mount lines, if not that of `listen`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// What to log.
    pub log: String,
    /// How to log.
    pub log_format: LogFormat,
    /// Most file data in memory that is in no store yet.
    pub dirty_memory: Size,
    /// About how much memory one session's image may take.
    pub session_memory: Size,
    /// Memory for pages of the metadata store.
    pub metadata_cache: Size,
    /// Memory for file content.
    pub content_cache: Size,
    /// Disk space that clients cannot use.
    pub disk_reserve: Size,
    /// A session that nobody uses leaves memory after this time.
    pub session_idle: Period,
    /// Most NFS connections.
    pub connections_max: u32,
    /// Where connections come from that balancers make.
    pub proxy_from: Vec<Addresses>,
    /// How long a server that is told to end serves on.
    pub drain_delay: Period,
    /// Where metadata is.
    pub metadata: Place,
    /// Where the content of files is.
    pub chunks: Tier,
    /// How an object store is used.
    #[serde(flatten)]
    pub objects: ChunkSettings,
    /// Address to take calls on that other gateways pass on, if not that of `listen`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_listen: Option<SocketAddr>,
    /// How long other gateways wait until they take this one for dead.
    pub lease: Period,
    /// How FoundationDB is used.
    #[serde(flatten)]
    pub fdb: FdbSettings,
}

impl Given {
    /// Reads a configuration file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or does not say settings.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let failed = |error: std::io::Error| {
            Failure::io(format_args!("read configuration file {shown}"), &error)
        };
        // Not by its length: that of a device is 0.
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut bounded = file.take(CONFIG_BYTES_MAX + 1);
        bounded.read_to_end(&mut bytes).map_err(failed)?;
        if bounded.limit() == 0 {
            let message =
                format!("configuration file {shown} is longer than {CONFIG_BYTES_MAX} bytes");
            return Err(Failure::new(FailureKind::Usage, message));
        }
        let text = String::from_utf8(bytes).map_err(|_| {
            let message = format!("configuration file {shown} is no text");
            Failure::new(FailureKind::Usage, message)
        })?;
        Self::parse(&text).map_err(|error| {
            let message = format!("configuration file {shown}: {error}");
            Failure::new(FailureKind::Usage, message)
        })
    }

    /// These settings, and those of a configuration file where these say nothing.
    ///
    /// # Errors
    ///
    /// As [`Given::read`].
    pub fn or_of(self, config: Option<&Path>) -> Result<Self, Failure> {
        Ok(match config {
            Some(path) => self.or(Self::read(path)?),
            None => self,
        })
    }

    /// Reads the text of a configuration file.
    ///
    /// # Errors
    ///
    /// The text is no TOML, names an unknown setting, or gives a setting an impossible value.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// These settings, and `other` where these say nothing.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            data_dir: self.data_dir.or(other.data_dir),
            listen: self.listen.or(other.listen),
            api_listen: self.api_listen.or(other.api_listen),
            advertise: self.advertise.or(other.advertise),
            log: self.log.or(other.log),
            log_format: self.log_format.or(other.log_format),
            dirty_memory: self.dirty_memory.or(other.dirty_memory),
            session_memory: self.session_memory.or(other.session_memory),
            metadata_cache: self.metadata_cache.or(other.metadata_cache),
            content_cache: self.content_cache.or(other.content_cache),
            disk_reserve: self.disk_reserve.or(other.disk_reserve),
            session_idle: self.session_idle.or(other.session_idle),
            connections_max: self.connections_max.or(other.connections_max),
            proxy_from: self.proxy_from.or(other.proxy_from),
            drain_delay: self.drain_delay.or(other.drain_delay),
            metadata: self.metadata.or(other.metadata),
            chunks: self.chunks.or(other.chunks),
            chunks_options: self.chunks_options.or(other.chunks_options),
            chunks_bandwidth: self.chunks_bandwidth.or(other.chunks_bandwidth),
            chunks_cache: self.chunks_cache.or(other.chunks_cache),
            staging_max: self.staging_max.or(other.staging_max),
            peer_listen: self.peer_listen.or(other.peer_listen),
            lease: self.lease.or(other.lease),
            fdb_prefix: self.fdb_prefix.or(other.fdb_prefix),
            fdb_timeout: self.fdb_timeout.or(other.fdb_timeout),
            fdb_tls_certificate: self.fdb_tls_certificate.or(other.fdb_tls_certificate),
            fdb_tls_key: self.fdb_tls_key.or(other.fdb_tls_key),
            fdb_tls_ca: self.fdb_tls_ca.or(other.fdb_tls_ca),
            fdb_tls_verify_peers: self.fdb_tls_verify_peers.or(other.fdb_tls_verify_peers),
            fdb_trace_dir: self.fdb_trace_dir.or(other.fdb_trace_dir),
        }
    }

    /// Complete settings: defaults where nothing is said.
    ///
    /// # Errors
    ///
    /// A value cannot work.
    pub fn complete(self) -> Result<Settings, Failure> {
        let megabytes = |number: u64| Size(number << 20);
        let settings = Settings {
            data_dir: self.data_dir.unwrap_or_else(|| DATA_DIR_DEFAULT.into()),
            listen: self.listen.unwrap_or(([127, 0, 0, 1], 12049).into()),
            api_listen: self.api_listen.unwrap_or(([127, 0, 0, 1], 12080).into()),
            advertise: self.advertise,
            log: self.log.unwrap_or_else(|| "info".into()),
            log_format: self.log_format.unwrap_or_default(),
            dirty_memory: self.dirty_memory.unwrap_or(megabytes(256)),
            session_memory: self.session_memory.unwrap_or(megabytes(256)),
            metadata_cache: self.metadata_cache.unwrap_or(megabytes(256)),
            content_cache: self.content_cache.unwrap_or(megabytes(256)),
            disk_reserve: self.disk_reserve.unwrap_or(megabytes(64)),
            session_idle: self
                .session_idle
                .unwrap_or(Period(Duration::from_secs(300))),
            connections_max: self.connections_max.unwrap_or(8192),
            proxy_from: self.proxy_from.unwrap_or_default(),
            drain_delay: self.drain_delay.unwrap_or(Period(Duration::ZERO)),
            metadata: self.metadata.unwrap_or_default(),
            chunks: self.chunks.unwrap_or_default(),
            objects: ChunkSettings {
                chunks_options: self.chunks_options.unwrap_or_default(),
                chunks_bandwidth: self.chunks_bandwidth,
                chunks_cache: self.chunks_cache.unwrap_or(megabytes(4096)),
                staging_max: self.staging_max.unwrap_or(megabytes(1024)),
            },
            peer_listen: self.peer_listen,
            lease: self.lease.unwrap_or(Period(LEASE_DEFAULT)),
            fdb: FdbSettings {
                fdb_prefix: self.fdb_prefix.unwrap_or_else(|| PREFIX_DEFAULT.into()),
                fdb_timeout: self.fdb_timeout.unwrap_or(Period(FDB_TIMEOUT_DEFAULT)),
                fdb_tls_certificate: self.fdb_tls_certificate,
                fdb_tls_key: self.fdb_tls_key,
                fdb_tls_ca: self.fdb_tls_ca,
                fdb_tls_verify_peers: self.fdb_tls_verify_peers,
                fdb_trace_dir: self.fdb_trace_dir,
            },
        };
        settings.check()?;
        Ok(settings)
    }
}

impl Settings {
    fn check(&self) -> Result<(), Failure> {
        let wrong = |message: String| Err(Failure::new(FailureKind::Usage, message));
        for (name, size) in [
            ("dirty_memory", self.dirty_memory),
            ("session_memory", self.session_memory),
            ("metadata_cache", self.metadata_cache),
            ("content_cache", self.content_cache),
        ] {
            if size.0 < MEMORY_BYTES_MIN || usize::try_from(size.0).is_err() {
                return wrong(format!("{name} is {size}: give at least 1MiB"));
            }
        }
        if self.session_idle.0 < Duration::from_secs(1) {
            return wrong(format!(
                "session_idle is {}: give at least 1s",
                self.session_idle
            ));
        }
        self.metadata.check()?;
        self.objects.check()?;
        self.fdb.check()?;
        self.check_fleet()?;
        logging::parse(&self.log)?;
        if self.connections_max == 0 {
            return wrong("connections_max is 0: nobody could mount".into());
        }
        if self.proxy_from.len() > PROXY_FROM_MAX {
            return wrong(format!(
                "proxy_from has {} entries: give ranges, at most {PROXY_FROM_MAX}",
                self.proxy_from.len()
            ));
        }
        if self.drain_delay.0 > DRAIN_DELAY_MAX {
            return wrong(format!(
                "drain_delay is {}: give at most {}",
                self.drain_delay,
                Period(DRAIN_DELAY_MAX)
            ));
        }
        if let Some(host) = &self.advertise
            && !is_host(host)
        {
            return wrong(format!(
                "advertise is {host:?}: give a host name or an IP address, without a port"
            ));
        }
        Ok(())
    }

    /// Whether other servers, on other data directories, may use the same stores at the same time.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self.metadata, Place::Fdb(_)) && self.chunks.is_shared()
    }

    /// Checks what concerns other gateways.
    fn check_fleet(&self) -> Result<(), Failure> {
        let wrong = |message: String| Err(Failure::new(FailureKind::Usage, message));
        if !(LEASE_MIN..=LEASE_MAX).contains(&self.lease.0) {
            let lease = self.lease;
            return wrong(format!("lease is {lease}: give 500ms to 60s"));
        }
        if !self.is_shared() {
            return match self.peer_listen {
                Some(address) => wrong(format!(
                    "peer_listen is {address}, and metadata or content is in the data directory, \
                     which one server uses: there are no other gateways. Leave the setting out, or \
                     share both (docs/fleet.md)"
                )),
                None => Ok(()),
            };
        }
        if let Some(host) = &self.advertise {
            let bytes = host.len();
            return match bytes <= FLEET_HOST_BYTES_MAX {
                true => Ok(()),
                false => wrong(format!(
                    "advertise has {bytes} bytes: where gateways share their stores give at most \
                     {FLEET_HOST_BYTES_MAX}"
                )),
            };
        }
        for (name, address) in [
            ("listen", Some(self.listen)),
            ("peer_listen", self.peer_listen),
        ] {
            if let Some(address) = address.filter(|address| address.ip().is_unspecified()) {
                return wrong(format!(
                    "{name} is {address}, which tells other gateways and clients nothing: give the \
                     address that this machine is reached at, or set `advertise` to it (docs/fleet.md)"
                ));
            }
        }
        Ok(())
    }

    /// The settings as a configuration file.
    ///
    /// # Errors
    ///
    /// A value has no form in the file, as a path that is not text.
    pub fn to_toml(&self) -> Result<String, Failure> {
        toml::to_string(self)
            .map_err(|error| Failure::error(format_args!("print settings: {error}")))
    }
}

/// Whether `text` can stand as the host in a mount line.
fn is_host(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let is_name = !text.is_empty() && text.len() <= 253 && text.bytes().all(allowed);
    is_name && !text.starts_with('-') || text.parse::<std::net::IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotated_file_is_the_defaults() {
        let text = include_str!("../../deploy/config/holdfast.toml");
        let commented = Given::parse(text).unwrap();
        let system = Given {
            data_dir: Some("/var/lib/holdfast".into()),
            ..Given::default()
        };
        assert_eq!(commented, system);
        // Each commented setting is one that exists, and shows its default.
        let all: String = text
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(rest) if !rest.starts_with(' ') => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let mut shown = Given::parse(&all).unwrap();
        // Not with metadata in the data directory.
        assert!(shown.peer_listen.take().is_some());
        let shown = shown.complete().unwrap();
        let defaults = system.complete().unwrap();
        let advertise = shown.advertise.clone();
        let fdb = shown.fdb.clone();
        let shows_all = advertise.is_some()
            && fdb.fdb_tls_certificate.is_some()
            && fdb.fdb_tls_key.is_some()
            && fdb.fdb_tls_ca.is_some()
            && fdb.fdb_tls_verify_peers.is_some()
            && fdb.fdb_trace_dir.is_some();
        assert!(shows_all, "the file shows every setting");
        let objects = shown.objects.clone();
        assert!(!objects.chunks_options.is_empty() && objects.chunks_bandwidth.is_some());
        assert_eq!(objects.chunks_cache, defaults.objects.chunks_cache);
        assert_eq!(objects.staging_max, defaults.objects.staging_max);
        assert_eq!(fdb.fdb_prefix, defaults.fdb.fdb_prefix);
        assert_eq!(fdb.fdb_timeout, defaults.fdb.fdb_timeout);
        assert_eq!(
            shown,
            Settings {
                advertise,
                objects,
                fdb,
                ..defaults
            }
        );
        assert_eq!(
            Given::parse(&shown.to_toml().unwrap()).unwrap().complete(),
            Ok(shown)
        );
    }

    /// The example is one, and is for several gateways.
    #[test]
    fn the_settings_that_the_documentation_shows_for_several_gateways_are_good() {
        let text = include_str!("../../docs/fleet.md");
        let (_, text) = text.split_once("```toml\n").unwrap();
        let (text, _) = text.split_once("```").unwrap();
        let given = Given::parse(text).unwrap();
        assert!(given.peer_listen.is_some());
        let completed = given.complete();
        if cfg!(feature = "fdb") {
            assert!(completed.unwrap().is_shared());
        } else {
            let failure = completed.unwrap_err();
            assert!(failure.message.contains("--features fdb"), "{failure}");
        }
    }

    #[test]
    fn the_first_source_wins() {
        let flag = Given::parse("listen = '127.0.0.1:1'").unwrap();
        let file = Given::parse("listen = '127.0.0.1:2'\nlog = 'debug'").unwrap();
        let settings = flag.or(file).complete().unwrap();
        assert_eq!(settings.listen.port(), 1);
        assert_eq!(settings.log, "debug");
    }

    /// Others are told addresses that they can use, or a start says what to set.
    #[cfg(feature = "fdb")]
    #[test]
    fn addresses_that_tell_nothing_are_refused_where_there_may_be_others() {
        let with = |text: &str| {
            let text = format!("metadata = 'fdb:'\nchunks = 'kv'\n{text}");
            Given::parse(&text).unwrap().complete()
        };
        for text in [
            "listen = '0.0.0.0:1'",
            "listen = '[::]:1'",
            "peer_listen = '0.0.0.0:1'",
        ] {
            let failure = with(text).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Usage, "{text}");
            assert!(failure.message.contains("set `advertise`"), "{failure}");
            let settings = with(&format!("{text}\nadvertise = 'a.example'"));
            assert!(settings.is_ok(), "{settings:?}");
        }
        assert!(with("peer_listen = '10.0.0.1:1'\nlease = '60s'").is_ok());
        // One server only.
        for own in ["", "metadata = 'fdb:'\n", "chunks = 'kv'\n"] {
            let listen = format!("{own}listen = '0.0.0.0:1'");
            assert!(Given::parse(&listen).unwrap().complete().is_ok());
            let peers = format!("{own}peer_listen = '10.0.0.1:1'");
            let failure = Given::parse(&peers).unwrap().complete().unwrap_err();
            assert!(failure.message.contains("share both"), "{failure}");
        }
    }

    #[test]
    fn too_many_balancers_are_refused() {
        let many = vec!["10.0.0.0/8".parse().unwrap(); PROXY_FROM_MAX + 1];
        let mut given = Given {
            proxy_from: Some(many),
            ..Given::default()
        };
        let failure = given.clone().complete().unwrap_err();
        assert!(failure.message.contains("1025 entries"), "{failure}");
        given.proxy_from.as_mut().unwrap().pop();
        assert_eq!(given.complete().unwrap().proxy_from.len(), PROXY_FROM_MAX);
    }

    /// Bug: the keys of `devs` were among those of `dev`.
    #[test]
    fn installations_share_no_keys_in_a_cluster() {
        let prefix = |text: &str| {
            let given = Given {
                fdb_prefix: Some(text.into()),
                ..Given::default()
            };
            given.complete().unwrap().fdb.key_prefix()
        };
        let longest = "x".repeat(FDB_PREFIX_BYTES_MAX);
        let texts = ["", "dev", "devs", "dev/", &longest];
        for (one, other) in texts
            .iter()
            .flat_map(|one| texts.map(|other| (*one, other)))
        {
            let shares = prefix(other).starts_with(&prefix(one));
            assert_eq!(shares, one == other, "{one:?} {other:?}");
        }
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for (text, part) in [
            ("lisen = '127.0.0.1:1'", "unknown field `lisen`"),
            ("listen = 'here'", "invalid socket address"),
            ("dirty_memory = '1 gig'", "is not a size"),
            ("proxy_from = ['10.0.0.1/8']", "write 10.0.0.0/8"),
            ("proxy_from = ['balancer']", "is no address"),
            ("metadata = 'etcd:'", "is no place for metadata"),
            ("chunks = 'disk'", "is no place for chunks"),
        ] {
            let error = Given::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let error = Given::parse("\nlisen = 'x'").unwrap_err().to_string();
        for part in ["line 2", "expected one of `data_dir`, `listen`"] {
            assert!(error.contains(part), "{error}");
        }
        for text in [
            "dirty_memory = '1KiB'",
            "session_idle = '1ms'",
            "connections_max = 0",
            "drain_delay = '2h'",
            "advertise = 'a b'",
            "advertise = '-o'",
            "chunks = 's3://b/p'\nchunks_options = ['aws_region']",
            "chunks = 's3://b/p'\nchunks_options = ['aws_secret_access_key=x']",
            "chunks = 's3://b/p'\nchunks_bandwidth = '1KiB'",
            "fdb_timeout = '0s'",
            // Beyond what a transaction is run again within.
            "fdb_timeout = '6s'",
            "lease = '499ms'",
            "lease = '61s'",
            "peer_listen = '127.0.0.1:1'",
            "fdb_prefix = 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'",
            "fdb_prefix = \"a\\u0000\"",
        ] {
            let failure = Given::parse(text).unwrap().complete().unwrap_err();
            assert_eq!(failure.kind, FailureKind::Usage, "{text}");
        }
    }
}
