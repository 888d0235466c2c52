//! An entry of a workspace's operation log: what was done to its refs and sessions, and by whom.

use base::{CommitId, OperationId, SessionId};
use bytes::Bytes;

use super::reference::RefChange;
use super::{Reader, RecordError, Unacceptable, Writer, check_label};

const VERSION: u8 = 1;

/// Who does something. All empty: the server itself, or somebody who did not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actor {
    /// The agent.
    pub agent: String,
    /// The run.
    pub run: String,
    /// The first bytes of the hash of the API token that was used.
    pub token: Option<[u8; 8]>,
}

/// Why a ref was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Somebody asked for just that.
    Asked,
    /// A session was published.
    Published(SessionId),
    /// An operation was undone.
    Undone(OperationId),
}

/// What was done. The commit of a session is the one that it stands on, if it stands on one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A session was opened.
    SessionOpened {
        /// The session.
        session: SessionId,
        /// Its commit.
        commit: Option<CommitId>,
    },
    /// A session was opened with what another had.
    SessionForked {
        /// The new session.
        session: SessionId,
        /// The other.
        source: SessionId,
        /// The commit of both.
        commit: Option<CommitId>,
    },
    /// A session was closed.
    SessionClosed {
        /// The session.
        session: SessionId,
        /// Its commit.
        commit: Option<CommitId>,
    },
    /// A session was set to a commit.
    SessionRestored {
        /// The session.
        session: SessionId,
        /// A commit that has what the session had; `None` if that is kept nowhere.
        before: Option<CommitId>,
        /// The commit that it was set to; `None` for the empty image.
        after: Option<CommitId>,
    },
    /// A ref was created, moved, removed, protected or unprotected.
    RefChanged {
        /// From what to what.
        change: RefChange,
        /// Why.
        cause: Cause,
    },
}

/// An entry of the operation log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationRecord {
    /// Who did it.
    pub actor: Actor,
    /// What was done.
    pub action: Action,
}

impl Actor {
    /// Checks what the types do not.
    ///
    /// # Errors
    ///
    /// Says which field is not acceptable, and why.
    pub fn check(&self) -> Result<(), Unacceptable> {
        check_label("agent", &self.agent)?;
        check_label("run", &self.run)
    }

    fn encode(&self, to: &mut Writer) {
        to.bytes(self.agent.as_bytes());
        to.bytes(self.run.as_bytes());
        to.u8(u8::from(self.token.is_some()));
        to.raw(&self.token.unwrap_or_default());
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, RecordError> {
        let (agent, run) = (from.text()?, from.text()?);
        let token = match (from.flag()?, from.array()?) {
            (true, token) => Some(token),
            (false, token) if token == [0; 8] => None,
            (false, _) => return Err(RecordError::Field("token")),
        };
        let actor = Self { agent, run, token };
        actor.check()?;
        Ok(actor)
    }
}

impl Action {
    fn encode(&self, to: &mut Writer) {
        match self {
            Self::SessionOpened { session, commit } => {
                to.u8(1);
                to.u64(session.raw());
                encode_commit(*commit, to);
            }
            Self::SessionForked {
                session,
                source,
                commit,
            } => {
                to.u8(2);
                to.u64(session.raw());
                to.u64(source.raw());
                encode_commit(*commit, to);
            }
            Self::SessionClosed { session, commit } => {
                to.u8(3);
                to.u64(session.raw());
                encode_commit(*commit, to);
            }
            Self::SessionRestored {
                session,
                before,
                after,
            } => {
                to.u8(4);
                to.u64(session.raw());
                encode_commit(*before, to);
                encode_commit(*after, to);
            }
            Self::RefChanged { change, cause } => {
                to.u8(5);
                change.encode(to);
                let (tag, number) = match cause {
                    Cause::Asked => (1, 0),
                    Cause::Published(session) => (2, session.raw()),
                    Cause::Undone(operation) => (3, operation.raw()),
                };
                to.u8(tag);
                to.u64(number);
            }
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, RecordError> {
        Ok(match from.u8()? {
            1 => Self::SessionOpened {
                session: SessionId::new(from.u64()?),
                commit: decode_commit(from)?,
            },
            2 => Self::SessionForked {
                session: SessionId::new(from.u64()?),
                source: SessionId::new(from.u64()?),
                commit: decode_commit(from)?,
            },
            3 => Self::SessionClosed {
                session: SessionId::new(from.u64()?),
                commit: decode_commit(from)?,
            },
            4 => Self::SessionRestored {
                session: SessionId::new(from.u64()?),
                before: decode_commit(from)?,
                after: decode_commit(from)?,
            },
            5 => Self::RefChanged {
                change: RefChange::decode(from)?,
                cause: match (from.u8()?, from.u64()?) {
                    (1, 0) => Cause::Asked,
                    (2, session) => Cause::Published(SessionId::new(session)),
                    (3, operation) => Cause::Undone(OperationId::new(operation)),
                    _ => return Err(RecordError::Field("cause")),
                },
            },
            _ => return Err(RecordError::Field("action")),
        })
    }
}

fn encode_commit(commit: Option<CommitId>, to: &mut Writer) {
    to.u8(u8::from(commit.is_some()));
    if let Some(commit) = commit {
        to.raw(commit.as_bytes());
    }
}

fn decode_commit(from: &mut Reader<'_>) -> Result<Option<CommitId>, RecordError> {
    from.flag()?
        .then(|| from.array().map(CommitId::new))
        .transpose()
}

impl OperationRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        self.actor.encode(&mut to);
        self.action.encode(&mut to);
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let operation = Self {
            actor: Actor::decode(&mut from)?,
            action: Action::decode(&mut from)?,
        };
        from.end()?;
        Ok(operation)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::reference::RefName;
    use super::super::reference::tests::state;
    use super::*;

    fn change() -> RefChange {
        RefChange {
            name: RefName::main(),
            before: None,
            after: Some(state()),
        }
    }

    fn all() -> Vec<OperationRecord> {
        let session = SessionId::new(7);
        let commit = Some(CommitId::new([8; 32]));
        let changed = |cause| Action::RefChanged {
            change: change(),
            cause,
        };
        let actor = Actor {
            agent: "a".into(),
            run: "r".into(),
            token: Some([9; 8]),
        };
        [
            Action::SessionOpened { session, commit },
            Action::SessionForked {
                session,
                source: SessionId::new(6),
                commit: None,
            },
            Action::SessionClosed { session, commit },
            Action::SessionRestored {
                session,
                before: commit,
                after: None,
            },
            changed(Cause::Asked),
            changed(Cause::Published(session)),
            changed(Cause::Undone(OperationId::new(5))),
        ]
        .into_iter()
        .map(|action| OperationRecord {
            actor: actor.clone(),
            action,
        })
        .collect()
    }

    #[test]
    fn golden_bytes() {
        let who = [
            1, 0, 0, 0, 1, b'a', 0, 0, 0, 1, b'r', 1, 9, 9, 9, 9, 9, 9, 9, 9,
        ];
        let session = [0, 0, 0, 0, 0, 0, 0, 7];
        let commit = [&[1][..], &[8; 32]].concat();
        let mut changed = vec![5, 0, 0, 0, 4];
        changed.extend(b"main");
        changed.extend([0, 1]);
        changed.extend([2; 32]);
        changed.extend([2, 1]);
        let expected = [
            [&[1][..], &session, &commit].concat(),
            [&[2][..], &session, &[0, 0, 0, 0, 0, 0, 0, 6, 0]].concat(),
            [&[3][..], &session, &commit].concat(),
            [&[4][..], &session, &commit, &[0]].concat(),
            [&changed[..], &[1, 0, 0, 0, 0, 0, 0, 0, 0]].concat(),
            [&changed[..], &[2], &session].concat(),
            [&changed[..], &[3, 0, 0, 0, 0, 0, 0, 0, 5]].concat(),
        ];
        for (record, rest) in all().into_iter().zip(expected) {
            let bytes = [&who[..], &rest].concat();
            assert_eq!(record.encode(), bytes, "{record:?}");
            assert_eq!(OperationRecord::decode(&bytes), Ok(record));
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let record = |actor, action| OperationRecord { actor, action }.encode();
        let long = Actor {
            agent: "x".repeat(257),
            ..Actor::default()
        };
        let nothing = RefChange {
            after: None,
            ..change()
        };
        let opened = Action::SessionOpened {
            session: SessionId::new(1),
            commit: None,
        };
        let changed = Action::RefChanged {
            change: nothing,
            cause: Cause::Asked,
        };
        let refused = |bytes: &[u8], what| {
            let expected = Err(RecordError::Field(what));
            assert_eq!(OperationRecord::decode(bytes), expected);
        };
        refused(&record(long, opened.clone()), "agent");
        refused(&record(Actor::default(), changed), "change of a ref");
        let mut bytes = record(Actor::default(), opened).to_vec();
        bytes[12] = 1;
        refused(&bytes, "token");
        bytes[12] = 0;
        bytes[18] = 6;
        refused(&bytes, "action");
    }

    proptest! {
        #[test]
        fn only_the_one_encoding_is_accepted(
            which in any::<prop::sample::Index>(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let records = all();
            let mut bytes = which.get(&records).encode().to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(record) = OperationRecord::decode(&bytes) {
                prop_assert_eq!(record.encode(), bytes);
            }
        }

        #[test]
        fn decode_is_total(bytes in proptest::collection::vec(any::<u8>(), 0..150)) {
            let bytes = [&[VERSION], &bytes[..]].concat();
            if let Ok(record) = OperationRecord::decode(&bytes) {
                prop_assert_eq!(record.encode(), bytes);
            }
        }
    }
}
