//! A set of keys, as disjoint ranges.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use super::super::KeyRange;

/// Disjoint, non-touching half-open ranges, by start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::kv) struct RangeSet {
    ranges: BTreeMap<Bytes, Bytes>,
}

impl RangeSet {
    /// Whether the set is empty.
    pub(in crate::kv) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges in order.
    pub(in crate::kv) fn iter(&self) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.ranges.iter()
    }

    /// Number of ranges.
    pub(in crate::kv) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Bytes of all bounds.
    pub(in crate::kv) fn bytes(&self) -> usize {
        self.iter()
            .map(|(start, end)| start.len() + end.len())
            .sum()
    }

    /// Adds `range`; nothing if it is empty.
    pub(in crate::kv) fn insert(&mut self, range: &KeyRange) {
        if range.start >= range.end {
            return;
        }
        let mut start = range.start.clone();
        let mut end = range.end.clone();
        if let Some((before, before_end)) = self.at_or_before(&start)
            && *before_end >= start
        {
            start = before.clone();
        }
        // Ranges that touch the new one become part of it.
        while let Some((next, next_end)) = self.first_from(&start, Bound::Included(&end)) {
            end = end.max(next_end);
            self.ranges.remove(&next);
        }
        self.ranges.insert(start, end);
    }

    /// Takes `range` out.
    pub(in crate::kv) fn remove(&mut self, range: &KeyRange) {
        if range.start >= range.end {
            return;
        }
        if let Some((before, before_end)) = self.at_or_before(&range.start)
            && *before < range.start
            && *before_end > range.start
        {
            let (before, before_end) = (before.clone(), before_end.clone());
            self.ranges.insert(before, range.start.clone());
            if before_end > range.end {
                self.ranges.insert(range.end.clone(), before_end);
                return;
            }
        }
        while let Some((next, next_end)) =
            self.first_from(&range.start, Bound::Excluded(&range.end))
        {
            self.ranges.remove(&next);
            if next_end > range.end {
                self.ranges.insert(range.end.clone(), next_end);
            }
        }
    }

    /// Whether `key` is in the set.
    pub(in crate::kv) fn contains(&self, key: &[u8]) -> bool {
        self.ranges
            .range::<[u8], _>((Bound::Unbounded, Bound::Included(key)))
            .next_back()
            .is_some_and(|(_, end)| **end > *key)
    }

    /// The first key of the set in `range`, and the first key after the last one.
    pub(in crate::kv) fn overlap(&self, range: &KeyRange) -> Option<KeyRange> {
        if range.start >= range.end {
            return None;
        }
        let start = if self.contains(&range.start) {
            range.start.clone()
        } else {
            self.first_from(&range.start, Bound::Excluded(&range.end))?
                .0
        };
        let (_, last_end) = self
            .ranges
            .range::<Bytes, _>((Bound::Unbounded, Bound::Excluded(&range.end)))
            .next_back()?;
        let end = last_end.clone().min(range.end.clone());
        Some(KeyRange { start, end })
    }

    /// The parts of `range` that are not in the set, in order.
    pub(in crate::kv) fn gaps(&self, range: &KeyRange) -> Vec<KeyRange> {
        let mut gaps = Vec::new();
        if range.start >= range.end {
            return gaps;
        }
        let mut from = range.start.clone();
        if let Some((_, end)) = self.at_or_before(&from)
            && *end > from
        {
            from = end.clone();
        }
        let bounds = (Bound::Excluded(&range.start), Bound::Excluded(&range.end));
        for (start, end) in self.ranges.range::<Bytes, _>(bounds) {
            if from < *start {
                gaps.push(KeyRange {
                    start: from,
                    end: start.clone(),
                });
            }
            from = end.clone();
        }
        if from < range.end {
            gaps.push(KeyRange {
                start: from,
                end: range.end.clone(),
            });
        }
        gaps
    }

    fn at_or_before(&self, key: &Bytes) -> Option<(&Bytes, &Bytes)> {
        self.ranges
            .range::<Bytes, _>((Bound::Unbounded, Bound::Included(key)))
            .next_back()
    }

    fn first_from(&self, start: &Bytes, end: Bound<&Bytes>) -> Option<(Bytes, Bytes)> {
        self.ranges
            .range::<Bytes, _>((Bound::Included(start), end))
            .next()
            .map(|(start, end)| (start.clone(), end.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn range(start: u8, end: u8) -> KeyRange {
        KeyRange {
            start: Bytes::from(vec![start]),
            end: Bytes::from(vec![end]),
        }
    }

    proptest! {
        /// The set is the set of its keys, and its ranges never touch.
        #[test]
        fn behaves_like_a_set_of_keys(
            steps in proptest::collection::vec((any::<bool>(), 0..20_u8, 0..20_u8), 0..24),
            probe in (0..20_u8, 0..20_u8),
        ) {
            let mut set = RangeSet::default();
            let mut model = BTreeSet::new();
            for (add, start, end) in steps {
                let keys = start..end;
                if add {
                    set.insert(&range(start, end));
                    model.extend(keys);
                } else {
                    set.remove(&range(start, end));
                    model.retain(|key| !keys.contains(key));
                }
            }
            for key in 0..20_u8 {
                prop_assert_eq!(set.contains(&[key]), model.contains(&key));
            }
            let pairs: Vec<_> = set.iter().collect();
            for pair in pairs.windows(2) {
                prop_assert!(pair[0].1 < pair[1].0);
            }
            let missing: Vec<u8> = (probe.0..probe.1).filter(|key| !model.contains(key)).collect();
            let mut in_gaps = Vec::new();
            for gap in set.gaps(&range(probe.0, probe.1)) {
                in_gaps.extend(gap.start[0]..gap.end[0]);
            }
            prop_assert_eq!(in_gaps, missing);
            let held: Vec<u8> = (probe.0..probe.1).filter(|key| model.contains(key)).collect();
            let overlap = set.overlap(&range(probe.0, probe.1));
            prop_assert_eq!(overlap.as_ref().map(|found| found.start[0]), held.first().copied());
            prop_assert_eq!(overlap.map(|found| found.end[0] - 1), held.last().copied());
        }
    }
}
