//! The waiting part of lease_majority: between the verdict that needs the lease and its execution.
//!
//! While the resolver waits for the lease it does nothing else: it ignores ticks, and queues new states. The resolver
//! releases a granted lease once all members that it downed have been gone for a while; by then the other side has
//! decided too.
//!
//! Source: cluster S10.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::Picture;
use super::strategy::Ruling;
use crate::downing::Verdict;
use crate::gossip::state::{ConfirmedExits, Gossip};
use crate::singleton::lease_outcome::LeaseOutcome;

/// How long a leader that is denied the lease waits for the decision of another leader of its side, which may have got
/// it. Shorter than the part of the margin that the minority's delay and the patience of S13 leave.
const DECISION_MAY_COME: Duration = Duration::from_secs(2);

/// A request to the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseRequest {
    /// Acquire the lease; the outcome comes back.
    Acquire,
    /// Release the lease.
    Release,
}

/// A verdict that waits for the lease.
#[derive(Debug)]
struct PendingVerdict {
    picture: Picture,
    ruling: Ruling,
    when: String,
    /// When to request the lease: the smaller side lets the bigger one go first.
    ask_at: Instant,
    asked: bool,
    outcome: Option<LeaseOutcome>,
    /// When a denial of the lease was first acted on, if there was one.
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

/// The result of a wait.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) picture: Picture,
    pub(super) ruling: Ruling,
    pub(super) when: String,
    pub(super) granted: bool,
    /// States that came during the wait, in their order.
    pub(super) queued: Vec<(Arc<Gossip>, ConfirmedExits)>,
}

/// The lease of the resolver of one node.
#[derive(Debug, Default)]
pub(super) struct ResolverLease {
    waiting: Option<Box<PendingVerdict>>,
    holding: Option<Holding>,
}

impl ResolverLease {
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether the lease was requested and not granted.
    pub(super) fn is_denied(&self) -> bool {
        let outcome = self.waiting.as_ref().and_then(|waiting| waiting.outcome);
        outcome.is_some_and(|outcome| outcome != LeaseOutcome::Granted)
    }

    /// Waits for the lease, on behalf of `ruling`. If the lease is held already, the request only confirms it, without
    /// delay.
    pub(super) fn wait(&mut self, now: Instant, picture: Picture, ruling: Ruling, when: String, delay: Duration) {
        let ask_at = if self.holding.is_some() { now } else { now + delay };
        let waiting = PendingVerdict {
            picture,
            ruling,
            when,
            ask_at,
            asked: false,
            outcome: None,
            denied_at: None,
            queued: Vec::new(),
        };
        self.waiting = Some(Box::new(waiting));
    }

    /// Queues a state. False if there is no wait.
    pub(super) fn queue(&mut self, gossip: &Arc<Gossip>, exits: &ConfirmedExits) -> bool {
        let Some(waiting) = &mut self.waiting else { return false };
        waiting.queued.push((gossip.clone(), exits.clone()));
        true
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let ask = self.waiting.as_ref().filter(|waiting| !waiting.asked).map(|waiting| waiting.ask_at);
        let hope = self.waiting.as_ref().and_then(|waiting| waiting.denied_at).map(|at| at + DECISION_MAY_COME);
        // Keep the lease until a wait has ended, since the decision may depend on it.
        let release = self.holding.as_ref().filter(|_| self.waiting.is_none()).and_then(|holding| holding.release_at);
        ask.or(hope).or(release)
    }

    /// The request that is due now.
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
        // Count a granted lease as held from now on, even if the verdict is not carried out.
        self.holding = match outcome {
            LeaseOutcome::Granted => Some(self.holding.take().unwrap_or_default()),
            LeaseOutcome::Denied | LeaseOutcome::Failed => None,
        };
    }

    /// Notes the loss of the lease, which another owner may hold now: a grant that was not acted on yet is void.
    pub(super) fn on_lost(&mut self) {
        self.holding = None;
        if let Some(outcome) = self.waiting.as_mut().and_then(|waiting| waiting.outcome.as_mut()) {
            *outcome = LeaseOutcome::Failed;
        }
    }

    /// The picture and ruling that wait for the lease, and the newest queued state.
    pub(super) fn pending(&self) -> Option<(&Picture, &Ruling, &Gossip)> {
        let waiting = self.waiting.as_ref()?;
        let (latest, _) = waiting.queued.last()?;
        Some((&waiting.picture, &waiting.ruling, latest))
    }

    /// Ends the wait, if there is an outcome. `is_decided`: no decision of another leader need be awaited.
    pub(super) fn answered(&mut self, now: Instant, is_decided: bool) -> Option<Answered> {
        let waiting = self.waiting.as_mut()?;
        let granted = waiting.outcome? == LeaseOutcome::Granted;
        let one_side = waiting.ruling.verdict == Verdict::AcquireLeaseAndDownIndirectlyConnected;
        if !granted && one_side && !is_decided && now < *waiting.denied_at.get_or_insert(now) + DECISION_MAY_COME {
            return None;
        }
        let PendingVerdict { picture, ruling, when, queued, .. } = *self.waiting.take()?;
        Some(Answered { picture, ruling, when, granted, queued })
    }

    /// Source: cluster S10.
    pub(super) fn check_invariants(&self) {
        if let Some(waiting) = &self.waiting {
            debug_assert!(waiting.outcome.is_none() || waiting.asked, "only a request has an outcome");
            debug_assert!(waiting.denied_at.is_none() || self.is_denied(), "only a denial awaits another decision");
        }
        if let Some(holding) = &self.holding {
            let is_due = holding.release_at.is_some();
            debug_assert!(!is_due || holding.downed.is_empty(), "the lease is kept until those it downed are gone");
        }
    }

    /// Notes the members that were downed while the lease is held.
    pub(super) fn note_downed(&mut self, downed: &[UniqueAddress]) {
        if let Some(holding) = &mut self.holding {
            holding.downed.extend(downed.iter().cloned());
            holding.release_at = None;
        }
    }

    /// Schedules the release: once all members that it downed are removed, the lease is kept a while longer.
    pub(super) fn on_state(&mut self, now: Instant, gossip: &Gossip, release_after: Duration) {
        if let Some(holding) = &mut self.holding {
            holding.downed.retain(|address| gossip.members.contains_key(address));
            if holding.downed.is_empty() && holding.release_at.is_none() && self.waiting.is_none() {
                holding.release_at = Some(now + release_after);
            }
        }
    }
}
