//! Incarnations that can be watched: each is a recipient of the transport for as long as it lives.
//!
//! An incarnation is registered when it asks for its address, before any other part of the program can know that
//! address; most incarnations never ask, and cost nothing. Messages to the recipient are dropped: messages to an
//! incarnation have another path.
//!
//! Source: cluster T30, sharding §4.11.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use greylag_transport::{Inbound, Receiver, Remoting};

use super::node::Node;
use crate::host::DirectRef;
use crate::machine::shard::SlotId;

/// The registered incarnations of a node, with their paths.
#[derive(Default)]
pub(crate) struct NodeWatchables(Mutex<BTreeMap<u64, Arc<str>>>);

struct DiscardReceiver;

impl Receiver for DiscardReceiver {
    fn receive(&self, _: Inbound) {}
}

impl NodeWatchables {
    /// Registers an incarnation, which can be watched from now on. Both `register` and `end` are called by its own
    /// shard.
    pub(crate) fn register(&self, remoting: &dyn Remoting, incarnation: &DirectRef) {
        let path = incarnation.recipient().path;
        let is_new = self.lock().insert(incarnation.instance, path.clone()).is_none();
        if is_new {
            remoting.register(&path, Arc::new(DiscardReceiver));
        }
    }

    fn end(&self, remoting: &dyn Remoting, incarnation: u64) {
        let path = self.lock().remove(&incarnation);
        if let Some(path) = path {
            remoting.unregister(&path);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
