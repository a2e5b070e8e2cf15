//! The replicas, as the source of membership reports them.
//!
//! The replicator reads no gossip. It gets a [`Replicas`] whenever anything changes, from a fixed list, from a program,
//! or from the cluster crate.

use std::collections::BTreeSet;

use greylag_core::{NodeAddress, UniqueAddress};

/// The status of a replica in membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaStatus {
    /// Joining: the replica may synchronize, and counts for nothing yet.
    Joining,
    /// Let in while others were unreachable: the replica gets all changes, and counts for nothing yet.
    WeaklyUp,
    /// A full member, also one that prepares for, or is ready for, the shutdown of the whole cluster.
    Up,
    /// Leaving, still counted.
    Leaving,
    /// Exiting: counted only by the levels that count all voters.
    Exiting,
    /// Declared dead and not yet removed; counted as `Exiting` is.
    Down,
}

impl ReplicaStatus {
    /// Whether replicas with this status count in levels.
    pub fn is_voter(self) -> bool {
        !matches!(self, Self::Joining | Self::WeaklyUp)
    }

    /// Whether replicas with this status count in the levels that leave out exiting and down members.
    pub fn is_staying_voter(self) -> bool {
        matches!(self, Self::Up | Self::Leaving)
    }

    /// Whether replicas with this status get deltas and take part in anti-entropy.
    pub fn is_peer(self) -> bool {
        self != Self::Joining
    }
}

/// One other replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// The process.
    pub address: UniqueAddress,
    /// The status of the process.
    pub status: ReplicaStatus,
    /// Whether the process is reachable, as far as is known.
    pub reachable: bool,
    /// The place in age order: the smaller, the older.
    pub age: u64,
}

/// All replicas, as seen by one of them. Vocabulary: ddata, opening section.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replicas {
    /// The own status; `None` as long as membership does not know this replica.
    pub own_status: Option<ReplicaStatus>,
    /// The own place in age order.
    pub own_age: u64,
    /// The other replicas.
    pub others: Vec<Replica>,
    /// Voters that are configured but were never met, so nothing can be sent to them. They count nevertheless: a
    /// majority is never computed over the peers met so far. Source: ddata I2.
    pub unmet: BTreeSet<NodeAddress>,
    /// Removed processes; their messages are dropped.
    pub removed: BTreeSet<UniqueAddress>,
}

impl Replicas {
    /// A set of this replica alone, as a voter.
    pub fn alone() -> Self {
        Self { own_status: Some(ReplicaStatus::Up), ..Self::default() }
    }

    /// Whether membership has reported anything so far.
    pub fn is_anything_known(&self) -> bool {
        self.own_status.is_some() || !self.others.is_empty() || !self.unmet.is_empty() || !self.removed.is_empty()
    }

    /// Whether this replica counts in levels.
    pub fn own_is_voter(&self) -> bool {
        self.own_status.is_some_and(ReplicaStatus::is_voter)
    }

    /// The number of voters, including this replica if it is one.
    pub fn voter_count(&self) -> usize {
        let others = self.others.iter().filter(|replica| replica.status.is_voter()).count();
        others + self.unmet.len() + usize::from(self.own_is_voter())
    }

    /// The replica with this address.
    pub fn other(&self, address: &UniqueAddress) -> Option<&Replica> {
        self.others.iter().find(|replica| replica.address == *address)
    }
}
