//! Tells entities which nodes were removed for good, and the producers on those nodes with them.
//!
//! Every transport quarantines a node that was removed from the cluster; links to a quarantined node have nothing more
//! to wait for. One listener per entity type and node of this process hears of the quarantine, instead of one listener
//! per link.
//!
//! Source: delivery S13; cluster M33, T18.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use greylag_core::UniqueAddress;
use greylag_transport::{Remoting, TransportEvent, TransportListener};

use crate::delivery::{Outcome, Outcomes};

/// Entities of one type, by the nodes of the producers to which they have links.
#[derive(Default)]
pub(super) struct NodeRemovals(Mutex<State>);

#[derive(Default)]
struct State {
    /// Nodes for which a listener is registered.
    listening: BTreeSet<UniqueAddress>,
    waiting: BTreeMap<UniqueAddress, Entities>,
}

/// Entities by the address of their outcomes, for lookup in logarithmic time when a link ends. An address is not reused
/// while the map has an entry for it, because a weak reference keeps the allocation.
type Entities = BTreeMap<usize, Weak<Outcomes>>;

fn key_of(entity: &Arc<Outcomes>) -> usize {
    Arc::as_ptr(entity).addr()
}

struct Listener(Weak<NodeRemovals>);

impl TransportListener for Listener {
    fn on_event(&self, event: &mut TransportEvent) {
        if let TransportEvent::Quarantined { peer, .. } = event
            && let Some(node_removals) = self.0.upgrade()
        {
            node_removals.notify(peer);
        }
    }
}

impl NodeRemovals {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells `entity` when `node` is removed.
    pub(super) fn watch(self: &Arc<Self>, remoting: &dyn Remoting, node: &UniqueAddress, entity: &Arc<Outcomes>) {
        let is_new = {
            let mut state = self.lock();
            state.waiting.entry(node.clone()).or_default().insert(key_of(entity), Arc::downgrade(entity));
            state.listening.insert(remoting.self_address().clone())
        };
        if is_new {
            remoting.listen(None, Arc::new(Listener(Arc::downgrade(self))));
        }
    }

    /// Ends a [`watch`](Self::watch): the entity has ended, or has no link to a producer on `node` any more.
    pub(super) fn forget(&self, node: &UniqueAddress, entity: &Arc<Outcomes>) {
        let mut state = self.lock();
        if let Some(waiting) = state.waiting.get_mut(node) {
            waiting.remove(&key_of(entity));
            if waiting.is_empty() {
                state.waiting.remove(node);
            }
        }
    }

    fn notify(&self, node: &UniqueAddress) {
        let waiting = self.lock().waiting.remove(node).unwrap_or_default();
        for entity in waiting.values().filter_map(Weak::upgrade) {
            entity.push(Outcome::NodeGone(node.clone()));
        }
    }
}

impl fmt::Debug for NodeRemovals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeRemovals").field("nodes", &self.lock().waiting.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use greylag_core::Registry;
    use greylag_transport::memory::MemoryNetwork;

    use super::*;

    #[tokio::test]
    async fn entities_that_stopped_watching_are_not_notified() {
        let network = MemoryNetwork::new();
        let here = network.node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
        let gone: UniqueAddress = "b:1#2".parse().unwrap();
        let node_removals = Arc::<NodeRemovals>::default();
        let entities: Vec<Arc<Outcomes>> = (0..3).map(|_| Arc::default()).collect();
        entities.iter().for_each(|entity| node_removals.watch(&*here, &gone, entity));
        node_removals.forget(&gone, &entities[1]);
        node_removals.notify(&gone);
        let notified = |entity: &Arc<Outcomes>| {
            let mut news = Vec::new();
            entity.take(&mut news);
            news.len()
        };
        assert_eq!(entities.iter().map(notified).collect::<Vec<_>>(), [1, 0, 1]);
        assert!(node_removals.lock().waiting.is_empty(), "told once");
        node_removals.watch(&*here, &gone, &entities[0]);
        node_removals.forget(&gone, &entities[0]);
        assert!(node_removals.lock().waiting.is_empty(), "nothing is kept of a node that no entity listens to");
    }
}
