//! Mount tickets: texts that carry a right, stored as hashes only, as API tokens are.

use base::{SessionId, TenantId, Timestamp};

use super::{Store, StoreError, damaged};
use crate::keyspace::{self, KeyReader};
use crate::kv::{Isolation, RangeLimit, Transaction};
use crate::record::workspace::{TicketRecord, Uses};
use crate::transact::Budget;

/// Length of a ticket's or token's text: 160 random bits in base 32.
pub const TICKET_TEXT_BYTES: usize = 32;

/// How long a MNT call that used a ticket for one mount has its answer when it is sent again: longer
/// than clients try to mount.
const SPENT_FOR_SECONDS: u64 = 300;

/// Most tickets of one session.
const TICKETS_MAX: usize = 1000;

/// A ticket that exists; its text is nowhere stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketInfo {
    /// Names the ticket, to revoke it: its hash in hexadecimal. Grants nothing.
    pub id: String,
    /// What it grants.
    pub record: TicketRecord,
}

/// Most tickets of one session that are read: two that are made at once may go beyond the limit.
pub(super) const TICKETS_READ_MAX: usize = TICKETS_MAX * 2;

/// Letters of the base-32 alphabet: lower case, without what is easily confused.
const LETTERS: &[u8; 32] = b"abcdefghjkmnpqrstuvwxyz023456789";

/// What a new ticket is to grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTicket {
    /// The session it mounts.
    pub session: SessionId,
    /// Mount read-only, whatever the session allows.
    pub read_only: bool,
    /// Spent by the first mount.
    pub single_use: bool,
    /// The directory it mounts; empty for the root.
    pub directory: Vec<u8>,
    /// When it ends.
    pub expires: Option<Timestamp>,
}

impl NewTicket {
    /// A ticket for all of a session, without an end.
    #[must_use]
    pub fn of(session: SessionId) -> Self {
        Self {
            session,
            read_only: false,
            single_use: false,
            directory: Vec::new(),
            expires: None,
        }
    }
}

impl Store {
    /// A fresh ticket or token text.
    pub(super) fn ticket_text(&self) -> String {
        match &self.call {
            // So that it can be told again, and need not be stored.
            Some(call) => call.secret().to_owned(),
            None => text_of(&self.rng.bytes()),
        }
    }

    /// Makes a ticket and returns its text, which is nowhere stored.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Invalid` if the session has too many, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: the ticket may exist, and nobody knows its text.
    pub async fn create_ticket(
        &self,
        tenant: TenantId,
        ticket: NewTicket,
    ) -> Result<String, StoreError> {
        self.session(tenant, ticket.session).await?;
        if self.ticket_hashes(ticket.session).await?.len() >= TICKETS_MAX {
            // No part of what the call is answered by.
            let sweeping = self.for_call(None);
            sweeping.remove_expired_tickets(ticket.session).await?;
        }
        if self.ticket_hashes(ticket.session).await?.len() >= TICKETS_MAX {
            let why = format!(
                "session {} has {TICKETS_MAX} tickets, the most there may be: end some of them, or \
                 give them an end of their own",
                ticket.session
            );
            return Err(StoreError::Invalid { why });
        }
        let text = self.ticket_text();
        let (ticket, kept) = (&ticket, text.as_str());
        self.effect(|txn, _| {
            // Under a fresh hash whose text nobody knows before this ends, but for a call with a key: once
            // that is done it does not get here again.
            Box::pin(async move {
                // A session that is closed meanwhile must leave no ticket behind.
                let session = keyspace::session_meta(ticket.session);
                if txn.get(&session, Isolation::Serializable).await?.is_none() {
                    return Err(StoreError::NotFound {
                        what: format!("session {}", ticket.session),
                    });
                }
                write_ticket(txn, ticket, kept);
                Ok(kept.to_owned())
            })
        })
        .await
    }

    async fn remove_expired_tickets(&self, session: SessionId) -> Result<(), StoreError> {
        let now = self.clock.wall();
        for (hash, ticket) in self.ticket_records(session).await? {
            if ticket.is_expired(now) {
                match self.remove_ticket(session, &hash).await {
                    Ok(()) | Err(StoreError::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// What the ticket with this text grants. It is not used by this.
    ///
    /// # Errors
    ///
    /// `NotFound` for an unknown ticket, `Expired`, or the store fails.
    pub async fn find_ticket(&self, text: &str) -> Result<TicketRecord, StoreError> {
        let found = self
            .read(&keyspace::ticket(&hash(text)), "mount ticket")
            .await?;
        let ticket = TicketRecord::decode(&found).map_err(damaged("mount ticket"))?;
        if ticket.is_expired(self.clock.wall()) {
            return Err(StoreError::Expired {
                what: "mount ticket".into(),
            });
        }
        Ok(ticket)
    }

    /// What the ticket with this text grants. A ticket for one use is spent by this, for all calls
    /// but `xid`: a client that saw no answer sends the same call again, maybe to a server that was
    /// started anew.
    ///
    /// # Errors
    ///
    /// `NotFound` for an unknown or spent ticket, `Expired`, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: the ticket may be spent.
    pub async fn resolve_ticket(&self, text: &str, xid: u32) -> Result<TicketRecord, StoreError> {
        let ticket = self.find_ticket(text).await?;
        if ticket.uses != Uses::Many {
            self.spend(&hash(text), xid).await?;
        }
        Ok(ticket)
    }

    /// The tickets of a session that somebody can use.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    pub async fn tickets(
        &self,
        tenant: TenantId,
        session: SessionId,
    ) -> Result<Vec<TicketInfo>, StoreError> {
        self.session(tenant, session).await?;
        let found = self.ticket_records(session).await?;
        let usable = found
            .into_iter()
            .filter(|(_, ticket)| !matches!(ticket.uses, Uses::Spent { .. }));
        Ok(usable
            .map(|(hash, record)| TicketInfo {
                id: shown(hash),
                record,
            })
            .collect())
    }

    /// The tickets of a session that are stored, also those that nobody can use.
    async fn ticket_records(
        &self,
        session: SessionId,
    ) -> Result<Vec<([u8; 32], TicketRecord)>, StoreError> {
        let mut tickets = Vec::new();
        for hash in self.ticket_hashes(session).await? {
            let record = match self.read(&keyspace::ticket(&hash), "mount ticket").await {
                Ok(record) => TicketRecord::decode(&record).map_err(damaged("mount ticket"))?,
                // Revoked meanwhile.
                Err(StoreError::NotFound { .. }) => continue,
                Err(error) => return Err(error),
            };
            tickets.push((hash, record));
        }
        Ok(tickets)
    }

    /// Ends a ticket. Mounts made with it go on.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the store fails.
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: the ticket may or may not have ended.
    pub async fn revoke_ticket(
        &self,
        tenant: TenantId,
        session: SessionId,
        id: &str,
    ) -> Result<(), StoreError> {
        self.session(tenant, session).await?;
        let unknown = || StoreError::NotFound {
            what: "mount ticket".into(),
        };
        let hash = *blake3::Hash::from_hex(id)
            .map_err(|_| unknown())?
            .as_bytes();
        if !self.ticket_hashes(session).await?.contains(&hash) {
            return Err(unknown());
        }
        self.remove_ticket(session, &hash).await
    }

    /// Keeps a ticket for one use to the call that came first.
    async fn spend(&self, hash: &[u8; 32], xid: u32) -> Result<(), StoreError> {
        let spent = || StoreError::NotFound {
            what: "mount ticket".into(),
        };
        let until = self.clock.wall().plus_seconds(SPENT_FOR_SECONDS);
        self.transactor
            .transact(Budget::default(), |txn, _| {
                Box::pin(async move {
                    let key = keyspace::ticket(hash);
                    let found = txn.get(&key, Isolation::Serializable).await?;
                    let mut ticket = TicketRecord::decode(&found.ok_or_else(spent)?)
                        .map_err(damaged("mount ticket"))?;
                    match ticket.uses {
                        Uses::Many => {}
                        Uses::Once => {
                            ticket.uses = Uses::Spent { xid, until };
                            txn.set(&key, &ticket.encode());
                        }
                        // Also an attempt of ours whose outcome was unknown.
                        Uses::Spent { xid: first, .. } if first == xid => {}
                        Uses::Spent { .. } => return Err(spent()),
                    }
                    Ok(())
                })
            })
            .await?;
        Ok(())
    }

    async fn remove_ticket(&self, session: SessionId, hash: &[u8; 32]) -> Result<(), StoreError> {
        self.effect(|txn, earlier| {
            Box::pin(async move {
                let found = txn
                    .get(&keyspace::ticket(hash), Isolation::Serializable)
                    .await?;
                // Gone after an attempt of ours whose outcome was unknown: that spent it.
                if found.is_none() && earlier == crate::transact::Earlier::Failed {
                    return Err(StoreError::NotFound {
                        what: "mount ticket".into(),
                    });
                }
                txn.clear(&keyspace::ticket(hash));
                txn.clear(&keyspace::ticket_of(session, hash));
                Ok(())
            })
        })
        .await?;
        Ok(())
    }

    /// Hashes of a session's tickets.
    pub(super) async fn ticket_hashes(&self, id: SessionId) -> Result<Vec<[u8; 32]>, StoreError> {
        let range = keyspace::tickets_of(id);
        let limit = RangeLimit::pairs(TICKETS_READ_MAX);
        let pairs = self.pairs(&range, limit).await?;
        pairs.iter().map(|(key, _)| hash_in_index(key)).collect()
    }
}

/// Letters for random bytes.
pub(super) fn text_of(random: &[u8; TICKET_TEXT_BYTES]) -> String {
    let letter = |byte: &u8| LETTERS.get(usize::from(byte % 32)).copied().unwrap_or(b'a');
    random.iter().map(|byte| char::from(letter(byte))).collect()
}

pub(super) fn write_ticket(txn: &mut dyn Transaction, ticket: &NewTicket, text: &str) {
    let hash = hash(text);
    let record = TicketRecord {
        session: ticket.session,
        read_only: ticket.read_only,
        uses: if ticket.single_use {
            Uses::Once
        } else {
            Uses::Many
        },
        directory: ticket.directory.clone(),
        expires: ticket.expires,
    };
    txn.set(&keyspace::ticket(&hash), &record.encode());
    txn.set(&keyspace::ticket_of(ticket.session, &hash), &[]);
}

/// The ticket's hash in a key of [`keyspace::tickets_of`].
pub(super) fn hash_in_index(key: &[u8]) -> Result<[u8; 32], StoreError> {
    let mut fields = KeyReader::new(key);
    let mut read = || {
        let (_table, _session) = (fields.u8()?, fields.u64()?);
        fields.array()
    };
    read().map_err(|error: keyspace::KeyError| StoreError::Corrupt {
        what: "ticket index".into(),
        why: error.to_string(),
    })
}

/// What names the ticket with this text: [`TicketInfo::id`].
#[must_use]
pub fn ticket_id(text: &str) -> String {
    shown(hash(text))
}

fn shown(hash: [u8; 32]) -> String {
    blake3::Hash::from_bytes(hash).to_hex().to_string()
}

/// What names an API token in the operation log: the first bytes of the hash of its text.
#[must_use]
pub fn token_prefix(text: &str) -> [u8; 8] {
    hash(text).first_chunk().copied().unwrap_or_default()
}

/// What is stored of a text.
pub(super) fn hash(text: &str) -> [u8; 32] {
    *blake3::hash(text.as_bytes()).as_bytes()
}
