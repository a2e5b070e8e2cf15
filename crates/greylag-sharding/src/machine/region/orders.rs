//! Messages of coordinators: believed, obeyed, ignored, or answered as stale.
//!
//! Source: sharding §2.1, §2.2, §2.13.

use std::time::Instant;

use greylag_core::UniqueAddress;

use super::protocol::Effect;
use super::{Region, RegionState, Sabotage};
use crate::machine::message::{CoordinatorMessage, Epoch, FromCoordinator, RegionMessage};

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
        let unfenced = self.is_without(Sabotage::EpochFence);
        if epoch < self.registration.highest_epoch() && !unfenced {
            let region = self.config.id.clone();
            let stale = RegionMessage::StaleEpoch { region, epoch: self.registration.highest_epoch() };
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
            order if self.registration.coordinator() == Some(&coordinator) || unfenced => {
                self.on_order(now, order, out);
            }
            // A newer coordinator's order before its ack means that the ack was lost, so register again. Not with a
            // node that is no candidate in this node's view: its ack would not be believed, and the table that follows
            // every registration would be answered by the next registration, without an end.
            _ if epoch > self.registration.highest_epoch() && self.may_coordinate(&node) => {
                self.register_with(node, out);
            }
            _ => {}
        }
    }

    /// A coordinator collects the state of all nodes: answered whatever its epoch.
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

    /// Repeats to a coordinator that this region is gone, unless the coordinator has acked that.
    fn answer_when_stopped(&mut self, node: UniqueAddress, message: CoordinatorMessage, out: &mut Vec<Effect>) {
        if message == CoordinatorMessage::RegionStoppedAck {
            self.registration.end();
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
                    self.with_place(&shard, |region, place| region.on_home(now, &shard, place, home, out));
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
