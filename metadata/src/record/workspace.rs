//! Records of an installation, its tenants, workspaces, API tokens and mount tickets.

use base::{SessionId, TenantId, Timestamp};
use bytes::Bytes;

use super::{Reader, RecordError, Writer, check_label};

const VERSION: u8 = 1;

/// Version of the record of a token.
const TOKEN_VERSION: u8 = 2;

/// Version of the record of a ticket.
const TICKET_VERSION: u8 = 2;

/// Version of the stored data as a whole. A release opens data of its own version only. It is raised
/// when any stored record, key or tree node changes.
pub const DATA_VERSION: u32 = 5;

/// Most live handle keys.
const HANDLE_KEYS_MAX: u32 = 2;

/// What the data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatRecord {
    /// [`DATA_VERSION`] of the release that wrote it.
    pub data_version: u32,
    /// Names this installation.
    pub installation: [u8; 16],
    /// When it was made.
    pub created: Timestamp,
}

impl FormatRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.u32(self.data_version);
        to.raw(&self.installation);
        to.time(self.created);
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let format = Self {
            data_version: from.u32()?,
            installation: from.array()?,
            created: from.time()?,
        };
        from.end()?;
        Ok(format)
    }
}

/// The keys that sign file handles, newest first.
#[derive(Clone, PartialEq, Eq)]
pub struct HandleKeysRecord {
    /// Number and secret of each live key.
    pub keys: Vec<(u8, [u8; 32])>,
}

impl std::fmt::Debug for HandleKeysRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids: Vec<u8> = self.keys.iter().map(|(id, _)| *id).collect();
        f.debug_struct("HandleKeysRecord")
            .field("ids", &ids)
            .finish_non_exhaustive()
    }
}

impl HandleKeysRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.u32(u32::try_from(self.keys.len()).unwrap_or(u32::MAX));
        for (id, secret) in &self.keys {
            to.u8(*id);
            to.raw(secret);
        }
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let count = from.u32()?;
        if count == 0 || count > HANDLE_KEYS_MAX {
            return Err(RecordError::Field("number of handle keys"));
        }
        let mut keys = Vec::new();
        for _ in 0..count {
            keys.push((from.u8()?, from.array()?));
        }
        from.end()?;
        Ok(Self { keys })
    }
}

/// A tenant.
#[derive(Clone, PartialEq, Eq)]
pub struct TenantRecord {
    /// Its name.
    pub name: String,
    /// Most bytes one of its sessions may allocate.
    pub bytes_max: u64,
    /// Most inodes one of its sessions may have.
    pub inodes_max: u64,
    /// Secret of its deduplication domain.
    pub domain_key: [u8; 32],
    /// When it was made.
    pub created: Timestamp,
}

impl std::fmt::Debug for TenantRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TenantRecord")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl TenantRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.bytes(self.name.as_bytes());
        to.u64(self.bytes_max);
        to.u64(self.inodes_max);
        to.raw(&self.domain_key);
        to.time(self.created);
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let tenant = Self {
            name: from.text()?,
            bytes_max: from.u64()?,
            inodes_max: from.u64()?,
            domain_key: from.array()?,
            created: from.time()?,
        };
        from.end()?;
        Ok(tenant)
    }
}

/// An API token; its key is the hash of its text, which is nowhere stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRecord {
    /// Whose token it is.
    pub tenant: TenantId,
    /// When it was made.
    pub created: Timestamp,
    /// What it is for, as whoever made it said; empty for the one that a server makes itself.
    pub name: String,
}

impl TokenRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(TOKEN_VERSION);
        to.u64(self.tenant.raw());
        to.time(self.created);
        to.bytes(self.name.as_bytes());
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, TOKEN_VERSION)?;
        let token = Self {
            tenant: TenantId::new(from.u64()?),
            created: from.time()?,
            name: from.text()?,
        };
        from.end()?;
        check_label("name", &token.name)?;
        Ok(token)
    }
}

/// A workspace.
#[derive(Clone, PartialEq, Eq)]
pub struct WorkspaceRecord {
    /// Its tenant.
    pub tenant: TenantId,
    /// Its name.
    pub name: String,
    /// Size of file blocks, in bytes.
    pub block_bytes: u32,
    /// Secret from which directory cookies are derived.
    pub name_key: [u8; 32],
    /// Mode, owner and group of the root directory of an empty image.
    pub root: (u32, u32, u32),
    /// When it was made.
    pub created: Timestamp,
}

impl std::fmt::Debug for WorkspaceRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkspaceRecord")
            .field("tenant", &self.tenant)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl WorkspaceRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.u64(self.tenant.raw());
        to.bytes(self.name.as_bytes());
        to.u32(self.block_bytes);
        to.raw(&self.name_key);
        to.u32(self.root.0);
        to.u32(self.root.1);
        to.u32(self.root.2);
        to.time(self.created);
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let workspace = Self {
            tenant: TenantId::new(from.u64()?),
            name: from.text()?,
            block_bytes: from.u32()?,
            name_key: from.array()?,
            root: (from.u32()?, from.u32()?, from.u32()?),
            created: from.time()?,
        };
        from.end()?;
        if !workspace.block_bytes.is_power_of_two() {
            return Err(RecordError::Field("block size"));
        }
        Ok(workspace)
    }
}

/// How often a ticket can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uses {
    /// Any number of times.
    Many,
    /// Once.
    Once,
    /// Once, and it was.
    Spent {
        /// The MNT call that used it: sent again, it has the same answer.
        xid: u32,
        /// When that call has no answer either.
        until: Timestamp,
    },
}

/// A mount ticket; its key is the hash of its text, which is nowhere stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketRecord {
    /// The session it mounts.
    pub session: SessionId,
    /// Mounts read-only, whatever the session allows.
    pub read_only: bool,
    /// For how many mounts.
    pub uses: Uses,
    /// The directory it mounts, as a path from the root; empty for the root.
    pub directory: Vec<u8>,
    /// When it ends.
    pub expires: Option<Timestamp>,
}

impl TicketRecord {
    /// Whether the ticket has ended by itself.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        let ends = match self.uses {
            Uses::Many | Uses::Once => self.expires,
            Uses::Spent { until, .. } => Some(until),
        };
        ends.is_some_and(|ends| ends <= now)
    }

    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(TICKET_VERSION);
        to.u64(self.session.raw());
        to.u8(u8::from(self.read_only));
        match self.uses {
            Uses::Many => to.u8(0),
            Uses::Once => to.u8(1),
            Uses::Spent { xid, until } => {
                to.u8(2);
                to.u32(xid);
                to.time(until);
            }
        }
        to.bytes(&self.directory);
        to.u8(u8::from(self.expires.is_some()));
        to.time(self.expires.unwrap_or_default());
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, TICKET_VERSION)?;
        let session = SessionId::new(from.u64()?);
        let read_only = from.flag()?;
        let uses = match from.u8()? {
            0 => Uses::Many,
            1 => Uses::Once,
            2 => Uses::Spent {
                xid: from.u32()?,
                until: from.time()?,
            },
            _ => return Err(RecordError::Field("uses of a ticket")),
        };
        let directory = from.bytes()?.to_vec();
        let (does_expire, expires) = (from.flag()?, from.time()?);
        from.end()?;
        if !does_expire && expires != Timestamp::default() {
            return Err(RecordError::Field("end of a ticket"));
        }
        let expires = does_expire.then_some(expires);
        Ok(Self {
            session,
            read_only,
            uses,
            directory,
            expires,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip() {
        let keys = HandleKeysRecord {
            keys: vec![(1, [2; 32]), (3, [4; 32])],
        };
        assert_eq!(HandleKeysRecord::decode(&keys.encode()), Ok(keys));
        let spent = Uses::Spent {
            xid: 9,
            until: Timestamp::new(8, 9),
        };
        for uses in [Uses::Many, Uses::Once, spent] {
            let ticket = TicketRecord {
                session: SessionId::new(5),
                read_only: true,
                uses,
                directory: b"a/b".to_vec(),
                expires: Some(Timestamp::new(6, 7)),
            };
            assert_eq!(TicketRecord::decode(&ticket.encode()), Ok(ticket));
        }
        let workspace = WorkspaceRecord {
            tenant: TenantId::DEFAULT,
            name: "w".into(),
            block_bytes: 131_072,
            name_key: [8; 32],
            root: (0o755, 0, 0),
            created: Timestamp::EPOCH,
        };
        assert_eq!(WorkspaceRecord::decode(&workspace.encode()), Ok(workspace));
        let tenant = TenantRecord {
            name: "t".into(),
            bytes_max: 1,
            inodes_max: 2,
            domain_key: [9; 32],
            created: Timestamp::EPOCH,
        };
        assert_eq!(TenantRecord::decode(&tenant.encode()), Ok(tenant));
        let token = TokenRecord {
            tenant: TenantId::DEFAULT,
            created: Timestamp::EPOCH,
            name: "ci".into(),
        };
        assert_eq!(TokenRecord::decode(&token.encode()), Ok(token));
    }

    #[test]
    fn golden_bytes() {
        let format = FormatRecord {
            data_version: DATA_VERSION,
            installation: [7; 16],
            created: Timestamp::new(2, 3),
        };
        let mut bytes = vec![1, 0, 0, 0, 5];
        bytes.extend([7; 16]);
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3]);
        assert_eq!(format.encode(), bytes);
        assert_eq!(FormatRecord::decode(&bytes), Ok(format));
        let token = TokenRecord {
            tenant: TenantId::new(4),
            created: Timestamp::new(2, 3),
            name: "ci".into(),
        };
        let fields = [0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3];
        let bytes = [&[2][..], &fields, b"\0\0\0\x02ci"].concat();
        assert_eq!(token.encode(), bytes);
        assert_eq!(TokenRecord::decode(&bytes), Ok(token));
        let keys = HandleKeysRecord {
            keys: vec![(1, [2; 32])],
        };
        let bytes = [&[1, 0, 0, 0, 1, 1][..], &[2; 32]].concat();
        assert_eq!(keys.encode(), bytes);
        let tenant = TenantRecord {
            name: "t".into(),
            bytes_max: 1,
            inodes_max: 2,
            domain_key: [9; 32],
            created: Timestamp::new(2, 3),
        };
        let time = [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3];
        let bounds = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2];
        let bytes = [&[1, 0, 0, 0, 1, b't'][..], &bounds, &[9; 32], &time].concat();
        assert_eq!(tenant.encode(), bytes);
        let workspace = WorkspaceRecord {
            tenant: TenantId::new(4),
            name: "w".into(),
            block_bytes: 131_072,
            name_key: [8; 32],
            root: (0o755, 6, 7),
            created: Timestamp::new(2, 3),
        };
        let begin = [1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 1, b'w', 0, 2, 0, 0];
        let root = [0, 0, 1, 0o355, 0, 0, 0, 6, 0, 0, 0, 7];
        let bytes = [&begin[..], &[8; 32], &root, &time].concat();
        assert_eq!(workspace.encode(), bytes);
    }

    #[test]
    fn golden_bytes_of_a_ticket() {
        let fields = |uses: &[u8]| {
            let end = [1, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 7];
            [&[0, 0, 0, 0, 0, 0, 0, 5, 1], uses, b"\0\0\0\x03a/b", &end].concat()
        };
        let used = [2, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 9];
        let spent = Uses::Spent {
            xid: 9,
            until: Timestamp::new(8, 9),
        };
        for (uses, bytes) in [(Uses::Many, &[0][..]), (Uses::Once, &[1]), (spent, &used)] {
            let ticket = TicketRecord {
                session: SessionId::new(5),
                read_only: true,
                uses,
                directory: b"a/b".to_vec(),
                expires: Some(Timestamp::new(6, 7)),
            };
            let bytes = [&[2][..], &fields(bytes)].concat();
            assert_eq!(ticket.encode(), bytes);
            assert_eq!(TicketRecord::decode(&bytes), Ok(ticket));
            // What says that it does not end says no time.
            let mut endless = bytes.clone();
            let at = bytes.len() - 13;
            endless[at] = 0;
            assert!(TicketRecord::decode(&endless).is_err());
            endless[at..].fill(0);
            assert!(TicketRecord::decode(&endless).is_ok());
        }
    }
}
