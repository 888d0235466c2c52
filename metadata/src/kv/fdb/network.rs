//! The client library's network thread: started once in a process, and never again once it has ended.

use std::path::PathBuf;

use foundationdb::FdbError;
use foundationdb::api::{FdbApiBuilder, NetworkAutoStop, get_max_api_version};
use foundationdb::options::NetworkOption;
use parking_lot::Mutex;

use super::OpenError;

/// The version of the client's interface that this speaks: FoundationDB 7.3.
pub const API_VERSION: i32 = 730;

/// What the network is started with. The password of a TLS key is given to the client library in the
/// environment only, as `FDB_TLS_PASSWORD`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkOptions {
    /// File with the certificate of this process, and of those that signed it.
    pub tls_certificate: Option<PathBuf>,
    /// File with its key.
    pub tls_key: Option<PathBuf>,
    /// File with the certificates that others must be signed by.
    pub tls_ca: Option<PathBuf>,
    /// What the certificates of others must say, as FoundationDB writes it: `Check.Valid=1,O=Acme`.
    pub tls_verify_peers: Option<String>,
    /// Directory for the client's trace files; none are written without.
    pub trace_dir: Option<PathBuf>,
}

/// The one network of this process.
static NETWORK: Mutex<Network> = Mutex::new(Network::NotStarted);

enum Network {
    NotStarted,
    Runs {
        options: NetworkOptions,
        /// Ends the thread when it is dropped.
        thread: NetworkAutoStop,
    },
    /// It was started and has ended, or the start failed half-way. Why it cannot be started.
    Over(String),
}

/// Starts the network, unless it runs.
pub(super) fn start(options: &NetworkOptions) -> Result<(), OpenError> {
    let mut network = NETWORK.lock();
    match &*network {
        Network::NotStarted => {}
        Network::Runs { options: with, .. } if with == options => return Ok(()),
        Network::Runs { .. } => {
            let why = "it runs with other TLS or trace settings, and a process has one network";
            return Err(OpenError::Network(why.into()));
        }
        Network::Over(why) => return Err(OpenError::Network(why.clone())),
    }
    // Asked first, since the binding would print to standard output.
    let found = get_max_api_version();
    if found < API_VERSION {
        return Err(OpenError::ApiVersion { found });
    }
    match boot(options) {
        Ok(thread) => {
            let options = options.clone();
            *network = Network::Runs { options, thread };
            Ok(())
        }
        Err(error) => {
            *network = Network::Over(error.to_string());
            Err(error)
        }
    }
}

fn boot(options: &NetworkOptions) -> Result<NetworkAutoStop, OpenError> {
    let failed = |doing: &str, error: FdbError| {
        let (message, code) = (error.message(), error.code());
        OpenError::Network(format!("{doing}: {message} (error {code})"))
    };
    let mut builder = FdbApiBuilder::default()
        .build()
        .map_err(|error| failed("choose the interface's version", error))?;
    for (name, option) in of_options(options)? {
        builder = builder
            .set_option(option)
            .map_err(|error| failed(name, error))?;
    }
    // SAFETY: the guard is kept in `NETWORK` and dropped by `stop_network` before the process ends
    // in a regular way. `NETWORK` lets this run once in a process, which never forks afterwards.
    #[expect(unsafe_code, reason = "the library has no other way to start")]
    let thread = unsafe { builder.boot() };
    thread.map_err(|error| failed("start the network thread", error))
}

fn of_options(options: &NetworkOptions) -> Result<Vec<(&'static str, NetworkOption)>, OpenError> {
    let text = |path: &PathBuf| match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(OpenError::Options(format!(
            "{} is no text, as FoundationDB wants paths",
            path.display()
        ))),
    };
    let mut given = Vec::new();
    if let Some(path) = &options.trace_dir {
        given.push((
            "set the trace directory",
            NetworkOption::TraceEnable(text(path)?),
        ));
    }
    if let Some(path) = &options.tls_certificate {
        given.push((
            "set the TLS certificate",
            NetworkOption::TLSCertPath(text(path)?),
        ));
    }
    if let Some(path) = &options.tls_key {
        given.push(("set the TLS key", NetworkOption::TLSKeyPath(text(path)?)));
    }
    if let Some(path) = &options.tls_ca {
        given.push((
            "set the TLS authority",
            NetworkOption::TLSCaPath(text(path)?),
        ));
    }
    if let Some(rules) = &options.tls_verify_peers {
        let rules = NetworkOption::TLSVerifyPeers(rules.clone().into_bytes());
        given.push(("set what TLS peers must be", rules));
    }
    Ok(given)
}

/// Ends the network, if it runs; blocks until its thread has ended. To be called before the process
/// ends, when no store is used any more: calls in flight may never return, and no store can be opened
/// afterwards.
pub fn stop_network() {
    let mut network = NETWORK.lock();
    let over = Network::Over("the network of this process has ended".into());
    if matches!(*network, Network::Runs { .. })
        && let Network::Runs { thread, .. } = std::mem::replace(&mut *network, over)
    {
        drop(thread);
    }
}
