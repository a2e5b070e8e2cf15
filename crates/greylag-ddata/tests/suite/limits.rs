//! Message sizes and the limits of the transport, over real sockets on loopback. Source: ddata §8.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use greylag_core::Registry;
use greylag_crdt::{ClockExhausted, LwwRegister, UpdateCx};
use greylag_ddata::{
    DurableSettings, DurableStore, Key, LoadBatch, Membership, MemoryStore, Replica, ReplicaStatus, Replicas,
    Replicator, ReplicatorSettings, StartError, StoreError, StoreOp, TypeTable, WriteLevel,
};
use greylag_transport::{GrpcTransport, Remoting, TransportSettings};

const PATIENCE: Duration = Duration::from_secs(20);
/// The size of what precedes the data of a fragment.
const PIECE_HEADER: usize = 60;

fn transport_settings() -> TransportSettings {
    let defaults = TransportSettings::test();
    TransportSettings { maximum_frame_size: 64 * 1024, maximum_large_frame_size: 128 * 1024, ..defaults }
}

async fn bind() -> Arc<GrpcTransport> {
    GrpcTransport::bind(transport_settings(), Arc::new(Registry::new())).await.unwrap()
}

/// Settings with messages as large as the lanes allow.
fn largest() -> ReplicatorSettings {
    let transport = transport_settings();
    ReplicatorSettings {
        max_message_bytes: transport.maximum_frame_size,
        bulk_fragment_bytes: transport.maximum_large_frame_size - PIECE_HEADER,
        ..ReplicatorSettings::test()
    }
}

fn with(other: &GrpcTransport) -> Membership {
    let (address, status, reachable, age) = (other.self_address().clone(), ReplicaStatus::Up, true, 1);
    let others = vec![Replica { address, status, reachable, age }];
    let replicas = Replicas { own_status: Some(ReplicaStatus::Up), others, ..Replicas::default() };
    Membership::manual(replicas).1
}

/// ddata 94, §8: at the limits of the lanes the replicator starts, and messages of any size near the limits arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_94_messages_as_large_as_the_lanes_allow_arrive() {
    let (one, other) = (bind().await, bind().await);
    let start = |own: &Arc<GrpcTransport>, peer: &Arc<GrpcTransport>| {
        Replicator::start(largest(), TypeTable::new(), own.clone(), with(peer)).unwrap()
    };
    let (a, b) = (start(&one, &other), start(&other, &one));
    assert!(a.wait_synced(PATIENCE).await && b.wait_synced(PATIENCE).await);
    let TransportSettings { maximum_frame_size: frame, maximum_large_frame_size: large, .. } = transport_settings();
    // Sizes around the limits of a message, of one that goes whole over the large lane, and of a second fragment.
    let sizes = (frame - 160..=frame).step_by(3).chain((large - 240..large + 8).step_by(7)).chain([2 * large - 60]);
    for size in sizes {
        let key = Key::<LwwRegister<String>>::new(format!("k{size}")).unwrap();
        let set = move |register: &mut LwwRegister<String>, cx: &mut UpdateCx<'_>| {
            register.set(cx, "x".repeat(size))?;
            Ok::<_, ClockExhausted>(())
        };
        let written = a.update(&key, WriteLevel::all(PATIENCE), LwwRegister::new, set).await;
        assert_eq!(written, Ok(()), "{size} bytes");
    }
    assert_eq!(a.stats().await.unwrap().unsent, 0);
}

/// A store that counts how often it is loaded.
struct Watched(MemoryStore, Arc<AtomicUsize>);

impl DurableStore for Watched {
    fn load_all(&self) -> BoxStream<'_, Result<LoadBatch, StoreError>> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.load_all().boxed()
    }

    fn append(&self, ops: Vec<StoreOp>) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.append(ops)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.flush()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.close()
    }
}

/// ddata 94, §8: one byte more is refused at the start, with both names and both values; the store is not touched, and
/// the name is free again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_94_one_byte_more_than_the_lanes_allow_is_refused_at_the_start() {
    let (node, touched) = (bind().await, Arc::new(AtomicUsize::new(0)));
    let durable = DurableSettings::of(["*"]);
    let start = |settings: ReplicatorSettings| {
        let store = Arc::new(Watched(MemoryStore::default(), touched.clone()));
        let settings = ReplicatorSettings { durable: durable.clone(), ..settings };
        Replicator::start_durable(settings, TypeTable::new(), node.clone(), Membership::fixed([]), store)
    };
    let most = largest();
    let too_large = [
        (
            ReplicatorSettings { max_message_bytes: most.max_message_bytes + 1, ..most.clone() },
            ["max_message_bytes is 65537", "transport.maximum_frame_size is 65536"],
        ),
        (
            ReplicatorSettings { bulk_fragment_bytes: most.bulk_fragment_bytes + 1, ..most.clone() },
            ["bulk_fragment_bytes is 131013, with its header 131073", "transport.maximum_large_frame_size is 131072"],
        ),
    ];
    for (settings, parts) in too_large {
        let Err(StartError::Settings(why)) = start(settings) else { panic!("it started") };
        assert!(parts.iter().all(|part| why.contains(part)), "{why}");
    }
    assert_eq!(touched.load(Ordering::SeqCst), 0);
    let started = start(most).unwrap();
    assert!(started.wait_loaded().await);
    assert_eq!(touched.load(Ordering::SeqCst), 1);
}
