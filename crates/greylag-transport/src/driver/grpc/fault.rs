//! Faults put between two nodes on purpose (cluster T42).

use std::sync::atomic::{AtomicU64, Ordering};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What happens to the traffic with one peer, as this node causes it. The other direction is
/// the other node's: blackholing A to B leaves B to A alone.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Fault {
    /// Nothing: traffic passes.
    #[default]
    Pass,
    /// What this node sends is swallowed, and its dials fail.
    BlackholeOutbound,
    /// What arrives from the peer is swallowed, and its dials are refused.
    BlackholeInbound,
    /// Both of it: a cut link.
    Blackhole,
    /// Each message this node sends is lost with this probability.
    Drop(f64),
}

/// The fault that is set for a peer; read on the hot path.
#[derive(Debug, Default)]
pub(super) struct FaultCell {
    /// The bits of the probability by which a message sent is lost.
    outbound: AtomicU64,
    /// Likewise of one received: 0 or 1.
    inbound: AtomicU64,
}

impl FaultCell {
    pub(super) fn set(&self, fault: Fault) {
        let (outbound, inbound) = match fault {
            Fault::Pass => (0.0, 0.0),
            Fault::BlackholeOutbound => (1.0, 0.0),
            Fault::BlackholeInbound => (0.0, 1.0),
            Fault::Blackhole => (1.0, 1.0),
            Fault::Drop(p) => (p.clamp(0.0, 1.0), 0.0),
        };
        self.outbound.store(f64::to_bits(outbound), Ordering::Relaxed);
        self.inbound.store(f64::to_bits(inbound), Ordering::Relaxed);
    }

    pub(super) fn outbound(&self) -> f64 {
        f64::from_bits(self.outbound.load(Ordering::Relaxed))
    }

    pub(super) fn is_deaf(&self) -> bool {
        f64::from_bits(self.inbound.load(Ordering::Relaxed)) >= 1.0
    }

    pub(super) fn is_mute(&self) -> bool {
        self.outbound() >= 1.0
    }
}

/// Decides message by message.
#[derive(Debug)]
pub(super) struct Gremlin(ChaCha8Rng);

impl Gremlin {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(super) fn swallows(&mut self, probability: f64) -> bool {
        probability > 0.0 && (probability >= 1.0 || self.0.random_bool(probability))
    }
}
