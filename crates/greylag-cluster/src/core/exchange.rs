//! The gossip exchange: paces gossip, chooses its targets, and merges or ignores gossip that arrives.
//!
//! Source: cluster M11 to M15.

use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use rand::RngExt;
use rand::seq::IteratorRandom;
use rand_chacha::ChaCha8Rng;

use super::Effect;
use super::state::State;
use crate::gossip::shared::Shared;
use crate::gossip::state::{Gossip, Merged};
use crate::gossip::stats::{GossipStats, IgnoredGossip};
use crate::gossip::version::{Relation, VectorVersion};
use crate::membership::event::ClusterEvent;
use crate::membership::member_subset::MemberSubset;
use crate::membership::message::Message;
use crate::settings::ClusterSettings;

/// Number of members that get urgent news directly; the others get it by ordinary gossip.
pub(super) const URGENT_FAN_OUT: usize = 20;

/// The pace and the counters of this node's gossip.
#[derive(Debug)]
pub(super) struct Exchange {
    gossip_at: Instant,
    /// Extra gossips, at a third and two thirds of the interval, while a change is urgent (cluster M12).
    speedups: [Option<Instant>; 2],
    stats: GossipStats,
    /// When the counters are next published.
    stats_at: Option<Instant>,
}

/// The outcome of merging a gossip that arrived.
#[derive(Debug)]
pub(super) struct Merging {
    /// The merged state.
    pub(super) gossip: Gossip,
    /// How this node's state related to the other one.
    relation: Relation,
    /// Whether the other state showed that this node had seen it.
    theirs_saw_us: bool,
}

impl Merging {
    /// Whether the sender gets the state in return. `marks_seen`: whether this node marks the merged state as seen.
    pub(super) fn wants_answer(&self, marks_seen: bool) -> bool {
        match self.relation {
            Relation::After | Relation::Concurrent => true,
            Relation::Same | Relation::Before => !self.theirs_saw_us && marks_seen,
        }
    }
}

impl Exchange {
    pub(super) fn new(now: Instant) -> Self {
        Self { gossip_at: now, speedups: [None; 2], stats: GossipStats::default(), stats_at: None }
    }

    /// Sets the time of the first gossip, as this node becomes a member.
    pub(super) fn start(&mut self, first_at: Instant) {
        self.gossip_at = first_at;
    }

    /// When the next gossip or publication is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.speedups.into_iter().chain([Some(self.gossip_at), self.stats_at]).flatten().min()
    }

    /// Counts of the gossip that reached this node, by outcome.
    pub(super) fn stats(&self) -> &GossipStats {
        &self.stats
    }

    /// The number of gossips that are due now.
    pub(super) fn on_tick(&mut self, now: Instant, interval: Duration, state: &State) -> u32 {
        let mut due = 0;
        if self.gossip_at <= now {
            self.gossip_at = now + interval;
            due += 1;
            if needs_fast_gossip(state) {
                self.speedups = [Some(now + interval / 3), Some(now + interval * 2 / 3)];
            }
        }
        for speedup in &mut self.speedups {
            if speedup.take_if(|at| *at <= now).is_some() && needs_fast_gossip(state) {
                due += 1;
            }
        }
        due
    }

    /// Publishes the counters every `interval`.
    pub(super) fn tick_stats(&mut self, now: Instant, interval: Option<Duration>, out: &mut Vec<Effect>) {
        let Some(interval) = interval else { return };
        let due = *self.stats_at.get_or_insert(now + interval);
        if due <= now {
            self.stats_at = Some(now + interval);
            out.push(Effect::Publish(ClusterEvent::GossipStats(self.stats.clone())));
        }
    }

    /// Source: cluster M12, M14.
    pub(super) fn check_invariants(&self) {
        let stats = &self.stats;
        let by_outcome = stats.same + stats.newer + stats.older + stats.merged;
        debug_assert_eq!(stats.received, by_outcome, "a state that was taken has one outcome");
        let extra = self.speedups.iter().flatten();
        debug_assert!(extra.clone().is_sorted(), "extra gossips come in their order");
        debug_assert!(extra.clone().all(|at| *at <= self.gossip_at), "extra gossips come before the next ordinary one");
    }

    /// Counts a gossip that is ignored.
    pub(super) fn on_ignored(&mut self, why: IgnoredGossip) {
        self.stats.ignore(why);
    }

    /// Compares the version that a member sent with this node's own, and counts it.
    pub(super) fn on_status(&mut self, version: &Shared<VectorVersion>, state: &State) -> Relation {
        self.stats.statuses += 1;
        state.gossip().relation(version)
    }

    /// Merges a state that arrived into this node's, and counts it. `None` if the result would lack this node.
    /// `merge` merges two states of which none is newer. Source: cluster M14.
    pub(super) fn merge(
        &mut self,
        theirs: Arc<Gossip>,
        state: &State,
        merge: impl FnOnce(&Gossip, &Gossip) -> Merged,
    ) -> Option<Merging> {
        let (ours, node) = (state.gossip(), state.node());
        let relation = ours.relation(&theirs.version);
        let theirs_saw_us = theirs.seen.contains(node);
        let mut theirs = Arc::unwrap_or_clone(theirs);
        theirs.share_with(ours);
        let repair = theirs.repair_beside(ours);
        let lost_a_version = repair == Some(true);
        self.stats.received += 1;
        self.stats.repaired += u64::from(repair.is_some());
        match relation {
            Relation::Same => self.stats.same += 1,
            Relation::Before => self.stats.newer += 1,
            Relation::After => self.stats.older += 1,
            Relation::Concurrent => self.stats.merged += 1,
        }
        let gossip = match relation {
            Relation::Same => {
                let mut ours = Gossip::clone(ours);
                ours.seen.union(&theirs.seen);
                ours
            }
            Relation::After => Gossip::clone(ours),
            Relation::Before if lost_a_version => {
                theirs.touch(node, false);
                theirs
            }
            Relation::Before => theirs,
            Relation::Concurrent => {
                let merged = merge(ours, &theirs);
                let mut gossip = merged.gossip;
                if merged.needs_version || (lost_a_version && !gossip.same_content(ours)) {
                    gossip.touch(node, false);
                }
                gossip
            }
        };
        // Refuse a result without this node: a repair, or a merge of states that a foreign bug broke, must not drop it.
        gossip.members.contains_key(node).then_some(Merging { gossip, relation, theirs_saw_us })
    }
}

/// Whether a member is Down, or fewer than half have seen the state. Source: cluster M12.
fn needs_fast_gossip(state: &State) -> bool {
    let members = &state.gossip().members;
    state.gossip().seen.len() < members.len() / 2 || members.summary().any_down
}

/// Source: cluster M11.
pub(super) fn draw_target(state: &State, settings: &ClusterSettings, rng: &mut ChaCha8Rng) -> Option<UniqueAddress> {
    let gossip = state.gossip();
    let marked = gossip.reachability.accused_by(state.node());
    let valid = MemberSubset::all_but(gossip.members.places(), marked.chain([state.node()]));
    let unseen = valid.without(&gossip.seen);
    let biased = rng.random_bool(different_view_probability(
        settings.gossip_different_view_probability,
        settings.reduce_gossip_different_view_probability,
        gossip.members.len(),
    ));
    let among = if biased && !unseen.is_empty() { &unseen } else { &valid };
    among.draw(rng).cloned()
}

/// Draws `count` members from the valid targets.
pub(super) fn draw_targets(state: &State, count: usize, rng: &mut ChaCha8Rng) -> Vec<UniqueAddress> {
    state.gossip().valid_targets(state.node()).sample(rng, count).into_iter().cloned().collect()
}

/// Draws the members that a Down node tells: valid targets, or unreachable members if it finds all so. Those may get
/// its state all the same, and then need not wait until their detectors miss this node.
pub(super) fn draw_targets_of_the_downed(state: &State, rng: &mut ChaCha8Rng) -> Vec<UniqueAddress> {
    if state.gossip().valid_targets(state.node()).next().is_some() {
        return draw_targets(state, 5, rng);
    }
    let others = state.gossip().members.keys().filter(|member| *member != state.node());
    others.sample(rng, 5).into_iter().cloned().collect()
}

/// The state's version as a message to a member. `suspect`: whether this node distrusts itself.
pub(super) fn status_to(target: &UniqueAddress, state: &State, suspect: bool) -> Effect {
    let message = Message::GossipStatus {
        to: target.clone(),
        version: state.gossip().version.clone(),
        seen_digest: state.gossip().seen.digest(),
        suspect,
    };
    Effect::send(target.clone(), message)
}

/// The whole state as a message to a member. `suspect`: whether this node distrusts itself.
pub(super) fn gossip_to(target: &UniqueAddress, state: &State, suspect: bool) -> Effect {
    let message = Message::GossipEnvelope { to: target.clone(), gossip: state.gossip().clone(), suspect };
    Effect::send(target.clone(), message)
}

/// Why a member ignores gossip to `to`, if so. A member's gossip counts unless this node itself finds the member
/// unreachable, whatever other members find. Source: cluster M13, M14, F12.
pub(super) fn reason_to_ignore(state: &State, from: &UniqueAddress, to: &UniqueAddress) -> Option<IgnoredGossip> {
    if to != state.node() {
        Some(IgnoredGossip::NotForUs)
    } else if !state.is_member(from) {
        Some(IgnoredGossip::FromNonMember)
    } else if !state.finds_reachable(from) {
        Some(IgnoredGossip::FromUnreachable)
    } else {
        None
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
