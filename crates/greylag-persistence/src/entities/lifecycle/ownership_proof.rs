//! Chains of effects that persist nothing and wait until ownership is proved.
//!
//! One check of the store is under way at a time. The check proves ownership for the chains that were held when it
//! began, not for later ones: those may depend on commands handled after it. Source: persistence §10.5, delivery §7.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use greylag_core::EntityError;

use crate::entities::behavior::chain::Chain;

/// Wait before the next check after one failed.
const RETRY: Duration = Duration::from_millis(500);

/// Progress of the proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    Idle,
    /// The check is under way; its answer proves for the chains up to this number.
    Checking {
        through: u64,
    },
    RetryAt(Instant),
}

/// A chain that waits for proof.
struct Held<S> {
    number: u64,
    chain: Chain<S>,
}

/// The chains of one entity that wait for proof of ownership.
pub(crate) struct OwnershipProof<S> {
    held: VecDeque<Held<S>>,
    next_number: u64,
    proof: Proof,
}

impl<S> Default for OwnershipProof<S> {
    fn default() -> Self {
        Self { held: VecDeque::new(), next_number: 0, proof: Proof::Idle }
    }
}

impl<S> OwnershipProof<S> {
    /// Holds a chain, behind those held before.
    pub(crate) fn hold(&mut self, chain: Chain<S>) {
        self.held.push_back(Held { number: self.next_number, chain });
        self.next_number += 1;
    }

    /// `runs`: whether the entity handles commands; `lives`: whether it does, or writes. Source: persistence §10.5.
    pub(crate) fn check_invariants(&self, runs: bool, lives: bool) {
        debug_assert!(
            lives || (self.held.is_empty() && self.proof == Proof::Idle),
            "chains are held for a known state"
        );
        debug_assert!(
            !runs || self.held.is_empty() || self.proof != Proof::Idle,
            "a chain that is held gets its proof"
        );
        debug_assert!(
            self.held.iter().map(|held| held.number).is_sorted(),
            "chains run in the order of their commands"
        );
    }

    /// Whether to check the store now; if so, the check counts as under way.
    pub(crate) fn begin_check(&mut self) -> bool {
        let newest = self.held.back().map(|held| held.number);
        let (Proof::Idle, Some(through)) = (self.proof, newest) else { return false };
        self.proof = Proof::Checking { through };
        true
    }

    /// Ends the check: returns the number of the last chain that it proves; `None` if no check was under way.
    pub(crate) fn end_check(&mut self) -> Option<u64> {
        let Proof::Checking { through } = self.proof else { return None };
        self.proof = Proof::Idle;
        Some(through)
    }

    /// Notes that the check failed.
    pub(crate) fn retry_later(&mut self, now: Instant) {
        self.proof = Proof::RetryAt(now + RETRY);
    }

    /// Time of the next check after a failed one.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        match self.proof {
            Proof::RetryAt(at) => Some(at),
            Proof::Idle | Proof::Checking { .. } => None,
        }
    }

    /// Whether the wait after a failed check is over; if so, the next check may begin.
    pub(crate) fn retry_is_due(&mut self, now: Instant) -> bool {
        let due = self.retry_at().is_some_and(|at| at <= now);
        if due {
            self.proof = Proof::Idle;
        }
        due
    }

    /// Whether chains wait for a check that is under way.
    pub(crate) fn awaits_check(&self) -> bool {
        !self.held.is_empty() && matches!(self.proof, Proof::Checking { .. })
    }

    /// Takes the oldest chain, if its number is at most `through`.
    pub(crate) fn pop(&mut self, through: u64) -> Option<Chain<S>> {
        self.held.pop_front_if(|held| held.number <= through).map(|held| held.chain)
    }

    /// Drops all chains; their reply tokens are answered `error`.
    pub(crate) fn refuse(&mut self, error: &EntityError) {
        for held in self.held.drain(..) {
            held.chain.refuse(error.clone());
        }
        self.proof = Proof::Idle;
    }
}
