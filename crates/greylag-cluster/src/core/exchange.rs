//! The gossip exchange: chooses targets, sends gossip, and merges or ignores gossip that arrives.
//!
//! Source: cluster M11 to M15.

use std::sync::Arc;
use std::time::Instant;

use greylag_core::{DeadLetterReason, UniqueAddress};
use rand::RngExt;
use rand::seq::IteratorRandom;

use super::{ClusterCore, Effect, Life};
use crate::counter_bounds::CounterBounds;
use crate::gossip::Gossip;
use crate::member_subset::MemberSubset;
use crate::message::Message;
use crate::reachability::Status;
use crate::sabotage::Sabotage;
use crate::shared::Shared;
use crate::stats::IgnoredGossip;
use crate::version::{Relation, VectorVersion};

/// Number of members that get urgent news directly; the others get it by ordinary gossip.
const URGENT_FAN_OUT: usize = 20;

impl ClusterCore {
    pub(super) fn tick_gossip(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.rounds.gossip_at <= now {
            let interval = self.settings.gossip_interval;
            self.rounds.gossip_at = now + interval;
            self.gossip_to_one(out);
            if self.needs_fast_gossip() {
                self.rounds.speedups = [Some(now + interval / 3), Some(now + interval * 2 / 3)];
            }
        }
        for index in 0..self.rounds.speedups.len() {
            if self.rounds.speedups[index].is_some_and(|at| at <= now) {
                self.rounds.speedups[index] = None;
                if self.needs_fast_gossip() {
                    self.gossip_to_one(out);
                }
            }
        }
    }

    /// Whether a member is Down, or fewer than half have seen the state. Source: cluster M12.
    fn needs_fast_gossip(&self) -> bool {
        let members = &self.gossip.members;
        self.gossip.seen.len() < members.len() / 2 || members.summary().any_down
    }

    pub(super) fn gossip_to_one(&mut self, out: &mut Vec<Effect>) {
        if let Some(target) = self.draw_target() {
            self.gossip_to(&target, out);
        }
    }

    /// Source: cluster M11.
    fn draw_target(&mut self) -> Option<UniqueAddress> {
        let gossip = &self.gossip;
        let marked = gossip.reachability.accused_by(&self.node);
        let valid = MemberSubset::all_but(gossip.members.places(), marked.chain([&self.node]));
        let unseen = valid.without(&gossip.seen);
        let biased = self.rng.random_bool(different_view_probability(
            self.settings.gossip_different_view_probability,
            self.settings.reduce_gossip_different_view_probability,
            gossip.members.len(),
        ));
        let among = if biased && !unseen.is_empty() { &unseen } else { &valid };
        among.draw(&mut self.rng).cloned()
    }

    /// Sends the state's version to a member that has seen the state, else the state itself.
    fn gossip_to(&self, target: &UniqueAddress, out: &mut Vec<Effect>) {
        if self.gossip.seen.contains(target) {
            self.send_status(target, out);
        } else {
            self.send_gossip(target, out);
        }
    }

    fn send_status(&self, target: &UniqueAddress, out: &mut Vec<Effect>) {
        let message = Message::GossipStatus {
            to: target.clone(),
            version: self.gossip.version.clone(),
            seen_digest: self.gossip.seen.digest(),
            suspect: self.trust.is_suspect(),
        };
        self.send(target.clone(), message, out);
    }

    pub(super) fn send_gossip(&self, target: &UniqueAddress, out: &mut Vec<Effect>) {
        let gossip = self.gossip.clone();
        let message = Message::GossipEnvelope { to: target.clone(), gossip, suspect: self.trust.is_suspect() };
        self.send(target.clone(), message, out);
    }

    /// Sends the whole state to `count` members drawn from the valid ones.
    pub(super) fn gossip_to_random(&mut self, count: usize, out: &mut Vec<Effect>) {
        let gossip = self.gossip.clone();
        for target in gossip.valid_targets(&self.node).sample(&mut self.rng, count) {
            self.send_gossip(target, out);
        }
    }

    /// Sends the whole state of this Down node to some members; to unreachable ones if it finds all so. Those may get
    /// it all the same, and then need not wait until their detectors miss this node.
    pub(super) fn gossip_down_state(&mut self, out: &mut Vec<Effect>) {
        if self.gossip.valid_targets(&self.node).next().is_some() {
            return self.gossip_to_random(5, out);
        }
        let gossip = self.gossip.clone();
        for target in gossip.members.keys().filter(|member| **member != self.node).sample(&mut self.rng, 5) {
            self.send_gossip(target, out);
        }
    }

    /// Sends urgent news to all members of a small cluster, and to many of a big one.
    pub(super) fn gossip_to_many(&mut self, out: &mut Vec<Effect>) {
        self.gossip_to_random(URGENT_FAN_OUT, out);
    }

    /// Whether a proven death awaits its removal.
    fn is_urgent(&self) -> bool {
        self.gossip.members.summary().any_dead
    }

    /// While a proven death awaits its removal: as leader acts at once, else sends news to the leader at once; the
    /// header of [`crate::core`] says why this is safe.
    pub(super) fn act_if_urgent(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if !self.is_urgent() || !matches!(self.life, Life::Member) {
            return;
        }
        match self.view.leader.clone() {
            Some(leader) if leader == self.node => self.act_as_leader(now, out),
            Some(leader) if self.gossip.reachability.status(&self.node, &leader) == Status::Reachable => {
                self.send_gossip(&leader, out);
            }
            _ => {}
        }
    }

    /// Source: cluster M13.
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn on_gossip_status(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        to: &UniqueAddress,
        version: &Shared<VectorVersion>,
        seen_digest: u64,
        suspect: bool,
        out: &mut Vec<Effect>,
    ) {
        let beyond = (!self.counter_bounds(now).covers_version(version)).then_some(IgnoredGossip::BeyondReach);
        if let Some(why) = self.reason_to_ignore(from, to).or(beyond) {
            return self.ignore(from, why, out);
        }
        self.stats.statuses += 1;
        let relation = self.gossip.relation(version);
        if relation == Relation::Same {
            self.note_gossip_heard(now);
            self.note_exchange(now, from, version.count(&self.node), suspect, out);
        }
        if self.gossip.seen.digest() != seen_digest {
            return self.send_gossip(from, out);
        }
        match relation {
            Relation::Same => {}
            Relation::Before => self.send_status(from, out),
            Relation::After | Relation::Concurrent => self.send_gossip(from, out),
        }
    }

    /// Why gossip is ignored, if so. A member's gossip counts unless this node itself finds the member unreachable,
    /// whatever other members find. Source: cluster M13, M14, F12.
    fn reason_to_ignore(&self, from: &UniqueAddress, to: &UniqueAddress) -> Option<IgnoredGossip> {
        if !matches!(self.life, Life::Member) {
            Some(IgnoredGossip::NotJoined)
        } else if *to != self.node {
            Some(IgnoredGossip::NotForUs)
        } else if !self.gossip.members.contains_key(from) {
            Some(IgnoredGossip::FromNonMember)
        } else if self.gossip.reachability.status(&self.node, from) != Status::Reachable {
            Some(IgnoredGossip::FromUnreachable)
        } else {
            None
        }
    }

    /// Source: cluster M14.
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn on_gossip(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        to: &UniqueAddress,
        theirs: Arc<Gossip>,
        suspect: bool,
        received_at: Instant,
        out: &mut Vec<Effect>,
    ) {
        if matches!(self.life, Life::Member) && theirs.cluster_id != self.gossip.cluster_id {
            self.stats.ignore(IgnoredGossip::ForeignCluster);
            let size = u32::try_from(theirs.members.len()).ok();
            return self.meet_foreign(now, theirs.cluster_id, size, out);
        }
        let too_old = now.saturating_duration_since(received_at) > self.settings.gossip_time_to_live;
        let without_us = !theirs.members.contains_key(&self.node);
        let ignored = self
            .reason_to_ignore(from, to)
            .or((!self.counter_bounds(now).covers(&theirs)).then_some(IgnoredGossip::BeyondReach))
            .or(too_old.then_some(IgnoredGossip::TooOld))
            .or(without_us.then_some(IgnoredGossip::WithoutUs));
        if let Some(why) = ignored {
            return self.ignore(from, why, out);
        }
        let heard = theirs.version.count(&self.node);
        self.take_gossip(now, from, theirs, out);
        self.note_gossip_heard(now);
        self.note_exchange(now, from, heard, suspect, out);
        self.act_if_urgent_after(now, from, out);
    }

    /// The greatest values that honest counters can have by now.
    pub(super) fn counter_bounds(&self, now: Instant) -> CounterBounds {
        CounterBounds::at(self.wall_ms(now))
    }

    pub(super) fn ignore(&mut self, from: &UniqueAddress, why: IgnoredGossip, out: &mut Vec<Effect>) {
        self.stats.ignore(why);
        let reason = match why {
            IgnoredGossip::FromNonMember => DeadLetterReason::NotAMember,
            IgnoredGossip::BeyondReach => DeadLetterReason::BeyondReach,
            _ => return,
        };
        out.push(Effect::Dropped { from: from.clone(), reason });
    }

    fn take_gossip(&mut self, now: Instant, from: &UniqueAddress, theirs: Arc<Gossip>, out: &mut Vec<Effect>) {
        let relation = self.gossip.relation(&theirs.version);
        let theirs_saw_us = theirs.seen.contains(&self.node);
        let mut theirs = Arc::unwrap_or_clone(theirs);
        theirs.share_with(&self.gossip);
        let repair = theirs.repair_beside(&self.gossip);
        let lost_a_version = repair == Some(true);
        self.stats.received += 1;
        self.stats.repaired += u64::from(repair.is_some());
        match relation {
            Relation::Same => self.stats.same += 1,
            Relation::Before => self.stats.newer += 1,
            Relation::After => self.stats.older += 1,
            Relation::Concurrent => self.stats.merged += 1,
        }
        let mut result = match relation {
            Relation::Same => {
                let mut ours = Gossip::clone(&self.gossip);
                ours.seen.union(&theirs.seen);
                ours
            }
            Relation::After => Gossip::clone(&self.gossip),
            Relation::Before if lost_a_version => {
                theirs.touch(&self.node, false);
                theirs
            }
            Relation::Before => theirs,
            Relation::Concurrent => {
                let merged = if self.omits(Sabotage::Tombstones) {
                    self.gossip.merged_without_tombstones(&theirs)
                } else {
                    self.gossip.merged(&theirs)
                };
                let mut gossip = merged.gossip;
                if merged.needs_version || (lost_a_version && !gossip.same_content(&self.gossip)) {
                    gossip.touch(&self.node, false);
                }
                gossip
            }
        };
        // Refuse a result without this node: a repair, or a merge of states that a foreign bug broke, must not drop it.
        if !result.members.contains_key(&self.node) {
            return;
        }
        let marks_seen = self.marks_seen(&result);
        if marks_seen {
            result.seen.insert(self.node.clone());
        }
        if result != *self.gossip {
            self.become_state(now, result, out);
        }
        let answer = match relation {
            Relation::After | Relation::Concurrent => true,
            Relation::Same | Relation::Before => !theirs_saw_us && marks_seen,
        };
        if answer && matches!(self.life, Life::Member) {
            self.send_gossip(from, out);
        }
        self.follow_preparation(now, out);
    }

    /// Calls [`Self::act_if_urgent`], unless the leader has just got this state as an answer.
    fn act_if_urgent_after(&mut self, now: Instant, from: &UniqueAddress, out: &mut Vec<Effect>) {
        let leads = self.view.leader.as_ref() == Some(&self.node);
        let leader_knows = self.view.leader.as_ref().is_none_or(|leader| self.gossip.seen.contains(leader));
        if leads || (self.view.leader.as_ref() != Some(from) && !leader_knows) {
            self.act_if_urgent(now, out);
        }
    }
}

/// The probability that gossip goes to a member with another view: `p` up to `reduce` members, falling linearly to a
/// tenth of `p` at three times that size. Source: cluster M11.
fn different_view_probability(p: f64, reduce: usize, members: usize) -> f64 {
    let (low, high) = (reduce as f64, reduce as f64 * 3.0);
    let size = members as f64;
    if size <= low {
        p
    } else if size >= high {
        p / 10.0
    } else {
        p - (p - p / 10.0) * (size - low) / (high - low)
    }
}

#[cfg(test)]
mod tests;
