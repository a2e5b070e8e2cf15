//! A queue that stores messages in pieces, conforming or not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::BytesMut;
use greylag_core::{CodecId, Encoded};
use greylag_delivery::queue::{Confirmation, MessageSent, QueueError, QueueState};
use greylag_delivery::tck::{Piece, QueueBench, durable_queue};
use greylag_delivery::{ControllerRef, DurableProducerQueue, InMemoryProducerQueue, InMemoryQueues, SeqNr};

type Planted = Arc<Mutex<BTreeMap<String, Vec<Piece>>>>;

/// Queues of pieces. `discards`: whether an incomplete message at the end is discarded, as it must be.
struct Pieces {
    disk: InMemoryQueues,
    planted: Planted,
    discards: bool,
}

struct PieceQueue {
    queue: InMemoryProducerQueue,
    planted: Planted,
    discards: bool,
}

impl PieceQueue {
    /// The messages assembled from the planted pieces.
    fn assembled(&self) -> Vec<MessageSent<Encoded>> {
        let pieces = self.planted.lock().unwrap().remove(self.queue.name()).unwrap_or_default();
        let mut messages = Vec::new();
        let mut payload = BytesMut::new();
        let mut pieces = pieces.into_iter().peekable();
        while let Some(piece) = pieces.next() {
            if piece.first {
                payload.clear();
            }
            payload.extend_from_slice(piece.bytes.as_bytes());
            if piece.last || (!self.discards && pieces.peek().is_none()) {
                let message =
                    Encoded { codec: CodecId::JSON, manifest: "order".into(), payload: payload.split().freeze() };
                let (ack, qualifier) = (false, "".into());
                messages.push(MessageSent { seq_nr: piece.seq_nr, message, ack, qualifier, timestamp_ms: 1 });
            }
        }
        messages
    }
}

#[async_trait]
impl DurableProducerQueue<Encoded> for PieceQueue {
    async fn load(&mut self, controller: &ControllerRef) -> Result<QueueState<Encoded>, QueueError> {
        let state = self.queue.load(controller).await?;
        let recovered = self.assembled();
        if recovered.is_empty() {
            return Ok(state);
        }
        self.queue.store_message_sent(recovered).await?;
        self.queue.load(controller).await
    }

    async fn store_message_sent(&mut self, batch: Vec<MessageSent<Encoded>>) -> Result<SeqNr, QueueError> {
        self.queue.store_message_sent(batch).await
    }

    async fn store_message_confirmed(&mut self, confirmations: Vec<Confirmation>) -> Result<(), QueueError> {
        self.queue.store_message_confirmed(confirmations).await
    }

    fn max_message_bytes(&self) -> usize {
        self.queue.max_message_bytes()
    }
}

#[async_trait]
impl QueueBench for Pieces {
    type Queue = PieceQueue;

    async fn open(&self, queue: &str) -> Self::Queue {
        PieceQueue { queue: self.disk.open(queue), planted: self.planted.clone(), discards: self.discards }
    }

    async fn plant(&self, queue: &str, pieces: &[Piece]) -> bool {
        self.planted.lock().unwrap().insert(queue.to_owned(), pieces.to_vec());
        true
    }
}

fn pieces(discards: bool) -> Pieces {
    Pieces { disk: InMemoryQueues::new(), planted: Planted::default(), discards }
}

/// Scenario delivery 37: a queue of pieces discards an incomplete tail, and the kit detects if it does not.
#[tokio::test]
async fn scenario_37_an_incomplete_tail_is_discarded() {
    let report = durable_queue(&pieces(true)).await;
    report.assert_conforms();
    assert!(report.skipped().all(|case| !case.contains("(37)")), "{report}");
    let report = durable_queue(&pieces(false)).await;
    assert!(report.failed().any(|case| case.contains("(37)")), "{report}");
}
