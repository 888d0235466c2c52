//! Bytes on their way in: one buffer, records cut out of it in place.

use std::io::Read;
use std::ops::Range;

use crate::Error;
use crate::rpc::{LAST_FRAGMENT, RECORD_BYTES_MAX};

/// Length of a record mark, in bytes.
const MARK_BYTES: usize = 4;

/// Least room to read into, in bytes; below it what is left moves to the front.
const ROOM_BYTES_MIN: usize = 16 * 1024;

/// Size of the buffer: the longest record in two fragments, and room to read on.
const BUFFER_BYTES: usize = RECORD_BYTES_MAX + 64 * 1024;

/// A stream of records.
#[derive(Debug)]
pub(crate) struct Inbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
        }
    }

    /// Waits for bytes, at most the socket's time limit. `false` at the end of the stream.
    pub(crate) fn fill(&mut self, stream: &mut impl Read) -> Result<bool, Error> {
        self.make_room();
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        loop {
            match stream.read(room) {
                Ok(0) if self.start == self.end => return Ok(false),
                Ok(0) => return Err(Error::Stream("it ends inside a record")),
                Ok(count) => {
                    self.end += count;
                    return Ok(true);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("wait for replies")(error)),
            }
        }
    }

    /// Cuts off the next complete record, if one is there.
    pub(crate) fn next(&mut self) -> Result<Option<Range<usize>>, Error> {
        loop {
            let Some((length, last)) = self.mark(self.start)? else {
                return Ok(None);
            };
            let body = self.start + MARK_BYTES;
            let body_end = body + length;
            if body_end > self.end {
                return Ok(None);
            }
            if last {
                self.start = body_end;
                return Ok(Some(body..body_end));
            }
            if !self.join(body..body_end)? {
                return Ok(None);
            }
        }
    }

    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.buffer.get(range).unwrap_or_default()
    }

    /// Length and finality of the fragment whose mark is at `at`, if all of the mark is there.
    fn mark(&self, at: usize) -> Result<Option<(usize, bool)>, Error> {
        let Some(mark) = self
            .buffer
            .get(at..self.end)
            .and_then(|rest| rest.first_chunk::<MARK_BYTES>())
        else {
            return Ok(None);
        };
        let mark = u32::from_be_bytes(*mark);
        let length = usize::try_from(mark & !LAST_FRAGMENT)
            .map_err(|_| Error::Stream("a fragment is too long"))?;
        if length > RECORD_BYTES_MAX {
            return Err(Error::Stream("a record is longer than a reply may be"));
        }
        Ok(Some((length, mark & LAST_FRAGMENT != 0)))
    }

    /// Makes one fragment of `first` and the one after it, if that is complete: the first moves
    /// up over the second's mark. Servers split long replies at most.
    fn join(&mut self, first: Range<usize>) -> Result<bool, Error> {
        let Some((length, last)) = self.mark(first.end)? else {
            return Ok(false);
        };
        if first.end + MARK_BYTES + length > self.end {
            return Ok(false);
        }
        let joined = first.len() + length;
        if joined > RECORD_BYTES_MAX {
            return Err(Error::Stream("a record is longer than a reply may be"));
        }
        let start = first.start;
        self.buffer.copy_within(first, start + MARK_BYTES);
        let finality = if last { LAST_FRAGMENT } else { 0 };
        let mark = finality | u32::try_from(joined).unwrap_or(0);
        self.start += MARK_BYTES;
        if let Some(place) = self
            .buffer
            .get_mut(self.start..)
            .and_then(|rest| rest.first_chunk_mut::<MARK_BYTES>())
        {
            *place = mark.to_be_bytes();
        }
        Ok(true)
    }

    fn make_room(&mut self) {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            return;
        }
        let wanted = match self.mark(self.start) {
            Ok(Some((length, _))) => self.start + MARK_BYTES + length,
            _ => self.end,
        };
        let room_end = wanted.max(self.end + ROOM_BYTES_MIN);
        if room_end > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Inbox;

    fn records(stream: &[u8]) -> Vec<Vec<u8>> {
        // One byte at a time: every place a read can end.
        let mut inbox = Inbox::new();
        let mut found = Vec::new();
        for byte in stream.chunks(1) {
            assert!(inbox.fill(&mut &*byte).unwrap());
            while let Some(range) = inbox.next().unwrap() {
                found.push(inbox.bytes(range).to_vec());
            }
        }
        found
    }

    #[test]
    fn fragments_join_and_records_part() {
        let stream = [
            0, 0, 0, 2, 1, 2, 0, 0, 0, 0, 0x80, 0, 0, 1, 3, 0x80, 0, 0, 2, 4, 5,
        ];
        assert_eq!(records(&stream), vec![vec![1, 2, 3], vec![4, 5]]);
    }

    #[test]
    fn a_huge_record_is_refused() {
        let mut inbox = Inbox::new();
        inbox
            .fill(&mut [0xff, 0xff, 0xff, 0xff].as_slice())
            .unwrap();
        assert!(inbox.next().is_err());
    }

    #[test]
    fn the_longest_record_fits_after_others() {
        let mut stream = vec![0x80, 0, 0, 1, 7];
        let length = super::RECORD_BYTES_MAX;
        let mark = super::LAST_FRAGMENT | u32::try_from(length).unwrap();
        for _ in 0..3 {
            stream.extend(mark.to_be_bytes());
            stream.resize(stream.len() + length, 9);
        }
        let mut inbox = Inbox::new();
        let mut rest = stream.as_slice();
        let mut lengths = Vec::new();
        while inbox.fill(&mut rest).unwrap() {
            while let Some(range) = inbox.next().unwrap() {
                lengths.push(range.len());
            }
        }
        assert_eq!(lengths, [1, length, length, length]);
    }
}
