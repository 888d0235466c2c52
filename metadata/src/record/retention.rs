//! What a workspace keeps of its history, pins, and the tombstone of a workspace that is being removed.

use base::{TenantId, Timestamp};
use bytes::Bytes;

use super::{Reader, RecordError, Unacceptable, Writer, check_label};

const VERSION: u8 = 1;

/// Least time that a policy keeps, in seconds. What is under way must have an end within it.
pub const KEEP_SECONDS_MIN: u64 = 3600;

/// How much of its history a workspace keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What is younger is kept, in seconds; at least [`KEEP_SECONDS_MIN`].
    pub keep_seconds: u64,
    /// So many of the newest commits are kept.
    pub keep_last: u64,
}

/// What is kept, and what has been removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionRecord {
    /// Nothing is removed without one.
    pub policy: Option<Policy>,
    /// Entries of logs from before may be missing.
    pub horizon: Option<Timestamp>,
}

/// A commit that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinRecord {
    /// When it was pinned.
    pub created: Timestamp,
    /// Why, as whoever pinned it said.
    pub note: String,
}

/// A workspace that is being removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletionRecord {
    /// Its tenant.
    pub tenant: TenantId,
    /// The name that it had.
    pub name: String,
    /// Since when.
    pub time: Timestamp,
}

impl Policy {
    /// Checks what the types do not.
    ///
    /// # Errors
    ///
    /// Says what is not acceptable.
    pub fn check(&self) -> Result<(), Unacceptable> {
        if self.keep_seconds < KEEP_SECONDS_MIN {
            let rule = "at least one hour";
            return Err(Unacceptable::new("time to keep", rule));
        }
        Ok(())
    }
}

impl RetentionRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.u8(u8::from(self.policy.is_some()));
        to.u64(self.policy.map_or(0, |policy| policy.keep_seconds));
        to.u64(self.policy.map_or(0, |policy| policy.keep_last));
        to.u8(u8::from(self.horizon.is_some()));
        to.time(self.horizon.unwrap_or_default());
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let (has_policy, keep_seconds, keep_last) = (from.flag()?, from.u64()?, from.u64()?);
        let (has_horizon, horizon) = (from.flag()?, from.time()?);
        from.end()?;
        let policy = Policy {
            keep_seconds,
            keep_last,
        };
        if has_policy {
            policy.check()?;
        } else if keep_seconds != 0 || keep_last != 0 {
            return Err(RecordError::Field("policy"));
        }
        if !has_horizon && horizon != Timestamp::default() {
            return Err(RecordError::Field("horizon"));
        }
        Ok(Self {
            policy: has_policy.then_some(policy),
            horizon: has_horizon.then_some(horizon),
        })
    }
}

impl PinRecord {
    /// Checks what the types do not.
    ///
    /// # Errors
    ///
    /// Says what is not acceptable.
    pub fn check(&self) -> Result<(), Unacceptable> {
        check_label("note", &self.note)
    }

    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.time(self.created);
        to.bytes(self.note.as_bytes());
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let pin = Self {
            created: from.time()?,
            note: from.text()?,
        };
        from.end()?;
        pin.check()?;
        Ok(pin)
    }
}

impl DeletionRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.u64(self.tenant.raw());
        to.bytes(self.name.as_bytes());
        to.time(self.time);
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let deletion = Self {
            tenant: TenantId::new(from.u64()?),
            name: from.text()?,
            time: from.time()?,
        };
        from.end()?;
        Ok(deletion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retention() -> RetentionRecord {
        RetentionRecord {
            policy: Some(Policy {
                keep_seconds: 0x0102_0304,
                keep_last: 5,
            }),
            horizon: Some(Timestamp::new(6, 7)),
        }
    }

    #[test]
    fn golden_bytes() {
        let mut bytes = vec![1, 1, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 5, 1];
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 7]);
        assert_eq!(retention().encode(), bytes);
        assert_eq!(RetentionRecord::decode(&bytes), Ok(retention()));
        let pin = PinRecord {
            created: Timestamp::new(2, 3),
            note: "why".into(),
        };
        let mut bytes = vec![1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3];
        bytes.extend(b"\0\0\0\x03why");
        assert_eq!(pin.encode(), bytes);
        assert_eq!(PinRecord::decode(&bytes), Ok(pin));
        let deletion = DeletionRecord {
            tenant: TenantId::new(9),
            name: "w".into(),
            time: Timestamp::new(2, 3),
        };
        let mut bytes = vec![1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1, b'w'];
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3]);
        assert_eq!(deletion.encode(), bytes);
        assert_eq!(DeletionRecord::decode(&bytes), Ok(deletion));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let none = RetentionRecord::default();
        assert_eq!(RetentionRecord::decode(&none.encode()), Ok(none));
        let mut bytes = retention().encode().to_vec();
        // No policy, and yet figures of one.
        bytes[1] = 0;
        assert_eq!(
            RetentionRecord::decode(&bytes),
            Err(RecordError::Field("policy"))
        );
        let mut short = retention();
        short.policy = Some(Policy {
            keep_seconds: 3599,
            keep_last: 0,
        });
        assert!(RetentionRecord::decode(&short.encode()).is_err());
        let mut bytes = retention().encode().to_vec();
        bytes[18] = 0;
        assert_eq!(
            RetentionRecord::decode(&bytes),
            Err(RecordError::Field("horizon"))
        );
        let retention = retention().encode();
        for len in 0..retention.len() {
            assert!(RetentionRecord::decode(&retention[..len]).is_err());
        }
        let pin = PinRecord {
            created: Timestamp::EPOCH,
            note: "x".into(),
        };
        let pin = pin.encode();
        for len in 0..pin.len() {
            assert!(PinRecord::decode(&pin[..len]).is_err());
        }
        let loud = PinRecord {
            created: Timestamp::EPOCH,
            note: "a\nb".into(),
        };
        assert!(PinRecord::decode(&loud.encode()).is_err());
    }
}
