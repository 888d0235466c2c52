//! The loads, each the way the kernel client would make the calls.

mod cycle;
mod listing;
mod metadata;
mod read;
mod write;

use std::sync::Arc;

use base::Rng;
use clap::ValueEnum;

use crate::Error;
use crate::connection::Connection;
use crate::driver::Workload;
use crate::tree::Tree;

/// Which load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// NULL: the cost of a call that does nothing.
    Null,
    /// GETATTR, rotating over 1000 files.
    Getattr,
    /// LOOKUP of 1000 names in one directory.
    Lookup,
    /// ACCESS, rotating over 1000 files.
    Access,
    /// READ of 4 KiB at scattered places of a 64 MiB file.
    #[value(name = "read-4k")]
    Read4k,
    /// READ of 1 MiB at scattered places of a 64 MiB file.
    #[value(name = "read-1m")]
    Read1m,
    /// WRITE FILE_SYNC of 4 KiB.
    #[value(name = "write-sync-4k")]
    WriteSync4k,
    /// WRITE FILE_SYNC of 1 MiB.
    #[value(name = "write-sync-1m")]
    WriteSync1m,
    /// Eight WRITE UNSTABLE of 1 MiB, then COMMIT.
    WriteCommit,
    /// CREATE, WRITE FILE_SYNC of 4 KiB, REMOVE.
    CreateWriteRemove,
    /// READDIRPLUS until the end of a directory of 1000 files.
    Readdirplus,
}

/// Bytes of a small READ or WRITE.
const SMALL_BYTES: u32 = 4096;

/// Bytes of a large READ or WRITE.
const LARGE_BYTES: u32 = 1024 * 1024;

impl Kind {
    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    /// Content one operation moves, in bytes.
    #[must_use]
    pub fn content_bytes(self) -> u64 {
        match self {
            Self::Null | Self::Getattr | Self::Lookup | Self::Access | Self::Readdirplus => 0,
            Self::Read4k | Self::WriteSync4k | Self::CreateWriteRemove => u64::from(SMALL_BYTES),
            Self::Read1m | Self::WriteSync1m => u64::from(LARGE_BYTES),
            Self::WriteCommit => write::BATCH_BYTES,
        }
    }

    pub(crate) fn wants_files(self) -> bool {
        matches!(
            self,
            Self::Getattr | Self::Lookup | Self::Access | Self::Readdirplus
        )
    }

    pub(crate) fn wants_content(self) -> bool {
        matches!(self, Self::Read4k | Self::Read1m)
    }

    /// Prepares the load of one connection. Makes the connection's own files.
    ///
    /// # Errors
    ///
    /// If making the files fails.
    pub fn prepare(
        self,
        tree: &Arc<Tree>,
        connection: &mut Connection,
        seat: Seat,
    ) -> Result<Box<dyn Workload>, Error> {
        let tree = Arc::clone(tree);
        Ok(match self {
            Self::Null => Box::new(metadata::Null),
            Self::Getattr => Box::new(metadata::Getattr::new(tree, seat)),
            Self::Lookup => Box::new(metadata::Lookup::new(tree, seat)),
            Self::Access => Box::new(metadata::Access::new(tree, seat)),
            Self::Read4k => Box::new(read::Read::new(tree, seat, SMALL_BYTES)),
            Self::Read1m => Box::new(read::Read::new(tree, seat, LARGE_BYTES)),
            Self::WriteSync4k => {
                Box::new(write::WriteSync::new(&tree, connection, seat, SMALL_BYTES)?)
            }
            Self::WriteSync1m => {
                Box::new(write::WriteSync::new(&tree, connection, seat, LARGE_BYTES)?)
            }
            Self::WriteCommit => Box::new(write::WriteCommit::new(&tree, connection, seat)?),
            Self::CreateWriteRemove => Box::new(cycle::Cycle::new(&tree, connection, seat)?),
            Self::Readdirplus => Box::new(listing::Listing::new(tree, seat)),
        })
    }
}

/// A connection's place among the others.
#[derive(Debug, Clone, Copy)]
pub struct Seat {
    /// Number of the connection.
    pub connection: usize,
    /// Its calls in flight.
    pub depth: usize,
}

/// Walks over `count` things in a scattered order that meets each once, and remembers which one
/// each slot is at.
#[derive(Debug)]
struct Walk {
    count: usize,
    next: usize,
    at: Vec<usize>,
}

/// Distance between neighbours of a walk: a prime that divides none of our counts.
const STRIDE: usize = 7919;

impl Walk {
    fn new(count: usize, seat: Seat) -> Self {
        Self {
            count: count.max(1),
            next: seat.connection * 31,
            at: vec![0; seat.depth],
        }
    }

    fn advance(&mut self, slot: usize) -> usize {
        self.next = (self.next + STRIDE) % self.count;
        if let Some(at) = self.at.get_mut(slot) {
            *at = self.next;
        }
        self.next
    }

    fn at(&self, slot: usize) -> usize {
        self.at.get(slot).copied().unwrap_or(0)
    }
}

/// Numbers for stamps that no other write to the server carries.
#[derive(Debug)]
struct Writers {
    next: u64,
}

impl Writers {
    fn new() -> Result<Self, Error> {
        let rng = Rng::system().map_err(Error::io("draw a stamp"))?;
        Ok(Self { next: rng.u64() })
    }

    fn next(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::{Seat, Walk};

    #[test]
    fn a_walk_meets_everything_once() {
        for count in [64, 1000, 16_384] {
            let seat = Seat {
                connection: 3,
                depth: 1,
            };
            let mut walk = Walk::new(count, seat);
            let mut met = vec![false; count];
            for _ in 0..count {
                let at = walk.advance(0);
                assert!(!met[at], "{at} of {count} twice");
                met[at] = true;
            }
        }
    }
}
