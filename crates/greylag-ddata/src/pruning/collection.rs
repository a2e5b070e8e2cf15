//! Tracks which members an owner has collected: from which it has everything that a removed replica wrote.
//!
//! A member is collected by a complete sync round that it began or answered knowing the pruning round: from then on it
//! takes nothing of the removed replica, so everything it had is at the owner. A member that vanishes before that may
//! have passed data on to a member that was already collected, so collection starts afresh. Source: ddata Z4.

use std::collections::{BTreeMap, BTreeSet};

use greylag_core::UniqueAddress;
use greylag_crdt::ReplicaId;

use super::PruningRound;

/// The own pruning rounds as they stood when a sync round began; completing the sync round collects for these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RoundsSnapshot(BTreeMap<ReplicaId, (u64, u64)>);

#[derive(Debug)]
struct Collection {
    epoch: u64,
    /// Rises when the collection starts afresh.
    generation: u64,
    /// Members that have shown that they know the round.
    shown: BTreeSet<UniqueAddress>,
    collected: BTreeSet<UniqueAddress>,
    /// The members to be collected, as last known.
    members: BTreeSet<UniqueAddress>,
    done: bool,
}

impl Collection {
    fn finish(&mut self) {
        self.done |= self.members.is_subset(&self.collected);
    }
}

/// The collections of the own rounds.
#[derive(Debug, Default)]
pub(crate) struct Collections(BTreeMap<ReplicaId, Collection>);

impl Collections {
    /// Begins or continues a collection. Returns the members still missing; none once all were collected.
    pub(super) fn begin(
        &mut self,
        removed: ReplicaId,
        epoch: u64,
        members: &BTreeSet<UniqueAddress>,
    ) -> BTreeSet<UniqueAddress> {
        if self.0.get(&removed).is_some_and(|own| own.epoch != epoch) {
            self.0.remove(&removed);
        }
        let own = self.0.entry(removed).or_insert_with(|| Collection {
            epoch,
            generation: 0,
            shown: BTreeSet::new(),
            collected: BTreeSet::new(),
            members: members.clone(),
            done: false,
        });
        own.finish();
        if own.done { BTreeSet::new() } else { own.members.difference(&own.collected).cloned().collect() }
    }

    pub(super) fn remove(&mut self, removed: ReplicaId) {
        self.0.remove(&removed);
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(ReplicaId) -> bool) {
        self.0.retain(|removed, _| keep(*removed));
    }

    /// Takes a change of the members.
    pub(super) fn on_members(&mut self, members: &BTreeSet<UniqueAddress>) {
        for own in self.0.values_mut().filter(|own| !own.done) {
            if own.members.iter().any(|member| !members.contains(member) && !own.collected.contains(member)) {
                own.generation += 1;
                own.collected.clear();
            }
            own.members.clone_from(members);
        }
    }

    /// Counts vanished members as collected; for simulations that prove their checkers.
    pub(super) fn count_vanished_as_collected(&mut self, members: &BTreeSet<UniqueAddress>) {
        for own in self.0.values_mut() {
            own.collected.extend(own.members.difference(members).cloned());
        }
    }

    /// Takes the rounds that a member has shown to know.
    pub(super) fn on_shown(&mut self, peer: &UniqueAddress, owner: ReplicaId, rounds: &[PruningRound]) {
        for round in rounds.iter().filter(|round| round.owner == owner) {
            if let Some(own) = self.0.get_mut(&round.removed).filter(|own| own.epoch == round.epoch) {
                own.shown.insert(peer.clone());
            }
        }
    }

    /// The present state of every own round.
    pub(crate) fn snapshot(&self) -> RoundsSnapshot {
        RoundsSnapshot(self.0.iter().map(|(removed, own)| (*removed, (own.epoch, own.generation))).collect())
    }

    /// The part of a snapshot whose rounds the peer has shown to know.
    pub(crate) fn known_by(&self, peer: &UniqueAddress, snapshot: &RoundsSnapshot) -> RoundsSnapshot {
        let known =
            snapshot.0.iter().filter(|(removed, _)| self.0.get(removed).is_some_and(|own| own.shown.contains(peer)));
        RoundsSnapshot(known.map(|(removed, token)| (*removed, *token)).collect())
    }

    /// Notes a complete sync round with a member; `snapshot` is the state of the own rounds when it began.
    pub(crate) fn on_completed(&mut self, peer: &UniqueAddress, snapshot: &RoundsSnapshot) {
        for (removed, token) in &snapshot.0 {
            if let Some(own) = self.0.get_mut(removed).filter(|own| (own.epoch, own.generation) == *token) {
                own.collected.insert(peer.clone());
                own.finish();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const R: ReplicaId = ReplicaId(9);
    const OWNER: ReplicaId = ReplicaId(1);

    fn members(names: &str) -> BTreeSet<UniqueAddress> {
        names.chars().map(|name| format!("{name}:1#7").parse().unwrap()).collect()
    }

    fn begun(names: &str) -> Collections {
        let mut collections = Collections::default();
        assert_eq!(collections.begin(R, 1, &members(names)), members(names));
        collections
    }

    fn collect(collections: &mut Collections, name: &str) {
        let peer = members(name).pop_first().unwrap();
        let round = PruningRound { removed: R, epoch: 1, owner: OWNER, created_at: 0 };
        let began = collections.snapshot();
        collections.on_shown(&peer, OWNER, &[round]);
        let known = collections.known_by(&peer, &began);
        collections.on_completed(&peer, &known);
    }

    /// ddata Z4: a sync round that a member began without knowing the pruning round collects nothing.
    #[test]
    fn only_members_that_know_the_round_are_collected() {
        let mut collections = begun("ab");
        let peer = members("a").pop_first().unwrap();
        let began = collections.snapshot();
        let known = collections.known_by(&peer, &began);
        collections.on_completed(&peer, &known);
        assert_eq!(collections.begin(R, 1, &members("ab")), members("ab"));
        collect(&mut collections, "a");
        assert_eq!(collections.begin(R, 1, &members("ab")), members("b"));
    }

    /// ddata Z4: a member that vanishes uncollected may have passed data on, so collection starts afresh.
    #[test]
    fn an_uncollected_member_that_vanishes_restarts_the_collection() {
        let mut collections = begun("abc");
        collect(&mut collections, "a");
        let peer = members("b").pop_first().unwrap();
        let began = collections.snapshot();
        collections.on_members(&members("ab"));
        assert_eq!(collections.begin(R, 1, &members("ab")), members("ab"));
        collections.on_completed(&peer, &began);
        assert_eq!(collections.begin(R, 1, &members("ab")), members("ab"), "that round began before");
        collect(&mut collections, "a");
        collections.on_members(&members("b"));
        assert_eq!(collections.begin(R, 1, &members("b")), members("b"), "who was collected may go");
        collections.on_members(&members("bd"));
        collect(&mut collections, "b");
        assert_eq!(collections.begin(R, 1, &members("bd")), members("d"), "who joins is collected too");
        collect(&mut collections, "d");
        assert_eq!(collections.begin(R, 1, &members("bd")), members(""));
    }
}
