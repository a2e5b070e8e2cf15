//! Faults put between two nodes on purpose: each has its effect on one peer, in one direction.

use std::time::{Duration, Instant};

use crate::common::{next, node, number, read, until};
use greylag_transport::{Envelope, Fault, Lane, Recipient, Remoting, TransportEvent, TransportSettings};

fn settings() -> TransportSettings {
    TransportSettings::test()
}

/// Cluster T42: a blackhole has one direction, and removing it ends the effect.
#[tokio::test]
async fn a_blackhole_swallows_one_direction() {
    let (mut a, mut b) = (node(settings()).await, node(settings()).await);
    a.tell(&b.here(), 1);
    assert_eq!(b.next().await, 1);
    let address = b.transport.self_address().address().clone();
    a.transport.fault(&address, Fault::BlackholeOutbound);
    a.tell(&b.here(), 2);
    b.tell(&a.here(), 3);
    assert_eq!(a.next().await, 3);
    // Wait until the fault has swallowed the message: the lane's writer is asynchronous.
    until(|| a.transport.stats().swallowed_envelopes == 1).await;
    assert_eq!(a.transport.stats().sent_envelopes, 1);
    a.transport.fault(&address, Fault::Pass);
    a.tell(&b.here(), 4);
    assert_eq!(b.next().await, 4);
}

/// Cluster T42: a node that is deaf to a peer can still send to it.
#[tokio::test]
async fn an_inbound_blackhole_leaves_outbound_traffic_alone() {
    let (mut a, mut b) = (node(settings()).await, node(settings()).await);
    b.tell(&a.here(), 1);
    assert_eq!(a.next().await, 1);
    let address = b.transport.self_address().address().clone();
    a.transport.fault(&address, Fault::BlackholeInbound);
    b.tell(&a.here(), 2);
    until(|| a.transport.stats().received_envelopes == 2).await;
    a.tell(&b.here(), 3);
    assert_eq!(b.next().await, 3);
    a.transport.fault(&address, Fault::Pass);
    b.tell(&a.here(), 4);
    assert_eq!(a.next().await, 4, "the second was swallowed");
}

/// Cluster T42: a fault between two nodes affects no other node.
#[tokio::test]
async fn a_fault_is_for_one_peer() {
    let (a, b, mut c) = (node(settings()).await, node(settings()).await, node(settings()).await);
    a.transport.fault(b.transport.self_address().address(), Fault::Blackhole);
    a.tell(&c.here(), 1);
    assert_eq!(c.next().await, 1);
}

/// Cluster T42, T23: some messages are lost, and the others keep their order.
#[tokio::test]
async fn a_dropping_link_loses_some_and_keeps_the_order_of_the_others() {
    let (a, mut b) = (node(settings()).await, node(settings()).await);
    a.transport.fault(b.transport.self_address().address(), Fault::Drop(0.5));
    (0..400).for_each(|n| a.tell(&b.here(), n));
    until(|| a.transport.stats().sent_envelopes + a.transport.stats().swallowed_envelopes == 400).await;
    let swallowed = a.transport.stats().swallowed_envelopes;
    assert!((100..300).contains(&swallowed), "{swallowed} of 400 were swallowed");
    a.transport.fault(b.transport.self_address().address(), Fault::Pass);
    a.tell(&b.here(), 400);
    let mut arrived = Vec::new();
    while arrived.last() != Some(&400) {
        arrived.push(b.next().await);
    }
    assert_eq!(arrived.len() as u64, 401 - swallowed);
    assert!(arrived.is_sorted());
}

/// Cluster T42: no frame arrives before its delay is over.
#[tokio::test]
async fn a_delay_holds_every_frame_back() {
    let (a, mut b) = (node(settings()).await, node(settings()).await);
    a.tell(&b.here(), 0);
    assert_eq!(b.next().await, 0);
    let delay = Duration::from_millis(80);
    a.transport.fault(b.transport.self_address().address(), Fault::Delay { min: delay, max: delay });
    let sent = Instant::now();
    a.tell(&b.here(), 1);
    assert_eq!(b.next().await, 1);
    assert!(sent.elapsed() >= delay);
}

/// Cluster T42, T23: frames that are late keep their order.
#[tokio::test]
async fn late_frames_keep_their_order() {
    let (a, mut b) = (node(settings()).await, node(settings()).await);
    let (min, max) = (Duration::ZERO, Duration::from_millis(20));
    a.transport.fault(b.transport.self_address().address(), Fault::Delay { min, max });
    for n in 0..20 {
        a.tell(&b.here(), n);
        tokio::task::yield_now().await;
    }
    for n in 0..20 {
        assert_eq!(b.next().await, n);
    }
}

/// Cluster T42, T31: the loss of a killed stream is reported, and the next stream carries on.
#[tokio::test]
async fn killed_streams_are_opened_again() {
    let (mut a, mut b) = (node(settings()).await, node(settings()).await);
    a.tell(&b.here(), 1);
    assert_eq!(b.next().await, 1);
    a.transport.kill_streams(b.transport.self_address().address());
    let lost = |event| match event {
        TransportEvent::LinkLost { lane, .. } => Some(lane),
        _ => None,
    };
    assert_eq!(a.event(lost).await, Lane::ordinary(0));
    a.tell(&b.here(), 2);
    assert_eq!(b.next().await, 2);
}

/// Cluster T42, T24: the second connection takes over, and nothing is lost, doubled or out of order.
#[tokio::test]
async fn a_duplicate_connection_takes_over() {
    let (a, mut b) = (node(settings()).await, node(settings()).await);
    let mut inbox = b.register("control/inbox");
    let to = b.transport.self_address().clone();
    let send = |n| {
        let envelope = Envelope { recipient: Recipient::new("control/inbox"), ..number(n) };
        a.transport.send_reliable(&to, envelope).unwrap();
    };
    send(0);
    assert_eq!(read(&next(&mut inbox).await), 0);
    a.tell(&b.here(), 0);
    assert_eq!(b.next().await, 0);
    until(|| b.transport.stats().moved_connections == 1).await;
    a.transport.duplicate_connections(to.address());
    until(|| b.transport.stats().moved_connections == 2).await;
    (1..50).for_each(send);
    for n in 1..50 {
        assert_eq!(read(&next(&mut inbox).await), n);
    }
}

/// Cluster T42: without the setting no fault can be put between two nodes.
#[tokio::test]
async fn faults_need_the_setting() {
    let (a, mut b) = (node(TransportSettings { fault_injection: false, ..settings() }).await, node(settings()).await);
    a.transport.fault(b.transport.self_address().address(), Fault::Blackhole);
    a.tell(&b.here(), 1);
    assert_eq!(b.next().await, 1);
}
