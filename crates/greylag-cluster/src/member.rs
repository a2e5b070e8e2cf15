//! Members: one process incarnation each, its status, and how it compares with others.
//!
//! A member's status only moves forward along [`MemberStatus`]' order. Its age is fixed when it
//! becomes Up: who got the lower `up_number` is older, and the oldest hosts singletons.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use greylag_core::UniqueAddress;

use crate::app_version::AppVersion;

/// The data centre of a member that names none. Source: cluster M1.
pub(crate) const DEFAULT_DC: &str = "default";

/// How far a member is in its life.
///
/// The order is the merge priority: of two views of one member the further one wins.
/// Source: cluster M2, M9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberStatus {
    /// Accepted by a member, not yet known to all.
    Joining,
    /// Let in while some member is unreachable; counts in no majority.
    WeaklyUp,
    /// A full member.
    Up,
    /// The whole cluster is about to shut down.
    PreparingForShutdown,
    /// The whole cluster is ready to shut down.
    ReadyForShutdown,
    /// Asked to leave.
    Leaving,
    /// All know that it leaves; it hands over what it hosts.
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

    /// Whether a member may go from `self` to `to`. Removal is possible from everywhere.
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

    /// Up, Leaving, PreparingForShutdown or ReadyForShutdown: those whose agreement convergence
    /// needs and among whom the leader is sought first. Source: cluster M17, M18.
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Up | Self::Leaving | Self::PreparingForShutdown | Self::ReadyForShutdown)
    }
}

impl fmt::Display for MemberStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One process of the cluster, as the gossip knows it. Source: cluster M1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The process.
    pub address: UniqueAddress,
    /// Its age: lower is older. [`Member::NOT_UP`] until it is Up. Source: cluster M16.
    pub up_number: u32,
    /// How far it is.
    pub status: MemberStatus,
    /// Its death is proven, not only suspected; it is removed without a margin. Source: cluster S20.
    pub dead: bool,
    /// What it is for; `dc-<data_center>` is among them.
    pub roles: Arc<BTreeSet<String>>,
    /// The version of the application that it runs.
    pub app_version: AppVersion,
    /// Its data centre; one only, named `default`, for now.
    pub data_center: Arc<str>,
    /// The host that it named when it joined: kernel boot id and network namespace. Never changed;
    /// `None` where they cannot be known. Source: cluster M1, T12.
    pub host_id: Option<Arc<str>>,
}

impl Member {
    /// The `up_number` of a member that was never Up.
    pub const NOT_UP: u32 = u32::MAX;

    /// A member that just joined. Its data centre is named by its role `dc-<data_center>`.
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

    /// The same member on this host.
    #[must_use]
    pub fn on_host(self, host_id: Option<Arc<str>>) -> Self {
        Self { host_id, ..self }
    }

    /// Whether it has the role.
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.contains(role)
    }

    /// Whether it has the role, where `None` is had by all.
    pub fn has_role_or_any(&self, role: Option<&str>) -> bool {
        role.is_none_or(|role| self.has_role(role))
    }

    /// By age, the oldest first. Comparable only between current members. Source: cluster M16.
    pub fn age_order(&self, other: &Self) -> Ordering {
        self.age_key().cmp(&other.age_key())
    }

    /// What [`Member::age_order`] compares.
    pub fn age_key(&self) -> (u32, &UniqueAddress) {
        (self.up_number, &self.address)
    }

    /// The same member in another status.
    #[must_use]
    pub(crate) fn in_status(&self, status: MemberStatus) -> Self {
        Self { status, ..self.clone() }
    }

    /// Both views of one member made into one: the further status, the lower number, `dead` if
    /// either says so. Source: cluster M9.
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
