//! Members: one process incarnation each, with its status and its order among others.
//!
//! A member's status only moves forward along [`MemberStatus`]' order. Its age is fixed when it becomes Up: the member
//! with the lower `up_number` is older, and the oldest hosts singletons.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use greylag_core::UniqueAddress;

use crate::membership::app_version::AppVersion;

/// The data centre of a member that names none. Source: cluster M1.
pub(crate) const DEFAULT_DC: &str = "default";

/// The stage of a member's life.
///
/// The order is the merge priority: of two views of one member the one further on wins.
/// Source: cluster M2, M9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberStatus {
    /// Accepted by a member, not yet known to all members.
    Joining,
    /// Admitted while some member is unreachable; not counted in majorities.
    WeaklyUp,
    /// A full member.
    Up,
    /// The whole cluster is about to shut down.
    PreparingForShutdown,
    /// The whole cluster is ready to shut down.
    ReadyForShutdown,
    /// Asked to leave.
    Leaving,
    /// All members know that it leaves; it hands over its singletons and shards.
    Exiting,
    /// Declared dead. Never undone.
    Down,
}

impl MemberStatus {
    /// Every status, in order.
    pub const ALL: [Self; 8] = [
        Self::Joining,
        Self::WeaklyUp,
        Self::Up,
        Self::PreparingForShutdown,
        Self::ReadyForShutdown,
        Self::Leaving,
        Self::Exiting,
        Self::Down,
    ];

    /// Whether a member may go from `self` to `to`. Removal is possible from every status.
    /// Source: cluster M2.
    pub fn may_become(self, to: Self) -> bool {
        use MemberStatus::{Down, Exiting, Joining, Leaving, PreparingForShutdown, ReadyForShutdown, Up, WeaklyUp};
        match self {
            Joining => matches!(to, WeaklyUp | Up | Leaving | Down),
            WeaklyUp => matches!(to, Up | Leaving | Down),
            Up => matches!(to, PreparingForShutdown | Leaving | Down),
            PreparingForShutdown => matches!(to, ReadyForShutdown | Leaving | Down),
            ReadyForShutdown => matches!(to, Leaving | Down),
            Leaving => matches!(to, Exiting | Down),
            Exiting => matches!(to, Down),
            Down => false,
        }
    }

    /// Whether the status is Up, Leaving, PreparingForShutdown or ReadyForShutdown: convergence needs the agreement of
    /// members of these statuses, and the leader is chosen among them first. Source: cluster M17, M18.
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Up | Self::Leaving | Self::PreparingForShutdown | Self::ReadyForShutdown)
    }
}

impl fmt::Display for MemberStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One process of the cluster, as in the gossip. Source: cluster M1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The process.
    pub address: UniqueAddress,
    /// Its age: lower is older. [`Member::NOT_UP`] until it is Up. Source: cluster M16.
    pub up_number: u32,
    /// The stage of its life.
    pub status: MemberStatus,
    /// Whether its death is proven, not only suspected; then it is removed without a margin. Source: cluster S20.
    pub dead: bool,
    /// Its roles, among them `dc-<data_center>`.
    pub roles: Arc<BTreeSet<String>>,
    /// The version of its application.
    pub app_version: AppVersion,
    /// Its data centre; always `default` for now.
    pub data_center: Arc<str>,
    /// The host that it named when it joined: kernel boot id and network namespace. Never changed; `None` if the system
    /// does not tell. Source: cluster M1, T12.
    pub host_id: Option<Arc<str>>,
}

impl Member {
    /// The `up_number` of a member that was never Up.
    pub const NOT_UP: u32 = u32::MAX;

    /// A member that just joined. Its data centre is read from its role `dc-<data_center>`.
    pub fn joining(address: UniqueAddress, roles: Arc<BTreeSet<String>>, app_version: AppVersion) -> Self {
        let data_center = roles.iter().find_map(|role| role.strip_prefix("dc-")).unwrap_or(DEFAULT_DC).into();
        Self {
            address,
            up_number: Self::NOT_UP,
            status: MemberStatus::Joining,
            dead: false,
            roles,
            app_version,
            data_center,
            host_id: None,
        }
    }

    /// Sets the host of the member.
    #[must_use]
    pub fn on_host(self, host_id: Option<Arc<str>>) -> Self {
        Self { host_id, ..self }
    }

    /// Whether the member has the role.
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.contains(role)
    }

    /// Whether the member has the role; every member has `None`.
    pub fn has_role_or_any(&self, role: Option<&str>) -> bool {
        role.is_none_or(|role| self.has_role(role))
    }

    /// By age, the oldest first. Comparable only between current members. Source: cluster M16.
    pub fn age_order(&self, other: &Self) -> Ordering {
        self.age_key().cmp(&other.age_key())
    }

    /// The key that [`Member::age_order`] compares.
    pub fn age_key(&self) -> (u32, &UniqueAddress) {
        (self.up_number, &self.address)
    }

    /// A copy of the member with another status.
    #[must_use]
    pub(crate) fn in_status(&self, status: MemberStatus) -> Self {
        Self { status, ..self.clone() }
    }

    /// Merges two views of one member: the further status, the lower number, `dead` if either is. Source: cluster M9.
    #[must_use]
    pub(crate) fn merged(&self, other: &Self) -> Self {
        debug_assert_eq!(self.address, other.address);
        let further = if self.status >= other.status { self } else { other };
        Self { up_number: self.up_number.min(other.up_number), dead: self.dead || other.dead, ..further.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cluster M2, M9.
    #[test]
    fn every_legal_step_goes_forward_in_merge_order() {
        for from in MemberStatus::ALL {
            for to in MemberStatus::ALL {
                assert!(!from.may_become(to) || to > from, "{from} may become {to}");
            }
        }
    }
}
