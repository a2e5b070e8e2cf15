//! Quarantine over real sockets: traffic refused, peer told, messages handed back; a restarted process is unaffected.

use crate::common;

use std::time::Duration;

use crate::common::{LONG, Node, next, node, number};
use greylag_core::{DeadLetterReason, Uid, UniqueAddress};
use greylag_transport::{
    AskError, Destination, Envelope, Lane, QuarantineReason, Recipient, Remoting, SendError, TransportEvent,
    TransportSettings,
};

fn settings() -> TransportSettings {
    TransportSettings::test()
}

async fn told(node: &mut Node) -> (UniqueAddress, QuarantineReason) {
    node.event(|event| match event {
        TransportEvent::ThisNodeQuarantined { by, reason } => Some((by, reason)),
        _ => None,
    })
    .await
}

async fn handed_back(node: &mut Node) -> (UniqueAddress, Vec<Envelope>) {
    node.event(|event| match event {
        TransportEvent::HandedBack { peer, envelopes } => Some((peer, envelopes)),
        _ => None,
    })
    .await
}

/// Scenario 11, second half.
#[tokio::test]
async fn a_quarantined_process_is_cut_off_and_its_successor_is_not() {
    let (mut a, mut b) = (node(settings()).await, node(settings()).await);
    a.tell(&b.here(), 1);
    b.tell(&a.here(), 2);
    assert_eq!((b.next().await, a.next().await), (1, 2));
    let unanswered = a.start_ask(&b.here(), "inbox", LONG);
    next(&mut b.inbox).await;

    let (before, port) = (b.transport.self_address().clone(), b.port());
    a.transport.quarantine(&before, QuarantineReason::Manual, false);
    assert_eq!(unanswered.await.unwrap_err(), AskError::Quarantined);
    assert_eq!(handed_back(&mut a).await.0, before);
    assert_eq!(told(&mut b).await, (a.transport.self_address().clone(), QuarantineReason::Manual));
    assert_eq!(a.transport.send(&b.here(), number(3)).unwrap_err().error, SendError::Quarantined);
    // Messages that b still sends reach no receiver.
    b.tell(&a.here(), 4);
    common::until(|| a.dropped(DeadLetterReason::Quarantined) >= 2).await;

    drop(b);
    let mut b = node(TransportSettings { canonical_port: port, ..settings() }).await;
    a.tell(&b.here(), 5);
    assert_eq!(b.next().await, 5);
    b.tell(&a.here(), 6);
    assert_eq!(a.next().await, 6);
    assert_eq!(a.transport.send(&before.into(), number(7)).unwrap_err().error, SendError::Quarantined);
}

fn payloads(envelopes: &[Envelope]) -> Vec<String> {
    let read = |envelope: &Envelope| match &envelope.payload {
        greylag_transport::Payload::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        greylag_transport::Payload::Value(_) => panic!("none was sent"),
    };
    envelopes.iter().map(read).collect()
}

/// Cluster T15: envelopes queued for a process that restarted are handed back to listeners of their prefix, as at a
/// quarantine; the rest are dead letters. Envelopes sent to that process later are handed back too.
#[tokio::test]
async fn envelopes_queued_for_a_restarted_process_come_back_in_order() {
    let (mut a, mut b) = (node(settings()).await, node(settings()).await);
    let (before, port) = (b.transport.self_address().clone(), b.port());
    let to: Destination = before.clone().into();
    a.tell(&to, 0);
    assert_eq!(b.next().await, 0);
    drop(b);
    let is_user_lane = |event| matches!(event, TransportEvent::LinkLost { lane, .. } if lane == Lane::ordinary(0));
    a.event(|event| is_user_lane(event).then_some(())).await;
    (1..=10).for_each(|n| a.tell(&to, n));
    let other = Envelope { recipient: Recipient::new("elsewhere"), ..number(11) };
    a.transport.send(&to, other).unwrap();
    let mut b = node(TransportSettings { canonical_port: port, ..settings() }).await;
    b.tell(&a.here(), 12);
    assert_eq!(a.next().await, 12);
    let (peer, envelopes) = handed_back(&mut a).await;
    assert_eq!((peer, payloads(&envelopes)), (before.clone(), (1..=10).map(|n| n.to_string()).collect::<Vec<_>>()));
    common::until(|| a.dropped(DeadLetterReason::StaleIncarnation) == 1).await;

    a.tell(&b.here(), 13);
    assert_eq!(b.next().await, 13);
    a.tell(&to, 14);
    a.tell(&b.here(), 15);
    assert_eq!(b.next().await, 15);
    let (peer, envelopes) = handed_back(&mut a).await;
    assert_eq!((peer, payloads(&envelopes)), (before, vec!["14".to_owned()]));
    assert_eq!(a.dropped(DeadLetterReason::StaleIncarnation), 1, "what came back is no dead letter");
}

#[tokio::test]
async fn unwritten_envelopes_come_back_in_order() {
    let mut a = node(settings()).await;
    // No process answers there, so everything stays in the queue.
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let gone = UniqueAddress::new(address.parse().unwrap(), Uid::new(77).unwrap());
    let to: Destination = gone.clone().into();
    (0..10).for_each(|n| a.tell(&to, n));
    let other = Envelope { recipient: Recipient::new("elsewhere"), ..number(10) };
    a.transport.send(&to, other).unwrap();
    a.transport.quarantine(&gone, QuarantineReason::RemovedFromMembership, true);
    let (peer, envelopes) = handed_back(&mut a).await;
    assert_eq!(peer, gone);
    assert_eq!(payloads(&envelopes), (0..10).map(|n| n.to_string()).collect::<Vec<_>>());
    common::until(|| a.dropped(DeadLetterReason::Quarantined) == 1).await;
    a.transport.quarantine(&gone, QuarantineReason::RemovedFromMembership, true);
    assert!(handed_back(&mut a).await.1.is_empty(), "told also when there is nothing");
}

#[tokio::test]
async fn a_harmless_quarantine_is_silent_and_a_graver_one_is_not() {
    let (mut a, mut b) = (node(settings()).await, node(settings()).await);
    a.tell(&b.here(), 1);
    b.next().await;
    let peer = b.transport.self_address().clone();
    a.transport.quarantine(&peer, QuarantineReason::Manual, true);
    handed_back(&mut a).await;
    // A Hello of the quarantined process is refused without a reason.
    let refused = b.ask(&a.here(), "inbox", LONG).await;
    assert_eq!(refused, Err(AskError::Dropped(DeadLetterReason::HandshakeRejected)));
    let notice = b.events.try_recv();
    assert!(!matches!(notice, Ok(TransportEvent::ThisNodeQuarantined { .. })));
    a.transport.quarantine(&peer, QuarantineReason::RemovedFromMembership, false);
    b.tell(&a.here(), 2);
    assert_eq!(told(&mut b).await.1, QuarantineReason::RemovedFromMembership);
}

/// Cluster T20, T41: messages that a quarantined process goes on sending are accounted for one by one. Its chatter,
/// such as the heartbeats of a removed member that does not know of its removal, is counted and not published.
#[tokio::test]
async fn messages_of_a_quarantined_process_are_published_and_its_chatter_is_counted() {
    let (mut a, mut b) = (node(settings()).await, node(settings()).await);
    a.transport.declare_chatter("chatter");
    b.tell(&a.here(), 1);
    a.next().await;
    a.transport.quarantine(b.transport.self_address(), QuarantineReason::Manual, false);
    told(&mut b).await;
    let mut letters = a.transport.dead_letters(10);
    b.transport.send(&a.here(), Envelope { recipient: Recipient::new("chatter"), ..number(2) }).unwrap();
    common::until(|| a.dropped(DeadLetterReason::Quarantined) == 1).await;
    b.tell(&a.here(), 333);
    let letter = tokio::time::timeout(LONG, letters.next()).await.unwrap();
    assert_eq!((letter.reason, letter.lane, letter.count), (DeadLetterReason::Quarantined, Some(Lane::ordinary(0)), 1));
    assert_eq!(letter.from.as_ref(), Some(b.transport.self_address().address()));
    assert_eq!(letter.to.as_ref(), Some(a.transport.self_address().address()));
    assert_eq!((letter.recipient.as_str(), letter.manifest.as_str(), letter.size), ("inbox", "number", 3));
    assert!(letters.try_next().is_none());
    assert_eq!(a.dropped(DeadLetterReason::Quarantined), 2);
}

/// Cluster T19 (d): a process that announced its end is quarantined shortly after, silently.
#[tokio::test]
async fn a_peer_that_terminated_is_quarantined_without_a_word() {
    let flush = Duration::from_millis(50);
    let mut a = node(TransportSettings { shutdown_flush_timeout: flush, ..settings() }).await;
    let b = node(settings()).await;
    b.tell(&a.here(), 1);
    a.next().await;
    b.transport.shutdown().await;
    assert_eq!(handed_back(&mut a).await.0, *b.transport.self_address());
    assert_eq!(a.transport.send(&b.here(), number(1)).unwrap_err().error, SendError::Quarantined);
}

/// Cluster T20: five seconds later any message of a quarantined process, chatter too, causes the notice again; a notice
/// of that process is taken and causes none.
#[tokio::test]
async fn a_notice_comes_again_for_whatever_is_sent_and_for_no_notice() {
    let (mut a, mut b) = (node(settings()).await, node(settings()).await);
    a.transport.declare_chatter("control/chatter");
    let chatter = || Envelope { recipient: Recipient::new("control/chatter"), ..number(2) };
    b.transport.send(&a.here(), chatter()).unwrap();
    common::until(|| a.dropped(DeadLetterReason::NoSuchRecipient) == 1).await;
    a.transport.quarantine(b.transport.self_address(), QuarantineReason::Manual, false);
    told(&mut b).await;
    let (transport, to) = (b.transport.clone(), a.here());
    let sending = tokio::spawn(async move {
        loop {
            transport.send(&to, chatter()).unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    told(&mut b).await;
    sending.abort();
    // Wait until another notice would be due, so that its absence is not due to the interval.
    tokio::time::sleep(Duration::from_millis(5_100)).await;
    b.transport.quarantine(a.transport.self_address(), QuarantineReason::Manual, false);
    assert_eq!(told(&mut a).await.0, *b.transport.self_address());
    // Wait for an answer that must not come.
    tokio::time::sleep(Duration::from_millis(300)).await;
    while let Ok(event) = b.events.try_recv() {
        assert!(!matches!(event, TransportEvent::ThisNodeQuarantined { .. }), "a notice answered by a notice");
    }
}
