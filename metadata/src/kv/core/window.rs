//! Who conflicts with whom: the last version at which each key was written.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use super::super::{KvError, Version};
use super::ReadSet;
use super::ranges::RangeSet;

/// Most boundaries that are remembered. Beyond it the older half of the window is given up:
/// transactions that read there get `VersionTooOld` and run again.
const BOUNDARIES_MAX: usize = 1 << 20;

/// Boundaries looked at for removal after each commit, beyond those it added.
const SWEEP_STEP: usize = 64;

/// A step function from keys to the version of their last write.
///
/// A boundary holds the version of all keys from it up to the next one. Keys before the first
/// boundary have not been written within the window.
#[derive(Debug, Default)]
pub(in crate::kv) struct Window {
    boundaries: BTreeMap<Bytes, Version>,
    floor: Version,
    newest: Version,
    /// Where the next sweep goes on.
    cursor: Bytes,
}

impl Window {
    /// A window that knows of no write after `version`.
    pub(in crate::kv) fn new(version: Version) -> Self {
        Self {
            boundaries: BTreeMap::new(),
            floor: Version(0),
            newest: version,
            cursor: Bytes::new(),
        }
    }

    /// Whether a transaction that read `reads` may commit.
    pub(in crate::kv) fn check(&self, reads: &ReadSet) -> Result<(), KvError> {
        if reads.version < self.floor || reads.version > self.newest {
            return Err(KvError::VersionTooOld);
        }
        if self.written_after(&reads.conflicts, reads.version) {
            return Err(KvError::Conflict);
        }
        Ok(())
    }

    /// Whether any key of `ranges` was written after `version`.
    pub(in crate::kv) fn written_after(&self, ranges: &RangeSet, version: Version) -> bool {
        ranges.iter().any(|(start, end)| {
            self.version_at(start) > version
                || self
                    .boundaries
                    .range::<Bytes, _>((Bound::Excluded(start), Bound::Excluded(end)))
                    .any(|(_, written)| *written > version)
        })
    }

    /// Notes that `ranges` were written at `version`, the newest.
    pub(in crate::kv) fn add(&mut self, ranges: &RangeSet, version: Version) {
        debug_assert!(version >= self.newest);
        self.newest = version;
        for (start, end) in ranges.iter() {
            let after = self.version_at(end);
            let bounds = (Bound::Included(start), Bound::Excluded(end));
            let covered: Vec<Bytes> = self
                .boundaries
                .range::<Bytes, _>(bounds)
                .map(|(key, _)| key.clone())
                .collect();
            for key in covered {
                self.boundaries.remove(&key);
            }
            self.boundaries.insert(start.clone(), version);
            self.boundaries.entry(end.clone()).or_insert(after);
        }
        if self.boundaries.len() > BOUNDARIES_MAX {
            let middle = self.floor.0 + (self.newest.0 - self.floor.0) / 2;
            self.forget(Version(middle.max(self.floor.0 + 1).min(self.newest.0)));
        }
    }

    /// Forgets writes up to `floor`, a few at a time, and refuses reads before it.
    pub(in crate::kv) fn expire(&mut self, floor: Version, added: usize) {
        self.floor = self.floor.max(floor);
        self.sweep(SWEEP_STEP.saturating_add(added.saturating_mul(4)));
    }

    fn version_at(&self, key: &Bytes) -> Version {
        self.boundaries
            .range::<Bytes, _>((Bound::Unbounded, Bound::Included(key)))
            .next_back()
            .map_or(Version(0), |(_, version)| *version)
    }

    /// Removes boundaries whose removal changes no answer: those at or below the floor whose
    /// predecessor is too.
    fn sweep(&mut self, steps: usize) {
        let mut before = self
            .boundaries
            .range::<Bytes, _>((Bound::Unbounded, Bound::Excluded(&self.cursor)))
            .next_back()
            .map_or(Version(0), |(_, version)| *version);
        let mut removed = Vec::new();
        let mut next = None;
        let from = (Bound::Included(&self.cursor), Bound::Unbounded);
        for (seen, (key, version)) in self.boundaries.range::<Bytes, _>(from).enumerate() {
            if seen == steps {
                next = Some(key.clone());
                break;
            }
            if *version <= self.floor && before <= self.floor {
                removed.push(key.clone());
            }
            before = *version;
        }
        for key in removed {
            self.boundaries.remove(&key);
        }
        self.cursor = next.unwrap_or_default();
    }

    /// Gives up the window up to `floor` at once.
    fn forget(&mut self, floor: Version) {
        self.floor = floor;
        self.cursor = Bytes::new();
        self.sweep(usize::MAX);
        if self.boundaries.len() > BOUNDARIES_MAX / 2 {
            self.floor = self.newest;
            self.boundaries.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kv::KeyRange;

    fn set(start: u8, end: u8) -> RangeSet {
        let mut set = RangeSet::default();
        set.insert(&KeyRange {
            start: Bytes::from(vec![start]),
            end: Bytes::from(vec![end]),
        });
        set
    }

    proptest! {
        /// The window answers like a list of all writes, as long as reads are above the floor.
        #[test]
        fn finds_exactly_the_later_writes(
            writes in proptest::collection::vec((0..30_u8, 1..8_u8), 1..40),
            floor_lag in 1..20_u64,
            probe in (0..30_u8, 1..8_u8, 0..20_u64),
        ) {
            let mut window = Window::new(Version(0));
            let mut all = Vec::new();
            for (step, (start, len)) in writes.iter().enumerate() {
                let version = Version(u64::try_from(step).unwrap() + 1);
                let range = set(*start, start + len);
                window.add(&range, version);
                window.expire(Version(version.0.saturating_sub(floor_lag)), 1);
                all.push((*start, start + len, version));
            }
            let newest = window.newest;
            let read = Version(newest.0.saturating_sub(probe.2.min(floor_lag)));
            let (start, end) = (probe.0, probe.0 + probe.1);
            let expected = all
                .iter()
                .any(|(from, to, version)| *from < end && start < *to && *version > read);
            prop_assert_eq!(window.written_after(&set(start, end), read), expected);
        }
    }

    #[test]
    fn sweeping_empties_an_idle_window() {
        let mut window = Window::new(Version(0));
        for version in 1..=100_u8 {
            window.add(&set(version, version + 1), Version(u64::from(version)));
        }
        assert!(window.boundaries.len() > 50);
        for _ in 0..10 {
            window.expire(Version(100), 0);
        }
        assert!(window.boundaries.is_empty());
    }
}
