//! The regions that this incarnation knows, and the nodes known to have no region.
//!
//! Source: sharding §2.3, §2.12, §2.13.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_core::{Generation, UniqueAddress};

use crate::ids::{RegionId, ShardId};
use crate::machine::message::ClaimState;

/// The facts about a region.
#[derive(Debug)]
pub(in crate::machine::coordinator) struct RegionEntry {
    pub(in crate::machine::coordinator) proxy: bool,
    pub(in crate::machine::coordinator) refused: bool,
    /// Whether its last `Register` was sent after it took this incarnation's answer.
    pub(in crate::machine::coordinator) current: bool,
    pub(in crate::machine::coordinator) serial: u64,
    pub(in crate::machine::coordinator) shutting_down: bool,
    /// The claims of the last `Register`.
    pub(in crate::machine::coordinator) claims: BTreeMap<ShardId, (Generation, ClaimState)>,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(in crate::machine::coordinator) struct Registry {
    regions: BTreeMap<RegionId, RegionEntry>,
    /// Regions proven to be gone.
    gone: BTreeSet<RegionId>,
    /// Nodes that were sent an ack or a refusal by this incarnation.
    answered: BTreeSet<UniqueAddress>,
    /// Nodes that said that they have no region.
    without_region: BTreeSet<UniqueAddress>,
    /// Nodes that are named by homes or regions but are no members, and since when.
    missing: BTreeMap<UniqueAddress, Instant>,
    /// While the inventory is taken: when silent nodes are asked again.
    inquire_at: Option<Instant>,
    /// While the inventory is taken: when the next margin of a removed member is over.
    margin_at: Option<Instant>,
}

impl Registry {
    pub(in crate::machine::coordinator) fn regions(&self) -> impl Iterator<Item = (&RegionId, &RegionEntry)> {
        self.regions.iter()
    }

    pub(in crate::machine::coordinator) fn get(&self, region: &RegionId) -> Option<&RegionEntry> {
        self.regions.get(region)
    }

    pub(in crate::machine::coordinator) fn get_mut(&mut self, region: &RegionId) -> Option<&mut RegionEntry> {
        self.regions.get_mut(region)
    }

    pub(in crate::machine::coordinator) fn contains(&self, region: &RegionId) -> bool {
        self.regions.contains_key(region)
    }

    /// Adds a region that has registered, and whose node is answered now; a node with a hosting region is not without
    /// one.
    pub(in crate::machine::coordinator) fn register(&mut self, region: &RegionId, entry: RegionEntry) {
        if !entry.proxy {
            self.without_region.remove(&region.node);
        }
        self.answered.insert(region.node.clone());
        self.regions.insert(region.clone(), entry);
    }

    /// Removes a region that is proven to be gone.
    pub(in crate::machine::coordinator) fn end(&mut self, region: &RegionId) {
        self.gone.insert(region.clone());
        self.regions.remove(region);
    }

    /// Source: sharding §2.3, §2.12.
    pub(in crate::machine::coordinator) fn check_invariants(&self) {
        if !cfg!(debug_assertions) || self.regions.len() > 64 {
            return;
        }
        let mut hosting = BTreeSet::new();
        for (region, entry) in &self.regions {
            assert!(!self.gone.contains(region), "{region:?} is proven to be gone, and registered");
            assert!(self.answered.contains(&region.node), "{region:?} was answered");
            assert!(
                entry.proxy || !self.without_region.contains(&region.node),
                "{region:?} hosts, on a node without one"
            );
            assert!(entry.proxy || hosting.insert(&region.node), "{region:?}: a process has one region that hosts");
        }
    }

    /// Whether the region is proven to be gone.
    pub(in crate::machine::coordinator) fn is_gone(&self, region: &RegionId) -> bool {
        self.gone.contains(region)
    }

    /// Whether the node was sent an ack or a refusal.
    pub(in crate::machine::coordinator) fn is_answered(&self, node: &UniqueAddress) -> bool {
        self.answered.contains(node)
    }

    /// Notes that the node has said that it has no region.
    pub(in crate::machine::coordinator) fn note_without_region(&mut self, node: &UniqueAddress) {
        self.without_region.insert(node.clone());
    }

    /// Whether the node has said that it has no region.
    pub(in crate::machine::coordinator) fn is_without_region(&self, node: &UniqueAddress) -> bool {
        self.without_region.contains(node)
    }

    /// Sets the named nodes that are no members; `since` returns when each was removed.
    pub(in crate::machine::coordinator) fn note_missing(
        &mut self,
        nodes: BTreeSet<UniqueAddress>,
        since: impl Fn(&UniqueAddress) -> Instant,
    ) {
        self.missing.retain(|node, _| nodes.contains(node));
        for node in nodes {
            let at = since(&node);
            self.missing.entry(node).or_insert(at);
        }
    }

    /// Named nodes that are no members, and since when.
    pub(in crate::machine::coordinator) fn missing(&self) -> impl Iterator<Item = (&UniqueAddress, Instant)> {
        self.missing.iter().map(|(node, since)| (node, *since))
    }

    /// Removes a node from the missing ones: its regions have ended.
    pub(in crate::machine::coordinator) fn end_missing(&mut self, node: &UniqueAddress) {
        self.missing.remove(node);
    }

    /// When silent nodes are asked again what they host.
    pub(in crate::machine::coordinator) fn inquire_at(&self) -> Option<Instant> {
        self.inquire_at
    }

    /// Sets when silent nodes are asked again; `None` for never.
    pub(in crate::machine::coordinator) fn inquire_again_at(&mut self, at: Option<Instant>) {
        self.inquire_at = at;
    }

    /// Sets until when the inventory waits for the margin of a removed member; `None` if for none.
    pub(in crate::machine::coordinator) fn wait_for_margin(&mut self, until: Option<Instant>) {
        self.margin_at = until;
    }

    /// When the margin of a node that is missing, or of a removed member, is over.
    pub(in crate::machine::coordinator) fn margin_deadline(&self, margin: Duration) -> Option<Instant> {
        let missing = self.missing.values().map(|since| *since + margin).min();
        [missing, self.margin_at].into_iter().flatten().min()
    }
}
