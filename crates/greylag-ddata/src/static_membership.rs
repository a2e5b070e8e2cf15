//! Membership from a fixed list: finds out which process runs at each address, and whether it can
//! be reached.
//!
//! Every configured peer counts as a voter from the start, so a majority is never computed over the
//! peers met so far. Peers are pinged; any sign of life names the process at an address, and silence
//! makes it unreachable. A process that takes another's place replaces it: the old one is removed
//! and the number of voters stays. Source: ddata I2.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, UniqueAddress};

use crate::replicas::{Replica, ReplicaStatus, Replicas};

/// Pings per `unreachable_after`, so that one lost ping is no verdict.
const PINGS: u32 = 5;

#[derive(Debug, Default)]
struct Peer {
    process: Option<UniqueAddress>,
    heard_at: Option<Instant>,
    reachable: bool,
}

/// What the machine asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StaticEffect {
    /// Ask whoever runs there for a sign of life.
    Ping(NodeAddress),
    /// These are the replicas now.
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

    /// A sign of life of a process.
    pub(crate) fn on_heard(&mut self, now: Instant, process: &UniqueAddress, out: &mut Vec<StaticEffect>) {
        // A late message of a process that was replaced does not bring it back.
        if self.removed.contains(process) {
            return;
        }
        let Some(peer) = self.peers.get_mut(process.address()) else { return };
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

    /// Does everything due by `now`.
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

    /// The replicas as they are known now.
    pub(crate) fn replicas(&self) -> Replicas {
        // Without a history, the order of addresses stands for age: it is the same everywhere.
        let own_age = self.peers.keys().filter(|peer| *peer < self.own.address()).count();
        let age = |index: usize| (index + usize::from(index >= own_age)) as u64;
        let met = self.peers.values().enumerate().filter_map(|(index, peer)| {
            let address = peer.process.clone()?;
            Some(Replica { address, status: ReplicaStatus::Up, reachable: peer.reachable, age: age(index) })
        });
        let others: Vec<Replica> = met.collect();
        Replicas {
            own_status: Some(ReplicaStatus::Up),
            own_age: own_age as u64,
            unmet: self.peers.len() - others.len(),
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
        assert_eq!((watch.replicas().voter_count(), watch.replicas().unmet), (3, 2));
        watch.on_heard(now, &node("c:1#7"), &mut Vec::new());
        let replicas = watch.replicas();
        assert_eq!((replicas.voter_count(), replicas.unmet), (3, 1));
        assert_eq!((replicas.own_age, replicas.others[0].age), (1, 2));
    }

    #[test]
    fn who_returns_as_another_process_takes_the_place_of_the_old() {
        let now = Instant::now();
        let mut watch = watch(now);
        watch.on_heard(now, &node("a:1#1"), &mut Vec::new());
        watch.on_heard(now, &node("a:1#9"), &mut Vec::new());
        watch.on_heard(now, &node("a:1#1"), &mut Vec::new());
        let replicas = watch.replicas();
        assert_eq!(replicas.others.iter().map(|r| r.address.clone()).collect::<Vec<_>>(), [node("a:1#9")]);
        assert_eq!((replicas.removed, watch.replicas().voter_count()), ([node("a:1#1")].into(), 3));
    }

    #[test]
    fn silence_makes_unreachable_and_a_word_ends_it() {
        let now = Instant::now();
        let mut watch = watch(now);
        let mut out = Vec::new();
        watch.on_heard(now, &node("a:1#1"), &mut out);
        watch.on_tick(now + PATIENCE / 2, &mut out);
        assert_eq!(out.iter().filter(|effect| matches!(effect, StaticEffect::Ping(_))).count(), 2);
        assert!(watch.replicas().others[0].reachable);
        watch.on_tick(now + PATIENCE, &mut out);
        assert!(!watch.replicas().others[0].reachable);
        watch.on_heard(now + PATIENCE, &node("a:1#1"), &mut out);
        assert!(watch.replicas().others[0].reachable);
    }
}
