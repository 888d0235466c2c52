//! A file's bytes, which of them were ever written, and the states a crash may bring back.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::Timestamp;

use super::{Body, Node};

/// Unit in which allocated bytes are counted.
const ALLOCATION_BYTES: u64 = 4096;

/// Bytes and holes.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    bytes: Rc<Vec<u8>>,
    /// Ranges that were written and not cut off since; sorted, apart from each other.
    written: Vec<(u64, u64)>,
    /// For each block the end of what was ever written in it, as far as no cut went below.
    ends: BTreeMap<u64, u64>,
}

pub(super) fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl Content {
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes in `from..to`, as far as the file goes.
    pub(super) fn part(&self, from: u64, to: u64) -> &[u8] {
        let to = index(to).min(self.bytes.len());
        let from = index(from).min(to);
        self.bytes.get(from..to).unwrap_or_default()
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8], block_bytes: u64) {
        let end = offset + u64::try_from(data.len()).unwrap_or(u64::MAX);
        let bytes = Rc::make_mut(&mut self.bytes);
        if bytes.len() < index(end) {
            bytes.resize(index(end), 0);
        }
        if let Some(place) = bytes.get_mut(index(offset)..index(end)) {
            place.copy_from_slice(data);
        }
        let (mut from, mut to) = (offset, end);
        self.written.retain(|(start, stop)| {
            let apart = *stop < from || *start > to;
            if !apart {
                from = from.min(*start);
                to = to.max(*stop);
            }
            apart
        });
        self.written.push((from, to));
        self.written.sort_unstable();
        for block in offset / block_bytes..=(end - 1) / block_bytes {
            let block_end = end.min((block + 1) * block_bytes);
            let known = self.ends.entry(block).or_default();
            *known = block_end.max(*known);
        }
    }

    pub(super) fn resize(&mut self, size: u64, block_bytes: u64) {
        Rc::make_mut(&mut self.bytes).resize(index(size), 0);
        self.written.retain(|(start, _)| *start < size);
        for (_, stop) in &mut self.written {
            *stop = size.min(*stop);
        }
        self.ends.retain(|block, end| {
            *end = size.min(*end);
            *end > block * block_bytes
        });
    }

    /// Whether all of `from..to` was written before.
    pub(super) fn holds(&self, from: u64, to: u64) -> bool {
        self.written
            .iter()
            .any(|(start, stop)| *start <= from && to <= *stop)
    }

    /// Least and most bytes that may be allocated: what was written, and whole blocks up to the
    /// end of what was written in them.
    pub(super) fn used(&self, block_bytes: u64) -> (u64, u64) {
        let (mut least, mut most) = (0, 0);
        for (block, end) in &self.ends {
            let (from, to) = (block * block_bytes, (block + 1) * block_bytes);
            let data: u64 = self
                .written
                .iter()
                .map(|(start, stop)| to.min(*stop).saturating_sub(from.max(*start)))
                .sum();
            least += data.next_multiple_of(ALLOCATION_BYTES);
            most += (end - from).next_multiple_of(ALLOCATION_BYTES);
        }
        (least, most)
    }

    /// What a crash left of this: `bytes`, of which at least `kept` has data.
    pub(super) fn fall_back(&self, kept: &Self, bytes: &[u8], block_bytes: u64) -> Self {
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let mut left = self.clone();
        left.resize(size, block_bytes);
        left.bytes = Rc::new(bytes.to_vec());
        left.written = kept.clone().written;
        left
    }

    /// Takes block `at` as it is in `from`.
    fn take_block(&mut self, from: &Self, at: u64, block_bytes: u64) {
        let (start, stop) = (at * block_bytes, (at + 1) * block_bytes);
        let Some(end) = from.ends.get(&at) else {
            return;
        };
        let part = from.part(start, *end).to_vec();
        if !part.is_empty() {
            self.write(start, &part, block_bytes);
        }
        self.written =
            from.written
                .iter()
                .map(|(first, last)| (start.max(*first), stop.min(*last)))
                .filter(|(first, last)| first < last)
                .chain(self.written.iter().flat_map(|(first, last)| {
                    [(*first, start.min(*last)), (stop.max(*first), *last)]
                }))
                .filter(|(first, last)| first < last)
                .collect();
        self.written.sort_unstable();
    }
}

/// A state that a crash may bring back.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) number: u64,
    pub(super) content: Content,
    pub(super) mode: u32,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
}

/// A regular file.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    pub(super) content: Content,
    /// Counts the writes: the number of the present state.
    pub(super) number: u64,
    /// Earlier states, oldest first; none if everything is confirmed.
    pub(super) older: Vec<Version>,
}

impl File {
    /// Sets the size, in all states: unlike a write it is confirmed at once.
    pub(super) fn resize(&mut self, size: u64, block_bytes: u64) {
        self.content.resize(size, block_bytes);
        for version in &mut self.older {
            version.content.resize(size, block_bytes);
        }
    }

    /// The blocks `at` can no longer fall behind state `number`.
    pub(super) fn settle_blocks(&mut self, at: &[u64], number: u64, block_bytes: u64) {
        let settled = if number == self.number {
            self.content.clone()
        } else {
            let found = self.older.iter().find(|version| version.number == number);
            let Some(version) = found else { return };
            version.content.clone()
        };
        for version in &mut self.older {
            if version.number < number {
                for block in at {
                    version.content.take_block(&settled, *block, block_bytes);
                }
            }
        }
    }
}

impl Node {
    /// Keeps the present state of a file as one that a crash may bring back.
    pub(super) fn remember(&mut self) {
        let (mode, mtime, ctime) = (self.mode, self.mtime, self.ctime);
        if let Body::File(file) = &mut self.body {
            file.older.push(Version {
                number: file.number,
                content: file.content.clone(),
                mode,
                mtime,
                ctime,
            });
            file.number += 1;
        }
    }

    /// The present attributes are confirmed, so every state that a crash may bring back has them.
    pub(super) fn confirm_attributes(&mut self) {
        let (mode, mtime, ctime) = (self.mode, self.mtime, self.ctime);
        if let Body::File(file) = &mut self.body {
            for version in &mut file.older {
                (version.mode, version.mtime, version.ctime) = (mode, mtime, ctime);
            }
        }
    }
}
