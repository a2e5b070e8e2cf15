//! How a node is, in one value: for operators and for readiness checks.
//!
//! Source: cluster M36.

use std::collections::{BTreeMap, BTreeSet};

use greylag_core::{DeadLetterReason, UniqueAddress};
use greylag_transport::DEGRADED_DAYS;

use crate::gossip::Blockers;
use crate::member::MemberStatus;

/// How a node is at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    /// This node has joined, and has not ended.
    pub initialized: bool,
    /// Its own status.
    pub status: Option<MemberStatus>,
    /// The leader, as far as this node can tell.
    pub leader: Option<UniqueAddress>,
    /// Every member whose agreement convergence needs has seen the state; the leader can act.
    pub converged: bool,
    /// What keeps the leader from acting (cluster M19). Empty if nothing does.
    pub blockers: Blockers,
    /// For so many of its ticks in a row this node could not act as the leader; 0 where it need not.
    pub blocked_ticks: u32,
    /// Members that are unreachable, and who says so.
    pub unreachable: BTreeMap<UniqueAddress, BTreeSet<UniqueAddress>>,
    /// This node may have been removed without knowing it (cluster F9).
    pub suspect: bool,
    /// Another cluster of the same name, met in the last minutes (cluster M25b).
    pub foreign_cluster: Option<ForeignCluster>,
    /// Members whose addresses other processes claim that cannot have replaced them; of a process that
    /// waits to join, the member that holds its own address (cluster T15).
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
    /// The process that waits for its removal: the latest that was heard.
    pub claimant: UniqueAddress,
}

/// Another cluster of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignCluster {
    /// Its id.
    pub cluster_id: u128,
    /// Its members, if it said how many.
    pub size: Option<u32>,
}

impl Health {
    /// Nothing needs a human: joined, trusted, converged, every member reachable, alone under its name, every
    /// member alone at its address, with a certificate that lasts.
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

    /// Scenario 83: a node whose certificate ends within a week wants a human, and one without TLS does not.
    #[test]
    fn scenario_83_a_certificate_that_ends_within_a_week_is_not_good() {
        let healthy = Health { initialized: true, converged: true, ..Health::default() };
        for (days, good) in [(None, true), (Some(30), true), (Some(7), true), (Some(6), false), (Some(-1), false)] {
            let health = Health { certificate_days_left: days, ..healthy.clone() };
            assert_eq!(health.is_good(), good, "{days:?}");
        }
    }
}
