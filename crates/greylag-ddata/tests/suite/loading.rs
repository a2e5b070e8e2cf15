//! A replicator in its task, while its store loads slowly. Source: ddata U4.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use greylag_core::Registry;
use greylag_crdt::GCounter;
use greylag_ddata::{
    DurableSettings, DurableStore, Key, Lifecycle, LoadBatch, Membership, MemoryStore, ReadLevel, Replicator,
    ReplicatorSettings, RequestError, StartError, StoreError, StoreOp, TypeTable, UpdateError, WriteLevel,
};
use greylag_transport::memory::MemoryNetwork;
use tokio::sync::Semaphore;

/// A store that loads when the test says so.
struct Gated {
    store: MemoryStore,
    gate: Arc<Semaphore>,
}

impl DurableStore for Gated {
    fn load_all(&self) -> BoxStream<'_, Result<LoadBatch, StoreError>> {
        let wait = stream::once(async {
            self.gate.acquire().await.expect("it is never closed").forget();
            Ok(LoadBatch::default())
        });
        wait.chain(self.store.load_all()).boxed()
    }

    fn append(&self, ops: Vec<StoreOp>) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.append(ops)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.flush()
    }

    fn set_aside(&self) -> BoxFuture<'_, Result<String, StoreError>> {
        self.store.set_aside()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.close()
    }
}

fn start(uid: u64, disk: &MemoryStore, gate: &Arc<Semaphore>) -> Replicator {
    let remoting =
        MemoryNetwork::new().node(format!("solo.loading:1#{uid}").parse().unwrap(), Arc::new(Registry::new()));
    let durable = DurableSettings::of(["visits"]);
    let settings = ReplicatorSettings { durable, stash_capacity: 2, ..ReplicatorSettings::test() };
    let store = Arc::new(Gated { store: disk.clone(), gate: gate.clone() });
    Replicator::start_durable(settings, TypeTable::new(), remoting, Membership::fixed([]), store).unwrap()
}

async fn visit(replicator: Replicator) -> Result<u128, UpdateError<greylag_crdt::CounterOverflow>> {
    let visits = Key::<GCounter>::new("visits").unwrap();
    let level = WriteLevel::Local;
    let visit = |visits: &mut GCounter, cx: &mut greylag_crdt::UpdateCx<'_>| {
        visits.increment(cx, 1)?;
        Ok(visits.value())
    };
    replicator.update(&visits, level, GCounter::new, visit).await
}

/// ddata 39, U4: updates sent before everything is loaded are applied after loading, in order; one more than there is
/// room for is refused; no replica is counted meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_39_requests_during_loading_are_served_after_it() {
    let (disk, gate) = (MemoryStore::default(), Arc::new(Semaphore::new(1)));
    let first = start(1, &disk, &gate);
    for expected in 1..=3 {
        assert_eq!(visit(first.clone()).await, Ok(expected));
    }
    first.shutdown().await;

    let second = start(2, &disk, &gate);
    assert_eq!((&*second.lifecycle().borrow(), second.replica_count()), (&Lifecycle::Loading, 0));
    let (one, two, three) = (visit(second.clone()), visit(second.clone()), visit(second.clone()));
    let open = async {
        // The third update finds no room: its refusal shows that the others wait.
        let refused = three.await;
        assert_eq!(refused, Err(UpdateError::Request(RequestError::Overloaded)));
        gate.add_permits(1);
    };
    let (one, two, ()) = tokio::join!(biased; one, two, open);
    assert_eq!((one, two), (Ok(4), Ok(5)));
    assert_eq!(second.replica_count(), 1);
    let visits = Key::<GCounter>::new("visits").unwrap();
    assert_eq!(second.get(&visits, ReadLevel::Local).await.unwrap().found().unwrap().value(), 5);
    second.shutdown().await;
}

/// ddata §8: durable keys need a store, and the error names them.
#[tokio::test]
async fn durable_keys_without_a_store_are_refused() {
    let remoting = MemoryNetwork::new().node("solo.loading:1#9".parse().unwrap(), Arc::new(Registry::new()));
    let durable = DurableSettings::of(["visits"]);
    let settings = ReplicatorSettings { durable, ..ReplicatorSettings::test() };
    let refused = Replicator::start(settings.clone(), TypeTable::new(), remoting, Membership::fixed([]));
    let Err(StartError::Settings(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("visits") && why.contains("no store"), "{why}");
    let short = DurableSettings { pruning_marker_time_to_live: Duration::from_secs(1), ..settings.durable.clone() };
    let error = ReplicatorSettings { durable: short, ..settings }.validate().unwrap_err().to_string();
    assert!(error.contains("durable.pruning_marker_time_to_live is 1s") && error.contains("300s"), "{error}");
}
