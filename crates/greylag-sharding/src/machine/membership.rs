//! The facts about the cluster's members that sharding needs, as one value.
//!
//! The driver turns every membership event into a fresh [`Members`], so a missed event does no harm: a machine compares
//! the members that it knew with the present ones. Source: sharding §2.12.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use greylag_cluster::AppVersion;
use greylag_core::UniqueAddress;

/// A member's status, as far as sharding tells statuses apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberPhase {
    /// `Joining` or `WeaklyUp`: never hosts, never registers, never counts.
    Joining,
    /// `Up`.
    Up,
    /// `PreparingForShutdown` or `ReadyForShutdown`.
    Preparing,
    /// `Leaving`.
    Leaving,
    /// `Exiting`.
    Exiting,
    /// `Down`.
    Down,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberFacts {
    /// Its status.
    pub phase: MemberPhase,
    /// Its age: smaller is older; `u32::MAX` until `Up`.
    pub up_number: u32,
    /// Whether no failure detector of a node that watches the member finds it unreachable.
    pub reachable: bool,
    /// Its roles.
    pub roles: BTreeSet<String>,
    /// The application version of the member.
    pub app_version: AppVersion,
}

/// A member that was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removal {
    /// When this node learned of the removal; the margin runs from then (cluster P3a).
    pub at: Instant,
    /// Whether the member left in order, or its process is proven dead: no margin is needed.
    pub clean: bool,
}

/// The cluster as this node sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members {
    /// Current members.
    pub members: BTreeMap<UniqueAddress, MemberFacts>,
    /// Removed members, as long as the cluster remembers them.
    pub removed: BTreeMap<UniqueAddress, Removal>,
}

impl Members {
    /// The members with `role` (all if it is empty) that may run, or soon run, a coordinator: oldest first, through the
    /// first one that is not leaving. Source: sharding §2.3.
    pub fn coordinator_candidates(&self, role: &str) -> Vec<UniqueAddress> {
        let mut by_age: Vec<_> = self
            .members
            .iter()
            .filter(|(_, member)| {
                !matches!(member.phase, MemberPhase::Joining | MemberPhase::Down) && member.has_role(role)
            })
            .collect();
        by_age.sort_by_key(|(address, member)| (member.up_number, (*address).clone()));
        let leaving = by_age
            .iter()
            .take_while(|(_, member)| matches!(member.phase, MemberPhase::Leaving | MemberPhase::Exiting))
            .count();
        by_age.into_iter().take(leaving + 1).map(|(address, _)| address.clone()).collect()
    }

    /// Whether the whole cluster prepares to end: nothing moves any more. Source: sharding §2.18.
    pub fn is_preparing(&self) -> bool {
        self.members.values().any(|member| member.phase == MemberPhase::Preparing)
    }

    /// Whether this process is a member now.
    pub fn contains(&self, node: &UniqueAddress) -> bool {
        self.members.contains_key(node)
    }
}

impl MemberFacts {
    /// Whether the member has the role; every member has the empty one.
    pub fn has_role(&self, role: &str) -> bool {
        role.is_empty() || self.roles.contains(role)
    }
}
