//! The regions that this incarnation knows, and the nodes of which it knows that they have none.
//!
//! Source: sharding §2.3, §2.12, §2.13.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_core::{Generation, UniqueAddress};

use crate::ids::{RegionId, ShardId};
use crate::machine::message::ClaimState;

/// A region as this incarnation knows it.
#[derive(Debug)]
pub(super) struct RegionEntry {
    pub(super) proxy: bool,
    pub(super) refused: bool,
    /// Its last `Register` was sent after it took this incarnation's answer.
    pub(super) current: bool,
    pub(super) serial: u64,
    pub(super) shutting_down: bool,
    /// What the last `Register` claimed.
    pub(super) claims: BTreeMap<ShardId, (Generation, ClaimState)>,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Registry {
    regions: BTreeMap<RegionId, RegionEntry>,
    /// Regions proven to be gone.
    gone: BTreeSet<RegionId>,
    /// Nodes that were sent an ack or a refusal by this incarnation.
    answered: BTreeSet<UniqueAddress>,
    /// Nodes that said that they have no region.
    without_region: BTreeSet<UniqueAddress>,
    /// Nodes that are named by homes or regions but are no members, and since when that is known.
    missing: BTreeMap<UniqueAddress, Instant>,
    /// While the inventory is taken: when silent nodes are asked again.
    inquire_at: Option<Instant>,
    /// While the inventory is taken: when the next margin of a removed member is over.
    margin_at: Option<Instant>,
}

impl Registry {
    pub(super) fn regions(&self) -> impl Iterator<Item = (&RegionId, &RegionEntry)> {
        self.regions.iter()
    }

    pub(super) fn get(&self, region: &RegionId) -> Option<&RegionEntry> {
        self.regions.get(region)
    }

    pub(super) fn get_mut(&mut self, region: &RegionId) -> Option<&mut RegionEntry> {
        self.regions.get_mut(region)
    }

    pub(super) fn contains(&self, region: &RegionId) -> bool {
        self.regions.contains_key(region)
    }

    /// The region has registered and is answered now; a node with a region that hosts is none without.
    pub(super) fn register(&mut self, region: &RegionId, entry: RegionEntry) {
        if !entry.proxy {
            self.without_region.remove(&region.node);
        }
        self.answered.insert(region.node.clone());
        self.regions.insert(region.clone(), entry);
    }

    /// The region is proven to be gone.
    pub(super) fn end(&mut self, region: &RegionId) {
        self.gone.insert(region.clone());
        self.regions.remove(region);
    }

    /// Whether the region is proven to be gone.
    pub(super) fn is_gone(&self, region: &RegionId) -> bool {
        self.gone.contains(region)
    }

    /// Whether the node was sent an ack or a refusal.
    pub(super) fn is_answered(&self, node: &UniqueAddress) -> bool {
        self.answered.contains(node)
    }

    /// The node has said that it has no region.
    pub(super) fn note_without_region(&mut self, node: &UniqueAddress) {
        self.without_region.insert(node.clone());
    }

    /// Whether the node has said that it has no region.
    pub(super) fn is_without_region(&self, node: &UniqueAddress) -> bool {
        self.without_region.contains(node)
    }

    /// These nodes are named and no members; `since` says when each was removed.
    pub(super) fn note_missing(&mut self, nodes: BTreeSet<UniqueAddress>, since: impl Fn(&UniqueAddress) -> Instant) {
        self.missing.retain(|node, _| nodes.contains(node));
        for node in nodes {
            let at = since(&node);
            self.missing.entry(node).or_insert(at);
        }
    }

    /// Named nodes that are no members, and since when.
    pub(super) fn missing(&self) -> impl Iterator<Item = (&UniqueAddress, Instant)> {
        self.missing.iter().map(|(node, since)| (node, *since))
    }

    /// The node is missing no longer: everything of it has ended.
    pub(super) fn end_missing(&mut self, node: &UniqueAddress) {
        self.missing.remove(node);
    }

    /// When silent nodes are asked again what they host.
    pub(super) fn inquire_at(&self) -> Option<Instant> {
        self.inquire_at
    }

    /// Silent nodes are asked at that time, or not any more.
    pub(super) fn inquire_again_at(&mut self, at: Option<Instant>) {
        self.inquire_at = at;
    }

    /// The inventory waits until then for the margin of a removed member, or for none.
    pub(super) fn wait_for_margin(&mut self, until: Option<Instant>) {
        self.margin_at = until;
    }

    /// When the margin of a node that is missing, or of a removed member, is over.
    pub(super) fn margin_deadline(&self, margin: Duration) -> Option<Instant> {
        let missing = self.missing.values().map(|since| *since + margin).min();
        [missing, self.margin_at].into_iter().flatten().min()
    }
}
