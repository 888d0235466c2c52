//! Keys of gateways: their leases, and what they are told.

use base::{GatewayId, SessionId};

use super::{Key, KeyError, decode, key, table};
use crate::kv::KeyRange;

/// Whether a key is of a gateway, which refers to nothing that is collected.
pub(crate) fn is_of_a_gateway(key: &[u8]) -> bool {
    matches!(key.first(), Some(&table::LEASE | &table::NOTICE))
}

/// A gateway's lease.
#[must_use]
pub fn lease(gateway: GatewayId) -> Vec<u8> {
    key(table::LEASE, &[&gateway.raw().to_be_bytes()])
}

/// The leases of all gateways.
#[must_use]
pub fn leases() -> KeyRange {
    KeyRange::prefix(&[table::LEASE])
}

/// The gateway in a key of [`leases`].
///
/// # Errors
///
/// The key is of another table or damaged.
pub fn decode_lease(key: &[u8]) -> Result<GatewayId, KeyError> {
    match decode(key)? {
        Key::Lease(gateway) => Ok(gateway),
        _ => Err(KeyError::WrongTable),
    }
}

/// What a gateway is told of a session.
#[must_use]
pub fn notice(gateway: GatewayId, session: SessionId) -> Vec<u8> {
    let fields = [gateway.raw(), session.raw()].map(u64::to_be_bytes);
    key(table::NOTICE, &[&fields.concat()])
}

/// All that a gateway is told.
#[must_use]
pub fn notices(gateway: GatewayId) -> KeyRange {
    KeyRange::prefix(&key(table::NOTICE, &[&gateway.raw().to_be_bytes()]))
}

/// The session in a key of [`notices`].
///
/// # Errors
///
/// The key is of another table or damaged.
pub fn decode_notice(key: &[u8]) -> Result<SessionId, KeyError> {
    match decode(key)? {
        Key::Notice(_, session) => Ok(session),
        _ => Err(KeyError::WrongTable),
    }
}
