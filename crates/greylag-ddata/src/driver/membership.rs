//! Where a replicator learns of its peers.

use std::sync::Arc;
use std::time::Duration;

use greylag_core::NodeAddress;
use tokio::sync::watch;

use crate::replicas::Replicas;

/// A source of membership.
#[derive(Debug)]
pub struct Membership {
    pub(super) source: Source,
}

#[derive(Debug)]
pub(super) enum Source {
    /// Somebody publishes.
    Watch(watch::Receiver<Arc<Replicas>>),
    /// A fixed list; the replicator finds out who runs there.
    Static { peers: Vec<NodeAddress>, unreachable_after: Option<Duration> },
}

impl Membership {
    /// A fixed list of peers. Every one counts as a voter from the start and is unreachable until it
    /// is met; one that returns as a new process takes the place of the old. Source: ddata I2.
    pub fn fixed(peers: impl IntoIterator<Item = NodeAddress>) -> Self {
        Self { source: Source::Static { peers: peers.into_iter().collect(), unreachable_after: None } }
    }

    /// Whatever is published.
    pub fn watch(replicas: watch::Receiver<Arc<Replicas>>) -> Self {
        Self { source: Source::Watch(replicas) }
    }

    /// What the program says through the handle, beginning with `first`.
    pub fn manual(first: Replicas) -> (MembershipHandle, Self) {
        let (sender, receiver) = watch::channel(Arc::new(first));
        (MembershipHandle { sender }, Self::watch(receiver))
    }
}

/// Lets a program say who the replicas are.
#[derive(Debug)]
pub struct MembershipHandle {
    sender: watch::Sender<Arc<Replicas>>,
}

impl MembershipHandle {
    /// From now on these are the replicas.
    pub fn publish(&self, replicas: Replicas) {
        self.sender.send_replace(Arc::new(replicas));
    }
}
