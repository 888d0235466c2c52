//! The API's connections: not too many, and none that does nothing for ever.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::Clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most connections of the API; further ones wait in the listener's queue.
const CONNECTIONS_MAX: usize = 256;

/// A connection on which nothing moves for this long is closed. Longer than any call may take.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Pause after `accept` failed for want of something, file descriptors mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener with limits.
#[derive(Debug)]
pub(crate) struct BoundedListener {
    listener: TcpListener,
    slots: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
}

impl BoundedListener {
    pub(crate) fn new(listener: TcpListener, clock: Arc<dyn Clock>) -> Self {
        Self {
            listener,
            slots: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            clock,
        }
    }
}

impl axum::serve::Listener for BoundedListener {
    type Io = BoundedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (BoundedStream, SocketAddr) {
        loop {
            // Fails only if the semaphore is closed, which nobody does.
            let slot = Arc::clone(&self.slots).acquire_owned().await.ok();
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    // Answers are small: each is to leave at once, not with the next one.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%peer, %error, "API connection was gone before its call");
                        continue;
                    }
                    let stream = BoundedStream {
                        stream,
                        _slot: slot,
                        idle: idle(Arc::clone(&self.clock)),
                        clock: Arc::clone(&self.clock),
                    };
                    return (stream, peer);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an API connection, trying again");
                    self.clock.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

type Idle = Pin<Box<dyn Future<Output = ()> + Send>>;

fn idle(clock: Arc<dyn Clock>) -> Idle {
    Box::pin(async move { clock.sleep(IDLE_MAX).await })
}

/// A connection that ends when nothing moves on it.
pub(crate) struct BoundedStream {
    stream: TcpStream,
    _slot: Option<OwnedSemaphorePermit>,
    idle: Idle,
    clock: Arc<dyn Clock>,
}

impl BoundedStream {
    /// `progress`, or an error when it was awaited for too long.
    fn bound<T>(
        &mut self,
        progress: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.idle = idle(Arc::clone(&self.clock));
            return progress;
        }
        self.idle
            .as_mut()
            .poll(context)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.bound(progress, context)
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bound(progress, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use axum::serve::Listener;
    use base::{ManualClock, Timestamp};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_connection_that_does_nothing_ends() {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut bounded = BoundedListener::new(listener, clock.clone());
        let mut peer = TcpStream::connect(address).await.unwrap();
        let (mut stream, _) = bounded.accept().await;
        let mut byte = [0];
        for moves in [true, false] {
            // The time without progress counts from when a read begins to wait.
            let (read, ()) = tokio::join!(stream.read_exact(&mut byte), async {
                clock.advance(IDLE_MAX / 2);
                if moves {
                    peer.write_all(b"x").await.unwrap();
                } else {
                    clock.advance(IDLE_MAX);
                }
            });
            match moves {
                true => assert_eq!(read.unwrap(), 1),
                false => assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut),
            }
        }
    }
}
