//! Connections whose peer may still be sending when it is answered.
//!
//! A socket that is closed with bytes unread resets its connection, and a peer that gets a reset
//! forgets what it has not read yet: it would not hear why it was refused. So such a connection says
//! that nothing more will come, and reads on until the peer closes it (RFC 9112 section 9.6).

use std::io::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use base::Clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// For so long it reads on at most.
const TIME_MAX: Duration = Duration::from_secs(10);

/// And so much, in bytes: what is on its way on a fast line.
const BYTES_MAX: usize = 64 << 20;

/// What is read at a time, in bytes.
const READ_BYTES: usize = 16 * 1024;

/// A connection that can be closed without losing what it said last.
pub(super) struct Lingering {
    stream: TcpStream,
    clock: Arc<dyn Clock>,
    /// Whether the peer was answered before all it sends was read.
    is_interrupted: Arc<AtomicBool>,
    closing: Closing,
}

enum Closing {
    Not,
    Reading {
        until: Pin<Box<dyn Future<Output = ()> + Send>>,
        bytes: usize,
    },
    Done,
}

impl Lingering {
    /// `is_interrupted` is set when anything is read. Whoever has read all of a request takes it back.
    pub(super) fn new(
        stream: TcpStream,
        clock: Arc<dyn Clock>,
        is_interrupted: Arc<AtomicBool>,
    ) -> Self {
        Self {
            stream,
            clock,
            is_interrupted,
            closing: Closing::Not,
        }
    }
}

impl AsyncRead for Lingering {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), Error>> {
        let before = to.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, to);
        if to.filled().len() > before {
            // A request begins or goes on. Also hyper answers some before they are whole.
            self.is_interrupted.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for Lingering {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<Result<usize, Error>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let this = &mut *self;
        loop {
            match &mut this.closing {
                Closing::Not => {
                    ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
                    let clock = Arc::clone(&this.clock);
                    this.closing = match this.is_interrupted.load(Ordering::Relaxed) {
                        true => Closing::Reading {
                            until: Box::pin(async move { clock.sleep(TIME_MAX).await }),
                            bytes: 0,
                        },
                        false => Closing::Done,
                    };
                }
                Closing::Reading { until, bytes } => {
                    if *bytes >= BYTES_MAX || until.as_mut().poll(cx).is_ready() {
                        this.closing = Closing::Done;
                        continue;
                    }
                    let mut room = [0; READ_BYTES];
                    let mut room = ReadBuf::new(&mut room);
                    let read = ready!(Pin::new(&mut this.stream).poll_read(cx, &mut room));
                    match (read, room.filled().len()) {
                        (Ok(()), read @ 1..) => *bytes += read,
                        // It has closed its side, or is gone.
                        (Ok(()) | Err(_), _) => this.closing = Closing::Done,
                    }
                }
                Closing::Done => return Poll::Ready(Ok(())),
            }
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[std::io::IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
