//! What keeps a collection of chunks away from write-backs.
//!
//! A write-back holds the chunk store from the moment its job is taken until the flush that carries
//! its blocks is durable (`docs/design/0002-collection.md`). The chunks that its blocks are based on
//! are touched: the file may lose them while the job runs, and the job reads them.

use std::collections::VecDeque;

use chunkstore::{ChunkStore, Domain, Hold};
use metadata::image::{Body, WriteJob};

/// A write-back and its hold.
#[derive(Debug)]
pub(super) struct HeldJob {
    pub(super) job: WriteJob,
    pub(super) hold: Hold,
}

impl HeldJob {
    /// Called under the lock under which the job was taken: what it is based on is then in the
    /// image.
    pub(super) fn new(chunks: &dyn ChunkStore, domain: Domain, job: WriteJob) -> Self {
        let hold = chunks.hold();
        for block in &job.blocks {
            if let Body::Chunk { id, .. } = block.base.body {
                chunks.touch(domain.id, id);
            }
        }
        Self { job, hold }
    }
}

/// Holds of write-backs that have ended, by the number of the change that put their blocks into
/// the image. They are released when that change is durable. If the session is lost they go with
/// its state, which a flush in progress keeps alive until its outcome is known.
#[derive(Debug, Default)]
pub(super) struct Holds(VecDeque<(u64, Hold)>);

impl Holds {
    pub(super) fn keep(&mut self, number: u64, hold: Hold) {
        self.0.push_back((number, hold));
    }

    /// Releases those whose changes are durable up to `number`.
    pub(super) fn release(&mut self, number: u64) {
        while self.0.front().is_some_and(|(of, _)| *of <= number) {
            self.0.pop_front();
        }
    }
}
