//! Records of a session: what it is, who owns it, what its last flush was, and stored replies.

use base::{CommitId, Epoch, GatewayId, SessionId, TenantId, Timestamp, WorkspaceId};
use bytes::Bytes;

use super::{Reader, RecordError, Writer};
use crate::image::{InodeNumbers, Totals, Usage};
use crate::layers::LayerId;
use crate::tree::Root;

const VERSION: u8 = 1;

/// Of a [`SessionRecord`].
const SESSION_VERSION: u8 = 2;

/// Most frozen layers of a session: a record beyond it is damaged.
pub const FROZEN_LAYERS_MAX: usize = 1024;

/// Life cycle of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// It can be mounted.
    Open,
    /// It was closed; its content is being dropped.
    Closed,
}

/// Whose identity a call runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The identity that the client claims. Right for a private session.
    Passthrough,
    /// As claimed, but the superuser becomes nobody (65534).
    RootSquash,
    /// Everybody is this user and group.
    AllSquash {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
    },
}

/// What a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// Its tenant.
    pub tenant: TenantId,
    /// Its workspace.
    pub workspace: WorkspaceId,
    /// Its state.
    pub state: SessionState,
    /// Refuses every change.
    pub read_only: bool,
    /// Whose identity calls run as.
    pub identity: Identity,
    /// The generation of its delta that takes changes.
    pub generation: u32,
    /// The frozen layers under it, newest first.
    pub frozen: Vec<LayerId>,
    /// The commit that its content was made on top of, if there is one.
    pub commit: Option<CommitId>,
    /// The branch that it publishes to.
    pub branch: String,
    /// The tree below the layers; `None` if there is nothing but a root directory.
    pub base: Option<Root>,
    /// Usage of the image that the frozen layers and the base make.
    pub frozen_usage: Usage,
    /// Raised to make all handles given out so far stale.
    pub revocation: u32,
    /// The agent that opened it; empty if it did not say.
    pub agent: String,
    /// The run it belongs to; empty if it did not say.
    pub run: String,
    /// When it was opened.
    pub created: Timestamp,
    /// When it ends by itself.
    pub expires: Option<Timestamp>,
}

impl SessionRecord {
    /// Whether the session has ended by itself.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(SESSION_VERSION);
        to.u64(self.tenant.raw());
        to.u64(self.workspace.raw());
        to.u8(match self.state {
            SessionState::Open => 1,
            SessionState::Closed => 2,
        });
        to.u8(u8::from(self.read_only));
        let (identity, uid, gid) = match self.identity {
            Identity::Passthrough => (1, 0, 0),
            Identity::RootSquash => (2, 0, 0),
            Identity::AllSquash { uid, gid } => (3, uid, gid),
        };
        to.u8(identity);
        to.u32(uid);
        to.u32(gid);
        to.u32(self.generation);
        to.u32(u32::try_from(self.frozen.len()).unwrap_or(u32::MAX));
        for layer in &self.frozen {
            to.u64(layer.session.raw());
            to.u32(layer.generation);
        }
        to.u8(u8::from(self.commit.is_some()));
        to.raw(
            self.commit
                .map_or([0; 32], |commit| *commit.as_bytes())
                .as_slice(),
        );
        to.bytes(self.branch.as_bytes());
        to.u8(u8::from(self.base.is_some()));
        to.raw(&self.base.unwrap_or_default().to_bytes());
        to.u64(self.frozen_usage.bytes);
        to.u64(self.frozen_usage.inodes);
        to.u32(self.revocation);
        to.bytes(self.agent.as_bytes());
        to.bytes(self.run.as_bytes());
        to.time(self.created);
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
        let mut from = Reader::new(record, SESSION_VERSION)?;
        let tenant = TenantId::new(from.u64()?);
        let workspace = WorkspaceId::new(from.u64()?);
        let state = match from.u8()? {
            1 => SessionState::Open,
            2 => SessionState::Closed,
            _ => return Err(RecordError::Field("session state")),
        };
        let read_only = from.flag()?;
        let identity = match (from.u8()?, from.u32()?, from.u32()?) {
            (1, 0, 0) => Identity::Passthrough,
            (2, 0, 0) => Identity::RootSquash,
            (3, uid, gid) => Identity::AllSquash { uid, gid },
            _ => return Err(RecordError::Field("identity")),
        };
        let generation = from.u32()?;
        let count = usize::try_from(from.u32()?).unwrap_or(usize::MAX);
        if count > FROZEN_LAYERS_MAX {
            return Err(RecordError::Field("number of layers"));
        }
        let mut frozen = Vec::new();
        for _ in 0..count {
            frozen.push(LayerId {
                session: SessionId::new(from.u64()?),
                generation: from.u32()?,
            });
        }
        let commit = (from.flag()?, CommitId::new(from.array()?));
        let branch = from.text()?;
        let base = (from.flag()?, Root::from_bytes(from.array()?));
        let frozen_usage = Usage {
            bytes: from.u64()?,
            inodes: from.u64()?,
        };
        let revocation = from.u32()?;
        let (agent, run) = (from.text()?, from.text()?);
        let created = from.time()?;
        let expires = (from.flag()?, from.time()?);
        from.end()?;
        let expires = expires.0.then_some(expires.1);
        Ok(Self {
            tenant,
            workspace,
            state,
            read_only,
            identity,
            generation,
            frozen,
            commit: commit.0.then_some(commit.1),
            branch,
            base: base.0.then_some(base.1),
            frozen_usage,
            revocation,
            agent,
            run,
            created,
            expires,
        })
    }
}

/// Who owns a session. Every flush conflicts with a change of this record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerRecord {
    /// The gateway's incarnation.
    pub gateway: GatewayId,
    /// How many owners there have been.
    pub epoch: Epoch,
    /// Changed to make a straggling flush of the same owner conflict.
    pub nonce: u64,
}

impl OwnerRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.u64(self.gateway.raw());
        to.u64(self.epoch.raw());
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
        let owner = Self {
            gateway: GatewayId::new(from.u64()?),
            epoch: Epoch::new(from.u64()?),
            nonce: from.u64()?,
        };
        from.end()?;
        Ok(owner)
    }
}

/// What the last flush of a session was, and the totals as of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushRecord {
    /// Counts flushes; settles a commit whose outcome is unknown.
    pub number: u64,
    /// Usage and inode numbers.
    pub totals: Totals,
}

impl FlushRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.u64(self.number);
        to.u64(self.totals.usage.bytes);
        to.u64(self.totals.usage.inodes);
        to.u64(self.totals.numbers.next);
        to.u64(self.totals.numbers.end);
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let number = from.u64()?;
        let usage = Usage {
            bytes: from.u64()?,
            inodes: from.u64()?,
        };
        let numbers = InodeNumbers {
            next: from.u64()?,
            end: from.u64()?,
        };
        from.end()?;
        Ok(Self {
            number,
            totals: Totals { usage, numbers },
        })
    }
}

/// The stored reply of a call that must not run twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyRecord {
    /// The flush that carried its effect: the order in which replies are forgotten.
    pub flush: u64,
    /// The encoded RPC reply.
    pub reply: Bytes,
}

impl ReplyRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.u64(self.flush);
        to.bytes(&self.reply);
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let flush = from.u64()?;
        let reply = Bytes::copy_from_slice(from.bytes()?);
        from.end()?;
        Ok(Self { flush, reply })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn session() -> SessionRecord {
        SessionRecord {
            tenant: TenantId::DEFAULT,
            workspace: WorkspaceId::new(2),
            state: SessionState::Open,
            read_only: false,
            identity: Identity::AllSquash { uid: 1, gid: 2 },
            generation: 3,
            frozen: vec![LayerId {
                session: SessionId::new(9),
                generation: 8,
            }],
            commit: Some(CommitId::new([8; 32])),
            branch: "main".into(),
            base: Some(Root::from_bytes([7; 32])),
            frozen_usage: Usage {
                bytes: 5,
                inodes: 6,
            },
            revocation: 4,
            agent: "a".into(),
            run: String::new(),
            created: Timestamp::new(7, 8),
            expires: None,
        }
    }

    #[test]
    fn golden_bytes() {
        let owner = OwnerRecord {
            gateway: GatewayId::new(1),
            epoch: Epoch::new(2),
            nonce: 3,
        };
        let bytes = [
            1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3,
        ];
        assert_eq!(owner.encode(), &bytes[..]);
        assert_eq!(OwnerRecord::decode(&bytes), Ok(owner));
        let reply = ReplyRecord {
            flush: 1,
            reply: Bytes::from_static(b"r"),
        };
        assert_eq!(
            reply.encode(),
            &[1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, b'r'][..]
        );
        assert_eq!(ReplyRecord::decode(&reply.encode()), Ok(reply));
        assert_eq!(
            FlushRecord::decode(&FlushRecord::default().encode()),
            Ok(FlushRecord::default())
        );
        assert_eq!(FlushRecord::default().encode().len(), 41);
    }

    /// Whoever changes these bytes raises the record's version and the data version.
    #[test]
    fn golden_bytes_of_a_session() {
        let mut bytes = vec![2];
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
        bytes.extend([1, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2]);
        bytes.extend([0, 0, 0, 3]);
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 8]);
        bytes.push(1);
        bytes.extend([8; 32]);
        bytes.extend([0, 0, 0, 4]);
        bytes.extend(b"main");
        bytes.push(1);
        bytes.extend([7; 32]);
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6]);
        bytes.extend([0, 0, 0, 4, 0, 0, 0, 1, b'a', 0, 0, 0, 0]);
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 8]);
        bytes.extend([0; 13]);
        assert_eq!(session().encode(), bytes);
        assert_eq!(SessionRecord::decode(&bytes), Ok(session()));
        bytes[0] = 1;
        assert_eq!(SessionRecord::decode(&bytes), Err(RecordError::Version(1)));
    }

    #[test]
    fn a_newer_version_is_named() {
        assert_eq!(OwnerRecord::decode(&[9]), Err(RecordError::Version(9)));
        assert_eq!(OwnerRecord::decode(&[]), Err(RecordError::Truncated));
        let mut long = session().encode().to_vec();
        long.push(0);
        assert_eq!(SessionRecord::decode(&long), Err(RecordError::Trailing));
    }

    proptest! {
        #[test]
        fn a_flipped_byte_never_panics(at in 0..200_usize, byte in any::<u8>()) {
            let mut bytes = session().encode().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            drop(SessionRecord::decode(&bytes));
        }
    }
}
