//! Reliable messages, flushes, dead letters, waiting sends and faults over real sockets.

use std::time::Duration;

use crate::common::{LONG, Node, next, node, number, read, until, vacant};
use greylag_core::{DeadLetterReason, UniqueAddress};
use greylag_transport::{
    Destination, Envelope, Fault, Lane, OnReliableGiveUp, QuarantineReason, Recipient, Remoting, SendError,
    TransportEvent, TransportSettings,
};
use tokio::sync::mpsc;

fn settings() -> TransportSettings {
    TransportSettings::test()
}

fn numbered(n: u32) -> Envelope {
    Envelope { recipient: Recipient::new("control/inbox"), ..number(n) }
}

fn send(from: &Node, to: &Node, n: u32) {
    from.transport.send_reliable(to.transport.self_address(), numbered(n)).unwrap();
}

async fn all_in_order(inbox: &mut mpsc::UnboundedReceiver<greylag_transport::Inbound>, numbers: std::ops::Range<u32>) {
    for n in numbers {
        assert_eq!(read(&next(inbox).await), n);
    }
}

async fn gave_up(node: &mut Node) -> UniqueAddress {
    node.event(|event| match event {
        TransportEvent::ReliableGaveUp { peer, .. } => Some(peer),
        _ => None,
    })
    .await
}

/// Cluster T28, T24: scenario 9 over sockets. Half of all messages are lost and streams break; each message arrives
/// once and in order.
#[tokio::test]
async fn scenario_9_reliable_messages_arrive_once_and_in_order() {
    let (a, b) = (node(settings()).await, node(settings()).await);
    let mut inbox = b.register("control/inbox");
    let peer = b.transport.self_address().address().clone();
    a.transport.fault(&peer, Fault::Drop(0.3));
    (0..20).for_each(|n| send(&a, &b, n));
    all_in_order(&mut inbox, 0..10).await;
    a.transport.kill_streams(&peer);
    (20..40).for_each(|n| send(&a, &b, n));
    all_in_order(&mut inbox, 10..30).await;
    a.transport.duplicate_connections(&peer);
    a.transport.fault(&peer, Fault::Pass);
    (40..60).for_each(|n| send(&a, &b, n));
    all_in_order(&mut inbox, 30..60).await;
    assert!(inbox.try_recv().is_err(), "none comes twice");
}

/// Cluster T15, T28: a successor is another process; numbers begin anew in both directions.
#[tokio::test]
async fn reliable_messages_to_a_process_never_reach_its_successor() {
    let (mut a, b) = (node(settings()).await, node(settings()).await);
    let mut inbox = b.register("control/inbox");
    send(&a, &b, 1);
    assert_eq!(read(&next(&mut inbox).await), 1);
    // Flush: a delivered message may be unacknowledged still, and would be dropped with its process. The answer comes
    // after the acknowledgement.
    let (done, flushed) = tokio::sync::oneshot::channel();
    a.transport.flush(b.transport.self_address(), Box::new(move || done.send(()).unwrap()));
    tokio::time::timeout(LONG, flushed).await.unwrap().unwrap();
    let (before, port) = (b.transport.self_address().clone(), b.port());
    // Blackhole first: a message to a process that is about to end might still reach it.
    a.transport.fault(before.address(), Fault::BlackholeOutbound);
    a.transport.send_reliable(&before, numbered(2)).unwrap();
    drop(b);
    let b = node(TransportSettings { canonical_port: port, ..settings() }).await;
    // Wait for the loss of the link: a port is free a moment before the streams of its process end, and on one of those
    // the message would arrive.
    let lost = |event| match event {
        TransportEvent::LinkLost { peer, lane } => (peer == before && lane == Lane::CONTROL).then_some(()),
        _ => None,
    };
    a.event(lost).await;
    a.transport.fault(before.address(), Fault::Pass);
    let mut inbox = b.register("control/inbox");
    let mut from_b = a.register("control/inbox");
    send(&b, &a, 7);
    assert_eq!(read(&next(&mut from_b).await), 7);
    until(|| a.dropped(DeadLetterReason::StaleIncarnation) == 1).await;
    send(&a, &b, 3);
    assert_eq!(read(&next(&mut inbox).await), 3);
}

/// Cluster T29: scenario 10, the transport's half, with short times. A cut that ends in time costs nothing; a longer
/// one ends in quarantine, and messages that were not acknowledged become dead letters.
#[tokio::test]
async fn scenario_10_a_long_cut_ends_in_quarantine_and_a_short_one_costs_nothing() {
    let give_up = Duration::from_secs(1);
    let (mut a, b) =
        (node(TransportSettings { give_up_reliable_after: give_up, ..settings() }).await, node(settings()).await);
    let mut inbox = b.register("control/inbox");
    let address = b.transport.self_address().clone();
    send(&a, &b, 0);
    assert_eq!(read(&next(&mut inbox).await), 0);
    a.transport.fault(address.address(), Fault::BlackholeOutbound);
    send(&a, &b, 1);
    // Cut for four repetitions of the message, about half of the time limit.
    until(|| a.transport.stats().swallowed_envelopes >= 5).await;
    assert!(inbox.try_recv().is_err());
    a.transport.fault(address.address(), Fault::Pass);
    assert_eq!(read(&next(&mut inbox).await), 1);
    assert_eq!(a.dropped(DeadLetterReason::DeliveryGaveUp), 0);

    a.transport.fault(address.address(), Fault::BlackholeOutbound);
    send(&a, &b, 2);
    send(&a, &b, 3);
    assert_eq!(gave_up(&mut a).await, address);
    let quarantined = a
        .event(|event| match event {
            TransportEvent::Quarantined { peer, reason, harmless } => Some((peer, reason, harmless)),
            _ => None,
        })
        .await;
    assert_eq!(quarantined, (address.clone(), QuarantineReason::DeliveryGaveUp, false));
    assert_eq!(a.dropped(DeadLetterReason::DeliveryGaveUp), 2);
    assert_eq!(a.transport.send_reliable(&address, numbered(4)).unwrap_err().error, SendError::Quarantined);
}

/// Cluster T29: with the policy `notify` the association goes on, and what follows is delivered.
#[tokio::test]
async fn an_overflow_that_is_only_notified_leaves_the_association() {
    let policy =
        TransportSettings { on_reliable_give_up: OnReliableGiveUp::Notify, reliable_buffer_size: 3, ..settings() };
    let (mut a, b) = (node(policy).await, node(settings()).await);
    let mut inbox = b.register("control/inbox");
    let address = b.transport.self_address().clone();
    send(&a, &b, 0);
    assert_eq!(read(&next(&mut inbox).await), 0);
    a.transport.fault(address.address(), Fault::BlackholeOutbound);
    let refused = (1..=5).find_map(|n| a.transport.send_reliable(&address, numbered(n)).err());
    assert_eq!(refused.unwrap().error, SendError::QueueFull);
    assert_eq!(gave_up(&mut a).await, address);
    a.transport.fault(address.address(), Fault::Pass);
    send(&a, &b, 9);
    // Messages sent beside the overflow may arrive; those given up do not block the last one.
    while read(&next(&mut inbox).await) != 9 {}
}

/// Cluster T30: a flush is answered when the receivers themselves have taken everything before it.
#[tokio::test]
async fn a_flush_passes_every_lane_and_every_worker() {
    let lanes = || TransportSettings { outbound_lanes: 2, inbound_lanes: 3, ..settings() };
    let (a, b) = (node(lanes()).await, node(lanes()).await);
    let paths = ["inbox", "one", "two", "three", "control/x", "bulk/x"];
    let mut inboxes: Vec<_> = paths.iter().map(|path| b.register(path)).collect();
    let (sender, mut flushed) = mpsc::unbounded_channel();
    for _ in 0..20 {
        for path in paths {
            a.transport.send(&b.here(), Envelope { recipient: Recipient::new(path), ..number(1) }).unwrap();
        }
    }
    let done = sender.clone();
    a.transport.flush(b.transport.self_address(), Box::new(move || done.send("b").unwrap()));
    assert_eq!(flushed.recv().await, Some("b"));
    for inbox in &mut inboxes {
        (0..20).for_each(|_| drop(inbox.try_recv().expect("it was taken before the flush was answered")));
    }
    let mut here = a.register("here");
    a.transport.send(&a.here(), Envelope { recipient: Recipient::new("here"), ..number(1) }).unwrap();
    a.transport.flush(a.transport.self_address(), Box::new(move || sender.send("a").unwrap()));
    assert_eq!(flushed.recv().await, Some("a"));
    assert!(here.try_recv().is_ok());
}

/// Cluster T22: a send that waits completes when there is room, and fails at its deadline.
#[tokio::test]
async fn a_waiting_send_goes_on_when_there_is_room() {
    let a = node(TransportSettings { outbound_message_queue_size: 2, ..settings() }).await;
    let to = vacant();
    a.tell(&to, 0);
    a.tell(&to, 1);
    let late = a.transport.send_async(&to, number(2), Some(Duration::from_millis(30))).await.unwrap_err();
    assert_eq!((late.error, a.dropped(DeadLetterReason::QueueFull)), (SendError::QueueFull, 1));
    let waiting = tokio::spawn(a.transport.send_async(&to, number(3), None));
    let Destination::Address(address) = &to else { unreachable!() };
    let mut b = node(TransportSettings { canonical_port: address.port(), ..settings() }).await;
    assert!(waiting.await.unwrap().is_ok());
    for n in [0, 1, 3] {
        assert_eq!(b.next().await, n);
    }
    // A node's messages to itself wait for room, too.
    let mut c = node(TransportSettings { outbound_message_queue_size: 1, ..settings() }).await;
    for n in 0..50 {
        c.transport.send_async(&c.here(), number(n), None).await.unwrap();
    }
    for n in 0..50 {
        assert_eq!(c.next().await, n);
    }
}

/// Cluster T41: subscribers get every dead letter with its lane and peer, chatter excepted.
#[tokio::test]
async fn dead_letters_are_published_with_their_place() {
    let (a, b) = (node(settings()).await, node(settings()).await);
    b.transport.declare_chatter("control/gossip");
    let mut letters = b.transport.dead_letters(10);
    let chatter = Envelope { recipient: Recipient::new("control/gossip"), ..number(1) };
    a.transport.send(&b.here(), chatter).unwrap();
    until(|| b.dropped(DeadLetterReason::NoSuchRecipient) == 1).await;
    a.transport.send(&b.here(), Envelope { recipient: Recipient::new("nowhere"), ..number(77) }).unwrap();
    let letter = tokio::time::timeout(LONG, letters.next()).await.unwrap();
    assert_eq!(letter.reason, DeadLetterReason::NoSuchRecipient);
    assert_eq!(letter.lane, Some(a.transport.lane_of(&Recipient::new("nowhere"))));
    assert_eq!(letter.from.as_ref(), Some(a.transport.self_address().address()));
    assert_eq!(letter.to.as_ref(), Some(b.transport.self_address().address()));
    assert_eq!((letter.recipient.as_str(), letter.manifest.as_str(), letter.size), ("nowhere", "number", 2));
    assert!(letters.try_next().is_none());
}

/// Cluster T18, T20: a notice is repeated when the quarantined peer sends anything, but not more often than every five
/// seconds; the peer's messages of every kind are refused.
#[tokio::test]
async fn a_quarantined_peer_gets_one_notice_for_much_traffic() {
    let (a, mut b) = (node(settings()).await, node(settings()).await);
    let mut inbox = a.register("control/inbox");
    send(&b, &a, 1);
    assert_eq!(read(&next(&mut inbox).await), 1);
    a.transport.quarantine(b.transport.self_address(), QuarantineReason::Manual, false);
    let told = |event| matches!(event, TransportEvent::ThisNodeQuarantined { .. }).then_some(());
    b.event(told).await;
    // Send on the stream that is open: a Hello would be answered, which is a notice too.
    for n in 0..50 {
        send(&b, &a, n);
        b.transport.send(&a.here(), numbered(n)).unwrap();
    }
    until(|| a.dropped(DeadLetterReason::Quarantined) == 50).await;
    while let Ok(event) = b.events.try_recv() {
        assert!(told(event).is_none(), "told twice within five seconds");
    }
    assert!(inbox.try_recv().is_err());
}
