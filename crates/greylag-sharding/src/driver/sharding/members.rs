//! The cluster's view, converted for the machines of sharding.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use greylag_cluster::{MemberStatus, MembershipView};
use greylag_core::UniqueAddress;

use crate::machine::membership::{MemberFacts, MemberPhase, Members, Removal};

/// Remembers when each removal was learned of, since margins run from then (cluster P3a).
#[derive(Default)]
pub(crate) struct Tracker {
    removed_at: BTreeMap<UniqueAddress, Instant>,
}

impl Tracker {
    /// Converts the view.
    pub(crate) fn members(&mut self, view: &MembershipView, now: Instant) -> Arc<Members> {
        let members = view.members.iter().map(|member| {
            let facts = MemberFacts {
                phase: phase(member.status),
                up_number: member.up_number,
                reachable: view.is_reachable(&member.address),
                roles: member.roles.as_ref().clone(),
                app_version: member.app_version.clone(),
            };
            (member.address.clone(), facts)
        });
        let members = members.collect();
        self.removed_at.retain(|address, _| view.tombstones.contains_key(address));
        let removed = view.tombstones.iter().map(|(address, tombstone)| {
            let at = *self.removed_at.entry(address.clone()).or_insert(now);
            (address.clone(), Removal { at, clean: tombstone.clean })
        });
        let removed = removed.collect();
        Arc::new(Members { members, removed })
    }
}

fn phase(status: MemberStatus) -> MemberPhase {
    match status {
        MemberStatus::Joining | MemberStatus::WeaklyUp => MemberPhase::Joining,
        MemberStatus::Up => MemberPhase::Up,
        MemberStatus::PreparingForShutdown | MemberStatus::ReadyForShutdown => MemberPhase::Preparing,
        MemberStatus::Leaving => MemberPhase::Leaving,
        MemberStatus::Exiting => MemberPhase::Exiting,
        MemberStatus::Down => MemberPhase::Down,
    }
}
