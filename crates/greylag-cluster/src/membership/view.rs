//! A node's view of its cluster at one moment, for the layers above.
//!
//! A view is an immutable value: the node replaces it as a whole, so a holder of a view sees one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greylag_core::UniqueAddress;

use crate::gossip::seen::Seen;
use crate::gossip::shared::Shared;
use crate::membership::member::{Member, MemberStatus};
use crate::membership::members::Members;

/// The record of a removed member, which can never come back. Source: cluster M4, M29.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tombstone {
    /// When the member was removed, by the remover's wall clock, in ms since 1970; only for pruning.
    pub wall_ms: u64,
    /// Whether nothing of it can still be running: then its duties start elsewhere without a margin.
    pub clean: bool,
    /// Whether its death was proven. Implies `clean`.
    pub dead: bool,
    /// The host that the member named: a process there at the same address has replaced it. Source: cluster P3.
    pub host_id: Option<Arc<str>>,
}

/// One moment of the membership, as this node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MembershipView {
    /// The address of this process.
    pub self_address: UniqueAddress,
    /// All members, sorted by address. Empty until this node is a member itself.
    pub members: Members,
    /// Members that any member finds unreachable, this node never among them.
    pub unreachable: Shared<BTreeSet<UniqueAddress>>,
    /// The leader, as far as this node can tell. A duty, not a lock: each side of a partition has one.
    pub leader: Option<UniqueAddress>,
    /// The leader among the members of each role.
    pub role_leaders: BTreeMap<String, UniqueAddress>,
    /// Removed members that must not return.
    pub tombstones: Shared<BTreeMap<UniqueAddress, Tombstone>>,
    /// Members that have seen this state.
    pub seen_by: Seen,
    /// Whether every member whose agreement convergence needs (cluster M17) has seen this state.
    pub converged: bool,
    /// Whether this node may have been removed without knowing it; then single writers must wait. Source: cluster F9.
    pub self_suspect: bool,
    /// The id drawn when the cluster was formed; 0 until this node is a member.
    pub cluster_id: u128,
}

impl MembershipView {
    /// The view of a node that has not joined.
    pub fn empty(self_address: UniqueAddress) -> Self {
        Self {
            self_address,
            members: Members::default(),
            unreachable: Shared::default(),
            leader: None,
            role_leaders: BTreeMap::new(),
            tombstones: Shared::default(),
            seen_by: Seen::default(),
            converged: false,
            self_suspect: false,
            cluster_id: 0,
        }
    }

    /// The member with this unique address.
    pub fn member(&self, address: &UniqueAddress) -> Option<&Member> {
        self.members.get(address)
    }

    /// This node's own member.
    pub fn self_member(&self) -> Option<&Member> {
        self.member(&self.self_address)
    }

    /// This node's status, `None` before it joined and after it was removed.
    pub fn self_status(&self) -> Option<MemberStatus> {
        self.self_member().map(|member| member.status)
    }

    /// Members with the role (`None`: all) that were Up once, the oldest first, whatever their
    /// status now. Source: cluster M16.
    pub fn by_age(&self, role: Option<&str>) -> Vec<&Member> {
        let numbered = self.members.iter().filter(|m| m.up_number != Member::NOT_UP && m.has_role_or_any(role));
        let mut members: Vec<&Member> = numbered.collect();
        members.sort_by(|a, b| a.age_order(b));
        members
    }

    /// The oldest member with the role that still serves: Up, PreparingForShutdown,
    /// ReadyForShutdown or Leaving. It hosts, or will host, the role's singletons.
    pub fn oldest(&self, role: Option<&str>) -> Option<&Member> {
        self.by_age(role).into_iter().find(|member| member.status.is_settled())
    }

    /// Whether this address is a member of the view that no member finds unreachable.
    pub fn is_reachable(&self, address: &UniqueAddress) -> bool {
        self.member(address).is_some() && !self.unreachable.contains(address)
    }
}
