//! Records of gateways: their leases, and notices to them.

use std::time::Duration;

use base::Timestamp;
use bytes::Bytes;

use super::{Reader, RecordError, Writer};

const VERSION: u8 = 1;

/// Of leases.
const LEASE_VERSION: u8 = 2;

/// Longest address in a lease, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 256;

/// Whether a gateway takes sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayState {
    /// It does.
    Serving,
    /// It lets go of those it has, and takes none.
    Draining,
}

/// What a gateway tells the others of itself, and that it lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Counted up with each renewal.
    pub counter: u64,
    /// Whether it takes sessions.
    pub state: GatewayState,
    /// When it started.
    pub started: Timestamp,
    /// Where clients reach it with NFS; empty if it did not say.
    pub nfs: String,
    /// Where other gateways pass calls on; empty if they cannot.
    pub peers: String,
    /// Where its API is; empty if it did not say.
    pub api: String,
    /// How many sessions it has in memory, for whoever chooses among gateways.
    pub sessions: u32,
    /// The release it runs.
    pub release: String,
    /// How long the lease is: whoever waits for its end waits for so long.
    pub lease: Duration,
    /// The token of commands on its machine, which is not revoked while it runs.
    pub token: [u8; 8],
    /// The time of day at the renewal, by the gateway's clock.
    pub now: Timestamp,
}

impl LeaseRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(LEASE_VERSION);
        to.u64(self.counter);
        to.u8(match self.state {
            GatewayState::Serving => 1,
            GatewayState::Draining => 2,
        });
        to.time(self.started);
        for text in [&self.nfs, &self.peers, &self.api, &self.release] {
            to.bytes(text.as_bytes());
        }
        to.u32(self.sessions);
        to.u32(u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX));
        to.raw(&self.token);
        to.time(self.now);
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, LEASE_VERSION)?;
        let counter = from.u64()?;
        let state = match from.u8()? {
            1 => GatewayState::Serving,
            2 => GatewayState::Draining,
            _ => return Err(RecordError::Field("gateway state")),
        };
        let started = from.time()?;
        let mut texts = <[String; 4]>::default();
        for text in &mut texts {
            *text = short_text(from.bytes()?)?;
        }
        let [nfs, peers, api, release] = texts;
        let record = Self {
            counter,
            state,
            started,
            nfs,
            peers,
            api,
            sessions: from.u32()?,
            release,
            lease: Duration::from_millis(from.u32()?.into()),
            token: from.array()?,
            now: from.time()?,
        };
        from.end()?;
        Ok(record)
    }
}

fn short_text(bytes: &[u8]) -> Result<String, RecordError> {
    if bytes.len() > ADDRESS_BYTES_MAX {
        return Err(RecordError::Field("text of a lease"));
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| RecordError::Field("text of a lease"))
}

/// That a session is no longer what a gateway has in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoticeRecord {
    /// Another one for each notice, so that a later one is not taken for one that was obeyed.
    pub nonce: u64,
}

impl NoticeRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.u64(self.nonce);
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let nonce = from.u64()?;
        from.end()?;
        Ok(Self { nonce })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lease() -> LeaseRecord {
        LeaseRecord {
            counter: 1,
            state: GatewayState::Draining,
            started: Timestamp::new(2, 3),
            nfs: "n".into(),
            peers: "p".into(),
            api: "a".into(),
            sessions: 4,
            release: "r".into(),
            lease: Duration::from_millis(5),
            token: [6; 8],
            now: Timestamp::new(7, 8),
        }
    }

    /// Whoever changes these bytes raises the record's version and the data version.
    #[test]
    fn golden_bytes() {
        let mut bytes = vec![2, 0, 0, 0, 0, 0, 0, 0, 1, 2];
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3]);
        for text in [b'n', b'p', b'a', b'r'] {
            bytes.extend([0, 0, 0, 1, text]);
        }
        bytes.extend([0, 0, 0, 4]);
        bytes.extend([0, 0, 0, 5, 6, 6, 6, 6, 6, 6, 6, 6]);
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 8]);
        assert_eq!(lease().encode(), bytes);
        assert_eq!(LeaseRecord::decode(&bytes), Ok(lease()));
        bytes[9] = 3;
        let error = RecordError::Field("gateway state");
        assert_eq!(LeaseRecord::decode(&bytes), Err(error));
        let notice = NoticeRecord { nonce: 7 };
        assert_eq!(notice.encode(), &[1, 0, 0, 0, 0, 0, 0, 0, 7][..]);
        assert_eq!(NoticeRecord::decode(&notice.encode()), Ok(notice));
    }

    #[test]
    fn texts_are_short() {
        let long = LeaseRecord {
            api: "a".repeat(ADDRESS_BYTES_MAX + 1),
            ..lease()
        };
        let error = RecordError::Field("text of a lease");
        assert_eq!(LeaseRecord::decode(&long.encode()), Err(error));
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            if let Ok(lease) = LeaseRecord::decode(&bytes) {
                prop_assert_eq!(lease.encode(), &bytes[..]);
            }
            if let Ok(notice) = NoticeRecord::decode(&bytes) {
                prop_assert_eq!(notice.encode(), &bytes[..]);
            }
            let mut lease = lease().encode().to_vec();
            for (place, byte) in bytes.iter().take(lease.len()).enumerate() {
                lease[place] ^= byte;
            }
            if let Ok(read) = LeaseRecord::decode(&lease) {
                prop_assert_eq!(read.encode(), &lease[..]);
            }
        }
    }
}
