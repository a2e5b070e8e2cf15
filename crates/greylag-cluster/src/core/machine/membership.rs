//! A member's dealings with the others: gossip, deaths and downing, the leader's actions, and the ways out.
//!
//! ```text
//! leave:  Leaving --converged--> Exiting, hand over --ExitingTasksDone--> ExitingConfirmed --> end
//! down:   Down --> SelfDowned at once, gossip on for a few ticks --> end
//! ```
//!
//! Source: cluster M11 to M22, M26 to M28, S5, S17, S19, S20.

use std::sync::Arc;
use std::time::Instant;

use greylag_core::{DeadLetterReason, UniqueAddress};
use greylag_transport::QuarantineReason;

use super::ClusterCore;
use crate::core::exchange::{self, URGENT_FAN_OUT};
use crate::core::failure::deaths;
use crate::core::joining::address_claims;
use crate::core::{Effect, LogLevel, leader};
use crate::detector::proof::{ProofEffect, ProofInput};
use crate::downing::DownCommand;
use crate::error::JoinRejection;
use crate::gossip::reachability::Status;
use crate::gossip::shared::Shared;
use crate::gossip::state::{Blockers, Gossip};
use crate::gossip::stats::IgnoredGossip;
use crate::gossip::version::{Relation, VectorVersion};
use crate::membership::event::{ClusterEvent, Proof};
use crate::membership::member::{Member, MemberStatus};
use crate::membership::message::Message;
use crate::membership::shutdown::ShutdownReason;
use crate::singleton::lease_outcome::LeaseOutcome;
use crate::testing::omissions::Clause;

/// The exchange of gossip.
impl ClusterCore {
    /// Sends the state's version to a member that has seen the state, else the state itself.
    pub(in crate::core) fn gossip_to_one(&mut self, out: &mut Vec<Effect>) {
        let Some(target) = exchange::draw_target(&self.state, &self.settings, &mut self.rng) else { return };
        if self.state.gossip().seen.contains(&target) {
            self.send_status(&target, out);
        } else {
            self.send_gossip(&target, out);
        }
    }

    fn send_status(&self, target: &UniqueAddress, out: &mut Vec<Effect>) {
        out.push(exchange::status_to(target, &self.state, self.trust.is_suspect()));
    }

    pub(super) fn send_gossip(&self, target: &UniqueAddress, out: &mut Vec<Effect>) {
        out.push(exchange::gossip_to(target, &self.state, self.trust.is_suspect()));
    }

    /// Sends the whole state to `count` members drawn from the valid ones.
    fn gossip_to_random(&mut self, count: usize, out: &mut Vec<Effect>) {
        for target in exchange::draw_targets(&self.state, count, &mut self.rng) {
            self.send_gossip(&target, out);
        }
    }

    /// Sends the whole state of this Down node to some members.
    fn gossip_down_state(&mut self, out: &mut Vec<Effect>) {
        for target in exchange::draw_targets_of_the_downed(&self.state, &mut self.rng) {
            self.send_gossip(&target, out);
        }
    }

    /// Sends urgent news to all members of a small cluster, and to many of a big one.
    pub(super) fn gossip_to_many(&mut self, out: &mut Vec<Effect>) {
        self.gossip_to_random(URGENT_FAN_OUT, out);
    }

    /// While a proven death awaits its removal: as leader acts at once, else sends news to the leader at once; the
    /// header of `machine.rs` says why this is safe.
    fn act_if_urgent(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if !self.state.is_urgent() || !self.life.is_member() {
            return;
        }
        match self.state.view().leader.clone() {
            Some(leader) if leader == *self.state.node() => self.act_as_leader(now, out),
            Some(leader) if self.state.finds_reachable(&leader) => self.send_gossip(&leader, out),
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
        let beyond = (!self.clock.counter_bounds(now).covers_version(version)).then_some(IgnoredGossip::BeyondReach);
        if let Some(why) = self.reason_to_ignore(from, to).or(beyond) {
            return self.ignore(from, why, out);
        }
        let relation = self.exchange.on_status(version, &self.state);
        if relation == Relation::Same {
            let heard = version.count(self.state.node());
            self.note_exchange(now, from, heard, suspect, out);
        }
        if self.state.gossip().seen.digest() != seen_digest {
            return self.send_gossip(from, out);
        }
        match relation {
            Relation::Same => {}
            Relation::Before => self.send_status(from, out),
            Relation::After | Relation::Concurrent => self.send_gossip(from, out),
        }
    }

    fn reason_to_ignore(&self, from: &UniqueAddress, to: &UniqueAddress) -> Option<IgnoredGossip> {
        if !self.life.is_member() {
            return Some(IgnoredGossip::NotJoined);
        }
        exchange::reason_to_ignore(&self.state, from, to)
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
        if self.life.is_member() && theirs.cluster_id != self.state.gossip().cluster_id {
            self.exchange.on_ignored(IgnoredGossip::ForeignCluster);
            let size = u32::try_from(theirs.members.len()).ok();
            return self.meet_foreign(now, theirs.cluster_id, size, out);
        }
        let too_old = now.saturating_duration_since(received_at) > self.settings.gossip_time_to_live;
        let without_us = !theirs.members.contains_key(self.state.node());
        let ignored = self
            .reason_to_ignore(from, to)
            .or((!self.clock.counter_bounds(now).covers(&theirs)).then_some(IgnoredGossip::BeyondReach))
            .or(too_old.then_some(IgnoredGossip::TooOld))
            .or(without_us.then_some(IgnoredGossip::WithoutUs));
        if let Some(why) = ignored {
            return self.ignore(from, why, out);
        }
        let heard = theirs.version.count(self.state.node());
        self.take_gossip(now, from, theirs, out);
        self.note_exchange(now, from, heard, suspect, out);
        self.act_if_urgent_after(now, from, out);
    }

    pub(super) fn ignore(&mut self, from: &UniqueAddress, why: IgnoredGossip, out: &mut Vec<Effect>) {
        self.exchange.on_ignored(why);
        let reason = match why {
            IgnoredGossip::FromNonMember => DeadLetterReason::NotAMember,
            IgnoredGossip::BeyondReach => DeadLetterReason::BeyondReach,
            _ => return,
        };
        out.push(Effect::Dropped { from: from.clone(), reason });
    }

    fn take_gossip(&mut self, now: Instant, from: &UniqueAddress, theirs: Arc<Gossip>, out: &mut Vec<Effect>) {
        let merge = if self.omits(Clause::Tombstones) { Gossip::merged_without_tombstones } else { Gossip::merged };
        let Some(mut merging) = self.exchange.merge(theirs, &self.state, merge) else { return };
        let marks_seen = self.marks_seen(&merging.gossip);
        let answer = merging.wants_answer(marks_seen);
        if marks_seen {
            merging.gossip.seen.insert(self.state.node().clone());
        }
        if merging.gossip != **self.state.gossip() {
            self.become_state(now, merging.gossip, out);
        }
        if answer && self.life.is_member() {
            self.send_gossip(from, out);
        }
        self.follow_preparation(now, out);
    }

    /// Notes an exchange of gossip: another member lives, and may confirm this node after a pause.
    fn note_exchange(&mut self, now: Instant, from: &UniqueAddress, heard: u64, suspect: bool, out: &mut Vec<Effect>) {
        self.life.on_gossip_heard(now, self.settings.retry_unsuccessful_join_after);
        if self.trust.on_exchange(now, from, heard, suspect, &self.state) {
            self.become_trusted(now, out);
        }
    }

    /// Calls [`Self::act_if_urgent`], unless the leader has just got this state as an answer.
    fn act_if_urgent_after(&mut self, now: Instant, from: &UniqueAddress, out: &mut Vec<Effect>) {
        let leader = self.state.view().leader.as_ref();
        let leader_knows = leader.is_none_or(|leader| self.state.gossip().seen.contains(leader));
        if self.state.leads() || (leader != Some(from) && !leader_knows) {
            self.act_if_urgent(now, out);
        }
    }
}

/// Deaths and downing.
impl ClusterCore {
    pub(super) fn on_link_lost(&mut self, now: Instant, peer: UniqueAddress, out: &mut Vec<Effect>) {
        if self.detection.monitors(&peer) && self.deaths.may_be_dialled(&peer, &self.state) {
            self.on_proof(now, ProofInput::LinkLost(peer), out);
        }
    }

    pub(super) fn on_proof(&mut self, now: Instant, input: ProofInput, out: &mut Vec<Effect>) {
        for effect in self.deaths.on_proof(now, input) {
            match effect {
                ProofEffect::Dial(peer) => out.push(Effect::Dial(peer)),
                ProofEffect::Proven(peer) => self.prove_dead(now, &[peer], Proof::Refused, out),
            }
        }
    }

    /// Handles the answer of a process to a dial: the process has replaced those members at its address that named the
    /// same host. Source: cluster S20 (a).
    pub(super) fn on_dial_other(
        &mut self,
        now: Instant,
        peer: &UniqueAddress,
        host_id: Option<&str>,
        out: &mut Vec<Effect>,
    ) {
        let replaced = address_claims::replaced_by(&self.state, peer, host_id, self.settings.proof_of_death);
        self.prove_dead(now, &replaced, Proof::Restarted, out);
    }

    /// Proves the death of each process that a witness named and that is a member by now.
    pub(super) fn prove_witnessed(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.life.is_member() {
            let known = self.deaths.take_witnessed(&self.state);
            if !known.is_empty() {
                self.prove_dead(now, &known, Proof::Witnessed, out);
            }
        }
    }

    /// Records deaths as facts and spreads them at once. Source: cluster S20.
    pub(in crate::core) fn prove_dead(
        &mut self,
        now: Instant,
        peers: &[UniqueAddress],
        how: Proof,
        out: &mut Vec<Effect>,
    ) {
        if !self.life.is_member() || self.state.is_leaving_for_good() {
            return;
        }
        let Some((fresh, gossip)) = deaths::record(&self.state, peers, how, out) else { return };
        self.change(now, gossip, out);
        // Tell the process, too: a witness may be wrong, and then the process learns at once that it counts as dead
        // (M27).
        for peer in &fresh {
            self.send_gossip(peer, out);
        }
        self.gossip_to_many(out);
        self.act_if_urgent(now, out);
    }

    /// Updates the own row of the reachability table from the detectors. Source: cluster F8, F10.
    pub(super) fn reap(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let quiet = self.life.makes_no_accusations(&self.state);
        let withholds = |silent, receivers| quiet || self.trust.defers_marking(now, silent, receivers, &self.settings);
        if let Some(gossip) = self.detection.reap(now, &self.state, withholds, out) {
            self.change(now, gossip, out);
        }
    }

    /// Marks a quarantined peer Terminated: the transport will never again carry anything from or to it.
    /// Source: cluster F11.
    pub(super) fn on_peer_quarantined(
        &mut self,
        now: Instant,
        peer: &UniqueAddress,
        harmless: bool,
        out: &mut Vec<Effect>,
    ) {
        let node = self.state.node();
        if peer == node || !self.state.is_member(peer) || self.life.makes_no_accusations(&self.state) {
            return;
        }
        let mut gossip = Gossip::clone(self.state.gossip());
        if gossip.reachability.set(node, peer, Status::Terminated) {
            // Log an announced end at info level: it belongs to a normal stop, even if the removal comes later.
            let (level, why) =
                if harmless { (LogLevel::Info, "has ended") } else { (LogLevel::Warn, "is quarantined") };
            out.push(Effect::Log(level, format!("{peer} {why}; it stays unreachable")));
            self.change(now, gossip, out);
        }
    }

    pub(super) fn tick_sbr(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let Some(decision) = self.downing.resolve(now, &self.trust, out) else { return };
        out.push(Effect::Log(LogLevel::Warn, decision.to_string()));
        let downed = decision.downed.clone();
        out.push(Effect::Publish(ClusterEvent::DowningDecision(Box::new(decision))));
        self.down(now, &downed, out);
        if !downed.is_empty() {
            // Spread the decision at once: a node that has not heard of one 3 s after an instability has lasted too
            // long downs itself (cluster S13).
            self.gossip_to_many(out);
        }
    }

    pub(super) fn on_lease(&mut self, now: Instant, outcome: Option<LeaseOutcome>, out: &mut Vec<Effect>) {
        if self.downing.on_lease(outcome) && self.life.is_member() {
            self.tick_sbr(now, out);
        }
    }

    /// Gives the provider the events published since `begin`, and carries out its commands, until it gives none.
    pub(in crate::core) fn tell_provider(&mut self, now: Instant, begin: usize, out: &mut Vec<Effect>) {
        if !self.downing.has_provider() || !self.life.is_member() {
            return;
        }
        let mut told = begin;
        while told < out.len() {
            let commands = self.downing.on_published(now, &out[told..], &self.state);
            told = out.len();
            self.apply_commands(now, commands, out);
        }
    }

    pub(super) fn tick_provider(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let commands = self.downing.on_tick(now, self.trust.holds(now), &self.state);
        self.apply_commands(now, commands, out);
    }

    /// Source: cluster S5, S17.
    fn apply_commands(&mut self, now: Instant, commands: Vec<DownCommand>, out: &mut Vec<Effect>) {
        if commands.is_empty() {
            return;
        }
        if self.trust.holds(now) {
            return self.downing.on_held_back();
        }
        for command in commands {
            let Some(decision) = self.downing.decision(command, &self.state, self.life.is_downed()) else { continue };
            let downed = decision.downed.clone();
            out.push(Effect::Log(LogLevel::Warn, decision.to_string()));
            out.push(Effect::Publish(ClusterEvent::DowningDecision(Box::new(decision))));
            self.down(now, &downed, out);
        }
    }

    /// Declares members dead, self last. Source: cluster M27.
    pub(super) fn down(&mut self, now: Instant, targets: &[UniqueAddress], out: &mut Vec<Effect>) {
        let members = &self.state.gossip().members;
        let alive =
            |target: &&UniqueAddress| members.get(target).is_some_and(|member| member.status != MemberStatus::Down);
        let targets: Vec<UniqueAddress> = targets.iter().filter(alive).cloned().collect();
        if targets.is_empty() {
            return;
        }
        let mut gossip = Gossip::clone(self.state.gossip());
        for target in &targets {
            gossip.members.get_mut(target).expect("filtered above").status = MemberStatus::Down;
            out.push(Effect::Log(LogLevel::Warn, format!("{target} is declared dead")));
        }
        self.change(now, gossip, out);
        for target in targets.iter().filter(|target| *target != self.state.node()) {
            self.send_gossip(target, out);
        }
        if targets.contains(self.state.node()) {
            self.gossip_down_state(out);
        }
        self.act_if_urgent(now, out);
    }
}

/// The leader's duties.
impl ClusterCore {
    pub(super) fn on_leader_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.check_isolation(now, out);
        if self.life.is_downed() {
            return self.count_down(out);
        }
        if !self.state.leads() || self.trust.holds(now) {
            return self.leader.on_free();
        }
        out.extend(address_claims::shared_addresses(self.state.gossip()).into_iter().map(Effect::AskWho));
        match self.blockers() {
            None => {
                self.leader.on_free();
                self.leader_actions(now, out);
            }
            Some(blockers) => {
                self.leader.on_blocked(&blockers, out);
                if let Some(gossip) = self.leader.weakly_up(&self.state, &self.settings) {
                    self.change(now, gossip, out);
                }
            }
        }
    }

    /// The conditions that keep the leader from acting; `None` if it may act.
    fn blockers(&self) -> Option<Blockers> {
        if self.omits(Clause::Convergence) { None } else { self.state.blockers() }
    }

    /// Acts outside a tick, under the same conditions as in a tick.
    fn act_as_leader(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let leads = self.state.leads() && !self.life.is_downed();
        if leads && !self.trust.holds(now) && self.blockers().is_none() {
            self.leader_actions(now, out);
        }
    }

    /// Moves each member one step on, from a converged state, in one change. Source: cluster M20.
    pub(super) fn leader_actions(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let Some(actions) = leader::actions(&self.state, &self.settings, self.clock.ms(now)) else { return };
        self.change(now, actions.gossip, out);
        for host in leader::hosts_to_tell(&actions.exiting, self.state.view()) {
            self.send_gossip(&host, out);
        }
        if actions.removed {
            self.gossip_to_many(out);
        }
    }
}

/// The ways out.
impl ClusterCore {
    pub(super) fn on_leave(&mut self, now: Instant, target: &UniqueAddress, out: &mut Vec<Effect>) {
        let Some(member) = self.state.gossip().members.get(target) else { return };
        if member.status >= MemberStatus::Leaving {
            return;
        }
        let mut gossip = Gossip::clone(self.state.gossip());
        gossip.members.get_mut(target).expect("found above").status = MemberStatus::Leaving;
        self.change(now, gossip, out);
        self.gossip_to_one(out);
    }

    /// Makes every Up member prepare for the shutdown of the whole cluster. Source: cluster M30.
    pub(super) fn prepare_for_full_shutdown(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if !self.life.is_member() || self.life.is_downed() {
            return;
        }
        let mut gossip = Gossip::clone(self.state.gossip());
        let prepares = |member: &Member| {
            (member.status == MemberStatus::Up).then(|| member.in_status(MemberStatus::PreparingForShutdown))
        };
        if gossip.members.update(prepares) {
            self.change(now, gossip, out);
            self.gossip_to_one(out);
        }
    }

    /// Makes those members prepare that came up while others began to prepare.
    fn follow_preparation(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.state.prepares_shutdown() {
            self.prepare_for_full_shutdown(now, out);
        }
    }

    /// Makes this node, which is dead to the cluster, stop everything that it hosts at once, tell the others, then end.
    pub(super) fn become_downed(&mut self, reason: ShutdownReason, out: &mut Vec<Effect>) {
        if self.life.become_downed(reason) {
            out.push(Effect::Publish(ClusterEvent::SelfDowned));
        }
    }

    /// Counts one more leader tick of a node that is Down.
    fn count_down(&mut self, out: &mut Vec<Effect>) {
        let Some((reason, told_enough)) = self.life.count_down() else { return };
        let gossip = self.state.gossip();
        let unreachable = gossip.reachability.unreachable();
        let informed = |address: &UniqueAddress| unreachable.contains(address) || gossip.seen.contains(address);
        let down = gossip.members.values().filter(|member| member.status == MemberStatus::Down);
        if told_enough || down.map(|member| &member.address).all(informed) {
            self.gossip_down_state(out);
            self.end(reason, out);
        }
    }

    /// After the hand-over: takes back this node's accusations, tells the others, ends. Source: cluster M26.
    pub(super) fn on_exiting_tasks_done(&mut self, now: Instant, clean: bool, out: &mut Vec<Effect>) {
        if !self.life.finish_exit() {
            return;
        }
        let mut gossip = Gossip::clone(self.state.gossip());
        if gossip.reachability.clear_row(self.state.node()) {
            self.change(now, gossip, out);
        } else {
            gossip.seen.insert(self.state.node().clone());
            self.become_state(now, gossip, out);
        }
        self.gossip_to_random(5, out);
        for leader in self.state.next_leaders() {
            out.push(Effect::send(leader, Message::ExitingConfirmed { clean }));
        }
        self.end(ShutdownReason::Left, out);
    }

    pub(super) fn on_exiting_confirmed(
        &mut self,
        now: Instant,
        from: UniqueAddress,
        clean: bool,
        out: &mut Vec<Effect>,
    ) {
        if self.life.is_member() && self.state.is_member(&from) {
            self.state.on_exit_confirmed(from.clone(), clean);
            // Stop dialling the leaver, even if its confirmation changes nothing yet (cluster S20).
            self.deaths.on_settled(now, from, out);
            self.refresh(now, out);
            // Act now: the leaver is ready, and the members whose agreement convergence needs may have agreed long ago.
            self.act_as_leader(now, out);
        }
    }

    /// Ends a leaving node that hears no member, as if it were Down: it may have been removed.
    fn check_isolation(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let status = self.state.view().self_status();
        let leaves = matches!(status, Some(MemberStatus::Leaving | MemberStatus::Exiting));
        let alone = self.state.is_alone();
        if leaves && !alone && !self.life.is_downed() && self.trust.silence(now) >= self.settings.stable_after() {
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
        if self.life.join().is_some() {
            // This node was let in, never told so, and removed: no member answers its Join any more (cluster M25).
            if reason == QuarantineReason::RemovedFromMembership {
                self.on_join_rejected(by, JoinRejection::Removed, out);
            }
            return;
        }
        let member = self.state.gossip().members.get(&by);
        let believed = member.is_some_and(|member| member.status != MemberStatus::Down);
        let exiting = self.state.view().self_status() == Some(MemberStatus::Exiting);
        if reason == QuarantineReason::RemovedFromMembership && believed && !exiting {
            let node = self.state.node().clone();
            self.down(now, &[node], out);
            return;
        }
        out.push(Effect::Log(LogLevel::Warn, format!("quarantined by {by} ({reason:?}); this node goes on")));
        if self.state.is_member(&by) {
            let mut gossip = Gossip::clone(self.state.gossip());
            // Mark the node Terminated: it has quarantined this one and will never answer it again (cluster F11).
            let marked = gossip.reachability.set(self.state.node(), &by, Status::Terminated);
            if marked && !self.life.makes_no_accusations(&self.state) {
                self.change(now, gossip, out);
            }
        }
    }
}
