//! Sharding scenario 71, with the replicated store: an update at one node is loaded at another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use greylag_core::{Generation, NodeAddress, Registry};
use greylag_ddata::{Membership, ReplicatorSettings, TypeTable};
use greylag_transport::memory::MemoryNetwork;

use super::*;

/// Keeps the nodes of these tests apart, as replicators are registered per process by incarnation.
static LAST_UID: AtomicU64 = AtomicU64::new(19_000);

/// The store of one shard on each of three nodes, each under a generation of its own.
async fn owners() -> Vec<DdataShard> {
    let network = MemoryNetwork::new();
    let peers: Vec<NodeAddress> = (0..3).map(|node| format!("n{node}.remembered:1").parse().unwrap()).collect();
    let mut replicators = Vec::new();
    for peer in &peers {
        let uid = LAST_UID.fetch_add(1, Ordering::Relaxed) + 1;
        let remoting = network.node(format!("{peer}#{uid}").parse().unwrap(), Arc::new(Registry::new()));
        let (types, members) = (TypeTable::new().with::<Ids>(), Membership::fixed(peers.clone()));
        replicators.push(Replicator::start(ReplicatorSettings::test(), types, remoting, members).unwrap());
    }
    let entity_type = EntityTypeName::new("Größe").unwrap();
    let mut owners = Vec::new();
    for (replicator, seq) in replicators.into_iter().zip(1..) {
        replicator.replicas().wait_for(|now| now.unmet.is_empty()).await.unwrap();
        assert!(replicator.wait_synced(Duration::from_secs(30)).await);
        let generation = Generation::new(5, seq).unwrap();
        let term = ShardTerm { entity_type: entity_type.clone(), shard: ShardId::from_index(7), generation };
        owners.push(DdataShard::new(&term, replicator, &ShardingSettings::test()).unwrap());
    }
    owners
}

fn ids(ids: impl IntoIterator<Item = u32>) -> Vec<EntityId> {
    ids.into_iter().map(|id| EntityId::new(format!("{id:04}")).unwrap()).collect()
}

fn update(starts: impl IntoIterator<Item = u32>, stops: impl IntoIterator<Item = u32>) -> StoreUpdate {
    StoreUpdate { starts: ids(starts), stops: ids(stops) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_71_the_next_owner_loads_what_the_updates_left() {
    let owners = owners().await;
    assert_eq!(owners[0].load().await.unwrap(), BTreeSet::new());
    for change in [update([1, 2, 3], []), update([4, 5, 6], [2, 3]), update([], [6]), update([2], [])] {
        owners[0].update(change).await.unwrap();
    }
    let left: BTreeSet<_> = ids([1, 2, 4, 5]).into_iter().collect();
    for owner in &owners {
        assert_eq!(owner.load().await.unwrap(), left);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_71_a_large_update_is_loaded_whole() {
    let owners = owners().await;
    owners[0].update(update(0..1_000, [])).await.unwrap();
    assert_eq!(owners[1].load().await.unwrap().len(), 1_000);
    owners[0].update(update(1_000..2_000, 0..1_000)).await.unwrap();
    assert_eq!(owners[2].load().await.unwrap(), ids(1_000..2_000).into_iter().collect());
}
