//! Answers on their way: each part that a peer takes shows that it goes on.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use base::Clock;
use hyper::body::{Frame, SizeHint};

use super::serving::Guest;

/// A body that is being sent. Its connection works while the next part is being made, and waits for
/// its peer from then until the part after that is wanted.
#[derive(Debug)]
pub(super) struct Sending {
    body: Body,
    guest: Arc<Guest>,
    clock: Arc<dyn Clock>,
}

impl Sending {
    pub(super) fn new(body: Body, guest: Arc<Guest>, clock: Arc<dyn Clock>) -> Self {
        Self { body, guest, clock }
    }
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.guest
            .set_working(polled.is_pending(), self.clock.monotonic());
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
