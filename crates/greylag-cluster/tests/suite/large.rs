//! Large messages beside small ones, over real gRPC on loopback.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use greylag_cluster::{Cluster, ClusterEvent, ClusterEvents, ClusterSettings};
use greylag_codec::json;
use greylag_core::{CodecId, Registry, ReplyAddress, ReplyPort, ReplyTo};
use greylag_transport::{
    Destination, Envelope, GrpcTransport, Inbound, Receiver, Recipient, Remoting, TransportSettings,
};

const LONG: Duration = Duration::from_secs(30);
const LARGE: usize = 2_000_000;
const BURSTS: usize = 5;

/// Counts the messages of the bursts; takes none before it is opened, so that they fill their lane.
#[derive(Default)]
struct Sink {
    taken: AtomicUsize,
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Sink {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }
}

impl Receiver for Sink {
    fn receive(&self, message: Inbound) {
        assert_eq!(message.payload.len(), LARGE);
        tokio::task::block_in_place(|| drop(self.opened.wait_while(self.is_open.lock().unwrap(), |open| !*open)));
        self.taken.fetch_add(1, Ordering::Release);
    }
}

/// Answers with the size of each message.
struct Measure(Arc<dyn ReplyPort>);

impl Receiver for Measure {
    fn receive(&self, message: Inbound) {
        if let Some(ask) = message.ask {
            let size = u64::try_from(message.payload.len()).unwrap();
            ReplyTo::new(ReplyAddress { node: message.from, ask_id: ask.id }, self.0.clone()).reply(size);
        }
    }
}

struct Node {
    transport: Arc<GrpcTransport>,
    cluster: Cluster,
    events: ClusterEvents,
    sink: Arc<Sink>,
}

async fn start() -> Node {
    let registry = Arc::new(Registry::new());
    registry.register::<u64>(json("size")).unwrap();
    let settings = TransportSettings {
        large_message_destinations: vec!["video/*".to_owned()],
        outbound_queue_bytes: 256 << 20,
        ..TransportSettings::test()
    };
    let transport = GrpcTransport::bind(settings, registry).await.unwrap();
    let control = transport.control_runtime();
    let cluster = Cluster::start_on(control, ClusterSettings::test(), transport.clone()).await.unwrap();
    let sink = Arc::new(Sink::default());
    transport.register("video/sink", sink.clone());
    transport.register("measure", Arc::new(Measure(transport.reply_port())));
    let events = cluster.subscribe();
    Node { transport, cluster, events, sink }
}

/// Cluster T5, T6: the large lane has a connection of its own, so bursts on it stall neither small
/// messages nor heartbeats.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_06_bursts_of_large_messages_stall_nobody() {
    let (mut a, mut b) = (start().await, start().await);
    let seed = a.cluster.self_address().address().clone();
    for node in [&a, &b] {
        node.cluster.join_seed_nodes(vec![seed.clone()]).await.unwrap();
        tokio::time::timeout(LONG, node.cluster.wait_up()).await.unwrap().unwrap();
    }
    let to = Destination::from(b.cluster.self_address().clone());
    let large = Bytes::from((0..LARGE).map(|n| (n * n % 251) as u8).collect::<Vec<_>>());
    for _ in 0..3 * BURSTS {
        let envelope = Envelope::new(Recipient::new("video/sink"), CodecId::FIRST_USER, "video", large.clone());
        a.transport.send(&to, envelope).unwrap();
    }
    for _ in 0..3 {
        let ask = a.transport.open_ask(LONG);
        let question = Envelope::new(Recipient::new("measure"), CodecId::FIRST_USER, "small", vec![7; 1024]);
        a.transport.send(&to, question.asking(ask.address.ask_id, LONG)).unwrap();
        assert_eq!(*ask.answer.await.unwrap().downcast::<u64>().unwrap(), 1024);
    }
    assert_eq!(b.sink.taken(), 0, "the replies came while the bursts were held up");
    b.sink.open();
    let all = async {
        while b.sink.taken() < 3 * BURSTS {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, all).await.expect("every large message arrives");
    for node in [&a, &b] {
        node.cluster.shutdown().await;
        node.transport.shutdown().await;
    }
    for node in [&mut a, &mut b] {
        while let Some(event) = node.events.next().await {
            assert!(!matches!(event, ClusterEvent::UnreachableMember(_)), "{event:?}");
        }
    }
}
