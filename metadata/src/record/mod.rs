//! Value formats. One file per format; each begins with a version byte.
//!
//! Decoders are strict and total: an unknown version, a missing or a trailing byte and an
//! impossible combination are errors, never a panic. Integers are big-endian.

pub mod block;
pub mod call;
pub mod changed;
pub mod commit;
pub mod conflict;
pub mod cycle;
pub mod entry;
pub mod gateway;
pub mod inode;
pub mod operation;
pub mod place;
pub mod reference;
pub mod retention;
pub mod session;
pub mod workspace;

use base::{Name, Timestamp};
use bytes::Bytes;

/// Stored bytes that are not a valid record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Written by a newer release, or damaged.
    #[error("record has format version {0}, which this release does not know")]
    Version(u8),
    /// The record ends too early.
    #[error("record is truncated")]
    Truncated,
    /// The record goes on after its end.
    #[error("record has trailing bytes")]
    Trailing,
    /// A field has a value it cannot have.
    #[error("record has an impossible field: {0}")]
    Field(&'static str),
}

/// Longest name of an author, agent, run, model or tool call, in bytes.
pub const LABEL_BYTES_MAX: usize = 256;

/// A field that is given from outside and not acceptable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is not acceptable: {rule}")]
pub struct Unacceptable {
    /// The field.
    pub what: &'static str,
    /// What is acceptable.
    pub rule: &'static str,
}

impl Unacceptable {
    pub(crate) fn new(what: &'static str, rule: &'static str) -> Self {
        Self { what, rule }
    }
}

impl From<Unacceptable> for RecordError {
    fn from(error: Unacceptable) -> Self {
        Self::Field(error.what)
    }
}

/// Checks a name that tools give to agents, runs and the like.
pub(crate) fn check_label(what: &'static str, label: &str) -> Result<(), Unacceptable> {
    if label.len() > LABEL_BYTES_MAX || label.chars().any(char::is_control) {
        let rule = "at most 256 bytes, no control characters";
        return Err(Unacceptable::new(what, rule));
    }
    Ok(())
}

/// Builds a record.
#[derive(Debug)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new(version: u8) -> Self {
        Self(vec![version])
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn time(&mut self, value: Timestamp) {
        self.u64(value.seconds());
        self.u32(value.nanos());
    }

    pub(crate) fn raw(&mut self, value: &[u8]) {
        self.0.extend_from_slice(value);
    }

    /// Length as `u32`, then the bytes. Callers bound the length far below 4 GiB.
    pub(crate) fn bytes(&mut self, value: &[u8]) {
        self.u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.raw(value);
    }

    pub(crate) fn finish(self) -> Bytes {
        Bytes::from(self.0)
    }
}

/// Reads a record front to back.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Checks the version byte.
    pub(crate) fn new(record: &'a [u8], version: u8) -> Result<Self, RecordError> {
        match record.split_first() {
            None => Err(RecordError::Truncated),
            Some((found, rest)) if *found == version => Ok(Self(rest)),
            Some((found, _)) => Err(RecordError::Version(*found)),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        let (value, rest) = self.0.split_first_chunk().ok_or(RecordError::Truncated)?;
        self.0 = rest;
        Ok(*value)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, RecordError> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, RecordError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, RecordError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, RecordError> {
        let (seconds, nanos) = (self.u64()?, self.u32()?);
        if nanos >= 1_000_000_000 {
            return Err(RecordError::Field("nanoseconds"));
        }
        Ok(Timestamp::new(seconds, nanos))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], RecordError> {
        let length = usize::try_from(self.u32()?).map_err(|_| RecordError::Truncated)?;
        let (value, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(RecordError::Truncated)?;
        self.0 = rest;
        Ok(value)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, RecordError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(RecordError::Field("flag")),
        }
    }

    pub(crate) fn name(&mut self) -> Result<Name, RecordError> {
        Name::new(self.bytes()?).map_err(|_| RecordError::Field("name"))
    }

    pub(crate) fn text(&mut self) -> Result<String, RecordError> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| RecordError::Field("text"))
    }

    pub(crate) fn end(self) -> Result<(), RecordError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(RecordError::Trailing)
        }
    }
}
