//! Messages that name a controller of another node than the sending one are refused.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use greylag_codec::json;
use greylag_core::{CodecId, DeadLetterReason, Registry};
use greylag_transport::memory::MemoryNetwork;
use greylag_transport::{Destination, Envelope, Recipient, Remoting};

use super::{ConsumerController, ProducerController};
use crate::delivery::payload::Payload;
use crate::ids::{ControllerRef, Epoch, ProducerId, SeqNr, StreamId};
use crate::machine::dedupe::Dedupe;
use crate::message::{
    BatchHeader, Frame, ProducerStopped, SequencedBatch, SequencedMessage, Upstream, UpstreamMessage,
};
use crate::wire;

fn batch(controller: ControllerRef) -> Bytes {
    let payload = Payload::encode(666_u64, &json::<u64>("number")).unwrap();
    let frame = Frame { seq_nr: 1, total: SeqNr(1), ack: false, first_chunk: true, last_chunk: true, payload };
    let header = BatchHeader {
        producer_id: ProducerId::new("p").unwrap(),
        stream_id: StreamId(9),
        epoch: Epoch(u64::MAX),
        controller,
        ordered: true,
        lowest: 0,
    };
    let batch = SequencedBatch { header, frames: vec![SequencedMessage { frame, first: true }] };
    let mut buffer = BytesMut::new();
    wire::put_batch(&batch.header, &batch.frames, Payload::piece, &mut buffer);
    buffer.freeze()
}

fn stopped(controller: ControllerRef) -> Bytes {
    let mut buffer = BytesMut::new();
    wire::put_stopped(&ProducerStopped { controller, epoch: Epoch::FIRST }, &mut buffer);
    buffer.freeze()
}

/// Sends `content` to a path at its node, and waits until it is refused with the expected reason.
async fn refused(from: &Arc<dyn Remoting>, at: &Arc<dyn Remoting>, to: &ControllerRef, content: (&'static str, Bytes)) {
    let total = || at.dead_letter_totals().values().sum::<u64>();
    let before = total();
    let recipient = Recipient::new(to.path.clone());
    let envelope = Envelope::new(recipient, CodecId::INTERNAL, content.0, content.1);
    from.send(&Destination::from(to.node.clone()), envelope).unwrap();
    let arrived = async {
        while total() == before {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), arrived).await.expect("it was taken");
}

#[tokio::test]
async fn messages_in_the_name_of_another_nodes_controller_are_refused() {
    let network = MemoryNetwork::new();
    let node = |name: &str| network.node(name.parse().unwrap(), Arc::new(Registry::new()));
    let (a, b, c) = (node("a:1#1"), node("b:1#2"), node("c:1#3"));
    let id = ProducerId::new("p").unwrap();
    let producer: ProducerController<u64> = ProducerController::builder(id, json("number")).spawn(&a).unwrap();
    let consumer: ConsumerController<u64> = ConsumerController::builder(json("number")).spawn(&b).unwrap();
    let mut deliveries = consumer.start(Dedupe::none());

    // A third node claims to be the consumer, or the producer.
    let (from, to) = (consumer.reference().clone(), producer.reference().clone());
    let message = Upstream::RegisterConsumer;
    let register = wire::write_upstream(&[UpstreamMessage { from, to: to.clone(), epoch: None, message }]);
    refused(&c, &a, &to, (wire::UPSTREAM, register)).await;
    refused(&c, &b, consumer.reference(), (wire::BATCH, batch(to.clone()))).await;
    refused(&c, &b, consumer.reference(), (wire::STOPPED, stopped(to.clone()))).await;
    for node in [&a, &b] {
        let others = node.dead_letter_totals().into_iter().filter(|(reason, _)| *reason != DeadLetterReason::Untrusted);
        assert_eq!(others.count(), 0);
    }
    // Undecodable messages are refused, and the controllers go on.
    refused(&c, &a, &to, (wire::UPSTREAM, Bytes::from_static(b"\xff"))).await;
    refused(&c, &b, consumer.reference(), (wire::BATCH, Bytes::from_static(b"\xff"))).await;
    refused(&c, &b, consumer.reference(), ("another", Bytes::new())).await;

    consumer.register_to(&to);
    let handle = producer.start();
    handle.send(1).await.unwrap();
    let delivery = tokio::time::timeout(Duration::from_secs(20), deliveries.next()).await.unwrap().unwrap();
    assert_eq!(*delivery, 1);
    delivery.confirm();
    handle.drain(Duration::from_secs(20)).await.unwrap();
}

/// An undecodable message blocks its link, is skipped, or ends the controller, depending on the setting.
#[tokio::test]
async fn undecodable_messages_follow_the_consumers_policy() {
    use crate::settings::OnUndecodable;
    for policy in [OnUndecodable::Surface, OnUndecodable::Skip, OnUndecodable::Stop] {
        let network = MemoryNetwork::new();
        let node = |name: &str| network.node(name.parse().unwrap(), Arc::new(Registry::new()));
        let (a, b) = (node("a:1#1"), node("b:1#2"));
        let id = ProducerId::new("p").unwrap();
        let producer: ProducerController<String> = ProducerController::builder(id, json("number")).spawn(&a).unwrap();
        let builder = ConsumerController::<u64>::builder(json("number")).on_undecodable(policy);
        let consumer = builder.spawn(&b).unwrap();
        let mut deliveries = consumer.start(Dedupe::none());
        producer.register_consumer(consumer.reference());
        let handle = producer.start();
        handle.send("no number".to_owned()).await.unwrap();
        let mut confirmed = handle.confirmed();
        let patience = Duration::from_secs(20);
        match policy {
            OnUndecodable::Surface => {
                while consumer.counters().snapshot().undecodable == 0 {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                assert!(handle.drain(Duration::from_millis(100)).await.is_err());
                // Subscribers see the message, also if they subscribe later; confirming it skips it.
                let mut undecodable = consumer.undecodable();
                let unread = tokio::time::timeout(patience, futures::StreamExt::next(&mut undecodable)).await;
                let unread = unread.unwrap().unwrap();
                assert_eq!(unread.id().seq_nr, SeqNr(1));
                assert_eq!(unread.bytes().payload, "\"no number\"");
                unread.confirm();
                handle.drain(patience).await.unwrap();
            }
            OnUndecodable::Skip => {
                tokio::time::timeout(patience, confirmed.wait_for(|confirmed| *confirmed == SeqNr(1)))
                    .await
                    .unwrap()
                    .unwrap();
            }
            OnUndecodable::Stop => assert!(tokio::time::timeout(patience, deliveries.next()).await.unwrap().is_none()),
        }
    }
}
