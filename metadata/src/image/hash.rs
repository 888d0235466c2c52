//! The map of cells. Inode numbers are given out by us, so their hash needs no secret, only speed.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use base::InodeId;

use super::cell::Slot;

/// Cells by inode.
pub(super) type Cells = HashMap<InodeId, Slot, BuildHasherDefault<InodeHasher>>;

/// Multiplies by an odd constant and folds the high half down.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InodeHasher(u64);

impl Hasher for InodeHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}
