//! Delays the frames of a stream while a fault says so (cluster T42).

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rand::RngExt;
use tokio::time::Sleep;
use tokio_stream::Stream;

use crate::driver::grpc::codec::OutFrame;
use crate::driver::grpc::peers::Peer;

/// Delays the frames of a stream as the peer's fault says.
pub(crate) struct Delayed<S> {
    peer: Arc<Peer>,
    frames: S,
    held: VecDeque<(Instant, OutFrame)>,
    wake: Option<Pin<Box<Sleep>>>,
    has_ended: bool,
}

/// Limit of delayed frames at once.
const HELD: usize = 1024;

impl<S> Delayed<S> {
    pub(crate) fn new(peer: Arc<Peer>, frames: S) -> Self {
        Self { peer, frames, held: VecDeque::new(), wake: None, has_ended: false }
    }
}

impl<S: Stream<Item = OutFrame> + Unpin> Delayed<S> {
    /// Takes frames from the stream while there is room for delayed ones.
    fn hold(&mut self, cx: &mut Context<'_>, (min, max): (u64, u64)) {
        while self.held.len() < HELD && !self.has_ended {
            let Poll::Ready(frame) = Pin::new(&mut self.frames).poll_next(cx) else { return };
            let Some(frame) = frame else {
                self.has_ended = true;
                return;
            };
            let delay = Duration::from_micros(rand::rng().random_range(min..=max.max(min)));
            // Keep the order of the stream: no frame is due before the one ahead.
            let earliest = self.held.back().map_or_else(Instant::now, |(due, _)| *due);
            self.held.push_back(((Instant::now() + delay).max(earliest), frame));
        }
    }
}

impl<S: Stream<Item = OutFrame> + Unpin> Stream for Delayed<S> {
    type Item = OutFrame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<OutFrame>> {
        let this = &mut *self;
        let delay = this.peer.fault.delay();
        if delay.is_none() && this.held.is_empty() && !this.has_ended {
            return Pin::new(&mut this.frames).poll_next(cx);
        }
        this.hold(cx, delay.unwrap_or_default());
        loop {
            let Some((due, _)) = this.held.front() else {
                return if this.has_ended { Poll::Ready(None) } else { Poll::Pending };
            };
            if *due <= Instant::now() {
                return Poll::Ready(this.held.pop_front().map(|(_, frame)| frame));
            }
            let wake = this.wake.insert(Box::pin(tokio::time::sleep_until((*due).into())));
            if wake.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}
