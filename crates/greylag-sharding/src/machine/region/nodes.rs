//! Inputs about other nodes: members that come and go, links that break, frames that are handed back, and whether this
//! node's own view can be trusted.
//!
//! Source: sharding §2.12.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use greylag_core::{DeadLetterReason, UniqueAddress};
use greylag_transport::{Lane, LaneKind};

use super::config::RegionState;
use super::machine::Region;
use super::place::{Content, Rank, ShardPlace, Waiting};
use super::protocol::{Effect, MessageInfo};
use super::report::RegionEvent;
use crate::ids::ShardId;
use crate::machine::membership::{MemberPhase, Members};
use crate::machine::message::Stamp;

impl Region {
    pub(super) fn on_membership(&mut self, now: Instant, members: Arc<Members>, out: &mut Vec<Effect>) {
        let before = std::mem::replace(&mut self.router.members, members);
        let gone: BTreeSet<_> =
            before.members.keys().filter(|node| !self.router.members.contains(node)).cloned().collect();
        if !gone.is_empty() {
            self.on_nodes_gone(now, &gone, out);
        }
        self.look_for_hosts(now, out);
        let members = self.router.members.clone();
        self.agreement.on_members(now, &members, out);
        self.follow_agreement(now, out);
        self.look_for_coordinator(now, &before, out);
        if self.router.members.is_preparing() {
            self.end_without_handoff(now, out);
        }
    }

    /// Registers again when another node may run the coordinator, or when this node may register from now on.
    fn look_for_coordinator(&mut self, now: Instant, before: &Members, out: &mut Vec<Effect>) {
        let candidates = self.router.members.coordinator_candidates(&self.router.config.coordinator_role);
        let oldest = candidates.first().map(|node| {
            let up = self.router.members.members.get(node).is_some_and(|member| member.phase == MemberPhase::Up);
            (node.clone(), up)
        });
        let is_other = self.router.registration.observe(oldest, &self.router.members);
        let own_up = |members: &Members| {
            members.members.get(&self.router.config.id.node).is_some_and(|own| own.phase != MemberPhase::Joining)
        };
        let now_up = own_up(&self.router.members) && !own_up(before);
        if (is_other || now_up) && !matches!(self.router.state, RegionState::Stopping | RegionState::Stopped) {
            if self.router.state == RegionState::Registered {
                self.router.state = RegionState::Unregistered;
            }
            self.try_now(now, out);
        }
    }

    /// Looks whether any member, reachable or not, has the hosting role, once this node is a member itself.
    fn look_for_hosts(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if !self.router.members.contains(&self.router.config.id.node) {
            return;
        }
        let role = &self.router.config.fingerprint.role;
        let is_absent = !self.router.members.members.values().any(|member| member.has_role(role));
        let places = &self.places;
        let waiting = || places.of(|place| !place.buffer.is_empty());
        if self.router.host_watch.observe(now, is_absent, waiting) {
            out.push(Effect::Event(RegionEvent::HostFound));
        }
    }

    /// Repeats what a broken link may have lost: a message on a control lane, a mark on a data lane.
    pub(super) fn on_link_lost(&mut self, now: Instant, node: &UniqueAddress, lane: Lane, out: &mut Vec<Effect>) {
        if lane.kind() == LaneKind::Control {
            if self.router.registration.coordinator().is_some_and(|coordinator| coordinator.node == *node) {
                self.register_with(node.clone(), out);
            }
            return;
        }
        for shard in self.places.of(|place| place.slot.handoff().is_some()) {
            if (self.router.config.lane_of)(&shard) == lane {
                self.with_place(&shard, |router, place| place.on_lane_lost(now, &shard, router, node, out));
            }
        }
    }

    /// Nodes were removed: their homes, marks, echoes and leftovers will not come.
    pub(super) fn on_nodes_gone(&mut self, now: Instant, gone: &BTreeSet<UniqueAddress>, out: &mut Vec<Effect>) {
        let mut regions = BTreeSet::new();
        for shard in self.places.of(|_| true) {
            let lost = self.with_place(&shard, |router, place| place.on_nodes_gone(now, &shard, router, gone, out));
            regions.extend(lost);
        }
        self.router.dead_ends.retain(|node| !gone.contains(node));
        out.extend(regions.into_iter().map(|region| Effect::Event(RegionEvent::ShardRegionDown { region })));
    }

    /// Leaves every route to a node to which the transport writes nothing any more.
    fn leave_dead_end(&mut self, now: Instant, node: &UniqueAddress, out: &mut Vec<Effect>) {
        if self.router.members.contains(node) {
            self.router.dead_ends.insert(node.clone());
        }
        let is_routed = |place: &ShardPlace| place.slot.remote().is_some_and(|remote| remote.region.node == *node);
        let is_planned = |place: &ShardPlace| place.slot.next().is_some_and(|next| next.region.node == *node);
        for shard in self.places.of(|place| is_routed(place) || is_planned(place)) {
            self.with_place(&shard, |router, place| {
                if is_routed(place) {
                    router.close(&shard, place, out);
                    place.slot.leave_remote(|_| None);
                }
                place.slot.unplan_if(|next| next.region.node == *node);
                router.ask_home(now, &shard, place);
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
            self.router.messages.on_submitted(1);
            let has_left = stamp.hops > 0 || stamp.origin != self.router.config.id;
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
            self.with_place(&shard, |router, place| {
                if matches!(router.state, RegionState::Stopped | RegionState::Stopping) {
                    return router.messages.drop_waiting(&shard, &waiting, DeadLetterReason::RegionStopped, out);
                }
                if stamp.leftover {
                    return router.messages.drop_waiting(&shard, &waiting, DeadLetterReason::HandOffStraggler, out);
                }
                router.route(now, &shard, place, waiting, out);
            });
        }
        for shard in self.places.of(|place| place.slot.hand_back() == Some(node)) {
            self.with_place(&shard, |router, place| {
                place.slot.forget_left();
                router.try_open(now, &shard, place, out);
            });
        }
    }

    pub(super) fn on_suspect(&mut self, out: &mut Vec<Effect>) {
        if std::mem::replace(&mut self.router.suspect, true) {
            return;
        }
        out.push(Effect::HoldShards);
        for shard in self.places.of(|place| place.slot.is_open()) {
            self.with_place(&shard, |router, place| router.close(&shard, place, out));
        }
    }

    pub(super) fn on_trusted(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if !std::mem::replace(&mut self.router.suspect, false) {
            return;
        }
        out.push(Effect::ReleaseShards);
        for shard in self.places.of(|_| true) {
            self.with_place(&shard, |router, place| router.try_open(now, &shard, place, out));
        }
    }
}
