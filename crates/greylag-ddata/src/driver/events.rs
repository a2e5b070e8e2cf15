//! The events of a replicator, for programs and for the log.

use tokio::sync::broadcast;

use crate::api::event::ReplicatorEvent;
use crate::api::event::TypeConflict;

/// How many events a reader may be behind; older ones are lost for it.
const KEPT: usize = 256;

/// The events of a replicator from the call on. A reader that is too slow loses the oldest events. Source: ddata I3.
#[derive(Debug)]
pub struct Events(broadcast::Receiver<ReplicatorEvent>);

impl Events {
    /// The next event; `None` once the replicator is gone. Cancel safe.
    pub async fn next(&mut self) -> Option<ReplicatorEvent> {
        loop {
            match self.0.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    tracing::debug!(missed, "events of a replicator were read too slowly");
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

/// The sender of events.
#[derive(Debug)]
pub(super) struct EventSender(broadcast::Sender<ReplicatorEvent>);

impl EventSender {
    pub(super) fn new() -> Self {
        Self(broadcast::channel(KEPT).0)
    }

    pub(super) fn listen(&self) -> Events {
        Events(self.0.subscribe())
    }

    /// Writes an event to the log, and sends it to all listeners.
    pub(super) fn send(&self, event: ReplicatorEvent) {
        log(&event);
        // Ignore the error of having no listener.
        drop(self.0.send(event));
    }
}

fn log(event: &ReplicatorEvent) {
    match event {
        ReplicatorEvent::TypeConflict(TypeConflict { key, own, peer, found }) => {
            tracing::warn!(%key, %peer, %own, %found, "a peer holds another type under this key; the key will never converge");
        }
        ReplicatorEvent::PeerSilent { peer } => {
            tracing::warn!(%peer, "a peer does not answer requests; check that a replicator of this name runs there");
        }
        ReplicatorEvent::ClockAhead { key, peer, ahead_ms } => {
            tracing::warn!(%key, %peer, ahead_ms, "a write's timestamp is far ahead of this node's clock");
        }
        ReplicatorEvent::ReplicaIdReused { replica, key, peer } => {
            tracing::error!(%replica, %key, %peer, "replica id reused: a peer holds numbers that were never drawn here");
        }
        ReplicatorEvent::UnknownType { key, peer, found } => {
            tracing::warn!(%key, %peer, %found, "a peer sent a type that is not registered here; it is not stored");
        }
        ReplicatorEvent::StoreError { error, unstored } => {
            tracing::error!(%error, unstored, "durable entries could not be stored; they are in memory");
        }
        ReplicatorEvent::RecordQuarantined { key, why } => {
            tracing::error!(%key, %why, "a stored record could not be read and was moved aside; peers supply the data");
        }
        ReplicatorEvent::RecordOfUnknownType { key, tag } => {
            tracing::error!(%key, %tag, "a stored record is of a type that is not registered here; it is not served");
        }
        ReplicatorEvent::StaleStore { synced_at, parted, own_horizon, horizon, peer, dropped } => {
            tracing::error!(
                synced_at, parted, own_horizon, horizon, %peer, dropped,
                "the store is stale: its history parted from that of a peer, and one of the two has forgotten data since"
            );
        }
        ReplicatorEvent::GateClosed { waiting_for, unmet } => {
            let waiting_for: Vec<String> = waiting_for.iter().map(ToString::to_string).collect();
            let unmet: Vec<String> = unmet.iter().map(ToString::to_string).collect();
            tracing::warn!(
                ?waiting_for,
                ?unmet,
                "the gate is closed: durable entries are exchanged only after these members have answered (or were \
                 removed) and these peers were met (or taken out)"
            );
        }
        ReplicatorEvent::ImplausibleHorizon { peer, ahead_ms } => {
            tracing::warn!(%peer, ahead_ms, "a peer names a time far ahead of this node's clock; the time is ignored");
        }
        ReplicatorEvent::ClockWentBack { by_ms } => {
            tracing::warn!(by_ms, "this node's clock went back; pruning times noted before are set to now");
        }
        ReplicatorEvent::PruningBlocked { by } => {
            tracing::info!(%by, "pruning waits: a member is unreachable");
        }
        ReplicatorEvent::PruningDone { removed, entries } => {
            tracing::info!(%removed, entries, "pruned a removed replica: its data now bear this replica's name");
        }
        ReplicatorEvent::TransferAborted { peer } => {
            tracing::warn!(%peer, "the transfer of a large value was aborted; anti-entropy starts it again");
        }
        ReplicatorEvent::EntryLarge { key, bytes, in_pieces: true } => {
            tracing::warn!(%key, bytes, "an entry is so large that it travels in fragments; smaller entries are faster");
        }
        ReplicatorEvent::EntryLarge { key, bytes, .. } => tracing::info!(%key, bytes, "an entry is large"),
        ReplicatorEvent::PeerLagging { peer, records } => {
            tracing::info!(%peer, records, "the delta log was cut short; anti-entropy covers the peer");
        }
    }
}
