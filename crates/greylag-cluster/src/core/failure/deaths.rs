//! Proofs of death: decides when this node dials a member, keeps the reports of witnesses, and records a proof.
//!
//! Source: cluster S20.

use std::collections::VecDeque;
use std::time::Instant;

use greylag_core::UniqueAddress;

use crate::core::state::State;
use crate::core::{Effect, LogLevel};
use crate::detector::proof::{ProofEffect, ProofInput, Proofs};
use crate::gossip::reachability::Status;
use crate::gossip::state::Gossip;
use crate::membership::event::{ClusterEvent, Proof};
use crate::membership::member::MemberStatus;
use crate::settings::{ClusterSettings, ProofOfDeath};

/// Limit of witnessed deaths of processes that this node does not know yet; beyond it the oldest is forgotten.
const WITNESSED_KEPT: usize = 1000;

/// This node's search for proofs of death.
#[derive(Debug)]
pub(in crate::core) struct Deaths {
    proofs: Proofs,
    policy: ProofOfDeath,
    /// Processes whose death was witnessed before this node knew them as members.
    witnessed: VecDeque<UniqueAddress>,
}

impl Deaths {
    pub(in crate::core) fn new(settings: &ClusterSettings) -> Self {
        let proofs = Proofs::new(settings.proof_dials, settings.proof_interval);
        Self { proofs, policy: settings.proof_of_death, witnessed: VecDeque::new() }
    }

    /// When the next dial is due.
    pub(in crate::core) fn next_deadline(&self) -> Option<Instant> {
        self.proofs.next_deadline()
    }

    /// Handles the outcome of a dial, the loss of a link, or the passing of time.
    pub(in crate::core) fn on_proof(&mut self, now: Instant, input: ProofInput) -> Vec<ProofEffect> {
        let mut effects = Vec::new();
        self.proofs.handle(now, input, &mut effects);
        effects
    }

    /// Whether a death of this member may be proven by a dial.
    pub(in crate::core) fn may_be_dialled(&self, peer: &UniqueAddress, state: &State) -> bool {
        let alive = state.gossip().members.get(peer).is_some_and(|member| !member.dead);
        alive && !state.has_confirmed_exit(peer) && !state.is_leaving_for_good() && self.policy != ProofOfDeath::Off
    }

    /// Starts to dial the members that this node finds unreachable now, and stops dialling those that it does not.
    pub(in crate::core) fn on_state(&mut self, now: Instant, state: &State, out: &mut Vec<Effect>) {
        let known: Vec<UniqueAddress> = self.proofs.peers().cloned().collect();
        for peer in known {
            let gone_back = self.proofs.is_marked(&peer) && state.finds_reachable(&peer);
            if gone_back || !self.may_be_dialled(&peer, state) {
                self.on_settled(now, peer, out);
            }
        }
        for peer in &state.view().unreachable {
            if !state.finds_reachable(peer) && self.may_be_dialled(peer, state) {
                self.dial(now, ProofInput::Marked(peer.clone()), out);
            }
        }
    }

    /// Stops dialling a member whose end needs no proof.
    pub(in crate::core) fn on_settled(&mut self, now: Instant, peer: UniqueAddress, out: &mut Vec<Effect>) {
        self.dial(now, ProofInput::Settled(peer), out);
    }

    fn dial(&mut self, now: Instant, input: ProofInput, out: &mut Vec<Effect>) {
        for effect in self.on_proof(now, input) {
            match effect {
                ProofEffect::Dial(peer) => out.push(Effect::Dial(peer)),
                ProofEffect::Proven(peer) => debug_assert!(false, "only a refused dial proves a death: {peer}"),
            }
        }
    }

    /// Keeps a witness's report. The report may come before this node knows of the member: while this node itself
    /// joins, or before gossip about a new member arrives. Source: cluster S20 (c).
    pub(in crate::core) fn on_witnessed(&mut self, peer: UniqueAddress, state: &State) {
        if state.gossip().tombstones.contains_key(&peer) || self.witnessed.contains(&peer) {
            return;
        }
        self.witnessed.push_back(peer);
        if self.witnessed.len() > WITNESSED_KEPT {
            self.witnessed.pop_front();
        }
    }

    /// Source: cluster S20.
    pub(in crate::core) fn check_invariants(&self, state: &State) {
        if !cfg!(debug_assertions) {
            return;
        }
        assert!(self.witnessed.len() <= WITNESSED_KEPT, "witnesses of strangers take bounded room");
        assert!(self.proofs.peers().all(|peer| state.is_member(peer)), "only members are dialled");
        let is_pending = |peer: &UniqueAddress| !state.is_member(peer);
        let mut newest = self.witnessed.iter().rev().take(16);
        assert!(newest.all(is_pending), "the death of a member that was witnessed is recorded at once");
    }

    /// Takes the witnessed processes that are members by now, and forgets those that were removed meanwhile.
    pub(in crate::core) fn take_witnessed(&mut self, state: &State) -> Vec<UniqueAddress> {
        if self.witnessed.is_empty() {
            return Vec::new();
        }
        let known: Vec<UniqueAddress> = self.witnessed.iter().filter(|peer| state.is_member(peer)).cloned().collect();
        let tombstones = &state.gossip().tombstones;
        self.witnessed.retain(|peer| !known.contains(peer) && !tombstones.contains_key(peer));
        known
    }
}

/// Records deaths as facts: returns the members whose death is news, and the state with them dead. `None` if there are
/// none. Source: cluster S20.
pub(in crate::core) fn record(
    state: &State,
    peers: &[UniqueAddress],
    how: Proof,
    out: &mut Vec<Effect>,
) -> Option<(Vec<UniqueAddress>, Gossip)> {
    // Ignore a refused dial of a member with a confirmed exit: its listener was going to close anyway, and its own
    // report decides whether its exit was clean.
    let closed = |peer: &UniqueAddress| how == Proof::Refused && state.has_confirmed_exit(peer);
    let fresh =
        |peer: &&UniqueAddress| state.gossip().members.get(peer).is_some_and(|member| !member.dead) && !closed(peer);
    let fresh: Vec<UniqueAddress> = peers.iter().filter(|peer| *peer != state.node()).filter(fresh).cloned().collect();
    if fresh.is_empty() {
        return None;
    }
    let mut gossip = Gossip::clone(state.gossip());
    for peer in &fresh {
        let member = gossip.members.get_mut(peer).expect("filtered by membership above");
        member.dead = true;
        // Log an expected closed port at info level: a leaving member confirms its exit only to possible leaders, and
        // its port closes before the other members hear of the exit, or even of the member's last status.
        let is_expected =
            how == Proof::Refused && matches!(member.status, MemberStatus::Leaving | MemberStatus::Exiting);
        let level = if is_expected { LogLevel::Info } else { LogLevel::Warn };
        if member.status != MemberStatus::Exiting {
            member.status = MemberStatus::Down;
        }
        gossip.reachability.set(state.node(), peer, Status::Terminated);
        out.push(Effect::Log(level, format!("{peer} is dead: {how:?}")));
        out.push(Effect::Publish(ClusterEvent::ProvenDead { member: peer.clone(), how }));
    }
    Some((fresh, gossip))
}
