//! A ref: a name for a commit. Branches move, tags do not.

use base::{CommitId, OperationId, Timestamp};
use bytes::Bytes;

use super::{Reader, RecordError, Writer};
use crate::version::Time;

const VERSION: u8 = 1;

/// Longest name of a ref, in bytes.
pub const REF_NAME_BYTES_MAX: usize = 200;

/// What a ref is called: parts of `a-z A-Z 0-9 . _ - + = @`, with `/` between them.
///
/// The rules are git's, made stricter, so that every name can be a ref of a git repository and a
/// part of a URL and cannot be taken for an id or a time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefName(String);

/// Why a text is not a [`RefName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefNameError {
    /// Empty, or too long.
    #[error("it must have 1 to {REF_NAME_BYTES_MAX} bytes")]
    Length,
    /// Has a character that is not allowed.
    #[error("it may have only a-z, A-Z, 0-9 and . _ - + = @ /")]
    Character,
    /// `/` where no part is before or after it.
    #[error("'/' must have something before and after it")]
    Slash,
    /// A part that begins with `.` or `-`, ends with `.` or `.lock`, or is `@`; or two dots.
    #[error(
        "it may not contain '..', and no part of it may begin with '.' or '-', end with '.' or \
         '.lock', or be '@'"
    )]
    Part,
    /// Would be taken for the id of a commit.
    #[error("64 hexadecimal digits are a commit id")]
    Id,
    /// Would be taken for a time.
    #[error("it reads as a time")]
    Time,
}

impl RefName {
    /// Checks and copies `text`.
    ///
    /// # Errors
    ///
    /// Says why the text cannot be a name.
    pub fn new(text: &str) -> Result<Self, RefNameError> {
        let allowed = |byte: u8| {
            byte.is_ascii_alphanumeric()
                || matches!(byte, b'.' | b'_' | b'-' | b'+' | b'=' | b'@' | b'/')
        };
        let part_is_bad = |part: &str| {
            part.starts_with(['.', '-'])
                || part.ends_with('.')
                || part.ends_with(".lock")
                || part == "@"
        };
        if text.is_empty() || text.len() > REF_NAME_BYTES_MAX {
            Err(RefNameError::Length)
        } else if !text.bytes().all(allowed) {
            Err(RefNameError::Character)
        } else if text.split('/').any(str::is_empty) {
            Err(RefNameError::Slash)
        } else if text.contains("..") || text.split('/').any(part_is_bad) {
            Err(RefNameError::Part)
        } else if text.parse::<CommitId>().is_ok() {
            Err(RefNameError::Id)
        } else if Time::is_like(text) {
            Err(RefNameError::Time)
        } else {
            Ok(Self(text.to_owned()))
        }
    }

    /// The branch `main`: what a time without a ref means.
    #[must_use]
    pub fn main() -> Self {
        Self("main".to_owned())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, RecordError> {
        Self::new(&from.text()?).map_err(|_| RecordError::Field("ref name"))
    }
}

impl std::fmt::Debug for RefName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RefName({:?})", self.0)
    }
}

impl std::fmt::Display for RefName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for RefName {
    type Err = RefNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

/// What a ref is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefKind {
    /// Moves with the work on it.
    Branch,
    /// Stays where it is.
    Tag,
}

/// What a ref says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefState {
    /// The commit that it names.
    pub commit: CommitId,
    /// What it is for.
    pub kind: RefKind,
    /// It is not removed, and moves to descendants of its commit only.
    pub protected: bool,
}

impl RefState {
    pub(super) fn encode(&self, to: &mut Writer) {
        to.raw(self.commit.as_bytes());
        to.u8(match self.kind {
            RefKind::Branch => 1,
            RefKind::Tag => 2,
        });
        to.u8(u8::from(self.protected));
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, RecordError> {
        Ok(Self {
            commit: CommitId::new(from.array()?),
            kind: match from.u8()? {
                1 => RefKind::Branch,
                2 => RefKind::Tag,
                _ => return Err(RecordError::Field("kind of ref")),
            },
            protected: from.flag()?,
        })
    }

    pub(super) fn encode_optional(state: Option<&Self>, to: &mut Writer) {
        to.u8(u8::from(state.is_some()));
        if let Some(state) = state {
            state.encode(to);
        }
    }

    pub(super) fn decode_optional(from: &mut Reader<'_>) -> Result<Option<Self>, RecordError> {
        from.flag()?.then(|| Self::decode(from)).transpose()
    }
}

/// A ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefRecord {
    /// What it says.
    pub state: RefState,
    /// When it was changed last.
    pub updated: Timestamp,
}

impl RefRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        self.state.encode(&mut to);
        to.time(self.updated);
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let reference = Self {
            state: RefState::decode(&mut from)?,
            updated: from.time()?,
        };
        from.end()?;
        Ok(reference)
    }
}

/// What a ref said from a time on: an entry of the ref's own log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefLogRecord {
    /// The ref.
    pub name: RefName,
    /// The operation that made it so.
    pub operation: OperationId,
    /// What it said from then on; `None` if there was no such ref.
    pub state: Option<RefState>,
}

impl RefLogRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.bytes(self.name.as_str().as_bytes());
        to.u64(self.operation.raw());
        RefState::encode_optional(self.state.as_ref(), &mut to);
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let entry = Self {
            name: RefName::decode(&mut from)?,
            operation: OperationId::new(from.u64()?),
            state: RefState::decode_optional(&mut from)?,
        };
        from.end()?;
        Ok(entry)
    }
}

/// One change of a ref. `before` and `after` differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefChange {
    /// The ref.
    pub name: RefName,
    /// What it said; `None` if there was none.
    pub before: Option<RefState>,
    /// What it says now; `None` if it was removed.
    pub after: Option<RefState>,
}

impl RefChange {
    /// What was done, in a word.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match (&self.before, &self.after) {
            (None, _) => "create",
            (Some(_), None) => "delete",
            (Some(before), Some(after)) if before.commit != after.commit => "move",
            (Some(_), Some(after)) if after.protected => "protect",
            (Some(_), Some(_)) => "unprotect",
        }
    }

    pub(super) fn encode(&self, to: &mut Writer) {
        to.bytes(self.name.as_str().as_bytes());
        RefState::encode_optional(self.before.as_ref(), to);
        RefState::encode_optional(self.after.as_ref(), to);
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, RecordError> {
        let change = Self {
            name: RefName::decode(from)?,
            before: RefState::decode_optional(from)?,
            after: RefState::decode_optional(from)?,
        };
        if change.before == change.after {
            return Err(RecordError::Field("change of a ref"));
        }
        Ok(change)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in crate::record) fn state() -> RefState {
        RefState {
            commit: CommitId::new([2; 32]),
            kind: RefKind::Tag,
            protected: true,
        }
    }

    #[test]
    fn golden_bytes() {
        let record = RefRecord {
            state: state(),
            updated: Timestamp::new(3, 4),
        };
        let mut bytes = vec![1];
        bytes.extend([2; 32]);
        bytes.extend([2, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4]);
        assert_eq!(record.encode(), bytes);
        assert_eq!(RefRecord::decode(&bytes), Ok(record));
        for (at, error) in [(33, "kind of ref"), (34, "flag")] {
            let mut damaged = bytes.clone();
            damaged[at] = 3;
            assert_eq!(RefRecord::decode(&damaged), Err(RecordError::Field(error)));
        }
        bytes.push(0);
        assert_eq!(RefRecord::decode(&bytes), Err(RecordError::Trailing));

        let mut entry = RefLogRecord {
            name: RefName::main(),
            operation: OperationId::new(5),
            state: None,
        };
        let mut bytes = vec![1, 0, 0, 0, 4];
        bytes.extend(b"main");
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 5, 0]);
        assert_eq!(entry.encode(), bytes);
        assert_eq!(RefLogRecord::decode(&bytes), Ok(entry.clone()));
        entry.state = Some(state());
        *bytes.last_mut().unwrap() = 1;
        bytes.extend([2; 32]);
        bytes.extend([2, 1]);
        assert_eq!(entry.encode(), bytes);
        assert_eq!(RefLogRecord::decode(&bytes), Ok(entry));
    }

    #[test]
    fn names_are_checked() {
        let good = [
            "main",
            "a",
            "v1.2.3",
            "agent/fix-12/try_2",
            "user@host",
            "a+b=c",
            "cafe",
            "2026",
            "2026-11-24-refactor",
            "yesterdays",
            "last",
            "ago",
            &"x".repeat(200),
        ];
        for name in good {
            assert_eq!(RefName::new(name).unwrap().as_str(), name);
        }
        let bad: [(&str, RefNameError); 32] = [
            ("", RefNameError::Length),
            (&"x".repeat(201), RefNameError::Length),
            ("a b", RefNameError::Character),
            ("a~1", RefNameError::Character),
            ("a^", RefNameError::Character),
            ("a:b", RefNameError::Character),
            ("a?", RefNameError::Character),
            ("a*", RefNameError::Character),
            ("a[", RefNameError::Character),
            ("a\\b", RefNameError::Character),
            ("a@{b}", RefNameError::Character),
            ("a\n", RefNameError::Character),
            ("ü", RefNameError::Character),
            ("/a", RefNameError::Slash),
            ("a/", RefNameError::Slash),
            ("a//b", RefNameError::Slash),
            ("a..b", RefNameError::Part),
            (".a", RefNameError::Part),
            ("a/.b", RefNameError::Part),
            ("-a", RefNameError::Part),
            ("a/-b", RefNameError::Part),
            ("a.", RefNameError::Part),
            ("a./b", RefNameError::Part),
            ("a.lock", RefNameError::Part),
            ("a.lock/b", RefNameError::Part),
            ("@", RefNameError::Part),
            (&"a5".repeat(32), RefNameError::Id),
            ("now", RefNameError::Time),
            ("Yesterday", RefNameError::Time),
            ("last-tuesday", RefNameError::Time),
            ("3.hours.ago", RefNameError::Time),
            ("2026-11-24", RefNameError::Time),
        ];
        for (name, error) in bad {
            assert_eq!(RefName::new(name), Err(error), "{name}");
        }
    }

    #[test]
    fn a_change_has_a_word() {
        let open = RefState {
            protected: false,
            ..state()
        };
        let moved = RefState {
            commit: CommitId::new([3; 32]),
            ..open
        };
        let cases = [
            (None, Some(open), "create"),
            (Some(open), None, "delete"),
            (Some(open), Some(moved), "move"),
            (Some(open), Some(state()), "protect"),
            (Some(state()), Some(open), "unprotect"),
        ];
        for (before, after, verb) in cases {
            let name = RefName::main();
            let change = RefChange {
                name,
                before,
                after,
            };
            assert_eq!(change.verb(), verb);
        }
    }

    proptest! {
        #[test]
        fn decoders_are_total(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let bytes = [&[VERSION], &bytes[..]].concat();
            if let Ok(record) = RefRecord::decode(&bytes) {
                prop_assert_eq!(record.encode(), &bytes[..]);
            }
            if let Ok(entry) = RefLogRecord::decode(&bytes) {
                prop_assert_eq!(entry.encode(), &bytes[..]);
            }
        }
    }
}
