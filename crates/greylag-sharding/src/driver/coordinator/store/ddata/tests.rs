//! Incarnations of a coordinator on three nodes with replicas.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use greylag_core::{Generation, NodeAddress, Registry};
use greylag_ddata::{Membership, ReplicatorSettings, TypeTable};
use greylag_transport::memory::MemoryNetwork;

use super::*;
use crate::fingerprint::{Fingerprint, StateStoreMode};
use crate::ids::RegionId;
use crate::machine::message::CoordinatorId;

/// Keeps the nodes of these tests apart, as replicators are registered per process by incarnation.
static LAST_UID: AtomicU64 = AtomicU64::new(9_000);

/// The store of one incarnation on each of three nodes.
async fn stores() -> Vec<DdataStore> {
    let network = MemoryNetwork::new();
    let peers: Vec<NodeAddress> = (0..3).map(|node| format!("n{node}.store:1").parse().unwrap()).collect();
    let mut replicators = Vec::new();
    for peer in &peers {
        let uid = LAST_UID.fetch_add(1, Ordering::Relaxed) + 1;
        let remoting = network.node(format!("{peer}#{uid}").parse().unwrap(), Arc::new(Registry::new()));
        let types = TypeTable::new().with::<Register>().with::<Homes>();
        let custom_clocks = vec!["coordinator/*".to_owned()];
        let settings = ReplicatorSettings { custom_clocks, ..ReplicatorSettings::test() };
        replicators.push(Replicator::start(settings, types, remoting, Membership::fixed(peers.clone())).unwrap());
    }
    let name = EntityTypeName::new("Cart").unwrap();
    let mut stores = Vec::new();
    for replicator in replicators {
        replicator.replicas().wait_for(|now| now.unmet.is_empty()).await.unwrap();
        assert!(replicator.wait_synced(Duration::from_secs(30)).await);
        stores.push(DdataStore::new(&name, replicator, &ShardingSettings::test()));
    }
    stores
}

fn epoch(node: usize, epoch: u64) -> Vec<StateEvent> {
    let coordinator = CoordinatorId { node: format!("n{node}.store:1#1").parse().unwrap(), incarnation: 1 };
    let fingerprint = Fingerprint {
        protocol_major: 1,
        type_name: "Cart".into(),
        extractor: ("HashV1".into(), 1),
        number_of_shards: 12,
        remember_entities: false,
        remember_entities_store: "ddata".into(),
        state_store_mode: StateStoreMode::Ddata,
        role: String::new(),
        codec: Vec::new(),
    };
    vec![StateEvent::EpochStarted(Meta { epoch, coordinator, fingerprint })]
}

fn home(shard: u32, epoch: u64) -> Vec<StateEvent> {
    let region = RegionId { node: "n0.store:1#1".parse().unwrap(), incarnation: 1 };
    let generation = Generation::new(epoch, u64::from(shard)).unwrap();
    let home = StoredHome { region, generation, deallocated: false, previous: None, leftovers_from: None };
    vec![StateEvent::Home { shard: ShardId::from_index(shard), home }]
}

/// sharding 27: the older coordinator goes on after a pause. Its commit fails, although its write was stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_27_commits_of_an_older_incarnation_are_lost() {
    let stores = stores().await;
    let [older, newer, _] = &stores[..] else { unreachable!("there are three") };
    older.commit(epoch(0, 7)).await.unwrap();
    older.commit(home(1, 7)).await.unwrap();
    let read = newer.read().await.unwrap();
    assert_eq!((read.meta.unwrap().epoch, read.homes.len()), (7, 1));
    newer.commit(epoch(1, 8)).await.unwrap();
    assert_eq!(older.commit(home(2, 7)).await, Err(NotCommitted::Lost));
    newer.commit(home(2, 8)).await.unwrap();
    assert_eq!(older.commit(home(2, 7)).await, Err(NotCommitted::Lost), "again");
    let generation = newer.read().await.unwrap().homes[&ShardId::from_index(2)].generation;
    assert_eq!(generation.epoch(), 8, "a decision of the older one overwrites none of the newer one's");
}

/// sharding 27, §2.15: of two incarnations with the same epoch, both are never certain that their commit counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_27_of_two_incarnations_with_one_epoch_one_goes_on() {
    let stores = stores().await;
    let [one, _, other] = &stores[..] else { unreachable!("there are three") };
    one.commit(epoch(0, 7)).await.unwrap();
    let began = other.commit(epoch(2, 7)).await;
    let goes_on = one.commit(home(1, 7)).await;
    assert!(began.is_ok() != goes_on.is_ok(), "{began:?}, {goes_on:?}");
}
