//! Messages too large for the ordinary lane: written, cut and sent beside the replicator's task, one after the other
//! per peer, as fast as the large lane takes them. Nothing else waits for that. Source: ddata G11, H9.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use greylag_core::{CodecId, UniqueAddress};
use greylag_crdt::DotSource;
use greylag_transport::{Destination, Envelope, Recipient, Remoting};
use tokio::sync::mpsc;

use crate::message::Message;
use crate::replicas::Replicas;
use crate::transfers::cut;
use crate::wire::{self, FRAGMENT_MANIFEST, MANIFEST};

/// Messages that wait per peer; beyond it they are refused, as by a full lane.
const WAITING: usize = 64;
/// So long a piece may wait for room on the lane.
const PATIENCE: Duration = Duration::from_secs(30);

/// The way out for large messages.
pub(super) struct Shipping {
    lane: Lane,
    peers: BTreeMap<UniqueAddress, Queue>,
    /// Bytes that may wait per peer, about. One message may always wait.
    max_bytes: usize,
}

/// What waits for one peer.
struct Queue {
    messages: mpsc::Sender<(usize, Message)>,
    /// About how many bytes these have, with the one that is being sent.
    bytes: Arc<AtomicUsize>,
}

#[derive(Clone)]
struct Lane {
    remoting: Arc<dyn Remoting>,
    bulk: Recipient,
    /// Transfers are numbered like everything else, so a piece that a former replicator of this process sent is
    /// never taken for a part of a transfer of this one. Source: ddata G1.
    numbers: DotSource,
    fragment_bytes: usize,
}

impl Shipping {
    pub(super) fn new(
        remoting: Arc<dyn Remoting>,
        bulk: Recipient,
        numbers: DotSource,
        fragment_bytes: usize,
        max_bytes: usize,
    ) -> Self {
        Self { lane: Lane { remoting, bulk, numbers, fragment_bytes }, peers: BTreeMap::new(), max_bytes }
    }

    /// Sends a message in its turn. Returns whether there was room for it to wait.
    pub(super) fn ship(&mut self, to: &UniqueAddress, message: Message) -> bool {
        let queue = self.peers.entry(to.clone()).or_insert_with(|| {
            let ((messages, waiting), bytes) = (mpsc::channel(WAITING), Arc::new(AtomicUsize::new(0)));
            tokio::spawn(self.lane.clone().run(to.clone(), waiting, bytes.clone()));
            Queue { messages, bytes }
        });
        let size = message.size_hint();
        let before = queue.bytes.load(Ordering::Relaxed);
        if before > 0 && before.saturating_add(size) > self.max_bytes {
            return false;
        }
        queue.bytes.fetch_add(size, Ordering::Relaxed);
        let is_taken = queue.messages.try_send((size, message)).is_ok();
        if !is_taken {
            queue.bytes.fetch_sub(size, Ordering::Relaxed);
        }
        is_taken
    }

    /// Keeps the queues of these replicas; a peer that is gone needs nothing any more.
    pub(super) fn keep(&mut self, replicas: &Replicas) {
        self.peers.retain(|peer, _| replicas.other(peer).is_some());
    }
}

impl Lane {
    async fn run(self, to: UniqueAddress, mut waiting: mpsc::Receiver<(usize, Message)>, bytes: Arc<AtomicUsize>) {
        while let Some((size, message)) = waiting.recv().await {
            self.send(&to, message).await;
            bytes.fetch_sub(size, Ordering::Relaxed);
        }
    }

    async fn send(&self, to: &UniqueAddress, message: Message) {
        let lane = self.clone();
        let Ok(envelopes) = tokio::task::spawn_blocking(move || lane.envelopes(&message)).await else { return };
        for envelope in envelopes {
            let to_process = Destination::Incarnation(to.clone());
            let sending = self.remoting.send_async(&to_process, envelope.to_uid(to.uid()), Some(PATIENCE));
            if let Err(rejected) = sending.await {
                tracing::debug!(%to, error = %rejected.error, "a large message was not sent");
                return;
            }
        }
    }

    /// The message as it is if it fits a piece, and in pieces otherwise.
    fn envelopes(&self, message: &Message) -> Vec<Envelope> {
        let mut buffer = BytesMut::new();
        if let Err(error) = wire::encode(message, &mut buffer) {
            tracing::error!(%error, "a message could not be written");
            return Vec::new();
        }
        let bytes = buffer.freeze();
        let envelope = |manifest, bytes| Envelope::new(self.bulk.clone(), CodecId::PROST, manifest, bytes);
        if bytes.len() <= self.fragment_bytes {
            return vec![envelope(MANIFEST, bytes)];
        }
        let pieces = cut(self.numbers.draw(), &bytes, self.fragment_bytes);
        pieces.iter().map(|piece| envelope(FRAGMENT_MANIFEST, wire::encode_fragment(piece))).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use greylag_core::Registry;
    use greylag_transport::memory::MemoryNetwork;

    use super::*;
    use crate::message::{Content, Envelope as Entry};

    /// ddata G11: messages that wait for a peer are bounded in bytes, and one may always wait.
    #[tokio::test]
    async fn what_waits_is_bounded_in_bytes() {
        let network = MemoryNetwork::new();
        let node = |address: &str| network.node(address.parse().unwrap(), Arc::new(Registry::new()));
        let (own, to) = (node("a.shipping:1#1"), "b.shipping:1#2".parse().unwrap());
        let mut shipping = Shipping::new(own, Recipient::new("bulk"), DotSource::new(), 1_000, 10_000);
        let message = |bytes: usize| {
            let content = Content::Value { tag: "t".into(), bytes: Bytes::from(vec![0; bytes]) };
            Message::Write { request: 1, key: "k".into(), envelope: Entry::of(content) }
        };
        // Nothing is sent as long as nothing else runs.
        let taken = [4_000, 4_000, 4_000, 1].map(|bytes| shipping.ship(&to, message(bytes)));
        assert_eq!(taken, [true, true, false, true]);
        let other = "c.shipping:1#3".parse().unwrap();
        assert!(shipping.ship(&other, message(50_000)), "alone, however large");
        while shipping.peers.values().any(|queue| queue.bytes.load(Ordering::Relaxed) > 0) {
            tokio::task::yield_now().await;
        }
        assert!(shipping.ship(&to, message(4_000)));
    }
}
