//! Faults put between two nodes on purpose (cluster T42).

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::Sleep;
use tokio_stream::Stream;

use super::codec::OutFrame;
use super::peer::Peer;

/// A fault of the traffic with one peer, as this node causes it. Traffic in the other direction is the other node's:
/// blackholing A to B leaves B to A alone.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Fault {
    /// No fault: traffic passes.
    #[default]
    Pass,
    /// This node's messages to the peer are swallowed, and its dials fail.
    BlackholeOutbound,
    /// The peer's messages are swallowed on arrival, and its dials are refused.
    BlackholeInbound,
    /// Both outbound and inbound traffic is swallowed: a cut link.
    Blackhole,
    /// Each message this node sends is lost with this probability.
    Drop(f64),
    /// Each frame this node sends is late by a time drawn evenly from this range, at most an hour.
    /// The order on a stream stays.
    Delay {
        /// The shortest delay.
        min: Duration,
        /// The longest.
        max: Duration,
    },
}

/// The fault that is set for a peer; read on the hot path.
#[derive(Debug, Default)]
pub(super) struct FaultCell {
    /// The bits of the probability by which a sent message is lost.
    outbound: AtomicU64,
    /// The bits of the probability by which a received message is lost: 0 or 1.
    inbound: AtomicU64,
    /// The shortest and the longest delay, in microseconds, in the upper and lower half.
    delay: AtomicU64,
}

impl FaultCell {
    pub(super) fn set(&self, fault: Fault) {
        let (outbound, inbound) = match fault {
            Fault::Pass => (0.0, 0.0),
            Fault::BlackholeOutbound => (1.0, 0.0),
            Fault::BlackholeInbound => (0.0, 1.0),
            Fault::Blackhole => (1.0, 1.0),
            Fault::Drop(p) => (p.clamp(0.0, 1.0), 0.0),
            Fault::Delay { .. } => (0.0, 0.0),
        };
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(HOUR);
        let delay = match fault {
            Fault::Delay { min, max } => micros(min) << 32 | micros(max),
            _ => 0,
        };
        self.delay.store(delay, Ordering::Relaxed);
        self.outbound.store(f64::to_bits(outbound), Ordering::Relaxed);
        self.inbound.store(f64::to_bits(inbound), Ordering::Relaxed);
    }

    pub(super) fn is_set(&self) -> bool {
        let all = [&self.outbound, &self.inbound, &self.delay];
        all.iter().any(|part| part.load(Ordering::Relaxed) != 0)
    }

    pub(super) fn outbound(&self) -> f64 {
        f64::from_bits(self.outbound.load(Ordering::Relaxed))
    }

    /// The range of delays, in microseconds, if there is one.
    fn delay(&self) -> Option<(u64, u64)> {
        let delay = self.delay.load(Ordering::Relaxed);
        (delay != 0).then_some((delay >> 32, delay & u64::from(u32::MAX)))
    }

    pub(super) fn drops_inbound(&self) -> bool {
        f64::from_bits(self.inbound.load(Ordering::Relaxed)) >= 1.0
    }

    pub(super) fn drops_outbound(&self) -> bool {
        self.outbound() >= 1.0
    }
}

/// The longest delay, in microseconds; fits into 32 bits.
const HOUR: u64 = 3_600_000_000;

/// Delays the frames of a stream as the peer's fault says.
pub(super) struct Delayed<S> {
    peer: Arc<Peer>,
    frames: S,
    held: VecDeque<(Instant, OutFrame)>,
    wake: Option<Pin<Box<Sleep>>>,
    has_ended: bool,
}

/// Limit of delayed frames at once.
const HELD: usize = 1024;

impl<S> Delayed<S> {
    pub(super) fn new(peer: Arc<Peer>, frames: S) -> Self {
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

/// Decides for each message whether the fault drops it.
#[derive(Debug)]
pub(super) struct DropFault(ChaCha8Rng);

impl DropFault {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(super) fn drops(&mut self, probability: f64) -> bool {
        probability > 0.0 && (probability >= 1.0 || self.0.random_bool(probability))
    }
}
