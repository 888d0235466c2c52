//! From buffered data to chunks, and from pieces to the payload of a reply.

use std::sync::Arc;

use base::{ChunkId, InodeId, Told};
use bytes::{Bytes, BytesMut};
use chunkstore::ChunkError;
use futures_util::stream::{FuturesUnordered, TryStreamExt};
use metadata::image::{Block, BlockJob, Piece};

use super::Session;
use super::holds::HeldJob;
use super::state::State;
use crate::wire::reply::Payload;

/// Bytes of one write-back job: enough to keep the chunk store busy, little enough that others
/// get their turn.
const JOB_BYTES: usize = 16 << 20;

/// A block of zeros, for holes.
static ZEROS: [u8; 128 * 1024] = [0; 128 * 1024];

/// Segments of a reply beyond which pieces are copied together: the socket takes only so many.
const SEGMENTS_MAX: usize = 24;

/// The data that `pieces` make up. `Err` names a chunk that `chunk` does not have.
pub(super) fn payload(
    pieces: &[Piece],
    chunk: impl Fn(ChunkId) -> Option<Bytes>,
) -> Result<Payload, ChunkId> {
    let mut payload = Payload::new();
    for piece in pieces {
        match piece {
            Piece::Bytes(bytes) => payload.push(bytes.clone()),
            Piece::Zero(length) => push_zeros(&mut payload, index(*length)),
            Piece::Chunk { id, offset, length } => {
                let content = chunk(*id).ok_or(*id)?;
                // A chunk is verified against its name; its length is what the block map says.
                let (from, to) = (index(*offset), index(*offset) + index(*length));
                let to = to.min(content.len());
                let from = from.min(to);
                payload.push(content.slice(from..to));
                push_zeros(&mut payload, index(*length) - (to - from));
            }
        }
    }
    if payload.len() > SEGMENTS_MAX {
        let mut whole = BytesMut::with_capacity(payload.iter().map(Bytes::len).sum());
        for segment in &payload {
            whole.extend_from_slice(segment);
        }
        payload = Payload::from_iter([whole.freeze()]);
    }
    Ok(payload)
}

fn push_zeros(payload: &mut Payload, mut length: usize) {
    while length > 0 {
        let part = length.min(ZEROS.len());
        payload.push(Bytes::from_static(ZEROS.get(..part).unwrap_or_default()));
        length -= part;
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// A write-back, and the image it was taken from.
pub(super) struct Job {
    held: HeldJob,
    generation: u64,
}

impl Session {
    /// What to store next of a file, after settling in memory what is small. `None` if a
    /// write-back of the file runs, or nothing is left.
    pub(super) fn next_job(self: &Arc<Self>, state: &mut State, inode: InodeId) -> Option<Job> {
        let (_, ran) = state.image.run(|image| image.settle_small(inode));
        if ran.changed {
            self.kick_flush(state);
            self.written.notify_waiters();
        }
        let write = state.image.begin_write(inode, JOB_BYTES)?;
        Some(Job {
            held: HeldJob::new(self.shared.chunks.as_ref(), self.domain, write),
            generation: state.generation,
        })
    }

    /// Begins a write-back that nobody waits for.
    pub(super) fn begin_write_back(self: &Arc<Self>, inode: InodeId) {
        let session = Arc::clone(self);
        self.shared.tasks.spawn(async move {
            // Until the file is clean, or another task writes it.
            loop {
                if !session.wait_for_flush().await {
                    return;
                }
                let job = {
                    let mut state = session.lock();
                    if state.lost {
                        None
                    } else {
                        session.next_job(&mut state, inode)
                    }
                };
                let Some(job) = job else { return };
                if let Err(error) = session.write_back(job).await {
                    tracing::warn!(session = %session.view.session, error = %Told(&error), "write-back failed");
                    return;
                }
            }
        });
    }

    /// Writes back every file that has waited for it: called from time to time, and when the
    /// gateway's budget is short.
    pub(crate) fn write_back_all(self: &Arc<Self>) {
        let dirty = {
            let state = self.lock();
            if state.lost {
                Vec::new()
            } else {
                state.image.dirty_inodes()
            }
        };
        for inode in dirty {
            self.begin_write_back(inode);
        }
    }

    /// Stores the blocks of a job and takes them into the image.
    ///
    /// # Errors
    ///
    /// After `NoSpace` the file's unwritten data is given up, and the write verifier changes, so
    /// that every client resends what it has not committed. After other errors the data stays.
    pub(super) async fn write_back(self: &Arc<Self>, job: Job) -> Result<(), ChunkError> {
        let Job { held, generation } = job;
        let HeldJob { job, hold } = held;
        let inode = job.inode;
        let stored = self.store_blocks(job.blocks).await;
        let mut state = self.lock();
        if state.lost || state.generation != generation {
            // The data has been given up; the image knows nothing of this job.
            drop(state);
            self.written.notify_waiters();
            return Ok(());
        }
        let result = match stored {
            Ok(blocks) => {
                let (_, ran) = state.image.run(|image| image.finish_write(inode, blocks));
                if ran.changed {
                    let number = state.image.applied();
                    state.holds.keep(number, hold);
                    self.kick_flush(&mut state);
                }
                Ok(())
            }
            Err(error) => {
                state.image.abandon_write(inode);
                if error == ChunkError::NoSpace {
                    let (_, ran) = state.image.run(|image| image.discard_unwritten(inode));
                    if ran.changed {
                        self.kick_flush(&mut state);
                    }
                    state.losses += 1;
                    let last = state.image.last_write();
                    state.lost_writes.lose(inode, last);
                    self.shared.counters.discarded.count();
                }
                Err(error)
            }
        };
        self.after_run(&mut state, inode);
        drop(state);
        self.written.notify_waiters();
        result
    }

    async fn store_blocks(&self, blocks: Vec<BlockJob>) -> Result<Vec<(u32, Block)>, ChunkError> {
        let tasks: FuturesUnordered<_> = blocks
            .into_iter()
            .map(|block| self.store_block(block))
            .collect();
        let stored: Vec<(u32, Block)> = tasks.try_collect().await?;
        self.shared.chunks.sync().await?;
        Ok(stored)
    }

    async fn store_block(&self, job: BlockJob) -> Result<(u32, Block), ChunkError> {
        if let Some(block) = job.base.absorb(&job.over) {
            return Ok((job.index, block));
        }
        let end = job.base.end().max(job.over.end());
        let pieces = job.base.pieces(0, end, [Some(&job.over), None]);
        let mut chunks = std::collections::HashMap::new();
        for piece in &pieces {
            if let Piece::Chunk { id, .. } = piece
                && !chunks.contains_key(id)
            {
                chunks.insert(*id, self.shared.chunks.get(self.domain, *id).await?);
            }
        }
        let payload =
            payload(&pieces, |id| chunks.get(&id).cloned()).map_err(ChunkError::NotFound)?;
        let content = match payload.as_slice() {
            [whole] => whole.clone(),
            segments => {
                let mut content = BytesMut::with_capacity(index(end));
                for segment in segments {
                    content.extend_from_slice(segment);
                }
                content.freeze()
            }
        };
        let id = self.shared.chunks.put(self.domain, content).await?;
        Ok((job.index, Block::chunk(id, end)))
    }
}
