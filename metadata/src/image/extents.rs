//! Pieces of a block's content that lie over its body: unwritten data and patches.

use std::collections::BTreeMap;

use bytes::Bytes;

/// Non-overlapping byte runs within one block, by their offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    runs: BTreeMap<u32, Bytes>,
    bytes: usize,
}

/// Length of `data` as a block offset; runs lie within a block, whose size is a `u32`.
fn length(data: &Bytes) -> u32 {
    u32::try_from(data.len()).unwrap_or(u32::MAX)
}

impl Extents {
    /// Bytes in all runs.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many runs there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The runs by offset.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Bytes)> {
        self.runs.iter().map(|(offset, data)| (*offset, data))
    }

    /// First offset after the last run; 0 if there is none.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.runs
            .iter()
            .next_back()
            .map_or(0, |(offset, data)| offset.saturating_add(length(data)))
    }

    /// Lays `data` over what is there.
    pub fn insert(&mut self, offset: u32, data: Bytes) {
        if data.is_empty() {
            return;
        }
        let end = offset.saturating_add(length(&data));
        self.clear(offset, end);
        self.bytes += data.len();
        self.runs.insert(offset, data);
    }

    /// Lays all runs of `over` over these.
    pub fn overlay(&mut self, over: &Self) {
        for (offset, data) in over.iter() {
            self.insert(offset, data.clone());
        }
    }

    /// Removes everything from `at` on.
    pub fn cut(&mut self, at: u32) {
        self.clear(at, u32::MAX);
    }

    /// Removes `from..to`, splitting runs that reach over either end.
    fn clear(&mut self, from: u32, to: u32) {
        let first = self
            .runs
            .range(..from)
            .next_back()
            .filter(|(offset, data)| offset.saturating_add(length(data)) > from)
            .map_or(from, |(offset, _)| *offset);
        let touched: Vec<u32> = self
            .runs
            .range(first..to)
            .map(|(offset, _)| *offset)
            .collect();
        for offset in touched {
            let Some(data) = self.runs.remove(&offset) else {
                continue;
            };
            self.bytes -= data.len();
            let end = offset.saturating_add(length(&data));
            if offset < from {
                self.keep(offset, data.slice(..index(from - offset)));
            }
            if end > to {
                self.keep(to, data.slice(index(to - offset)..));
            }
        }
    }

    fn keep(&mut self, offset: u32, data: Bytes) {
        self.bytes += data.len();
        self.runs.insert(offset, data);
    }
}

/// A block offset as an index.
pub(crate) fn index(offset: u32) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever is written and cut, the runs read as a plain byte array would.
        #[test]
        fn reads_as_an_array(steps in proptest::collection::vec((0..50_u32, 1..20_usize, any::<bool>()), 0..30)) {
            let mut model = [None; 80];
            let mut extents = Extents::default();
            for (step, (offset, length, cut)) in steps.into_iter().enumerate() {
                if cut {
                    extents.cut(offset);
                    model[index(offset)..].fill(None);
                } else {
                    let byte = u8::try_from(step).unwrap();
                    extents.insert(offset, Bytes::from(vec![byte; length]));
                    model[index(offset)..index(offset) + length].fill(Some(byte));
                }
            }
            let mut read = [None; 80];
            for (offset, data) in extents.iter() {
                for (at, byte) in data.iter().enumerate() {
                    prop_assert!(read[index(offset) + at].is_none());
                    read[index(offset) + at] = Some(*byte);
                }
            }
            prop_assert_eq!(read, model);
            prop_assert_eq!(extents.bytes(), model.iter().flatten().count());
        }
    }
}
