//! What library and server say to each other: frames of a length (u32, little-endian) and a body.
//!
//! A call names a transaction and, if it wants an answer, a number that the answer repeats. Calls
//! of one connection are done in order. A transaction begins with the first call that names it.

use std::io::{self, Read};

use bytes::{BufMut, Bytes};

use crate::codes::Code;

/// Most bytes of a frame's body. The largest is the answer to a range read in exact mode.
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// A call of the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The transaction, by a number that the connection uses once.
    pub transaction: u64,
    /// What the answer is to repeat; 0 if there is no answer.
    pub id: u64,
    /// What is to be done.
    pub request: Request,
}

/// What a call asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Ends the transaction without a commit.
    Drop,
    /// Gives up the watch that the call with this number set.
    ForgetWatch(u64),
    /// Reads at this version.
    SetReadVersion(u64),
    /// Sets a key to a value.
    Set(Bytes, Bytes),
    /// Removes a key.
    Clear(Bytes),
    /// Removes a range.
    ClearRange(Bytes, Bytes),
    /// Applies an atomic operation, by its number in the C API, to a key.
    Atomic(u32, Bytes, Bytes),
    /// A range that makes others conflict, or (if `write` is false) that others make conflict.
    Conflict {
        /// A write conflict rather than a read conflict.
        write: bool,
        /// First key.
        start: Bytes,
        /// First key after the range.
        end: Bytes,
    },
    /// The read version.
    ReadVersion,
    /// The value of a key.
    Get {
        /// The key.
        key: Bytes,
        /// Without a read conflict.
        snapshot: bool,
    },
    /// The key that a selector means.
    GetKey {
        /// The selector.
        selector: Selector,
        /// Without a read conflict.
        snapshot: bool,
    },
    /// Part of a range.
    GetRange(RangeRead),
    /// Sets a watch, which begins with the commit and is answered when it fires.
    Watch(Bytes),
    /// Commits and ends the transaction.
    Commit,
}

/// A key by its place in the order: the `offset`th key after the last one that is less than `key`
/// (or equal to it, with `or_equal`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// The key that the place is counted from.
    pub key: Bytes,
    /// Whether the key itself counts as before.
    pub or_equal: bool,
    /// How far.
    pub offset: i32,
}

/// A range read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRead {
    /// First key.
    pub begin: Selector,
    /// First key after the range.
    pub end: Selector,
    /// Most pairs.
    pub rows: u32,
    /// About how many bytes.
    pub bytes: u32,
    /// Whether less than asked for may be returned although there is more.
    pub may_cut: bool,
    /// Without read conflicts.
    pub snapshot: bool,
    /// From the end.
    pub reverse: bool,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The number of the call.
    pub id: u64,
    /// What came out.
    pub outcome: Result<Reply, Code>,
}

/// What a call results in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing to tell: a watch has fired.
    Done,
    /// A read version.
    Version(u64),
    /// A key.
    Key(Bytes),
    /// A value, if there is one.
    Value(Option<Bytes>),
    /// Part of a range, and whether there may be more.
    Pairs(Vec<(Bytes, Bytes)>, bool),
    /// Version and stamp of a commit; `None` if nothing was written.
    Committed(Option<(u64, [u8; 10])>),
}

/// Reads one body; `None` at the end of the stream.
///
/// # Errors
///
/// The stream fails, ends within a frame, or claims a frame that is too long.
pub fn read_frame(stream: &mut impl Read) -> io::Result<Option<Bytes>> {
    let mut length = [0; 4];
    if let Err(error) = stream.read_exact(&mut length) {
        let ended = error.kind() == io::ErrorKind::UnexpectedEof;
        return if ended { Ok(None) } else { Err(error) };
    }
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other("frame is too long"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(Some(Bytes::from(body)))
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(body.len() + 4);
    frame.put_u32_le(u32::try_from(body.len()).unwrap_or(u32::MAX));
    frame.extend_from_slice(body);
    frame
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32_le(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.extend_from_slice(bytes);
}

fn put_selector(out: &mut Vec<u8>, selector: &Selector) {
    put(out, &selector.key);
    out.put_u8(u8::from(selector.or_equal));
    out.put_i32_le(selector.offset);
}

impl Call {
    /// The call as a frame.
    #[must_use]
    pub fn frame(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64_le(self.transaction);
        out.put_u64_le(self.id);
        match &self.request {
            Request::Drop => out.put_u8(0),
            Request::ForgetWatch(id) => {
                out.put_u8(1);
                out.put_u64_le(*id);
            }
            Request::SetReadVersion(version) => {
                out.put_u8(2);
                out.put_u64_le(*version);
            }
            Request::Set(key, value) => put_two(&mut out, 3, key, value),
            Request::Clear(key) => {
                out.put_u8(4);
                put(&mut out, key);
            }
            Request::ClearRange(start, end) => put_two(&mut out, 5, start, end),
            Request::Atomic(op, key, operand) => {
                put_two(&mut out, 6, key, operand);
                out.put_u32_le(*op);
            }
            Request::Conflict { write, start, end } => {
                put_two(&mut out, 7, start, end);
                out.put_u8(u8::from(*write));
            }
            Request::ReadVersion => out.put_u8(8),
            Request::Get { key, snapshot } => {
                out.put_u8(9);
                put(&mut out, key);
                out.put_u8(u8::from(*snapshot));
            }
            Request::GetKey { selector, snapshot } => {
                out.put_u8(10);
                put_selector(&mut out, selector);
                out.put_u8(u8::from(*snapshot));
            }
            Request::GetRange(read) => {
                out.put_u8(11);
                put_selector(&mut out, &read.begin);
                put_selector(&mut out, &read.end);
                out.put_u32_le(read.rows);
                out.put_u32_le(read.bytes);
                for flag in [read.may_cut, read.snapshot, read.reverse] {
                    out.put_u8(u8::from(flag));
                }
            }
            Request::Watch(key) => {
                out.put_u8(12);
                put(&mut out, key);
            }
            Request::Commit => out.put_u8(13),
        }
        framed(&out)
    }

    /// Decodes a body; `None` if it is not exactly one call.
    #[must_use]
    pub fn decode(body: Bytes) -> Option<Self> {
        let mut input = Input(body);
        let transaction = input.u64()?;
        let id = input.u64()?;
        let request = match input.u8()? {
            0 => Request::Drop,
            1 => Request::ForgetWatch(input.u64()?),
            2 => Request::SetReadVersion(input.u64()?),
            3 => Request::Set(input.bytes()?, input.bytes()?),
            4 => Request::Clear(input.bytes()?),
            5 => Request::ClearRange(input.bytes()?, input.bytes()?),
            6 => {
                let (key, operand) = (input.bytes()?, input.bytes()?);
                Request::Atomic(input.u32()?, key, operand)
            }
            7 => Request::Conflict {
                start: input.bytes()?,
                end: input.bytes()?,
                write: input.flag()?,
            },
            8 => Request::ReadVersion,
            9 => Request::Get {
                key: input.bytes()?,
                snapshot: input.flag()?,
            },
            10 => Request::GetKey {
                selector: input.selector()?,
                snapshot: input.flag()?,
            },
            11 => Request::GetRange(RangeRead {
                begin: input.selector()?,
                end: input.selector()?,
                rows: input.u32()?,
                bytes: input.u32()?,
                may_cut: input.flag()?,
                snapshot: input.flag()?,
                reverse: input.flag()?,
            }),
            12 => Request::Watch(input.bytes()?),
            13 => Request::Commit,
            _ => return None,
        };
        input.end()?;
        Some(Self {
            transaction,
            id,
            request,
        })
    }
}

fn put_two(out: &mut Vec<u8>, tag: u8, first: &[u8], second: &[u8]) {
    out.put_u8(tag);
    put(out, first);
    put(out, second);
}

impl Answer {
    /// The answer as a frame.
    #[must_use]
    pub fn frame(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64_le(self.id);
        match &self.outcome {
            Err(code) => {
                out.put_u8(0);
                out.put_i32_le(*code);
            }
            Ok(Reply::Done) => out.put_u8(1),
            Ok(Reply::Version(version)) => {
                out.put_u8(2);
                out.put_u64_le(*version);
            }
            Ok(Reply::Key(key)) => {
                out.put_u8(3);
                put(&mut out, key);
            }
            Ok(Reply::Value(None)) => out.put_u8(4),
            Ok(Reply::Value(Some(value))) => {
                out.put_u8(5);
                put(&mut out, value);
            }
            Ok(Reply::Pairs(pairs, more)) => {
                out.put_u8(6);
                out.put_u8(u8::from(*more));
                for (key, value) in pairs {
                    put(&mut out, key);
                    put(&mut out, value);
                }
            }
            Ok(Reply::Committed(None)) => out.put_u8(7),
            Ok(Reply::Committed(Some((version, stamp)))) => {
                out.put_u8(8);
                out.put_u64_le(*version);
                out.extend_from_slice(stamp);
            }
        }
        framed(&out)
    }

    /// Decodes a body; `None` if it is not exactly one answer.
    #[must_use]
    pub fn decode(body: Bytes) -> Option<Self> {
        let mut input = Input(body);
        let id = input.u64()?;
        let outcome = match input.u8()? {
            0 => Err(i32::from_le_bytes(input.array()?)),
            1 => Ok(Reply::Done),
            2 => Ok(Reply::Version(input.u64()?)),
            3 => Ok(Reply::Key(input.bytes()?)),
            4 => Ok(Reply::Value(None)),
            5 => Ok(Reply::Value(Some(input.bytes()?))),
            6 => {
                let more = input.flag()?;
                let mut pairs = Vec::new();
                while !input.0.is_empty() {
                    pairs.push((input.bytes()?, input.bytes()?));
                }
                Ok(Reply::Pairs(pairs, more))
            }
            7 => Ok(Reply::Committed(None)),
            8 => Ok(Reply::Committed(Some((input.u64()?, input.array()?)))),
            _ => return None,
        };
        input.end()?;
        Some(Self { id, outcome })
    }
}

/// What is left of a body.
struct Input(Bytes);

impl Input {
    fn take(&mut self, length: usize) -> Option<Bytes> {
        (length <= self.0.len()).then(|| self.0.split_to(length))
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.as_ref().try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<Bytes> {
        let length = usize::try_from(self.u32()?).ok()?;
        self.take(length)
    }

    fn selector(&mut self) -> Option<Selector> {
        Some(Selector {
            key: self.bytes()?,
            or_equal: self.flag()?,
            offset: i32::from_le_bytes(self.array()?),
        })
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn b(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn requests() -> Vec<Request> {
        let selector = Selector {
            key: b("s"),
            or_equal: true,
            offset: -3,
        };
        vec![
            Request::Drop,
            Request::ForgetWatch(9),
            Request::SetReadVersion(1 << 40),
            Request::Set(b("k"), b("")),
            Request::Clear(b("k")),
            Request::ClearRange(b("a"), b("b")),
            Request::Atomic(2, b("k"), b("v")),
            Request::Conflict {
                write: true,
                start: b("a"),
                end: b("b"),
            },
            Request::ReadVersion,
            Request::Get {
                key: b("k"),
                snapshot: true,
            },
            Request::GetKey {
                selector: selector.clone(),
                snapshot: false,
            },
            Request::GetRange(RangeRead {
                begin: selector.clone(),
                end: selector,
                rows: 7,
                bytes: 8,
                may_cut: true,
                snapshot: false,
                reverse: true,
            }),
            Request::Watch(b("k")),
            Request::Commit,
        ]
    }

    #[test]
    fn calls_and_answers_come_back_and_no_cut_body_is_taken() {
        for request in requests() {
            let call = Call {
                transaction: 5,
                id: 6,
                request,
            };
            let frame = call.frame();
            let body = read_frame(&mut frame.as_slice()).unwrap().unwrap();
            assert_eq!(Call::decode(body.clone()), Some(call));
            for cut in 0..body.len() {
                assert_eq!(Call::decode(body.slice(..cut)), None);
            }
        }
        for outcome in [
            Err(1020),
            Ok(Reply::Done),
            Ok(Reply::Version(3)),
            Ok(Reply::Key(b("k"))),
            Ok(Reply::Value(None)),
            Ok(Reply::Value(Some(b("")))),
            Ok(Reply::Pairs(vec![(b("k"), b("")), (b("l"), b("v"))], true)),
            Ok(Reply::Committed(None)),
            Ok(Reply::Committed(Some((7, *b"0123456789")))),
        ] {
            let answer = Answer { id: 1, outcome };
            let frame = answer.frame();
            let body = read_frame(&mut frame.as_slice()).unwrap().unwrap();
            assert_eq!(Answer::decode(body), Some(answer));
        }
    }

    /// Bytes from outside decode to nothing, or to what encodes to them again.
    #[test]
    fn changed_bodies_do_no_harm() {
        let rng = base::Rng::seeded(1);
        let mut decoded = 0;
        for round in 0..20_000_usize {
            let requests = requests();
            let request = requests[round % requests.len()].clone();
            let call = Call {
                transaction: 1,
                id: 2,
                request,
            };
            let mut body = call.frame().split_off(4);
            for _ in 0..=rng.u64() % 3 {
                let place = usize::try_from(rng.u64()).unwrap() % body.len();
                body[place] = rng.bytes::<1>()[0];
            }
            let body = Bytes::from(body);
            if let Some(call) = Call::decode(body.clone()) {
                assert_eq!(call.frame()[4..], body);
                decoded += 1;
            }
            if let Some(answer) = Answer::decode(body.clone()) {
                assert_eq!(answer.frame()[4..], body);
            }
        }
        assert!(decoded > 1000, "{decoded}");
    }

    #[test]
    fn a_frame_that_claims_too_much_is_refused_before_it_is_read() {
        assert!(read_frame(&mut [255, 255, 255, 255].as_slice()).is_err());
        assert!(read_frame(&mut [1, 0, 0, 0].as_slice()).is_err());
        assert_eq!(read_frame(&mut [].as_slice()).unwrap(), None);
    }
}
