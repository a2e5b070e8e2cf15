//! Inputs about other nodes: members that come and go, links that break, frames that are handed back, and whether this
//! node's own view can be trusted.
//!
//! Source: sharding §2.12.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use greylag_core::{DeadLetterReason, UniqueAddress};
use greylag_transport::{Lane, LaneKind};

use super::buffer::{Content, Rank, Waiting};
use super::place::Place;
use super::protocol::{Effect, MessageInfo};
use super::report::RegionEvent;
use super::slot::LeftRoute;
use super::{Region, RegionState};
use crate::ids::ShardId;
use crate::machine::membership::{Members, Phase};
use crate::machine::message::Stamp;

impl Region {
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
        self.look_for_coordinator(now, &before, out);
        if self.members.is_preparing() {
            self.end_without_handoff(now, out);
        }
    }

    /// Registers again when another node may run the coordinator, or when this node may register from now on.
    fn look_for_coordinator(&mut self, now: Instant, before: &Members, out: &mut Vec<Effect>) {
        let candidates = self.members.coordinator_candidates(&self.config.coordinator_role);
        let oldest = candidates.first().map(|node| {
            let up = self.members.members.get(node).is_some_and(|member| member.phase == Phase::Up);
            (node.clone(), up)
        });
        let is_other = self.registration.observe(oldest, &self.members);
        let own_up = |members: &Members| {
            members.members.get(&self.config.id.node).is_some_and(|own| own.phase != Phase::Joining)
        };
        let now_up = own_up(&self.members) && !own_up(before);
        if (is_other || now_up) && !matches!(self.state, RegionState::Stopping | RegionState::Stopped) {
            if self.state == RegionState::Registered {
                self.state = RegionState::Unregistered;
            }
            self.try_now(now, out);
        }
    }

    /// Looks whether any member, reachable or not, has the hosting role, once this node is a member itself.
    fn look_for_hosts(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if !self.members.contains(&self.config.id.node) {
            return;
        }
        let role = &self.config.fingerprint.role;
        let is_absent = !self.members.members.values().any(|member| member.has_role(role));
        let places = &self.places;
        let waiting = || places.of(|place| !place.buffer.is_empty());
        if self.host_watch.observe(now, is_absent, waiting) {
            out.push(Effect::Event(RegionEvent::HostFound));
        }
    }

    /// Repeats what a broken link may have lost: a message on a control lane, a mark on a data lane.
    pub(super) fn on_link_lost(&mut self, now: Instant, node: &UniqueAddress, lane: Lane, out: &mut Vec<Effect>) {
        if lane.kind() == LaneKind::Control {
            if self.registration.coordinator().is_some_and(|coordinator| coordinator.node == *node) {
                self.register_with(node.clone(), out);
            }
            return;
        }
        for shard in self.places.of(|place| place.slot.handoff().is_some()) {
            if (self.config.lane_of)(&shard) == lane {
                self.with_place(&shard, |region, place| {
                    if let Some(wait) = place.slot.handoff_mut() {
                        wait.waiting_for.retain(|region| region.node != *node);
                    }
                    region.try_drain(now, &shard, place, out);
                });
            }
        }
    }

    /// Nodes were removed: their homes, marks, echoes and leftovers will not come.
    pub(super) fn on_nodes_gone(&mut self, now: Instant, gone: &BTreeSet<UniqueAddress>, out: &mut Vec<Effect>) {
        let mut regions = BTreeSet::new();
        let hold = now + self.config.settings.flush_timeout;
        for shard in self.places.of(|_| true) {
            self.with_place(&shard, |region, place| {
                if let Some(owner) = place.slot.remote().map(|remote| remote.region.clone())
                    && gone.contains(&owner.node)
                {
                    region.close(&shard, place, out);
                    place.slot.leave_remote(|_| region.awaited_hand_back(&owner.node, hold));
                    regions.insert(owner);
                }
                place.slot.unplan_if(|next| gone.contains(&next.region.node));
                if let Some(path) = place.slot.old_path().filter(|path| gone.contains(&path.region.node)) {
                    let awaited = region.awaited_hand_back(&path.region.node, hold);
                    place.slot.replace_left(awaited);
                }
                place.marks.retain(|from, _| !gone.contains(&from.node));
                place.leftover_marks.retain(|(_, from)| !gone.contains(&from.node));
                region.on_hosting_nodes_gone(now, &shard, place, gone, out);
                region.ask_home(now, &shard, place);
                region.try_open(now, &shard, place, out);
            });
        }
        self.dead_ends.retain(|node| !gone.contains(node));
        out.extend(regions.into_iter().map(|region| Effect::Event(RegionEvent::ShardRegionDown { region })));
    }

    /// The state that makes a new route wait until `hold` for the frames that the transport still holds for a removed
    /// node. `None` if the transport handed its frames back before the removal: no more will come.
    fn awaited_hand_back(&self, node: &UniqueAddress, hold: Instant) -> Option<LeftRoute> {
        (!self.dead_ends.contains(node)).then(|| LeftRoute::HandBack(node.clone(), hold))
    }

    /// Leaves every route to a node to which the transport writes nothing any more.
    fn leave_dead_end(&mut self, now: Instant, node: &UniqueAddress, out: &mut Vec<Effect>) {
        if self.members.contains(node) {
            self.dead_ends.insert(node.clone());
        }
        let is_routed = |place: &Place| place.slot.remote().is_some_and(|remote| remote.region.node == *node);
        let is_planned = |place: &Place| place.slot.next().is_some_and(|next| next.region.node == *node);
        for shard in self.places.of(|place| is_routed(place) || is_planned(place)) {
            self.with_place(&shard, |region, place| {
                if is_routed(place) {
                    region.close(&shard, place, out);
                    place.slot.leave_remote(|_| None);
                }
                place.slot.unplan_if(|next| next.region.node == *node);
                region.ask_home(now, &shard, place);
            });
        }
    }

    /// The transport gives up frames for a node: they wait again, in front of later ones. A hand-back adds no hop,
    /// since no other region has seen the frame.
    pub(super) fn on_handed_back(
        &mut self,
        now: Instant,
        node: &UniqueAddress,
        frames: Vec<(ShardId, Stamp, MessageInfo)>,
        out: &mut Vec<Effect>,
    ) {
        self.leave_dead_end(now, node, out);
        for (shard, stamp, message) in frames {
            self.message_counters.counters.submitted += 1;
            let has_left = stamp.hops > 0 || stamp.origin != self.config.id;
            // A handed-back leftover loses that rank: the owner that it was kept for is gone.
            let waiting = Waiting {
                content: Content::Message(message),
                origin: stamp.origin,
                // A message that never left takes the generation of the route that it leaves by.
                first: has_left.then_some(stamp.first),
                stamped: None,
                hops: stamp.hops,
                rank: Rank::Back,
                kept_at: None,
            };
            self.with_place(&shard, |region, place| {
                if matches!(region.state, RegionState::Stopped | RegionState::Stopping) {
                    return region.drop_waiting(&shard, &waiting, DeadLetterReason::RegionStopped, out);
                }
                if stamp.leftover {
                    return region.drop_waiting(&shard, &waiting, DeadLetterReason::HandOffStraggler, out);
                }
                region.route(now, &shard, place, waiting, out);
            });
        }
        for shard in self.places.of(|place| place.slot.hand_back() == Some(node)) {
            self.with_place(&shard, |region, place| {
                place.slot.forget_left();
                region.try_open(now, &shard, place, out);
            });
        }
    }

    pub(super) fn on_suspect(&mut self, out: &mut Vec<Effect>) {
        if std::mem::replace(&mut self.suspect, true) {
            return;
        }
        out.push(Effect::HoldShards);
        for shard in self.places.of(|place| place.slot.is_open()) {
            self.with_place(&shard, |region, place| region.close(&shard, place, out));
        }
    }

    pub(super) fn on_trusted(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if !std::mem::replace(&mut self.suspect, false) {
            return;
        }
        out.push(Effect::ReleaseShards);
        for shard in self.places.of(|_| true) {
            self.with_place(&shard, |region, place| region.try_open(now, &shard, place, out));
        }
    }
}
