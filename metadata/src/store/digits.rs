//! Sessions by the first digits of their ids.

use base::{SessionId, TenantId};
use bytes::Bytes;

use super::{Store, StoreError};
use crate::keyspace;
use crate::kv::{KeyRange, RangeLimit};

/// Digits of an id, in hexadecimal.
pub const SESSION_DIGITS: usize = 16;

/// Fewest that name a session.
pub const SESSION_DIGITS_MIN: usize = 4;

/// Most sessions that are named where digits fit several.
const CANDIDATES_MAX: usize = 8;

/// Most places of the index that are looked at: some for each workspace that has sessions.
const LOOKS_MAX: usize = 20_000;

/// The ids that begin with these digits.
fn bounds(digits: &str) -> Option<(u64, u64)> {
    let is_id = (SESSION_DIGITS_MIN..=SESSION_DIGITS).contains(&digits.len())
        && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let first = u64::from_str_radix(digits, 16).ok().filter(|_| is_id)?;
    let free = u32::try_from(4 * (SESSION_DIGITS - digits.len())).ok()?;
    let last = u64::MAX.checked_shr(u64::BITS - free).unwrap_or(0);
    Some((first << free, first << free | last))
}

/// Whether a text can name a session.
#[must_use]
pub fn names_a_session(text: &str) -> bool {
    bounds(text).is_some()
}

impl Store {
    /// The tenant's session whose id begins with `digits`. All digits are an id, whether or not there is
    /// such a session.
    ///
    /// # Errors
    ///
    /// `Invalid` for a text that can name none; `NotFound`; `Ambiguous` if there are several; or the
    /// store fails.
    pub async fn session_by_digits(
        &self,
        tenant: TenantId,
        digits: &str,
    ) -> Result<SessionId, StoreError> {
        let (first, last) = bounds(digits).ok_or_else(|| StoreError::Invalid {
            why: format!("{digits:?} is no id of a session"),
        })?;
        if first == last {
            return Ok(SessionId::new(first));
        }
        let found = self.sessions_between(tenant, first, last).await?;
        let what = format!("session {digits}");
        match found.as_slice() {
            [] => Err(StoreError::NotFound { what }),
            [id] => Ok(*id),
            several => {
                let told = several.iter().take(CANDIDATES_MAX);
                let mut candidates: Vec<String> = told.map(SessionId::to_string).collect();
                if several.len() > CANDIDATES_MAX {
                    candidates.push("others".into());
                }
                Err(StoreError::Ambiguous { what, candidates })
            }
        }
    }

    /// Sessions of a tenant with numbers in a range, in the order of their workspaces: some, if there
    /// are more than are ever told.
    async fn sessions_between(
        &self,
        tenant: TenantId,
        first: u64,
        last: u64,
    ) -> Result<Vec<SessionId>, StoreError> {
        let mut range = keyspace::sessions_of_tenant(tenant);
        let mut found = Vec::new();
        for _ in 0..LOOKS_MAX {
            // Each a transaction of its own: so many do not end while one may be read from.
            let pairs = self.pairs(&range, RangeLimit::pairs(1)).await?;
            let Some((key, _)) = pairs.first() else {
                return Ok(found);
            };
            let (_, workspace, id) =
                keyspace::decode_session_of(key).map_err(|error| StoreError::Corrupt {
                    what: "session index".into(),
                    why: error.to_string(),
                })?;
            let next: Bytes = if id.raw() < first {
                keyspace::session_of(tenant, workspace, SessionId::new(first)).into()
            } else if id.raw() <= last {
                found.push(id);
                KeyRange::key(key).end
            } else {
                keyspace::sessions_of_workspace(tenant, workspace).end
            };
            if found.len() > CANDIDATES_MAX || next >= range.end {
                return Ok(found);
            }
            range.start = next;
        }
        let why = "there are too many workspaces to look for these digits: give all 16 of the id";
        Err(StoreError::Invalid { why: why.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_bound_ids() {
        assert_eq!(bounds("00ff"), Some((0xff << 48, (0x100 << 48) - 1)));
        assert_eq!(bounds("FFFF").map(|(_, last)| last), Some(u64::MAX));
        let whole = bounds("0123456789abcdef");
        assert_eq!(whole, Some((0x0123_4567_89ab_cdef, 0x0123_4567_89ab_cdef)));
        for wrong in [
            "",
            "abc",
            "+123",
            "12 4",
            "0123456789abcdef0",
            "wxyz",
            "12\u{e9}4",
        ] {
            assert!(!names_a_session(wrong), "{wrong:?}");
        }
    }
}
