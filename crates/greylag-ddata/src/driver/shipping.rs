//! Messages too large for the ordinary lane: written, cut and sent beside the replicator's task, one after the other
//! per peer, as fast as the large lane takes them. Nothing else waits for that. Source: ddata G11, H9.

use std::collections::BTreeMap;
use std::sync::Arc;
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
    peers: BTreeMap<UniqueAddress, mpsc::Sender<Message>>,
}

#[derive(Clone)]
struct Lane {
    remoting: Arc<dyn Remoting>,
    bulk: Recipient,
    /// Transfers are numbered like everything else, so what a former replicator of this process sent is
    /// never taken for a part of what this one sends. Source: ddata G1.
    numbers: DotSource,
    fragment_bytes: usize,
}

impl Shipping {
    pub(super) fn new(remoting: Arc<dyn Remoting>, bulk: Recipient, numbers: DotSource, fragment_bytes: usize) -> Self {
        Self { lane: Lane { remoting, bulk, numbers, fragment_bytes }, peers: BTreeMap::new() }
    }

    /// Sends a message in its turn. Returns whether there was room for it to wait.
    pub(super) fn ship(&mut self, to: &UniqueAddress, message: Message) -> bool {
        let queue = self.peers.entry(to.clone()).or_insert_with(|| {
            let (queue, waiting) = mpsc::channel(WAITING);
            tokio::spawn(self.lane.clone().run(to.clone(), waiting));
            queue
        });
        queue.try_send(message).is_ok()
    }

    /// Who is gone needs nothing any more.
    pub(super) fn keep(&mut self, replicas: &Replicas) {
        self.peers.retain(|peer, _| replicas.other(peer).is_some());
    }
}

impl Lane {
    async fn run(self, to: UniqueAddress, mut waiting: mpsc::Receiver<Message>) {
        while let Some(message) = waiting.recv().await {
            let lane = self.clone();
            let Ok(envelopes) = tokio::task::spawn_blocking(move || lane.envelopes(&message)).await else { continue };
            for envelope in envelopes {
                let to_process = Destination::Incarnation(to.clone());
                let sending = self.remoting.send_async(&to_process, envelope.to_uid(to.uid()), Some(PATIENCE));
                if let Err(rejected) = sending.await {
                    tracing::debug!(%to, error = %rejected.error, "a large message was not sent");
                    break;
                }
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
