//! The state that members gossip, with its merge, convergence and leader.
//!
//! A gossip state is an immutable value with a vector version. Of two states the newer replaces the
//! older; concurrent ones are merged, and merging is commutative and idempotent in members,
//! reachability and tombstones. A tombstone beats a member, so a removed member never comes back.
//!
//! Source: cluster M4 to M9, M16 to M18, M20.

use std::collections::{BTreeMap, BTreeSet};

use greylag_core::UniqueAddress;

use crate::gossip::reachability::Reachability;
use crate::gossip::seen::Seen;
use crate::gossip::shared::Shared;
use crate::gossip::version::{Relation, VectorVersion};
use crate::membership::member::{Member, MemberStatus};
use crate::membership::members::Members;
use crate::membership::view::{MembershipView, Tombstone};

/// Members whose orderly exit was confirmed to this node, and whether it was clean (cluster M26).
pub type ConfirmedExits = BTreeMap<UniqueAddress, bool>;

/// The state that members agree on by gossip. Source: cluster M4.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gossip {
    /// The members, by address.
    pub members: Members,
    /// Members that have seen exactly this state.
    pub seen: Seen,
    /// The table of which member finds which unreachable.
    pub reachability: Shared<Reachability>,
    /// The changes that the state contains, by member.
    pub version: Shared<VectorVersion>,
    /// Removed members that must not return.
    pub tombstones: Shared<BTreeMap<UniqueAddress, Tombstone>>,
    /// The id drawn when the cluster was formed.
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

/// The result of a merge of two states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// The merged state. No member has seen it yet.
    pub gossip: Gossip,
    /// Whether the result differs from both states and lost the version entry of a removed member. It must then count
    /// as a local change, or two different states would bear one version (cluster M6).
    pub needs_version: bool,
}

impl Gossip {
    /// Marks a change by `node`: a new version, which no other member has seen. Source: cluster M5.
    pub fn touch(&mut self, node: &UniqueAddress, mark_seen: bool) {
        self.version.increment(node);
        self.seen = Seen::none_of(self.members.places());
        if mark_seen {
            self.seen.insert(node.clone());
        }
    }

    /// Removes entries that break the invariants of M4. Returns `Some(needs_version)` if there were any.
    pub fn repair(&mut self) -> Option<bool> {
        if self.is_sound() {
            return None;
        }
        let tombstones = &self.tombstones;
        self.members.retain(|member| !tombstones.contains_key(&member.address));
        let members = &self.members;
        self.seen.move_to(members.places().clone());
        self.reachability.retain(|address| members.contains_key(address));
        Some(self.version.retain(|address| members.contains_key(address)))
    }

    /// Replaces each part that equals a part of `ours` by that same value, so that derived data is computed once, and
    /// comparing the two states costs no more than the parts that differ. Source: cluster C5.
    pub(crate) fn share_with(&mut self, ours: &Self) {
        if self.members == ours.members {
            self.members = ours.members.clone();
        }
        if !self.seen.uses_places(self.members.places()) && self.seen.fits(self.members.places()) {
            self.seen.move_to(self.members.places().clone());
        }
        Shared::share(&mut self.reachability, &ours.reachability);
        Shared::share(&mut self.version, &ours.version);
        Shared::share(&mut self.tombstones, &ours.tombstones);
    }

    /// As [`Gossip::repair`], cheaper if the parts are those of `ours`, which is known to be sound.
    pub(crate) fn repair_beside(&mut self, ours: &Self) -> Option<bool> {
        let nothing_new = self.members.is(&ours.members)
            && self.seen.uses_places(ours.members.places())
            && Shared::is(&self.reachability, &ours.reachability)
            && Shared::is(&self.version, &ours.version)
            && Shared::is(&self.tombstones, &ours.tombstones);
        if nothing_new { None } else { self.repair() }
    }

    /// Whether the invariants of M4 hold.
    pub fn is_sound(&self) -> bool {
        let known = |address: &UniqueAddress| self.members.contains_key(address);
        (self.seen.uses_places(self.members.places()) || self.seen.iter().all(known))
            && self.version.iter().all(|(address, _)| known(address))
            && self.reachability.versions().keys().all(known)
            && self.reachability.rows().iter().all(|(observer, row)| known(observer) && row.keys().all(known))
            && !self.tombstones.keys().any(known)
    }

    /// Whether both states are equal, apart from which members have seen them.
    pub fn same_content(&self, other: &Self) -> bool {
        self.version == other.version
            && self.members == other.members
            && self.reachability == other.reachability
            && self.tombstones == other.tombstones
    }

    /// Merges both states. Source: cluster M6, M8, M9.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Merged {
        self.merge(other, true)
    }

    /// Merges so that removed members come back: an omission that scenario 74 must notice.
    pub(crate) fn merged_without_tombstones(&self, other: &Self) -> Merged {
        self.merge(other, false)
    }

    fn merge(&self, other: &Self, tombstones_count: bool) -> Merged {
        let mut tombstones = self.tombstones.clone();
        if tombstones != other.tombstones {
            for (address, theirs) in &other.tombstones {
                let entry = tombstones.entry(address.clone()).or_default();
                entry.wall_ms = entry.wall_ms.max(theirs.wall_ms);
                entry.clean |= theirs.clean;
                entry.dead |= theirs.dead;
                // Take the greater: both tombstones name the same host, or one names none.
                entry.host_id = entry.host_id.take().max(theirs.host_id.clone());
            }
        }
        let mut members = self.members.merged(&other.members);
        let all = members.len();
        if tombstones_count {
            // Search first: mostly no member has a tombstone, and then the list need not be filtered.
            if tombstones.keys().any(|address| members.contains_key(address)) {
                members.retain(|member| !tombstones.contains_key(&member.address));
            }
        } else {
            tombstones.retain(|address, _| !members.contains_key(address));
        }
        let mut reachability = Reachability::merged(&self.reachability, &other.reachability);
        let mut version = self.version.merged(&other.version);
        // Filter only if a member was removed: the records and versions of each side are of its own members.
        let mut dropped = false;
        if members.len() < all {
            reachability.retain(|address| members.contains_key(address));
            dropped = version.retain(|address| members.contains_key(address));
        }
        let gossip = Self {
            seen: Seen::none_of(members.places()),
            members,
            reachability,
            version: version.into(),
            tombstones,
            cluster_id: self.cluster_id,
        };
        let needs_version = dropped && !gossip.same_content(self) && !gossip.same_content(other);
        Merged { gossip, needs_version }
    }

    /// The relation of the other state's version to that of this one. Source: cluster M6.
    pub fn relation(&self, theirs: &Shared<VectorVersion>) -> Relation {
        if Shared::is(&self.version, theirs) { Relation::Same } else { self.version.compare(theirs) }
    }

    /// Whether the state is converged; see [`Gossip::blockers`].
    fn is_converged(&self, node: &UniqueAddress, exits: &ConfirmedExits) -> bool {
        // Cheap test first: if too few members have seen the state, some that must have are missing.
        let settled = self.members.summary().settled;
        self.seen.len() + exits.len() >= settled && self.blockers(node, exits).is_none()
    }

    /// The blockers of convergence, as `node` sees them; `None` if the state is converged.
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
        let settled = self.members.summary().settled > 0;
        let uses_places = self.seen.uses_places(self.members.places());
        for (place, member) in self.members.values().enumerate() {
            let counts = if settled { member.status.is_settled() } else { member.status <= MemberStatus::WeaklyUp };
            let seen =
                |member: &Member| if uses_places { self.seen.has(place) } else { self.seen.contains(&member.address) };
            if counts && !seen(member) && !exits.contains_key(&member.address) {
                blockers.unseen.push(member.address.clone());
            }
        }
        (blockers != Blockers::default()).then_some(blockers)
    }

    /// The leader as `node` sees it, among members with the role. Source: cluster M18.
    pub fn leader(&self, node: &UniqueAddress, role: Option<&str>, exits: &ConfirmedExits) -> Option<&UniqueAddress> {
        let unreachable = self.reachability.unreachable();
        let may_lead = |member: &&Member| {
            member.status != MemberStatus::Down
                && member.has_role_or_any(role)
                && (unreachable.is_empty() || member.address == *node || !unreachable.contains(&member.address))
                && !exits.contains_key(&member.address)
        };
        let rank = |member: &Member| match member.status {
            MemberStatus::WeaklyUp => 0,
            MemberStatus::Joining => 1,
            _ => 2,
        };
        // Members are in address order: take the first settled one, or else the first of the least rank.
        let mut best: Option<&Member> = None;
        for member in self.members.values().filter(may_lead) {
            if member.status.is_settled() {
                return Some(&member.address);
            }
            if best.is_none_or(|best| rank(member) < rank(best)) {
                best = Some(member);
            }
        }
        best.map(|member| &member.address)
    }

    /// Whether a member that is not Down finds `subject` unreachable.
    pub fn accused_by_the_living(&self, subject: &UniqueAddress) -> bool {
        self.reachability.accusations().any(|(observer, accused, _)| {
            accused == subject && self.members.get(observer).is_some_and(|o| o.status != MemberStatus::Down)
        })
    }

    /// The members that `node` may gossip to: all others that it does not itself find unreachable.
    /// Source: cluster M11.
    pub fn valid_targets<'a>(&'a self, node: &'a UniqueAddress) -> impl Iterator<Item = &'a UniqueAddress> {
        let marks: BTreeSet<&UniqueAddress> = self.reachability.accused_by(node).collect();
        self.members.keys().filter(move |target| *target != node && (marks.is_empty() || !marks.contains(target)))
    }

    /// The view of this state for the layers above.
    pub fn view(&self, node: &UniqueAddress, exits: &ConfirmedExits, self_suspect: bool) -> MembershipView {
        let mut unreachable = self.reachability.unreachable().clone();
        if unreachable.contains(node) {
            unreachable.remove(node);
        }
        let roles = &self.members.summary().roles;
        let leader_of = |role: &String| Some((role.clone(), self.leader(node, Some(role), exits)?.clone()));
        MembershipView {
            self_address: node.clone(),
            members: self.members.clone(),
            unreachable,
            leader: self.leader(node, None, exits).cloned(),
            role_leaders: roles.iter().filter_map(leader_of).collect(),
            tombstones: self.tombstones.clone(),
            seen_by: self.seen.clone(),
            converged: self.is_converged(node, exits),
            self_suspect,
            cluster_id: self.cluster_id,
        }
    }

    /// Makes the view from `shown`, a view of the same members, exits and reachability: only the members that have seen
    /// the state differ.
    pub(crate) fn view_after(
        &self,
        shown: &MembershipView,
        node: &UniqueAddress,
        exits: &ConfirmedExits,
        self_suspect: bool,
    ) -> MembershipView {
        MembershipView {
            seen_by: self.seen.clone(),
            converged: self.is_converged(node, exits),
            self_suspect,
            ..shown.clone()
        }
    }
}

#[cfg(test)]
mod tests;
