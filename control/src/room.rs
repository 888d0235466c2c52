//! How much an answer has room for.

use serde::Serialize;

/// About how large an answer may be, in bytes: a path can have 64 KiB, and an item a dozen.
pub(crate) const ANSWER_BYTES: usize = 4 << 20;

/// The room in an answer, by what was put into it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    bytes: usize,
}

impl Room {
    /// Puts in what takes about so many bytes.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Puts in an item.
    pub(crate) fn put(&mut self, item: &impl Serialize) {
        self.add(serde_json::to_vec(item).map_or(0, |text| text.len()));
    }

    /// Whether nothing more is to be put in. What was put in last may have gone beyond.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= ANSWER_BYTES
    }
}
