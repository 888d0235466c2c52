//! Which conflicts the image holds, as far as that is known: what resolves one looks at it first.

use std::collections::HashMap;

use super::Image;
use crate::conflicts::ConflictId;
use crate::error::{Miss, OpResult};
use crate::keyspace::image as keys;

/// Conflicts that are remembered; beyond it what is durable is forgotten.
const KNOWN_MAX: usize = 64;

/// What is known of conflicts.
#[derive(Debug, Default)]
pub(super) struct Conflicts(HashMap<ConflictId, Known>);

#[derive(Clone, Copy, Debug)]
struct Known {
    is_there: bool,
    /// Number of the change that took it out.
    changed: u64,
}

impl Image {
    /// Whether the image holds a conflict; counts as looking at it.
    pub(crate) fn has_conflict(&mut self, id: &ConflictId) -> OpResult<bool> {
        match self.conflicts.0.get(id) {
            Some(known) => {
                self.watermark = self.watermark.max(known.changed);
                Ok(known.is_there)
            }
            None => Err(Miss::Conflict(*id).into()),
        }
    }

    /// Says whether a conflict is stored. What is known of it stays: that may be newer.
    pub fn install_conflict(&mut self, id: ConflictId, is_there: bool) {
        let durable = self.durable;
        let known = &mut self.conflicts.0;
        if known.len() >= KNOWN_MAX {
            known.retain(|_, known| known.changed > durable);
            // A load that began before one was taken out is not installed after it is forgotten.
            self.evictions += 1;
        }
        let changed = 0;
        known.entry(id).or_insert(Known { is_there, changed });
    }

    /// Takes the record of a conflict out of the image.
    pub(crate) fn forget_conflict(&mut self, id: &ConflictId) {
        self.changes.remove(keys::conflict(id));
        self.changed = true;
        let gone = Known {
            is_there: false,
            changed: self.applied + 1,
        };
        self.conflicts.0.insert(*id, gone);
    }
}
