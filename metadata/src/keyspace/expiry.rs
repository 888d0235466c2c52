//! Keys of sessions in the order in which they end by themselves.

use base::{SessionId, TenantId, Timestamp};

use super::{encode_time, key, table};
use crate::kv::KeyRange;

/// That a session ends by itself at a time.
#[must_use]
pub fn expiry(time: Timestamp, tenant: TenantId, session: SessionId) -> Vec<u8> {
    let ids = [tenant.raw(), session.raw()].map(u64::to_be_bytes);
    key(table::EXPIRY, &[&encode_time(time), &ids.concat()])
}

/// The sessions that have ended by a time, the longest ago first.
#[must_use]
pub fn expired_until(now: Timestamp) -> KeyRange {
    KeyRange {
        start: KeyRange::prefix(&[table::EXPIRY]).start,
        end: KeyRange::prefix(&key(table::EXPIRY, &[&encode_time(now)])).end,
    }
}
