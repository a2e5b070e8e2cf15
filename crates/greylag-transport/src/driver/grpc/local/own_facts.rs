//! Facts about this process that its handshakes tell beside its address.

use std::sync::{Mutex, PoisonError};

/// The host of this process and the cluster that its node is in.
pub(crate) struct OwnFacts {
    host_id: Option<String>,
    cluster_id: Mutex<Option<u128>>,
}

impl OwnFacts {
    pub(crate) fn new(host_id: Option<String>) -> Self {
        Self { host_id, cluster_id: Mutex::default() }
    }

    pub(crate) fn host_id(&self) -> Option<String> {
        self.host_id.clone()
    }

    /// The id of this node's cluster; `None` until the node has joined one.
    pub(crate) fn cluster_id(&self) -> Option<u128> {
        *self.cluster_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the id of this node's cluster; returns whether it is new.
    pub(crate) fn learn_cluster_id(&self, cluster_id: u128) -> bool {
        let before = self.cluster_id.lock().unwrap_or_else(PoisonError::into_inner).replace(cluster_id);
        before != Some(cluster_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_the_cluster_is_new_once() {
        let facts = OwnFacts::new(None);
        assert_eq!(facts.cluster_id(), None);
        assert!(facts.learn_cluster_id(7) && !facts.learn_cluster_id(7));
        assert!(facts.learn_cluster_id(8));
        assert_eq!(facts.cluster_id(), Some(8));
    }
}
