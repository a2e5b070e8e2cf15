//! Proofs of death: when this node dials, whom it asks who runs at an address, and what a proof
//! changes.
//!
//! Source: cluster S20, M10.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, UniqueAddress};
use rand::RngExt;

use super::{ClusterCore, Effect, Life, LogLevel};
use crate::event::{ClusterEvent, Proof};
use crate::gossip::Gossip;
use crate::member::MemberStatus;
use crate::message::Message;
use crate::proof::{ProofEffect, ProofInput};
use crate::reachability::Status;
use crate::settings::ProofOfDeath;

/// For so long a leader waits for a word from an address that two members share.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Witnessed deaths of processes that this node does not know yet; beyond that the oldest is
/// forgotten.
const WITNESSED_KEPT: usize = 1000;

/// Who runs at an address?
#[derive(Debug)]
pub(super) struct Question {
    /// Known only to the asker.
    nonce: u64,
    /// Since when this node as the leader knows of two members there.
    shared_since: Option<Instant>,
}

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
        // A refused dial says no more of a confirmed exit: its listener was to close, and what it said
        // of being clean stands.
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
            if member.status != MemberStatus::Exiting {
                member.status = MemberStatus::Down;
            }
            gossip.reachability.set(&self.node, peer, Status::Terminated);
            out.push(Effect::Log(LogLevel::Warn, format!("{peer} is dead: {how:?}")));
            out.push(Effect::Publish(ClusterEvent::ProvenDead { member: peer.clone(), how }));
        }
        self.change(now, gossip, out);
        // A witness may be wrong: then the process learns at once that it counts as dead (M27).
        for peer in &fresh {
            self.send_gossip(peer, out);
        }
        self.gossip_to_many(out);
        self.act_if_urgent(now, out);
    }

    /// Source: cluster S20 (c). A witness may know of a death before this node knows of the member:
    /// while it joins itself, or before gossip about a new member reaches it.
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

    /// Proves whoever a witness named and who is a member by now.
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

    /// Asks who runs at an address where a process was heard that is not the member known there:
    /// an answer proves the death of the member (cluster S20 case a).
    pub(super) fn ask_who_if_restarted(&mut self, peer: &UniqueAddress, out: &mut Vec<Effect>) {
        let other = |member: &&UniqueAddress| member.address() == peer.address() && *member != peer;
        let replaced = self.gossip.members.values().any(|member| other(&&member.address) && !member.dead);
        if replaced {
            self.ask_who(peer.address(), out);
        }
    }

    fn ask_who(&mut self, address: &NodeAddress, out: &mut Vec<Effect>) {
        // The same nonce until it is answered: a slow answer to the first question counts.
        let nonce = match self.asked_who.get(address) {
            Some(question) => question.nonce,
            None => self.rng.random(),
        };
        self.asked_who.entry(address.clone()).or_insert(Question { nonce, shared_since: None });
        out.push(Effect::Send { to: address.clone().into(), message: Message::WhoIs { nonce } });
    }

    /// Two members of one address cannot both live: whoever answers there does. Without any answer
    /// the one that became a member last stays. Leaders do this, converged or not. Source: cluster M10.
    pub(super) fn settle_shared_addresses(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let alive = self.gossip.members.values().filter(|member| member.status != MemberStatus::Down);
        let alive: Vec<&UniqueAddress> = alive.map(|member| &member.address).collect();
        let pairs = alive.windows(2).filter(|pair| pair[0].address() == pair[1].address());
        let shared: BTreeSet<NodeAddress> = pairs.map(|pair| pair[0].address().clone()).collect();
        // Patience with an address that another leader settled is no patience with the next pair there.
        for (address, question) in &mut self.asked_who {
            if !shared.contains(address) {
                question.shared_since = None;
            }
        }
        for address in shared {
            let asked = self.asked_who.get(&address).and_then(|question| question.shared_since);
            if asked.is_some_and(|since| now.saturating_duration_since(since) >= ANSWER_TIMEOUT) {
                self.keep_the_newest(now, &address, out);
            } else {
                self.ask_who(&address, out);
                if let Some(question) = self.asked_who.get_mut(&address) {
                    question.shared_since.get_or_insert(now);
                }
            }
        }
    }

    fn keep_the_newest(&mut self, now: Instant, address: &NodeAddress, out: &mut Vec<Effect>) {
        self.asked_who.remove(address);
        let there = self.gossip.members.values().filter(|member| member.address.address() == address);
        let newest = there.clone().filter(|member| member.status != MemberStatus::Down);
        // Joining ones have the highest number of all.
        let newest = newest.max_by_key(|member| (member.up_number, &member.address)).map(|m| m.address.clone());
        let rest = there.map(|member| member.address.clone()).filter(|member| Some(member) != newest.as_ref());
        let rest: Vec<UniqueAddress> = rest.filter(|member| *member != self.node).collect();
        let mut gossip = Gossip::clone(&self.gossip);
        for member in &rest {
            gossip.reachability.set(&self.node, member, Status::Terminated);
            if let Some(member) = gossip.members.get_mut(member) {
                member.status = MemberStatus::Down;
            }
            out.push(Effect::Log(LogLevel::Warn, format!("{member} was replaced at its address; it is down")));
        }
        if gossip != *self.gossip {
            self.change(now, gossip, out);
        }
    }

    pub(super) fn on_i_am(&mut self, now: Instant, from: &UniqueAddress, nonce: u64, out: &mut Vec<Effect>) {
        if self.asked_who.get(from.address()).is_none_or(|question| question.nonce != nonce) {
            return;
        }
        self.asked_who.remove(from.address());
        let members = self.gossip.members.keys();
        let older: Vec<UniqueAddress> =
            members.filter(|member| member.address() == from.address() && *member != from).cloned().collect();
        self.prove_dead(now, &older, Proof::Restarted, out);
    }

    /// Which members are to be dialled now, and which no longer.
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
