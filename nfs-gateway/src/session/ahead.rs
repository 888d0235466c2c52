//! Reading ahead of those who read a file from front to back, where a read takes a way over a network.
//!
//! Nothing waits for it. What it fetches is in the cache in front of the chunk store when it is asked for, or is
//! waited for there by whoever asks meanwhile.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use base::{Caller, InodeId};
use futures_util::{StreamExt, stream};
use metadata::image::Piece;
use metadata::ops::{self, Context};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::Session;

/// Files of which it is remembered how they are read.
const READERS_MAX: usize = 64;

/// The first window, in bytes.
const WINDOW_MIN: u64 = 1 << 20;

/// Clients have several reads under way, which come out of order: so far from where one was expected it still
/// counts as next.
const DISORDER: u64 = 4 << 20;

/// Bytes that are looked up in the image at a time.
const STEP: u32 = 1 << 20;

/// Chunks that one reader's window fetches at the same time.
const FETCHES_AT_ONCE: usize = 32;

/// Windows of one session that are fetched at the same time.
const WINDOWS_AT_ONCE: usize = 8;

/// How files of a session are being read.
#[derive(Debug)]
pub(super) struct Readers {
    readers: Mutex<(HashMap<InodeId, Reader>, u64)>,
    windows: Semaphore,
}

#[derive(Clone, Copy, Debug)]
struct Reader {
    /// Where the next read is expected.
    next: u64,
    /// Up to where has been read ahead.
    until: u64,
    window: u64,
    /// When it was heard of last.
    tick: u64,
}

impl Readers {
    pub(super) fn new() -> Self {
        Self {
            readers: Mutex::default(),
            windows: Semaphore::new(WINDOWS_AT_ONCE),
        }
    }

    /// Takes note of a read. Gives what is to be fetched in advance, at most `window_max` bytes.
    fn note(&self, inode: InodeId, read: Range<u64>, window_max: u64) -> Option<Range<u64>> {
        let (readers, tick) = &mut *self.readers.lock();
        *tick += 1;
        let known = readers.get(&inode).copied();
        let follows = |reader: &Reader| read.start.abs_diff(reader.next) <= DISORDER;
        let mut reader = match known.filter(follows) {
            Some(reader) => Reader {
                next: reader.next.max(read.end),
                ..reader
            },
            // From its beginning a file is probably read to its end.
            None => Reader {
                next: read.end,
                until: read.end,
                window: if read.start == 0 { WINDOW_MIN / 2 } else { 0 },
                tick: *tick,
            },
        };
        reader.tick = *tick;
        let is_next = known.is_some_and(|before| follows(&before)) || read.start == 0;
        if is_next {
            reader.window = (reader.window * 2).clamp(WINDOW_MIN, window_max.max(WINDOW_MIN));
        }
        let from = reader.until.max(reader.next);
        let end = reader.next.saturating_add(reader.window);
        // In pieces that are worth a task.
        let ahead = (is_next && end.saturating_sub(from) >= reader.window / 4).then_some(from..end);
        if let Some(ahead) = &ahead {
            reader.until = ahead.end;
        }
        readers.insert(inode, reader);
        if readers.len() > READERS_MAX {
            let oldest = readers.iter().min_by_key(|(_, reader)| reader.tick);
            if let Some(oldest) = oldest.map(|(inode, _)| *inode) {
                readers.remove(&oldest);
            }
        }
        ahead
    }
}

impl Session {
    /// Begins to read ahead of a read, if it is one of several that follow one another.
    pub(super) fn read_ahead(self: &Arc<Self>, inode: InodeId, read: Range<u64>) {
        let window_max = self.shared.chunks.read_ahead_bytes();
        if window_max == 0 {
            return;
        }
        let window_max = u64::try_from(window_max).unwrap_or(u64::MAX);
        let Some(ahead) = self.readers.note(inode, read, window_max) else {
            return;
        };
        let session = Arc::clone(self);
        self.shared.tasks.spawn(async move {
            tokio::select! {
                () = session.fetch_ahead(inode, ahead) => {}
                () = session.shared.tasks.shutdown_begun() => {}
            }
        });
    }

    async fn fetch_ahead(self: &Arc<Self>, inode: InodeId, ahead: Range<u64>) {
        let Ok(_permit) = self.readers.windows.try_acquire() else {
            return;
        };
        let (mut offset, mut seen) = (ahead.start, HashSet::new());
        while offset < ahead.end {
            let left = ahead.end.saturating_sub(offset);
            let count = u32::try_from(left).unwrap_or(STEP).min(STEP);
            let caller = Caller::root();
            let looked = self.peek_with(|image, now| {
                let cx = Context {
                    caller: &caller,
                    now,
                };
                ops::read(image, cx, inode, offset, count)
            });
            let Some(Ok(read)) = looked.await else {
                return;
            };
            for piece in &read.pieces {
                if let Piece::Chunk { id, .. } = piece {
                    seen.insert(*id);
                }
            }
            if read.end || read.count == 0 {
                break;
            }
            offset = offset.saturating_add(u64::from(read.count));
        }
        let missing = |id| self.shared.chunks.cached(self.domain, id).is_none();
        let missing: Vec<_> = seen.into_iter().filter(|id| missing(*id)).collect();
        // What comes is in the store's hands; the next step brings it into the cache.
        let fetching = self.shared.chunks.prefetch(self.domain, missing.clone());
        let taking = stream::iter(missing).map(|id| self.shared.chunks.get(self.domain, id));
        // Whoever reads it is told what is wrong with it.
        drop(fetching.await);
        taking
            .buffer_unordered(FETCHES_AT_ONCE)
            .for_each(|_| std::future::ready(()))
            .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MAX: u64 = 8 << 20;

    fn total(ranges: &[Range<u64>]) -> u64 {
        ranges.iter().map(|range| range.end - range.start).sum()
    }

    #[test]
    fn sequential_readers_are_read_ahead_of_once() {
        let readers = Readers::new();
        let inode = InodeId::new(5);
        let mut ahead = Vec::new();
        // Two reads under way, out of order.
        for pair in 0..50 {
            for start in [pair * 2 + 1, pair * 2] {
                let read = start * MIB..(start + 1) * MIB;
                ahead.extend(readers.note(inode, read, MAX));
            }
        }
        for (one, next) in ahead.iter().zip(ahead.iter().skip(1)) {
            assert!(one.end <= next.start, "{one:?} and {next:?}: twice");
        }
        let end = ahead.last().unwrap().end;
        assert!(end > 100 * MIB && end <= 108 * MIB, "{end}");
        assert!(total(&ahead) >= 98 * MIB);
        assert!(ahead.len() < 60, "{}: not in little pieces", ahead.len());
    }

    #[test]
    fn random_readers_are_left_alone() {
        let readers = Readers::new();
        let inode = InodeId::new(5);
        for number in 1..100_u64 {
            let start = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (1 << 40);
            let start = start.max(16 * MIB);
            assert_eq!(readers.note(inode, start..start + 4096, MAX), None);
        }
        for number in 0..1000 {
            readers.note(InodeId::new(number), MIB..2 * MIB, MAX);
        }
        assert!(readers.readers.lock().0.len() <= READERS_MAX);
    }
}
