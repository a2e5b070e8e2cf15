//! Receives the messages of peers: decodes them on the worker that brings them, and queues them for the machine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use greylag_core::{Room, Share, UniqueAddress};
use greylag_transport::{Inbound, Receiver};
use tokio::sync::{mpsc, watch};

use crate::api::input::DropReason;
use crate::membership::replicas::Replicas;
use crate::messages::message::Message;
use crate::messages::transfers::{Accepted, Transfers};
use crate::messages::wire::{self, FRAGMENT_MANIFEST, WireError};

/// An item for the machine.
pub(in crate::driver) enum InboundItem {
    Message(Box<Message>),
    Dropped(DropReason),
}

/// An item from a peer, with its share of the room of its queue.
pub(in crate::driver) struct FromPeer {
    pub(in crate::driver) from: UniqueAddress,
    pub(in crate::driver) item: InboundItem,
    _share: Share,
}

/// The queues of messages that wait for the machine. A round may bring many messages, so requests, whose callers wait,
/// have a queue of their own.
pub(in crate::driver) struct InboundQueues {
    /// Requests, their answers, and deltas.
    pub(in crate::driver) asked: mpsc::Receiver<FromPeer>,
    /// Rounds of anti-entropy.
    pub(in crate::driver) rounds: mpsc::Receiver<FromPeer>,
}

/// The sending ends of both queues.
pub(in crate::driver) struct InboundSenders {
    asked: InboundSender,
    rounds: InboundSender,
}

struct InboundSender {
    queue: mpsc::Sender<FromPeer>,
    room: Room,
}

impl InboundSender {
    /// Queues an item if there is room.
    fn put(&self, from: UniqueAddress, item: InboundItem, bytes: usize) -> bool {
        let Some(share) = self.room.take(bytes) else { return false };
        self.queue.try_send(FromPeer { from, item, _share: share }).is_ok()
    }
}

/// Makes two queues, each for `messages` messages of `bytes` bytes together.
pub(in crate::driver) fn inbound_queues(messages: usize, bytes: usize) -> (InboundSenders, InboundQueues) {
    let ((asked, asking), (rounds, of_rounds)) = (mpsc::channel(messages), mpsc::channel(messages));
    let sender = |queue| InboundSender { queue, room: Room::new(messages, bytes) };
    (
        InboundSenders { asked: sender(asked), rounds: sender(rounds) },
        InboundQueues { asked: asking, rounds: of_rounds },
    )
}

/// The receiver of both mailboxes.
pub(in crate::driver) struct InboundReceiver {
    senders: InboundSenders,
    transfers: Mutex<Transfers>,
    replicas: watch::Receiver<Arc<Replicas>>,
    /// The number of messages lost for lack of room.
    lost: AtomicU64,
}

impl InboundReceiver {
    /// A receiver in which messages in fragments may have `max_bytes`, together and per peer. Fragments from processes
    /// outside of `replicas` are not buffered.
    pub(in crate::driver) fn new(
        senders: InboundSenders,
        max_bytes: usize,
        replicas: watch::Receiver<Arc<Replicas>>,
    ) -> Self {
        Self { senders, transfers: Mutex::new(Transfers::new(max_bytes)), replicas, lost: AtomicU64::new(0) }
    }

    fn transfers(&self) -> MutexGuard<'_, Transfers> {
        self.transfers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up transfers that made no progress, and those of processes that are no replicas any more.
    pub(in crate::driver) fn tidy(&self) {
        let replicas = self.replicas.borrow().clone();
        self.transfers().tidy(Instant::now(), |peer| replicas.other(peer).is_some());
    }

    /// How many messages were lost because too many waited.
    pub(in crate::driver) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// The decoded message with its size in bytes; `None` while fragments of it are missing.
    fn read(&self, message: &Inbound) -> Result<Option<(InboundItem, usize)>, WireError> {
        let read = |bytes: Bytes| {
            let size = bytes.len();
            wire::decode(bytes).map(|message| Some((InboundItem::Message(Box::new(message)), size)))
        };
        if message.manifest != FRAGMENT_MANIFEST {
            return read(message.payload.clone());
        }
        let fragment = wire::decode_fragment(message.payload.clone())?;
        if self.replicas.borrow().other(&message.from).is_none() {
            return Ok(Some((InboundItem::Dropped(DropReason::Stranger), 0)));
        }
        let accepted = self.transfers().accept(Instant::now(), &message.from, fragment);
        match accepted {
            Accepted::InPart => Ok(None),
            Accepted::Aborted => Ok(Some((InboundItem::Dropped(DropReason::Transfer), 0))),
            Accepted::Whole(pieces) => match pieces.join() {
                Some(bytes) => read(bytes),
                None => Ok(Some((InboundItem::Dropped(DropReason::Transfer), 0))),
            },
        }
    }
}

impl Receiver for InboundReceiver {
    fn receive(&self, message: Inbound) {
        let (item, bytes) = match self.read(&message) {
            Ok(None) => return,
            Ok(Some(read)) => read,
            Err(error) => {
                tracing::debug!(from = %message.from, %error, "a message of a replica was dropped");
                (InboundItem::Dropped(DropReason::Malformed), 0)
            }
        };
        let sender = match &item {
            InboundItem::Message(message) if message.is_of_round() => &self.senders.rounds,
            InboundItem::Message(_) | InboundItem::Dropped(_) => &self.senders.asked,
        };
        if !sender.put(message.from, item, bytes) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            tracing::debug!("a message of a replica was dropped: the replicator is busy or has stopped");
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use greylag_core::CodecId;
    use greylag_transport::Recipient;

    use super::*;
    use crate::data::envelope::{Content, Envelope};
    use crate::messages::wire::MANIFEST;

    /// ddata G11, cluster T39: messages that wait for the machine are bounded in bytes, separately for requests and for
    /// rounds; a message beyond the bound is counted as lost, and taking one out makes room.
    #[tokio::test]
    async fn inbound_messages_are_bounded_in_bytes() {
        let (senders, mut queues) = inbound_queues(100, 10_000);
        let (_replicas, known) = watch::channel(Arc::new(Replicas::default()));
        let inbound = InboundReceiver::new(senders, 1 << 20, known);
        let receive = |bytes: usize| {
            let content = Content::Value { tag: "t".into(), bytes: Bytes::from(vec![0; bytes]) };
            let message = Message::Write { request: 1, key: "k".into(), envelope: Envelope::of(content) };
            let mut payload = BytesMut::new();
            wire::encode(&message, &mut payload).unwrap();
            inbound.receive(Inbound {
                from: "b.inbound:1#2".parse().unwrap(),
                recipient: Recipient::new("ddata/replicator"),
                codec: CodecId::PROST,
                manifest: MANIFEST.into(),
                payload: payload.freeze(),
                ask: None,
            });
        };
        [4_000, 4_000, 4_000, 1_000].into_iter().for_each(receive);
        assert_eq!((queues.asked.len(), queues.rounds.len(), inbound.lost()), (3, 0, 1));
        assert!(matches!(queues.asked.recv().await, Some(FromPeer { item: InboundItem::Message(_), .. })));
        receive(4_000);
        assert_eq!((queues.asked.len(), inbound.lost()), (3, 1));
        while queues.asked.try_recv().is_ok() {}
        receive(500_000);
        assert_eq!((queues.asked.len(), inbound.lost()), (1, 1), "alone, however large");
    }
}
