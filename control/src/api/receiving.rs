//! Archives as they come over a connection, from somebody who means it.
//!
//! Only so many imports run at a time, so none may last because its sender dawdles: of each minute
//! that is spent waiting for a sender something has to come.

use std::error::Error;
use std::io::ErrorKind;
use std::time::Duration;

use axum::body::BodyDataStream;
use base::{Clock, Tasks};
use futures_util::StreamExt;
use tokio::sync::mpsc;

use crate::streaming::Piece;

/// So much waiting is looked at at a time.
const WINDOW: Duration = Duration::from_secs(60);

/// What has to come meanwhile, in bytes. The slowest line is faster, and `holdfast import` sends
/// larger pieces.
const WINDOW_BYTES_MIN: usize = 64 * 1024;

/// What is said of a sender that is too slow.
const TOO_SLOW: &str = "less than 64 KiB came within a minute; send it again, from a file that is \
                        there already or over a faster line";

/// The time spent waiting for a sender, and what came in it.
#[derive(Debug, Default)]
struct Window {
    waited: Duration,
    bytes: usize,
}

/// Gives a thread what the connection gives, until there is no more or nobody wants it. Time in
/// which the thread has enough to do does not count.
pub(super) async fn feed(
    stream: &mut BodyDataStream,
    to: mpsc::Sender<Piece>,
    clock: &dyn Clock,
    tasks: &Tasks,
) {
    let failed = |why: &str| Piece::Failed(std::io::Error::other(why.to_owned()));
    let mut window = Window::default();
    loop {
        let since = clock.monotonic();
        let piece = tokio::select! {
            () = to.closed() => return,
            () = tasks.shutdown_begun() => failed("the server is being stopped; import again"),
            () = clock.sleep(WINDOW.saturating_sub(window.waited)) => {
                if window.bytes >= WINDOW_BYTES_MIN {
                    window = Window::default();
                    continue;
                }
                failed(TOO_SLOW)
            }
            part = stream.next() => match part {
                Some(Ok(bytes)) => Piece::Bytes(bytes),
                Some(Err(error)) if is_malformed(&error) => {
                    let why = format!("the body is not sent as HTTP says ({error}): send it anew");
                    Piece::Failed(std::io::Error::new(ErrorKind::InvalidData, why))
                }
                Some(Err(error)) => failed(&format!("the sender broke off ({error})")),
                None => Piece::End,
            },
        };
        window.waited += clock.monotonic().saturating_sub(since);
        let is_last = match &piece {
            Piece::Bytes(bytes) => {
                window.bytes = window.bytes.saturating_add(bytes.len());
                false
            }
            Piece::End | Piece::Failed(_) => true,
        };
        if to.send(piece).await.is_err() || is_last {
            return;
        }
    }
}

/// Whether what came of a body cannot be one, as a chunk without a length; not that it has ended.
fn is_malformed(error: &axum::Error) -> bool {
    let mut why: Option<&dyn Error> = Some(error);
    while let Some(error) = why {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return matches!(
                error.kind(),
                ErrorKind::InvalidData | ErrorKind::InvalidInput
            );
        }
        why = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use axum::body::{Body, Bytes};
    use base::{ManualClock, Timestamp};
    use futures_util::stream::unfold;

    /// A sender, and who takes what it sends.
    struct World {
        clock: Arc<ManualClock>,
        tasks: Tasks,
        sends: mpsc::Sender<Bytes>,
        taken: mpsc::Receiver<Piece>,
    }

    impl World {
        fn new() -> Self {
            let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
            let tasks = Tasks::new();
            let (sends, from) = mpsc::channel(1);
            let (to, taken) = mpsc::channel(1);
            let body = unfold(from, |mut from: mpsc::Receiver<Bytes>| async {
                let part = from.recv().await?;
                Some((Ok::<_, std::io::Error>(part), from))
            });
            let (time, until) = (Arc::clone(&clock), tasks.clone());
            Tasks::new().spawn(async move {
                let mut stream = Body::from_stream(body).into_data_stream();
                feed(&mut stream, to, time.as_ref(), &until).await;
            });
            Self {
                clock,
                tasks,
                sends,
                taken,
            }
        }

        /// Sends so many bytes after so long, and has them taken.
        async fn send(&mut self, after: Duration, bytes: usize) -> Piece {
            tokio::task::yield_now().await;
            self.clock.advance(after);
            tokio::task::yield_now().await;
            drop(self.sends.send(vec![0; bytes].into()).await);
            self.taken.recv().await.unwrap()
        }
    }

    fn why(piece: Piece) -> String {
        match piece {
            Piece::Failed(error) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_trickle_is_given_up() {
        let mut world = World::new();
        let second = Duration::from_secs(1);
        let mut seconds = 0;
        let failed = loop {
            match world.send(second, 1).await {
                Piece::Bytes(bytes) => assert_eq!(bytes.len(), 1),
                piece => break why(piece),
            }
            seconds += 1;
            assert!(seconds <= 60);
        };
        assert!(
            failed.contains("64 KiB") && failed.contains("send it again"),
            "{failed}"
        );
    }

    #[tokio::test]
    async fn silence_is_given_up() {
        let mut world = World::new();
        assert!(matches!(
            world.send(Duration::ZERO, 1).await,
            Piece::Bytes(_)
        ));
        tokio::task::yield_now().await;
        world.clock.advance(WINDOW);
        assert!(why(world.taken.recv().await.unwrap()).contains("64 KiB"));
    }

    #[tokio::test]
    async fn who_sends_steadily_is_waited_for() {
        let mut world = World::new();
        for _ in 0..100 {
            let piece = world.send(Duration::from_secs(50), WINDOW_BYTES_MIN).await;
            assert!(matches!(piece, Piece::Bytes(_)), "{piece:?}");
        }
    }

    #[tokio::test]
    async fn who_takes_is_not_hurried() {
        let mut world = World::new();
        // One piece is taken, one waits in the queue, one in hand: the sender is not waited for.
        for _ in 0..3 {
            world.sends.send(vec![0; 1].into()).await.unwrap();
            tokio::task::yield_now().await;
        }
        for _ in 0..50 {
            world.clock.advance(WINDOW);
            tokio::task::yield_now().await;
        }
        for _ in 0..3 {
            let piece = world.taken.recv().await.unwrap();
            assert!(matches!(piece, Piece::Bytes(_)), "{piece:?}");
        }
        let piece = world.send(Duration::from_secs(5), 1).await;
        assert!(matches!(piece, Piece::Bytes(_)), "{piece:?}");
    }

    #[tokio::test]
    async fn a_shutdown_is_told() {
        let mut world = World::new();
        world.tasks.begin_shutdown();
        assert!(why(world.taken.recv().await.unwrap()).contains("being stopped"));
    }
}
