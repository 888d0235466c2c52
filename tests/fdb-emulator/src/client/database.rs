//! Databases: a link to a cluster, and defaults for transactions.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::link::Link;
use super::network::network;
use super::options::Options;
use super::transaction::Transaction;
use crate::codes::{self, Code};

/// Longest cluster file that is read, in bytes.
const CLUSTER_FILE_BYTES_MAX: usize = 4096;

/// A database.
#[derive(Debug)]
pub struct Database {
    pub(super) link: Arc<Link>,
    pub(super) defaults: Mutex<Options>,
}

impl Database {
    /// Opens the cluster that a cluster file names: `file`, or what FoundationDB takes without one.
    ///
    /// # Errors
    ///
    /// The network is not set up, or the file is missing or wrong. That the cluster cannot be
    /// reached is no error.
    pub fn open(file: Option<&Path>) -> Result<Arc<Self>, Code> {
        network().check_set_up()?;
        let file = match file {
            Some(file) => file.to_owned(),
            None => usual_file(),
        };
        let text = std::fs::read(file).map_err(|_| codes::NO_CLUSTER_FILE)?;
        let address = parse(&text).ok_or(codes::CONNECTION_STRING_INVALID)?;
        let link = Link::open(address).map_err(|_| codes::UNKNOWN_ERROR)?;
        Ok(Arc::new(Self {
            link,
            defaults: Mutex::default(),
        }))
    }

    /// Sets a default of transactions made from now on.
    ///
    /// # Errors
    ///
    /// The option is not known or not imitated, or its value is wrong.
    pub fn set_option(&self, option: i32, value: &[u8]) -> Result<(), Code> {
        self.defaults.lock().set_default(option, value).map(drop)
    }

    /// Begins a transaction.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> Arc<Transaction> {
        Transaction::new(Arc::clone(self))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.link.close();
    }
}

fn usual_file() -> PathBuf {
    if let Some(file) = std::env::var_os("FDB_CLUSTER_FILE") {
        return file.into();
    }
    let here = PathBuf::from("fdb.cluster");
    if here.exists() {
        here
    } else {
        PathBuf::from("/etc/foundationdb/fdb.cluster")
    }
}

/// The first address of `description:id@host:port,host:port`.
fn parse(text: &[u8]) -> Option<SocketAddr> {
    if text.len() > CLUSTER_FILE_BYTES_MAX {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    let mut lines = text.lines().map(str::trim);
    let line = lines.find(|line| !line.is_empty() && !line.starts_with('#'))?;
    let (name, addresses) = line.split_once('@')?;
    let (description, id) = name.split_once(':')?;
    if description.is_empty() || id.is_empty() {
        return None;
    }
    let address = addresses.split(',').next()?.trim();
    address.to_socket_addrs().ok()?.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_files() {
        let address = Some("127.0.0.1:4500".parse().unwrap());
        assert_eq!(parse(b"a:b@127.0.0.1:4500\n"), address);
        assert_eq!(
            parse(b"# who\n\na:b@127.0.0.1:4500,127.0.0.1:4501"),
            address
        );
        for wrong in [
            "",
            "a:b",
            "a@127.0.0.1:1",
            ":b@127.0.0.1:1",
            "a:b@127.0.0.1",
        ] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(parse(&[0xff, b'@']), None);
    }
}
