//! The state that members gossip, and what follows from it: convergence, leader, merge.
//!
//! A gossip state is an immutable value with a vector version. Of two states the newer replaces the
//! older; concurrent ones are merged, and merging is commutative and idempotent in members,
//! reachability and tombstones. A tombstone beats a member, so nobody who was removed comes back.
//!
//! Source: cluster M4 to M9, M16 to M18, M20.

use std::collections::{BTreeMap, BTreeSet};

use greylag_core::UniqueAddress;
use twox_hash::XxHash3_64;

use crate::member::{Member, MemberStatus};
use crate::reachability::{Reachability, Status};
use crate::version::VectorVersion;
use crate::view::{MembershipView, Tombstone};

/// Members whose orderly exit was confirmed to this node, and whether it was clean (cluster M26).
pub type ConfirmedExits = BTreeMap<UniqueAddress, bool>;

/// What the members agree on by gossip. Source: cluster M4.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gossip {
    /// The members, by address.
    pub members: BTreeMap<UniqueAddress, Member>,
    /// Who has seen exactly this state.
    pub seen: BTreeSet<UniqueAddress>,
    /// Who finds whom unreachable.
    pub reachability: Reachability,
    /// What the state knows.
    pub version: VectorVersion,
    /// Who was removed and must not return.
    pub tombstones: BTreeMap<UniqueAddress, Tombstone>,
    /// Drawn when the cluster was formed.
    pub cluster_id: u128,
}

/// Why a state is not converged (cluster M19).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Blockers {
    /// Accusations that stand, observer first.
    pub accusations: Vec<(UniqueAddress, UniqueAddress)>,
    /// Members that have not seen the state.
    pub unseen: Vec<UniqueAddress>,
}

/// Two states made into one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// The result. Nobody has seen it yet.
    pub gossip: Gossip,
    /// The result is a state of its own that lost the version entry of a removed member. It must
    /// count as a local change, or two different states would bear one version (cluster M6).
    pub needs_version: bool,
}

impl Gossip {
    /// Marks a change by `node`: a new version, seen by nobody else. Source: cluster M5.
    pub fn touch(&mut self, node: &UniqueAddress, mark_seen: bool) {
        self.version.increment(node);
        self.seen.clear();
        if mark_seen {
            self.seen.insert(node.clone());
        }
    }

    /// Drops what breaks the invariants of M4. `Some(needs_version)` if there was any.
    pub fn repair(&mut self) -> Option<bool> {
        let before = self.clone();
        let tombstones = &self.tombstones;
        self.members.retain(|address, _| !tombstones.contains_key(address));
        let members = &self.members;
        self.seen.retain(|address| members.contains_key(address));
        self.reachability.retain(|address| members.contains_key(address));
        let dropped = self.version.retain(|address| members.contains_key(address));
        (before != *self).then_some(dropped)
    }

    /// Whether the invariants of M4 hold.
    pub fn is_sound(&self) -> bool {
        let known = |address: &UniqueAddress| self.members.contains_key(address);
        self.seen.iter().all(known)
            && self.version.iter().all(|(address, _)| known(address))
            && self.reachability.versions().keys().all(known)
            && self.reachability.accusations().all(|(observer, subject, _)| known(observer) && known(subject))
            && !self.tombstones.keys().any(known)
    }

    /// Equal but for who has seen it.
    pub fn same_content(&self, other: &Self) -> bool {
        self.version == other.version
            && self.members == other.members
            && self.reachability == other.reachability
            && self.tombstones == other.tombstones
    }

    /// Both states made into one. Source: cluster M6, M8, M9.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Merged {
        self.merge(other, true)
    }

    /// What scenario 74 must notice: the removed come back.
    pub(crate) fn merged_without_tombstones(&self, other: &Self) -> Merged {
        self.merge(other, false)
    }

    fn merge(&self, other: &Self, tombstones_count: bool) -> Merged {
        let mut tombstones = self.tombstones.clone();
        for (address, theirs) in &other.tombstones {
            let entry = tombstones.entry(address.clone()).or_default();
            entry.wall_ms = entry.wall_ms.max(theirs.wall_ms);
            entry.clean |= theirs.clean;
            entry.dead |= theirs.dead;
        }
        let mut members = self.members.clone();
        for (address, theirs) in &other.members {
            let merged = members.get(address).map(|ours| ours.merged(theirs));
            members.insert(address.clone(), merged.unwrap_or_else(|| theirs.clone()));
        }
        if tombstones_count {
            members.retain(|address, _| !tombstones.contains_key(address));
        } else {
            tombstones.retain(|address, _| !members.contains_key(address));
        }
        let reachability = self.reachability.merged(&other.reachability, |address| members.contains_key(address));
        let mut version = self.version.merged(&other.version);
        let dropped = version.retain(|address| members.contains_key(address));
        let gossip =
            Self { members, seen: BTreeSet::new(), reachability, version, tombstones, cluster_id: self.cluster_id };
        let needs_version = dropped && !gossip.same_content(self) && !gossip.same_content(other);
        Merged { gossip, needs_version }
    }

    /// A digest of who has seen the state.
    pub fn seen_digest(&self) -> u64 {
        let mut bytes = Vec::new();
        for address in &self.seen {
            let key = address.order_bytes();
            bytes.extend_from_slice(&(key.len() as u32).to_be_bytes());
            bytes.extend_from_slice(&key);
        }
        XxHash3_64::oneshot(&bytes)
    }

    /// What keeps the state from being converged, as `node` sees it; `None` if nothing does.
    /// Source: cluster M17.
    pub fn blockers(&self, node: &UniqueAddress, exits: &ConfirmedExits) -> Option<Blockers> {
        let status = |address| self.members.get(address).map(|member: &Member| member.status);
        let mut blockers = Blockers::default();
        for (observer, subject, _) in self.reachability.accusations() {
            let void = subject == node
                || exits.contains_key(subject)
                || status(observer).is_none_or(|status| status == MemberStatus::Down)
                || status(subject).is_none_or(|status| status >= MemberStatus::Exiting);
            if !void {
                blockers.accusations.push((observer.clone(), subject.clone()));
            }
        }
        let settled = self.members.values().any(|member| member.status.is_settled());
        for member in self.members.values() {
            let counts = if settled { member.status.is_settled() } else { member.status <= MemberStatus::WeaklyUp };
            if counts && !self.seen.contains(&member.address) && !exits.contains_key(&member.address) {
                blockers.unseen.push(member.address.clone());
            }
        }
        (blockers != Blockers::default()).then_some(blockers)
    }

    /// The leader as `node` sees it, among members with the role. Source: cluster M18.
    pub fn leader(&self, node: &UniqueAddress, role: Option<&str>, exits: &ConfirmedExits) -> Option<&UniqueAddress> {
        let unreachable = self.reachability.unreachable();
        let candidates: Vec<&Member> = self
            .members
            .values()
            .filter(|member| member.status != MemberStatus::Down && member.has_role_or_any(role))
            .filter(|member| member.address == *node || !unreachable.contains(&member.address))
            .filter(|member| !exits.contains_key(&member.address))
            .collect();
        let settled = candidates.iter().find(|member| member.status.is_settled());
        let rank = |member: &&&Member| match member.status {
            MemberStatus::WeaklyUp => 0,
            MemberStatus::Joining => 1,
            _ => 2,
        };
        // Candidates are in address order, and the first of the least rank is taken.
        settled.or_else(|| candidates.iter().min_by_key(rank)).map(|member| &member.address)
    }

    /// Whether somebody who is not Down finds `subject` unreachable.
    pub fn accused_by_the_living(&self, subject: &UniqueAddress) -> bool {
        self.reachability.accusations().any(|(observer, accused, _)| {
            accused == subject && self.members.get(observer).is_some_and(|o| o.status != MemberStatus::Down)
        })
    }

    /// The members that `node` may gossip to: all others that it does not itself find unreachable.
    /// Source: cluster M11.
    pub fn valid_targets<'a>(&'a self, node: &'a UniqueAddress) -> impl Iterator<Item = &'a UniqueAddress> {
        let reaches = move |target: &UniqueAddress| self.reachability.status(node, target) == Status::Reachable;
        self.members.keys().filter(move |target| *target != node && reaches(target))
    }

    /// What layers above see of this state.
    pub fn view(&self, node: &UniqueAddress, exits: &ConfirmedExits, self_suspect: bool) -> MembershipView {
        let mut unreachable = self.reachability.unreachable();
        unreachable.remove(node);
        let roles: BTreeSet<&String> = self.members.values().flat_map(|member| member.roles.iter()).collect();
        let leader_of = |role: &String| Some((role.clone(), self.leader(node, Some(role), exits)?.clone()));
        MembershipView {
            self_address: node.clone(),
            members: self.members.values().cloned().collect(),
            unreachable,
            leader: self.leader(node, None, exits).cloned(),
            role_leaders: roles.into_iter().filter_map(leader_of).collect(),
            tombstones: self.tombstones.clone(),
            seen_by: self.seen.clone(),
            converged: self.blockers(node, exits).is_none(),
            self_suspect,
            cluster_id: self.cluster_id,
        }
    }
}

#[cfg(test)]
mod tests;
