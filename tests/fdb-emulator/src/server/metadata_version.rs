//! `\xff/metadataVersion`: the one system key that is served. It holds the versionstamp of the last
//! commit that wrote it.

use std::collections::VecDeque;

use metadata::kv::Version;

/// The key.
pub(super) const KEY: &[u8] = b"\xff/metadataVersion";

/// The only operand that may be written: a stamp at the start, to be filled in.
pub(super) const OPERAND: [u8; 14] = [0; 14];

/// Old values that are kept; older ones cannot be read before the read version is too old, unless
/// this key is written more than so many times within five seconds.
const VALUES_MAX: usize = 100_000;

/// Its values, oldest first.
#[derive(Debug, Default)]
pub(super) struct MetadataVersions {
    values: VecDeque<(Version, [u8; 10])>,
}

impl MetadataVersions {
    /// The value at `version`.
    pub(super) fn at(&self, version: Version) -> Option<[u8; 10]> {
        let mut before = self.values.iter().rev();
        before
            .find(|(written, _)| *written <= version)
            .map(|(_, stamp)| *stamp)
    }

    /// Whether it was written after `version`.
    pub(super) fn written_after(&self, version: Version) -> bool {
        self.values.back().is_some_and(|(last, _)| *last > version)
    }

    /// Notes a commit that wrote it.
    pub(super) fn write(&mut self, version: Version, stamp: [u8; 10]) {
        self.values.push_back((version, stamp));
        if self.values.len() > VALUES_MAX {
            self.values.pop_front();
        }
    }
}
