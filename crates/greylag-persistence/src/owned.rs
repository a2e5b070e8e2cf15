//! Chains of effects that persist nothing and wait until ownership is proved.
//!
//! One look at the store is on its way at a time. It proves for the chains that were held when it began,
//! and for none that came later: those may rest on what happened after it. Source: persistence §10.5,
//! delivery §7.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use greylag_core::EntityError;

use crate::effect::Chain;

/// How long a look that failed waits for its next try.
const RETRY: Duration = Duration::from_millis(500);

/// How far the proof is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    Idle,
    /// The store was asked; the answer proves for the chains up to this number.
    Looking {
        through: u64,
    },
    RetryAt(Instant),
}

/// A chain that waits.
struct Held<S> {
    number: u64,
    chain: Chain<S>,
}

/// The chains of one entity that wait for proof.
pub(crate) struct Owned<S> {
    held: VecDeque<Held<S>>,
    next_number: u64,
    proof: Proof,
}

impl<S> Default for Owned<S> {
    fn default() -> Self {
        Self { held: VecDeque::new(), next_number: 0, proof: Proof::Idle }
    }
}

impl<S> Owned<S> {
    /// Holds a chain, behind those that were held before.
    pub(crate) fn hold(&mut self, chain: Chain<S>) {
        self.held.push_back(Held { number: self.next_number, chain });
        self.next_number += 1;
    }

    /// Whether the store is to be looked at now; the look is then on its way.
    pub(crate) fn begin_look(&mut self) -> bool {
        let newest = self.held.back().map(|held| held.number);
        let (Proof::Idle, Some(through)) = (self.proof, newest) else { return false };
        self.proof = Proof::Looking { through };
        true
    }

    /// The look has ended: up to which number it proves. `None` if none was on its way.
    pub(crate) fn end_look(&mut self) -> Option<u64> {
        let Proof::Looking { through } = self.proof else { return None };
        self.proof = Proof::Idle;
        Some(through)
    }

    /// The look failed.
    pub(crate) fn retry_later(&mut self, now: Instant) {
        self.proof = Proof::RetryAt(now + RETRY);
    }

    /// When to look again after a failure.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        match self.proof {
            Proof::RetryAt(at) => Some(at),
            Proof::Idle | Proof::Looking { .. } => None,
        }
    }

    /// Whether the wait after a failure is over; then it counts as over.
    pub(crate) fn retry_is_due(&mut self, now: Instant) -> bool {
        let due = self.retry_at().is_some_and(|at| at <= now);
        if due {
            self.proof = Proof::Idle;
        }
        due
    }

    /// Whether chains wait for a look that is on its way.
    pub(crate) fn awaits_look(&self) -> bool {
        !self.held.is_empty() && matches!(self.proof, Proof::Looking { .. })
    }

    /// The oldest chain that is proved, up to a number.
    pub(crate) fn pop(&mut self, through: u64) -> Option<Chain<S>> {
        self.held.pop_front_if(|held| held.number <= through).map(|held| held.chain)
    }

    /// Lets go of all of them; their reply tokens are answered `error`.
    pub(crate) fn refuse(&mut self, error: &EntityError) {
        for held in self.held.drain(..) {
            held.chain.refuse(error.clone());
        }
        self.proof = Proof::Idle;
    }
}
