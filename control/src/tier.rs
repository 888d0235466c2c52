//! Where the content of files is, and how it is opened there.
//!
//! `docs/design/0014-shared-chunks.md`. Local packs belong to one data directory; a shared tier to the
//! installation, whose metadata store says which it is, so that no server uses another.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use base::{Clock, Rng, Tasks};
use chunkstore::ChunkStore;
use chunkstore::local::LocalStore;
use chunkstore::shared::connect::{ConnectError, Target, check_url, connect, without_secrets};
use chunkstore::shared::disk::DiskCache;
use chunkstore::shared::objects::{ObjectError, ObjectOptions, Objects};
use chunkstore::shared::{KnownCycle, SharedOptions, SharedParts, SharedStore};
use metadata::kv::Kv;
use metadata::store::{Store, TIER_LOCAL};
use nfs_gateway::KvLedger;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::failure::{Failure, FailureKind};
use crate::server::of_store;
use crate::settings::ChunkSettings;

/// Longest URL, in bytes.
const URL_BYTES_MAX: usize = 1000;

/// How long a start waits for an object store.
const START_TIME: Duration = Duration::from_secs(20);

/// Where the content of files is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tier {
    /// In packs of the data directory.
    #[default]
    Local,
    /// In the metadata store.
    Kv,
    /// In an object store: its URL.
    Objects(String),
}

/// Text that is no tier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no place for chunks: write `local` for the data directory, `kv` for the metadata store, or the \
     URL of an object store: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, or file:///DIRECTORY"
)]
pub struct NoTier(String);

impl FromStr for Tier {
    type Err = NoTier;

    fn from_str(text: &str) -> Result<Self, NoTier> {
        match text {
            TIER_LOCAL => Ok(Self::Local),
            "kv" => Ok(Self::Kv),
            url if check_url(url).is_ok() && url.len() <= URL_BYTES_MAX => {
                Ok(Self::Objects(url.trim_end_matches('/').to_owned()))
            }
            other => Err(NoTier(without_secrets(other))),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => TIER_LOCAL,
            Self::Kv => "kv",
            Self::Objects(url) => url,
        })
    }
}

impl Serialize for Tier {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Tier {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Tier {
    /// Whether servers on other data directories can use it, too.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        *self != Self::Local
    }

    /// The object store of this tier, if it is one. Nothing is asked of it yet.
    ///
    /// # Errors
    ///
    /// The settings do not fit it.
    pub(crate) fn connect(
        &self,
        settings: &ChunkSettings,
        clock: &Arc<dyn Clock>,
        rng: &Arc<Rng>,
    ) -> Result<Option<Arc<Objects>>, Failure> {
        let Self::Objects(url) = self else {
            return Ok(None);
        };
        let target = Target {
            url: url.clone(),
            options: settings.pairs()?,
            use_options: ObjectOptions {
                bytes_per_second: settings.chunks_bandwidth.map(|size| size.0),
                ..ObjectOptions::default()
            },
        };
        let connected = connect(&target, Arc::clone(clock), Arc::clone(rng));
        let objects = connected.map_err(|error| {
            let kind = match &error {
                ConnectError::Url(_) | ConnectError::Option(_) | ConnectError::Build(_) => {
                    FailureKind::Usage
                }
            };
            Failure::new(kind, format_args!("chunks is {url}: {error}"))
        })?;
        Ok(Some(Arc::new(objects)))
    }

    /// Takes the installation of `store` for this tier, or finds that it has it; and the prefix of its
    /// object store before that. A store in the data directory itself that says nothing is left as it is for
    /// local packs: nobody else uses it.
    ///
    /// # Errors
    ///
    /// The installation has another one, or the object store is not to be used; nothing was changed.
    pub(crate) async fn claim(
        &self,
        store: &Store,
        is_embedded: bool,
        objects: Option<(&Objects, bool, &dyn Clock)>,
    ) -> Result<(), Failure> {
        let said = store.tier().await.map_err(of_store)?;
        if let Some((objects, has_packs, clock)) = objects
            && said.is_none_or(|said| said == self.to_string())
        {
            let installation = store.format().await.map_err(of_store)?.installation;
            let owner = format!("{:032x}", u128::from_be_bytes(installation));
            let claimed = tokio::select! {
                claimed = objects.claim(&owner, has_packs) => claimed,
                () = clock.sleep(START_TIME) => {
                    Err(ObjectError::Unavailable(format!("no answer within {START_TIME:?}")))
                }
            };
            claimed.map_err(|error| self.of_claim(&error, has_packs))?;
        }
        let found = if is_embedded && !self.is_shared() {
            let found = store.tier().await.map_err(of_store)?;
            found.unwrap_or_else(|| TIER_LOCAL.to_owned())
        } else {
            match store
                .claim_tier(&self.to_string())
                .await
                .map_err(of_store)?
            {
                Ok(()) => return Ok(()),
                Err(found) => found,
            }
        };
        if found == self.to_string() {
            return Ok(());
        }
        let message = if found == TIER_LOCAL {
            format!(
                "the content of this installation's files is in the data directory of the server that \
                 made it: leave out --chunks {self}, or make a new installation with it (another \
                 --data-dir, and another fdb_prefix with FoundationDB); nothing was changed"
            )
        } else {
            format!(
                "the content of this installation's files is in {found}, not in {self}: start with \
                 --chunks {found}; nothing was changed"
            )
        };
        Err(Failure::new(FailureKind::Conflict, message))
    }
}

impl Tier {
    /// Why an object store is not to be used, and what to do.
    fn of_claim(&self, error: &ObjectError, has_packs: bool) -> Failure {
        let (kind, todo) = match error {
            ObjectError::Missing(_) if has_packs => (
                FailureKind::Conflict,
                "files have content there, and it is not to be found: is it the right bucket, prefix and \
                 endpoint?",
            ),
            ObjectError::Missing(_) => (
                FailureKind::NotFound,
                "make the bucket, or name another; is it the right endpoint?",
            ),
            ObjectError::Exists(_) => (
                FailureKind::Conflict,
                "another installation has its chunks there: choose another prefix",
            ),
            ObjectError::Refused(_) => (
                FailureKind::Denied,
                "give credentials that may read, write and delete objects there (AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY, or what the provider has)",
            ),
            ObjectError::Unavailable(_) => (
                FailureKind::Retry,
                "is it the right endpoint, and does it run? A server that runs already goes on without it",
            ),
        };
        Failure::new(
            kind,
            format_args!("chunks is {self}: {error}; {todo}; nothing was changed"),
        )
    }
}

/// The content of files.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// In the data directory.
    Local(Arc<LocalStore>),
    /// Shared with other servers.
    Shared(SharedStore),
}

impl Content {
    /// Opens a shared tier whose ledger is in `kv`.
    ///
    /// # Errors
    ///
    /// Says what is in the way.
    pub(crate) async fn open_shared(
        kv: Arc<dyn Kv>,
        (clock, rng): (Arc<dyn Clock>, Arc<Rng>),
        (objects, disk): (Option<Arc<Objects>>, Option<Arc<DiskCache>>),
        options: SharedOptions,
        tasks: Tasks,
    ) -> Result<SharedStore, Failure> {
        let parts = SharedParts {
            ledger: Arc::new(KvLedger::new(kv, Arc::clone(&clock), rng)),
            cycles: Arc::new(KnownCycle::default()),
            objects,
            disk,
            clock,
            tasks,
        };
        let opened = SharedStore::open(parts, options).await;
        opened.map_err(|error| {
            let message = format!("read the places of shared chunks: {error}");
            Failure::new(FailureKind::Retry, message)
        })
    }

    /// As what stands above it uses it.
    pub(crate) fn store(&self) -> Arc<dyn ChunkStore> {
        match self {
            Self::Local(local) => Arc::<LocalStore>::clone(local),
            Self::Shared(shared) => Arc::new(shared.clone()),
        }
    }

    /// Chunks stored, if that is known.
    pub(crate) fn chunks(&self) -> u64 {
        self.local().map_or(0, |local| local.counts().chunks)
    }

    /// Bytes of local packs.
    pub(crate) fn pack_bytes(&self) -> u64 {
        self.local().map_or(0, |local| local.counts().stored_bytes)
    }

    /// Times what was put was made durable.
    pub(crate) fn syncs(&self) -> u64 {
        match self {
            Self::Local(local) => local.counts().syncs,
            Self::Shared(shared) => shared.counters().syncs.count(),
        }
    }

    /// Holds that keep collections waiting.
    pub(crate) fn holds(&self) -> u64 {
        match self {
            Self::Local(local) => local.holds(),
            Self::Shared(shared) => shared.holds(),
        }
    }

    /// The shared tier, if it is one.
    pub(crate) fn shared(&self) -> Option<&SharedStore> {
        match self {
            Self::Local(_) => None,
            Self::Shared(shared) => Some(shared),
        }
    }

    /// The object store, if there is one.
    pub(crate) fn objects(&self) -> Option<&Objects> {
        self.shared().and_then(SharedStore::objects)
    }

    /// A number of a shared tier; 0 without.
    pub(crate) fn of_shared(&self, number: fn(&SharedStore) -> u64) -> u64 {
        self.shared().map_or(0, number)
    }

    fn local(&self) -> Option<&LocalStore> {
        match self {
            Self::Local(local) => Some(local),
            Self::Shared(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_are_text_both_ways() {
        for (text, tier) in [
            ("local", Tier::Local),
            ("kv", Tier::Kv),
            ("s3://bucket/a/b", Tier::Objects("s3://bucket/a/b".into())),
            (
                "file:///srv/chunks",
                Tier::Objects("file:///srv/chunks".into()),
            ),
        ] {
            assert_eq!(text.parse(), Ok(tier.clone()));
            assert_eq!(tier.to_string(), text);
        }
        assert_eq!("s3://b/p/".parse(), "s3://b/p".parse::<Tier>());
        for wrong in [
            "",
            "Local",
            "etcd:",
            "s3:",
            "s3://key:secret@bucket/x",
            "ftp://x/y",
        ] {
            assert!(wrong.parse::<Tier>().is_err(), "{wrong}");
        }
    }
}
