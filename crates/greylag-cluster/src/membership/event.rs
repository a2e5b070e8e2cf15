//! Cluster events, and their computation from two views.
//!
//! Events of one change come in a fixed order. A status that gossip skipped has no event, so a subscriber may see a
//! member removed without having seen it exit. Source: cluster M32, M33.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use greylag_core::UniqueAddress;
use greylag_transport::QuarantineReason;

use crate::downing::DowningDecision;
use crate::gossip::seen::Seen;
use crate::gossip::shared::Shared;
use crate::gossip::stats::GossipStats;
use crate::membership::member::{Member, MemberStatus};
use crate::membership::view::MembershipView;

/// How a death was proven. Source: cluster S20.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Proof {
    /// Another process answers at the dead one's address.
    Restarted,
    /// The process's own host refused every dial: no process listens at the address.
    Refused,
    /// A witness (an orchestrator, a supervisor) reported the death.
    Witnessed,
}

/// The subject of an event; subscribers choose by kind. Source: cluster M32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// Members join, change their status, or go; tombstones; members whose addresses other processes claim.
    Members,
    /// Members become unreachable and reachable.
    Reachability,
    /// The leader, of all and of each role.
    Leader,
    /// The set of members that have seen the state, and the table of which member finds which unreachable.
    Gossip,
    /// This node itself: paused, suspect, trusted, declared dead, quarantined by another node.
    Own,
    /// Decisions of the resolver and proofs of death.
    Downing,
    /// Another cluster of the same name.
    ForeignCluster,
    /// Singletons whose hand-over makes no progress.
    Singleton,
    /// Counters.
    Stats,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Members,
        Self::Reachability,
        Self::Leader,
        Self::Gossip,
        Self::Own,
        Self::Downing,
        Self::ForeignCluster,
        Self::Singleton,
        Self::Stats,
    ];
}

/// The first items of a subscription. Source: cluster M32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InitialState {
    /// One [`ClusterEvent::Snapshot`].
    #[default]
    Snapshot,
    /// The events that lead from an empty view to the present one.
    Events,
}

/// An event of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClusterEvent {
    /// The view of the cluster up to now. The first item of each subscription, and the one after `Lagged`.
    Snapshot(Arc<MembershipView>),
    /// The tombstone of a member that was removed unclean turned clean: a running margin ends.
    TombstoneClean(UniqueAddress),
    /// A tombstone of a process that this node never saw as a member: it was removed before.
    TombstoneAdded {
        /// The removed process.
        address: UniqueAddress,
        /// Whether nothing of the process can still run.
        clean: bool,
    },
    /// A member is gone for good.
    MemberRemoved {
        /// The member as it was seen last.
        member: Member,
        /// Its status then.
        previous_status: MemberStatus,
        /// Whether nothing of the member can still run: then its duties may start elsewhere without a margin (cluster
        /// M26, S14).
        clean: bool,
    },
    /// A new member.
    MemberJoined(Member),
    /// A member was let in while another one is unreachable.
    MemberWeaklyUp(Member),
    /// A member is Up.
    MemberUp(Member),
    /// The cluster prepares for its shutdown.
    MemberPreparingForShutdown(Member),
    /// The cluster is ready for its shutdown.
    MemberReadyForShutdown(Member),
    /// A member was asked to leave.
    MemberLeft(Member),
    /// A member hands over and ends.
    MemberExited(Member),
    /// A member was declared dead.
    MemberDowned(Member),
    /// Some member finds this one unreachable. Never this node.
    UnreachableMember(Member),
    /// No member finds this one unreachable any more.
    ReachableMember(Member),
    /// Another leader, or none.
    LeaderChanged(Option<UniqueAddress>),
    /// Another leader of a role, or none.
    RoleLeaderChanged {
        /// The role.
        role: String,
        /// Its leader.
        leader: Option<UniqueAddress>,
    },
    /// More members have seen the state, or the state is a new one.
    SeenChanged {
        /// Whether every member whose agreement convergence needs has seen the state.
        converged: bool,
        /// The members that have seen the state.
        seen_by: Seen,
    },
    /// The table of which member finds which unreachable changed.
    ReachabilityChanged,
    /// This node was declared dead. Whatever it hosts stops now, without hand-over (cluster M27).
    SelfDowned,
    /// This process stood still for this long (cluster F9).
    LocalPause(Duration),
    /// This node may have been removed without knowing it (cluster F9).
    SelfSuspect,
    /// This node trusts itself again after a [`ClusterEvent::SelfSuspect`]: other members have confirmed it, or no other
    /// living member is left.
    SelfTrusted,
    /// Another node quarantined this one.
    ThisNodeQuarantined {
        /// The node that quarantined this one.
        by: UniqueAddress,
        /// The reason of the quarantine.
        reason: QuarantineReason,
    },
    /// The resolver decided (cluster S17).
    DowningDecision(Box<DowningDecision>),
    /// A member's death is proven (cluster S20).
    ProvenDead {
        /// The dead process.
        member: UniqueAddress,
        /// How the death was proven.
        how: Proof,
    },
    /// Another process was heard at the address of a member that it cannot have replaced: the name moved to another
    /// host. The membership does not change by that; the process waits until the member is removed. Once per claimant
    /// (cluster T15).
    AddressHeld {
        /// The member.
        holder: UniqueAddress,
        /// The process that waits.
        claimant: UniqueAddress,
    },
    /// A node of the same cluster name belongs to another cluster (cluster M25b).
    ForeignClusterDetected {
        /// The other cluster's id.
        theirs: u128,
        /// How many members the other cluster claims to have, if known.
        size: Option<u32>,
    },
    /// Counts of the gossip that reached this node, by outcome, every `publish_stats_interval`.
    GossipStats(GossipStats),
    /// A singleton's hand-over makes no progress; the manager goes on trying (cluster §5).
    SingletonStuck {
        /// The singleton.
        name: String,
    },
    /// This node ends. Removals of all members follow.
    ClusterShuttingDown,
    /// The subscriber was too slow and missed events. A `Snapshot` follows.
    Lagged {
        /// The number of missed events.
        missed: u64,
    },
}

impl ClusterEvent {
    /// The kind of the event; `None` for events that every subscriber gets.
    pub fn kind(&self) -> Option<EventKind> {
        Some(match self {
            Self::Snapshot(_) | Self::Lagged { .. } | Self::ClusterShuttingDown => return None,
            Self::TombstoneClean(_)
            | Self::TombstoneAdded { .. }
            | Self::MemberRemoved { .. }
            | Self::MemberJoined(_)
            | Self::MemberWeaklyUp(_)
            | Self::MemberUp(_)
            | Self::MemberPreparingForShutdown(_)
            | Self::MemberReadyForShutdown(_)
            | Self::MemberLeft(_)
            | Self::MemberExited(_)
            | Self::MemberDowned(_)
            | Self::AddressHeld { .. } => EventKind::Members,
            Self::UnreachableMember(_) | Self::ReachableMember(_) => EventKind::Reachability,
            Self::LeaderChanged(_) | Self::RoleLeaderChanged { .. } => EventKind::Leader,
            Self::SeenChanged { .. } | Self::ReachabilityChanged => EventKind::Gossip,
            Self::SelfDowned
            | Self::LocalPause(_)
            | Self::SelfSuspect
            | Self::SelfTrusted
            | Self::ThisNodeQuarantined { .. } => EventKind::Own,
            Self::DowningDecision(_) | Self::ProvenDead { .. } => EventKind::Downing,
            Self::ForeignClusterDetected { .. } => EventKind::ForeignCluster,
            Self::SingletonStuck { .. } => EventKind::Singleton,
            Self::GossipStats(_) => EventKind::Stats,
        })
    }
}

/// The event for a member's status.
pub(crate) fn status_event(member: &Member) -> ClusterEvent {
    let member = member.clone();
    match member.status {
        MemberStatus::Joining => ClusterEvent::MemberJoined(member),
        MemberStatus::WeaklyUp => ClusterEvent::MemberWeaklyUp(member),
        MemberStatus::Up => ClusterEvent::MemberUp(member),
        MemberStatus::PreparingForShutdown => ClusterEvent::MemberPreparingForShutdown(member),
        MemberStatus::ReadyForShutdown => ClusterEvent::MemberReadyForShutdown(member),
        MemberStatus::Leaving => ClusterEvent::MemberLeft(member),
        MemberStatus::Exiting => ClusterEvent::MemberExited(member),
        MemberStatus::Down => ClusterEvent::MemberDowned(member),
    }
}

/// The events between two views, in the order that subscribers rely on. Source: cluster M33.
pub fn diff(old: &MembershipView, new: &MembershipView) -> Vec<ClusterEvent> {
    let mut events = Vec::new();
    // Compare first: most changes only concern which members have seen the state, and then the lists are the same
    // values.
    let buried = if old.tombstones == new.tombstones { None } else { Some(new.tombstones.iter()) };
    for (address, tombstone) in buried.into_iter().flatten() {
        match old.tombstones.get(address) {
            Some(before) if tombstone.clean && !before.clean => {
                events.push(ClusterEvent::TombstoneClean(address.clone()));
            }
            None if old.member(address).is_none() => {
                events.push(ClusterEvent::TombstoneAdded { address: address.clone(), clean: tombstone.clean });
            }
            _ => {}
        }
    }
    if old.members != new.members {
        diff_members(old, new, &mut events);
    }
    if !Shared::is(&old.unreachable, &new.unreachable) {
        for address in new.unreachable.difference(&old.unreachable) {
            events.extend(new.member(address).cloned().map(ClusterEvent::UnreachableMember));
        }
        for address in old.unreachable.difference(&new.unreachable) {
            events.extend(new.member(address).cloned().map(ClusterEvent::ReachableMember));
        }
    }
    if old.leader != new.leader {
        events.push(ClusterEvent::LeaderChanged(new.leader.clone()));
    }
    let roles: BTreeSet<&String> = old.role_leaders.keys().chain(new.role_leaders.keys()).collect();
    for role in roles {
        let leader = new.role_leaders.get(role);
        if old.role_leaders.get(role) != leader {
            events.push(ClusterEvent::RoleLeaderChanged { role: role.clone(), leader: leader.cloned() });
        }
    }
    if (old.converged, &old.seen_by) != (new.converged, &new.seen_by) {
        events.push(ClusterEvent::SeenChanged { converged: new.converged, seen_by: new.seen_by.clone() });
    }
    events
}

fn diff_members(old: &MembershipView, new: &MembershipView, events: &mut Vec<ClusterEvent>) {
    let mut statuses = Vec::new();
    for pair in old.members.differences(&new.members) {
        match pair {
            (Some(gone), None) => {
                let clean = new.tombstones.get(&gone.address).is_some_and(|tombstone| tombstone.clean);
                events.push(ClusterEvent::MemberRemoved { member: gone.clone(), previous_status: gone.status, clean });
            }
            (before, Some(member)) if before.is_none_or(|before| before.status != member.status) => {
                statuses.push(status_event(member));
            }
            _ => {}
        }
    }
    // Statuses after removals (cluster M33).
    events.append(&mut statuses);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::app_version::AppVersion;
    use crate::membership::view::Tombstone;

    fn member(name: &str, status: MemberStatus) -> Member {
        let address = format!("{name}:1#1").parse().unwrap();
        Member { status, ..Member::joining(address, Arc::default(), AppVersion::default()) }
    }

    /// cluster M32: each status has an event of its own.
    #[test]
    fn scenario_35_each_status_has_its_event() {
        let named = |status| {
            let told = format!("{:?}", status_event(&member("a", status)));
            told.split('(').next().expect("a name").to_owned()
        };
        assert_eq!(named(MemberStatus::WeaklyUp), "MemberWeaklyUp");
        assert_eq!(named(MemberStatus::Exiting), "MemberExited");
        assert_eq!(named(MemberStatus::Down), "MemberDowned");
        assert_eq!(named(MemberStatus::PreparingForShutdown), "MemberPreparingForShutdown");
        assert_eq!(named(MemberStatus::ReadyForShutdown), "MemberReadyForShutdown");
    }

    /// cluster M33.
    #[test]
    fn scenario_35_events_come_in_their_order() {
        use MemberStatus::{Exiting, Joining, Leaving, Up};
        let mut old = MembershipView::empty("a:1#1".parse().unwrap());
        old.members = [("a", Up), ("b", Exiting), ("c", Up), ("d", Up)].map(|(n, s)| member(n, s)).to_vec().into();
        old.leader = Some(old.members[1].address.clone());
        old.role_leaders.insert("worker".to_owned(), old.members[1].address.clone());
        old.unreachable.insert(old.members[1].address.clone());
        old.unreachable.insert(old.members[3].address.clone());
        old.tombstones.insert("y:1#1".parse().unwrap(), Tombstone::default());
        let mut new = MembershipView::empty("a:1#1".parse().unwrap());
        new.members = [("a", Up), ("c", Leaving), ("d", Up), ("e", Joining)].map(|(n, s)| member(n, s)).to_vec().into();
        new.leader = Some(new.members[0].address.clone());
        new.unreachable.insert(new.members[1].address.clone());
        new.seen_by.insert(new.self_address.clone());
        let clean = Tombstone { clean: true, ..Tombstone::default() };
        new.tombstones.insert(old.members[1].address.clone(), clean.clone());
        new.tombstones.insert("y:1#1".parse().unwrap(), clean);
        new.tombstones.insert("z:1#1".parse().unwrap(), Tombstone::default());
        let names: Vec<String> = diff(&old, &new)
            .iter()
            .map(|event| match event {
                ClusterEvent::MemberRemoved { member, previous_status, clean } => {
                    format!("removed {} {previous_status} {clean}", member.address.address().host())
                }
                ClusterEvent::TombstoneAdded { address, .. } => format!("tombstone {}", address.address().host()),
                ClusterEvent::TombstoneClean(address) => format!("clean {}", address.address().host()),
                ClusterEvent::MemberLeft(m) => format!("left {}", m.address.address().host()),
                ClusterEvent::MemberJoined(m) => format!("joined {}", m.address.address().host()),
                ClusterEvent::UnreachableMember(m) => format!("unreachable {}", m.address.address().host()),
                ClusterEvent::ReachableMember(m) => format!("reachable {}", m.address.address().host()),
                ClusterEvent::LeaderChanged(_) => "leader".to_owned(),
                ClusterEvent::RoleLeaderChanged { role, leader: None } => format!("no leader of {role}"),
                ClusterEvent::SeenChanged { .. } => "seen".to_owned(),
                other => format!("{other:?}"),
            })
            .collect();
        let expected = [
            "clean y",
            "tombstone z",
            "removed b Exiting true",
            "left c",
            "joined e",
            "unreachable c",
            "reachable d",
            "leader",
            "no leader of worker",
            "seen",
        ];
        assert_eq!(names, expected);
    }

    /// cluster M32: an event belongs to one kind, and some to all.
    #[test]
    fn every_kind_of_event_can_be_chosen() {
        assert_eq!(ClusterEvent::SelfDowned.kind(), Some(EventKind::Own));
        assert_eq!(ClusterEvent::ClusterShuttingDown.kind(), None);
        assert_eq!(EventKind::ALL.into_iter().collect::<BTreeSet<_>>().len(), EventKind::ALL.len());
    }
}
