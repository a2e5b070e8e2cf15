//! Sends messages too large for the ordinary lane: encodes, cuts and sends them beside the replicator's task, one after
//! the other per peer, as fast as the large lane takes them. Nothing else waits for them. Source: ddata G11, H9.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use greylag_core::{CodecId, UniqueAddress};
use greylag_crdt::DotSource;
use greylag_transport::{Destination, Envelope, Recipient, Remoting};
use tokio::sync::mpsc;

use crate::membership::replicas::Replicas;
use crate::messages::message::Message;
use crate::messages::transfers::cut;
use crate::messages::wire::{self, FRAGMENT_MANIFEST, MANIFEST};

/// The most messages that wait per peer; further ones are refused, as by a full lane.
const WAITING: usize = 64;
/// How long a fragment may wait for room on the lane.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// The queues of large messages.
pub(super) struct BulkSender {
    lane: Lane,
    peers: BTreeMap<UniqueAddress, Queue>,
    /// About how many bytes may wait per peer. One message may always wait.
    max_bytes: usize,
}

/// The messages that wait for one peer.
struct Queue {
    messages: mpsc::Sender<(usize, Message)>,
    /// About how many bytes these messages have, including the one being sent.
    bytes: Arc<AtomicUsize>,
}

#[derive(Clone)]
struct Lane {
    remoting: Arc<dyn Remoting>,
    bulk: Recipient,
    /// Transfers draw their numbers from the process, so a fragment that a former replicator of this process sent is
    /// never taken for a part of this one's transfers. Source: ddata G1.
    numbers: DotSource,
    fragment_bytes: usize,
}

impl BulkSender {
    pub(super) fn new(
        remoting: Arc<dyn Remoting>,
        bulk: Recipient,
        numbers: DotSource,
        fragment_bytes: usize,
        max_bytes: usize,
    ) -> Self {
        Self { lane: Lane { remoting, bulk, numbers, fragment_bytes }, peers: BTreeMap::new(), max_bytes }
    }

    /// Queues a message. Returns whether there was room.
    pub(super) fn try_send(&mut self, to: &UniqueAddress, message: Message) -> bool {
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
            let sending = self.remoting.send_async(&to_process, envelope.to_uid(to.uid()), Some(SEND_TIMEOUT));
            if let Err(rejected) = sending.await {
                tracing::debug!(%to, error = %rejected.error, "a large message was not sent");
                return;
            }
        }
    }

    /// The message in one envelope if it fits a fragment, else in fragments.
    fn envelopes(&self, message: &Message) -> Vec<Envelope> {
        let mut buffer = BytesMut::new();
        if let Err(error) = wire::encode(message, &mut buffer) {
            tracing::error!(%error, "a message could not be encoded");
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
    use std::time::Instant;

    use bytes::Bytes;
    use greylag_core::Registry;
    use greylag_transport::Payload;
    use greylag_transport::memory::MemoryNetwork;

    use super::*;
    use crate::data::envelope::{Content, Envelope as Entry};
    use crate::driver::numbers::claim;
    use crate::messages::transfers::{Accepted, Fragment, Transfers};

    /// The fragments of a message, as a replicator sends them that draws from `numbers`.
    fn pieces(numbers: &DotSource, fill: u8) -> Vec<Fragment> {
        let remoting = MemoryNetwork::new().node("a:1#73".parse().unwrap(), Arc::new(Registry::new()));
        let bulk = Recipient::new("bulk".to_owned());
        let lane = BulkSender::new(remoting, bulk, numbers.clone(), 1_000, 1_000_000).lane;
        let bytes = Bytes::from(vec![fill; 4_000]);
        let envelope = Entry::of(Content::Value { tag: "gl.x/1".into(), bytes });
        let message = Message::Write { request: 1, key: "k".into(), envelope };
        let piece = |envelope: Envelope| match envelope.payload {
            Payload::Bytes(bytes) => wire::decode_fragment(bytes).unwrap(),
            other => panic!("{other:?}"),
        };
        lane.envelopes(&message).into_iter().map(piece).collect()
    }

    /// What the receiver makes of messages of a former replicator and of one restarted in its process: a fragment of
    /// the former one is lost, and the rest arrives before, between and after those of the new one.
    fn arrived(former: &DotSource, new: &DotSource) -> Vec<Accepted> {
        let (from, now) = ("a:1#73".parse().unwrap(), Instant::now());
        let (former, new) = (pieces(former, 1), pieces(new, 2));
        assert!(former.len() > 4 && former.len() == new.len());
        let (early, late) = former[1..].split_at(2);
        let (begun, ended) = new.split_at(2);
        let mut transfers = Transfers::new(1_000_000);
        let all = early.iter().chain(begun).chain(late).chain(ended);
        all.map(|piece| transfers.accept(now, &from, piece.clone())).collect()
    }

    /// ddata 73, G1, K2: fragments that a former replicator of the process sent neither complete nor abort a transfer
    /// of the new one; they would if numbers began anew.
    #[tokio::test]
    async fn scenario_73_fragments_of_the_former_replicator_complete_nothing() {
        let node: UniqueAddress = "a:1#7373".parse().unwrap();
        let numbers = || claim(&node, "fragments", None).unwrap();
        let (name, former) = numbers();
        drop(name);
        let (_name, new) = numbers();
        let accepted = arrived(&former, &new);
        assert!(accepted[..accepted.len() - 1].iter().all(|accepted| *accepted == Accepted::InPart), "{accepted:?}");
        let Accepted::Whole(whole) = accepted.into_iter().next_back().unwrap() else { panic!("it is whole") };
        let message = wire::decode(whole.join().expect("its own pieces and no others")).unwrap();
        let Message::Write { envelope: Entry { content: Content::Value { bytes, .. }, .. }, .. } = message else {
            panic!()
        };
        assert_eq!(bytes, vec![2; 4_000]);
        let anew = arrived(&DotSource::above(9), &DotSource::above(9));
        assert!(anew.contains(&Accepted::Aborted), "numbers that begin anew are found: {anew:?}");
    }

    /// ddata G11: messages that wait for a peer are bounded in bytes, and one may always wait.
    #[tokio::test]
    async fn waiting_messages_are_bounded_in_bytes() {
        let network = MemoryNetwork::new();
        let node = |address: &str| network.node(address.parse().unwrap(), Arc::new(Registry::new()));
        let (own, to) = (node("a.bulk:1#1"), "b.bulk:1#2".parse().unwrap());
        let mut sender = BulkSender::new(own, Recipient::new("bulk"), DotSource::new(), 1_000, 10_000);
        let message = |bytes: usize| {
            let content = Content::Value { tag: "t".into(), bytes: Bytes::from(vec![0; bytes]) };
            Message::Write { request: 1, key: "k".into(), envelope: Entry::of(content) }
        };
        // Nothing is sent yet: no other task has run.
        let taken = [4_000, 4_000, 4_000, 1].map(|bytes| sender.try_send(&to, message(bytes)));
        assert_eq!(taken, [true, true, false, true]);
        let other = "c.bulk:1#3".parse().unwrap();
        assert!(sender.try_send(&other, message(50_000)), "alone, however large");
        while sender.peers.values().any(|queue| queue.bytes.load(Ordering::Relaxed) > 0) {
            tokio::task::yield_now().await;
        }
        assert!(sender.try_send(&to, message(4_000)));
    }
}
