//! The ways out: leaving in order, being declared dead, being cut off while leaving.
//!
//! ```text
//! leave:  Leaving --converged--> Exiting, hand over --ExitingTasksDone--> ExitingConfirmed --> end
//! down:   Down --> SelfDowned at once, gossip on for a few ticks --> end
//! ```
//!
//! Source: cluster M26 to M28, S19.

use std::time::Instant;

use greylag_core::UniqueAddress;
use greylag_transport::QuarantineReason;

use super::{ClusterCore, Effect, Exiting, Life, LogLevel};
use crate::error::JoinRejection;
use crate::event::ClusterEvent;
use crate::gossip::Gossip;
use crate::member::{Member, MemberStatus};
use crate::message::Message;
use crate::proof::ProofInput;
use crate::reachability::Status;
use crate::shutdown::ShutdownReason;

/// Leader ticks for which a Down node spreads the news before it ends.
const DOWNED_TICKS: u32 = 4;

impl ClusterCore {
    pub(super) fn on_abandon_join(&mut self) {
        if matches!(self.life, Life::Joining(_)) {
            self.life = Life::Idle;
        }
    }

    pub(super) fn on_leave(&mut self, now: Instant, target: &UniqueAddress, out: &mut Vec<Effect>) {
        let Some(member) = self.gossip.members.get(target) else { return };
        if member.status >= MemberStatus::Leaving {
            return;
        }
        let mut gossip = Gossip::clone(&self.gossip);
        gossip.members.get_mut(target).expect("found above").status = MemberStatus::Leaving;
        self.change(now, gossip, out);
        self.gossip_to_one(out);
    }

    /// Makes every Up member prepare for the shutdown of the whole cluster. Source: cluster M30.
    pub(super) fn prepare_for_full_shutdown(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if !matches!(self.life, Life::Member) || self.downed.is_some() {
            return;
        }
        let mut gossip = Gossip::clone(&self.gossip);
        let prepares = |member: &Member| {
            (member.status == MemberStatus::Up).then(|| member.in_status(MemberStatus::PreparingForShutdown))
        };
        if gossip.members.update(prepares) {
            self.change(now, gossip, out);
            self.gossip_to_one(out);
        }
    }

    /// Makes those members prepare that came up while others began to prepare.
    pub(super) fn follow_preparation(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.prepares_shutdown() {
            self.prepare_for_full_shutdown(now, out);
        }
    }

    /// Declares members dead, self last. Source: cluster M27.
    pub(super) fn down(&mut self, now: Instant, targets: &[UniqueAddress], out: &mut Vec<Effect>) {
        let alive = |target: &&UniqueAddress| {
            self.gossip.members.get(target).is_some_and(|member| member.status != MemberStatus::Down)
        };
        let targets: Vec<UniqueAddress> = targets.iter().filter(alive).cloned().collect();
        if targets.is_empty() {
            return;
        }
        let mut gossip = Gossip::clone(&self.gossip);
        for target in &targets {
            gossip.members.get_mut(target).expect("filtered above").status = MemberStatus::Down;
            out.push(Effect::Log(LogLevel::Warn, format!("{target} is declared dead")));
        }
        self.change(now, gossip, out);
        for target in targets.iter().filter(|target| **target != self.node) {
            self.send_gossip(target, out);
        }
        if targets.contains(&self.node) {
            self.gossip_down_state(out);
        }
        self.act_if_urgent(now, out);
    }

    /// Makes this node, which is dead to the cluster, stop everything that it hosts at once, tell the others, then end.
    pub(super) fn become_downed(&mut self, reason: ShutdownReason, out: &mut Vec<Effect>) {
        if self.downed.is_none() {
            self.downed = Some((reason, 0));
            out.push(Effect::Publish(ClusterEvent::SelfDowned));
        }
    }

    /// Counts one more leader tick of a node that is Down.
    pub(super) fn count_down(&mut self, out: &mut Vec<Effect>) {
        let Some((reason, ticks)) = &mut self.downed else { return };
        *ticks += 1;
        let (reason, ticks) = (*reason, *ticks);
        let unreachable = self.gossip.reachability.unreachable();
        let informed = |address: &UniqueAddress| unreachable.contains(address) || self.gossip.seen.contains(address);
        let down = self.gossip.members.values().filter(|member| member.status == MemberStatus::Down);
        if ticks >= DOWNED_TICKS || down.map(|member| &member.address).all(informed) {
            self.gossip_down_state(out);
            self.end(reason, out);
        }
    }

    /// After the hand-over: takes back this node's accusations, tells the others, ends. Source: cluster M26.
    pub(super) fn on_exiting_tasks_done(&mut self, now: Instant, clean: bool, out: &mut Vec<Effect>) {
        if self.exiting != Exiting::Running || self.downed.is_some() {
            return;
        }
        self.exiting = Exiting::Done;
        let mut gossip = Gossip::clone(&self.gossip);
        if gossip.reachability.clear_row(&self.node) {
            self.change(now, gossip, out);
        } else {
            gossip.seen.insert(self.node.clone());
            self.become_state(now, gossip, out);
        }
        self.gossip_to_random(5, out);
        for leader in self.next_leaders() {
            self.send(leader, Message::ExitingConfirmed { clean }, out);
        }
        self.end(ShutdownReason::Left, out);
    }

    /// The two members that would lead next without this node.
    fn next_leaders(&self) -> Vec<UniqueAddress> {
        let mut exits = self.exits.clone();
        exits.insert(self.node.clone(), true);
        let mut leaders = Vec::new();
        while leaders.len() < 2 {
            let Some(leader) = self.gossip.leader(&self.node, None, &exits).cloned() else { break };
            exits.insert(leader.clone(), true);
            leaders.push(leader);
        }
        leaders
    }

    pub(super) fn on_exiting_confirmed(
        &mut self,
        now: Instant,
        from: UniqueAddress,
        clean: bool,
        out: &mut Vec<Effect>,
    ) {
        if matches!(self.life, Life::Member) && self.gossip.members.contains_key(&from) {
            self.early_exits.insert(from.clone(), clean);
            // Stop dialling the leaver, even if its confirmation changes nothing yet (cluster S20).
            self.on_proof(now, ProofInput::Settled(from), out);
            self.refresh(now, out);
            // Act now: the leaver is ready, and the members whose agreement convergence needs may have agreed long ago.
            self.act_as_leader(now, out);
        }
    }

    /// Ends a leaving node that hears no member, as if it were Down: it may have been removed.
    pub(super) fn check_isolation(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let leaves = matches!(self.view.self_status(), Some(MemberStatus::Leaving | MemberStatus::Exiting));
        let alone = self.gossip.members.values().all(|member| member.address == self.node || member.dead);
        if leaves && !alone && self.downed.is_none() && self.trust.silence(now) >= self.settings.stable_after() {
            out.push(Effect::Log(LogLevel::Warn, "cut off while leaving; this node ends".to_owned()));
            self.become_downed(ShutdownReason::LeaveIsolated, out);
        }
    }

    /// Handles another node's notice that it has quarantined this one. Source: cluster S19.
    pub(super) fn on_this_node_quarantined(
        &mut self,
        now: Instant,
        by: UniqueAddress,
        reason: QuarantineReason,
        out: &mut Vec<Effect>,
    ) {
        out.push(Effect::Publish(ClusterEvent::ThisNodeQuarantined { by: by.clone(), reason }));
        if matches!(self.life, Life::Joining(_)) {
            // This node was let in, never told so, and removed: no member answers its Join any more (cluster M25).
            if reason == QuarantineReason::RemovedFromMembership {
                self.on_join_rejected(by, JoinRejection::Removed, out);
            }
            return;
        }
        let believed = self.gossip.members.get(&by).is_some_and(|member| member.status != MemberStatus::Down);
        let exiting = self.view.self_status() == Some(MemberStatus::Exiting);
        if reason == QuarantineReason::RemovedFromMembership && believed && !exiting {
            let node = self.node.clone();
            self.down(now, &[node], out);
            return;
        }
        out.push(Effect::Log(LogLevel::Warn, format!("quarantined by {by} ({reason:?}); this node goes on")));
        if self.gossip.members.contains_key(&by) {
            let mut gossip = Gossip::clone(&self.gossip);
            // Mark the node Terminated: it has quarantined this one and will never answer it again (cluster F11).
            if gossip.reachability.set(&self.node, &by, Status::Terminated) && !self.makes_no_accusations() {
                self.change(now, gossip, out);
            }
        }
    }
}
