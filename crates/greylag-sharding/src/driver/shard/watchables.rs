//! The incarnations of one shard that other nodes watch.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::driver::node::services::Node;
use crate::machine::shard::SlotId;

/// The incarnations of one shard that can be watched. Dropping this value ends them.
pub(crate) struct ShardWatchables {
    node: Arc<Node>,
    incarnations: BTreeMap<SlotId, u64>,
}

impl ShardWatchables {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self { node, incarnations: BTreeMap::new() }
    }

    /// Notes an incarnation whose handler has asked for its address.
    pub(crate) fn note(&mut self, slot: SlotId, incarnation: u64) {
        self.incarnations.insert(slot, incarnation);
    }

    /// Notes that the incarnation of the slot has ended: its watchers are told.
    pub(crate) fn end(&mut self, slot: SlotId) {
        if let Some(incarnation) = self.incarnations.remove(&slot) {
            self.node.watchables.end(&*self.node.remoting, incarnation);
        }
    }
}

impl Drop for ShardWatchables {
    fn drop(&mut self) {
        for incarnation in std::mem::take(&mut self.incarnations).into_values() {
            self.node.watchables.end(&*self.node.remoting, incarnation);
        }
    }
}
