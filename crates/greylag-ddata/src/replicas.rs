//! The other replicas, as the source of membership tells them.
//!
//! The replicator reads no gossip. It is given a [`Replicas`] whenever anything changes, from a
//! static list, from a program, or from the cluster crate.

use std::collections::BTreeSet;

use greylag_core::{NodeAddress, UniqueAddress};

/// What membership says of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaStatus {
    /// On its way in: it may synchronize, and counts for nothing yet.
    Joining,
    /// Let in while others were unreachable: it gets all changes, and counts for nothing yet.
    WeaklyUp,
    /// A full member; also one that prepares for, or is ready for, the shutdown of the whole.
    Up,
    /// On its way out, still counted.
    Leaving,
    /// On its way out; counted by the levels that count all voters.
    Exiting,
    /// Declared dead and not yet removed; counted as `Exiting` is.
    Down,
}

impl ReplicaStatus {
    /// Whether such a replica counts in levels.
    pub fn is_voter(self) -> bool {
        !matches!(self, Self::Joining | Self::WeaklyUp)
    }

    /// Whether such a replica counts in the levels that leave out members on their way out.
    pub fn is_staying_voter(self) -> bool {
        matches!(self, Self::Up | Self::Leaving)
    }

    /// Whether such a replica gets deltas and takes part in anti-entropy.
    pub fn is_peer(self) -> bool {
        self != Self::Joining
    }
}

/// One other replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// The process.
    pub address: UniqueAddress,
    /// What membership says of it.
    pub status: ReplicaStatus,
    /// Whether it can be reached, as far as is known.
    pub reachable: bool,
    /// Its place in age order: the smaller, the older.
    pub age: u64,
}

/// All replicas, seen from one of them. Vocabulary: ddata, opening section.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replicas {
    /// This one's status; `None` as long as membership does not know it yet.
    pub own_status: Option<ReplicaStatus>,
    /// This one's place in age order.
    pub own_age: u64,
    /// The others.
    pub others: Vec<Replica>,
    /// Voters that are known to exist but were never met, so nothing can be sent to them. They count
    /// all the same: a majority is never computed over the peers met so far. Source: ddata I2.
    pub unmet: BTreeSet<NodeAddress>,
    /// Processes that were removed; nothing of theirs is taken any more.
    pub removed: BTreeSet<UniqueAddress>,
}

impl Replicas {
    /// This replica alone, as a voter.
    pub fn alone() -> Self {
        Self { own_status: Some(ReplicaStatus::Up), ..Self::default() }
    }

    /// Whether membership has said anything so far.
    pub fn is_anything_known(&self) -> bool {
        self.own_status.is_some() || !self.others.is_empty() || !self.unmet.is_empty() || !self.removed.is_empty()
    }

    /// Whether this one counts in levels.
    pub fn own_is_voter(&self) -> bool {
        self.own_status.is_some_and(ReplicaStatus::is_voter)
    }

    /// How many voters there are, this one included if it is one.
    pub fn voter_count(&self) -> usize {
        let others = self.others.iter().filter(|replica| replica.status.is_voter()).count();
        others + self.unmet.len() + usize::from(self.own_is_voter())
    }

    /// The replica with this address.
    pub fn other(&self, address: &UniqueAddress) -> Option<&Replica> {
        self.others.iter().find(|replica| replica.address == *address)
    }
}
