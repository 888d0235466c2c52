//! Where a server's metadata is, and how it is opened there.
//!
//! Metadata in FoundationDB belongs to one data directory, which has the content of its files. The
//! directory keeps the name of the installation (`metadata.json`), the store has it in its format
//! record, and a start compares them: with another directory every file would be without content, and
//! with another cluster, or prefix, everything would be gone.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use base::{Clock, Rng};
use chunkstore::shared::objects::Objects;
use metadata::kv::calls::KvCalls;
use metadata::kv::embedded::{EmbeddedKv, EmbeddedOptions};
use metadata::kv::still::StillKv;
use metadata::kv::{Isolation, KeyRange, Kv, KvError, RangeLimit};
use metadata::places::Places;
use metadata::store::{Store, StoreError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::data_dir::{DataDir, Elsewhere};
use crate::failure::{Failure, FailureKind};
use crate::server::{of_open, of_store};
use crate::settings::FdbSettings;
use crate::tier::Tier;

/// How often a store that has keys and no format record is looked at: a server may be making it just now.
const FORMAT_LOOKS: u32 = 8;

/// The pause between.
const FORMAT_PAUSE: Duration = Duration::from_millis(500);

/// Where metadata is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// In a file of the data directory.
    #[default]
    Embedded,
    /// In the FoundationDB cluster of this cluster file, or of the client's default one.
    Fdb(Option<PathBuf>),
}

/// Text that is no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no place for metadata: write `embedded`, `fdb:FILE` with a FoundationDB cluster file, \
     or `fdb:` for the client's default file"
)]
pub struct NoPlace(String);

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        match text.strip_prefix("fdb:") {
            Some("") => Ok(Self::Fdb(None)),
            Some(path) => Ok(Self::Fdb(Some(path.into()))),
            None if text == "embedded" => Ok(Self::Embedded),
            None => Err(NoPlace(text.into())),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => f.write_str("embedded"),
            Self::Fdb(None) => f.write_str("fdb:"),
            // It came as text.
            Self::Fdb(Some(path)) => write!(f, "fdb:{}", path.display()),
        }
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Place {
    /// Refuses a place that this program cannot reach.
    ///
    /// # Errors
    ///
    /// It is FoundationDB, and the program was built without.
    pub fn check(&self) -> Result<(), Failure> {
        if *self == Self::Embedded || cfg!(feature = "fdb") {
            return Ok(());
        }
        let message = format!(
            "metadata is {self}: this program was built without FoundationDB. Use one that was built \
             with it (`cargo build --release -p control --features fdb`, which needs libclang and the \
             foundationdb-clients package), or leave the setting out"
        );
        Err(Failure::new(FailureKind::Usage, message))
    }
}

/// An opened metadata store.
#[derive(Clone, Debug)]
pub(crate) enum Metadata {
    /// In the data directory.
    Embedded(Arc<EmbeddedKv>),
    /// In FoundationDB.
    #[cfg(feature = "fdb")]
    Fdb(Arc<metadata::kv::fdb::FdbKv>),
}

/// What a store is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be used, and made if there is none.
    Use,
    /// To be looked at, without a change.
    Look,
}

impl Metadata {
    /// Opens the store in the file of a data directory. Blocks: for long, if it is large and is
    /// verified.
    ///
    /// # Errors
    ///
    /// Says what is in the way.
    pub(crate) fn open_embedded(
        dir: &DataDir,
        options: &EmbeddedOptions,
        purpose: Purpose,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Failure> {
        let path = dir.metadata();
        let opened = match purpose {
            Purpose::Use => EmbeddedKv::open(&path, options, clock),
            Purpose::Look => EmbeddedKv::look_at(&path, options, clock),
        };
        let kv = opened.map_err(|error| of_open(&error))?;
        Ok(Self::Embedded(Arc::new(kv)))
    }

    /// Connects to FoundationDB, and waits a bounded time for the cluster.
    ///
    /// # Errors
    ///
    /// Says what is in the way.
    #[cfg(feature = "fdb")]
    pub(crate) async fn connect(
        cluster_file: Option<PathBuf>,
        settings: &FdbSettings,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Failure> {
        use metadata::kv::fdb::{FdbKv, FdbOptions, NetworkOptions};
        let options = FdbOptions {
            cluster_file,
            prefix: settings.key_prefix(),
            timeout: settings.fdb_timeout.0,
            open_timeout: settings.fdb_timeout.0,
            network: NetworkOptions {
                tls_certificate: settings.fdb_tls_certificate.clone(),
                tls_key: settings.fdb_tls_key.clone(),
                tls_ca: settings.fdb_tls_ca.clone(),
                tls_verify_peers: settings.fdb_tls_verify_peers.clone(),
                trace_dir: settings.fdb_trace_dir.clone(),
            },
            ..FdbOptions::default()
        };
        let kv = FdbKv::open(&options, clock).await;
        Ok(Self::Fdb(Arc::new(kv.map_err(|error| of_connect(&error))?)))
    }

    /// Connects to FoundationDB.
    #[cfg(not(feature = "fdb"))]
    #[expect(clippy::unused_async, reason = "as with FoundationDB")]
    pub(crate) async fn connect(
        cluster_file: Option<PathBuf>,
        _: &FdbSettings,
        _: Arc<dyn Clock>,
    ) -> Result<Self, Failure> {
        let place = Place::Fdb(cluster_file);
        place.check()?;
        Err(Failure::error(format_args!("{place} cannot be reached")))
    }

    /// The store.
    pub(crate) fn kv(&self) -> Arc<dyn Kv> {
        match self {
            Self::Embedded(kv) => Arc::<EmbeddedKv>::clone(kv),
            #[cfg(feature = "fdb")]
            Self::Fdb(kv) => Arc::<metadata::kv::fdb::FdbKv>::clone(kv),
        }
    }

    /// The store, to be read while nobody changes it.
    ///
    /// # Errors
    ///
    /// The machine gives no random numbers.
    pub(crate) fn still(&self, clock: &Arc<dyn Clock>) -> Result<StillKv, Failure> {
        let rng = Rng::system().map_err(|error| Failure::io("read random numbers", &error))?;
        Ok(StillKv::new(self.kv(), Arc::clone(clock), Arc::new(rng)))
    }

    /// What is counted of its calls, if it is on a network.
    pub(crate) fn calls(&self) -> Option<Arc<KvCalls>> {
        match self {
            Self::Embedded(_) => None,
            #[cfg(feature = "fdb")]
            Self::Fdb(kv) => Some(Arc::clone(kv.calls())),
        }
    }

    fn is_elsewhere(&self) -> bool {
        !matches!(self, Self::Embedded(_))
    }

    /// Closes it. Blocks until a file is closed.
    pub(crate) fn close(&self) {
        match self {
            Self::Embedded(kv) => kv.close(),
            // The connection ends with the process: another server in it may use it.
            #[cfg(feature = "fdb")]
            Self::Fdb(_) => {}
        }
    }

    /// The objects in the store of `dir`, which is made if there is none yet, with file content in
    /// `tier`.
    ///
    /// # Errors
    ///
    /// Says what is in the way; so if the store belongs to another directory, unless it shares all
    /// content, or to servers with another tier.
    pub(crate) async fn store(
        &self,
        dir: &DataDir,
        (tier, objects): (&Tier, Option<&Objects>),
        clock: Arc<dyn Clock>,
        rng: Arc<Rng>,
    ) -> Result<Store, Failure> {
        let places = Places::new(self.kv(), Arc::clone(&clock), Arc::clone(&rng));
        let time = Arc::clone(&clock);
        if !self.is_elsewhere() {
            let store = Store::open(self.kv(), clock, rng).await.map_err(of_store)?;
            let objects = with_packs(objects, &places, &*time).await?;
            tier.claim(&store, true, objects).await?;
            return Ok(store);
        }
        let installation = self.claim(dir, tier, &clock, &rng).await?;
        let store = Store::open_as(self.kv(), clock, rng, installation).await;
        let store = store.map_err(of_store)?;
        let found = store.format().await.map_err(of_store)?.installation;
        // Two first servers may begin at the same time; then one joins the other's installation.
        if found != installation && (!tier.is_shared() || dir.is_finished()) {
            return Err(not_ours(dir, found));
        }
        let objects = with_packs(objects, &places, &*time).await?;
        tier.claim(&store, false, objects).await?;
        if dir.elsewhere()?
            != Some(Elsewhere {
                installation: found,
            })
        {
            dir.keep_elsewhere(&Elsewhere {
                installation: found,
            })?;
        }
        Ok(store)
    }

    /// The installation's name: from the directory, or, before anything else is made, a new one. A new
    /// directory joins an installation whose content is shared.
    async fn claim(
        &self,
        dir: &DataDir,
        tier: &Tier,
        clock: &Arc<dyn Clock>,
        rng: &Rng,
    ) -> Result<[u8; 16], Failure> {
        let found = self.installation(clock).await?;
        match (dir.elsewhere()?, found) {
            (Some(elsewhere), Some(found)) if elsewhere.installation == found => Ok(found),
            // Kept when it is known that the tier is this one.
            (None, Some(found)) if tier.is_shared() => Ok(found),
            (_, Some(found)) => Err(not_ours(dir, found)),
            (Some(_), None) if dir.is_finished() => Err(lost(dir)),
            (Some(elsewhere), None) => Ok(elsewhere.installation),
            (None, None) => {
                let installation = rng.bytes();
                dir.keep_elsewhere(&Elsewhere { installation })?;
                Ok(installation)
            }
        }
    }

    /// Refuses a store that gateways serve just now: for commands that need all of them stopped. On a store in the data
    /// directory the directory's lock does that.
    ///
    /// # Errors
    ///
    /// They live, or the store cannot be read.
    pub(crate) async fn check_nobody_serves(&self, clock: &Arc<dyn Clock>) -> Result<(), Failure> {
        if !self.is_elsewhere() {
            return Ok(());
        }
        let kv = self.still(clock)?;
        let living = metadata::fleet::living(&kv, &**clock).await;
        let living = living.map_err(|error| Failure::error(base::Told(&error)))?;
        if living.is_empty() {
            return Ok(());
        }
        let named: Vec<String> = living
            .iter()
            .map(|(id, lease)| format!("{id} ({})", lease.nfs))
            .collect();
        let message = format!(
            "servers use this store, and all of them have to be stopped for this: gateway {}",
            named.join(", ")
        );
        Err(Failure::new(FailureKind::Conflict, message))
    }

    /// Refuses a store that is not that of the directory. One that has nothing yet passes.
    ///
    /// # Errors
    ///
    /// It belongs to another directory, or cannot be read.
    pub(crate) async fn check_is_of(
        &self,
        dir: &DataDir,
        clock: &Arc<dyn Clock>,
    ) -> Result<(), Failure> {
        if !self.is_elsewhere() {
            return Ok(());
        }
        match (dir.elsewhere()?, self.installation(clock).await?) {
            (Some(elsewhere), Some(found)) if elsewhere.installation != found => {
                Err(not_ours(dir, found))
            }
            _ => Ok(()),
        }
    }

    /// The name of the installation that the store belongs to; none if it is empty.
    async fn installation(&self, clock: &Arc<dyn Clock>) -> Result<Option<[u8; 16]>, Failure> {
        for _ in 0..FORMAT_LOOKS {
            if let Some(installation) = self.installation_now(clock).await? {
                return Ok(installation);
            }
            clock.sleep(FORMAT_PAUSE).await;
        }
        let message = "the FoundationDB cluster has keys with this fdb_prefix, and they are not of \
                       Holdfast: choose another fdb_prefix; nothing was changed";
        Err(Failure::new(FailureKind::Conflict, message))
    }

    /// The same now. `None` if there are keys and none is of Holdfast: another server may be starting just now.
    async fn installation_now(
        &self,
        clock: &Arc<dyn Clock>,
    ) -> Result<Option<Option<[u8; 16]>>, Failure> {
        let read = |error: KvError| of_store(StoreError::from(error));
        let kv = self.still(clock)?;
        let txn = kv.begin();
        let key = metadata::keyspace::format();
        // Alone in its transaction: nothing to conflict with.
        if let Some(record) = txn.get(&key, Isolation::Snapshot).await.map_err(read)? {
            let installation = metadata::store::installation(&record);
            return installation.map(|it| Some(Some(it))).map_err(of_store);
        }
        let all = KeyRange::prefix(b"");
        let limit = RangeLimit::pairs(1);
        // As above.
        let some = txn.get_range(&all, limit, Isolation::Snapshot).await;
        let is_empty = some.map_err(read)?.pairs.is_empty();
        Ok(is_empty.then_some(None))
    }
}

/// Ends what a process must end before it does: the network thread of the FoundationDB client.
pub(crate) fn end() {
    #[cfg(feature = "fdb")]
    metadata::kv::fdb::stop_network();
}

/// An object store, and whether the installation has packs in one.
async fn with_packs<'o>(
    objects: Option<&'o Objects>,
    places: &Places,
    clock: &'o dyn Clock,
) -> Result<Option<(&'o Objects, bool, &'o dyn Clock)>, Failure> {
    let Some(objects) = objects else {
        return Ok(None);
    };
    let packs = places.packs(None, 1).await.map_err(of_store)?;
    Ok(Some((objects, !packs.is_empty(), clock)))
}

fn hexadecimal(installation: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(installation))
}

fn not_ours(dir: &DataDir, found: [u8; 16]) -> Failure {
    let message = format!(
        "the metadata in FoundationDB is that of installation {}, and {} is the data directory of \
         another, or a new one: the content of its files is not in it. Use the data directory that \
         belongs to it, or another fdb_prefix for a new installation (with --chunks kv several data \
         directories share one); nothing was changed",
        hexadecimal(found),
        dir.path().display(),
    );
    Failure::new(FailureKind::Conflict, message)
}

fn lost(dir: &DataDir) -> Failure {
    Failure::error(format_args!(
        "FoundationDB holds nothing with this fdb_prefix, although a server on {} has used it: is it \
         the right cluster file and fdb_prefix? If the cluster has lost its data, restore it from a \
         backup; nothing was changed",
        dir.path().display(),
    ))
}

/// What a command says of a cluster that it cannot use.
#[cfg(feature = "fdb")]
fn of_connect(error: &metadata::kv::fdb::OpenError) -> Failure {
    use metadata::kv::fdb::OpenError;
    let kind = match error {
        OpenError::ClusterFile { .. } | OpenError::TlsFile { .. } | OpenError::Options(_) => {
            FailureKind::Usage
        }
        OpenError::ApiVersion { .. } | OpenError::Network(_) => FailureKind::Error,
        OpenError::Unavailable { .. } => FailureKind::Retry,
    };
    Failure::new(kind, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_text_both_ways() {
        for (text, place) in [
            ("embedded", Place::Embedded),
            ("fdb:", Place::Fdb(None)),
            ("fdb:/etc/x", Place::Fdb(Some("/etc/x".into()))),
        ] {
            assert_eq!(text.parse(), Ok(place.clone()));
            assert_eq!(place.to_string(), text);
        }
        for wrong in ["", "fdb", "/etc/x", "Embedded"] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }

    /// A program without the feature says so, and how to get one with it.
    #[test]
    fn a_program_without_foundationdb_says_so() {
        let checked = Place::Fdb(None).check();
        if cfg!(feature = "fdb") {
            assert_eq!(checked, Ok(()));
        } else {
            let failure = checked.unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            assert!(failure.message.contains("--features fdb"), "{failure}");
        }
        assert_eq!(Place::Embedded.check(), Ok(()));
    }
}
