//! Where the chunks of an installation are.

use super::{Store, StoreError, damaged};
use crate::keyspace;
use crate::kv::{Isolation, RangeLimit, Transaction};
use crate::record::place::TierRecord;
use crate::transact::Budget;

/// The tier of an installation whose record says none: chunks are in the data directory.
pub const TIER_LOCAL: &str = "local";

impl Store {
    /// Takes the installation for servers whose chunks are in `tier`, unless it has another one: then
    /// `Err` within `Ok` is that. One that says nothing and has been used is [`TIER_LOCAL`].
    ///
    /// # Errors
    ///
    /// The store fails or the record is damaged.
    ///
    /// # Cancellation
    ///
    /// Safe to drop: it is the installation's, or not.
    pub async fn claim_tier(&self, tier: &str) -> Result<Result<(), String>, StoreError> {
        let record = TierRecord {
            tier: tier.to_owned(),
        };
        let record = &record;
        self.transactor
            .transact(Budget::default(), |txn, _| {
                // Right however often it is applied: what it has written it finds.
                Box::pin(async move {
                    let found = match read_tier(&*txn).await? {
                        None if is_used(&*txn).await? => TIER_LOCAL.to_owned(),
                        None => {
                            txn.set(&keyspace::tier(), &record.encode());
                            return Ok(Ok(()));
                        }
                        Some(found) => found,
                    };
                    if found == record.tier {
                        return Ok(Ok(()));
                    }
                    Ok::<_, StoreError>(Err(found))
                })
            })
            .await
    }

    /// The tier that the installation says; `None` if it says nothing.
    ///
    /// # Errors
    ///
    /// The store fails or the record is damaged.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn tier(&self) -> Result<Option<String>, StoreError> {
        self.transactor
            .transact(Budget::default(), |txn, _| Box::pin(read_tier(&*txn)))
            .await
    }
}

async fn read_tier(txn: &dyn Transaction) -> Result<Option<String>, StoreError> {
    let value = txn.get(&keyspace::tier(), Isolation::Serializable).await?;
    let record = value.map(|value| TierRecord::decode(&value)).transpose();
    Ok(record
        .map_err(damaged("place of chunks"))?
        .map(|record| record.tier))
}

/// Whether a server has come as far as making a token or a workspace, which the first start does
/// after it has claimed its tier.
async fn is_used(txn: &dyn Transaction) -> Result<bool, StoreError> {
    for range in [keyspace::tokens(), keyspace::all_workspaces()] {
        let limit = RangeLimit::pairs(1);
        let page = txn
            .get_range(&range, limit, Isolation::Serializable)
            .await?;
        if !page.pairs.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::{ManualClock, Rng, TenantId, Timestamp};

    use super::*;
    use crate::kv::memory::MemoryKv;

    async fn store() -> Store {
        let clock = Arc::new(ManualClock::new(Timestamp::new(1, 0)));
        let kv = Arc::new(MemoryKv::new(clock.clone()));
        let store = Store::open(kv, clock, Arc::new(Rng::seeded(1))).await;
        store.unwrap()
    }

    #[tokio::test]
    async fn a_tier_is_claimed_once() {
        let fresh = store().await;
        assert_eq!(fresh.tier().await, Ok(None));
        assert_eq!(fresh.claim_tier("kv").await, Ok(Ok(())));
        assert_eq!(fresh.claim_tier("kv").await, Ok(Ok(())));
        let other = fresh.claim_tier(TIER_LOCAL).await;
        assert_eq!(other, Ok(Err("kv".to_owned())));
        assert_eq!(fresh.tier().await, Ok(Some("kv".to_owned())));
        let used = store().await;
        used.create_token(TenantId::DEFAULT).await.unwrap();
        let other = used.claim_tier("kv").await;
        assert_eq!(other, Ok(Err(TIER_LOCAL.to_owned())));
        assert_eq!(used.claim_tier(TIER_LOCAL).await, Ok(Ok(())));
        assert_eq!(used.tier().await, Ok(None), "as it was");
    }
}
