//! The waiting part of lease_majority: between the verdict that asks for the lease and what is done.
//!
//! While it waits for the lease the resolver looks at nothing else: it ignores ticks, and new states
//! wait in line. The resolver gives a granted lease back once all members that it downed have been gone
//! for a while; by then the other side has decided too.
//!
//! Source: cluster S10.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::Picture;
use super::strategy::Ruling;
use crate::downing::Verdict;
use crate::gossip::{ConfirmedExits, Gossip};
use crate::singleton::lease::LeaseOutcome;

/// How long a leader that is denied the lease waits for the decision of another leader of its side, which may
/// have got it. Less than the minority's delay and the patience of S13 leave of the margin.
const DECISION_MAY_COME: Duration = Duration::from_secs(2);

/// What is to be done about the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseRequest {
    /// Ask for the lease; the outcome comes back.
    Acquire,
    /// Give the lease back.
    Release,
}

/// A verdict that waits for the lease.
#[derive(Debug)]
struct Waiting {
    picture: Picture,
    ruling: Ruling,
    when: String,
    /// The smaller side lets the bigger one go first.
    ask_at: Instant,
    asked: bool,
    outcome: Option<LeaseOutcome>,
    /// When a refusal of the lease was first acted on, if there was one.
    denied_at: Option<Instant>,
    queued: Vec<(Arc<Gossip>, ConfirmedExits)>,
}

/// A lease that is held.
#[derive(Debug, Default)]
struct Holding {
    /// Downed members whose removal is awaited.
    downed: BTreeSet<UniqueAddress>,
    release_at: Option<Instant>,
}

/// What a wait has come to.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) picture: Picture,
    pub(super) ruling: Ruling,
    pub(super) when: String,
    pub(super) granted: bool,
    /// States that came meanwhile, in their order.
    pub(super) queued: Vec<(Arc<Gossip>, ConfirmedExits)>,
}

/// The lease of the resolver of one node.
#[derive(Debug, Default)]
pub(super) struct ResolverLease {
    waiting: Option<Box<Waiting>>,
    holding: Option<Holding>,
}

impl ResolverLease {
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// The lease is asked for, and was not to be had.
    pub(super) fn is_denied(&self) -> bool {
        let outcome = self.waiting.as_ref().and_then(|waiting| waiting.outcome);
        outcome.is_some_and(|outcome| outcome != LeaseOutcome::Granted)
    }

    /// Waits for the lease, on behalf of `ruling`. A lease that is held already is only confirmed, without delay.
    pub(super) fn wait(&mut self, now: Instant, picture: Picture, ruling: Ruling, when: String, delay: Duration) {
        let ask_at = if self.holding.is_some() { now } else { now + delay };
        let waiting =
            Waiting { picture, ruling, when, ask_at, asked: false, outcome: None, denied_at: None, queued: Vec::new() };
        self.waiting = Some(Box::new(waiting));
    }

    /// Puts a state in line. False if nothing is waited for.
    pub(super) fn queue(&mut self, gossip: &Arc<Gossip>, exits: &ConfirmedExits) -> bool {
        let Some(waiting) = &mut self.waiting else { return false };
        waiting.queued.push((gossip.clone(), exits.clone()));
        true
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let ask = self.waiting.as_ref().filter(|waiting| !waiting.asked).map(|waiting| waiting.ask_at);
        let hope = self.waiting.as_ref().and_then(|waiting| waiting.denied_at).map(|at| at + DECISION_MAY_COME);
        // The lease is kept until a wait has ended, since the decision may rest on it.
        let release = self.holding.as_ref().filter(|_| self.waiting.is_none()).and_then(|holding| holding.release_at);
        ask.or(hope).or(release)
    }

    /// What is due now.
    pub(super) fn request(&mut self, now: Instant) -> Option<LeaseRequest> {
        if let Some(waiting) = &mut self.waiting {
            let due = !waiting.asked && waiting.ask_at <= now;
            waiting.asked |= due;
            return due.then_some(LeaseRequest::Acquire);
        }
        let over = self.holding.as_ref().and_then(|holding| holding.release_at).is_some_and(|at| at <= now);
        over.then(|| {
            self.holding = None;
            LeaseRequest::Release
        })
    }

    pub(super) fn on_outcome(&mut self, outcome: LeaseOutcome) {
        if let Some(waiting) = self.waiting.as_mut().filter(|waiting| waiting.asked) {
            waiting.outcome.get_or_insert(outcome);
        }
        // A granted lease is held from now on, whatever becomes of the verdict.
        self.holding = match outcome {
            LeaseOutcome::Granted => Some(self.holding.take().unwrap_or_default()),
            LeaseOutcome::Denied | LeaseOutcome::Failed => None,
        };
    }

    /// Another owner may hold the lease now: a grant that was not acted on yet is worth nothing.
    pub(super) fn on_lost(&mut self) {
        self.holding = None;
        if let Some(outcome) = self.waiting.as_mut().and_then(|waiting| waiting.outcome.as_mut()) {
            *outcome = LeaseOutcome::Failed;
        }
    }

    /// The picture and ruling that wait for the lease, and the newest state in line.
    pub(super) fn pending(&self) -> Option<(&Picture, &Ruling, &Gossip)> {
        let waiting = self.waiting.as_ref()?;
        let (latest, _) = waiting.queued.last()?;
        Some((&waiting.picture, &waiting.ruling, latest))
    }

    /// The end of the wait, if there is an outcome. `is_decided`: there is nothing to hope for.
    pub(super) fn answered(&mut self, now: Instant, is_decided: bool) -> Option<Answered> {
        let waiting = self.waiting.as_mut()?;
        let granted = waiting.outcome? == LeaseOutcome::Granted;
        let one_side = waiting.ruling.verdict == Verdict::AcquireLeaseAndDownIndirectlyConnected;
        if !granted && one_side && !is_decided && now < *waiting.denied_at.get_or_insert(now) + DECISION_MAY_COME {
            return None;
        }
        let Waiting { picture, ruling, when, queued, .. } = *self.waiting.take()?;
        Some(Answered { picture, ruling, when, granted, queued })
    }

    /// What was decided while the lease is held.
    pub(super) fn note_downed(&mut self, downed: &[UniqueAddress]) {
        if let Some(holding) = &mut self.holding {
            holding.downed.extend(downed.iter().cloned());
            holding.release_at = None;
        }
    }

    /// Once all whom it downed are removed, the lease is kept a while longer.
    pub(super) fn on_state(&mut self, now: Instant, gossip: &Gossip, release_after: Duration) {
        if let Some(holding) = &mut self.holding {
            holding.downed.retain(|address| gossip.members.contains_key(address));
            if holding.downed.is_empty() && holding.release_at.is_none() && self.waiting.is_none() {
                holding.release_at = Some(now + release_after);
            }
        }
    }
}
