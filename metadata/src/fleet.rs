//! Gateways that share a store: who lives, and who is told what.
//!
//! The rules are in `docs/design/0015-fleet.md`. This is what of them concerns the store: leases, what is
//! seen of those of others, and notices. Who may answer from memory is decided by the gateway, with
//! the times that [`Renewal`] tells.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

use base::simulation::{Rule, is_kept};
use base::{Clock, GatewayId, SessionId, Timestamp};
use bytes::Bytes;

use crate::keyspace;
use crate::kv::{Isolation, Kv, KvError, RangeLimit, Transaction};
use crate::record::RecordError;
use crate::record::gateway::{GatewayState, LeaseRecord, NoticeRecord};
use crate::record::session::OwnerRecord;

/// The gateway that an owner record names when nobody owns the session.
pub const NOBODY: GatewayId = GatewayId::new(0);

/// A gateway renews its lease so many times in the lease's length.
pub const RENEWALS_PER_LEASE: u32 = 4;

/// A lease that was seen not to change for so many lengths is removed by whoever sees it.
const REMOVED_AFTER_LEASES: u32 = 30;

/// So far the times of day of gateways may be apart: more than any clock that is kept, and any renewal that is seen late.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(15);

/// Most leases that are read. A fleet is far smaller.
const GATEWAYS_MAX: usize = 1024;

/// Most notices that are read at a time. Those beyond are obeyed after these.
const NOTICES_MAX: usize = 1000;

/// Most owner records that are read in one transaction.
const OWNERS_MAX: usize = 100;

/// Attempts at a transaction before its caller hears of it. It comes again soon.
const ATTEMPTS_MAX: u32 = 5;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FleetError {
    /// The store failed; a later try may succeed.
    #[error("use the gateways' records")]
    Kv(#[from] KvError),
    /// A record is damaged or of another release.
    #[error("decode the gateways' records")]
    Record(#[from] RecordError),
    /// The store is not the one that was joined: it is empty, or of another installation.
    #[error(
        "the metadata store is not the one that this gateway joined: it is empty or of another installation. \
         Is a restore under way, or does the cluster file lead to another cluster? Calls wait until it is \
         back; if it does not come back, end the gateway"
    )]
    Foreign,
}

/// What is known of another gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number.
    pub id: GatewayId,
    /// Its lease as last seen.
    pub lease: LeaseRecord,
    /// It may be taken for dead.
    pub is_dead: bool,
}

/// What was seen of the leases of others.
#[derive(Clone, Debug)]
pub struct Sightings {
    /// How long our own lease is.
    lease: Duration,
    seen: HashMap<GatewayId, Seen>,
    /// A mutation: a gateway stays dead whatever its counter is now.
    #[cfg(test)]
    ignores_counters: bool,
    /// A mutation: others are waited for as long as our own lease is.
    #[cfg(test)]
    ignores_lengths: bool,
}

#[derive(Clone, Debug)]
struct Seen {
    lease: LeaseRecord,
    /// When the counter was first seen, by our clock. Not before it was written.
    since: Duration,
    /// How far its time of day was ahead of ours then, in milliseconds.
    ahead_ms: i64,
}

impl Sightings {
    /// Nothing seen yet. `lease` is how long our own is.
    #[must_use]
    pub fn new(lease: Duration) -> Self {
        Self {
            lease,
            seen: HashMap::new(),
            #[cfg(test)]
            ignores_counters: false,
            #[cfg(test)]
            ignores_lengths: false,
        }
    }

    /// Takes note of all leases there are. `now` is a time after they were read, and `wall` the time of day then.
    pub fn saw(&mut self, now: Duration, wall: Timestamp, leases: Vec<(GatewayId, LeaseRecord)>) {
        let mut seen = HashMap::with_capacity(leases.len());
        for (id, lease) in leases {
            let (since, ahead_ms) = match self.seen.get(&id) {
                Some(before) if before.lease.counter == lease.counter => {
                    (before.since, before.ahead_ms)
                }
                _ => (now, ahead_ms(lease.now, wall)),
            };
            seen.insert(
                id,
                Seen {
                    lease,
                    since,
                    ahead_ms,
                },
            );
        }
        self.seen = seen;
    }

    /// Whether a gateway whose lease has this counter is dead: the counter was seen for longer than
    /// the lease is long.
    #[must_use]
    pub fn is_dead(&self, id: GatewayId, counter: u64, now: Duration) -> bool {
        self.seen.get(&id).is_some_and(|seen| {
            let patience = self.patience(seen);
            self.is_as_seen(seen, counter) && now.saturating_sub(seen.since) > patience
        })
    }

    /// For how long a counter must stand still before its gateway is dead.
    fn patience(&self, seen: &Seen) -> Duration {
        let length = seen.lease.lease;
        #[cfg(test)]
        let length = if self.ignores_lengths {
            self.lease
        } else {
            length
        };
        // Clocks run about equally fast.
        length.saturating_add(length / 8)
    }

    fn is_as_seen(&self, seen: &Seen, counter: u64) -> bool {
        #[cfg(test)]
        if self.ignores_counters {
            return true;
        }
        seen.lease.counter == counter || !is_kept(Rule::Counter)
    }

    /// The gateways whose leases there are.
    pub fn peers(&self, now: Duration) -> impl Iterator<Item = Peer> {
        self.seen.iter().map(move |(id, seen)| Peer {
            id: *id,
            lease: seen.lease.clone(),
            is_dead: self.is_dead(*id, seen.lease.counter, now),
        })
    }

    /// One gateway.
    #[must_use]
    pub fn peer(&self, id: GatewayId, now: Duration) -> Option<Peer> {
        self.seen.get(&id).map(|seen| Peer {
            id,
            lease: seen.lease.clone(),
            is_dead: self.is_dead(id, seen.lease.counter, now),
        })
    }

    /// The gateways that live whose time of day is not that of most, ourselves (`own`) among them: by how many
    /// milliseconds it is ahead of ours.
    #[must_use]
    pub fn with_wrong_clocks(&self, own: GatewayId, now: Duration) -> Vec<(GatewayId, i64)> {
        let living = self
            .seen
            .iter()
            .filter(|(id, seen)| !self.is_dead(**id, seen.lease.counter, now));
        let mut times: Vec<(GatewayId, i64)> =
            living.map(|(id, seen)| (*id, seen.ahead_ms)).collect();
        times.push((own, 0));
        times.sort_by_key(|(_, ahead)| *ahead);
        // Of two that differ nobody can say which is right: then both are wrong.
        let Some((low, high)) = times
            .get(times.len().saturating_sub(1) / 2)
            .zip(times.get(times.len() / 2))
            .map(|((_, low), (_, high))| (*low, *high))
        else {
            return Vec::new();
        };
        // A renewal is seen with our next one.
        let bound = CLOCKS_APART_MAX.saturating_add(self.lease);
        let bound = i64::try_from(bound.as_millis()).unwrap_or(i64::MAX);
        let is_wrong =
            |ahead: i64| ahead < high.saturating_sub(bound) || ahead > low.saturating_add(bound);
        times.retain(|(_, ahead)| is_wrong(*ahead));
        times
    }

    fn removable(&self, now: Duration) -> Vec<(GatewayId, u64)> {
        let old = self.seen.iter().filter(|(_, seen)| {
            let long = self.patience(seen).saturating_mul(REMOVED_AFTER_LEASES);
            now.saturating_sub(seen.since) > long
        });
        old.map(|(id, seen)| (*id, seen.lease.counter)).collect()
    }
}

fn ahead_ms(theirs: Timestamp, ours: Timestamp) -> i64 {
    let [theirs, ours] =
        [theirs, ours].map(|time| i64::try_from(time.millis()).unwrap_or(i64::MAX));
    theirs.saturating_sub(ours)
}

/// A gateway's own lease.
#[derive(Debug)]
pub struct Member {
    id: GatewayId,
    /// As it will be renewed.
    lease: LeaseRecord,
    /// The store's format record when it was joined, if it had one.
    joined: Option<Option<Bytes>>,
    /// Notices that were obeyed, which the next renewal removes.
    obeyed: Vec<(SessionId, u64)>,
    /// Notices that were read and are to be obeyed before the next renewal.
    read: Vec<(SessionId, u64)>,
}

/// What came of a renewal.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// The lease holds from then on.
    pub began: Duration,
    /// Sessions that must be given up before the next renewal.
    pub notices: Vec<SessionId>,
    /// The leases of the others.
    pub others: Vec<(GatewayId, LeaseRecord)>,
}

impl Member {
    /// A gateway that has not joined yet. Its first renewal joins.
    #[must_use]
    pub fn new(id: GatewayId, lease: LeaseRecord) -> Self {
        Self {
            id,
            lease,
            joined: None,
            obeyed: Vec::new(),
            read: Vec::new(),
        }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> GatewayId {
        self.id
    }

    /// Whether the store is (still) the one that was joined: its format record is the same.
    ///
    /// # Errors
    ///
    /// The store fails.
    ///
    /// # Cancellation
    ///
    /// Safe.
    pub async fn is_joined(&self, kv: &dyn Kv) -> Result<bool, KvError> {
        let Some(joined) = &self.joined else {
            return Ok(true);
        };
        let txn = kv.begin();
        let format = txn.get(&keyspace::format(), Isolation::Snapshot).await?;
        Ok(format == *joined)
    }

    /// What the next renewal tells the others.
    pub fn tell(&mut self, state: GatewayState, sessions: u32) {
        self.lease.state = state;
        self.lease.sessions = sessions;
    }

    /// Renews the lease, or joins. The sessions named by the renewal before have been given up.
    ///
    /// # Errors
    ///
    /// The store fails, is not the one that was joined, or a record is damaged. Whether the lease was renewed is
    /// then not known, and does not matter: nothing holds on account of it, and the next renewal counts on.
    ///
    /// # Cancellation
    ///
    /// Safe: as after an error.
    pub async fn renew(&mut self, kv: &dyn Kv, clock: &dyn Clock) -> Result<Renewal, FleetError> {
        self.obeyed.append(&mut self.read);
        let mut attempt = 0;
        loop {
            attempt += 1;
            // An earlier attempt may have been committed, long ago even. If this one had the same
            // counter, others would take us for dead while the lease still holds for us.
            self.lease.counter += 1;
            self.lease.now = clock.wall();
            let began = clock.monotonic();
            match self.try_renew(kv, began).await {
                Ok(renewal) => {
                    self.obeyed.clear();
                    return Ok(renewal);
                }
                Err(FleetError::Kv(error)) if is_worth_it(&error) && attempt < ATTEMPTS_MAX => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn try_renew(&mut self, kv: &dyn Kv, began: Duration) -> Result<Renewal, FleetError> {
        let mut txn = kv.begin();
        let key = keyspace::lease(self.id);
        // Written once, when the store is made. Another store must not be changed, and tells nothing of our sessions.
        let format = txn.get(&keyspace::format(), Isolation::Snapshot).await?;
        if self.joined.as_ref().is_some_and(|joined| *joined != format) {
            return Err(FleetError::Foreign);
        }
        // An attempt whose outcome is unknown must conflict with this one if it comes late.
        txn.get(&key, Isolation::Serializable).await?;
        let notices = read_notices(txn.as_ref(), self.id).await?;
        let others = read_leases(txn.as_ref(), self.id).await?;
        for (session, nonce) in &self.obeyed {
            if notices.contains(&(*session, *nonce)) {
                txn.clear(&keyspace::notice(self.id, *session));
            }
        }
        txn.set(&key, &self.lease.encode());
        txn.commit().await?;
        self.joined = Some(format);
        self.read = notices
            .into_iter()
            .filter(|notice| !self.obeyed.contains(notice))
            .collect();
        Ok(Renewal {
            began,
            notices: self.read.iter().map(|(session, _)| *session).collect(),
            others,
        })
    }

    /// Leaves: the lease and the notices are removed. For a gateway that has let go of all sessions.
    ///
    /// # Errors
    ///
    /// The store fails; others will see that the lease is not renewed.
    ///
    /// # Cancellation
    ///
    /// Safe: the gateway may or may not have left.
    pub async fn leave(&self, kv: &dyn Kv) -> Result<(), FleetError> {
        let mut txn = kv.begin();
        txn.clear(&keyspace::lease(self.id));
        txn.clear_range(&keyspace::notices(self.id));
        txn.commit().await?;
        Ok(())
    }
}

/// Removes leases that were not renewed for long, with the notices to those gateways.
///
/// # Errors
///
/// The store fails, or a record is damaged.
///
/// # Cancellation
///
/// Safe.
pub async fn remove_dead(
    kv: &dyn Kv,
    seen: &Sightings,
    now: Duration,
) -> Result<Vec<GatewayId>, FleetError> {
    let mut removed = Vec::new();
    for (id, counter) in seen.removable(now) {
        let mut txn = kv.begin();
        let key = keyspace::lease(id);
        let found = txn.get(&key, Isolation::Serializable).await?;
        let Some(found) = found.map(|found| LeaseRecord::decode(&found)).transpose()? else {
            continue;
        };
        if found.counter != counter {
            continue;
        }
        txn.clear(&key);
        txn.clear_range(&keyspace::notices(id));
        match txn.commit().await {
            Ok(_) => removed.push(id),
            Err(error) if is_worth_it(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(removed)
}

/// Whether there is no notice of a session to a gateway (any more).
///
/// # Errors
///
/// The store fails.
///
/// # Cancellation
///
/// Safe.
pub async fn is_obeyed(
    kv: &dyn Kv,
    gateway: GatewayId,
    session: SessionId,
) -> Result<bool, FleetError> {
    Ok(!has_notice(kv.begin().as_ref(), gateway, session).await?)
}

/// Who owns sessions, in the order in which they are given. `None` for a session that nobody ever
/// owned, or that was closed.
///
/// # Errors
///
/// The store fails, or a record is damaged.
///
/// # Cancellation
///
/// Safe.
pub async fn owners(
    kv: &dyn Kv,
    sessions: &[SessionId],
) -> Result<Vec<Option<OwnerRecord>>, FleetError> {
    let mut owners = Vec::with_capacity(sessions.len());
    for some in sessions.chunks(OWNERS_MAX) {
        let txn = kv.begin();
        for session in some {
            owners.push(read_owner(txn.as_ref(), *session).await?);
        }
    }
    Ok(owners)
}

/// The gateways that renew their leases. Looks twice, and waits in between for as long as the longest lease is: at
/// most [`LOOK_MAX`], and not at all if there are no leases.
///
/// # Errors
///
/// The store fails, or a record is damaged.
///
/// # Cancellation
///
/// Safe.
pub async fn living(
    kv: &dyn Kv,
    clock: &dyn Clock,
) -> Result<Vec<(GatewayId, LeaseRecord)>, FleetError> {
    let before: HashMap<_, _> = leases(kv).await?.into_iter().collect();
    let Some(longest) = before.values().map(|lease| lease.lease).max() else {
        return Ok(Vec::new());
    };
    clock.sleep(longest.clamp(LOOK_MIN, LOOK_MAX)).await;
    let mut now = leases(kv).await?;
    now.retain(|(id, lease)| {
        let seen = before.get(id);
        seen.is_none_or(|seen| seen.counter != lease.counter)
    });
    Ok(now)
}

/// How long it is looked whether leases are renewed, at least.
const LOOK_MIN: Duration = Duration::from_secs(2);

/// How long it is looked whether leases are renewed, at most: as long as a lease may be.
pub const LOOK_MAX: Duration = Duration::from_secs(60);

/// The leases of all gateways.
///
/// # Errors
///
/// The store fails, or a record is damaged.
///
/// # Cancellation
///
/// Safe.
pub async fn leases(kv: &dyn Kv) -> Result<Vec<(GatewayId, LeaseRecord)>, FleetError> {
    read_leases(kv.begin().as_ref(), NOBODY).await
}

pub(crate) fn write_notice(
    txn: &mut dyn Transaction,
    gateway: GatewayId,
    session: SessionId,
    nonce: u64,
) {
    let notice = NoticeRecord { nonce };
    txn.set(&keyspace::notice(gateway, session), &notice.encode());
}

/// Tells the owner of a session that it ends: whoever is told of the end hears nothing old afterwards
/// for longer than until the owner's next renewal. For the transaction that removes the owner record.
pub(crate) async fn tell_owner(
    txn: &mut dyn Transaction,
    session: SessionId,
    nonce: u64,
) -> Result<(), KvError> {
    let owner = match read_owner(txn, session).await {
        Ok(Some(owner)) => owner,
        Err(FleetError::Kv(error)) => return Err(error),
        // Who it was cannot be said, and a session with a damaged record must be possible to close.
        Ok(None) | Err(FleetError::Record(_) | FleetError::Foreign) => return Ok(()),
    };
    // One that has left has nothing in memory, and nobody would remove its notices.
    let lease = keyspace::lease(owner.gateway);
    if txn.get(&lease, Isolation::Serializable).await?.is_some() {
        write_notice(txn, owner.gateway, session, nonce);
    }
    Ok(())
}

pub(crate) async fn has_notice(
    txn: &dyn Transaction,
    gateway: GatewayId,
    session: SessionId,
) -> Result<bool, FleetError> {
    let key = keyspace::notice(gateway, session);
    Ok(txn.get(&key, Isolation::Snapshot).await?.is_some())
}

pub(crate) async fn read_owner(
    txn: &dyn Transaction,
    session: SessionId,
) -> Result<Option<OwnerRecord>, FleetError> {
    let key = keyspace::session_owner(session);
    let found = txn.get(&key, Isolation::Serializable).await?;
    let owner = found.map(|found| OwnerRecord::decode(&found)).transpose()?;
    Ok(owner)
}

pub(crate) async fn read_lease(
    txn: &dyn Transaction,
    gateway: GatewayId,
) -> Result<Option<LeaseRecord>, FleetError> {
    let key = keyspace::lease(gateway);
    let found = txn.get(&key, Isolation::Serializable).await?;
    let lease = found.map(|found| LeaseRecord::decode(&found)).transpose()?;
    Ok(lease)
}

async fn read_notices(
    txn: &dyn Transaction,
    gateway: GatewayId,
) -> Result<Vec<(SessionId, u64)>, FleetError> {
    let range = keyspace::notices(gateway);
    let limit = RangeLimit::pairs(NOTICES_MAX);
    let page = txn
        .get_range(&range, limit, Isolation::Serializable)
        .await?;
    let mut notices = Vec::with_capacity(page.pairs.len());
    for (key, value) in page.pairs {
        let session =
            keyspace::decode_notice(&key).map_err(|_| RecordError::Field("notice key"))?;
        notices.push((session, NoticeRecord::decode(&value)?.nonce));
    }
    Ok(notices)
}

/// The leases of all gateways but one.
pub(crate) async fn read_leases(
    txn: &dyn Transaction,
    but: GatewayId,
) -> Result<Vec<(GatewayId, LeaseRecord)>, FleetError> {
    let limit = RangeLimit::pairs(GATEWAYS_MAX);
    let page = txn
        .get_range(&keyspace::leases(), limit, Isolation::Snapshot)
        .await?;
    let mut leases = Vec::with_capacity(page.pairs.len());
    for (key, value) in page.pairs {
        let id = keyspace::decode_lease(&key).map_err(|_| RecordError::Field("lease key"))?;
        if id != but {
            leases.push((id, LeaseRecord::decode(&value)?));
        }
    }
    Ok(leases)
}

fn is_worth_it(error: &KvError) -> bool {
    matches!(
        error,
        KvError::Conflict | KvError::VersionTooOld | KvError::OutcomeUnknown
    )
}
