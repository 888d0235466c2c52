//! A finished reply: bytes to send, and data that goes out without being copied.

use bytes::Bytes;
use smallvec::SmallVec;

use super::outcome::Outcome;
use super::xdr::{Encode, XdrWriter, padding_bytes};

/// Room a reply starts with, in bytes: most replies fit without growing.
const REPLY_BYTES_TYPICAL: usize = 320;

/// The record mark before every reply, in bytes.
const MARK_BYTES: usize = 4;

/// Set in a record mark whose fragment is the record's last.
const LAST_FRAGMENT: u32 = 0x8000_0000;

/// Data up to this size is copied behind the header: cheaper than one more segment to send.
const PAYLOAD_COPIED_BYTES_MAX: usize = 1024;

const ZEROS: &[u8; 3] = &[0; 3];

/// Data that is part of a reply but stays where it is: blocks of a cache, mostly.
pub type Payload = SmallVec<[Bytes; 2]>;

/// Writes one reply, whose header has been written.
#[derive(Debug)]
pub struct ReplyWriter {
    xdr: XdrWriter,
    body_start: usize,
}

impl ReplyWriter {
    /// Begins a reply with the RPC header that `header` writes.
    pub(super) fn begin(header: impl FnOnce(&mut XdrWriter)) -> Self {
        let mut xdr = XdrWriter::with_capacity(REPLY_BYTES_TYPICAL);
        xdr.u32(0);
        header(&mut xdr);
        let body_start = xdr.len();
        Self { xdr, body_start }
    }

    /// Where the procedure's result goes.
    pub fn body(&mut self) -> &mut XdrWriter {
        &mut self.xdr
    }

    /// Appends `value` to the result.
    #[must_use]
    pub fn with(mut self, value: &impl Encode) -> Self {
        value.encode(&mut self.xdr);
        self
    }

    /// Ends the reply.
    #[must_use]
    pub fn finish(self) -> Reply {
        self.finish_with_segments(Payload::new())
    }

    /// Ends the reply with variable-length opaque data, which is not copied unless it is small.
    #[must_use]
    pub fn finish_with(mut self, data: Payload) -> Reply {
        let data_bytes: usize = data.iter().map(Bytes::len).sum();
        self.xdr.length(data_bytes);
        if data_bytes <= PAYLOAD_COPIED_BYTES_MAX {
            for segment in &data {
                self.xdr.raw(segment);
            }
            let padding = ZEROS.get(..padding_bytes(data_bytes)).unwrap_or_default();
            self.xdr.raw(padding);
            return self.finish();
        }
        let mut segments = data;
        segments.retain(|segment| !segment.is_empty());
        match padding_bytes(data_bytes) {
            0 => {}
            padding => segments.push(Bytes::from_static(ZEROS).slice(..padding)),
        }
        self.finish_with_segments(segments)
    }

    fn finish_with_segments(mut self, segments: Payload) -> Reply {
        let payload_bytes: usize = segments.iter().map(Bytes::len).sum();
        let record_bytes = self.xdr.len() - MARK_BYTES + payload_bytes;
        let length = u32::try_from(record_bytes).unwrap_or(u32::MAX);
        self.xdr.patch_u32(0, LAST_FRAGMENT | length);
        Reply {
            head: self.xdr.into_bytes(),
            body_start: self.body_start,
            segments,
            payload_bytes,
        }
    }
}

/// One reply, ready to be sent: a whole record with its mark.
#[derive(Clone, Debug)]
pub struct Reply {
    head: Vec<u8>,
    body_start: usize,
    segments: Payload,
    payload_bytes: usize,
}

impl Reply {
    /// A reply that came as a whole record from another gateway.
    #[must_use]
    pub fn of_record(record: Bytes) -> Self {
        let length = u32::try_from(record.len()).unwrap_or(u32::MAX);
        let payload_bytes = record.len();
        Self {
            head: (LAST_FRAGMENT | length).to_be_bytes().to_vec(),
            body_start: MARK_BYTES,
            segments: Payload::from_iter([record]),
            payload_bytes,
        }
    }

    /// How many bytes it takes on the wire.
    #[must_use]
    pub const fn wire_bytes(&self) -> usize {
        self.head.len() + self.payload_bytes
    }

    /// The procedure's result, without the RPC header and without data that was not copied: what
    /// is stored of a reply that may have to be given again.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        self.head.get(self.body_start..).unwrap_or_default()
    }

    /// What it tells its caller.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let made = self.head.get(MARK_BYTES..).unwrap_or_default();
        match self.segments.first() {
            // It came as a whole.
            Some(record) if made.is_empty() => Outcome::of_message(record),
            _ => Outcome::of_message(made),
        }
    }

    /// The pieces to send, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.head.as_slice()).chain(self.segments.iter().map(|segment| &**segment))
    }

    /// The whole record in one piece, for tests and for forwarding.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces().flatten().copied().collect()
    }
}
