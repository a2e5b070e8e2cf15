//! Proofs of death: decides when this node dials a member, and applies a proof.
//!
//! Source: cluster S20.

use std::time::Instant;

use greylag_core::UniqueAddress;

use super::{ClusterCore, Effect, Life, LogLevel};
use crate::event::{ClusterEvent, Proof};
use crate::gossip::Gossip;
use crate::member::MemberStatus;
use crate::proof::{ProofEffect, ProofInput};
use crate::reachability::Status;
use crate::settings::ProofOfDeath;

/// Limit of witnessed deaths of processes that this node does not know yet; beyond it the oldest is forgotten.
const WITNESSED_KEPT: usize = 1000;

impl ClusterCore {
    pub(super) fn on_link_lost(&mut self, now: Instant, peer: UniqueAddress, out: &mut Vec<Effect>) {
        if self.heartbeat.monitors(&peer) && self.may_be_dialled(&peer) {
            self.on_proof(now, ProofInput::LinkLost(peer), out);
        }
    }

    pub(super) fn may_be_dialled(&self, peer: &UniqueAddress) -> bool {
        let alive = self.gossip.members.get(peer).is_some_and(|member| !member.dead);
        alive
            && !self.has_confirmed_exit(peer)
            && !self.is_leaving_for_good()
            && self.settings.proof_of_death != ProofOfDeath::Off
    }

    fn has_confirmed_exit(&self, peer: &UniqueAddress) -> bool {
        self.exits.contains_key(peer) || self.early_exits.contains_key(peer)
    }

    pub(super) fn on_proof(&mut self, now: Instant, input: ProofInput, out: &mut Vec<Effect>) {
        let mut effects = Vec::new();
        self.proofs.handle(now, input, &mut effects);
        for effect in effects {
            match effect {
                ProofEffect::Dial(peer) => out.push(Effect::Dial(peer)),
                ProofEffect::Proven(peer) => self.prove_dead(now, &[peer], Proof::Refused, out),
            }
        }
    }

    /// Records deaths as facts and spreads them at once. Source: cluster S20.
    pub(super) fn prove_dead(&mut self, now: Instant, peers: &[UniqueAddress], how: Proof, out: &mut Vec<Effect>) {
        let may_prove = matches!(self.life, Life::Member) && !self.is_leaving_for_good();
        // Ignore a refused dial of a member with a confirmed exit: its listener was going to close anyway, and its own
        // report decides whether its exit was clean.
        let closed = |peer: &UniqueAddress| how == Proof::Refused && self.has_confirmed_exit(peer);
        let fresh =
            |peer: &&UniqueAddress| self.gossip.members.get(peer).is_some_and(|member| !member.dead) && !closed(peer);
        let fresh: Vec<UniqueAddress> =
            peers.iter().filter(|peer| **peer != self.node).filter(fresh).cloned().collect();
        if !may_prove || fresh.is_empty() {
            return;
        }
        let mut gossip = Gossip::clone(&self.gossip);
        for peer in &fresh {
            let member = gossip.members.get_mut(peer).expect("filtered by membership above");
            member.dead = true;
            // Log an expected closed port at info level: a leaving member confirms its exit only to possible leaders,
            // and its port closes before the other members hear of the exit, or even of the member's last status.
            let is_expected =
                how == Proof::Refused && matches!(member.status, MemberStatus::Leaving | MemberStatus::Exiting);
            let level = if is_expected { LogLevel::Info } else { LogLevel::Warn };
            if member.status != MemberStatus::Exiting {
                member.status = MemberStatus::Down;
            }
            gossip.reachability.set(&self.node, peer, Status::Terminated);
            out.push(Effect::Log(level, format!("{peer} is dead: {how:?}")));
            out.push(Effect::Publish(ClusterEvent::ProvenDead { member: peer.clone(), how }));
        }
        self.change(now, gossip, out);
        // Tell the process, too: a witness may be wrong, and then the process learns at once that it counts as dead
        // (M27).
        for peer in &fresh {
            self.send_gossip(peer, out);
        }
        self.gossip_to_many(out);
        self.act_if_urgent(now, out);
    }

    /// Keeps a witness's report. The report may come before this node knows of the member: while this node itself
    /// joins, or before gossip about a new member arrives. Source: cluster S20 (c).
    pub(super) fn on_death_witnessed(&mut self, now: Instant, peer: UniqueAddress, out: &mut Vec<Effect>) {
        if self.gossip.tombstones.contains_key(&peer) || self.witnessed.contains(&peer) {
            return;
        }
        self.witnessed.push_back(peer);
        if self.witnessed.len() > WITNESSED_KEPT {
            self.witnessed.pop_front();
        }
        self.prove_witnessed(now, out);
    }

    /// Proves the death of each process that a witness named and that is a member by now.
    pub(super) fn prove_witnessed(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.witnessed.is_empty() || !matches!(self.life, Life::Member) {
            return;
        }
        let member = |peer: &&UniqueAddress| self.gossip.members.contains_key(peer);
        let known: Vec<UniqueAddress> = self.witnessed.iter().filter(member).cloned().collect();
        let tombstones = &self.gossip.tombstones;
        self.witnessed.retain(|peer| !known.contains(peer) && !tombstones.contains_key(peer));
        self.prove_dead(now, &known, Proof::Witnessed, out);
    }

    /// Tells the proofs machine which members are to be dialled now, and which no longer.
    pub(super) fn tell_proofs(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let known: Vec<UniqueAddress> = self.proofs.peers().cloned().collect();
        for peer in known {
            let gone_back =
                self.proofs.is_marked(&peer) && self.gossip.reachability.status(&self.node, &peer) == Status::Reachable;
            if gone_back || !self.may_be_dialled(&peer) {
                self.on_proof(now, ProofInput::Settled(peer), out);
            }
        }
        let accused: Vec<UniqueAddress> = self.view.unreachable.iter().cloned().collect();
        for peer in accused {
            let marks = self.gossip.reachability.status(&self.node, &peer) != Status::Reachable;
            if marks && self.may_be_dialled(&peer) {
                self.on_proof(now, ProofInput::Marked(peer), out);
            }
        }
    }
}
