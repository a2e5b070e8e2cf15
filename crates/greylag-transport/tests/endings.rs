//! Nodes that end in order, one by one and together.

mod common;
#[path = "common/logs.rs"]
mod logs;

use std::time::Duration;

use common::{Node, node, number};
use greylag_core::DeadLetterReason;
use greylag_transport::{Envelope, Recipient, Remoting, TransportSettings};

/// Of a protocol that says again what a node that ends does not take.
const REPEATED: &str = "control/repeated";

async fn start() -> Node {
    let backoff = Duration::from_secs(3600);
    let settings = TransportSettings {
        reconnect_backoff_min: backoff,
        reconnect_backoff_max: backoff,
        ..TransportSettings::test()
    };
    let node = node(settings).await;
    node.transport.declare_repeated(REPEATED, None, &DeadLetterReason::OF_STARTS_AND_ENDS);
    node
}

/// Sends to a node on its control lane.
fn tell(from: &Node, to: &Node) {
    let envelope = Envelope { recipient: Recipient::new(REPEATED), ..number(0) };
    from.transport.send(&to.here(), envelope).unwrap();
}

/// Cluster T33, T41: of two nodes that end at the same moment neither waits for an answer that cannot come, and none says
/// anything loud of what a node that has announced its end does not read.
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
        tokio::join!(one.transport.shutdown(), two.transport.shutdown());
    }
    assert_eq!(logs::loud(), Vec::<String>::new());
}
