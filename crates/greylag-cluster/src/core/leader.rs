//! The leader's actions, and the conditions that block them.
//!
//! Leadership is a duty, not a lock: the leader acts only on a converged state (M17), and then any other leader would
//! do the same. Source: cluster M19 to M22.

use std::collections::BTreeSet;
use std::time::Instant;

use greylag_core::UniqueAddress;

use super::{ClusterCore, Effect, LogLevel};
use crate::gossip::{Blockers, Gossip};
use crate::member::{Member, MemberStatus};
use crate::reachability::Status;
use crate::sabotage::Sabotage;
use crate::view::Tombstone;

impl ClusterCore {
    pub(super) fn on_leader_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.check_isolation(now, out);
        if self.downed.is_some() {
            return self.count_down(out);
        }
        if self.view.leader.as_ref() != Some(&self.node) || self.trust.holds(now) {
            self.blocked_ticks = 0;
            return;
        }
        self.ask_shared_addresses(out);
        match self.blockers() {
            None => {
                self.blocked_ticks = 0;
                self.leader_actions(now, out);
            }
            Some(blockers) => {
                self.blocked_ticks += 1;
                let log =
                    self.blocked_ticks == 20 || (self.blocked_ticks > 20 && self.blocked_ticks.is_multiple_of(60));
                if log {
                    let text = format!(
                        "the leader cannot act: accusations {:?}, not seen by {:?}",
                        blockers.accusations, blockers.unseen
                    );
                    out.push(Effect::Log(LogLevel::Warn, text));
                }
                self.let_in_weakly(now, out);
            }
        }
    }

    /// The conditions that keep the leader from acting; `None` if it may act.
    fn blockers(&self) -> Option<Blockers> {
        if self.omits(Sabotage::Convergence) { None } else { self.gossip.blockers(&self.node, &self.exits) }
    }

    /// Acts outside a tick, under the same conditions as in a tick.
    pub(super) fn act_as_leader(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let leads = self.view.leader.as_ref() == Some(&self.node) && self.downed.is_none();
        if leads && !self.trust.holds(now) && self.blockers().is_none() {
            self.leader_actions(now, out);
        }
    }

    /// Moves each member one step on, from a converged state, in one change. Source: cluster M20.
    pub(super) fn leader_actions(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let before = self.gossip.clone();
        let mut gossip = Gossip::clone(&before);
        let may_come_up = self.has_enough_members() && !self.prepares_shutdown();
        // Cap the number: the largest one means "not Up yet", so at worst two members share the one before it.
        let mut next_number = highest_number(&before).saturating_add(1).min(Member::NOT_UP - 1);
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
        let removed = self.remove_gone(now, &before, &mut gossip);
        self.prune_tombstones(now, &mut gossip);
        if gossip == *before {
            return;
        }
        self.change(now, gossip, out);
        self.tell_hosts(&exiting, out);
        if removed {
            self.gossip_to_many(out);
        }
    }

    /// Removes the members that are certainly gone. Returns true if there were any.
    fn remove_gone(&self, now: Instant, before: &Gossip, gossip: &mut Gossip) -> bool {
        let gone = |member: &&Member| {
            let unreachable = before.reachability.aggregate(&member.address) != Status::Reachable;
            match member.status {
                MemberStatus::Down => member.dead || unreachable,
                MemberStatus::Exiting => {
                    let accused = before.accused_by_the_living(&member.address);
                    member.dead || accused || self.exits.contains_key(&member.address)
                }
                _ => false,
            }
        };
        let gone: Vec<Member> =
            before.members.values().filter(|m| m.address != self.node).filter(gone).cloned().collect();
        for member in &gone {
            gossip.members.remove(&member.address);
            gossip.seen.remove(&member.address);
            let clean = member.dead || self.exits.get(&member.address) == Some(&true);
            let host_id = member.host_id.clone();
            let tombstone = Tombstone { wall_ms: self.wall_ms(now), clean, dead: member.dead, host_id };
            gossip.tombstones.insert(member.address.clone(), tombstone);
        }
        let members = &gossip.members;
        gossip.reachability.retain(|address| members.contains_key(address));
        gossip.version.retain(|address| members.contains_key(address));
        !gone.is_empty()
    }

    fn prune_tombstones(&self, now: Instant, gossip: &mut Gossip) {
        let keep = u64::try_from(self.settings.prune_gossip_tombstones_after.as_millis()).unwrap_or(u64::MAX);
        let wall_ms = self.wall_ms(now);
        gossip.tombstones.retain(|_, tombstone| wall_ms.saturating_sub(tombstone.wall_ms) <= keep);
    }

    /// Gossips at once to the two oldest members, of all and of each role that loses a member, and to the exiting ones:
    /// one of the oldest takes over the singletons. Source: cluster M15.
    fn tell_hosts(&mut self, exiting: &[Member], out: &mut Vec<Effect>) {
        if exiting.is_empty() {
            return;
        }
        let mut hosts: BTreeSet<UniqueAddress> = exiting.iter().map(|member| member.address.clone()).collect();
        let roles: BTreeSet<&str> = exiting.iter().flat_map(|member| member.roles.iter().map(String::as_str)).collect();
        for role in std::iter::once(None).chain(roles.into_iter().map(Some)) {
            let serving = self.view.by_age(role).into_iter().filter(|member| member.status.is_settled());
            hosts.extend(serving.take(2).map(|member| member.address.clone()));
        }
        hosts.remove(&self.node);
        for host in hosts {
            self.send_gossip(&host, out);
        }
    }

    /// Source: cluster M21.
    fn let_in_weakly(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let Some(after) = self.settings.weakly_up_after else { return };
        let blocked_for = self.settings.leader_actions_interval * self.blocked_ticks;
        if blocked_for < after || !self.has_enough_members() || self.prepares_shutdown() {
            return;
        }
        let mut gossip = Gossip::clone(&self.gossip);
        let news = gossip.members.update(|member| {
            let waits = member.status == MemberStatus::Joining;
            let comes_in = waits && !self.gossip.accused_by_the_living(&member.address);
            comes_in.then(|| member.in_status(MemberStatus::WeaklyUp))
        });
        if news {
            self.change(now, gossip, out);
        }
    }

    /// Source: cluster M22.
    fn has_enough_members(&self) -> bool {
        let members = &self.gossip.members;
        let enough = |(role, least): (&String, &usize)| members.values().filter(|m| m.has_role(role)).count() >= *least;
        members.len() >= self.settings.min_number_of_members
            && self.settings.role_min_number_of_members.iter().all(enough)
    }

    pub(super) fn prepares_shutdown(&self) -> bool {
        self.gossip.members.summary().any_preparing
    }
}

fn highest_number(gossip: &Gossip) -> u32 {
    let numbers = gossip.members.values().map(|member| member.up_number);
    numbers.filter(|number| *number != Member::NOT_UP).max().unwrap_or(0)
}
