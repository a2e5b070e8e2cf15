//! The inventory: which nodes have reported what they host, and whether all have.
//!
//! Source: sharding §2.13; §1.5, point 4.

use std::collections::BTreeSet;
use std::time::Instant;

use greylag_core::UniqueAddress;

use super::{Coordinator, Sabotage};
use crate::ids::RegionId;
use crate::machine::membership::Phase;
use crate::machine::message::AgreementOutcome;

impl Coordinator {
    /// Members that may host, or may still be hosting, and have not reported to this incarnation.
    pub(super) fn unreported_nodes(&self) -> Vec<UniqueAddress> {
        if self.journal_state.is_kept() {
            return self.unregistered_nodes();
        }
        let members = self.cluster_view.members.members.iter();
        let may_host =
            members.filter(|(_, member)| member.phase != Phase::Joining && member.has_role(&self.config.role));
        may_host.map(|(node, _)| node).filter(|node| !self.has_spoken(node)).cloned().collect()
    }

    /// In mode persistence: nodes of recorded regions that could register, and have not registered again.
    fn unregistered_nodes(&self) -> Vec<UniqueAddress> {
        let can_register = |node: &UniqueAddress| {
            let member = self.cluster_view.members.members.get(node);
            member.is_some_and(|member| member.reachable && !matches!(member.phase, Phase::Joining | Phase::Down))
        };
        let silent =
            self.journal_state.regions().filter(|region| !self.registry.contains(region)).map(|region| &region.node);
        silent.filter(|node| can_register(node)).cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn has_spoken(&self, node: &UniqueAddress) -> bool {
        if self.registry.is_without_region(node) {
            return true;
        }
        let dropped = |region: &RegionId| !self.orders.drops.waits_for_region(region);
        self.registry.regions().any(|(region, entry)| {
            region.node == *node && !entry.proxy && entry.current && (!entry.refused || dropped(region))
        })
    }

    /// Whether all members agree about the type: a side that another role's coordinator does not know of could give an
    /// entity a second home.
    pub(super) fn all_agree(&self) -> bool {
        self.sabotage == Some(Sabotage::Agreement) || self.cluster_view.outcome == AgreementOutcome::Agreed
    }

    /// Whether every node has reported or is gone: then an unknown shard runs nowhere. A journal has recorded all
    /// running regions: there the recorded regions must report, and are waited for until a timeout.
    pub(super) fn inventory_is_complete(&mut self, now: Instant) -> bool {
        if self.sabotage == Some(Sabotage::Inventory) {
            return true;
        }
        if self.journal_state.is_kept() {
            return self.journal_state.is_overdue() || self.unreported_nodes().is_empty();
        }
        let running = self.cluster_view.members.removed.iter().filter(|(node, removal)| {
            !self.cluster_view.members.contains(node) && !self.is_over(node, removal.at, now)
        });
        let margin_at = running.map(|(_, removal)| removal.at + self.config.down_removal_margin).min();
        self.registry.wait_for_margin(margin_at);
        self.unreported_nodes().is_empty() && margin_at.is_none()
    }
}
