//! The way out of a connection: replies from any thread, in whole records, written at once.
//!
//! Whoever sends a reply also writes it, unless somebody is writing already or the socket is full;
//! then the one who writes takes it along, or the connection's task does when there is room. The
//! lock is held to move replies, not while they are written.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use socket2::SockRef;
use tokio::net::tcp::OwnedWriteHalf;

use crate::wire::reply::Reply;

/// Most pieces handed to one system call; Linux takes 1024.
const PIECES_MAX: usize = 64;

/// Replies whose room is kept while a connection is idle.
const QUEUE_IDLE: usize = 8;

/// What writing came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// Everything is written, or somebody else is at it.
    All,
    /// The socket is full: call [`Outbound::resume`] when it is writable.
    Blocked,
    /// The connection is broken; replies are dropped.
    Broken,
}

#[derive(Debug)]
pub(crate) struct Outbound {
    half: OwnedWriteHalf,
    queue: Mutex<Queue>,
    queued_bytes: AtomicUsize,
    is_blocked: AtomicBool,
    is_broken: AtomicBool,
    replies_sent: AtomicU64,
    bytes_sent: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Reply>,
    /// What is being written; absent while somebody does.
    batch: Option<Batch>,
}

#[derive(Debug, Default)]
struct Batch {
    replies: VecDeque<Reply>,
    /// Bytes of the first reply that are sent already.
    sent: usize,
}

impl Outbound {
    pub(crate) fn new(half: OwnedWriteHalf) -> Self {
        let queue = Queue {
            waiting: VecDeque::new(),
            batch: Some(Batch::default()),
        };
        Self {
            half,
            queue: Mutex::new(queue),
            queued_bytes: AtomicUsize::new(0),
            is_blocked: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            replies_sent: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
        }
    }

    /// Queues replies of `bytes` bytes together; [`Outbound::flush`] writes them.
    pub(crate) fn push(&self, bytes: usize, replies: impl Iterator<Item = Reply>) {
        let mut queue = self.queue.lock();
        queue.waiting.extend(replies);
        self.queued_bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Writes what is queued, as far as the socket takes it. Returns how many bytes it took.
    pub(crate) fn flush(&self) -> (Written, usize) {
        let mut total = 0;
        loop {
            if self.is_broken() {
                return (Written::Broken, total + self.discard());
            }
            if self.is_blocked() {
                return (Written::All, total);
            }
            let Some(mut batch) = self.take_batch() else {
                return (Written::All, total);
            };
            let (end, bytes, replies) = batch.write(&self.half);
            total += bytes;
            self.queued_bytes.fetch_sub(bytes, Ordering::SeqCst);
            self.replies_sent.fetch_add(replies, Ordering::Relaxed);
            self.bytes_sent
                .fetch_add(u64::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
            let mut queue = self.queue.lock();
            match end {
                Written::All => {}
                Written::Blocked => self.is_blocked.store(true, Ordering::SeqCst),
                Written::Broken => self.is_broken.store(true, Ordering::SeqCst),
            }
            queue.batch = Some(batch);
            if end == Written::Blocked {
                return (Written::Blocked, total);
            }
        }
    }

    /// Goes on writing after the socket was full.
    pub(crate) fn resume(&self) -> (Written, usize) {
        self.is_blocked.store(false, Ordering::SeqCst);
        self.flush()
    }

    /// Completes when the socket takes bytes again. Safe to drop.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.half.writable().await
    }

    /// Sends FIN: everything written will still arrive.
    pub(crate) fn close(&self) {
        self.is_broken.store(true, Ordering::SeqCst);
        // Fails if the peer is gone, which is what we want.
        let _gone = SockRef::from(self.half.as_ref()).shutdown(Shutdown::Write);
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::SeqCst)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::SeqCst)
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes.load(Ordering::SeqCst)
    }

    /// How many replies and how many bytes have been sent.
    pub(crate) fn sent(&self) -> (u64, u64) {
        let replies = self.replies_sent.load(Ordering::Relaxed);
        (replies, self.bytes_sent.load(Ordering::Relaxed))
    }

    /// Gives memory back that a burst of replies needed.
    pub(crate) fn release_idle(&self) {
        let mut queue = self.queue.lock();
        queue.waiting.shrink_to(QUEUE_IDLE);
        if let Some(batch) = &mut queue.batch {
            batch.replies.shrink_to(QUEUE_IDLE);
        }
    }

    fn take_batch(&self) -> Option<Batch> {
        let mut queue = self.queue.lock();
        let Queue { waiting, batch } = &mut *queue;
        let current = batch.as_mut()?;
        if current.replies.is_empty() {
            std::mem::swap(&mut current.replies, waiting);
        }
        if current.replies.is_empty() {
            return None;
        }
        batch.take()
    }

    /// Drops what is queued; returns how many bytes that was.
    pub(crate) fn discard(&self) -> usize {
        let mut queue = self.queue.lock();
        queue.waiting.clear();
        if queue.batch.is_none() {
            return 0; // Whoever writes comes by here next.
        }
        queue.batch = Some(Batch::default());
        self.queued_bytes.swap(0, Ordering::SeqCst)
    }
}

impl Batch {
    /// Writes until done or stopped; returns the bytes and the whole replies written.
    fn write(&mut self, half: &OwnedWriteHalf) -> (Written, usize, u64) {
        let (mut bytes, mut replies) = (0, 0);
        while !self.replies.is_empty() {
            let result = half.try_write_vectored(&self.pieces());
            match result {
                Ok(0) => return (Written::Broken, bytes, replies),
                Ok(count) => {
                    bytes += count;
                    replies += self.advance(count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return (Written::Blocked, bytes, replies);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return (Written::Broken, bytes, replies),
            }
        }
        (Written::All, bytes, replies)
    }

    fn pieces(&self) -> SmallVec<[IoSlice<'_>; PIECES_MAX]> {
        let mut skip = self.sent;
        let mut pieces = SmallVec::new();
        for piece in self.replies.iter().flat_map(Reply::pieces) {
            if pieces.len() == PIECES_MAX {
                break;
            }
            match piece.get(skip..) {
                Some(rest) if !rest.is_empty() => {
                    pieces.push(IoSlice::new(rest));
                    skip = 0;
                }
                _ => skip -= piece.len(),
            }
        }
        pieces
    }

    /// Notes that `count` more bytes are sent; returns how many replies that completed.
    fn advance(&mut self, count: usize) -> u64 {
        self.sent += count;
        let mut completed = 0;
        while let Some(bytes) = self.replies.front().map(Reply::wire_bytes) {
            if self.sent < bytes {
                break;
            }
            self.sent -= bytes;
            self.replies.pop_front();
            completed += 1;
        }
        completed
    }
}
