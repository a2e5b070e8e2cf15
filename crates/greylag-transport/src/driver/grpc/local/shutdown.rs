//! The orderly end of a transport: whether it has begun, and which peers have still to read the last word.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use greylag_core::NodeAddress;
use tokio::sync::Notify;

use crate::lanes::lane::Lane;

/// The end of this transport.
#[derive(Default)]
pub(crate) struct Shutdown {
    is_begun: AtomicBool,
    /// Lanes on which the last word was sent and not yet read.
    terminating: Mutex<BTreeSet<(NodeAddress, Lane)>>,
    terminating_done: Notify,
}

impl Shutdown {
    pub(crate) fn begin(&self) {
        self.is_begun.store(true, Ordering::Release);
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.is_begun.load(Ordering::Acquire)
    }

    /// Whether the end has begun, perhaps a moment late. The load is relaxed because every message that is sent asks
    /// this.
    pub(crate) fn is_begun_relaxed(&self) -> bool {
        self.is_begun.load(Ordering::Relaxed)
    }

    /// Notes that the last word was sent on a lane.
    pub(crate) fn terminating_sent(&self, peer: &NodeAddress, lane: Lane) {
        self.terminating().insert((peer.clone(), lane));
    }

    /// Notes that a peer has read everything on a lane, or reads no more of it.
    pub(crate) fn terminating_done(&self, peer: &NodeAddress, lane: Lane) {
        self.terminating().remove(&(peer.clone(), lane));
        self.terminating_done.notify_one();
    }

    /// Waits until every last word was read.
    pub(crate) async fn all_terminating_done(&self) {
        while !self.terminating().is_empty() {
            self.terminating_done.notified().await;
        }
    }

    fn terminating(&self) -> MutexGuard<'_, BTreeSet<(NodeAddress, Lane)>> {
        self.terminating.lock().expect("nothing panics that holds it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_waits_for_every_last_word() {
        let shutdown = Shutdown::default();
        let peer = NodeAddress::new("a", 1).unwrap();
        shutdown.terminating_sent(&peer, Lane::CONTROL);
        shutdown.terminating_sent(&peer, Lane::LARGE);
        shutdown.terminating_done(&peer, Lane::CONTROL);
        let waits = async || tokio::time::timeout(std::time::Duration::ZERO, shutdown.all_terminating_done()).await;
        assert!(waits().await.is_err(), "one lane is left");
        shutdown.terminating_done(&peer, Lane::LARGE);
        assert!(waits().await.is_ok());
    }
}
