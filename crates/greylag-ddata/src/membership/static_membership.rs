//! Membership from a fixed list: finds out which process runs at each address, and whether it is reachable.
//!
//! ```text
//! Ping(address)        silence makes the process there unreachable, a word of it reachable
//! an answered dial     names the process at an address: another one there takes its place, and the old one is removed
//! a word of another    changes nothing; the address is asked who runs there (AskWho), and its answer decides
//! ```
//!
//! Every configured peer counts as a voter from the start, so a majority is never computed over the peers met so far,
//! and a process that replaces another leaves the number of voters as it was. A caller that claims an address proves
//! nothing, because any process that reaches this node's port can call, and a member removed on its word would be
//! removed for good. Source: ddata I2.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, UniqueAddress};

use crate::membership::replicas::{Replica, ReplicaStatus, Replicas};

/// Pings per `unreachable_after`; one lost ping does not make a peer unreachable.
const PINGS: u32 = 5;

#[derive(Debug, Default)]
struct Peer {
    process: Option<UniqueAddress>,
    heard_at: Option<Instant>,
    reachable: bool,
}

/// What a sign of life proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    /// The process says that it runs at its address.
    Word,
    /// The process answered a dial of this node, so it listens at its address.
    AnsweredDial,
}

/// The effects of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StaticEffect {
    /// Ask the process at this address for a sign of life.
    Ping(NodeAddress),
    /// Dial this address, so that the process that listens there names itself.
    AskWho(NodeAddress),
    /// Publish these replicas.
    Publish(Replicas),
}

/// Watches the peers of a fixed list.
#[derive(Debug)]
pub(crate) struct StaticMembership {
    own: UniqueAddress,
    peers: BTreeMap<NodeAddress, Peer>,
    removed: BTreeSet<UniqueAddress>,
    unreachable_after: Duration,
    ping_at: Instant,
}

impl StaticMembership {
    /// Watches `peers`; the own address among them is left out.
    pub(crate) fn new(
        own: UniqueAddress,
        peers: impl IntoIterator<Item = NodeAddress>,
        unreachable_after: Duration,
        now: Instant,
    ) -> Self {
        let peers = peers.into_iter().filter(|peer| peer != own.address());
        let peers = peers.map(|peer| (peer, Peer::default())).collect();
        Self { own, peers, removed: BTreeSet::new(), unreachable_after, ping_at: now }
    }

    /// Takes a sign of life of a process.
    pub(crate) fn on_heard(&mut self, now: Instant, process: &UniqueAddress, sign: Sign, out: &mut Vec<StaticEffect>) {
        // Ignore a late message of a process that was replaced.
        if self.removed.contains(process) {
            return;
        }
        let Some(peer) = self.peers.get_mut(process.address()) else { return };
        let is_another = peer.process.as_ref().is_some_and(|known| known != process);
        if is_another && sign == Sign::Word {
            out.push(StaticEffect::AskWho(process.address().clone()));
            return;
        }
        peer.heard_at = Some(now);
        let former = peer.process.replace(process.clone());
        let new = former.as_ref() != Some(process);
        if let Some(former) = former.filter(|former| former != process) {
            self.removed.insert(former);
        }
        if new || !peer.reachable {
            peer.reachable = true;
            self.publish(out);
        }
    }

    /// Takes a peer out of the list: it no longer counts, and what its process left is pruned.
    pub(crate) fn on_taken_out(&mut self, address: &NodeAddress, out: &mut Vec<StaticEffect>) {
        let Some(peer) = self.peers.remove(address) else { return };
        self.removed.extend(peer.process);
        self.publish(out);
    }

    /// Does everything that is due.
    pub(crate) fn on_tick(&mut self, now: Instant, out: &mut Vec<StaticEffect>) {
        if self.ping_at <= now {
            self.ping_at = now + self.unreachable_after / PINGS;
            out.extend(self.peers.keys().cloned().map(StaticEffect::Ping));
        }
        let mut changed = false;
        for peer in self.peers.values_mut().filter(|peer| peer.reachable) {
            if peer.heard_at.is_none_or(|heard_at| heard_at + self.unreachable_after <= now) {
                peer.reachable = false;
                changed = true;
            }
        }
        if changed {
            self.publish(out);
        }
    }

    /// When `on_tick` next has work to do.
    pub(crate) fn next_deadline(&self) -> Instant {
        self.ping_at
    }

    /// The replicas known now.
    pub(crate) fn replicas(&self) -> Replicas {
        // Use the order of addresses as age: there is no history, and the order is the same everywhere.
        let own_age = self.peers.keys().filter(|peer| *peer < self.own.address()).count();
        let age = |index: usize| (index + usize::from(index >= own_age)) as u64;
        let met = self.peers.values().enumerate().filter_map(|(index, peer)| {
            let address = peer.process.clone()?;
            Some(Replica { address, status: ReplicaStatus::Up, reachable: peer.reachable, age: age(index) })
        });
        let others: Vec<Replica> = met.collect();
        let unmet = self.peers.iter().filter(|(_, peer)| peer.process.is_none());
        Replicas {
            own_status: Some(ReplicaStatus::Up),
            own_age: own_age as u64,
            unmet: unmet.map(|(address, _)| address.clone()).collect(),
            others,
            removed: self.removed.clone(),
        }
    }

    fn publish(&self, out: &mut Vec<StaticEffect>) {
        out.push(StaticEffect::Publish(self.replicas()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn node(text: &str) -> UniqueAddress {
        text.parse().unwrap()
    }

    fn watch(now: Instant) -> StaticMembership {
        let peers = ["a:1", "b:1", "c:1"].map(|text| text.parse().unwrap());
        StaticMembership::new(node("b:1#2"), peers, PATIENCE, now)
    }

    #[test]
    fn peers_count_before_they_are_met() {
        let now = Instant::now();
        let mut watch = watch(now);
        assert_eq!((watch.replicas().voter_count(), watch.replicas().unmet.len()), (3, 2));
        watch.on_heard(now, &node("c:1#7"), Sign::Word, &mut Vec::new());
        let replicas = watch.replicas();
        assert_eq!((replicas.voter_count(), replicas.unmet), (3, ["a:1".parse().unwrap()].into()));
        assert_eq!((replicas.own_age, replicas.others[0].age), (1, 2));
    }

    #[test]
    fn a_new_process_at_an_address_replaces_the_old_one() {
        let now = Instant::now();
        let mut watch = watch(now);
        watch.on_heard(now, &node("a:1#1"), Sign::Word, &mut Vec::new());
        watch.on_heard(now, &node("a:1#9"), Sign::AnsweredDial, &mut Vec::new());
        watch.on_heard(now, &node("a:1#1"), Sign::AnsweredDial, &mut Vec::new());
        let replicas = watch.replicas();
        assert_eq!(replicas.others.iter().map(|r| r.address.clone()).collect::<Vec<_>>(), [node("a:1#9")]);
        assert_eq!((replicas.removed, watch.replicas().voter_count()), ([node("a:1#1")].into(), 3));
    }

    /// ddata I2: a process that calls under a member's address changes nothing, and does not end the member's silence;
    /// the address is asked which process listens there.
    #[test]
    fn a_call_alone_removes_no_member() {
        let now = Instant::now();
        let (mut watch, mut out) = (watch(now), Vec::new());
        watch.on_heard(now, &node("a:1#1"), Sign::AnsweredDial, &mut out);
        out.clear();
        watch.on_heard(now + PATIENCE / 2, &node("a:1#9"), Sign::Word, &mut out);
        assert_eq!(out, [StaticEffect::AskWho("a:1".parse().unwrap())]);
        let replicas = watch.replicas();
        assert_eq!((replicas.others[0].address.clone(), replicas.removed), (node("a:1#1"), BTreeSet::new()));
        watch.on_tick(now + PATIENCE, &mut out);
        assert!(!watch.replicas().others[0].reachable, "the word of another is no sign of life");
        watch.on_heard(now + PATIENCE, &node("a:1#1"), Sign::AnsweredDial, &mut out);
        assert!(watch.replicas().others[0].reachable);
    }

    /// ddata I2, Z11: a peer that will not come is taken out, met or not; it no longer counts and is not waited for.
    #[test]
    fn a_peer_that_will_not_come_is_taken_out() {
        let now = Instant::now();
        let (mut watch, mut out) = (watch(now), Vec::new());
        watch.on_heard(now, &node("a:1#1"), Sign::Word, &mut out);
        for (address, voters) in [("c:1", 2), ("a:1", 1), ("a:1", 1)] {
            watch.on_taken_out(&address.parse().unwrap(), &mut out);
            assert_eq!((watch.replicas().voter_count(), watch.replicas().unmet.len()), (voters, 0));
        }
        assert_eq!(watch.replicas().removed, [node("a:1#1")].into());
        watch.on_heard(now, &node("a:1#2"), Sign::AnsweredDial, &mut out);
        assert_eq!(watch.replicas().voter_count(), 1);
    }

    #[test]
    fn a_silent_member_is_unreachable_until_it_is_heard_again() {
        let now = Instant::now();
        let mut watch = watch(now);
        let mut out = Vec::new();
        watch.on_heard(now, &node("a:1#1"), Sign::Word, &mut out);
        watch.on_tick(now + PATIENCE / 2, &mut out);
        assert_eq!(out.iter().filter(|effect| matches!(effect, StaticEffect::Ping(_))).count(), 2);
        assert!(watch.replicas().others[0].reachable);
        watch.on_tick(now + PATIENCE, &mut out);
        assert!(!watch.replicas().others[0].reachable);
        watch.on_heard(now + PATIENCE, &node("a:1#1"), Sign::Word, &mut out);
        assert!(watch.replicas().others[0].reachable);
    }
}
