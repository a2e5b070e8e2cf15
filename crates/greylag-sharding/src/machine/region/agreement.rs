//! Whether all nodes that run the type mean the same hosting role.
//!
//! Nodes of two roles register with two coordinators, which never compare what their regions say: each would give the
//! same entity a home of its own. So every node that hosts, or coordinates, asks all members before its coordinator may
//! decide anything. Of two sides the *active* side (its coordinator may decide, or has sent a home) stays; if neither
//! is active, the side whose role sorts first. The other side is refused. Two sides that were both active before they
//! met (a healed partition) both go on, and both report the dispute: ending either would cost more than telling the
//! operator.
//!
//! ```text
//! Asking --all reachable members answered--> Agreed        (the coordinator of this node may become active)
//! Asking, Agreed --a side that stays has another role--> Refused --it is gone, agrees or is refused--> Asking
//! ```
//! Answers count for one round: a coordinator that starts, and a side that is refused no more, ask anew, so that no
//! side relies on an answer from before the other side became active. A question's claim about its sender is kept
//! before the question is answered, for the sender may act on the answer.
//!
//! Source: sharding §1.5 (point 4), §2.13 (Active). Differs: other fields than the role are compared at registration.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::config::RegionConfig;
use super::protocol::Effect;
use super::report::RegionEvent;
use crate::fingerprint::{Fingerprint, Mismatch};
use crate::machine::membership::{MemberPhase, Members};
use crate::machine::message::{AgreementOutcome, PeerMessage, TypeClaim};

/// How often a member with another role is asked again: a rollback can heal the conflict.
const CONFLICT_RETRY: Duration = Duration::from_secs(30);

/// See the module's description.
#[derive(Debug)]
pub(super) struct Agreement {
    own: UniqueAddress,
    fingerprint: Fingerprint,
    retry_interval: Duration,
    /// A region of this node hosts, or may.
    hosts: bool,
    /// The coordinator incarnation of this node.
    coordinator: Option<u64>,
    /// The coordinator of this node may decide.
    granted: bool,
    /// A coordinator has sent this node a home.
    has_home: bool,
    /// This node is a member that counts.
    is_up: bool,
    round: u64,
    peers: BTreeMap<UniqueAddress, Peer>,
    outcome: AgreementOutcome,
    /// The dispute reported last, if it still stands.
    dispute: Option<Mismatch>,
}

/// Another member that is not `Down`.
#[derive(Debug, Default)]
struct Peer {
    /// Whether its answer is awaited: the member may coordinate, and is reachable.
    counts: bool,
    /// Whether it has answered in this round.
    answered: bool,
    /// When to ask it again.
    ask_at: Option<Instant>,
    /// The member's claim, if its role differs from this node's.
    conflict: Option<Conflict>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Conflict {
    role: String,
    active: bool,
    refused: bool,
}

impl Agreement {
    /// Knows no member yet, and agrees with none.
    pub(super) fn new(config: &RegionConfig) -> Self {
        Self {
            own: config.id.node.clone(),
            fingerprint: config.fingerprint.clone(),
            retry_interval: config.settings.retry_interval,
            hosts: !config.proxy,
            coordinator: None,
            granted: false,
            has_home: false,
            is_up: false,
            // Rounds of two regions of one process must not share numbers.
            round: config.id.incarnation.rotate_left(32),
            peers: BTreeMap::new(),
            outcome: AgreementOutcome::Asking,
            dispute: None,
        }
    }

    /// Source: sharding §1.5, point 4.
    pub(super) fn check_invariants(&self) {
        if !cfg!(debug_assertions) || self.peers.len() > 64 {
            return;
        }
        assert!(!self.peers.contains_key(&self.own), "a node does not ask itself");
        let mut awaited = self.peers.values().filter(|peer| peer.counts && !peer.answered);
        assert!(awaited.clone().all(|peer| peer.ask_at.is_some()), "a member whose answer is awaited is asked again");
        let is_agreed = self.outcome == AgreementOutcome::Agreed;
        assert!(!is_agreed || awaited.next().is_none(), "all reachable members have answered once they agree");
        let conflicts = self.peers.values().filter(|peer| peer.conflict.is_some()).count();
        let is_disputed = self.dispute.is_some() || matches!(self.outcome, AgreementOutcome::Refused(_));
        assert!(!is_disputed || conflicts > 0 || !self.asks(), "a dispute is one with a member");
    }

    /// The conclusion drawn from the answers so far.
    pub(super) fn outcome(&self) -> &AgreementOutcome {
        &self.outcome
    }

    /// A member that has another role and is as active as this node: neither side is refused.
    pub(super) fn dispute(&self) -> Option<&Mismatch> {
        self.dispute.as_ref()
    }

    /// When a tick next has a member to ask.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        if !self.asks() {
            return None;
        }
        self.peers.values().filter_map(|peer| peer.ask_at).min()
    }

    /// Asks the members whose `ask_at` has come.
    pub(super) fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if !self.asks() {
            return;
        }
        let message = PeerMessage::AnnounceType { round: self.round, claim: self.claim() };
        for (node, peer) in &mut self.peers {
            if peer.ask_at.is_some_and(|at| at <= now) {
                let pause = if peer.conflict.is_some() { CONFLICT_RETRY } else { self.retry_interval };
                peer.ask_at = Some(now + pause);
                out.push(Effect::SendPeer { to: node.clone(), message: message.clone() });
            }
        }
    }

    /// Asks members that come up, and stops waiting for members that go.
    pub(super) fn on_members(&mut self, now: Instant, members: &Members, out: &mut Vec<Effect>) {
        let is_up = |phase: MemberPhase| !matches!(phase, MemberPhase::Joining | MemberPhase::Down);
        let present =
            |node: &UniqueAddress| members.members.get(node).filter(|member| member.phase != MemberPhase::Down);
        self.is_up = present(&self.own).is_some_and(|own| is_up(own.phase));
        self.peers.retain(|node, _| present(node).is_some());
        let others = members.members.iter().filter(|(node, _)| **node != self.own && present(node).is_some());
        for (node, member) in others {
            let peer = self.peers.entry(node.clone()).or_default();
            // A joining member may know that it is up before this node does: its questions are answered, but it is not
            // asked.
            if is_up(member.phase) && !peer.answered {
                peer.ask_at = peer.ask_at.or(Some(now));
            }
            peer.counts = is_up(member.phase) && member.reachable;
        }
        self.on_tick(now, out);
        self.update_outcome(now, out);
    }

    /// A coordinator incarnation of this node has started (`Some`) or ended.
    pub(super) fn on_coordinator(&mut self, now: Instant, incarnation: Option<u64>, out: &mut Vec<Effect>) {
        self.coordinator = incarnation;
        self.granted = false;
        if incarnation.is_some() {
            self.begin_round(now);
            self.on_tick(now, out);
        }
        self.update_outcome(now, out);
    }

    /// A coordinator has sent this node a home: its side is active.
    pub(super) fn on_home(&mut self) {
        self.has_home = true;
    }

    /// The region of this node has stopped.
    pub(super) fn on_stopped(&mut self) {
        self.hosts = false;
        self.has_home = false;
    }

    /// A member asks, or answers. Questions are answered even while this node does not trust its own view.
    pub(super) fn on_message(
        &mut self,
        now: Instant,
        node: &UniqueAddress,
        message: PeerMessage,
        out: &mut Vec<Effect>,
    ) {
        match message {
            PeerMessage::AnnounceType { round, claim } => {
                let conflict = self.conflict_with(claim);
                let differs = conflict.is_some();
                // Do not answer an unknown sender (it asks again): its claim cannot be kept here, and then both sides
                // could decide.
                let Some(peer) = self.peers.get_mut(node) else { return };
                peer.note(now, conflict);
                self.update_outcome(now, out);
                let message = if differs {
                    PeerMessage::TypeConflict { round, claim: self.claim() }
                } else {
                    PeerMessage::TypeOk { round }
                };
                out.push(Effect::SendPeer { to: node.clone(), message });
            }
            PeerMessage::TypeOk { round } => self.on_answer(now, node, round, None, out),
            PeerMessage::TypeConflict { round, claim } => {
                let conflict = self.conflict_with(claim);
                self.on_answer(now, node, round, conflict, out);
            }
            PeerMessage::StaleRoute(_) | PeerMessage::FlushEcho { .. } => {}
        }
    }

    fn on_answer(
        &mut self,
        now: Instant,
        node: &UniqueAddress,
        round: u64,
        conflict: Option<Conflict>,
        out: &mut Vec<Effect>,
    ) {
        let Some(peer) = self.peers.get_mut(node).filter(|_| round == self.round) else { return };
        peer.answered = true;
        peer.ask_at = None;
        peer.note(now, conflict);
        self.update_outcome(now, out);
    }

    /// Draws the conclusion, and reports it if it has changed.
    fn update_outcome(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let was_refused = matches!(self.outcome, AgreementOutcome::Refused(_));
        let verdict = self.verdict();
        if was_refused && !matches!(verdict, AgreementOutcome::Refused(_)) {
            // Ask again: other sides may have become active because this side was refused.
            self.begin_round(now);
            self.on_tick(now, out);
            return self.report(self.verdict(), out);
        }
        self.report(verdict, out);
    }

    fn report(&mut self, verdict: AgreementOutcome, out: &mut Vec<Effect>) {
        if verdict == AgreementOutcome::Agreed && self.coordinator.is_some() {
            // From here on the coordinator may decide at any moment.
            self.granted = true;
        }
        let dispute = self.find_dispute();
        if self.dispute != dispute {
            self.dispute.clone_from(&dispute);
            out.extend(dispute.map(|mismatch| Effect::Event(RegionEvent::Disputed(mismatch))));
        }
        if verdict == self.outcome {
            return;
        }
        self.outcome = verdict.clone();
        out.push(Effect::Agreement { coordinator: self.coordinator, outcome: verdict });
    }

    fn verdict(&self) -> AgreementOutcome {
        let mut conflicts = self.peers.iter().filter_map(|(node, peer)| Some((node, peer.conflict.as_ref()?)));
        let own_role = self.fingerprint.role.as_bytes();
        let stays = |conflict: &Conflict| conflict.active || (!conflict.refused && conflict.role.as_bytes() < own_role);
        if !self.is_active()
            && let Some((node, conflict)) = conflicts.find(|(_, conflict)| stays(conflict))
        {
            return AgreementOutcome::Refused(self.mismatch(node, conflict));
        }
        let waits = self.peers.values().any(|peer| peer.counts && !peer.answered);
        if waits || !self.asks() { AgreementOutcome::Asking } else { AgreementOutcome::Agreed }
    }

    fn find_dispute(&self) -> Option<Mismatch> {
        let mut conflicts = self.peers.iter().filter_map(|(node, peer)| Some((node, peer.conflict.as_ref()?)));
        let (node, conflict) = conflicts.find(|(_, conflict)| conflict.active && self.is_active())?;
        Some(self.mismatch(node, conflict))
    }

    /// Discards all answers and asks every member again.
    fn begin_round(&mut self, now: Instant) {
        self.round = self.round.wrapping_add(1);
        self.outcome = AgreementOutcome::Asking;
        for peer in self.peers.values_mut() {
            peer.answered = false;
            peer.ask_at = Some(now);
        }
    }

    fn asks(&self) -> bool {
        self.is_up && (self.hosts || self.coordinator.is_some())
    }

    fn is_active(&self) -> bool {
        self.granted || self.has_home
    }

    fn claim(&self) -> TypeClaim {
        TypeClaim {
            fingerprint: self.fingerprint.clone(),
            active: self.is_active(),
            refused: matches!(self.outcome, AgreementOutcome::Refused(_)),
        }
    }

    /// The conflict between a claim and this node's role; `None` on a node that runs nothing of the type.
    fn conflict_with(&self, claim: TypeClaim) -> Option<Conflict> {
        let runs = self.hosts || self.coordinator.is_some();
        let TypeClaim { fingerprint, active, refused } = claim;
        (runs && fingerprint.role != self.fingerprint.role).then_some(Conflict {
            role: fingerprint.role,
            active,
            refused,
        })
    }

    fn mismatch(&self, node: &UniqueAddress, conflict: &Conflict) -> Mismatch {
        let side = |role: &str, node: &UniqueAddress| format!("{role} (on {})", node.address());
        Mismatch {
            field: "role".to_owned(),
            expected: side(&conflict.role, node),
            got: side(&self.fingerprint.role, &self.own),
        }
    }
}

impl Peer {
    fn note(&mut self, now: Instant, conflict: Option<Conflict>) {
        if conflict.is_some() {
            self.ask_at = self.ask_at.or(Some(now + CONFLICT_RETRY));
        }
        self.conflict = conflict;
    }
}

#[cfg(test)]
mod tests;
