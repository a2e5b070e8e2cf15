//! Finding the coordinator, and registering with it.
//!
//! ```text
//! Unregistered --Register--> candidates ... --RegisterAck(epoch)--> Registered
//! Registered --coordinator's node lost, oldest candidate changed--> tries again; homes are kept
//! ```
//! Source: sharding §2.1, §2.3, §2.12.

use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, UniqueAddress};

use super::place::Place;
use super::protocol::Effect;
use super::report::{Obstacle, RegionEvent};
use super::{Region, RegionState};
use crate::fingerprint::Mismatch;
use crate::ids::ShardId;
use crate::machine::membership::{Members, Phase};
use crate::machine::message::{AgreementOutcome, Claim, CoordinatorId, Epoch, RegionMessage, Register};

/// How often a refused region tries again: a rollback can heal it.
const REFUSED_RETRY: Duration = Duration::from_secs(30);
/// Shortest time between two adoptions of an epoch from a journal.
const BETWEEN_ADOPTIONS: Duration = Duration::from_secs(60);
/// Retries with messages waiting before a report.
const RETRIES_BEFORE_WARNING: u32 = 5;

/// The region's relation to coordinators.
#[derive(Debug)]
pub(super) struct Registration {
    coordinator: Option<CoordinatorId>,
    /// The coordinator last reported to subscribers.
    reported: Option<CoordinatorId>,
    highest_epoch: Epoch,
    /// When an epoch was last adopted from a journal.
    adopted_at: Option<Instant>,
    /// The coordinator that brought the highest epoch: another coordinator with the same epoch is not believed.
    highest_by: Option<CoordinatorId>,
    serial: u64,
    /// Whether the set of hosted shards has changed since the last `Register` was sent.
    changed: bool,
    /// When to try again; `None` while registered.
    try_at: Option<Instant>,
    delay: Duration,
    tries: u32,
    /// The oldest candidate at the last look, and whether it was `Up`.
    oldest: Option<(UniqueAddress, bool)>,
    /// Why sends are refused, while they are.
    refused_for: Option<Mismatch>,
    /// The conflict with a side that stays instead of this one, as long as the members have not agreed since.
    conflict: Option<Mismatch>,
}

impl Registration {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            coordinator: None,
            reported: None,
            highest_epoch: 0,
            adopted_at: None,
            highest_by: None,
            serial: 0,
            changed: false,
            try_at: Some(now),
            delay: Duration::ZERO,
            tries: 0,
            oldest: None,
            refused_for: None,
            conflict: None,
        }
    }

    /// The coordinator that has taken this region, if its node is not lost.
    pub(super) fn coordinator(&self) -> Option<&CoordinatorId> {
        self.coordinator.as_ref()
    }

    pub(super) fn highest_epoch(&self) -> Epoch {
        self.highest_epoch
    }

    /// The mismatch of the last refusal.
    pub(super) fn refused_for(&self) -> Option<&Mismatch> {
        self.refused_for.as_ref()
    }

    /// Learns of an epoch above the highest from the journal instead of a coordinator: the journal has passed the
    /// coordinators' numbers. Returns whether the epoch is adopted: once a minute at most, so that a journal that names
    /// ever higher epochs does not make coordinators restart without an end. Source: sharding §4.6.
    pub(super) fn adopt_epoch(&mut self, now: Instant, epoch: Epoch) -> bool {
        if self.adopted_at.is_some_and(|at| now.saturating_duration_since(at) < BETWEEN_ADOPTIONS) {
            return false;
        }
        self.adopted_at = Some(now);
        self.highest_epoch = epoch.max(self.highest_epoch);
        self.highest_by = None;
        true
    }

    /// Learns which candidate is the oldest, and whether it is `Up`. Returns whether the candidate has changed, or the
    /// coordinator's node is no member any more.
    pub(super) fn observe(&mut self, oldest: Option<(UniqueAddress, bool)>, members: &Members) -> bool {
        let is_lost = self.coordinator.take_if(|coordinator| !members.contains(&coordinator.node)).is_some();
        let has_changed = oldest != self.oldest;
        self.oldest = oldest;
        is_lost || has_changed
    }

    /// The coordinator has acked that this region ended: nothing is repeated any more.
    pub(super) fn end(&mut self) {
        self.try_at = None;
    }

    /// A shard was accepted or has stopped: a `Register` under way is out of date.
    pub(super) fn hosted_changed(&mut self) {
        self.changed = true;
    }
}

impl Region {
    pub(super) fn registration_deadline(&self) -> Option<Instant> {
        self.registration.try_at
    }

    pub(super) fn on_registration_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.registration.try_at.is_some_and(|at| at <= now) {
            self.attempt(now, out);
        }
    }

    /// Tries to register now, with the backoff reset.
    pub(super) fn try_now(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.registration.delay = Duration::ZERO;
        self.registration.tries = 0;
        self.attempt(now, out);
    }

    /// Repeats the request that fits the region's state: to register, to be drained, or to be taken for gone.
    fn attempt(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let retry = self.config.settings.retry_interval;
        self.registration.try_at = match self.state {
            RegionState::Unregistered => {
                let first = (retry / 8).max(Duration::from_millis(100));
                let doubled = self.registration.delay * 2;
                self.registration.delay = doubled.clamp(first.min(retry), retry);
                Some(now + self.registration.delay)
            }
            RegionState::Registered => None,
            RegionState::Refused => Some(now + REFUSED_RETRY),
            RegionState::ShuttingDown | RegionState::Stopping | RegionState::Stopped => Some(now + retry),
        };
        let candidates = self.members.coordinator_candidates(&self.config.coordinator_role);
        match self.state {
            RegionState::Stopping => {}
            RegionState::Stopped => {
                let region = self.config.id.clone();
                self.send_all(candidates, RegionMessage::RegionStopped { region }, out);
            }
            _ => {
                self.registration.tries += 1;
                self.warn_if_unregistered(&candidates, out);
                for node in &candidates {
                    self.register_with(node.clone(), out);
                }
                if self.state == RegionState::ShuttingDown && !self.config.proxy {
                    let region = self.config.id.clone();
                    self.send_all(candidates, RegionMessage::GracefulShutdownReq { region }, out);
                }
            }
        }
    }

    fn warn_if_unregistered(&self, candidates: &[UniqueAddress], out: &mut Vec<Effect>) {
        let waiting = self.message_counters.counters.buffered > 0 && self.state == RegionState::Unregistered;
        if waiting && self.registration.tries == RETRIES_BEFORE_WARNING {
            let buffered = self.message_counters.counters.buffered as usize;
            let (candidates, obstacle) = (candidates.to_vec(), self.obstacle(candidates));
            out.push(Effect::Event(RegionEvent::StillUnregistered { buffered, candidates, obstacle }));
        }
    }

    fn obstacle(&self, candidates: &[UniqueAddress]) -> Obstacle {
        let members = &self.members;
        let is_reachable = |node: &UniqueAddress| members.members.get(node).is_some_and(|member| member.reachable);
        match candidates {
            _ if !members.contains(&self.config.id.node) => Obstacle::NotJoined,
            [] => Obstacle::NoCandidate,
            nodes if !nodes.iter().any(is_reachable) => Obstacle::Unreachable,
            _ => Obstacle::Silent,
        }
    }

    fn send_all(&self, nodes: Vec<UniqueAddress>, message: RegionMessage, out: &mut Vec<Effect>) {
        out.extend(nodes.into_iter().map(|to| Effect::SendCoordinator { to, message: message.clone() }));
    }

    /// Sends a message to the coordinator, if one is known; a lost message is repeated or asked for again.
    pub(super) fn send_to_coordinator(&self, message: RegionMessage, out: &mut Vec<Effect>) {
        if let Some(coordinator) = &self.registration.coordinator {
            out.push(Effect::SendCoordinator { to: coordinator.node.clone(), message });
        }
    }

    pub(super) fn register_with(&mut self, to: UniqueAddress, out: &mut Vec<Effect>) {
        // Coordinators ignore members that are not `Up` yet, so do not register before.
        let up = self.members.members.get(&self.config.id.node).is_some_and(|own| own.phase != Phase::Joining);
        if !up {
            return;
        }
        self.registration.serial += 1;
        self.registration.changed = false;
        let register = Register {
            region: self.config.id.clone(),
            proxy: self.config.proxy,
            serial: self.registration.serial,
            fingerprint: self.config.fingerprint.clone(),
            highest_epoch: self.registration.highest_epoch,
            hosted: self.claims(),
        };
        out.push(Effect::SendCoordinator { to, message: RegionMessage::Register(register) });
    }

    pub(super) fn claims(&self) -> Vec<Claim> {
        let claim = |(shard, place): (&ShardId, &Place)| {
            let (generation, state) = (place.slot.hosted()?, place.slot.claim()?);
            Some(Claim { shard: shard.clone(), generation, state })
        };
        self.places.hosted().filter_map(claim).collect()
    }

    /// Whether a coordinator may run at the node, as far as this node knows the members.
    pub(super) fn may_coordinate(&self, node: &UniqueAddress) -> bool {
        self.members.coordinator_candidates(&self.config.coordinator_role).contains(node)
    }

    /// Takes `coordinator` as the coordinator to obey, unless another one holds the same epoch.
    pub(super) fn accept_coordinator(&mut self, coordinator: &CoordinatorId, epoch: Epoch) -> bool {
        if !self.may_coordinate(&coordinator.node) {
            return false;
        }
        let registration = &mut self.registration;
        let raised = epoch > registration.highest_epoch;
        if !raised && registration.highest_by.as_ref() != Some(coordinator) {
            return false;
        }
        // A raised epoch makes everything sent under the old epoch out of date.
        registration.changed |= raised;
        registration.highest_epoch = epoch;
        registration.highest_by = Some(coordinator.clone());
        registration.coordinator = Some(coordinator.clone());
        true
    }

    pub(super) fn on_register_ack(&mut self, now: Instant, node: UniqueAddress, epoch: Epoch, out: &mut Vec<Effect>) {
        // The coordinator may not know yet that this side was refused in favour of another side.
        let refused = matches!(self.agreement.outcome(), AgreementOutcome::Refused(_));
        let begins = matches!(self.state, RegionState::Unregistered | RegionState::Refused) && !refused;
        if begins {
            self.state = RegionState::Registered;
            self.registration.try_at = None;
            self.registration.delay = Duration::ZERO;
        }
        // After a handover the new coordinator asks the regions itself: they change over without being unregistered.
        let is_other = self.registration.reported != self.registration.coordinator;
        if begins || (is_other && self.state == RegionState::Registered) {
            self.registration.reported.clone_from(&self.registration.coordinator);
            out.push(Effect::Event(RegionEvent::Registered { coordinator: node.clone(), epoch }));
        }
        // No acked `Register` can contain changes made after the last one was sent.
        if self.registration.changed {
            self.register_with(node, out);
        }
        self.repeat_requests(now, out);
        for shard in self.places.of(Place::wants_home) {
            self.with_place(&shard, |region, place| {
                place.asking.at = None;
                region.ask_home(now, &shard, place);
            });
        }
    }

    pub(super) fn on_refused(&mut self, now: Instant, node: UniqueAddress, mismatch: Mismatch, out: &mut Vec<Effect>) {
        if self.registration.changed {
            self.register_with(node, out);
        }
        self.refuse_sends(now, mismatch, out);
    }

    /// Fails all waiting and later sends: nodes disagree about the type.
    fn refuse_sends(&mut self, now: Instant, mismatch: Mismatch, out: &mut Vec<Effect>) {
        if !matches!(self.state, RegionState::Unregistered | RegionState::Registered) {
            return;
        }
        self.state = RegionState::Refused;
        self.registration.try_at = Some(now + REFUSED_RETRY);
        self.registration.refused_for = Some(mismatch.clone());
        out.push(Effect::Event(RegionEvent::Refused(mismatch)));
        for shard in self.places.of(|_| true) {
            self.with_place(&shard, |region, place| {
                region.close(&shard, place, out);
                place.slot.leave_remote(|_| None);
                place.slot.unplan_if(|_| true);
                if place.slot.old_path().is_some() {
                    place.slot.forget_left();
                }
                region.drop_buffer(&shard, place, DeadLetterReason::Refused, out);
            });
        }
    }

    /// Acts on the outcome of the members' comparison of roles.
    pub(super) fn follow_agreement(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let is_known = |refused: &Option<Mismatch>, mismatch: &Mismatch| refused.as_ref() == Some(mismatch);
        match self.agreement.outcome().clone() {
            AgreementOutcome::Refused(mismatch) if !is_known(&self.registration.conflict, &mismatch) => {
                self.registration.conflict = Some(mismatch.clone());
                self.refuse_sends(now, mismatch, out);
            }
            AgreementOutcome::Agreed
                if self.registration.conflict.take().is_some() && self.state == RegionState::Refused =>
            {
                self.state = RegionState::Unregistered;
                self.try_now(now, out);
            }
            _ => {}
        }
    }
}
