//! Calls on their way out: encoded into one buffer, sent in as few system calls as possible.

use std::io::{IoSlice, Write};
use std::ops::Range;

use crate::Error;
use crate::pattern::{PATTERN_BYTES, Pattern, Stamp};
use crate::rpc::{self, Procedure};

/// Data of at least this many bytes is not copied next to its call but sent from where it is.
const BULK_BYTES_MIN: usize = 32 * 1024;

/// Calls that are encoded and not yet sent.
#[derive(Debug)]
pub struct Outgoing {
    buffer: Vec<u8>,
    pattern: Pattern,
    /// Part of the pattern that follows the buffer.
    bulk: Range<usize>,
    credentials: Vec<u8>,
    record_start: usize,
    xid: u32,
    call: &'static str,
}

impl Outgoing {
    pub(crate) fn new() -> Self {
        Self {
            buffer: Vec::new(),
            pattern: Pattern::new(),
            bulk: 0..0,
            credentials: rpc::credentials(),
            record_start: 0,
            xid: 0,
            call: "",
        }
    }

    /// Sets the number of the next call and makes room for its record mark.
    pub(crate) fn open(&mut self, xid: u32) {
        self.xid = xid;
        self.record_start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; 4]);
        self.u32(xid);
    }

    /// Completes the record mark; gives the record's length in bytes without it.
    pub(crate) fn close(&mut self) -> Result<usize, Error> {
        let length = self.buffer.len() + self.bulk.len() - self.record_start - 4;
        let mark = u32::try_from(length)
            .map_err(|_| Error::Setup("a call is longer than a record".into()))?;
        if let Some(place) = self
            .buffer
            .get_mut(self.record_start..)
            .and_then(|record| record.first_chunk_mut::<4>())
        {
            *place = (rpc::LAST_FRAGMENT | mark).to_be_bytes();
        }
        Ok(length)
    }

    /// The header of a call.
    pub(crate) fn begin(&mut self, procedure: Procedure) {
        self.call = procedure.name;
        for word in rpc::call_header(procedure) {
            self.u32(word);
        }
        self.buffer.extend_from_slice(&self.credentials);
    }

    /// Name of the call encoded last.
    pub(crate) fn call_name(&self) -> &'static str {
        self.call
    }

    pub(crate) fn set_call_name(&mut self, name: &'static str) {
        self.call = name;
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.buffer.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.buffer.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    pub(crate) fn opaque(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.buffer.extend_from_slice(bytes);
        let padding = bytes.len().next_multiple_of(4) - bytes.len();
        self.buffer.resize(self.buffer.len() + padding, 0);
    }

    /// `length` stamped bytes as an opaque. Ends the call: bulk data travels after the buffer.
    pub(crate) fn data(&mut self, stamp: Stamp, length: usize) {
        debug_assert!(length.is_multiple_of(4), "data needs no padding");
        self.length(length);
        let place = self.pattern.stamp(stamp, length);
        self.content(place);
    }

    /// `length` bytes of no meaning. Ends the call.
    pub(crate) fn filler(&mut self, length: usize) {
        self.content(0..length.min(PATTERN_BYTES));
    }

    fn content(&mut self, place: Range<usize>) {
        if place.len() < BULK_BYTES_MIN {
            self.buffer.extend_from_slice(self.pattern.bytes(place));
        } else {
            self.bulk = place;
        }
    }

    pub(crate) fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// Whether what is here should go out before another call is added.
    pub(crate) fn is_full(&self) -> bool {
        !self.bulk.is_empty() || self.buffer.len() >= BULK_BYTES_MIN
    }

    /// Sends everything. Waits for the peer to take it, at most the socket's time limit.
    pub(crate) fn flush(&mut self, stream: &mut impl Write) -> Result<(), Error> {
        let mut head = self.buffer.as_slice();
        let mut body = self.pattern.bytes(self.bulk.clone());
        while !(head.is_empty() && body.is_empty()) {
            let sent = match stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]) {
                Ok(0) => return Err(Error::Stream("the server takes no more bytes")),
                Ok(sent) => sent,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::io("send calls")(error)),
            };
            let of_head = sent.min(head.len());
            head = head.get(of_head..).unwrap_or_default();
            body = body.get(sent - of_head..).unwrap_or_default();
        }
        self.buffer.clear();
        self.bulk = 0..0;
        Ok(())
    }

    fn length(&mut self, length: usize) {
        // Everything sent is at most 1 MiB, so the conversion always holds.
        self.u32(u32::try_from(length).unwrap_or(u32::MAX));
    }
}
