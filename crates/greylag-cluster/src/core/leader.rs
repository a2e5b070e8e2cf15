//! The leader's actions, and how long conditions have blocked them.
//!
//! Leadership is a duty, not a lock: the leader acts only on a converged state (M17), and then any other leader would
//! do the same. Source: cluster M19 to M22.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::state::State;
use super::{Effect, LogLevel};
use crate::gossip::reachability::Status;
use crate::gossip::state::{Blockers, Gossip};
use crate::membership::member::{Member, MemberStatus};
use crate::membership::view::{MembershipView, Tombstone};
use crate::settings::ClusterSettings;

/// The rounds of a leader.
#[derive(Debug)]
pub(super) struct Leader {
    due_at: Instant,
    /// Consecutive leader ticks without convergence.
    blocked_ticks: u32,
}

/// What a leader changes in one step.
#[derive(Debug)]
pub(super) struct Actions {
    /// The state after the step.
    pub(super) gossip: Gossip,
    /// The members that became Exiting.
    pub(super) exiting: Vec<Member>,
    /// Whether a member was removed.
    pub(super) removed: bool,
}

impl Leader {
    pub(super) fn new(now: Instant) -> Self {
        Self { due_at: now, blocked_ticks: 0 }
    }

    /// Sets the time of the first round, as this node becomes a member.
    pub(super) fn start(&mut self, first_at: Instant) {
        self.due_at = first_at;
    }

    pub(super) fn next_deadline(&self) -> Instant {
        self.due_at
    }

    /// Whether a round is due; the next one is due after `interval`.
    pub(super) fn is_due(&mut self, now: Instant, interval: Duration) -> bool {
        let due = self.due_at <= now;
        if due {
            self.due_at = now + interval;
        }
        due
    }

    pub(super) fn blocked_ticks(&self) -> u32 {
        self.blocked_ticks
    }

    /// Notes a round that is not blocked: the leader may act, or this node does not lead, or takes no decisions after a
    /// pause.
    pub(super) fn on_free(&mut self) {
        self.blocked_ticks = 0;
    }

    /// Notes a round in which the leader cannot act, and logs the conditions now and then.
    pub(super) fn on_blocked(&mut self, blockers: &Blockers, out: &mut Vec<Effect>) {
        self.blocked_ticks += 1;
        let log = self.blocked_ticks == 20 || (self.blocked_ticks > 20 && self.blocked_ticks.is_multiple_of(60));
        if log {
            let text = format!(
                "the leader cannot act: accusations {:?}, not seen by {:?}",
                blockers.accusations, blockers.unseen
            );
            out.push(Effect::Log(LogLevel::Warn, text));
        }
    }

    /// The state with the members let in weakly that may come in although the leader is blocked; `None` if there are
    /// none. Source: cluster M21.
    pub(super) fn weakly_up(&self, state: &State, settings: &ClusterSettings) -> Option<Gossip> {
        let after = settings.weakly_up_after?;
        let blocked_for = settings.leader_actions_interval * self.blocked_ticks;
        if blocked_for < after || !has_enough_members(state, settings) || state.prepares_shutdown() {
            return None;
        }
        let mut gossip = Gossip::clone(state.gossip());
        let news = gossip.members.update(|member| {
            let waits = member.status == MemberStatus::Joining;
            let comes_in = waits && !state.gossip().accused_by_the_living(&member.address);
            comes_in.then(|| member.in_status(MemberStatus::WeaklyUp))
        });
        news.then_some(gossip)
    }
}

/// Moves each member one step on, from a converged state, in one change; `None` if no member moves. Source: cluster
/// M20.
pub(super) fn actions(state: &State, settings: &ClusterSettings, wall_ms: u64) -> Option<Actions> {
    let before = state.gossip();
    let mut gossip = Gossip::clone(before);
    let may_come_up = has_enough_members(state, settings) && !state.prepares_shutdown();
    // Cap the number: the largest one means "not Up yet", so at worst two members share the one before it.
    let mut next_number = highest_number(before).saturating_add(1).min(Member::NOT_UP - 1);
    let mut exiting = Vec::new();
    gossip.members.update(|member| match member.status {
        MemberStatus::Joining | MemberStatus::WeaklyUp if may_come_up => {
            let up_number = next_number;
            next_number = next_number.saturating_add(1).min(Member::NOT_UP - 1);
            Some(Member { up_number, ..member.in_status(MemberStatus::Up) })
        }
        MemberStatus::Leaving => {
            let member = member.in_status(MemberStatus::Exiting);
            exiting.push(member.clone());
            Some(member)
        }
        MemberStatus::PreparingForShutdown => Some(member.in_status(MemberStatus::ReadyForShutdown)),
        _ => None,
    });
    let removed = remove_gone(state, wall_ms, &mut gossip);
    prune_tombstones(settings.prune_gossip_tombstones_after, wall_ms, &mut gossip);
    (gossip != **before).then_some(Actions { gossip, exiting, removed })
}

/// Removes the members that are certainly gone. Returns true if there were any.
fn remove_gone(state: &State, wall_ms: u64, gossip: &mut Gossip) -> bool {
    let (before, exits) = (state.gossip(), state.exits());
    let gone = |member: &&Member| {
        let unreachable = before.reachability.aggregate(&member.address) != Status::Reachable;
        match member.status {
            MemberStatus::Down => member.dead || unreachable,
            MemberStatus::Exiting => {
                let accused = before.accused_by_the_living(&member.address);
                member.dead || accused || exits.contains_key(&member.address)
            }
            _ => false,
        }
    };
    let gone: Vec<Member> =
        before.members.values().filter(|m| m.address != *state.node()).filter(gone).cloned().collect();
    for member in &gone {
        gossip.members.remove(&member.address);
        gossip.seen.remove(&member.address);
        let clean = member.dead || exits.get(&member.address) == Some(&true);
        let host_id = member.host_id.clone();
        let tombstone = Tombstone { wall_ms, clean, dead: member.dead, host_id };
        gossip.tombstones.insert(member.address.clone(), tombstone);
    }
    let members = &gossip.members;
    gossip.reachability.retain(|address| members.contains_key(address));
    gossip.version.retain(|address| members.contains_key(address));
    !gone.is_empty()
}

fn prune_tombstones(after: Duration, wall_ms: u64, gossip: &mut Gossip) {
    let keep = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
    gossip.tombstones.retain(|_, tombstone| wall_ms.saturating_sub(tombstone.wall_ms) <= keep);
}

/// The members to tell at once that others are exiting: the two oldest members, of all and of each role that loses a
/// member, and the exiting ones, since one of the oldest takes over the singletons. Source: cluster M15.
pub(super) fn hosts_to_tell(exiting: &[Member], view: &MembershipView) -> BTreeSet<UniqueAddress> {
    let mut hosts: BTreeSet<UniqueAddress> = exiting.iter().map(|member| member.address.clone()).collect();
    if exiting.is_empty() {
        return hosts;
    }
    let roles: BTreeSet<&str> = exiting.iter().flat_map(|member| member.roles.iter().map(String::as_str)).collect();
    for role in std::iter::once(None).chain(roles.into_iter().map(Some)) {
        let serving = view.by_age(role).into_iter().filter(|member| member.status.is_settled());
        hosts.extend(serving.take(2).map(|member| member.address.clone()));
    }
    hosts.remove(&view.self_address);
    hosts
}

/// Source: cluster M22.
fn has_enough_members(state: &State, settings: &ClusterSettings) -> bool {
    let members = &state.gossip().members;
    let enough = |(role, least): (&String, &usize)| members.values().filter(|m| m.has_role(role)).count() >= *least;
    members.len() >= settings.min_number_of_members && settings.role_min_number_of_members.iter().all(enough)
}

fn highest_number(gossip: &Gossip) -> u32 {
    let numbers = gossip.members.values().map(|member| member.up_number);
    numbers.filter(|number| *number != Member::NOT_UP).max().unwrap_or(0)
}
