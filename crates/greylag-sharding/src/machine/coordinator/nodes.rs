//! The nodes of the cluster as the coordinator knows them: members, their regions, and whether all have reported what
//! they host.
//!
//! Source: sharding §2.3, §2.12, §2.13; §1.5, point 4.

mod cluster_view;
mod journal_state;
mod registry;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use self::cluster_view::ClusterView;
use self::journal_state::JournalState;
pub(super) use self::registry::RegionEntry;
use self::registry::Registry;
use super::homes::{Drops, Ledger};
use crate::allocation::{RegionView, View};
use crate::fingerprint::StateStoreMode;
use crate::ids::RegionId;
use crate::machine::membership::MemberPhase;

/// See the module's description.
#[derive(Debug)]
pub(super) struct Nodes {
    /// Role of the nodes that host; empty for all.
    role: String,
    /// Wait after a removal without proof that the process has ended.
    margin: Duration,
    pub(super) view: ClusterView,
    pub(super) registry: Registry,
    /// Durable data besides homes, in mode persistence.
    pub(super) journal_state: JournalState,
}

impl Nodes {
    /// Knows no member yet.
    pub(super) fn new(role: String, margin: Duration, mode: StateStoreMode) -> Self {
        Self {
            role,
            margin,
            view: ClusterView::default(),
            registry: Registry::default(),
            journal_state: JournalState::new(mode),
        }
    }

    /// The registered regions that host.
    pub(super) fn hosting_regions(&self) -> impl Iterator<Item = &RegionId> {
        self.registry.regions().filter(|(_, entry)| !entry.proxy && !entry.refused).map(|(region, _)| region)
    }

    /// Whether the region may register: its member counts, no newer region of its process is known, and the message is
    /// not a late copy of an earlier `Register`.
    pub(super) fn may_register(&self, region: &RegionId, serial: u64) -> bool {
        let phase = self.view.members.members.get(&region.node).map(|member| member.phase);
        if matches!(phase, None | Some(MemberPhase::Joining | MemberPhase::Down)) || self.registry.is_gone(region) {
            return false;
        }
        let newer = |known: &RegionId| known.node == region.node && known.incarnation > region.incarnation;
        let is_late = self.registry.get(region).is_some_and(|entry| entry.serial >= serial);
        !is_late && !self.registry.regions().any(|(known, _)| newer(known))
    }

    /// Whether a shard could be given to this node: it stays, and a hosting region is registered or may still register.
    pub(super) fn can_host(&self, node: &UniqueAddress) -> bool {
        let stays = self.view.members.members.get(node).is_some_and(|member| {
            matches!(member.phase, MemberPhase::Up | MemberPhase::Preparing) && member.has_role(&self.role)
        });
        let goes = |(region, entry): (&RegionId, &RegionEntry)| {
            region.node == *node && !entry.proxy && (entry.shutting_down || entry.refused)
        };
        stays && !self.registry.is_without_region(node) && !self.registry.regions().any(goes)
    }

    /// The regions that can be given a shard: on members that stay and are reachable, if there is one.
    pub(super) fn allocation_view(&self, ledger: &Ledger) -> View {
        let view = self.hosting_view(ledger);
        let regions = view.candidates().into_iter().cloned().collect();
        View { regions, ..view }
    }

    /// Every region that can host, with its shards.
    pub(super) fn hosting_view(&self, ledger: &Ledger) -> View {
        let hosting = self.registry.regions().filter(|(_, e)| !e.proxy && !e.refused && !e.shutting_down);
        let regions = hosting.filter_map(|(region, _)| {
            let member = self.view.members.members.get(&region.node)?;
            Some(RegionView {
                region: region.clone(),
                shards: ledger.shards_of(region),
                phase: member.phase,
                reachable: member.reachable,
                app_version: member.app_version.clone(),
            })
        });
        let mut members = self.view.members.members.values();
        let unsettled = members.any(|member| !member.reachable || member.phase == MemberPhase::Joining);
        View { regions: regions.collect(), unsettled }
    }

    /// Members that may host, or may still be hosting, and have not reported to this incarnation.
    pub(super) fn unreported(&self, drops: &Drops) -> Vec<UniqueAddress> {
        if self.journal_state.is_kept() {
            return self.unregistered_nodes();
        }
        let members = self.view.members.members.iter();
        let may_host =
            members.filter(|(_, member)| member.phase != MemberPhase::Joining && member.has_role(&self.role));
        may_host.map(|(node, _)| node).filter(|node| !self.has_spoken(node, drops)).cloned().collect()
    }

    /// In mode persistence: nodes of recorded regions that could register, and have not registered again.
    fn unregistered_nodes(&self) -> Vec<UniqueAddress> {
        let can_register = |node: &UniqueAddress| {
            let member = self.view.members.members.get(node);
            member.is_some_and(|member| {
                member.reachable && !matches!(member.phase, MemberPhase::Joining | MemberPhase::Down)
            })
        };
        let silent =
            self.journal_state.regions().filter(|region| !self.registry.contains(region)).map(|region| &region.node);
        silent.filter(|node| can_register(node)).cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn has_spoken(&self, node: &UniqueAddress, drops: &Drops) -> bool {
        if self.registry.is_without_region(node) {
            return true;
        }
        let dropped = |region: &RegionId| !drops.waits_for_region(region);
        self.registry.regions().any(|(region, entry)| {
            region.node == *node && !entry.proxy && entry.current && (!entry.refused || dropped(region))
        })
    }

    /// Whether every node has reported or is gone: then an unknown shard runs nowhere. A journal has recorded all
    /// running regions: there the recorded regions must report, and are waited for until a timeout.
    pub(super) fn is_inventory_complete(&mut self, now: Instant, drops: &Drops) -> bool {
        if self.journal_state.is_kept() {
            return self.journal_state.is_overdue() || self.unreported(drops).is_empty();
        }
        let running = self
            .view
            .members
            .removed
            .iter()
            .filter(|(node, removal)| !self.view.members.contains(node) && !self.is_over(node, removal.at, now));
        let margin_at = running.map(|(_, removal)| removal.at + self.margin).min();
        self.registry.wait_for_margin(margin_at);
        self.unreported(drops).is_empty() && margin_at.is_none()
    }

    /// Starts the removal margin of nodes that own something and are no members.
    pub(super) fn note_missing<'a>(&mut self, now: Instant, owners: impl Iterator<Item = &'a RegionId>) {
        let is_missing = |region: &&RegionId| !self.view.members.contains(&region.node);
        let known = self.journal_state.regions().chain(self.registry.regions().map(|(region, _)| region));
        let mut missing: BTreeSet<_> = known.filter(is_missing).map(|region| region.node.clone()).collect();
        missing.extend(owners.filter(is_missing).map(|region| region.node.clone()));
        let members = &self.view.members;
        self.registry.note_missing(missing, |node| members.removed.get(node).map_or(now, |removal| removal.at));
    }

    /// Whether a process that is no member must have ended: it left in order, or its margin is over.
    fn is_over(&self, node: &UniqueAddress, since: Instant, now: Instant) -> bool {
        let clean = self.view.members.removed.get(node).is_some_and(|removal| removal.clean);
        clean || since + self.margin <= now
    }

    /// Takes out the missing nodes whose processes must have ended.
    pub(super) fn take_ended(&mut self, now: Instant) -> Vec<UniqueAddress> {
        let over = self.registry.missing().filter(|(node, since)| self.is_over(node, *since, now));
        let ended: Vec<_> = over.map(|(node, _)| node.clone()).collect();
        ended.iter().for_each(|node| self.registry.end_missing(node));
        ended
    }

    /// When the next margin of a node that is no member is over.
    pub(super) fn margin_deadline(&self) -> Option<Instant> {
        self.registry.margin_deadline(self.margin)
    }

    /// The regions of one node among `owners`, the recorded and the registered regions.
    pub(super) fn known_of<'a>(
        &self,
        node: &UniqueAddress,
        owners: impl Iterator<Item = &'a RegionId>,
    ) -> BTreeSet<RegionId> {
        let is_of_node = |region: &&RegionId| region.node == *node;
        let known = self.journal_state.regions().chain(self.registry.regions().map(|(region, _)| region));
        let mut regions: BTreeSet<_> = known.filter(is_of_node).cloned().collect();
        regions.extend(owners.filter(is_of_node).cloned());
        regions
    }
}
