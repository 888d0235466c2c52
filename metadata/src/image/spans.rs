//! A set of numbers, kept as inclusive spans: which parts of an inode have been loaded.

use std::collections::BTreeMap;

/// A set of `u64`, as disjoint inclusive spans that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spans(BTreeMap<u64, u64>);

impl Spans {
    /// Every number.
    pub(crate) fn all() -> Self {
        Self(BTreeMap::from([(0, u64::MAX)]))
    }

    /// Whether the whole of `first..=last` is in the set.
    pub(crate) fn covers(&self, first: u64, last: u64) -> bool {
        self.0
            .range(..=first)
            .next_back()
            .is_some_and(|(_, end)| *end >= last)
    }

    /// The last number of the unbroken span from `first` on, if `first` is in the set.
    pub(crate) fn end_of(&self, first: u64) -> Option<u64> {
        self.0
            .range(..=first)
            .next_back()
            .map(|(_, end)| *end)
            .filter(|end| *end >= first)
    }

    /// Adds `first..=last`.
    pub(crate) fn add(&mut self, first: u64, last: u64) {
        let (mut start, mut end) = (first, last);
        let before = self
            .0
            .range(..=first)
            .next_back()
            .map(|(start, end)| (*start, *end));
        if let Some((other_start, other_end)) = before
            && other_end.saturating_add(1) >= first
        {
            start = other_start;
            end = end.max(other_end);
        }
        while let Some((other_start, other_end)) = self
            .0
            .range(start..=end.saturating_add(1))
            .next()
            .map(|(start, end)| (*start, *end))
        {
            end = end.max(other_end);
            self.0.remove(&other_start);
        }
        self.0.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_as_a_set(spans in proptest::collection::vec((0..60_u64, 0..8_u64), 0..20)) {
            let mut model = BTreeSet::new();
            let mut set = Spans::default();
            for (first, length) in spans {
                set.add(first, first + length);
                model.extend(first..=first + length);
            }
            for first in 0..70 {
                for last in first..70 {
                    prop_assert_eq!(
                        set.covers(first, last),
                        (first..=last).all(|number| model.contains(&number))
                    );
                }
            }
        }
    }

    #[test]
    fn the_whole_range_has_no_gap() {
        let mut set = Spans::default();
        set.add(5, u64::MAX);
        set.add(0, 4);
        assert_eq!(set, Spans::all());
        assert!(set.covers(0, u64::MAX));
    }
}
