//! The health of a node in one value: for operators and for readiness checks.
//!
//! Source: cluster M36.

use std::collections::{BTreeMap, BTreeSet};

use greylag_core::{DeadLetterReason, UniqueAddress};
use greylag_transport::DEGRADED_DAYS;

use crate::gossip::state::Blockers;
use crate::membership::member::MemberStatus;

/// The health of a node at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    /// Whether this node has joined, and has not ended.
    pub initialized: bool,
    /// This node's own status.
    pub status: Option<MemberStatus>,
    /// The leader, as far as this node can tell.
    pub leader: Option<UniqueAddress>,
    /// Whether every member whose agreement convergence needs has seen the state, so that the leader can act.
    pub converged: bool,
    /// The conditions that keep the leader from acting (cluster M19). Empty if it can act.
    pub blockers: Blockers,
    /// Consecutive ticks in which this node could not act as the leader; 0 if it need not.
    pub blocked_ticks: u32,
    /// Members that are unreachable, each with the members that find it so.
    pub unreachable: BTreeMap<UniqueAddress, BTreeSet<UniqueAddress>>,
    /// Whether this node may have been removed without knowing it (cluster F9).
    pub suspect: bool,
    /// Another cluster of the same name, met in the last minutes (cluster M25b).
    pub foreign_cluster: Option<ForeignCluster>,
    /// Members whose addresses are claimed by processes that cannot have replaced them; on a process that waits to
    /// join, the member that holds its own address (cluster T15).
    pub held_addresses: Vec<HeldAddress>,
    /// Whole days until this node's certificate ends, negative once it has; `None` without TLS (scenario 83).
    pub certificate_days_left: Option<i64>,
    /// Messages dropped in the last minute, by reason.
    pub dead_letters: BTreeMap<DeadLetterReason, u64>,
}

/// A member and another process at its address: the name has moved, or another process claims it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldAddress {
    /// The member; it stays until it is removed.
    pub holder: UniqueAddress,
    /// The process heard last that waits for the member's removal.
    pub claimant: UniqueAddress,
}

/// Another cluster of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignCluster {
    /// The other cluster's id.
    pub cluster_id: u128,
    /// The number of its members, if known.
    pub size: Option<u32>,
}

impl Health {
    /// Whether no operator is needed: joined, trusted, converged, every member reachable, no other cluster of the same
    /// name, no other process at a member's address, and a certificate that lasts.
    pub fn is_good(&self) -> bool {
        let ends_soon = self.certificate_days_left.is_some_and(|days| days < DEGRADED_DAYS);
        self.initialized
            && self.converged
            && !self.suspect
            && self.unreachable.is_empty()
            && self.foreign_cluster.is_none()
            && self.held_addresses.is_empty()
            && !ends_soon
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario 83: a node whose certificate ends within a week is not good; a node without TLS is.
    #[test]
    fn scenario_83_a_certificate_that_ends_within_a_week_is_not_good() {
        let healthy = Health { initialized: true, converged: true, ..Health::default() };
        for (days, good) in [(None, true), (Some(30), true), (Some(7), true), (Some(6), false), (Some(-1), false)] {
            let health = Health { certificate_days_left: days, ..healthy.clone() };
            assert_eq!(health.is_good(), good, "{days:?}");
        }
    }
}
