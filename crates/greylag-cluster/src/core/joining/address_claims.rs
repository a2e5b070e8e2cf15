//! Handles another process at a member's address.
//!
//! A name may move to another host while its process runs on, cut off or not: then two processes have one address, and
//! only the resolver's verdict on the member, an operator or a witness may decide which of them goes. So hearing the
//! other process changes nothing; the transport refuses it, and this machine reports which process waits for which
//! member. The waiting process reports its own wait.
//!
//! ```text
//! claimant --Hello--> transport of a member: NOT_READY, AddressHeld{holder, claimant} --> this machine
//! claimant <--NOT_READY{holder}-- transport of a member          (on the claimant: HelloRefused)
//! ```
//!
//! Source: cluster T15, M24, M25, M10.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, UniqueAddress};

use crate::core::state::State;
use crate::core::{Effect, LogLevel};
use crate::gossip::reachability::Status;
use crate::gossip::state::Gossip;
use crate::membership::event::ClusterEvent;
use crate::membership::health::HeldAddress;
use crate::membership::member::MemberStatus;
use crate::membership::members::Members;
use crate::membership::message::Message;
use crate::settings::ProofOfDeath;

/// Least time between two warnings about one claimant.
const WARN_INTERVAL: Duration = Duration::from_secs(60);
/// Least time between two warnings of a process that itself waits (cluster M24).
const OWN_WARN_INTERVAL: Duration = Duration::from_secs(5);
/// Least time between two events about one member.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);
/// A claimant that was silent for this long counts as waiting no more.
const REMEMBER: Duration = Duration::from_secs(60);

/// The processes that claim the addresses of members.
#[derive(Debug, Default)]
pub(in crate::core) struct AddressClaims {
    /// The latest claimant of each member's address.
    claims: BTreeMap<UniqueAddress, Claim>,
    /// The member that holds the address of this process, which waits to join.
    own: Option<Own>,
}

#[derive(Debug)]
struct Claim {
    claimant: UniqueAddress,
    heard_at: Instant,
    warned_at: Instant,
    told_at: Instant,
}

#[derive(Debug)]
struct Own {
    holder: UniqueAddress,
    heard_at: Instant,
    warned_at: Instant,
}

/// How to report a claimant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ClaimReport {
    event: bool,
    warning: bool,
}

impl AddressClaims {
    fn hear(&mut self, now: Instant, holder: UniqueAddress, claimant: UniqueAddress) -> ClaimReport {
        let age = |at: Instant| now.saturating_duration_since(at);
        match self.claims.get_mut(&holder) {
            Some(claim) if claim.claimant == claimant => {
                claim.heard_at = now;
                let warning = age(claim.warned_at) >= WARN_INTERVAL;
                if warning {
                    claim.warned_at = now;
                }
                ClaimReport { event: false, warning }
            }
            // At most one event per holder and second is published: a caller can invent any number of claimants.
            Some(claim) if age(claim.told_at) < EVENT_INTERVAL => ClaimReport { event: false, warning: false },
            _ => {
                self.claims.insert(holder, Claim { claimant, heard_at: now, warned_at: now, told_at: now });
                ClaimReport { event: true, warning: true }
            }
        }
    }

    /// Notes the member that holds this node's own address. True if a warning is due.
    fn hear_own(&mut self, now: Instant, holder: UniqueAddress) -> bool {
        let known = self.own.as_ref().filter(|own| own.holder == holder);
        let warned_at = known.map(|own| own.warned_at);
        let is_due = warned_at.is_none_or(|at| now.saturating_duration_since(at) >= OWN_WARN_INTERVAL);
        let warned_at = warned_at.filter(|_| !is_due).unwrap_or(now);
        self.own = Some(Own { holder, heard_at: now, warned_at });
        is_due
    }

    /// The held addresses that health reports now.
    pub(in crate::core) fn shown(&self, now: Instant, node: &UniqueAddress) -> Vec<HeldAddress> {
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < REMEMBER;
        let of_others = self.claims.iter().filter(|(_, claim)| is_fresh(claim.heard_at));
        let of_others =
            of_others.map(|(holder, claim)| HeldAddress { holder: holder.clone(), claimant: claim.claimant.clone() });
        let own = self.own.iter().filter(|own| is_fresh(own.heard_at));
        let own = own.map(|own| HeldAddress { holder: own.holder.clone(), claimant: node.clone() });
        of_others.chain(own).collect()
    }
}

impl AddressClaims {
    /// Logs that a process waits for the removal of the member that holds its address.
    pub(in crate::core) fn on_held(
        &mut self,
        now: Instant,
        holder: UniqueAddress,
        claimant: UniqueAddress,
        state: &State,
        out: &mut Vec<Effect>,
    ) {
        let Some(member) = state.gossip().members.get(&holder) else { return };
        let status = member.status;
        let ClaimReport { event, warning } = self.hear(now, holder.clone(), claimant.clone());
        if warning {
            let text = format!(
                "{claimant} is heard at the address of {holder}, which is a member ({status}), and cannot have \
                 replaced it: the name has moved to another host, or another process claims it. Nothing changes by \
                 that; {claimant} waits until {holder} is removed"
            );
            out.push(Effect::Log(LogLevel::Warn, text));
        }
        if event {
            out.push(Effect::Publish(ClusterEvent::AddressHeld { holder, claimant }));
        }
    }

    /// Notes that a member holds the address of this process, which waits for the removal of that member. Source:
    /// cluster M24.
    pub(in crate::core) fn on_own_held(
        &mut self,
        now: Instant,
        by: &NodeAddress,
        holder: UniqueAddress,
        node: &UniqueAddress,
        detail: &str,
        out: &mut Vec<Effect>,
    ) {
        if self.hear_own(now, holder) {
            let text = format!("{by} does not let {node} join yet: {detail}");
            out.push(Effect::Log(LogLevel::Warn, text));
        }
    }

    /// Source: cluster T15, M24.
    pub(in crate::core) fn check_invariants(&self, members: &Members) {
        if cfg!(debug_assertions) {
            assert!(self.claims.keys().all(|holder| members.contains_key(holder)), "only members hold an address");
            assert!(self.own.is_none() || members.is_empty(), "a member waits for no address");
        }
    }

    /// Forgets claims that no longer matter to these members.
    pub(in crate::core) fn on_members(&mut self, members: &Members) {
        self.claims.retain(|holder, _| members.contains_key(holder));
        if !members.is_empty() {
            self.own = None;
        }
    }
}

/// Whether the sender claims the address of a member and sends anything but a request to join. Source: cluster T15.
pub(in crate::core) fn is_claim_of_more_than_a_join(state: &State, from: &UniqueAddress, message: &Message) -> bool {
    !matches!(message, Message::InitJoin { .. } | Message::Join { .. })
        && !state.is_member(from)
        && state.members_at(from.address()).next().is_some()
}

/// The members that a process has replaced, which answered a dial at their address: those that named the same host.
/// Source: cluster S20 (a).
pub(in crate::core) fn replaced_by(
    state: &State,
    peer: &UniqueAddress,
    host_id: Option<&str>,
    policy: ProofOfDeath,
) -> Vec<UniqueAddress> {
    let others = state.members_at(peer.address()).filter(|member| member.address != *peer && !member.dead);
    let replaced = others.filter(|member| policy.replacers(member.host_id.as_ref()).include(host_id));
    replaced.map(|member| member.address.clone()).collect()
}

/// The addresses that two living members share. A leader dials each, converged or not, to learn which process runs
/// there: a replaced member goes; one that was not replaced is judged like every member. Source: cluster M10.
pub(in crate::core) fn shared_addresses(gossip: &Gossip) -> BTreeSet<NodeAddress> {
    let alive = gossip.members.values().filter(|member| !member.dead && member.status != MemberStatus::Down);
    let alive: Vec<&UniqueAddress> = alive.map(|member| &member.address).collect();
    let pairs = alive.windows(2).filter(|pair| pair[0].address() == pair[1].address());
    pairs.map(|pair| pair[0].address().clone()).collect()
}

/// An omission that scenario 76 must notice: the state in which the members at the joiner's address are Down, because
/// their name was heard elsewhere. `None` if that is no change.
pub(in crate::core) fn downed_for(state: &State, joiner: &UniqueAddress) -> Option<Gossip> {
    let mut gossip = Gossip::clone(state.gossip());
    let holders: Vec<UniqueAddress> = state.members_at(joiner.address()).map(|m| m.address.clone()).collect();
    for holder in &holders {
        gossip.reachability.set(state.node(), holder, Status::Terminated);
    }
    gossip.members.update(|member| {
        let goes = holders.contains(&member.address) && member.status != MemberStatus::Down;
        goes.then(|| member.in_status(MemberStatus::Down))
    });
    (gossip != **state.gossip()).then_some(gossip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str) -> UniqueAddress {
        text.parse().unwrap()
    }

    /// Cluster T15: one report per claimant, at most one event a second, the warning again every minute.
    #[test]
    fn a_claimant_is_told_of_once_and_warned_of_every_minute() {
        let (mut claims, begin) = (AddressClaims::default(), Instant::now());
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let hear = |claims: &mut AddressClaims, ms, who: &str| claims.hear(at(ms), node("b:1#1"), node(who));
        let (both, none) = (ClaimReport { event: true, warning: true }, ClaimReport { event: false, warning: false });
        assert_eq!(hear(&mut claims, 0, "b:1#2"), both);
        assert_eq!(hear(&mut claims, 1_000, "b:1#2"), none);
        assert_eq!(hear(&mut claims, 59_999, "b:1#2"), none);
        assert_eq!(hear(&mut claims, 60_000, "b:1#2"), ClaimReport { event: false, warning: true });
        assert_eq!(hear(&mut claims, 61_000, "b:1#3"), both, "another one");
        assert_eq!(hear(&mut claims, 61_999, "b:1#4"), none, "the third within a second");
        assert_eq!(hear(&mut claims, 62_000, "b:1#4"), both);
        let shown = |claims: &AddressClaims, ms| claims.shown(at(ms), &node("a:1#1"));
        let latest = HeldAddress { holder: node("b:1#1"), claimant: node("b:1#4") };
        assert_eq!(shown(&claims, 121_999), [latest]);
        assert_eq!(shown(&claims, 122_000), [], "it gave up");
    }

    /// Cluster M24: the waiting process warns at once and every 5 s.
    #[test]
    fn a_waiting_process_warns_at_once_and_every_five_seconds() {
        let (mut claims, begin) = (AddressClaims::default(), Instant::now());
        let mut hear = |ms: u64, who: &str| claims.hear_own(begin + Duration::from_millis(ms), node(who));
        assert!(hear(0, "b:1#1"));
        assert!(!hear(1_000, "b:1#1") && !hear(4_999, "b:1#1"));
        assert!(hear(5_000, "b:1#1"));
        assert!(!hear(9_999, "b:1#1") && hear(10_000, "b:1#1"));
        assert!(hear(10_001, "b:1#9"), "another member");
    }
}
