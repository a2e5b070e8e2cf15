//! The region and its coordinators: their messages are obeyed, ignored or answered as stale, and the region registers.
//!
//! Source: sharding §2.1, §2.2, §2.3, §2.12, §2.13.

use std::time::Instant;

use greylag_core::{DeadLetterReason, UniqueAddress};

use super::config::RegionState;
use super::machine::Region;
use super::place::ShardPlace;
use super::protocol::Effect;
use super::report::{Obstacle, RegionEvent};
use crate::fingerprint::Mismatch;
use crate::ids::ShardId;
use crate::machine::membership::MemberPhase;
use crate::machine::message::{
    AgreementOutcome, Claim, CoordinatorId, CoordinatorMessage, Epoch, FromCoordinator, RegionMessage,
};
use crate::machine::omissions::Clause;

impl Region {
    /// Sorts a message that claims a coordinator's authority: obeys it, ignores it, or answers that it is stale.
    pub(super) fn on_coordinator(
        &mut self,
        now: Instant,
        node: UniqueAddress,
        message: FromCoordinator,
        out: &mut Vec<Effect>,
    ) {
        let FromCoordinator { coordinator, epoch, to, message } = message;
        let stranger = coordinator.node != node || !self.router.members.contains(&node);
        if stranger || to.as_ref().is_some_and(|to| *to != self.router.config.id) {
            return;
        }
        if message == CoordinatorMessage::RegionInquiry {
            return self.on_inquiry(node, epoch, out);
        }
        if self.router.state == RegionState::Stopped {
            return self.answer_when_stopped(node, message, out);
        }
        let unfenced = self.router.omits(Clause::EpochFence);
        if epoch < self.router.registration.highest_epoch() && !unfenced {
            let region = self.router.config.id.clone();
            let stale = RegionMessage::StaleEpoch { region, epoch: self.router.registration.highest_epoch() };
            out.push(Effect::SendCoordinator { to: node, message: stale });
            return;
        }
        match message {
            CoordinatorMessage::RegisterAck { .. } if self.accept_coordinator(&coordinator, epoch) => {
                self.on_register_ack(now, node, epoch, out);
            }
            CoordinatorMessage::RegisterRefused { mismatch, .. } if self.accept_coordinator(&coordinator, epoch) => {
                self.on_refused(now, node, mismatch, out);
            }
            CoordinatorMessage::RegisterAck { .. } | CoordinatorMessage::RegisterRefused { .. } => {}
            order if self.router.registration.coordinator() == Some(&coordinator) || unfenced => {
                self.on_order(now, order, out);
            }
            // A newer coordinator's order before its ack means that the ack was lost, so register again. Not with a
            // node that is no candidate in this node's view: its ack would not be believed, and the table that follows
            // every registration would be answered by the next registration, without an end.
            _ if epoch > self.router.registration.highest_epoch() && self.may_coordinate(&node) => {
                self.register_with(node, out);
            }
            _ => {}
        }
    }

    /// A coordinator collects the state of all nodes: answered whatever its epoch.
    fn on_inquiry(&mut self, node: UniqueAddress, epoch: Epoch, out: &mut Vec<Effect>) {
        if self.router.state == RegionState::Stopped {
            let region = self.router.config.id.clone();
            let gone = RegionMessage::RegionStopped { region };
            out.push(Effect::SendCoordinator { to: node.clone(), message: gone });
            out.push(Effect::SendCoordinator { to: node, message: RegionMessage::NoRegion { epoch } });
            return;
        }
        if self.router.config.proxy {
            out.push(Effect::SendCoordinator { to: node.clone(), message: RegionMessage::NoRegion { epoch } });
        }
        self.register_with(node, out);
    }

    /// Repeats to a coordinator that this region is gone, unless the coordinator has acked that.
    fn answer_when_stopped(&mut self, node: UniqueAddress, message: CoordinatorMessage, out: &mut Vec<Effect>) {
        if message == CoordinatorMessage::RegionStoppedAck {
            self.router.registration.end();
            return;
        }
        let region = self.router.config.id.clone();
        out.push(Effect::SendCoordinator { to: node, message: RegionMessage::RegionStopped { region } });
    }

    fn on_order(&mut self, now: Instant, order: CoordinatorMessage, out: &mut Vec<Effect>) {
        match order {
            CoordinatorMessage::ShardHomes(homes) | CoordinatorMessage::HostShard(homes) => {
                self.agreement.on_home();
                for home in homes {
                    let shard = home.shard.clone();
                    self.with_place(&shard, |router, place| place.on_home(now, &shard, router, home, out));
                }
            }
            CoordinatorMessage::BeginHandOff { shard, generation, attempt, owner } => {
                // In a cluster that prepares to end no shard moves.
                if !self.router.members.is_preparing() {
                    self.with_place(&shard, |router, place| {
                        place.on_begin_handoff(now, &shard, router, (generation, attempt), owner, out);
                    });
                }
            }
            CoordinatorMessage::HandOff { shard, generation, attempt, flush_from } => {
                self.with_place(&shard, |router, place| {
                    place.on_handoff(now, &shard, router, (generation, attempt), &flush_from, out);
                });
            }
            CoordinatorMessage::DropShard { shard, generation } => {
                self.with_place(&shard, |router, place| place.on_drop_shard(now, &shard, router, generation, out));
            }
            CoordinatorMessage::StopHere => self.on_stop_here(now, out),
            CoordinatorMessage::ShardsStopped { request, shards } => {
                self.requests.on_shards_stopped(request, shards, out);
            }
            CoordinatorMessage::StopShardsRefused { request } => self.requests.on_stop_shards_refused(request, out),
            CoordinatorMessage::CurrentRegions { request, regions } => {
                self.requests.on_current_regions(request, regions, out);
            }
            CoordinatorMessage::RegisterAck { .. }
            | CoordinatorMessage::RegisterRefused { .. }
            | CoordinatorMessage::RegionInquiry
            | CoordinatorMessage::RegionStoppedAck => {}
        }
    }

    pub(super) fn on_registration_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.router.registration.is_due(now) {
            self.attempt(now, out);
        }
    }

    /// Tries to register now, with the backoff reset.
    pub(super) fn try_now(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.router.registration.reset();
        self.attempt(now, out);
    }

    /// Repeats the request that fits the region's state: to register, to be drained, or to be taken for gone.
    fn attempt(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let state = self.router.state;
        self.router.registration.schedule(now, state, self.router.config.settings.retry_interval);
        let candidates = self.router.members.coordinator_candidates(&self.router.config.coordinator_role);
        let region = self.router.config.id.clone();
        match state {
            RegionState::Stopping => {}
            RegionState::Stopped => send_all(candidates, RegionMessage::RegionStopped { region }, out),
            _ => {
                if self.router.registration.count_try() {
                    self.warn_if_unregistered(&candidates, out);
                }
                for node in &candidates {
                    self.register_with(node.clone(), out);
                }
                if state == RegionState::ShuttingDown && !self.router.config.proxy {
                    send_all(candidates, RegionMessage::GracefulShutdownReq { region }, out);
                }
            }
        }
    }

    /// Reports messages that wait although registration has been tried often.
    fn warn_if_unregistered(&self, candidates: &[UniqueAddress], out: &mut Vec<Effect>) {
        let buffered = self.router.messages.counters().buffered;
        if buffered > 0 && self.router.state == RegionState::Unregistered {
            let (candidates, obstacle) = (candidates.to_vec(), self.obstacle(candidates));
            let buffered = buffered as usize;
            out.push(Effect::Event(RegionEvent::StillUnregistered { buffered, candidates, obstacle }));
        }
    }

    fn obstacle(&self, candidates: &[UniqueAddress]) -> Obstacle {
        let members = &self.router.members;
        let is_reachable = |node: &UniqueAddress| members.members.get(node).is_some_and(|member| member.reachable);
        match candidates {
            _ if !members.contains(&self.router.config.id.node) => Obstacle::NotJoined,
            [] => Obstacle::NoCandidate,
            nodes if !nodes.iter().any(is_reachable) => Obstacle::Unreachable,
            _ => Obstacle::Silent,
        }
    }

    pub(super) fn register_with(&mut self, to: UniqueAddress, out: &mut Vec<Effect>) {
        // Coordinators ignore members that are not `Up` yet, so do not register before.
        let up = self
            .router
            .members
            .members
            .get(&self.router.config.id.node)
            .is_some_and(|own| own.phase != MemberPhase::Joining);
        if !up {
            return;
        }
        let claims = self.claims();
        let register = self.router.registration.next_register(&self.router.config, claims);
        out.push(Effect::SendCoordinator { to, message: RegionMessage::Register(register) });
    }

    pub(super) fn claims(&self) -> Vec<Claim> {
        let claim = |(shard, place): (&ShardId, &ShardPlace)| {
            let (generation, state) = (place.slot.hosted()?, place.slot.claim()?);
            Some(Claim { shard: shard.clone(), generation, state })
        };
        self.places.hosted().filter_map(claim).collect()
    }

    /// Whether a coordinator may run at the node, as far as this node knows the members.
    pub(super) fn may_coordinate(&self, node: &UniqueAddress) -> bool {
        self.router.members.coordinator_candidates(&self.router.config.coordinator_role).contains(node)
    }

    /// Takes `coordinator` as the coordinator to obey, if one may run at its node and no other holds the same epoch.
    fn accept_coordinator(&mut self, coordinator: &CoordinatorId, epoch: Epoch) -> bool {
        self.may_coordinate(&coordinator.node) && self.router.registration.accept(coordinator, epoch)
    }

    fn on_register_ack(&mut self, now: Instant, node: UniqueAddress, epoch: Epoch, out: &mut Vec<Effect>) {
        // The coordinator may not know yet that this side was refused in favour of another side.
        let refused = matches!(self.agreement.outcome(), AgreementOutcome::Refused(_));
        let begins = matches!(self.router.state, RegionState::Unregistered | RegionState::Refused) && !refused;
        if begins {
            self.router.state = RegionState::Registered;
            self.router.registration.on_taken();
        }
        // After a handover the new coordinator asks the regions itself: they change over without being unregistered.
        let is_other = self.router.registration.is_unreported();
        if begins || (is_other && self.router.state == RegionState::Registered) {
            self.router.registration.report();
            out.push(Effect::Event(RegionEvent::Registered { coordinator: node.clone(), epoch }));
        }
        // No acked `Register` can contain changes made after the last one was sent.
        if self.router.registration.is_out_of_date() {
            self.register_with(node, out);
        }
        self.requests.repeat(now, &self.router, out);
        for shard in self.places.of(ShardPlace::wants_home) {
            self.with_place(&shard, |router, place| {
                place.asking.at = None;
                router.ask_home(now, &shard, place);
            });
        }
    }

    fn on_refused(&mut self, now: Instant, node: UniqueAddress, mismatch: Mismatch, out: &mut Vec<Effect>) {
        if self.router.registration.is_out_of_date() {
            self.register_with(node, out);
        }
        self.refuse_sends(now, mismatch, out);
    }

    /// Fails all waiting and later sends: nodes disagree about the type.
    fn refuse_sends(&mut self, now: Instant, mismatch: Mismatch, out: &mut Vec<Effect>) {
        if !matches!(self.router.state, RegionState::Unregistered | RegionState::Registered) {
            return;
        }
        self.router.state = RegionState::Refused;
        self.router.registration.on_refused(now, mismatch.clone());
        out.push(Effect::Event(RegionEvent::Refused(mismatch)));
        for shard in self.places.of(|_| true) {
            self.with_place(&shard, |router, place| {
                router.close(&shard, place, out);
                place.slot.leave_remote(|_| None);
                place.slot.unplan_if(|_| true);
                if place.slot.old_path().is_some() {
                    place.slot.forget_left();
                }
                router.drop_buffer(&shard, place, DeadLetterReason::Refused, out);
            });
        }
    }

    /// Acts on the outcome of the members' comparison of roles.
    pub(super) fn follow_agreement(&mut self, now: Instant, out: &mut Vec<Effect>) {
        match self.agreement.outcome().clone() {
            AgreementOutcome::Refused(mismatch) => {
                if self.router.registration.on_conflict(&mismatch) {
                    self.refuse_sends(now, mismatch, out);
                }
            }
            AgreementOutcome::Agreed => {
                if self.router.registration.on_agreed() && self.router.state == RegionState::Refused {
                    self.router.state = RegionState::Unregistered;
                    self.try_now(now, out);
                }
            }
            AgreementOutcome::Asking => {}
        }
    }
}

fn send_all(nodes: Vec<UniqueAddress>, message: RegionMessage, out: &mut Vec<Effect>) {
    out.extend(nodes.into_iter().map(|to| Effect::SendCoordinator { to, message: message.clone() }));
}

/// The answer to a coordinator on a node where no region of the type runs and no stopped region is remembered. Source:
/// sharding §2.2 (`NoRegion`).
pub fn answer_without_region(message: &FromCoordinator) -> Option<RegionMessage> {
    match (&message.message, &message.to) {
        (CoordinatorMessage::RegionInquiry, _) => Some(RegionMessage::NoRegion { epoch: message.epoch }),
        (CoordinatorMessage::RegionStoppedAck, _) => None,
        (_, Some(region)) => Some(RegionMessage::RegionStopped { region: region.clone() }),
        (_, None) => None,
    }
}
