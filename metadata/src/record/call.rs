//! What is known of a call of the API that carries an idempotency key
//! (`docs/design/0013-idempotency.md`).

use base::Timestamp;
use bytes::Bytes;

use super::{Reader, RecordError, Writer};

const VERSION: u8 = 1;

const BEGUN: u8 = 0;

const DONE: u8 = 1;

/// Longest answer that is kept, in bytes: values have at most 100,000 on every store.
pub const ANSWER_BYTES_MAX: usize = 90_000;

/// What stands in a kept answer for the secret that was in it: a byte that JSON never has.
pub const SECRET: u8 = 0;

/// A call, its key's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRecord {
    /// Hash of the request.
    pub request: [u8; 32],
    /// When the key was given first.
    pub created: Timestamp,
    /// What secrets of the answer are derived from, with a key of the tenant.
    pub salt: [u8; 16],
    /// Who runs it, or ran it: the process and the attempt.
    pub holder: Holder,
    /// How far it is.
    pub state: CallState,
}

/// Who runs a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The process, by a number drawn at its start.
    pub process: u64,
    /// The attempt, by a number of its own.
    pub attempt: u64,
}

/// How far a call is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallState {
    /// It runs, or its process has ended.
    Begun {
        /// Until then its holder is taken to live.
        until: Timestamp,
    },
    /// It has taken effect.
    Done(CallAnswer),
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The body, with [`SECRET`] in place of a secret. `None` if it was too long to be kept.
    pub body: Option<Bytes>,
}

impl CallRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.raw(&self.request);
        to.time(self.created);
        to.raw(&self.salt);
        to.u64(self.holder.process);
        to.u64(self.holder.attempt);
        match &self.state {
            CallState::Begun { until } => {
                to.u8(BEGUN);
                to.time(*until);
            }
            CallState::Done(answer) => {
                to.u8(DONE);
                to.u32(u32::from(answer.status));
                to.u8(u8::from(answer.body.is_some()));
                to.bytes(answer.body.as_deref().unwrap_or_default());
            }
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
        let request = from.array()?;
        let created = from.time()?;
        let salt = from.array()?;
        let holder = Holder {
            process: from.u64()?,
            attempt: from.u64()?,
        };
        let state = match from.u8()? {
            BEGUN => CallState::Begun {
                until: from.time()?,
            },
            DONE => CallState::Done(answer(&mut from)?),
            _ => return Err(RecordError::Field("state of a call")),
        };
        from.end()?;
        Ok(Self {
            request,
            created,
            salt,
            holder,
            state,
        })
    }
}

fn answer(from: &mut Reader<'_>) -> Result<CallAnswer, RecordError> {
    let status = u16::try_from(from.u32()?).ok();
    let status = status.filter(|status| (200..300).contains(status));
    let status = status.ok_or(RecordError::Field("status"))?;
    let (is_kept, body) = (from.flag()?, from.bytes()?);
    if body.len() > ANSWER_BYTES_MAX || (!is_kept && !body.is_empty()) {
        return Err(RecordError::Field("answer"));
    }
    Ok(CallAnswer {
        status,
        body: is_kept.then(|| Bytes::copy_from_slice(body)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(state: CallState) -> CallRecord {
        CallRecord {
            request: [1; 32],
            created: Timestamp::new(2, 3),
            salt: [4; 16],
            holder: Holder {
                process: 5,
                attempt: 6,
            },
            state,
        }
    }

    #[test]
    fn bytes_are_golden() {
        let mut head = vec![1];
        head.extend([1; 32]);
        head.extend([0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3]);
        head.extend([4; 16]);
        head.extend([0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6]);
        let until = Timestamp::new(7, 8);
        let begun = [0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 8];
        let answer = |body: Option<&'static [u8]>| {
            CallState::Done(CallAnswer {
                status: 201,
                body: body.map(Bytes::from_static),
            })
        };
        let cases: [(CallState, &[u8]); 3] = [
            (CallState::Begun { until }, &begun),
            (
                answer(Some(b"{}")),
                &[1, 0, 0, 0, 201, 1, 0, 0, 0, 2, b'{', b'}'],
            ),
            (answer(None), &[1, 0, 0, 0, 201, 0, 0, 0, 0, 0]),
        ];
        for (state, tail) in cases {
            let record = record(state);
            let bytes = [&head, tail].concat();
            assert_eq!(record.encode(), bytes);
            assert_eq!(CallRecord::decode(&bytes), Ok(record));
            assert!(CallRecord::decode(&bytes[..bytes.len() - 1]).is_err());
            assert_eq!(
                CallRecord::decode(&[&bytes[..], &[0]].concat()),
                Err(RecordError::Trailing)
            );
        }
        let of = |tail: &[u8]| CallRecord::decode(&[&head, tail].concat());
        assert_eq!(of(&[2]), Err(RecordError::Field("state of a call")));
        for status in [[0, 0, 0, 199], [0, 0, 1, 44], [0, 1, 0, 200]] {
            let tail = [&[1][..], &status, &[1, 0, 0, 0, 0]].concat();
            assert_eq!(of(&tail), Err(RecordError::Field("status")));
        }
        let with_bytes = [1, 0, 0, 0, 201, 0, 0, 0, 0, 1, 0];
        assert_eq!(of(&with_bytes), Err(RecordError::Field("answer")));
        assert_eq!(
            CallRecord::decode(&[9]),
            Err(RecordError::Version(9)),
            "another release"
        );
    }

    proptest! {
        /// Bytes from outside never panic, and never decode to something we would not encode.
        #[test]
        fn decode_is_total(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            if let Ok(record) = CallRecord::decode(&bytes) {
                prop_assert_eq!(record.encode(), bytes);
            }
        }
    }
}
