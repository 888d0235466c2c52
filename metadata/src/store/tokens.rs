//! API tokens: made, listed, ended.

use base::TenantId;

use super::tickets::hash;
use super::{Store, StoreError, damaged};
use crate::keyspace::{self, Key};
use crate::kv::{Isolation, KeyRange, RangeLimit};
use crate::record::check_label;
use crate::record::workspace::TokenRecord;
use crate::transact::Earlier;

/// Most tokens of a tenant.
const TOKENS_MAX: usize = 1000;

/// Tokens read at a time.
const PAGE: usize = 500;

/// A token that exists; its text is nowhere stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInfo {
    /// Names it, in the operation log too: the first 8 bytes of its hash. Grants nothing.
    pub id: [u8; 8],
    /// What it is.
    pub record: TokenRecord,
}

impl Store {
    /// Makes an API token for a tenant and returns its text, which is nowhere stored. It has no name:
    /// a server makes it for itself.
    ///
    /// # Errors
    ///
    /// The store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: the token may exist, and nobody knows its text.
    pub async fn create_token(&self, tenant: TenantId) -> Result<String, StoreError> {
        let text = self.ticket_text();
        self.write_token(tenant, &text, String::new()).await?;
        Ok(text)
    }

    /// Makes an API token with a name, which tells people what it is for. Returns its text, which is
    /// nowhere stored.
    ///
    /// # Errors
    ///
    /// `Invalid` for a name that is empty or not acceptable, `Refused` if the tenant has too many; or
    /// the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: the token may exist, and nobody knows its text.
    pub async fn create_named_token(
        &self,
        tenant: TenantId,
        name: &str,
    ) -> Result<(String, TokenInfo), StoreError> {
        let invalid = |why: String| StoreError::Invalid { why };
        if name.is_empty() {
            return Err(invalid("a token needs a name: say what it is for".into()));
        }
        check_label("name of a token", name).map_err(|error| invalid(error.to_string()))?;
        if self.tokens(tenant).await?.len() >= TOKENS_MAX {
            let why = format!(
                "the tenant has {TOKENS_MAX} API tokens, the most there may be: revoke some of them"
            );
            return Err(StoreError::Refused { why });
        }
        let text = self.ticket_text();
        let record = self.write_token(tenant, &text, name.to_owned()).await?;
        let id = super::token_prefix(&text);
        Ok((text, TokenInfo { id, record }))
    }

    /// Makes `text` an API token of a tenant.
    ///
    /// # Errors
    ///
    /// The store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: the token may exist.
    pub async fn add_token(&self, tenant: TenantId, text: &str) -> Result<(), StoreError> {
        self.write_token(tenant, text, String::new())
            .await
            .map(drop)
    }

    async fn write_token(
        &self,
        tenant: TenantId,
        text: &str,
        name: String,
    ) -> Result<TokenRecord, StoreError> {
        let record = TokenRecord {
            tenant,
            created: self.clock.wall(),
            name,
        };
        let (key, kept) = (&keyspace::token(&hash(text)), &record);
        self.effect(|txn, _| {
            // A blind write of a text that nobody knows before this ends, but for a call with a key: once
            // that is done it does not get here again.
            Box::pin(async move {
                txn.set(key, &kept.encode());
                Ok(kept.clone())
            })
        })
        .await
    }

    /// Whose API token this text is.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    pub async fn check_token(&self, text: &str) -> Result<TenantId, StoreError> {
        let found = self
            .read(&keyspace::token(&hash(text)), "API token")
            .await?;
        Ok(TokenRecord::decode(&found)
            .map_err(damaged("API token"))?
            .tenant)
    }

    /// The API tokens of a tenant, in the order of their hashes.
    ///
    /// # Errors
    ///
    /// The store fails, or a record is damaged.
    pub async fn tokens(&self, tenant: TenantId) -> Result<Vec<TokenInfo>, StoreError> {
        let mut range = keyspace::tokens();
        let mut tokens = Vec::new();
        loop {
            let page = self.page(&range, RangeLimit::pairs(PAGE)).await?;
            for (key, value) in &page.pairs {
                let record = TokenRecord::decode(value).map_err(damaged("API token"))?;
                if record.tenant == tenant {
                    let id = prefix_in_key(key)?;
                    tokens.push(TokenInfo { id, record });
                }
            }
            match page.pairs.last() {
                // Two that are made at once may go beyond the limit.
                Some((last, _)) if page.more && tokens.len() < TOKENS_MAX * 2 => {
                    range.start = KeyRange::key(last).end;
                }
                _ => return Ok(tokens),
            }
        }
    }

    /// Ends an API token: calls that show it are refused from now on.
    ///
    /// # Errors
    ///
    /// `NotFound`, also for a token of another tenant; or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: the token may or may not have ended.
    pub async fn revoke_token(&self, tenant: TenantId, id: [u8; 8]) -> Result<(), StoreError> {
        let range = &keyspace::tokens_from(&id);
        self.effect(|txn, earlier| {
            Box::pin(async move {
                let page = txn
                    .get_range(range, RangeLimit::pairs(2), Isolation::Serializable)
                    .await?;
                for (key, value) in &page.pairs {
                    let record = TokenRecord::decode(value).map_err(damaged("API token"))?;
                    if record.tenant == tenant {
                        txn.clear(key);
                        return Ok(());
                    }
                }
                // Gone after an attempt of ours whose outcome was unknown: that ended it.
                if earlier == Earlier::Unknown {
                    return Ok(());
                }
                Err(StoreError::NotFound {
                    what: "API token".into(),
                })
            })
        })
        .await
    }
}

fn prefix_in_key(key: &[u8]) -> Result<[u8; 8], StoreError> {
    let damaged = || StoreError::Corrupt {
        what: "API token".into(),
        why: "its key is damaged".into(),
    };
    match keyspace::decode(key) {
        Ok(Key::Token(hash)) => hash.first_chunk().copied().ok_or_else(damaged),
        Ok(_) | Err(_) => Err(damaged()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::{ManualClock, Rng, Timestamp};

    use super::*;
    use crate::kv::memory::MemoryKv;

    #[tokio::test]
    async fn tokens_are_listed_by_tenant_and_end_when_they_are_revoked() {
        let clock = Arc::new(ManualClock::new(Timestamp::new(5, 0)));
        let kv = Arc::new(MemoryKv::new(clock.clone()));
        let store = Store::open(kv, clock, Arc::new(Rng::seeded(1)))
            .await
            .unwrap();
        let (one, other) = (TenantId::DEFAULT, TenantId::new(7));
        let own = store.create_token(one).await.unwrap();
        let (text, made) = store.create_named_token(one, "ci").await.unwrap();
        store.add_token(other, "theirs").await.unwrap();
        assert_eq!(made.record.name, "ci");
        assert_eq!(store.check_token(&text).await, Ok(one));
        let mut names: Vec<_> = store.tokens(one).await.unwrap();
        names.sort_by_key(|token| token.record.name.clone());
        assert_eq!(names.len(), 2);
        assert_eq!(names[1], made);
        assert_eq!(names[0].id, crate::store::token_prefix(&own));
        let gone = StoreError::NotFound {
            what: "API token".into(),
        };
        assert_eq!(store.revoke_token(other, made.id).await, Err(gone.clone()));
        store.revoke_token(one, made.id).await.unwrap();
        assert_eq!(store.check_token(&text).await, Err(gone.clone()));
        assert_eq!(store.check_token(&own).await, Ok(one));
        assert_eq!(store.revoke_token(one, made.id).await, Err(gone));
        for name in ["", "a\nb", &"x".repeat(257)] {
            let refused = store.create_named_token(one, name).await.unwrap_err();
            assert!(matches!(refused, StoreError::Invalid { .. }), "{refused}");
        }
    }
}
