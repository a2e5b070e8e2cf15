//! The nodes that must be settled before this node may start the instance, and their answers.
//!
//! Each request has a number, so that an answer counts only for the newest request: answers that crossed with a claim
//! of their sender are void.
//!
//! Source: cluster P3, P3a.

use std::collections::{BTreeMap, BTreeSet};

use greylag_core::UniqueAddress;

use super::roster::Roster;
use crate::testing::omissions::{Clause, Omissions};

/// What this node knows of those that may run the instance.
#[derive(Debug, Default)]
pub(super) struct Clearance {
    /// Earlier oldest members, and nodes that claimed or offered the instance.
    noted: BTreeSet<UniqueAddress>,
    /// The number of the newest request to each node.
    asked: BTreeMap<UniqueAddress, u64>,
    /// Nodes that answered this node's newest request with "no instance runs here".
    cleared: BTreeSet<UniqueAddress>,
    /// Nodes that answered that their instance is ending.
    in_progress: BTreeSet<UniqueAddress>,
    attempt: u64,
    omissions: Omissions,
}

impl Clearance {
    pub(super) fn new(omissions: Omissions) -> Self {
        Self { omissions, ..Self::default() }
    }

    /// All nodes that may have run the instance and are not settled. `at_start`: this node was never up before. Source:
    /// cluster P3a.
    pub(super) fn unsettled(&self, roster: &Roster, at_start: bool) -> BTreeSet<UniqueAddress> {
        let is_settled = |address: &UniqueAddress| roster.is_settled(address) || self.cleared.contains(address);
        let mut previous = self.noted.clone();
        if !self.omissions.has(Clause::Clearance) {
            previous.extend(roster.predecessors(at_start));
        }
        previous.retain(|address| !is_settled(address));
        previous
    }

    /// Begins a clearance: no answer to an earlier request counts.
    pub(super) fn begin(&mut self) {
        self.asked.clear();
        self.cleared.clear();
        self.in_progress.clear();
    }

    /// Notes nodes that may run the instance.
    pub(super) fn note(&mut self, nodes: impl IntoIterator<Item = UniqueAddress>) {
        self.noted.extend(nodes);
    }

    /// Notes the node that is the oldest while this one is not.
    pub(super) fn on_oldest(&mut self, oldest: Option<UniqueAddress>) {
        if self.omissions.has(Clause::Clearance) {
            self.noted.clear();
        }
        self.noted.extend(oldest);
    }

    /// Forgets all noted nodes, since the instance starts here.
    pub(super) fn on_started(&mut self) {
        self.noted.clear();
    }

    /// Forgets nodes that were removed and are settled.
    pub(super) fn on_removed(&mut self, settled: &[UniqueAddress]) {
        for node in settled {
            self.noted.remove(node);
        }
    }

    /// Voids the answers of a node that may start the instance now, and the requests to it that are under way.
    pub(super) fn on_may_start(&mut self, node: UniqueAddress) {
        self.cleared.remove(&node);
        self.asked.remove(&node);
        if !self.omissions.has(Clause::Clearance) {
            self.noted.insert(node);
        }
    }

    /// The number of the request to send to this node: that of the request under way, or a new one.
    pub(super) fn ask(&mut self, peer: &UniqueAddress) -> u64 {
        *self.asked.entry(peer.clone()).or_insert_with(|| {
            self.attempt += 1;
            self.attempt
        })
    }

    /// The number of a new request to this node, which voids the one under way.
    pub(super) fn ask_anew(&mut self, peer: &UniqueAddress) -> u64 {
        self.asked.remove(peer);
        self.ask(peer)
    }

    pub(super) fn has_asked(&self, peer: &UniqueAddress) -> bool {
        self.asked.contains_key(peer)
    }

    /// Whether all of these nodes answered that their instance is ending.
    pub(super) fn all_in_progress(&self, nodes: &BTreeSet<UniqueAddress>) -> bool {
        nodes.iter().all(|node| self.in_progress.contains(node))
    }

    /// Takes the answer that the instance of `from` is ending.
    pub(super) fn on_in_progress(&mut self, from: UniqueAddress, attempt: u64) {
        if self.is_newest(&from, attempt) {
            self.in_progress.insert(from);
        }
    }

    /// Takes the answer that no instance runs at `from`.
    pub(super) fn on_done(&mut self, from: UniqueAddress, attempt: u64) {
        if self.is_newest(&from, attempt) {
            self.in_progress.remove(&from);
            self.cleared.insert(from);
        }
    }

    /// Source: cluster P3.
    pub(super) fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            assert!(self.cleared.iter().all(|node| self.asked.contains_key(node)), "only an answer clears a node");
            assert!(self.asked.values().all(|attempt| *attempt <= self.attempt), "requests are numbered in order");
        }
    }

    fn is_newest(&self, from: &UniqueAddress, attempt: u64) -> bool {
        self.asked.get(from) == Some(&attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cluster P3: only the answer to the newest request clears a node, and a claim of the node voids its answer.
    #[test]
    fn an_answer_to_an_older_request_clears_nothing() {
        let node: UniqueAddress = "a:1#1".parse().unwrap();
        let mut clearance = Clearance::new(Omissions::default());
        let first = clearance.ask(&node);
        assert_eq!(clearance.ask(&node), first, "the request is repeated");
        let second = clearance.ask_anew(&node);
        assert_ne!(first, second);
        clearance.on_done(node.clone(), first);
        assert!(clearance.cleared.is_empty());
        clearance.on_done(node.clone(), second);
        assert!(clearance.cleared.contains(&node));
        clearance.on_may_start(node.clone());
        assert!(clearance.cleared.is_empty() && !clearance.has_asked(&node));
    }
}
