//! Record marking (RFC 5531, section 11): records in a stream of bytes.
//!
//! A record comes in fragments, each behind a mark with its length. Nearly every record has one
//! fragment; it is handed out as a piece of the receive buffer, without copying. Memory follows
//! what has arrived: a claimed length reserves a few times what has really come of the record, or
//! as much as records lately had, and a length above the limit ends the connection.
//!
//! A reader holds up to [`RECEIVE_BYTES_FREE`] as it likes. What a record needs beyond that it
//! claims, and reads on when that is granted: then it needs nothing more until the record ends, so
//! readers that wait for each other cannot come about.

use base::limits;
use bytes::buf::Limit;
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// What an idle connection holds, and what a read takes while records are small, in bytes.
pub const RECEIVE_BYTES_IDLE: usize = 16 * 1024;

/// What a reader holds at most without a grant, in bytes.
pub const RECEIVE_BYTES_FREE: usize = 2 * RECEIVE_BYTES_IDLE;

/// What the first read takes while records are big, in bytes: enough to see the next record's
/// mark, and little to copy when the room for the record is made.
const RECEIVE_BYTES_PROBE: usize = 512;

/// How many times what has arrived of a record is reserved for the rest of it.
const GROWTH_MAX: usize = 4;

/// With each smaller record the trust in big ones fades by this part.
const TRUST_FADES_BY: usize = 8;

/// Most fragments of one record. Linux sends one, others fragments of some kilobytes.
const FRAGMENTS_MAX: u32 = 1024;

/// A record mark, in bytes.
const MARK_BYTES: usize = 4;

/// Set in the mark of a record's last fragment.
const LAST_FRAGMENT: u32 = 0x8000_0000;

const _: () = assert!(RECEIVE_BYTES_IDLE < limits::RECORD_BYTES_MAX);
const _: () = assert!(RECEIVE_BYTES_PROBE < RECEIVE_BYTES_IDLE);

/// The mark before a record of so many bytes that comes in one fragment.
#[must_use]
pub fn mark(record_bytes: usize) -> Bytes {
    let length = u32::try_from(record_bytes).unwrap_or(u32::MAX);
    Bytes::copy_from_slice(&(LAST_FRAGMENT | length).to_be_bytes())
}

/// Why a stream of bytes cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record is, or claims to become, longer than allowed.
    #[error("a record is longer than {} bytes", limits::RECORD_BYTES_MAX)]
    TooLong,
    /// The record comes in too many fragments.
    #[error("a record has more than {FRAGMENTS_MAX} fragments")]
    TooManyFragments,
}

/// Finds the records in the bytes of one connection.
#[derive(Debug, Default)]
pub struct RecordReader {
    /// What was received and not yet looked at.
    buffer: BytesMut,
    /// Earlier fragments of the record, once it turned out to have more than one.
    joined: Vec<u8>,
    /// Fragments of the record so far.
    fragments: u32,
    /// The fragment that is being copied to `joined`.
    copying: Option<Fragment>,
    /// Whether the record before was big, so that the next one probably is.
    was_big: bool,
    /// What a claim may reserve at once, because records of that size have really come lately.
    trusted: usize,
    /// Whether what this record needs has been granted.
    granted: bool,
}

#[derive(Clone, Copy, Debug)]
struct Fragment {
    missing: usize,
    last: bool,
}

impl RecordReader {
    /// A reader at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Room for the next bytes of the stream. Whatever is put there is the stream's continuation.
    pub fn room(&mut self) -> Limit<&mut BytesMut> {
        let wanted = self.wanted();
        self.make_room(wanted);
        (&mut self.buffer).limit(wanted)
    }

    /// How many bytes this reader has to be granted before it can read on, if it has to.
    #[must_use]
    pub fn claim(&self) -> Option<usize> {
        if self.granted {
            return None;
        }
        if self.copying.is_some() || self.fragments > 0 {
            // How long all fragments together will be, nobody knows.
            let held = self.joined.len() + RECEIVE_BYTES_IDLE;
            return (held > RECEIVE_BYTES_FREE)
                .then_some(limits::RECORD_BYTES_MAX + RECEIVE_BYTES_IDLE);
        }
        let (length, _) = self.mark()?;
        let whole = MARK_BYTES + length;
        let is_due = self.buffer.len() >= RECEIVE_BYTES_FREE || self.trusted >= length;
        (whole > RECEIVE_BYTES_FREE && is_due).then_some(whole)
    }

    /// Grants what [`RecordReader::claim`] asked for, until the record ends.
    pub fn grant(&mut self) {
        self.granted = true;
    }

    /// How many bytes the next read should take.
    fn wanted(&self) -> usize {
        let have = self.buffer.len();
        let Some((length, _)) = self.mark().filter(|_| self.copying.is_none()) else {
            return if self.was_big && have == 0 {
                RECEIVE_BYTES_PROBE
            } else {
                RECEIVE_BYTES_IDLE
            };
        };
        let mut missing = (MARK_BYTES + length).saturating_sub(have);
        if !self.granted && MARK_BYTES + length > RECEIVE_BYTES_FREE {
            missing = RECEIVE_BYTES_FREE.saturating_sub(have);
        }
        if missing <= RECEIVE_BYTES_IDLE {
            // Further records may have come along with the rest of this one.
            return RECEIVE_BYTES_IDLE
                .saturating_sub(have)
                .max(missing)
                .max(RECEIVE_BYTES_PROBE);
        }
        // At most exactly this record, so that the next one starts in a buffer of its own.
        let believed = (have * GROWTH_MAX).max(self.trusted);
        missing.min(believed.max(RECEIVE_BYTES_IDLE))
    }

    /// Makes room for `wanted` bytes, and for no more than the record needs: a buffer that grows
    /// by itself doubles, or takes back the room of an earlier record.
    fn make_room(&mut self, wanted: usize) {
        let needed = self.buffer.len() + wanted;
        if needed <= self.buffer.capacity() {
            return;
        }
        let most = match self.mark() {
            Some((length, _)) if self.granted && self.copying.is_none() => MARK_BYTES + length,
            _ => RECEIVE_BYTES_FREE,
        };
        let most = most.max(needed);
        // Once so much of it has come that growing on would only copy, the rest is believed, too.
        if self.buffer.capacity() <= most / (2 * GROWTH_MAX) {
            self.buffer.reserve(wanted);
        }
        if needed <= self.buffer.capacity() && self.buffer.capacity() <= most {
            return;
        }
        let mut exact = BytesMut::new();
        exact.reserve(if self.granted { most } else { needed });
        exact.extend_from_slice(&self.buffer);
        self.buffer = exact;
    }

    /// Takes the next whole record, if it has arrived.
    ///
    /// # Errors
    ///
    /// If the stream cannot be read on: the connection has to be closed.
    pub fn take(&mut self) -> Result<Option<Bytes>, RecordError> {
        loop {
            if let Some(fragment) = self.copying {
                if !self.copy(fragment) {
                    return Ok(None);
                }
                if fragment.last {
                    return Ok(Some(self.take_joined()));
                }
            }
            let Some((length, last)) = self.mark() else {
                return Ok(None);
            };
            if self.joined.len() + length > limits::RECORD_BYTES_MAX {
                return Err(RecordError::TooLong);
            }
            if self.fragments >= FRAGMENTS_MAX {
                return Err(RecordError::TooManyFragments);
            }
            let whole = last && self.fragments == 0;
            if whole && self.buffer.len() < MARK_BYTES + length {
                return Ok(None);
            }
            self.buffer.advance(MARK_BYTES);
            if whole {
                self.was_big = length > RECEIVE_BYTES_IDLE;
                let fading = self.trusted - self.trusted / TRUST_FADES_BY;
                self.trusted = length.max(fading);
                self.granted = false;
                let record = self.buffer.split_to(length).freeze();
                if self.was_big && self.buffer.is_empty() {
                    // What is left has no room, and would keep the record in memory.
                    self.buffer = BytesMut::new();
                }
                return Ok(Some(record));
            }
            self.fragments += 1;
            let missing = length;
            self.copying = Some(Fragment { missing, last });
        }
    }

    /// Whether a record has begun and not ended.
    #[must_use]
    pub fn is_inside_record(&self) -> bool {
        !self.buffer.is_empty() || self.fragments > 0
    }

    /// What has arrived and is not taken yet.
    #[must_use]
    pub fn unread(&self) -> &[u8] {
        &self.buffer
    }

    /// Gives the receive buffer back while nothing is in it.
    pub fn release_idle(&mut self) {
        if !self.is_inside_record() {
            *self = Self::new();
        }
    }

    /// Bytes of memory held for receiving.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.buffer.capacity() + self.joined.capacity()
    }

    fn mark(&self) -> Option<(usize, bool)> {
        let mark = u32::from_be_bytes(*self.buffer.first_chunk()?);
        let length = usize::try_from(mark & !LAST_FRAGMENT).ok()?;
        Some((length, mark & LAST_FRAGMENT != 0))
    }

    /// Moves what has arrived of `fragment`; says whether that was all of it.
    fn copy(&mut self, fragment: Fragment) -> bool {
        let arrived = fragment.missing.min(self.buffer.len());
        let needed = self.joined.len() + arrived;
        if needed > self.joined.capacity() {
            let most = if self.granted {
                limits::RECORD_BYTES_MAX
            } else {
                RECEIVE_BYTES_FREE
            };
            let room = needed.saturating_mul(2).min(most).max(needed);
            self.joined.reserve_exact(room - self.joined.len());
        }
        self.joined
            .extend_from_slice(&self.buffer.split_to(arrived));
        let missing = fragment.missing - arrived;
        self.copying = (missing > 0).then_some(Fragment {
            missing,
            ..fragment
        });
        missing == 0
    }

    fn take_joined(&mut self) -> Bytes {
        self.fragments = 0;
        self.granted = false;
        Bytes::from(std::mem::take(&mut self.joined))
    }
}

#[cfg(test)]
mod tests;
