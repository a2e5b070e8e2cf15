//! Finding the coordinator, registering with it, and telling its orders from those of other coordinators.
//!
//! ```text
//! Unregistered --Register--> candidates ... --RegisterAck(epoch)--> Registered
//! Registered --coordinator's node lost, oldest candidate changed--> tries again; homes are kept
//! ```
//! Source: sharding §2.1, §2.3, §2.12.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, UniqueAddress};
use greylag_transport::{Lane, LaneKind};

use super::protocol::{Effect, RegionEvent};
use super::slot::{Ending, State, Task};
use super::{Region, RegionState, Route};
use crate::fingerprint::Mismatch;
use crate::ids::ShardId;
use crate::machine::membership::{Members, Phase};
use crate::machine::message::{
    Claim, ClaimState, CoordinatorId, CoordinatorMessage, Epoch, FromCoordinator, RegionMessage, Register, Standing,
};

/// How often a refused region tries again: a rollback can heal it.
const REFUSED_RETRY: Duration = Duration::from_secs(30);
/// Retries with messages waiting before that is reported.
const RETRIES_BEFORE_WARNING: u32 = 5;

/// How this region stands with coordinators.
#[derive(Debug)]
pub(super) struct Registration {
    coordinator: Option<CoordinatorId>,
    /// The one that subscribers were told of last.
    told: Option<CoordinatorId>,
    highest_epoch: Epoch,
    /// The coordinator that brought the highest epoch: another one with the same number is not believed.
    highest_by: Option<CoordinatorId>,
    serial: u64,
    /// The set of hosted shards changed since the last `Register` was sent.
    changed: bool,
    /// When to try again; `None` while registered.
    try_at: Option<Instant>,
    delay: Duration,
    tries: u32,
    /// The oldest candidate of the last look, and whether it was `Up`.
    oldest: Option<(UniqueAddress, bool)>,
    /// Why sends are refused, while they are.
    refused_for: Option<Mismatch>,
    /// The side that stays instead of this one, as long as the members have not agreed since.
    conflict: Option<Mismatch>,
}

impl Registration {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            coordinator: None,
            told: None,
            highest_epoch: 0,
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

    /// Why sends were refused last.
    pub(super) fn refused_for(&self) -> Option<&Mismatch> {
        self.refused_for.as_ref()
    }

    /// Learns of an epoch from elsewhere than a coordinator (the journal, sharding §4.6).
    pub(super) fn adopt_epoch(&mut self, epoch: Epoch) {
        if epoch > self.highest_epoch {
            self.highest_epoch = epoch;
            self.highest_by = None;
        }
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

    /// Tries now, and from the beginning of the backoff.
    pub(super) fn try_now(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.registration.delay = Duration::ZERO;
        self.registration.tries = 0;
        self.attempt(now, out);
    }

    /// One round of whatever is repeated: registering, leaving, or telling that this region is gone.
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
        let waiting = self.counters.buffered > 0 && self.state == RegionState::Unregistered;
        if waiting && self.registration.tries == RETRIES_BEFORE_WARNING {
            let buffered = self.counters.buffered as usize;
            let candidates = candidates.to_vec();
            out.push(Effect::Event(RegionEvent::StillUnregistered { buffered, candidates }));
        }
    }

    fn send_all(&self, nodes: Vec<UniqueAddress>, message: RegionMessage, out: &mut Vec<Effect>) {
        out.extend(nodes.into_iter().map(|to| Effect::SendCoordinator { to, message: message.clone() }));
    }

    /// Sends a message to the coordinator, if one is known; a lost one is repeated or asked for again.
    pub(super) fn tell_coordinator(&self, message: RegionMessage, out: &mut Vec<Effect>) {
        if let Some(coordinator) = &self.registration.coordinator {
            out.push(Effect::SendCoordinator { to: coordinator.node.clone(), message });
        }
    }

    fn register_with(&mut self, to: UniqueAddress, out: &mut Vec<Effect>) {
        // Coordinators ignore members that are not `Up` yet, so there is nothing to say before.
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
        let claim = |(shard, slot): (&ShardId, &super::slot::Slot)| {
            let hosting = slot.hosting()?;
            let state = match (hosting.task, hosting.ending, &hosting.handoff) {
                (_, Some(_), _) | (_, _, Some(_)) | (Task::Ending, ..) => ClaimState::Stopping,
                (Task::Ready, ..) => ClaimState::Running,
                _ => ClaimState::Starting,
            };
            Some(Claim { shard: shard.clone(), generation: hosting.generation, state })
        };
        self.slots.iter().filter_map(claim).collect()
    }

    /// Sorts a message that claims a coordinator's authority: obeys, ignores, or says that it is stale.
    pub(super) fn on_coordinator(
        &mut self,
        now: Instant,
        node: UniqueAddress,
        message: FromCoordinator,
        out: &mut Vec<Effect>,
    ) {
        let FromCoordinator { coordinator, epoch, to, message } = message;
        let stranger = coordinator.node != node || !self.members.contains(&node);
        if stranger || to.as_ref().is_some_and(|to| *to != self.config.id) {
            return;
        }
        if message == CoordinatorMessage::RegionInquiry {
            return self.on_inquiry(node, epoch, out);
        }
        if self.state == RegionState::Stopped {
            return self.answer_when_stopped(node, message, out);
        }
        let unfenced = self.sabotage == Some(super::Sabotage::EpochFence);
        if epoch < self.registration.highest_epoch && !unfenced {
            let region = self.config.id.clone();
            let stale = RegionMessage::StaleEpoch { region, epoch: self.registration.highest_epoch };
            out.push(Effect::SendCoordinator { to: node, message: stale });
            return;
        }
        match message {
            CoordinatorMessage::RegisterAck { .. } if self.believe(&coordinator, epoch) => {
                self.on_register_ack(now, node, epoch, out);
            }
            CoordinatorMessage::RegisterRefused { mismatch, .. } if self.believe(&coordinator, epoch) => {
                self.on_refused(now, node, mismatch, out);
            }
            CoordinatorMessage::RegisterAck { .. } | CoordinatorMessage::RegisterRefused { .. } => {}
            order if self.registration.coordinator.as_ref() == Some(&coordinator) || unfenced => {
                self.on_order(now, order, out);
            }
            // A newer coordinator gives orders before its ack has come: the ack was lost, so register again. Not so with a node
            // that is no candidate in this node's view: its ack would not be believed, and the table that follows every
            // registration would be answered by the next one, without an end.
            _ if epoch > self.registration.highest_epoch && self.may_coordinate(&node) => self.register_with(node, out),
            _ => {}
        }
    }

    /// Whether a coordinator may run at the node, as far as this node knows the members.
    fn may_coordinate(&self, node: &UniqueAddress) -> bool {
        self.members.coordinator_candidates(&self.config.coordinator_role).contains(node)
    }

    /// Takes `coordinator` as the one to obey, unless another one holds the same epoch.
    fn believe(&mut self, coordinator: &CoordinatorId, epoch: Epoch) -> bool {
        if !self.may_coordinate(&coordinator.node) {
            return false;
        }
        let registration = &mut self.registration;
        let raised = epoch > registration.highest_epoch;
        if !raised && registration.highest_by.as_ref() != Some(coordinator) {
            return false;
        }
        // A raised epoch makes everything sent under the old one out of date.
        registration.changed |= raised;
        registration.highest_epoch = epoch;
        registration.highest_by = Some(coordinator.clone());
        registration.coordinator = Some(coordinator.clone());
        true
    }

    fn on_register_ack(&mut self, now: Instant, node: UniqueAddress, epoch: Epoch, out: &mut Vec<Effect>) {
        // The coordinator may not know yet that another side stays.
        let refused = matches!(self.agreement.standing(), Standing::Refused(_));
        let begins = matches!(self.state, RegionState::Unregistered | RegionState::Refused) && !refused;
        if begins {
            self.state = RegionState::Registered;
            self.registration.try_at = None;
            self.registration.delay = Duration::ZERO;
        }
        // A coordinator that was handed over asks the regions itself: they change over without a time between.
        let is_other = self.registration.told != self.registration.coordinator;
        if begins || (is_other && self.state == RegionState::Registered) {
            self.registration.told.clone_from(&self.registration.coordinator);
            out.push(Effect::Event(RegionEvent::Registered { coordinator: node.clone(), epoch }));
        }
        // What changed after the last `Register` was sent is in none that could have been acked.
        if self.registration.changed {
            self.register_with(node, out);
        }
        self.repeat_requests(now, out);
        for shard in self.shards_where(super::slot::Slot::wants_home) {
            self.with_slot(&shard, |region, slot| {
                slot.asking.at = None;
                region.ask_home(now, &shard, slot);
            });
        }
    }

    fn on_refused(&mut self, now: Instant, node: UniqueAddress, mismatch: Mismatch, out: &mut Vec<Effect>) {
        if self.registration.changed {
            self.register_with(node, out);
        }
        self.refuse_sends(now, mismatch, out);
    }

    /// What waits, and what is sent from now on, fails: nodes disagree about the type.
    fn refuse_sends(&mut self, now: Instant, mismatch: Mismatch, out: &mut Vec<Effect>) {
        if !matches!(self.state, RegionState::Unregistered | RegionState::Registered) {
            return;
        }
        self.state = RegionState::Refused;
        self.registration.try_at = Some(now + REFUSED_RETRY);
        self.registration.refused_for = Some(mismatch.clone());
        out.push(Effect::Event(RegionEvent::Refused(mismatch)));
        for shard in self.shards_where(|_| true) {
            self.with_slot(&shard, |region, slot| {
                region.publish(&shard, slot, Route::Closed, out);
                if matches!(slot.state, State::Remote { .. }) {
                    slot.state = State::NoRoute;
                }
                slot.next = None;
                slot.old_path = None;
                region.drop_buffer(&shard, slot, DeadLetterReason::Refused, out);
            });
        }
    }

    /// Acts on what this node and the other members mean by the type.
    pub(super) fn follow_agreement(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let is_known = |refused: &Option<Mismatch>, mismatch: &Mismatch| refused.as_ref() == Some(mismatch);
        match self.agreement.standing().clone() {
            Standing::Refused(mismatch) if !is_known(&self.registration.conflict, &mismatch) => {
                self.registration.conflict = Some(mismatch.clone());
                self.refuse_sends(now, mismatch, out);
            }
            Standing::Agreed if self.registration.conflict.take().is_some() && self.state == RegionState::Refused => {
                self.state = RegionState::Unregistered;
                self.try_now(now, out);
            }
            _ => {}
        }
    }

    /// A coordinator that takes stock wants to hear from this node: answered whatever its epoch.
    fn on_inquiry(&mut self, node: UniqueAddress, epoch: Epoch, out: &mut Vec<Effect>) {
        if self.state == RegionState::Stopped {
            let region = self.config.id.clone();
            let gone = RegionMessage::RegionStopped { region };
            out.push(Effect::SendCoordinator { to: node.clone(), message: gone });
            out.push(Effect::SendCoordinator { to: node, message: RegionMessage::NoRegion { epoch } });
            return;
        }
        if self.config.proxy {
            out.push(Effect::SendCoordinator { to: node.clone(), message: RegionMessage::NoRegion { epoch } });
        }
        self.register_with(node, out);
    }

    fn answer_when_stopped(&mut self, node: UniqueAddress, message: CoordinatorMessage, out: &mut Vec<Effect>) {
        if message == CoordinatorMessage::RegionStoppedAck {
            self.registration.try_at = None;
            return;
        }
        let region = self.config.id.clone();
        out.push(Effect::SendCoordinator { to: node, message: RegionMessage::RegionStopped { region } });
    }

    fn on_order(&mut self, now: Instant, order: CoordinatorMessage, out: &mut Vec<Effect>) {
        match order {
            CoordinatorMessage::ShardHomes(homes) | CoordinatorMessage::HostShard(homes) => {
                self.agreement.on_home();
                for home in homes {
                    let shard = home.shard.clone();
                    self.with_slot(&shard, |region, slot| region.on_home(now, &shard, slot, home, out));
                }
            }
            CoordinatorMessage::BeginHandOff { shard, generation, attempt, owner } => {
                self.on_begin_handoff(now, &shard, generation, attempt, owner, out);
            }
            CoordinatorMessage::HandOff { shard, generation, attempt, flush_from } => {
                self.on_handoff(now, &shard, generation, attempt, flush_from, out);
            }
            CoordinatorMessage::DropShard { shard, generation } => self.on_drop_shard(now, &shard, generation, out),
            CoordinatorMessage::StopHere => self.on_stop_here(now, out),
            CoordinatorMessage::ShardsStopped { request, shards } => self.on_shards_stopped(request, shards, out),
            CoordinatorMessage::StopShardsRefused { request } => self.on_stop_shards_refused(request, out),
            CoordinatorMessage::CurrentRegions { request, regions } => self.on_current_regions(request, regions, out),
            CoordinatorMessage::RegisterAck { .. }
            | CoordinatorMessage::RegisterRefused { .. }
            | CoordinatorMessage::RegionInquiry
            | CoordinatorMessage::RegionStoppedAck => {}
        }
    }

    pub(super) fn on_membership(&mut self, now: Instant, members: Arc<Members>, out: &mut Vec<Effect>) {
        let before = std::mem::replace(&mut self.members, members);
        let gone: BTreeSet<_> = before.members.keys().filter(|node| !self.members.contains(node)).cloned().collect();
        if !gone.is_empty() {
            self.on_nodes_gone(now, &gone, out);
        }
        self.look_for_hosts(now, out);
        let members = self.members.clone();
        self.agreement.on_members(now, &members, out);
        self.follow_agreement(now, out);
        let candidates = self.members.coordinator_candidates(&self.config.coordinator_role);
        let oldest = candidates.first().map(|node| {
            let up = self.members.members.get(node).is_some_and(|member| member.phase == Phase::Up);
            (node.clone(), up)
        });
        let lost = self.registration.coordinator.as_ref().is_some_and(|c| !self.members.contains(&c.node));
        if lost {
            self.registration.coordinator = None;
        }
        let changed = oldest != self.registration.oldest;
        self.registration.oldest = oldest;
        let own_up = |members: &Members| {
            members.members.get(&self.config.id.node).is_some_and(|own| own.phase != Phase::Joining)
        };
        let now_up = own_up(&self.members) && !own_up(&before);
        if (lost || changed || now_up) && !matches!(self.state, RegionState::Stopping | RegionState::Stopped) {
            if self.state == RegionState::Registered {
                self.state = RegionState::Unregistered;
            }
            self.try_now(now, out);
        }
        if self.members.is_preparing() {
            self.end_without_handoff(now, out);
        }
    }

    /// Looks whether any member, reachable or not, has the hosting role, once this node is a member itself.
    fn look_for_hosts(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if !self.members.contains(&self.config.id.node) {
            return;
        }
        let role = &self.config.fingerprint.role;
        let is_absent = !self.members.members.values().any(|member| member.has_role(role));
        let slots = &self.slots;
        let waiting =
            || slots.iter().filter(|(_, slot)| !slot.buffer.is_empty()).map(|(shard, _)| shard.clone()).collect();
        if self.host_watch.observe(now, is_absent, waiting) {
            out.push(Effect::Event(RegionEvent::HostFound));
        }
    }

    /// Repeats what a broken link may have lost: a control lane, a message; a data lane, a mark.
    pub(super) fn on_link_lost(&mut self, now: Instant, node: &UniqueAddress, lane: Lane, out: &mut Vec<Effect>) {
        if lane.kind() == LaneKind::Control {
            if self.registration.coordinator.as_ref().is_some_and(|c| c.node == *node) {
                self.register_with(node.clone(), out);
            }
            return;
        }
        let waits = |slot: &super::slot::Slot| slot.hosting().is_some_and(|hosting| hosting.handoff.is_some());
        for shard in self.shards_where(waits) {
            if (self.config.lane_of)(&shard) == lane {
                self.with_slot(&shard, |region, slot| {
                    if let Some(wait) = slot.hosting_mut().and_then(|hosting| hosting.handoff.as_mut()) {
                        wait.waiting_for.retain(|region| region.node != *node);
                    }
                    region.try_drain(now, &shard, slot, out);
                });
            }
        }
    }

    /// The journal knows a newer owner: the coordinator is asked where the shard lives now.
    pub(super) fn on_fenced(
        &mut self,
        now: Instant,
        shard: &ShardId,
        generation: greylag_core::Generation,
        stored: Option<greylag_core::Generation>,
        out: &mut Vec<Effect>,
    ) {
        self.with_slot(shard, |region, slot| {
            if slot.hosting().is_none_or(|hosting| hosting.generation != generation || hosting.ending.is_some()) {
                return;
            }
            if stored.is_none_or(|stored| stored <= generation) {
                return region.collected.asks.push(shard.clone());
            }
            // Under this number no owner can claim again. It may be the one that
            // the coordinator knows: a claim after numbering was lost keeps it through later epochs. So the
            // shard ends, and the coordinator allocates it anew.
            if let Some(stored) = stored.filter(|stored| stored.epoch() > region.registration.highest_epoch()) {
                region.registration.adopt_epoch(stored.epoch());
                out.push(Effect::Event(RegionEvent::GenerationBehind { stored, own: generation }));
            }
            region.kill(now, shard, slot, Ending::Dropped, out);
        });
    }
}

/// What a node answers a coordinator for a type of which no region runs here, nor a stopped one is
/// remembered. Source: sharding §2.2 (`NoRegion`).
pub fn answer_without_region(message: &FromCoordinator) -> Option<RegionMessage> {
    match (&message.message, &message.to) {
        (CoordinatorMessage::RegionInquiry, _) => Some(RegionMessage::NoRegion { epoch: message.epoch }),
        (CoordinatorMessage::RegionStoppedAck, _) => None,
        (_, Some(region)) => Some(RegionMessage::RegionStopped { region: region.clone() }),
        (_, None) => None,
    }
}
