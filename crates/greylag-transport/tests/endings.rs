//! Nodes that shut down in order, one by one and at the same time.

#[path = "suite/common/mod.rs"]
mod common;

use common::logs;
use std::time::Duration;

use common::{LONG, Node, node, number, until};
use greylag_core::DeadLetterReason;
use greylag_transport::{Destination, Envelope, Recipient, Remoting, TransportSettings};

/// A path whose protocol repeats messages that a shutting-down node did not take.
const REPEATED: &str = "control/repeated";

async fn start() -> Node {
    let backoff = Duration::from_secs(3600);
    let settings = TransportSettings {
        reconnect_backoff_min: backoff,
        reconnect_backoff_max: backoff,
        shutdown_flush_timeout: LONG * 2,
        ..TransportSettings::test()
    };
    let node = node(settings).await;
    node.transport.declare_repeated(REPEATED, None, &DeadLetterReason::OF_STARTS_AND_ENDS);
    node
}

/// Sends a message on the control lane.
fn tell(from: &Node, to: &Node) {
    let envelope = Envelope { recipient: Recipient::new(REPEATED), ..number(0) };
    from.transport.send(&to.here(), envelope).unwrap();
}

/// Cluster T33, T41: of two nodes that shut down at the same moment neither waits for an answer that cannot come, and
/// neither warns of messages that a node that has announced its end does not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_end_together_wait_for_no_answer_in_vain_and_warn_of_nothing() {
    logs::keep();
    for round in 0..40 {
        let (mut one, mut two) = (start().await, start().await);
        let mut inboxes = (one.register(REPEATED), two.register(REPEATED));
        one.tell(&two.here(), 1);
        two.tell(&one.here(), 2);
        tell(&one, &two);
        tell(&two, &one);
        assert_eq!((one.next().await, two.next().await), (2, 1));
        common::next(&mut inboxes.0).await;
        common::next(&mut inboxes.1).await;
        for _ in 0..round {
            tell(&one, &two);
            tell(&two, &one);
        }
        let both = async { tokio::join!(one.transport.shutdown(), two.transport.shutdown()) };
        tokio::time::timeout(LONG, both).await.expect("neither waits for its limit, which is longer");
    }
    assert_eq!(logs::loud(), Vec::<String>::new());
}

/// Begins to shut down a node, which waits until its limit for a peer that never answers.
fn end_slowly(node: &Node) -> tokio::task::JoinHandle<()> {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string().parse().unwrap();
    let waiting = Envelope { recipient: Recipient::new(REPEATED), ..number(0) };
    node.transport.send(&Destination::Address(address), waiting).unwrap();
    let transport = node.transport.clone();
    tokio::spawn(async move {
        transport.shutdown().await;
        drop(silent);
    })
}

/// Whether the node is shutting down: then it refuses messages, also to itself.
fn has_begun_to_end(node: &Node) -> bool {
    let envelope = Envelope { recipient: Recipient::new(REPEATED), ..number(0) };
    node.transport.send(&node.here(), envelope).is_err()
}

/// Cluster T33: a node that shuts down does not wait for a peer that refuses its Hello because the peer shuts down,
/// too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_ends_does_not_wait_for_a_peer_that_refuses_its_hello() {
    let (one, two) = (start().await, start().await);
    let ending = end_slowly(&two);
    until(|| has_begun_to_end(&two)).await;
    let waiting = Envelope { recipient: Recipient::new(REPEATED), ..number(2) };
    one.transport.send(&two.anyone_here(), waiting).unwrap();
    tokio::time::timeout(LONG, one.transport.shutdown())
        .await
        .expect("it does not wait for its limit, which is longer");
    ending.abort();
}

/// Cluster T33: the caller of a shutdown may stop waiting; the node ends all the same, and its port closes.
#[tokio::test]
async fn a_shutdown_that_its_caller_gives_up_ends_the_node() {
    let node = start().await;
    let ending = end_slowly(&node);
    until(|| has_begun_to_end(&node)).await;
    ending.abort();
    assert!(ending.await.unwrap_err().is_cancelled());
    until(|| std::net::TcpStream::connect(("127.0.0.1", node.port())).is_err()).await;
}
