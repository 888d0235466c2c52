//! The versions a store still knows: when each was made, and the content of the newest.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::{KvError, Version};
use super::AGE_MAX;

/// Most versions that are remembered; older ones become too old early.
const VERSIONS_MAX: usize = 65_536;

/// Most versions whose content is held. A held version keeps the pages of an embedded file from
/// being used again, so that this bounds the file's growth.
const SNAPSHOTS_MAX: usize = 64;

/// Versions in order, the newest last. Never empty.
#[derive(Debug)]
pub(in crate::kv) struct Versions<S> {
    made: VecDeque<(Version, Duration)>,
    newest: Version,
    snapshots: VecDeque<(Version, S)>,
    /// Versions up to here are too old.
    floor: Version,
}

impl<S: Clone> Versions<S> {
    /// Starts at `version` with `snapshot`.
    pub(in crate::kv) fn new(version: Version, now: Duration, snapshot: S) -> Self {
        Self {
            made: VecDeque::from([(version, now)]),
            newest: version,
            snapshots: VecDeque::from([(version, snapshot)]),
            floor: Version(0),
        }
    }

    /// The newest version.
    pub(in crate::kv) fn newest(&self) -> Version {
        self.newest
    }

    /// The newest version's content; `None` while the store is not open.
    pub(in crate::kv) fn latest(&self) -> Option<(Version, S)> {
        self.snapshots
            .back()
            .map(|(version, snapshot)| (*version, snapshot.clone()))
    }

    /// The content at `version`.
    pub(in crate::kv) fn at(&self, version: Version) -> Result<S, KvError> {
        self.snapshots
            .iter()
            .rev()
            .find(|(held, _)| *held == version)
            .map(|(_, snapshot)| snapshot.clone())
            .ok_or(KvError::VersionTooOld)
    }

    /// When `version` was made.
    pub(in crate::kv) fn made_at(&self, version: Version) -> Result<Duration, KvError> {
        let index = self
            .made
            .binary_search_by_key(&version, |(version, _)| *version)
            .map_err(|_| KvError::VersionTooOld)?;
        self.made
            .get(index)
            .map(|(_, at)| *at)
            .ok_or(KvError::VersionTooOld)
    }

    /// The newest version that is too old to read at now, as far as time says.
    pub(in crate::kv) fn floor(&self) -> Version {
        self.floor
    }

    /// Adds a version that is now durable.
    pub(in crate::kv) fn publish(&mut self, version: Version, now: Duration, snapshot: S) {
        debug_assert!(version > self.newest);
        self.newest = version;
        self.made.push_back((version, now));
        self.snapshots.push_back((version, snapshot));
        self.expire(now);
    }

    /// Makes all versions but the newest too old.
    pub(in crate::kv) fn forget_older(&mut self) {
        let newest = self.newest;
        self.floor = newest;
        self.made.retain(|(version, _)| *version == newest);
        self.snapshots.retain(|(version, _)| *version == newest);
    }

    /// Forgets the content of all versions, because the store is closed for now.
    pub(in crate::kv) fn withdraw(&mut self) {
        self.snapshots.clear();
    }

    /// Gives back the content of the newest version, which may have moved on.
    pub(in crate::kv) fn restore(&mut self, version: Version, now: Duration, snapshot: S) {
        if version > self.newest {
            self.publish(version, now, snapshot);
        } else {
            self.snapshots.push_back((self.newest, snapshot));
        }
    }

    /// Forgets what is too old.
    fn expire(&mut self, now: Duration) {
        let too_old = |at: &Duration| now.saturating_sub(*at) > AGE_MAX;
        while let Some((version, at)) = self.made.front()
            && (too_old(at) || self.made.len() > VERSIONS_MAX)
            && *version < self.newest
        {
            self.floor = *version;
            self.made.pop_front();
        }
        while let Some((version, _)) = self.snapshots.front()
            && (*version <= self.floor || self.snapshots.len() > SNAPSHOTS_MAX)
            && *version < self.newest
        {
            self.snapshots.pop_front();
        }
    }
}
