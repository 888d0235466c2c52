//! Where the content of files is, and how it is opened there.
//!
//! `docs/design/0014-shared-chunks.md`. Local packs belong to one data directory; a shared tier to the
//! installation, whose metadata store says which it is, so that no server uses another.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base::{Clock, Rng, Tasks};
use chunkstore::ChunkStore;
use chunkstore::local::LocalStore;
use chunkstore::shared::{KnownCycle, SharedOptions, SharedStore};
use metadata::kv::Kv;
use metadata::store::{Store, TIER_LOCAL};
use nfs_gateway::KvLedger;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::failure::{Failure, FailureKind};
use crate::server::of_store;

/// Where the content of files is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tier {
    /// In packs of the data directory.
    #[default]
    Local,
    /// In the metadata store.
    Kv,
}

/// Text that is no tier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no place for chunks: write `local` for the data directory, or `kv` for the metadata store"
)]
pub struct NoTier(String);

impl FromStr for Tier {
    type Err = NoTier;

    fn from_str(text: &str) -> Result<Self, NoTier> {
        match text {
            TIER_LOCAL => Ok(Self::Local),
            "kv" => Ok(Self::Kv),
            other => Err(NoTier(other.into())),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => TIER_LOCAL,
            Self::Kv => "kv",
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

    /// Takes the installation of `store` for this tier, or finds that it has it. A store in the data
    /// directory itself that says nothing is left as it is for local packs: nobody else uses it.
    ///
    /// # Errors
    ///
    /// The installation has another one; nothing was changed.
    pub(crate) async fn claim(&self, store: &Store, is_embedded: bool) -> Result<(), Failure> {
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
        clock: Arc<dyn Clock>,
        rng: Arc<Rng>,
        tasks: Tasks,
    ) -> Result<SharedStore, Failure> {
        let ledger = Arc::new(KvLedger::new(kv, clock, rng));
        let (cycles, options) = (Arc::new(KnownCycle::default()), SharedOptions::default());
        let opened = SharedStore::open(ledger, cycles, options, tasks).await;
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

    /// A number of a shared tier; 0 without.
    pub(crate) fn of_shared(&self, number: fn(&SharedStore) -> u64) -> u64 {
        match self {
            Self::Local(_) => 0,
            Self::Shared(shared) => number(shared),
        }
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
        for (text, tier) in [("local", Tier::Local), ("kv", Tier::Kv)] {
            assert_eq!(text.parse(), Ok(tier.clone()));
            assert_eq!(tier.to_string(), text);
        }
        for wrong in ["", "Local", "etcd:"] {
            assert!(wrong.parse::<Tier>().is_err(), "{wrong}");
        }
    }
}
