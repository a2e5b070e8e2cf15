//! Faults put between two nodes on purpose (cluster T42).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

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
pub(crate) struct FaultCell {
    /// The bits of the probability by which a sent message is lost.
    outbound: AtomicU64,
    /// The bits of the probability by which a received message is lost: 0 or 1.
    inbound: AtomicU64,
    /// The shortest and the longest delay, in microseconds, in the upper and lower half.
    delay: AtomicU64,
}

impl FaultCell {
    pub(crate) fn set(&self, fault: Fault) {
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

    pub(crate) fn is_set(&self) -> bool {
        let all = [&self.outbound, &self.inbound, &self.delay];
        all.iter().any(|part| part.load(Ordering::Relaxed) != 0)
    }

    pub(crate) fn outbound(&self) -> f64 {
        f64::from_bits(self.outbound.load(Ordering::Relaxed))
    }

    /// The range of delays, in microseconds, if there is one.
    pub(crate) fn delay(&self) -> Option<(u64, u64)> {
        let delay = self.delay.load(Ordering::Relaxed);
        (delay != 0).then_some((delay >> 32, delay & u64::from(u32::MAX)))
    }

    pub(crate) fn drops_inbound(&self) -> bool {
        f64::from_bits(self.inbound.load(Ordering::Relaxed)) >= 1.0
    }

    pub(crate) fn drops_outbound(&self) -> bool {
        self.outbound() >= 1.0
    }
}

/// The longest delay, in microseconds; fits into 32 bits.
const HOUR: u64 = 3_600_000_000;

/// Decides for each message whether the fault drops it.
#[derive(Debug)]
pub(crate) struct DropFault(ChaCha8Rng);

impl DropFault {
    pub(crate) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(crate) fn drops(&mut self, probability: f64) -> bool {
        probability > 0.0 && (probability >= 1.0 || self.0.random_bool(probability))
    }
}
